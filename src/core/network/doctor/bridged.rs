//! Judges a tap in a bridge, the bridge, and its uplinks.

use super::report::Hops;
use super::wires::{self, up};
use super::{Case, Device, HostSide, PortState, mtu, routed, rules};
use crate::shell::word;

/// Judges the path from the tap outwards.
pub(super) fn judge(case: &Case<'_>, host: &HostSide, bridge: &str, hops: &mut Hops) {
    tap(case, host, bridge, hops);
    let own = case.on.network().is_some_and(|network| network.kind.has_own_bridge());
    // A bridge of a libvirt network belongs to that network; so may one that the domain names
    // itself.
    let Some(found) = host.device(bridge) else {
        let at = format!("bridge {bridge}");
        let hint = match (&case.on.network(), own) {
            (Some(network), true) => format!("`virsh net-start {}` makes it", word(&network.name)),
            _ => format!(
                "make it in the host's network configuration, or `ip link add {bridge} type \
                 bridge`",
                bridge = word(bridge)
            ),
        };
        let hop = hops.hop(&at);
        return hop.wrong(
            &rules::BRIDGE_MISSING,
            "the bridge is",
            ("there", "not there"),
            &at,
            hint,
        );
    };
    let ports: Vec<&Device> = host.ports(bridge).collect();
    let hop = hops.hop(&format!("bridge {bridge}"));
    let has_address = host.network.addresses.iter().any(|address| address.link == bridge);
    mtu::judge_bridge(hop, found, mtu_at_tap(case, host), has_address);
    if !found.link.up {
        let hint = format!("`ip link set {bridge} up`", bridge = word(bridge));
        hop.wrong(&rules::BRIDGE_DOWN, "it is", ("up", "down"), bridge, hint);
    } else {
        hop.says("up");
    }
    if !found.link.is_bridge() && found.link.kind.as_deref() != Some("openvswitch") {
        let kind = found.link.kind.clone().unwrap_or_else(|| "a NIC".into());
        let hint = "name a bridge in the domain's <source bridge=>";
        hop.wrong(&rules::BRIDGE_MISSING, "it is", ("a bridge", kind), bridge, hint);
    }
    if own {
        return routed::judge(case, host, bridge, hops);
    }
    if ports.is_empty() {
        let hint = format!(
            "`ip link set NIC master {bridge}`, and in the host's network configuration; a bridge \
             for host and guests alone needs none",
            bridge = word(bridge)
        );
        hop.wrong(&rules::BRIDGE_ALONE, "NICs of the host in it", ("one", "none"), bridge, hint);
    }
    let wanted = mtu_at_tap(case, host);
    wires::judge(host, bridge, &ports, wanted, hops);
    if ports.iter().any(|port| up(port)) {
        routed::bridged(case, host, found, hops);
    }
}

/// Returns the MTU that the guest uses according to its tap.
fn mtu_at_tap(case: &Case<'_>, host: &HostSide) -> Option<u32> {
    mtu::wanted(case, case.nic.device.as_deref().and_then(|name| host.device(name)))
}

fn tap(case: &Case<'_>, host: &HostSide, bridge: &str, hops: &mut Hops) {
    let Some(name) = case.nic.device.as_deref().filter(|_| case.running) else {
        return hops.unchecked("tap", "the guest is off, so it has none");
    };
    let hop = hops.hop(&format!("tap {name}"));
    let Some(tap) = host.device(name) else {
        let hint = format!("start the guest again: `gpuvm restart {}`", word(case.guest));
        return hop.wrong(&rules::TAP_MISSING, "the tap is", ("there", "not there"), name, hint);
    };
    mtu::judge(hop, tap, mtu::wanted(case, Some(tap)));
    if !tap.link.up {
        let hint = format!("`ip link set {name} up`", name = word(name));
        return hop.wrong(&rules::TAP_DOWN, "it is", ("up", "down"), name, hint);
    }
    hop.says("up");
    match tap.link.master.as_deref() {
        Some(master) if master == bridge => hop.says(format!("in {bridge}")),
        master => {
            let found = master.map_or("in none".to_owned(), |master| format!("in {master}"));
            let hint = format!(
                "`ip link set {name} master {bridge}`; a network that was restarted under a \
                 running guest leaves it out",
                name = word(name),
                bridge = word(bridge)
            );
            let expected = format!("in {bridge}");
            return hop.wrong(&rules::TAP_LOOSE, "it is", (expected, found), name, hint);
        }
    }
    // With its link down, a tap is also inactive as a port.
    if case.nic.link_down {
        return;
    }
    let waits = host.device(bridge).and_then(|bridge| bridge.forward_delay_s);
    let (found, hint) = match tap.port {
        None | Some(PortState::Forwarding) => return,
        Some(PortState::Waiting) => {
            let delay = waits.map_or(String::new(), |delay| format!(" for {} s in all", 2 * delay));
            let hint = format!(
                "wait: the bridge's spanning tree protocol listens and learns{delay}; `ip link set \
                 {bridge} type bridge forward_delay 0` or stp_state 0 ends that",
                bridge = word(bridge)
            );
            ("not yet".to_owned(), hint)
        }
        Some(PortState::Blocking) => {
            let hint = format!(
                "`bridge link show dev {name}`: it is disabled, or the spanning tree protocol cut \
                 a loop"
            );
            ("no".to_owned(), hint)
        }
    };
    hop.wrong(&rules::PORT_STATE, "the bridge passes packets to it:", ("yes", found), name, hint);
}
