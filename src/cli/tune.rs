//! `tune`: any domain made as good as a fresh plan. What is tuned and by what is `subjects`'; what is said, `answer`'s.

pub(super) mod answer;
mod convert;
mod extra;
pub mod subjects;

use super::args::TuneArgs;
use super::change::{asking, print_steps};
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND, usage};
use crate::apply::Step;
use crate::tune::{Change, TuneError, Tuned};
use answer::{Answer, Domain};
use extra::Extra;
use gpuvm_ops::change::{Change as OpsChange, DomainChange, Part};
use gpuvm_ops::host_files::too_few_files;
use gpuvm_ops::pages;
use gpuvm_ops::reporter::Question;
use gpuvm_ops::session::Session;
use subjects::Subjects;

/// Runs the verb.
pub fn run(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.reserve_pages {
        pages::refuse_elsewhere("tune", cx)?;
    }
    let changes_nothing = args.dry_run || args.diff || args.check;
    if !changes_nothing && !subjects::are_files(args, cx) {
        return change(args, cx);
    }
    let subjects = subjects::read(args, cx)?;
    let tuned = subjects.tune(args, cx)?;
    let done = done(&tuned);
    let pairs = || subjects.all.iter().zip(&tuned);
    if args.diff {
        let diffs = pairs().filter_map(|(subject, tuned)| {
            let tuned = tuned.as_ref().ok()?;
            Some(Diff::of(&subject.name, Some(subject.text()), Some(tuned.after.text())))
        });
        Diff::print_all(&diffs.collect::<Vec<_>>(), cx.output)?;
        return Ok(done);
    }
    if args.dry_run || args.check {
        let extras = extra::of(&subjects, &tuned, args, cx)?;
        let changes = changes(&subjects, &tuned, &extras);
        let steps = changes.iter().filter(|_| args.dry_run).flat_map(DomainChange::steps);
        let steps: Vec<Step> = steps.collect();
        answer(&subjects, &tuned, &extras, args).print(cx.output, &steps, false)?;
        if !steps.is_empty() && !cx.output.json {
            print_steps(&steps, cx)?;
        }
        let differs = tuned.iter().flatten().any(|tuned| !tuned.changes.is_empty());
        return Ok(if args.check && (differs || !changes.is_empty()) && done == EXIT_DONE {
            EXIT_FOUND
        } else {
            done
        });
    }
    let ([subject], [Ok(tuned)]) = (&subjects.all[..], &tuned[..]) else {
        return Err(usage(
            "several files",
            "--diff, --check and --dry-run take several; else name one",
        ));
    };
    for warning in answer::warnings(subject, tuned, args.explain) {
        cx.output.warning(&warning);
    }
    if cx.output.json {
        cx.output.json_document(
            "gpuvm-tuned-domain",
            &Domain::of(subject, Ok(tuned), args.explain).with_xml(tuned),
        )?;
    } else {
        cx.output.document(tuned.after.text())?;
    }
    Ok(EXIT_DONE)
}

/// What domains are tuned to.
struct Plan {
    /// The domains.
    subjects: Subjects,
    /// What each is tuned to.
    tuned: Vec<Result<Tuned, TuneError>>,
    /// What is changed beside.
    extras: Vec<Extra>,
}

/// Plans the tuning of domains of the hypervisor.
fn plan(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<OpsChange<Plan>> {
    let subjects = subjects::read(args, cx)?;
    let tuned = subjects.tune(args, cx)?;
    let extras = extra::of(&subjects, &tuned, args, cx)?;
    let answer = answer(&subjects, &tuned, &extras, args);
    let question = answer.changes().then(|| Question::Agree {
        lines: Some(answer.lines()),
        question: "change the definitions?",
        what: "the change".into(),
    });
    let changes = changes(&subjects, &tuned, &extras);
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    let about = Plan { subjects, tuned, extras };
    let change = OpsChange::new("tune", &names.join(" "), Vec::new(), about);
    Ok(OpsChange { parts: changes.into_iter().map(Part::Domain).collect(), question, ..change })
}

/// Changes domains of the hypervisor.
fn change(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("tune")?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, false)))?;
    let done = session.run(|_| plan(args, cx))?;
    let Plan { subjects, tuned, extras } = &done.change.about;
    let qemu = cx.hypervisor()?.versions().qemu;
    for (subject, tuned) in subjects.all.iter().zip(tuned) {
        let Ok(tuned) = tuned else { continue };
        for warning in answer::warnings(subject, tuned, args.explain) {
            cx.output.warning(&format!("{}: {warning}", subject.name));
        }
        if let Some(warning) = too_few_files(cx, &tuned.after, qemu) {
            cx.output.warning(&format!("{}: {warning}", subject.name));
        }
    }
    answer(subjects, tuned, extras, args).print(cx.output, &[], true)?;
    Ok(self::done(tuned))
}

/// The changes that make domains what they are tuned to; files are never changed.
fn changes(
    subjects: &Subjects,
    tuned: &[Result<Tuned, TuneError>],
    extras: &[Extra],
) -> Vec<DomainChange> {
    let mut changes = Vec::new();
    for ((subject, tuned), extra) in subjects.all.iter().zip(tuned).zip(extras) {
        let Ok(tuned) = tuned else { continue };
        if !extra::is_changed(subject, tuned, extra) {
            continue;
        }
        let line = |change: &Change| format!("{}: {} -> {}", change.item, change.was, change.now);
        let beside = extra.first.iter().chain(&extra.last).map(Step::to_string);
        changes.push(DomainChange {
            verb: "tune",
            name: subject.name.clone(),
            what: tuned.changes.iter().map(line).chain(beside).collect(),
            before: subject.text().to_owned(),
            after: tuned.after.clone(),
            first: extra.first.clone(),
            last: extra.last.clone(),
        });
    }
    changes
}

/// What is said of these domains.
fn answer(
    subjects: &Subjects,
    tuned: &[Result<Tuned, TuneError>],
    extras: &[Extra],
    args: &TuneArgs,
) -> Answer {
    let domains = subjects.all.iter().zip(tuned).zip(extras);
    let domains = domains.map(|((subject, tuned), extra)| {
        Domain::of(subject, tuned.as_ref(), args.explain).with_extra(extra)
    });
    Answer { domains: domains.collect() }
}

/// The exit code as far as refusals go: with --all-domains one that is refused does not keep the others.
fn done(tuned: &[Result<Tuned, TuneError>]) -> u8 {
    if tuned.iter().all(Result::is_ok) { EXIT_DONE } else { EXIT_FAILED }
}
