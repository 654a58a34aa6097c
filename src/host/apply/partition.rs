//! Activates a partition of Fabric Manager for a guest before it starts, and deactivates it once
//! the guest is off.
//!
//! Fabric Manager routes NVLinks for the GPUs of active partitions only, and on H100 and later even
//! a guest of one GPU has no CUDA without it (gpuvm-hardware(7), SHARED NVSWITCH). It does not know
//! guests: whether a partition is unused is decided by the running domains and the processes that
//! have its GPUs open. Other programs may change partitions, too, so its list is read before and
//! after each change: the list is the proof, not the return code.
//!
//! A change is first recorded in the journal ([`Identity::Partition`]): without the record an
//! interrupted run has changed nothing, and with it the run is undone according to the list. The
//! file of active partitions is written before an activation and after a deactivation, so that it
//! never lacks one that is active.

use super::error::BindError;
use super::journal::JournalError;
use super::{Observer, owner};
use crate::fabric::{Manager, ManagerRefusal, RestoreFile, RestoreFileError, Stop};
use crate::fsroot::{FsError, FsRoot};
use crate::hypervisor::Hypervisor;
use crate::identity::Identity;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::{
    Call, Decision, Listed, Meaning, Modules, ModulesText, Need, NeededPartition, PartitionRefusal,
    RestoreEntry, decide,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often to check for a signal while waiting for Fabric Manager.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait for another process that changes partitions: no change takes longer.
const LOCK: Duration = Duration::from_secs(90);

/// A GPU of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartitionGpu {
    /// Its module id, by which Fabric Manager knows it.
    pub module: u32,
    /// Its address, by which libvirt and the kernel know it.
    pub bdf: Bdf,
}

/// A partition to be activated or deactivated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartitionStep {
    /// Its number.
    pub partition: u32,
    /// Its GPUs.
    pub gpus: Vec<PartitionGpu>,
    /// Its modules whose GPU is unknown or has left the bus; only for a partition to be
    /// deactivated.
    #[serde(default, skip_serializing_if = "Modules::is_empty")]
    pub lost: Modules,
    /// GPUs with unknown module id, if some modules are lost: each may be a lost one, so no guest
    /// may have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Bdf>,
    /// UUID of the domain that it is for, with dashes.
    pub domain: String,
    /// For vGPU the guest's virtual function of each GPU, in the order of `gpus`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<Bdf>,
    /// Virtual functions of its GPU that other guests may have: while one has any, the partition is
    /// active for all of them, and stays so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Bdf>,
    /// Whether the deactivation may be postponed if Fabric Manager does not answer: the guest is
    /// off anyway.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_wait: bool,
}

impl PartitionStep {
    /// Makes a step for a partition whose GPUs are all known.
    pub fn new(partition: u32, gpus: Vec<PartitionGpu>, domain: String) -> PartitionStep {
        let (candidates, vfs, beside) = Default::default();
        let lost = Modules::new();
        PartitionStep { partition, gpus, lost, candidates, domain, vfs, beside, may_wait: false }
    }

    /// Returns the step for the partition that a domain needs; none if its modules are not those
    /// that Fabric Manager lists.
    pub fn of(need: &Need, listed: &[Listed], domain: &str) -> Option<PartitionStep> {
        let gpus = need.placed(listed)?.into_iter();
        let gpus = gpus.map(|(module, bdf)| PartitionGpu { module, bdf }).collect();
        let (vfs, beside) = (need.vfs(), need.beside.clone());
        let step = PartitionStep::new(need.partition, gpus, domain.to_owned());
        Some(PartitionStep { vfs, beside, ..step })
    }

    /// Module ids of its GPUs.
    pub fn modules(&self) -> Modules {
        self.gpus.iter().map(|gpu| gpu.module).chain(self.lost.iter().copied()).collect()
    }

    /// Addresses of its GPUs, of GPUs that may belong to it, and of the virtual functions.
    fn functions(&self) -> Vec<Bdf> {
        let others = self.candidates.iter().chain(&self.vfs).copied();
        self.gpus.iter().map(|gpu| gpu.bdf).chain(others).collect()
    }

    /// Whether its guests have vGPUs of its GPUs.
    pub fn is_of_vgpus(&self) -> bool {
        !self.vfs.is_empty() || !self.beside.is_empty()
    }

    /// Its virtual functions in the order of Fabric Manager's GPUs, which are matched by module id:
    /// it knows no functions of them.
    fn vfs_in_order(&self, listed: &[Listed]) -> Vec<Bdf> {
        let function = |module: u32| {
            let place = self.gpus.iter().position(|gpu| gpu.module == module)?;
            self.vfs.get(place).copied()
        };
        let found = listed.iter().find(|one| one.id == self.partition);
        let gpus = found.map(|one| one.gpus.as_slice()).unwrap_or_default();
        gpus.iter().filter_map(|gpu| function(gpu.module)).collect()
    }

    /// Returns it as an entry of the file.
    fn entry(&self) -> RestoreEntry {
        let mut vfs: Vec<(u32, Bdf)> =
            self.gpus.iter().map(|gpu| gpu.module).zip(self.vfs.iter().copied()).collect();
        vfs.sort_unstable();
        RestoreEntry {
            id: self.partition,
            modules: self.modules(),
            domain: self.domain.clone(),
            vfs: vfs.into_iter().map(|(_, vf)| vf).collect(),
        }
    }

    /// Whether it is in a list, and active there.
    fn is_active(&self, listed: &[Listed]) -> bool {
        let modules = self.modules();
        listed.iter().any(|one| one.id == self.partition && one.active && one.modules() == modules)
    }
}

impl fmt::Display for PartitionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVLink partition {} ({})", self.partition, ModulesText(&self.modules()))
    }
}

/// The error of changing a partition.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "partition-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PartitionError {
    /// Reading the host's files failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Host(#[from] FsError),
    /// Fabric Manager does not answer, or refuses; nothing has changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Manager(#[from] ManagerRefusal),
    /// Fabric Manager failed during the change, and the partition may be active or not.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Unsure(#[source] ManagerRefusal),
    /// The partition is in use, or not as planned.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Refused(#[from] PartitionRefusal),
    /// The file of active partitions failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    File(#[from] RestoreFileError),
    /// A guest has its GPUs, or that is unknown.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Guest(#[from] BindError),
    /// The journal could not be written.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Journal(#[from] JournalError),
    /// Fabric Manager reports success, but lists something else.
    #[error(
        "Fabric Manager returned success but lists NVLink partition {partition} as {}",
        if *active { "active" } else { "inactive" }
    )]
    NotProven {
        partition: u32,
        /// Whether it is listed as active.
        active: bool,
    },
    /// The partition belongs to another domain now.
    #[error("NVLink partition {partition} has since been activated for domain {domain}")]
    Reassigned { partition: u32, domain: String },
    /// A signal came while waiting.
    #[error("received {signal}")]
    #[strum(to_string = "")]
    Signal { signal: String },
}

impl PartitionError {
    /// Whether the partition may be another than before.
    pub fn may_have_done(&self) -> bool {
        matches!(self, PartitionError::Unsure(_))
    }
}

/// An answer of Fabric Manager; the outer error ends the step.
type Answered<T> = Result<Result<T, ManagerRefusal>, PartitionError>;

/// The operations of Fabric Manager used here.
pub trait Partitions {
    /// Its partitions.
    fn list(&self) -> Result<Vec<Listed>, ManagerRefusal>;
    /// Activates one, for vGPU with a virtual function of each GPU.
    fn activate(&self, partition: u32, vfs: &[Bdf], stop: Stop<'_>) -> Result<(), ManagerRefusal>;
    /// Deactivates one.
    fn deactivate(&self, partition: u32, stop: Stop<'_>) -> Result<(), ManagerRefusal>;
    /// The pauses between two attempts while it is starting.
    fn pauses(&self) -> gpuvm_core::fabric::Pauses;
}

impl Partitions for Manager {
    fn list(&self) -> Result<Vec<Listed>, ManagerRefusal> {
        Manager::list(self)
    }
    fn activate(&self, partition: u32, vfs: &[Bdf], stop: Stop<'_>) -> Result<(), ManagerRefusal> {
        Manager::activate(self, partition, vfs, stop)
    }
    fn deactivate(&self, partition: u32, stop: Stop<'_>) -> Result<(), ManagerRefusal> {
        Manager::deactivate(self, partition, stop)
    }
    fn pauses(&self) -> gpuvm_core::fabric::Pauses {
        self.limits.pauses
    }
}

/// The callback before a change, with the identity about to change.
pub type Made<'m> = &'m mut dyn FnMut(Identity) -> Result<(), JournalError>;

/// Activates and deactivates partitions.
pub struct Switch<'a> {
    /// Fabric Manager.
    pub manager: &'a dyn Partitions,
    /// The file of active partitions.
    pub file: &'a Path,
    /// How long to wait for its lock.
    pub wait: Duration,
    /// Refuses functions that a guest has.
    pub guests: &'a dyn Fn(&[Bdf]) -> Result<(), BindError>,
}

/// The optional observer of a wait.
pub struct Watched<'o>(pub Option<&'o mut dyn Observer>);

impl Watched<'_> {
    fn note(&mut self, text: &str) {
        if let Some(observer) = &mut self.0 {
            observer.note(text);
        }
    }

    /// Returns the signal received, if any.
    fn signal(&mut self) -> Option<String> {
        self.0.as_mut().and_then(|observer| observer.interrupted())
    }

    /// Waits; a signal cancels.
    fn pause(&mut self, pause: Duration) -> Result<(), PartitionError> {
        let until = Instant::now() + pause;
        loop {
            if let Some(signal) = self.signal() {
                return Err(PartitionError::Signal { signal });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(LOOK));
        }
    }
}

impl Switch<'_> {
    /// Calls Fabric Manager, retrying while it is starting. The outer error ends the step at once.
    fn asked<T>(
        &self,
        call: Call,
        watched: &mut Watched<'_>,
        ask: impl Fn(&dyn Partitions, Stop<'_>) -> Answered<T>,
    ) -> Answered<T> {
        let mut pauses = self.manager.pauses();
        let mut is_first = true;
        loop {
            let refusal = match ask(self.manager, &mut || watched.signal())? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(refusal) => refusal,
            };
            let pause = match refusal.meaning(call) {
                Meaning::Starting => pauses.next(),
                _ => None,
            };
            let Some(pause) = pause else { return Ok(Err(refusal)) };
            if std::mem::take(&mut is_first) {
                watched.note(&format!("{refusal}; it is still starting and is waited for"));
            }
            watched.pause(pause)?;
        }
    }

    /// Returns the list, or an error.
    fn list(&self, watched: &mut Watched<'_>) -> Result<Vec<Listed>, PartitionError> {
        Ok(self.asked(Call::List, watched, |manager, _| Ok(manager.list()))??)
    }

    /// Requests a change, then the list: returns the answer and whether the partition is active. A
    /// signal cancels the wait for the answer; the partition's last known state is reported then.
    fn changed(
        &self,
        step: &PartitionStep,
        call: Call,
        watched: &mut Watched<'_>,
        ask: impl Fn(&dyn Partitions, Stop<'_>) -> Answered<()>,
    ) -> (Answered<()>, Result<bool, PartitionError>) {
        let answer = self.asked(call, watched, ask);
        let is_active = self.list(watched).map(|listed| step.is_active(&listed));
        if let Ok(Err(refusal @ ManagerRefusal::Interrupted { .. })) = &answer {
            watched.note(&match is_active {
                Ok(true) => format!("{refusal}, and lists {step} as active"),
                Ok(false) => format!("{refusal}, and lists {step} as inactive"),
                Err(_) => format!("{refusal}, so it is not known whether {step} is active"),
            });
        }
        (answer, is_active)
    }

    /// Whether another guest has a vGPU of the partition's GPU.
    fn is_used_beside(&self, step: &PartitionStep) -> Result<bool, PartitionError> {
        if step.beside.is_empty() {
            return Ok(false);
        }
        match (self.guests)(&step.beside) {
            Ok(()) => Ok(false),
            Err(BindError::InUse { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Activates a partition for its domain, and verifies it.
    pub fn activate(
        &self,
        step: &PartitionStep,
        watched: &mut Watched<'_>,
        made: Made<'_>,
    ) -> Result<(), PartitionError> {
        (self.guests)(&step.functions())?;
        let mut file = RestoreFile::lock(self.file, self.wait)?;
        let listed = self.list(watched)?;
        if step.is_active(&listed) && self.is_used_beside(step)? {
            return Ok(());
        }
        let (partition, modules) = (step.partition, step.modules());
        let (domain, is_shared) = (step.domain.clone(), !step.beside.is_empty());
        let wanted = NeededPartition { partition, modules, domain, is_shared };
        // No guest has a GPU of it, so none has an overlapping partition either.
        match decide(&wanted, &listed, &[], file.list()) {
            Decision::AlreadySo => return Ok(()),
            Decision::Refused(refusal) => return Err(refusal.into()),
            Decision::Activate => {}
        }
        made(Identity::Partition { partition })?;
        let before = file.list().clone();
        file.write(before.with(step.entry()))?;
        let vfs = step.vfs_in_order(&listed);
        let (answer, is_active) = self.changed(step, Call::Activate, watched, |manager, stop| {
            Ok(manager.activate(partition, &vfs, stop))
        });
        if matches!(is_active, Ok(false)) {
            file.write(before)?;
        }
        let answer = match (answer?, &is_active) {
            (Err(refusal), Ok(true))
                if refusal.meaning(Call::Activate) == Meaning::AlreadyActive =>
            {
                watched.note(&format!("{refusal}, and lists it as active"));
                Ok(())
            }
            (answer, _) => answer,
        };
        proven(partition, true, answer, is_active)
    }

    /// Deactivates a partition that no guest uses, and verifies it. Does nothing if it is inactive,
    /// or has other GPUs now.
    pub fn deactivate(
        &self,
        step: &PartitionStep,
        watched: &mut Watched<'_>,
        made: Made<'_>,
    ) -> Result<(), PartitionError> {
        let done = self.deactivate_now(step, watched, made);
        // The guest is off anyway, and its entry stays.
        let (why, advice) = match done {
            Err(PartitionError::Manager(why) | PartitionError::Unsure(why)) if step.may_wait => {
                (why.to_string(), why.advice())
            }
            Err(why @ (PartitionError::NotProven { .. } | PartitionError::File(_)))
                if step.may_wait =>
            {
                (why.to_string(), None)
            }
            done => return done,
        };
        let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
        watched.note(&format!(
            "{step} stays active until Fabric Manager is asked again: {why}{advice}"
        ));
        Ok(())
    }

    /// Deactivates a partition; an unreachable Fabric Manager is an error.
    fn deactivate_now(
        &self,
        step: &PartitionStep,
        watched: &mut Watched<'_>,
        made: Made<'_>,
    ) -> Result<(), PartitionError> {
        (self.guests)(&step.functions())?;
        let mut file = RestoreFile::lock(self.file, self.wait)?;
        let partition = step.partition;
        let theirs = file.list().get(partition).filter(|entry| {
            !entry.domain.eq_ignore_ascii_case(&step.domain)
                && entry.modules == step.modules()
                && step.beside.is_empty()
        });
        if let Some(entry) = theirs {
            let domain = entry.domain.clone();
            return Err(PartitionError::Reassigned { partition, domain });
        }
        // An entry with other GPUs belongs to a newer owner of the number.
        let is_own = |entry: &RestoreEntry| entry.modules == step.modules();
        let without = if file.list().get(partition).is_some_and(is_own) {
            file.list().without(partition)
        } else {
            file.list().clone()
        };
        let listed = self.list(watched)?;
        if !step.is_active(&listed) {
            return Ok(file.write(without)?);
        }
        if self.is_used_beside(step)? {
            watched.note(&format!("{step} stays active: another guest has a vGPU of its GPU"));
            return Ok(());
        }
        // Time has passed, especially if Fabric Manager was starting: a guest may have been
        // started.
        let functions = step.functions();
        (self.guests)(&functions)?;
        made(Identity::Partition { partition })?;
        let (answer, is_active) = self.changed(step, Call::Deactivate, watched, |manager, stop| {
            (self.guests)(&functions)?;
            Ok(manager.deactivate(partition, stop))
        });
        if matches!(is_active, Ok(false)) {
            // Whatever was returned, it is inactive.
            return Ok(file.write(without)?);
        }
        proven(partition, false, answer?, is_active)
    }

    /// Undoes an activation, if it had begun.
    pub fn undo_activation(&self, step: &PartitionStep) -> Result<(), PartitionError> {
        let step = PartitionStep { may_wait: false, ..step.clone() };
        self.deactivate(&step, &mut Watched(None), &mut |_| Ok(()))
    }

    /// Undoes a deactivation, if it had begun.
    pub fn undo_deactivation(&self, step: &PartitionStep) -> Result<(), PartitionError> {
        self.activate(step, &mut Watched(None), &mut |_| Ok(()))
    }
}

/// Judges a change by its answer and by the list after it, which takes precedence. `wanted`:
/// whether the partition should be active.
fn proven(
    partition: u32,
    wanted: bool,
    answer: Result<(), ManagerRefusal>,
    is_active: Result<bool, PartitionError>,
) -> Result<(), PartitionError> {
    match (answer, is_active) {
        (Ok(()), Ok(active)) if active == wanted => Ok(()),
        (Ok(()), Ok(active)) => Err(PartitionError::NotProven { partition, active }),
        (Ok(()), Err(PartitionError::Manager(why))) => Err(PartitionError::Unsure(why)),
        (Ok(()), Err(other)) => Err(other),
        // Nothing has changed.
        (Err(refusal), Ok(active)) if active != wanted => Err(refusal.into()),
        (Err(refusal), _) => Err(PartitionError::Unsure(refusal)),
    }
}

/// Works with this machine's Fabric Manager.
pub fn on_this_machine<T>(
    hypervisor: &dyn Hypervisor,
    work: impl FnOnce(&Switch<'_>) -> Result<T, PartitionError>,
) -> Result<T, PartitionError> {
    let manager = Manager::of_host(&FsRoot::live()?)?;
    let guests = |functions: &[Bdf]| -> Result<(), BindError> {
        owner::on_this_machine(hypervisor, false, |look| look.free_of_guests(functions))
    };
    let file = RestoreFile::here();
    work(&Switch { manager: &manager, file, wait: LOCK, guests: &guests })
}

#[cfg(test)]
mod tests;
