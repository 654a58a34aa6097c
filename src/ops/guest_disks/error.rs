//! Says why a disk of a domain is not changed.

use crate::error::Coded;

/// Says why a disk of a domain is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-disk-")]
pub enum GuestDiskError {
    /// The domain has no definition that could be changed.
    #[error("domain `{name}` has no definition that could be changed")]
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
    #[error("domain `{name}` has {path} as disk `{target}` already")]
    Present {
        /// Its name.
        name: String,
        /// The path.
        path: String,
        /// Its disk.
        target: String,
    },
    /// The running guest has no place for another disk.
    #[error("running domain `{name}` has no free root port, below which a disk could be attached")]
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
    #[error("only the running domain `{name}` has disk `{target}`; its next start is without")]
    OnlyLive {
        /// Its name.
        name: String,
        /// The disk.
        target: String,
    },
    /// A running guest's disk that is no file or block device.
    #[error("disk `{target}` is neither a file nor a block device, and a running guest keeps it")]
    NoPath {
        /// The disk.
        target: String,
    },
    /// A disk is not made smaller.
    #[error("disk `{target}` is of {is}, and {wanted} is less: what is beyond would be cut off")]
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
    #[error("how large disk `{target}` is cannot be told")]
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
