//! `tune`.

use super::args::TuneArgs;
use super::change::{asking, print_steps};
use super::context::Context;
use super::diff::hunks;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND, usage};
use super::output::offered_text;
use super::tuned::{diffs, print, print_diffs, print_file};
use super::view;
use crate::apply::Step;
use crate::placement::{Held, Reason};
use crate::tune::Change;
use crate::words::count;
use gpuvm_core::view::{Changed, Page, Subject};
use gpuvm_ops::capture;
use gpuvm_ops::change::DomainChange;
use gpuvm_ops::pages;
use gpuvm_ops::session::Session;
use gpuvm_ops::tune::{Tune, Tuning, look, look_beside, tune};

const FORMAT: &str = "gpuvm-tune";

/// Runs the verb.
pub fn run(args: &TuneArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    for warning in args.old_spellings() {
        cx.output.warning(warning);
    }
    if args.reserve_pages {
        pages::refuse_elsewhere("tune", cx)?;
    }
    view::check(&args.view, cx)?;
    if args.view.is_wanted() && !args.diff {
        return Err(usage("--html and --svg require --diff", "add --diff; it changes nothing"));
    }
    let wanted = args.wanted(cx);
    if args.diff {
        let tuning = look(cx, &wanted)?;
        if args.view.is_wanted() && draw(args, cx, &tuning)? {
            return Ok(done(&tuning));
        }
        print_diffs(&tuning, cx.output)?;
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

fn preview(args: &TuneArgs, tuning: &Tuning, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.dry_run {
        tuning.refuse_unreadable(cx)?;
    }
    let changes = tuning.changes("tune");
    let steps = changes.iter().filter(|_| args.dry_run).flat_map(DomainChange::steps);
    let steps: Vec<Step> = steps.collect();
    print(FORMAT, &tuning.domains(args.explain), cx.output, &steps, false)?;
    if args.dry_run {
        tuning.warn_of_saved_state(cx)?;
    }
    if !steps.is_empty() && !cx.output.json {
        print_steps(&steps, cx)?;
    }
    let done = done(tuning);
    let found = args.check && (tuning.differs() || !changes.is_empty());
    Ok(if found && done == EXIT_DONE { EXIT_FOUND } else { done })
}

/// Draws what would change; returns whether standard output is used.
fn draw(args: &TuneArgs, cx: &Context<'_>, tuning: &Tuning) -> anyhow::Result<bool> {
    let topology = capture::shown(cx, tuning.subjects.topology(), args.view.identify)?;
    let _nameless = view::nameless(&args.view);
    let mut changed: Vec<Changed> = Vec::new();
    let mut planned: Vec<Held> = Vec::new();
    let mut reasons: Vec<Reason> = Vec::new();
    for (subject, tuned) in tuning.pairs() {
        let items = tuned.changes.iter();
        let items = items.map(|Change { item, was, now }| format!("{item} from {was} to {now}"));
        changed.push(Changed {
            name: subject.name.clone(),
            items: items.collect(),
            hunks: hunks(subject.text(), tuned.after.text()),
        });
        if !tuned.changes.is_empty() {
            planned.push(tuned.after.held(subject.running)?);
        }
        reasons.extend(tuned.reasons.iter().cloned());
    }
    let refused = tuning.domains(false).into_iter();
    let refused =
        refused.filter_map(|domain| Some(format!("{}: {}", domain.name, domain.refused?)));
    let verdict = match (planned.len(), changed.len()) {
        (0, _) => "nothing changes".to_owned(),
        (some, all) => format!("{some} of {} would change", count(all, "domain")),
    };
    let shown = Page {
        subject: Subject {
            topology: &topology,
            held: tuning.subjects.occupancy(),
            planned: &planned,
        },
        verb: "tune --diff",
        verdict: &[verdict],
        date: args.view.date.as_deref(),
        placement: None,
        reasons: &reasons,
        capacity: None,
        fits: None,
        changed: &changed,
        notes: &view::shown(refused),
        commands: &[],
        json: &cx.output.json_rows_string("gpuvm-diffs", &diffs(tuning))?,
        offered: offered_text,
    };
    view::write(&args.view, cx, &shown)
}

fn file(args: &TuneArgs, tuning: &Tuning, cx: &Context<'_>) -> anyhow::Result<u8> {
    if tuning.subjects.all.len() != 1 {
        return Err(usage(
            "several files",
            "--diff, --check and --dry-run take several; else name one",
        ));
    }
    print_file(tuning, args.explain, cx)?;
    Ok(EXIT_DONE)
}

fn change(args: &TuneArgs, wanted: &Tune, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("tune")?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, false)))?;
    let tuning = session.run(|world| tune(world, wanted))?.change.about;
    for warning in tuning.warnings(cx, args.explain)? {
        cx.output.warning(&warning);
    }
    print(FORMAT, &tuning.domains(args.explain), cx.output, &[], true)?;
    Ok(done(&tuning))
}

/// Returns the exit code: with --all a refused domain does not stop the others.
fn done(tuning: &Tuning) -> u8 {
    if tuning.is_whole() { EXIT_DONE } else { EXIT_FAILED }
}
