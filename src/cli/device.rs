//! `device list`, `device bind`, `device release`.

pub(super) mod list;

use super::args::{BindArgs, DeviceVerb, Early, ReleaseArgs};
use super::change::{manner, program};
use super::context::Context;
use super::error::EXIT_DONE;
use gpuvm_ops::bind::{self as ops, Bind, bind_at_boot};
use gpuvm_ops::change::Change;
use gpuvm_ops::error::Error;
use gpuvm_ops::initramfs::outdated;
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use gpuvm_ops::world::World;

/// Runs the verb.
pub fn run(verb: &DeviceVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DeviceVerb::List(args) => list::run(args, cx),
        DeviceVerb::Bind(args) if !args.early.is_empty() => early(&args.early, cx),
        DeviceVerb::Bind(args) => bind(args, cx),
        DeviceVerb::Release(args) => release(args, cx),
    }
}

/// Runs `device bind`.
fn bind(args: &BindArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let at_boot = if args.at_boot { Some(program()?) } else { None };
    let wanted = Bind {
        devices: args.devices.clone(),
        force: args.force,
        at_boot,
        initramfs: args.initramfs,
    };
    let confirm = if args.yes { Confirm::Given } else { Confirm::IfNeeded };
    let manner = Manner { confirm, dry_run: args.dry_run, ..manner(&args.lock) };
    change("device bind", &wanted, manner, ops::bind, cx)
}

/// Runs `device release`.
fn release(args: &ReleaseArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let at_boot = if args.at_boot { Some(program()?) } else { None };
    let wanted = Bind {
        devices: args.devices.clone(),
        force: args.force,
        at_boot,
        initramfs: args.initramfs,
    };
    let manner = Manner { dry_run: args.dry_run, ..manner(&args.lock) };
    change("device release", &wanted, manner, ops::release, cx)
}

/// Makes the change, and prints the remaining steps for the admin.
fn change(
    verb: &str,
    wanted: &Bind,
    manner: Manner,
    plan: fn(&World, &Bind) -> Result<Change, Error>,
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let manner = Manner { of: Of::HostWithGuests, ..manner };
    let done = Session::begin(cx, manner)?.run(|world| plan(world, wanted))?;
    if manner.dry_run {
        return Ok(EXIT_DONE);
    }
    if !done.made {
        cx.output.progress(&format!("{}: already set; nothing to do", done.change.subject));
    }
    let steps = done.change.steps();
    if let Some(advice) = outdated(&steps, true)?.filter(|_| !wanted.initramfs) {
        cx.output.progress(&advice);
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &steps)?;
    }
    Ok(EXIT_DONE)
}

/// Binds at boot; a failure does not stop the others.
fn early(functions: &[Early], cx: &Context<'_>) -> anyhow::Result<u8> {
    let functions = functions.iter().map(|Early { bdf, identity }| (*bdf, identity.clone()));
    bind_at_boot(cx, functions)?;
    Ok(EXIT_DONE)
}
