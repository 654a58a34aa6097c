//! Undoes steps. Each undo verifies at that moment that the object that it ends, removes or
//! restores is exactly the one made ([`Proof`]); anything else, or anything needed by others, stays
//! and is reported. Undoing is idempotent, and stops where a guest that may still run needs the
//! rest.

use super::domain::gone_is_good;
use super::journal::Journal;
use super::{Left, Observer, Step, StepError, made_disks};
use crate::hypervisor::Hypervisor;
use crate::identity::{Identity, Mark, Proof};

/// A step to be undone, and its product.
#[derive(Debug, Clone)]
pub(super) struct Done {
    /// Its number in the journal.
    pub number: usize,
    /// The step.
    pub step: Step,
    /// Its product, as far as known.
    pub made: Option<Identity>,
    /// When it began, in nanoseconds since 1970.
    pub begun_ns: Option<u64>,
}

/// The change whose steps are undone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// Its random name; `None` if older versions gave none.
    pub change: Option<&'a str>,
    /// Whether the machine has not booted since.
    pub same_boot: bool,
    /// The names of running guests that may be ended; `None` for those started by this very run.
    pub ends: Option<&'a [String]>,
}

#[derive(Debug, Default)]
pub(super) struct Undone {
    /// Numbers of those that were undone.
    pub undone: Vec<usize>,
    /// Numbers of those whose products are left to others.
    pub handed_over: Vec<usize>,
    /// Those that could not be undone, the first one first.
    pub left: Vec<Left>,
}

impl Of<'_> {
    /// Returns the proof of a step's product.
    pub fn proof(&self, done: &Done) -> Proof<'_> {
        Proof {
            mark: Mark::new(self.change, done.number),
            made: done.made.clone(),
            begun_ns: done.begun_ns,
            same_boot: self.same_boot,
            ends: self.ends,
        }
    }
}

/// Undoes steps, given the last first. Failures to write the journal are ignored: undoing is
/// idempotent.
pub(super) fn undo_all(
    steps: impl IntoIterator<Item = Done>,
    of: Of<'_>,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    mut journal: Option<&mut Journal>,
) -> Undone {
    let mut all = Undone::default();
    let mut steps = steps.into_iter().filter(|done| done.step.is_undone());
    for done in steps.by_ref() {
        observer.undoing(&done.step);
        let proof = of.proof(&done);
        let mut undone = undo(&done.step, hypervisor, &proof);
        if matches!(&undone, Err(error) if error.is_away()) && hypervisor.reconnect().is_ok() {
            undone = undo(&done.step, hypervisor, &proof);
        }
        // One that stays since others have it now is still the one that was made.
        let is_gone = undone.is_ok();
        match undone {
            Ok(()) => all.undone.push(done.number),
            // The definition is gone, and its NVRAM is not ours to remove.
            Err(why @ StepError::NvramStays { .. }) => {
                observer.handed_over(&done.step, &why);
                all.undone.push(done.number);
            }
            Err(why) if why.is_handed_over() => {
                observer.handed_over(&done.step, &why);
                all.handed_over.push(done.number);
            }
            Err(error) => {
                let ends = error.ends_undoing(&done.step);
                all.left.push(Left { step: done.step, error });
                if ends {
                    break;
                }
                continue;
            }
        }
        if let Some(journal) = &mut journal {
            let _ = journal.undone(done.number);
            let state = journal.state().filter(|_| is_gone);
            made_disks::forget(state.as_deref(), &done.step, done.made.as_ref(), hypervisor);
        }
    }
    all.left.extend(steps.map(|rest| Left { step: rest.step, error: StepError::NotReached }));
    all
}

/// Undoes one step that was done, or may have been.
pub(super) fn undo(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    proof: &Proof<'_>,
) -> Result<(), StepError> {
    step.refuse_elsewhere(hypervisor)?;
    gone_is_good(step.noun().undo(hypervisor, proof))
}
