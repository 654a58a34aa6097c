//! NICs of the guests of a file that exist: changed before their sizes, at once where that goes.

use super::{DescribedGuest, WAIT_S, differs_now, while_differs};
use crate::compare::wished_nics;
use crate::error::Result;
use crate::restart;
use crate::session::Session;
use crate::set::{SetRequest, set};
use crate::stop::Down;
use crate::topology::Topology;
use crate::world::World;
use gpuvm_core::guest::{GuestDifference, Opt};

pub(super) const OPTION: Opt = Opt::Network;

/// The change of a guest's NICs; `None` if it has those that it is to have.
pub(super) fn changed(
    guest: &DescribedGuest,
    differences: &[GuestDifference],
    topology: &Topology,
) -> Option<SetRequest> {
    let differs = differences.iter().any(|one| one.option == OPTION);
    let networks = wished_nics(&guest.create, topology).filter(|_| differs)?;
    let (name, networks) = (guest.name.to_string(), Some(networks));
    Some(SetRequest { name, networks, ..SetRequest::default() })
}

/// Whether all that differs of a running guest is its NICs, and they can change at once.
pub(super) fn is_live(
    world: &World,
    guest: &DescribedGuest,
    differences: &[GuestDifference],
) -> Result<bool> {
    if differences.iter().any(|one| one.option != OPTION || !one.changeable) {
        return Ok(false);
    }
    let wanted = changed(guest, differences, &world.topology()?);
    Ok(wanted.is_some_and(|wanted| set(world, &SetRequest { live: true, ..wanted }).is_ok()))
}

/// Changes the NICs of a guest. One that runs gets them at once, or by a restart, unless it is
/// restarted later. Returns whether something was changed.
pub(super) fn change(
    session: &mut Session<'_>,
    guest: &DescribedGuest,
    wanted: &SetRequest,
    restarts_later: bool,
) -> Result<bool> {
    let rows = session.hypervisor()?.domains()?;
    let runs = rows.iter().any(|row| row.name == wanted.name && row.state.is_active());
    let live = SetRequest { live: true, ..wanted.clone() };
    if runs && set(session.world(), &live).is_ok() {
        let plan = while_differs(guest, |option| option == OPTION, |world| set(world, &live));
        return session.run(plan).map(|done| done.made);
    }
    let plan = while_differs(guest, |option| option == OPTION, |world| set(world, wanted));
    let is_set = session.run(plan)?.made;
    if !runs || restarts_later {
        return Ok(is_set);
    }
    // Also where an interrupted run has set them and not restarted it.
    let is_due = |world: &World| differs_now(world, guest, |option| option == OPTION);
    let down = Down { force: false, wait_s: WAIT_S };
    restart::run_if(session, &wanted.name, down, is_due).map(|done| is_set || done.made)
}
