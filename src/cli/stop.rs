//! `stop`.

use super::args::{DownArgs, StopArgs};
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several;
use crate::hypervisor::DomainState;
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
    let names = several::named(&args.names, DomainState::is_active, cx)?;
    if names.is_empty() {
        cx.output.progress("no domain runs");
    } else if args.names.all && !args.yes && !args.dry_run {
        several::ask("stop", &names)?;
    }
    several::each(&names, Some(&args.only), cx, |name, cx| one(args, name, cx))
}

/// Stops one domain.
fn one(args: &StopArgs, name: &str, cx: &Context<'_>) -> anyhow::Result<u8> {
    let StopArgs { only, down, dry_run, lock, .. } = args;
    let mut session = Session::begin(
        cx,
        Manner { confirm: Confirm::IfNeeded, dry_run: *dry_run, ..manner(lock) },
    )?;
    session.only(name, only.uuid.as_deref());
    let done = stop_or_end(&mut session, name, down.into())?;
    if !done.made && !dry_run {
        cx.output.progress(&format!("domain `{name}` is stopped already"));
    }
    Ok(EXIT_DONE)
}
