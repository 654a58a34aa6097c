//! `drive restore-array`: restores a released array.

mod files;
mod members;

use super::error::ArrayVerbError;
use super::{FSTAB, named};
use crate::apply::array::{ArrayStep, Assembly, Mounting, can_make, content};
use crate::apply::{HostStep, Step};
use crate::change::Change;
use crate::discover::arrays::array;
use crate::discover::device_users::Uses;
use crate::discover::node::kernel_name;
use crate::discover::released::{self, Released, plain};
use crate::error::{Class, Coded as _, Result, classed, usage};
use crate::fsroot::FsRoot;
use crate::initramfs::renewal;
use crate::reporter::Deed;
use crate::session::Session;
use crate::shell::word;
use crate::world::World;
use files::{guarded, unmarked};
use members::{lost, members_free, outside, overwritten, uuid_of};
use std::path::Path;

/// A request to restore a released array.
#[derive(Debug, Clone, Default)]
pub struct RestoreArray {
    /// Its name when it was released.
    pub name: String,
    /// Whether members that a guest has overwritten are added again.
    pub rebuild: bool,
    /// Whether it is recreated.
    pub create: bool,
    /// Whether its file system is recreated.
    pub mkfs: bool,
    /// Whether drives with data on them may be overwritten.
    pub accept_data_loss: bool,
    /// Whether its file system is mounted although a guest may have written to it.
    pub trust_content: bool,
    /// Whether the initramfs is rebuilt.
    pub initramfs: bool,
}

impl RestoreArray {
    /// Whether the file system may be one that a guest has written, and was not declared trusted.
    pub fn is_guarded(&self) -> bool {
        !self.mkfs && !self.trust_content
    }
}

/// Restores an array, and verifies it; `None` if nothing was done.
pub fn restore_array(session: &mut Session<'_>, wanted: &RestoreArray) -> Result<Option<Released>> {
    let done = session.run(|world| change(world, wanted))?;
    if !done.made {
        return Ok(None);
    }
    verify(&done.change.about, &done.change.steps())?;
    Ok(Some(done.change.about))
}

/// Plans a restore; its data is the record of the array.
fn change(world: &World, wanted: &RestoreArray) -> Result<Change<Released>> {
    let name = wanted.name.as_str();
    let (record, steps) = plan(wanted, name, world)?;
    let what = ("drive restore-array", name);
    let change = named(what, (Deed::Restore, "array", name), steps, record);
    Ok(Change { again: format!("gpuvm drive restore-array {}", word(name)), ..change })
}

/// The record and the steps, or why the array cannot be restored.
fn plan(wanted: &RestoreArray, name: &str, world: &World) -> Result<(Released, Vec<Step>)> {
    let root = FsRoot::live()?;
    let is_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let record = if is_name { released::read(&root, name)? } else { None };
    let Some(record) = record else {
        let names = released::names(&root)?.join(", ");
        let hint = if names.is_empty() { String::new() } else { format!("released: {names}") };
        return Err(classed(Class::NotFound, format!("no array `{name}` was released"), hint));
    };
    if wanted.mkfs {
        refuse_unmakeable(&record)?;
    }
    let running = members_free(&record, world)?;
    let device = running.clone().unwrap_or_else(|| format!("/dev/{name}"));
    if running.is_none() && array(&root, name)?.is_some() {
        return Err(ArrayVerbError::NameTaken { device: device.clone() }.hint(format!(
            "`mdadm --stop {device}` stops it, if nothing uses it",
            device = word(&device)
        )));
    }
    let mut steps = Vec::new();
    let lost: Vec<String> = match running {
        Some(_) => outside(&root, &record, &device)?,
        None => lost(&record)?,
    };
    let known = match wanted.create {
        true => overwritten(wanted, &record, record.members.iter().map(|member| &member.id))?,
        false if wanted.rebuild => overwritten(wanted, &record, lost.iter())?,
        false => Vec::new(),
    };
    match running {
        None => steps.push(bring_up(wanted, &record, &device, &lost, &known)?),
        Some(_) => refuse_running(wanted, name, &device, &lost)?,
    }
    let file_system = record.file_system.clone().map(|file_system| (device.clone(), file_system));
    steps.extend(file_system.map(|(device, file_system)| {
        if wanted.mkfs {
            ArrayStep::MakeFileSystem { device, file_system, uuid: record.uuid.clone() }
        } else {
            ArrayStep::CheckFileSystem { device, file_system }
        }
    }));
    let config = Path::new(&record.mdadm_conf);
    let guard = wanted.is_guarded();
    steps.extend(unmarked(config, name, &record.array_lines, false, world)?);
    steps.extend(unmarked(Path::new(FSTAB), name, &record.fstab, guard, world)?);
    steps.extend(mounts(&record, &device, guard));
    let path = Path::new("/").join(released::file(name));
    steps.push(ArrayStep::ReplaceText {
        before: content(&path)?,
        path,
        after: None,
        what: "forget that the array was released".to_owned(),
        units: false,
    });
    if wanted.rebuild && !lost.is_empty() {
        let (known, uuid) = (Some(known), record.uuid.clone());
        steps.push(ArrayStep::Add { device, members: lost, known, uuid });
    }
    let mut steps: Vec<Step> = steps.into_iter().map(Step::from).collect();
    if wanted.initramfs {
        steps.push(renewal()?);
    }
    Ok((record, steps))
}

/// Refuses to recreate an array that runs, and one that runs without all of its members.
fn refuse_running(wanted: &RestoreArray, name: &str, device: &str, lost: &[String]) -> Result<()> {
    if wanted.create {
        return Err(usage(
            format!("array `{name}` runs as {device}"),
            "run it without --create, which recreates the array; --mkfs alone makes a file system \
             on the running array",
        ));
    }
    if lost.is_empty() || wanted.rebuild {
        return Ok(());
    }
    let (device, lines) = (device.to_owned(), lost.join(", "));
    let hint = format!(
        "`gpuvm drive restore-array {} --rebuild` adds them, which destroys their data",
        word(name)
    );
    Err(ArrayVerbError::Incomplete { name: name.to_owned(), device, lines }.hint(hint))
}

/// The mounts of a restored array; `guard`: so that a boot without it does not wait.
fn mounts(record: &Released, device: &str, guard: bool) -> impl Iterator<Item = ArrayStep> {
    record.mounts.iter().map(move |mount| {
        let (at, kind) = (mount.at.clone(), mount.kind.clone());
        let options = if guard { guarded(&mount.options) } else { mount.options.clone() };
        ArrayStep::Mount(Mounting { device: device.to_owned(), at, kind, options })
    })
}

/// Returns the step that starts the array: assembly if all, or enough, members still belong to it.
fn bring_up(
    wanted: &RestoreArray,
    record: &Released,
    device: &str,
    lost: &[String],
    known: &[String],
) -> Result<ArrayStep> {
    let (name, all) = (&record.name, record.members.len());
    let keeps = lost.len() <= record.spares();
    let assemble = || {
        let ids = record.members.iter().map(|member| &member.id);
        ArrayStep::Assemble(Assembly {
            device: device.to_owned(),
            uuid: record.uuid.clone(),
            members: ids.filter(|id| !lost.contains(id)).cloned().collect(),
            degraded: !lost.is_empty(),
        })
    };
    match (lost.is_empty(), wanted.create) {
        (true, false) => Ok(assemble()),
        (true, true) => Err(usage(
            format!("all {all} drives of `{name}` still carry its superblocks"),
            "run it without --create and --mkfs: the array is assembled with what is on it",
        )),
        (false, false) if wanted.rebuild && keeps => Ok(assemble()),
        (false, false) => {
            let lines: String = lost.iter().map(|id| format!("\n  {id}")).collect();
            let anew = format!(
                "`gpuvm drive restore-array {name} --create --mkfs` makes array and file system \
                 anew and destroys what is on all {all} drives",
                name = word(name)
            );
            let hint = if keeps {
                format!(
                    "`gpuvm drive restore-array {name} --rebuild` keeps what is on it, which the \
                     other drives still have; {anew}",
                    name = word(name)
                )
            } else {
                anew
            };
            Err(ArrayVerbError::SuperblocksLost {
                count: lost.len().to_string(),
                all: all.to_string(),
                name: name.to_string(),
                lines,
            }
            .hint(hint))
        }
        (false, true) if record.file_system.is_some() && !wanted.mkfs => Err(usage(
            "a recreated array has no file system; the released one had",
            "--create --mkfs makes one with the old UUID, so that the lines of fstab hold",
        )),
        (false, true) => {
            let (device, array) = (device.to_owned(), Box::new(record.clone()));
            Ok(ArrayStep::Create { device, array, known: Some(known.to_vec()) })
        }
    }
}

/// Refuses a new file system of a type that gpuvm does not make.
fn refuse_unmakeable(record: &Released) -> Result<()> {
    match &record.file_system {
        Some(file_system) if can_make(&file_system.kind) => Ok(()),
        Some(file_system) => Err(usage(
            format!("file systems of type `{}` cannot be made here", file_system.kind),
            "restore the array without --mkfs and make it by hand",
        )),
        None => Err(usage("there was no file system on the array", "leave --mkfs out")),
    }
}

/// Verifies that the array runs and is mounted as before.
fn verify(record: &Released, steps: &[Step]) -> Result<()> {
    let root = FsRoot::live()?;
    let mut wrong = Vec::new();
    let first = record.members.first().map(|member| member.id.as_str()).unwrap_or_default();
    let holder = kernel_name(Path::new(first))
        .map(|name| root.names(&format!("sys/class/block/{name}/holders")))
        .transpose()?
        .unwrap_or_default();
    let name = holder.first().cloned().unwrap_or_else(|| record.name.clone());
    match array(&root, &name)? {
        None => wrong.push(format!("/dev/{name} does not run")),
        Some(array) => {
            if (&array.level, array.members.len()) != (&record.level, record.members.len()) {
                let members = array.members.len();
                wrong.push(format!("/dev/{name} is {} of {members} drives", array.level));
            }
            let is_new =
                |step: &Step| matches!(step, Step::Host(HostStep::Array(ArrayStep::Create { .. })));
            if array.bytes != record.bytes && !steps.iter().any(is_new) {
                wrong.push(format!("/dev/{name} has {} bytes, not {}", array.bytes, record.bytes));
            }
            if uuid_of("--detail", &format!("/dev/{name}")) != Some(plain(&record.uuid)) {
                wrong.push(format!("/dev/{name} has another UUID than {}", record.uuid));
            }
        }
    }
    let uses = Uses::read(&root)?;
    let mounts = uses.mounts_of(&root, &name)?;
    for wanted in &record.mounts {
        if !mounts.iter().any(|mount| mount.at == wanted.at) {
            wrong.push(format!("/dev/{name} is not mounted at {}", wanted.at));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: String = wrong.iter().map(|line| format!("\n  {line}")).collect();
    Err(ArrayVerbError::NotRestored { name: record.name.clone(), lines }.bare())
}
