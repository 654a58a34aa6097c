//! Reports on networks: `network list`, `network show`.

use super::guests::{GuestNic, Guests};
use super::{find, read};
use crate::error::Result;
use crate::hypervisor::network::{NetworkLease, NetworkState};
use crate::network::{Network, Reach};
use crate::world::World;
use serde::Serialize;

/// A network of a list.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkRow {
    /// Its kind.
    #[serde(flatten)]
    pub network: Network,
    /// Whether it is up.
    pub active: bool,
    /// Whether it starts with libvirt.
    pub autostart: bool,
    /// Whether its definition remains when it stops.
    pub persistent: bool,
    /// The interfaces on it.
    pub guests: Vec<GuestNic>,
    /// Addresses that are leased now.
    pub leases: usize,
}

/// One network, with all that is known of it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkShown {
    /// Its kind.
    #[serde(flatten)]
    pub network: Network,
    /// Whether it is up.
    pub active: bool,
    /// Whether it starts with libvirt.
    pub autostart: bool,
    /// Whether its definition remains when it stops.
    pub persistent: bool,
    /// Addresses that are leased now.
    pub leases: Vec<NetworkLease>,
    /// The interfaces on it.
    pub guests: Vec<GuestNic>,
    /// Who reaches whom.
    pub reach: Option<Reach>,
    /// Its definition.
    pub xml: String,
}

/// Every network, by name.
pub fn all(world: &World) -> Result<Vec<NetworkRow>> {
    let hypervisor = &*world.hypervisor()?;
    let networks = hypervisor.networks();
    let states = networks.all_networks()?;
    let guests = Guests::read(hypervisor)?;
    let row = |state: NetworkState| {
        let network = read(&state)?;
        let leases = if state.active { networks.network_leases(&state.name)?.len() } else { 0 };
        let NetworkState { active, autostart, persistent, .. } = state;
        let guests = guests.on(&network);
        Ok(NetworkRow { network, active, autostart, persistent, guests, leases })
    };
    states.into_iter().map(row).collect()
}

/// One network.
pub fn one(world: &World, name: &str) -> Result<NetworkShown> {
    let hypervisor = &*world.hypervisor()?;
    let (state, network) = find(hypervisor, name)?;
    let networks = hypervisor.networks();
    let leases = if state.active { networks.network_leases(name)? } else { Vec::new() };
    let guests = Guests::read(hypervisor)?.on(&network);
    let NetworkState { active, autostart, persistent, xml, .. } = state;
    let reach = Reach::of(network.kind);
    Ok(NetworkShown { network, active, autostart, persistent, leases, guests, reach, xml })
}
