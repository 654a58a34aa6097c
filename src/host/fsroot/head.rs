//! Reading of files that are not text.

use super::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

impl Dir<'_> {
    /// Whether a file of the directory begins with these bytes; false if it cannot be read. A
    /// single read of exactly that length: reading more of a function's config space could disturb
    /// the hardware.
    pub fn begins(&self, name: &str, with: &[u8]) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let mut head = vec![0; with.len()];
        let file = openat(&self.fd, name, flags, Mode::empty());
        file.is_ok_and(|fd| nix::unistd::read(&fd, &mut head) == Ok(with.len())) && head == with
    }
}

/// An open binary file that is read in single double words.
#[derive(Debug)]
pub struct Words(File);

impl Words {
    /// The double word at an offset, little endian; `None` beyond the readable part.
    pub fn at(&self, offset: u16) -> Option<u32> {
        let mut word = [0; 4];
        let length = self.0.read_at(&mut word, offset.into());
        length.is_ok_and(|length| length == word.len()).then(|| u32::from_le_bytes(word))
    }
}

impl Dir<'_> {
    /// Opens a file of the directory for single double words; none where it cannot be read or is
    /// not a regular file.
    pub fn words(&self, name: &str) -> Option<Words> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        openat(&self.fd, name, flags, Mode::empty()).ok().map(|fd| Words(fd.into()))
    }
}

impl Dir<'_> {
    /// Returns for the target of a link in /proc/PID whether it is a block device, its device
    /// number, and that of its file system. None on a recorded host, whose links are dangling, and
    /// without permission.
    pub fn numbers(&self, link: &str) -> Option<(bool, u64, u64)> {
        if !self.root.is_live() {
            return None;
        }
        let stat = nix::sys::stat::fstatat(&self.fd, link, nix::fcntl::AtFlags::empty()).ok()?;
        let is_block = stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFBLK;
        Some((is_block, stat.st_rdev, stat.st_dev))
    }
}

impl Dir<'_> {
    /// Returns the zero-terminated texts of a file, such as /proc/PID/cmdline; empty if it cannot
    /// be read. Invalid UTF-8 is replaced.
    pub fn zero_ended(&self, name: &str) -> Vec<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let Ok(file) = openat(&self.fd, name, flags, Mode::empty()) else { return Vec::new() };
        let (mut page, mut bytes) = ([0; super::PAGE], Vec::new());
        while let Ok(length @ 1..) = nix::unistd::read(&file, &mut page) {
            bytes.extend_from_slice(&page[..length]);
            if bytes.len() > super::LARGEST {
                break;
            }
        }
        let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
        parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }
}
