//! `plan`: where a guest would be placed, and why. Changes nothing.

use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::domain::disks::{most_named_iothread, used_iothreads};
use crate::error::Result;
use crate::guest::{GuestRequest, NameRequest, refuse_name_of_virsh, resolve, template_file};
use crate::hypervisor::emulator::switch_has_speed;
use crate::placement::reason::{CoreReason, TreeReason};
use crate::placement::{Placement, Reason, Topic, window_reason};
use crate::planned::Planned;
use crate::storage::usual_disks;
use crate::world::World;

#[cfg(test)]
mod tests;

/// Warns if a guest of the requested name exists.
pub(crate) fn warn_of_name(wanted: &GuestRequest, planned: &Planned, world: &World) {
    let name = planned.name.as_str();
    let is_there = planned.occupancy.domains.iter().any(|held| held.domain == name);
    if is_there && matches!(wanted.name, NameRequest::Exact(_)) {
        world.warning(&format!("domain `{name}` exists, so a new guest needs another name"));
    }
}

/// Plans a guest with the disks that `create` gives it if none is named.
pub fn plan(world: &World, wanted: &GuestRequest) -> Result<Planned> {
    let mut planned = resolve(world, wanted, None)?;
    // Not made by `create` either.
    let name = planned.name.as_str();
    refuse_name_of_virsh(name, (&format!("plan domain `{name}`"), "name"))?;
    warn_of_name(wanted, &planned, world);
    let several = planned.placement.iothread_pins.len() > 1;
    let mapping = several && maps_queues(world, &planned);
    let disks = if several { usual_disks(&planned, world)? } else { 1 };
    let named = match &wanted.template {
        Some(path) => most_named_iothread(&template_file(path)?, |_| false),
        None => 0,
    };
    with_disks(&mut planned.placement, disks, named, mapping);
    let window = window_reason(&planned.placement, &planned.topology);
    let more = [window, switch_reason(&planned, world)];
    planned.placement.reasons.extend(more.into_iter().flatten());
    Ok(planned)
}

/// Whether several I/O threads can serve one disk of this host's guests.
pub(crate) fn maps_queues(world: &World, planned: &Planned) -> bool {
    if let Some(of) = planned.stack {
        return of.stack.abilities.queue_mapping;
    }
    { world.hypervisor() }.is_ok_and(|hypervisor| hypervisor.storage().abilities().queue_mapping)
}

/// Limits a plan to the I/O threads that a guest with this many disks gets, and those up to the one
/// that its template `named`; `mapping`: whether several can serve one disk.
pub fn with_disks(placement: &mut Placement, disks: usize, named: u32, mapping: bool) {
    let most = placement.iothread_pins.len();
    let iothreads = used_iothreads(disks, mapping, placement).max(named);
    placement.iothread_pins.resize(iothreads as usize, CpuSet::new());
    if placement.iothread_pins.len() < most {
        let because = CoreReason::FewDisks { disks, iothreads, most }.into();
        placement.reasons.push(Reason { choice: Topic::Iothreads, because, compromise: false });
    }
}

/// The reason the host's PCIe switches are not recreated in the guest, after asking QEMU; none if
/// no device is below one.
fn switch_reason(planned: &Planned, world: &World) -> Option<Reason> {
    let Planned { topology, placement, .. } = planned;
    // Above an endpoint there is a root port, and more ports only with a switch.
    let below = |bdf: &&Bdf| topology.path_to_root(**bdf).len() > 2;
    if world.is_recorded() || placement.devices.iter().find(below).is_none() {
        return None;
    }
    let has_speed = switch_has_speed(&world.hypervisor().ok()?.emulator()?)?;
    let because = TreeReason::NoSwitches { has_speed }.into();
    Some(Reason { choice: Topic::Pcie, because, compromise: false })
}
