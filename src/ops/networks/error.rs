//! The errors of networks.

use crate::error::Coded;

/// The reason a network is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "network-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum NetworkError {
    /// The definition of the network cannot be understood.
    #[error("cannot parse the definition of network `{name}`: {reason}")]
    Definition { name: String, reason: String },
    /// The network is transient: its definition does not outlive it.
    #[error("network `{name}` is transient, so it is not changed")]
    Transient { name: String },
    /// The function is not a card with a network device of the host.
    #[error("{bdf} is not a NIC with a network device on the host")]
    NoNetdev { bdf: String },
    /// The guest has no NIC on the network.
    #[error("guest `{name}` does not exist or has no NIC on network `{network}`")]
    NoGuestNic { name: String, network: String },
    /// The card has no virtual functions.
    #[error("{card} has no virtual functions to hand out; it can have {total}")]
    NoVfs { card: String, total: String },
    /// The card has no SR-IOV.
    #[error("{card} is not a NIC with SR-IOV")]
    NoSriov { card: String },
    /// The network was edited since the change to be undone.
    #[error("{since} since {change}")]
    Edited { since: String, change: String },
    /// A setting of the NIC does not fit the network.
    #[error("{words} cannot be set on network `{network}` ({kind})")]
    NicSetting {
        /// The setting, and its fault.
        words: String,
        network: String,
        kind: String,
    },
}

impl Coded for NetworkError {}
