//! Images: `image add`, `image list`, `image remove`.

pub(super) mod add;
pub(super) mod list;
mod remove;
mod source;

use super::args::ImageVerb;
use super::context::Context;

/// Runs the verb.
pub fn run(verb: &ImageVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        ImageVerb::Add(args) => add::run(args, cx),
        ImageVerb::List(args) => list::run(args, cx),
        ImageVerb::Remove(args) => remove::run(args, cx),
    }
}
