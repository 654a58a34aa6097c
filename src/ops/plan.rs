//! `plan`: where a guest would go, and why. Changes nothing.

use crate::bdf::Bdf;
use crate::domain::disks::used_iothreads;
use crate::error::Result;
use crate::guest::{GuestRequest, Planned, resolve};
use crate::hypervisor::emulator::switch_has_speed;
use crate::placement::reason::{CoreReason, TreeReason};
use crate::placement::{Placement, Reason, Topic, window_reason};
use crate::world::World;

/// Plans a guest with one disk.
pub fn plan(world: &World, wanted: &GuestRequest) -> Result<Planned> {
    let mut planned = resolve(world, wanted, None)?;
    let several = planned.placement.iothread_pins.len() > 1 && !world.is_recorded();
    let mapping = several
        && world
            .hypervisor()
            .is_ok_and(|hypervisor| hypervisor.storage().abilities().queue_mapping);
    with_one_disk(&mut planned.placement, mapping);
    let window = window_reason(&planned.placement, &planned.topology);
    let more = [window, switch_reason(&planned, world)];
    planned.placement.reasons.extend(more.into_iter().flatten());
    Ok(planned)
}

/// Leaves a plan the I/O threads that a guest with one disk gets, as `create` makes one; `mapping`: whether one disk can be
/// served by several.
pub fn with_one_disk(placement: &mut Placement, mapping: bool) {
    let (planned, used) = (placement.iothread_pins.len(), used_iothreads(1, mapping, placement));
    placement.iothread_pins.truncate(used as usize);
    if placement.iothread_pins.len() < planned {
        let because = CoreReason::OneDisk { iothreads: used, most: planned }.into();
        placement.reasons.push(Reason { choice: Topic::Iothreads, because, compromise: false });
    }
}

/// Why the host's PCIe switches are not there in the guest, after asking QEMU; none where no device is below one.
fn switch_reason(planned: &Planned, world: &World) -> Option<Reason> {
    let Planned { topology, placement, .. } = planned;
    // Above an endpoint there is a root port, and more only with a switch.
    let below = |bdf: &&Bdf| topology.path_to_root(**bdf).len() > 2;
    if world.is_recorded() || placement.devices.iter().find(below).is_none() {
        return None;
    }
    let has_speed = switch_has_speed(&world.hypervisor().ok()?.emulator()?)?;
    let because = TreeReason::NoSwitches { has_speed }.into();
    Some(Reason { choice: Topic::Pcie, because, compromise: false })
}
