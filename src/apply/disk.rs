//! Disk images as files. Knows neither domains nor storage pools.

use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Says what could not be done with an image.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file is there already.
    #[error("{} is there already and is not replaced", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The directory is not there.
    #[error("directory {} is not there", dir.display())]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
    },
    /// No space is left.
    #[error("no space is left for {}: {source}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The user may not.
    #[error("not permitted on {}: {source}", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Not a file, so not one of ours.
    #[error("{} is not a regular file and is left alone", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Anything else.
    #[error("{}: {source}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Makes a sparse image of zeros for its owner alone; libvirt hands it to QEMU's user when the domain starts.
pub fn create(path: &Path, bytes: u64) -> Result<(), DiskError> {
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file: File = new.map_err(|e| error(path, e))?;
    if let Err(e) = file.set_len(bytes).and_then(|()| file.sync_all()) {
        // The file is of this call, so nobody else can miss it; the first error is the one to tell.
        let _ = std::fs::remove_file(path);
        return Err(error(path, e));
    }
    Ok(())
}

/// Opens a file to be copied, and nothing but a file: a device may act on being opened, a FIFO may never answer.
pub fn open(path: &Path) -> Result<File, DiskError> {
    let wrong = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => DiskError::Other { path: path.to_owned(), source },
        _ => error(path, source),
    };
    let is_file = |meta: std::fs::Metadata| match meta.is_file() {
        true => Ok(()),
        false => Err(DiskError::NotAFile { path: path.to_owned() }),
    };
    is_file(path.metadata().map_err(wrong)?)?;
    // It may have become another since.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map_err(wrong)?;
    is_file(file.metadata().map_err(wrong)?)?;
    Ok(file)
}

/// How much the file system of a directory can still take; none where it cannot be asked.
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(directory).ok()?;
    Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// Makes a directory for images that only its owner writes and everyone enters, QEMU's user too.
pub fn create_directory(path: &Path) -> Result<(), DiskError> {
    std::fs::DirBuilder::new().mode(0o755).create(path).map_err(|e| error(path, e))
}

/// Removes a directory, unless something is in it by now.
pub fn delete_directory(path: &Path) -> Result<(), DiskError> {
    match std::fs::remove_dir(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed.map_err(|e| error(path, e)),
    }
}

/// Removes an image; one that is not there any more is as good as removed.
pub fn delete(path: &Path) -> Result<(), DiskError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error(path, e)),
        Ok(meta) if !meta.is_file() => {
            return Err(DiskError::NotAFile { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    std::fs::remove_file(path).map_err(|e| error(path, e))
}

/// Our error for one of the system's.
fn error(path: &Path, source: io::Error) -> DiskError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::AlreadyExists => DiskError::Exists { path },
        ErrorKind::NotFound => {
            let dir = path.parent().unwrap_or(&path).to_owned();
            DiskError::NoDirectory { dir }
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            DiskError::Full { path, source }
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            DiskError::Denied { path, source }
        }
        _ => DiskError::Other { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_image_is_sparse_and_never_replaces_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        create(&path, 50 << 30).unwrap();
        let meta = path.metadata().unwrap();
        assert_eq!(meta.len(), 50 << 30);
        assert!(meta.blocks() < 64, "{} blocks are used", meta.blocks());
        assert!(matches!(create(&path, 1), Err(DiskError::Exists { .. })));
        assert_eq!(path.metadata().unwrap().len(), 50 << 30);
        delete(&path).unwrap();
        delete(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_file_or_has_no_place_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent/a.img");
        assert!(matches!(create(&absent, 1), Err(DiskError::NoDirectory { .. })));
        assert!(matches!(delete(dir.path()), Err(DiskError::NotAFile { .. })));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(matches!(delete(&link), Err(DiskError::NotAFile { .. })));
        assert!(matches!(create(&link, 1), Err(DiskError::Exists { .. })));
        let below = dir.path().join("new");
        create_directory(&below).unwrap();
        assert!(matches!(create_directory(&below), Err(DiskError::Exists { .. })));
        create(&below.join("a.img"), 1).unwrap();
        delete_directory(&below).unwrap();
        assert!(below.exists(), "a directory with a file was removed");
        delete(&below.join("a.img")).unwrap();
        delete_directory(&below).unwrap();
        assert!(!below.exists());
        let huge = dir.path().join("huge.img");
        assert!(create(&huge, u64::MAX).is_err());
        assert!(!huge.exists(), "a file is left of a size that cannot be");
    }
}
