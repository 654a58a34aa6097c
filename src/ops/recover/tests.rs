//! Recovery of interrupted changes, on a hypervisor in memory.

use super::*;
use crate::reporter::Answer;
use crate::session::Manner;
use crate::stage::{Stage, UUID, is_free, kill, manner};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// A machine on which the creation of guest `a` was killed: at its definition (0) or its start (1),
/// or after both (2).
fn killed(answer: Answer, at: usize) -> Stage {
    let stage = Stage::who_says(answer);
    *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
        if number == at {
            kill();
        }
    }));
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let made =
        || session.run_and(|world| stage.plan(world), |_, _| -> Result<()> { killed_after(at) });
    assert!(catch_unwind(AssertUnwindSafe(made)).is_err(), "it came to its end");
    *stage.fake.at.borrow_mut() = None;
    stage.fake.calls.set(0);
    assert_eq!(stage.journals(), 1);
    stage
}

/// The action after all steps: the kill.
fn killed_after(at: usize) -> Result<()> {
    assert_eq!(at, 2);
    kill();
    Ok(())
}

fn run(stage: &Stage, wanted: &Recover, manner: Manner) -> Result<Outcome> {
    recover(&mut Session::begin(&stage.world, manner).unwrap(), wanted)
}

fn plain(stage: &Stage) -> Outcome {
    run(stage, &Recover::default(), manner(Confirm::Ask)).unwrap()
}

fn directory(stage: &Stage) -> PathBuf {
    stage.dir.path().join("journal")
}

/// The path of the only journal.
fn journal(stage: &Stage) -> PathBuf {
    fs::read_dir(directory(stage)).unwrap().next().unwrap().unwrap().path()
}

/// Changes a field in the first line of a journal.
fn set_field(path: &Path, field: &str, value: serde_json::Value) {
    let text = fs::read_to_string(path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert!(first["change"].get(field).is_some(), "{first}");
    first["change"][field] = value;
    fs::write(path, format!("{first}\n{rest}")).unwrap();
}

/// The code of the only failure.
fn code(outcome: &Outcome) -> &'static str {
    assert!(outcome.settled.is_empty() && outcome.failed.len() == 1, "{outcome:?}");
    outcome.failed[0].refusal().expect("a refusal").code
}

#[test]
fn a_killed_change_is_undone_once() {
    for at in 0..2 {
        let stage = killed(Answer::Nobody, at);
        let outcome = plain(&stage);
        assert!(outcome.failed.is_empty(), "{at}: {outcome:?}");
        assert_eq!((outcome.settled.len(), outcome.settled[0].recovery.way), (1, Way::Undo));
        assert!(stage.is_untouched(), "{at}");
        let again = plain(&stage);
        assert!(again.settled.is_empty() && again.failed.is_empty(), "{again:?}");
        stage.create(Confirm::Given).unwrap();
    }
}

#[test]
fn a_dry_run_only_reports_the_recovery() {
    let stage = killed(Answer::Yes, 2);
    let shown = Manner { dry_run: true, ..manner(Confirm::Ask) };
    for wanted in [Recover::default(), Recover { discard: true, ..Recover::default() }] {
        let outcome = run(&stage, &wanted, shown).unwrap();
        assert_eq!((outcome.settled.len(), outcome.failed.len()), (1, 0));
        assert_eq!((stage.journals(), stage.fake.runs("a")), (1, Some(true)));
        let runs: &[&str] = if wanted.discard { &[] } else { &["a"] };
        assert_eq!(outcome.settled[0].runs, runs);
    }
    assert_eq!((stage.caller.heard("ask"), stage.fake.calls.get()), (0, 0));
}

#[test]
fn a_guest_that_runs_is_ended_by_its_name_only() {
    for (answer, named, ends) in [
        (Answer::Yes, None, true),
        (Answer::No, None, false),
        (Answer::Nobody, None, false),
        (Answer::Nobody, Some("a"), true),
        (Answer::Nobody, Some("b"), false),
    ] {
        let stage = killed(answer, 2);
        let dir = stage.dir.path().to_owned();
        stage.caller.at(move |text| {
            assert!(text != "ask" || !is_free(&dir), "another change may come in between");
        });
        let end = named.map(str::to_owned).into_iter().collect();
        let wanted = Recover { end, ..Recover::default() };
        let outcome = run(&stage, &wanted, manner(Confirm::Given)).unwrap();
        assert_eq!(stage.caller.heard("ask"), usize::from(named != Some("a")), "{answer:?}");
        if ends {
            assert!(outcome.failed.is_empty() && stage.is_untouched(), "{answer:?} {outcome:?}");
        } else {
            assert_eq!(code(&outcome), "declined");
            assert_eq!((stage.journals(), stage.fake.runs("a")), (1, Some(true)));
        }
    }
}

#[test]
fn a_change_is_forgotten_only_after_a_yes() {
    let stage = killed(Answer::Yes, 2);
    let discard = Recover { discard: true, ..Recover::default() };
    let error = run(&stage, &discard, manner(Confirm::Ask)).unwrap_err();
    assert!(error.refusal().is_some_and(Refusal::is_usage), "{error}");
    assert_eq!(stage.journals(), 1);
    let outcome = run(&stage, &discard, manner(Confirm::Given)).unwrap();
    assert_eq!((outcome.settled.len(), stage.journals()), (1, 0));
    assert_eq!((stage.fake.runs("a"), stage.fake.calls.get()), (Some(true), 0));
    assert!(stage.caller.heard("not undone: define domain `a`") > 0);
}

#[test]
fn a_damaged_journal_hinders_no_other_and_is_put_away_after_a_yes() {
    let stage = killed(Answer::Nobody, 1);
    let damaged = directory(&stage).join("1-0.jsonl");
    fs::write(&damaged, "no record\n").unwrap();
    let outcome = plain(&stage);
    assert_eq!((outcome.settled.len(), outcome.failed.len()), (1, 1), "{outcome:?}");
    let error = outcome.failed[0].whole();
    assert!(error.contains("cannot be read") && error.contains("line 1"), "{error}");
    assert!(stage.fake.runs("a").is_none() && damaged.exists(), "{error}");
    let discard = Recover { discard: true, ..Recover::default() };
    let outcome = run(&stage, &discard, manner(Confirm::Ask)).unwrap();
    assert_eq!((code(&outcome), damaged.exists()), ("usage", true));
    let outcome = run(&stage, &discard, manner(Confirm::Given)).unwrap();
    assert!(outcome.failed.is_empty() && outcome.settled[0].damaged.is_some(), "{outcome:?}");
    assert!(!damaged.exists() && damaged.with_extension("jsonl.damaged").exists());
    assert!(plain(&stage).settled.is_empty());
}

#[test]
fn a_journal_of_a_newer_version_is_left_to_that_version() {
    let stage = killed(Answer::Nobody, 1);
    let newer = directory(&stage).join("1-0.jsonl");
    let text = fs::read_to_string(journal(&stage)).unwrap();
    fs::write(&newer, text.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
    let discard = Recover { discard: true, ..Recover::default() };
    for wanted in [&Recover::default(), &discard] {
        let outcome = run(&stage, wanted, manner(Confirm::Given)).unwrap();
        let error = outcome.failed[0].whole();
        assert!(error.contains("format 2 is of a newer gpuvm"), "{error}");
        assert!(!error.contains("--discard") && newer.exists(), "{error}");
    }
}

#[test]
fn of_a_change_of_another_boot_nothing_is_ended_that_was_started_since() {
    let stage = killed(Answer::No, 2);
    set_field(&journal(&stage), "boot", "another".into());
    // Off, as after a boot: the guest that it started no longer runs.
    stage.fake.put("a", UUID, false);
    let outcome = plain(&stage);
    assert!(outcome.failed.is_empty() && stage.is_untouched(), "{outcome:?}");
    let starts = |step: &Step| step.is_start();
    assert!(!outcome.settled[0].recovery.steps.iter().any(starts), "{outcome:?}");
    // Started since by others: it is ended only if named.
    let stage = killed(Answer::No, 2);
    set_field(&journal(&stage), "boot", "another".into());
    assert_eq!((code(&plain(&stage)), stage.fake.runs("a")), ("declined", Some(true)));
}

#[test]
fn a_change_of_another_machine_is_left_to_that_one() {
    let stage = killed(Answer::Yes, 1);
    let other = serde_json::json!({ "host": "other", "uuid": "0".repeat(32) });
    set_field(&journal(&stage), "machine", other);
    let outcome = plain(&stage);
    assert_eq!((code(&outcome), stage.journals()), ("other-machine", 1));
    assert_eq!((stage.fake.runs("a"), stage.fake.calls.get()), (Some(false), 0));
    let discard = Recover { discard: true, ..Recover::default() };
    assert!(run(&stage, &discard, manner(Confirm::Given)).unwrap().failed.is_empty());
    assert_eq!((stage.journals(), stage.fake.calls.get()), (0, 0));
}

#[test]
fn a_hypervisor_that_is_away_leaves_the_journal_for_the_next_run() {
    let stage = killed(Answer::Yes, 1);
    stage.fake.away_from.set(Some(0));
    let outcome = plain(&stage);
    assert!(outcome.failed[0].to_string().contains("neither finished nor undone"), "{outcome:?}");
    assert!(stage.journals() == 1 && is_free(stage.dir.path()));
    stage.fake.away_from.set(None);
    assert!(plain(&stage).failed.is_empty() && stage.is_untouched());
}

#[test]
fn another_change_that_goes_on_is_waited_for() {
    let stage = killed(Answer::Yes, 1);
    let waiting = |_| std::ops::ControlFlow::Continue(());
    let wait = Duration::ZERO;
    let held = crate::apply::HostLock::take_in(stage.dir.path(), wait, waiting).unwrap();
    let error = run(&stage, &Recover::default(), manner(Confirm::Given)).unwrap_err();
    assert!(matches!(error, Error::Lock(_)) && stage.fake.calls.get() == 0, "{error}");
    drop(held);
    assert!(plain(&stage).failed.is_empty() && stage.is_untouched());
}
