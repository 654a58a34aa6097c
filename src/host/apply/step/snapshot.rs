//! Snapshots of domains that are off: made, reverted to, deleted. A snapshot is identified by its
//! name and creation time; one that is to be deleted again also by the mark of the step that made
//! it.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::Observer;
use crate::apply::disk::DiskError;
use crate::apply::domain::{is_active, of_uuid, refused, row, started_again};
use crate::hypervisor::snapshot::Snapshot;
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use crate::identity::{DiskState, Identity, Mark, Proof};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::disk_change::path_of;
use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A snapshot that a domain has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadeSnapshot {
    /// The domain's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The name of the snapshot.
    pub snapshot: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
}

/// One change of the snapshots of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum SnapshotStep {
    /// Makes a snapshot of a domain that is off, in the images of its disks.
    #[serde(rename = "make-snapshot")]
    Make {
        /// The domain's name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// The name of the snapshot, which is free.
        snapshot: String,
    },
    /// Gives the disks of a domain that is off the content of a snapshot; not undone.
    #[serde(rename = "revert-snapshot")]
    Revert {
        /// The snapshot.
        #[serde(flatten)]
        of: MadeSnapshot,
        /// The domain's definition, which stays.
        xml: String,
    },
    /// Deletes a snapshot of a domain that is off; not undone.
    #[serde(rename = "delete-snapshot")]
    Delete(MadeSnapshot),
}

impl SnapshotStep {
    /// The domain, by name and UUID.
    fn of(&self) -> (&str, &str) {
        match self {
            SnapshotStep::Make { name, uuid, .. }
            | SnapshotStep::Revert { of: MadeSnapshot { name, uuid, .. }, .. }
            | SnapshotStep::Delete(MadeSnapshot { name, uuid, .. }) => (name, uuid),
        }
    }
}

impl Noun for SnapshotStep {
    /// Refuses a name that a snapshot has, a snapshot or a definition that is another one since the
    /// plan, and a domain that was started since: libvirt would end it to revert its disks.
    fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        if is_active(row(hypervisor, self.of().0)?) {
            return Err(started_again(self).into());
        }
        match self {
            SnapshotStep::Make { name, snapshot, .. } => {
                if named(hypervisor, name, snapshot)?.is_none() {
                    return Ok(());
                }
                let message = "the domain has a snapshot of this name".to_owned();
                Err(refused(HypervisorErrorKind::Exists, self, message).into())
            }
            SnapshotStep::Revert { of, xml } => {
                is_it(hypervisor, of)?;
                if hypervisor.xml(&of.name, XmlOf::Inactive)? != *xml {
                    return Err(StepError::Edited { name: of.name.clone() });
                }
                Ok(())
            }
            SnapshotStep::Delete(of) => is_it(hypervisor, of),
        }
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        match self {
            SnapshotStep::Make { name, snapshot, .. } => {
                Ok(hypervisor.make_snapshot(name, snapshot, &description(ours.mark))?)
            }
            SnapshotStep::Revert { of, xml } => {
                let disks = disk_states(xml, hypervisor);
                (ours.made)(Identity::Disks { disks }).map_err(DiskError::from)?;
                if let Some(why) = gone(of, ours.later, hypervisor)? {
                    observer.note(&why);
                    return Ok(());
                }
                let name = &of.name;
                hypervisor.revert_snapshot(name, &of.snapshot)?;
                // libvirt restores the definition of that time, with devices that others may have
                // now.
                if hypervisor.xml(name, XmlOf::Inactive)? != *xml {
                    hypervisor.define(xml)?;
                }
                Ok(())
            }
            SnapshotStep::Delete(of) => {
                if let Some(why) = gone(of, ours.later, hypervisor)? {
                    observer.note(&why);
                    return Ok(());
                }
                Ok(hypervisor.delete_snapshot(&of.name, &of.snapshot)?)
            }
        }
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        match self {
            SnapshotStep::Make { name, uuid, snapshot } => {
                delete_made(hypervisor, (name, uuid, snapshot), proof)
            }
            SnapshotStep::Revert { .. } | SnapshotStep::Delete(_) => Ok(()),
        }
    }

    fn domain(&self) -> Option<(&str, Option<String>)> {
        let (name, uuid) = self.of();
        Some((name, Some(uuid.to_owned())))
    }

    fn by_hand(&self) -> Option<String> {
        let SnapshotStep::Make { name, snapshot, .. } = self else { return None };
        Some(format!("gpuvm snapshot delete {} {}", word(name), word(snapshot)))
    }

    fn is_final(&self) -> bool {
        matches!(self, SnapshotStep::Revert { .. } | SnapshotStep::Delete(_))
    }
}

impl fmt::Display for SnapshotStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotStep::Make { name, snapshot, .. } => {
                write!(f, "make snapshot `{snapshot}` of domain `{name}`")
            }
            SnapshotStep::Revert { of: MadeSnapshot { name, snapshot, .. }, .. } => {
                write!(f, "revert the disks of domain `{name}` to snapshot `{snapshot}`")
            }
            SnapshotStep::Delete(MadeSnapshot { name, snapshot, .. }) => {
                write!(f, "delete snapshot `{snapshot}` of domain `{name}`")
            }
        }
    }
}

/// The description of gpuvm's own snapshots.
const MAKER: &str = "gpuvm";

/// The description of the snapshot that a step makes.
fn description(mark: &Mark) -> String {
    mark.token().map_or_else(|| MAKER.to_owned(), |token| format!("{MAKER} {token}"))
}

/// Whether gpuvm made a snapshot, not another tool one of its name.
pub fn is_by_gpuvm(snapshot: &Snapshot) -> bool {
    let maker = snapshot.description.as_deref().and_then(|text| text.split(' ').next());
    maker == Some(MAKER)
}

/// The snapshot of a name; `None` if there is none.
fn named(
    hypervisor: &dyn Hypervisor,
    domain: &str,
    snapshot: &str,
) -> Result<Option<Snapshot>, HypervisorError> {
    let all = hypervisor.snapshots(domain)?;
    Ok(all.into_iter().find(|known| known.name == snapshot))
}

/// The error of a snapshot that was replaced or is gone.
fn other(domain: &str, snapshot: &str, is_there: bool) -> StepError {
    let what = format!("snapshot `{snapshot}` of domain `{domain}`");
    let why = if is_there { "it was recreated since" } else { "it is gone" };
    StepError::NotOurs { what, why: why.to_owned() }
}

/// Refuses a snapshot that is another one, or gone.
fn is_it(hypervisor: &dyn Hypervisor, of: &MadeSnapshot) -> Result<(), StepError> {
    match named(hypervisor, &of.name, &of.snapshot)? {
        Some(known) if known.made_s == of.made_s => Ok(()),
        known => Err(other(&of.name, &of.snapshot, known.is_some())),
    }
}

/// The states of the disks of a definition on this machine.
fn disk_states(xml: &str, hypervisor: &dyn Hypervisor) -> Vec<DiskState> {
    let Some(xml) = DomainXml::parse(xml).ok().filter(|_| hypervisor.has_guests_here()) else {
        return Vec::new();
    };
    xml.disks().filter_map(path_of).filter_map(|path| DiskState::at(Path::new(&path))).collect()
}

/// Why a snapshot was replaced or is gone, if an interrupted run (`later`) planned the step: it may
/// be done, and its snapshot gone. `None` if it exists.
fn gone(
    of: &MadeSnapshot,
    later: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<String>, StepError> {
    match is_it(hypervisor, of) {
        Err(why @ StepError::NotOurs { .. }) if later => Ok(Some(why.to_string())),
        checked => checked.map(|()| None),
    }
}

/// Deletes the snapshot that a step has made.
fn delete_made(
    hypervisor: &dyn Hypervisor,
    (name, uuid, snapshot): (&str, &str, &str),
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    if of_uuid(hypervisor, name, uuid)?.is_none() {
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
