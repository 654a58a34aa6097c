//! Snapshots of domains that are off: made, reverted to, deleted. Which one it is, is told by its
//! name and the time of its making; one that is to be deleted again by the mark of the step that
//! made it, too.

use super::domain::{is_active, row, started_again};
use super::step::MadeSnapshot;
use super::{Observer, Step, StepError};
use crate::hypervisor::snapshot::Snapshot;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use crate::identity::{DiskState, Mark, Proof};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::disk_change::path_of;
use std::path::Path;

/// What gpuvm says of a snapshot that it makes.
const MAKER: &str = "gpuvm";

/// The description of the snapshot that a step makes.
fn description(mark: &Mark) -> String {
    mark.token().map_or_else(|| MAKER.to_owned(), |token| format!("{MAKER} {token}"))
}

/// Whether gpuvm made a snapshot, or somebody else one of its name.
pub fn is_by_gpuvm(snapshot: &Snapshot) -> bool {
    let maker = snapshot.description.as_deref().and_then(|text| text.split(' ').next());
    maker == Some(MAKER)
}

/// The snapshot of a name; none: there is none.
fn named(
    hypervisor: &dyn Hypervisor,
    domain: &str,
    snapshot: &str,
) -> Result<Option<Snapshot>, HypervisorError> {
    let all = hypervisor.snapshots(domain)?;
    Ok(all.into_iter().find(|known| known.name == snapshot))
}

/// The error of a snapshot that is another one by now, or gone.
fn other(domain: &str, snapshot: &str, is_there: bool) -> StepError {
    let what = format!("snapshot `{snapshot}` of domain `{domain}`");
    let why = if is_there { "it was made anew since" } else { "it is gone" };
    StepError::NotOurs { what, why: why.to_owned() }
}

/// Refuses a name that a snapshot has, a snapshot or a definition that is another one since the
/// plan, and a domain that was started since: libvirt would end it to revert its disks.
pub(super) fn expects(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    if let Step::MakeSnapshot { name, .. }
    | Step::RevertSnapshot { of: MadeSnapshot { name, .. }, .. }
    | Step::DeleteSnapshot(MadeSnapshot { name, .. }) = step
        && is_active(row(hypervisor, name)?)
    {
        return Err(started_again(step).into());
    }
    match step {
        Step::MakeSnapshot { name, snapshot, .. } => {
            if named(hypervisor, name, snapshot)?.is_none() {
                return Ok(());
            }
            let message = "the domain has a snapshot of this name".to_owned();
            let (kind, doing) = (HypervisorErrorKind::Exists, step.to_string());
            Err(HypervisorError { kind, doing, message }.into())
        }
        Step::RevertSnapshot { of, xml } => {
            is_it(hypervisor, of)?;
            if hypervisor.xml(&of.name, XmlOf::Inactive)? != *xml {
                return Err(StepError::Edited { name: of.name.clone() });
            }
            Ok(())
        }
        Step::DeleteSnapshot(of) => is_it(hypervisor, of),
        _ => Ok(()),
    }
}

/// Refuses a snapshot that is another one, or gone.
fn is_it(hypervisor: &dyn Hypervisor, of: &MadeSnapshot) -> Result<(), StepError> {
    match named(hypervisor, &of.name, &of.snapshot)? {
        Some(known) if known.made_s == of.made_s => Ok(()),
        known => Err(other(&of.name, &of.snapshot, known.is_some())),
    }
}

/// The states of the disks of a definition on this machine.
pub(super) fn disk_states(xml: &str, hypervisor: &dyn Hypervisor) -> Vec<DiskState> {
    let Some(xml) = DomainXml::parse(xml).ok().filter(|_| hypervisor.has_guests_here()) else {
        return Vec::new();
    };
    xml.disks().filter_map(path_of).filter_map(|path| DiskState::at(Path::new(&path))).collect()
}

/// Does one of these steps; `later`: an interrupted run planned it, so it may be done, and its
/// snapshot gone.
pub(super) fn perform(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    (mark, later): (&Mark, bool),
) -> Result<(), StepError> {
    let gone = |of: &MadeSnapshot| match is_it(hypervisor, of) {
        Err(why @ StepError::NotOurs { .. }) if later => Ok(Some(why.to_string())),
        checked => checked.map(|()| None),
    };
    match step {
        Step::MakeSnapshot { name, snapshot, .. } => {
            hypervisor.make_snapshot(name, snapshot, &description(mark))?;
        }
        Step::RevertSnapshot { of, xml } => {
            if let Some(why) = gone(of)? {
                observer.note(&why);
                return Ok(());
            }
            let name = &of.name;
            hypervisor.revert_snapshot(name, &of.snapshot)?;
            // libvirt goes back to the definition of that time, with devices that others may have
            // by now.
            if hypervisor.xml(name, XmlOf::Inactive)? != *xml {
                hypervisor.define(xml)?;
            }
        }
        Step::DeleteSnapshot(of) => {
            if let Some(why) = gone(of)? {
                observer.note(&why);
                return Ok(());
            }
            hypervisor.delete_snapshot(&of.name, &of.snapshot)?;
        }
        _ => {}
    }
    Ok(())
}

/// Deletes the snapshot that a step has made.
pub(super) fn undo(
    hypervisor: &dyn Hypervisor,
    (name, uuid, snapshot): (&str, &str, &str),
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    if super::domain::of_uuid(hypervisor, name, uuid)?.is_none() {
        return Ok(());
    }
    let Some(known) = named(hypervisor, name, snapshot)? else { return Ok(()) };
    let is_marked = proof.mark.token().is_some();
    if known.description == Some(description(&proof.mark)) && is_marked {
        Ok(hypervisor.delete_snapshot(name, snapshot)?)
    } else {
        Err(other(name, snapshot, true))
    }
}
