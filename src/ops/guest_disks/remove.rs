//! `disk remove`: removes a disk, at the next start or at once. Keeps its data unless requested
//! otherwise, and deletes it only if it is proven to be the domain's own.

use super::add::ChangedDisk;
use super::error::GuestDiskError;
use super::settled::settled;
use super::subject::{Subject, said};
use crate::apply::{ApplyError, LET_GO_S, LiveStep, Step, StepError};
use crate::change::{Change, DomainChange, Part};
use crate::domain::Element;
use crate::domain::disk_change::{path_of, target_of};
use crate::domain::guest::Made;
use crate::error::{Coded as _, Error, Refusal, Result};
use crate::guest::still;
use crate::history::guest::drop_made;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{Use, Uses};
use crate::made::{Fate, Proof, keep_data, other_names, removal};
use crate::reporter::Question;
use crate::shell::word;
use crate::storage::abilities;
use crate::world::World;
use std::path::Path;

/// A request to remove a disk from a domain.
#[derive(Debug, Clone)]
pub struct RemoveDisk {
    /// The domain.
    pub name: String,
    /// The disk, by its name in the definition.
    pub target: String,
    /// Whether it is detached from the running guest, too.
    pub live: bool,
    /// Whether its data is deleted.
    pub delete_data: bool,
}

/// Plans the removal of a disk.
pub fn remove(world: &World, wanted: &RemoveDisk) -> Result<Change<ChangedDisk>> {
    let hypervisor = &*world.hypervisor()?;
    let RemoveDisk { name, target, live, delete_data } = wanted;
    let subject = Subject::read(hypervisor, name)?;
    if *live {
        subject.running()?;
    }
    subject.refuse_kept(hypervisor)?;
    let (defined, running) = subject.disk(target)?;
    if *live && running.is_some() {
        refuse_still(&subject, target)?;
    }
    refuse_half(&subject, wanted, defined.is_some(), running.is_some())?;
    let path = defined.or(running).and_then(path_of);
    let made = subject.xml.made().into_iter().find(|made| Some(&made.path) == path.as_ref());
    let mut warnings = Vec::new();
    let mut last = Vec::new();
    if let Some(running) = running.filter(|_| *live) {
        last.push(detach(&subject, target, running)?);
    }
    if *delete_data {
        let made = made.as_ref().filter(|_| defined.is_some());
        last.extend(delete(&subject, target, made, hypervisor, world)?);
    } else if let Some(made) = &made {
        let path = Path::new(&made.path);
        let uses = Uses::read(hypervisor)?;
        let others = uses.others_of_disk(path, made.volume.as_ref(), &subject.uuid);
        warnings.push(stays(made, running.is_some() && !live, others.first()));
    }
    if defined.is_some() && subject.xml.disks().next().and_then(target_of).as_ref() == Some(target)
    {
        warnings.push(format!("`{target}` is the first disk of `{name}`, from which guests boot"));
    }
    let is_file_here = *delete_data && hypervisor.machine().is_here();
    let file = path.as_ref().filter(|_| is_file_here);
    let names = file.map_or(0, |path| other_names(Path::new(path)));
    warnings.extend(path.as_ref().and_then(|path| keep_data(path, names)));
    let forget = made.as_ref().map(|made| made.path.as_str());
    let after = subject.xml.without_disk(target, forget)?;
    let after = settled(&subject.xml, after, abilities(hypervisor, false), hypervisor, world)?;
    let forgotten = forget.filter(|_| hypervisor.has_guests_here());
    let first = forgotten.map(|path| drop_made(world.state(), &subject.uuid, path)).transpose()?;
    let first = first.flatten().into_iter().collect();
    let source = defined.or(running).map(said).unwrap_or_default();
    let about = ChangedDisk {
        name: name.clone(),
        target: target.clone(),
        source: path,
        live: running.is_some() && *live,
        waits_for_start: running.is_some() && !live,
        deleted: *delete_data,
        other_names: names,
        definitions: (subject.xml.text().to_owned(), after.text().to_owned()),
    };
    let change = DomainChange {
        verb: "disk remove",
        name: name.clone(),
        what: vec![format!("disk {target} removed: {source}")],
        before: subject.xml.text().to_owned(),
        after,
        first,
        last,
    };
    let data = if *delete_data { " with its data" } else { "" };
    let what = format!("removing disk `{target}` of domain `{name}`{data}");
    let question = Some(Question::Agree { lines: None, question: "remove it?", what });
    let again = format!("gpuvm disk remove {} {}", word(name), word(target));
    let all = Change::new("disk remove", name, Vec::new(), about);
    Ok(Change { parts: vec![Part::Domain(change)], warnings, question, again, ..all })
}

/// The message about a disk that stays. Where the running guest still has it (`runs_with`), or
/// others do (`other`), no command is named that would be pasted while it is written.
fn stays(made: &Made, runs_with: bool, other: Option<&Use>) -> String {
    let path = &made.path;
    match other {
        Some(used) => format!("disk {path} stays; {used}"),
        None if runs_with => format!("disk {path} stays; the running guest has it until it is off"),
        None => format!("disk {path} stays; {} removes it", removal(made)),
    }
}

/// Refuses incomplete removals: of data that a guest still writes, and of a disk that only the
/// running guest has.
fn refuse_half(
    subject: &Subject,
    wanted: &RemoveDisk,
    is_defined: bool,
    runs_with: bool,
) -> Result<()> {
    let (name, target) = (subject.name.clone(), wanted.target.clone());
    let line = line(&name, &target);
    if !is_defined && !wanted.live {
        let hint = format!("`{line} --live` takes it from the running guest");
        return Err(GuestDiskError::OnlyLive { name, target }.hint(hint));
    }
    if wanted.delete_data && runs_with && !wanted.live {
        let hint = format!(
            "`{line} --delete-data --live` takes it from the running guest first; `gpuvm stop {}` \
             ends that",
            word(&name)
        );
        return Err(GuestDiskError::Runs { name, target }.hint(hint));
    }
    Ok(())
}

/// Refuses to ask a paused guest to release a disk.
fn refuse_still(subject: &Subject, target: &str) -> Result<()> {
    let Some((state, first)) = still(subject.state, &subject.name) else { return Ok(()) };
    let line = line(&subject.name, target);
    let hint = format!(
        "{first} lets it go on, then `{line} --live`; or `{line}` takes the disk from its next \
         start"
    );
    Err(GuestDiskError::NotRunning { name: subject.name.clone(), state }.hint(hint))
}

/// The command that removes a disk.
fn line(name: &str, target: &str) -> String {
    format!("gpuvm disk remove {} {}", word(name), word(target))
}

/// Adds the remedy where a guest does not release a disk.
pub fn explained(error: Error, wanted: &RemoveDisk) -> Error {
    let Error::Apply(ApplyError::Failed { source: StepError::HoldsDisk { .. }, .. }) = &error
    else {
        return error;
    };
    let RemoveDisk { name, target, .. } = wanted;
    let message = format!("disk `{target}` is not removed from running domain `{name}`");
    let line = line(name, target);
    let hint = format!(
        "unmount it in the guest and run it again; `{line}` takes the disk from its next start \
         instead"
    );
    error.around(Refusal::around(message, hint))
}

/// Returns the step that detaches the disk from the running guest.
fn detach(subject: &Subject, target: &str, disk: Element<'_>) -> Result<Step> {
    let Some(path) = path_of(disk) else {
        let hint = format!("`{}` removes it at the next start", line(&subject.name, target));
        return Err(GuestDiskError::NoPath { target: target.to_owned() }.hint(hint));
    };
    let (name, xml) = (subject.name.clone(), Some(disk.xml().to_owned()));
    Ok(Step::Live(LiveStep::DetachDisk { name, path, wait_s: LET_GO_S, xml }))
}

/// Returns the step that deletes its data, if that is proven to be the domain's own; `None` if it
/// is gone already.
fn delete(
    subject: &Subject,
    target: &str,
    made: Option<&Made>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Option<Step>> {
    let target_of = || target.to_owned();
    let keeps =
        format!("`gpuvm disk remove {} {}` keeps its data", word(&subject.name), word(target));
    let Some(made) = made else {
        let why = "gpuvm did not create it for this domain".to_owned();
        return Err(GuestDiskError::NotOurs { target: target_of(), why }.hint(keeps));
    };
    let uses = Uses::read(hypervisor)?;
    let proof = Proof::of(&subject.xml, &subject.uuid, &uses, hypervisor, world.state());
    match proof.fate(made) {
        Fate::Goes(step) => Ok(Some(step)),
        Fate::Gone => Ok(None),
        Fate::Stays(why) => Err(GuestDiskError::NotOurs { target: target_of(), why }.hint(keeps)),
    }
}
