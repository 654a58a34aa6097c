//! The host's network devices, IPv4 addresses and routes, of every table, through rtnetlink: those
//! of this program's network namespace, which sysfs need not match.

use crate::netlink::ask;
use gpuvm_core::network::Subnet;
use gpuvm_core::network::host::{HostAddress, HostNetwork, Link, Route};
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Reads the host's network. Errors: those of the kernel.
pub fn network() -> io::Result<HostNetwork> {
    let links = links(&link_messages(&[])?);
    let names = links.iter().map(|link| (link.index, link.name.clone())).collect();
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    let answers = ask(NLM_F_DUMP, RouteNetlinkMessage::GetAddress(message))?;
    let addresses = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewAddress(message) => address(&message, &names),
        _ => None,
    });
    let addresses = addresses.collect();
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    let answers = ask(NLM_F_DUMP, RouteNetlinkMessage::GetRoute(message))?;
    let routes = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(message) => route(&message, &names),
        _ => None,
    });
    Ok(HostNetwork { links, addresses, routes: routes.collect() })
}

/// Requests all network devices; `more`: additional attributes to report. Errors: those of the
/// kernel.
pub(super) fn link_messages(more: &[LinkExtentMask]) -> io::Result<Vec<LinkMessage>> {
    let mut message = LinkMessage::default();
    if !more.is_empty() {
        message.attributes.push(LinkAttribute::ExtMask(more.to_vec()));
    }
    let answers = ask(NLM_F_DUMP, RouteNetlinkMessage::GetLink(message))?;
    let messages = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(message) => Some(message),
        _ => None,
    });
    Ok(messages.collect())
}

/// Converts the kernel's messages to network devices, in its order.
pub(super) fn links(messages: &[LinkMessage]) -> Vec<Link> {
    let mut found: Vec<(Link, Kin)> = messages.iter().map(link).collect();
    let names: BTreeMap<u32, String> =
        found.iter().map(|(link, _)| (link.index, link.name.clone())).collect();
    for (link, kin) in &mut found {
        let named = |index: Option<u32>| index.and_then(|index| names.get(&index).cloned());
        (link.master, link.over) = (named(kin.master), named(kin.over));
    }
    found.into_iter().map(|(link, _)| link).collect()
}

/// An answer of a neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its MAC address, lower case.
    pub mac: String,
    /// Whether it has answered within about half a minute, or an admin has set the entry.
    pub confirmed: bool,
}

/// Returns the neighbour with an address on a network device; `None` if it has not answered, or was
/// not asked.
pub fn neighbour(index: u32, ip: IpAddr) -> io::Result<Option<Neighbour>> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let messages =
        neighbours(family)?.into_iter().filter(|message| message.header.ifindex == index);
    let mut found = messages.filter_map(|message| {
        let confirmed =
            matches!(message.header.state, NeighbourState::Reachable | NeighbourState::Permanent);
        Some(Neighbour { mac: answered(&message, ip)?, confirmed })
    });
    Ok(found.next())
}

/// The kernel's way to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Number of the network device.
    pub index: u32,
    /// Whether the address is reached directly, without a router.
    pub direct: bool,
}

/// Whether an address is one of this machine: the kernel routes it to itself. That a socket can be
/// bound to it proves nothing where `ip_nonlocal_bind` is set.
pub fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_local = |route: RouteMessage| route.header.kind == RouteType::Local;
    ip.is_loopback() || ip.is_unspecified() || route_to(ip).ok().flatten().is_some_and(is_local)
}

/// Returns the way by which the kernel sends packets to an address, by all of its rules; `None` if
/// the address is its own, or nothing leads there.
pub fn way_to(ip: IpAddr) -> io::Result<Option<Way>> {
    let route = route_to(ip)?;
    let Some(route) = route.filter(|route| route.header.kind == RouteType::Unicast) else {
        return Ok(None);
    };
    let (mut index, mut direct) = (None, true);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(own) => index = Some(*own),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => direct = false,
            _ => {}
        }
    }
    Ok(index.map(|index| Way { index, direct }))
}

/// The kernel's route to an address; `None` if nothing leads there.
fn route_to(ip: IpAddr) -> io::Result<Option<RouteMessage>> {
    let mut message = RouteMessage::default();
    let (family, prefix, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, 32, RouteAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(ip)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = prefix;
    message.attributes.push(RouteAttribute::Destination(address));
    let answers = match ask(0, RouteNetlinkMessage::GetRoute(message)) {
        Ok(answers) => answers,
        // The kernel's error for addresses without a route, or that can have none.
        Err(error) => {
            let code = error.raw_os_error().map(Errno::from_raw);
            return match code {
                Some(
                    Errno::ENETUNREACH
                    | Errno::EHOSTUNREACH
                    | Errno::EINVAL
                    | Errno::EACCES
                    | Errno::EAFNOSUPPORT
                    | Errno::EOPNOTSUPP,
                ) => Ok(None),
                _ => Err(error),
            };
        }
    };
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(message) => Some(message),
        _ => None,
    }))
}

/// Returns how long ago an IPv4 neighbour with a MAC address answered, on any network device;
/// `None` if no such entry.
pub fn answered_ago(mac: &str, ip: Ipv4Addr) -> io::Result<Option<Duration>> {
    let all = neighbours(AddressFamily::Inet)?.into_iter();
    Ok(all
        .filter(|message| answered(message, ip.into()).as_deref() == Some(mac))
        .filter_map(ago)
        .min())
}

/// The kernel's table of neighbours of a family. Errors: those of the kernel.
fn neighbours(family: AddressFamily) -> io::Result<Vec<NeighbourMessage>> {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    let answers = ask(NLM_F_DUMP, RouteNetlinkMessage::GetNeighbour(message))?;
    let messages = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(message) => Some(message),
        _ => None,
    });
    Ok(messages.collect())
}

/// Returns how long ago a neighbour answered, or sent a packet that created its entry.
fn ago(message: NeighbourMessage) -> Option<Duration> {
    let mut times = message.attributes.into_iter().filter_map(|attribute| match attribute {
        NeighbourAttribute::CacheInfo(times) => Some((times.confirmed, times.updated)),
        _ => None,
    });
    let (confirmed, updated) = times.next()?;
    let ticks = spoke(message.header.state, confirmed, updated);
    Some(Duration::from_millis(u64::from(ticks) * 10))
}

/// Returns when a neighbour last sent something, from the times of its entry: all in hundredths of
/// a second ago (NDA_CACHEINFO in rtnetlink(7), in USER_HZ). The kernel also counts as an update
/// that an entry becomes stale, or is used while stale, which says nothing about the neighbour. An
/// entry created from a neighbour's packet has a confirmation two reachable times, a minute, before
/// its update (net/core/neighbour.c: `___neigh_create`, `neigh_timer_handler`,
/// `__neigh_event_send`).
fn spoke(state: NeighbourState, confirmed: u32, updated: u32) -> u32 {
    const MADE: u32 = 6000;
    let is_made = state == NeighbourState::Stale && confirmed.saturating_sub(updated) >= MADE;
    if is_made { updated } else { confirmed }
}

/// The MAC address of an entry of the table of neighbours, if it is about this address and the
/// neighbour has answered.
fn answered(message: &NeighbourMessage, ip: IpAddr) -> Option<String> {
    use NeighbourState::{Delay, Permanent, Probe, Reachable, Stale};
    if !matches!(message.header.state, Reachable | Stale | Delay | Probe | Permanent) {
        return None;
    }
    let asked = NeighbourAttribute::Destination(match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    });
    let mut macs = message.attributes.iter().filter_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Some(mac(bytes)),
        _ => None,
    });
    message.attributes.contains(&asked).then(|| macs.next()).flatten()
}

/// A MAC address as text.
pub(super) fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The relatives of a network device, by index.
#[derive(Debug, Default)]
struct Kin {
    /// The device that it is a port of.
    master: Option<u32>,
    /// The device below it, if in the same namespace.
    over: Option<u32>,
}

/// Reads one network device, with its relatives.
fn link(message: &LinkMessage) -> (Link, Kin) {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mtu: 0,
        kind: None,
        master: None,
        up: message.header.flags.contains(LinkFlags::Up),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        mac: None,
        most_mtu: None,
        over: None,
    };
    let (mut kin, mut elsewhere) = (Kin::default(), false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => kin.master = Some(*index),
            LinkAttribute::Link(index) => kin.over = Some(*index),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::MaxMtu(most) => link.most_mtu = Some(*most).filter(|most| *most > 0),
            LinkAttribute::Address(bytes) if bytes.len() == 6 => link.mac = Some(mac(bytes)),
            LinkAttribute::LinkInfo(infos) => {
                let mut kinds = infos.iter().filter_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                link.kind = kinds.next();
            }
            _ => {}
        }
    }
    if elsewhere || link.kind.as_deref() == Some("veth") {
        // The other end of a veth pair, which is not below it.
        kin.over = None;
    }
    (link, kin)
}

/// Reads one address.
fn address(message: &AddressMessage, names: &BTreeMap<u32, String>) -> Option<HostAddress> {
    let v4 = |ip: &IpAddr| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None };
    let (mut ip, mut subnet_of) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => ip = v4(local),
            // The peer's address, on a point-to-point link.
            AddressAttribute::Address(address) => subnet_of = v4(address),
            _ => {}
        }
    }
    Some(HostAddress {
        link: names.get(&message.header.index)?.clone(),
        ip: ip.or(subnet_of)?,
        subnet: Subnet::around(subnet_of.or(ip)?, message.header.prefix_len)?,
    })
}

/// Reads one route; none for those that the kernel creates for the host's own addresses and for
/// broadcasts.
fn route(message: &RouteMessage, names: &BTreeMap<u32, String>) -> Option<Route> {
    let nowhere = match message.header.kind {
        RouteType::Unicast => false,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => true,
        _ => return None,
    };
    let (mut to, mut by, mut gateway) = (Ipv4Addr::UNSPECIFIED, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => to = *ip,
            RouteAttribute::Oif(index) => by = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => gateway = Some(*ip),
            RouteAttribute::MultiPath(hops) => {
                by = by.or(hops.first().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    let by = by.filter(|_| !nowhere);
    Some(Route {
        to: Subnet::around(to, message.header.destination_prefix_length)?,
        link: by.and_then(|index| names.get(&index).cloned()),
        gateway,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_updates_of_an_entry_are_no_answer_of_the_neighbour() {
        for (state, confirmed, updated, wanted) in [
            (NeighbourState::Reachable, 500, 300, 500),
            // Created by an ARP request of the neighbour.
            (NeighbourState::Stale, 6300, 300, 300),
            // Became stale, and was then used.
            (NeighbourState::Stale, 4300, 300, 4300),
            (NeighbourState::Delay, 9300, 300, 9300),
            (NeighbourState::Probe, 9300, 300, 9300),
        ] {
            assert_eq!(spoke(state, confirmed, updated), wanted, "{state:?} {confirmed}");
        }
    }

    #[test]
    fn the_kernel_reports_a_loop() {
        let host = network().unwrap();
        let lo = host.link("lo").unwrap();
        assert!(lo.loopback && lo.index == 1 && lo.mtu > 0 && lo.kind.is_none());
        // In a fresh namespace it is down, and then it has no address.
        let of_lo = host.addresses.iter().filter(|address| address.link == "lo");
        for address in of_lo {
            assert!(address.ip.is_loopback() && address.subnet.contains(address.ip));
        }
        for link in &host.links {
            let master = link.master.as_ref();
            assert!(master.is_none_or(|master| host.link(master).is_some()), "{link:?}");
        }
        assert!(
            host.routes.iter().filter(|route| route.is_default()).all(|route| route.link.is_some())
        );
    }
}
