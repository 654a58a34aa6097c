//! Why a disk of a domain is not changed.

use crate::error::Coded;

/// The reason why a disk of a domain is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-disk-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum GuestDiskError {
    /// The domain has no definition that could be changed.
    #[error("domain `{name}` has no persistent definition to change")]
    NoDefinition { name: String },
    /// The domain has no disk of this name.
    #[error("domain `{name}` has no disk `{target}`{}", of_all(all))]
    NotFound { name: String, target: String, all: Vec<String> },
    /// The domain has the disk already.
    #[error("domain `{name}` already has {path} as disk `{target}`")]
    Present { name: String, path: String, target: String },
    /// The running guest has no place for another disk.
    #[error("running domain `{name}` has no free root port for another disk")]
    NoPort { name: String },
    /// There is no running guest whose disks could be changed.
    #[error("domain `{name}` {state}, so there is no running guest to change")]
    NotRunning { name: String, state: &'static str },
    /// The running guest still has the disk.
    #[error("running domain `{name}` writes disk `{target}`, so its data cannot be deleted")]
    Runs { name: String, target: String },
    /// Only the running guest has the disk.
    #[error(
        "disk `{target}` is attached to the running domain `{name}` only, not in its definition"
    )]
    OnlyLive { name: String, target: String },
    /// A running guest's disk that is no file or block device.
    #[error(
        "disk `{target}` is neither a file nor a block device, so it cannot be detached from a \
         running guest"
    )]
    NoPath { target: String },
    /// A disk is not made smaller.
    #[error("disk `{target}` has {is}; shrinking it to {wanted} would cut off data")]
    Smaller { target: String, is: String, wanted: String },
    /// The size of the disk is not the domain's to change.
    #[error("disk `{target}` cannot be resized: {why}")]
    Fixed { target: String, why: String },
    /// The size of the disk is unknown.
    #[error("the size of disk `{target}` is unknown")]
    NoSize { target: String },
    /// The data of the disk is not proven to be the domain's own.
    #[error("the data of disk `{target}` is not deleted: {why}")]
    NotOurs { target: String, why: String },
}

impl Coded for GuestDiskError {}

/// The disks that a domain has, in words.
fn of_all(all: &[String]) -> String {
    match all {
        [] => "; it has none".to_owned(),
        all => format!("; it has {}", all.join(", ")),
    }
}
