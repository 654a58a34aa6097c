//! How QEMU reads and writes the disks of a guest here: the features of the file system, QEMU and
//! libvirt.

use crate::discover::silent::Silent;
use crate::domain::guest::{Abilities, DiskIo};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::emulator::port_speed_dgts;
use nix::fcntl::OFlag;
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The features of a hypervisor; `ports`: including those of root ports.
pub fn abilities(hypervisor: &dyn Hypervisor, ports: bool) -> Abilities {
    let mut abilities = hypervisor.storage().abilities();
    abilities.translates_dma = hypervisor.versions().translates_dma();
    if ports {
        let program = hypervisor.emulator();
        abilities.port_speed_dgts = program.and_then(|path| port_speed_dgts(&path));
    }
    abilities
}

/// The best I/O settings for the disk at a path of this machine, and a warning for the admin.
pub fn best_io(path: &str, abilities: Abilities) -> (DiskIo, Option<String>) {
    match direct(Path::new(path)) {
        Direct::Refused(why) => {
            let why =
                format!("disk {path} is read and written through the host's page cache: {why}");
            (DiskIo::Threads, Some(why))
        }
        Direct::Works => (past_the_cache(abilities, kernel_has_io_uring()), None),
    }
}

/// The I/O settings of a disk if its file system supports O_DIRECT.
fn past_the_cache(abilities: Abilities, kernel: bool) -> DiskIo {
    if abilities.io_uring && kernel { DiskIo::IoUring } else { DiskIo::Native }
}

/// Whether the kernel lets QEMU's user have io_uring: 0 allows everyone, 1 the privileged, 2 nobody
/// (kernel 6.6). On a kernel without the setting it is not tried out: a guest that cannot start is
/// worse than native I/O.
fn kernel_has_io_uring() -> bool {
    let said = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    said.is_ok_and(|text| text.trim() == "0")
}

/// Whether a file can be read and written past the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Direct {
    /// It can, or there is no evidence against it.
    Works,
    /// It cannot.
    Refused(String),
}

/// Asks whether a file, or one to be created at that path, can be opened with O_DIRECT. Nothing is
/// left behind.
fn direct(path: &Path) -> Direct {
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
        return Direct::Refused("it lies in the host's memory (tmpfs)".to_owned());
    }
    let mut options = OpenOptions::new();
    let opened = match there {
        true => {
            let flags = OFlag::O_DIRECT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            options.read(true).custom_flags(flags.bits()).open(at)
        }
        false => {
            let flags = OFlag::O_DIRECT | OFlag::O_TMPFILE;
            options.write(true).mode(0o600).custom_flags(flags.bits()).open(at)
        }
    };
    judge(opened.map(drop), magic)
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
            known.map_or(Direct::Works, |(_, name)| Direct::Refused(format!("it lies on {name}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_direct_writes_is_asked_and_not_guessed() {
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

    #[test]
    fn io_uring_needs_qemu_and_the_kernel() {
        let with = |io_uring| Abilities { io_uring, ..Abilities::default() };
        for (qemu, kernel, io) in [
            (true, true, DiskIo::IoUring),
            (true, false, DiskIo::Native),
            (false, true, DiskIo::Native),
        ] {
            assert_eq!(past_the_cache(with(qemu), kernel), io);
        }
    }
}
