//! The list on a recorded DGX-2, with its file in a directory of the test's own.

use super::*;
use crate::apply::{DomainStep, HostLock, Journal};
use crate::discover::source::load;
use crate::error::Error;
use crate::reporter::Answer;
use crate::session::{Confirm, Manner};
use crate::stage::{Stage, is_free, manner};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A GPU of it, and its UUID.
const GPU: &str = "0000:34:00.0";
const UUID: &str = "GPU-8b1c1a7d-0000-1111-2222-333333333333";

/// The NVIDIA driver's report of the other GPU.
fn driver(stage: &Stage, excluded: &str) {
    let dir = stage.dir.path().join("proc/driver/nvidia/gpus/0000:36:00.0");
    fs::create_dir_all(&dir).unwrap();
    let text = format!("GPU UUID: \t {UUID}\nGPU Excluded:\t {excluded}\n");
    fs::write(dir.join("information"), text).unwrap();
}

/// The path of the list.
fn file(stage: &Stage) -> PathBuf {
    stage.dir.path().join("etc/gpuvm/excluded.json")
}

fn run(stage: &Stage, wanted: &ExclusionChange, manner: Manner) -> Result<Excluded> {
    let root = FsRoot::at(stage.dir.path()).unwrap();
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/dgx-2.json");
    let mut session = Session::begin(&stage.world, manner).unwrap();
    exclude_in(&mut session, wanted, || {
        // The lock is held meanwhile.
        assert_eq!(is_free(stage.dir.path()), manner.dry_run);
        Ok((root, load(&host)?))
    })
}

fn out(stage: &Stage, device: &str, reason: Option<&str>) -> Result<Excluded> {
    let (device, reason) = (device.parse().unwrap(), reason.map(str::to_owned));
    run(stage, &ExclusionChange::Exclude { device, reason }, manner(Confirm::Given))
}

fn back(stage: &Stage, device: &str) -> Result<Excluded> {
    let device = device.parse().unwrap();
    let wanted = ExclusionChange::Include { device, despite_health: false, untested: false };
    run(stage, &wanted, manner(Confirm::Given))
}

fn code(result: Result<Excluded>) -> &'static str {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error:?}")).code
}

#[test]
fn a_gpu_is_excluded_once_and_included_once() {
    let stage = Stage::who_says(Answer::Nobody);
    driver(&stage, "No");
    assert!(out(&stage, GPU, Some("loud")).unwrap().changed);
    let again = out(&stage, GPU, None).unwrap();
    assert_eq!((again.changed, again.entry.unwrap().reason.as_str()), (false, "loud"));
    assert!(out(&stage, GPU, Some("hot")).unwrap().changed);
    let other = out(&stage, UUID, None).unwrap();
    assert_eq!((other.bdf.to_string().as_str(), other.changed), ("0000:36:00.0", true));
    assert!(back(&stage, "36:00.0").unwrap().changed);
    assert!(!back(&stage, UUID).unwrap().changed);
    assert!(back(&stage, GPU).unwrap().changed);
    let root = FsRoot::at(stage.dir.path()).unwrap();
    assert_eq!(entries(&root).unwrap(), []);
}

#[test]
fn foreign_devices_are_refused() {
    let stage = Stage::who_says(Answer::Nobody);
    driver(&stage, "Yes");
    assert_eq!(code(out(&stage, "99:00.0", None)), "not-found");
    assert_eq!(code(out(&stage, "GPU-00000000-0000-0000-0000-000000000000", None)), "not-found");
    assert_eq!(code(out(&stage, "06:00.0", None)), "gpu-other-device");
    assert_eq!(code(back(&stage, UUID)), "gpu-excluded-by-driver");
    assert_eq!(code(out(&stage, GPU, Some("two\nlines"))), "usage");
    assert!(!file(&stage).exists());
}

#[test]
fn a_dry_run_only_reports_changes() {
    let stage = Stage::who_says(Answer::Nobody);
    let shown = Manner { dry_run: true, ..manner(Confirm::Given) };
    let wanted = ExclusionChange::Exclude { device: GPU.parse().unwrap(), reason: None };
    assert!(run(&stage, &wanted, shown).unwrap().changed);
    assert!(!file(&stage).exists());
}

#[test]
fn a_list_that_cannot_be_read_stays_as_it_is() {
    let stage = Stage::who_says(Answer::Nobody);
    out(&stage, GPU, None).unwrap();
    fs::write(file(&stage), "{\n").unwrap();
    let error = out(&stage, "36:00.0", None).unwrap_err();
    assert!(matches!(error, Error::File(_)), "{error}");
    assert_eq!(fs::read_to_string(file(&stage)).unwrap(), "{\n");
    fs::remove_dir_all(stage.dir.path().join("etc")).unwrap();
    fs::write(stage.dir.path().join("etc"), "no directory").unwrap();
    assert!(out(&stage, GPU, None).is_err());
}

#[test]
fn nothing_changes_beside_another_change() {
    let stage = Stage::who_says(Answer::Nobody);
    let waiting = |_| ControlFlow::Continue(());
    let held = HostLock::take_in(stage.dir.path(), Duration::ZERO, waiting).unwrap();
    assert!(matches!(out(&stage, GPU, None).unwrap_err(), Error::Lock(_)));
    drop(held);
    // An interrupted change of this hypervisor, and one of another.
    for (uri, refused) in [("test:///fake", true), ("test:///other", false)] {
        let dir = stage.dir.path().join("journal");
        let mut journal = Journal::begin_in(&dir, "create", "a", uri).unwrap();
        let xml = crate::stage::fake::xml("a", crate::stage::UUID);
        journal
            .plan(&[crate::apply::Step::Domain(DomainStep::Define { name: "a".into(), xml })])
            .unwrap();
        journal.begins(0).unwrap();
        drop(journal);
        let done = out(&stage, GPU, None);
        if refused {
            assert_eq!(code(done), "unfinished");
        } else {
            assert!(done.unwrap().changed);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    // An unreadable directory is named.
    fs::create_dir(stage.dir.path().join("journal")).unwrap();
    fs::write(stage.dir.path().join("journal/1-0.jsonl"), "no record\n").unwrap();
    assert!(back(&stage, GPU).unwrap().changed);
    assert_eq!(stage.caller.heard("cannot be read"), 1);
}
