//! `start`.

use super::args::StartArgs;
use super::change::{Reporter, journal, keep_links, print_steps, refuse_unfinished};
use super::claim::claim_of;
use super::context::Context;
use super::error::EXIT_DONE;
use super::history::{DomainChange, change_domain};
use super::pages;
use super::show::find;
use crate::apply::{Step, Transaction};
use crate::domain::DomainXml;
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use serde::Serialize;

/// Is what a start takes.
#[derive(Default)]
struct Plan {
    /// The definition, where the domain is off.
    defined: Option<DomainXml>,
    /// What reserves the pages that it is missing.
    pages: Vec<Step>,
    /// All else, the start itself at last; nothing where it runs.
    steps: Vec<Step>,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Started<'a> {
    /// Name of the domain.
    name: &'a str,
    /// Whether it ran before.
    already: bool,
}

/// Runs the verb.
pub fn run(args: &StartArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("start")?;
    if args.reserve_pages {
        pages::refuse_elsewhere("start", cx)?;
    }
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    if args.dry_run {
        let Plan { pages, steps, .. } = plan(&*hypervisor, args, cx)?;
        print_steps(&[pages, steps].concat(), cx)?;
        return Ok(EXIT_DONE);
    }
    // Held until the guest has started: before that nobody can see that its devices are taken.
    let _lock = reporter.lock(&args.lock)?;
    refuse_unfinished(&*hypervisor, cx.output)?;
    let Plan { defined, pages, steps } = plan(&*hypervisor, args, cx)?;
    if cx.has_guests_here()? && defined.as_ref().is_some_and(has_devices) {
        keep_links(false, cx.output)?;
    }
    let changes = pages.iter().chain(&steps).any(Step::is_of_host);
    let journal = changes.then(|| journal("start", &args.name, &*hypervisor)).transpose()?;
    let mut transaction = Transaction::new(&*hypervisor, &mut reporter, journal);
    if let Some(defined) = defined.filter(|_| !pages.is_empty()) {
        let change = DomainChange {
            verb: "start",
            name: &args.name,
            what: pages.iter().map(Step::to_string).collect(),
            before: defined.text(),
            after: &defined,
            first: pages,
            last: Vec::new(),
        };
        change_domain(&change, &*hypervisor, &mut transaction, cx.output)?;
    }
    let before = steps.len().saturating_sub(1);
    transaction.run(&steps[..before])?;
    let already = steps.is_empty();
    if already {
        cx.output.progress(&format!("domain `{}` runs already", args.name));
    }
    transaction.run(&steps[before..])?;
    transaction.complete()?;
    transaction.close()?;
    if cx.output.json {
        cx.output.json("gpuvm-started", &Started { name: &args.name, already })?;
    }
    Ok(EXIT_DONE)
}

/// Whether a guest has devices of the host.
fn has_devices(xml: &DomainXml) -> bool {
    xml.held(false).is_ok_and(|held| !held.devices.is_empty())
}

/// What a start takes.
fn plan(hypervisor: &dyn Hypervisor, args: &StartArgs, cx: &Context<'_>) -> anyhow::Result<Plan> {
    let summary = find(hypervisor, &args.name)?;
    let start = Step::StartDomain { name: args.name.clone(), uuid: Some(summary.uuid) };
    Ok(match summary.state {
        DomainState::ShutOff | DomainState::Crashed => {
            let xml = DomainXml::parse(&hypervisor.xml(&args.name, XmlOf::Inactive)?)?;
            let pages = pages::to_start(&args.name, &xml, args.reserve_pages, cx)?;
            let mut steps = claim_of(&xml, cx)?;
            steps.push(start);
            Plan { defined: Some(xml), pages, steps }
        }
        // A paused or ending domain is not started; libvirt says why.
        DomainState::Paused | DomainState::ShuttingDown if !args.dry_run => {
            Plan { steps: vec![start], ..Plan::default() }
        }
        _ => Plan::default(),
    })
}
