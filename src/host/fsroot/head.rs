//! The first bytes of a file that is no text.

use super::Dir;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

impl Dir<'_> {
    /// Whether a file of the directory begins with these bytes; not where it cannot be read. One read of just so many
    /// bytes: more of a function's config space could disturb the hardware.
    pub fn begins(&self, name: &str, with: &[u8]) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let mut head = vec![0; with.len()];
        let file = openat(&self.fd, name, flags, Mode::empty());
        file.is_ok_and(|fd| nix::unistd::read(&fd, &mut head) == Ok(with.len())) && head == with
    }
}

impl Dir<'_> {
    /// Of what a link of /proc/PID leads to: whether it is a block device, its own number, and that of the file system
    /// it is on. None on a recorded host, whose links lead nowhere, and where it may not be looked at.
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
    /// The texts of a file of the directory that ends each of them with a zero byte, as /proc/PID/cmdline does; none
    /// where it cannot be read. What is no UTF-8 in them is replaced.
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
