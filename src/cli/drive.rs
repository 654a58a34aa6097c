//! Drives: `drive list`, `drive release-array`, `drive restore-array`, `drive wipe`, and which drives guests have as disks.

pub(super) mod list;
mod release;
mod restore;
pub mod state;
pub(super) mod wipe;

use super::args::DriveVerb;
use super::context::Context;
use super::error::{hinted, usage};
use super::output::{ask, tell};
use crate::apply::Step;
use std::io::IsTerminal as _;

/// Runs the verb.
pub fn run(verb: &DriveVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DriveVerb::List(args) => list::run(args, cx),
        DriveVerb::ReleaseArray(args) => release::run(args, cx),
        DriveVerb::RestoreArray(args) => restore::run(args, cx),
        DriveVerb::Wipe(args) => wipe::run(args, cx),
    }
}

/// Names what will be done to a thing of a kind (`array`), and asks for its name to be typed.
fn confirm(steps: &[Step], doing: &str, kind: &str, name: &str) -> anyhow::Result<()> {
    for step in steps {
        tell(&format!("will {step}"));
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            format!("{doing} {kind} `{name}` is not confirmed, and there is no terminal to ask at"),
            "--yes does it without asking",
        ));
    }
    if ask(&format!("type `{name}`, the {kind}'s name, to go on:"))? == name {
        return Ok(());
    }
    Err(hinted(
        format!("{doing} {kind} `{name}`: the name was not repeated, so nothing is done"),
        "",
    ))
}
