//! Drives of a host and who uses them.

use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};

/// Is a use of a drive or of one of its partitions by the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DriveUse {
    /// Mounted.
    Mounted {
        /// Mount point.
        at: String,
    },
    /// Swap space.
    Swap,
    /// Below another block device: md array, device mapper (LVM, crypt, multipath), bcache, ZFS.
    Holder {
        /// The kernel's name of that device: `md0`, `dm-1`.
        device: String,
    },
}

/// Is a partition of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionTableEntry {
    /// The kernel's name: `nvme0n1p1`.
    pub name: String,
    /// Number in the table.
    pub number: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// PARTUUID, where udev gave a link; identifying, so only where the admin asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<String>,
    /// Uses by the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<DriveUse>,
}

/// Is a whole drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// The kernel's name: `nvme0n1`, `sda`; not stable over boots.
    pub name: String,
    /// PCI function that it hangs on; none for virtual ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bdf: Option<Bdf>,
    /// Size in bytes.
    pub bytes: u64,
    /// Model, trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether it rotates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotational: bool,
    /// Names below /dev/disk/by-id, which hold serial numbers: only where the admin asked for identifying data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stable_ids: Vec<String>,
    /// Partitions, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionTableEntry>,
    /// Uses of the whole drive by the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<DriveUse>,
}
