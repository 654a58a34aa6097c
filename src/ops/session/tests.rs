//! The procedure of changes on a hypervisor in memory.

use super::*;
use crate::apply::FileStep;
use crate::restart;
use crate::stage::{Stage, UUID, is_free, kill, manner};
use crate::stop::{Down, stop_or_end};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

#[test]
fn the_confirmed_change_is_made() {
    for confirm in [Confirm::Given, Confirm::Ask, Confirm::IfNeeded] {
        let stage = Stage::who_says(Answer::Yes);
        assert!(stage.create(confirm).unwrap().made);
        assert_eq!((stage.fake.runs("a"), stage.journals()), (Some(true), 0));
        assert_eq!(stage.caller.heard("ask"), usize::from(confirm != Confirm::Given));
        assert_eq!(stage.caller.heard("it is planned"), 1, "said twice");
    }
}

#[test]
fn without_a_yes_nothing_is_done() {
    for (answer, code) in [(Answer::No, "declined"), (Answer::Nobody, "usage")] {
        for confirm in [Confirm::Ask, Confirm::IfNeeded] {
            let stage = Stage::who_says(answer);
            let error = stage.create(confirm).unwrap_err();
            assert_eq!(error.refusal().map(|refusal| refusal.code), Some(code), "{error}");
            assert!(stage.is_untouched() && is_free(stage.dir.path()));
        }
    }
}

#[test]
fn no_lock_is_held_during_a_question() {
    for confirm in [Confirm::Ask, Confirm::IfNeeded] {
        let stage = Stage::who_says(Answer::Yes);
        let dir = stage.dir.path().to_owned();
        stage.caller.at(move |text| {
            if text == "ask" {
                assert!(is_free(&dir), "the lock is held while the question stands");
            } else if text.starts_with("define") {
                assert!(!is_free(&dir), "the lock is not held while it is done");
            }
        });
        stage.create(confirm).unwrap();
        assert_eq!(stage.caller.heard("ask"), 1);
    }
}

#[test]
fn changes_during_the_question_are_refused() {
    for confirm in [Confirm::Ask, Confirm::IfNeeded] {
        let stage = Stage::who_says(Answer::Yes);
        let plan = |world: &World| {
            let mut change = stage.plan(world)?;
            if stage.caller.heard("ask") > 0 {
                let path = stage.dir.path().join("other");
                let more =
                    Step::File(FileStep::Remember { path, text: Some("y".into()), was: None });
                change.parts.push(Part::Steps(vec![more]));
            }
            Ok::<_, Error>(change)
        };
        let mut session = Session::begin(&stage.world, manner(confirm)).unwrap();
        let error = session.run(plan).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        assert!(stage.is_untouched());
    }
}

#[test]
fn unconfirmed_changes_are_planned_again_under_the_lock() {
    for asks_later in [false, true] {
        let stage = Stage::who_says(Answer::Yes);
        let plans = std::cell::Cell::new(0);
        let plan = |world: &World| {
            let mut change = stage.plan(world)?;
            plans.set(plans.get() + 1);
            change.question = change.question.filter(|_| asks_later && plans.get() > 1);
            if plans.get() > 1 {
                let path = stage.dir.path().join("other");
                let more =
                    Step::File(FileStep::Remember { path, text: Some("y".into()), was: None });
                change.parts.push(Part::Steps(vec![more]));
            }
            Ok::<_, Error>(change)
        };
        Session::begin(&stage.world, manner(Confirm::Ask)).unwrap().run(plan).unwrap();
        assert!(stage.dir.path().join("other").exists());
        assert_eq!(stage.caller.heard("ask"), usize::from(asks_later));
    }
}

#[test]
fn steps_no_longer_needed_are_left_out() {
    let stage = Stage::who_says(Answer::Yes);
    let plan = |world: &World| {
        let mut change = stage.plan(world)?;
        if stage.caller.heard("ask") > 0 {
            change.parts = vec![Part::Steps(change.steps().split_off(1))];
        }
        Ok::<_, Error>(change)
    };
    Session::begin(&stage.world, manner(Confirm::Ask)).unwrap().run(plan).unwrap();
    assert_eq!(stage.fake.runs("a"), Some(true));
    assert!(!stage.dir.path().join("note").exists());
}

#[test]
fn a_lock_that_another_holds_is_an_error_and_nothing_is_done() {
    let stage = Stage::who_says(Answer::Yes);
    let waiting = |_| std::ops::ControlFlow::Continue(());
    let held = HostLock::take_in(stage.dir.path(), Duration::ZERO, waiting).unwrap();
    for confirm in [Confirm::Given, Confirm::Ask, Confirm::IfNeeded] {
        assert!(matches!(stage.create(confirm).unwrap_err(), Error::Lock(_)));
        assert!(stage.is_untouched());
    }
    // If the question comes first, another may take it while the question is open.
    assert_eq!(stage.caller.heard("ask"), 1);
    drop(held);
    stage.create(Confirm::Given).unwrap();
}

#[test]
fn a_run_that_is_killed_at_any_record_is_refused_to_the_next_until_it_is_recovered() {
    // At a message: before the step is written to the journal; at a call: after that, before it is
    // done.
    for (telling, at) in [(true, 0), (true, 1), (true, 2), (false, 0), (false, 1)] {
        let stage = Stage::who_says(Answer::Yes);
        if telling {
            let seen = Mutex::new(0);
            stage.caller.at(move |text| {
                if text.starts_with("warning") {
                    return;
                }
                let mut seen = seen.lock().unwrap();
                *seen += 1;
                if *seen == at + 1 {
                    drop(seen);
                    kill();
                }
            });
        } else {
            *stage.fake.at.borrow_mut() = Some(Box::new(move |number| {
                if number == at {
                    kill();
                }
            }));
        }
        let killed = catch_unwind(AssertUnwindSafe(|| stage.create(Confirm::Given).is_ok()));
        assert!(killed.is_err(), "it came to its end: {telling} {at}");
        assert_eq!(stage.journals(), 1, "nothing is left to go on from: {telling} {at}");
        stage.caller.at(|_| {});
        *stage.fake.at.borrow_mut() = None;
        let before = stage.fake.calls.get();
        // The first step was announced and not begun: there is nothing to undo.
        if (telling, at) != (true, 0) {
            let error = stage.create(Confirm::Given).unwrap_err();
            let code = error.refusal().map(|refusal| refusal.code);
            assert_eq!(code, Some("unfinished"), "{telling} {at}: {error}");
            assert_eq!(stage.fake.calls.get(), before, "something was done");
        }
        stage.recover();
        assert!(stage.is_untouched(), "not undone: {telling} {at}");
        stage.create(Confirm::Given).unwrap();
    }
}

#[test]
fn a_hypervisor_that_goes_away_leaves_all_or_nothing() {
    for from in 0..2 {
        let stage = Stage::who_says(Answer::Yes);
        stage.fake.away_from.set(Some(from));
        let error = stage.create(Confirm::Given).unwrap_err();
        let Error::Apply(applied) = &error else { panic!("{error}") };
        // A call may have arrived although its answer did not: then a journal stays.
        assert_eq!(applied.needs_recovery(), stage.journals() == 1, "{error}");
        stage.fake.away_from.set(None);
        stage.recover();
        assert!(stage.is_untouched(), "away from call {from}: {error}");
        assert!(is_free(stage.dir.path()));
    }
}

#[test]
fn a_signal_undoes_what_was_done() {
    let stage = Stage::who_says(Answer::Yes);
    *stage.fake.at.borrow_mut() =
        Some(Box::new(|_| nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap()));
    let error = stage.create(Confirm::Given).unwrap_err();
    assert!(error.to_string().starts_with("interrupted by SIGTERM"), "{error}");
    assert!(stage.is_untouched());
}

#[test]
fn work_after_the_steps_is_without_the_lock_and_may_undo_them() {
    let stage = Stage::who_says(Answer::Yes);
    let raise = || nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap();
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let done = session.run_and(
        |world| stage.plan(world),
        |running, _| {
            assert!(is_free(stage.dir.path()));
            assert_eq!((stage.fake.runs("a"), stage.journals()), (Some(true), 1));
            raise();
            Ok::<_, Error>(running.transaction.go_on()?)
        },
    );
    assert!(done.is_err());
    assert!(stage.is_untouched());
}

#[test]
fn an_answer_that_is_waited_for_is_read_with_the_lock() {
    let stage = Stage::who_says(Answer::Yes);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let plan = |world: &World| Ok(Change { hold: Hold::Answered, ..stage.plan(world)? });
    let free = session.run_and(plan, |_, _| Ok::<_, Error>(is_free(stage.dir.path()))).unwrap().1;
    assert_eq!((free, is_free(stage.dir.path())), (Some(false), true));
}

#[test]
fn a_change_that_is_only_shown_leaves_no_trace() {
    let stage = Stage::who_says(Answer::Nobody);
    let shown = Manner { dry_run: true, ..manner(Confirm::Ask) };
    let done = Session::begin(&stage.world, shown).unwrap().run(|world| stage.plan(world)).unwrap();
    assert!(!done.made && stage.is_untouched());
    assert_eq!((stage.caller.heard("preview of 3"), stage.caller.heard("ask")), (1, 0));
    assert_eq!(std::fs::read_dir(stage.dir.path()).unwrap().count(), 0, "the lock was taken");
}

#[test]
fn nothing_to_do_writes_no_journal() {
    let stage = Stage::who_says(Answer::Yes);
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    let done = session.run(|_| Ok::<_, Error>(Change::new("start", "a", Vec::new(), ()))).unwrap();
    assert!(!done.made && !stage.dir.path().join("journal").exists());
}

#[test]
fn others_need_not_wait_for_a_guest_that_shuts_down() {
    let stage = Stage::who_says(Answer::Yes);
    stage.fake.put("a", UUID, true);
    let dir = stage.dir.path().to_owned();
    *stage.fake.at.borrow_mut() =
        Some(Box::new(move |call| assert_eq!(is_free(&dir), call == 0, "at call {call}")));
    let down = Down { force: false, wait_s: 0 };
    let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
    // The lock is taken again for the start.
    restart::run(&mut session, "a", down).unwrap();
    assert_eq!((stage.fake.runs("a"), stage.journals()), (Some(true), 0));
}

#[test]
fn the_power_of_a_guest_is_cut_only_after_a_yes() {
    for (answer, ended) in [(Answer::Yes, true), (Answer::No, false), (Answer::Nobody, false)] {
        let stage = Stage::who_says(answer);
        stage.fake.put("stubborn", UUID, true);
        let mut session = Session::begin(&stage.world, manner(Confirm::Given)).unwrap();
        let down = Down { force: false, wait_s: 0 };
        let done = stop_or_end(&mut session, "stubborn", down);
        assert_eq!((done.is_ok(), stage.fake.runs("stubborn")), (ended, Some(!ended)));
        assert_eq!(stage.caller.heard("ask"), 1);
    }
}
