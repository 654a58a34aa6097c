//! Networks of the hypervisor in memory.

use super::failed;
use super::fake::Fake;
use crate::hypervisor::network::{NetworkLease, NetworkState, Networks};
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use crate::network::Network;

impl Fake {
    pub(crate) fn put_network(&self, xml: &str, active: bool) {
        let name = Network::read(xml).unwrap().name;
        let live_xml = active.then(|| xml.to_owned());
        let (xml, autostart, persistent) = (xml.to_owned(), false, true);
        let state =
            NetworkState { name: name.clone(), active, autostart, persistent, xml, live_xml };
        self.networks.borrow_mut().insert(name, state);
    }

    /// The current state of a network; `None` if it does not exist.
    pub(crate) fn network_now(&self, name: &str) -> Option<NetworkState> {
        self.networks.borrow().get(name).cloned()
    }

    fn with_network(
        &self,
        doing: &str,
        name: &str,
        change: impl FnOnce(&mut NetworkState),
    ) -> Result<(), HypervisorError> {
        self.call(doing)?;
        let mut networks = self.networks.borrow_mut();
        let absent = || failed(doing, HypervisorErrorKind::NoNetwork);
        networks.get_mut(name).map(change).ok_or_else(absent)
    }
}

impl Networks for Fake {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        self.answers("list networks")?;
        Ok(self.networks.borrow().values().cloned().collect())
    }
    fn define_network(&self, xml: &str) -> Result<(), HypervisorError> {
        self.call("define a network")?;
        let name = Network::read(xml).unwrap().name;
        if let Some(network) = self.networks.borrow_mut().get_mut(&name) {
            xml.clone_into(&mut network.xml);
            return Ok(());
        }
        self.put_network(xml, false);
        Ok(())
    }
    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.with_network("undefine a network", name, |_| {})?;
        self.networks.borrow_mut().remove(name);
        Ok(())
    }
    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.with_network("start a network", name, |network| {
            (network.active, network.live_xml) = (true, Some(network.xml.clone()));
        })
    }
    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.with_network("stop a network", name, |network| {
            (network.active, network.live_xml) = (false, None);
        })
    }
    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        self.with_network("set a network's autostart", name, |network| network.autostart = on)
    }
    fn network_leases(&self, _: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        Ok(Vec::new())
    }
}
