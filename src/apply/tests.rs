//! The steps on a hypervisor that fails where it is told to.

use super::*;
use crate::hypervisor::{
    AskedBy, Console, DomainState, DomainSummary, GuestAddress, HypervisorError,
    HypervisorErrorKind, XmlOf,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Is a hypervisor in memory: each domain with whether it runs.
#[derive(Default)]
struct Fake {
    /// Domains by name.
    domains: RefCell<BTreeMap<String, bool>>,
    /// Calls that change something, so far.
    calls: Cell<usize>,
    /// The calls that fail.
    fails: Vec<usize>,
}

impl Fake {
    /// Counts a call, and fails it where it is told to.
    fn call(&self, doing: &str) -> Result<(), HypervisorError> {
        let number = self.calls.replace(self.calls.get() + 1);
        if !self.fails.contains(&number) {
            return Ok(());
        }
        let (doing, message) = (doing.to_owned(), format!("call {number} fails"));
        Err(HypervisorError { kind: HypervisorErrorKind::Other, doing, message })
    }

    /// Says whether a domain runs.
    fn set(&self, name: &str, runs: bool) {
        self.domains.borrow_mut().insert(name.to_owned(), runs);
    }
}

impl Hypervisor for Fake {
    fn uri(&self) -> &str {
        "fake:///"
    }
    fn storage(&self) -> &dyn crate::hypervisor::storage::Storage {
        panic!("no step of these tests uses storage")
    }
    fn domains(&self) -> Result<Vec<DomainSummary>, HypervisorError> {
        let row = |(name, runs): (&String, &bool)| DomainSummary {
            name: name.clone(),
            uuid: String::new(),
            state: if *runs { DomainState::Running } else { DomainState::ShutOff },
            persistent: true,
        };
        Ok(self.domains.borrow().iter().map(row).collect())
    }
    fn xml(&self, name: &str, _: XmlOf) -> Result<String, HypervisorError> {
        Ok(name.to_owned())
    }
    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        self.call("define")?;
        self.set(xml, false);
        Ok(())
    }
    fn undefine(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("undefine")?;
        match self.domains.borrow_mut().remove(name) {
            Some(runs) => assert!(!runs, "undefined while it runs"),
            None => return Err(absent("undefine", name)),
        }
        Ok(())
    }
    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("start")?;
        self.set(name, true);
        Ok(())
    }
    fn shutdown(&self, name: &str, _: AskedBy) -> Result<(), HypervisorError> {
        self.call("shutdown")?;
        self.set(name, name == "stubborn");
        Ok(())
    }
    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        self.call("destroy")?;
        if !self.domains.borrow().contains_key(name) {
            return Err(absent("destroy", name));
        }
        self.set(name, false);
        Ok(())
    }
    fn autostart(&self, _: &str) -> Result<bool, HypervisorError> {
        Ok(false)
    }
    fn console(&self, _: &str, _: bool) -> Result<Box<dyn Console>, HypervisorError> {
        panic!("no step attaches to a console")
    }
    fn addresses(&self, _: &str) -> Result<Vec<GuestAddress>, HypervisorError> {
        Ok(Vec::new())
    }
}

/// The step that asks a guest to shut down, and does not wait.
fn shut_down(name: &str) -> Step {
    Step::ShutDownDomain { name: name.to_owned(), by: AskedBy::Agent, wait_s: 0 }
}

/// The error that there is no such domain.
fn absent(doing: &str, name: &str) -> HypervisorError {
    let (doing, message) = (doing.to_owned(), format!("no domain `{name}`"));
    HypervisorError { kind: HypervisorErrorKind::NoDomain, doing, message }
}

/// Watches, and is interrupted when so many steps have begun.
#[derive(Default)]
struct Watch {
    /// What was told.
    log: Vec<String>,
    /// Steps after which a signal comes.
    signal_after: Option<usize>,
}

impl Observer for Watch {
    fn doing(&mut self, step: &Step) {
        self.log.push(step.to_string());
    }
    fn undoing(&mut self, step: &Step) {
        self.log.push(format!("undo {step}"));
    }
    fn interrupted(&mut self) -> Option<String> {
        let begun = self.log.len();
        self.signal_after.filter(|&after| begun >= after).map(|_| "SIGTERM".to_owned())
    }
}

/// The steps of a create with two disks.
fn create(dir: &std::path::Path) -> Vec<Step> {
    let name = || "a".to_owned();
    vec![
        Step::CreateDisk { path: dir.join("os.img"), bytes: 1 << 20 },
        Step::CreateDisk { path: dir.join("data.img"), bytes: 1 << 20 },
        Step::DefineDomain { name: name(), xml: name() },
        Step::StartDomain { name: name() },
    ]
}

/// How many files a directory holds.
fn files(dir: &std::path::Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_create_that_fails_at_any_step_leaves_nothing() {
    for failing in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let mut steps = create(dir.path());
        let mut fake = Fake::default();
        match failing {
            // The disks fail because their directory is not there.
            0 | 1 => {
                let path = dir.path().join("absent/x.img");
                steps[failing] = Step::CreateDisk { path, bytes: 1 };
            }
            _ => fake.fails = vec![failing - 2],
        }
        let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
        assert!(error.left().is_empty(), "{error}");
        assert_eq!(files(dir.path()), 0, "step {failing} left a file");
        assert_eq!(fake.domains().unwrap(), [], "step {failing} left a domain");
        assert!(error.to_string().contains(&steps[failing].to_string()), "{error}");
        assert_eq!(error.to_string().contains("is undone"), failing > 0, "{error}");
    }
}

#[test]
fn a_create_that_is_interrupted_leaves_nothing() {
    for after in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let mut watch = Watch { signal_after: Some(after), ..Watch::default() };
        let error = apply(&create(dir.path()), &fake, &mut watch, None).unwrap_err();
        assert!(matches!(error, ApplyError::Interrupted { .. }));
        assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (0, 0));
    }
}

#[test]
fn a_signal_after_the_last_step_undoes_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let mut watch = Watch { signal_after: Some(4), ..Watch::default() };
    let mut transaction = Transaction::new(&fake, &mut watch, None);
    transaction.run(&create(dir.path())).unwrap();
    assert!(fake.domains.borrow()["a"]);
    let error = transaction.go_on().unwrap_err();
    assert_eq!(error.to_string(), "interrupted by SIGTERM; what was done before is undone");
    assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (0, 0));
    let undone: Vec<&str> = watch.log[4..].iter().map(|text| &text[..10]).collect();
    assert_eq!(undone, ["undo start", "undo defin", "undo creat", "undo creat"]);
}

#[test]
fn what_cannot_be_undone_is_told_with_the_first_error() {
    let dir = tempfile::tempdir().unwrap();
    // Define goes well, start fails, and so does the undefine that undoes the define.
    let fake = Fake { fails: vec![1, 2], ..Fake::default() };
    let error = apply(&create(dir.path()), &fake, &mut Watch::default(), None).unwrap_err();
    assert!(error.to_string().starts_with("cannot start domain `a`"), "{error}");
    assert!(error.to_string().ends_with("only in part"), "{error}");
    let left: Vec<String> = error.left().iter().map(ToString::to_string).collect();
    assert_eq!(left, ["not undone: define domain `a`: undefine: call 2 fails"]);
    assert_eq!(files(dir.path()), 0, "the undoing stopped at the first failure");
}

#[test]
fn a_delete_that_cannot_remove_a_disk_keeps_the_domain() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set("a", true);
    let name = || "a".to_owned();
    let steps = [
        Step::EndDomain { name: name() },
        Step::UndefineDomain { name: name(), xml: name() },
        // A directory is no image of ours.
        Step::DeleteDisk { path: dir.path().to_owned() },
    ];
    let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
    assert!(error.to_string().contains("cannot delete disk"), "{error}");
    assert_eq!(fake.domains.borrow().get("a"), Some(&false));
}

#[test]
fn a_guest_that_does_not_shut_down_in_time_is_told() {
    for (name, goes) in [("docile", true), ("stubborn", false)] {
        let fake = Fake::default();
        fake.set(name, true);
        let steps = [shut_down(name)];
        let end = apply(&steps, &fake, &mut Watch::default(), None);
        assert_eq!(end.is_ok(), goes, "{name}");
    }
}

#[test]
fn a_guest_whose_agent_does_not_answer_is_asked_by_the_power_button() {
    // The agent is call 0, the power button call 1.
    for (fails, goes) in [(vec![0], true), (vec![0, 1], false)] {
        let fake = Fake { fails, ..Fake::default() };
        fake.set("a", true);
        let end = apply(&[shut_down("a")], &fake, &mut Watch::default(), None);
        assert_eq!((end.is_ok(), fake.calls.get()), (goes, 2));
    }
}

#[test]
fn a_restart_that_is_killed_at_any_step_is_finished() {
    for (done, also) in (0..2).flat_map(|done| [(done, false), (done, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.set("a", true);
        let steps = [shut_down("a"), Step::StartDomain { name: "a".into() }];
        killed(dir.path(), &fake, "restart", &steps, done, also);
        assert_eq!(recovered(dir.path(), &fake).way, Way::Finish);
        assert_eq!(fake.domains.borrow().get("a"), Some(&true), "killed at step {done}");
        // One call for each: a guest that runs already is not started, or ended, once more. A start that was begun and
        // has not come to its end is ended first.
        let calls = if (done, also) == (1, false) { 3 } else { 2 };
        assert_eq!(fake.calls.get(), calls, "killed at step {done}, {also}");
    }
}

#[test]
fn steps_print_as_json() {
    let steps = create(std::path::Path::new("/d"));
    let json = serde_json::to_value(&steps[0]).unwrap();
    assert_eq!(json["step"], "create-disk");
    assert_eq!(json["bytes"], 1 << 20);
}

/// Does so many steps of a change, writes that one more begins, does it or not, and is killed: the journal stays.
fn killed(dir: &std::path::Path, fake: &Fake, verb: &str, steps: &[Step], done: usize, also: bool) {
    let mut journal = Journal::begin_in(&dir.join("journal"), verb, "a", fake.uri()).unwrap();
    journal.plan(steps).unwrap();
    for (number, step) in steps.iter().enumerate().take(done + 1) {
        perform::expects(step, fake).unwrap();
        journal.begins(number).unwrap();
        if number < done || also {
            perform::perform(step, fake, &mut Watch::default()).unwrap();
        }
        if number < done {
            journal.done(number).unwrap();
        }
    }
}

/// Recovers the one change that was killed.
fn recovered(dir: &std::path::Path, fake: &Fake) -> Recovery {
    let mut orphans = Orphan::all_in(&dir.join("journal")).unwrap();
    assert_eq!(orphans.len(), 1);
    let told = Recovery::of(orphans[0].story.as_ref());
    let recovery = recover(orphans.remove(0), fake, &mut Watch::default()).unwrap();
    assert_eq!(recovery, told, "what was foretold is not what was done");
    assert_eq!(files(&dir.join("journal")), 0, "the journal stays");
    recovery
}

#[test]
fn a_create_that_is_killed_at_any_step_is_undone() {
    for (done, also) in (0..4).flat_map(|done| [(done, false), (done, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        killed(dir.path(), &fake, "create", &create(dir.path()), done, also);
        let recovery = recovered(dir.path(), &fake);
        assert_eq!((recovery.way, recovery.steps.len()), (Way::Undo, done + 1));
        assert_eq!(files(dir.path()), 1, "a disk is left at step {done}");
        assert_eq!(fake.domains().unwrap(), [], "a domain is left at step {done}");
    }
}

#[test]
fn a_delete_that_is_killed_at_any_step_is_finished() {
    for (done, also) in (0..3).flat_map(|done| [(done, false), (done, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("os.img");
        std::fs::write(&path, "x").unwrap();
        let fake = Fake::default();
        fake.set("a", true);
        let name = || "a".to_owned();
        let steps = [
            Step::EndDomain { name: name() },
            Step::UndefineDomain { name: name(), xml: name() },
            Step::DeleteDisk { path },
        ];
        killed(dir.path(), &fake, "delete", &steps, done, also);
        let recovery = recovered(dir.path(), &fake);
        assert_eq!((recovery.way, recovery.steps.len()), (Way::Finish, 3 - done));
        assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (1, 0));
    }
}

#[test]
fn a_recovery_that_fails_keeps_the_journal_and_is_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    killed(dir.path(), &fake, "create", &create(dir.path()), 3, true);
    // Define and start were calls 0 and 1; destroying goes well, undefining fails once.
    fake.fails = vec![3];
    let journals = dir.path().join("journal");
    let orphan = Orphan::all_in(&journals).unwrap().remove(0);
    let error = recover(orphan, &fake, &mut Watch::default()).unwrap_err();
    assert!(error.to_string().contains("cannot define domain `a`"), "{error}");
    assert_eq!((files(&journals), fake.domains().unwrap().len()), (1, 1));
    let recovery = recovered(dir.path(), &fake);
    assert_eq!((recovery.way, recovery.steps.len()), (Way::Undo, 1), "it begins anew");
    assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (1, 0));
}

#[test]
fn a_change_that_is_complete_or_was_not_begun_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let journals = dir.path().join("journal");
    drop(Journal::begin_in(&journals, "create", "a", fake.uri()).unwrap());
    assert_eq!(recovered(dir.path(), &fake).way, Way::Forget);
    let journal = Journal::begin_in(&journals, "create", "a", fake.uri()).unwrap();
    let mut watch = Watch::default();
    let mut transaction = Transaction::new(&fake, &mut watch, Some(journal));
    transaction.run(&create(dir.path())).unwrap();
    transaction.complete().unwrap();
    drop(transaction);
    assert_eq!(recovered(dir.path(), &fake).way, Way::Forget);
    assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (3, 1), "a made guest is gone");
}

#[test]
fn a_failed_change_that_is_undone_leaves_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journals = dir.path().join("journal");
    let begin = |fake: &Fake| Journal::begin_in(&journals, "create", "a", fake.uri()).unwrap();
    let fake = Fake { fails: vec![1], ..Fake::default() };
    let journal = Some(begin(&fake));
    apply(&create(dir.path()), &fake, &mut Watch::default(), journal).unwrap_err();
    assert_eq!((files(dir.path()), files(&journals)), (1, 0));
    // The undefine that undoes the define fails, too: the journal stays, and knows what is left.
    let fake = Fake { fails: vec![1, 2], ..Fake::default() };
    let journal = Some(begin(&fake));
    let error = apply(&create(dir.path()), &fake, &mut Watch::default(), journal).unwrap_err();
    assert!(error.needs_recovery());
    let recovery = recovered(dir.path(), &fake);
    assert_eq!(recovery.steps.len(), 2, "the step that failed may have done half: {recovery:?}");
    assert_eq!(fake.domains().unwrap(), []);
}
