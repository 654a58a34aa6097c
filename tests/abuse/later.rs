//! Changes by others between the plan and the step, between the kill and `recover`, and guests that
//! end unnoticed by gpuvm.

use crate::libvirt::files;
use crate::libvirt::place::Place;
use crate::support::lawful::{NO_HUGE_PAGES, NO_LOOP, RAMFS_WITH_BIRTHS};
use crate::support::pool::{Pool, number, set};
use crate::support::{run, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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
            // Put back from a copy, by an admin who saw that the guest is gone.
            let _ = std::fs::remove_file(&disk);
            std::fs::write(&disk, "theirs").unwrap();
            let said = place.recover();
            let begun = said.contains("delete disk");
            assert!(disk.exists(), "record {record}: {said}");
            assert!(!begun || said.contains("it was replaced by another file"), "{record}: {said}");
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
    // Two stopped guests may have the same disk; the second is not started while the first runs.
    place.done(&[&args[..], &["--no-start"]].concat());
    define(&place, "b", &disk);
    place.virsh(&["start", "--paused", "b"]);
    let (code, out, err) = place.gpuvm(&["start", "a"]);
    assert!(code == 1 && err.contains("is not free: domain `b`"), "{out}{err}");
    place.virsh(&["destroy", "b"]);
    place.done(&["start", "a"]);
}

#[test]
fn undo_leaves_a_disk_in_use() {
    let Some(place) = Place::new() else { return };
    let disk = place.disks.join("a.raw");
    // The record is written, and the domain not looked up yet.
    let ended = place.halted(7, &create(&place, "a", &[]), |journal| {
        assert!(disk.exists() && journal.contains("remember"), "{journal}");
        define(&place, "b", &disk);
    });
    let (code, out, err) = ended.unwrap();
    assert!(code == 1 && err.contains("no longer free: domain `b`"), "{out}{err}");
    assert!(err.contains("is in use by domain `b`") && !err.contains("`rm "), "{out}{err}");
    assert!(disk.exists() && !place.has("a") && place.journal().is_empty());
}

#[test]
fn a_loop_device_keeps_its_file() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &["--no-start"]));
    let disk = place.disks.join("a.raw");
    let (code, device, _) = run(Command::new("losetup").args(["-f", "--show"]).arg(&disk));
    if code != 0 {
        return skip(NO_LOOP);
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

/// A process that holds the host's lock; it ends when this is dropped.
struct HoldsLock(Child);

impl HoldsLock {
    /// Takes the lock, and waits until it is held.
    fn new(place: &Place) -> HoldsLock {
        let held = place.daemon.own_path("held");
        let mut flock = place.daemon.within("flock");
        let shell = format!("echo >{}; exec sleep 1000", held.display());
        flock.args(["--no-fork", "/run/gpuvm/lock", "sh", "-c", &shell]);
        let holder = HoldsLock(flock.stdin(Stdio::null()).spawn().unwrap());
        crate::libvirt::place::until("the lock is held", || held.exists());
        holder
    }
}

impl Drop for HoldsLock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_guest_that_restarts_is_not_started_without_the_lock() {
    let Some(place) = Place::new() else { return };
    place.done(&create(&place, "a", &[]));
    let mut held = None;
    // It is off, and the lock not yet taken for the start.
    let ended = place.halted(4, &["restart", "--force", "--lock-wait", "0", "a"], |journal| {
        assert!(journal.contains("\"done\"") && !journal.contains("begin\":[1"), "{journal}");
        held = Some(HoldsLock::new(&place));
    });
    let (code, out, err) = ended.unwrap();
    assert!(code == 1 && err.contains("is held by"), "{out}{err}");
    assert!(err.contains("is not started again"), "{out}{err}");
    assert_eq!(place.virsh(&["domstate", "a"]).trim(), "shut off");
    assert!(err.contains("hint: ") && err.contains("`gpuvm start a`"), "{out}{err}");
    drop(held);
    place.done(&["start", "a"]);
    assert_eq!(place.virsh(&["domstate", "a"]).trim(), "running");
}

/// A file system without birth times, mounted on a directory; it is unmounted when this is dropped.
struct Ramfs<'p>(&'p Path);

impl Ramfs<'_> {
    /// Mounts it; none, with the reason reported, if the machine cannot.
    fn new(at: &Path) -> Option<Ramfs<'_>> {
        let (code, _, err) =
            run(Command::new("mount").args(["-t", "ramfs", "-o", "mode=755", "ramfs"]).arg(at));
        if code != 0 {
            return skip(format!("no mounts: {err}"));
        }
        let mounted = Ramfs(at);
        let file = at.join("probe");
        std::fs::write(&file, "").unwrap();
        let tells = file.metadata().unwrap().created().is_ok();
        std::fs::remove_file(&file).unwrap();
        if tells { skip(RAMFS_WITH_BIRTHS) } else { Some(mounted) }
    }
}

impl Drop for Ramfs<'_> {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0));
    }
}

#[test]
fn a_file_without_a_birth_time_is_left_by_recover() {
    let Some(place) = Place::new() else { return };
    let Some(_mounted) = Ramfs::new(&place.disks) else { return };
    let disk = place.disks.join("a.raw");
    let args = create(&place, "a", &["--no-start"]);
    let killed = (3..20).find(|&record| {
        assert!(!place.killed(record, &args), "it is done before it is killed");
        disk.exists() || {
            place.recover();
            false
        }
    });
    assert!(killed.is_some());
    let said = place.recover();
    assert!(disk.exists() && said.contains("cannot be verified"), "{said}");
    assert!(said.contains(&format!("`rm {}`", disk.display())), "{said}");
    std::fs::remove_file(&disk).unwrap();
    // A run knows the files that it has just examined; a later one does not.
    place.done(&args);
    place.done(&["delete", "a", "--yes"]);
    assert!(!disk.exists());
    place.done(&args);
    let killed = (3..20).find(|&record| {
        assert!(!place.killed(record, &["delete", "a", "--yes"]), "it is done before");
        let is_late = !place.has("a") && disk.exists();
        if !is_late {
            place.recover();
            if !place.has("a") {
                let _ = std::fs::remove_file(&disk);
                place.done(&args);
            }
        }
        is_late
    });
    assert!(killed.is_some());
    let said = place.recover();
    assert!(disk.exists() && said.contains("cannot be verified"), "{said}");
}

#[test]
fn a_converted_disk_is_known_as_the_guests() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("a", &["--image", "tiny", "--os-size", "8M", "--no-start"]);
    place.done(&args);
    place.done(&["tune", "a", "--convert", "vda=qcow2", "--yes"]);
    let volumes = || place.virsh(&["vol-list", "gpuvm-guests"]);
    let all = volumes();
    let new = all.split_whitespace().find(|word| word.ends_with("qcow2"));
    let new = new.unwrap_or_else(|| panic!("{all}")).to_owned();
    let xml = place.virsh(&["dumpxml", "--inactive", "a"]);
    let (code, out, err) = place.gpuvm(&["delete", "a", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!volumes().contains(&new), "{}: {err}", volumes());
    // The previous image is no guest's disk, and stays.
    assert!(volumes().contains("a.os"), "{}: {err}", volumes());
    assert!(err.contains("it is not a disk of the domain any more; `virsh vol-delete"), "{err}");
    assert!(xml.contains(&new), "{xml}");
    // A guest that was removed without gpuvm.
    place.virsh(&["vol-delete", "--pool", "gpuvm-guests", "a.os"]);
    place.done(&args);
    place.done(&["tune", "a", "--convert", "vda=qcow2", "--yes"]);
    place.virsh(&["undefine", "a"]);
    let (_, _, err) = place.gpuvm(&["verify", "--all"]);
    assert!(err.contains(&format!("volume `{new}` of pool `gpuvm-guests`")), "{err}");
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
    // Also by verbs that change nothing.
    let (_, _, err) = place.gpuvm(&["verify", "--all"]);
    assert!(err.contains("0-0.jsonl") && err.contains("gpuvm recover --discard"), "{err}");
    place.done(&["recover", "--discard", "--yes"]);
    let (_, _, err) = place.gpuvm(&["verify", "--all"]);
    assert!(!err.contains("0-0.jsonl"), "{err}");
    assert!(!place.killed(4, &create(&place, "b", &["--no-start"])));
    let (_, _, err) = place.gpuvm(&["verify", "--all"]);
    assert!(err.contains("`create b`") && err.contains("was interrupted"), "{err}");
    place.done(&["recover"]);
}

#[test]
fn unused_disks_of_a_gone_guest_are_named() {
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
        return skip(NO_HUGE_PAGES);
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
    // Pages that both had, once; those of others stay.
    assert_eq!(number("nr_hugepages"), Some(pool.before + 3));
    place.done(&["recover", "--gone"]);
    assert_eq!(number("nr_hugepages"), Some(pool.before + 3));
}
