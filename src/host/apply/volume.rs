//! Makes volumes, and deletes them again. A name and a size prove nothing: anybody may make a
//! volume of both. In a pool of files of this machine a volume therefore has an unguessable name
//! until its identity is recorded; elsewhere one that was not recorded is left.

use super::StepError;
use super::disk::{self, unfinished};
use super::last_check::UNBORN;
use super::proven::{not_ours, unseen, unused};
use super::{Observer, journal::JournalError};
use crate::hypervisor::storage::{NewVolume, is_file_pool};
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::identity::{FileId, Identity, Proof};
use gpuvm_core::domain::guest::VolumeRef;
use nix::unistd::{AccessFlags, access};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    /// Its pool.
    pub pool: &'a str,
    /// Its name and shape.
    pub volume: &'a NewVolume,
    /// The volume that it is a copy of; `None` if it is empty.
    pub from: Option<&'a VolumeRef>,
}

type Record<'r> = &'r mut dyn FnMut(Identity) -> Result<(), JournalError>;

/// Makes a volume. `token`: the unguessable name of this step; `record` is called with the volume's
/// identity before it gets its own name.
pub(super) fn make(
    new: New<'_>,
    token: Option<&str>,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    record: Record<'_>,
) -> Result<(), StepError> {
    let place = volume_place(new.pool, &new.volume.name, hypervisor)?;
    let hidden = place.zip(token).filter(|(place, _)| is_ours_to_rename(place));
    // libvirt finds a renamed file only after a refresh of the pool, which it refuses while a copy
    // runs there.
    let hidden = match hidden {
        Some(_) if hypervisor.storage().is_busy(new.pool)? => None,
        hidden => hidden,
    };
    let Some((place, token)) = hidden else {
        new.grows(hypervisor, observer);
        return Ok(new.made_at_once(hypervisor)?);
    };
    let unfinished = unfinished(&place, token);
    let volume = NewVolume { name: file_name(&unfinished), ..new.volume.clone() };
    let hidden = New { volume: &volume, ..new };
    hidden.grows(hypervisor, observer);
    hidden.made_at_once(hypervisor)?;
    // libvirt has other mounts than this process: its files cannot be renamed from here.
    if unfinished.symlink_metadata().is_err() {
        hypervisor.storage().delete_volume(new.pool, &volume.name)?;
        return Ok(new.made_at_once(hypervisor)?);
    }
    let named = hidden.name(&unfinished, &place, hypervisor, record);
    if named.is_err() {
        // The volume was made by this call; the first error is the one to report.
        let _ = hypervisor.storage().delete_volume(new.pool, &volume.name);
    }
    named
}

/// Deletes the volume of a step that was interrupted before it had its own name.
pub(super) fn drop_unfinished(
    hypervisor: &dyn Hypervisor,
    (pool, volume): (&str, &str),
    token: &str,
) -> Result<(), StepError> {
    let Some(place) = volume_place(pool, volume, hypervisor)? else { return Ok(()) };
    let storage = hypervisor.storage();
    // libvirt knows a volume of its directory only after a refresh.
    let volumes = storage.volumes(pool)?;
    let hidden = file_name(&unfinished(&place, token));
    if volumes.iter().any(|volume| volume.name == hidden) {
        storage.delete_volume(pool, &hidden)?;
    }
    Ok(())
}

/// Deletes the file of a volume that libvirt does not know, as while it copies another one in the
/// pool; anything else at its place stays.
fn delete_unknown(
    hypervisor: &dyn Hypervisor,
    pool: &str,
    new: &NewVolume,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let Some(Identity::Volume { file: Some(made), .. }) = &proof.made else { return Ok(()) };
    let Some(place) = volume_place(pool, &new.name, hypervisor)? else { return Ok(()) };
    match volume_file(hypervisor, &place).map_err(unseen(&place))? {
        Some(file) if made.is(&file, proof.same_boot) => {
            unused(hypervisor, &place)?;
            Ok(disk::delete(&place)?)
        }
        _ => Ok(()),
    }
}

/// Deletes a volume that was made, unless it is in use as a disk now.
pub(super) fn delete_made(
    hypervisor: &dyn Hypervisor,
    pool: &str,
    new: &NewVolume,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    let storage = hypervisor.storage();
    if let Some(token) = proof.mark.token() {
        drop_unfinished(hypervisor, (pool, &new.name), &token)?;
    }
    let Some(now) = storage.volume_id(pool, &new.name)? else {
        return delete_unknown(hypervisor, pool, new, proof);
    };
    let file = volume_file(hypervisor, &now.path).map_err(unseen(&now.path))?;
    let what = || format!("volume `{}` of pool `{pool}`", new.name);
    match &proof.made {
        Some(Identity::Volume { key, file: made }) => {
            let same = match (made, &file) {
                (Some(made), Some(file)) if made.is(file, proof.same_boot) => true,
                (Some(made), Some(file)) if made.may_be(file) => return not_ours(what(), UNBORN),
                (Some(_), Some(_)) => false,
                (made, file) => made.is_none() && file.is_none(),
            };
            if !same || *key != now.key {
                return not_ours(what(), "it was recreated since");
            }
        }
        // It gets its name only after its identity is in the journal, or nothing identifies it.
        _ => return not_ours(what(), "it cannot be verified that this change made it"),
    }
    unused(hypervisor, &now.path)?;
    Ok(storage.delete_volume(pool, &new.name)?)
}

/// Where a volume of a pool is, or will be; `None` for none in a file of this machine.
pub fn volume_place(
    pool: &str,
    volume: &str,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<PathBuf>, HypervisorError> {
    if !hypervisor.has_guests_here() {
        return Ok(None);
    }
    let pools = hypervisor.storage().pools()?;
    let pool = pools.into_iter().find(|known| known.name == pool && is_file_pool(&known.kind));
    Ok(pool.and_then(|pool| pool.path).map(|dir| dir.join(volume)))
}

/// The file of a volume; `None` if it is not a file of this machine.
pub fn volume_file(hypervisor: &dyn Hypervisor, path: &Path) -> io::Result<Option<FileId>> {
    match path.symlink_metadata() {
        _ if !hypervisor.machine().is_here() => Ok(None),
        Ok(meta) if meta.is_file() => Ok(Some(FileId::of(&meta))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Whether files can be renamed in the directory of a volume.
fn is_ours_to_rename(place: &Path) -> bool {
    let flags = AccessFlags::W_OK | AccessFlags::X_OK;
    place.parent().is_some_and(|dir| access(dir, flags).is_ok())
}

/// Whether the file at a path is this one, of the same boot.
fn is_same(path: &Path, file: &FileId) -> bool {
    matches!(FileId::at(path), Ok(Some(now)) if file.is(&now, true))
}

/// The last part of a path.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A volume of which progress is shown while it is made; smaller ones take no time.
const LARGE: u64 = 1 << 30;

impl New<'_> {
    fn made_at_once(&self, hypervisor: &dyn Hypervisor) -> Result<(), HypervisorError> {
        let storage = hypervisor.storage();
        match self.from {
            None => storage.make_volume(self.pool, self.volume).map(drop),
            Some(from) => {
                let from = (&*from.pool, &*from.name);
                storage.copy_volume(self.pool, self.volume, from).map(drop)
            }
        }
    }

    /// Records its identity and gives it its own name.
    fn name(
        &self,
        unfinished: &Path,
        place: &Path,
        hypervisor: &dyn Hypervisor,
        record: Record<'_>,
    ) -> Result<(), StepError> {
        let storage = hypervisor.storage();
        let file = volume_file(hypervisor, unfinished);
        let file = file.map_err(|error| disk::error(unfinished, error))?;
        let known = storage.volume_id(self.pool, &self.volume.name)?;
        let key = known.map_or_else(|| unfinished.to_owned(), |known| PathBuf::from(known.key));
        let key = key.with_file_name(file_name(place)).to_string_lossy().into_owned();
        record(Identity::Volume { key, file })?;
        disk::name(unfinished, place)?;
        let found = storage.find_files(self.pool, &file_name(place));
        if found.is_err() && file.is_some_and(|file| is_same(place, &file)) {
            // libvirt does not know it under this name: it gets back the one that is deleted next.
            let _ = disk::name(place, unfinished);
        }
        Ok(found?)
    }

    /// Reports which file grows while libvirt fills it, or copies another into it.
    fn grows(&self, hypervisor: &dyn Hypervisor, observer: &mut dyn Observer) {
        let New { pool, volume, from } = self;
        let is_long = volume.capacity_bytes >= LARGE && (from.is_some() || volume.preallocated);
        if !is_long || !hypervisor.has_guests_here() {
            return;
        }
        // Without this, only the progress is missing.
        let storage = hypervisor.storage();
        let bytes = match from {
            None => Some(volume.capacity_bytes),
            Some(from) => {
                let all = storage.volumes(&from.pool).unwrap_or_default();
                let mut all = all.into_iter();
                all.find(|other| other.name == from.name).map(|other| other.allocation_bytes)
            }
        };
        let mut pools = storage.pools().unwrap_or_default().into_iter();
        let dir = pools.find(|other| other.name == **pool).and_then(|pool| pool.path);
        if let (Some(bytes), Some(dir)) = (bytes, dir) {
            observer.grows(&dir.join(&volume.name), bytes);
        }
    }
}
