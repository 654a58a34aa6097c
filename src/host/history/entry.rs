//! One change of a domain or of the host, with the steps that undo it.

use crate::apply::{
    CheckStep, Comparison, DeviceStep, DomainStep, FileStep, GrowStep, HostStep, SnapshotStep,
    Step, VolumeStep,
};
use gpuvm_core::domain::guest::VolumeRef;
use gpuvm_core::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A change of a domain, or of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The version of the files.
    pub(super) format: u32,
    /// Number of the change of this domain, from 1.
    pub number: u32,
    /// The verb: `tune`.
    pub verb: String,
    /// When, in seconds since 1970, UTC.
    pub at_s: u64,
    /// Boot ID of the machine when it was made: huge pages do not outlive a boot.
    pub boot: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// The domain's name then; empty: a change of the host.
    pub domain: String,
    /// The changed settings, a line each.
    pub what: Vec<String>,
    /// The definition before.
    pub before: String,
    /// The definition afterwards, as read back from the hypervisor; `None` if not read.
    pub after: Option<String>,
    /// Changes besides the definition, in order.
    pub steps: Vec<Step>,
    /// When it was undone, in seconds since 1970, UTC: then definitions and steps are empty. `None`
    /// if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_at_s: Option<u64>,
}

/// A new image that a change made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewImage {
    /// Its path; of a volume its name.
    pub path: PathBuf,
    /// Its volume; `None` for a file.
    pub volume: Option<VolumeRef>,
}

/// A copy of a disk that a change made, kept since then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCopy {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Whether it can be compared with the disk.
    pub comparable: bool,
}

/// A change of a domain that is not one of its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond<'a> {
    /// It got another name; the one that it had.
    Renamed(&'a str),
    /// This snapshot of it was made.
    SnapshotMade(&'a str),
    /// Its disks got the content of this snapshot.
    Reverted(&'a str),
    /// This snapshot of it was deleted.
    SnapshotDeleted(&'a str),
}

impl Entry {
    /// The object that it changed instead of the definition; `None` for the definition, as most
    /// changes do.
    pub fn beyond(&self) -> Option<Beyond<'_>> {
        self.steps.iter().find_map(|step| match step {
            Step::Domain(DomainStep::Rename { name, .. }) => Some(Beyond::Renamed(name)),
            Step::Snapshot(SnapshotStep::Make { snapshot, .. }) => {
                Some(Beyond::SnapshotMade(snapshot))
            }
            Step::Snapshot(SnapshotStep::Revert { of, .. }) => Some(Beyond::Reverted(&of.snapshot)),
            Step::Snapshot(SnapshotStep::Delete(of)) => Some(Beyond::SnapshotDeleted(&of.snapshot)),
            _ => None,
        })
    }

    /// Returns the steps that undo it if the domain is defined as `now`; `runs`: the running domain
    /// is changed back, too; `boot`: the machine's current boot; `copies`: copies of disks are
    /// removed, after checking that nothing was written to them since; otherwise they stay.
    pub fn undo(&self, now: &str, runs: bool, boot: &str, copies: bool) -> Vec<Step> {
        let back = self.steps.iter().rev().filter(|step| runs || !step.is_of_running());
        let stands = |step: &&Step| match step {
            Step::Check(CheckStep::Compare(_)) => copies,
            Step::Host(HostStep::SetPages(_) | HostStep::Set(_))
            | Step::Device(DeviceStep::Bind { .. }) => self.boot == boot,
            _ => true,
        };
        let mut steps: Vec<Step> = back.filter(stands).filter_map(Step::reversed).collect();
        if now != self.before {
            let (name, xml) = (self.domain.clone(), self.before.clone());
            steps.push(DomainStep::Redefine { name, xml, before: now.to_owned() }.into());
        }
        if copies {
            let gone = |copy: DiskCopy| {
                Step::Volume(VolumeStep::Delete { pool: copy.pool, name: copy.name, file: None })
            };
            steps.extend(self.copies().map(gone));
        }
        steps
    }

    /// Whether it made the domain, so that undoing it deletes that.
    pub fn makes(&self) -> bool {
        self.before.is_empty() && !self.domain.is_empty()
    }

    /// A disk whose data it deleted, in words; `None` if it deleted none.
    pub fn deleted(&self) -> Option<String> {
        self.steps.iter().find_map(|step| match step {
            Step::File(FileStep::DeleteDisk { path, .. }) => {
                Some(format!("disk {}", path.display()))
            }
            Step::Volume(VolumeStep::Delete { pool, name, .. }) => {
                Some(format!("volume `{name}` of pool `{pool}`"))
            }
            _ => None,
        })
    }

    /// The disks that it made larger, which undoing leaves, in words.
    pub fn grown(&self) -> impl Iterator<Item = String> {
        self.steps.iter().filter_map(|step| match step {
            Step::Domain(DomainStep::GrowDisk(GrowStep { target, bytes, .. })) => {
                let size = MemSize::from_kib(bytes / 1024);
                Some(format!(
                    "disk `{target}`, grown to {size}, is not made smaller: that would cut off data"
                ))
            }
            _ => None,
        })
    }

    /// The new images that it made, which undoing leaves.
    pub fn images(&self) -> impl Iterator<Item = NewImage> {
        let copies: Vec<DiskCopy> = self.copies().collect();
        self.steps.iter().filter_map(move |step| match step {
            Step::File(FileStep::CreateDisk { path, .. }) => {
                Some(NewImage { path: path.clone(), volume: None })
            }
            Step::Volume(VolumeStep::Make { pool, volume, .. }) => {
                let name = &volume.name;
                let is_copy = copies.iter().any(|copy| copy.pool == *pool && copy.name == *name);
                let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
                (!is_copy).then(|| NewImage { path: name.into(), volume: Some(volume) })
            }
            _ => None,
        })
    }

    /// The copies of disks that it made, the last one first.
    pub fn copies(&self) -> impl Iterator<Item = DiskCopy> {
        self.steps.iter().rev().filter_map(|step| match step {
            Step::Check(CheckStep::Compare(Comparison { pool, volume, content, .. })) => {
                let (pool, name) = (pool.clone(), volume.clone());
                Some(DiskCopy { pool, name, comparable: *content })
            }
            _ => None,
        })
    }
}
