//! What makes a bridge where netplan does not configure the host: files of systemd-networkd and ifupdown, commands of
//! NetworkManager. They are printed for an admin and not put in force.

use super::{Addressing, HostBridge};
use serde::Serialize;
use std::fmt;

/// Is what configures a host's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// netplan, with systemd-networkd behind it.
    Netplan,
    /// netplan, with NetworkManager behind it.
    NetplanNm,
    /// systemd-networkd alone.
    Networkd,
    /// NetworkManager.
    Nm,
    /// ifupdown.
    Ifupdown,
    /// Nothing that is known here.
    Unknown,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Manager::Netplan => "netplan",
            Manager::NetplanNm => "NetworkManager, by netplan",
            Manager::Networkd => "systemd-networkd",
            Manager::Nm => "NetworkManager",
            Manager::Ifupdown => "ifupdown",
            Manager::Unknown => "nothing that is known here",
        })
    }
}

/// What an admin does there, as a script with comments.
pub fn script(bridge: &HostBridge, manager: Manager) -> String {
    match manager {
        Manager::Netplan => {
            file(
                &format!("/etc/netplan/{}", super::netplan::file(&bridge.name)),
                &super::netplan::text(bridge, bridge.nics.first().map_or("", String::as_str)),
            ) + &format!(
                "chmod 600 /etc/netplan/{}\nnetplan apply\n",
                super::netplan::file(&bridge.name)
            )
        }
        Manager::Nm | Manager::NetplanNm => nm(bridge),
        Manager::Ifupdown => ifupdown(bridge),
        Manager::Networkd | Manager::Unknown => networkd(bridge),
    }
}

/// A file as a script writes it.
fn file(path: &str, text: &str) -> String {
    format!("cat >{path} <<'END'\n{text}END\n")
}

/// The files of systemd-networkd.
fn networkd(bridge: &HostBridge) -> String {
    let name = &bridge.name;
    let dir = "/etc/systemd/network";
    let mtu = bridge.mtu.map_or(String::new(), |mtu| format!("MTUBytes={mtu}\n"));
    let port = |name: &str, says: &str| {
        let link = if mtu.is_empty() { String::new() } else { format!("[Link]\n{mtu}") };
        format!("[Match]\nName={name}\n{link}[Network]\n{says}LinkLocalAddressing=no\n")
    };
    let mac = bridge.mac.as_ref().map_or(String::new(), |mac| format!("MACAddress={mac}\n"));
    let mut text = file(
        &format!("{dir}/00-gpuvm-{name}.netdev"),
        &format!(
            "[NetDev]\nName={name}\nKind=bridge\n{mac}{mtu}[Bridge]\nSTP=no\nForwardDelaySec=0\n"
        ),
    );
    let to_bridge = format!("Bridge={name}\n");
    let vlan = bridge.vlan.as_ref();
    let over = vlan.map_or(to_bridge.clone(), |vlan| format!("VLAN={}\n", vlan.name));
    if let Some(bond) = &bridge.bond {
        let hash = if bond.mode.hashes() { "TransmitHashPolicy=layer2+3\n" } else { "" };
        let mode = bond.mode.word();
        text += &file(
            &format!("{dir}/00-gpuvm-{}.netdev", bond.name),
            &format!(
                "[NetDev]\nName={}\nKind=bond\n{mtu}[Bond]\nMode={mode}\nMIIMonitorSec=100ms\n{hash}",
                bond.name
            ),
        );
        text += &file(&format!("{dir}/00-gpuvm-{}.network", bond.name), &port(&bond.name, &over));
    }
    if let Some(vlan) = vlan {
        text += &file(
            &format!("{dir}/00-gpuvm-{}.netdev", vlan.name),
            &format!("[NetDev]\nName={}\nKind=vlan\n{mtu}[VLAN]\nId={}\n", vlan.name, vlan.id),
        );
        text +=
            &file(&format!("{dir}/00-gpuvm-{}.network", vlan.name), &port(&vlan.name, &to_bridge));
    }
    for nic in &bridge.nics {
        if bridge.keeps_nic() {
            let into = format!("[Network]\n{over}");
            text += &format!(
                "# {nic} keeps its unit, `networkctl status {nic}` names it; a drop-in adds the VLAN:\n"
            );
            text += &format!("mkdir -p {dir}/UNIT-OF-{nic}.network.d\n");
            text += &file(&format!("{dir}/UNIT-OF-{nic}.network.d/gpuvm-{name}.conf"), &into);
            continue;
        }
        let bond = bridge.bond.as_ref();
        let into = bond.map_or(over.clone(), |bond| format!("Bond={}\n", bond.name));
        text += &file(&format!("{dir}/00-gpuvm-{nic}.network"), &port(nic, &into));
    }
    let own = match &bridge.addressing {
        Addressing::Dhcp => "DHCP=ipv4\n[DHCPv4]\nClientIdentifier=mac\n".to_owned(),
        Addressing::None => String::new(),
        Addressing::Static { address, gateway, dns } => {
            let mut lines = format!("Address={address}\n");
            lines.extend(gateway.map(|gateway| format!("Gateway={gateway}\n")));
            lines.extend(dns.iter().map(|dns| format!("DNS={dns}\n")));
            lines
        }
    };
    text += &file(
        &format!("{dir}/00-gpuvm-{name}.network"),
        &format!("[Match]\nName={name}\n[Network]\n{own}"),
    );
    text + "networkctl reload\n"
}

/// The commands of NetworkManager.
fn nm(bridge: &HostBridge) -> String {
    let name = &bridge.name;
    let mac = bridge.mac.as_ref().map_or(String::new(), |mac| format!(" bridge.mac-address {mac}"));
    let wired = bridge.mtu.map_or(String::new(), |mtu| format!(" ethernet.mtu {mtu}"));
    let own = match &bridge.addressing {
        Addressing::Dhcp => "ipv4.method auto ipv4.dhcp-client-id mac".to_owned(),
        Addressing::None => "ipv4.method disabled".to_owned(),
        Addressing::Static { address, gateway, dns } => {
            let mut words = format!("ipv4.method manual ipv4.addresses {address}");
            words.extend(gateway.map(|gateway| format!(" ipv4.gateway {gateway}")));
            let dns: Vec<String> = dns.iter().map(ToString::to_string).collect();
            if !dns.is_empty() {
                words += &format!(" ipv4.dns {}", dns.join(","));
            }
            words
        }
    };
    let mut text = format!(
        "nmcli connection add type bridge con-name {name} ifname {name} bridge.stp no bridge.forward-delay 0{mac} {own}{wired}\n"
    );
    // Whose connection is the port of the bridge.
    let of = |master: &str, kind: &str| format!("master {master} slave-type {kind}");
    let to_bridge = of(name, "bridge");
    if let Some(bond) = &bridge.bond {
        let hash = if bond.mode.hashes() { ",xmit_hash_policy=layer2+3" } else { "" };
        let into = match &bridge.vlan {
            Some(_) => "ipv4.method disabled ipv6.method disabled".to_owned(),
            None => to_bridge.clone(),
        };
        text += &format!(
            "nmcli connection add type bond con-name {0} ifname {0} bond.options mode={1},miimon=100{hash} {into}{wired}\n",
            bond.name,
            bond.mode.word()
        );
        for nic in &bridge.nics {
            text += &format!(
                "nmcli connection add type ethernet con-name {name}-{nic} ifname {nic} {}{wired}\n",
                of(&bond.name, "bond")
            );
        }
    } else if bridge.vlan.is_none() {
        for nic in &bridge.nics {
            text += &format!(
                "nmcli connection add type ethernet con-name {name}-{nic} ifname {nic} {to_bridge}{wired}\n"
            );
        }
    }
    if let Some(vlan) = &bridge.vlan {
        let dev = bridge.bond.as_ref().map(|bond| &bond.name).or(bridge.nics.first());
        text += &format!(
            "nmcli connection add type vlan con-name {0} ifname {0} dev {1} id {2} {to_bridge}{wired}\n",
            vlan.name,
            dev.map_or("", String::as_str),
            vlan.id
        );
    }
    if !bridge.keeps_nic() {
        text += "# In one go, by a shell that outlives the login: the NIC loses its address when its port comes up.\n";
        let ports: Vec<String> =
            bridge.nics.iter().map(|nic| format!("nmcli connection up {name}-{nic}")).collect();
        text += &format!("nohup sh -c '{}; nmcli connection up {name}' &\n", ports.join("; "));
    }
    text
}

/// The file of ifupdown.
fn ifupdown(bridge: &HostBridge) -> String {
    let name = &bridge.name;
    let mtu = bridge.mtu.map_or(String::new(), |mtu| format!("  mtu {mtu}\n"));
    let mut text = String::new();
    if !bridge.keeps_nic() {
        for nic in &bridge.nics {
            text += &format!("iface {nic} inet manual\n{mtu}");
        }
    }
    if let Some(bond) = &bridge.bond {
        let hash = if bond.mode.hashes() { "  bond-xmit-hash-policy layer2+3\n" } else { "" };
        text += &format!(
            "auto {0}\niface {0} inet manual\n  bond-slaves {1}\n  bond-mode {2}\n  bond-miimon 100\n{hash}{mtu}",
            bond.name,
            bridge.nics.join(" "),
            bond.mode.word()
        );
    }
    if let Some(vlan) = &bridge.vlan {
        let raw = bridge.bond.as_ref().map(|bond| &bond.name).or(bridge.nics.first());
        text += &format!(
            "auto {0}\niface {0} inet manual\n  vlan-raw-device {1}\n  vlan-id {2}\n{mtu}",
            vlan.name,
            raw.map_or("", String::as_str),
            vlan.id
        );
    }
    let method = match &bridge.addressing {
        Addressing::Dhcp => "dhcp",
        Addressing::None => "manual",
        Addressing::Static { .. } => "static",
    };
    text += &format!("auto {name}\niface {name} inet {method}\n  bridge_ports {}\n", bridge.port());
    text += "  bridge_stp off\n  bridge_fd 0\n";
    if let Some(mac) = &bridge.mac {
        text += &format!("  bridge_hw {mac}\n");
    }
    text += &mtu;
    if let Addressing::Static { address, gateway, dns } = &bridge.addressing {
        text += &format!("  address {address}\n");
        text.extend(gateway.map(|gateway| format!("  gateway {gateway}\n")));
        let dns: Vec<String> = dns.iter().map(ToString::to_string).collect();
        if !dns.is_empty() {
            text += &format!("  dns-nameservers {}\n", dns.join(" "));
        }
    }
    let mut packages = vec!["bridge-utils"];
    packages.extend(bridge.bond.as_ref().map(|_| "ifenslave"));
    packages.extend(bridge.vlan.as_ref().map(|_| "vlan"));
    let taken = match bridge.keeps_nic() {
        true => String::new(),
        false => format!(
            "# First take the lines `auto`, `allow-hotplug` and `iface` of {} out of /etc/network/interfaces and \
             interfaces.d.\n",
            bridge.nics.join(" and ")
        ),
    };
    format!(
        "apt-get install {}\n{taken}{}# By a shell that outlives the login:\nnohup sh -c '{}ifup {name}' &\n",
        packages.join(" "),
        file(&format!("/etc/network/interfaces.d/gpuvm-{name}"), &text),
        match bridge.keeps_nic() {
            true => String::new(),
            false =>
                bridge.nics.iter().map(|nic| format!("ip address flush dev {nic}; ")).collect(),
        }
    )
}
