//! Sets I/O threads and queues of a definition after its disks have changed as `tune` would, if
//! they were so before: then `tune --check` finds nothing to do afterwards either. Other choices
//! are kept.

use crate::domain::disk_change::path_of;
use crate::domain::guest::Abilities;
use crate::domain::{DomainXml, Element};
use crate::error::Result;
use crate::hypervisor::Hypervisor;
use crate::request::Allow;
use crate::storage::best_io;
use crate::world::World;
use gpuvm_core::tune::together::together;
use gpuvm_core::tune::{Given, Item, Items};

/// The settings of a domain that depend on its disks.
fn items() -> Items {
    Items {
        iothreads: Item::On,
        iothread_pins: Item::On,
        disk_cache: Item::On,
        disk_io: Item::On,
        disk_queues: Item::On,
        unnamed: Items::all().unnamed,
        ..Items::default()
    }
}

/// Returns the definition after a change of its disks, with the settings that depend on them.
pub(super) fn settled(
    before: &DomainXml,
    after: DomainXml,
    abilities: Abilities,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<DomainXml> {
    // The topology of another machine may be unknown; then the disk is set up like the others.
    let Ok(topology) = world.topology() else { return Ok(after) };
    let occupancy = world.occupancy(false)?;
    let is_here = hypervisor.machine().is_here();
    let best = |disk: Element<'_>| {
        let path = path_of(disk)?;
        let (io, _) = best_io(&path, abilities);
        Some((path, io))
    };
    let disks = [before, &after].map(|xml| xml.disks().filter_map(best).collect::<Vec<_>>());
    let disks = disks.concat().into_iter().filter(|_| is_here).collect();
    let (items, versions) = (items(), hypervisor.versions());
    let given = Given {
        topology: &topology,
        others: &occupancy,
        items: &items,
        allow: Allow::default(),
        disks: &disks,
        abilities,
        versions: &versions,
    };
    let tuned = |xml: &DomainXml| together(std::slice::from_ref(xml), &given).pop();
    let is_tuned = tuned(before).is_some_and(|tuned| tuned.is_ok_and(|t| t.changes.is_empty()));
    match tuned(&after).filter(|_| is_tuned) {
        Some(Ok(tuned)) => Ok(tuned.after),
        _ => Ok(after),
    }
}
