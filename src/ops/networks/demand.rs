//! Networks of `nvidia-vm` that a request names and that do not exist: they are created with the
//! guest, and stay.

use super::create::{new_steps, refusal, usual_nic};
use super::{host, read};
use crate::apply::{NetworkStep, Step};
use crate::error::Result;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::network::{Kind, Network, Planned, Request, known, plan};
use crate::world::World;
use std::collections::BTreeSet;

/// The steps that create those of these networks that do not exist and whose names alone define
/// them: not a pool of virtual functions, which needs a card.
pub fn on_demand<'n>(
    names: impl Iterator<Item = &'n str>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Step>> {
    let kinds = names.filter_map(|name| Some((name, known(name)?)));
    let wanted: Vec<(&str, Kind)> = kinds.filter(|(_, kind)| *kind != Kind::Sriov).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let states = hypervisor.networks().all_networks()?;
    let mut networks = states.iter().map(read).collect::<Result<Vec<Network>>>()?;
    let mut steps = Vec::new();
    for (name, kind) in wanted {
        if networks.iter().any(|network| network.name == name) {
            continue;
        }
        world.note(&format!("network `{name}` is missing and is made with the guest"));
        let host = host(world)?;
        let nic = usual_nic(name, host.as_ref());
        let request = Request { nic, ..Request::bare(name, kind) };
        let planned = plan(&request, host.as_ref(), &networks, false);
        let Planned { network, notes } = planned.map_err(refusal)?;
        for note in notes {
            world.warning(&format!("network `{name}`: {note}"));
        }
        steps.extend(new_steps(name, &network.xml()).into_iter().map(Step::from));
        networks.push(network);
    }
    Ok(steps)
}

/// The steps that take up those of these networks that are down, which libvirt would not do at a
/// guest's start.
pub fn taken_up<'n>(
    names: impl Iterator<Item = &'n str>,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<Step>> {
    let names: BTreeSet<&str> = names.collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let states = hypervisor.networks().all_networks()?.into_iter();
    let down = states.filter(|state| !state.active && names.contains(state.name.as_str()));
    let start = |NetworkState { name, .. }| {
        world.note(&format!("network `{name}` is down and is started with the guest"));
        NetworkStep::Start { name }.into()
    };
    Ok(down.map(start).collect())
}
