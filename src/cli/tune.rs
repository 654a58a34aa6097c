//! `tune`.

use super::args::TuneArgs;
use super::change::{asking, print_steps};
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND, usage};
use super::output::Output;
use crate::apply::Step;
use crate::tune::Change;
use gpuvm_ops::change::DomainChange;
use gpuvm_ops::pages;
use gpuvm_ops::session::Session;
use gpuvm_ops::tune::answer::{self, TunedDomain};
use gpuvm_ops::tune::{Tune, Tuning, look, look_beside, tune};
use serde::Serialize;

/// The answer with what would be done.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct WithSteps<'a> {
    /// The domains, in the order in which they were named.
    domains: &'a [TunedDomain],
    /// The steps.
    #[serde(skip_serializing_if = "<[Step]>::is_empty")]
    steps: &'a [Step],
}

/// Runs the verb.
pub fn run(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reserve_pages {
        pages::refuse_elsewhere("tune", cx)?;
    }
    let wanted = args.wanted();
    if args.diff {
        let tuning = look(cx, &wanted)?;
        let diffs = tuning.pairs().map(|(subject, tuned)| {
            Diff::of(&subject.name, Some(subject.text()), Some(tuned.after.text()))
        });
        Diff::print_all(&diffs.collect::<Vec<_>>(), cx.output)?;
        return Ok(done(&tuning));
    }
    if args.dry_run || args.check {
        return preview(args, &look_beside(cx, &wanted)?, cx);
    }
    if wanted.are_files(cx) {
        return file(args, &look(cx, &wanted)?, cx);
    }
    change(args, &wanted, cx)
}

/// Prints what would change.
fn preview(args: &TuneArgs, tuning: &Tuning, cx: &Context<'_>) -> anyhow::Result<u8> {
    let changes = tuning.changes();
    let steps = changes.iter().filter(|_| args.dry_run).flat_map(DomainChange::steps);
    let steps: Vec<Step> = steps.collect();
    print(&tuning.domains(args.explain), cx.output, &steps, false)?;
    if !steps.is_empty() && !cx.output.json {
        print_steps(&steps, cx)?;
    }
    let done = done(tuning);
    let found = args.check && (tuning.differs() || !changes.is_empty());
    Ok(if found && done == EXIT_DONE { EXIT_FOUND } else { done })
}

/// Prints a tuned file.
fn file(args: &TuneArgs, tuning: &Tuning, cx: &Context<'_>) -> anyhow::Result<u8> {
    let ([subject], [Ok(tuned)]) = (&tuning.subjects.all[..], &tuning.tuned[..]) else {
        return Err(usage(
            "several files",
            "--diff, --check and --dry-run take several; else name one",
        ));
    };
    for warning in answer::warnings(subject, tuned, args.explain) {
        cx.output.warning(&warning);
    }
    if cx.output.json {
        let domain = TunedDomain::of(subject, Ok(tuned), args.explain).with_xml(tuned);
        cx.output.json_document("gpuvm-tuned-domain", &domain)?;
    } else {
        cx.output.document(tuned.after.text())?;
    }
    Ok(EXIT_DONE)
}

/// Changes domains of the hypervisor.
fn change(args: &TuneArgs, wanted: &Tune, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("tune")?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, false)))?;
    let tuning = session.run(|world| tune(world, wanted))?.change.about;
    for warning in tuning.warnings(cx, args.explain)? {
        cx.output.warning(&warning);
    }
    print(&tuning.domains(args.explain), cx.output, &[], true)?;
    Ok(done(&tuning))
}

/// The exit code as far as refusals go: with --all-domains one that is refused does not keep the others.
fn done(tuning: &Tuning) -> u8 {
    if tuning.is_whole() { EXIT_DONE } else { EXIT_FAILED }
}

/// Prints the answer; `done`: the changes are made.
fn print(
    domains: &[TunedDomain],
    output: Output,
    steps: &[Step],
    done: bool,
) -> std::io::Result<()> {
    if output.json {
        return output.json("gpuvm-tune", &WithSteps { domains, steps });
    }
    let lines = domains.iter().flat_map(|domain| {
        let why = domain.reasons.iter().map(|reason| {
            let mark = if reason.compromise { '!' } else { ' ' };
            format!("  {mark} {}: {}", reason.choice, reason.because)
        });
        let found =
            domain.findings.iter().map(|f| format!("  ! {}: {}", f.says.path, f.says.message));
        let more: Vec<String> = if done { Vec::new() } else { why.chain(found).collect() };
        lines(domain, done).into_iter().chain(more)
    });
    output.text(&lines.map(|line| line + "\n").collect::<String>())
}

/// A domain in lines.
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
    let line = |Change { item, was, now }: &Change| format!("  {item}: {was} -> {now}");
    let first = std::iter::once(format!("{name}{when}"));
    let stays = domain.stays.iter().map(|words| format!("  {words}"));
    first.chain(changes.iter().map(line)).chain(beside).chain(stays).chain(waits).collect()
}
