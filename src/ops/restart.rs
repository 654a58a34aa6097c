//! `restart`: stop and start as one change. The stop cannot be undone; an interrupted run is
//! finished by `recover`.

use crate::apply::{ApplyError, DomainStep, Step, StepError};
use crate::change::{Change, Hold};
use crate::claim::{claim_of, refuse_strangers};
use crate::domain::DomainXml;
use crate::error::{Coded, Error, Refusal, Result, dump_and_define};
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use crate::lookup::find;
use crate::p2p::claim::{Starting, to_start};
use crate::partition;
use crate::session::{Done, Session};
use crate::shell::word;
use crate::startable::{refuse_disks, refuse_iommufd, refuse_networks_down};
use crate::stop::{self, Down, way_down};
use crate::world::World;
use std::cell::Cell;

/// The reason a guest is not restarted.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "restart-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RestartError {
    /// The domain has no definition, so it would not exist after the stop.
    #[error("domain `{name}` has no persistent definition: stopping it would delete it")]
    NoDefinition { name: String },
}

impl Coded for RestartError {}

/// Plans a restart. The guest holds its devices already, so the lock is not held while it shuts
/// down; it is held again while it starts.
pub fn restart(world: &World, name: &str, down: Down) -> Result<Change> {
    let hypervisor = world.hypervisor()?;
    let summary = find(&*hypervisor, name)?;
    if !summary.persistent {
        return Err(
            RestartError::NoDefinition { name: name.to_string() }.hint(dump_and_define(name))
        );
    }
    let (step, state) = way_down(&*hypervisor, name, down)?;
    stop::refuse_still("restart", name, state, step.as_ref())?;
    let question = stop::question("restart", name, step.as_ref(), down);
    let mut steps: Vec<Step> = step.into_iter().collect();
    let read = |of| Ok::<_, Error>(DomainXml::parse(&hypervisor.xml(name, of)?)?);
    let defined = read(XmlOf::Inactive)?;
    refuse_disks(&defined, world)?;
    refuse_iommufd(&defined, world)?;
    refuse_networks_down(&defined, world)?;
    steps.extend(if steps.is_empty() {
        // Its resources for the start have not been assigned yet.
        claim_of(&defined, world)?
    } else {
        refuse_strangers(&defined, world)?;
        partition::to_restart(world, &read(XmlOf::Live)?, &defined)?
    });
    steps.extend(to_start(&defined, None, Starting::Restart, None, world)?);
    steps.push(DomainStep::Start { name: name.to_owned(), uuid: Some(summary.uuid) }.into());
    let again = format!("gpuvm restart {}", word(name));
    let change = Change::new("restart", name, steps, ());
    Ok(Change { hold: Hold::Planning, question, again, ..change })
}

/// Restarts a guest, and reports how far a failed restart got.
pub fn run(session: &mut Session<'_>, name: &str, down: Down) -> Result<Done<()>> {
    run_if(session, name, down, |_| Ok(true))
}

/// The same if that is still due once the lock is held.
pub(crate) fn run_if(
    session: &mut Session<'_>,
    name: &str,
    down: Down,
    is_due: impl Fn(&World) -> Result<bool>,
) -> Result<Done<()>> {
    let ran = Cell::new(false);
    let done = session.run(|world| {
        if !is_due(world)? {
            return Ok(Change::new("restart", name, Vec::new(), ()));
        }
        let change = restart(world, name, down)?;
        ran.set(change.steps().first().is_some_and(Step::takes_away));
        Ok(change)
    });
    let error = match done {
        Err(error) => error,
        done => return done,
    };
    let Ok(hypervisor) = session.hypervisor() else { return Err(error) };
    if was_started(&error, &*hypervisor, name) {
        session
            .world()
            .note(&format!("domain `{name}` was started by someone else in the meantime"));
        return Ok(Done { change: Change::new("restart", name, Vec::new(), ()), made: true });
    }
    Err(with_progress(error, &*hypervisor, name, ran.get()))
}

/// Whether only the start was refused, since another had started the guest once it was off: it runs
/// again, as wanted.
fn was_started(error: &Error, hypervisor: &dyn Hypervisor, name: &str) -> bool {
    let Error::Apply(applied @ ApplyError::Failed { step, source, .. }) = error else {
        return false;
    };
    let runs = find(hypervisor, name).is_ok_and(|row| row.state == DomainState::Running);
    let is_start = step.is_start();
    let is_refused = matches!(source, StepError::Hypervisor(error) if error.kind == HypervisorErrorKind::WrongState);
    is_start && is_refused && runs && applied.left().is_empty() && !applied.needs_recovery()
}

/// Adds how far the restart of a guest that `ran` got: before the stop, or after.
fn with_progress(error: Error, hypervisor: &dyn Hypervisor, name: &str, ran: bool) -> Error {
    let Error::Apply(applied) = &error else { return error };
    let is_off = find(hypervisor, name).is_ok_and(|row| !row.state.is_active());
    if !ran || !is_off {
        return stop::explained(error, name, "restart");
    }
    let hint = if applied.needs_recovery() {
        "remove the cause, then `gpuvm recover`, which starts it".into()
    } else {
        format!("remove the cause, then `gpuvm start {}`", word(name))
    };
    let message =
        format!("domain `{name}` is stopped, which cannot be undone, and is not started again");
    error.around(Refusal::around(message, hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::session::Confirm;
    use crate::stage::{Stage, UUID, manner};

    #[test]
    fn a_guest_that_another_restart_has_started_is_restarted() {
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.put("a", UUID, true);
        let start = Step::Domain(DomainStep::Start { name: "a".into(), uuid: Some(UUID.into()) });
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let plan = |_: &World| Ok(Change::new("restart", "a", vec![start.clone()], ()));
        let error: Error = session.run(plan).unwrap_err();
        assert!(was_started(&error, &*stage.fake, "a"), "{}", error.whole());
        // Nor is one that has ended, or another error.
        stage.fake.put("a", UUID, false);
        assert!(!was_started(&error, &*stage.fake, "a"));
        let other = session.run(|world| restart(world, "b", Down { force: true, wait_s: 0 }));
        assert!(!was_started(&other.unwrap_err(), &*stage.fake, "a"));
    }
}
