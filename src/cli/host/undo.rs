//! `host undo`: undoes the last change of the host.

use crate::cli::args::{ConfirmWithinArgs, HostBridgeDeleteArgs, HostUndoArgs};
use crate::cli::change::asking;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use gpuvm_ops::host::{named, undo as take_last_back};
use gpuvm_ops::host_bridge::{delete, last_made};
use gpuvm_ops::session::{Manner, Of, Session};

/// How long to wait for the confirmation of an undo, in seconds.
const CONFIRM_S: u64 = 120;

/// Runs the verb.
pub fn run(args: &HostUndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("host undo")?;
    cx.refuse_elsewhere("host undo")?;
    // Undoing a bridge may cut off a login, so it goes through its own confirmation.
    if let Some(bridge) = last_made(cx)?.filter(|_| !args.discard) {
        let (lock, yes, dry_run) = (args.lock.clone(), args.yes, args.dry_run);
        let within = ConfirmWithinArgs { confirm_within: CONFIRM_S };
        let asked = HostBridgeDeleteArgs { name: bridge, within, yes, dry_run, guard: false, lock };
        return Ok(delete::run(cx, &asked.wanted(), &asked.guarded(cx.output.quiet))?);
    }
    let of = Of::Host;
    let manner = Manner { of, ..asking(&args.lock, (args.yes, args.dry_run)) };
    let done = Session::begin(cx, manner)?.run(|world| take_last_back(world, args.discard))?;
    if done.made {
        let end = if args.discard { "forgotten; the host stays as it is" } else { "undone" };
        cx.output.progress(&format!("{} is {end}", named(&done.change.about)));
    }
    Ok(EXIT_DONE)
}
