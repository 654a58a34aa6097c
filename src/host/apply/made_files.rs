//! Records which configuration files are ours: the identity of each written file and the checksum
//! of its text. A file's own claim proves nothing: it may be a copy.

use super::error::BindError;
use super::file::set_private_file;
use super::state::{record_of, state_directory};
use crate::identity::FileId;
use crate::input;
use gpuvm_core::image::Sha256;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "files";
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Made {
    format: u32,
    path: PathBuf,
    file: FileId,
    sum: Sha256,
}

/// The record of a path.
fn record(path: &Path) -> PathBuf {
    record_of(&state_directory(DIRECTORY), path)
}

/// Records that the file at a path is ours with this text, or (none) that no file of ours is there.
pub(super) fn keep(path: &Path, text: Option<&str>) -> Result<(), BindError> {
    keep_in(&record(path), path, text)
}

fn keep_in(record: &Path, path: &Path, text: Option<&str>) -> Result<(), BindError> {
    let failed = |source| BindError::Configuration { path: path.to_owned(), source };
    let made = match text {
        None => None,
        Some(text) => FileId::at(path).map_err(failed)?.map(|file| Made {
            format: FORMAT,
            path: path.to_owned(),
            file,
            sum: Sha256::of_bytes(text.as_bytes()),
        }),
    };
    let made = made.map(|made| serde_json::to_string_pretty(&made).expect("plain values") + "\n");
    set_private_file(record, made.as_deref())
}

/// Whether the file at a path, which has this text now, is the one that we made, unchanged. An
/// unreadable record proves nothing, nor does a file system without creation times.
pub fn is_recorded(path: &Path, text: &str) -> bool {
    is_in(&record(path), path, text)
}

fn is_in(record: &Path, path: &Path, text: &str) -> bool {
    let Ok(Some(known)) = input::state(record) else { return false };
    let Ok(made) = serde_json::from_str::<Made>(&known) else { return false };
    let Ok(Some(now)) = FileId::at(path) else { return false };
    made.format == FORMAT
        && made.path == path
        && made.file.is(&now, false)
        && made.sum == Sha256::of_bytes(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_recognised_by_identity_not_by_its_claim() {
        let dir = tempfile::tempdir().unwrap();
        let (record, path, text) = (dir.path().join("r.json"), dir.path().join("f"), "ours\n");
        assert!(!is_in(&record, &path, text), "there is neither");
        std::fs::write(&path, text).unwrap();
        assert!(!is_in(&record, &path, text), "nothing is kept of it");
        keep_in(&record, &path, Some(text)).unwrap();
        if FileId::at(&path).unwrap().unwrap().birth_ns.is_none() {
            return crate::skip::skip("the file system does not tell when a file was made");
        }
        assert!(is_in(&record, &path, text));
        // Edited; a copy in its place; a link to it.
        assert!(!is_in(&record, &path, "ours\nand theirs\n"));
        let moved = dir.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::copy(&moved, &path).unwrap();
        assert!(!is_in(&record, &path, text), "a copy");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        assert!(!is_in(&record, &path, text), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&moved, &path).unwrap();
        assert!(is_in(&record, &path, text), "it is back");
        for damaged in ["", "{}", "not JSON"] {
            std::fs::write(&record, damaged).unwrap();
            assert!(!is_in(&record, &path, text), "{damaged}");
        }
        keep_in(&record, &path, None).unwrap();
        assert!(!record.exists());
    }
}
