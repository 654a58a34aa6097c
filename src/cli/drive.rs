//! Drives: `drive list`, `drive release-array`, `drive restore-array`, `drive wipe`, and which drives guests have as disks.

pub(super) mod list;
mod release;
mod restore;
pub(super) mod wipe;

use super::args::DriveVerb;
use super::context::Context;
use crate::apply::Step;
use gpuvm_ops::change::Change;
use gpuvm_ops::reporter::{Deed, Question};

/// Runs the verb.
pub fn run(verb: &DriveVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        DriveVerb::List(args) => list::run(args, cx),
        DriveVerb::ReleaseArray(args) => release::run(args, cx),
        DriveVerb::RestoreArray(args) => restore::run(args, cx),
        DriveVerb::Wipe(args) => wipe::run(args, cx),
    }
}

/// The change that one of these verbs makes, asked about by the name of a thing of a kind (`array`).
fn named<T>(
    (verb, subject): (&'static str, &str),
    (deed, kind, name): (Deed, &'static str, &str),
    steps: Vec<Step>,
    about: T,
) -> Change<T> {
    let question = Some(Question::Name { deed, kind, name: name.to_owned() });
    Change { question, ..Change::new(verb, subject, steps, about) }
}
