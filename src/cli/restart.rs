//! `restart`.

use super::args::StopArgs;
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use gpuvm_ops::restart;
use gpuvm_ops::session::{Confirm, Manner, Session};

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("restart")?;
    several::down("restart", args, cx, |chosen, cx| one(args, chosen, cx))
}

fn one(args: &StopArgs, Chosen { name, uuid }: &Chosen, cx: &Context<'_>) -> anyhow::Result<u8> {
    let StopArgs { down, dry_run, lock, .. } = args;
    let mut session = Session::begin(
        cx,
        Manner { confirm: Confirm::IfNeeded, dry_run: *dry_run, ..manner(lock) },
    )?;
    session.only(name, uuid.as_deref());
    restart::run(&mut session, name, down.into())?;
    Ok(EXIT_DONE)
}
