//! Records which disks gpuvm made, one file for each path in directory `disks` of the state. A file
//! or volume of that name that others have put in a disk's place is not the one that was made.

use super::error::BindError;
use super::file::set_private_file;
use super::state::record_of;
use super::{FileStep, Observer, Step, StepError, VolumeStep};
use crate::hypervisor::Hypervisor;
use crate::identity::{FileId, Identity};
use crate::input;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

impl MadeDisk {
    fn file(&self) -> Option<&FileId> {
        match &self.made {
            Identity::Volume { file: Some(file), .. } | Identity::File(file) => Some(file),
            _ => None,
        }
    }
}

const DIRECTORY: &str = "disks";
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct MadeDisk {
    format: u32,
    path: PathBuf,
    /// Which file or volume it is.
    made: Identity,
    /// The format it was made in, in libvirt's word. `None` if unknown, since an older gpuvm made
    /// it, or its bytes were copied from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk_format: Option<String>,
}

/// The record of a path.
fn record(state: &Path, path: &Path) -> PathBuf {
    record_of(&state.join(DIRECTORY), path)
}

/// The disk that was made at a path, by the records of a state directory; `None` if that is
/// unknown, since an older gpuvm made it or the record cannot be read.
pub fn disk_made_at(state: &Path, path: &Path) -> Option<Identity> {
    read(state, path).map(|kept| kept.made)
}

/// Reads the record of a path.
fn read(state: &Path, path: &Path) -> Option<MadeDisk> {
    let record = record(state, path);
    let text = input::state(&record).ok()??;
    let kept: MadeDisk = serde_json::from_str(&text).ok()?;
    (kept.format == FORMAT && kept.path == path).then_some(kept)
}

/// The format in which gpuvm made the disk that is at a path, in libvirt's word, whatever its bytes
/// say: a guest can write the header of any format to its raw disk. `None` if unknown.
pub fn disk_format_made(state: &Path, path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let now = FileId::at(&real).ok()??;
    let mut here = [path, &*real].into_iter().filter_map(|path| read(state, path));
    let here = here.find(|kept| kept.file().is_some_and(|was| was.may_be(&now)));
    here.or_else(|| elsewhere(state, &now)).and_then(|kept| kept.disk_format)
}

/// The record of a disk that was made at another path: it was moved, or has another name as well.
fn elsewhere(state: &Path, now: &FileId) -> Option<MadeDisk> {
    let records = std::fs::read_dir(state.join(DIRECTORY)).ok()?;
    records.flatten().find_map(|record| {
        let text = input::state(&record.path()).ok()??;
        let kept: MadeDisk = serde_json::from_str(&text).ok()?;
        let is_it = kept.format == FORMAT && kept.file().is_some_and(|was| was.is(now, true));
        is_it.then_some(kept)
    })
}

/// The format in which a step makes a disk.
fn format_of(state: &Path, step: &Step) -> Option<String> {
    match step {
        Step::File(FileStep::CreateDisk { from: None, .. }) => Some("raw".to_owned()),
        Step::File(FileStep::CreateDisk { from: Some(from), .. }) => disk_format_made(state, from),
        Step::Volume(VolumeStep::Make { volume, .. }) => Some(volume.format.clone()),
        _ => None,
    }
}

/// Whether a file at the path of a disk is proven to be another one than the one that was made
/// there: only a record and a file that is there now prove it.
pub fn is_another_file(was: Option<&FileId>, path: &Path) -> bool {
    let now = FileId::at(path).ok().flatten();
    was.zip(now).is_some_and(|(was, now)| !was.may_be(&now))
}

/// The step that forgets which disk was made at a path where none is any more; `None` if it has no
/// record.
pub fn forget_made_at(state: &Path, path: &Path) -> Option<Step> {
    let (record, was) = (record(state, path), disk_made_at(state, path));
    was.filter(|_| matches!(FileId::at(path), Ok(None)))?;
    let was = input::state(&record).ok()?;
    Some(Step::File(FileStep::Remember { path: record, text: None, was }))
}

fn makes_disk(step: &Step) -> bool {
    matches!(step, Step::File(FileStep::CreateDisk { .. }) | Step::Volume(VolumeStep::Make { .. }))
}

/// Where a step makes or deletes a disk on this machine; `None` if it does neither.
fn place(step: &Step, made: Option<&Identity>, hypervisor: &dyn Hypervisor) -> Option<PathBuf> {
    if !hypervisor.machine().is_here() {
        return None;
    }
    match (step, made) {
        (Step::File(FileStep::CreateDisk { path, .. } | FileStep::DeleteDisk { path, .. }), _) => {
            Some(path.clone())
        }
        // In a pool of files the key is the path.
        (Step::Volume(VolumeStep::Make { .. }), Some(Identity::Volume { key, .. }))
            if key.starts_with('/') =>
        {
            Some(key.into())
        }
        (Step::Volume(VolumeStep::Make { pool, volume, .. }), _) => {
            volume_at(hypervisor, pool, &volume.name)
        }
        (Step::Volume(VolumeStep::Delete { pool, name, .. }), _) => {
            volume_at(hypervisor, pool, name)
        }
        _ => None,
    }
}

fn volume_at(hypervisor: &dyn Hypervisor, pool: &str, name: &str) -> Option<PathBuf> {
    Some(hypervisor.storage().volume_id(pool, name).ok()??.path)
}

/// Records the disk that a step has made.
pub(super) fn keep(
    state: Option<&Path>,
    step: &Step,
    made: Option<&Identity>,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) {
    if let (Some(state), Step::Volume(VolumeStep::Fill { pool, name, .. })) = (state, step) {
        return filled(state, volume_at(hypervisor, pool, name).as_deref());
    }
    let (Some(state), Some(made), true) = (state, made, makes_disk(step)) else { return };
    let Some(path) = place(step, Some(made), hypervisor) else { return };
    if let Err(error) = write(state, &path, made, format_of(state, step)) {
        observer.note(&format!("which disk {} is was not recorded: {error}", path.display()));
    }
}

/// Forgets the format of a volume that gets the bytes of an image: it was made raw only to hold
/// them.
fn filled(state: &Path, path: Option<&Path>) {
    let Some(path) = path else { return };
    if let Some(kept) = read(state, path).filter(|kept| kept.disk_format.is_some()) {
        let _ = write(state, path, &kept.made, None);
    }
}

fn write(
    state: &Path,
    path: &Path,
    made: &Identity,
    disk_format: Option<String>,
) -> Result<(), BindError> {
    let kept = MadeDisk { format: FORMAT, path: path.to_owned(), made: made.clone(), disk_format };
    let text = serde_json::to_string_pretty(&kept).expect("plain values") + "\n";
    set_private_file(&record(state, path), Some(&text))
}

/// Removes the record of a disk whose making is undone.
pub(super) fn forget(
    state: Option<&Path>,
    step: &Step,
    made: Option<&Identity>,
    hypervisor: &dyn Hypervisor,
) {
    if !makes_disk(step) {
        return;
    }
    let path = state.and_then(|_| place(step, made, hypervisor));
    if let (Some(state), Some(path)) = (state, path) {
        // A leftover record proves nothing of a file made there later.
        let _ = set_private_file(&record(state, &path), None);
    }
}

/// Performs a step, and removes the record of the disk that it deletes, but not of one that stays.
pub(super) fn deleting(
    state: Option<&Path>,
    step: &Step,
    hypervisor: &dyn Hypervisor,
    perform: impl FnOnce() -> Result<(), StepError>,
) -> Result<(), StepError> {
    let deletes = matches!(
        step,
        Step::File(FileStep::DeleteDisk { .. }) | Step::Volume(VolumeStep::Delete { .. })
    );
    let state = state.filter(|_| deletes);
    let path = state.and_then(|_| place(step, None, hypervisor));
    let done = perform();
    if let (Some(state), Some(path)) = (state, path)
        && done.is_ok()
        && matches!(FileId::at(&path), Ok(None))
    {
        let _ = set_private_file(&record(state, &path), None);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_place_of_the_one_that_was_made_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (state, path) = (dir.path().join("state"), dir.path().join("a.raw"));
        assert_eq!(disk_made_at(&state, &path), None);
        std::fs::write(&path, "made").unwrap();
        let file = FileId::at(&path).unwrap().unwrap();
        write(&state, &path, &Identity::File(file), Some("raw".into())).unwrap();
        assert_eq!(disk_made_at(&state, &path), Some(Identity::File(file)));
        assert_eq!(disk_made_at(&state, &dir.path().join("b.raw")), None);
        assert!(!is_another_file(Some(&file), &path));
        let other = dir.path().join("other.raw");
        std::fs::write(&other, "theirs").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            assert_eq!(disk_format_made(&state, name).as_deref(), Some("raw"));
        }
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(disk_format_made(&state, &path), None, "another file is in its place");
        assert!(is_another_file(Some(&file), &path));
        assert!(!is_another_file(None, &path), "nothing is known of it");
        std::fs::remove_file(&path).unwrap();
        assert!(!is_another_file(Some(&file), &path), "there is none");
        for damaged in ["", "{}", "not JSON"] {
            std::fs::write(record(&state, &path), damaged).unwrap();
            assert_eq!(disk_made_at(&state, &path), None, "{damaged}");
        }
    }
}
