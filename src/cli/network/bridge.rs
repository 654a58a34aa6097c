//! `network host-bridge`: bridges of the host over its own NICs.

pub(in crate::cli) mod create;
pub(in crate::cli) mod show;

use crate::cli::args::{HostBridgeConfirmArgs, HostBridgeDeleteArgs, HostBridgeVerb};
use crate::cli::change::manner;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use gpuvm_ops::host_bridge::{self, DELETED, delete, guard};
use gpuvm_ops::session::{Manner, Of, Session};

/// Runs the verb.
pub fn run(verb: &HostBridgeVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        HostBridgeVerb::Create(args) => create::run(args, cx),
        HostBridgeVerb::Confirm(args) => confirm(args, cx),
        HostBridgeVerb::Show(args) => show::run(args, cx),
        HostBridgeVerb::Delete(args) => delete(args, cx),
    }
}

/// Runs `confirm`.
fn confirm(args: &HostBridgeConfirmArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network host-bridge confirm")?;
    cx.refuse_elsewhere("network host-bridge confirm")?;
    let bridge = host_bridge::confirm(args.name.as_deref())?;
    cx.output.progress(&format!("{bridge}: confirmed"));
    Ok(EXIT_DONE)
}

/// Runs `delete`.
fn delete(args: &HostBridgeDeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded(DELETED)?;
    cx.refuse_elsewhere(DELETED)?;
    let wanted = args.wanted();
    if !args.guard {
        return Ok(delete::run(cx, &wanted, &args.guarded(cx.output.quiet))?);
    }
    guard::leave_terminal();
    let mut session = Session::begin(cx, Manner { of: Of::Host, ..manner(&args.lock) })?;
    session.run(|world| delete::delete(world, &wanted))?;
    cx.output.progress(&format!("bridge {} is gone", args.name));
    Ok(EXIT_DONE)
}
