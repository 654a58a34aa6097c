//! Device nodes of block devices: the kernel's name behind a path, and which devices respond, so
//! that nothing waits for a hung drive.

use super::hung_mounts::Silent;
use crate::command::{CommandError, output};
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Time limit of opening a device in seconds.
const OPEN_S: u64 = 10;

/// The kernel's name of a block device of this machine, by a path to it; none if it is not a block
/// device.
pub fn kernel_name(path: &Path) -> Option<String> {
    use nix::sys::stat::{major, minor};
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    if Silent::read().why(path).is_some() {
        return None;
    }
    let meta = path.metadata().ok().filter(|meta| meta.file_type().is_block_device())?;
    // By number: a node may have any name.
    let number = format!("{}:{}", major(meta.rdev()), minor(meta.rdev()));
    let target = std::fs::read_link(format!("/sys/dev/block/{number}")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// The kind of a block device of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A whole drive.
    Drive,
    /// A partition.
    Partition,
    /// Made of others: an array, a volume of LVM, a loop device.
    Other,
}

/// The kind of the block device at a path of this machine; `None` if it does not exist.
pub fn device_kind(path: &Path) -> Option<DeviceKind> {
    let name = kernel_name(path)?;
    let has = |file: &str| Path::new("/sys/class/block").join(&name).join(file).exists();
    Some(match (has("partition"), has("device")) {
        (true, _) => DeviceKind::Partition,
        (false, true) => DeviceKind::Drive,
        (false, false) => DeviceKind::Other,
    })
}

/// Returns those of these devices that can be opened, or fail in time. Opening a hung drive would
/// block this program forever, so another program opens them first.
pub fn answering(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let answers = |paths: &[PathBuf]| {
        let mut argv = vec!["head", "--bytes=0", "--quiet", "--"];
        argv.extend(paths.iter().filter_map(|path| path.to_str()));
        !matches!(output(&argv, OPEN_S), Err(CommandError::Late { .. }))
    };
    if paths.is_empty() || answers(paths) {
        return paths.iter().cloned().collect();
    }
    paths.iter().filter(|path| answers(std::slice::from_ref(path))).cloned().collect()
}

/// Whether a block device, known to respond, is held exclusively.
pub fn is_held_now(path: &Path) -> bool {
    let alone = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_EXCL | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits())
        .open(path);
    matches!(alone, Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY))
}
