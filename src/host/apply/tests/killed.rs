//! Recovery of killed runs, on a fake.

use super::*;
use crate::identity::FileId;

/// Performs some steps of a change, records that one more begins, performs it or not, and is
/// killed: the journal stays.
pub fn killed(
    dir: &std::path::Path,
    fake: &Fake,
    verb: &str,
    steps: &[Step],
    done: usize,
    also: bool,
) {
    let mut journal = Journal::begin_in(&dir.join("journal"), verb, "a", fake.uri()).unwrap();
    journal.plan(steps).unwrap();
    for (number, step) in steps.iter().enumerate().take(done + 1) {
        perform::expects(step, fake).unwrap();
        journal.begins(number).unwrap();
        if number < done || also {
            let id = journal.id().map(str::to_owned);
            let mark = Mark::new(id.as_deref(), number);
            let mut tell = |made| journal.made(number, &made);
            let mut ours = Ours { mark: &mark, made: &mut tell, later: false };
            perform::perform(step, fake, &mut Watch::default(), &mut ours).unwrap();
        }
        if number < done {
            journal.done(number, step.noun().made(fake).as_ref()).unwrap();
        }
    }
}

/// Recovers the one change that was killed.
pub fn recovered(dir: &std::path::Path, fake: &Fake) -> Recovery {
    let mut orphans = Orphan::all_in(&dir.join("journal")).unwrap().readable;
    assert_eq!(orphans.len(), 1);
    let foretold = Recovery::of(orphans[0].story.as_ref());
    let recovery = recover(orphans.remove(0), fake, &mut Watch::default(), &["a".into()]).unwrap();
    assert_eq!(recovery, foretold, "what was foretold is not what was done");
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
        let file = FileId::at(&path).unwrap();
        let steps = [
            Step::Domain(DomainStep::End { name: name(), uuid: None }),
            Step::Domain(DomainStep::Undefine { name: name(), xml: name() }),
            Step::File(FileStep::DeleteDisk { path, file }),
        ];
        killed(dir.path(), &fake, "delete", &steps, done, also);
        let recovery = recovered(dir.path(), &fake);
        assert_eq!((recovery.way, recovery.steps.len()), (Way::Finish, 3 - done));
        assert_eq!((files(dir.path()), fake.domains().unwrap().len()), (1, 0));
    }
}

#[test]
fn a_guest_that_is_off_only_for_a_change_runs_after_it() {
    let name = || "a".to_owned();
    let text = |number: u32| Some(number.to_string());
    for (done, also) in (0..3).flat_map(|done| [(done, false), (done, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note");
        let by = AskedBy::PowerButton;
        let steps = [
            Step::Domain(DomainStep::ShutDown {
                name: name(),
                uuid: None,
                by,
                wait_s: 0,
                restarts: true,
            }),
            Step::File(FileStep::Remember { path: path.clone(), text: text(2), was: None }),
            Step::Domain(DomainStep::Start { name: name(), uuid: None }),
        ];
        let fake = Fake::default();
        fake.set("a", true);
        killed(dir.path(), &fake, "make-room", &steps, done, also);
        let recovery = recovered(dir.path(), &fake);
        // Once it may run again, the rest is done; else all is as it was.
        let (way, note) = if done == 2 { (Way::Finish, text(2)) } else { (Way::Undo, None) };
        assert_eq!((recovery.way, std::fs::read_to_string(&path).ok()), (way, note), "{done}");
        assert_eq!(fake.domains.borrow().get("a"), Some(&true), "step {done}: it is off");
    }
}

#[test]
fn a_guest_that_recovery_cannot_start_elsewhere_runs_where_it_was() {
    let name = || "a".to_owned();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("note");
    let by = AskedBy::PowerButton;
    let steps = [
        Step::Domain(DomainStep::ShutDown {
            name: name(),
            uuid: None,
            by,
            wait_s: 0,
            restarts: true,
        }),
        Step::File(FileStep::Remember { path: path.clone(), text: Some("2".into()), was: None }),
        Step::Domain(DomainStep::Start { name: name(), uuid: None }),
    ];
    let mut fake = Fake::default();
    fake.set("a", true);
    killed(dir.path(), &fake, "make-room", &steps, 2, false);
    fake.fails = vec![fake.calls.get()];
    let journals = dir.path().join("journal");
    let orphan = Orphan::all_in(&journals).unwrap().readable.remove(0);
    let recovery = recover(orphan, &fake, &mut Watch::default(), &[]).unwrap();
    assert_eq!((recovery.way, path.exists()), (Way::Undo, false));
    assert_eq!(fake.domains.borrow().get("a"), Some(&true), "it is off");
    assert_eq!(files(&journals), 0);
}

#[test]
fn a_recovery_that_fails_keeps_the_journal_and_is_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    killed(dir.path(), &fake, "create", &create(dir.path()), 3, true);
    // Define and start were calls 0 and 1; destroying succeeds, undefining fails once.
    fake.fails = vec![3];
    let journals = dir.path().join("journal");
    let orphan = Orphan::all_in(&journals).unwrap().readable.remove(0);
    let error = recover(orphan, &fake, &mut Watch::default(), &["a".into()]).unwrap_err();
    assert!(error.to_string().contains("cannot define domain `a`"), "{error}");
    assert_eq!((files(&journals), fake.domains().unwrap().len()), (1, 1));
    let recovery = recovered(dir.path(), &fake);
    assert_eq!(
        (recovery.way, recovery.steps.len()),
        (Way::Undo, 3),
        "what it needs is undone, too"
    );
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
    // The undefine that undoes the define fails, too: the journal stays, and names the remains.
    let fake = Fake { fails: vec![1, 2], ..Fake::default() };
    let journal = Some(begin(&fake));
    let error = apply(&create(dir.path()), &fake, &mut Watch::default(), journal).unwrap_err();
    assert!(error.needs_recovery());
    let recovery = recovered(dir.path(), &fake);
    // The start that failed was not done; the definition still needs its disks.
    assert_eq!(recovery.steps.len(), 3, "{recovery:?}");
    assert_eq!(fake.domains().unwrap(), []);
}

#[test]
fn a_restart_that_is_killed_at_any_step_is_finished() {
    for (done, also) in (0..2).flat_map(|done| [(done, false), (done, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.set("a", true);
        let steps =
            [shut_down("a"), Step::Domain(DomainStep::Start { name: "a".into(), uuid: None })];
        killed(dir.path(), &fake, "restart", &steps, done, also);
        assert_eq!(recovered(dir.path(), &fake).way, Way::Finish);
        assert_eq!(fake.domains.borrow().get("a"), Some(&true), "killed at step {done}");
        // One call for each: a running guest is not started, or ended, again.
        assert_eq!(fake.calls.get(), 2, "killed at step {done}, {also}");
    }
}

#[test]
fn an_array_without_identity_is_left() {
    use crate::apply::array::{ArrayStep, Assembly};
    let dir = tempfile::tempdir().unwrap();
    // As an older version wrote it.
    let make: ArrayStep = serde_json::from_str(
        r#"{"do":"make-file-system","device":"/dev/gpuvm-none","file_system":{"kind":"ext4"}}"#,
    )
    .unwrap();
    let text = dir.path().join("fstab");
    let replace = ArrayStep::ReplaceText {
        path: text.clone(),
        before: None,
        after: Some("mount it".into()),
        what: "name it".into(),
        units: false,
    };
    let fake = Fake::default();
    killed(dir.path(), &fake, "drive", &[make.into(), replace.into()], 0, false);
    let recovery = recovered(dir.path(), &fake);
    assert_eq!(recovery.way, Way::Finish);
    assert!(!text.exists(), "what builds on it is done");
    let assembly = Assembly {
        device: "/dev/gpuvm-none".into(),
        uuid: String::new(),
        members: Vec::new(),
        degraded: false,
    };
    // Nothing runs there, so nothing is to be stopped.
    ArrayStep::Assemble(assembly).undo().unwrap();
}

#[test]
fn an_initramfs_that_may_have_copies_is_reported_and_undo_is_complete() {
    use crate::apply::array::ArrayStep;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("options");
    let set = Step::File(FileStep::Set {
        path: path.clone(),
        text: Some("ours\n".into()),
        was: None,
        program: false,
        kept: false,
    });
    let steps = [set, ArrayStep::UpdateInitramfs.into()];
    // Killed while the images were written, of which one may be done.
    killed(dir.path(), &Fake::default(), "device bind", &steps, 1, false);
    let mut orphans = Orphan::all_in(&dir.path().join("journal")).unwrap().readable;
    let fake = Fake::default();
    let recovery = recover(orphans.remove(0), &fake, &mut Watch::default(), &[]).unwrap();
    assert_eq!((recovery.way, recovery.steps.len()), (Way::Undo, 1));
    assert!(!path.exists());
    let [Step::Host(HostStep::Array(left))] = &recovery.handed_over[..] else {
        panic!("{recovery:?}")
    };
    let why = left.undo().unwrap_err().to_string();
    assert!(why.contains("renew the initramfs: `"), "{why}");
    assert_eq!(files(&dir.path().join("journal")), 0, "the journal stays");
}
