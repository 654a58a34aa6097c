//! The output of tuned domains, for the verbs that change definitions.

use super::context::Context;
use super::diff::Diff;
use super::output::Output;
use crate::apply::Step;
use crate::tune::{Change, Left};
use gpuvm_ops::tune::Tuning;
use gpuvm_ops::tune::answer::{self, LeftAlone, TunedDomain};
use serde::Serialize;

/// The answer with what would be done.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WithSteps<'a> {
    /// The domains, in the order in which they were named.
    domains: &'a [TunedDomain],
    /// The steps.
    #[serde(skip_serializing_if = "<[Step]>::is_empty")]
    steps: &'a [Step],
}

/// Prints the definitions of tuned domains as diffs.
pub fn print_diffs(tuning: &Tuning, output: Output) -> std::io::Result<()> {
    Diff::print_all(&diffs(tuning), output)
}

/// Prints the changed definition of the one file.
pub fn print_file(tuning: &Tuning, explain: bool, cx: &Context<'_>) -> std::io::Result<()> {
    for (subject, tuned) in tuning.pairs() {
        for warning in answer::warnings(subject, tuned, (explain, false)) {
            cx.output.warning(&warning);
        }
        if cx.output.json {
            let domain = TunedDomain::of(subject, Ok(tuned), explain).with_xml(tuned);
            cx.output.json_document("gpuvm-tuned-domain", &domain)?;
        } else {
            cx.output.document(tuned.after.text())?;
        }
    }
    Ok(())
}

/// The definitions of tuned domains as diffs.
pub fn diffs(tuning: &Tuning) -> Vec<Diff> {
    let diffs = tuning.pairs().map(|(subject, tuned)| {
        Diff::of(&subject.name, Some(subject.text()), Some(tuned.after.text()))
    });
    diffs.collect()
}

/// Prints the answer, as JSON of this format; `done`: the changes have been made.
pub fn print(
    format: &'static str,
    domains: &[TunedDomain],
    output: Output,
    steps: &[Step],
    done: bool,
) -> std::io::Result<()> {
    if output.json {
        return output.json(format, &WithSteps { domains, steps });
    }
    let lines = domains.iter().flat_map(|domain| {
        let why = domain.reasons.iter().map(|reason| {
            let mark = if reason.is_compromise() { '!' } else { ' ' };
            format!("  {mark} {}: {}", reason.choice, reason.because)
        });
        let found =
            domain.findings.iter().map(|f| format!("  ! {}: {}", f.says.path, f.says.message));
        let more: Vec<String> =
            if done { Vec::new() } else { why.chain(found).chain(left(domain)).collect() };
        lines(domain, done).into_iter().chain(more)
    });
    output.text(&lines.map(|line| line + "\n").collect::<String>())
}

/// Settings of a domain that stay as its owner chose them, in lines.
fn left(domain: &TunedDomain) -> Vec<String> {
    let line = |one: &LeftAlone| {
        let Left { item, is, would_be, gain } = &one.left;
        let command = &one.command;
        format!("    {item}: {is}; `{command}` makes it {would_be}: {gain}")
    };
    let head = (!domain.left_alone.is_empty()).then(|| "  left alone:".to_owned());
    head.into_iter().chain(domain.left_alone.iter().map(line)).collect()
}

fn lines(domain: &TunedDomain, done: bool) -> Vec<String> {
    let TunedDomain { name, refused, changes, .. } = domain;
    if let Some(why) = refused {
        return vec![format!("{name}: cannot be tuned: {}", why.replace('\n', ";"))];
    }
    let beside = domain.beside.iter().map(|words| format!("  {words}"));
    let waits = domain.waits.iter().filter(|waits| !waits.is_empty());
    let waits = waits.map(|waits| format!("  waits for the next start: {}", waits.join(", ")));
    let waits = waits.chain(domain.undone.iter().map(|why| format!("  {why}")));
    if changes.is_empty() && domain.beside.is_empty() {
        let nothing = format!("{name}: nothing to do");
        let undone = domain.undone.iter().map(|why| format!("  {why}"));
        return std::iter::once(nothing).chain(undone).collect();
    }
    if changes.is_empty() {
        let is = format!("{name} is defined so already");
        return std::iter::once(is).chain(beside).chain(waits).collect();
    }
    let when = match (domain.waits_for_start, done) {
        (true, true) => " is changed; the running guest gets it at its next start",
        (true, false) => " would change; the running guest would get it at its next start",
        (false, true) => " is changed",
        (false, false) => " would change",
    };
    let line = |change: &Change| format!("  {change}");
    let first = std::iter::once(format!("{name}{when}"));
    let stays = domain.stays.iter().map(|words| format!("  {words}"));
    first.chain(changes.iter().map(line)).chain(beside).chain(stays).chain(waits).collect()
}
