//! Findings, their severity and their rules, common to `check`, `verify`, `network doctor` and
//! `host doctor`.
//! Contains no rule; each of these families has its own, with its own details of a finding.

use serde::Serialize;
use std::collections::BTreeMap;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Severity {
    /// It does not start, takes resources of others, or behaves differently.
    Error,
    /// It works, but not as well as it could.
    Warning,
    /// It is worth knowing and may be meant so.
    Note,
}

/// One thing that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rule {
    /// Its name; never changes, so that scripts can name it.
    pub id: &'static str,
    /// How bad its findings are.
    pub severity: Severity,
    /// The refused condition, half a sentence.
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

    /// Makes a rule whose findings are notes.
    pub const fn note(id: &'static str, refuses: &'static str) -> Rule {
        Rule { id, severity: Severity::Note, refuses }
    }
}

/// The details of a finding in a family of rules: its place, the expected and the actual value.
pub trait Says: Serialize {
    /// The most findings of one rule shown; the last one counts the rest.
    const MOST_OF_ONE_RULE: usize;

    /// The family's rules, in the order of its findings; gpuvm-codes(7) lists them.
    fn rules() -> impl Iterator<Item = &'static Rule>;

    /// Appends to the message.
    fn say_more(&mut self, text: &str);
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding<S> {
    /// Id of the rule.
    pub rule: &'static str,
    /// Severity.
    pub severity: Severity,
    /// The fault and its place, in the form of the rule's family.
    #[serde(flatten)]
    pub says: S,
    /// The change or action to take.
    pub hint: String,
}

impl<S: Says> Finding<S> {
    /// Makes a finding of a rule.
    pub fn by(rule: &Rule, says: S, hint: impl Into<String>) -> Finding<S> {
        Finding { rule: rule.id, severity: rule.severity, says, hint: hint.into() }
    }
}

/// Limits the findings of each rule to a readable number, in their order.
pub(crate) fn capped<S: Says>(found: impl IntoIterator<Item = Finding<S>>) -> Vec<Finding<S>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut findings: Vec<Finding<S>> = Vec::new();
    for finding in found {
        let count = counts.entry(finding.rule).or_default();
        *count += 1;
        if *count <= S::MOST_OF_ONE_RULE {
            findings.push(finding);
        }
    }
    for (rule, count) in counts {
        let more = count.saturating_sub(S::MOST_OF_ONE_RULE);
        let last = findings.iter_mut().rev().find(|finding| finding.rule == rule);
        if let Some(last) = last.filter(|_| more > 0) {
            last.says.say_more(&format!(" (and {more} more like it)"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Rule = Rule::error("first", "the first");
    const SECOND: Rule = Rule::warning("second", "the second");

    #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    struct Text {
        message: String,
    }

    impl Says for Text {
        const MOST_OF_ONE_RULE: usize = 2;

        fn rules() -> impl Iterator<Item = &'static Rule> {
            [&FIRST, &SECOND].into_iter()
        }

        fn say_more(&mut self, text: &str) {
            self.message += text;
        }
    }

    fn finding(rule: &Rule, message: &str) -> Finding<Text> {
        Finding::by(rule, Text { message: message.to_owned() }, "mend it")
    }

    #[test]
    fn excess_findings_of_a_rule_are_counted_at_its_last() {
        let of = |rules: &[&Rule]| {
            let all = rules.iter().zip('a'..).map(|(rule, name)| finding(rule, &name.to_string()));
            let messages = capped(all).into_iter().map(|finding| finding.says.message);
            messages.collect::<Vec<_>>()
        };
        assert_eq!(of(&[&FIRST, &SECOND, &FIRST]), ["a", "b", "c"]);
        let messages = of(&[&FIRST, &SECOND, &FIRST, &SECOND, &FIRST, &FIRST]);
        assert_eq!(messages, ["a", "b", "c (and 2 more like it)", "d"]);
    }

    #[test]
    fn a_finding_is_one_flat_object() {
        let said = serde_json::to_string(&finding(&SECOND, "a")).unwrap();
        let flat = r#"{"rule":"second","severity":"warning","message":"a","hint":"mend it"}"#;
        assert_eq!(said, flat);
        assert_eq!(Severity::Error.to_string(), "error");
    }
}
