//! Performs single steps. Repeating a step that an interrupted run may have done is harmless.

use super::domain::{gone_is_good, is_active, of_uuid, row};
use super::step::{DomainStep, MadeSnapshot, Ours, SnapshotStep};
use super::undo::undo;
use super::{Observer, Step, StepError};
use crate::hypervisor::{DomainState, Hypervisor};
use crate::identity::Proof;

/// Refuses a step whose product already exists, before it is recorded: products of steps that a
/// journal records as begun are ours.
pub(super) fn expects(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    step.refuse_elsewhere(hypervisor)?;
    step.noun().expects(hypervisor)
}

/// Refuses a step about a domain whose name belongs to another one now.
fn expects_domain(step: &Step, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    match step.domain() {
        Some((name, Some(uuid))) => of_uuid(hypervisor, name, &uuid).map(drop),
        _ => Ok(()),
    }
}

pub(super) fn perform(
    step: &Step,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    ours: &mut Ours<'_>,
) -> Result<(), StepError> {
    step.refuse_elsewhere(hypervisor)?;
    if let Some(why) = step.noun().stays(ours.later, hypervisor)? {
        observer.note(&why);
        return Ok(());
    }
    expects_domain(step, hypervisor)?;
    step.noun().perform(hypervisor, observer, ours)
}

/// Performs a step of an interrupted run, which may already be done.
pub(super) fn perform_again(
    step: &Step,
    begun: bool,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    proof: &Proof<'_>,
    ours: &mut Ours<'_>,
) -> Result<(), StepError> {
    if let Step::Domain(DomainStep::Start { name, .. }) = step
        && row(hypervisor, name)? == Some(DomainState::Running)
    {
        // It was started, and may have been used since: not to be repeated.
        return Ok(());
    }
    if let (
        Step::Domain(DomainStep::End { name, .. } | DomainStep::ShutDown { name, .. })
        | Step::Snapshot(SnapshotStep::Revert { of: MadeSnapshot { name, .. }, .. }),
        Some(ends),
    ) = (step, proof.ends)
        && is_active(row(hypervisor, name)?)
        && !ends.contains(name)
    {
        // It may be the run to be ended, or one started since.
        expects_domain(step, hypervisor)?;
        return Err(StepError::NotConfirmed { name: name.clone() });
    }
    if begun && !step.takes_away() && !step.is_of_host() {
        undo(step, hypervisor, proof)?;
    }
    let done = perform(step, hypervisor, observer, ours);
    match done {
        // The domain to remove is gone, and another has its name.
        Err(StepError::OtherDomain { .. }) if step.takes_away() => Ok(()),
        done if step.takes_away() => gone_is_good(done),
        done => done,
    }
}
