//! `undo`.

use super::args::UndoArgs;
use super::change::asking;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use crate::shell::word;
use gpuvm_ops::domain_history::refuse_elsewhere;
use gpuvm_ops::session::Session;
use gpuvm_ops::undo::{self, Undo, Undone, undo};

/// Runs the verb.
pub fn run(args: &UndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("undo")?;
    let all = Chosen::by_names(&args.names, None)?;
    several::each(&all, cx, |chosen, cx| one(args, &chosen.name, cx))
}

/// Reverts the last change of one domain.
fn one(args: &UndoArgs, name: &str, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut session =
        Session::begin(cx, asking(&args.change.lock, (args.yes, args.change.dry_run)))?;
    refuse_elsewhere("undo", name, cx)?;
    let (force, edited) = (args.force, args.change.diff);
    let wanted = Undo { name: name.to_owned(), force, edited };
    if args.change.diff {
        let about = undo(cx, &wanted)?.about;
        Diff::of(name, Some(&about.now), Some(&about.entry.before)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    if let Some(undone) = undo::run(&mut session, cx, &wanted)? {
        report(&undone, cx)?;
    }
    Ok(EXIT_DONE)
}

fn report(undone: &Undone, cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.output.json {
        return Ok(cx.output.json("gpuvm-undone", undone)?);
    }
    let Undone { name, change, waits_for_start, .. } = undone;
    cx.output.progress(&format!("{change} of domain `{name}` is undone"));
    if *waits_for_start {
        let hint = format!("`gpuvm restart {name}`", name = word(name));
        cx.output.progress(&format!(
            "the guest is running; the change takes effect at its next start ({hint})"
        ));
    }
    Ok(())
}
