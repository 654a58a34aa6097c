//! `start`: prepares the host's devices and memory for a guest, and starts it.

use crate::apply::Step;
use crate::change::{Change, DomainChange, Part};
use crate::claim::claim_of;
use crate::domain::DomainXml;
use crate::error::{Class, Result, classed};
use crate::guest::{find, restart_hint};
use crate::hypervisor::{DomainState, XmlOf};
use crate::pages;
use crate::world::World;

/// A request to start a guest.
#[derive(Debug, Clone)]
pub struct Start {
    /// The domain.
    pub name: String,
    /// Whether missing huge pages are reserved.
    pub reserve_pages: bool,
    /// Whether the plan is only shown: then a guest that is paused or shutting down is not started
    /// either.
    pub dry_run: bool,
}

/// Plans a start; no steps if the guest runs. The lock is held until it has started: only then can
/// others see that its devices are in use.
pub fn start(world: &World, wanted: &Start) -> Result<Change> {
    let Start { name, reserve_pages, dry_run } = wanted;
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let start = Step::StartDomain { name: name.clone(), uuid: Some(summary.uuid) };
    let mut change = Change::new("start", name, Vec::new(), ());
    match summary.state {
        DomainState::ShutOff => {
            let before = hypervisor.xml(name, XmlOf::Inactive)?;
            let xml = DomainXml::parse(&before)?;
            let pages = pages::to_start(name, &xml, *reserve_pages, world)?;
            let claims = claim_of(&xml, world)?;
            change.journal = pages.iter().chain(&claims).any(Step::is_of_host);
            change.parts.clear();
            if world.has_guests_here()? && has_devices(&xml) {
                change.parts.push(Part::Links);
            }
            if !pages.is_empty() {
                change.parts.push(Part::Domain(DomainChange {
                    verb: "start",
                    name: name.clone(),
                    what: pages.iter().map(Step::to_string).collect(),
                    before,
                    after: xml,
                    first: pages,
                    last: Vec::new(),
                }));
            }
            change.parts.extend([Part::Steps(claims), Part::Steps(vec![start]), Part::Complete]);
        }
        DomainState::Crashed => {
            let message = format!("domain `{name}` has crashed and still holds its devices");
            return Err(classed(Class::WrongState, message, restart_hint(name)));
        }
        // A paused or ending domain is not started; libvirt reports why.
        DomainState::Paused | DomainState::ShuttingDown if !dry_run => {
            change.journal = false;
            change.parts = vec![Part::Steps(vec![start])];
        }
        _ => change.parts.clear(),
    }
    Ok(change)
}

/// Whether a guest has devices of the host.
fn has_devices(xml: &DomainXml) -> bool {
    xml.held(false).is_ok_and(|held| !held.devices.is_empty())
}
