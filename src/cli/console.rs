//! `console`: the guest's serial console on this terminal, or between two pipes.

use super::args::ConsoleArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use super::raw::Raw;
use crate::apply::Interrupt;
use anyhow::Context as _;
use gpuvm_ops::console::{ConsoleEnd, Relay, attach};
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;

/// Runs the verb.
pub fn run(args: &ConsoleArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let interrupt = Interrupt::hold(Box::new(|_, _| {})).context("cannot block signals")?;
    let name = &args.name;
    let console = attach(cx, name, args.force)?;
    let stdin = std::io::stdin();
    let is_terminal = stdin.is_terminal();
    if is_terminal {
        cx.output.progress(&format!("console of domain `{name}`; Ctrl-] leaves"));
    }
    interrupt.hold_at_once();
    let raw = if is_terminal { Some(Raw::new(stdin.as_fd())?) } else { None };
    let mut stdout = std::io::stdout();
    let mut relay = Relay::new(console, stdin.as_fd(), is_terminal, &mut stdout);
    let end = relay.copy(&|| interrupt.came().is_some());
    drop(raw);
    match end? {
        ConsoleEnd::Left => cx.output.progress("\nleft; the guest goes on"),
        ConsoleEnd::ConsoleEnded => {
            cx.output.progress(&format!("\nthe console of `{name}` has ended"));
        }
        ConsoleEnd::InputEnded | ConsoleEnd::Signal => {}
    }
    Ok(EXIT_DONE)
}
