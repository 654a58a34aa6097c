//! `nic list`, `nic vfs`.

mod list;

use super::args::{EarlyVfs, NicVerb, VfsArgs};
use super::change::{manner, program};
use super::context::Context;
use super::error::{Coded, EXIT_DONE, usage};
use crate::apply::{Step, apply};
use crate::fsroot::FsRoot;
use crate::hypervisor::none::NoHypervisor;
use crate::words;
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use gpuvm_ops::sriov::CardError;
use gpuvm_ops::sriov::{self, Functions, set_functions};
use std::time::{Duration, Instant};

/// How long a card's driver and the name of its network device are waited for at boot.
const BOOT_WAIT: Duration = Duration::from_secs(60);

/// Runs the verb.
pub fn run(verb: &NicVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        NicVerb::List(args) => list::run(args, cx),
        NicVerb::Vfs(args) if !args.early.is_empty() => early(&args.early, cx),
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
        cx.output.progress(&format!("{}: so already", done.change.about));
    }
    let steps = done.change.steps();
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &steps)?;
    }
    Ok(EXIT_DONE)
}

/// What the arguments ask for.
fn wanted(args: &VfsArgs) -> anyhow::Result<Functions> {
    let (Some(name), Some(count)) = (&args.pf, args.count) else {
        return Err(usage("a card and a number are needed", "`gpuvm nic vfs PF --count N`"));
    };
    let card = name.clone();
    let at_boot = if args.at_boot { Some(program()?) } else { None };
    Ok(Functions { card, count, host_drivers: args.host_drivers, at_boot })
}

/// Makes virtual functions while the machine boots: nothing uses them yet, and there is no libvirt. A card that cannot
/// have them does not hinder the others.
fn early(cards: &[EarlyVfs], cx: &Context<'_>) -> anyhow::Result<u8> {
    let root = FsRoot::live()?;
    let until = Instant::now() + BOOT_WAIT;
    let mut failed = Vec::new();
    for card in cards {
        let done = sriov::early(card.pf, &card.at_boot, &root, until);
        let done = done.and_then(|steps| Ok(apply(&steps, &NoHypervisor, &mut Quiet, None)?));
        match done {
            Ok(()) => {
                let (pf, count) = (card.pf, card.at_boot.count);
                cx.output
                    .progress(&format!("{pf} has {}", words::count(count, "virtual function")));
            }
            Err(error) => failed.push(error.whole()),
        }
    }
    if failed.is_empty() {
        return Ok(EXIT_DONE);
    }
    Err(CardError::NotAtBoot { lines: failed.join("\n  ") }
        .hint("`gpuvm nic vfs PF --count N --at-boot` writes the list anew"))
}

/// Watches a run that nobody can end: at boot.
struct Quiet;

impl crate::apply::Observer for Quiet {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
}
