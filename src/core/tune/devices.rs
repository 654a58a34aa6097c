//! The items of a guest's devices in their order, and those of the agent's channel and of the places of passed-through
//! functions.

use super::words::has_agent;
use super::work::Work;
use super::{Item, ItemName, TuneError, disks, iothreads, nics};
use crate::domain::claims::Claims;
use crate::domain::setting::Setting;
use crate::domain::{DomainXml, seat_edits, unseat_edits};
use crate::placement::Placement;

/// The property that tells a root port how fast it is.
const SPEED: &str = "x-speed";
/// The fastest link that a root port can be told to have, in units of 0.1 GT/s.
const FASTEST_DGTS: u32 = 640;

/// Makes them. The agent's channel comes first, since the channel's controller gets a place too.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    agent(work)?;
    // In the order in which libvirt writes a driver's attributes.
    disks::driver_words(work)?;
    iothreads::apply(work)?;
    disks::queues(work)?;
    // After all that looks at a disk by its file.
    disks::convert(work)?;
    nics::apply(work)?;
    places(work)
}

/// The channel of the guest's agent.
fn agent(work: &mut Work<'_>) -> Result<(), TuneError> {
    let there = has_agent(&work.xml);
    match work.given.items.agent {
        Item::On if !there => work.set(ItemName::Agent, Setting::Agent { there: true }),
        Item::Off if there => work.set(ItemName::Agent, Setting::Agent { there: false }),
        _ => Ok(()),
    }
}

/// A plan for a guest that stays without cells, where it has none: an expander bus cannot name one.
fn without_cells(xml: &DomainXml, placement: &Placement) -> Placement {
    let mut placement = placement.clone();
    if Claims::read(xml).cells.is_empty() {
        placement.cells.clear();
        placement.guest_pcie.groups.iter_mut().for_each(|group| group.cell = None);
    }
    placement
}

/// Places of passed-through functions in the guest's PCIe tree.
fn places(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Pcie;
    if work.guest.hostdevs.is_empty() || !work.xml.is_pcie() {
        return Ok(());
    }
    let edits = match (work.given.items.pcie, work.placement) {
        (Item::Off, Some(placement)) => unseat_edits(&work.xml, placement)?,
        (Item::On, Some(placement)) => {
            let has = work.xml.sets_property(SPEED).then_some(FASTEST_DGTS);
            let fastest = work.given.abilities.port_speed_dgts.or(has);
            // Nobody's GPU changes its place in the guest without being asked for.
            let stays = work.given.items.unnamed.contains(&ItemName::Pcie);
            let placement = &without_cells(&work.xml, placement);
            seat_edits(&work.xml, placement, work.given.topology, fastest, stays)?
        }
        _ => return Ok(()),
    };
    work.make(item, &edits)
}
