//! The errors of bridges of the host.

use crate::error::Coded;

/// The reason a bridge of the host is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-bridge-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HostBridgeError {
    /// netplan no longer configures the host.
    #[error("netplan no longer configures this host")]
    NoNetplan,
    /// The network of the host is configured by a program that gpuvm does not change.
    #[error(
        "the network of this host is configured by {manager}, which gpuvm does not change: nothing \
         was changed"
    )]
    OtherManager { manager: String },
    /// gpuvm manages no such bridge.
    #[error("gpuvm has no bridge {name}: {path} does not exist")]
    NotOurs { name: String, path: String },
    /// The file of the bridge was edited.
    #[error("{path} was edited: its first line no longer names gpuvm")]
    Edited { path: String },
    /// The process that makes the change was killed.
    #[error("the process that makes the change was killed ({status})")]
    GuardKilled { status: String },
    /// The terminal was closed during the change.
    #[error("the terminal is gone")]
    NoTerminal,
    /// The bridge does not wait to be confirmed.
    #[error("{name} is not waiting for confirmation")]
    NotWaiting { name: String },
    /// No bridge waits to be confirmed.
    #[error("nothing is waiting for confirmation")]
    NoneWaiting,
    /// The confirmed bridge was not kept in time.
    #[error("{bridge} is not kept after {seconds} s")]
    NotKept {
        bridge: String,
        /// Seconds.
        seconds: String,
    },
}

impl Coded for HostBridgeError {}
