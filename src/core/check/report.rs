//! Findings with their places in the XML. Knows no rule.

use crate::domain::read::Spot;
use crate::finding::{self, Rule, Says};
use serde::Serialize;

/// A fault of a domain, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InXml {
    /// Path of the element or attribute: `/domain/cputune/vcpupin[3]/@cpuset`.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// The fault, with numbers.
    pub message: String,
}

impl Says for InXml {
    const MOST_OF_ONE_RULE: usize = 50;

    fn rules() -> impl Iterator<Item = &'static Rule> {
        super::rules()
    }

    fn say_more(&mut self, text: &str) {
        self.message += text;
    }
}

/// A finding about a domain, with its place in the XML.
pub type Finding = finding::Finding<InXml>;

/// A deviation that this host or the request does not allow to improve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Note {
    /// Id of its rule.
    pub rule: &'static str,
    /// Path of the element or attribute.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// The deviation, and why it stays.
    pub message: String,
}

/// Collects findings; at most one per rule and place.
#[derive(Debug, Default)]
pub struct Report<'t> {
    /// Findings with places not resolved yet.
    found: Vec<(&'static Rule, Spot<'t>, String, String)>,
    /// Notes with places not resolved yet.
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
        let mut notes: Vec<Note> = notes.take(InXml::MOST_OF_ONE_RULE).map(note).collect();
        notes.sort_by_key(|note| note.line);
        notes
    }

    /// The findings, errors first, then by line.
    pub fn finish(self) -> Vec<Finding> {
        let found = self.found.into_iter().map(|(rule, spot, message, hint)| {
            let says = InXml { path: spot.path(), line: spot.line(), message };
            Finding::by(rule, says, hint)
        });
        let mut findings = finding::capped(found);
        findings.sort_by_key(|finding| (finding.severity, finding.says.line));
        findings
    }
}
