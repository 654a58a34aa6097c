//! A guest that is made unless it is there.

use super::is_there;
use crate::change::Change;
use crate::create::{CreateRequest, Created, Waits, create, make};
use crate::domain::DomainXml;
use crate::error::Result;
use crate::hypervisor::{DomainSummary, XmlOf};
use crate::session::Session;
use crate::world::World;
use std::cell::RefCell;

/// Makes a guest as `create` does, unless it exists exactly so once the lock is held: another may
/// have made it while this run waited for that. Returns that guest then. Errors: it is another one.
pub fn create_if_absent(
    session: &mut Session<'_>,
    world: &World,
    wanted: &CreateRequest,
    waits: Waits,
) -> Result<Result<Created, DomainSummary>> {
    let there = RefCell::new(None);
    let plan = |world: &World| {
        let Some(existing) = is_there(world, wanted)? else {
            there.take();
            return create(world, wanted);
        };
        let xml = world.hypervisor()?.xml(&existing.name, XmlOf::Inactive)?;
        let none = Change::new("create", &existing.name, Vec::new(), DomainXml::parse(&xml)?);
        there.replace(Some(existing));
        Ok(none)
    };
    let made = make(session, world, wanted, waits, plan)?;
    Ok(there.into_inner().map_or(Ok(made), Err))
}
