//! `disk add`: adds a disk, at the next start or at once.

use super::error::GuestDiskError;
use super::settled::settled;
use super::subject::Subject;
use crate::apply::{LiveStep, Step, state_root};
use crate::change::{Change, DomainChange, Part};
use crate::disks;
use crate::domain::DomainXml;
use crate::domain::disk_change::{Port, free_target, path_of, target_of};
use crate::domain::guest::{Abilities, Disk};
use crate::error::{Class, Coded as _, Result, classed};
use crate::history::guest::add_made;
use crate::host_files::too_few_files;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{How, Use, User, Uses};
use crate::reporter::Question;
use crate::shell::word;
use crate::storage::{Disks, NewDisk, Notice, Owner, abilities, disk_for_existing};
use crate::world::World;
use gpuvm_core::check;
use serde::Serialize;
use std::path::Path;

/// A request to add a disk to a domain.
#[derive(Debug, Clone)]
pub struct AddDisk {
    /// The domain.
    pub name: String,
    /// The disk.
    pub disk: NewDisk,
    /// Whether it is attached to the running guest, too.
    pub live: bool,
    /// Names of images that may be below it: paths, or QEMU's own words.
    pub accept_backing: Vec<String>,
}

/// A disk of a domain that was changed.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedDisk {
    /// The domain's name.
    pub name: String,
    /// libvirt's name for the disk.
    pub target: String,
    /// File, block device or volume; `None` without medium.
    pub source: Option<String>,
    /// Whether the running guest is changed, too.
    pub live: bool,
    /// Whether the running guest is changed only at its next start.
    pub waits_for_start: bool,
    /// Whether its data was deleted.
    pub deleted: bool,
    /// How many other names the deleted file has, hard links, under which its data stays.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_names: u64,
    /// The definition before and after.
    #[serde(skip)]
    pub definitions: (String, String),
}

/// Whether there is no other name.
fn is_zero(names: &u64) -> bool {
    *names == 0
}

/// Plans the addition of a disk.
pub fn add(world: &World, wanted: &AddDisk) -> Result<Change<ChangedDisk>> {
    let hypervisor = &*world.hypervisor()?;
    let subject = Subject::read(hypervisor, &wanted.name)?;
    let live = if wanted.live { Some(subject.running()?) } else { None };
    subject.refuse_kept(hypervisor)?;
    let both: Vec<&DomainXml> = std::iter::once(&subject.xml).chain(&subject.live).collect();
    let target = free_target(&both);
    let abilities = abilities(hypervisor, false);
    let devices = subject.xml.held(false)?.devices;
    let owner = Owner { name: &subject.name, target: &target, devices: &devices };
    let Disks { steps, disks, made, notices, losses, .. } =
        disk_for_existing(&wanted.disk, &wanted.accept_backing, owner, abilities, world)?;
    let [disk] = &disks[..] else { unreachable!("one disk was requested") };
    refuse_present(&subject, disk, hypervisor)?;
    refuse_records(disk, hypervisor)?;
    let mut after = more(&subject.xml, disk, &target, abilities, Port::FreeOrNew)?
        .expect("a port is made where none is free");
    let is_ours = subject.xml.is_ours();
    let mut first = steps;
    if is_ours {
        for made in &made {
            after = after.with_made(made)?;
        }
        if hypervisor.has_guests_here() {
            let (uri, state) = (hypervisor.uri(), world.state());
            first.extend(add_made(state, &subject.uuid, &subject.name, uri, &made)?);
        }
    }
    let after = settled(&subject.xml, after, abilities, hypervisor, world)?;
    refuse_taken(&subject, &after, &target, disk, hypervisor)?;
    let last = match live {
        Some(live) => vec![attach(&subject, live, disk, &target, abilities)?],
        None => Vec::new(),
    };
    let waits_for_start = subject.state.is_active() && last.is_empty();
    let about = ChangedDisk {
        name: subject.name.clone(),
        target: target.clone(),
        source: Some(disk.path.clone()),
        live: !last.is_empty(),
        waits_for_start,
        deleted: false,
        other_names: 0,
        definitions: (subject.xml.text().to_owned(), after.text().to_owned()),
    };
    let mut warnings: Vec<String> = notices.iter().map(Notice::to_string).collect();
    warnings.extend(too_few_files(world, &after, hypervisor.versions().qemu));
    if !is_ours && !made.is_empty() {
        warnings.push(format!(
            "domain `{}` is not one that gpuvm created, so {} is not deleted with it",
            subject.name, disk.path
        ));
    }
    let change = DomainChange {
        verb: "disk add",
        name: subject.name.clone(),
        what: vec![format!("disk {target}: {}", disk.path)],
        before: subject.xml.text().to_owned(),
        after,
        first,
        last,
    };
    let question = (!losses.is_empty()).then(|| Question::Losses { name: subject.name.clone() });
    let again = format!("gpuvm disk add {}", word(&subject.name));
    let all = Change::new("disk add", &subject.name, Vec::new(), about);
    Ok(Change { parts: vec![Part::Domain(change)], losses, warnings, question, again, ..all })
}

/// Returns a definition with the disk; `None` if no root port is free.
fn more(
    xml: &DomainXml,
    disk: &Disk,
    target: &str,
    abilities: Abilities,
    port: Port,
) -> Result<Option<DomainXml>> {
    Ok(xml.with_disk(disk, target, abilities.queue_mapping, port)?)
}

/// Refuses a file or device that the domain uses already, under any name.
fn refuse_present(subject: &Subject, disk: &Disk, hypervisor: &dyn Hypervisor) -> Result<()> {
    let uses = Uses::read(hypervisor)?;
    let name = word(&subject.name);
    let is_own = |one: &&Use| matches!(&one.by, User::Domain { uuid, .. } if *uuid == subject.uuid);
    let all = uses.of(Path::new(&disk.path));
    if let Some(one) = all.iter().filter(is_own).find(|one| !is_of_disk(&one.how)) {
        let message = format!("disk `{}` cannot be added to domain `{name}`: {one}", disk.path);
        let hint = format!("`gpuvm show {name}` shows what it has");
        return Err(classed(Class::InUse, message, hint));
    }
    let both = std::iter::once(&subject.xml).chain(&subject.live);
    let mut all = both.flat_map(DomainXml::disks);
    let is = |path: String| uses.is_same(Path::new(&path), Path::new(&disk.path));
    let Some(same) = all.find(|own| path_of(*own).is_some_and(is)) else { return Ok(()) };
    let (name, path) = (subject.name.clone(), disk.path.clone());
    let hint = format!("`gpuvm disk list {}` shows its disks", word(&name));
    let target = target_of(same).unwrap_or_default();
    Err(GuestDiskError::Present { name, path, target }.hint(hint))
}

/// Whether a use is one as a disk, which the caller describes, or not reported.
fn is_of_disk(how: &How) -> bool {
    matches!(how, How::Disk | How::Over | How::Mirror | How::Uncertain(..))
}

/// Refuses the records of gpuvm itself, which a guest would overwrite.
fn refuse_records(disk: &Disk, hypervisor: &dyn Hypervisor) -> Result<()> {
    if !hypervisor.machine().is_here() {
        return Ok(());
    }
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if !real(Path::new(&disk.path)).starts_with(real(&state_root())) {
        return Ok(());
    }
    let message = format!("disk `{}` is a record of gpuvm, not a disk", disk.path);
    Err(classed(Class::InUse, message, "name an image file, a volume or a drive"))
}

/// Refuses a disk that another domain or the host uses.
fn refuse_taken(
    subject: &Subject,
    after: &DomainXml,
    target: &str,
    disk: &Disk,
    hypervisor: &dyn Hypervisor,
) -> Result<()> {
    let nth = after.disks().position(|disk| target_of(disk).as_deref() == Some(target));
    let mut facts = disks::facts(after, Some(&subject.uuid), true, hypervisor)?;
    facts.retain(|fact| Some(fact.nth) == nth);
    let found = check::disks(after, &facts);
    let Some(first) = found.first() else { return Ok(()) };
    let lines: String = found.iter().map(|one| format!("\n  {}", one.says.message)).collect();
    let message =
        format!("disk `{}` cannot be added to domain `{}`{lines}", disk.path, subject.name);
    Err(classed(Class::InUse, message, first.hint.clone()))
}

/// Returns the step that attaches the disk to the running guest.
fn attach(
    subject: &Subject,
    live: &DomainXml,
    disk: &Disk,
    target: &str,
    abilities: Abilities,
) -> Result<Step> {
    let name = subject.name.clone();
    let Some(with) = more(live, disk, target, abilities, Port::Free)? else {
        return Err(GuestDiskError::NoPort { name }.hint(
            "the same command without --live gives it the disk, with a root port, at its next \
                   start",
        ));
    };
    let xml = with.disk_named(target).map(|disk| disk.xml().to_owned()).unwrap_or_default();
    Ok(Step::Live(LiveStep::AttachDisk { name, path: disk.path.clone(), xml }))
}
