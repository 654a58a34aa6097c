//! Findings from a sample of a running guest: vCPUs that wait or are throttled.

use super::report::{Between, Differs, Finding};
use crate::load::{LoadFinding, VERIFY_RULES};

/// Adds those findings of a sample that `verify` has, too.
pub fn with_load(mut findings: Vec<Finding>, sampled: &[LoadFinding]) -> Vec<Finding> {
    let is_ours = |found: &&LoadFinding| VERIFY_RULES.iter().any(|rule| rule.id == found.rule);
    findings.extend(sampled.iter().filter(is_ours).map(|found| {
        let (message, at) = (found.says.message.clone(), found.says.at.clone());
        let says = Differs { between: Between::Host, message, expected: None, found: None, at };
        let (rule, severity, hint) = (found.rule, found.severity, found.hint.clone());
        Finding { rule, severity, says, hint }
    }));
    findings.sort_by_key(|finding| (finding.severity, finding.says.between));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::load::OfLoad;

    #[test]
    fn only_rules_of_verify_are_taken() {
        let found = |rule, severity| LoadFinding {
            rule,
            severity,
            says: OfLoad { message: "m".into(), at: "thread 1".into() },
            hint: "h".into(),
        };
        let sampled = [
            found("vcpu-waits", Severity::Note),
            found("link-width", Severity::Warning),
            found("vcpu-throttled", Severity::Warning),
            found("memory-off-node", Severity::Error),
        ];
        let all = with_load(Vec::new(), &sampled);
        let rules: Vec<&str> = all.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["vcpu-throttled", "vcpu-waits"]);
    }
}
