//! What `tune` says of each domain: for people, and as JSON.

use super::extra::Extra;
use super::subjects::Subject;
use crate::apply::Step;
use crate::check::{Finding, HUGE_PAGES_SHORT};
use crate::cli::output::Output;
use crate::placement::{Reason, Topic};
use crate::tune::{Change, TuneError, Tuned};
use serde::Serialize;

/// Is what is said of all domains.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Answer {
    /// The domains, in the order in which they were named.
    pub domains: Vec<Domain>,
}

/// Is what is said of one domain.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Domain {
    /// Its name.
    name: String,
    /// Whether something is different.
    changed: bool,
    /// Whether it runs, so that what is different waits for its next start.
    waits_for_start: bool,
    /// With --live: the parts of the definition that wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<Vec<String>>,
    /// What is changed on the host for it, and of what runs, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<String>,
    /// What is left of what was before, and how that goes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stays: Vec<String>,
    /// What was asked for and is not done, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    undone: Option<String>,
    /// What is different.
    changes: Vec<Change>,
    /// What is a compromise; with --explain every reason.
    reasons: Vec<Reason>,
    /// What our checker finds in it then.
    findings: Vec<Finding>,
    /// Why it cannot be tuned; none: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The tuned definition, of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    xml: Option<String>,
}

/// Is the answer with what would be done.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct WithSteps<'a> {
    /// The domains.
    domains: &'a [Domain],
    /// The steps.
    #[serde(skip_serializing_if = "<[Step]>::is_empty")]
    steps: &'a [Step],
}

impl Domain {
    /// What is said of a domain.
    pub fn of(subject: &Subject, tuned: Result<&Tuned, &TuneError>, explain: bool) -> Domain {
        let mut domain = Domain {
            name: subject.name.clone(),
            changed: false,
            waits_for_start: false,
            waits: None,
            beside: Vec::new(),
            stays: Vec::new(),
            undone: None,
            changes: Vec::new(),
            reasons: Vec::new(),
            findings: Vec::new(),
            refused: None,
            xml: None,
        };
        match tuned {
            Err(error) => domain.refused = Some(error.to_string()),
            Ok(tuned) => {
                domain.changed = !tuned.changes.is_empty();
                domain.waits_for_start = domain.changed && subject.running;
                domain.changes.clone_from(&tuned.changes);
                domain.reasons = said(subject, tuned, explain);
                domain.findings = found(subject, tuned);
            }
        }
        domain
    }

    /// The same with what is changed beside the definition.
    pub fn with_extra(self, extra: &Extra) -> Domain {
        if self.refused.is_some() {
            return self;
        }
        let beside = extra.first.iter().chain(&extra.last).map(Step::to_string).collect();
        let waits = extra.waits.clone();
        let all_live = waits.as_ref().is_some_and(Vec::is_empty);
        let waits_for_start = self.waits_for_start && !all_live;
        let stays = extra.stays.clone();
        let undone = extra.undone.clone();
        Domain { beside, waits, waits_for_start, stays, undone, ..self }
    }

    /// The same with the definition.
    pub fn with_xml(self, tuned: &Tuned) -> Domain {
        Domain { xml: Some(tuned.after.text().to_owned()), ..self }
    }

    /// It in lines.
    fn lines(&self, done: bool) -> Vec<String> {
        let Domain { name, refused, changes, .. } = self;
        if let Some(why) = refused {
            return vec![format!("{name}: cannot be tuned: {}", why.replace('\n', ";"))];
        }
        let beside = self.beside.iter().map(|words| format!("  {words}"));
        let waits = self.waits.iter().filter(|waits| !waits.is_empty());
        let waits = waits.map(|waits| format!("  waits for the next start: {}", waits.join(", ")));
        let waits = waits.chain(self.undone.iter().map(|why| format!("  {why}")));
        if changes.is_empty() && self.beside.is_empty() {
            let nothing = format!("{name}: nothing to do");
            let undone = self.undone.iter().map(|why| format!("  {why}"));
            return std::iter::once(nothing).chain(undone).collect();
        }
        if changes.is_empty() {
            let is = format!("{name} is defined so already");
            return std::iter::once(is).chain(beside).chain(waits).collect();
        }
        let when = match (self.waits_for_start, done) {
            (true, true) => " is changed; the running guest gets it at its next start",
            (true, false) => " would change; the running guest would get it at its next start",
            (false, true) => " is changed",
            (false, false) => " would change",
        };
        let line = |Change { item, was, now }: &Change| format!("  {item}: {was} -> {now}");
        let first = std::iter::once(format!("{name}{when}"));
        let stays = self.stays.iter().map(|words| format!("  {words}"));
        first.chain(changes.iter().map(line)).chain(beside).chain(stays).chain(waits).collect()
    }
}

impl Answer {
    /// Whether something is different in one of them.
    pub fn changes(&self) -> bool {
        self.domains.iter().any(|domain| domain.changed || !domain.beside.is_empty())
    }

    /// What would change, in lines that follow `will`.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.domains.iter().flat_map(|domain| {
            let changes = domain.changes.iter().map(|Change { item, was, now }| {
                format!("change {item} of `{}` from {was} to {now}", domain.name)
            });
            changes.chain(domain.beside.iter().cloned())
        });
        lines.collect()
    }

    /// Prints it; `done`: the changes are made.
    pub fn print(&self, output: Output, steps: &[Step], done: bool) -> std::io::Result<()> {
        if output.json {
            return output.json("gpuvm-tune", &WithSteps { domains: &self.domains, steps });
        }
        let lines = self.domains.iter().flat_map(|domain| {
            let why = domain.reasons.iter().map(|reason| {
                let mark = if reason.compromise { '!' } else { ' ' };
                format!("  {mark} {}: {}", reason.choice, reason.because)
            });
            let found =
                domain.findings.iter().map(|f| format!("  ! {}: {}", f.says.path, f.says.message));
            let more: Vec<String> = if done { Vec::new() } else { why.chain(found).collect() };
            domain.lines(done).into_iter().chain(more)
        });
        output.text(&lines.map(|line| line + "\n").collect::<String>())
    }
}

/// The reasons that are told: a running guest holds its own pages, so that too few are free says nothing.
fn said(subject: &Subject, tuned: &Tuned, explain: bool) -> Vec<Reason> {
    let is_said = |reason: &&Reason| {
        (explain || reason.compromise) && !(subject.running && reason.choice == Topic::HugePages)
    };
    tuned.reasons.iter().filter(is_said).cloned().collect()
}

/// The findings that are told.
fn found(subject: &Subject, tuned: &Tuned) -> Vec<Finding> {
    let is_told = |finding: &&Finding| !(subject.running && finding.rule == HUGE_PAGES_SHORT);
    tuned.findings.iter().filter(is_told).cloned().collect()
}

/// What an admin should know of a tuned domain, one line each.
pub fn warnings(subject: &Subject, tuned: &Tuned, explain: bool) -> Vec<String> {
    let reasons = said(subject, tuned, explain).into_iter();
    let reasons = reasons.map(|reason| format!("{}: {}", reason.choice, reason.because));
    let findings = found(subject, tuned).into_iter();
    reasons.chain(findings.map(|f| format!("{}: {}", f.says.path, f.says.message))).collect()
}
