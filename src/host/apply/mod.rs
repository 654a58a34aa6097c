//! Performs steps on the machine in order, and undoes them in reverse on failure. Does not know why
//! a step is wanted, and prints nothing: an [`Observer`] is notified.

pub mod array;
mod attach;
pub mod bind;
mod blank;
pub mod boot;
mod bundle;
mod compare;
mod copy;
mod detach;
mod disk;
mod domain;
pub mod drive;
mod error;
mod exclusions;
pub mod file;
mod firmware;
mod grow;
pub mod hostnet;
mod interrupt;
mod journal;
mod last_check;
mod lease;
mod lock;
mod made_disks;
pub mod made_files;
mod moved;
mod network;
pub mod nic;
mod overlay;
pub mod owner;
pub mod p2p;
pub mod pages;
pub mod partition;
mod perform;
mod proven;
mod recover;
mod secret;
pub mod setting;
pub mod startup;
mod state;
mod step;
pub mod text;
mod undo;
mod vcpus;
pub mod vgpu;
mod volume;

pub use blank::is_blank;
pub use bundle::{BundleStep, BundledCopy, BundledText};
pub use compare::{Comparison, MadeAs};
pub use copy::WrittenVolume;
pub use disk::{DiskError, Preallocate, Space, absent, locked_in, modified_ns, open, space};
pub use exclusions::{ExclusionsError, write_exclusions};
pub use firmware::{foreign_nvram, is_absent, tpm_stays};
pub use grow::{GrowBy, GrowStep};
pub use interrupt::{Heard, Interrupt};
pub use journal::{Change, Damaged, Journal, JournalError, Orphan, Orphans, Progress, Story};
pub use last_check::disk_conflict;
pub use lease::{is_of_this_machine, mac_owner};
pub use lock::{HostLock, LockError};
pub use made_disks::{disk_format_made, disk_made_at, forget_made_at, is_another_file};
pub use network::NetworkStep;
pub use overlay::is_untouched;
pub use recover::{Recovery, Way, recover};
pub use secret::Secret;
pub use state::{
    OWN_STATE, is_shared_state, kept_in, now_s, other_state, state_directory, state_root,
};
pub use step::{
    CheckStep, DeviceStep, DomainStep, FileStep, HostStep, LET_GO_S, LiveStep, MadeSnapshot,
    PartitionChange, RESERVATION, SnapshotStep, Step, StepError, VolumeStep, is_by_gpuvm,
    unknown_step,
};
pub use volume::{volume_file, volume_place};

use crate::hypervisor::Hypervisor;
use crate::identity::{Identity, Mark, now_ns, random_uuid};
use std::fmt;
use std::path::PathBuf;
use step::Ours;
use undo::{Done, Of, Undone, undo_all};

/// Something that was done and could not be undone.
#[derive(Debug)]
pub struct Left {
    /// The step.
    pub step: Step,
    /// Why it could not be undone.
    pub error: StepError,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not undone: {}: {}", self.step, self.error)
    }
}

/// The error of a run of steps.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "change-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ApplyError {
    /// A step failed.
    #[error("cannot {step}{}", aftermath)]
    #[strum(to_string = "")]
    Failed {
        step: Box<Step>,
        source: StepError,
        /// The fate of the steps before it.
        aftermath: Aftermath,
    },
    /// A signal came.
    #[error("interrupted by {signal}{}", aftermath)]
    Interrupted {
        signal: String,
        /// The fate of the steps before it.
        aftermath: Aftermath,
    },
    /// The journal could not be written or removed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Journal(#[from] JournalError),
}

/// The fate of the steps before one that failed.
#[derive(Debug)]
pub enum Aftermath {
    /// This many were undone, and these could not be.
    Undone {
        /// How many were undone.
        undone: usize,
        /// The steps that could not be undone.
        left: Vec<Left>,
    },
    /// A step could not be undone any more: they stay done, and the rest is still to do.
    Unfinished,
}

impl fmt::Display for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aftermath::Undone { undone: 0, left } if left.is_empty() => Ok(()),
            Aftermath::Undone { left, .. } if left.is_empty() => {
                f.write_str("; earlier steps are undone")
            }
            Aftermath::Undone { .. } => f.write_str("; earlier steps are undone only in part"),
            Aftermath::Unfinished => f.write_str("; earlier steps cannot be undone"),
        }
    }
}

impl ApplyError {
    /// The fate of the steps before; `None` if there were no steps.
    fn aftermath(&self) -> Option<&Aftermath> {
        match self {
            ApplyError::Failed { aftermath, .. } | ApplyError::Interrupted { aftermath, .. } => {
                Some(aftermath)
            }
            ApplyError::Journal(_) => None,
        }
    }

    /// The steps that could not be undone.
    pub fn left(&self) -> &[Left] {
        match self.aftermath() {
            Some(Aftermath::Undone { left, .. }) => left,
            _ => &[],
        }
    }

    /// Whether a journal remains, with which [`recover()`] continues.
    pub fn needs_recovery(&self) -> bool {
        matches!(self.aftermath(), Some(Aftermath::Unfinished)) || !self.left().is_empty()
    }
}

/// Watches a run of steps.
pub trait Observer {
    /// A step begins.
    fn doing(&mut self, step: &Step);
    /// Progress of the current step: `through` of `bytes` bytes.
    fn progress(&mut self, _through: u64, _bytes: u64) {}
    /// A step waits for the hypervisor, which has a file grow to about so many bytes meanwhile.
    fn grows(&mut self, _path: &std::path::Path, _bytes: u64) {}
    /// The step that was begun is over.
    fn done(&mut self) {}
    /// A note on the current step.
    fn note(&mut self, _text: &str) {}
    /// An object that was to be removed stays, and is of no more use.
    fn left(&mut self, text: &str) {
        self.note(text);
    }
    /// An object is left alone, because it belongs to others now.
    fn handed_over(&mut self, step: &Step, why: &StepError) {
        self.note(&format!("{step}: {why}, so it is left as it is"));
    }
    /// Takes the host's lock while a guest is started or everything is undone, unless it is already
    /// held: since its release others may have started to take the guest's resources, or to build
    /// on the products of steps. `undoes`: signals do not end the wait, since one may be the cause.
    fn guard(&mut self, _undoes: bool) -> Result<Option<HostLock>, LockError> {
        Ok(None)
    }
    /// A step is being undone.
    fn undoing(&mut self, step: &Step);
    /// The signal that asks to stop, if one has come.
    fn interrupted(&mut self) -> Option<String>;
}

/// Nobody watches, and nothing interrupts.
pub struct Quiet;

impl Observer for Quiet {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

/// A run of steps that is undone as a whole.
pub struct Transaction<'a> {
    hypervisor: &'a dyn Hypervisor,
    observer: &'a mut dyn Observer,
    /// The journal; `None` if an interrupted run leaves nothing to undo.
    journal: Option<Journal>,
    /// The state directory, which says which disks are ours; `None` without a journal.
    state: Option<PathBuf>,
    /// The random name of the change.
    change: Option<String>,
    /// Steps that were done, in order.
    done: Vec<Done>,
    /// The current step's product so far.
    made: Option<Identity>,
}

impl<'a> Transaction<'a> {
    /// Makes an empty transaction.
    pub fn new(
        hypervisor: &'a dyn Hypervisor,
        observer: &'a mut dyn Observer,
        journal: Option<Journal>,
    ) -> Self {
        let named = journal.as_ref().and_then(Journal::id).map(str::to_owned);
        let change = named.or_else(|| random_uuid().ok());
        let state = journal.as_ref().and_then(Journal::state);
        Transaction { hypervisor, observer, journal, state, change, done: Vec::new(), made: None }
    }

    /// Does further steps. On failure, or when a signal was received, everything is undone,
    /// including earlier calls, except after a step that cannot be undone.
    pub fn run(&mut self, steps: &[Step]) -> Result<(), ApplyError> {
        interrupt::begins();
        let first = match self.journal.as_mut().map(|journal| journal.plan(steps)).transpose() {
            Ok(first) => first.unwrap_or(self.done.len()),
            Err(error) => {
                self.undo();
                return Err(error.into());
            }
        };
        for (number, step) in (first..).zip(steps) {
            if !self.is_final() {
                self.go_on()?;
            }
            self.observer.doing(step);
            match self.step(number, step) {
                Ok(()) => {}
                Err(source) => {
                    let aftermath = self.undo_after(number, step, &source);
                    if let Some(signal) = source.signal().map(str::to_owned) {
                        return Err(ApplyError::Interrupted { signal, aftermath });
                    }
                    let step = Box::new(step.clone());
                    return Err(ApplyError::Failed { step, source, aftermath });
                }
            }
        }
        Ok(())
    }

    /// Does one step, announced in the journal.
    fn step(&mut self, number: usize, step: &Step) -> Result<(), StepError> {
        // Between the last check and the start the guest's resources must not be taken.
        let _guard = if step.is_start() { self.observer.guard(false)? } else { None };
        match perform::expects(step, self.hypervisor) {
            Err(why) if why.lets_be(step) => {
                self.observer.handed_over(step, &why);
                return Ok(());
            }
            expected => expected?,
        }
        let begun_ns = match &mut self.journal {
            Some(journal) => journal.begins(number)?,
            None => now_ns(),
        };
        let mark = Mark::new(self.change.as_deref(), number);
        let made = &mut self.made;
        *made = None;
        let journal = &mut self.journal;
        let mut tell = |identity: Identity| {
            if let Some(journal) = journal {
                journal.made(number, &identity)?;
            }
            *made = Some(identity);
            Ok(())
        };
        let mut ours = Ours { mark: &mark, made: &mut tell, later: false };
        let (hypervisor, observer) = (self.hypervisor, &mut *self.observer);
        let state = self.state.as_deref();
        let performed = made_disks::deleting(state, step, hypervisor, || {
            perform::perform(step, hypervisor, observer, &mut ours)
        });
        self.observer.done();
        match performed {
            Err(why) if why.lets_be(step) => {
                self.observer.handed_over(step, &why);
            }
            done => done?,
        }
        let is_recorded = self.made.is_some();
        let made = self.made.take().or_else(|| step.noun().made(self.hypervisor));
        if let Some(journal) = &mut self.journal {
            // The step is done even if this is not written; recovery would treat it as begun.
            let _ = journal.done(number, made.as_ref().filter(|_| !is_recorded));
        }
        made_disks::keep(state, step, made.as_ref(), self.hypervisor, self.observer);
        self.done.push(Done { number, step: step.clone(), made, begun_ns: Some(begun_ns) });
        Ok(())
    }

    /// Whether a step was done that cannot be undone.
    fn is_final(&self) -> bool {
        self.done.iter().any(|done| done.step.is_final())
    }

    /// The signal that was received, for a caller that keeps the completed steps.
    pub fn interrupted(&mut self) -> Option<String> {
        self.observer.interrupted()
    }

    /// Undoes everything if a signal was received; to be called while waiting.
    pub fn go_on(&mut self) -> Result<(), ApplyError> {
        match self.observer.interrupted() {
            None => Ok(()),
            Some(signal) => Err(self.interrupt(signal)),
        }
    }

    /// Records that every step is done: only waiting is left, and a run killed meanwhile leaves
    /// nothing to undo. A signal still undoes everything.
    pub fn complete(&mut self) -> Result<(), ApplyError> {
        match self.journal.as_mut().map(Journal::complete).transpose() {
            Ok(_) => Ok(()),
            Err(error) => {
                self.undo();
                Err(error.into())
            }
        }
    }

    /// Undoes everything, for a change that was only needed until now.
    pub fn take_back(&mut self) -> Aftermath {
        self.undo()
    }

    /// Ends the change and removes its journal.
    pub fn close(self) -> Result<(), ApplyError> {
        self.journal.map_or(Ok(()), Journal::close).map_err(ApplyError::from)
    }

    /// Undoes everything because of a signal.
    fn interrupt(&mut self, signal: String) -> ApplyError {
        ApplyError::Interrupted { signal, aftermath: self.undo() }
    }

    /// Undoes the steps before a failed one, and the failed one if it may have been done.
    fn undo_after(&mut self, number: usize, step: &Step, why: &StepError) -> Aftermath {
        match why.may_have_done(step) {
            true if step.is_final() => Aftermath::Unfinished,
            true => {
                let (step, made) = (step.clone(), self.made.take());
                let half = Done { number, step, made, begun_ns: Some(now_ns()) };
                self.undo_with(Some(half))
            }
            false => self.undo(),
        }
    }

    fn undo(&mut self) -> Aftermath {
        self.undo_with(None)
    }

    /// Undoes completed steps, the last first, unless a step cannot be undone. `half`: a failed
    /// step that may have been done, which is not counted. Once all is undone the journal is
    /// removed. Failures to write it meanwhile are ignored: undoing is idempotent.
    fn undo_with(&mut self, half: Option<Done>) -> Aftermath {
        if self.is_final() {
            return Aftermath::Unfinished;
        }
        if let Some(journal) = &mut self.journal {
            let _ = journal.undoing();
        }
        let uncounted = half.as_ref().map(|half| half.number);
        self.done.extend(half);
        let nothing = !self.done.iter().any(|done| done.step.is_undone());
        let _guard = if nothing { None } else { self.observer.guard(true).ok().flatten() };
        let of = Of { change: self.change.as_deref(), same_boot: true, ends: None };
        let steps = std::mem::take(&mut self.done).into_iter().rev();
        let journal = self.journal.as_mut();
        let Undone { undone, left, .. } =
            undo_all(steps, of, self.hypervisor, self.observer, journal);
        if let Some(journal) = self.journal.take_if(|_| left.is_empty()) {
            let _ = journal.close();
        }
        let undone = undone.iter().filter(|number| Some(**number) != uncounted).count();
        Aftermath::Undone { undone, left }
    }
}

/// Does all steps, or none of them.
pub fn apply(
    steps: &[Step],
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    journal: Option<Journal>,
) -> Result<(), ApplyError> {
    let mut transaction = Transaction::new(hypervisor, observer, journal);
    transaction.run(steps)?;
    transaction.close()
}

#[cfg(test)]
mod tests;
