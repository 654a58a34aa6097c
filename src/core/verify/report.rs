//! Findings of a comparison. Knows no rule.

use crate::check::{Rule, Severity};
use serde::Serialize;
use std::collections::BTreeMap;

/// The most findings of one rule that are shown; the last one says how many more there are.
const MOST_OF_ONE_RULE: usize = 20;

/// Is which two things differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// What is real is not what the running domain's XML says.
    Reality,
    /// What the guest itself sees is not what the running domain's XML says.
    Guest,
    /// The host is set so that the guest suffers.
    Host,
    /// What runs is not the definition that the next start takes.
    Pending,
    /// The definition is not what was asked for when the guest was made.
    Plan,
    /// The domain breaks a rule that `check` has, or cannot be read.
    Rule,
}

/// Is one difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Which two things differ.
    pub between: Between,
    /// What is wrong, with expected and found in it.
    pub message: String,
    /// What should be.
    pub expected: Option<String>,
    /// What is.
    pub found: Option<String>,
    /// Where: a path in the XML, a thread, a node, a file.
    pub at: String,
    /// What to do.
    pub hint: String,
}

impl Finding {
    /// Whether two findings are the same one, seen at two times: ids of processes change, places do not.
    pub fn is_same(&self, other: &Finding) -> bool {
        (self.rule, &self.message) == (other.rule, &other.message)
    }

    /// Whether it says that the domain could not be compared at all.
    pub fn is_not_compared(&self) -> bool {
        self.rule == super::NOT_COMPARED.id
    }
}

/// Is something that is not as it should be.
pub struct Wrong<'a> {
    /// What it is: `vcpu 1 may run on`.
    pub what: String,
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
    /// Where.
    pub at: String,
    /// What to do.
    pub hint: &'a str,
}

/// Collects findings.
#[derive(Debug, Default)]
pub struct Report {
    /// What was found.
    found: Vec<Finding>,
}

impl Report {
    /// Adds a difference.
    pub fn differs(&mut self, rule: &'static Rule, between: Between, wrong: Wrong<'_>) {
        let Wrong { what, expected, found, at, hint } = wrong;
        let message = format!("{what}: expected {expected}, found {found}");
        self.found.push(Finding {
            rule: rule.id,
            severity: rule.severity,
            between,
            message,
            expected: Some(expected),
            found: Some(found),
            at,
            hint: hint.to_owned(),
        });
    }

    /// Adds findings of another kind.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.found.extend(findings);
    }

    /// The findings, errors first, then by what differs; of one rule not more than anybody reads.
    pub fn finish(mut self) -> Vec<Finding> {
        self.found.sort_by_key(|finding| (finding.severity, finding.between));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut findings: Vec<Finding> = Vec::new();
        for finding in self.found {
            let count = counts.entry(finding.rule).or_default();
            *count += 1;
            if *count <= MOST_OF_ONE_RULE {
                findings.push(finding);
            }
        }
        for (rule, count) in counts.into_iter().filter(|&(_, count)| count > MOST_OF_ONE_RULE) {
            let last = findings.iter_mut().rev().find(|finding| finding.rule == rule);
            if let Some(last) = last {
                last.message += &format!(" (and {} more like it)", count - MOST_OF_ONE_RULE);
            }
        }
        findings
    }
}
