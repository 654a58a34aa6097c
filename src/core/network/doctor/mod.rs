//! Finds faults in the network path of a guest's NIC: [`examine`] walks from the guest to the
//! host's NIC, hop by hop, and compares the known facts of each ([`Case`]) with the required ones.
//! Values in, findings out.
//!
//! IPv4 only, and no packet is sent: a switch that drops packets is not detected.

mod address;
mod bridged;
mod function;
mod host;
mod macvtap;
mod mtu;
mod nic;
mod report;
mod routed;
mod rules;
mod wires;

pub use host::{Device, HostSide, Kernel, Neighbour, PortState, Vf};
pub use nic::{Attached, Nic};
pub use report::{Diagnosis, Finding, Hop, OfHop, Verdict};
pub use rules::RULES;

use super::{Kind, Network};
use crate::network::GuestAddress;
use crate::shell::word;
use report::Hops;

/// A NIC as the guest agent reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inside {
    /// Its name there; `None` if the guest has no NIC of this MAC address.
    pub name: Option<String>,
    /// MTU in bytes; `None` if not reported.
    pub mtu: Option<u32>,
    /// Whether it is up; `None` if not reported.
    pub up: Option<bool>,
}

/// The libvirt network that a NIC is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// None if the domain names a bridge or a network device itself.
    None,
    /// A network of this name that does not exist.
    Gone(String),
    /// A network that cannot be queried.
    Unknown(String),
    /// This network, and whether it is active.
    Known(Box<Network>, bool),
}

impl On {
    /// Returns the network if it is known.
    pub fn network(&self) -> Option<&Network> {
        match self {
            On::Known(network, _) => Some(network),
            _ => None,
        }
    }

    /// Whether a DHCP server of libvirt serves it.
    fn has_dhcp(&self) -> bool {
        let serves = |network: &Network| {
            matches!(network.kind, Kind::Nat | Kind::Private | Kind::Routed)
                && !(network.dhcp.is_empty() && network.statics.is_empty())
        };
        self.network().is_some_and(serves)
    }
}

/// The physical function behind a NIC that is a virtual function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behind {
    /// Its network device; `None` if it has none, or the NIC is no virtual function.
    pub pf: Option<String>,
    /// The virtual function's number on it.
    pub vf: Option<u32>,
}

/// Everything known about a NIC and its path.
#[derive(Debug)]
pub struct Case<'a> {
    /// The guest's name, for hints.
    pub guest: &'a str,
    /// Whether the guest runs.
    pub running: bool,
    /// The NIC as the domain has it.
    pub nic: &'a Nic,
    /// Another domain with its MAC address.
    pub twin: Option<&'a str>,
    /// Its network.
    pub on: On,
    /// Addresses that it is known to have.
    pub known: &'a [GuestAddress],
    /// Whether the guest has the channel of an agent.
    pub has_channel: bool,
    /// The guest agent's report; `None` if the agent does not answer.
    pub inside: Option<Inside>,
    /// The physical function behind it.
    pub behind: Behind,
    /// The host; `None` if it is another machine.
    pub host: Option<&'a HostSide>,
}

/// Judges a NIC's path.
pub fn examine(case: &Case<'_>) -> Diagnosis {
    let mut hops = Hops::default();
    nic::judge(case, &mut hops);
    network(case, &mut hops);
    let mut notes = Vec::new();
    match (case.host, &case.nic.attached) {
        (None, _) => hops.unchecked("host", "the host is another machine"),
        (Some(host), Attached::Bridge(bridge)) => bridged::judge(case, host, bridge, &mut hops),
        (Some(host), Attached::Macvtap(nic, mode)) => {
            macvtap::judge(case, host, nic, *mode, &mut hops);
            notes.extend(macvtap::notes(*mode));
        }
        (Some(host), Attached::Function(bdf)) => function::judge(case, host, bdf, &mut hops),
        (_, Attached::Pending) => {
            hops.unchecked("host", "where the network leads is seen when the guest runs");
        }
        (_, Attached::Other(kind)) => {
            hops.unchecked(
                "host",
                &format!("the path of a NIC of type `{kind}` is not known here"),
            );
        }
    }
    address::judge(case, &mut hops);
    if let Some(twin) = case.twin {
        let hint = "remove its <mac> in one of the two: libvirt then gives it one of its own";
        let what = format!("domains with {}:", case.nic.mac);
        let found = format!("`{twin}`, too");
        hops.hop("MAC address").wrong(&rules::MAC_SHARED, what, ("one", found), "libvirt", hint);
    }
    Diagnosis { nic: case.nic.number, mac: case.nic.mac.clone(), hops: hops.finish(), notes }
}

/// The libvirt network, which must be active.
fn network(case: &Case<'_>, hops: &mut Hops) {
    let (name, active, says) = match &case.on {
        On::None => return,
        On::Unknown(name) => {
            return hops.unchecked(&format!("network {name}"), "not reported by libvirt");
        }
        On::Gone(name) => (name, None, String::new()),
        On::Known(network, active) => (&network.name, Some(*active), network.kind.to_string()),
    };
    let hop = hops.hop(&format!("network {name}"));
    let at = format!("libvirt network `{name}`");
    match active {
        Some(true) => hop.says(says + ", up"),
        Some(false) => {
            let hint = format!(
                "`virsh net-start {name}`; a guest that ran on it meanwhile has to be started \
                 again",
                name = word(name)
            );
            hop.wrong(&rules::NETWORK_DOWN, "the network is", ("up", "down"), at, hint);
        }
        None => {
            let hint =
                format!("`gpuvm network create {name} --kind KIND` makes it", name = word(name));
            hop.wrong(&rules::NETWORK_MISSING, "the network is", ("there", "not there"), at, hint);
        }
    }
}

#[cfg(test)]
mod tests;
