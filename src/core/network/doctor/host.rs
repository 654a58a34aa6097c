//! The host's side of a NIC's path, as values; `discover::path` reads it.

use super::super::Mode;
use super::super::firewall::Ruleset;
use super::super::host::{HostNetwork, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// Whether a bridge passes packets to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It does.
    Forwarding,
    /// Not yet: it is listening or learning.
    Waiting,
    /// It does not: the port is disabled or would close a loop.
    Blocking,
}

/// A card's settings of one of its virtual functions; none if not reported by its driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vf {
    /// Its MAC address, lower case.
    pub mac: Option<String>,
    /// The VLAN that the card puts it on; 0: none.
    pub vlan: Option<u32>,
    /// Whether it may send with its own MAC address alone.
    pub spoof_check: Option<bool>,
    /// Whether its link is held down.
    pub disabled: bool,
}

/// A network device, as far as the path needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its general properties.
    pub link: Link,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Packets received since it was created; on a guest's tap, those sent by the guest.
    pub packets_in: u64,
    /// As a port of a bridge: whether it gets packets.
    pub port: Option<PortState>,
    /// As a bridge with the spanning tree protocol: for how long a new port waits, in each of two
    /// states.
    pub forward_delay_s: Option<u32>,
    /// As a bridge: whether its own setting passes bridged packets to the IPv4 firewall.
    pub calls_iptables: bool,
    /// As a macvtap: its mode.
    pub mode: Option<Mode>,
    /// As a card: its virtual functions by their numbers.
    pub vfs: BTreeMap<u32, Vf>,
}

impl Device {
    /// Whether it is a guest's end of something.
    pub fn is_guests(&self) -> bool {
        matches!(self.link.kind.as_deref(), Some("tun" | "macvtap"))
    }

    /// Whether it is a bond or a team.
    pub fn is_bond(&self) -> bool {
        matches!(self.link.kind.as_deref(), Some("bond" | "team"))
    }
}

/// An entry of the kernel's neighbour table (IPv4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The network device on which it was seen.
    pub link: String,
    /// The address.
    pub ip: Ipv4Addr,
    /// MAC address, lower case.
    pub mac: String,
}

/// Kernel settings; none if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Whether packets are passed on between any devices.
    pub ip_forward: Option<bool>,
    /// Whether they are passed on from a device, by its name.
    pub forwarding: BTreeMap<String, bool>,
    /// Whether bridged packets go through the firewall of IPv4; `None` if the kernel module for it
    /// is not loaded.
    pub bridge_calls_iptables: Option<bool>,
}

/// The host's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSide {
    /// Its network devices.
    pub devices: Vec<Device>,
    /// Its addresses and routes.
    pub network: HostNetwork,
    /// The neighbour table.
    pub neighbours: Vec<Neighbour>,
    /// The port of a bridge on which a MAC address was seen, by bridge and MAC address.
    pub heard: BTreeMap<(String, String), String>,
    /// Kernel settings.
    pub kernel: Kernel,
    /// Its packet filter, or why it cannot be read.
    pub firewall: Result<Ruleset, String>,
    /// Networks whose DHCP server runs; `None` if unknown, since processes are not visible.
    pub served: Option<BTreeSet<String>>,
}

impl HostSide {
    /// The network device of a name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.link.name == name)
    }

    /// Returns the device below another, if it is in this network namespace.
    pub fn below(&self, device: &Device) -> Option<&Device> {
        self.device(device.link.over.as_deref()?)
    }

    /// The ports of a bridge or bond that belong to no guest.
    pub fn ports<'h>(&'h self, master: &'h str) -> impl Iterator<Item = &'h Device> {
        let is_port = move |device: &&Device| device.link.master.as_deref() == Some(master);
        self.devices.iter().filter(is_port).filter(|device| !device.is_guests())
    }

    /// Returns the network device by which the host sends packets to an address.
    pub fn way_to(&self, ip: Ipv4Addr) -> Option<&str> {
        let routes = self.network.routes.iter().filter(|route| route.to.contains(ip));
        let own = self.network.addresses.iter().filter(|address| address.subnet.contains(ip));
        let own = own.map(|address| (address.subnet.prefix(), Some(address.link.as_str())));
        let all = own.chain(routes.map(|route| (route.to.prefix(), route.link.as_deref())));
        all.max_by_key(|(prefix, _)| *prefix).and_then(|(_, link)| link)
    }
}
