//! The host's network devices, addresses and routes, which a network must not conflict with. Values
//! only; `discover` reads them.

use super::subnet::Subnet;
use serde::Serialize;
use std::net::Ipv4Addr;

/// The host's side of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostNetwork {
    /// Its network devices.
    pub links: Vec<Link>,
    /// Its IPv4 addresses.
    pub addresses: Vec<HostAddress>,
    /// Its IPv4 routes to others, of every table.
    pub routes: Vec<Route>,
}

/// A network device of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Its kind as the kernel calls it (`bridge`, `bond`, `veth`); none of one that is made of
    /// hardware.
    pub kind: Option<String>,
    /// The bridge, bond or team that it is a port of.
    pub master: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the host's own loop.
    pub loopback: bool,
    /// Its MAC address, lower case; none of one that has none.
    pub mac: Option<String>,
    /// The largest MTU that it can have, in bytes; `None` if it does not say.
    pub most_mtu: Option<u32>,
    /// The lower network device, as of a VLAN or a macvtap.
    pub over: Option<String>,
}

impl Link {
    /// Whether it is a bridge.
    pub fn is_bridge(&self) -> bool {
        self.kind.as_deref() == Some("bridge")
    }
}

/// An address of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostAddress {
    /// Its network device.
    pub link: String,
    /// The address.
    pub ip: Ipv4Addr,
    /// Its subnet.
    pub subnet: Subnet,
}

/// A way of the host to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Route {
    /// Where to.
    pub to: Subnet,
    /// The network device that it goes by; none of one that leads nowhere.
    pub link: Option<String>,
    /// The router that it leads over; `None` if its addresses are reached directly.
    pub gateway: Option<Ipv4Addr>,
}

impl Route {
    /// Whether it is a default route: to all addresses, or to one half of them, as tunnels set it
    /// up.
    pub fn is_default(&self) -> bool {
        self.to.prefix() <= 1
    }
}

impl HostNetwork {
    /// The network device of a name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The network device that most of the host's packets leave by; none where it has no default
    /// route.
    pub fn default_link(&self) -> Option<&Link> {
        let mut defaults = self.routes.iter().filter(|route| route.is_default());
        defaults.find_map(|route| self.link(route.link.as_deref()?))
    }

    /// Whether a default route goes by a network device, or by the bridge or bond that it is a port
    /// of.
    pub fn carries_default_route(&self, link: &Link) -> bool {
        self.routes.iter().filter(|route| route.is_default()).any(|route| {
            let by = route.link.as_deref();
            by == Some(&link.name) || (by.is_some() && by == link.master.as_deref())
        })
    }
}
