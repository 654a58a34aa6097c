//! Adding images on a hypervisor in memory.

use super::*;
use crate::error::Error;
use crate::image::Sum;
use crate::images::list::list;
use crate::images::remove::{RemoveImage, remove};
use crate::reporter::Answer;
use crate::session::{Confirm, Manner};
use crate::stage::{Stage, is_free, kill, manner};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of an image: a disk of two sectors with a boot record.
fn bytes() -> Vec<u8> {
    let mut bytes = vec![7; 1024];
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

/// Writes the file of image `a`, and returns the request that adds it.
fn wanted(stage: &Stage) -> AddImage {
    let file = stage.dir.path().join("a.img");
    fs::write(&file, bytes()).unwrap();
    let (name, expected, known) = (None, None, Vec::new());
    AddImage { file, name, expected, pool: POOL.into(), known }
}

fn run(stage: &Stage, wanted: &AddImage, manner: Manner) -> Result<Option<Added>> {
    add(&mut Session::begin(&stage.world, manner).unwrap(), wanted)
}

/// Adds an image with the usual manner.
fn plain(stage: &Stage) -> Result<Option<Added>> {
    run(stage, &wanted(stage), manner(Confirm::Given))
}

/// Removes image `a`.
fn take_away(stage: &Stage, confirm: Confirm) -> Result<()> {
    let wanted = RemoveImage { name: ImageName::new("a").unwrap(), pool: POOL.into() };
    let mut session = Session::begin(&stage.world, manner(confirm)).unwrap();
    session.run(|world| remove(world, &wanted)).map(drop)
}

/// The error code of a refusal.
fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error:?}")).code
}

#[test]
fn a_connection_without_storage_is_refused_before_anything_is_written_down() {
    let stage = Stage::who_says(Answer::Yes);
    stage.fake.has_no_storage.set(true);
    assert_eq!(code(plain(&stage)), "storage-no-storage");
    let is_read = stage.caller.heard("compute the SHA-256 ") > 0;
    assert_eq!((is_read, stage.fake.calls.get(), stage.journals()), (false, 0, 0));
}

#[test]
fn an_image_is_added_once_and_removed_once() {
    let stage = Stage::who_says(Answer::Yes);
    let added = plain(&stage).unwrap().unwrap();
    assert_eq!((added.name.as_str(), added.volume.as_str(), added.bytes), ("a", "a.raw", 1024));
    assert_eq!(stage.fake.names(POOL), ["a.raw"]);
    assert_eq!(fs::read(stage.fake.volume(POOL, "a.raw")).unwrap(), bytes());
    assert_eq!((stage.journals(), stage.caller.heard("is not verified")), (0, 1));
    assert_eq!(code(plain(&stage)), "image-exists");
    take_away(&stage, Confirm::Ask).unwrap();
    assert_eq!((stage.fake.names(POOL).len(), stage.caller.heard("ask")), (0, 1));
    assert_eq!(code(take_away(&stage, Confirm::Given)), "not-found");
}

#[test]
fn others_wait_until_the_name_is_taken_and_not_for_the_copy() {
    let stage = Stage::who_says(Answer::Nobody);
    let dir = stage.dir.path().to_owned();
    let summed = dir.clone();
    stage.caller.at(move |text| assert!(!text.starts_with("compute the SHA") || is_free(&summed)));
    // The pool, the mark and the volume are made first; then it is filled and the mark removed.
    let at = move |call| assert_eq!(is_free(&dir), call > 2, "at call {call}");
    *stage.fake.at.borrow_mut() = Some(Box::new(at));
    plain(&stage).unwrap();
    assert_eq!((stage.fake.calls.get(), stage.caller.heard("compute the SHA")), (5, 1));
}

#[test]
fn a_name_that_another_takes_meanwhile_is_refused() {
    let stage = Stage::who_says(Answer::Nobody);
    stage.fake.put_pool(POOL);
    let taken = stage.fake.volume(POOL, "a.raw");
    stage.caller.at(move |text| {
        if text.starts_with("compute the SHA") {
            fs::write(&taken, "theirs").unwrap();
        }
    });
    assert_eq!(code(plain(&stage)), "image-exists");
    assert_eq!((stage.fake.calls.get(), stage.journals()), (0, 0));
    assert_eq!(fs::read(stage.fake.volume(POOL, "a.raw")).unwrap(), b"theirs");
}

#[test]
fn an_image_with_a_wrong_checksum_is_not_added() {
    let stage = Stage::who_says(Answer::Nobody);
    let sum = Sha256::of(&b"other"[..], &mut |_| true).unwrap();
    let other = AddImage { expected: Some(Sum::Sha256(sum)), ..wanted(&stage) };
    assert_eq!(code(run(&stage, &other, manner(Confirm::Given))), "image-other-sum");
    fs::write(stage.dir.path().join("SHA256SUMS"), format!("{sum}  a.img\n")).unwrap();
    assert_eq!(code(plain(&stage)), "image-other-sum");
    fs::write(stage.dir.path().join("SHA256SUMS"), "no sum\n").unwrap();
    let error = plain(&stage).unwrap_err();
    assert!(error.to_string().contains("SHA256SUMS cannot be used"), "{error}");
    assert_eq!((stage.fake.calls.get(), stage.fake.names(POOL).len()), (0, 0));
}

#[test]
fn a_copy_that_was_killed_is_no_image_until_it_is_undone() {
    let stage = Stage::who_says(Answer::Nobody);
    *stage.fake.at.borrow_mut() = Some(Box::new(|call| {
        if call == 3 {
            kill()
        }
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| plain(&stage).is_ok())).is_err(), "it was not killed");
    *stage.fake.at.borrow_mut() = None;
    assert_eq!(stage.fake.names(POOL), ["a.adding", "a.raw"]);
    let fault = list(&stage.world, POOL).unwrap().remove(0).image.fault;
    assert!(fault.is_some_and(|fault| fault.contains("not whole")));
    assert_eq!(code(plain(&stage)), "unfinished");
    stage.recover();
    assert!(stage.fake.names(POOL).is_empty() && stage.journals() == 0);
    plain(&stage).unwrap();
}

#[test]
fn a_hypervisor_that_goes_away_leaves_no_half_image() {
    for from in 0..5 {
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.away_from.set(Some(from));
        let error = plain(&stage).unwrap_err();
        assert!(matches!(error, Error::Apply(_)), "away from {from}: {error}");
        stage.fake.away_from.set(None);
        stage.recover();
        let left = stage.fake.names(POOL);
        assert!(left.is_empty() || left == ["a.raw"], "away from {from}: {left:?}");
        assert!(is_free(stage.dir.path()) && stage.journals() == 0);
    }
}

#[test]
fn a_dry_run_only_reports_the_image() {
    let stage = Stage::who_says(Answer::Nobody);
    let shown = Manner { dry_run: true, ..manner(Confirm::Given) };
    assert!(run(&stage, &wanted(&stage), shown).unwrap().is_none());
    assert_eq!((stage.caller.heard("preview of 6"), stage.fake.calls.get()), (1, 0));
}

#[test]
fn a_damaged_journal_of_another_change_is_named_and_hinders_nothing() {
    let stage = Stage::who_says(Answer::Nobody);
    let journals = stage.dir.path().join("journal");
    fs::create_dir(&journals).unwrap();
    fs::write(journals.join("1-0.jsonl"), "no record\n").unwrap();
    plain(&stage).unwrap();
    assert_eq!((stage.caller.heard("cannot be read"), stage.journals()), (1, 1));
}

#[test]
fn an_image_in_use_stays() {
    let stage = Stage::who_says(Answer::Yes);
    plain(&stage).unwrap();
    let disk = stage.fake.volume(POOL, "a.raw");
    // A guest gets it while the question is open.
    let wanted = RemoveImage { name: ImageName::new("a").unwrap(), pool: POOL.into() };
    let mut session = Session::begin(&stage.world, manner(Confirm::Ask)).unwrap();
    let removed = session.run(|world| {
        if stage.caller.heard("ask") > 0 {
            stage.fake.put_with_disk("b", &disk);
        }
        remove(world, &wanted)
    });
    assert_eq!(code(removed), "image-in-use");
    assert!(disk.exists() && is_free(stage.dir.path()));
    assert_eq!(list(&stage.world, POOL).unwrap()[0].domains, ["b"]);
}

#[test]
fn without_a_yes_an_image_stays() {
    for (answer, said) in [(Answer::No, "declined"), (Answer::Nobody, "usage")] {
        let stage = Stage::who_says(answer);
        plain(&stage).unwrap();
        assert_eq!(code(take_away(&stage, Confirm::Ask)), said);
        assert_eq!(stage.fake.names(POOL), ["a.raw"]);
    }
}
