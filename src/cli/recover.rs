//! `recover`.

use super::args::RecoverArgs;
use super::change::asking;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::apply::Way;
use gpuvm_ops::recover::{Killed, Outcome, Recover, recover};
use gpuvm_ops::session::Session;
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &RecoverArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("recover")?;
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, args.dry_run)))?;
    let RecoverArgs { discard, end, gone, .. } = args;
    let wanted = Recover { discard: *discard, end: end.clone(), gone: *gone, only: &[] };
    let Outcome { settled, failed } = recover(&mut session, &wanted)?;
    let unread = cx.unread_records();
    unread.iter().for_each(|unread| cx.output.warning(unread));
    if cx.output.json {
        cx.output.json_rows("gpuvm-recover", &settled)?;
    } else if settled.is_empty() && failed.is_empty() {
        let whose = if unread.is_some() { " of this user" } else { "" };
        cx.output.progress(&format!("no change{whose} was interrupted"));
    } else if !args.discard {
        let text: String = settled.iter().map(|killed| text(killed, !args.dry_run)).collect();
        cx.output.text(&text)?;
    }
    let mut failed = failed.into_iter();
    let Some(first) = failed.next() else { return Ok(EXIT_DONE) };
    failed.for_each(|error| cx.output.warning(&error.whole()));
    Err(first.into())
}

/// Describes how a change is recovered, in lines; `done`: it has been.
fn text(killed: &Killed, done: bool) -> String {
    if let Some(damaged) = &killed.damaged {
        return format!("{damaged}\n");
    }
    let recovery = &killed.recovery;
    let (way, each) = match (recovery.way, done) {
        (Way::Forget, _) => ("nothing is left of it to finish or undo", ""),
        (Way::Undo, true) => ("undone", "undone"),
        (Way::Undo, false) => ("would be undone", "undo"),
        (Way::Finish, true) => ("finished", "done"),
        (Way::Finish, false) => ("would be finished", "do"),
    };
    let mut text = format!("{}: {way}\n", killed.name());
    for step in &recovery.steps {
        writeln!(text, "  {each}: {step}").expect("text");
    }
    for step in &recovery.handed_over {
        writeln!(text, "  left as it is: {step}").expect("text");
    }
    for name in killed.runs.iter().filter(|_| !done) {
        writeln!(text, "  domain `{name}` runs, and is ended only by its name: --end {name}")
            .expect("text");
    }
    text
}
