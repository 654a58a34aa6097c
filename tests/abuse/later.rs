//! What happened between the plan and the step, the kill and `recover`, the guest and its end behind our back.

use crate::libvirt::files;
use crate::libvirt::place::Place;
use crate::support::pool::{Pool, number, set};
use crate::support::run;
use std::path::Path;
use std::process::Command;

/// The arguments of a create of a guest with one file for a disk.
fn create<'a>(place: &'a Place, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let disks = ["--disk-dir", place.disks.to_str().unwrap()];
    place.create(name, &[&disks[..], more].concat())
}

/// Defines a guest by virsh with a file as its disk.
fn define(place: &Place, name: &str, disk: &Path) {
    let file = place.daemon.own_path("theirs.xml");
    let xml = format!(
        "<domain type='qemu'><name>{name}</name><memory>65536</memory><os><type>hvm</type></os>\
         <devices><disk type='file'><driver name='qemu' type='raw'/><source file='{}'/>\
         <target dev='vda' bus='virtio'/></disk></devices></domain>",
        disk.display()
    );
    std::fs::write(&file, xml).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
}

#[test]
fn a_delete_that_is_finished_ends_a_running_guest_by_its_name_only() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &[]));
    // It begins to end the guest, and never does.
    assert!(!place.killed(3, &["delete", "a", "--yes"]));
    assert!(place.journal().contains("end-domain"), "{}", place.journal());
    for args in [&["recover"][..], &["recover", "--end", "b"]] {
        let (code, out, err) = place.gpuvm(args);
        assert!(code == 1 && err.contains("gpuvm recover --end a"), "{args:?}: {out}{err}");
        assert_eq!(place.virsh(&["domstate", "a"]).trim(), "running");
    }
    assert!(place.done(&["recover", "--dry-run"]).contains("--end a"));
    place.done(&["recover", "--end", "a"]);
    assert!(!place.has("a") && files(&place.disks).is_empty() && place.journal().is_empty());
}

#[test]
fn a_file_made_after_a_killed_delete_stays() {
    let Some(place) = Place::new() else { return };
    let disk = place.disks.join("a.raw");
    let mut met = false;
    for record in 1..30 {
        place.done(&create(&place, "a", &["--no-start"]));
        let ended = place.killed(record, &["delete", "a", "--yes"]);
        if place.journal().contains("\"delete-disk\"") && !place.has("a") && !ended {
            // Put back from a copy, by somebody who saw that the guest is gone.
            let _ = std::fs::remove_file(&disk);
            std::fs::write(&disk, "theirs").unwrap();
            let said = place.recover();
            let begun = said.contains("delete disk");
            assert!(disk.exists(), "record {record}: {said}");
            assert!(!begun || said.contains("it is another file by now"), "{record}: {said}");
            met |= begun;
            std::fs::remove_file(&disk).unwrap();
            continue;
        }
        place.recover();
        if place.has("a") {
            place.done(&["delete", "a", "--yes"]);
        }
        if ended {
            break;
        }
    }
    assert!(met, "no delete was killed before it deleted the disk");
}

#[test]
fn a_disk_that_another_tool_defines_meanwhile_is_not_taken() {
    let Some(place) = Place::new() else { return };
    let disk = place.disks.join("shared.raw");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let before = place.state();
    let args = place.create("a", &["--disk", disk.to_str().unwrap()]);
    // Its steps are planned.
    let ended = place.halted(2, &args, |_| define(&place, "b", &disk));
    let (code, out, err) = ended.unwrap();
    assert!(code == 1 && err.contains("domain `b` has it as a disk"), "{out}{err}");
    assert!(!place.has("a") && disk.exists() && place.journal().is_empty(), "{out}{err}");
    place.virsh(&["undefine", "b"]);
    crate::libvirt::place::same(&before, &place.state(), "something is left");
    // Two that are off may have one disk; the second is not started while the first runs.
    place.done(&[&args[..], &["--no-start"]].concat());
    define(&place, "b", &disk);
    place.virsh(&["start", "--paused", "b"]);
    let (code, out, err) = place.gpuvm(&["start", "a"]);
    assert!(code == 1 && err.contains("is not free any more: domain `b`"), "{out}{err}");
    place.virsh(&["destroy", "b"]);
    place.done(&["start", "a"]);
}

#[test]
fn what_is_undone_leaves_a_disk_that_is_taken() {
    let Some(place) = Place::new() else { return };
    let disk = place.disks.join("a.raw");
    // The note is written, and the domain not yet looked for.
    let ended = place.halted(7, &create(&place, "a", &[]), |journal| {
        assert!(disk.exists() && journal.contains("remember"), "{journal}");
        define(&place, "b", &disk);
    });
    let (code, out, err) = ended.unwrap();
    assert!(code == 1 && err.contains("not free any more: domain `b`"), "{out}{err}");
    assert!(err.contains("is in use by domain `b`") && !err.contains("`rm "), "{out}{err}");
    assert!(disk.exists() && !place.has("a") && place.journal().is_empty());
}

#[test]
fn a_loop_device_keeps_its_file() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &["--no-start"]));
    let disk = place.disks.join("a.raw");
    let (code, device, err) = run(Command::new("losetup").args(["-f", "--show"]).arg(&disk));
    if code != 0 {
        eprintln!("skipped: no loop devices here: {err}");
        return;
    }
    let device = device.trim().to_owned();
    let taken = place.gpuvm(&place.create("b", &["--no-start", "--disk", disk.to_str().unwrap()]));
    let deleted = place.gpuvm(&["delete", "a", "--yes"]);
    let stays = disk.exists();
    run(Command::new("losetup").args(["-d", &device]));
    let name = device.rsplit('/').next().unwrap();
    assert!(stays && deleted.0 == 0, "{deleted:?}");
    assert!(deleted.2.contains(&format!("stays: the host has it as {name}")), "{deleted:?}");
    assert!(taken.0 == 1 && !place.has("b"), "{taken:?}");
}

#[test]
fn a_guest_that_restarts_holds_the_lock_while_it_starts() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &[]));
    let ended = place.halted(5, &["restart", "--force", "a"], |journal| {
        assert!(journal.ends_with("]}}\n") || journal.contains("start-domain"), "{journal}");
        assert_eq!(place.virsh(&["domstate", "a"]).trim(), "shut off");
        let (code, _, err) = place.gpuvm(&["delete", "a", "--yes", "--lock-wait", "0"]);
        assert!(code == 1 && err.contains("is held by"), "{err}");
    });
    assert_eq!(ended.unwrap().0, 0);
    assert_eq!(place.virsh(&["domstate", "a"]).trim(), "running");
    place.done(&["delete", "a", "--yes"]);
}

#[test]
fn a_journal_that_cannot_be_read_is_named_by_every_change() {
    let Some(place) = Place::new() else { return };
    let dir = place.daemon.own_path("/var/lib/gpuvm/journal");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("0-0.jsonl"), "garbage\n").unwrap();
    let (code, _, err) = place.gpuvm(&create(&place, "a", &["--no-start"]));
    assert!(code == 0 && err.contains("0-0.jsonl"), "{err}");
    assert_eq!(err.matches("gpuvm recover --discard").count(), 1, "{err}");
    let (code, _, err) = place.gpuvm(&["delete", "a", "--yes"]);
    assert!(code == 0 && err.contains("0-0.jsonl"), "{err}");
}

#[test]
fn disks_of_a_guest_that_is_gone_are_named_while_nobody_has_them() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &["--no-start"]));
    place.virsh(&["undefine", "a", "--nvram"]);
    let disk = place.disks.join("a.raw");
    let offered = format!("`rm {}` removes it", disk.display());
    let told = |args: &[&str]| place.gpuvm(args).2.contains(&offered);
    assert!(told(&["verify", "--all"]) && told(&["recover"]));
    define(&place, "b", &disk);
    assert!(!told(&["verify", "--all"]) && !told(&["recover", "--gone"]));
    assert!(disk.exists());
}

#[test]
fn pages_of_guests_that_are_gone_are_given_back() {
    let (Some(place), Some(pool)) = (Place::new(), Pool::take()) else { return };
    set(pool.before + 8);
    if number("nr_hugepages") != Some(pool.before + 8) {
        return;
    }
    let dir = place.daemon.own_path("/var/lib/gpuvm/reserved");
    std::fs::create_dir_all(&dir).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (name, count) in [("a", 3), ("b", 2)] {
        let uuid = format!("11111111-2222-4333-8444-55555555555{name}");
        let text = serde_json::json!({
            "format": 1, "uuid": uuid, "name": name, "uri": place.daemon.uri(),
            "reserved": [{"node": 0, "page_kib": 2048, "count": count, "boot": boot.trim()}],
        });
        std::fs::write(dir.join(format!("{uuid}.json")), text.to_string()).unwrap();
    }
    let (_, _, err) = place.gpuvm(&["verify", "--all"]);
    assert!(err.contains("of domain `a`") && err.contains("pages"), "{err}");
    place.done(&["recover", "--gone"]);
    // What both had, once; somebody else's stay.
    assert_eq!(number("nr_hugepages"), Some(pool.before + 3));
    place.done(&["recover", "--gone"]);
    assert_eq!(number("nr_hugepages"), Some(pool.before + 3));
}
