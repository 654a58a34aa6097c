//! `logs`: prints and follows the log of a guest's serial console or of its QEMU.

use super::args::LogsArgs;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::apply::Interrupt;
use anyhow::Context as _;
use gpuvm_ops::logs::{LogOf, read};
use std::io::ErrorKind;
use std::time::Duration;

/// Interval at which a followed log is read.
const STEP: Duration = Duration::from_millis(250);

/// Runs the verb.
pub fn run(args: &LogsArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let of = if args.qemu { LogOf::Qemu } else { LogOf::Serial };
    let (log, mut follow) = read(cx, &args.name, of, args.lines)?;
    if cx.output.json {
        cx.output.json("gpuvm-log", &log)?;
        return Ok(EXIT_DONE);
    }
    print(&log.lines, cx)?;
    if !args.follow {
        return Ok(EXIT_DONE);
    }
    cx.output.progress(&format!("following {}; Ctrl-C ends", follow.path().display()));
    let interrupt = Interrupt::hold(Box::new(|_, _| {})).context("cannot block signals")?;
    interrupt.hold_at_once();
    while interrupt.came().is_none() {
        match follow.lines() {
            // libvirt has rotated it, and begins another at the next start.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            lines => print(&lines?, cx)?,
        }
        std::thread::sleep(STEP);
    }
    Ok(EXIT_DONE)
}

fn print(lines: &[String], cx: &Context<'_>) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    cx.output.verbatim(&(lines.join("\n") + "\n"))
}
