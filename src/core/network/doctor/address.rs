//! Judges the address of a NIC, and whether the host would reach it by this path.

use super::report::{Hop, Hops};
use super::{Attached, Case, HostSide, rules};
use crate::network::AddressSource;
use crate::shell::word;
use std::net::{IpAddr, Ipv4Addr};

pub(super) fn judge(case: &Case<'_>, hops: &mut Hops) {
    if !case.running {
        return hops.unchecked("address", "the guest is off");
    }
    let bridge = match &case.nic.attached {
        Attached::Bridge(bridge) => Some(bridge.as_str()),
        _ => None,
    };
    let first = case.known.iter().find_map(|address| match address.ip {
        IpAddr::V4(ip) => Some((ip, address.source)),
        IpAddr::V6(_) => None,
    });
    if let Some((ip, source)) = first {
        let hop = hops.hop("address");
        let by = match source {
            AddressSource::Lease => "a lease",
            AddressSource::Agent => "the guest's agent",
            AddressSource::Arp => "ARP",
        };
        hop.says(format!("{ip}, by {by}"));
    } else if case.on.has_dhcp() {
        unknown(case, hops.hop("address"));
    } else {
        let why =
            "not in any lease, agent report or ARP entry; the server of addresses is not libvirt's";
        hops.unchecked("address", why);
    }
    if let (Some(host), Some(bridge)) = (case.host, bridge) {
        elsewhere(case, host, bridge, first.map(|(ip, _)| ip), hops);
    }
}

/// Judges a NIC whose address is unknown although DHCP assigns them. A guest that sent nothing has
/// its NIC down; one that sends may have a static address.
fn unknown(case: &Case<'_>, hop: &mut Hop) {
    let device = case.nic.device.as_deref().zip(case.host).and_then(|(tap, host)| host.device(tap));
    let at = "DHCP leases, agent, ARP";
    match device.map(|tap| tap.packets_in) {
        Some(0) => {
            let hint = format!(
                "does the guest take this NIC up? `gpuvm console {}` shows",
                word(case.guest)
            );
            let found = "none, and the guest has sent nothing by this NIC";
            hop.wrong(&rules::NO_ADDRESS, "its address:", ("one", found), at, hint);
        }
        sent => {
            let found = match sent {
                Some(sent) => format!("none known, and {sent} packets came from the guest"),
                None => "none known".to_owned(),
            };
            let hint = "one that was given by hand is known once the guest speaks with the host: \
                        ping the host from it; else ask for one in the guest (`dhclient`, \
                        `networkctl renew`): `journalctl -t dnsmasq-dhcp` shows what the server \
                        heard";
            hop.wrong(&rules::ADDRESS_UNKNOWN, "its address:", ("one", found), at, hint);
        }
    }
}

/// Finds another device with its MAC or IP address, or a route of the host that leads elsewhere.
fn elsewhere(
    case: &Case<'_>,
    host: &HostSide,
    bridge: &str,
    ip: Option<Ipv4Addr>,
    hops: &mut Hops,
) {
    let mac = &case.nic.mac;
    let hop = match hops.last() {
        Some(hop) => hop,
        None => return,
    };
    let port = host.heard.get(&(bridge.to_owned(), mac.clone()));
    if let (Some(port), Some(device)) = (port, &case.nic.device)
        && port != device
    {
        let hint = "two have this MAC address: a copied guest needs its own (<mac address=>)";
        hop.wrong(
            &rules::MAC_ELSEWHERE,
            format!("{mac} is heard on"),
            (device, port),
            bridge,
            hint,
        );
    }
    let Some(ip) = ip else { return };
    let other =
        host.neighbours.iter().find(|one| one.ip == ip && one.link == bridge && one.mac != *mac);
    if let Some(other) = other {
        let hint = "two have this address: give one of them another";
        hop.wrong(
            &rules::CONFLICT,
            format!("{ip} is answered by"),
            (mac, &other.mac),
            bridge,
            hint,
        );
    }
    let has_address = host.network.addresses.iter().any(|address| address.link == bridge);
    if let Some(way) = host.way_to(ip).filter(|way| *way != bridge && has_address) {
        let hint = format!(
            "`ip route get {ip}`: an address or route of the host's is nearer than the network's \
             range"
        );
        hop.wrong(
            &rules::ROUTE,
            format!("the host reaches {ip} by"),
            (bridge, way),
            "ip route",
            hint,
        );
    }
}
