//! Why a bridge of the host cannot be as it is asked for, each reason with its numbers.

use super::HostIp;
use crate::network::{Subnet, reasons};
use std::fmt;
use std::net::Ipv4Addr;

/// One reason.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "host-bridge-")]
pub enum Problem {
    /// Its name cannot be had.
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
    #[error("{name} is no NIC but {what}")]
    #[strum(to_string = "not-nic")]
    NoNic {
        /// Its name.
        name: String,
        /// What it is.
        what: String,
    },
    /// A NIC that is part of another device.
    #[error("{name} is a port of {master} already")]
    Port {
        /// Its name.
        name: String,
        /// What it is a port of.
        master: String,
    },
    /// A NIC on which guests or others have devices that cannot be on a port of a bridge.
    #[error(
        "{upper}, a {kind}, stands on {name}, which cannot become a port of a bridge or bond with it"
    )]
    #[strum(to_string = "upper-device")]
    Under {
        /// The NIC.
        name: String,
        /// What stands on it.
        upper: String,
        /// Its kind.
        kind: String,
    },
    /// A NIC that is named twice.
    #[error("{name} is named twice")]
    #[strum(to_string = "nic-twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A bond of one.
    #[error("a bond needs two NICs, and {count} is named")]
    LoneBond {
        /// How many are named.
        count: usize,
    },
    /// Several NICs side by side in a bridge.
    #[error(
        "{count} NICs in one bridge without a bond send packets round in a circle where they are on one LAN"
    )]
    Unbonded {
        /// How many are named.
        count: usize,
    },
    /// A bridge by which the host would lose its way out.
    #[error("{nic} carries the host's default route, and {name} is to have no {what}")]
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
    /// An address that the host has elsewhere, or one in a subnet of it.
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
    /// A gateway that cannot be reached.
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
    /// A VLAN that cannot be.
    #[error("VLAN {id} cannot be had: it has to be 1 to 4094")]
    #[strum(to_string = "vlan-range")]
    VlanBounds {
        /// Its number.
        id: u32,
    },
    /// A VLAN that the NIC has already.
    #[error("{name}, VLAN {id} of {nic}, is there already")]
    #[strum(to_string = "vlan-exists")]
    VlanTaken {
        /// Its network device.
        name: String,
        /// Its number.
        id: u32,
        /// The NIC.
        nic: String,
    },
    /// An MTU that no link has.
    #[error("an MTU of {mtu} bytes cannot be had: it has to be 576 to 65535")]
    #[strum(to_string = "mtu-range")]
    MtuBounds {
        /// The MTU.
        mtu: u32,
    },
    /// An MTU that the NIC cannot have.
    #[error("an MTU of {mtu} bytes is above the {most} that {nic} can have")]
    MtuAbove {
        /// The MTU.
        mtu: u32,
        /// The NIC.
        nic: String,
        /// The most that it can have.
        most: u32,
    },
    /// A unit of systemd-networkd other than the one that is made has the say.
    #[error("{link} would be configured by {file}, which comes before {ours}")]
    OtherUnit {
        /// The network device.
        link: String,
        /// The file.
        file: String,
        /// The one that is made.
        ours: String,
    },
    /// Netplan makes something else of the file.
    #[error("{file}, as netplan makes it, does not say {wanted}")]
    #[strum(to_string = "netplan-output")]
    NotSaid {
        /// The unit.
        file: String,
        /// What it should say.
        wanted: String,
    },
    /// A device of the name is configured, although it is not there.
    #[error("{name} is configured in {file} already")]
    Configured {
        /// The device.
        name: String,
        /// The file.
        file: String,
    },
    /// A configuration of netplan's that is about several NICs.
    #[error(
        "netplan configures {nic} as `{id}`, and {other} with it, so the VLAN would be on either"
    )]
    #[strum(to_string = "netplan-shared")]
    Shared {
        /// The NIC.
        nic: String,
        /// Netplan's ID.
        id: String,
        /// The other one.
        other: String,
    },
}

impl Problem {
    /// What to do about it; empty: what it says is enough.
    pub fn hint(&self) -> &'static str {
        match self {
            Problem::NoLink { .. } | Problem::NoNic { .. } => {
                "`gpuvm nic list` shows network cards, /sys/class/net every network device"
            }
            Problem::Port { .. } => "`gpuvm network host-bridge show` says what bridges there are",
            Problem::Under { .. } => {
                "macvtap guests and a bridge do not go together on one NIC: take another one, or move these guests first"
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
                "`--print-for netplan` prints the file; `netplan generate` says what it makes of it"
            }
            Problem::Configured { .. } => "take another name, or the configuration away",
            Problem::Shared { .. } => "let netplan configure the NIC by its own name first",
            _ => "",
        }
    }
}

/// Says why a bridge cannot be as it is asked for.
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
