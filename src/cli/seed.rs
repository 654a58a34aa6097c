//! `seed drop`.

use super::args::SeedVerb;
use super::change::manner;
use super::context::Context;
use super::error::{Coded, EXIT_DONE};
use gpuvm_ops::drop_seed::DropSeedError;
use gpuvm_ops::drop_seed::{self, drop_seed, refuse_early, wait_for};
use gpuvm_ops::session::{Manner, Session};
use serde::Serialize;
use std::time::Duration;

/// Is what `seed drop` answers.
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
    let dropped = match drop_seed(cx, name)?.about {
        None => {
            cx.output.progress(&format!("domain `{name}` has no seed"));
            true
        }
        Some(seed) => {
            if seed.runs && !args.now {
                cx.output.progress(&format!("waiting up to {} s for cloud-init", args.wait));
                let wait = Duration::from_secs(args.wait);
                let ended = wait_for(&*cx.hypervisor()?, name, wait, || go_on(&mut session))?;
                refuse_early(&ended, name, args.wait)?;
            }
            drop_seed::run(&mut session, cx, name)?
        }
    };
    if cx.output.json {
        cx.output.json("gpuvm-dropped-seed", &Dropped { name: name.clone(), dropped })?;
    }
    Ok(EXIT_DONE)
}

/// Ends the program where a signal has come; nothing is changed yet.
fn go_on(session: &mut Session<'_>) -> anyhow::Result<()> {
    match session.interrupted() {
        None => Ok(()),
        Some(signal) => Err(DropSeedError::Interrupted { signal: signal.to_string() }.bare()),
    }
}
