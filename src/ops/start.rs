//! `start`: a guest gets what it needs of the host, and starts.

use crate::apply::Step;
use crate::change::{Change, DomainChange, Part};
use crate::claim::claim_of;
use crate::domain::DomainXml;
use crate::error::{Class, Result, classed};
use crate::guest::{find, restart_hint};
use crate::hypervisor::{DomainState, XmlOf};
use crate::pages;
use crate::world::World;

/// What is to be started.
#[derive(Debug, Clone)]
pub struct Start {
    /// The domain.
    pub name: String,
    /// Whether huge pages that are missing are reserved.
    pub reserve_pages: bool,
    /// Whether it is only looked at: then one that is paused or ends is not started either.
    pub dry_run: bool,
}

/// Plans a start; nothing where it runs. The lock is held until the guest has started: before that nobody can see that its
/// devices are taken.
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
        // A paused or ending domain is not started; libvirt says why.
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
