//! Findings of a comparison. Knows no rule.

use crate::finding::{self, Rule, Says};
use crate::load::VERIFY_RULES;
use serde::Serialize;

/// Which two states differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// The real state differs from the running domain's XML.
    Reality,
    /// The guest's own view differs from the running domain's XML.
    Guest,
    /// A host setting harms the guest.
    Host,
    /// The running domain differs from the definition of its next start.
    Pending,
    /// The definition differs from the request when the guest was created.
    Plan,
    /// The domain violates a rule of `check`, or cannot be read.
    Rule,
}

/// The difference, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Differs {
    /// Which two states differ.
    pub between: Between,
    /// The fault, with the expected and the found value.
    pub message: String,
    /// The value expected.
    pub expected: Option<String>,
    /// The value found.
    pub found: Option<String>,
    /// Where: a path in the XML, a thread, a node, a file.
    pub at: String,
}

impl Says for Differs {
    const MOST_OF_ONE_RULE: usize = 20;

    fn rules() -> impl Iterator<Item = &'static Rule> {
        super::rules()
    }

    fn say_more(&mut self, text: &str) {
        self.message += text;
    }
}

/// One difference.
pub type Finding = finding::Finding<Differs>;

impl Finding {
    /// Whether two findings are the same at different times: process ids change, places do not.
    /// Findings of samples have a different number each time, and are identified by their thread.
    pub fn is_same(&self, other: &Finding) -> bool {
        let is_sampled = VERIFY_RULES.iter().any(|rule| rule.id == self.rule);
        let of = |says: &Differs| if is_sampled { says.at.clone() } else { says.message.clone() };
        self.rule == other.rule && of(&self.says) == of(&other.says)
    }

    /// Whether it says that the domain could not be compared at all.
    pub fn is_not_compared(&self) -> bool {
        self.rule == super::NOT_COMPARED.id
    }
}

/// A difference from the expected state.
pub struct Wrong<'a> {
    /// The subject: `vcpu 1 may run on`.
    pub what: String,
    /// The expected value.
    pub expected: String,
    /// The actual value.
    pub found: String,
    /// The place.
    pub at: String,
    /// The remedy.
    pub hint: &'a str,
}

/// Collects findings.
#[derive(Debug, Default)]
pub struct Report {
    found: Vec<Finding>,
}

impl Report {
    /// Adds a difference.
    pub fn differs(&mut self, rule: &'static Rule, between: Between, wrong: Wrong<'_>) {
        let Wrong { what, expected, found, at, hint } = wrong;
        let message = format!("{what}: expected {expected}, found {found}");
        let (expected, found) = (Some(expected), Some(found));
        let says = Differs { between, message, expected, found, at };
        self.found.push(Finding::by(rule, says, hint));
    }

    /// Adds findings of another kind.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.found.extend(findings);
    }

    /// The findings, errors first, then by subject; with a limit per rule.
    pub fn finish(mut self) -> Vec<Finding> {
        self.found.sort_by_key(|finding| (finding.severity, finding.says.between));
        finding::capped(self.found)
    }
}
