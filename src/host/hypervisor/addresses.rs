//! Addresses of guests, and those that networks give their interfaces.

use super::error::HypervisorError;
use crate::discover::reach::Reach;
use gpuvm_core::network::GuestAddress;
use std::net::Ipv4Addr;

/// An address leased by a network's DHCP server to an interface, which may no longer exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The server.
    pub server: Ipv4Addr,
    /// The address.
    pub ip: Ipv4Addr,
    /// MAC address of the interface.
    pub mac: String,
}

/// Where the guests of a hypervisor can be reached.
pub trait Addresses {
    /// Returns the addresses of a running guest known now; none is not an error. For each interface
    /// those of the first source that has any (leases, the host's neighbours, the agent), asking
    /// sources until each of these interfaces has an address, or all sources if none is named.
    /// Addresses known to be older than the guest's start are left out. One that an agent reports
    /// counts as a neighbour's if the host's neighbour table agrees. An agent may take seconds to
    /// time out.
    fn addresses(&self, name: &str, macs: &[String]) -> Result<Vec<GuestAddress>, HypervisorError>;
    /// Where packets of this machine to an address of a running guest arrive, as far as the host
    /// can see without asking the guest.
    fn reach(&self, _name: &str, _address: &GuestAddress) -> Result<Reach, HypervisorError> {
        Ok(Reach::Elsewhere)
    }
    /// IPv4 addresses that a network has given to an interface; empty if there is no network of
    /// this name.
    fn leases(&self, network: &str, mac: &str) -> Result<Vec<Lease>, HypervisorError>;
}
