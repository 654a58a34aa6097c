//! Journals written, torn and damaged.

use super::*;
use crate::apply::FileStep;

/// A directory below the plan of every journal here.
fn step(name: &str) -> Step {
    Step::File(FileStep::CreateDirectory { path: name.into() })
}

#[test]
fn a_journal_is_seen_once_its_run_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("a/b");
    assert!(Orphan::all_in(&below).unwrap().readable.is_empty());
    let mut journal = Journal::begin_in(&below, "create", "x", "fake:///").unwrap();
    let second = Journal::begin_in(&below, "delete", "y", "fake:///").unwrap();
    assert_eq!(journal.plan(&[step("/a"), step("/b")]).unwrap(), 0);
    assert_eq!(journal.plan(&[step("/c")]).unwrap(), 2);
    journal.begins(0).unwrap();
    journal.done(0, None).unwrap();
    journal.begins(1).unwrap();
    assert!(
        Orphan::all_in(&below).unwrap().readable.is_empty(),
        "a run that lives was taken for dead"
    );
    drop(journal);
    drop(second);
    let orphans = Orphan::all_in(&below).unwrap().readable;
    let stories: Vec<_> = orphans.iter().map(|orphan| orphan.story.clone()).collect();
    let [Some(story), None] = &stories[..] else { panic!("{stories:?}") };
    assert_eq!((&story.change.verb[..], &story.change.subject[..]), ("create", "x"));
    let progress: Vec<Progress> = story.steps.iter().map(|(_, progress)| *progress).collect();
    assert_eq!(progress, [Progress::Done, Progress::Begun, Progress::Untouched]);
    let mode = std::os::unix::fs::MetadataExt::mode(&orphans[0].path().metadata().unwrap());
    assert_eq!(mode & 0o777, 0o600, "others can read definitions with their secrets");
    for orphan in orphans {
        orphan.into_journal().close().unwrap();
    }
    assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0);
}

#[test]
fn a_torn_line_was_not_begun_and_a_damaged_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::begin_in(dir.path(), "create", "x", "fake:///").unwrap();
    journal.plan(&[step("/a")]).unwrap();
    journal.begins(0).unwrap();
    let path = journal.path.clone();
    drop(journal);
    let text = std::fs::read_to_string(&path).unwrap();
    for end in 0..text.len() {
        let stories = read(&text[..end]).unwrap();
        let begun = stories.iter().any(|story| story.steps[0].1 != Progress::Untouched);
        assert!(!begun, "a step whose record is torn at byte {end} counts as begun");
    }
    for (line, wrong, reason) in [
        (1, text.replacen("\"format\":1", "\"format\":9", 1), "format 9 is of a newer gpuvm"),
        (1, text.replacen("{\"change\"", "{\"chance\"", 1), "unknown variant"),
        (3, text.replace("{\"begin\":[0,", "{\"begin\":[7,"), "step 7 was not planned"),
        (3, text.replace("{\"begin\":[0,", "x"), "expected value"),
        (1, text.lines().skip(1).map(|l| format!("{l}\n")).collect(), "first line"),
    ] {
        std::fs::write(&path, &wrong).unwrap();
        let orphans = Orphan::all_in(dir.path()).unwrap();
        assert!(orphans.readable.is_empty());
        let error = orphans.damaged[0].error.to_string();
        assert!(error.contains(&format!("line {line}: ")) && error.contains(reason), "{error}");
    }
}

#[test]
fn a_journal_write_error_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Journal::begin_in(&file, "create", "x", "fake:///").unwrap_err().to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
}
