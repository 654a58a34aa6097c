//! `autostart`.

use super::args::{AutostartArgs, ChangeArgs};
use super::change::{manner, program};
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use crate::shell::word;
use gpuvm_ops::autostart::{Autostart, autostart};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(args: &AutostartArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("autostart")?;
    cx.refuse_elsewhere("autostart")?;
    let AutostartArgs { name, state, change: ChangeArgs { dry_run, diff, lock } } = args;
    let wanted = Autostart { name: name.clone(), on: state.is_on(), program: program()? };
    let mut session = Session::begin(cx, Manner { dry_run: *dry_run, ..manner(lock) })?;
    if *diff {
        session.look(|world| autostart(world, &wanted))?;
        return Ok(Diff::same(name, cx.output).map(|()| EXIT_DONE)?);
    }
    let done = session.run(|world| autostart(world, &wanted))?;
    if *dry_run {
        return Ok(EXIT_DONE);
    }
    let about = &done.change.about;
    if cx.output.json {
        cx.output.json("gpuvm-autostart", about)?;
        return Ok(EXIT_DONE);
    }
    for line in &about.made {
        cx.output.progress(&format!("at boot: {line}"));
    }
    let starts = if wanted.on { "starts" } else { "does not start" };
    let next = if done.made {
        format!("`gpuvm undo {}` reverts it", word(name))
    } else {
        "nothing to do".to_owned()
    };
    cx.output.progress(&format!("domain `{name}` {starts} with the host; {next}"));
    Ok(EXIT_DONE)
}
