//! The errors of clones.

use crate::error::Coded;

/// The reason a guest is not cloned.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "clone-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum CloneError {
    /// The guest runs.
    #[error("domain `{name}` is not off; its disks can only be copied while nobody writes to them")]
    Active { name: String },
    /// The domain has no definition.
    #[error("domain `{name}` has no persistent definition to copy")]
    NoDefinition { name: String },
    /// libvirt keeps a saved state or snapshots, which the copy would not have.
    #[error("domain `{name}` has {what}, which cannot be cloned")]
    Kept { name: String, what: String },
    /// gpuvm did not create it.
    #[error("gpuvm did not create domain `{name}`, so what a clone needs is not recorded")]
    NotOurs { name: String },
    /// It has a device that only one guest can have.
    #[error("domain `{name}` has {device} of the host, which a second guest cannot have")]
    Device { name: String, device: String },
    /// A disk is not copied.
    #[error("disk `{target}` of domain `{name}` is not copied: {why}")]
    Disk {
        name: String,
        /// The disk, by its name in the guest.
        target: String,
        why: String,
    },
    /// An image cannot lie below the disks of two guests.
    #[error("disk `{target}` of domain `{name}` cannot be the backing file of a clone's: {why}")]
    Overlay {
        name: String,
        /// The disk, by its name in the guest.
        target: String,
        why: String,
    },
    /// It has no disk that could.
    #[error("domain `{name}` has no disk that could be the backing file of a clone's")]
    NoOverlay { name: String },
    /// There is no place for it.
    #[error("no place for a clone of domain `{name}` with {devices}: {why}")]
    NoPlace {
        name: String,
        /// The GPUs or vGPUs that it would have.
        devices: String,
        why: String,
    },
    /// The clone would share an NVLink fabric with other guests.
    #[error("{why}")]
    SharedFabric { why: String },
}

impl Coded for CloneError {}
