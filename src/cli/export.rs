//! `export`.

use super::args::ExportArgs;
use super::context::Context;

/// Runs the verb.
pub fn run(args: &ExportArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let _ = (args, cx.output);
    Err(super::error::hinted("not merged yet", ""))
}
