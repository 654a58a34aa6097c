//! Obstacles to a guest's new disks, checked before any is created: names in use, and too little
//! space.

use super::StorageError;
use crate::apply::{FileStep, Step, VolumeStep, absent, space, volume_place};
use crate::domain::guest::VolumeRef;
use crate::error::{Coded as _, Error, Result};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::storage::Volume;
use crate::made::said;
use crate::memsize::MemSize;
use crate::shell::word;
use std::collections::BTreeMap;
use std::path::Path;

/// Refuses a directory for a new disk that does not exist.
pub(crate) fn refuse_missing(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let dir = dir.display().to_string();
    let hint = format!("`mkdir -p {}` makes it", word(&dir));
    Err(StorageError::NoDirectory { dir }.hint(hint))
}

/// Refuses steps that would create an existing volume, file or directory: left over, or owned by
/// others.
pub fn refuse_taken(steps: &[Step], hypervisor: &dyn Hypervisor) -> Result<()> {
    for step in steps {
        match step {
            Step::Volume(VolumeStep::Make { pool, volume, .. }) => match made_at(steps, pool) {
                Some(dir) if hypervisor.has_guests_here() => absent(&dir.join(&volume.name))?,
                Some(_) => {}
                None => {
                    let volumes = hypervisor.storage().volumes(pool)?;
                    if let Some(there) = volumes.iter().find(|other| other.name == volume.name) {
                        return Err(taken(pool, there, hypervisor)?);
                    }
                    // A file that no pool lists, as a dangling link.
                    if let Some(path) = volume_place(pool, &volume.name, hypervisor)? {
                        absent(&path)?;
                    }
                }
            },
            Step::File(FileStep::CreateDisk { path, .. }) => absent(path)?,
            _ => {}
        }
    }
    Ok(())
}

/// The error of a volume that exists. No command that deletes it is offered where it is used:
/// below an image, it has the data of other guests.
fn taken(pool: &str, there: &Volume, hypervisor: &dyn Hypervisor) -> Result<Error> {
    let volume = VolumeRef { pool: pool.to_owned(), name: there.name.clone() };
    let uses = Uses::read(hypervisor)?;
    let users = uses.of_disk(&there.path, Some(&volume));
    let name = word(&there.name);
    let pool = word(pool);
    let (user, hint) = if users.is_empty() {
        (
            "no domain uses it".to_owned(),
            format!(
                "choose another name for the guest; `virsh vol-delete --pool {pool} {name}` deletes \
                 the volume and what it holds"
            ),
        )
    } else {
        let show = format!("`virsh vol-dumpxml --pool {pool} {name}` shows the volume");
        (said(&users), format!("choose another name for the guest; {show}"))
    };
    let VolumeRef { pool, name } = volume;
    Ok(StorageError::VolumeExists { pool, name, user }.hint(hint))
}

/// Where the steps make a pool; `None` if they do not.
fn made_at<'s>(steps: &'s [Step], pool: &str) -> Option<&'s Path> {
    steps.iter().find_map(|step| match step {
        Step::Volume(VolumeStep::MakePool { name, path }) if name == pool => Some(path.as_path()),
        _ => None,
    })
}

/// A place that new disks share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ground<'s> {
    /// In a pool.
    Pool(&'s str),
    /// In a directory of this machine.
    Directory(&'s Path),
}

/// Warnings that new disks may outgrow their place; QEMU pauses a guest when that happens.
pub fn warnings(steps: &[Step], hypervisor: &dyn Hypervisor) -> Result<Vec<String>> {
    let mut sizes: BTreeMap<Ground<'_>, BTreeMap<&str, u64>> = BTreeMap::new();
    for step in steps {
        let (ground, name, bytes) = match step {
            Step::File(FileStep::CreateDisk { path, bytes, .. }) => {
                let name = path.to_str().unwrap_or_default();
                (Ground::Directory(path.parent().unwrap_or(Path::new("/"))), name, *bytes)
            }
            Step::Volume(VolumeStep::Make { pool, volume, .. }) => {
                (Ground::Pool(pool), &*volume.name, volume.capacity_bytes)
            }
            Step::Volume(VolumeStep::Grow { pool, name, bytes }) => {
                (Ground::Pool(pool), &**name, *bytes)
            }
            _ => continue,
        };
        sizes.entry(ground).or_default().insert(name, bytes);
    }
    let mut warnings = Vec::new();
    for (ground, disks) in &sizes {
        let wanted: u64 = disks.values().sum();
        let free = match ground {
            Ground::Directory(path) => free_above(path),
            Ground::Pool(name) => free_in(name, steps, hypervisor)?,
        };
        let Some(free) = free.filter(|&free| free < wanted) else { continue };
        let names: Vec<&str> = disks.keys().copied().collect();
        let place = match ground {
            Ground::Directory(path) => format!("the file system of {}", path.display()),
            Ground::Pool(name) => format!("pool `{name}`"),
        };
        let size = |bytes: u64| MemSize::from_kib(bytes / 1024);
        warnings.push(format!(
            "{} may grow to {}, but {place} has {} left",
            names.join(" and "),
            size(wanted),
            size(free)
        ));
    }
    Ok(warnings)
}

/// Bytes that are free in a pool; none if unknown, such as for a pool yet to be created on another
/// machine.
fn free_in(name: &str, steps: &[Step], hypervisor: &dyn Hypervisor) -> Result<Option<u64>> {
    if let Some(path) = made_at(steps, name) {
        return Ok(free_above(path).filter(|_| hypervisor.machine().is_here()));
    }
    let pools = hypervisor.storage().pools()?;
    Ok(pools.into_iter().find(|pool| pool.name == name).map(|pool| pool.available_bytes))
}

/// Bytes that are free in the file system that a directory is on, or will be.
fn free_above(path: &Path) -> Option<u64> {
    path.ancestors().find(|path| path.is_dir()).and_then(space).map(|space| space.free)
}
