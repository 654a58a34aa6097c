//! Reading of files that are not text.

use super::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

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

impl Dir<'_> {
    /// The first bytes of a file of the directory, at most so many; none where it cannot be read.
    pub fn bytes(&self, name: &str, most: usize) -> Option<Vec<u8>> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = openat(&self.fd, name, flags, Mode::empty()).ok()?;
        let (mut bytes, mut read) = (vec![0; most], 0);
        while let Ok(length @ 1..) = nix::unistd::read(&file, &mut bytes[read..]) {
            read += length;
        }
        bytes.truncate(read);
        Some(bytes)
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
