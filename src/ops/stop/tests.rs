//! How each verb treats a crashed guest that keeps its process (`on_crash` preserve).

use super::*;
use crate::apply::{LiveStep, StepError};
use crate::delete::{Delete, delete};
use crate::error::Refusal;
use crate::hypervisor::file_users::Uses;
use crate::restart::restart;
use crate::session::Confirm;
use crate::stage::fake::{Fake, xml};
use crate::stage::{Stage, UUID, manner};
use crate::start::{Start, start};
use std::path::Path;

/// A stop that is not forced.
const DOWN: Down = Down { force: false, wait_s: 0 };

/// A machine with a crashed guest with a disk.
fn stage() -> Stage {
    stage_of(Answer::Yes)
}

/// The same with a reporter that gives this answer.
fn stage_of(answer: Answer) -> Stage {
    let stage = Stage::who_says(answer);
    let disk = "<devices><disk type='file' device='cdrom'><source file='/a.img'/>\
                <target dev='sda' bus='sata'/></disk></devices></domain>";
    stage.fake.put_xml(&xml("a", UUID).replace("</domain>", disk), true);
    stage.fake.crashed.borrow_mut().insert("a".into());
    stage
}

/// Whether its guest has crashed and has its process.
fn is_crashed(fake: &Fake) -> bool {
    fake.runs("a") == Some(true) && fake.crashed.borrow().contains("a")
}

fn run<T>(stage: &Stage, plan: impl Fn(&World) -> Result<Change<T>>) -> Result<Done<T>> {
    Session::begin(&stage.world, manner(Confirm::Ask))?.run(plan)
}

#[test]
fn it_is_ended_only_where_the_caller_says_so() {
    for answer in [Answer::Nobody, Answer::No] {
        let stage = stage_of(answer);
        let stopped = run(&stage, |world| stop(world, "a", DOWN)).unwrap_err();
        let restarted = run(&stage, |world| restart(world, "a", DOWN)).unwrap_err();
        for (error, verb) in [(stopped, "stop"), (restarted, "restart")] {
            let Error::Refused(Refusal { hint, .. }) = &error else { panic!("{error}") };
            assert!(hint.contains("virsh dump --memory-only a a.dump"), "{error}: {hint}");
            let is_asked = answer == Answer::No;
            assert_eq!(hint.contains(&format!("`gpuvm {verb} --force a`")), !is_asked, "{hint}");
        }
        assert!(is_crashed(&stage.fake) && stage.caller.heard("ask") == 2);
        // A caller who says so is not asked.
        let force = Down { force: true, ..DOWN };
        assert!(run(&stage, |world| stop(world, "a", force)).unwrap().made);
        assert_eq!((stage.fake.runs("a"), stage.caller.heard("ask")), (Some(false), 2));
    }
}

#[test]
fn paused_guests_are_not_asked_to_shut_down() {
    let stage = Stage::who_says(Answer::Nobody);
    stage.fake.put("a", UUID, true);
    for (state, first) in [
        (DomainState::Paused, "`gpuvm resume a` "),
        (DomainState::Suspended, "`virsh dompmwakeup a` "),
    ] {
        stage.fake.states.borrow_mut().insert("a".into(), state);
        for verb in ["stop", "restart"] {
            let plan = |down| {
                run(&stage, |world| match verb {
                    "stop" => stop(world, "a", down),
                    _ => restart(world, "a", down),
                })
            };
            let error = plan(DOWN).unwrap_err();
            let Error::Refused(Refusal { hint, .. }) = &error else { panic!("{error}") };
            assert!(hint.starts_with(first), "{hint}");
            assert!(hint.contains(&format!("then `gpuvm {verb} a`")), "{hint}");
            assert!(hint.contains(&format!("`gpuvm {verb} --force a`")), "{hint}");
            stage.fake.put("a", UUID, true);
            assert!(plan(Down { force: true, ..DOWN }).unwrap().made);
            stage.fake.put("a", UUID, true);
        }
        let wanted = Start { name: "a".into(), reserve_pages: false, p2p: None, dry_run: false };
        let error = start(&stage.world, &wanted).unwrap_err();
        let Error::Refused(Refusal { hint, .. }) = &error else { panic!("{error}") };
        assert!(hint.starts_with(first), "{hint}");
    }
}

#[test]
fn a_deletion_lists_losses() {
    let stage = stage();
    let wanted = Delete { name: "a".into(), keep_data: false };
    let warnings = delete(&stage.world, &wanted).unwrap().warnings.join("\n");
    assert!(warnings.contains("is lost") && warnings.contains("virsh dump"), "{warnings}");
    stage.fake.crashed.borrow_mut().clear();
    assert_eq!(delete(&stage.world, &wanted).unwrap().warnings, [""; 0]);
}

#[test]
fn a_stop_ends_it_without_a_shutdown_request() {
    let stage = stage();
    let done = run(&stage, |world| stop(world, "a", DOWN)).unwrap();
    assert!(
        matches!(done.change.steps()[..], [Step::Domain(DomainStep::End { .. })]),
        "{:?}",
        done.change
    );
    assert_eq!(stage.fake.runs("a"), Some(false));
    assert!(!run(&stage, |world| stop(world, "a", DOWN)).unwrap().made, "it is off");
}

#[test]
fn it_is_restarted_and_not_started() {
    let stage = stage();
    for dry_run in [false, true] {
        let wanted = Start { name: "a".into(), reserve_pages: false, p2p: None, dry_run };
        let error = start(&stage.world, &wanted).unwrap_err();
        assert!(error.to_string().contains("still holds its devices"), "{error}");
    }
    assert!(is_crashed(&stage.fake));
    let done = run(&stage, |world| restart(world, "a", DOWN)).unwrap();
    let steps = done.change.steps();
    assert!(
        matches!(
            steps[..],
            [Step::Domain(DomainStep::End { .. }), Step::Domain(DomainStep::Start { .. })]
        ),
        "{steps:?}"
    );
    assert!(stage.fake.runs("a") == Some(true) && !is_crashed(&stage.fake));
}

#[test]
fn a_deletion_ends_it_first() {
    let stage = stage();
    let wanted = Delete { name: "a".into(), keep_data: false };
    let done = run(&stage, |world| delete(world, &wanted)).unwrap();
    let steps = done.change.steps();
    let [Step::Domain(DomainStep::End { .. }), Step::Domain(DomainStep::Undefine { .. }), ..] =
        steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(stage.fake.runs("a"), None);
}

#[test]
fn no_step_takes_what_it_holds() {
    let stage = stage();
    let one = |step: Step| run(&stage, |_| Ok(Change::new("test", "a", vec![step.clone()], ())));
    let undefine =
        Step::Domain(DomainStep::Undefine { name: "a".into(), xml: stage.fake.definition("a") });
    assert!(one(undefine).unwrap_err().whole().contains("it runs"), "undefined");
    let detach = Step::Live(LiveStep::DetachDisk {
        name: "a".into(),
        path: "/a.img".into(),
        wait_s: 600,
        xml: None,
    });
    let error = one(detach).unwrap_err();
    let Error::Apply(ApplyError::Failed { source: StepError::HoldsDisk { .. }, .. }) = &error
    else {
        panic!("{error}")
    };
    assert!(error.whole().contains("crashed"), "{}", error.whole());
    assert!(is_crashed(&stage.fake));
}

#[test]
fn its_run_time_state_is_taken() {
    let stage = stage();
    // Its definition has another disk since.
    let live = stage.fake.definition("a");
    stage.fake.put_xml(&live.replace("/a.img", "/b.img"), true);
    stage.fake.live.borrow_mut().insert("a".into(), live);
    let uses = Uses::read(&*stage.fake).unwrap();
    for path in ["/a.img", "/b.img"] {
        assert_eq!(uses.of(Path::new(path)).len(), 1, "{path}");
    }
    let held = stage.world.occupancy(false).unwrap().domains;
    assert!(!held.is_empty() && held.iter().all(|held| held.active));
}
