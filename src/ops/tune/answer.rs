//! The report on a tuned domain.

use super::extra::Extra;
use super::subject::Subject;
use crate::apply::Step;
use crate::placement::{Because, Reason, Topic};
use gpuvm_core::check::{Finding, HUGE_PAGES_SHORT, is_said};
use gpuvm_core::shell::word;
use gpuvm_core::tune::{Change, Left, TuneError, Tuned};
use serde::Serialize;

/// A setting that stays as the domain's owner chose it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftAlone {
    /// Its present and its planned state.
    #[serde(flatten)]
    pub left: Left,
    /// The command that changes it.
    pub command: String,
}

/// The result for one domain.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TunedDomain {
    /// Its name.
    pub name: String,
    /// Whether something is different.
    pub changed: bool,
    /// Whether it is running, so that differences take effect at its next start.
    pub waits_for_start: bool,
    /// With --live: the parts of the definition that wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Vec<String>>,
    /// Changes on the host and of the running guest, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// Remains of the previous state, and how to remove them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stays: Vec<String>,
    /// Requests that were not met, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone: Option<String>,
    /// The differences.
    pub changes: Vec<Change>,
    /// The compromises; with --explain every reason.
    pub reasons: Vec<Reason>,
    /// Settings that stay as its owner chose them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_alone: Vec<LeftAlone>,
    /// The findings of `check` in it afterwards.
    pub findings: Vec<Finding>,
    /// Why it cannot be tuned; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The tuned definition, of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xml: Option<String>,
}

impl TunedDomain {
    /// The report on a domain.
    pub fn of(subject: &Subject, tuned: Result<&Tuned, &TuneError>, explain: bool) -> TunedDomain {
        let mut domain = TunedDomain {
            name: subject.name.clone(),
            changed: false,
            waits_for_start: false,
            waits: None,
            beside: Vec::new(),
            stays: Vec::new(),
            undone: None,
            changes: Vec::new(),
            reasons: Vec::new(),
            left_alone: Vec::new(),
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
                domain.reasons = reasons(subject, tuned, explain);
                domain.findings = findings(subject, tuned);
            }
        }
        domain
    }

    /// The same with the changes beside the definition.
    pub fn with_extra(self, extra: &Extra) -> TunedDomain {
        if self.refused.is_some() {
            return self;
        }
        let beside = extra.first.iter().chain(&extra.last).map(Step::to_string).collect();
        let waits = extra.waits.clone();
        let all_live = waits.as_ref().is_some_and(Vec::is_empty);
        let waits_for_start = self.waits_for_start && !all_live;
        let stays = extra.stays.clone();
        let undone = extra.undone.clone();
        TunedDomain { beside, waits, waits_for_start, stays, undone, ..self }
    }

    /// The same with the settings that stay as its owner chose them.
    pub fn with_left(self, subject: &Subject, left: &[Left]) -> TunedDomain {
        let one = |left: &Left| {
            let (name, item) = (word(&subject.called), left.item);
            LeftAlone { command: format!("gpuvm tune {name} --{item} on"), left: left.clone() }
        };
        TunedDomain { left_alone: left.iter().map(one).collect(), ..self }
    }

    /// The same with the definition.
    pub fn with_xml(self, tuned: &Tuned) -> TunedDomain {
        TunedDomain { xml: Some(tuned.after.text().to_owned()), ..self }
    }

    /// Whether something is different, in its definition or beside it.
    pub fn is_changed(&self) -> bool {
        self.changed || !self.beside.is_empty()
    }

    /// What would change, in lines that follow `will`.
    pub fn agreed(&self) -> Vec<String> {
        let changes = self.changes.iter().map(|Change { item, was, now }| {
            let name = &self.name;
            if was == now {
                format!("change {item} of `{name}` to another {now}")
            } else {
                format!("change {item} of `{name}` from {was} to {now}")
            }
        });
        changes.chain(self.beside.iter().cloned()).collect()
    }
}

/// The reasons that are reported: a running guest holds its own pages, so too few free ones are not
/// relevant.
fn reasons(subject: &Subject, tuned: &Tuned, explain: bool) -> Vec<Reason> {
    let is_told = |reason: &&Reason| {
        (explain || reason.compromise) && !(subject.running && reason.choice == Topic::HugePages)
    };
    let reasons = tuned.reasons.iter().filter(is_told).cloned();
    reasons.map(|reason| named(subject, reason)).collect()
}

/// A reason whose commands name the file that was read.
fn named(subject: &Subject, mut reason: Reason) -> Reason {
    if let Because::Said(words) = &mut reason.because {
        *words = subject.naming(words);
    }
    reason
}

/// The findings to be reported that no reason has reported. Of a file their commands name the file.
fn findings(subject: &Subject, tuned: &Tuned) -> Vec<Finding> {
    let is_told = |finding: &&Finding| {
        let is_taken = subject.running && finding.rule == HUGE_PAGES_SHORT;
        !is_taken && !is_said(finding, &tuned.reasons)
    };
    let findings = tuned.findings.iter().filter(is_told).cloned();
    findings.map(|finding| Finding { hint: subject.naming(&finding.hint), ..finding }).collect()
}

/// Warnings to the admin about a tuned domain, one line each; `reserves`: the pages that it misses
/// are reserved with it.
pub fn warnings(
    subject: &Subject,
    tuned: &Tuned,
    (explain, reserves): (bool, bool),
) -> Vec<String> {
    let is_told = |reason: &Reason| !(reserves && reason.choice == Topic::HugePages);
    let reasons = reasons(subject, tuned, explain).into_iter().filter(is_told);
    let reasons = reasons.map(|reason| format!("{}: {}", reason.choice, reason.because));
    let findings = findings(subject, tuned).into_iter();
    let findings = findings.filter(|finding| !(reserves && finding.rule == HUGE_PAGES_SHORT));
    reasons.chain(findings.map(|f| format!("{}: {}", f.says.path, f.says.message))).collect()
}
