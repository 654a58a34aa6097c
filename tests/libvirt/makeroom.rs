//! `make-room` on a real libvirtd as if on the DGX-2: guests that are off change their places, the
//! new one is created, and runs are killed at any record. Guests that run with GPUs are those of
//! tests/vdgx (room.sh).

use super::place::{MOST, Place};
use crate::support::daemon::Daemon;
use crate::support::host_tree;
use gpuvm::domain::DomainXml;
use gpuvm::topology::file::from_json;
use gpuvm_core::domain::view::gpu_indexes;
use serde_json::Value;

/// The DGX-2, with guests on both halves: `a` on GPU 2, `b` on GPU 8, `c` on GPU 12, of which `a`
/// may be moved; none where this machine cannot have it.
fn halves() -> Option<Place> {
    let daemon = Daemon::own(Some(&host_tree("dgx-2")))?;
    let disks = daemon.fresh_dir("disks");
    let place = Place { daemon, disks, key: None, net: false, before: None };
    for (name, gpu, more) in [("a", "2", &["--movable"][..]), ("b", "8", &[]), ("c", "12", &[])] {
        create(&place, name, &[&["--gpu", gpu], more].concat());
    }
    Some(place)
}

/// Creates a guest that is not started.
fn create(place: &Place, name: &str, more: &[&str]) -> String {
    let disks = place.disks.to_str().unwrap();
    let how = ["--name", name, "--no-start", "--accept-shared-fabric", "--disk-dir", disks];
    place.done(&[&["create"], &how[..], &["--memory", "16G", "--os-size", "16M"], more].concat())
}

/// The command that makes room.
const ROOM: [&str; 5] = ["make-room", "--gpus", "8", "--memory", "64G"];

/// It, without a question.
fn room(more: &[&'static str]) -> Vec<&'static str> {
    [&ROOM[..], &["--yes"], more].concat()
}

/// The GPUs of a domain, by index, and its definition.
fn gpus(place: &Place, name: &str) -> (Vec<usize>, String) {
    let record = crate::support::project().join("topologies/dgx-2.json");
    let topology = from_json(&std::fs::read_to_string(record).unwrap()).unwrap();
    let text = place.virsh(&["dumpxml", "--inactive", name]);
    let held = DomainXml::parse(&text).unwrap().held(false).unwrap();
    (gpu_indexes(&topology, &held.devices), text)
}

/// What of a definition a move leaves as it is.
fn kept(text: &str) -> Vec<&str> {
    let parts = ["<uuid>", "<name>", "<mac ", "<source file", "<memory unit", "<vcpu "];
    let is_kept = |line: &&str| parts.iter().any(|part| line.starts_with(part));
    text.lines().map(str::trim).filter(is_kept).collect()
}

#[test]
fn a_guest_moves_and_the_new_one_is_created() {
    let Some(place) = halves() else { return };
    let (code, _, err) = place.gpuvm(&["plan", "--gpus", "8", "--memory", "64G"]);
    let offered = "`gpuvm make-room --gpus 8 --memory 64G` makes room: move `a`";
    assert!(code == 1 && err.contains(offered), "{err}");
    let capacity = place.done(&["capacity", "--gpus", "8", "--memory", "64G"]);
    assert!(capacity.contains(offered), "{capacity}");
    let before = place.state();
    let shown = place.done(&room(&["--dry-run"]));
    assert!(shown.contains("move `a`, which is off, from GPU 2 to GPU"), "{shown}");
    let told: Value = serde_json::from_str(&place.done(&room(&["--dry-run", "--json"]))).unwrap();
    assert_eq!(told["moves"][0]["domain"], "a", "{told}");
    assert_eq!(told["create"], "gpuvm create --gpus 8 --memory 64G");
    super::place::same(&before, &place.state(), "a preview changed something");
    let (_, was) = gpus(&place, "a");
    let made = place.done(&room(&[]));
    assert!(made.contains("then `gpuvm create --gpus 8"), "{made}");
    let (now, is) = gpus(&place, "a");
    assert!(now == [told["moves"][0]["to"][0].as_u64().unwrap() as usize], "{now:?}");
    assert_eq!(kept(&was), kept(&is));
    assert!(place.done(&room(&[])).contains("nothing to move"));
    assert!(place.done(&["history", "a"]).contains("make-room"));
    let (code, out, err) = place.gpuvm(&["check", "a"]);
    assert_eq!(code, 0, "{out}{err}");
    create(&place, "new", &["--gpus", "8"]);
    assert_eq!(gpus(&place, "new").0, (0..8).collect::<Vec<_>>());
    // Nobody else may be moved, and that is said with what would do.
    let (code, _, err) = place.gpuvm(&room(&[]));
    assert!(code == 1 && err.contains("hint: "), "{err}");
}

#[test]
fn a_move_that_is_killed_is_undone_or_done() {
    let Some(place) = halves() else { return };
    let (_, was) = gpus(&place, "a");
    let before = place.state();
    // Every call of the hypervisor is tried on a fake.
    for n in (1..MOST).step_by(3) {
        let ended = place.killed(n, &room(&[]));
        if !ended {
            place.recover();
        }
        let (now, is) = gpus(&place, "a");
        assert_eq!(place.journal(), "", "record {n}");
        if now == [2] {
            super::place::same(&before, &place.state(), &format!("record {n}"));
        } else {
            assert_eq!(kept(&was), kept(&is), "record {n}");
        }
        if ended || now != [2] {
            assert!(n > 3, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}
