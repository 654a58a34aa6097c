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
