//! `clone`.

use super::args::{ChangeArgs, CloneArgs};
use super::change::manner;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use crate::identity::random_uuid;
use crate::shell::word;
use anyhow::Context as _;
use gpuvm_ops::clone::{ClonedGuest, clone};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(args: &CloneArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("clone")?;
    let mut wanted = args.wanted();
    let ChangeArgs { dry_run, diff, ref lock } = args.copy.change;
    let mut session = Session::begin(cx, Manner { dry_run, ..manner(lock) })?;
    if diff {
        let change = session.look(|world| clone(world, &wanted))?;
        let ClonedGuest { of, changed, definition, .. } = &change.about;
        let new = Diff::of(&change.subject, None, Some(definition));
        match changed {
            None => new.print(cx.output)?,
            Some((before, after)) => {
                let original = Diff::of(of, Some(before), Some(after));
                Diff::print_all(&[original, new], cx.output)?;
            }
        }
        return Ok(EXIT_DONE);
    }
    if dry_run {
        // It prints the same each time, so no UUID is chosen.
        session.run(|world| clone(world, &wanted))?;
        return Ok(EXIT_DONE);
    }
    wanted.uuid = Some(random_uuid().context("cannot choose a UUID")?);
    let cloned = session.run(|world| clone(world, &wanted))?.change.about;
    let name = word(&cloned.name);
    for disk in &cloned.original {
        cx.output.progress(&format!(
            "disk `{}` of `{}` is now {}, an overlay of {}",
            disk.target, cloned.of, disk.path, disk.from
        ));
    }
    cx.output.progress(&format!(
        "domain `{}` is a clone of `{}`; `gpuvm start {name}` starts it",
        cloned.name, cloned.of
    ));
    if cx.output.json {
        cx.output.json("gpuvm-cloned", &cloned)?;
    }
    Ok(EXIT_DONE)
}
