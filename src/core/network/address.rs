//! Addresses of guests and where each was found. Knows no libvirt.

use serde::Serialize;
use std::net::IpAddr;

/// Where an address of a guest was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AddressSource {
    /// DHCP lease of a libvirt network.
    Lease,
    /// The guest agent's answer: as trustworthy as the guest.
    Agent,
    /// The host's ARP table.
    Arp,
}

/// An address of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestAddress {
    /// MAC address of the guest's interface, lower case.
    pub mac: String,
    /// The address.
    pub ip: IpAddr,
    /// Where it was found.
    pub source: AddressSource,
}
