//! How QEMU reads and writes the disks of a guest here: the features of the file system, QEMU and
//! libvirt.

use crate::discover::direct::{Direct, direct, kernel_has_io_uring};
use crate::domain::guest::{Abilities, DiskIo};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::emulator::port_speed_dgts;
use gpuvm_core::versions::Version;
use std::path::Path;

/// The first kernel that says whether io_uring is on.
pub(super) const IO_URING: Version = Version(6, 6, 0);

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
pub(super) fn past_the_cache(abilities: Abilities, kernel: bool) -> DiskIo {
    if abilities.io_uring && kernel { DiskIo::IoUring } else { DiskIo::Native }
}

#[cfg(test)]
mod tests {
    use super::*;

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
