//! The errors of networks.

use crate::error::Coded;

/// The reason a network is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "network-")]
pub enum NetworkError {
    /// The definition of the network cannot be understood.
    #[error("cannot parse the definition of network `{name}`: {reason}")]
    Definition {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The network is transient: its definition does not outlive it.
    #[error("network `{name}` is transient, so it is not changed")]
    Transient {
        /// Its name.
        name: String,
    },
    /// The function is not a card with a network device of the host.
    #[error("{bdf} is not a NIC with a network device on the host")]
    NoNetdev {
        /// Its PCI address.
        bdf: String,
    },
    /// The guest has no NIC on the network.
    #[error("guest `{name}` does not exist or has no NIC on network `{network}`")]
    NoGuestNic {
        /// Its name.
        name: String,
        /// The network.
        network: String,
    },
    /// The card has no virtual functions.
    #[error("{card} has no virtual functions to hand out; it can have {total}")]
    NoVfs {
        /// The card.
        card: String,
        /// How many it can have.
        total: String,
    },
    /// The card has no SR-IOV.
    #[error("{card} is not a NIC with SR-IOV")]
    NoSriov {
        /// The card.
        card: String,
    },
    /// The network was edited since the change to be undone.
    #[error("{since} since {change}")]
    Edited {
        /// What has changed.
        since: String,
        /// The change.
        change: String,
    },
    /// A setting of the NIC does not fit the network.
    #[error("{words} cannot be set on network `{network}` ({kind})")]
    NicSetting {
        /// The setting, and what is wrong.
        words: String,
        /// The network.
        network: String,
        /// Its kind.
        kind: String,
    },
}

impl Coded for NetworkError {}
