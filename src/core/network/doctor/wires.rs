//! Judges the devices below a bridge or a macvtap: VLANs, bonds and their NICs, down to the
//! hardware.

use super::report::Hops;
use super::{Device, HostSide, mtu, rules};
use crate::shell::word as pasted;

/// The most devices stacked on each other.
const DEEPEST: usize = 6;

pub(super) fn up(device: &Device) -> bool {
    device.link.up && device.carrier
}

/// Judges the ports of a bridge or bond, and the devices below them; a failed one is a warning
/// while another works.
pub(super) fn judge(
    host: &HostSide,
    master: &str,
    ports: &[&Device],
    wanted: Option<u32>,
    hops: &mut Hops,
) {
    let others = ports.iter().any(|port| up(port));
    for port in ports {
        down(host, port, (Some(master), others), wanted, DEEPEST, hops);
    }
}

/// Judges a device, then those below it. `of`: its master, and whether that has a working port.
pub(super) fn down(
    host: &HostSide,
    device: &Device,
    of: (Option<&str>, bool),
    wanted: Option<u32>,
    deep: usize,
    hops: &mut Hops,
) {
    let (name, (master, others)) = (&device.link.name, of);
    let kind = device.link.kind.as_deref();
    let word = match kind {
        Some("bond" | "team") => "bond",
        Some("vlan") => "VLAN",
        _ => "NIC",
    };
    let ports: Vec<&Device> =
        if device.is_bond() { host.ports(name).collect() } else { Vec::new() };
    let hop = hops.hop(&format!("{word} {name}"));
    mtu::judge(hop, device, wanted);
    let rule = |rule| if others && !up(device) { &rules::PORT_LOST } else { rule };
    if !device.link.up {
        let hint = format!("`ip link set {name} up`", name = pasted(name));
        hop.wrong(rule(&rules::NIC_DOWN), "it is", ("up", "down"), name, hint);
    } else if device.is_bond() && !ports.iter().any(|port| up(port)) {
        let hint = format!(
            "`cat /proc/net/bonding/{name}`: its NICs, and what the switch says",
            name = pasted(name)
        );
        let found = if ports.is_empty() { "it has none" } else { "none" };
        hop.wrong(rule(&rules::BOND_EMPTY), "NICs of it with a link:", ("one", found), name, hint);
    } else if !device.carrier {
        let hint = match (kind, device.is_bond()) {
            (_, true) => {
                format!(
                    "`cat /proc/net/bonding/{name}`: with 802.3ad the switch has to answer",
                    name = pasted(name)
                )
            }
            (Some("veth"), _) => format!("take the other end of {name} up"),
            (Some("vlan"), _) => "the device below it has none".to_owned(),
            _ => format!("cable and switch port; `ethtool {name}` shows what it sees"),
        };
        hop.wrong(rule(&rules::NIC_CARRIER), "a link:", ("yes", "no"), name, hint);
    } else {
        hop.says("up, with a link");
    }
    if let Some(master) = master {
        hop.says(format!("in {master}"));
    }
    if deep == 0 {
        return;
    }
    let others = ports.iter().any(|port| up(port));
    for port in ports {
        down(host, port, (Some(name), others), wanted, deep - 1, hops);
    }
    if let Some(below) = host.below(device) {
        down(host, below, (None, false), wanted, deep - 1, hops);
    }
}
