//! `import`.

use super::args::ImportArgs;
use super::change::manner;
use super::context::Context;
use super::diff::Diff;
use super::error::EXIT_DONE;
use crate::hypervisor::machine::{host_name, is_same_name};
use crate::identity::random_uuid;
use crate::shell::word;
use anyhow::Context as _;
use gpuvm_ops::import::{ImportedGuest, import, verified};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(args: &ImportArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("import")?;
    cx.refuse_elsewhere("import")?;
    let mut wanted = args.wanted();
    let change = &args.of.change;
    let dry_run = change.dry_run;
    let mut session = Session::begin(cx, Manner { dry_run, ..manner(&change.lock) })?;
    let bundle = verified(&session, &wanted.path)?;
    if change.diff {
        let change = session.look(|world| import(world, &wanted, &bundle))?;
        Diff::of(&change.subject, None, Some(&change.about.definition)).print(cx.output)?;
        return Ok(EXIT_DONE);
    }
    // A preview prints the same each time, so no UUID is chosen.
    if let Some(copy) = wanted.copy.as_mut().filter(|_| !dry_run) {
        copy.uuid = Some(random_uuid().context("cannot choose a UUID")?);
    }
    let done = session.run(|world| import(world, &wanted, &bundle))?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let made = done.change.about;
    report(&made, cx);
    if cx.output.json {
        cx.output.json("gpuvm-imported", &made)?;
    }
    Ok(EXIT_DONE)
}

/// Prints the imported guest, and the one that must not run beside it.
fn report(made: &ImportedGuest, cx: &Context<'_>) {
    let of = word(&made.of);
    let is_of_here = made.host.as_deref().is_some_and(|host| is_same_name(host, &host_name()));
    if !made.is_copy && is_of_here {
        // It is not defined here, or it could not have been made.
        cx.output.warning(&format!(
            "it has the UUID and the MAC addresses of `{of}`: if that is defined on another machine \
             now, both must not run"
        ));
    } else if !made.is_copy {
        let there = made.host.as_ref().map_or("the host that it comes from", |host| host);
        cx.output.warning(&format!(
            "it has the UUID and the MAC addresses of `{of}` on {there}, and both must not run: \
             `gpuvm delete {of}` there before it is started here"
        ));
    }
    cx.output.progress(&format!(
        "domain `{}` is made; `gpuvm start {}` starts it",
        made.name,
        word(&made.name)
    ));
}
