//! `check`.

use super::args::CheckArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use crate::check::{Finding, InXml, Note};
use crate::finding::Severity;
use crate::words;
use gpuvm_ops::check::{Check, Checked, check};
use gpuvm_ops::source::Source;
use gpuvm_ops::taken::Taken;
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &CheckArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wanted = Check {
        source: Source::named_by(&args.target, cx),
        taken: Taken { assume: args.assume, ..Taken::from(&args.taken) },
    };
    let checked = check(cx, &wanted)?;
    if cx.output.json {
        cx.output.json("gpuvm-check", &checked)?;
    } else {
        cx.output.text(&text(&checked))?;
    }
    Ok(if checked.findings.is_empty() { EXIT_DONE } else { EXIT_FOUND })
}

fn text(checked: &Checked) -> String {
    let mut text = String::new();
    for Finding { rule, severity, says, hint } in &checked.findings {
        let InXml { path, line, message } = says;
        writeln!(text, "{severity}: {message}").expect("text");
        writeln!(text, "  {path}, line {line} ({rule})").expect("text");
        writeln!(text, "  hint: {hint}").expect("text");
    }
    for Note { rule, path, line, message } in &checked.notes {
        writeln!(text, "note: {message}\n  {path}, line {line} ({rule})").expect("text");
    }
    let count = |severity| checked.findings.iter().filter(|f| f.severity == severity).count();
    let found = match (count(Severity::Error), count(Severity::Warning)) {
        (0, 0) => "nothing found".to_owned(),
        (errors, warnings) => {
            format!("{}, {}", words::count(errors, "error"), words::count(warnings, "warning"))
        }
    };
    let Checked { domain, rules, not_checked, .. } = checked;
    write!(text, "{domain}: {found}, {rules} rules checked").expect("text");
    if !not_checked.is_empty() {
        write!(text, ", not checked: {}", not_checked.join(", ")).expect("text");
    }
    text + "\n"
}
