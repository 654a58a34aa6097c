//! `undo`.

use super::args::UndoArgs;
use super::change::asking;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use crate::apply::Step;
use crate::shell::word;
use gpuvm_ops::domain_history::refuse_elsewhere;
use gpuvm_ops::session::Session;
use gpuvm_ops::undo::{self, Undo, named, undo};
use serde::Serialize;

/// Is what `undo` answers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Undone {
    /// The domain's name.
    name: String,
    /// The change that was undone.
    number: u32,
    /// What had been changed.
    what: Vec<String>,
    /// Whether what was taken back waits for the next start.
    waits_for_start: bool,
}

/// Runs the verb.
pub fn run(args: &UndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("undo")?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, args.dry_run)))?;
    refuse_elsewhere("undo", &args.name, &*cx.hypervisor()?)?;
    let (name, force, edited) = (args.name.clone(), args.force, args.dry_run || args.diff);
    let wanted = Undo { name, force, edited };
    if args.diff {
        let about = undo(cx, &wanted)?.about;
        Diff::of(&args.name, Some(&about.now), Some(&about.entry.before)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    let done = undo::run(&mut session, cx, &wanted)?;
    if args.dry_run {
        return Ok(EXIT_DONE);
    }
    let about = &done.change.about;
    let redefines = |step: &Step| matches!(step, Step::RedefineDomain { .. });
    let waits_for_start = about.runs && done.change.steps().iter().any(redefines);
    if cx.output.json {
        let (number, what) = (about.entry.number, about.entry.what.clone());
        let answer = Undone { name: args.name.clone(), number, what, waits_for_start };
        cx.output.json("gpuvm-undone", &answer)?;
        return Ok(EXIT_DONE);
    }
    let name = &args.name;
    cx.output.progress(&format!("{} of domain `{name}` is undone", named(&about.entry)));
    if waits_for_start {
        let hint = format!("`gpuvm restart {name}`", name = word(name));
        cx.output
            .progress(&format!("it runs: its definition counts from its next start on ({hint})"));
    }
    Ok(EXIT_DONE)
}
