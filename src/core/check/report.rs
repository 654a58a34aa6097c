//! Findings and the rules they come from. Knows no rule.

use crate::domain::read::Spot;
use serde::Serialize;
use std::collections::BTreeMap;

/// The most findings of one rule that are shown; the last one says how many more there are.
const MOST_OF_ONE_RULE: usize = 50;

/// Is how bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It does not start, or takes what is another's, or does not do what it says.
    Error,
    /// It works, but worse than it could.
    Warning,
}

/// Is one thing that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its name; never changes, so that scripts can name it.
    pub id: &'static str,
    /// How bad its findings are.
    pub severity: Severity,
    /// What it refuses, half a sentence.
    pub refuses: &'static str,
}

impl Rule {
    /// Makes a rule whose findings are errors.
    pub const fn error(id: &'static str, refuses: &'static str) -> Rule {
        Rule { id, severity: Severity::Error, refuses }
    }

    /// Makes a rule whose findings are warnings.
    pub const fn warning(id: &'static str, refuses: &'static str) -> Rule {
        Rule { id, severity: Severity::Warning, refuses }
    }
}

/// Is something wrong with a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Path of the element or attribute: `/domain/cputune/vcpupin[3]/@cpuset`.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, with numbers.
    pub message: String,
    /// What to change.
    pub hint: String,
}

/// What is worse than it could be, and is as good as this host or what was asked for lets it be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Id of the rule that it is of.
    pub rule: &'static str,
    /// Path of the element or attribute.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is so, and why it stays.
    pub message: String,
}

/// Collects findings; at most one of a rule and a place.
#[derive(Debug, Default)]
pub struct Report<'t> {
    /// Findings with places not worked out yet.
    found: Vec<(&'static Rule, Spot<'t>, String, String)>,
    /// Notes with places not worked out yet.
    notes: Vec<(&'static Rule, Spot<'t>, String)>,
}

impl<'t> Report<'t> {
    /// Adds a finding.
    pub fn add(
        &mut self,
        rule: &'static Rule,
        spot: Spot<'t>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.found.push((rule, spot, message.into(), hint.into()));
    }

    /// Adds a note.
    pub fn note(&mut self, rule: &'static Rule, spot: Spot<'t>, message: impl Into<String>) {
        self.notes.push((rule, spot, message.into()));
    }

    /// The notes, by line.
    pub fn notes(&mut self) -> Vec<Note> {
        let notes = std::mem::take(&mut self.notes).into_iter();
        let note = |(rule, spot, message): (&Rule, Spot<'_>, String)| Note {
            rule: rule.id,
            path: spot.path(),
            line: spot.line(),
            message,
        };
        let mut notes: Vec<Note> = notes.take(MOST_OF_ONE_RULE).map(note).collect();
        notes.sort_by_key(|note| note.line);
        notes
    }

    /// The findings, errors first, then by line.
    pub fn finish(self) -> Vec<Finding> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut findings: Vec<Finding> = Vec::new();
        for (rule, spot, message, hint) in self.found {
            let count = counts.entry(rule.id).or_default();
            *count += 1;
            if *count <= MOST_OF_ONE_RULE {
                let (path, line) = (spot.path(), spot.line());
                let Rule { id, severity, .. } = *rule;
                findings.push(Finding { rule: id, severity, path, line, message, hint });
            }
        }
        for (rule, count) in counts.into_iter().filter(|&(_, count)| count > MOST_OF_ONE_RULE) {
            let last = findings.iter_mut().rev().find(|finding| finding.rule == rule);
            if let Some(last) = last {
                last.message += &format!(" (and {} more like it)", count - MOST_OF_ONE_RULE);
            }
        }
        findings.sort_by_key(|finding| (finding.severity, finding.line));
        findings
    }
}
