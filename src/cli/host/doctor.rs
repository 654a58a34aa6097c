//! `host doctor`.

use crate::cli::args::HostDoctorArgs;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, EXIT_FOUND, around};
use crate::finding::Severity;
use crate::input::{self, InputError};
use crate::words;
use gpuvm_core::doctor::{Entry, Finding, KnownDefect, OfHost, script};
use gpuvm_core::versions::Evidence;
use gpuvm_ops::doctor::{Diagnosed, Skipped, diagnose};
use std::fmt::Write as _;
use std::path::Path;

/// The largest log in bytes; a busy host's of a month has some 100 MiB.
const LARGEST_LOG: u64 = 256 << 20;

/// Runs the verb.
pub fn run(args: &HostDoctorArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let log = args.journal.as_ref().map(|file| read(file)).transpose()?;
    let answer = diagnose(cx, args.assume, log.as_deref())?;
    if cx.output.json {
        cx.output.json("gpuvm-host-doctor", &answer)?;
    } else if args.fix {
        let elsewhere = match &cx.settings.host {
            Some(path) => Some(path.display().to_string()),
            None if !cx.is_here()? => Some(cx.settings.connect.clone()),
            None => None,
        };
        let head = elsewhere.map(|host| format!("# for the host of {host}, not this machine\n"));
        cx.output.verbatim(&(head.unwrap_or_default() + &commands(&answer)))?;
    } else {
        cx.output.text(&text(&answer))?;
    }
    Ok(if answer.has_errors() { EXIT_FOUND } else { EXIT_DONE })
}

/// The log, or why there is none.
fn read(file: &Path) -> anyhow::Result<String> {
    input::lossy_or_stdin(file, LARGEST_LOG).map_err(|error| match error {
        InputError::Unreadable { .. } => {
            let hint = "`sudo journalctl -k | gpuvm host doctor --journal -` reads this machine's";
            let message = "the kernel's log is not read";
            around(error, message, hint)
        }
        error => error.into(),
    })
}

/// The commands that fix the findings, as a script to read and run by hand.
fn commands(answer: &Diagnosed) -> String {
    let lines = script(&answer.findings);
    if lines.is_empty() {
        format!(
            "# nothing to fix: no rule found a problem ({} of {} rules checked); `gpuvm host doctor` \
             lists skipped checks\n",
            answer.checked, answer.rules
        )
    } else {
        lines.join("\n") + "\n"
    }
}

fn text(answer: &Diagnosed) -> String {
    let mut text = String::new();
    for Finding { rule, severity, says, hint } in &answer.findings {
        let OfHost { message, expected, found, at, .. } = says;
        writeln!(text, "{severity}: {message}").expect("text");
        writeln!(text, "  {at}: expected {expected}, found {found} ({rule})").expect("text");
        writeln!(text, "  hint: {hint}").expect("text");
    }
    let in_log: usize = answer.journal.iter().map(|entry| entry.lines).sum();
    if in_log > 0 {
        let report = if in_log == 1 { "reports" } else { "report" };
        writeln!(text, "log: {} {report} a problem", words::count(in_log, "line")).expect("text");
    }
    for entry in &answer.journal {
        let Entry { rule, severity, lines, first_line, example, hint, .. } = entry;
        let lines = words::count(*lines, "line");
        writeln!(text, "{severity}: in the log, {lines} like line {first_line}: {example}")
            .expect("text");
        writeln!(text, "  ({rule})\n  hint: {hint}").expect("text");
    }
    for defect in &answer.known_defects {
        let KnownDefect { of, version, what, source, .. } = defect;
        let by = if defect.evidence == Evidence::Reported { "reported by users: " } else { "" };
        writeln!(text, "known defect of {} {version}: {what} ({by}{source})", of.name())
            .expect("text");
    }
    let count = |severity| answer.severities().filter(|found| *found == severity).count();
    let found =
        [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
    let found = found.map(|(severity, name)| (count(severity), name));
    let found = found.into_iter().filter(|(count, _)| *count > 0);
    let found: Vec<String> = found.map(|(count, name)| words::count(count, name)).collect();
    let found = if found.is_empty() { "no problem".to_owned() } else { found.join(", ") };
    let Diagnosed { rules, checked, skipped: Skipped { rules: none, in_part, sources }, .. } =
        answer;
    let missing = match none.len() {
        0 => String::new(),
        count => format!("; {count} not checked:"),
    };
    writeln!(text, "{checked} of {rules} rules checked: {found}{missing}").expect("text");
    let mut list = |head: &str, lines: &[String]| {
        if !lines.is_empty() {
            text += head;
        }
        lines.iter().for_each(|line| writeln!(text, "  {line}").expect("text"));
    };
    list("", none);
    list(&format!("{} of these rules checked in part:\n", in_part.len()), in_part);
    list("not read:\n", sources);
    text
}
