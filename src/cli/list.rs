//! `list`.

use super::context::Context;

/// Runs the verb.
pub fn run(cx: &Context<'_>) -> anyhow::Result<u8> {
    let _ = cx.output;
    Err(super::error::hinted("not merged yet", ""))
}
