//! The netplan file of a bridge, and the units that it must result in.
//!
//! Netplan merges its files, and lists only grow: an address that another file gives a NIC cannot
//! be removed by a later one. So the NICs of a bridge are configured under a netplan ID of our own,
//! matched by device name, that sorts before every usual one: systemd-networkd uses the first
//! matching unit, and settings of the NIC in other files have no effect until ours is removed. That
//! ours is the first is checked on the units that netplan generates ([`judge`]).

use super::units::{Link, Unit, taker};
use super::{Addressing, HostBridge, Problem};
use std::fmt::Write as _;

/// Directory of netplan's persistent files.
pub const KEPT: &str = "etc/netplan";
/// Directory of netplan's files until the next boot; a file here hides a persistent one of the same
/// name.
pub const TRIED: &str = "run/netplan";
/// Content of a file that hides another one and configures nothing.
pub const NOTHING: &str = "# Hides the file of this name in /etc/netplan until it is removed, or \
                           until the next boot.\n\
                           network:\n  version: 2\n";
/// Start of the first line of our files.
const HEAD: &str = "# Made by `gpuvm network host-bridge create ";

/// Returns the name of the file that makes a bridge.
pub fn file(name: &str) -> String {
    format!("90-gpuvm-{name}.yaml")
}

/// Returns a script for the admin that writes the file of [`text`] and applies it.
pub fn script(bridge: &HostBridge) -> String {
    let text = text(bridge, bridge.nics.first().map_or("", String::as_str));
    let path = format!("/{KEPT}/{}", file(&bridge.name));
    format!("cat >{path} <<'END'\n{text}END\nchmod 600 {path}\nnetplan apply\n")
}

/// Returns the bridge that one of our files makes; `None` if the text is not ours.
pub fn made(text: &str) -> Option<&str> {
    text.strip_prefix(HEAD)?.split('`').next()
}

/// Returns the network devices that one of our files makes, each before those on top of it.
pub fn links(text: &str) -> Vec<String> {
    let words = text.lines().find_map(|line| line.strip_prefix(LINKS)).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// Returns the NICs that one of our files adds to its bridge.
pub fn nics(text: &str) -> Vec<String> {
    let words = text.lines().find_map(|line| line.strip_prefix(NICS)).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// Start of the line with the network devices that a file makes.
const LINKS: &str = "# Makes: ";
/// Start of the line with the NICs that a file is about.
const NICS: &str = "# NICs: ";

/// Returns netplan's ID of a NIC that is part of a bridge or bond.
fn own_id(nic: &str) -> String {
    format!("00-gpuvm-{nic}")
}

/// Returns the unit that netplan generates for an ID.
fn unit(id: &str) -> String {
    format!("10-netplan-{id}.network")
}

/// Returns the text of the file; `id`: netplan's ID of the NIC that keeps its configuration besides
/// its VLAN.
pub fn text(bridge: &HostBridge, id: &str) -> String {
    let name = &bridge.name;
    let mut text = format!(
        "{HEAD}{name}`; `gpuvm network host-bridge delete {name}` takes it \
         back.\n{LINKS}{}\n{NICS}{}\n\
         network:\n  version: 2\n  ethernets:\n",
        bridge.links().join(" "),
        bridge.nics.join(" "),
    );
    let mut line = |depth: usize, line: &str| {
        writeln!(text, "{:1$}{line}", "", depth * 2).expect("text");
    };
    let mtu = bridge.mtu.map(|mtu| format!("mtu: {mtu}"));
    if bridge.keeps_nic() {
        let end = if mtu.is_some() { "" } else { " {}" };
        line(2, &format!("\"{id}\":{end}"));
        mtu.iter().for_each(|mtu| line(3, mtu));
    }
    let ids: Vec<String> = if bridge.keeps_nic() {
        vec![id.to_owned()]
    } else {
        bridge.nics.iter().map(|nic| own_id(nic)).collect()
    };
    for (nic, id) in bridge.nics.iter().zip(&ids).filter(|_| !bridge.keeps_nic()) {
        line(2, &format!("\"{id}\":"));
        line(3, &format!("match: {{name: \"{nic}\"}}"));
        line(3, "dhcp4: false");
        line(3, "dhcp6: false");
        mtu.iter().for_each(|mtu| line(3, mtu));
    }
    if let Some(bond) = &bridge.bond {
        line(1, "bonds:");
        line(2, &format!("\"{}\":", bond.name));
        line(3, &format!("interfaces: [{}]", quoted(&ids)));
        mtu.iter().for_each(|mtu| line(3, mtu));
        line(3, "parameters:");
        line(4, &format!("mode: {}", bond.mode.word()));
        // Without it the kernel does not monitor links.
        line(4, "mii-monitor-interval: 100");
        if bond.mode.hashes() {
            line(4, "transmit-hash-policy: layer2+3");
        }
    }
    let under =
        bridge.bond.as_ref().map_or_else(|| ids[..1].to_vec(), |bond| vec![bond.name.clone()]);
    if let Some(vlan) = &bridge.vlan {
        line(1, "vlans:");
        line(2, &format!("\"{}\":", vlan.name));
        line(3, &format!("id: {}", vlan.id));
        line(3, &format!("link: {}", quoted(&under)));
        mtu.iter().for_each(|mtu| line(3, mtu));
    }
    let port = bridge.vlan.as_ref().map_or(under, |vlan| vec![vlan.name.clone()]);
    line(1, "bridges:");
    line(2, &format!("\"{name}\":"));
    line(3, &format!("interfaces: [{}]", quoted(&port)));
    if let Some(mac) = &bridge.mac {
        line(3, &format!("macaddress: \"{mac}\""));
    }
    mtu.iter().for_each(|mtu| line(3, mtu));
    // STP blocks a new port for half a minute, and a switch with BPDU guard disables the NIC's
    // port.
    line(3, "parameters: {stp: false, forward-delay: 0}");
    addresses(&bridge.addressing, &mut line);
    text
}

/// Writes the lines of the host's address.
fn addresses(addressing: &Addressing, line: &mut dyn FnMut(usize, &str)) {
    let Addressing::Static { address, gateway, dns } = addressing else {
        let dhcp = *addressing == Addressing::Dhcp;
        line(3, &format!("dhcp4: {dhcp}"));
        if dhcp {
            // With the default the DHCP server would see a different client than the NIC.
            line(3, "dhcp-identifier: mac");
        }
        return;
    };
    line(3, "dhcp4: false");
    line(3, &format!("addresses: [\"{address}\"]"));
    if let Some(gateway) = gateway {
        line(3, "routes:");
        line(4, "- to: default");
        line(4, &format!("  via: \"{gateway}\""));
    }
    if !dns.is_empty() {
        let all: Vec<String> = dns.iter().map(ToString::to_string).collect();
        line(3, &format!("nameservers: {{addresses: [{}]}}", quoted(&all)));
    }
}

/// Quotes words so that YAML reads each as text.
fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns netplan's ID of a NIC, from the units generated without our file, or the NIC's name if
/// no unit matches it. Errors: the ID matches another of the host's NICs, too, or the NIC is not
/// configured by netplan.
pub fn id_of(units: &[Unit], nic: &Link, links: &[Link]) -> Result<String, Problem> {
    let Some(unit) = taker(units, nic) else { return Ok(nic.name.clone()) };
    let id = unit.file.strip_prefix("10-netplan-").and_then(|id| id.strip_suffix(".network"));
    let Some(id) = id else {
        let ours = self::unit(&nic.name);
        return Err(Problem::OtherUnit { link: nic.name.clone(), file: unit.file.clone(), ours });
    };
    let same = |link: &&Link| taker(units, link).is_some_and(|other| other.file == unit.file);
    match links.iter().filter(|link| link.name != nic.name).find(same) {
        Some(other) => {
            let (nic, other) = (nic.name.clone(), other.name.clone());
            Err(Problem::Shared { nic, id: id.to_owned(), other })
        }
        None => Ok(id.to_owned()),
    }
}

/// Refuses names that are already configured by the units existing without our file.
pub fn free(bridge: &HostBridge, units: &[Unit]) -> Result<(), Problem> {
    for name in bridge.links() {
        let taken = units.iter().find(|unit| unit.makes() == Some(&name));
        if let Some(unit) = taken {
            return Err(Problem::Configured { name, file: unit.file.clone() });
        }
    }
    Ok(())
}

/// Judges the units that netplan generates from our file and all others of the host: each device
/// must get the unit made for it, with the intended content. `id` as in [`text`].
pub fn judge(bridge: &HostBridge, id: &str, units: &[Unit]) -> Result<(), Problem> {
    let link = |name: &str| Link { name: name.to_owned(), mac: None };
    let mut expected: Vec<(String, String, String, String)> = Vec::new();
    let mut expect = |link: &str, id: &str, key: &str, value: &str| {
        expected.push((link.to_owned(), unit(id), key.to_owned(), value.to_owned()));
    };
    let vlan = bridge.vlan.as_ref().map(|vlan| vlan.name.as_str());
    let above = |bond: bool| match (&bridge.bond, vlan) {
        (Some(bond_of), _) if !bond => ("Bond", bond_of.name.as_str()),
        (_, Some(vlan)) => ("VLAN", vlan),
        _ => ("Bridge", bridge.name.as_str()),
    };
    for nic in &bridge.nics {
        let own = own_id(nic);
        let (key, value) = above(false);
        expect(nic, if bridge.keeps_nic() { id } else { &own }, key, value);
    }
    if let Some(bond) = &bridge.bond {
        let (key, value) = above(true);
        expect(&bond.name, &bond.name, key, value);
    }
    if let Some(vlan) = vlan {
        expect(vlan, vlan, "Bridge", &bridge.name);
    }
    match &bridge.addressing {
        Addressing::Dhcp => expect(&bridge.name, &bridge.name, "DHCP", "ipv4"),
        Addressing::None => expect(&bridge.name, &bridge.name, "", ""),
        Addressing::Static { address, gateway, .. } => {
            expect(&bridge.name, &bridge.name, "Address", &address.to_string());
            if let Some(gateway) = gateway {
                expect(&bridge.name, &bridge.name, "Gateway", &gateway.to_string());
            }
        }
    }
    for (name, ours, key, value) in expected {
        let file = match taker(units, &link(&name)) {
            Some(unit) if unit.file == ours && (key.is_empty() || unit.says(&key, &value)) => {
                continue;
            }
            Some(unit) => unit.file.clone(),
            None => "no unit".into(),
        };
        return Err(if file == ours || file == "no unit" {
            Problem::NotSaid { file: ours, wanted: format!("{key}={value}") }
        } else {
            Problem::OtherUnit { link: name, file, ours }
        });
    }
    Ok(())
}
