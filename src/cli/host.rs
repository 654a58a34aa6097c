//! `host show`, `host matrix`, `host capture`.

use super::args::HostVerb;
use super::context::Context;

/// Runs the verb.
pub fn run(args: &HostVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    let _ = (args, cx.output);
    Err(super::error::hinted("not merged yet", ""))
}
