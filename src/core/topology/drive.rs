//! Drives of a host and their uses.

use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};

/// Mount points of file systems that a host needs to boot: drives below them are never given away,
/// whatever is requested.
const SYSTEM: [&str; 6] = ["/", "/boot", "/boot/efi", "/efi", "/usr", "/var"];

/// Whether a mount point is one that a host needs to boot.
pub fn is_system(at: &str) -> bool {
    SYSTEM.contains(&at)
}

/// A use of a drive or of one of its partitions by the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
        /// Its kind, if the kernel reports one: `md raid0`, `LVM vg0-data`, `dm-crypt safe`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
        /// Mount points, and `swap`, of everything on top of it, at any depth.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        carries: Vec<String>,
    },
    /// Marked as a member of something that the kernel does not list as a holder.
    Member {
        /// The set: `a ZFS pool \`tank\``, `an LVM volume group`.
        of: String,
    },
    /// The kernel has it open exclusively, for an unknown user.
    Kernel,
    /// An EFI system partition that this host boots from, or may boot from.
    EfiSystem,
}

impl DriveUse {
    /// Describes the use, for a drive or partition of this name.
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
            DriveUse::Kernel => {
                format!("{name} is in use by the kernel (ZFS, or a journal of a file system)")
            }
            DriveUse::EfiSystem => format!("{name} is the EFI system partition of this host"),
        }
    }

    /// Whether it is part of an md array. Only these have such kernel names: `md0`, `md_data`
    /// (Documentation/admin-guide/md.rst).
    pub fn is_in_array(&self) -> bool {
        matches!(self, DriveUse::Holder { device, .. } if device.starts_with("md"))
    }

    /// Whether the host needs it to boot.
    pub fn is_system(&self) -> bool {
        match self {
            DriveUse::Mounted { at } => is_system(at),
            DriveUse::Holder { carries, .. } => carries.iter().any(|at| is_system(at)),
            DriveUse::EfiSystem => true,
            DriveUse::Swap | DriveUse::Member { .. } | DriveUse::Kernel => false,
        }
    }
}

/// A signature on a device, as libblkid identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// libblkid's name: `ext4`, `gpt`, `crypto_LUKS`; [`Signature::UNKNOWN`] for unrecognized
    /// bytes.
    pub kind: String,
    /// Label; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// UUID; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Signature {
    /// The kind of content that is not blank and that no library recognizes.
    pub const UNKNOWN: &str = "unknown";

    /// Whether it is a partition table.
    pub fn is_table(&self) -> bool {
        let tables = ["gpt", "dos", "PMBR", "atari", "bsd", "mac", "minix", "sgi", "sun", "ultrix"];
        tables.contains(&self.kind.as_str())
    }

    /// Whether it makes the device a part of something larger: an array, a volume group, a pool, a
    /// cluster.
    pub fn is_member(&self) -> bool {
        let parts = ["bcache", "drbd", "ceph_bluestore", "stratis", "vdo", "VMFS"];
        self.kind.ends_with("_member") || parts.contains(&self.kind.as_str())
    }

    /// Describes its meaning.
    pub fn says(&self) -> String {
        let what = match self.kind.as_str() {
            Signature::UNKNOWN => "data of an unknown kind",
            "gpt" | "PMBR" => "a GPT partition table",
            "dos" => "an MBR partition table",
            "swap" => "swap space",
            "swsuspend" | "swsupend" => "a hibernation image",
            "crypto_LUKS" => "LUKS encrypted data",
            "BitLocker" => "BitLocker encrypted data",
            "ceph_bluestore" => "a Ceph BlueStore OSD",
            "drbd" => "a DRBD volume",
            "VMFS_volume_member" | "VMFS" => "a VMFS volume",
            "mpath_member" => "a path of a multipath device",
            "LVM2_member" => "an LVM physical volume",
            "linux_raid_member" => "a member of an md array",
            "zfs_member" => "a member of a ZFS pool",
            kind if self.is_table() => return format!("a partition table ({kind})"),
            kind => kind,
        };
        match &self.label {
            Some(label) => format!("{what} `{label}`"),
            None => what.to_owned(),
        }
    }
}

/// The known content of a drive or partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// It was read and has these signatures; none if it is blank.
    Signatures(Vec<Signature>),
    /// It could not be read: why.
    Unread(String),
}

impl Content {
    /// Describes the content of a device of this name, a phrase each; empty: nothing.
    pub fn says(&self, name: &str) -> Vec<String> {
        match self {
            Content::Unread(why) => vec![format!("the content of {name} is unknown: {why}")],
            Content::Signatures(signatures) => {
                let mut phrases: Vec<String> =
                    signatures.iter().map(|one| format!("{name} holds {}", one.says())).collect();
                phrases.dedup();
                phrases
            }
        }
    }

    /// Returns the signatures found.
    pub fn signatures(&self) -> &[Signature] {
        match self {
            Content::Signatures(signatures) => signatures,
            Content::Unread(_) => &[],
        }
    }
}

impl Drive {
    /// Every use of it and of its partitions, with the name of the used device.
    pub fn uses(&self) -> impl Iterator<Item = (&str, &DriveUse)> {
        let whole = self.used_by.iter().map(|used| (self.name.as_str(), used));
        let parts = self.partitions.iter();
        whole.chain(parts.flat_map(|part| part.used_by.iter().map(|used| (&*part.name, used))))
    }

    /// Describes the content of the drive and its partitions, or that it could not be read, a
    /// phrase each. Empty: it is blank, or unknown on a recorded host. A drive with content is
    /// never taken by a request by number.
    pub fn remains(&self) -> Vec<String> {
        let own = self.content.as_ref();
        let mut phrases = own.map(|content| content.says(&self.name)).unwrap_or_default();
        let has_table =
            own.is_some_and(|content| content.signatures().iter().any(Signature::is_table));
        if !has_table && !self.partitions.is_empty() {
            phrases.insert(0, format!("{} holds a partition table", self.name));
        }
        phrases.extend(self.partitions.iter().flat_map(PartitionTableEntry::remains));
        phrases
    }
}

impl PartitionTableEntry {
    /// Describes its content, or that it could not be read, a phrase each.
    pub fn remains(&self) -> Vec<String> {
        let mut phrases =
            self.content.as_ref().map(|content| content.says(&self.name)).unwrap_or_default();
        if self.efi_system {
            phrases.insert(0, format!("{} is an EFI system partition", self.name));
        }
        phrases
    }
}

/// A partition of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PartitionTableEntry {
    /// The kernel's name: `nvme0n1p1`.
    pub name: String,
    /// Number in the table.
    pub number: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// PARTUUID, if udev made a link; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<String>,
    /// Uses by the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<DriveUse>,
    /// Its content; `None` if not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Whether the partition table marks it as an EFI system partition, which no guest gets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub efi_system: bool,
}

/// A whole drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// The kernel's name: `nvme0n1`, `sda`; not stable across boots.
    pub name: String,
    /// PCI function that it is attached to; none for virtual ones.
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
    /// Names in /dev/disk/by-id, which contain serial numbers; only if identifying data was
    /// requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stable_ids: Vec<String>,
    /// Partitions, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionTableEntry>,
    /// Uses of the whole drive by the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<DriveUse>,
    /// Its content outside its partitions; `None` if not read, because it is in use or on a
    /// recorded host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
}
