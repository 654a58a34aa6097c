//! `restart`.

use super::args::StopArgs;
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several;
use crate::hypervisor::DomainState;
use gpuvm_ops::restart;
use gpuvm_ops::session::{Confirm, Manner, Session};

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("restart")?;
    let names = several::named(&args.names, DomainState::is_active, cx)?;
    if names.is_empty() {
        cx.output.progress("no domain runs");
    } else if args.names.all && !args.yes && !args.dry_run {
        several::ask("restart", &names)?;
    }
    several::each(&names, Some(&args.only), cx, |name, cx| one(args, name, cx))
}

/// Restarts one domain.
fn one(args: &StopArgs, name: &str, cx: &Context<'_>) -> anyhow::Result<u8> {
    let StopArgs { only, down, dry_run, lock, .. } = args;
    let mut session = Session::begin(
        cx,
        Manner { confirm: Confirm::IfNeeded, dry_run: *dry_run, ..manner(lock) },
    )?;
    session.only(name, only.uuid.as_deref());
    restart::run(&mut session, name, down.into())?;
    Ok(EXIT_DONE)
}
