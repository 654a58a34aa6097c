//! `start`.

use super::args::StartArgs;
use super::change::{Reporter, print_steps, refuse_unfinished};
use super::context::Context;
use super::error::EXIT_DONE;
use super::show::find;
use crate::apply::{Step, apply};
use crate::hypervisor::DomainState;

/// Runs the verb.
pub fn run(args: &StartArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("start")?;
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    let steps = match find(&*hypervisor, &args.name)?.state {
        DomainState::ShutOff | DomainState::Crashed => {
            vec![Step::StartDomain { name: args.name.clone() }]
        }
        // A paused or ending domain is not started; libvirt says why.
        DomainState::Paused | DomainState::ShuttingDown if !args.dry_run => {
            vec![Step::StartDomain { name: args.name.clone() }]
        }
        _ => Vec::new(),
    };
    if args.dry_run {
        print_steps(&steps, cx)?;
    } else if steps.is_empty() {
        cx.output.progress(&format!("domain `{}` runs already", args.name));
    } else {
        refuse_unfinished(&*hypervisor)?;
        apply(&steps, &*hypervisor, &mut reporter, None)?;
    }
    Ok(EXIT_DONE)
}
