//! `start`: prepares the host's devices and memory for a guest, and starts it.

use crate::apply::{DomainStep, Step};
use crate::change::{Change, DomainChange, Part};
use crate::claim::claim_of;
use crate::domain::DomainXml;
use crate::error::{Class, Result, classed};
use crate::guest::restart_hint;
use crate::hypervisor::{DomainState, XmlOf};
use crate::lookup::find;
use crate::p2p::claim::{Starting, to_start};
use crate::pages;
use crate::request::P2pWish;
use crate::shell::{domain, word};
use crate::startable::{refuse_disks, refuse_iommufd, warn_of_networks_down};
use crate::world::World;
use gpuvm_core::check;
use gpuvm_core::versions::Versions;

/// A request to start a guest.
#[derive(Debug, Clone)]
pub struct Start {
    /// The domain.
    pub name: String,
    /// Whether missing huge pages are reserved.
    pub reserve_pages: bool,
    /// Whether its GPUs and NICs reach each other through their switch this time; `None`: as
    /// recorded of it.
    pub p2p: Option<P2pWish>,
    /// Whether the plan is only shown: then a guest that is paused or shutting down is not started
    /// either.
    pub dry_run: bool,
}

/// Plans a start; no steps if the guest runs. The lock is held until it has started: only then can
/// others see that its devices are in use.
pub fn start(world: &World, wanted: &Start) -> Result<Change> {
    let Start { name, reserve_pages, p2p, dry_run } = wanted;
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    let start = Step::Domain(DomainStep::Start { name: name.clone(), uuid: Some(summary.uuid) });
    let mut change = Change::new("start", name, Vec::new(), ());
    match summary.state {
        DomainState::ShutOff => {
            let before = hypervisor.xml(name, XmlOf::Inactive)?;
            let xml = DomainXml::parse(&before)?;
            let pages = pages::to_start(name, &xml, *reserve_pages, world)?;
            let mut claims = claim_of(&xml, world)?;
            claims.extend(to_start(&xml, *p2p, Starting::Start, None, world)?);
            refuse_disks(&xml, world)?;
            refuse_iommufd(&xml, world)?;
            warn_of_networks_down(&xml, world)?;
            warn_of_shared(&xml, world)?;
            change.journal = pages.iter().chain(&claims).any(Step::is_of_host);
            change.parts.clear();
            if world.has_guests_here()? && has_devices(&xml) {
                change.parts.push(Part::Reports);
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
        state => {
            refuse_unready(name, state, *dry_run)?;
            change.parts.clear();
        }
    }
    Ok(change)
}

/// Refuses a guest that is active and does not run; `dry_run`: only one that would never run by
/// itself.
fn refuse_unready(name: &str, state: DomainState, dry_run: bool) -> Result<()> {
    let of = word(name);
    let (is, hint) = match state {
        DomainState::Crashed => ("has crashed and still holds its devices", restart_hint(name)),
        _ if dry_run => return Ok(()),
        // One that is just starting is paused, too.
        DomainState::Paused => {
            let hint = format!("`gpuvm resume {of}` lets it go on");
            ("is active already, and paused", hint)
        }
        DomainState::Suspended => {
            let hint = format!("`virsh dompmwakeup {}` wakes it", domain(name));
            ("is active already, and suspended", hint)
        }
        DomainState::ShuttingDown => {
            let hint = format!("`gpuvm restart {of}` waits for its end and starts it");
            ("is shutting down", hint)
        }
        DomainState::Running | DomainState::ShutOff => return Ok(()),
    };
    Err(classed(Class::WrongState, format!("domain `{name}` {is}"), hint))
}

/// Reports which of the guest's cores and memory running guests have: they may have got them while
/// it was off.
fn warn_of_shared(xml: &DomainXml, world: &World) -> Result<()> {
    if !world.is_here()? {
        return Ok(());
    }
    let name = xml.name();
    let mut others = world.occupancy(false)?;
    others.domains.retain(|held| held.active && held.domain != name);
    if others.domains.is_empty() {
        return Ok(());
    }
    let found = check::check(xml, &world.topology()?, &others, &Versions::default());
    for finding in found.iter().filter(|finding| check::is_on_shared(finding.rule)) {
        world.warning(&format!(
            "`{name}`: {}; `gpuvm tune {} --all-settings --pins auto` moves it to others while it is off",
            finding.says.message,
            word(&name)
        ));
    }
    Ok(())
}

/// Whether a guest has devices of the host.
fn has_devices(xml: &DomainXml) -> bool {
    xml.held(false).is_ok_and(|held| !held.devices.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::{Stage, UUID};
    use gpuvm_core::topology::file::from_json;

    /// A domain that is pinned to a pcpu.
    fn pinned(name: &str, pcpu: u32) -> String {
        format!(
            "<domain type='test'><name>{name}</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>\
             <cputune><vcpupin vcpu='0' cpuset='{pcpu}'/></cputune><os><type>hvm</type></os></domain>"
        )
    }

    #[test]
    fn new_users_of_its_cores_are_named_with_a_command() {
        let host = from_json(include_str!("../../topologies/dgx-2.json")).unwrap();
        let Stage { dir, fake, caller, world } = Stage::who_says(Answer::Nobody);
        let world = world.with_topology(host);
        let put = |name: &str, pcpu, runs| {
            fake.domains.borrow_mut().insert(name.to_owned(), (pinned(name, pcpu), runs));
        };
        put("a", 3, false);
        put("off", 3, false);
        put("other", 4, true);
        let wanted = Start { name: "a".into(), reserve_pages: false, p2p: None, dry_run: true };
        start(&world, &wanted).unwrap();
        assert_eq!(caller.heard("warning"), 0);
        put("b", 3, true);
        start(&world, &wanted).unwrap();
        assert_eq!(caller.heard("`a`: pcpus 3 carry vcpus of domain `b` (running)"), 1);
        assert_eq!(caller.heard("`gpuvm tune a --all-settings --pins auto`"), 1);
        // Who starts with the host yields nothing.
        fake.autostarts.borrow_mut().insert("off".into());
        let held = world.occupancy(false).unwrap().domains;
        let yields = held.iter().filter(|held| held.yields());
        assert_eq!(yields.map(|held| held.domain.as_str()).collect::<Vec<_>>(), ["a"]);
        drop(dir);
    }
}
