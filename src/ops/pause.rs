//! `pause` and `resume`: stops a guest's vCPUs, and resumes them. It keeps its memory and its
//! devices meanwhile.

use crate::apply::{DomainStep, Step};
use crate::change::Change;
use crate::error::{Class, Result, classed};
use crate::guest::restart_hint;
use crate::hypervisor::DomainState;
use crate::lookup::find;
use crate::shell::{domain, word};
use crate::world::World;

/// Plans to pause a guest or to resume it; no steps if it is in that state already.
pub fn pause(world: &World, name: &str, paused: bool) -> Result<Change> {
    world.refuse_without_guests(verb(paused))?;
    let summary = find(&*world.hypervisor()?, name)?;
    let step =
        Step::Domain(DomainStep::Pause { name: name.to_owned(), uuid: summary.uuid, paused });
    let (is, hint) = match (summary.state, paused) {
        (DomainState::Running, true) | (DomainState::Paused, false) => {
            return Ok(Change::new(verb(paused), name, vec![step], ()));
        }
        (DomainState::Paused, true) | (DomainState::Running, false) => {
            let mut change = Change::new(verb(paused), name, Vec::new(), ());
            change.parts.clear();
            return Ok(change);
        }
        (DomainState::ShutOff, _) => {
            ("does not run", format!("`gpuvm start {}` starts it", word(name)))
        }
        (DomainState::Suspended, _) => {
            ("is suspended", format!("`virsh dompmwakeup {}` wakes it", domain(name)))
        }
        (DomainState::ShuttingDown, _) => ("is shutting down", String::new()),
        (DomainState::Crashed, _) => ("has crashed", restart_hint(name)),
    };
    let message = format!("domain `{name}` {is}, so it cannot be {}d", verb(paused));
    Err(classed(Class::WrongState, message, hint))
}

fn verb(paused: bool) -> &'static str {
    if paused { "pause" } else { "resume" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::session::{Confirm, Session};
    use crate::stage::fake::xml;
    use crate::stage::{Stage, UUID, manner};

    /// Pauses or resumes guest `a`; whether something was done, or the code of the refusal.
    fn done(stage: &Stage, paused: bool) -> Result<bool, &'static str> {
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let done = session.run(|world| pause(world, "a", paused));
        done.map(|done| done.made).map_err(|error| error.refusal().expect("a refusal").code)
    }

    #[test]
    fn a_guest_is_paused_and_resumed_once() {
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.put_xml(&xml("a", UUID), true);
        let state = || stage.fake.states.borrow().get("a").copied();
        assert_eq!((done(&stage, true), state()), (Ok(true), Some(DomainState::Paused)));
        assert_eq!((done(&stage, true), stage.journals()), (Ok(false), 0));
        assert_eq!((done(&stage, false), state()), (Ok(true), Some(DomainState::Running)));
        assert_eq!(done(&stage, false), Ok(false));
        for state in [DomainState::Suspended, DomainState::Crashed, DomainState::ShuttingDown] {
            stage.fake.states.borrow_mut().insert("a".into(), state);
            assert_eq!(
                (done(&stage, true), done(&stage, false)),
                (Err("wrong-state"), Err("wrong-state"))
            );
        }
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.put_xml(&xml("a", UUID), false);
        assert_eq!(done(&stage, true), Err("wrong-state"));
    }
}
