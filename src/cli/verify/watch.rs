//! `verify --watch`: the comparison again and again; what appears and what is gone is printed.

use super::{Answer, finding_text, round};
use crate::cli::args::VerifyArgs;
use crate::cli::context::Context;
use crate::cli::error;
use crate::verify::Finding;
use crate::words;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Is what has changed of one domain since it was last compared.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Change<'a> {
    /// Name of the domain.
    domain: &'a str,
    /// What differs now and did not.
    appeared: Vec<&'a Finding>,
    /// What differed and does not now.
    gone: Vec<&'a Finding>,
}

/// Compares until somebody interrupts it. A round that fails is said and not the end: libvirt may be on its way up.
pub fn run(args: &VerifyArgs, cx: &Context<'_>, every: Duration) -> anyhow::Result<u8> {
    let mut last: Option<Vec<Answer>> = None;
    let mut failure = String::new();
    loop {
        let begun = Instant::now();
        // A connection of its own, since one that is broken stays so.
        match round(args, &Context::new(cx.global)) {
            Ok(mut answers) => {
                failure.clear();
                let first = last.is_none();
                let before = last.unwrap_or_default();
                keep(&before, &mut answers);
                for change in changes(&before, &answers) {
                    tell(&change, cx)?;
                }
                if first {
                    let count: usize = answers.iter().map(|answer| answer.findings.len()).sum();
                    cx.output.progress(&format!(
                        "{}, {}",
                        words::count(answers.len(), "domain"),
                        words::count(count, "difference")
                    ));
                }
                last = Some(answers);
            }
            // The first one has to do: what is asked for may not be there at all.
            Err(error) if last.is_none() => return Err(error),
            Err(error) => {
                let text = error::report(&error);
                if text != failure {
                    cx.output.progress(text.trim_end());
                    failure = text;
                }
            }
        }
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

/// Keeps what was found of domains that could not be compared this time: it is not gone.
fn keep(before: &[Answer], now: &mut [Answer]) {
    for answer in now.iter_mut().filter(|answer| !answer.is_compared()) {
        let old = before.iter().filter(|old| old.domain == answer.domain);
        let found = old.flat_map(|old| &old.findings).filter(|finding| !finding.is_not_compared());
        answer.findings.extend(found.cloned());
    }
}

/// What has changed between two rounds, by domain; a domain that is not there any more differs in nothing.
fn changes<'a>(before: &'a [Answer], now: &'a [Answer]) -> Vec<Change<'a>> {
    let of = |answers: &'a [Answer], domain: &str| {
        let answer = answers.iter().find(|answer| answer.domain == domain);
        answer.map_or(&[][..], |answer| &answer.findings)
    };
    let less = |these: &'a [Finding], those: &[Finding]| -> Vec<&'a Finding> {
        these.iter().filter(|this| !those.iter().any(|that| that.is_same(this))).collect()
    };
    let ended = before.iter().filter(|old| !now.iter().any(|new| new.domain == old.domain));
    let all = now.iter().chain(ended).map(|answer| {
        let domain = answer.domain.as_str();
        let (old, new) = (of(before, domain), of(now, domain));
        Change { domain, appeared: less(new, old), gone: less(old, new) }
    });
    all.filter(|change| !change.appeared.is_empty() || !change.gone.is_empty()).collect()
}

/// Prints one change; as JSON in one line, for programs that read lines.
fn tell(change: &Change<'_>, cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.output.json {
        return Ok(cx.output.json_line("gpuvm-verify-change", change)?);
    }
    let mut text = String::new();
    for finding in &change.appeared {
        text += &format!("{}: {}", change.domain, finding_text(finding));
    }
    for finding in &change.gone {
        text += &format!("{}: gone: {} ({})\n", change.domain, finding.says.message, finding.rule);
    }
    Ok(cx.output.text(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::verify::{Between, Differs};

    /// A domain with findings of these messages.
    fn answer(domain: &str, messages: &[&str]) -> Answer {
        let finding = |message: &&str| Finding {
            rule: "vcpu-affinity",
            severity: Severity::Error,
            says: Differs {
                between: Between::Reality,
                message: (*message).into(),
                expected: None,
                found: None,
                at: "somewhere".into(),
            },
            hint: String::new(),
        };
        let findings = messages.iter().map(finding).collect();
        Answer { domain: domain.into(), running: true, findings, rules: 1, not_checked: vec![] }
    }

    #[test]
    fn only_what_appears_and_what_is_gone_is_a_change() {
        let before = [answer("a", &["x", "y"]), answer("b", &["x"]), answer("c", &["z"])];
        let now = [answer("a", &["y", "w"]), answer("b", &["x"]), answer("d", &["v"])];
        let text = |findings: &[&Finding]| -> Vec<String> {
            findings.iter().map(|finding| finding.says.message.clone()).collect()
        };
        let changes: Vec<_> = changes(&before, &now)
            .iter()
            .map(|change| (change.domain.to_owned(), text(&change.appeared), text(&change.gone)))
            .collect();
        let change = |domain: &str, appeared: &[&str], gone: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            (domain.to_owned(), owned(appeared), owned(gone))
        };
        let wanted =
            [change("a", &["w"], &["x"]), change("d", &["v"], &[]), change("c", &[], &["z"])];
        assert_eq!(changes, wanted);
    }

    #[test]
    fn what_was_found_of_a_domain_that_cannot_be_read_now_is_not_gone() {
        let before = [answer("a", &["x"])];
        let mut now = [answer("a", &[])];
        now[0].findings = vec![crate::verify::not_compared("a", "why".into())];
        keep(&before, &mut now);
        let first = changes(&before, &now);
        assert_eq!((first[0].appeared.len(), first[0].gone.len()), (1, 0));
        assert_eq!(first[0].appeared[0].says.message, "why");
        let after = [answer("a", &["x"])];
        let then = changes(&now, &after);
        assert_eq!((then[0].appeared.len(), then[0].gone.len()), (0, 1));
    }
}
