//! `restart`: stop and start as one change. The stop cannot be undone; a run that is killed in between is finished by
//! `recover`.

use super::args::StopArgs;
use super::change::{Reporter, journal, print_steps};
use super::context::Context;
use super::error::{EXIT_DONE, Hinted, dump_and_define, hinted};
use super::show::find;
use super::stop;
use crate::apply::{ApplyError, Step, apply};
use crate::hypervisor::{DomainState, Hypervisor};
use crate::shell::word;

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("restart")?;
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        print_steps(&steps(&*hypervisor, args)?, cx)?;
        return Ok(EXIT_DONE);
    }
    let lock = reporter.lock(&args.lock)?;
    let journal = journal("restart", &args.name, &*hypervisor)?;
    let steps = match steps(&*hypervisor, args) {
        Ok(steps) => steps,
        Err(error) => {
            journal.close()?;
            return Err(error);
        }
    };
    // What it takes it has taken already: nobody needs to wait for a guest that shuts down. It is held again while the
    // guest starts.
    drop(lock);
    let done = apply(&steps, &*hypervisor, &mut reporter, Some(journal));
    done.map_err(|error| told(error, &*hypervisor, &steps, args))?;
    Ok(EXIT_DONE)
}

/// The steps of a restart.
fn steps(hypervisor: &dyn Hypervisor, args: &StopArgs) -> anyhow::Result<Vec<Step>> {
    let name = &args.name;
    let summary = find(hypervisor, name)?;
    if !summary.persistent {
        return Err(hinted(
            format!("domain `{name}` has no definition, so it would be gone once it is stopped"),
            dump_and_define(name),
        ));
    }
    let mut steps: Vec<Step> = stop::way_down(hypervisor, name, &args.down)?.into_iter().collect();
    steps.push(Step::StartDomain { name: name.clone(), uuid: Some(summary.uuid) });
    Ok(steps)
}

/// Says where a restart has ended: before the stop, or after.
fn told(
    error: ApplyError,
    hypervisor: &dyn Hypervisor,
    steps: &[Step],
    args: &StopArgs,
) -> anyhow::Error {
    let name = &args.name;
    let is_off = find(hypervisor, name).is_ok_and(|row| row.state == DomainState::ShutOff);
    if steps.len() < 2 || !is_off {
        return stop::hinted(error, name, "restart");
    }
    let hint = match error.needs_recovery() {
        true => "remove the cause, then `gpuvm recover`, which starts it".into(),
        false => format!("remove the cause, then `gpuvm start {}`", word(name)),
    };
    let message =
        format!("domain `{name}` is stopped, which cannot be undone, and is not started again");
    anyhow::Error::from(error).context(Hinted::around(message, hint))
}
