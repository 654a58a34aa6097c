//! The process that makes a change of the host's network and takes it back: apart from the terminal and from the program
//! that started it, so that it lives on when the login is cut off. The one watches the other: where the guard is killed,
//! what it began is undone by the program that waits for it.

use super::super::super::change::{Watch, watch};
use super::super::super::context::Context;
use super::super::super::error::Coded;
use super::{CREATED, DELETED};
use crate::apply::array::output;
use crate::apply::{Observer as _, Orphan, recover};
use crate::cli::network::bridge::error::HostBridgeError;
use crate::hypervisor::none::NoHypervisor;
use crate::program::for_caller;
use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// There where systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";
/// What runs a program outside the login's unit, whose processes systemd may end with it.
const SCOPE: [&str; 5] = ["systemd-run", "--scope", "--quiet", "--collect", "--"];
/// How long systemd may take for that, in seconds.
const SCOPE_S: u64 = 20;
/// How long another change of the host is waited for when a killed guard's is undone, in seconds.
const LOCK_S: u64 = 60;

/// Leaves the terminal, so that its end does not end this process.
pub fn leave_terminal() {
    // That it has none already is as good.
    let _ = nix::unistd::setsid();
}

/// Runs the guard with the words of its command line and waits for its end; its exit code.
pub fn follow(mut words: Vec<OsString>, cx: &Context<'_>) -> anyhow::Result<u8> {
    words.push("--guard".into());
    let mut reporter = watch(cx.output)?;
    reporter.hold_at_once();
    let mut guard = start(&words).context("cannot start the process that makes the change")?;
    let status = wait(&mut guard, &mut reporter)?;
    if let Some(code) = status.code() {
        return Ok(u8::try_from(code).unwrap_or(u8::MAX));
    }
    take_back(&mut reporter)?;
    Err(HostBridgeError::GuardKilled { status: status.to_string() }
        .hint("what it had begun is undone; `gpuvm network host-bridge show` says what is there"))
}

/// Starts it.
fn start(words: &[OsString]) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let scoped = Path::new(SYSTEMD).is_dir() && {
        let path = program.to_string_lossy();
        let probe: Vec<&str> = SCOPE.into_iter().chain([&*path, "--version"]).collect();
        output(&probe, SCOPE_S).is_ok()
    };
    let mut command = match scoped {
        true => {
            let mut command = for_caller(SCOPE[0]);
            command.args(&SCOPE[1..]).arg(program);
            command
        }
        false => for_caller(program),
    };
    let child = command.args(words).stdin(Stdio::null()).spawn()?;
    tracing::info!("runs {command:?}");
    Ok(child)
}

/// Waits for its end. A signal that asks to stop asks it to take all back; the end of the terminal ends only this process.
fn wait(guard: &mut Child, reporter: &mut Watch) -> anyhow::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = guard.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = reporter.interrupted().filter(|_| !told) {
            if signal == Signal::SIGHUP.as_str() {
                return Err(HostBridgeError::NoTerminal
                    .hint("the change goes on, and is taken back unless it is confirmed"));
            }
            told = true;
            // It may have ended at this moment.
            let _ = kill(Pid::from_raw(i32::try_from(guard.id())?), Signal::SIGTERM);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Undoes what a killed guard has begun.
fn take_back(reporter: &mut Watch) -> anyhow::Result<()> {
    let _lock = reporter.lock(Duration::from_secs(LOCK_S))?;
    for orphan in Orphan::all()?.readable {
        let verb = orphan.story.as_ref().map_or("", |story| story.change.verb.as_str());
        if [CREATED, DELETED].contains(&verb) {
            recover(orphan, &NoHypervisor, reporter, &[])?;
        }
    }
    Ok(())
}
