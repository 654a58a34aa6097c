//! `plan`.

use super::args::PlanArgs;
use super::context::Context;

/// Runs the verb.
pub fn run(args: &PlanArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let _ = (args, cx.output);
    Err(super::error::hinted("not merged yet", ""))
}
