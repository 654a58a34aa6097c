//! What a path is, and when it was changed, without reading it.

use super::FsRoot;
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};

/// A file below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// Whether it is a regular file.
    pub is_regular: bool,
    /// When its content was last changed, in seconds since 1970.
    pub modified_s: i64,
}

impl FsRoot {
    /// Returns what a path is, its links followed; none where it is missing or not to be seen.
    pub fn kind(&self, path: &str) -> Option<FileKind> {
        let stat = fstat(self.open(path, OFlag::O_PATH).ok()?).ok()?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        Some(FileKind { is_regular: kind == SFlag::S_IFREG, modified_s: stat.st_mtime })
    }
}
