//! `export`: returns the definition that a guest would get. Changes nothing, and works without a
//! hypervisor.

use crate::domain::DomainXml;
use crate::error::Result;
use crate::guest::{Extra, GuestRequest, render, resolve};
use crate::networks;
use crate::request::DomainName;
use crate::storage::{self, Disks, StorageRequest, remains};
use crate::vfs;
use crate::world::World;

/// The name of a guest, and its definition.
pub fn export(
    world: &World,
    wanted: &GuestRequest,
    disks: &StorageRequest,
) -> Result<(DomainName, DomainXml)> {
    let planned = resolve(world, wanted, Some(disks))?;
    let disks = storage::plan(disks, None, &planned, world)?;
    for notice in &disks.notices {
        world.note(&notice.to_string());
    }
    // As `plan` shows them, and `create` warns of them or refuses.
    for reason in planned.placement.reasons.iter().filter(|reason| reason.compromise) {
        world.warning(&format!("{}: {}", reason.choice, reason.because));
    }
    let functions = remains(&planned.topology, &planned.placement.devices);
    for loss in disks.losses.iter().chain(&functions) {
        world.warning(&format!("the guest gets what is on its drives: {loss}"));
    }
    for (gpu, why) in planned.topology.displays() {
        if planned.placement.devices.contains(&gpu.bdf) {
            world.warning(&format!("{} {}", gpu.bdf, why.costs()));
        }
    }
    let Disks { disks, made, abilities, .. } = disks;
    let mut extra = Extra { disks, made, abilities, ..Extra::default() };
    // A recorded host's networks are not recorded.
    if !world.is_recorded()
        && !wanted.networks.is_empty()
        && let Some(hypervisor) = world.hypervisor_to_look()?
    {
        extra.vf_pools = vfs::pools(&wanted.networks, &planned.occupancy, false, &*hypervisor)?;
        networks::refuse_unfit(&wanted.networks, &*hypervisor)?;
    }
    let xml = render(wanted, &planned, &extra)?;
    Ok((planned.name, xml))
}
