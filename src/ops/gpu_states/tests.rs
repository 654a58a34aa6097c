//! Marks and acceptance of GPUs on a host of two slots.

use super::*;
use crate::apply::FileStep;
use crate::reporter::Answer;
use crate::stage::Stage;
use crate::world::Settings;
use std::fs;

const UUID: &str = "11111111-2222-4333-8444-555555555555";

fn at(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// A host of two GPUs, which is also the directory of records.
fn host() -> (tempfile::TempDir, FsRoot) {
    let dir = tempfile::tempdir().unwrap();
    for slot in ["0000:05:00.0", "0000:06:00.0"] {
        let of = dir.path().join("sys/bus/pci/devices").join(slot);
        fs::create_dir_all(&of).unwrap();
        for (file, text) in [
            ("vendor", "0x10de\n"),
            ("device", "0x1db8\n"),
            ("subsystem_vendor", "0x10de\n"),
            ("subsystem_device", "0x1234\n"),
            ("class", "0x030200\n"),
        ] {
            fs::write(of.join(file), text).unwrap();
        }
    }
    let root = FsRoot::at(dir.path()).unwrap();
    (dir, root)
}

fn tenant(name: &str) -> Tenant {
    Tenant { uuid: UUID.to_owned(), name: name.to_owned() }
}

fn read(dir: &Path) -> GpuRecords {
    GpuRecords::of_this_machine(Some(dir)).unwrap()
}

/// Marks GPUs, and returns how many steps that took.
fn mark(dir: &Path, root: &FsRoot, gpus: &[&str], by: &str) -> usize {
    let gpus: Vec<Bdf> = gpus.iter().map(|gpu| at(gpu)).collect();
    let steps = marks(root, &read(dir), &gpus, &tenant(by)).unwrap();
    assert!(steps.iter().all(Step::is_internal), "the journal has them, no preview does");
    gpus::write(&steps).unwrap();
    steps.len()
}

/// State and guest of the GPU in a slot.
fn state(dir: &Path, root: &FsRoot, slot: &str) -> Option<(GpuState, String)> {
    let records = read(dir);
    let located = records.located(root).unwrap();
    let record = &located.get(&at(slot))?[0].record;
    Some((record.state, record.by.as_ref().map(|by| by.name.clone()).unwrap_or_default()))
}

#[test]
fn a_guest_marks_its_gpus_once_and_the_next_one_marks_them_again() {
    let (dir, root) = host();
    let dir = dir.path();
    assert_eq!(mark(dir, &root, &["05:00.0", "06:00.0", "07:00.0"], "a"), 2);
    assert_eq!(mark(dir, &root, &["05:00.0", "06:00.0"], "a"), 0);
    assert_eq!(mark(dir, &root, &["06:00.0"], "b"), 1);
    assert_eq!(state(dir, &root, "05:00.0"), Some((GpuState::Used, "a".into())));
    assert_eq!(state(dir, &root, "06:00.0"), Some((GpuState::Used, "b".into())));
    assert_eq!(state(dir, &root, "07:00.0"), None, "there is no GPU");
    // The step is undone to the record before.
    let steps = marks(&root, &read(dir), &[at("05:00.0")], &tenant("c")).unwrap();
    let [Step::File(FileStep::Remember { text: Some(text), was: Some(was), .. })] = &steps[..]
    else {
        panic!("{steps:?}");
    };
    assert!(text.contains("\"c\"") && was.contains("\"a\""), "{text}{was}");
}

#[test]
fn an_admin_accepts_a_gpu_and_the_next_guest_ends_that() {
    let (dir, root) = host();
    let dir = dir.path();
    let policy = |text: &str| {
        fs::create_dir_all(dir.join("etc/gpuvm")).unwrap();
        fs::write(dir.join("etc/gpuvm/test.toml"), text).unwrap();
    };
    let accept = |accepts| accept(&root, Some(dir), at("05:00.0"), accepts).unwrap();
    assert!(accept(true).steps.is_empty(), "no guest had it");
    mark(dir, &root, &["05:00.0"], "a");
    assert_eq!(accept(false).why, None, "no test is required");
    policy("mode = \"require\"");
    assert_eq!(accept(false).why.as_deref(), Some("domain `a` had it"));
    assert_eq!(state(dir, &root, "05:00.0"), Some((GpuState::Used, "a".into())));
    gpus::write(&accept(true).steps).unwrap();
    assert_eq!(state(dir, &root, "05:00.0"), Some((GpuState::Clean, "a".into())));
    let accepted = accept(false);
    assert!(accepted.why.is_none() && accepted.steps.is_empty());
    // A test that no longer counts is renewed, whether it is too old or dated in the future.
    policy("mode = \"require\"\nmax_age = \"7d\"");
    for (tested_s, part) in [(0, "older than `max_age`"), (u64::MAX, "dated in the future")] {
        let records = read(dir);
        let old = records.located(&root).unwrap().remove(&at("05:00.0")).unwrap();
        let mut record = old[0].record.clone();
        record.tested_s = Some(tested_s);
        gpus::write(&records.replace(&old, &record).unwrap()).unwrap();
        let why = accept(false).why.unwrap();
        assert!(why.contains(part), "{why}");
        gpus::write(&accept(true).steps).unwrap();
        let accepted = accept(false);
        assert!(accepted.why.is_none() && accept(true).steps.is_empty());
    }
    assert_eq!(mark(dir, &root, &["05:00.0"], "a"), 1, "it has had it again");
    let records = read(dir);
    let located = records.located(&root).unwrap();
    assert!(located[&at("05:00.0")][0].record.tested_s.is_some());
    // Nothing is accepted by a policy or beside a record that cannot be read.
    let again = |accepts| super::accept(&root, Some(dir), at("05:00.0"), accepts);
    policy("mode = \"sometimes\"");
    assert!(again(true).is_err() && again(false).unwrap().why.is_some());
    policy("mode = \"require\"");
    assert!(again(true).is_ok());
    fs::write(dir.join("gpus/0000-99-00.0.json"), "{").unwrap();
    assert!(again(true).is_err());
}

#[test]
fn guests_mark_nothing_where_no_policy_wants_it() {
    let stage = Stage::who_says(Answer::Nobody);
    let settings = Settings {
        connect: "qemu:///system".into(),
        state: Some(stage.dir.path().to_owned()),
        ..Settings::default()
    };
    let text = crate::stage::fake::xml("a", UUID);
    let xml = DomainXml::parse(&text).unwrap();
    let hypervisor =
        std::rc::Rc::clone(&stage.fake) as std::rc::Rc<dyn crate::hypervisor::Hypervisor>;
    let world = World::on(hypervisor, settings, stage.caller.clone());
    assert!(once_gone(&world, &[&xml]).unwrap().is_empty());
    assert!(once_stopped(&world, &xml).is_empty());
    assert!(once_gone(&stage.world, &[&xml]).unwrap().is_empty());
}
