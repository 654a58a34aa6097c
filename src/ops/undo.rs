//! `undo`: reverts the last change of a domain, if the domain has not been edited since.

mod other;
mod written;

use crate::apply::nic::NicStep;
use crate::apply::{
    self, ApplyError, CheckStep, DeviceStep, DomainStep, HostStep, LiveStep, MadeAs, Step,
    StepError, VolumeStep, now_s,
};
use crate::autostart;
use crate::bdf::Bdf;
use crate::change::{Change, Part};
use crate::claim::claim;
use crate::delete::{Delete, delete};
use crate::discover::hung_mounts::Silent;
use crate::domain::disk_change::path_of;
use crate::domain::guest::{Made, VolumeRef};
use crate::domain::{DomainXml, differences};
use crate::domain_history::{boot, refuse_unread, starts_saved, warn_of_saved_state, when};
use crate::error::{Class, Coded, Error, Refusal, Result, classed};
use crate::fsroot::FsRoot;
use crate::history::{Beyond, DiskCopy, Entry, NewImage};
use crate::hypervisor::file_users::{Conflict, How, Use, User, Uses, files_of};
use crate::hypervisor::{DomainSummary, Hypervisor, XmlOf};
use crate::identity::{FileId, Identity};
use crate::lookup::find;
use crate::made::{Fate, Proof, removal_of_file, removal_of_volume, said};
use crate::placement::{Held, Occupancy};
use crate::recognise;
use crate::reporter::Question;
use crate::session::Session;
use crate::shell::word;
use crate::snapshot::over_it;
use crate::vgpu;
use crate::world::World;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use written::unwritten;

/// The reason a change of a domain is not undone.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "undo-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum UndoError {
    /// The domain had another name when the change was made.
    #[error("domain `{name}` was `{was}` when {change} was made")]
    Renamed { name: String, was: String, change: String },
    /// The domain was edited since the change to be undone.
    #[error("domain `{name}` was edited since {change}")]
    Edited { name: String, change: String },
    /// Whether the guest has written on a copied disk cannot be determined from here.
    #[error(
        "{change} copied a disk into volume `{volume}` of pool `{pool}`, and whether the guest has \
                 written on that cannot be seen from here"
    )]
    CopyUnseen { change: String, volume: String, pool: String },
    /// The change deleted the data of a disk.
    #[error("{change} deleted {disk}, which cannot be restored")]
    DataDeleted { change: String, disk: String },
    /// A change that nothing takes back.
    #[error("{change} cannot be undone: {why}")]
    Final { change: String, why: String },
    /// The guest has written on a disk that was made for it as another one is.
    #[error("{change} made disk {path}, on which domain `{name}` has written since")]
    Written { change: String, path: String, name: String },
    /// It is not known whether the guest has written on a disk that was made for it as another one
    /// is.
    #[error("it is not known whether domain `{name}` has written on {path} of {change}: {why}")]
    Unproven { name: String, path: String, change: String, why: String },
    /// The domain has state that belongs to the disks that the change made.
    #[error("domain `{name}` has {kept} on disks of {change}, which would be deleted with them")]
    Kept {
        name: String,
        /// Its objects: "2 snapshots".
        kept: String,
        change: String,
    },
    /// Images of others are overlays on a disk of the domain.
    #[error("disk {path} is not taken back: {used}, which would be damaged")]
    Below {
        path: String,
        /// Who has an image over it.
        used: String,
    },
    /// Another file is where a disk of the domain was.
    #[error("disk {path} is not taken back: another file is there now than the one it had")]
    OtherFile { path: String },
    /// A running emulated guest would have to release vCPUs.
    #[error("running domain `{name}` keeps its vCPUs")]
    KeepsVcpus { name: String },
    /// A disk that the domain had is in use.
    #[error("disk {path} is not taken back: {used}")]
    DiskTaken { path: String, used: String },
}

impl Coded for UndoError {}

/// A request to undo a domain's last change.
#[derive(Debug, Clone)]
pub struct Undo {
    /// The domain.
    pub name: String,
    /// Whether edits since then may be lost, and converted disks abandoned.
    pub force: bool,
    /// Whether only the definitions are compared, so that edits since then do not matter.
    pub edited: bool,
}

/// The plan of an undo.
#[derive(Debug)]
pub struct Undoing {
    /// The change that is undone.
    pub entry: Entry,
    /// The current definition.
    pub now: String,
    /// Whether the domain runs with the change, so that going back waits for its next start.
    pub waits: bool,
}

/// The undone change.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Undone {
    /// The domain's name.
    pub name: String,
    /// The change that was undone.
    pub number: u32,
    /// The changed settings.
    pub what: Vec<String>,
    /// Whether the reverted change takes effect at the next start.
    pub waits_for_start: bool,
    /// The change in words.
    #[serde(skip)]
    pub change: String,
}

/// Undoes the last change of a domain, and returns the differences from before; `None` if it was
/// only shown.
pub fn run(session: &mut Session<'_>, world: &World, wanted: &Undo) -> Result<Option<Undone>> {
    let done = session.run(|world| undo(world, wanted));
    let done = done.map_err(|error| keeps_vcpus(written_since(error, &wanted.name)))?;
    if !done.made {
        return Ok(None);
    }
    read_back(world, &done.change.about)?;
    let copies: Vec<DiskCopy> = done.change.about.entry.copies().filter(|_| wanted.force).collect();
    if !copies.is_empty() {
        let uses = Uses::read(&*world.hypervisor()?)?;
        for DiskCopy { pool, name, .. } in copies {
            let path = name.clone().into();
            let image = NewImage { path, volume: Some(VolumeRef { pool, name }) };
            world.warning(&left(&image, &uses, ""));
        }
    }
    let redefines = |step: &Step| matches!(step, Step::Domain(DomainStep::Redefine { .. }));
    let plugs = |step: &Step| step.is_plugging();
    let steps = done.change.steps();
    let is_live = steps.iter().any(plugs);
    let waits_for_start = done.change.about.waits && steps.iter().any(redefines) && !is_live;
    let Undoing { entry, .. } = done.change.about;
    let change = named(&entry);
    let name = match entry.beyond() {
        Some(Beyond::Renamed(before)) => before.to_owned(),
        _ => wanted.name.clone(),
    };
    let (number, what) = (entry.number, entry.what);
    Ok(Some(Undone { name, number, what, waits_for_start, change }))
}

/// Adds the remedy where a running guest does not release vCPUs.
fn keeps_vcpus(error: Error) -> Error {
    let Some(Step::Live(LiveStep::PlugVcpus { name, .. })) = error.step() else { return error };
    let message = format!("running domain `{name}` keeps its vCPUs");
    let hint = format!("`gpuvm stop {name}`, then `gpuvm undo {name}`", name = word(name));
    error.around(Refusal::around(message, hint))
}

/// A change in words.
pub fn named(entry: &Entry) -> String {
    format!("change {} ({}, {})", entry.number, entry.verb, when(entry.at_s))
}

/// Plans to undo the last change of a domain.
pub fn undo(world: &World, wanted: &Undo) -> Result<Change<Undoing>> {
    let hypervisor = &*world.hypervisor()?;
    let Undo { name, force, edited } = wanted;
    let edited = *force || *edited;
    let summary = find(hypervisor, name)?;
    let history = world.history(&summary.uuid)?;
    refuse_unread(world, ("undo", name, &summary.uuid), &history)?;
    let Some(entry) = history.entries.last() else {
        let hint = "changes that were made without gpuvm, or by another user, are not recorded";
        return Err(classed(
            Class::NotFound,
            format!("domain `{name}` has no change to undo"),
            hint,
        ));
    };
    refuse_renamed(entry, name)?;
    let now = hypervisor.xml(name, XmlOf::Inactive)?;
    let runs = summary.state.is_active();
    if entry.makes() {
        return unmake(world, (name, *force), entry, (now, runs));
    }
    if let Some(beyond) = entry.beyond() {
        let all = (&history, entry, beyond);
        return other::undo(
            world,
            (&summary, *force),
            all,
            Undoing { entry: entry.clone(), now, waits: runs },
        );
    }
    if !edited {
        refuse_edited(entry, &now, name)?;
    }
    refuse_taken(hypervisor, entry, &now, &summary.uuid, *force)?;
    if !force {
        refuse_lost(entry, name)?;
        if !edited {
            refuse_kept(hypervisor, entry, name)?;
        }
        refuse_other_files(world, (&entry.before, &now), name)?;
        refuse_gone(world, (&entry.before, &now), name)?;
    }
    refuse_held(world, (&entry.before, &now), &summary)?;
    refuse_devices(entry, name, runs)?;
    let steps = entry.undo(&now, runs, &boot()?, !force);
    refuse_kept_vcpus(&steps, hypervisor)?;
    let mut steps = autostart::undone(steps, name, hypervisor, world)?;
    let images = entry.images().collect();
    let images = unwritten_go(world, (&summary, entry, &now), images, &mut steps)?;
    steps.extend(vgpus_go(&now, &entry.before, world)?);
    steps.extend(history.undone(entry, now_s()));
    let mut stays = keep_needed(hypervisor, entry, &summary.uuid, &mut steps)?;
    stays.extend(entry.grown());
    if *force {
        stays.extend(left_over(hypervisor, entry)?);
    }
    stays.extend(lost_edits(entry, &now, name));
    stays.extend(images_left(&images, hypervisor, &summary.uuid)?);
    let what = format!("undoing {} of domain `{name}`", named(entry));
    let question = Some(Question::Agree { lines: None, question: "undo it?", what });
    let again = format!("gpuvm undo {}", word(name));
    // A running guest that never had the disk has nothing to give back.
    let makes = entry.images().next().is_some();
    let waits = runs && !(makes && is_only_for_start(hypervisor, entry, name)?);
    let about = Undoing { entry: entry.clone(), now, waits };
    let change = Change::new("undo", name, steps, about);
    Ok(Change { warnings: stays, question, again, ..change })
}

/// The steps that clear vGPUs which a definition has and the one before it had not.
fn vgpus_go(now: &str, before: &str, world: &World) -> Result<Vec<Step>> {
    let now = DomainXml::parse(now)?;
    let lost = vgpu::claim::lost(&now, &DomainXml::parse(before)?)?;
    vgpu::claim::give_back_these(&now, &lost, world)
}

/// The messages about images that stay.
fn images_left(
    images: &[NewImage],
    hypervisor: &dyn Hypervisor,
    uuid: &str,
) -> Result<Vec<String>> {
    if images.is_empty() {
        return Ok(Vec::new());
    }
    let uses = Uses::read(hypervisor)?;
    Ok(images.iter().map(|image| left(image, &uses, uuid)).collect())
}

/// Adds the steps that delete images of a change which are proven to be the domain's own and
/// without data, so that nothing is lost with them. Returns the others.
fn unwritten_go(
    world: &World,
    (row, entry, now): (&DomainSummary, &Entry, &str),
    mut images: Vec<NewImage>,
    steps: &mut Vec<Step>,
) -> Result<Vec<NewImage>> {
    let hypervisor = &*world.hypervisor()?;
    // A saved guest has its images, and may have written to them in its memory.
    let stay =
        images.is_empty() || !world.is_here()? || !starts_saved(hypervisor, &row.name).is_empty();
    if stay {
        return Ok(images);
    }
    let (xml, uses) = (DomainXml::parse(now)?, Uses::read(hypervisor)?);
    let made = xml.made();
    let proof = Proof::of(&xml, &row.uuid, &uses, hypervisor, world.state());
    images.retain(|image| {
        let is_its = |made: &&Made| match &image.volume {
            Some(volume) => made.volume.as_ref() == Some(volume),
            None => made.volume.is_none() && image.path == Path::new(&made.path),
        };
        let Some(made) = made.iter().find(is_its) else { return true };
        let path = PathBuf::from(&made.path);
        match proof.fate(made) {
            Fate::Goes(delete) if apply::is_blank(&path) => {
                let domain = entry.domain.clone();
                steps.push(CheckStep::AsMade { domain, path, made: MadeAs::Blank }.into());
                steps.push(delete);
                false
            }
            fate => fate != Fate::Gone,
        }
    });
    Ok(images)
}

/// Whether a change is only in the definition of the next start of a running domain: the functions
/// that it added are missing in the running one, and those that it removed are present.
fn is_only_for_start(hypervisor: &dyn Hypervisor, entry: &Entry, name: &str) -> Result<bool> {
    let Some(after) = &entry.after else { return Ok(false) };
    let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    let (before, after) = (DomainXml::parse(&entry.before)?, DomainXml::parse(after)?);
    let paths = |one: &DomainXml, other: &DomainXml| -> BTreeSet<String> {
        differences(one, other).into_iter().map(|found| found.path).collect()
    };
    let (given, taken) = (paths(&after, &before), paths(&before, &after));
    let (lacks, lost) = (paths(&after, &live), paths(&before, &live));
    Ok(given.len() + taken.len() > 0 && given.is_subset(&lacks) && taken.is_disjoint(&lost))
}

/// The message about an image that stays; where others have it, without a command that deletes it.
fn left(image: &NewImage, uses: &Uses, own_uuid: &str) -> String {
    let NewImage { path, volume } = image;
    let known = volume.as_ref().and_then(|volume| uses.volume(volume)).map(|known| &known.path);
    let others = uses.others_of_disk(known.unwrap_or(path), volume.as_ref(), own_uuid);
    let (said, removal) = match volume {
        Some(VolumeRef { pool, name }) => {
            (format!("volume `{name}` of pool `{pool}`"), removal_of_volume(pool, name))
        }
        None => (format!("disk {}", path.display()), removal_of_file(&path.to_string_lossy())),
    };
    let next = others.first().map_or_else(|| format!("{removal} deletes it"), Use::to_string);
    format!("{said} is kept with the guest's data; {next}")
}

/// Refuses a domain that had another name when it was changed.
fn refuse_renamed(entry: &Entry, name: &str) -> Result<()> {
    if entry.domain == *name {
        return Ok(());
    }
    let hint = format!("`gpuvm rename {} {}` first", word(name), word(&entry.domain));
    let (name, was) = (name.to_owned(), entry.domain.clone());
    Err(UndoError::Renamed { name, was, change: named(entry) }.hint(hint))
}

/// Refuses a domain that was edited since a change.
fn refuse_edited(entry: &Entry, now: &str, name: &str) -> Result<()> {
    if entry.after.as_deref() == Some(now) {
        return Ok(());
    }
    let error = UndoError::Edited { name: name.to_owned(), change: named(entry) };
    Err(error.hint(format!(
        "`gpuvm undo {name} --diff` shows what would be lost; --force undoes it anyway",
        name = word(name)
    )))
}

/// The message about edits that undoing a change loses; `None` if there are none.
fn lost_edits(entry: &Entry, now: &str, name: &str) -> Option<String> {
    entry.after.as_deref().filter(|after| *after != now)?;
    let change = named(entry);
    let diff = format!("`gpuvm undo {} --diff` shows them", word(name));
    Some(format!("edits of domain `{name}` since {change} are lost; {diff}"))
}

/// Refuses to return to an image that is not compared, or to one that is gone.
fn refuse_lost(entry: &Entry, name: &str) -> Result<()> {
    if let Some(copy) = entry.copies().find(|copy| !copy.comparable) {
        let DiskCopy { pool, name: volume, .. } = copy;
        return Err(UndoError::CopyUnseen {
            change: named(entry).to_string(),
            volume: volume.to_string(),
            pool: pool.to_string(),
        }
        .hint(format!(
            "`gpuvm undo {name}` on its machine sees it; --force goes back to the old image in any \
                 case",
            name = word(name)
        )));
    }
    if let Some(disk) = entry.deleted() {
        return Err(UndoError::DataDeleted { change: named(entry), disk }.hint(format!(
            "`gpuvm undo {name} --force` restores the definition, which names a disk that is gone",
            name = word(name)
        )));
    }
    Ok(())
}

/// Refuses to delete disks with snapshots or a saved state of the domain: a comparison with the old
/// disks sees nothing of these.
fn refuse_kept(hypervisor: &dyn Hypervisor, entry: &Entry, name: &str) -> Result<()> {
    if entry.copies().next().is_none() {
        return Ok(());
    }
    let Some(kept) = hypervisor.keeps(name)?.into_iter().next() else { return Ok(()) };
    let hint = format!(
        "{}; `gpuvm undo {} --force` goes back to the old disks, and leaves the new ones with it",
        kept.hint,
        word(name)
    );
    let (name, change) = (name.to_owned(), named(entry));
    Err(UndoError::Kept { name, kept: kept.what, change }.hint(hint))
}

/// The message about images that a forced undo leaves over the disks that the domain returns to: it
/// must not write these before the images are whole without them.
fn left_over(hypervisor: &dyn Hypervisor, entry: &Entry) -> Result<Vec<String>> {
    let is_over = |copy: &DiskCopy| {
        entry.steps.iter().any(|step| match step {
            Step::Volume(VolumeStep::Make { pool, volume, .. }) => {
                step.makes_overlay() && *pool == copy.pool && volume.name == copy.name
            }
            _ => false,
        })
    };
    let over: Vec<DiskCopy> = entry.copies().filter(is_over).collect();
    if over.is_empty() {
        return Ok(Vec::new());
    }
    let uses = Uses::read(hypervisor)?;
    let said = |DiskCopy { pool, name, .. }: DiskCopy| {
        let known = uses.volume(&VolumeRef { pool, name })?;
        let (by, whole) = over_it(&known.path);
        Some(format!(
            "{by}, the disk that the guest goes back to, and is damaged once that is written: the \
             guest is not started before; {whole}"
        ))
    };
    Ok(over.into_iter().filter_map(said).collect())
}

/// Refuses to take vCPUs from a running emulated guest: QEMU does not report when it has released
/// one.
fn refuse_kept_vcpus(steps: &[Step], hypervisor: &dyn Hypervisor) -> Result<()> {
    for step in steps {
        let Step::Live(LiveStep::PlugVcpus { name, vcpus, was, .. }) = step else { continue };
        if vcpus < was && DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?.is_emulated() {
            let hint = format!("`gpuvm stop {name}`, then `gpuvm undo {name}`", name = word(name));
            return Err(UndoError::KeepsVcpus { name: name.clone() }.hint(hint));
        }
    }
    Ok(())
}

/// Refuses to take devices from a running guest.
fn refuse_devices(entry: &Entry, name: &str, runs: bool) -> Result<()> {
    let binds = |step: &Step| match step {
        Step::Device(DeviceStep::Bind { .. }) => true,
        // It was set on the card before a running guest got it, and stays until the guest loses it.
        Step::Host(HostStep::Nic(NicStep::SetGuard { .. })) => {
            !entry.steps.iter().any(Step::is_plugging)
        }
        _ => false,
    };
    if !runs || !entry.steps.iter().any(binds) {
        return Ok(());
    }
    let message =
        format!("domain `{name}` is running; devices can only be added or removed while it is off");
    let hint = format!("`gpuvm stop {}` first", word(name));
    Err(classed(Class::WrongState, message, hint))
}

/// Plans to delete a domain that a change has made, as `delete` does: with its disks, as far as
/// they are proven its own.
fn unmake(
    world: &World,
    (name, force): (&str, bool),
    entry: &Entry,
    (now, runs): (String, bool),
) -> Result<Change<Undoing>> {
    if runs {
        let message = format!("domain `{name}` runs, and undoing {} deletes it", named(entry));
        let hint = format!("`gpuvm stop {}` first", word(name));
        return Err(classed(Class::WrongState, message, hint));
    }
    let checks = if force { Vec::new() } else { unwritten(world, name, entry, &now)? };
    let wanted = Delete { name: name.to_owned(), keep_data: false };
    let Change { parts: deletes, warnings, .. } = delete(world, &wanted)?;
    let mut parts = vec![Part::Steps(checks)];
    parts.extend(deletes);
    let what = format!("undoing {}: it deletes domain `{name}` with its disks", named(entry));
    let question = Some(Question::Agree { lines: None, question: "undo it?", what });
    let again = format!("gpuvm undo {}", word(name));
    let about = Undoing { entry: entry.clone(), now, waits: runs };
    let change = Change::new("undo", name, Vec::new(), about);
    Ok(Change { parts, warnings, question, again, ..change })
}

/// The command that deletes a guest with its data: no other verb than the requested one.
fn delete_hint(name: &str) -> String {
    format!("`gpuvm undo {name} --force` deletes it with its data", name = word(name))
}

/// Refuses to go back to a disk that another domain uses since; `force`: unless images of others
/// are overlays on it, which would be damaged once the guest writes.
fn refuse_taken(
    hypervisor: &dyn Hypervisor,
    entry: &Entry,
    now: &str,
    own_uuid: &str,
    force: bool,
) -> Result<()> {
    let (before, now) = (DomainXml::parse(&entry.before)?, DomainXml::parse(now)?);
    let (old, new) = (files_of(&before, &[]), files_of(&now, &[]));
    if old.iter().all(|file| new.contains(file)) {
        return Ok(());
    }
    // The image that the change itself has put over it.
    let own: Vec<String> =
        entry.copies().map(|copy| format!("{}/{}", copy.pool, copy.name)).collect();
    let mut taken = Uses::read(hypervisor)?.conflicts(&before, Some(own_uuid));
    taken.retain(|taken| !new.contains(&taken.path));
    taken.retain(|taken| !matches!(&taken.used.by, User::Volume(name) if own.contains(name)));
    let is_below = |taken: &&Conflict| taken.used.how == How::Over;
    if let Some(Conflict { path, used, .. }) = taken.iter().find(is_below) {
        let (path, said) = (path.display().to_string(), used.to_string());
        let hint = match &used.by {
            User::Domain { name, .. } => {
                let other = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
                let of = word(name);
                if other.made().is_empty() {
                    format!("`gpuvm disk list {of}` shows which disk that is; it has to go first")
                } else {
                    format!("`gpuvm delete {of}` first")
                }
            }
            User::Volume(volume) => {
                let (pool, name) = volume.split_once('/').unwrap_or(("default", volume));
                format!("if it is unused, {} deletes it", removal_of_volume(pool, name))
            }
            User::Loop(name) => format!("`losetup -d /dev/{}` first", word(name)),
        };
        return Err(UndoError::Below { path, used: said }.hint(hint));
    }
    match taken.first().filter(|_| !force) {
        None => Ok(()),
        Some(Conflict { path, used, .. }) => {
            Err(UndoError::DiskTaken { path: path.display().to_string(), used: used.to_string() }
                .hint("`gpuvm list` shows what each guest has; --force undoes it anyway"))
        }
    }
}

/// Refuses to return to a file that was put in the place of a disk that gpuvm had made: the guest
/// would write to it.
fn refuse_other_files(world: &World, (before, now): (&str, &str), name: &str) -> Result<()> {
    if !world.is_here()? {
        return Ok(());
    }
    let [old, new] = [before, now].map(|text| Ok(files_of(&DomainXml::parse(text)?, &[])));
    let (old, new): (Result<Vec<_>>, Result<Vec<_>>) = (old, new);
    let (old, new) = (old?, new?);
    let state = world.state().map_or_else(apply::state_root, Path::to_owned);
    let is_other = |path: &&PathBuf| match apply::disk_made_at(&state, path) {
        Some(Identity::File(was) | Identity::Volume { file: Some(was), .. }) => {
            apply::is_another_file(Some(&was), path)
        }
        _ => false,
    };
    match old.iter().filter(|file| !new.contains(file)).find(is_other) {
        None => Ok(()),
        Some(path) => {
            let path = path.display().to_string();
            let hint = format!(
                "`ls -l {}` shows it; `gpuvm undo {} --force` gives it to the guest anyway",
                word(&path),
                word(name)
            );
            Err(UndoError::OtherFile { path }.hint(hint))
        }
    }
}

/// Refuses to go back to a file that is gone: the guest would not start.
fn refuse_gone(world: &World, (before, now): (&str, &str), name: &str) -> Result<()> {
    if !world.is_here()? {
        return Ok(());
    }
    let files = |text: &str| -> Result<Vec<String>> {
        let xml = DomainXml::parse(text)?;
        let files = xml.disks().filter(|disk| disk.attr("type").is_none_or(|kind| kind == "file"));
        Ok(files.filter_map(path_of).collect())
    };
    let (old, new) = (files(before)?, files(now)?);
    let is_gone = |path: &&String| {
        Silent::read().why(Path::new(path)).is_none()
            && matches!(FileId::at(Path::new(path)), Ok(None))
    };
    let Some(path) = old.iter().filter(|path| !new.contains(path)).find(is_gone) else {
        return Ok(());
    };
    let message = format!("disk {path} cannot be given back: the file does not exist any more");
    let hint = format!(
        "put the file back, or `gpuvm undo {} --force`: then the guest does not start before the \
         file is there, or the disk is removed from it",
        word(name)
    );
    Err(classed(Class::NotFound, message, hint))
}

/// Refuses to give functions back that another domain has now, or that the host uses, as `set`
/// does.
fn refuse_held(world: &World, (before, now): (&str, &str), row: &DomainSummary) -> Result<()> {
    let has = |text: &str| -> Result<Vec<Bdf>> { Ok(DomainXml::parse(text)?.held(false)?.devices) };
    let (mut comes, now) = (has(before)?, has(now)?);
    comes.retain(|bdf| !now.contains(bdf));
    if comes.is_empty() {
        return Ok(());
    }
    let held = world.occupancy(false)?;
    let others = held.domains.iter().filter(|other| other.domain != row.name);
    let holds = |bdf: &Bdf| {
        let holder = others.clone().find(|other| other.devices.contains(bdf))?;
        Some((*bdf, holder.domain.clone(), holder.holds(*bdf)))
    };
    if let Some((bdf, holder, holds)) = comes.iter().find_map(holds) {
        let message = format!("domain `{}` cannot have {bdf} back", row.name);
        let message = format!("{message}: it {holds}");
        return Err(classed(Class::InUse, message, who_holds(&holder)));
    }
    if world.has_guests_here()? {
        refuse_recorded_elsewhere(before, &comes, row, &held)?;
    }
    let topology = world.topology()?;
    comes.retain(|bdf| topology.device(*bdf).is_some());
    claim(&row.name, &comes, &topology, &held, world).map(drop)
}

/// The command that shows how another domain got a device.
fn who_holds(holder: &str) -> String {
    format!(
        "`gpuvm device list` shows who holds which device, `gpuvm history {}` how `{holder}` got it",
        word(holder)
    )
}

/// Refuses to give back a device that has moved to another address and belongs to another domain
/// there: the revived record would say that it is this one's.
fn refuse_recorded_elsewhere(
    before: &str,
    comes: &[Bdf],
    row: &DomainSummary,
    held: &Occupancy,
) -> Result<()> {
    for (known, places) in recognise::elsewhere(&DomainXml::parse(before)?, &FsRoot::live()?)? {
        if !comes.contains(&known.bdf) {
            continue;
        }
        let has = |other: &&Held| places.iter().any(|place| other.devices.contains(place));
        let mut others = held.domains.iter().filter(|other| other.domain != row.name);
        if let Some(other) = others.find(has) {
            let message = format!(
                "domain `{}` cannot have {} back: {} is now at {}, which domain `{}` has",
                row.name, known.bdf, known.identity, places[0], other.domain
            );
            return Err(classed(Class::InUse, message, who_holds(&other.domain)));
        }
    }
    Ok(())
}

/// Removes the deletion of copies that others need from the steps. Returns the reasons.
fn keep_needed(
    hypervisor: &dyn Hypervisor,
    entry: &Entry,
    own_uuid: &str,
    steps: &mut Vec<Step>,
) -> Result<Vec<String>> {
    let deletes = |step: &Step| matches!(step, Step::Volume(VolumeStep::Delete { .. }));
    if !steps.iter().any(deletes) {
        return Ok(Vec::new());
    }
    let uses = Uses::read(hypervisor)?;
    let mut stays = Vec::new();
    for DiskCopy { pool, name, .. } in entry.copies() {
        let volume = VolumeRef { pool, name };
        let Some(path) = uses.volume(&volume).map(|known| known.path.clone()) else { continue };
        let others = uses.others_of_disk(&path, Some(&volume), own_uuid);
        if others.is_empty() {
            continue;
        }
        let VolumeRef { pool, name } = volume;
        stays.push(format!("volume `{name}` of pool `{pool}` stays: {}", said(&others)));
        let delete = Step::Volume(VolumeStep::Delete { pool, name, file: None });
        steps.retain(|step| *step != delete);
    }
    Ok(stays)
}

/// The error of an undo, with a hint if a disk no longer equals the image it was copied from.
fn written_since(error: Error, name: &str) -> Error {
    if let Error::Apply(ApplyError::Failed { step, source, .. }) = &error
        && let Step::Check(CheckStep::AsMade { path, made, .. }) = &**step
        && source.signal().is_none()
    {
        let path = path.display();
        let message =
            format!("domain `{name}` may have written on disk {path}: nothing is deleted");
        let hint = match made {
            MadeAs::Blank => format!("running `gpuvm undo {}` again keeps the disk", word(name)),
            _ => delete_hint(name),
        };
        return error.around(Refusal::around(message, hint));
    }
    let Error::Apply(ApplyError::Failed { step, source: StepError::OtherVolume { .. }, .. }) =
        &error
    else {
        return error;
    };
    if !matches!(**step, Step::Check(CheckStep::Compare(_))) {
        return error;
    }
    let message =
        format!("the new disk of domain `{name}` no longer equals the old one, and is not deleted");
    let hint = "--force goes back to the old image, and leaves the new one as it is";
    error.around(Refusal::around(message, hint))
}

/// Warns if the definition is not the previous one.
fn read_back(world: &World, undone: &Undoing) -> Result<()> {
    if undone.entry.makes() || undone.entry.beyond().is_some() {
        return Ok(());
    }
    let hypervisor = &*world.hypervisor()?;
    warn_of_saved_state(hypervisor, &undone.entry.domain, world);
    let was = &undone.entry.before;
    let read = hypervisor.xml(&undone.entry.domain, XmlOf::Inactive).unwrap_or_default();
    if read == *was {
        return Ok(());
    }
    let what = match (DomainXml::parse(was), DomainXml::parse(&read)) {
        (Ok(was), Ok(read)) => differences(&was, &read).first().map(ToString::to_string),
        _ => None,
    };
    let what = what.unwrap_or_else(|| "the text differs".into());
    world.warning(&format!("the restored definition differs: {what}"));
    Ok(())
}
