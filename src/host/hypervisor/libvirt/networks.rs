//! Networks through libvirt.

use super::super::network::{NetworkLease, NetworkState, Networks};
use super::super::{HypervisorError, HypervisorErrorKind};
use super::{Libvirt, error, is_unsupported, lazy, leases};
use virt::error::{Error, ErrorNumber};
use virt::network::Network;
use virt::sys;

impl Libvirt {
    fn find_network(&self, doing: &str, name: &str) -> Result<Network, HypervisorError> {
        self.connection().lookup_network_by_name(name).map_err(|e| error(doing, &e))
    }

    /// Finds a network that is to be changed, and changes it.
    fn change_network(
        &self,
        doing: &str,
        name: &str,
        change: impl FnOnce(&Network) -> Result<(), Error>,
    ) -> Result<(), HypervisorError> {
        self.may_change()?;
        change(&self.find_network(doing, name)?).map_err(|e| error(doing, &e))
    }
}

impl Networks for Libvirt {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        let doing = format!("list the networks of {}", self.uri);
        let found = match self.connection().list_all_networks(0) {
            Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
            found => found.map_err(|e| error(&doing, &e))?,
        };
        let mut networks = Vec::with_capacity(found.len());
        for network in &found {
            match state(network) {
                // Deleted since it was listed.
                Err(e) if e.code().is(ErrorNumber::NoNetwork) => {}
                read => networks.push(read.map_err(|e| error(&doing, &e))?),
            }
        }
        networks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(networks)
    }

    fn define_network(&self, xml: &str) -> Result<(), HypervisorError> {
        self.may_change()?;
        let defined = match lazy::define_network(&self.connection(), xml) {
            Some(defined) => defined,
            None => self.connection().define_network_xml(xml).map(drop),
        };
        defined.map_err(|e| error("define the network", &e))
    }

    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.change_network(&format!("undefine network `{name}`"), name, Network::undefine)
    }

    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        let doing = format!("start network `{name}`");
        self.change_network(&doing, name, Network::create).map_err(|error| {
            // libvirt uses this error for an address, a bridge or a device in use, and for much
            // else.
            HypervisorError { kind: HypervisorErrorKind::Other, ..error }
        })
    }

    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.change_network(&format!("stop network `{name}`"), name, Network::destroy)
    }

    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let doing = format!("set whether network `{name}` starts by itself");
        self.change_network(&doing, name, |network| network.set_autostart(on))
    }

    fn network_leases(&self, name: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        let doing = format!("read the leases of network `{name}`");
        match leases::of_network(&self.find_network(&doing, name)?, None) {
            // Neither drivers without networks of their own nor networks without a server have
            // leases.
            Err(e) if is_unsupported(&e) || e.code().is(ErrorNumber::OperationInvalid) => {
                Ok(Vec::new())
            }
            given => given.map_err(|e| error(&doing, &e)),
        }
    }
}

fn state(network: &Network) -> Result<NetworkState, Error> {
    let persistent = network.is_persistent()?;
    let active = network.is_active()?;
    let live = || network.xml_desc(0);
    Ok(NetworkState {
        name: network.name()?,
        active,
        autostart: persistent && network.autostart()?,
        persistent,
        xml: match network.xml_desc(sys::VIR_NETWORK_XML_INACTIVE) {
            // The test driver has only one definition.
            Err(e) if is_unsupported(&e) => live()?,
            xml => xml?,
        },
        live_xml: active.then(live).transpose()?,
    })
}
