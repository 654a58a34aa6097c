//! `vgpu list`, `vgpu vfs`.

mod list;

use super::args::{VgpuVerb, VgpuVfsArgs};
use super::change::{manner, program};
use super::context::Context;
use super::error::{EXIT_DONE, usage};
use gpuvm_ops::session::{Manner, Of, Session};
use gpuvm_ops::vgpu::vfs::{CardFunctions, enable_at_boot, set_functions};

/// Runs the verb.
pub fn run(verb: &VgpuVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        VgpuVerb::List(args) => list::run(args, cx),
        VgpuVerb::Vfs(args) if !args.early.is_empty() => {
            enable_at_boot(cx, &args.early)?;
            Ok(EXIT_DONE)
        }
        VgpuVerb::Vfs(args) => vfs(args, cx),
    }
}

/// Runs `vgpu vfs`.
fn vfs(args: &VgpuVfsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if !args.dry_run {
        cx.refuse_recorded("vgpu vfs")?;
        cx.refuse_elsewhere("vgpu vfs")?;
    }
    let Some(pf) = args.pf else {
        return Err(usage("a GPU is needed", "`gpuvm vgpu vfs PF --on`"));
    };
    if !args.on && !args.off {
        let hint = format!("`gpuvm vgpu vfs {pf} --on` enables its VFs, --off disables them");
        return Err(usage("--on or --off is needed", hint));
    }
    let at_boot = if args.at_boot { Some(program()?) } else { None };
    let wanted = CardFunctions { pf, on: args.on, at_boot };
    let manner = Manner { dry_run: args.dry_run, of: Of::HostWithGuests, ..manner(&args.lock) };
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
