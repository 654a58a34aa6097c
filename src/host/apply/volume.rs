//! Makes volumes, and deletes them again. A name and a size prove nothing: anybody may make a volume
//! of both. In a pool of files of this machine a volume therefore has an unguessable name until its
//! identity is recorded; elsewhere one that was not recorded is left.

use super::StepError;
use super::disk::{self, unfinished};
use super::made::{volume_file, volume_place};
use super::{Observer, journal::JournalError};
use crate::hypervisor::storage::NewVolume;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::identity::{FileId, Identity};
use gpuvm_core::domain::guest::VolumeRef;
use nix::unistd::{AccessFlags, access};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    /// Its pool.
    pub pool: &'a str,
    /// Its name and shape.
    pub volume: &'a NewVolume,
    /// The volume that it is a copy of; `None`: it is empty.
    pub from: Option<&'a VolumeRef>,
}

type Record<'r> = &'r mut dyn FnMut(Identity) -> Result<(), JournalError>;

/// Makes a volume. `token`: the unguessable name of this step; `record` is called with the volume's
/// identity before it gets its own name.
pub(super) fn make(
    new: New<'_>,
    token: Option<&str>,
    (hypervisor, observer): (&dyn Hypervisor, &mut dyn Observer),
    record: Record<'_>,
) -> Result<(), StepError> {
    let place = volume_place(new.pool, &new.volume.name, hypervisor)?;
    let hidden = place.zip(token).filter(|(place, _)| is_ours_to_rename(place));
    // libvirt finds a renamed file only once it looks at the pool again, which it does not while
    // somebody copies there.
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
    // libvirt has other mounts than this process: what it made cannot be renamed from here.
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
    // libvirt knows a volume of its directory only once it has looked at that again.
    let volumes = storage.volumes(pool)?;
    let hidden = file_name(&unfinished(&place, token));
    if volumes.iter().any(|volume| volume.name == hidden) {
        storage.delete_volume(pool, &hidden)?;
    }
    Ok(())
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
