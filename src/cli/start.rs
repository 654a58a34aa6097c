//! `start`.

use super::args::StartArgs;
use super::change::{Reporter, journal, print_steps, refuse_unfinished};
use super::claim::claim_of;
use super::context::Context;
use super::error::EXIT_DONE;
use super::show::find;
use crate::apply::{Step, Transaction};
use crate::domain::DomainXml;
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};

/// Runs the verb.
pub fn run(args: &StartArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("start")?;
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        print_steps(&steps(&*hypervisor, args, cx)?, cx)?;
        return Ok(EXIT_DONE);
    }
    // The definition says what the guest takes, so the start itself needs no lock, and may take long.
    let lock = reporter.lock(&args.lock)?;
    refuse_unfinished(&*hypervisor)?;
    let steps = steps(&*hypervisor, args, cx)?;
    let binds = steps.iter().any(Step::is_of_host);
    let journal = binds.then(|| journal("start", &args.name, &*hypervisor)).transpose()?;
    let mut transaction = Transaction::new(&*hypervisor, &mut reporter, journal);
    let before = steps.len().saturating_sub(1);
    transaction.run(&steps[..before])?;
    drop(lock);
    if steps.is_empty() {
        cx.output.progress(&format!("domain `{}` runs already", args.name));
    }
    transaction.run(&steps[before..])?;
    transaction.close()?;
    Ok(EXIT_DONE)
}

/// The steps of a start; none where it runs.
fn steps(
    hypervisor: &dyn Hypervisor,
    args: &StartArgs,
    cx: &Context<'_>,
) -> anyhow::Result<Vec<Step>> {
    let start = Step::StartDomain { name: args.name.clone() };
    Ok(match find(hypervisor, &args.name)?.state {
        DomainState::ShutOff | DomainState::Crashed => {
            let xml = DomainXml::parse(&hypervisor.xml(&args.name, XmlOf::Inactive)?)?;
            let mut steps = claim_of(&xml, cx)?;
            steps.push(start);
            steps
        }
        // A paused or ending domain is not started; libvirt says why.
        DomainState::Paused | DomainState::ShuttingDown if !args.dry_run => vec![start],
        _ => Vec::new(),
    })
}
