//! Findings about a host, and skipped checks. Knows no rule.

use crate::bdf::Bdf;
use crate::finding::{self, Rule, Says, Severity};
use crate::topology::Facts;
use serde::Serialize;
use std::collections::BTreeMap;

/// A fault of a host, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfHost {
    /// The fault.
    pub message: String,
    /// The value expected.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// Where: a file, a kernel argument.
    pub at: String,
    /// The device that it is about; `None` for the whole host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Bdf>,
    /// Whether a guest with this device surely fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fatal: bool,
    /// Commands that fix it, in their order; `#` begins a step that no command does.
    pub fix: Vec<String>,
}

impl Says for OfHost {
    const MOST_OF_ONE_RULE: usize = 20;

    fn rules() -> impl Iterator<Item = &'static Rule> {
        super::rules()
    }

    fn say_more(&mut self, text: &str) {
        self.message += text;
    }
}

/// A finding about a host.
pub type Finding = finding::Finding<OfHost>;

pub(super) struct Wrong {
    /// The fault.
    pub message: String,
    /// Expected and found value.
    pub values: (String, String),
    /// The place.
    pub at: String,
    /// The remedy.
    pub hint: String,
    /// The commands.
    pub fix: Vec<String>,
}

pub(super) struct Report<'a> {
    /// The facts, with those that could not be read.
    facts: &'a Facts,
    found: Vec<Finding>,
    /// Rules that were not checked, with the reason.
    not_checked: BTreeMap<&'static str, String>,
    /// Rules that were checked in part, with the missing part.
    partly_checked: BTreeMap<&'static str, String>,
}

pub(super) struct Outcome {
    /// Findings, errors first, then in the order of the rules.
    pub findings: Vec<Finding>,
    /// Rules that were not checked, in their order, each with the reason.
    pub not_checked: Vec<String>,
    /// The same of rules that were checked in part.
    pub partly_checked: Vec<String>,
}

impl<'a> Report<'a> {
    /// An empty report.
    pub fn new(facts: &'a Facts) -> Report<'a> {
        let (not_checked, partly_checked) = (BTreeMap::new(), BTreeMap::new());
        Report { facts, found: Vec::new(), not_checked, partly_checked }
    }

    /// Adds a finding about the host.
    pub fn add(&mut self, rule: &'static Rule, wrong: Wrong) -> &mut Finding {
        let Wrong { message, values: (expected, found), at, hint, fix } = wrong;
        let [message, expected, found, at, hint] =
            [message, expected, found, at, hint].map(|text| line(&text));
        let fix = fix.iter().map(|text| line(text)).collect();
        let says = OfHost { message, expected, found, at, device: None, fatal: false, fix };
        let place = self.found.len();
        self.found.push(Finding::by(rule, says, hint));
        &mut self.found[place]
    }

    /// Adds a finding about a device.
    pub fn of(&mut self, rule: &'static Rule, bdf: Bdf, wrong: Wrong) -> &mut Finding {
        let finding = self.add(rule, wrong);
        finding.says.device = Some(bdf);
        finding
    }

    /// Returns a fact; without it notes that a rule was not checked. `path`: where it is read.
    pub fn need<'f, T>(
        &mut self,
        rule: &'static Rule,
        fact: &'f Option<T>,
        path: &str,
    ) -> Option<&'f T> {
        if fact.is_none() {
            let unread = self.facts.unread.get(path).cloned();
            let why = unread.unwrap_or_else(|| format!("/{path} is not known"));
            self.skip(rule, why);
        }
        fact.as_ref()
    }

    /// The same for a fact without which a rule is still checked in part.
    pub fn need_part<'f, T>(
        &mut self,
        rule: &'static Rule,
        fact: &'f Option<T>,
        path: &str,
    ) -> Option<&'f T> {
        if fact.is_none() {
            let unread = self.facts.unread.get(path).cloned();
            self.skip_part(rule, unread.unwrap_or_else(|| format!("/{path} is not known")));
        }
        fact.as_ref()
    }

    /// Notes that a rule was not checked.
    pub fn skip(&mut self, rule: &'static Rule, why: impl Into<String>) {
        self.not_checked.entry(rule.id).or_insert_with(|| line(&why.into()));
    }

    /// Notes that a rule was checked in part.
    pub fn skip_part(&mut self, rule: &'static Rule, why: impl Into<String>) {
        self.partly_checked.entry(rule.id).or_insert_with(|| line(&why.into()));
    }

    /// Returns the findings and the skipped checks. A rule with a finding was checked, at least in
    /// part.
    pub fn finish(mut self) -> Outcome {
        let order: Vec<&str> = super::rules().map(|rule| rule.id).collect();
        let place = |id: &str| order.iter().position(|known| *known == id);
        let mut findings = finding::capped(self.found);
        findings.sort_by_key(|finding| (finding.severity, place(finding.rule)));
        for finding in &findings {
            if let Some(why) = self.not_checked.remove(finding.rule) {
                self.partly_checked.entry(finding.rule).or_insert(why);
            }
        }
        self.partly_checked.retain(|id, _| !self.not_checked.contains_key(id));
        let listed = |skipped: BTreeMap<&'static str, String>| {
            let mut skipped: Vec<_> = skipped.into_iter().collect();
            skipped.sort_by_key(|(id, _)| place(id));
            skipped.into_iter().map(|(id, why)| format!("{id} ({why})")).collect()
        };
        let (not_checked, partly_checked) = (listed(self.not_checked), listed(self.partly_checked));
        Outcome { findings, not_checked, partly_checked }
    }
}

/// Returns a text as one line. It may have names of the host's processes and files in it, and is
/// part of a script.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Lowers a finding to a warning.
pub(super) fn warn(finding: &mut Finding) {
    finding.severity = Severity::Warning;
}
