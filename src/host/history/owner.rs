//! Whose the entries of a UUID are: what is kept here is of domains and networks that this machine's hypervisors have, and of
//! one hypervisor each. A domain of another machine may have the UUID of one that is here, and so may one of a second
//! hypervisor of this machine, such as the system's and a user's own.

use super::{History, guest};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::{Machine, is_same_hypervisor};
use std::path::Path;

/// The owner of what is kept of a domain's UUID, as seen from a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The domain of this connection.
    This,
    /// The connection is to another machine, where what is kept of its domains lies.
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
    /// Finds it; `state`: the directory of a caller that keeps things in one of its own.
    pub fn of(uuid: &str, on: &dyn Hypervisor, state: Option<&Path>) -> Owner {
        if let Machine::Elsewhere { host } = on.machine() {
            return Owner::Machine { host };
        }
        let uris = [on.uri().to_owned(), on.opened_uri()];
        let is_other = |of: &String| !uris.iter().any(|uri| is_same_hypervisor(of, uri));
        kept_of(uuid, state).filter(is_other).map_or(Owner::This, |uri| Owner::Hypervisor { uri })
    }

    /// The URI of another hypervisor of this machine; none: it is no such.
    pub fn other_hypervisor(self) -> Option<String> {
        match self {
            Owner::Hypervisor { uri } => Some(uri),
            _ => None,
        }
    }
}

/// The URI of the hypervisor of which something is kept for a UUID; none: nothing is, or it cannot be read.
fn kept_of(uuid: &str, state: Option<&Path>) -> Option<String> {
    let history = || Some(History::of(state, uuid).ok()?.entries.last()?.uri.clone());
    guest::uri(state, uuid).or_else(history)
}
