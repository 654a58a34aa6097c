//! Checks the host's services for a network with libvirt's own bridge: DHCP, forwarding and
//! filtering.

use super::report::{Hop, Hops};
use super::{Case, Device, HostSide, rules};
use crate::network::firewall::{Fate, Hook, Packet};
use crate::network::{Kind, Network};
use crate::shell::word;
use std::net::{IpAddr, Ipv4Addr};

/// An outside peer: a documentation address (RFC 5737), which no specific rule matches.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Judges the path behind the bridge of a libvirt network.
pub(super) fn judge(case: &Case<'_>, host: &HostSide, bridge: &str, hops: &mut Hops) {
    let Some(network) = case.on.network() else { return };
    if case.on.has_dhcp() {
        dhcp(case, network, host, bridge, hops);
    }
    if !matches!(network.kind, Kind::Nat | Kind::Routed) {
        return;
    }
    let uplink = uplink(network, host);
    forwarding(host, bridge, uplink, hops);
    let name = "firewall, guest to LAN";
    let Some(to) = uplink else {
        return hops.unchecked(name, "the host has no way out that packets would take");
    };
    let guest = guest_ip(case, network);
    let out = Packet {
        hook: Hook::Forward,
        from: bridge,
        to: Some(to),
        source: guest,
        target: OUTSIDE,
        protocol: "tcp",
        port: 443,
        state: "new",
    };
    let back = Packet {
        from: to,
        to: Some(bridge),
        source: OUTSIDE,
        target: guest,
        port: 40_000,
        state: "established",
        ..out
    };
    fates(name, host, &[("out", out), ("back", back)], hops);
    let Some(link) = host.device(to) else { return };
    let hop = hops.hop(&format!("NIC {to}"));
    if !link.link.up {
        let hint = format!("`ip link set {to} up`", to = word(to));
        hop.wrong(&rules::NIC_DOWN, "it is", ("up", "down"), to, hint);
    } else if !link.carrier {
        let hint = format!("cable and switch port; `ethtool {to}` shows what it sees");
        hop.wrong(&rules::NIC_CARRIER, "a link:", ("yes", "no"), to, hint);
    } else {
        hop.says("up, with a link");
    }
}

/// The device that packets leave the host by.
fn uplink<'a>(network: &'a Network, host: &'a HostSide) -> Option<&'a str> {
    let default = || host.network.default_link().map(|link| link.name.as_str());
    network.nics.first().map(String::as_str).or_else(default)
}

/// Returns the guest's known address, otherwise one it may get.
fn guest_ip(case: &Case<'_>, network: &Network) -> Ipv4Addr {
    let known = case.known.iter().find_map(|address| match address.ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let first = || network.range.and_then(|range| range.hosts()).map(|span| span.last);
    known.or_else(first).unwrap_or(Ipv4Addr::new(192, 168, 122, 254))
}

/// Judges the DHCP server and the path to it.
fn dhcp(case: &Case<'_>, network: &Network, host: &HostSide, bridge: &str, hops: &mut Hops) {
    let name = &network.name;
    match &host.served {
        None => hops.unchecked("DHCP server", "processes cannot be seen"),
        Some(served) => {
            let hop = hops.hop("DHCP server");
            if served.contains(name) {
                hop.says("dnsmasq runs");
            } else {
                let at = format!("/var/lib/libvirt/dnsmasq/{name}.conf");
                let hint = format!(
                    "`virsh net-destroy {name}`, `virsh net-start {name}`, and start its guests \
                     again; a server of the host's own on port 53 or 67 keeps it from starting",
                    name = word(name)
                );
                hop.wrong(&rules::DNSMASQ, "dnsmasq for it", ("runs", "does not run"), at, hint);
            }
        }
    }
    let ask = Packet {
        hook: Hook::Input,
        from: bridge,
        to: None,
        source: Ipv4Addr::UNSPECIFIED,
        target: Ipv4Addr::BROADCAST,
        protocol: "udp",
        port: 67,
        state: "new",
    };
    let dns = Packet {
        source: guest_ip(case, network),
        target: network.own.unwrap_or(OUTSIDE),
        port: 53,
        ..ask
    };
    fates("firewall, guest to host", host, &[("DHCP", ask), ("DNS", dns)], hops);
}

/// Judges whether the kernel forwards packets.
fn forwarding(host: &HostSide, bridge: &str, uplink: Option<&str>, hops: &mut Hops) {
    let Some(on) = host.kernel.ip_forward else {
        return hops.unchecked("forwarding", "the kernel's setting cannot be read");
    };
    let hop = hops.hop("forwarding");
    if !on {
        let at = "/proc/sys/net/ipv4/ip_forward";
        let hint = "`sysctl net.ipv4.ip_forward=1`, and in /etc/sysctl.d for every boot";
        hop.wrong(&rules::FORWARDING, "IPv4 forwarding is", ("on", "off"), at, hint);
    }
    for name in [Some(bridge), uplink].into_iter().flatten() {
        // The global switch turns all of them off.
        if on && host.kernel.forwarding.get(name) == Some(&false) {
            let at = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
            let hint = format!("`sysctl net.ipv4.conf.{name}.forwarding=1`");
            let what = format!("IPv4 forwarding from {name} is");
            hop.wrong(&rules::FORWARDING, what, ("on", "off"), at, hint);
        }
    }
    match uplink {
        Some(uplink) => hop.says(format!("{bridge} to {uplink}")),
        None => {
            let hint = "`ip route add default via GATEWAY`; guests reach the host and each other";
            hop.wrong(
                &rules::NO_ROUTE,
                "the host's default route:",
                ("one", "none"),
                "ip route",
                hint,
            );
        }
    }
}

/// Judges the fate of packets, each with a label.
fn fates(name: &str, host: &HostSide, packets: &[(&str, Packet<'_>)], hops: &mut Hops) {
    let rules = match &host.firewall {
        Ok(rules) => rules,
        Err(why) => return hops.unchecked(name, why),
    };
    let fates = packets.iter().map(|(word, packet)| (*word, rules.fate(packet)));
    let fates: Vec<(&str, Fate)> = fates.collect();
    let unsure = fates.iter().find_map(|(word, fate)| match fate {
        Fate::Unsure(by) => Some(format!("{word}: a rule before `{by}` is not understood here")),
        _ => None,
    });
    let ends: Vec<_> = fates.iter().filter(|(_, fate)| matches!(fate, Fate::Ends(_))).collect();
    if ends.is_empty()
        && let Some(why) = unsure
    {
        return hops.unchecked(name, &why);
    }
    let hop = hops.hop(name);
    if ends.is_empty() {
        hop.says("lets them pass");
    }
    for (word, fate) in ends {
        dropped(hop, word, fate);
    }
}

/// Says that a packet is dropped.
fn dropped(hop: &mut Hop, word: &str, fate: &Fate) {
    let Fate::Ends(by) = fate else { return };
    let hint = if by.contains("FORWARD has policy drop") {
        "Docker sets this policy: `iptables -I DOCKER-USER -i BRIDGE -j ACCEPT` and `-o BRIDGE`, \
             or restart libvirt's network so that its rules come back (`virsh net-destroy`, \
             `net-start`)"
    } else {
        "let the guests' bridge pass in the firewall, with firewalld: zone `libvirt`"
    };
    let what = format!("packets ({word})");
    hop.wrong(&rules::FIREWALL, what, ("pass", "dropped"), by, hint);
}

/// Whether the firewall of IPv4 drops packets on a bridge of the host.
pub(super) fn bridged(case: &Case<'_>, host: &HostSide, bridge: &Device, hops: &mut Hops) {
    if host.kernel.bridge_calls_iptables != Some(true) && !bridge.calls_iptables {
        return;
    }
    let name = &bridge.link.name;
    let guest = case.known.iter().find_map(|address| match address.ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let out = Packet {
        hook: Hook::Forward,
        from: name,
        to: Some(name),
        source: guest.unwrap_or(OUTSIDE),
        target: OUTSIDE,
        protocol: "tcp",
        port: 443,
        state: "new",
    };
    let before = hops.len();
    fates("firewall, bridged", host, &[("bridged", out)], hops);
    let at = "net.bridge.bridge-nf-call-iptables";
    for hop in hops.since(before) {
        for finding in &mut hop.findings {
            finding.hint =
                format!("`sysctl {at}=0`: then the firewall does not see what the bridge passes");
        }
        hop.says(format!("{at} is 1"));
    }
}
