//! The kind of a path, and its time of change, without reading it.

use super::{FsError, FsRoot};
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};

/// A file below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// Whether it is a regular file.
    pub is_regular: bool,
    /// When its content was last changed, in seconds since 1970.
    pub modified_s: i64,
    /// Its owner.
    pub uid: u32,
    /// Its permissions.
    pub mode: u32,
}

impl FsRoot {
    /// Returns the kind of a path, its links followed; `None` if it is missing or invisible.
    pub fn kind(&self, path: &str) -> Option<FileKind> {
        let stat = fstat(self.open(path, OFlag::O_PATH).ok()?).ok()?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        Some(FileKind {
            is_regular: kind == SFlag::S_IFREG,
            modified_s: stat.st_mtime,
            uid: stat.st_uid,
            mode: stat.st_mode & 0o7777,
        })
    }

    /// Refuses paths other than regular files, such as pipes. `None` if nothing exists there.
    pub fn regular(&self, path: &str) -> Result<Option<FileKind>, FsError> {
        match self.kind(path) {
            Some(kind) if !kind.is_regular => {
                Err(self.malformed(path, 1, "it is not a regular file"))
            }
            kind => Ok(kind),
        }
    }
}
