//! `seed drop`.

use super::args::SeedVerb;
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use gpuvm_ops::drop_seed::{drop_seed, run_when_read};
use gpuvm_ops::session::{Manner, Session};
use serde::Serialize;

/// The result of `seed drop`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Dropped {
    /// The domain's name.
    name: String,
    /// Whether nothing is left of the seed.
    dropped: bool,
}

/// Runs the verb.
pub fn run(verb: &SeedVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    let SeedVerb::Drop(args) = verb;
    cx.refuse_recorded("seed drop")?;
    let name = &args.name;
    let manner = Manner { dry_run: args.dry_run, ..manner(&args.lock) };
    let mut session = Session::begin(cx, manner)?;
    if args.dry_run {
        session.run(|world| drop_seed(world, name))?;
        return Ok(EXIT_DONE);
    }
    let dropped = run_when_read(&mut session, cx, name, (!args.now).then_some(args.wait))?;
    if cx.output.json {
        cx.output.json("gpuvm-dropped-seed", &Dropped { name: name.clone(), dropped })?;
    }
    Ok(EXIT_DONE)
}
