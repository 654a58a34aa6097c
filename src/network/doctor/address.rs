//! The address of a NIC, and whether the host would look for it there.

use super::report::Hops;
use super::{Attached, Case, HostSide, bridged, rules};
use crate::hypervisor::AddressSource;
use std::net::{IpAddr, Ipv4Addr};

/// Judges it.
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
    } else if bridged::has_dhcp(case) {
        let heard = heard(case, bridge);
        let hop = hops.hop("address");
        let hint = match heard {
            Some(false) => {
                format!("the bridge never heard it: does the guest take this NIC up? `gpuvm console {}`", case.guest)
            }
            _ => "ask for one in the guest (`dhclient`, `networkctl renew`); `journalctl -t dnsmasq-dhcp` shows what the \
                  server heard. One that was given by hand is known once the guest speaks with the host: ping it from there"
                .to_owned(),
        };
        let at = "DHCP leases, agent, ARP";
        hop.wrong(&rules::NO_ADDRESS, "its address:", ("one", "none known"), at, hint);
    } else {
        let why = "no lease, agent or ARP entry tells it; the server of addresses is not libvirt's";
        hops.unchecked("address", why);
    }
    if let (Some(host), Some(bridge)) = (case.host, bridge) {
        elsewhere(case, host, bridge, first.map(|(ip, _)| ip), hops);
    }
}

/// Whether the bridge has heard the NIC; none: not known.
fn heard(case: &Case<'_>, bridge: Option<&str>) -> Option<bool> {
    let key = (bridge?.to_owned(), case.nic.mac.clone());
    Some(case.host?.heard.contains_key(&key))
}

/// Another one with its MAC address or its IP address, and another way of the host's to it.
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
            "`ip route get {ip}`: an address or route of the host's is nearer than the network's range"
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
