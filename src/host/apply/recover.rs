//! Recovery of an interrupted change: undone, or finished if it cannot be undone. Decided by its
//! journal alone.

use super::error::ArrayError;
use super::journal::{Journal, Orphan, Progress, Story};
use super::perform::perform_again;
use super::step::Ours;
use super::undo::{Done, Of, undo_all};
use super::{
    Aftermath, ApplyError, HostStep, Left, Observer, SnapshotStep, Step, StepError, made_disks,
};
use crate::hypervisor::{Hypervisor, HypervisorErrorKind};
use serde::Serialize;

/// The recovery of an interrupted change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Only the journal is removed: nothing was begun, or everything was done.
    Forget,
    /// Its completed steps are undone.
    Undo,
    /// The rest is carried out: a step was begun that cannot be reverted completely.
    Finish,
}

/// The recovery of a change whose run was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Recovery {
    /// In which direction.
    pub way: Way,
    /// Steps that are undone or done, in order.
    pub steps: Vec<Step>,
    /// Steps that left an object alone because it belongs to others now; known only afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handed_over: Vec<Step>,
}

impl Recovery {
    /// Returns the recovery that a journal requires.
    pub fn of(story: Option<&Story>) -> Recovery {
        let way = match story {
            None => Way::Forget,
            Some(story) if story.over => Way::Forget,
            Some(story) if story.undoing => Way::Undo,
            Some(story) if story.complete => Way::Forget,
            // All can be undone until the guest may run at its new place.
            Some(story) if is_off_meanwhile(story) => {
                let is_started = begun(story).any(|(_, step)| step.is_start());
                if is_started { Way::Finish } else { Way::Undo }
            }
            Some(story) if begun(story).any(|(at, step)| took_away(story, at, step)) => Way::Finish,
            Some(_) => Way::Undo,
        };
        let numbers = story.map(|story| numbers(story, way)).unwrap_or_default();
        let step = |number: usize| story.map(|story| story.steps[number].0.clone());
        let steps: Vec<Step> = numbers.into_iter().filter_map(step).collect();
        let way = if steps.is_empty() { Way::Forget } else { way };
        Recovery { way, steps, handed_over: Vec::new() }
    }
}

/// Whether a step that was begun may have taken something away. A revert has not before the state
/// of its disks is recorded.
fn took_away(story: &Story, at: usize, step: &Step) -> bool {
    let is_revert = matches!(step, Step::Snapshot(SnapshotStep::Revert { .. }));
    step.takes_away() && (!is_revert || story.made.contains_key(&at))
}

/// Whether a guest was asked to be off only for the change.
fn is_off_meanwhile(story: &Story) -> bool {
    begun(story).any(|(_, step)| step.is_off_meanwhile())
}

/// Whether a change for which a guest is off is undone although it was to be finished: none of its
/// guests runs at its new place, and the first one cannot be started there.
fn goes_back(story: &Story, step: &Step, why: &StepError) -> bool {
    let is_away = matches!(why, StepError::Hypervisor(error) if error.kind == HypervisorErrorKind::NoConnection);
    let mut starts = begun(story).filter(|(_, step)| step.is_start());
    let is_first = starts.next().is_some_and(|(_, first)| first == step);
    is_off_meanwhile(story) && is_first && starts.next().is_none() && !is_away
}

/// Steps that were begun, with their numbers.
fn begun(story: &Story) -> impl DoubleEndedIterator<Item = (usize, &Step)> {
    let all = story.steps.iter().enumerate();
    all.filter(|(_, (_, progress))| *progress != Progress::Untouched).map(|(at, (s, _))| (at, s))
}

/// Returns the numbers of the steps to undo or to do, in order. Effects that end with a boot are
/// gone after another boot; objects that exist then belong to others.
fn numbers(story: &Story, way: Way) -> Vec<usize> {
    let lasts = |step: &Step| story.same_boot || !step.ends_with_boot();
    match way {
        Way::Forget => Vec::new(),
        Way::Undo => {
            let back = begun(story).rev().filter(|(_, step)| step.is_undone() && lasts(step));
            back.map(|(at, _)| at).collect()
        }
        Way::Finish => {
            let all = story.steps.iter().enumerate();
            let todo = all.filter(|(_, (step, progress))| {
                *progress != Progress::Done && (lasts(step) || step.is_start())
            });
            todo.map(|(at, _)| at).collect()
        }
    }
}

/// The steps of these numbers, with the known facts about them.
fn done(story: &Story, numbers: &[usize]) -> Vec<Done> {
    let one = |&number: &usize| Done {
        number,
        step: story.steps[number].0.clone(),
        made: story.made.get(&number).cloned(),
        begun_ns: story.begun_ns.get(&number).copied(),
    };
    numbers.iter().map(one).collect()
}

/// Undoes or finishes a change. Its journal is removed on success; otherwise it stays, and recovery
/// can be repeated. `ends`: the names of running domains that may be ended.
pub fn recover(
    orphan: Orphan,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    ends: &[String],
) -> Result<Recovery, ApplyError> {
    let mut recovery = Recovery::of(orphan.story.as_ref());
    let story = orphan.story.clone();
    let mut journal = orphan.into_journal();
    let Some(story) = story.filter(|_| recovery.way != Way::Forget) else {
        journal.close()?;
        return Ok(recovery);
    };
    super::interrupt::begins();
    let mut steps = done(&story, &numbers(&story, recovery.way));
    let change = journal.id().map(str::to_owned);
    let of = Of { change: change.as_deref(), same_boot: story.same_boot, ends: Some(ends) };
    if recovery.way == Way::Finish {
        match finish(&steps, &story, of, hypervisor, observer, &mut journal) {
            Err(ApplyError::Failed { step, source, .. }) if goes_back(&story, &step, &source) => {
                observer.note(&format!("cannot {step}: {source}"));
                recovery.way = Way::Undo;
                steps = done(&story, &numbers(&story, Way::Undo));
            }
            ended => {
                ended?;
                journal.close()?;
                return Ok(recovery);
            }
        }
    }
    journal.undoing()?;
    let all = undo_all(steps, of, hypervisor, observer, Some(&mut journal));
    let mut left = all.left;
    if !left.is_empty() {
        let Left { step, error: source } = left.remove(0);
        let aftermath = Aftermath::Undone { undone: all.undone.len(), left };
        return Err(ApplyError::Failed { step: Box::new(step), source, aftermath });
    }
    let named = |numbers: &[usize]| -> Vec<Step> {
        numbers.iter().map(|number| story.steps[*number].0.clone()).collect()
    };
    recovery.steps = named(&all.undone);
    recovery.handed_over = named(&all.handed_over);
    journal.close()?;
    Ok(recovery)
}

/// Performs the missing steps of a change that cannot be undone.
fn finish(
    steps: &[Done],
    story: &Story,
    of: Of<'_>,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
    journal: &mut Journal,
) -> Result<(), ApplyError> {
    let state = journal.state();
    let mut array_left = false;
    for done in steps {
        let Done { number, step, .. } = done;
        if array_left && matches!(step, Step::Host(HostStep::Array(_))) {
            observer.handed_over(step, &ArrayError::Left.into());
            journal.done(*number, None)?;
            continue;
        }
        observer.doing(step);
        let begun = story.steps[*number].1 != Progress::Untouched;
        let proof = of.proof(done);
        let mut tell = |identity| journal.made(*number, &identity);
        let mut ours = Ours { mark: &proof.mark, made: &mut tell, later: true };
        let again = made_disks::deleting(state.as_deref(), step, hypervisor, || {
            perform_again(step, begun, hypervisor, observer, &proof, &mut ours)
        });
        match again {
            Err(why)
                if why.lets_be(step)
                    || why.leaves_drive(step)
                    || matches!(why, StepError::OtherDomain { .. }) =>
            {
                observer.handed_over(step, &why);
            }
            Err(why) if why.leaves_array() => {
                observer.handed_over(step, &why);
                array_left = true;
            }
            again => again.map_err(|source| {
                let (step, aftermath) = (Box::new(step.clone()), Aftermath::Unfinished);
                ApplyError::Failed { step, source, aftermath }
            })?,
        }
        journal.done(*number, None)?;
    }
    Ok(())
}
