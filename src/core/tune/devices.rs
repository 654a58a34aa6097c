//! Tunes a guest's devices in order, the agent's channel and the places of passed-through
//! functions.

use super::words::has_agent;
use super::work::Work;
use super::{Item, ItemName, TuneError, disks, iothreads, nics};
use crate::bdf::Bdf;
use crate::domain::claims::Claims;
use crate::domain::setting::Setting;
use crate::domain::{DomainXml, function_edits, seat_edits, unseat_edits};
use crate::placement::Placement;

/// The property for the link speed of a root port.
const SPEED: &str = "x-speed";
/// The fastest link configurable for a root port, in units of 0.1 GT/s.
const FASTEST_DGTS: u32 = 640;

/// Applies these settings. The agent's channel comes first, since its controller gets a place, too.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    agent(work)?;
    // In the order in which libvirt writes a driver's attributes.
    disks::driver_words(work)?;
    iothreads::apply(work)?;
    disks::queues(work)?;
    // After everything that looks up a disk by its file.
    disks::convert(work)?;
    nics::apply(work)?;
    places(work)
}

/// Tunes the channel of the guest's agent.
fn agent(work: &mut Work<'_>) -> Result<(), TuneError> {
    let there = has_agent(&work.xml);
    match work.given.items.agent {
        Item::On if !there => work.set(ItemName::Agent, Setting::Agent { there: true }),
        Item::Off if there => work.set(ItemName::Agent, Setting::Agent { there: false }),
        _ => Ok(()),
    }
}

/// Adapts a plan to a guest without cells: an expander bus cannot name one.
fn without_cells(xml: &DomainXml, placement: &Placement) -> Placement {
    let mut placement = placement.clone();
    if Claims::read(xml).cells.is_empty() {
        placement.cells.clear();
        placement.guest_pcie.groups.iter_mut().for_each(|group| group.cell = None);
    }
    placement
}

/// Gives the guest the GPUs of its plan, with their NVSwitches; what it has stays in its place.
fn gpus(work: &mut Work<'_>) -> Result<(), TuneError> {
    let Some(placement) = work.placement else { return Ok(()) };
    let had: Vec<Bdf> = work.guest.claims.passed.iter().map(|passed| passed.bdf.value).collect();
    let is_kept = |bdf: &Bdf| placement.devices.contains(bdf);
    let gone: Vec<Bdf> = had.iter().copied().filter(|bdf| !is_kept(bdf)).collect();
    let comes = placement.devices.iter().any(|bdf| !had.contains(bdf));
    if comes && !work.xml.is_pcie() {
        let message = "passed-through devices need a machine with PCI Express, such as q35";
        return Err(TuneError::item(ItemName::Gpus, message, "--vcpus and --memory change it"));
    }
    let has = work.xml.sets_property(SPEED).then_some(FASTEST_DGTS);
    let fastest = work.given.abilities.port_speed_dgts.or(has);
    let placement = &without_cells(&work.xml, placement);
    let edits = function_edits(&work.xml, placement, work.given.topology, fastest, &gone)?;
    work.make(ItemName::Gpus, &edits)
}

/// Tunes the places of passed-through functions in the guest's PCIe tree.
fn places(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Pcie;
    if !work.given.items.gpus.is_kept() {
        return gpus(work);
    }
    if work.guest.hostdevs.is_empty() || !work.xml.is_pcie() {
        return Ok(());
    }
    let edits = match (work.given.items.pcie, work.placement) {
        (Item::Off, Some(placement)) => unseat_edits(&work.xml, placement)?,
        (Item::On, Some(placement)) => {
            let has = work.xml.sets_property(SPEED).then_some(FASTEST_DGTS);
            let fastest = work.given.abilities.port_speed_dgts.or(has);
            // A GPU changes its place in the guest only on request.
            let stays = work.given.items.unnamed.contains(&ItemName::Pcie);
            let placement = &without_cells(&work.xml, placement);
            seat_edits(&work.xml, placement, work.given.topology, fastest, stays)?
        }
        _ => return Ok(()),
    };
    work.make(item, &edits)
}
