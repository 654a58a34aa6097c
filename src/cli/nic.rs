//! `nic list`, `nic vfs`.

mod list;

use super::args::{NicVerb, VfsArgs};
use super::change::{manner, program};
use super::context::Context;
use super::error::{EXIT_DONE, usage};
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use gpuvm_ops::sriov::{Functions, early, set_functions};

/// Runs the verb.
pub fn run(verb: &NicVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        NicVerb::List(args) => list::run(args, cx),
        NicVerb::Vfs(args) if !args.early.is_empty() => {
            early::make(cx, &args.early)?;
            Ok(EXIT_DONE)
        }
        NicVerb::Vfs(args) => vfs(args, cx),
    }
}

/// Runs `nic vfs`.
fn vfs(args: &VfsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if !args.dry_run {
        cx.refuse_recorded("nic vfs")?;
        cx.refuse_elsewhere("nic vfs")?;
    }
    let confirm = if args.yes { Confirm::Given } else { Confirm::IfNeeded };
    let of = Of::HostWithGuests;
    let manner = Manner { confirm, dry_run: args.dry_run, of, ..manner(&args.lock) };
    let wanted = wanted(args)?;
    let done = Session::begin(cx, manner)?.run(|world| set_functions(world, &wanted))?;
    if args.dry_run {
        return Ok(EXIT_DONE);
    }
    if !done.made {
        cx.output.progress(&format!("{}: already set; nothing to do", done.change.about));
    }
    let steps = done.change.steps();
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &steps)?;
    }
    Ok(EXIT_DONE)
}

/// Converts the arguments to a request.
fn wanted(args: &VfsArgs) -> anyhow::Result<Functions> {
    let (Some(name), Some(count)) = (&args.pf, args.count) else {
        return Err(usage("a card and a number are needed", "`gpuvm nic vfs PF --count N`"));
    };
    let at_boot = if args.at_boot { Some(program()?) } else { None };
    Ok(Functions { card: name.clone(), count, host_drivers: args.host_drivers, at_boot })
}
