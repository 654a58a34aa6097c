//! Erasing a drive of a recorded DGX-2, which is not on this machine, so nothing is really erased.

use super::*;
use crate::apply::{DomainStep, HostLock, HostStep, Journal, Step};
use crate::error::Error;
use crate::placement::{Held, Occupancy};
use crate::reporter::{Answer, Question};
use crate::session::{Confirm, Manner, Session};
use crate::stage::{Stage, is_free, manner};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// A data drive of it, by the kernel's name and by its function.
const DRIVE: (&str, &str) = ("nvme2n1", "2e:00.0");

/// The machine, with a user who gives this answer.
fn stage(answer: Answer) -> Stage {
    let mut stage = Stage::who_says(answer);
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/dgx-2.json");
    stage.world.settings.host = Some(host);
    stage
}

/// Its drives, with a guest holding this function.
fn state(stage: &Stage, held: Option<&str>) -> State {
    let devices = |bdf: &str| vec![bdf.parse().unwrap()];
    let guest = |bdf| Held { domain: "a".into(), devices: devices(bdf), ..Held::default() };
    let domains = held.map(guest).into_iter().collect();
    State::read(&stage.world, Occupancy { domains, ..Occupancy::default() }).unwrap()
}

/// Erases it, with a guest taking it before (0), during the question (1), or never.
fn run(stage: &Stage, taken_at: usize, manner: Manner) -> Result<bool> {
    let mut session = Session::begin(&stage.world, manner).unwrap();
    let done = session.run(|_| {
        let is_taken = stage.caller.heard("ask") >= taken_at;
        plan(&state(stage, is_taken.then_some(DRIVE.1)), DRIVE.0)
    });
    done.map(|done| done.made)
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error:?}")).code
}

#[test]
fn a_drive_is_named_by_the_kernel_or_by_its_function() {
    let stage = stage(Answer::Nobody);
    for id in [DRIVE.0, DRIVE.1, "/dev/nvme2n1"] {
        let change = wipe(&stage.world, id).unwrap();
        assert_eq!(change.about.name, DRIVE.0, "{id}");
        let [Step::Host(HostStep::WipeDrive(step))] = &change.steps()[..] else { panic!("{id}") };
        assert_eq!((&step.path, step.bytes), (&change.about.path, 3_840_755_982_336));
        let asked = Question::Name { deed: Deed::Erase, kind: "drive", name: id.to_owned() };
        assert_eq!(
            (change.question, change.again),
            (Some(asked), format!("gpuvm drive wipe {id}"))
        );
    }
    assert_eq!(code(wipe(&stage.world, "nvme99n1")), "not-found");
    assert_eq!(code(wipe(&stage.world, "34:00.0")), "drive-none-at");
}

#[test]
fn a_drive_that_a_guest_has_is_never_erased() {
    // Before the question, and during it.
    for (taken_at, asked) in [(0, 0), (1, 1)] {
        let stage = stage(Answer::Yes);
        assert_eq!(code(run(&stage, taken_at, manner(Confirm::Ask))), "in-use");
        assert_eq!((stage.caller.heard("ask"), stage.journals()), (asked, 0));
        assert!(is_free(stage.dir.path()));
    }
}

#[test]
fn without_a_yes_nothing_is_erased() {
    for (answer, said) in [(Answer::No, "declined"), (Answer::Nobody, "usage")] {
        let stage = stage(answer);
        assert_eq!(code(run(&stage, 9, manner(Confirm::Ask))), said);
        assert_eq!(stage.journals(), 0);
    }
    let stage = stage(Answer::Nobody);
    let shown = Manner { dry_run: true, ..manner(Confirm::Ask) };
    assert!(!run(&stage, 9, shown).unwrap());
    assert_eq!((stage.caller.heard("preview of 1"), stage.journals()), (1, 0));
}

#[test]
fn nothing_is_erased_beside_another_change() {
    let stage = stage(Answer::Nobody);
    let waiting = |_| ControlFlow::Continue(());
    let held = HostLock::take_in(stage.dir.path(), Duration::ZERO, waiting).unwrap();
    let error = run(&stage, 9, manner(Confirm::Given)).unwrap_err();
    assert!(matches!(error, Error::Lock(_)), "{error}");
    drop(held);
    // Nor after an interrupted run.
    let dir = stage.dir.path().join("journal");
    let mut journal = Journal::begin_in(&dir, "create", "a", "test:///fake").unwrap();
    let xml = crate::stage::fake::xml("a", crate::stage::UUID);
    journal.plan(&[Step::Domain(DomainStep::Define { name: "a".into(), xml })]).unwrap();
    journal.begins(0).unwrap();
    drop(journal);
    assert_eq!(code(run(&stage, 9, manner(Confirm::Given))), "unfinished");
}
