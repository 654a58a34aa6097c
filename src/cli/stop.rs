//! `stop`.

use super::args::{DownArgs, StopArgs};
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::stop::{Down, stop_or_end};

impl From<&DownArgs> for Down {
    fn from(args: &DownArgs) -> Down {
        Down { force: args.force, wait_s: args.wait }
    }
}

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("stop")?;
    several::down("stop", args, cx, |chosen, cx| one(args, chosen, cx))
}

/// Stops one domain.
fn one(args: &StopArgs, Chosen { name, uuid }: &Chosen, cx: &Context<'_>) -> anyhow::Result<u8> {
    let StopArgs { down, dry_run, lock, .. } = args;
    let mut session = Session::begin(
        cx,
        Manner { confirm: Confirm::IfNeeded, dry_run: *dry_run, ..manner(lock) },
    )?;
    session.only(name, uuid.as_deref());
    let done = stop_or_end(&mut session, name, down.into())?;
    if !done.made && !dry_run {
        cx.output.progress(&format!("domain `{name}` is stopped already"));
    }
    Ok(EXIT_DONE)
}
