//! `start`.

use super::args::StartArgs;
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use super::several::{self, Chosen};
use gpuvm_ops::pages;
use gpuvm_ops::session::{Manner, Session};
use gpuvm_ops::start::{Start, start};
use serde::Serialize;

/// The answer as JSON.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Started<'a> {
    /// Name of the domain.
    name: &'a str,
    /// Whether it ran before.
    already: bool,
}

/// Runs the verb.
pub fn run(args: &StartArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("start")?;
    if args.reserve_pages {
        pages::refuse_elsewhere("start", cx)?;
    }
    let all = several::chosen(&args.names, Some(&args.only), |state| !state.is_active(), cx)?;
    if all.is_empty() {
        cx.output.progress("no domain is off");
    }
    several::each(&all, cx, |chosen, cx| one(args, chosen, cx))
}

fn one(args: &StartArgs, Chosen { name, uuid }: &Chosen, cx: &Context<'_>) -> anyhow::Result<u8> {
    let StartArgs { reserve_pages, p2p, dry_run, lock, .. } = args;
    let mut session = Session::begin(cx, Manner { dry_run: *dry_run, ..manner(lock) })?;
    session.only(name, uuid.as_deref());
    let (reserve_pages, p2p, dry_run) = (*reserve_pages, *p2p, *dry_run);
    let wanted = Start { name: name.clone(), reserve_pages, p2p, dry_run };
    let done = session.run(|world| start(world, &wanted))?;
    if args.dry_run {
        return Ok(EXIT_DONE);
    }
    let already = !done.made;
    if already {
        cx.output.progress(&format!("domain `{name}` runs already"));
    }
    if cx.output.json {
        cx.output.json("gpuvm-started", &Started { name, already })?;
    }
    Ok(EXIT_DONE)
}
