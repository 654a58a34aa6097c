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
pub enum Problem {
    /// The bridge's name cannot be used.
    #[error("{name} cannot be its name: {why}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        why: String,
    },
    /// No such network device.
    #[error("this host has no network device {name}")]
    NoLink {
        /// Its name.
        name: String,
    },
    /// Not a NIC.
    #[error("{name} is not a NIC but {what}")]
    #[strum(to_string = "not-nic")]
    NoNic {
        /// Its name.
        name: String,
        /// What it is.
        what: String,
    },
    /// A NIC that is part of another device.
    #[error("{name} is already a port of {master}")]
    Port {
        /// Its name.
        name: String,
        /// What it is a port of.
        master: String,
    },
    /// A NIC with devices of guests or others on it that do not work on a port of a bridge.
    #[error(
        "{upper}, a {kind}, is on top of {name}, which therefore cannot become a port of a bridge \
         or bond"
    )]
    #[strum(to_string = "upper-device")]
    Under {
        /// The NIC.
        name: String,
        /// The device on it.
        upper: String,
        /// Its kind.
        kind: String,
    },
    /// A NIC that is named twice.
    #[error("{name} appears twice")]
    #[strum(to_string = "nic-twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A bond of a single NIC.
    #[error("a bond needs two NICs; {count} is given")]
    LoneBond {
        /// How many are named.
        count: usize,
    },
    /// Several NICs side by side in a bridge.
    #[error(
        "{count} NICs in one bridge without a bond form a network loop if they are on the same LAN"
    )]
    Unbonded {
        /// How many are named.
        count: usize,
    },
    /// A bridge that would cut the host off the network.
    #[error("{nic} carries the host's default route, but {name} would have no {what}")]
    CutOff {
        /// The NIC.
        nic: String,
        /// The bridge.
        name: String,
        /// What is missing: "address", "gateway".
        what: &'static str,
    },
    /// An address that no host can have.
    #[error("{address} cannot be the host's address: {why}")]
    Address {
        /// The address.
        address: HostIp,
        /// Why.
        why: String,
    },
    /// An address that the host has on another device, or in the subnet of one.
    #[error("{address} overlaps {other}, where the host has {ip} on {link}")]
    Overlap {
        /// The address.
        address: HostIp,
        /// The other subnet.
        other: Subnet,
        /// The host's address there.
        ip: Ipv4Addr,
        /// Its network device.
        link: String,
    },
    /// A gateway that is unreachable.
    #[error("gateway {gateway} {why} {subnet}")]
    Gateway {
        /// The gateway.
        gateway: Ipv4Addr,
        /// Why: "is outside", "is the broadcast address of".
        why: &'static str,
        /// The subnet.
        subnet: Subnet,
    },
    /// A gateway that is the host itself.
    #[error("gateway {gateway} is the host's own address")]
    #[strum(to_string = "gateway-host")]
    GatewayOwn {
        /// The gateway.
        gateway: Ipv4Addr,
    },
    /// A VLAN ID out of range.
    #[error("VLAN {id} is out of range (1 to 4094)")]
    #[strum(to_string = "vlan-range")]
    VlanBounds {
        /// Its number.
        id: u32,
    },
    /// A VLAN that the NIC has already.
    #[error("{name}, VLAN {id} of {nic}, already exists")]
    #[strum(to_string = "vlan-exists")]
    VlanTaken {
        /// Its network device.
        name: String,
        /// Its number.
        id: u32,
        /// The NIC.
        nic: String,
    },
    /// An MTU out of range.
    #[error("MTU {mtu} is out of range (576 to 65535)")]
    #[strum(to_string = "mtu-range")]
    MtuBounds {
        /// The MTU.
        mtu: u32,
    },
    /// An MTU that the NIC does not support.
    #[error("MTU {mtu} is above {most}, the maximum of {nic}")]
    MtuAbove {
        /// The MTU.
        mtu: u32,
        /// The NIC.
        nic: String,
        /// Its largest MTU.
        most: u32,
    },
    /// A systemd-networkd unit other than ours takes effect.
    #[error("{link} would be configured by {file}, which comes before {ours}")]
    OtherUnit {
        /// The network device.
        link: String,
        /// The file.
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
        /// What it should say.
        wanted: String,
    },
    /// A device of the name is configured but does not exist.
    #[error("{name} is already configured in {file}")]
    Configured {
        /// The device.
        name: String,
        /// The file.
        file: String,
    },
    /// A netplan configuration that matches several NICs.
    #[error(
        "netplan configures {nic} as `{id}`, which also matches {other}, so the VLAN could be on \
         either"
    )]
    #[strum(to_string = "netplan-shared")]
    Shared {
        /// The NIC.
        nic: String,
        /// Netplan's ID.
        id: String,
        /// The other NIC.
        other: String,
    },
}

impl Problem {
    /// Returns what to do about it; empty: the message is enough.
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
