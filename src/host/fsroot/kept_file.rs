//! Files of the kernel that are read many times: opened once, and read from their beginning again.

use super::{FsError, FsRoot, absent, readable};
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;

/// Descriptors that are left for everything else.
const RESERVE: RawFd = 128;
/// The most descriptors requested: a host of 50 guests with 200 threads each.
const MOST: u64 = 65_536;

/// How many files may be kept open.
#[derive(Debug, Clone, Copy)]
pub struct KeptLimit {
    /// Descriptors from this number on are not kept.
    end: RawFd,
}

impl KeptLimit {
    /// Raises the limit of open files of this process as far as its hard limit allows.
    pub fn raise() -> KeptLimit {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        let wanted = hard.min(MOST).max(soft);
        let got = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map_or(soft, |()| wanted);
        let end = RawFd::try_from(got).unwrap_or(RawFd::MAX);
        KeptLimit { end: end.saturating_sub(RESERVE) }
    }

    /// Keeps no file: each is opened at each reading.
    pub const NONE: KeptLimit = KeptLimit { end: 0 };
}

/// A file that is read many times. Without a descriptor to spare it is opened each time.
#[derive(Debug)]
pub struct KeptFile {
    path: String,
    file: Option<File>,
}

impl KeptFile {
    /// Opens a file; `None` where it is missing.
    pub fn open(root: &FsRoot, path: &str, limit: KeptLimit) -> Result<Option<KeptFile>, FsError> {
        let Some(file) = open(root, path)? else { return Ok(None) };
        let file = Some(file).filter(|file| file.as_raw_fd() < limit.end);
        Ok(Some(KeptFile { path: path.to_owned(), file }))
    }

    /// Reads it from its beginning, and returns the text in the buffer. An error where it is gone:
    /// a thread that has ended, a device that was removed.
    pub fn read<'b>(&self, root: &FsRoot, buffer: &'b mut Vec<u8>) -> io::Result<&'b str> {
        let opened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                let found = open(root, &self.path).map_err(io::Error::other)?;
                opened = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                &opened
            }
        };
        let mut length = 0;
        loop {
            if buffer.len() < length + super::PAGE {
                buffer.resize(length + super::PAGE, 0);
            }
            match file.read_at(&mut buffer[length..], length as u64)? {
                0 => break,
                more => length += more,
            }
            if length > super::LARGEST {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
        }
        std::str::from_utf8(&buffer[..length])
            .map_err(|_| io::Error::other(readable(&buffer[..length.min(64)])))
    }
}

fn open(root: &FsRoot, path: &str) -> Result<Option<File>, FsError> {
    let fd = absent(root.open(path, OFlag::O_RDONLY)).map_err(|e| root.unreadable(path, e))?;
    Ok(fd.map(File::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_with_and_without_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let path = dir.path().join("a");
        for limit in [KeptLimit::NONE, KeptLimit::raise()] {
            std::fs::write(&path, "one").unwrap();
            let kept = KeptFile::open(&root, "a", limit).unwrap().unwrap();
            let mut buffer = Vec::new();
            assert_eq!(kept.read(&root, &mut buffer).unwrap(), "one");
            std::fs::write(&path, "2\n".repeat(4000)).unwrap();
            assert_eq!(kept.read(&root, &mut buffer).unwrap().len(), 8000);
            std::fs::write(&path, "").unwrap();
            assert_eq!(kept.read(&root, &mut buffer).unwrap(), "");
            std::fs::write(&path, b"\xff").unwrap();
            assert!(kept.read(&root, &mut buffer).is_err());
        }
        assert!(KeptFile::open(&root, "b", KeptLimit::NONE).unwrap().is_none());
    }
}
