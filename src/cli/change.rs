//! Shared by the verbs that change the machine: showing a change, asking for confirmation, and
//! `--dry-run`.

use super::args::LockArgs;
use super::context::Context;
use super::output::Output;
use super::terminal::shown;
use crate::apply::Step;
use anyhow::Context as _;
use gpuvm_ops::host::setting;
use gpuvm_ops::session::{Confirm, Manner, Of, Session};
use gpuvm_ops::unfinished;
use std::io;
use std::time::Duration;

/// Returns the manner of a verb that asks nothing.
pub fn manner(lock: &LockArgs) -> Manner {
    let lock_wait = lock.wait();
    Manner { confirm: Confirm::Given, dry_run: false, lock_wait, of: Of::Guests }
}

/// Returns the manner of a verb that asks unless --yes is given.
pub fn asking(lock: &LockArgs, (yes, dry_run): (bool, bool)) -> Manner {
    let confirm = if yes { Confirm::Given } else { Confirm::Ask };
    Manner { confirm, dry_run, ..manner(lock) }
}

impl LockArgs {
    /// How long the lock is waited for.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.lock_wait)
    }
}

/// Makes the change planned by `steps`, or prints it with --dry-run; returns the steps made.
pub fn change_host(
    verb: &'static str,
    lock: &LockArgs,
    dry_run: bool,
    steps: impl Fn() -> anyhow::Result<Vec<Step>>,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let mut session = Session::begin(cx, Manner { dry_run, of: Of::Host, ..manner(lock) })?;
    let done = session.run(|_| steps().map(|steps| setting(verb, steps)))?;
    if dry_run {
        return Ok(Vec::new());
    }
    cx.output.progress(if done.made {
        "`gpuvm host undo` reverts it"
    } else {
        "already set; nothing to do"
    });
    Ok(done.change.steps())
}

/// Warns of interrupted changes, for a verb that changes nothing.
pub fn name_unfinished(output: Output) {
    unfinished::name(|text| output.warning(text));
}

/// Prints steps that are not done.
pub fn print_steps(steps: &[Step], cx: &Context<'_>) -> io::Result<()> {
    shown(steps, cx.output)
}

/// The path of this program, for a unit that runs it.
pub fn program() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(program.to_str().context("this program's path is not UTF-8")?.to_owned())
}
