//! `rename`.

use super::args::{ChangeArgs, RenameArgs};
use super::change::manner;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use gpuvm_ops::rename::{Rename, rename};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(args: &RenameArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("rename")?;
    let wanted = Rename { name: args.name.clone(), to: args.to.clone() };
    let ChangeArgs { dry_run, diff, ref lock } = args.change;
    let mut session = Session::begin(cx, Manner { dry_run, ..manner(lock) })?;
    if diff {
        let (before, after) = session.look(|world| rename(world, &wanted))?.about.definitions;
        Diff::of(&args.name, Some(&before), Some(&after)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    let done = session.run(|world| rename(world, &wanted))?;
    if dry_run {
        return Ok(EXIT_DONE);
    }
    let renamed = done.change.about;
    cx.output.progress(&if done.made {
        format!(
            "domain `{}` is `{}` now; the guest's own host name stays",
            renamed.before, renamed.name
        )
    } else {
        "already set; nothing to do".to_owned()
    });
    if cx.output.json {
        cx.output.json("gpuvm-renamed", &renamed)?;
    }
    Ok(EXIT_DONE)
}
