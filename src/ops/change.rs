//! A planned change, before anything is done: its steps, losses, warnings and the question asked
//! first.

use crate::apply::{DomainStep, Step};
use crate::domain::DomainXml;
use crate::error::Result;
use crate::reporter::{Answer, Question};

/// A planned change; `T`: the facts that the caller needs afterwards.
#[derive(Debug)]
pub struct Change<T = ()> {
    /// The verb, as recorded in the journal.
    pub verb: &'static str,
    /// The subject, as recorded in the journal.
    pub subject: String,
    /// The actions, in this order; empty: already set.
    pub parts: Vec<Part>,
    /// The losses, a phrase each: asked about by [`Question::Losses`].
    pub losses: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// The question asked first; `None` without question.
    pub question: Option<Question>,
    /// The command to run again if something changed since the question.
    pub again: String,
    /// How long the lock is held.
    pub hold: Hold,
    /// Whether steps are journaled first, so that an interrupted run is finished or undone.
    pub journal: bool,
    /// The caller's data.
    pub about: T,
}

/// How long the host's lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until all is done.
    Through,
    /// Until the result has been read, too, so that the answer shows the change itself, not a later
    /// one by others.
    Answered,
    /// Until its first part is done: from then on others see the resources that it takes, and the
    /// rest may take minutes.
    First,
    /// Until it is planned: it already holds its resources, and its steps may take minutes. A start
    /// or an undo takes the lock again.
    Planning,
}

/// A part of a change.
#[derive(Debug)]
pub enum Part {
    /// Plain steps.
    Steps(Vec<Step>),
    /// A domain's definition and related steps; recorded for `undo`.
    Domain(DomainChange),
    /// Settings of the host; recorded for `host undo`.
    Host(Vec<Step>),
    /// Stores the driver's report of NVLinks and of the health of GPUs: before it loses GPUs, and
    /// once it has them back.
    Reports,
    /// Reads a new definition back, and reports differences.
    ReadBack {
        /// The domain.
        name: String,
        /// The planned definition.
        planned: DomainXml,
    },
    /// From here on an interrupted run has nothing to undo; a signal still undoes everything.
    Complete,
}

/// A change of a domain that is recorded in its history.
#[derive(Debug, Clone)]
pub struct DomainChange {
    /// The verb.
    pub verb: &'static str,
    /// The domain's name.
    pub name: String,
    /// The changed settings, a line each.
    pub what: Vec<String>,
    /// Its definition before, as read.
    pub before: String,
    /// Its definition after.
    pub after: DomainXml,
    /// Steps before the change of the definition.
    pub first: Vec<Step>,
    /// Steps after it: changes of the running domain.
    pub last: Vec<Step>,
}

impl DomainChange {
    /// Returns the step that changes the definition.
    fn redefine(&self) -> Step {
        Step::Domain(DomainStep::Redefine {
            name: self.name.clone(),
            xml: self.after.text().to_owned(),
            before: self.before.clone(),
        })
    }

    /// All steps.
    pub fn steps(&self) -> Vec<Step> {
        let is_same = self.before == self.after.text();
        let redefine = (!is_same).then(|| self.redefine());
        let all = self.first.iter().cloned().chain(redefine);
        all.chain(self.last.iter().cloned()).collect()
    }
}

impl<T> Change<T> {
    /// Makes a change of these steps that is journaled, holds the lock and asks nothing.
    pub fn new(verb: &'static str, subject: &str, steps: Vec<Step>, about: T) -> Change<T> {
        Change {
            verb,
            subject: subject.to_owned(),
            parts: vec![Part::Steps(steps)],
            losses: Vec::new(),
            warnings: Vec::new(),
            question: None,
            again: format!("gpuvm {verb}"),
            hold: Hold::Through,
            journal: true,
            about,
        }
    }

    /// The same with its data, where a change may not be needed.
    pub(crate) fn needed(self) -> Change<Option<T>> {
        let Change {
            verb,
            subject,
            parts,
            losses,
            warnings,
            question,
            again,
            hold,
            journal,
            about,
        } = self;
        let about = Some(about);
        Change { verb, subject, parts, losses, warnings, question, again, hold, journal, about }
    }

    /// Returns all steps that the user sees and confirms.
    pub fn steps(&self) -> Vec<Step> {
        let mut all = Vec::new();
        for part in &self.parts {
            match part {
                Part::Steps(steps) | Part::Host(steps) => all.extend(steps.iter().cloned()),
                Part::Domain(change) => all.extend(change.steps()),
                Part::Reports | Part::ReadBack { .. } | Part::Complete => {}
            }
        }
        all
    }

    /// Refuses the loss of data that was not agreed to.
    pub fn refuse_losses(&self) -> Result<()> {
        if self.losses.is_empty() {
            return Ok(());
        }
        let question = Question::Losses { name: self.subject.clone() };
        question.settle(Answer::Nobody, &self.losses)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Steps(steps) | Part::Host(steps) => steps.is_empty(),
            Part::Domain(change) => change.steps().is_empty(),
            Part::Reports | Part::ReadBack { .. } | Part::Complete => true,
        })
    }
}
