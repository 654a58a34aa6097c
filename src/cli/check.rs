//! `check`.

use super::args::CheckArgs;
use super::context::Context;

/// Runs the verb.
pub fn run(args: &CheckArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let _ = (args, cx.output);
    Err(super::error::hinted("not merged yet", ""))
}
