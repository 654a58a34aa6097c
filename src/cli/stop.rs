//! `stop`, `pause`, `resume`.

use super::args::{DownArgs, PauseArgs, StopArgs};
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use crate::hypervisor::DomainState;
use crate::shell::word;
use gpuvm_ops::session::{Confirm, Manner, Session};
use gpuvm_ops::stop::{Down, stop_or_end};

impl From<&DownArgs> for Down {
    fn from(args: &DownArgs) -> Down {
        Down { force: args.force, wait_s: args.wait }
    }
}

/// Runs `pause` (true) or `resume`.
pub fn pause(args: &PauseArgs, paused: bool, cx: &Context<'_>) -> anyhow::Result<u8> {
    let verb = if paused { "pause" } else { "resume" };
    cx.refuse_recorded(verb)?;
    let wanted = if paused { is_running } else { is_paused };
    let all = several::chosen(&args.names, Some(&args.only), wanted, cx)?;
    several::each(&all, cx, |one, cx| pause_one(args, (one, paused), cx))
}

/// Whether a domain can be paused.
fn is_running(state: DomainState) -> bool {
    state == DomainState::Running
}

/// Whether a domain can be resumed.
fn is_paused(state: DomainState) -> bool {
    state == DomainState::Paused
}

fn pause_one(
    args: &PauseArgs,
    (Chosen { name, uuid }, paused): (&Chosen, bool),
    cx: &Context<'_>,
) -> anyhow::Result<u8> {
    let PauseArgs { dry_run, lock, .. } = args;
    let mut session = Session::begin(cx, Manner { dry_run: *dry_run, ..manner(lock) })?;
    session.only(name, uuid.as_deref());
    let done = session.run(|world| gpuvm_ops::pause::pause(world, name, paused))?;
    match (done.made, paused) {
        _ if *dry_run => {}
        (true, true) => cx.output.progress(&format!(
            "domain `{name}` is paused, and keeps its memory and devices; `gpuvm resume {}` lets it \
             go on",
            word(name)
        )),
        (true, false) => cx.output.progress(&format!("domain `{name}` goes on")),
        (false, true) => cx.output.progress(&format!("domain `{name}` is paused already")),
        (false, false) => cx.output.progress(&format!("domain `{name}` is not paused")),
    }
    Ok(EXIT_DONE)
}

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("stop")?;
    several::down("stop", args, cx, |chosen, cx| one(args, chosen, cx))
}

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
