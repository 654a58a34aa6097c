//! Records of GPUs on a host of two slots.

use super::*;
use std::fs;

const UUIDS: [&str; 2] =
    ["GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3", "GPU-00000000-0000-0000-0000-000000000001"];

fn at(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// Puts a GPU into a slot; without a UUID it is not bound to the NVIDIA driver.
fn put(dir: &Path, slot: &str, device: &str, uuid: Option<&str>) {
    let of = dir.join(format!("sys/bus/pci/devices/0000:{slot}"));
    fs::create_dir_all(&of).unwrap();
    for (file, text) in [
        ("vendor", "0x10de\n"),
        ("device", device),
        ("subsystem_vendor", "0x10de\n"),
        ("subsystem_device", "0x1234\n"),
        ("class", "0x030200\n"),
    ] {
        fs::write(of.join(file), text).unwrap();
    }
    let driver = dir.join(format!("proc/driver/nvidia/gpus/0000:{slot}"));
    let _ = fs::remove_dir_all(&driver);
    if let Some(uuid) = uuid {
        fs::create_dir_all(&driver).unwrap();
        fs::write(driver.join("information"), format!("GPU UUID: \t {uuid}\n")).unwrap();
    }
}

/// The record of the GPU in a slot.
fn record(root: &FsRoot, slot: &str, state: GpuState) -> GpuRecord {
    let present = crate::discover::identity::read(root, at(slot)).unwrap().unwrap();
    GpuRecord::now(at(slot), present.identity, state)
}

/// Writes a record over those of its GPU.
fn set(root: &FsRoot, state: &Path, record: &GpuRecord) {
    let all = GpuRecords::of_this_machine(Some(state)).unwrap();
    let located = all.located(root).unwrap();
    let old = located.get(&record.bdf).map_or(&[][..], Vec::as_slice);
    write(&all.replace(old, record).unwrap()).unwrap();
}

/// The states by slot.
fn states(root: &FsRoot, state: &Path) -> Vec<(String, GpuState)> {
    let all = GpuRecords::of_this_machine(Some(state)).unwrap();
    let located = all.located(root).unwrap();
    located.iter().map(|(bdf, of)| (bdf.to_string()[5..].to_owned(), of[0].record.state)).collect()
}

#[test]
fn a_record_follows_its_card_and_not_its_slot() {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (FsRoot::at(dir.path()).unwrap(), dir.path().join("state"));
    let is = |wanted: &[(&str, GpuState)]| {
        let wanted: Vec<_> = wanted.iter().map(|(slot, is)| ((*slot).to_owned(), *is)).collect();
        assert_eq!(states(&root, &state), wanted);
    };
    is(&[]);
    put(dir.path(), "05:00.0", "0x1db8\n", Some(UUIDS[0]));
    put(dir.path(), "06:00.0", "0x1db8\n", Some(UUIDS[1]));
    set(&root, &state, &record(&root, "05:00.0", GpuState::Used));
    assert!(state.join(format!("gpus/{}.json", UUIDS[0])).exists());
    is(&[("05:00.0", GpuState::Used)]);
    // Bound for guests its UUID is not known: the slot counts.
    put(dir.path(), "05:00.0", "0x1db8\n", None);
    is(&[("05:00.0", GpuState::Used)]);
    // Swapped, both known.
    put(dir.path(), "05:00.0", "0x1db8\n", Some(UUIDS[1]));
    put(dir.path(), "06:00.0", "0x1db8\n", Some(UUIDS[0]));
    is(&[("06:00.0", GpuState::Used)]);
    // Another model in the slot, and the card gone.
    put(dir.path(), "05:00.0", "0x2330\n", None);
    put(dir.path(), "06:00.0", "0x1db8\n", Some(UUIDS[1]));
    is(&[]);
    set(&root, &state, &record(&root, "05:00.0", GpuState::Used));
    assert!(state.join("gpus/0000-05-00.0-10de-2330.json").exists());
    is(&[("05:00.0", GpuState::Used)]);
}

#[test]
fn a_gpu_has_one_document_and_the_worst_of_several_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (FsRoot::at(dir.path()).unwrap(), dir.path().join("state"));
    put(dir.path(), "05:00.0", "0x1db8\n", None);
    set(&root, &state, &record(&root, "05:00.0", GpuState::Used));
    put(dir.path(), "05:00.0", "0x1db8\n", Some(UUIDS[0]));
    set(&root, &state, &record(&root, "05:00.0", GpuState::Clean));
    let files = || fs::read_dir(state.join("gpus")).unwrap().count();
    assert_eq!((files(), states(&root, &state)[0].1), (1, GpuState::Clean));
    // One of an interrupted run, or of a card that came back.
    let other = GpuRecord { bdf: at("06:00.0"), ..record(&root, "05:00.0", GpuState::Used) };
    let path = state.join("gpus/other.json");
    fs::write(&path, store::text(&other)).unwrap();
    assert_eq!((files(), states(&root, &state)), (2, vec![("05:00.0".into(), GpuState::Used)]));
    set(&root, &state, &record(&root, "05:00.0", GpuState::Clean));
    assert_eq!((files(), states(&root, &state)[0].1), (1, GpuState::Clean));
}

#[test]
fn a_damaged_record_is_reported_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (FsRoot::at(dir.path()).unwrap(), dir.path().join("var/lib/gpuvm"));
    put(dir.path(), "05:00.0", "0x1db8\n", None);
    put(dir.path(), "06:00.0", "0x1db8\n", None);
    set(&root, &state, &record(&root, "05:00.0", GpuState::Used));
    set(&root, &state, &record(&root, "06:00.0", GpuState::Used));
    let path = state.join("gpus/0000-06-00.0-10de-1db8.json");
    let good = fs::read_to_string(&path).unwrap();
    for bad in [
        String::new(),
        good.replace("used", "tidy"),
        good.replace("0000:06", "zz"),
        good.replace("\"state\"", "\"stat\""),
        good.replace("\"format\": 1", "\"format\": 2"),
        good[..good.len() / 2].to_owned(),
    ] {
        fs::write(&path, &bad).unwrap();
        let here = GpuRecords::of_this_machine(Some(&state)).unwrap();
        let recorded = GpuRecords::recorded(&root).unwrap();
        for all in [here, recorded] {
            assert_eq!(all.located(&root).unwrap().len(), 1, "{bad}");
            let [error] = &all.damaged[..] else { panic!("{bad}") };
            assert!(error.to_string().starts_with("record of a GPU "), "{error}");
            let hint = error.hint().unwrap();
            assert!(bad.contains("\"format\": 2") || hint.contains("no guest has had"), "{hint}");
        }
    }
    // A new record replaces it.
    set(&root, &state, &record(&root, "06:00.0", GpuState::Clean));
    assert_eq!(states(&root, &state).len(), 2);
}
