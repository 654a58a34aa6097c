//! Reasons why a requested host bridge is refused, each with its numbers.

use super::HostIp;
use crate::network::{Subnet, reasons};
use std::fmt;
use std::net::Ipv4Addr;

/// A reason against a host bridge.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "host-bridge-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum Problem {
    /// The bridge's name cannot be used.
    #[error("{name} cannot be its name: {why}")]
    Name { name: String, why: String },
    /// No such network device.
    #[error("this host has no network device {name}")]
    NoLink { name: String },
    /// Not a NIC.
    #[error("{name} is not a NIC but {what}")]
    #[strum(to_string = "not-nic")]
    NoNic { name: String, what: String },
    /// A NIC that is part of another device.
    #[error("{name} is already a port of {master}")]
    Port {
        name: String,
        /// The device that it is a port of.
        master: String,
    },
    /// A NIC with devices of guests or others on it that do not work on a port of a bridge.
    #[error(
        "{upper}, a {kind}, is on top of {name}, which therefore cannot become a port of a bridge \
         or bond"
    )]
    #[strum(to_string = "upper-device")]
    Under { name: String, upper: String, kind: String },
    /// A NIC that is named twice.
    #[error("{name} appears twice")]
    #[strum(to_string = "nic-twice")]
    Twice { name: String },
    /// A bond of a single NIC.
    #[error("a bond needs two NICs; {count} is given")]
    LoneBond { count: usize },
    /// Several NICs side by side in a bridge.
    #[error(
        "{count} NICs in one bridge without a bond form a network loop if they are on the same LAN"
    )]
    Unbonded { count: usize },
    /// A bridge that would cut the host off the network.
    #[error("{nic} carries the host's default route, but {name} would have no {what}")]
    CutOff {
        nic: String,
        name: String,
        /// The missing setting: "address", "gateway".
        what: &'static str,
    },
    /// An address that no host can have.
    #[error("{address} cannot be the host's address: {why}")]
    Address { address: HostIp, why: String },
    /// An address that the host has on another device, or in the subnet of one.
    #[error("{address} overlaps {other}, where the host has {ip} on {link}")]
    Overlap { address: HostIp, other: Subnet, ip: Ipv4Addr, link: String },
    /// A gateway that is unreachable.
    #[error("gateway {gateway} {why} {subnet}")]
    Gateway {
        gateway: Ipv4Addr,
        /// Why: "is outside", "is the broadcast address of".
        why: &'static str,
        subnet: Subnet,
    },
    /// A gateway that is the host itself.
    #[error("gateway {gateway} is the host's own address")]
    #[strum(to_string = "gateway-host")]
    GatewayOwn { gateway: Ipv4Addr },
    /// A VLAN ID out of range.
    #[error("VLAN {id} is out of range (1 to 4094)")]
    #[strum(to_string = "vlan-range")]
    VlanBounds { id: u32 },
    /// A VLAN that the NIC has already.
    #[error("{name}, VLAN {id} of {nic}, already exists")]
    #[strum(to_string = "vlan-exists")]
    VlanTaken { name: String, id: u32, nic: String },
    /// An MTU out of range.
    #[error("MTU {mtu} is out of range (576 to 65535)")]
    #[strum(to_string = "mtu-range")]
    MtuBounds { mtu: u32 },
    /// An MTU that the NIC does not support.
    #[error("MTU {mtu} is above {most}, the maximum of {nic}")]
    MtuAbove { mtu: u32, nic: String, most: u32 },
    /// A systemd-networkd unit other than ours takes effect.
    #[error("{link} would be configured by {file}, which comes before {ours}")]
    OtherUnit {
        link: String,
        file: String,
        /// Our unit.
        ours: String,
    },
    /// Netplan generates something else from the file.
    #[error("{file}, which netplan generates, does not contain {wanted}")]
    #[strum(to_string = "netplan-output")]
    NotSaid {
        /// The unit.
        file: String,
        wanted: String,
    },
    /// A device of the name is configured but does not exist.
    #[error("{name} is already configured in {file}")]
    Configured { name: String, file: String },
    /// A netplan configuration that matches several NICs.
    #[error(
        "netplan configures {nic} as `{id}`, which also matches {other}, so the VLAN could be on \
         either"
    )]
    #[strum(to_string = "netplan-shared")]
    Shared { nic: String, id: String, other: String },
}

impl Problem {
    /// Returns the remedy; empty: the message is enough.
    pub fn hint(&self) -> &'static str {
        match self {
            Problem::NoLink { .. } | Problem::NoNic { .. } => {
                "`gpuvm nic list` shows network cards, /sys/class/net every network device"
            }
            Problem::Port { .. } => "`gpuvm network host-bridge show` shows what bridges there are",
            Problem::Under { .. } => {
                "macvtap guests and a bridge do not go together on one NIC: take another one, or \
                 move these guests first"
            }
            Problem::LoneBond { .. } => {
                "name each with its own --nic, or leave --bond out for a bridge over one"
            }
            Problem::Unbonded { .. } => "--bond 802.3ad or --bond active-backup",
            Problem::CutOff { .. } => "--dhcp, or --address IP/BITS --gateway IP",
            Problem::MtuAbove { .. } => "each link on the way has to have it, the switch too",
            Problem::OtherUnit { .. } => {
                "give that file a name that comes later, or let it match other devices"
            }
            Problem::NotSaid { .. } => {
                "`--print-for netplan` prints the file; `netplan generate` shows what it makes of \
                 it"
            }
            Problem::Configured { .. } => "choose another name, or remove the configuration",
            Problem::Shared { .. } => "let netplan configure the NIC by its own name first",
            _ => "",
        }
    }
}

/// The refusal of a requested host bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// Every reason; at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bridge `{}` cannot be made", self.name)?;
        reasons(&self.problems, f)
    }
}

impl std::error::Error for Refused {}
