//! Networks as the rest of the program sees them: the sources of guests' NICs, defined and served
//! by the hypervisor.

use super::HypervisorError;
use gpuvm_core::bdf::Bdf;
use serde::Serialize;
use std::net::IpAddr;

/// A network of the hypervisor's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkState {
    /// Its name.
    pub name: String,
    /// Whether guests can be on it now.
    pub active: bool,
    /// Whether it comes up with the hypervisor.
    pub autostart: bool,
    /// Whether its definition remains when it stops.
    pub persistent: bool,
    /// Its definition: the one that it comes up by next.
    pub xml: String,
    /// The definition that it is up by; `None` if it is not up.
    pub live_xml: Option<String>,
}

impl NetworkState {
    /// Returns the most complete current definition: the live one of an active network has virtual
    /// functions and more.
    pub fn now(&self) -> &str {
        self.live_xml.as_deref().unwrap_or(&self.xml)
    }
}

/// An address that a network has leased, until the lease ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkLease {
    /// MAC address of the interface, lower case.
    pub mac: String,
    /// The address.
    pub ip: IpAddr,
    /// Host name reported by the guest; `None` without name.
    pub host_name: Option<String>,
    /// When it ends, in seconds since 1970.
    pub expires_s: u64,
}

/// A network that gives each of its interfaces a virtual function when their guest starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfPool {
    /// Its name.
    pub name: String,
    /// The functions that it gives.
    pub functions: Vec<Bdf>,
}

/// A hypervisor's networks. No method replaces a network of another UUID, and each fails if the
/// network does not exist.
pub trait Networks {
    /// Every network, by name; empty for a hypervisor without networks.
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError>;
    /// Defines a network after checking it against libvirt's schema, if libvirt can.
    fn define_network(&self, xml: &str) -> Result<(), HypervisorError>;
    /// Removes the definition of a network.
    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError>;
    /// Starts a network.
    fn start_network(&self, name: &str) -> Result<(), HypervisorError>;
    /// Stops a network; the guests on it lose their links until they are started again.
    fn stop_network(&self, name: &str) -> Result<(), HypervisorError>;
    /// Sets whether a network is autostarted.
    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError>;
    /// Returns the leases of a network; empty without DHCP.
    fn network_leases(&self, name: &str) -> Result<Vec<NetworkLease>, HypervisorError>;
    /// One network; none if there is none of this name.
    fn network(&self, name: &str) -> Result<Option<NetworkState>, HypervisorError> {
        Ok(self.all_networks()?.into_iter().find(|network| network.name == name))
    }
    /// The networks that run and hand out virtual functions; empty for a hypervisor without
    /// networks.
    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        Ok(Vec::new())
    }
}
