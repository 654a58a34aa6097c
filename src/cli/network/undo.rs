//! `network undo`.

use super::create::{answer, would};
use crate::cli::args::NetworkUndoArgs;
use crate::cli::change::{asking, print_steps};
use crate::cli::context::Context;
use crate::cli::diff::Diff;
use crate::cli::error::EXIT_DONE;
use gpuvm_ops::networks::Answered;
use gpuvm_ops::networks::undo::{NetworkUndo, named, take_back, undo};
use gpuvm_ops::session::Session;

/// Runs the verb.
pub fn run(args: &NetworkUndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network undo")?;
    let name = args.name.as_str();
    let mut session = Session::begin(cx, asking(&args.change.lock, (args.yes, false)))?;
    if args.change.diff || args.change.dry_run {
        // The preview is for seeing later edits.
        let change = session.look(|world| undo(world, name, true))?;
        if args.change.diff {
            let NetworkUndo { entry, now } = &change.about;
            Diff::of(name, now.as_deref(), Some(&entry.before)).print(cx.output)?;
        } else {
            would(&change.losses, cx);
            print_steps(&change.steps(), cx)?;
        }
        return Ok(EXIT_DONE);
    }
    let Answered { done, network } = take_back(&mut session, name, args.force)?;
    cx.output.progress(&format!("{} is undone", named(&done.change.about.entry)));
    answer(network, true, cx)?;
    Ok(EXIT_DONE)
}
