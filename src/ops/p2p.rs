//! Pairs of functions below a PCIe switch, of a host or of one guest.

pub mod claim;
pub mod restore;

use crate::apply::p2p::owners;
use crate::error::{Class, Result, classed};
use crate::lookup::hint_of_domains;
use crate::taken::{Taken, taken};
use crate::world::World;
use gpuvm_core::topology::Moment;
use gpuvm_core::topology::pairs::Pairs;

/// The pairs of a host; `guest`: only those of functions that this guest has.
pub fn pairs(world: &World, guest: Option<&str>, of: &Taken) -> Result<Pairs> {
    let topology = world.topology()?;
    let Some(guest) = guest else { return owned(Pairs::of(&topology, None), world) };
    let held = taken(world, of)?;
    let mut own = held.domains.iter().filter(|held| held.domain == guest).peekable();
    if own.peek().is_none() {
        let message = format!("there is no domain `{guest}`");
        return Err(classed(Class::NotFound, message, hint_of_domains(world, &of.domain_xml)));
    }
    let own: Vec<_> = own.collect();
    let devices: Vec<_> = own.iter().flat_map(|held| held.devices.iter().copied()).collect();
    let runs = own.iter().any(|held| held.active);
    let moment = if runs { Moment::Running } else { Moment::Start };
    owned(Pairs::at(&topology, Some(&devices), moment), world)
}

/// Adds the guests for which ports of this machine are set.
fn owned(mut pairs: Pairs, world: &World) -> Result<Pairs> {
    let Some(root) = world.root()? else { return Ok(pairs) };
    let mut owners = owners(&root);
    for port in &mut pairs.ports {
        port.guests = owners.remove(&port.bdf).unwrap_or_default();
    }
    Ok(pairs)
}
