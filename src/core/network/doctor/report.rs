//! Hops with their verdicts and findings. Knows no rule.

use crate::finding::{self, Rule, Says, Severity};
use serde::Serialize;

/// How a hop was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It passes packets, possibly with a warning.
    Ok,
    /// It does not.
    Broken,
    /// That could not be asked.
    NotChecked,
}

/// The faults of a hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfHop {
    /// The subject: `the tap is`.
    pub what: String,
    /// The value expected.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// Where.
    pub at: String,
}

impl Says for OfHop {
    /// A hop has only a handful of rules.
    const MOST_OF_ONE_RULE: usize = usize::MAX;

    fn rules() -> impl Iterator<Item = &'static Rule> {
        super::RULES.iter()
    }

    fn say_more(&mut self, text: &str) {
        self.found += text;
    }
}

/// A finding about a hop; an error breaks the path.
pub type Finding = finding::Finding<OfHop>;

/// A stage of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hop {
    /// Its name: `tap vnet0`.
    pub name: String,
    /// How it was found.
    pub verdict: Verdict,
    /// Its description, or why it was not checked; half a sentence, or empty.
    pub says: String,
    /// Its faults.
    pub findings: Vec<Finding>,
}

impl Hop {
    /// Appends to its description.
    pub fn says(&mut self, what: impl AsRef<str>) {
        if !self.says.is_empty() {
            self.says += ", ";
        }
        self.says += what.as_ref();
    }

    /// Adds a finding: subject, expected and actual value, place, hint.
    pub fn wrong(
        &mut self,
        rule: &'static Rule,
        what: impl Into<String>,
        (expected, found): (impl ToString, impl ToString),
        at: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if rule.severity == Severity::Error {
            self.verdict = Verdict::Broken;
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        let says = OfHop { what: what.into(), expected, found, at: at.into() };
        self.findings.push(Finding::by(rule, says, hint));
    }
}

/// The findings about a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// The NIC's number in its domain, from 1.
    pub nic: usize,
    /// Its MAC address.
    pub mac: String,
    /// The hops from the guest to the host's NIC.
    pub hops: Vec<Hop>,
    /// Facts that are by design, not faults.
    pub notes: Vec<String>,
}

impl Diagnosis {
    /// Whether a hop is broken.
    pub fn is_broken(&self) -> bool {
        self.hops.iter().any(|hop| hop.verdict == Verdict::Broken)
    }
}

/// Collects hops in their order.
#[derive(Debug, Default)]
pub(super) struct Hops(Vec<Hop>);

impl Hops {
    /// Adds a hop without findings so far.
    pub(super) fn hop(&mut self, name: &str) -> &mut Hop {
        self.add(name, Verdict::Ok, String::new())
    }

    /// Adds a hop that was not checked, and why.
    pub(super) fn unchecked(&mut self, name: &str, why: &str) {
        self.add(name, Verdict::NotChecked, why.to_owned());
    }

    fn add(&mut self, name: &str, verdict: Verdict, says: String) -> &mut Hop {
        let at = self.0.len();
        self.0.push(Hop { name: name.to_owned(), verdict, says, findings: Vec::new() });
        &mut self.0[at]
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn since(&mut self, first: usize) -> &mut [Hop] {
        self.0.get_mut(first..).unwrap_or_default()
    }

    pub(super) fn last(&mut self) -> Option<&mut Hop> {
        self.0.last_mut()
    }

    pub(super) fn finish(self) -> Vec<Hop> {
        self.0
    }
}
