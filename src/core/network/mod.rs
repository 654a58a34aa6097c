//! libvirt networks: reading and writing definitions ([`Network`]); the network that a request
//! makes given the host's links, addresses, routes and other networks, or every reason against it
//! ([`plan()`]); who reaches whom on it ([`Reach`]); and what breaks the path of a guest's NIC
//! ([`doctor`]). Values only: it asks neither libvirt nor the kernel.
//!
//! IPv4 only: a network's IPv6 addresses are neither made nor judged.

mod address;
pub mod doctor;
mod document;
pub mod firewall;
pub mod host;
mod plan;
mod problem;
mod reach;
mod request;
mod request_text;
mod subnet;
mod vendor;

pub use address::{AddressSource, GuestAddress};
pub use plan::{LEAST_MTU, MOST_MTU, MOST_NAME, plan};
pub use problem::{Problem, Refused, reasons};
pub use reach::Reach;
pub use request::{Dhcp, Planned, Request};
pub use request_text::{Card, FixedAddress, Who};
pub use subnet::{Range, Span, Subnet};
pub use vendor::known;

use document::{Bridge, Dev, DhcpHost, DhcpRange, Document, Forward, Ip, Mtu};
use serde::Serialize;
use std::fmt;
use std::net::Ipv4Addr;

/// The kind of a network: the device that its guests are attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", content = "mode", rename_all = "kebab-case")]
pub enum Kind {
    /// Behind the host's address (NAT).
    Nat,
    /// On a network of the host and its guests only.
    Private,
    /// On a host network device, each with a macvtap device of its own.
    Macvtap(Mode),
    /// On a bridge of the host.
    Bridge,
    /// On virtual functions of a NIC.
    Sriov,
    /// Behind the host, which routes to them.
    Routed,
    /// On a network of guests only.
    Isolated,
    /// Any other kind.
    Other,
}

/// How the guests of a macvtap network reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Directly.
    Bridge,
    /// Not at all.
    Private,
    /// Through the external switch, which must send packets back to the port they came from.
    Vepa,
    /// One guest only, which owns the device.
    Passthrough,
}

impl Mode {
    /// Returns libvirt's name of it.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Bridge => "bridge",
            Mode::Private => "private",
            Mode::Vepa => "vepa",
            Mode::Passthrough => "passthrough",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Nat => f.write_str("nat"),
            Kind::Private => f.write_str("private"),
            Kind::Macvtap(mode) => write!(f, "macvtap {}", mode.word()),
            Kind::Bridge => f.write_str("bridge"),
            Kind::Sriov => f.write_str("sriov"),
            Kind::Routed => f.write_str("routed"),
            Kind::Isolated => f.write_str("isolated"),
            Kind::Other => f.write_str("other"),
        }
    }
}

impl Kind {
    /// Whether libvirt creates its bridge and serves DHCP on it.
    pub fn has_own_bridge(self) -> bool {
        matches!(self, Kind::Nat | Kind::Private | Kind::Routed | Kind::Isolated)
    }
}

/// A fixed address of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Static {
    /// MAC address of its interface, lower case.
    pub mac: String,
    /// The address.
    pub ip: Ipv4Addr,
    /// Host name given to the guest; `None` without name.
    pub name: Option<String>,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Its UUID; none for a planned network.
    pub uuid: Option<String>,
    /// Its kind.
    #[serde(flatten)]
    pub kind: Kind,
    /// Host network devices that it uses; none if as the host's routes decide.
    pub nics: Vec<String>,
    /// Its bridge; `None` if it has none, or libvirt chooses the name.
    pub bridge: Option<String>,
    /// MTU in bytes; `None` for libvirt's default, or that of its network device.
    pub mtu: Option<u32>,
    /// Its address range; `None` if the host has no address on it.
    pub range: Option<Subnet>,
    /// The host's address on it.
    pub own: Option<Ipv4Addr>,
    /// DHCP address ranges; none without DHCP.
    pub dhcp: Vec<Span>,
    /// Fixed addresses, one guest each.
    pub statics: Vec<Static>,
}

impl Network {
    /// Makes a network with only a name and a kind.
    pub fn bare(name: &str, kind: Kind) -> Network {
        Network {
            name: name.to_owned(),
            uuid: None,
            kind,
            nics: Vec::new(),
            bridge: None,
            mtu: None,
            range: None,
            own: None,
            dhcp: Vec::new(),
            statics: Vec::new(),
        }
    }

    /// Reads a definition. Errors: the fault in it.
    pub fn read(text: &str) -> Result<Network, String> {
        let Document { name, uuid, forward, bridge, mtu, ips } = document::read(text)?;
        let kind = kind(forward.as_ref(), bridge.as_ref(), !ips.is_empty());
        let mut network = Network { uuid, ..Network::bare(&name, kind) };
        network.bridge = bridge.and_then(|bridge| bridge.name);
        network.mtu = mtu.map(|mtu| mtu.size);
        if let Some(Forward { dev, pf, interfaces, .. }) = forward {
            let named = interfaces.into_iter().chain(pf).filter_map(|device| device.dev);
            // libvirt writes the same device in both places.
            network.nics = dev.into_iter().chain(named).collect();
            network.nics.dedup();
        }
        if let Some(ip) = ips.into_iter().find(|ip| ip.family.as_deref() != Some("ipv6")) {
            let range = range(&ip);
            network.range = range.map(|range| range.subnet);
            network.own = ip.address.and_then(|address| address.parse().ok());
            let dhcp = ip.dhcp.unwrap_or_default();
            network.dhcp = dhcp.ranges.iter().filter_map(span).collect();
            network.statics = dhcp.hosts.into_iter().filter_map(fixed).collect();
        }
        Ok(network)
    }

    /// Its definition, as libvirt's document.
    pub fn xml(&self) -> String {
        let forward = |mode: &str| Some(Forward { mode: Some(mode.into()), ..Forward::default() });
        let device = |dev: &String| Dev { dev: Some(dev.clone()) };
        let devices = || self.nics.iter().map(device).collect();
        let first = self.nics.first();
        let forward = match self.kind {
            Kind::Nat => forward("nat").map(|f| Forward { dev: first.cloned(), ..f }),
            Kind::Routed => forward("route").map(|f| Forward { dev: first.cloned(), ..f }),
            Kind::Macvtap(mode) => forward(mode.word()).map(|f| Forward {
                dev: first.cloned(),
                interfaces: devices(),
                ..f
            }),
            Kind::Bridge => forward("bridge"),
            Kind::Sriov => forward("hostdev").map(|f| {
                let managed = Some("yes".into());
                Forward { managed, pf: first.map(device), ..f }
            }),
            Kind::Private | Kind::Isolated | Kind::Other => None,
        };
        let named = |name: &String| Bridge { name: Some(name.clone()), ..Bridge::default() };
        let own = |name: Option<&String>| Bridge {
            stp: Some("on".into()),
            delay: Some("0".into()),
            ..name.map(named).unwrap_or_default()
        };
        let bridge = if self.kind.has_own_bridge() {
            Some(own(self.bridge.as_ref()))
        } else {
            self.bridge.as_ref().map(named)
        };
        document::write(&Document {
            name: self.name.clone(),
            uuid: self.uuid.clone(),
            forward,
            bridge,
            mtu: self.mtu.map(|size| Mtu { size }),
            ips: self.ip().into_iter().collect(),
        })
    }

    /// Its own address in libvirt's document.
    fn ip(&self) -> Option<Ip> {
        let hosts = self.statics.iter().map(|fixed| DhcpHost {
            mac: Some(fixed.mac.clone()),
            name: fixed.name.clone(),
            ip: Some(fixed.ip.to_string()),
        });
        let ranges = self
            .dhcp
            .iter()
            .map(|span| DhcpRange { start: span.first.to_string(), end: span.last.to_string() });
        let dhcp = document::Dhcp { ranges: ranges.collect(), hosts: hosts.collect() };
        let serves = !dhcp.ranges.is_empty() || !dhcp.hosts.is_empty();
        Some(Ip {
            address: Some(self.own?.to_string()),
            prefix: Some(self.range?.prefix()),
            dhcp: serves.then_some(dhcp),
            ..Ip::default()
        })
    }

    /// Returns how `defined`, as libvirt reports it, differs from this plan; settings that the plan
    /// leaves to libvirt are not compared.
    pub fn differences(&self, defined: &Network) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, planned: String, now: String| {
            if planned != now {
                found.push(format!("{what} is {now}, planned was {planned}"));
            }
        };
        let word = |value: Option<String>| value.unwrap_or_else(|| "none".into());
        compare("its kind", self.kind.to_string(), defined.kind.to_string());
        compare("its network device", self.nics.join(","), defined.nics.join(","));
        if self.bridge.is_some() {
            compare("its bridge", word(self.bridge.clone()), word(defined.bridge.clone()));
        }
        let mtu = |network: &Network| word(network.mtu.map(|mtu| mtu.to_string()));
        compare("its MTU", mtu(self), mtu(defined));
        let range = |network: &Network| word(network.range.map(|range| range.to_string()));
        compare("its range", range(self), range(defined));
        let own = |network: &Network| word(network.own.map(|own| own.to_string()));
        compare("the host's address", own(self), own(defined));
        let spans = |network: &Network| {
            let spans: Vec<String> = network.dhcp.iter().map(Span::to_string).collect();
            if spans.is_empty() { "nothing".into() } else { spans.join(",") }
        };
        compare("what DHCP hands out", spans(self), spans(defined));
        let statics = |network: &Network| {
            let mut each: Vec<String> =
                network.statics.iter().map(|fixed| format!("{}={}", fixed.mac, fixed.ip)).collect();
            each.sort();
            if each.is_empty() { "empty".into() } else { each.join(",") }
        };
        compare("the list of static addresses", statics(self), statics(defined));
        found
    }
}

/// Derives the kind from the parts of a definition.
fn kind(forward: Option<&Forward>, bridge: Option<&Bridge>, has_address: bool) -> Kind {
    let Some(forward) = forward else {
        return if has_address { Kind::Private } else { Kind::Isolated };
    };
    let has_devices = forward.dev.is_some() || !forward.interfaces.is_empty();
    match forward.mode.as_deref() {
        None | Some("nat") => Kind::Nat,
        Some("route") => Kind::Routed,
        Some("bridge") if !has_devices && bridge.is_some() => Kind::Bridge,
        Some("bridge") => Kind::Macvtap(Mode::Bridge),
        Some("private") => Kind::Macvtap(Mode::Private),
        Some("vepa") => Kind::Macvtap(Mode::Vepa),
        Some("passthrough") => Kind::Macvtap(Mode::Passthrough),
        Some("hostdev") => Kind::Sriov,
        Some(_) => Kind::Other,
    }
}

/// An address of a document as a range.
fn range(ip: &Ip) -> Option<Range> {
    let mask = ip.netmask.as_ref().and_then(|mask| mask.parse::<Ipv4Addr>().ok());
    let bits = mask.and_then(|mask| u8::try_from(mask.to_bits().leading_ones()).ok());
    Range::of(ip.address.as_ref()?.parse().ok()?, ip.prefix.or(bits)?)
}

/// A run of addresses of a document.
fn span(range: &DhcpRange) -> Option<Span> {
    Span::new(range.start.parse().ok()?, range.end.parse().ok()?)
}

/// Converts a static lease of a document; none if it has no MAC address.
fn fixed(host: DhcpHost) -> Option<Static> {
    let mac = host.mac?.to_ascii_lowercase();
    Some(Static { mac, ip: host.ip?.parse().ok()?, name: host.name })
}

#[cfg(test)]
mod tests;
