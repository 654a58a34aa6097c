//! GPUs between guests, on a real libvirtd as if on the DGX-2: what `delete` records where a test
//! is required, that runs are killed at any record, and that plans leave the GPU out until an admin
//! accepts it. Guests that run with GPUs are those of tests/vdgx.

use super::place::{MOST, Place};
use crate::support::daemon::Daemon;
use crate::support::host_tree;
use std::fs;
use std::path::PathBuf;

/// The DGX-2 with a policy; none where this machine cannot have it.
fn place(mode: &str) -> Option<Place> {
    let daemon = Daemon::own(Some(&host_tree("dgx-2")))?;
    let disks = daemon.fresh_dir("disks");
    let place = Place { daemon, disks, key: None, net: false, before: None };
    policy(&place, mode);
    Some(place)
}

fn policy(place: &Place, mode: &str) {
    let file = place.daemon.own_path("etc/gpuvm/test.toml");
    fs::write(file, format!("mode = \"{mode}\"\n")).unwrap();
}

/// Creates a guest with GPU 2 that is not started.
fn create(place: &Place) {
    let disks = place.disks.to_str().unwrap();
    let how = ["create", "--name", "a", "--no-start", "--accept-shared-fabric", "--gpu", "2"];
    place.done(&[&how[..], &["--disk-dir", disks, "--memory", "16G", "--os-size", "16M"]].concat());
}

/// The records of GPUs.
fn records(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.daemon.own_path("var/lib/gpuvm/gpus"));
    entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

const PLAN: [&str; 3] = ["plan", "--gpu", "2"];

#[test]
fn a_gpu_of_a_deleted_guest_is_left_out_until_it_is_accepted() {
    let Some(place) = place("require") else { return };
    create(&place);
    assert!(records(&place).is_empty());
    place.done(&["delete", "a", "--yes"]);
    let [record] = &records(&place)[..] else { panic!("{:?}", records(&place)) };
    let text = fs::read_to_string(record).unwrap();
    assert!(text.contains("\"used\"") && text.contains("\"name\": \"a\""), "{text}");
    let list = place.done(&["gpu", "list"]);
    assert!(list.contains("used by `a`"), "{list}");
    assert!(list.contains("is untested: domain `a` had it"), "{list}");
    let (code, _, err) = place.gpuvm(&PLAN);
    assert_eq!(code, 1);
    assert!(err.contains("is untested: domain `a` had it"), "{err}");
    assert!(err.contains("gpuvm gpu include 0000:39:00.0 --untested"), "{err}");
    // Returned to use, it still has no test.
    let (code, _, err) = place.gpuvm(&["gpu", "include", "2"]);
    assert!(code == 0 && err.contains("0000:39:00.0 is untested: domain `a` had it"), "{err}");
    assert_eq!(place.gpuvm(&PLAN).0, 1);
    let shown = place.done(&["gpu", "include", "2", "--untested", "--dry-run"]);
    assert_eq!(shown.trim(), "record 0000:39:00.0 as clean");
    let json = place.done(&["gpu", "include", "2", "--untested", "--json"]);
    assert!(json.contains("\"changed\": true"), "{json}");
    place.done(&PLAN);
    assert!(place.done(&["gpu", "list"]).contains(" clean "));
    // A damaged record never means clean.
    fs::write(record, "{\n").unwrap();
    let (code, _, err) = place.gpuvm(&PLAN);
    assert!(code == 1 && err.contains("record of a GPU /var/lib/gpuvm/gpus/"), "{err}");
    policy(&place, "note");
    let (code, _, err) = place.gpuvm(&PLAN);
    assert!(code == 0 && err.contains("warning: record of a GPU"), "{err}");
    policy(&place, "off");
    let list = place.done(&["gpu", "list"]);
    assert!(!list.contains("TEST"), "{list}");
}

#[test]
fn a_gpu_that_set_takes_from_a_guest_is_left_out_too() {
    let Some(place) = place("require") else { return };
    create(&place);
    place.done(&["set", "a", "--gpus", "0", "--yes"]);
    let list = place.done(&["gpu", "list"]);
    assert!(list.contains("is untested: domain `a` had it"), "{list}");
    assert_eq!(place.gpuvm(&PLAN).0, 1);
}

#[test]
fn a_deletion_that_is_killed_records_the_gpu_or_leaves_the_guest() {
    let Some(place) = place("note") else { return };
    create(&place);
    for n in (1..MOST).step_by(4) {
        let ended = place.killed(n, &["delete", "a", "--yes"]);
        if !ended {
            place.recover();
        }
        assert_eq!(place.journal(), "", "record {n}");
        let is_there = place.virsh(&["list", "--all", "--name"]).contains('a');
        assert_eq!(records(&place).is_empty(), is_there, "record {n}");
        if !is_there {
            assert!(n > 1, "the test proves nothing");
            let (_, out, err) = place.gpuvm(&PLAN);
            let said = "not tested since their last guest: 0000:39:00.0: domain `a` had it";
            assert!(out.contains("0000:39:00.0") && out.contains(said), "{out}{err}");
            return;
        }
    }
    panic!("it is never deleted");
}
