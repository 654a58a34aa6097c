//! `restart`.

use super::args::StopArgs;
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use gpuvm_ops::restart;
use gpuvm_ops::session::{Confirm, Manner, Session};

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("restart")?;
    let StopArgs { name, only, down, dry_run, lock } = args;
    let mut session = Session::begin(
        cx,
        Manner { confirm: Confirm::IfNeeded, dry_run: *dry_run, ..manner(lock) },
    )?;
    session.only(name, only.uuid.as_deref());
    restart::run(&mut session, name, down.into())?;
    Ok(EXIT_DONE)
}
