//! Missing parts of a guest that starts with the host, without gpuvm.

use super::report::{Between, Differs, Finding};
use crate::finding::Rule;
use crate::shell::word;

/// libvirt starts it at boot without it.
const LACKS: Rule =
    Rule::warning("boot-lacks", "a guest that starts with the host and lacks something for it");

/// Rules of this module.
pub const RULES: &[Rule] = &[LACKS];

/// Adds the missing parts for a guest's start with the host, in words.
pub fn with_lacks(mut findings: Vec<Finding>, name: &str, lacks: &[String]) -> Vec<Finding> {
    for lack in lacks {
        let says = Differs {
            between: Between::Plan,
            message: format!("it starts with the host, and is missing for it: {lack}"),
            expected: None,
            found: None,
            at: "boot".to_owned(),
        };
        let hint = format!("`gpuvm autostart {} on` writes it", word(name));
        findings.push(Finding::by(&LACKS, says, hint));
    }
    findings.sort_by_key(|finding| (finding.severity, finding.says.between));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_is_a_warning_that_names_the_command() {
        assert!(with_lacks(Vec::new(), "a", &[]).is_empty());
        let found = with_lacks(Vec::new(), "a b", &["unit x".into(), "hook y".into()]);
        assert_eq!(found.len(), 2);
        assert!(found[1].says.message.ends_with("missing for it: hook y"), "{found:?}");
        assert!(found[0].hint.contains("`gpuvm autostart 'a b' on`"), "{found:?}");
    }
}
