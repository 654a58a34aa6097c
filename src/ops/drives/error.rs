//! Errors of the verbs on drives.

use crate::error::Coded;

/// The reason an array is not released or restored.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "array-")]
pub enum ArrayVerbError {
    /// The path is not a block device of the host.
    #[error("{device} is not a block device of this host")]
    NoDevice {
        /// The device.
        device: String,
    },
    /// The device is not a running md array.
    #[error("{name} is not a running md array")]
    NotRunning {
        /// Its name.
        name: String,
    },
    /// The array is in use.
    #[error("array {name} is not released{lines}")]
    InUse {
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
    /// An array of this name was released and is not restored.
    #[error("/{file} records a released array of this name")]
    AlreadyReleased {
        /// The file.
        file: String,
    },
    /// The host needs the array to boot.
    #[error("array {name} is not released\n  {why}")]
    OfSystem {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// mdadm does not report the UUID of the array.
    #[error("mdadm does not say the UUID of {device}")]
    NoUuid {
        /// The device.
        device: String,
    },
    /// A member of the array has no name in /dev/disk/by-id.
    #[error("member {name} has no name in /dev/disk/by-id, so it would not be found again")]
    MemberWithoutId {
        /// Its name.
        name: String,
    },
    /// Another array has the name.
    #[error("{device} is now a different array")]
    NameTaken {
        /// The device.
        device: String,
    },
    /// The array runs without some of its members.
    #[error("array `{name}` runs as {device} without {lines}")]
    Incomplete {
        /// Its name.
        name: String,
        /// The device.
        device: String,
        /// Why, a line each.
        lines: String,
    },
    /// A member of the array is missing or in use.
    #[error("array `{name}` is not restored{lines}")]
    MembersInUse {
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
    /// Members of the array have lost its superblocks.
    #[error(
        "{count} of {all} drives of `{name}` no longer carry its superblocks: a guest has \
         overwritten them{lines}"
    )]
    SuperblocksLost {
        /// How many.
        count: String,
        /// How many there are.
        all: String,
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
    /// Members of the array belong to something else.
    #[error("drives of array `{name}` now belong to something else{lines}")]
    MembersOfAnother {
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
    /// Members of the array have other data on them.
    #[error("drives of array `{name}` have become something else{lines}")]
    MembersHaveData {
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
    /// The restored array is not as before its release.
    #[error("array `{name}` has changed{lines}")]
    NotRestored {
        /// Its name.
        name: String,
        /// Why, a line each.
        lines: String,
    },
}

impl Coded for ArrayVerbError {}

/// The reason a named device is not a usable drive.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "drive-")]
pub enum DriveError {
    /// What is named is a partition, not a drive.
    #[error("{text} is a partition, not a drive")]
    IsPartition {
        /// The name as given.
        text: String,
    },
    /// The function has several drives.
    #[error("{bdf} has several drives")]
    Several {
        /// Its PCI address.
        bdf: String,
    },
    /// The function is bound to vfio-pci, so that the host sees no drive.
    #[error("{bdf} is bound to {driver}, so that the host sees no drive there")]
    OnVfio {
        /// Its PCI address.
        bdf: String,
        /// The driver.
        driver: String,
    },
    /// The function has no drive.
    #[error("{bdf} has no drive")]
    NoneAt {
        /// Its PCI address.
        bdf: String,
    },
}

impl Coded for DriveError {}
