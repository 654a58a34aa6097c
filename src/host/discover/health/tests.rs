use super::*;
use gpuvm_core::health::HealthReading;
use std::os::unix::fs::PermissionsExt as _;

/// The slot of the tests, and another.
const SLOTS: [&str; 2] = ["34:00.0", "36:00.0"];

/// A GPU on a slot, with a driver.
fn gpu(slot: usize, driver: &str) -> PciDevice {
    let text = format!(
        "{{\"bdf\": \"0000:{}\", \"class\": \"0x030200\", \"vendor\": \"0x10de\", \"device\": \
         \"0x1db8\", \"driver\": \"{driver}\"}}",
        SLOTS[slot]
    );
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The driver's report of a GPU with this UUID.
fn card(slot: usize, uuid: Option<&str>) -> (Bdf, Card) {
    let card = Card { uuid: uuid.map(str::to_owned), is_excluded: false };
    (SLOTS[slot].parse().unwrap(), card)
}

/// A finding that lasts, and one that a restart settles.
fn findings() -> Vec<HealthFinding> {
    let reading = HealthReading {
        remap_failed: Some(true),
        reset_required: true,
        ..HealthReading::default()
    };
    judge(Some(&reading), &[])
}

/// The known health in a boot: entries, cards.
fn known(boot: &str, entries: &[Remembered], cards: &[(Bdf, Card)]) -> KnownHealth {
    KnownHealth {
        entries: entries.to_vec(),
        usable: true,
        cards: cards.iter().cloned().collect(),
        boot: Some(boot.into()),
        ..KnownHealth::default()
    }
}

/// The entry of the GPU on the first slot with this UUID, read in boot `1`.
fn entry(uuid: Option<&str>) -> Remembered {
    Remembered {
        bdf: Some(SLOTS[0].parse().unwrap()),
        uuid: uuid.map(str::to_owned),
        ids: (0x10de, 0x1db8),
        boot: Some("1".into()),
        findings: findings(),
        accepted: Vec::new(),
    }
}

#[test]
fn an_entry_follows_its_gpu_and_is_not_taken_over_by_another_one() {
    let by_uuid = [entry(Some("GPU-a"))];
    for (cards, of_first, of_second) in [
        // On vfio-pci its address counts.
        (vec![], true, false),
        (vec![card(0, Some("GPU-a"))], true, false),
        // It has lost its UUID.
        (vec![card(0, None)], true, false),
        // Another GPU is in its place, or it is somewhere else.
        (vec![card(0, Some("GPU-b"))], false, false),
        (vec![card(1, Some("GPU-a"))], false, true),
        (vec![card(0, Some("GPU-b")), card(1, Some("GPU-a"))], false, true),
    ] {
        let known = known("1", &by_uuid, &cards);
        let has = |slot| known.health(&gpu(slot, "vfio-pci")).is_some();
        assert_eq!((has(0), has(1)), (of_first, of_second), "{cards:?}");
    }
    let known = known("1", &by_uuid, &[]);
    let other = PciDevice { device: 0x1db5, ..gpu(0, "vfio-pci") };
    assert_eq!(known.health(&other), None, "another model is another GPU");
}

#[test]
fn a_restart_settles_what_it_can_and_the_rest_stays() {
    let of = |boot, findings: Vec<HealthFinding>| {
        let entries = [Remembered { findings, ..entry(Some("GPU-a")) }];
        known(boot, &entries, &[]).health(&gpu(0, "vfio-pci"))
    };
    let same = of("1", findings()).unwrap();
    assert_eq!((same.source, same.findings), (HealthSource::Remembered, findings()));
    let later = of("2", findings()).unwrap();
    assert_eq!(later.source, HealthSource::EarlierBoot);
    let codes: Vec<HealthCode> = later.findings.iter().map(|found| found.code).collect();
    assert_eq!(codes, [HealthCode::RemapFailed]);
    let settled = findings().into_iter().filter(|found| !found.code.lasts()).collect();
    assert_eq!(of("2", settled), None, "not checked since, which is not healthy");
    assert_eq!(of("2", Vec::new()).unwrap().words(), "ok in an earlier boot");
}

#[test]
fn health_is_remembered_by_uuid_until_a_replacement() {
    let parts = Parts { devices: vec![gpu(0, "nvidia")], ..Parts::default() };
    let mut known = known("2", &[entry(Some("GPU-a"))], &[card(0, Some("GPU-b"))]);
    assert_eq!(known.renewed(&parts), None, "nothing was read");
    known.now.insert(SLOTS[0].parse().unwrap(), Vec::new());
    let renewed = known.renewed(&parts).unwrap();
    assert_eq!(renewed.len(), 2);
    assert_eq!((renewed[0].bdf, &renewed[0].findings), (None, &findings()), "GPU-a elsewhere");
    assert_eq!(renewed[1].uuid.as_deref(), Some("GPU-b"));
    assert!(renewed[1].bdf.is_some() && renewed[1].findings.is_empty());
    // The first one comes back, without its UUID: the address is that of the second.
    known.entries = renewed;
    known.cards.clear();
    known.now.clear();
    assert_eq!(known.health(&gpu(0, "vfio-pci")).unwrap().findings, []);
    known.usable = false;
    known.now.insert(SLOTS[0].parse().unwrap(), Vec::new());
    assert_eq!(known.renewed(&parts), None, "a file that is not understood is not written over");
}

#[test]
fn an_acceptance_ends_with_its_finding() {
    let parts = Parts { devices: vec![gpu(0, "nvidia")], ..Parts::default() };
    let accepted = vec![HealthCode::RemapFailed];
    let old = Remembered { accepted: accepted.clone(), ..entry(Some("GPU-a")) };
    let mut known = known("1", &[old], &[card(0, Some("GPU-a"))]);
    let bdf: Bdf = SLOTS[0].parse().unwrap();
    for (findings, expected) in [(findings(), accepted), (Vec::new(), Vec::new())] {
        known.now.insert(bdf, findings);
        known.entries = known.renewed(&parts).unwrap_or(known.entries);
        assert_eq!(known.entries[0].accepted, expected);
    }
}

#[test]
fn an_admin_accepts_a_finding_and_revokes_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = FsRoot::at(dir.path()).unwrap();
    let health = |findings| Health { source: HealthSource::Nvml, findings, accepted: Vec::new() };
    let bad = PciDevice { health: Some(health(findings())), ..gpu(0, "nvidia") };
    let good = PciDevice { health: Some(health(Vec::new())), ..gpu(0, "nvidia") };
    assert_eq!(accepting(&root, &good, true).unwrap(), None);
    assert_eq!(accepting(&root, &bad, false).unwrap(), None);
    let text = accepting(&root, &bad, true).unwrap().unwrap();
    std::fs::create_dir_all(dir.path().join("var/lib/gpuvm")).unwrap();
    std::fs::write(dir.path().join(FILE), &text).unwrap();
    let read = entries(&root).unwrap();
    assert_eq!(read[0].accepted, [HealthCode::ResetRequired, HealthCode::RemapFailed]);
    assert_eq!(accepting(&root, &bad, true).unwrap(), None, "already");
    assert_eq!(accepting(&root, &gpu(0, "vfio-pci"), true).unwrap(), None, "not checked now");
    let text = accepting(&root, &bad, false).unwrap().unwrap();
    assert!(!text.contains("accepted"), "{text}");
}

#[test]
fn a_damaged_file_is_a_note_and_no_health() {
    let dir = tempfile::tempdir().unwrap();
    let root = FsRoot::at(dir.path()).unwrap();
    let parts = Parts { devices: vec![gpu(0, "vfio-pci")], ..Parts::default() };
    std::fs::create_dir_all(dir.path().join("var/lib/gpuvm")).unwrap();
    let path = dir.path().join(FILE);
    let good = to_json(&[entry(Some("GPU-a"))]);
    let read = || {
        let mut parts = parts.clone();
        lay(&root, begin(&root, &parts), &mut parts).unwrap();
        (parts.devices[0].health.is_some(), parts.notes)
    };
    assert_eq!(read(), (false, vec![]));
    std::fs::write(&path, &good).unwrap();
    assert_eq!(read(), (true, vec![]));
    for (text, reason) in [
        (String::new(), "EOF"),
        (good[..good.len() / 2].into(), "EOF"),
        (good.replace("remap-failed", "remap-dead"), "unknown variant `remap-dead`"),
        (good.replace("gpuvm-health", "gpuvm-host"), "it is `gpuvm-host`"),
        (good.replace("\"version\": 1", "\"version\": 2"), "of a newer gpuvm"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let (is_known, notes) = read();
        assert!(!is_known, "{text}");
        let note = notes.join("\n");
        assert!(note.contains(reason) && note.contains("health.json"), "{note}");
    }
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (is_known, notes) = read();
    assert!(!is_known && notes.len() == 1, "{notes:?}");
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trust.json");
    std::fs::write(&path, "{}").unwrap();
    let root = FsRoot::at(dir.path()).unwrap();
    for (mode, is_ours) in [(0o644, true), (0o666, false), (0o664, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let ours = owned(&root, "trust.json").is_ok();
        assert_eq!(ours, is_ours && nix::unistd::geteuid().is_root(), "{mode:o}");
    }
}

#[test]
fn messages_of_programs_do_not_count() {
    let text = "6,1,1,-;NVRM: Xid (PCI:0000:34:00): 79, GPU has fallen off the bus.\n\
                6,2,2,-;NVRM: Xid (PCI:0000:34:00): 31, pid=1\n\
                6,3,3,-;NVRM: Xid (PCI:0000:34:00): 79, GPU has fallen off the bus.\n";
    let all = by_gpu(text);
    let of_gpu = &all[&SLOTS[0].parse().unwrap()];
    assert_eq!(
        of_gpu.iter().map(|one| (one.kind.number, one.times)).collect::<Vec<_>>(),
        [(79, 2)]
    );
    let known = KnownHealth { xids: all, ..KnownHealth::default() };
    let health = known.health(&gpu(0, "vfio-pci")).unwrap();
    assert_eq!((health.source, health.is_over()), (HealthSource::KernelLog, true));
    assert_eq!(known.health(&gpu(1, "vfio-pci")), None);
}
