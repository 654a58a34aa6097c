//! A disk for an existing guest, with the checks of a new guest's disks.

use super::existing::{existing_disk, named};
use super::request::{NewDisk, StorageRequest};
use super::{Disks, POOL, POOL_DIR, StorageError, best_io, passed, refuse_elsewhere, room};
use crate::apply::{FileStep, Preallocate, Step, VolumeStep, space};
use crate::backing::{Refused, Trusted, untrusted};
use crate::bdf::Bdf;
use crate::domain::guest::{
    Abilities, BackingImage, Disk, DiskFormat, DiskKind, Made, Role, VolumeRef,
};
use crate::drives::state::State;
use crate::error::{Coded as _, Result};
use crate::hypervisor::storage::{NewVolume, Volume, is_file_pool};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::memsize::MemSize;
use crate::paths::path_text;
use crate::pools::{file_pool, make_pool};
use crate::shell::word;
use crate::world::World;
use std::path::{Path, PathBuf};

/// The guest that gets the disk.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// Its name.
    pub name: &'a str,
    /// The name of the disk in it.
    pub target: &'a str,
    /// Its passed-through functions.
    pub devices: &'a [Bdf],
}

/// Plans one disk, with the steps that create it if it is new.
pub fn disk_for_existing(
    wanted: &NewDisk,
    accepted: &[String],
    owner: Owner<'_>,
    abilities: Abilities,
    world: &World,
) -> Result<Disks> {
    let hypervisor = &*world.hypervisor()?;
    let machine = hypervisor.machine();
    let elsewhere = machine.elsewhere();
    let mut disks = Disks::default();
    let trusted = Trusted { accepted, state: &world.state_root() };
    match wanted {
        NewDisk::Path(path) => {
            refuse_elsewhere(elsewhere, &format!("disk {}", path.display()))?;
            existing_disk(path, Some(trusted), &mut disks)?;
        }
        NewDisk::Volume(volume) => existing_volume(volume, hypervisor, trusted, &mut disks)?,
        NewDisk::Blank { bytes, dir: Some(dir), preallocate, .. } => {
            refuse_elsewhere(elsewhere, "a file in a directory")?;
            file(owner, *bytes, dir, *preallocate, &mut disks)?;
        }
        NewDisk::Blank { bytes, dir: None, pool, preallocate } => {
            volume(owner, *bytes, pool, *preallocate, hypervisor, &mut disks)?;
        }
        NewDisk::Drive(_) | NewDisk::Partition(_) => {
            refuse_elsewhere(elsewhere, "a drive or partition")?;
            given(wanted, owner, world, &mut disks)?;
        }
    }
    room::refuse_taken(&disks.steps, hypervisor)?;
    for warning in room::warnings(&disks.steps, hypervisor)? {
        disks.warn(warning);
    }
    if machine.is_here() {
        for disk in &mut disks.disks {
            let (io, why) = best_io(&disk.path, abilities);
            disk.io = io;
            disks.notices.extend(why.map(super::Notice::Warning));
        }
    }
    Ok(disks)
}

fn existing_volume(
    volume: &VolumeRef,
    hypervisor: &dyn Hypervisor,
    trusted: Trusted<'_>,
    disks: &mut Disks,
) -> Result<()> {
    let storage = hypervisor.storage();
    let known = storage.volumes(&volume.pool)?.into_iter().find(|one| one.name == volume.name);
    let known = known.ok_or_else(|| HypervisorError {
        kind: HypervisorErrorKind::NoVolume,
        doing: format!("find volume `{}` of pool `{}`", volume.name, volume.pool),
        message: "the pool has none of this name".to_owned(),
    })?;
    if hypervisor.machine().is_here() {
        return existing_disk(&known.path, Some(trusted), disks);
    }
    let format = match &*known.format {
        "raw" => DiskFormat::Raw,
        "qcow2" => DiskFormat::Qcow2,
        other => {
            let (at, is) = (known.path.display().to_string(), other.to_owned());
            return Err(StorageError::OtherFormat { at, name: "raw or qcow2".into(), is }.bare());
        }
    };
    // A guest can write the header of another format to its raw disk.
    if let Some(name) = named(&known.path).filter(|name| *name != known.format) {
        let (at, is) = (known.path.display().to_string(), known.format.clone());
        return Err(StorageError::OtherFormat { at, name: name.into(), is }.bare());
    }
    let pools = storage.pools()?;
    let pool = pools.iter().find(|pool| pool.name == volume.pool);
    let is_file = pool.is_none_or(|pool| is_file_pool(&pool.kind));
    let kind = if is_file { DiskKind::File } else { DiskKind::Block };
    let mut disk = Disk::new(path_text(&known.path)?, format, kind);
    if format == DiskFormat::Qcow2 {
        disk.backing = below_volume(&known, trusted)?;
    }
    disks.disks.push(disk);
    Ok(())
}

/// Refuses a volume of another machine that names an image below itself which the admin does not
/// accept: its file cannot be read here, so that only libvirt reports its kind.
fn below_volume(volume: &Volume, trusted: Trusted<'_>) -> Result<Option<Vec<BackingImage>>> {
    let Some(below) = &volume.backing else { return Ok(Some(Vec::new())) };
    let name = below.display().to_string();
    if trusted.accepted.contains(&name) {
        return Ok(None);
    }
    let (accept, why) = (Some(name.clone()), "its file cannot be examined from here".to_owned());
    Err(untrusted(&volume.path, Refused { name, why, accept }))
}

/// Returns the possible names of a new image, in order.
fn names(owner: Owner<'_>) -> impl Iterator<Item = String> {
    let stem = format!("{}-{}", owner.name, owner.target);
    let numbered = stem.clone();
    let numbered = (2..).map(move |number| format!("{numbered}-{number}.raw"));
    std::iter::once(format!("{stem}.raw")).chain(numbered)
}

/// Refuses a preallocated disk that is larger than the free space. In parentheses: free and total
/// bytes.
fn refuse_too_large(
    owner: Owner<'_>,
    (bytes, preallocate): (u64, Preallocate),
    (place, at): (&str, &str),
    (free, all): (u64, u64),
) -> Result<()> {
    if preallocate == Preallocate::None || bytes <= free {
        return Ok(());
    }
    let size = |bytes: u64| MemSize::from_kib(bytes / 1024).to_string();
    let what = format!("a disk of {} does not fit into {place}", size(bytes));
    let new = format!("size={}K,{at},preallocate=none", bytes / 1024);
    let line = format!("gpuvm disk add {} {}", word(owner.name), word(&new));
    let hint = format!("`{line}` makes a disk that takes only what is written");
    Err(StorageError::NoRoom { what, free: size(free), size: size(all) }.hint(hint))
}

/// Adds a new file in a directory.
fn file(
    owner: Owner<'_>,
    bytes: u64,
    dir: &Path,
    preallocate: Preallocate,
    disks: &mut Disks,
) -> Result<()> {
    let dir = std::path::absolute(dir)?;
    room::refuse_missing(&dir)?;
    if let Some(space) = space(&dir) {
        let place = format!("the file system of {}", dir.display());
        let at = format!("dir={}", dir.display());
        let has = (space.free, space.total);
        refuse_too_large(owner, (bytes, preallocate), (&place, &at), has)?;
    }
    let mut paths = names(owner).map(|name| dir.join(name));
    let path: PathBuf =
        paths.find(|path| path.symlink_metadata().is_err()).expect("numbers do not end");
    let text = path_text(&path)?;
    let disk = new_disk(&text, preallocate);
    let made = Made { role: Role::Data, path: text, volume: None };
    disks.make(
        [Step::File(FileStep::CreateDisk { path, bytes, preallocate, from: None, sha256: None })],
        disk,
        made,
    );
    Ok(())
}

/// Adds a new volume of a pool.
fn volume(
    owner: Owner<'_>,
    bytes: u64,
    pool: &str,
    preallocate: Preallocate,
    hypervisor: &dyn Hypervisor,
    disks: &mut Disks,
) -> Result<()> {
    let storage = hypervisor.storage();
    let known = file_pool(storage, pool, POOL)?;
    if let Some(known) = &known {
        let place = format!("pool `{pool}`");
        let has = (known.available_bytes, known.capacity_bytes);
        let at = format!("pool={pool}");
        refuse_too_large(owner, (bytes, preallocate), (&place, &at), has)?;
    }
    let preallocated = preallocate != Preallocate::None;
    let (dir, taken, new_pool) = match known {
        Some(known) => {
            let no_path = || StorageError::PoolWithoutDirectory { name: pool.into() }.refusal("");
            let taken = storage.volumes(pool)?.into_iter().map(|volume| volume.name);
            (known.path.ok_or_else(no_path)?, taken.collect(), None)
        }
        None => {
            let make = make_pool(hypervisor, pool, POOL_DIR)?;
            (PathBuf::from(POOL_DIR), Vec::new(), Some(make))
        }
    };
    let name = names(owner).find(|name| !taken.contains(name)).expect("numbers do not end");
    let text = path_text(&dir.join(&name))?;
    let format = DiskFormat::Raw.as_str().to_owned();
    let (capacity_bytes, backing, mode) = (bytes, None, 0o600);
    let new = NewVolume { name: name.clone(), format, capacity_bytes, preallocated, backing, mode };
    let make = Step::Volume(VolumeStep::Make { pool: pool.to_owned(), volume: new, from: None });
    let disk = new_disk(&text, preallocate);
    let volume = Some(VolumeRef { pool: pool.to_owned(), name });
    let made = Made { role: Role::Data, path: text, volume };
    disks.make(new_pool.into_iter().chain([make]), disk, made);
    Ok(())
}

/// Makes a new raw image. Preallocated blocks are kept: mkfs begins by discarding the whole disk.
fn new_disk(path: &str, preallocate: Preallocate) -> Disk {
    let mut disk = Disk::new(path, DiskFormat::Raw, DiskKind::File);
    disk.keeps_blocks = preallocate != Preallocate::None;
    disk
}

/// Adds a drive or a partition of the host.
fn given(wanted: &NewDisk, owner: Owner<'_>, world: &World, disks: &mut Disks) -> Result<()> {
    let mut request = StorageRequest::default();
    match wanted {
        NewDisk::Drive(id) => request.drive.push(id.clone()),
        NewDisk::Partition(uuid) => request.partition.push(uuid.clone()),
        _ => {}
    }
    let state = State::read(world, world.occupancy(false)?)?;
    for drive in passed::choose(&request, &state, disks)? {
        passed::refuse_function(owner.devices, drive)?;
    }
    Ok(())
}
