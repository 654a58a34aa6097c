//! Reasons why a requested network is refused, each with its numbers.

use super::subnet::{Span, Subnet};
use std::fmt;
use std::net::Ipv4Addr;

/// A reason against a network.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "network-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum Problem {
    /// The name is taken.
    #[error("a network of this name already exists")]
    Exists,
    /// An option that applies to other kinds of networks only.
    #[error("{option} is of {of} networks, and this one is {kind}")]
    #[strum(to_string = "option")]
    Unfit { option: &'static str, of: &'static str, kind: String },
    /// An option is missing.
    #[error("a {kind} network needs {option}")]
    #[strum(to_string = "option-missing")]
    Missing { option: &'static str, kind: String },
    /// No such network device.
    #[error("this host has no network device {name}")]
    NoLink { name: String },
    /// The host's loopback device.
    #[error("{name} is the loopback device")]
    Loopback { name: String },
    /// A device that is part of another.
    #[error("{name} is a port of {master}, which receives its packets")]
    Port {
        name: String,
        /// The device that it is a port of.
        master: String,
    },
    /// A device that the host cannot do without.
    #[error("{name} carries the host's default route; in mode passthrough one guest owns it")]
    DefaultRoute { name: String },
    /// A device that a guest of another network may have for itself.
    #[error("network `{network}` passes {name} to a guest as a whole")]
    #[strum(to_string = "device-passed")]
    GivenAway { name: String, network: String },
    /// A device that other networks use already.
    #[error("{name} is used by network `{network}`; in mode passthrough one guest owns it")]
    Shared { name: String, network: String },
    /// Not a bridge.
    #[error("{name} is not a bridge but {what}")]
    NoBridge { name: String, what: String },
    /// A bridge's name that is not free.
    #[error("{name} cannot be the name of its bridge: {why}")]
    BridgeName {
        name: String,
        /// The device that has it, or its fault.
        why: String,
    },
    /// A bridge that libvirt makes for another network.
    #[error("bridge {name} belongs to network `{network}`: use that network")]
    BridgeOfNetwork { name: String, network: String },
    /// A range that is too small.
    #[error("range {range} is not usable: its prefix must be 8 to 30 bits")]
    RangeSize { range: Subnet },
    /// The host's address is not one that a host can have.
    #[error("{ip} cannot be the host's address: it is the {end} of {range}")]
    #[strum(to_string = "host-address")]
    Own { ip: Ipv4Addr, end: &'static str, range: Subnet },
    /// A range of another network.
    #[error("range {range} overlaps {other} of network `{network}`")]
    RangeOfNetwork { range: Subnet, other: Subnet, network: String },
    /// A range that the host has an address in.
    #[error("range {range} overlaps {other}, where the host has {ip} on {link}")]
    RangeOfHost { range: Subnet, other: Subnet, ip: Ipv4Addr, link: String },
    /// A range to which the host has a route.
    #[error("range {range} overlaps the host's route to {route} {by}")]
    RangeOfRoute {
        range: Subnet,
        route: Subnet,
        /// By what: "by eth0", "that leads nowhere".
        by: String,
    },
    /// No range is free.
    #[error("none of 192.168.122.0/24 to 192.168.254.0/24 is free")]
    NoRange,
    /// The DHCP range is outside the network's range.
    #[error("DHCP cannot hand out {span}: hosts of {range} have {hosts}")]
    DhcpOutside { span: Span, range: Subnet, hosts: Span },
    /// DHCP would hand out the host's address.
    #[error("DHCP cannot hand out {span}: {ip} is the host's own address")]
    #[strum(to_string = "dhcp-host")]
    DhcpOwn { span: Span, ip: Ipv4Addr },
    /// Nothing is left for DHCP.
    #[error("static addresses leave no address of {hosts} for DHCP")]
    DhcpFull { hosts: Span },
    /// A static address is outside the range.
    #[error("static address {ip} is outside {range}, whose hosts have {hosts}")]
    StaticOutside { ip: Ipv4Addr, range: Subnet, hosts: Span },
    /// A static address is the host's.
    #[error("static address {ip} is the host's own")]
    #[strum(to_string = "static-host")]
    StaticOwn { ip: Ipv4Addr },
    /// A static address in the dynamic DHCP range.
    #[error("static address {ip} is inside the DHCP range {span}")]
    StaticDynamic { ip: Ipv4Addr, span: Span },
    /// One address assigned to two MAC addresses.
    #[error("static address {ip} is given to {first} and to {second}")]
    StaticTwice { ip: Ipv4Addr, first: String, second: String },
    /// One MAC address with two addresses.
    #[error("{mac} is given both {first} and {second}")]
    MacTwice { mac: String, first: Ipv4Addr, second: Ipv4Addr },
    /// An MTU out of range.
    #[error("MTU {mtu} is out of range (576 to 65535)")]
    #[strum(to_string = "mtu-range")]
    MtuBounds { mtu: u32 },
    /// An MTU above the device's.
    #[error("MTU {mtu} is above {link_mtu}, that of {link}")]
    MtuAbove { mtu: u32, link: String, link_mtu: u32 },
}

impl Problem {
    /// Returns the remedy; empty: the message is enough.
    pub fn hint(&self) -> &'static str {
        match self {
            Problem::Exists => {
                "`gpuvm network show NAME` shows it; --replace replaces it with what is requested \
                 here"
            }
            Problem::NoLink { .. } | Problem::NoBridge { .. } => {
                "`gpuvm nic list` shows network cards, /sys/class/net every network device"
            }
            Problem::Port { .. } => "name the bridge or bond itself",
            Problem::DefaultRoute { .. } => {
                "take another NIC, a virtual function for one (--kind sriov), or --mode bridge"
            }
            Problem::RangeOfNetwork { .. }
            | Problem::RangeOfHost { .. }
            | Problem::RangeOfRoute { .. } => {
                "without --range one that is free is taken; `gpuvm network list` shows the others"
            }
            Problem::NoRange => "--range names one of your own, such as 10.77.0.0/24",
            Problem::StaticDynamic { .. } => {
                "without --dhcp what is handed out is the longest run without static addresses"
            }
            Problem::MtuAbove { .. } => {
                "each link on the way has to have it: raise that of the network device first"
            }
            _ => "",
        }
    }
}

/// The refusal of a requested network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// Every reason; at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network `{}` cannot be made", self.name)?;
        reasons(&self.problems, f)
    }
}

impl std::error::Error for Refused {}

/// Writes the reasons of a refusal: a single one on the same line, several on lines of their own.
pub fn reasons(problems: &[impl fmt::Display], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match problems {
        [one] => write!(f, ": {one}"),
        all => all.iter().try_for_each(|problem| write!(f, "\n  {problem}")),
    }
}
