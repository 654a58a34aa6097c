//! The process that makes a change of the host's network and reverts it: separate from the terminal
//! and from the program that started it, so that it survives when the login is cut off. The program
//! that waits for the guard undoes the change if the guard is killed.

use super::{CREATED, DELETED, HostBridgeError};
use crate::apply::array::output;
use crate::apply::{Observer as _, recover};
use crate::error::{Coded as _, Doing as _, Result};
use crate::hypervisor::none::NoHypervisor;
use crate::reporter::{Asked, Question};
use crate::trace::Running;
use crate::unfinished;
use crate::watch::Watch;
use crate::world::World;
use gpuvm_host::program::for_caller;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Exists if systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";
/// Runs a program outside the login's unit, whose processes systemd may end with it.
const SCOPE: [&str; 5] = ["systemd-run", "--scope", "--quiet", "--collect", "--"];
/// How long systemd may take to start the scope, in seconds.
const SCOPE_S: u64 = 20;
/// How long to wait for another change of the host before a killed guard's is undone, in seconds.
const LOCK_S: u64 = 60;

/// Leaves the terminal, so that its end does not end this process.
pub fn leave_terminal() {
    // It may have no terminal already.
    let _ = nix::unistd::setsid();
}

/// How a change under a guard is made.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// Whether consent is requested.
    pub asks: bool,
    /// Whether its steps are only shown.
    pub dry_run: bool,
    /// The words of the guard's command line, with which this program makes the change.
    pub words: Vec<OsString>,
}

/// Asks, runs the guard and waits for its end. Returns its exit code.
pub(super) fn follow(world: &World, question: Option<Question>, guarded: &Guarded) -> Result<u8> {
    let mut watch = Watch::begin(Arc::clone(world.reporter()))?;
    if let Some(question) = question.filter(|_| guarded.asks) {
        let answer =
            world.reporter().ask(Asked { question: &question, steps: &[], losses: &[] })?;
        question.settle(answer, &[])?;
    }
    watch.hold_at_once();
    let (mut guard, running) =
        start(&guarded.words).doing(|| "cannot start the process that makes the change".into())?;
    let status = wait(&mut guard, &mut watch)?;
    running.ended(status);
    if let Some(code) = status.code() {
        return Ok(u8::try_from(code).unwrap_or(u8::MAX));
    }
    take_back(&mut watch, world)?;
    Err(HostBridgeError::GuardKilled { status: status.to_string() }
        .hint("what it had begun is undone; `gpuvm network host-bridge show` shows what is there"))
}

fn start(words: &[OsString]) -> std::io::Result<(Child, Running)> {
    let program = std::env::current_exe()?;
    let scoped = Path::new(SYSTEMD).is_dir() && {
        let path = program.to_string_lossy();
        let probe: Vec<&str> = SCOPE.into_iter().chain([&*path, "--version"]).collect();
        output(&probe, SCOPE_S).is_ok()
    };
    let mut command = if scoped {
        let mut command = for_caller(SCOPE[0]);
        command.args(&SCOPE[1..]).arg(program);
        command
    } else {
        for_caller(program)
    };
    let running = Running::begins(command.args(words).stdin(Stdio::null()));
    Ok((command.spawn()?, running))
}

/// Waits for the guard's end. A signal to stop makes it revert everything; the end of the terminal
/// ends only this process.
fn wait(guard: &mut Child, watch: &mut Watch) -> Result<ExitStatus> {
    let mut is_said = false;
    loop {
        if let Some(status) = guard.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = watch.interrupted().filter(|_| !is_said) {
            if signal == Signal::SIGHUP.as_str() {
                return Err(HostBridgeError::NoTerminal
                    .hint("the change continues, and is reverted unless it is confirmed"));
            }
            is_said = true;
            // It may have ended at this moment.
            let id = i32::try_from(guard.id()).expect("the kernel's ids of processes are such");
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Undoes the change of a killed guard.
fn take_back(watch: &mut Watch, world: &World) -> Result<()> {
    let _lock = watch.lock(Duration::from_secs(LOCK_S))?;
    for orphan in unfinished::all(world.state())?.readable {
        let verb = orphan.story.as_ref().map_or("", |story| story.change.verb.as_str());
        if [CREATED, DELETED].contains(&verb) {
            recover(orphan, &NoHypervisor, watch, &[])?;
        }
    }
    Ok(())
}
