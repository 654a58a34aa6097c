//! Whether files of this machine can be read and written past its page cache.

use super::hung_mounts::Silent;
use nix::fcntl::OFlag;
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Whether the kernel lets QEMU's user have io_uring: 0 allows everyone, 1 the privileged, 2 no
/// user (kernel 6.6). A kernel without the setting is not probed: a guest that cannot start is
/// worse than native I/O.
pub fn kernel_has_io_uring() -> bool {
    let path = Path::new("/proc/sys/kernel/io_uring_disabled");
    crate::trace::reads(path);
    let said = std::fs::read_to_string(path);
    said.is_ok_and(|text| text.trim() == "0")
}

/// Whether a file can be read and written past the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direct {
    /// It can, or there is no evidence against it.
    Works,
    /// It cannot.
    Refused(String),
}

/// Asks whether a file, or one to be created at that path, can be opened with O_DIRECT. Nothing is
/// left behind.
pub fn direct(path: &Path) -> Direct {
    if let Some(why) = Silent::read().why(path) {
        return Direct::Refused(why);
    }
    let there = path.exists();
    let Some(at) = path.ancestors().find(|at| at.exists()) else { return Direct::Works };
    let is_device = at.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    // A device is on no file system; only its node is in memory.
    let magic = statfs(at).map(|stat| stat.filesystem_type()).ok().filter(|_| !is_device);
    // It is in memory: since Linux 6.6 O_DIRECT is accepted there, and has no effect.
    if magic == Some(TMPFS_MAGIC) {
        return Direct::Refused("it is in the host's memory (tmpfs)".to_owned());
    }
    let mut options = OpenOptions::new();
    let opened = if there {
        let flags = OFlag::O_DIRECT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        options.read(true).custom_flags(flags.bits()).open(at)
    } else {
        let flags = OFlag::O_DIRECT | OFlag::O_TMPFILE;
        options.write(true).mode(0o600).custom_flags(flags.bits()).open(at)
    };
    judge(opened.map(drop), magic)
}

/// Why QEMU cannot open a file with O_DIRECT; `None` if it can, or nothing says that it cannot.
pub fn refuses_direct(path: &Path) -> Option<String> {
    match direct(path) {
        // In memory it is accepted since Linux 6.6.
        Direct::Refused(_) if opens(path) || !path.exists() => None,
        Direct::Refused(why) => Some(why),
        Direct::Works => None,
    }
}

/// Whether a file can be opened with O_DIRECT.
fn opens(path: &Path) -> bool {
    let flags = OFlag::O_DIRECT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).is_ok()
}

/// Judges an attempt to open with O_DIRECT. If it failed for another reason, such as permissions or
/// a file system without unnamed temporary files, the kind of file system decides.
fn judge(opened: io::Result<()>, magic: Option<FsType>) -> Direct {
    /// File systems, by their magic number in `statfs`, that never support O_DIRECT.
    const WITHOUT: [(i64, &str); 2] = [(0x8584_58f6, "ramfs"), (0xf15f, "ecryptfs")];
    match opened {
        Ok(()) => Direct::Works,
        Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) => {
            Direct::Refused("its file system takes no O_DIRECT".to_owned())
        }
        Err(_) => {
            let known = WITHOUT.iter().find(|(number, _)| magic == Some(FsType(*number)));
            known.map_or(Direct::Works, |(_, name)| Direct::Refused(format!("it is on {name}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unopenable_files_are_distinguished_from_files_in_memory() {
        assert!(refuses_direct(Path::new("/proc/version")).is_some());
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("a.img");
        std::fs::write(&file, [0; 4096]).unwrap();
        assert_eq!(refuses_direct(&file).is_none(), opens(&file));
        assert_eq!(refuses_direct(&dir.path().join("absent")), None);
    }

    #[test]
    fn support_of_direct_writes_is_probed_not_guessed() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = dir.path().join("a.img");
        let missing = direct(&dir.path().join("below/a.img"));
        assert_eq!((direct(&file), missing), (Direct::Works, Direct::Works));
        std::fs::write(&file, "").unwrap();
        assert_eq!(direct(&file), Direct::Works);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the probe left a file");
        // The kernel's own files refuse it on every machine.
        assert!(matches!(direct(Path::new("/proc/version")), Direct::Refused(_)));
        assert!(matches!(direct(Path::new("/dev/shm/a.img")), Direct::Refused(_)));
    }

    #[test]
    fn where_we_may_not_open_the_kind_of_the_file_system_decides() {
        let denied = || Err(io::Error::from_raw_os_error(nix::libc::EACCES));
        assert_eq!(judge(denied(), None), Direct::Works);
        assert!(matches!(judge(denied(), Some(FsType(0xf15f))), Direct::Refused(_)));
        let invalid = Err(io::Error::from_raw_os_error(nix::libc::EINVAL));
        assert!(matches!(judge(invalid, None), Direct::Refused(_)));
    }
}
