//! The file of netplan's that makes a bridge, and what has to become of it.
//!
//! Netplan merges its files, and lists only grow: an address that another file gives a NIC cannot be taken away by a later
//! one. So the NICs of a bridge are configured under a name of our own, by the device's name, that comes before every
//! usual one: systemd-networkd takes the first unit that matches, and all that other files say of the NIC rests until
//! ours goes. That ours is the first is checked on the units that netplan makes ([`judge`]).

use super::units::{Link, Unit, taker};
use super::{Addressing, HostBridge, Problem};
use std::fmt::Write as _;

/// Where netplan's files are that hold for good.
pub const KEPT: &str = "etc/netplan";
/// Where those are that the next boot forgets; one of these hides one of the same name that is kept.
pub const TRIED: &str = "run/netplan";
/// What a file says that hides another one and configures nothing.
pub const NOTHING: &str = "# Hides the file of this name in /etc/netplan until it is removed, or until the next boot.\n\
                           network:\n  version: 2\n";
/// Begins the first line of our files.
const HEAD: &str = "# Made by `gpuvm network host-bridge create ";

/// The name of the file that makes a bridge.
pub fn file(name: &str) -> String {
    format!("90-gpuvm-{name}.yaml")
}

/// What an admin runs on a host that netplan is to configure: the file of [`text`], put in force.
pub fn script(bridge: &HostBridge) -> String {
    let text = text(bridge, bridge.nics.first().map_or("", String::as_str));
    let path = format!("/{KEPT}/{}", file(&bridge.name));
    format!("cat >{path} <<'END'\n{text}END\nchmod 600 {path}\nnetplan apply\n")
}

/// The bridge that a text makes, which is one of ours; none: it is not.
pub fn made(text: &str) -> Option<&str> {
    text.strip_prefix(HEAD)?.split('`').next()
}

/// The network devices that a text of ours makes, each before those that stand on it.
pub fn links(text: &str) -> Vec<String> {
    let words = text.lines().find_map(|line| line.strip_prefix(LINKS)).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// The NICs that a text of ours gives to its bridge.
pub fn nics(text: &str) -> Vec<String> {
    let words = text.lines().find_map(|line| line.strip_prefix(NICS)).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// Begins the line with the network devices that a file makes.
const LINKS: &str = "# Makes: ";
/// Begins the line with the NICs that a file is about.
const NICS: &str = "# NICs: ";

/// Netplan's ID of a NIC that is part of a bridge or bond.
fn own_id(nic: &str) -> String {
    format!("00-gpuvm-{nic}")
}

/// The unit that netplan makes of an ID.
fn unit(id: &str) -> String {
    format!("10-netplan-{id}.network")
}

/// The text of the file; `id`: netplan's ID of the NIC that stays what it is beside its VLAN.
pub fn text(bridge: &HostBridge, id: &str) -> String {
    let name = &bridge.name;
    let mut text = format!(
        "{HEAD}{name}`; `gpuvm network host-bridge delete {name}` takes it back.\n{LINKS}{}\n{NICS}{}\n\
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
    let ids: Vec<String> = match bridge.keeps_nic() {
        true => vec![id.to_owned()],
        false => bridge.nics.iter().map(|nic| own_id(nic)).collect(),
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
        // The kernel looks at no link without.
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
    // With it a port says nothing for half a minute, and a switch that guards its ports takes the NIC off the network.
    line(3, "parameters: {stp: false, forward-delay: 0}");
    addresses(&bridge.addressing, &mut line);
    text
}

/// The lines of the host's address.
fn addresses(addressing: &Addressing, line: &mut dyn FnMut(usize, &str)) {
    let Addressing::Static { address, gateway, dns } = addressing else {
        let dhcp = *addressing == Addressing::Dhcp;
        line(3, &format!("dhcp4: {dhcp}"));
        if dhcp {
            // By the default the server would see another client than the NIC was.
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

/// Words as YAML takes every one of them for text.
fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// Netplan's ID of a NIC, by the units that it makes without our file, or the NIC's name where none is about it. Errors: it
/// is about another of the host's NICs, too, or something else than netplan configures the NIC.
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

/// Refuses names that are configured already, by the units that there are without our file.
pub fn free(bridge: &HostBridge, units: &[Unit]) -> Result<(), Problem> {
    for name in bridge.links() {
        let taken = units.iter().find(|unit| unit.makes() == Some(&name));
        if let Some(unit) = taken {
            return Err(Problem::Configured { name, file: unit.file.clone() });
        }
    }
    Ok(())
}

/// Judges the units that netplan makes with our file beside all others of the host: each device has to have the unit that
/// was made for it, and that has to say what was meant. `id` as of [`text`].
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
