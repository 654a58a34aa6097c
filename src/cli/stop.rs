//! `stop`.

use super::args::{DownArgs, StopArgs};
use super::change::{Reporter, print_steps, refuse_unfinished};
use super::context::Context;
use super::error::{EXIT_DONE, coded};
use super::output::ask_yes;
use super::show::find;
use super::view::{AgentState, View};
use crate::apply::{ApplyError, Step, StepError, apply};
use crate::domain::DomainXml;
use crate::hypervisor::{AskedBy, DomainState, Hypervisor, XmlOf};
use crate::shell::word;
use std::io::IsTerminal as _;

/// Runs the verb.
pub fn run(args: &StopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("stop")?;
    let mut reporter = Reporter::new(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    let name = &args.name;
    if args.dry_run {
        let step = way_down(&*hypervisor, name, &args.down)?;
        print_steps(step.as_slice(), cx)?;
        return Ok(EXIT_DONE);
    }
    // A guest may take minutes to shut down, and takes nothing new meanwhile: others need not wait for that.
    let lock = reporter.lock(&args.lock)?;
    refuse_unfinished(&*hypervisor, cx.output)?;
    let step = way_down(&*hypervisor, name, &args.down)?;
    drop(lock);
    let uuid = step.as_ref().and_then(|step| step.domain()?.1);
    let Some(step) = step else {
        cx.output.progress(&format!("domain `{name}` is stopped already"));
        return Ok(EXIT_DONE);
    };
    match apply(&[step], &*hypervisor, &mut reporter, None) {
        Err(error) if still_runs(&error) && reporter.ask(|| cut_power(&error))? => {
            let end = Step::EndDomain { name: name.clone(), uuid };
            apply(&[end], &*hypervisor, &mut reporter, None)?;
        }
        ended => ended.map_err(|error| hinted(error, name, "stop"))?,
    }
    Ok(EXIT_DONE)
}

/// The step that takes a domain down; none: it is off.
pub fn way_down(
    hypervisor: &dyn Hypervisor,
    name: &str,
    args: &DownArgs,
) -> anyhow::Result<Option<Step>> {
    let name = name.to_owned();
    let summary = find(hypervisor, &name)?;
    let uuid = Some(summary.uuid);
    Ok(match summary.state {
        DomainState::ShutOff | DomainState::Crashed => None,
        _ if args.force => Some(Step::EndDomain { name, uuid }),
        _ => {
            let xml = DomainXml::parse(&hypervisor.xml(&name, XmlOf::Live)?)?;
            let by = match View::of(&xml, None)?.agent {
                AgentState::Connected => AskedBy::Agent,
                AgentState::Disconnected | AgentState::None => AskedBy::PowerButton,
            };
            Some(Step::ShutDownDomain { name, uuid, by, wait_s: args.wait })
        }
    })
}

/// Whether a change ended because a guest did not shut down in time.
fn still_runs(error: &ApplyError) -> bool {
    matches!(error, ApplyError::Failed { source: StepError::StillRuns { .. }, .. })
}

/// Asks at a terminal whether to cut the power of a guest that does not shut down; no terminal is a no.
fn cut_power(error: &ApplyError) -> std::io::Result<bool> {
    let (ApplyError::Failed { source, .. }, true, true) =
        (error, std::io::stdin().is_terminal(), std::io::stderr().is_terminal())
    else {
        return Ok(false);
    };
    ask_yes(&format!("{source}; cut its power, which may lose data?"))
}

/// Says what helps against a guest that does not shut down for `verb`.
pub fn hinted(error: ApplyError, name: &str, verb: &str) -> anyhow::Error {
    let ApplyError::Failed { source: still @ StepError::StillRuns { .. }, .. } = &error else {
        return error.into();
    };
    let left = if verb == "stop" { "" } else { ", so it is left running" };
    let hint = format!(
        "it may be slow (--wait SECONDS) or not listen; `gpuvm {verb} --force {name}` cuts its power and may lose data",
        name = word(name)
    );
    coded(still.into(), format!("{still}{left}"), hint)
}
