//! Drives of a host and who uses them.

use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};

/// Where the file systems are mounted without which a host does not come up: what is below one of them is never given
/// away, whatever is asked.
const SYSTEM: [&str; 6] = ["/", "/boot", "/boot/efi", "/efi", "/usr", "/var"];

/// Whether a mount point is one of those that a host does not come up without.
pub fn is_system(at: &str) -> bool {
    SYSTEM.contains(&at)
}

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
        /// What it is, where the kernel says so: `md raid0`, `LVM vg0-data`, `dm-crypt safe`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
        /// Mount points, and `swap`, of what stands on it, however far above.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        carries: Vec<String>,
    },
    /// Marked as a part of something that the kernel does not show as a holder.
    Member {
        /// Of what: `a ZFS pool \`tank\``, `an LVM volume group`.
        of: String,
    },
}

impl DriveUse {
    /// The use in words, for a drive or partition of this name.
    pub fn says(&self, name: &str) -> String {
        match self {
            DriveUse::Mounted { at } => format!("{name} is mounted at {at}"),
            DriveUse::Swap => format!("{name} is swap space"),
            DriveUse::Holder { device, what, carries } => {
                let what = what.as_ref().map_or_else(String::new, |what| format!(" ({what})"));
                let carries = match &carries[..] {
                    [] => String::new(),
                    [only] if only == "swap" => ", which is swap space".to_owned(),
                    places => format!(", which is mounted at {}", places.join(", ")),
                };
                format!("{name} is part of {device}{what}{carries}")
            }
            DriveUse::Member { of } => format!("{name} is a member of {of}"),
        }
    }

    /// Whether the host does not come up without it.
    pub fn is_system(&self) -> bool {
        match self {
            DriveUse::Mounted { at } => is_system(at),
            DriveUse::Holder { carries, .. } => carries.iter().any(|at| is_system(at)),
            DriveUse::Swap | DriveUse::Member { .. } => false,
        }
    }
}

impl Drive {
    /// Every use of it and of its partitions, with the name of what is used.
    pub fn uses(&self) -> impl Iterator<Item = (&str, &DriveUse)> {
        let whole = self.used_by.iter().map(|used| (self.name.as_str(), used));
        let parts = self.partitions.iter();
        whole.chain(parts.flat_map(|part| part.used_by.iter().map(|used| (&*part.name, used))))
    }
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
