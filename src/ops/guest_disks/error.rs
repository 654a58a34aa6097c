//! Why a disk of a domain is not changed.

use crate::error::Coded;

/// The reason why a disk of a domain is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-disk-")]
pub enum GuestDiskError {
    /// The domain has no definition that could be changed.
    #[error("domain `{name}` has no persistent definition to change")]
    NoDefinition {
        /// Its name.
        name: String,
    },
    /// The domain has no disk of this name.
    #[error("domain `{name}` has no disk `{target}`{}", of_all(all))]
    NotFound {
        /// Its name.
        name: String,
        /// The disk.
        target: String,
        /// The disks that it has.
        all: Vec<String>,
    },
    /// The domain has the disk already.
    #[error("domain `{name}` already has {path} as disk `{target}`")]
    Present {
        /// Its name.
        name: String,
        /// The path.
        path: String,
        /// Its disk.
        target: String,
    },
    /// The running guest has no place for another disk.
    #[error("running domain `{name}` has no free root port for another disk")]
    NoPort {
        /// Its name.
        name: String,
    },
    /// There is no running guest whose disks could be changed.
    #[error("domain `{name}` {state}, so there is no running guest to change")]
    NotRunning {
        /// Its name.
        name: String,
        /// Its state.
        state: &'static str,
    },
    /// The running guest still has the disk.
    #[error("running domain `{name}` writes disk `{target}`, so its data cannot be deleted")]
    Runs {
        /// Its name.
        name: String,
        /// The disk.
        target: String,
    },
    /// Only the running guest has the disk.
    #[error(
        "disk `{target}` is attached to the running domain `{name}` only, not in its definition"
    )]
    OnlyLive {
        /// Its name.
        name: String,
        /// The disk.
        target: String,
    },
    /// A running guest's disk that is no file or block device.
    #[error(
        "disk `{target}` is neither a file nor a block device, so it cannot be detached from a \
         running guest"
    )]
    NoPath {
        /// The disk.
        target: String,
    },
    /// A disk is not made smaller.
    #[error("disk `{target}` has {is}; shrinking it to {wanted} would cut off data")]
    Smaller {
        /// The disk.
        target: String,
        /// Its size.
        is: String,
        /// What was asked for.
        wanted: String,
    },
    /// The size of the disk is not the domain's to change.
    #[error("disk `{target}` cannot be resized: {why}")]
    Fixed {
        /// The disk.
        target: String,
        /// Why.
        why: String,
    },
    /// The size of the disk cannot be told.
    #[error("the size of disk `{target}` is unknown")]
    NoSize {
        /// The disk.
        target: String,
    },
    /// The data of the disk is not proven to be the domain's own.
    #[error("the data of disk `{target}` is not deleted: {why}")]
    NotOurs {
        /// The disk.
        target: String,
        /// Why.
        why: String,
    },
}

impl Coded for GuestDiskError {}

/// The disks that a domain has, in words.
fn of_all(all: &[String]) -> String {
    match all {
        [] => "; it has none".to_owned(),
        all => format!("; it has {}", all.join(", ")),
    }
}
