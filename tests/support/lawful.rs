//! Reasons for skipped tests that CI accepts as well: they depend on the kernel, a container or
//! another person's machine, and no package helps.

use super::skip::Lawful;

/// They are not part of the repository.
pub const NO_SHARED_HOSTS: Lawful = Lawful("no recorded hosts beside the project");
/// A virtual machine has it only with nested virtualization.
pub const NO_KVM: Lawful = Lawful("no /dev/kvm");
/// Containers may not mount it.
pub const NO_FUSE: Lawful = Lawful("FUSE cannot be mounted");
/// Containers have no loop devices of their own.
pub const NO_LOOP: Lawful = Lawful("no loop devices");
/// Memory may be too small or too fragmented, and nodes may be several.
pub const NO_HUGE_PAGES: Lawful = Lawful("no huge pages of 2 MiB can be reserved");
/// A kernel may be built without them.
pub const NO_THP: Lawful = Lawful("the kernel has no transparent huge pages");
/// A kernel may be built without them.
pub const NO_VETH: Lawful = Lawful("the kernel has no veth pairs");
/// A kernel may be built without them.
pub const NO_VLAN: Lawful = Lawful("the kernel has no VLANs");
/// A kernel may be built without its traffic shapers; their test with traffic runs on user-mode
/// Linux.
pub const NO_LIMITS: Lawful = Lawful("the kernel does not limit rates");
/// Since Linux 6.13 or so a ramfs may record them.
pub const RAMFS_WITH_BIRTHS: Lawful = Lawful("a ramfs that records times of birth");
/// A container may not mount one, and a root that is a layer itself takes no other.
pub const NO_OVERLAY: Lawful = Lawful("no overlay can be mounted over /");
/// tests/trixie/mod.rs runs it there, nightly.
pub const NOT_DEBIAN_13: Lawful = Lawful("libvirt 12 and QEMU 11 of Debian 13 are needed");
