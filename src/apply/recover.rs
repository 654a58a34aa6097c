//! What becomes of a change whose run was killed: undone, or finished where there is no way back. Told by its journal
//! alone.

use super::journal::{Orphan, Progress, Story};
use super::{Aftermath, ApplyError, Left, Observer, Step, perform};
use crate::hypervisor::Hypervisor;
use serde::Serialize;

/// Is what is done with a change whose run was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Only the journal goes: nothing was begun, or everything was done.
    Forget,
    /// What was begun is undone.
    Undo,
    /// What is missing is done: a step was begun that takes away what does not come back whole.
    Finish,
}

/// Is what has to be done for a change whose run was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// In which direction.
    pub way: Way,
    /// The steps that are undone or done, in this order.
    pub steps: Vec<Step>,
}

impl Recovery {
    /// What a journal calls for.
    pub fn of(story: Option<&Story>) -> Recovery {
        let way = match story {
            None => Way::Forget,
            Some(story) if story.undoing => Way::Undo,
            Some(story) if story.complete => Way::Forget,
            Some(story) if begun(story).any(|(_, step)| step.takes_away()) => Way::Finish,
            Some(_) => Way::Undo,
        };
        let numbers = story.map(|story| numbers(story, way)).unwrap_or_default();
        let step = |number: usize| story.map(|story| story.steps[number].0.clone());
        let steps: Vec<Step> = numbers.into_iter().filter_map(step).collect();
        Recovery { way: if steps.is_empty() { Way::Forget } else { way }, steps }
    }
}

/// Steps that were begun, with their numbers.
fn begun(story: &Story) -> impl DoubleEndedIterator<Item = (usize, &Step)> {
    let all = story.steps.iter().enumerate();
    all.filter(|(_, (_, progress))| *progress != Progress::Untouched).map(|(at, (s, _))| (at, s))
}

/// Numbers of the steps that are undone or done, in this order.
fn numbers(story: &Story, way: Way) -> Vec<usize> {
    match way {
        Way::Forget => Vec::new(),
        Way::Undo => {
            begun(story).rev().filter(|(_, step)| step.is_undone()).map(|(at, _)| at).collect()
        }
        Way::Finish => {
            let all = story.steps.iter().enumerate();
            all.filter(|(_, (_, progress))| *progress != Progress::Done).map(|(at, _)| at).collect()
        }
    }
}

/// Undoes or finishes a change. Its journal goes when all is well; else it stays, and this can be run again.
pub fn recover(
    orphan: Orphan,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) -> Result<Recovery, ApplyError> {
    let recovery = Recovery::of(orphan.story.as_ref());
    let story = orphan.story.clone();
    let mut journal = orphan.into_journal();
    let Some(story) = story.filter(|_| recovery.way != Way::Forget) else {
        journal.close()?;
        return Ok(recovery);
    };
    super::interrupt::begins();
    if recovery.way == Way::Undo {
        journal.undoing()?;
    }
    let mut left = Vec::new();
    let mut undone = 0;
    for number in numbers(&story, recovery.way) {
        let (step, progress) = &story.steps[number];
        if recovery.way == Way::Finish {
            observer.doing(step);
            let begun = *progress != Progress::Untouched;
            match perform::perform_again(step, begun, hypervisor, observer) {
                Err(why) if why.lets_be(step) => {
                    observer.handed_over(step, &why);
                }
                done => done.map_err(|source| {
                    let (step, aftermath) = (Box::new(step.clone()), Aftermath::Unfinished);
                    ApplyError::Failed { step, source, aftermath }
                })?,
            }
            journal.done(number)?;
            continue;
        }
        observer.undoing(step);
        match perform::undo(step, hypervisor) {
            Ok(()) => {
                undone += 1;
                journal.undone(number)?;
            }
            Err(why) if why.is_handed_over() => {
                observer.handed_over(step, &why);
                journal.undone(number)?;
            }
            Err(error) => left.push(Left { step: step.clone(), error }),
        }
    }
    if let Some(first) = left.pop() {
        let Left { step, error: source } = first;
        let aftermath = Aftermath::Undone { undone, left };
        return Err(ApplyError::Failed { step: Box::new(step), source, aftermath });
    }
    journal.close()?;
    Ok(recovery)
}
