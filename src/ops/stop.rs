//! `stop`: asks a guest to shut down, or cuts its power if requested.

use crate::apply::{ApplyError, DomainStep, Step, StepError};
use crate::change::{Change, Hold};
use crate::domain::DomainXml;
use crate::domain::view::{AgentState, View};
use crate::error::{Class, Error, Result, classed, coded};
use crate::gpu_states;
use crate::guest::still;
use crate::hypervisor::{AskedBy, DomainState, Hypervisor, XmlOf};
use crate::lookup::find;
use crate::p2p;
use crate::partition;
use crate::reporter::{Answer, Question};
use crate::session::{Done, Session};
use crate::shell::word;
use crate::world::World;

/// How a guest is stopped.
#[derive(Debug, Clone, Copy)]
pub struct Down {
    /// Whether its power is cut at once.
    pub force: bool,
    /// How many seconds it may take to shut down.
    pub wait_s: u64,
}

/// Plans a stop; no steps if the guest is off. A guest may take minutes to shut down, and takes no
/// new devices meanwhile, so others need not wait.
pub fn stop(world: &World, name: &str, down: Down) -> Result<Change> {
    let hypervisor = &*world.hypervisor()?;
    let (step, state) = way_down(hypervisor, name, down)?;
    refuse_still("stop", name, state, step.as_ref())?;
    let question = question("stop", name, step.as_ref(), down);
    let of = if step.is_some() { XmlOf::Live } else { XmlOf::Inactive };
    let after = after(world, hypervisor, name, of);
    let again = format!("gpuvm stop {}", word(name));
    Ok(Change { question, again, ..ending(name, step, after) })
}

/// Refuses to ask a guest to shut down whose vCPUs are paused: libvirt does not pass it on, or the
/// guest does not react, and the time limit would pass.
pub(crate) fn refuse_still(
    verb: &'static str,
    name: &str,
    state: DomainState,
    step: Option<&Step>,
) -> Result<()> {
    let name_word = word(name);
    let asks = matches!(step, Some(Step::Domain(DomainStep::ShutDown { .. })));
    let Some((is, wake)) = still(state, name).filter(|_| asks) else { return Ok(()) };
    let message = format!("domain `{name}` {is}, so it does not respond to a shutdown request");
    let hint = format!(
        "{wake} lets it go on, then `gpuvm {verb} {name_word}`; or `gpuvm {verb} --force \
         {name_word}` cuts its power and may lose data"
    );
    Err(classed(Class::WrongState, message, hint))
}

/// The question before a guest is taken down by this step: a crashed one is ended only if the
/// caller requests it.
pub(crate) fn question(
    verb: &'static str,
    name: &str,
    step: Option<&Step>,
    down: Down,
) -> Option<Question> {
    let is_crashed = !down.force && matches!(step, Some(Step::Domain(DomainStep::End { .. })));
    is_crashed.then(|| Question::EndCrashed { verb, name: name.to_owned() })
}

/// The steps after a guest is off. If they cannot be determined, it is stopped anyway.
fn after(world: &World, hypervisor: &dyn Hypervisor, name: &str, of: XmlOf) -> Vec<Step> {
    let ran = of == XmlOf::Live;
    let mut steps = Vec::new();
    let mut plan = || -> Result<Vec<Step>> {
        let xml = DomainXml::parse(&hypervisor.xml(name, of)?)?;
        if ran {
            steps.extend(gpu_states::once_stopped(world, &xml));
        }
        let uuid = xml.uuid().unwrap_or_default();
        steps.extend(p2p::claim::once_off(&uuid, world)?);
        partition::once_stopped(world, &xml, ran)
    };
    let found = plan().unwrap_or_else(|error| {
        let todo = "`gpuvm fabric show` tells whether an NVLink partition stays active";
        world.warning(&format!(
            "what domain `{name}` had of the host is not looked at: {error}; {todo}"
        ));
        Vec::new()
    });
    steps.extend(found);
    steps
}

/// The change that ends a guest by a step, with the steps after it. If there are any, an
/// interrupted run is finished.
fn ending(name: &str, step: Option<Step>, after: Vec<Step>) -> Change {
    let journal = !after.is_empty();
    let steps = step.into_iter().chain(after).collect();
    Change { journal, hold: Hold::Planning, ..Change::new("stop", name, steps, ()) }
}

/// Stops a guest; one that does not shut down in time is ended if the caller agrees.
pub fn stop_or_end(session: &mut Session<'_>, name: &str, down: Down) -> Result<Done<()>> {
    let error = match session.run(|world| stop(world, name, down)) {
        Err(error) => error,
        done => return done,
    };
    if let Some(why) = still_runs(&error) {
        let question = Question::CutPower { why: why.to_string() };
        if session.ask(&question, &[], &[])? == Answer::Yes {
            let uuid = error.step().and_then(|step| step.domain()?.1);
            let world = session.world();
            let after = after(world, &*world.hypervisor()?, name, XmlOf::Live);
            let change = ending(
                name,
                Some(Step::Domain(DomainStep::End { name: name.to_owned(), uuid })),
                after,
            );
            session.follow(&change)?;
            return Ok(Done { change, made: true });
        }
    }
    Err(explained(error, name, "stop"))
}

/// The step that stops a domain, and the domain's state; `None` if it is off.
pub fn way_down(
    hypervisor: &dyn Hypervisor,
    name: &str,
    down: Down,
) -> Result<(Option<Step>, DomainState)> {
    let name = name.to_owned();
    let summary = find(hypervisor, &name)?;
    let uuid = Some(summary.uuid);
    let step = match summary.state {
        DomainState::ShutOff => None,
        // There is no guest that could shut down or lose anything.
        state if down.force || !state.has_guest() => {
            Some(Step::Domain(DomainStep::End { name, uuid }))
        }
        _ => {
            let xml = DomainXml::parse(&hypervisor.xml(&name, XmlOf::Live)?)?;
            let by = match View::of(&xml, None)?.agent {
                AgentState::Connected => AskedBy::Agent,
                AgentState::Disconnected | AgentState::None => AskedBy::PowerButton,
            };
            let wait_s = down.wait_s;
            Some(Step::Domain(DomainStep::ShutDown { name, uuid, by, wait_s, restarts: false }))
        }
    };
    Ok((step, summary.state))
}

/// The error of a step, if it is that a guest did not shut down in time.
fn still_runs(error: &Error) -> Option<&StepError> {
    match error {
        Error::Apply(ApplyError::Failed {
            source: source @ StepError::StillRuns { .. }, ..
        }) => Some(source),
        _ => None,
    }
}

/// Adds a hint for a guest that does not shut down for `verb`.
pub(crate) fn explained(error: Error, name: &str, verb: &str) -> Error {
    let Error::Apply(ApplyError::Failed { source: still @ StepError::StillRuns { .. }, .. }) =
        &error
    else {
        return error;
    };
    let left = if verb == "stop" { "" } else { ", so it is left running" };
    let hint = format!(
        "it may be slow (--wait SECONDS) or not listen; `gpuvm {verb} --force {name}` cuts its \
         power and may lose data",
        name = word(name)
    );
    coded(still.into(), format!("{still}{left}"), hint)
}

#[cfg(test)]
mod tests;
