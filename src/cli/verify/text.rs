//! The text output of `verify`.

use crate::verify::{Differs, Finding};
use crate::words;
use gpuvm_ops::verify::{Verified, called};
use std::fmt::Write as _;

pub(super) fn text(one: &Verified) -> String {
    let Verified { domain, running, findings, rules, not_checked } = one;
    let mut text: String = findings.iter().map(finding_text).collect();
    let state = if *running { "running" } else { "off" };
    let name = called(domain);
    let name = if domain.is_empty() { name.to_owned() } else { format!("{name} ({state})") };
    if !one.is_compared() {
        return text + &format!("{name}: not compared\n");
    }
    let found = match findings.len() {
        0 => "ok".to_owned(),
        1 => "1 difference".to_owned(),
        many => format!("{many} differences"),
    };
    write!(text, "{name}: {found}, {rules} rules checked").expect("text");
    if !not_checked.is_empty() {
        write!(text, ", not checked: {}", not_checked.join(", ")).expect("text");
    }
    text + "\n"
}

pub(super) fn finding_text(finding: &Finding) -> String {
    let Finding { rule, severity, says, hint } = finding;
    let Differs { message, at, .. } = says;
    format!("{severity}: {message}\n  {at} ({rule})\n  hint: {hint}\n")
}

/// Returns the number of findings in words.
pub(super) fn summary(all: &[Verified]) -> String {
    let count: usize = all.iter().map(|one| one.findings.len()).sum();
    let domains = all.iter().filter(|one| !one.domain.is_empty()).count();
    format!("{}, {}", words::count(domains, "domain"), words::count(count, "difference"))
}
