//! Networks through libvirt.

use super::super::network::{NetworkLease, NetworkState, Networks, VfPool};
use super::super::{HypervisorError, HypervisorErrorKind};
use super::call::Call::{Changes, Reads};
use super::call::{Failed, call, call_as, is_unsupported};
use super::{Libvirt, lazy, leases, pools};
use virt::error::{Error, ErrorNumber};
use virt::network::Network;
use virt::sys;

impl Libvirt {
    /// Finds a network that is to be changed, and changes it.
    fn change_network(
        &self,
        name: &str,
        change: impl FnOnce(&Network) -> Result<(), Error>,
    ) -> Result<(), Failed> {
        self.may_change()?;
        Ok(change(&self.connection().lookup_network_by_name(name)?)?)
    }
}

impl Networks for Libvirt {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        call(Reads, format_args!("list the networks of {}", self.uri), || {
            let found = match self.connection().list_all_networks(0) {
                Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
                found => found?,
            };
            let mut networks = Vec::with_capacity(found.len());
            for network in &found {
                match state(network) {
                    // Deleted since it was listed.
                    Err(e) if e.code().is(ErrorNumber::NoNetwork) => {}
                    read => networks.push(read?),
                }
            }
            networks.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(networks)
        })
    }

    fn define_network(&self, xml: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("define the network"), || {
            self.may_change()?;
            match lazy::define_network(&self.connection(), xml) {
                Some(defined) => defined?,
                None => drop(self.connection().define_network_xml(xml)?),
            }
            Ok(())
        })
    }

    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("undefine network `{name}`"), || {
            self.change_network(name, Network::undefine)
        })
    }

    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        let started = call(Changes, format_args!("start network `{name}`"), || {
            self.change_network(name, Network::create)
        });
        // libvirt uses this error for an address, a bridge or a device in use, and for much else.
        started.map_err(|error| HypervisorError { kind: HypervisorErrorKind::Other, ..error })
    }

    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("stop network `{name}`"), || {
            self.change_network(name, Network::destroy)
        })
    }

    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        let doing = format_args!("set whether network `{name}` starts by itself");
        call_as(Changes, format_args!("{doing}: {on}"), doing, || {
            self.change_network(name, |network| network.set_autostart(on))
        })
    }

    fn network_leases(&self, name: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        call(Reads, format_args!("read the leases of network `{name}`"), || {
            match leases::of_network(&self.connection().lookup_network_by_name(name)?, None) {
                // Neither drivers without networks of their own nor networks without a server have
                // leases.
                Err(e) if is_unsupported(&e) || e.code().is(ErrorNumber::OperationInvalid) => {
                    Ok(Vec::new())
                }
                given => Ok(given?),
            }
        })
    }

    fn vf_pools(&self) -> Result<Vec<VfPool>, HypervisorError> {
        call(Reads, format_args!("list the networks of {}", self.uri), || pools::vf_pools(self))
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
