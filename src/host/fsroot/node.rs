//! Device nodes by number: an open device may have any name.

use super::{Dir, Resolve};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat, major, minor};

/// A device node's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeNumber {
    /// Whether it is a block device, not a character device.
    pub block: bool,
    /// The driver's number.
    pub major: u64,
    /// The driver's device.
    pub minor: u64,
}

impl NodeNumber {
    /// Reads `195:0`, as in `dev` files of sysfs.
    pub fn parse(block: bool, text: &str) -> Option<NodeNumber> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(NodeNumber { block, major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Returns the device number; none if it is not a device.
    fn of(stat: &FileStat) -> Option<NodeNumber> {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let block = kind == SFlag::S_IFBLK;
        let number = NodeNumber { block, major: major(stat.st_rdev), minor: minor(stat.st_rdev) };
        (block || kind == SFlag::S_IFCHR).then_some(number)
    }
}

impl Dir<'_> {
    /// Whether a file or directory is in it.
    pub fn exists(&self, name: &str) -> bool {
        self.root.exists(&self.path_of(name))
    }

    /// Returns the number of the device that a link of this directory leads to, such as a process'
    /// open file; none if it leads to no device. On a recorded host the node must be in the record.
    pub fn node_number(&self, name: &str) -> Option<NodeNumber> {
        if self.root.resolve == Resolve::Live {
            return NodeNumber::of(&fstatat(&self.fd, name, AtFlags::empty()).ok()?);
        }
        let target = self.link(name).ok()??;
        NodeNumber::of(&fstat(self.root.open(&target, OFlag::O_PATH).ok()?).ok()?)
    }
}
