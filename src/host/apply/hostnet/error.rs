//! Errors of changing the host's network.

use crate::apply::error::BindError;
use crate::apply::nic::LinkError;
use crate::command::CommandError;
use std::io;
use std::path::PathBuf;

/// The error of a change of the host's network.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-network-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HostNetError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file could not be written.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Write(#[from] BindError),
    /// A file was changed since the change was planned.
    #[error("{} was changed by someone else in the meantime", path.display())]
    #[strum(to_string = "file-changed")]
    Changed { path: PathBuf },
    /// netplan failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Netplan(#[from] CommandError),
    /// A network device could not be removed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Link(#[from] LinkError),
    /// The network cannot be read from the kernel.
    #[error("cannot read this host's links, addresses and routes: {0}")]
    #[strum(to_string = "unreadable")]
    Kernel(io::Error),
    /// The network is not as planned.
    #[error("after {waited_s} s {}", missing.join(", and "))]
    #[strum(to_string = "not-up")]
    NotSo {
        missing: Vec<String>,
        /// How long it waited, in seconds.
        waited_s: u64,
    },
    /// Nobody confirmed that the host is reachable.
    #[error("nobody confirmed within {within_s} s that this host can be reached")]
    Unconfirmed {
        /// How long it waited, in seconds.
        within_s: u64,
    },
    /// Somebody requested to revert it.
    #[error("it is reverted as requested")]
    #[strum(to_string = "reverted")]
    Declined,
}
