//! A change that is planned, before anything is done: what it would do, what it would cost, what is asked first.

use crate::apply::Step;
use crate::domain::DomainXml;
use crate::reporter::Question;

/// A planned change; `T`: what the caller needs to know of it afterwards.
#[derive(Debug)]
pub struct Change<T = ()> {
    /// The verb, as the journal has it.
    pub verb: &'static str,
    /// What is changed, as the journal has it.
    pub subject: String,
    /// What is done, in this order; nothing: it is so already.
    pub parts: Vec<Part>,
    /// What would be lost, a phrase each: asked about by [`Question::Losses`].
    pub losses: Vec<String>,
    /// What is not as it should be.
    pub warnings: Vec<String>,
    /// What is asked first; none: nothing needs to be.
    pub question: Option<Question>,
    /// The command that asks anew, where something has changed since the question.
    pub again: String,
    /// How long others are kept out.
    pub hold: Hold,
    /// Whether what is done is written down before, so that a killed run is finished or undone.
    pub journal: bool,
    /// What the caller needs to know.
    pub about: T,
}

/// How long the host's lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until all is done.
    Through,
    /// Until what follows it was read, too: the answer is what was made, and not what somebody has made of it since.
    Answered,
    /// Until its first part is done: by what that makes everybody sees what it takes, and the rest may take minutes.
    First,
    /// Until it is planned: what it takes it has already, and what is done may take minutes. A start and an undoing take
    /// it again.
    Planning,
}

/// A part of a change.
#[derive(Debug)]
pub enum Part {
    /// Plain steps.
    Steps(Vec<Step>),
    /// A domain's definition, and what goes with it; kept, so that `undo` takes it back.
    Domain(DomainChange),
    /// Settings of the host; kept, so that `host undo` takes them back.
    Host(Vec<Step>),
    /// What the driver tells of NVLinks is kept, before it loses GPUs.
    Links,
    /// A definition that was made is read back, and said where it is otherwise.
    ReadBack {
        /// The domain.
        name: String,
        /// What was planned.
        planned: DomainXml,
    },
    /// From here on a killed run has nothing to be undone; a signal still undoes all.
    Complete,
}

/// A change of a domain that is to be made and kept.
#[derive(Debug, Clone)]
pub struct DomainChange {
    /// The verb.
    pub verb: &'static str,
    /// The domain's name.
    pub name: String,
    /// What is changed, a line each.
    pub what: Vec<String>,
    /// Its definition before, as it was read.
    pub before: String,
    /// Its definition after.
    pub after: DomainXml,
    /// What is changed beside the definition before it is.
    pub first: Vec<Step>,
    /// What is changed beside the definition after it was: what runs.
    pub last: Vec<Step>,
}

impl DomainChange {
    /// The step that changes the definition.
    fn redefine(&self) -> Step {
        Step::RedefineDomain {
            name: self.name.clone(),
            xml: self.after.text().to_owned(),
            before: self.before.clone(),
        }
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
    /// A change of these steps that is written down, holds the lock and asks nothing.
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

    /// All steps that a caller is shown and agrees to.
    pub fn steps(&self) -> Vec<Step> {
        let mut all = Vec::new();
        for part in &self.parts {
            match part {
                Part::Steps(steps) | Part::Host(steps) => all.extend(steps.iter().cloned()),
                Part::Domain(change) => all.extend(change.steps()),
                Part::Links | Part::ReadBack { .. } | Part::Complete => {}
            }
        }
        all
    }

    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Steps(steps) | Part::Host(steps) => steps.is_empty(),
            Part::Domain(change) => change.steps().is_empty(),
            Part::Links | Part::ReadBack { .. } | Part::Complete => true,
        })
    }
}
