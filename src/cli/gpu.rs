//! `gpu list`, `gpu exclude`, `gpu include`, `gpu test`.

pub(super) mod list;
mod test;

use super::args::{GpuVerb, LockArgs};
use super::change::manner;
use super::context::Context;
use super::error::EXIT_DONE;
use crate::discover::exclusions::FILE;
use crate::placement::Exclusion;
use gpuvm_ops::exclude::{Excluded, ExclusionChange, exclude};
use gpuvm_ops::session::{Manner, Session};

/// Runs the verb.
pub fn run(verb: &GpuVerb, cx: &Context<'_>) -> anyhow::Result<u8> {
    match verb {
        GpuVerb::List(args) => list::run(args, cx),
        GpuVerb::Test(args) => test::run(args, cx),
        GpuVerb::Exclude(args) => {
            let (device, reason) = (args.device.clone(), args.reason.clone());
            let wanted = ExclusionChange::Exclude { device, reason };
            change(cx, "gpu exclude", args.dry_run, &args.lock, &wanted)
        }
        GpuVerb::Include(args) => {
            let wanted = ExclusionChange::Include {
                device: args.device.clone(),
                despite_health: args.despite_health,
                untested: args.untested,
            };
            change(cx, "gpu include", args.dry_run, &args.lock, &wanted)
        }
    }
}

/// Changes the list, or prints what would change.
fn change(
    cx: &Context<'_>,
    verb: &str,
    dry_run: bool,
    lock: &LockArgs,
    wanted: &ExclusionChange,
) -> anyhow::Result<u8> {
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let mut session = Session::begin(cx, Manner { dry_run, ..manner(lock) })?;
    let outcome = exclude(&mut session, wanted)?;
    if cx.output.json {
        cx.output.json("gpuvm-exclusions", &outcome)?;
        return Ok(EXIT_DONE);
    }
    let Excluded { bdf, entry, changed, unhealthy, untested } = &outcome;
    let cleans = matches!(wanted, ExclusionChange::Include { untested: true, .. });
    let accepts = matches!(wanted, ExclusionChange::Include { despite_health: true, .. });
    let text = match (entry, changed, dry_run) {
        (Some(_), true, true) => format!("exclude {bdf} in /{FILE}"),
        (None, true, true) if accepts => format!("offer {bdf} to guests despite its health"),
        (None, true, false) if accepts => format!("{bdf} is offered despite its health"),
        (None, true, true) if cleans => format!("record {bdf} as clean"),
        (None, true, false) if cleans => format!("{bdf} is clean, without a test"),
        (None, true, false) if unhealthy.is_some() || untested.is_some() => {
            format!("{bdf} is not excluded any more")
        }
        (None, true, true) => format!("take {bdf} out of /{FILE}"),
        (_, false, true) => "nothing to do".to_owned(),
        (Some(_), true, false) => format!("{bdf} is excluded"),
        (None, true, false) => format!("{bdf} is in use again"),
        (Some(_), false, false) => format!("{bdf} is excluded already"),
        (None, false, false) => format!("{bdf} is not excluded"),
    };
    if let Some(why) = unhealthy {
        cx.warning(&format!(
            "{bdf} is unhealthy: {why}; no guest gets it, unless by `gpuvm gpu include {bdf} \
             --despite-health`"
        ));
    }
    if let Some(why) = untested {
        let says = Exclusion::untested(*bdf, why).says();
        cx.warning(&format!(
            "{bdf} is {says}; no guest gets it, unless by `gpuvm gpu include {bdf} \
             --untested`"
        ));
    }
    if dry_run {
        cx.output.text(&text)?;
    } else {
        cx.output.progress(&text);
    }
    Ok(EXIT_DONE)
}
