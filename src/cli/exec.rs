//! `exec` and `shell`: programs in a guest by its agent, without an address or a key.

use super::args::{ExecArgs, ShellArgs};
use super::context::Context;
use super::error::EXIT_DONE;
use super::raw::Raw;
use crate::apply::Interrupt;
use anyhow::Context as _;
use gpuvm_ops::console::{ConsoleEnd, Relay};
use gpuvm_ops::error::usage;
use gpuvm_ops::exec::{ExecWanted, MOST_INPUT, MOST_OUTPUT, exec};
use gpuvm_ops::guest_shell::{Terminal, begin};
use std::io::{IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

/// Runs `exec`; its exit status is that of the program.
pub fn run(args: &ExecArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_running_guests("exec")?;
    let mut input = None;
    if args.stdin {
        let mut bytes = Vec::new();
        let limit = MOST_INPUT as u64;
        std::io::stdin()
            .take(limit + 1)
            .read_to_end(&mut bytes)
            .context("cannot read the input")?;
        if bytes.len() > MOST_INPUT {
            return Err(usage(
                format!("the input has more than {MOST_INPUT} bytes"),
                "gpuvm-cp(1) copies files into a guest",
            )
            .into());
        }
        input = Some(bytes);
    }
    let limit = args.timeout.map(Duration::from_secs);
    let (name, command) = (args.name.clone(), args.command.clone());
    let ended = exec(cx, &ExecWanted { name, command, input, limit })?;
    if cx.output.json {
        cx.output.json("gpuvm-executed", &ended)?;
        return Ok(ended.status);
    }
    // It is the program's own output, as by ssh.
    cx.output.passed_on(&ended.stdout, &ended.stderr).context("cannot print")?;
    if ended.cut_off {
        cx.output.warning(&format!(
            "the output is cut off: {MOST_OUTPUT} bytes of each stream are passed on; write more to a \
             file in the guest"
        ));
    }
    Ok(ended.status)
}

/// Runs `shell`; its exit status is that of the shell.
pub fn shell(args: &ShellArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_running_guests("shell")?;
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || cx.output.json {
        let message = "`shell` needs a terminal, and prints no JSON";
        return Err(usage(message, "`gpuvm exec NAME -- COMMAND` runs a command").into());
    }
    let interrupt = Interrupt::hold(Box::new(|_, _| {})).context("cannot block signals")?;
    let size = terminal_size::terminal_size();
    let (columns, rows) = size.map_or((80, 24), |(width, height)| (width.0, height.0));
    let kind = std::env::var("TERM").unwrap_or_default();
    let hypervisor = cx.hypervisor()?;
    let terminal = Terminal { rows, columns, kind };
    let mut guest = begin(&*hypervisor, cx, &args.name, &terminal)?;
    cx.output.progress(&format!("shell in domain `{}` by its agent; Ctrl-] leaves", args.name));
    interrupt.hold_at_once();
    let raw = Raw::new(stdin.as_fd())?;
    let mut stdout = std::io::stdout();
    let mut relay = Relay::new(Box::new(&mut guest), stdin.as_fd(), true, &mut stdout);
    let end = relay.copy(&|| interrupt.came().is_some());
    drop(relay);
    drop(raw);
    let status = guest.end();
    match end? {
        ConsoleEnd::Left => cx.output.progress("\nleft; the shell is ended"),
        ConsoleEnd::ConsoleEnded | ConsoleEnd::InputEnded | ConsoleEnd::Signal => {}
    }
    Ok(status?.unwrap_or(EXIT_DONE))
}
