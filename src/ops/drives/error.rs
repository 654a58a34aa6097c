//! Errors of the verbs on drives.

use crate::error::Coded;

/// The reason an array is not released or restored.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "array-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ArrayVerbError {
    /// The path is not a block device of the host.
    #[error("{device} is not a block device of this host")]
    NoDevice { device: String },
    /// The device is not a running md array.
    #[error("{name} is not a running md array")]
    NotRunning { name: String },
    /// The array is in use.
    #[error("array {name} is not released{lines}")]
    InUse { name: String, lines: String },
    /// An array of this name was released and is not restored.
    #[error("/{file} records a released array of this name")]
    AlreadyReleased { file: String },
    /// The host needs the array to boot.
    #[error("array {name} is not released\n  {why}")]
    OfSystem { name: String, why: String },
    /// mdadm does not report the UUID of the array.
    #[error("mdadm does not say the UUID of {device}")]
    NoUuid { device: String },
    /// A member of the array has no name in /dev/disk/by-id.
    #[error("member {name} has no name in /dev/disk/by-id, so it would not be found again")]
    MemberWithoutId { name: String },
    /// Another array has the name.
    #[error("{device} is now a different array")]
    NameTaken { device: String },
    /// The array runs without some of its members.
    #[error("array `{name}` runs as {device} without {lines}")]
    Incomplete { name: String, device: String, lines: String },
    /// A member of the array is missing or in use.
    #[error("array `{name}` is not restored{lines}")]
    MembersInUse { name: String, lines: String },
    /// Members of the array have lost its superblocks.
    #[error(
        "{count} of {all} drives of `{name}` no longer carry its superblocks: a guest has \
         overwritten them{lines}"
    )]
    SuperblocksLost { count: String, all: String, name: String, lines: String },
    /// Members of the array belong to something else.
    #[error("drives of array `{name}` now belong to something else{lines}")]
    MembersOfAnother { name: String, lines: String },
    /// Members of the array have other data on them.
    #[error("drives of array `{name}` have become something else{lines}")]
    MembersHaveData { name: String, lines: String },
    /// The restored array is not as before its release.
    #[error("array `{name}` has changed{lines}")]
    NotRestored { name: String, lines: String },
}

impl Coded for ArrayVerbError {}

/// The reason a named device is not a usable drive.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "drive-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum DriveError {
    /// The named device is a partition, not a drive.
    #[error("{text} is a partition, not a drive")]
    IsPartition { text: String },
    /// The function has several drives.
    #[error("{bdf} has several drives")]
    Several { bdf: String },
    /// The function is bound to vfio-pci, so that the host sees no drive.
    #[error("{bdf} is bound to {driver}, so that the host sees no drive there")]
    OnVfio { bdf: String, driver: String },
    /// The function has no drive.
    #[error("{bdf} has no drive")]
    NoneAt { bdf: String },
}

impl Coded for DriveError {}
