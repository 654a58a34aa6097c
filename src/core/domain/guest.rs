//! The parts of a guest's XML besides its placement: name, kind, disks, networks, and the record of
//! how it was made. Knows no host and no numbers of the plan.

use super::nic_request::NicWish;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::occupancy::GuestVgpu;
use crate::request::{DomainName, Guard, Request};
use crate::topology::{Binding, KnownDevice};
pub use crate::versions::Abilities;
use crate::versions::Stack;
use serde::{Deserialize, Serialize};

/// The kind of virtual machine.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::EnumMessage,
    strum::VariantArray,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum VirtType {
    /// Hardware virtualization.
    Kvm,
    /// Software emulation, without /dev/kvm.
    Qemu,
}

impl VirtType {
    /// The `type` of libvirt's `<domain>`.
    pub fn as_str(self) -> &'static str {
        match self {
            VirtType::Kvm => "kvm",
            VirtType::Qemu => "qemu",
        }
    }
}

/// The CPU that a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CpuModel {
    /// The host's, with the host's physical address bits where the architecture has that setting.
    HostPassthrough {
        /// Whether to write `<maxphysaddr mode='passthrough'/>`, which OVMF's 64-bit window depends
        /// on.
        maxphysaddr: bool,
        /// The most bits, where the IOMMU has fewer than the host.
        limit: Option<u8>,
    },
    /// All that an emulator can do.
    Maximum,
    /// A model of libvirt's.
    Named(&'static str),
    /// The one that the document names.
    Kept,
}

/// How a disk's bytes are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskFormat {
    /// Byte for byte.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

impl DiskFormat {
    /// The `type` of libvirt's disk `<driver>`.
    pub fn as_str(self) -> &'static str {
        match self {
            DiskFormat::Raw => "raw",
            DiskFormat::Qcow2 => "qcow2",
        }
    }
}

/// The kind of object that a disk's path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// An image file.
    File,
    /// A block device.
    Block,
}

impl DiskKind {
    /// The `type` of libvirt's disk, and the attribute of `<source>` with its path.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            DiskKind::File => ("file", "file"),
            DiskKind::Block => ("block", "dev"),
        }
    }
}

/// How QEMU reads and writes a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskIo {
    /// Past the host's page cache, by Linux' native asynchronous I/O.
    #[default]
    Native,
    /// Past the host's page cache, by io_uring.
    IoUring,
    /// Through the host's page cache, by threads: for file systems that know no O_DIRECT.
    Threads,
}

impl DiskIo {
    /// The `cache` and the `io` of libvirt's disk `<driver>`.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            DiskIo::Native => ("none", "native"),
            DiskIo::IoUring => ("none", "io_uring"),
            DiskIo::Threads => ("writeback", "threads"),
        }
    }
}

/// A disk of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Disk {
    /// Absolute path on the host.
    pub path: String,
    /// Its format.
    pub format: DiskFormat,
    /// The kind of object that the path names.
    pub kind: DiskKind,
    /// How QEMU reads and writes it.
    #[serde(default)]
    pub io: DiskIo,
    /// Whether the guest may only read it; it gets no I/O thread and one queue then.
    #[serde(default)]
    pub read_only: bool,
    /// Whether its blocks stay its own when the guest discards them, as making a file system in it
    /// does.
    #[serde(default)]
    pub keeps_blocks: bool,
    /// The serial number that the guest sees, at most 20 characters; `None` for that of libvirt's
    /// document, or none at all.
    #[serde(default)]
    pub serial: Option<String>,
    /// The images below it, from the top down, as its definition states them, so that nothing is
    /// read from its header again. `None` if the definition states nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Vec<BackingImage>>,
}

/// An image below another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackingImage {
    /// Absolute path on the host.
    pub path: String,
    /// Its format.
    pub format: DiskFormat,
    /// The kind of object that the path names.
    pub kind: DiskKind,
}

impl Disk {
    /// A disk with every default.
    pub fn new(path: impl Into<String>, format: DiskFormat, kind: DiskKind) -> Disk {
        Disk {
            path: path.into(),
            format,
            kind,
            io: DiskIo::default(),
            read_only: false,
            keeps_blocks: false,
            serial: None,
            backing: None,
        }
    }
}

/// The purpose of a disk created for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It boots from it.
    Os,
    /// Its data is on it.
    Data,
    /// The cloud-init seed is on it.
    Seed,
    /// It is the base of a disk of the guest, and perhaps of others; it is never written.
    Base,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::Os, Role::Data, Role::Seed, Role::Base];

    /// Its word in our metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Os => "os",
            Role::Data => "data",
            Role::Seed => "seed",
            Role::Base => "base",
        }
    }
}

/// A volume of a libvirt pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VolumeRef {
    /// The pool.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
}

/// A disk created for a guest and deleted with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Made {
    /// Its purpose in the guest.
    pub role: Role,
    /// Its path on the host.
    pub path: String,
    /// Its volume; `None` for a plain file.
    pub volume: Option<VolumeRef>,
}

/// A function that was bound for a guest, and its driver before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bound {
    /// The function.
    pub bdf: Bdf,
    /// The driver that it returns to when the guest is deleted.
    pub was: Binding,
}

/// Huge pages of one node that were reserved for a guest and go with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reserved {
    /// The node.
    pub node: NodeId,
    /// Page size.
    pub page_kib: MemSize,
    /// How many.
    pub count: u64,
    /// The boot of the machine that they were reserved in, as the kernel numbers it: no pool
    /// outlives it.
    pub boot: String,
}

/// A virtual function that was configured on its card for a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Guarded {
    /// The function.
    pub bdf: Bdf,
    /// Its permissions for the guest.
    pub to: Guard,
    /// Its permissions again without the guest.
    pub was: Guard,
}

/// The topology file for NCCL that a guest got by its seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeededNccl {
    /// Its first line's sum.
    pub sum: String,
    /// The functions that it names, in its order: the address on the host, and that in the guest.
    pub functions: Vec<(Bdf, Bdf)>,
}

/// The record of a guest in its own metadata, below [`NAMESPACE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// The request.
    pub request: Request,
    /// Disks that were made for it and go with it.
    pub made: Vec<Made>,
    /// Functions that were bound for it.
    pub bound: Vec<Bound>,
    /// Huge pages that were reserved for it.
    pub reserved: Vec<Reserved>,
    /// Virtual functions that were configured on their cards for it.
    #[serde(default)]
    pub guarded: Vec<Guarded>,
    /// Its vGPUs, whose types and mediated devices are ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<GuestVgpu>,
    /// The topology file for NCCL in its seed; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<SeededNccl>,
    /// The identities of its passed-through functions, where known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<KnownDevice>,
    /// The user that its seed makes; `None` for that of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The stack that was assumed where a recorded host names none; `None` if it was asked or
    /// recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed: Option<Stack>,
}

/// Free root ports of a new guest by default: one, as libvirt leaves where it chooses places
/// itself, so that a disk, a NIC or a drive can be plugged. A port costs the guest a bus number
/// and, for x86 firmware, a window of I/O ports, of which there are few.
pub const SPARE_PORTS: u32 = 1;
/// The most free root ports that a guest can be made with.
pub const MOST_SPARE_PORTS: u32 = 16;

/// The namespace of our metadata.
pub const NAMESPACE: &str = "urn:gpuvm:domain:1";

/// A guest without its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Guest {
    /// Its name.
    pub name: DomainName,
    /// Its kind.
    pub virt: VirtType,
    /// Disks that it gets besides the template's, in order. One that the document has already, by
    /// path, is set as here.
    pub disks: Vec<Disk>,
    /// libvirt networks of its NICs, which replace the template's; empty: the template's stay.
    pub networks: Vec<NicWish>,
    /// Networks that get a NIC unless one is there already.
    pub added_networks: Vec<String>,
    /// Those of its networks that hand out virtual functions, so that an interface of theirs is no
    /// virtio device.
    #[serde(default)]
    pub vf_pools: Vec<String>,
    /// The source of its MAC addresses: its UUID; `None` for its name, while it has no UUID.
    #[serde(default)]
    pub mac_key: Option<String>,
    /// MAC addresses of other domains, of which none is made for it.
    #[serde(default)]
    pub taken_macs: Vec<String>,
    /// Free root ports on the root bus for devices that come while it runs.
    #[serde(default)]
    pub spare_ports: u32,
    /// The features of its hypervisor.
    #[serde(default)]
    pub abilities: Abilities,
    /// The record to keep.
    pub record: Record,
}

impl Guest {
    /// Returns the source of its MAC addresses.
    pub fn mac_key(&self) -> &str {
        self.mac_key.as_deref().unwrap_or(self.name.as_str())
    }
}

/// Returns the UUID of a domain's mediated device number `nth`, from 0; `key` as of [`mac`]. It has
/// the form of RFC 9562's version 8.
pub fn mdev_uuid(key: &str, nth: usize) -> String {
    let half = |salt: u8| {
        let bytes = key.bytes().chain([0, salt]).chain(nth.to_be_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let (high, low) = (half(1), half(2));
    let high = high & !0xf000 | 0x8000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Returns the MAC address of a domain's NIC number `nic`, from 0. `key` is the domain's UUID, so
/// that guests of one name on two hosts differ: 52:54:00 is QEMU's prefix, and the other 24 bits
/// are of an FNV-1a hash of key, NUL, number.
pub fn mac(key: &str, nic: u32) -> String {
    let bytes = key.bytes().chain([0]).chain(nic.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The high bits are folded in, since FNV's low bits alone depend on the low bits of the input.
    let [.., a, b, c] = (hash ^ hash >> 24 ^ hash >> 48).to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_stable_and_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for name in ["a", "b", "train-a", "gpuvm-2g0-1", "gpuvm-2g2-3"] {
            for nic in 0..4 {
                let mac = mac(name, nic);
                assert!(mac.starts_with("52:54:00:") && mac.len() == 17, "{mac}");
                assert!(seen.insert(mac));
            }
        }
        assert_eq!(mac("train-a", 0), mac("train-a", 0));
        let uuids: std::collections::BTreeSet<String> =
            (0..9).flat_map(|nth| ["a", "b"].map(|key| mdev_uuid(key, nth))).collect();
        assert!(uuids.len() == 18 && uuids.iter().all(|uuid| uuid.len() == 36));
        assert!(uuids.iter().all(|uuid| uuid.as_bytes()[14] == b'8'));
    }
}
