//! The owner of the records of a UUID: records here belong to domains and networks of this machine,
//! of one hypervisor each. A domain of another machine may have the UUID of one here, and so may
//! one of a second hypervisor of this machine, such as a user's own.

use super::{History, guest};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::{Machine, is_same_hypervisor};
use std::path::Path;

/// The owner of a UUID's records, as seen from a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The domain of this connection.
    This,
    /// The connection is to another machine, which keeps the records of its domains.
    Machine {
        /// The name of that machine.
        host: String,
    },
    /// A domain of the same UUID, of another hypervisor of this machine.
    Hypervisor {
        /// The URI of that hypervisor.
        uri: String,
    },
}

impl Owner {
    /// Finds the owner; `state`: a caller's own state directory.
    pub fn of(uuid: &str, on: &dyn Hypervisor, state: Option<&Path>) -> Owner {
        if let Machine::Elsewhere { host } = on.machine() {
            return Owner::Machine { host };
        }
        let uris = [on.uri().to_owned(), on.opened_uri()];
        let is_other = |of: &String| !uris.iter().any(|uri| is_same_hypervisor(of, uri));
        kept_of(uuid, state).filter(is_other).map_or(Owner::This, |uri| Owner::Hypervisor { uri })
    }

    /// The URI of another hypervisor of this machine; `None` for another owner.
    pub fn other_hypervisor(self) -> Option<String> {
        match self {
            Owner::Hypervisor { uri } => Some(uri),
            _ => None,
        }
    }
}

/// Returns the URI of the hypervisor in a UUID's records; `None` if there are none, or they cannot
/// be read.
fn kept_of(uuid: &str, state: Option<&Path>) -> Option<String> {
    let history = || Some(History::of(state, uuid).ok()?.entries.last()?.uri.clone());
    guest::uri(state, uuid).or_else(history)
}
