//! Plans the network that a request makes, or lists every reason against it.

use super::host::{HostNetwork, Link};
use super::problem::{Problem, Refused};
use super::request::{Dhcp, Planned, Request};
use super::subnet::{Range, Span, Subnet};
use super::{Kind, Mode, Network};
use std::net::Ipv4Addr;

/// Third octet of the first range tried, 192.168.N.0/24: that of libvirt's `default`.
const DEFAULT: u8 = 122;
/// The same for every other network, so that the range of `default` stays free.
const FIRST: u8 = 123;
/// Third octet of the last range tried.
const LAST: u8 = 254;
/// Smallest MTU that every IPv4 host accepts (RFC 791).
pub const LEAST_MTU: u32 = 576;
/// Largest MTU that a bridge has.
pub const MOST_MTU: u32 = 65_535;
/// Longest name of a network device (`IFNAMSIZ`, less the NUL).
pub const MOST_NAME: usize = 15;

struct Planner<'a> {
    request: &'a Request,
    /// The host; `None` if another machine, whose network is unknown.
    host: Option<&'a HostNetwork>,
    others: Vec<&'a Network>,
    /// The network of this name that is replaced.
    before: Option<&'a Network>,
    problems: Vec<Problem>,
    notes: Vec<String>,
}

/// Plans a network given the host (`None` if unknown) and the existing networks; with `replace`, it
/// may replace one of its name. Errors: every reason against it.
pub fn plan(
    request: &Request,
    host: Option<&HostNetwork>,
    networks: &[Network],
    replace: bool,
) -> Result<Planned, Refused> {
    let (same, others): (Vec<&Network>, Vec<&Network>) =
        networks.iter().partition(|network| network.name == request.name);
    let before = same.first().copied();
    let (problems, notes) = (Vec::new(), Vec::new());
    let mut planner = Planner { request, host, others, before, problems, notes };
    if before.is_some() && !replace {
        planner.problems.push(Problem::Exists);
    }
    let mut network = Network::bare(&request.name, request.kind);
    network.uuid = before.and_then(|before| before.uuid.clone());
    planner.refuse_unfit();
    planner.nic(&mut network);
    planner.bridge(&mut network);
    planner.addresses(&mut network);
    planner.mtu(&mut network);
    if planner.problems.is_empty() {
        Ok(Planned { network, notes: planner.notes })
    } else {
        Err(Refused { name: request.name.clone(), problems: planner.problems })
    }
}

impl Planner<'_> {
    /// Refuses options of other kinds, and reports missing ones of this kind.
    fn refuse_unfit(&mut self) {
        let Request { kind, nic, bridge, range, dhcp, statics, mtu, .. } = self.request;
        let kind = *kind;
        let served = matches!(kind, Kind::Nat | Kind::Private);
        let has_nic = matches!(kind, Kind::Nat | Kind::Macvtap(_) | Kind::Sriov);
        let has_bridge = served || kind == Kind::Bridge;
        for (given, fits, option, of) in [
            (nic.is_some(), has_nic, "--nic", "nat, macvtap and sriov"),
            (bridge.is_some(), has_bridge, "--bridge", "nat, private and bridge"),
            (range.is_some(), served, "--range", "nat and private"),
            (dhcp.is_some(), served, "--dhcp", "nat and private"),
            (!statics.is_empty(), served, "--static", "nat and private"),
            (mtu.is_some(), served, "--mtu", "nat and private"),
        ] {
            if given && !fits {
                self.problems.push(Problem::Unfit { option, of, kind: kind.to_string() });
            }
        }
        let needs_nic = matches!(kind, Kind::Macvtap(_) | Kind::Sriov);
        for (missing, option) in [
            (needs_nic && nic.is_none(), "--nic NIC"),
            (kind == Kind::Bridge && bridge.is_none(), "--bridge BRIDGE"),
        ] {
            if missing {
                self.problems.push(Problem::Missing { option, kind: kind.to_string() });
            }
        }
    }

    /// The network device of a name; none, with the reason noted, if it does not exist or cannot be
    /// used.
    fn link(&mut self, name: &str) -> Option<Link> {
        let host = self.host?;
        let link = host.link(name).cloned();
        if link.is_none() {
            self.problems.push(Problem::NoLink { name: name.to_owned() });
        }
        link
    }

    fn nic(&mut self, network: &mut Network) {
        let (Some(name), kind) = (&self.request.nic, self.request.kind) else { return };
        network.nics = vec![name.clone()];
        let Some(link) = self.link(name) else { return };
        let name = name.clone();
        if link.loopback {
            return self.problems.push(Problem::Loopback { name });
        }
        if let Some(master) = link.master.clone().filter(|_| kind != Kind::Sriov) {
            self.problems.push(Problem::Port { name: name.clone(), master });
        }
        if !link.up {
            self.notes.push(format!("{name} is down, so nothing passes until it is up"));
        }
        if let Kind::Macvtap(mode) = kind {
            self.macvtap(&link, mode);
        }
    }

    /// Refuses macvtap modes that conflict on one network device.
    fn macvtap(&mut self, link: &Link, mode: Mode) {
        let whole = mode == Mode::Passthrough;
        let name = || link.name.clone();
        if whole && self.host.is_some_and(|host| host.carries_default_route(link)) {
            self.problems.push(Problem::DefaultRoute { name: name() });
        }
        for other in self.others.iter().filter(|other| other.nics.contains(&link.name)) {
            let network = other.name.clone();
            match other.kind {
                Kind::Macvtap(Mode::Passthrough) => {
                    self.problems.push(Problem::GivenAway { name: name(), network });
                }
                Kind::Macvtap(_) | Kind::Nat | Kind::Routed if whole => {
                    self.problems.push(Problem::Shared { name: name(), network });
                }
                _ => {}
            }
        }
    }

    /// Plans its bridge: an existing one, or the name of its own.
    fn bridge(&mut self, network: &mut Network) {
        let kept = self.before.filter(|before| before.kind.has_own_bridge());
        let kept = kept.and_then(|before| before.bridge.clone());
        if !network.kind.has_own_bridge() {
            network.bridge = self.request.bridge.clone();
            if let Some(name) = &self.request.bridge {
                self.host_bridge(name);
            }
            return;
        }
        // libvirt chooses the name if none is requested; `default` has this one everywhere.
        let usual = (network.name == "default").then(|| "virbr0".to_owned());
        let usual = usual.filter(|name| self.bridge_holder(name).is_none());
        network.bridge = self.request.bridge.clone().or(kept.clone()).or(usual);
        let Some(name) = self.request.bridge.clone().filter(|name| Some(name) != kept.as_ref())
        else {
            return;
        };
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let why = if (1..=MOST_NAME).contains(&name.len()) && name.chars().all(good) {
            self.bridge_holder(&name)
        } else {
            Some(format!("it needs 1 to {MOST_NAME} letters, digits, `-`, `_` and `.`"))
        };
        self.problems.extend(why.map(|why| Problem::BridgeName { name, why }));
    }

    /// Returns the holder of the name of a bridge to be created; `None` if it is free.
    fn bridge_holder(&self, name: &str) -> Option<String> {
        let of = |other: &&&Network| other.bridge.as_deref() == Some(name);
        let network = self.others.iter().find(of);
        let link = || self.host.and_then(|host| host.link(name));
        network
            .map(|other| format!("that is the bridge of network `{}`", other.name))
            .or_else(|| link().map(|_| "the host has a network device of this name".into()))
    }

    fn host_bridge(&mut self, name: &str) {
        let of = |other: &&&Network| {
            other.kind.has_own_bridge() && other.bridge.as_deref() == Some(name)
        };
        if let Some(other) = self.others.iter().find(of) {
            let network = other.name.clone();
            self.problems.push(Problem::BridgeOfNetwork { name: name.to_owned(), network });
            return;
        }
        let Some(link) = self.link(name) else { return };
        if !link.is_bridge() {
            let what = link.kind.map_or("a NIC".to_owned(), |kind| format!("of kind {kind}"));
            self.problems.push(Problem::NoBridge { name: name.to_owned(), what });
            return;
        }
        let ports = self.host.map(|host| host.links.iter());
        if !ports.is_some_and(|mut links| links.any(|port| port.master.as_deref() == Some(name))) {
            self.notes.push(format!("bridge {name} has no port, so nothing leaves by it"));
        }
        if !link.up {
            self.notes.push(format!("bridge {name} is down, so nothing passes until it is up"));
        }
    }

    /// Plans its range, DHCP range and static addresses.
    fn addresses(&mut self, network: &mut Network) {
        if !matches!(network.kind, Kind::Nat | Kind::Private) {
            return;
        }
        let kept = self.before.and_then(|before| Range::of(before.own?, before.range?.prefix()));
        let range = match self.request.range.or(kept) {
            Some(range) => range,
            None => match self.free_range() {
                Some(range) => range,
                None => return self.problems.push(Problem::NoRange),
            },
        };
        let subnet = range.subnet;
        let (Some(hosts), true) = (subnet.hosts(), (8..=30).contains(&subnet.prefix())) else {
            return self.problems.push(Problem::RangeSize { range: subnet });
        };
        let own = range.own().unwrap_or(hosts.first);
        if !hosts.contains(own) {
            let end = if own == subnet.base() { "first address" } else { "broadcast address" };
            self.problems.push(Problem::Own { ip: own, end, range: subnet });
        }
        let clashes = self.clashes(subnet);
        self.problems.extend(clashes);
        (network.range, network.own) = (Some(subnet), Some(own));
        network.statics = self.request.statics.clone();
        network.dhcp = self.handed_out(subnet, hosts, own).into_iter().collect();
        self.statics(subnet, hosts, own, &network.dhcp);
    }

    /// The first free range of the usual ones.
    fn free_range(&self) -> Option<Range> {
        let first = if self.request.name == "default" { DEFAULT } else { FIRST };
        let ranges = (first..=LAST).filter_map(|n| Range::of(Ipv4Addr::new(192, 168, n, 1), 24));
        ranges.into_iter().find(|range| self.clashes(range.subnet).is_empty())
    }

    /// Finds conflicts of a range with the host and other networks.
    fn clashes(&self, range: Subnet) -> Vec<Problem> {
        let mut found = Vec::new();
        // Ranges of libvirt's bridges are known from their networks.
        let networks = self.others.iter().copied().chain(self.before);
        let theirs: Vec<&str> = networks
            .filter(|network| network.kind.has_own_bridge())
            .filter_map(|network| network.bridge.as_deref())
            .collect();
        for network in &self.others {
            if let Some(other) = network.range.filter(|other| other.overlaps(range)) {
                let network = network.name.clone();
                found.push(Problem::RangeOfNetwork { range, other, network });
            }
        }
        let Some(host) = self.host else { return found };
        let mut reported: Vec<Subnet> = Vec::new();
        for address in &host.addresses {
            let (ip, other, link) = (address.ip, address.subnet, address.link.clone());
            if !theirs.contains(&&*link) && other.overlaps(range) && !reported.contains(&other) {
                reported.push(other);
                found.push(Problem::RangeOfHost { range, other, ip, link });
            }
        }
        for route in host.routes.iter().filter(|route| !route.is_default()) {
            let is_theirs = route.link.as_deref().is_some_and(|link| theirs.contains(&link));
            if !is_theirs && route.to.overlaps(range) && !reported.contains(&route.to) {
                reported.push(route.to);
                let by = route
                    .link
                    .as_ref()
                    .map_or_else(|| "that leads nowhere".to_owned(), |link| format!("by {link}"));
                found.push(Problem::RangeOfRoute { range, route: route.to, by });
            }
        }
        found
    }

    fn handed_out(&mut self, range: Subnet, hosts: Span, own: Ipv4Addr) -> Option<Span> {
        match self.request.dhcp.unwrap_or(Dhcp::Longest) {
            Dhcp::Off => None,
            Dhcp::Longest => {
                let statics = self.request.statics.iter().map(|fixed| fixed.ip);
                let taken: Vec<Ipv4Addr> = statics.chain([own]).collect();
                let left = hosts.without(&taken);
                if left.is_none() {
                    self.problems.push(Problem::DhcpFull { hosts });
                }
                left
            }
            Dhcp::Span(span) => {
                if !hosts.contains(span.first) || !hosts.contains(span.last) {
                    self.problems.push(Problem::DhcpOutside { span, range, hosts });
                } else if span.contains(own) {
                    self.problems.push(Problem::DhcpOwn { span, ip: own });
                }
                Some(span)
            }
        }
    }

    /// Refuses static addresses that clash.
    fn statics(&mut self, range: Subnet, hosts: Span, own: Ipv4Addr, dhcp: &[Span]) {
        for (nth, fixed) in self.request.statics.iter().enumerate() {
            let ip = fixed.ip;
            if !hosts.contains(ip) {
                self.problems.push(Problem::StaticOutside { ip, range, hosts });
            } else if ip == own {
                self.problems.push(Problem::StaticOwn { ip });
            } else if let Some(&span) = dhcp.iter().find(|span| span.contains(ip)) {
                self.problems.push(Problem::StaticDynamic { ip, span });
            }
            for before in &self.request.statics[..nth] {
                if before.ip == ip {
                    let (first, second) = (before.mac.clone(), fixed.mac.clone());
                    self.problems.push(Problem::StaticTwice { ip, first, second });
                }
                if before.mac == fixed.mac {
                    let mac = fixed.mac.clone();
                    self.problems.push(Problem::MacTwice { mac, first: before.ip, second: ip });
                }
            }
        }
    }

    /// Plans its MTU, which every link on the path must support.
    fn mtu(&mut self, network: &mut Network) {
        let Some(mtu) = self.request.mtu else { return };
        network.mtu = Some(mtu);
        if !(LEAST_MTU..=MOST_MTU).contains(&mtu) {
            return self.problems.push(Problem::MtuBounds { mtu });
        }
        let Some(host) = self.host.filter(|_| network.kind == Kind::Nat) else { return };
        let bound = self.request.nic.as_ref().and_then(|name| host.link(name));
        let Some(link) = bound.or_else(|| host.default_link()).filter(|link| link.mtu < mtu) else {
            return;
        };
        let (name, link_mtu) = (link.name.clone(), link.mtu);
        if bound.is_some() {
            self.problems.push(Problem::MtuAbove { mtu, link: name, link_mtu });
        } else {
            self.notes.push(format!(
                "{name}, which has the host's default route, has an MTU of {link_mtu}: packets of \
                 up to {mtu} bytes pass between the guests and the host, not beyond"
            ));
        }
    }
}
