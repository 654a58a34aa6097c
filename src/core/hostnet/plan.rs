//! Plans the bridge that a request makes on a host, or lists every reason against it.

use super::problem::{Problem, Refused};
use super::{Addressing, Bond, HostBridge, HostIp, Request, Vlan};
use crate::network::host::{HostNetwork, Link};
use crate::network::{LEAST_MTU, MOST_MTU, MOST_NAME};
use serde::Serialize;
use std::net::Ipv4Addr;

/// Longest prefix of a subnet with room for the host, a gateway and a broadcast address.
const LONGEST_PREFIX: u8 = 30;

/// A bridge that can be made, and its effects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Planned {
    /// The bridge.
    pub bridge: HostBridge,
    /// The losses of the NICs, a line each.
    pub lost: Vec<String>,
    /// Notes before it is created.
    pub notes: Vec<String>,
}

struct Planner<'a> {
    request: &'a Request,
    host: &'a HostNetwork,
    problems: Vec<Problem>,
}

/// Plans a bridge on a host. Errors: every reason against it.
pub fn plan(request: &Request, host: &HostNetwork) -> Result<Planned, Refused> {
    let mut planner = Planner { request, host, problems: Vec::new() };
    planner.name();
    let nics = planner.nics();
    let bond = planner.bond();
    let vlan = planner.vlan(bond.as_ref());
    planner.mtu(&nics);
    let keeps = vlan.is_some() && bond.is_none();
    let default = !keeps && nics.iter().any(|nic| host.carries_default_route(nic));
    planner.addresses(&nics, default);
    if !planner.problems.is_empty() {
        return Err(Refused { name: request.name.clone(), problems: planner.problems });
    }
    let bridge = HostBridge {
        name: request.name.clone(),
        nics: request.nics.clone(),
        bond,
        vlan,
        mac: nics.first().filter(|_| !keeps).and_then(|nic| nic.mac.clone()),
        mtu: request.mtu,
        addressing: request.addressing.clone(),
        default_route: default,
    };
    let lost = if keeps { Vec::new() } else { lost(&bridge, host) };
    let notes = notes(&bridge, &nics, host);
    Ok(Planned { bridge, lost, notes })
}

impl Planner<'_> {
    fn name(&mut self) {
        let name = &self.request.name;
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let why = match self.host.link(name) {
            Some(link) => format!("this host has it, {}", what(link)),
            None if name.len() > MOST_NAME => {
                format!("it has {} characters; the limit is {MOST_NAME}", name.len())
            }
            None if !begins || !name.chars().all(fits) => {
                "it must begin with a letter, followed by letters, digits, -, _ or .".into()
            }
            None => return,
        };
        self.problems.push(Problem::Name { name: name.clone(), why });
    }

    fn nics(&mut self) -> Vec<Link> {
        let mut nics: Vec<Link> = Vec::new();
        let bonded_or_not = self.request.vlan.is_none() || self.request.bond.is_some();
        for name in &self.request.nics {
            let Some(link) = self.host.link(name) else {
                self.problems.push(Problem::NoLink { name: name.clone() });
                continue;
            };
            let name = name.clone();
            if nics.iter().any(|nic| nic.name == name) {
                self.problems.push(Problem::Twice { name });
                continue;
            }
            nics.push(link.clone());
            // A hardware device has no kind; in a container a veth pair takes its place.
            if link.loopback || link.kind.as_deref().is_some_and(|kind| kind != "veth") {
                self.problems.push(Problem::NoNic { name, what: what(link) });
            } else if let Some(master) = link.master.clone() {
                self.problems.push(Problem::Port { name, master });
            } else if bonded_or_not {
                self.under(&name);
            }
        }
        nics
    }

    /// Refuses devices on top of a NIC that cannot stay: a macvtap takes packets at the same hook
    /// as a bridge.
    fn under(&mut self, name: &str) {
        let upon = self.host.links.iter().filter(|link| link.over.as_deref() == Some(name));
        for link in upon {
            let Some(kind @ ("macvlan" | "macvtap" | "ipvlan" | "ipvtap")) = link.kind.as_deref()
            else {
                continue;
            };
            let (upper, kind) = (link.name.clone(), kind.to_owned());
            self.problems.push(Problem::Under { name: name.to_owned(), upper, kind });
        }
    }

    fn bond(&mut self) -> Option<Bond> {
        let count = self.request.nics.len();
        match self.request.bond {
            None if count > 1 => {
                self.problems.push(Problem::Unbonded { count });
                None
            }
            None => None,
            Some(_) if count < 2 => {
                self.problems.push(Problem::LoneBond { count });
                None
            }
            Some(mode) => {
                let names = (0..).map(|number: u32| format!("bond{number}"));
                let free =
                    |name: &String| self.host.link(name).is_none() && *name != self.request.name;
                names.into_iter().find(free).map(|name| Bond { name, mode })
            }
        }
    }

    fn vlan(&mut self, bond: Option<&Bond>) -> Option<Vlan> {
        let id = self.request.vlan?;
        if !(1..=4094).contains(&id) {
            self.problems.push(Problem::VlanBounds { id });
            return None;
        }
        let under = bond.map(|bond| &bond.name).or(self.request.nics.first())?.clone();
        let usual = format!("{under}.{id}");
        let name = if usual.len() > MOST_NAME { format!("vlan{id}") } else { usual };
        if self.host.link(&name).is_some() {
            self.problems.push(Problem::VlanTaken { name: name.clone(), id, nic: under });
        }
        Some(Vlan { name, id })
    }

    /// Checks its MTU, which every NIC must support.
    fn mtu(&mut self, nics: &[Link]) {
        let Some(mtu) = self.request.mtu else { return };
        if !(LEAST_MTU..=MOST_MTU).contains(&mtu) {
            return self.problems.push(Problem::MtuBounds { mtu });
        }
        for nic in nics {
            if let Some(most) = nic.most_mtu.filter(|most| mtu > *most) {
                self.problems.push(Problem::MtuAbove { mtu, nic: nic.name.clone(), most });
            }
        }
    }

    /// Checks the host's address on it; `default`: the host has its default route by these NICs
    /// now.
    fn addresses(&mut self, nics: &[Link], default: bool) {
        let cut_off = |what| Problem::CutOff {
            nic: self.request.nics.join(" and "),
            name: self.request.name.clone(),
            what,
        };
        let (address, gateway) = match &self.request.addressing {
            Addressing::Dhcp => return,
            Addressing::None if default => return self.problems.push(cut_off("address")),
            Addressing::None => return,
            Addressing::Static { address, gateway, .. } => (*address, *gateway),
        };
        if let Some(why) = unfit(address) {
            self.problems.push(Problem::Address { address, why });
        }
        let keeps = self.request.vlan.is_some() && self.request.bond.is_none();
        let ours = |link: &str| !keeps && nics.iter().any(|nic| nic.name == link);
        let others = self.host.addresses.iter().filter(|other| !ours(&other.link));
        for other in others.filter(|other| other.subnet.overlaps(address.subnet)) {
            let (link, ip) = (other.link.clone(), other.ip);
            self.problems.push(Problem::Overlap { address, other: other.subnet, ip, link });
        }
        match gateway {
            None if default => self.problems.push(cut_off("gateway")),
            None => {}
            Some(gateway) => self.problems.extend(unreachable(gateway, address)),
        }
    }
}

/// Returns why no host can have an address; `None` if a host can.
fn unfit(address: HostIp) -> Option<String> {
    let HostIp { ip, subnet } = address;
    let prefix = subnet.prefix();
    let special = ip.is_loopback() || ip.is_multicast() || ip.is_unspecified();
    match () {
        () if special || ip.is_broadcast() => Some("it is not one of a LAN".into()),
        () if !(1..=LONGEST_PREFIX).contains(&prefix) => {
            Some(format!("its prefix is {prefix} bits, and has to be 1 to {LONGEST_PREFIX}"))
        }
        () if ip == subnet.base() => Some(format!("it is the network address of {subnet}")),
        () if ip == subnet.broadcast() => Some(format!("it is the broadcast address of {subnet}")),
        () => None,
    }
}

/// Returns why a gateway cannot serve this address; `None` if it can.
fn unreachable(gateway: Ipv4Addr, address: HostIp) -> Option<Problem> {
    let subnet = address.subnet;
    if gateway == address.ip {
        return Some(Problem::GatewayOwn { gateway });
    }
    let why = match () {
        () if !subnet.contains(gateway) => "is outside",
        () if gateway == subnet.base() => "is the network address of",
        () if gateway == subnet.broadcast() => "is the broadcast address of",
        () => return None,
    };
    Some(Problem::Gateway { gateway, why, subnet })
}

/// Describes the kind of a network device.
fn what(link: &Link) -> String {
    match &link.kind {
        _ if link.loopback => "the loopback device".into(),
        Some(kind) => format!("of kind {kind}"),
        None => "a NIC".into(),
    }
}

/// Lists the losses of a bridge's NICs.
fn lost(bridge: &HostBridge, host: &HostNetwork) -> Vec<String> {
    let mut lost = Vec::new();
    let name = &bridge.name;
    for nic in &bridge.nics {
        for held in host.addresses.iter().filter(|held| held.link == *nic) {
            let now = HostIp { ip: held.ip, subnet: held.subnet };
            let same =
                matches!(&bridge.addressing, Addressing::Static { address, .. } if *address == now);
            lost.push(match &bridge.addressing {
                _ if same => format!("move {now} from {nic} to {name}"),
                Addressing::Dhcp => {
                    format!("take {now} from {nic}; {name} asks DHCP for an address")
                }
                Addressing::Static { address, .. } => {
                    format!("take {now} from {nic}; {name} gets {address}")
                }
                Addressing::None => format!("take {now} from {nic}"),
            });
        }
        for route in host.routes.iter().filter(|route| route.link.as_ref() == Some(nic)) {
            let by = route.gateway.map_or(String::new(), |ip| format!(" by {ip}"));
            if route.is_default() {
                lost.push(format!("take the default route{by} from {nic}"));
            } else if route.gateway.is_some() {
                lost.push(format!("take the route to {}{by} from {nic}", route.to));
            }
        }
    }
    lost
}

fn notes(bridge: &HostBridge, nics: &[Link], host: &HostNetwork) -> Vec<String> {
    let mut notes = Vec::new();
    let down: Vec<&str> = nics.iter().filter(|nic| !nic.up).map(|nic| nic.name.as_str()).collect();
    if !down.is_empty() {
        notes.push(format!("{} is down now", down.join(" and ")));
    }
    if let Some(what) = bridge.bond.as_ref().and_then(|bond| bond.mode.of_switch()) {
        notes.push(format!("the switch has to have {what}: without, packets are lost"));
    }
    if let Some(mtu) = bridge.mtu.filter(|mtu| nics.iter().any(|nic| nic.mtu != *mtu)) {
        notes.push(format!("every link on the way has to take {mtu} bytes, the switch too"));
    }
    let dhcp = bridge.addressing == Addressing::Dhcp;
    let had = host.addresses.iter().find(|held| bridge.nics.contains(&held.link));
    if let Some(had) = had.filter(|_| dhcp && !bridge.keeps_nic()) {
        notes.push(format!(
            "the DHCP server sees the MAC address of {} as before, and may give {} another address \
             than {}",
            had.link, bridge.name, had.ip
        ));
    }
    notes
}
