//! The interface shared by the steps of every noun.

use super::StepError;
use crate::apply::Observer;
use crate::apply::disk::{DiskError, Making};
use crate::apply::journal::JournalError;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::storage::Progress;
use crate::identity::{Identity, Mark, Proof};
use std::fmt;

/// A step of one noun. Methods without a comment are explained where [`Step`](super::Step) has
/// them.
pub(in crate::apply) trait Noun: fmt::Display {
    /// Refuses a step whose product already exists, before it is recorded: products of steps that a
    /// journal records as begun are ours.
    fn expects(&self, _hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        Ok(())
    }

    /// Why it must not remove its subject; `None` if that is unused, or the step removes nothing.
    /// `later`: an interrupted run planned it, so the file may have been recreated since.
    fn stays(
        &self,
        _later: bool,
        _hypervisor: &dyn Hypervisor,
    ) -> Result<Option<String>, StepError> {
        Ok(None)
    }

    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError>;

    /// The identity of its product, as far as visible.
    fn made(&self, _hypervisor: &dyn Hypervisor) -> Option<Identity> {
        None
    }

    /// Undoes it if it was done, or may have been.
    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError>;

    fn domain(&self) -> Option<(&str, Option<String>)> {
        None
    }

    fn by_hand(&self) -> Option<String> {
        None
    }

    fn gives_back(&self) -> bool {
        false
    }

    fn ends_with_boot(&self) -> bool {
        false
    }

    fn is_final(&self) -> bool {
        false
    }

    /// Besides the steps that are final.
    fn takes_away(&self) -> bool {
        false
    }

    /// Whether nothing is undone although it is not final.
    fn leaves_nothing(&self) -> bool {
        false
    }

    /// Besides the steps on the host.
    fn is_of_machine(&self) -> bool {
        false
    }

    fn is_of_host(&self) -> bool {
        false
    }

    /// Whether the steps before it must not be undone if it could not be: a guest that may run uses
    /// their products.
    fn is_needed_by_guest(&self) -> bool {
        false
    }
}

/// How a step marks its products.
pub(in crate::apply) struct Ours<'o> {
    /// The step's own name.
    pub mark: &'o Mark,
    /// Called with a file's identity before it gets its name.
    pub made: &'o mut dyn FnMut(Identity) -> Result<(), JournalError>,
    /// Whether the step was planned by an interrupted run.
    pub later: bool,
}

impl Ours<'_> {
    /// Makes a file or a directory.
    pub fn making(
        &mut self,
        make: impl FnOnce(&mut Making<'_>) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let token = self.mark.token().unwrap_or_else(|| format!("gpuvm-{}", std::process::id()));
        let mut made = |id| (self.made)(Identity::File(id));
        make(&mut Making { token: &token, made: &mut made })
    }
}

/// Runs a long operation with a progress callback that can cancel it; a signal does.
pub(in crate::apply) fn interruptible(
    observer: &mut dyn Observer,
    bytes: u64,
    long: impl FnOnce(Progress<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let mut signal = None;
    let mut progress = |through: u64| {
        observer.progress(through, bytes);
        signal = observer.interrupted();
        signal.is_none()
    };
    let done = long(&mut progress);
    match signal {
        Some(signal) => Err(StepError::Signal { signal }),
        None => done,
    }
}
