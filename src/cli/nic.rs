//! `nic list`, `nic vfs`.

pub(super) mod list;
mod plan;

pub use plan::{functions_of, link_up, vfs as plan_vfs};

use super::args::{EarlyVfs, NicVerb, VfsArgs};
use super::change::{agree, print_steps, refuse_unfinished, watch};
use super::context::Context;
use super::error::{EXIT_DONE, hinted};
use crate::apply::nic::NicStep;
use crate::apply::{Journal, Step, apply};
use crate::fsroot::FsRoot;
use crate::hypervisor::none::{NoHypervisor, URI};
use crate::words;
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
    if args.dry_run {
        print_steps(&plan::vfs(args, cx)?.steps, cx)?;
        return Ok(EXIT_DONE);
    }
    cx.refuse_recorded("nic vfs")?;
    cx.refuse_elsewhere("nic vfs")?;
    let mut reporter = watch(cx.output)?;
    let _lock = reporter.lock(args.lock.wait())?;
    refuse_unfinished(&NoHypervisor, cx.output)?;
    let plan::Change { pf, steps } = plan::vfs(args, cx)?;
    let gone = |step: &&Step| matches!(step, Step::Nic(NicStep::SetCount { was: 1.., .. }));
    let gone: Vec<&Step> = steps.iter().filter(gone).collect();
    if !gone.is_empty() && !args.yes {
        let what = format!("taking the virtual functions of {pf} away");
        agree(&gone, "take them away?", &what)?;
    }
    if steps.is_empty() {
        cx.output.progress(&format!("{pf}: so already"));
    } else {
        let hypervisor = cx.hypervisor_or_none()?;
        let journal = Journal::begin("nic vfs", &pf.to_string(), URI)?;
        apply(&steps, &*hypervisor, &mut reporter, Some(journal))?;
    }
    if cx.output.json {
        cx.output.json_rows("gpuvm-steps", &steps)?;
    }
    Ok(EXIT_DONE)
}

/// Makes virtual functions while the machine boots: nothing uses them yet, and there is no libvirt. A card that cannot
/// have them does not hinder the others.
fn early(cards: &[EarlyVfs], cx: &Context<'_>) -> anyhow::Result<u8> {
    let root = FsRoot::live()?;
    let until = Instant::now() + BOOT_WAIT;
    let mut failed = Vec::new();
    for card in cards {
        let done = plan::early(card, &root, until);
        let done = done.and_then(|steps| Ok(apply(&steps, &NoHypervisor, &mut Quiet, None)?));
        match done {
            Ok(()) => {
                let (pf, count) = (card.pf, card.at_boot.count);
                cx.output
                    .progress(&format!("{pf} has {}", words::count(count, "virtual function")));
            }
            Err(error) => failed.push(super::error::whole(&error)),
        }
    }
    if failed.is_empty() {
        return Ok(EXIT_DONE);
    }
    Err(hinted(failed.join("\n  "), "`gpuvm nic vfs PF --count N --at-boot` writes the list anew"))
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
