//! Bridges of the host over its own NICs: the bridge that a request makes given the host's links,
//! addresses and routes, or every reason against it ([`plan()`]); the netplan file for it
//! ([`netplan`]); other network managers ([`manager`]); and how systemd-networkd applies its units
//! ([`units`]). Values only: it runs nothing and reads no file.
//!
//! IPv4 only, as everywhere here: for IPv6 the bridge uses the router advertisements of the LAN
//! without configuration.

pub mod manager;
pub mod netplan;
mod plan;
mod problem;
pub mod units;

pub use plan::{Planned, plan};
pub use problem::{Problem, Refused};

use crate::network::Subnet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// An address with the prefix of its subnet, such as 192.168.1.5/24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HostIp {
    /// The address.
    pub ip: Ipv4Addr,
    /// Its subnet.
    pub subnet: Subnet,
}

impl fmt::Display for HostIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.subnet.prefix())
    }
}

impl From<HostIp> for String {
    fn from(address: HostIp) -> String {
        address.to_string()
    }
}

impl TryFrom<String> for HostIp {
    type Error = String;
    fn try_from(text: String) -> Result<HostIp, String> {
        text.parse()
    }
}

impl FromStr for HostIp {
    type Err = String;
    fn from_str(text: &str) -> Result<HostIp, String> {
        let read = || {
            let (ip, prefix) = text.split_once('/')?;
            let ip = ip.parse().ok()?;
            Some(HostIp { ip, subnet: Subnet::around(ip, prefix.parse().ok()?)? })
        };
        read().ok_or_else(|| {
            "it is not an IPv4 address with its prefix, such as 192.168.1.5/24".into()
        })
    }
}

/// How a bond uses its NICs: the kernel's modes that work under a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BondMode {
    /// All NICs, as negotiated with the switch (LACP).
    #[serde(rename = "802.3ad")]
    Lacp,
    /// One NIC; another one if it fails.
    #[serde(rename = "active-backup")]
    ActiveBackup,
    /// All NICs, chosen by address.
    #[serde(rename = "balance-xor")]
    Xor,
    /// All NICs in turn.
    #[serde(rename = "balance-rr")]
    RoundRobin,
}

impl BondMode {
    /// Returns the kernel's name.
    pub fn word(self) -> &'static str {
        match self {
            BondMode::Lacp => "802.3ad",
            BondMode::ActiveBackup => "active-backup",
            BondMode::Xor => "balance-xor",
            BondMode::RoundRobin => "balance-rr",
        }
    }

    /// Whether packets are distributed by a hash of addresses, so that the hash policy matters.
    pub fn hashes(self) -> bool {
        matches!(self, BondMode::Lacp | BondMode::Xor)
    }

    /// Returns the settings to make on the switch; none if there are none.
    pub fn of_switch(self) -> Option<&'static str> {
        match self {
            BondMode::Lacp => Some("a group of these ports with LACP (802.3ad)"),
            BondMode::Xor | BondMode::RoundRobin => Some("a static group of these ports"),
            BondMode::ActiveBackup => None,
        }
    }
}

impl FromStr for BondMode {
    type Err = String;
    fn from_str(text: &str) -> Result<BondMode, String> {
        let twice = "the switch, which knows nothing of the bond, sees a guest's MAC address at \
                     two of its ports and sends packets back in by the other";
        match text {
            "802.3ad" | "lacp" => Ok(BondMode::Lacp),
            "active-backup" => Ok(BondMode::ActiveBackup),
            "balance-xor" => Ok(BondMode::Xor),
            "balance-rr" => Ok(BondMode::RoundRobin),
            "balance-tlb" => Err(format!("it does not work under a bridge: {twice}")),
            "balance-alb" => Err(format!(
                "it does not work under a bridge: it answers for guests with the MAC address of a \
                 NIC, and {twice}"
            )),
            "broadcast" => {
                Err("it does not work under a bridge: guests get every packet twice".into())
            }
            _ => Err("it is not 802.3ad, active-backup, balance-xor or balance-rr".into()),
        }
    }
}

/// Where the host's own address on a bridge comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Addressing {
    /// A DHCP server.
    Dhcp,
    /// It is given.
    Static {
        /// The address.
        address: HostIp,
        /// The default gateway; `None` if no default route.
        gateway: Option<Ipv4Addr>,
        /// Name servers.
        dns: Vec<IpAddr>,
    },
    /// The host has none there.
    None,
}

/// A request for a host bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Its NICs, as named on the command line.
    pub nics: Vec<String>,
    /// How they are bonded.
    pub bond: Option<BondMode>,
    /// The host's own address.
    pub addressing: Addressing,
    /// Its VLAN ID.
    pub vlan: Option<u32>,
    /// MTU in bytes; `None` for that of the NICs.
    pub mtu: Option<u32>,
}

/// A bond.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bond {
    /// Its name.
    pub name: String,
    /// How it uses its NICs.
    pub mode: BondMode,
}

/// A VLAN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Vlan {
    /// Name of its network device.
    pub name: String,
    /// Its number.
    pub id: u32,
}

/// A bridge that can be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostBridge {
    /// Its name.
    pub name: String,
    /// The NICs.
    pub nics: Vec<String>,
    /// The bond over them.
    pub bond: Option<Bond>,
    /// The VLAN over the bond or NIC.
    pub vlan: Option<Vlan>,
    /// Its MAC address, that of the first NIC, by which a DHCP server and the LAN know the host;
    /// `None` for the kernel's choice, since the NIC keeps its own address, or has none.
    pub mac: Option<String>,
    /// MTU in bytes; `None` if that of the NICs is unchanged.
    pub mtu: Option<u32>,
    /// The host's own address.
    pub addressing: Addressing,
    /// Whether the host's default route uses these NICs now, so that the bridge must provide one.
    pub default_route: bool,
}

impl HostBridge {
    /// Whether the NIC keeps its addresses besides the VLAN on it.
    pub fn keeps_nic(&self) -> bool {
        self.vlan.is_some() && self.bond.is_none()
    }

    /// Names of the network devices that it makes, each before those on top of it.
    pub fn links(&self) -> Vec<String> {
        let bond = self.bond.iter().map(|bond| &bond.name);
        let vlan = self.vlan.iter().map(|vlan| &vlan.name);
        bond.chain(vlan).chain([&self.name]).cloned().collect()
    }

    /// Returns the device that is the port of the bridge, or the NIC.
    pub fn port(&self) -> &str {
        let nic = || self.nics.first().map_or("", String::as_str);
        let bond = self.bond.as_ref().map(|bond| bond.name.as_str());
        self.vlan.as_ref().map(|vlan| vlan.name.as_str()).or(bond).unwrap_or_else(nic)
    }

    /// Returns ports, each with its master.
    pub fn ports(&self) -> Vec<(String, String)> {
        let own = |nic: &String, bond: &Bond| (nic.clone(), bond.name.clone());
        let bond = self.bond.iter();
        let mut ports: Vec<(String, String)> =
            bond.flat_map(|bond| self.nics.iter().map(move |nic| own(nic, bond))).collect();
        ports.push((self.port().to_owned(), self.name.clone()));
        ports
    }
}

#[cfg(test)]
mod tests;
