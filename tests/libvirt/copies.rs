//! Renaming guests on a real libvirt: everything that is theirs follows, nothing else is touched, and a run killed at any record
//! is undone.

use super::files;
use super::place::{MOST, Place, same};
use std::fmt::Write as _;
use std::path::Path;

/// Where the serial consoles of the guests here are written to.
const LOGS: &str = "/var/lib/libvirt/consoles";

/// The text of all files below a directory, by path.
fn texts(dir: &Path, all: &mut String) {
    for name in files(dir) {
        let path = dir.join(&name);
        if path.is_dir() {
            texts(&path, all);
        } else if name != "lock" {
            let bytes = std::fs::read(&path).unwrap();
            writeln!(all, "{}: {}", path.display(), String::from_utf8_lossy(&bytes)).unwrap();
        }
    }
}

/// Everything that a change may leave, with the records of guests and the logs of libvirt.
fn state(place: &Place) -> String {
    let mut all = place.state();
    for dir in ["/var/lib/gpuvm/reserved", "/var/lib/gpuvm/history"] {
        let dir = place.daemon.inside(dir);
        if dir.exists() {
            texts(&dir, &mut all);
        }
    }
    all
}

/// A guest that has been started, changed and stopped, and starts with the host.
fn guest(place: &Place, name: &str) {
    place.done(&place.create(name, &["--disk-dir", place.disks.to_str().unwrap()]));
    place.done(&["stop", "--force", name]);
    // The machine's own directory of logs is not the test's.
    let xml = place.virsh(&["dumpxml", "--inactive", name]);
    let log = |dir: &str| format!("'{dir}/{name}-serial.log'");
    let file = place.daemon.own_path("/var/lib/libvirt/new.xml");
    std::fs::write(&file, xml.replace(&log("/var/log/libvirt/qemu"), &log(LOGS))).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    place.done(&["tune", name, "--balloon", "off", "--yes"]);
    place.virsh(&["autostart", name]);
    let logs = place.daemon.own_path(LOGS);
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join(format!("{name}-serial.log")), "booted\n").unwrap();
}

#[test]
fn a_renamed_guest_keeps_all_that_is_its_own() {
    let Some(place) = Place::new() else { return };
    guest(&place, "ra");
    let uuid = place.virsh(&["domuuid", "ra"]);
    let nvram = place.daemon.own_path("/var/lib/libvirt/qemu/nvram");
    assert_eq!(files(&nvram), ["ra_VARS.fd"]);
    // Somebody else's files of nearly this name.
    std::fs::write(nvram.join("ra_VARS.fd.old"), "theirs").unwrap();
    let before = state(&place);
    let dry = place.done(&["rename", "ra", "rb", "--dry-run"]);
    assert!(dry.contains("rename domain `ra` to `rb`"), "{dry}");
    same(&before, &state(&place), "--dry-run changed something");
    let out = place.done(&["rename", "ra", "rb", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["name"], &said["before"]), (&"rb".into(), &"ra".into()));
    assert_eq!(said["uuid"], uuid.trim());
    assert_eq!(said["moved"].as_array().unwrap().len(), 2, "{out}{dry}");
    assert_eq!(place.virsh(&["domuuid", "rb"]), uuid);
    assert!(!place.has("ra"));
    let info = place.virsh(&["dominfo", "rb"]);
    assert!(info.lines().any(|line| line.starts_with("Autostart") && line.ends_with("enable")));
    assert_eq!(files(&nvram), ["ra_VARS.fd.old", "rb_VARS.fd"]);
    let xml = place.virsh(&["dumpxml", "--inactive", "rb"]);
    assert_eq!(files(&place.daemon.own_path(LOGS)), ["rb-serial.log"]);
    assert!(xml.contains("rb_VARS.fd") && xml.contains("rb-serial.log"), "{xml}");
    assert!(xml.contains("/ra.raw") && !xml.contains("ra_VARS"), "{xml}");
    assert_eq!(files(&place.disks), ["ra.raw"]);
    // It starts, its changes are taken back, and its name is free for another guest with firmware of its own.
    place.done(&["start", "rb"]);
    place.done(&["stop", "--force", "rb"]);
    place.done(&["undo", "rb", "--yes"]);
    let (code, _, err) = place.gpuvm(&["undo", "rb", "--yes"]);
    assert!(code == 1 && err.contains("no change"), "{err}");
    place.done(&["rename", "rb", "ra"]);
    place.done(&["delete", "ra", "--yes"]);
    assert_eq!((files(&nvram), files(&place.disks)), (vec!["ra_VARS.fd.old".into()], vec![]));
    assert!(files(&place.daemon.inside("/var/lib/gpuvm/reserved")).is_empty());
}

#[test]
fn what_cannot_be_renamed_is_refused_with_the_way() {
    let Some(place) = Place::new() else { return };
    guest(&place, "ra");
    let nvram = place.daemon.own_path("/var/lib/libvirt/qemu/nvram");
    let refused = |args: &[&str], says: &[&str]| {
        let before = state(&place);
        let (code, out, err) = place.gpuvm(args);
        assert!(code == 1 && says.iter().all(|text| err.contains(text)), "{args:?}: {out}{err}");
        same(&before, &state(&place), "a refusal changed something");
    };
    std::fs::write(nvram.join("rb_VARS.fd"), "theirs").unwrap();
    refused(&["rename", "ra", "rb"], &["rb_VARS.fd already", "`ls -l "]);
    std::fs::remove_file(nvram.join("rb_VARS.fd")).unwrap();
    place.virsh(&["snapshot-create-as", "ra", "one", "--disk-only", "--no-metadata"]);
    place.virsh(&["managedsave-remove", "ra"]);
    let xml = place.virsh(&["dumpxml", "--inactive", "ra"]);
    let other = xml.replace("<name>ra<", "<name>rb<").replace("ra_VARS", "rb_VARS");
    let uuid = place.virsh(&["domuuid", "ra"]);
    let other = other.replace(uuid.trim(), "5a4d6a3e-6d0f-4c0f-9d5c-3f1c1b0a2e99");
    let file = place.disks.join("rb.xml");
    std::fs::write(&file, other).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    refused(&["rename", "ra", "rb"], &["has a domain of this name"]);
    place.virsh(&["undefine", "rb", "--keep-nvram"]);
    place.done(&["start", "ra"]);
    refused(&["rename", "ra", "rb"], &["`ra` runs", "`gpuvm stop ra` first"]);
    place.done(&["stop", "--force", "ra"]);
    assert!(place.done(&["rename", "ra", "ra"]).is_empty());
}

#[test]
fn a_rename_killed_at_any_record_is_undone() {
    let Some(place) = Place::new() else { return };
    guest(&place, "ra");
    let before = state(&place);
    let mut undone = 0;
    for n in 1..MOST {
        let ended = place.killed(n, &["rename", "ra", "rb"]);
        let said = place.recover();
        if place.has("rb") {
            assert!(undone >= 10, "only {undone} records were seen: {said}");
            place.done(&["rename", "rb", "ra"]);
        }
        undone += 1;
        same(&before, &state(&place), &format!("record {n}: {said}"));
        if ended {
            return;
        }
    }
    panic!("it never comes to its end");
}
