//! `stop`.

use super::args::StopArgs;
use super::change::{Reporter, print_steps, refuse_unfinished};
use super::context::Context;
use super::error::EXIT_DONE;
use super::show::find;
use crate::apply::{ApplyError, Step, StepError, apply};
use crate::hypervisor::DomainState;

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("stop")?;
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    let name = args.name.clone();
    let steps = match find(&*hypervisor, &name)?.state {
        DomainState::ShutOff | DomainState::Crashed => Vec::new(),
        _ if args.force => vec![Step::EndDomain { name }],
        _ => vec![Step::ShutDownDomain { name, wait_s: args.wait }],
    };
    if args.dry_run {
        print_steps(&steps, cx)?;
    } else if steps.is_empty() {
        cx.output.progress(&format!("domain `{}` is stopped already", args.name));
    } else {
        refuse_unfinished(&*hypervisor)?;
        apply(&steps, &*hypervisor, &mut reporter, None).map_err(|error| hinted(error, args))?;
    }
    Ok(EXIT_DONE)
}

/// Says what helps against a guest that does not shut down.
fn hinted(error: ApplyError, args: &StopArgs) -> anyhow::Error {
    let ApplyError::Failed { source: still @ StepError::StillRuns { .. }, .. } = &error else {
        return error.into();
    };
    let hint = format!(
        "it may be slow (--wait SECONDS) or not listen; `gpuvm stop --force {}` cuts its power and may lose data",
        args.name
    );
    super::error::hinted(still.to_string(), hint)
}
