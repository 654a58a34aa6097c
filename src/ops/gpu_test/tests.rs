//! Outcomes, and what programs of a guest say. Guests that run are those of tests/gputest.

use super::inside::Probe;
use super::*;
use crate::apply::{FileStep, Step};
use crate::reporter::Answer;
use crate::session::Confirm;
use crate::stage::local::LocalAgent;
use crate::stage::{Stage, UUID, fake::xml, guest, manner};

/// Tests the guest `g`, whose agent runs programs of this machine.
fn tested(stage: &Stage, limit: Duration) -> Result<Outcome> {
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let path = stage.dir.path().join("note");
    let note =
        Step::File(FileStep::Remember { path: path.clone(), text: Some("x".into()), was: None });
    let plan = |_: &World| Ok::<_, Error>(Change::new("gpu test", "g", vec![note.clone()], ()));
    let until = Instant::now() + limit;
    let limit_s = limit.as_secs();
    let (_, outcome) = session.run_and(plan, |running, _| -> Result<Outcome> {
        let world = &stage.world;
        let probe = Probe { world, name: "g", gpus: 1, level: 1, until, limit_s };
        let outcome = probe.run(running)?;
        assert!(path.exists());
        assert!(matches!(
            running.transaction.take_back(),
            Aftermath::Undone { left, .. } if left.is_empty()
        ));
        running.keep();
        Ok(outcome)
    })?;
    assert!(!path.exists() && stage.journals() == 0);
    Ok(outcome.unwrap())
}

fn why(outcome: &Outcome) -> &str {
    assert_eq!(outcome.verdict, TestVerdict::Unknown, "{outcome:?}");
    &outcome.why[0]
}

#[test]
fn a_test_that_does_not_come_to_its_end_says_nothing_of_the_gpu() {
    let long = Duration::from_secs(60);
    // This machine has no nvidia-smi.
    assert_eq!(why(&tested(&guest("connected"), long).unwrap()), "the image has no nvidia-smi");
    let short = Duration::from_millis(1500);
    let outcome = tested(&guest("disconnected"), short).unwrap();
    assert!(why(&outcome).ends_with("1 s: the guest agent was not running"), "{outcome:?}");
    let stage = Stage::who_says(Answer::Nobody);
    stage.fake.put_xml(&xml("g", UUID), false);
    let outcome = tested(&stage, long).unwrap();
    assert!(why(&outcome).contains("has ended before"), "{outcome:?}");
    let stage = guest("connected");
    stage.fake.local.replace(Some(LocalAgent::that_forbids("guest-exec")));
    let outcome = tested(&stage, long).unwrap();
    assert!(why(&outcome).contains("has guest-exec disabled"), "{outcome:?}");
}

#[test]
fn faults_are_one_line_each() {
    let outcome = Outcome::of(vec!["PCIe width\n8 of 16".into(), "x".repeat(1000)]);
    assert_eq!(outcome.verdict, TestVerdict::Failed);
    assert_eq!(outcome.why[0], "PCIe width 8 of 16");
    assert_eq!(outcome.why[1].len(), 300);
    assert_eq!(Outcome::of(Vec::new()).verdict, TestVerdict::Passed);
    assert!(together(2, &outcome).starts_with("failed together with 1 other: PCIe width"));
    assert!(together(4, &outcome).starts_with("failed together with 3 others: PCIe width"));
}
