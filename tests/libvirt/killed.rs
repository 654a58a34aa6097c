//! A change killed at every record of its journal, one run for each, and the result of `recover`.
//! The kill comes at the n-th `fdatasync`, which only the journal makes (tests/tamper).

use super::files;
use super::imagefail::{long_image, stopped_at};
use super::place::{MOST, Place, same};
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm_ops::images::resolve;
use nix::sys::signal::Signal;

/// Whether what differs little from another kill is killed at each of its records, too: with
/// `GPUVM_KILLS=all`. Else at every third.
fn all_kills() -> bool {
    std::env::var("GPUVM_KILLS").is_ok_and(|value| value == "all")
}

/// Kills the create of a guest at every record of its journal, or at one in `stride`; `least`: the
/// least number of records that must be undone.
fn create_killed(place: &Place, how: &[&str], least: usize, stride: usize) {
    let before = place.state();
    let args = place.create("killc", how);
    let mut undone = 0;
    for n in (1..MOST).step_by(stride) {
        if place.killed(n, &args) {
            assert!(undone >= least, "only {undone} records were seen: the test proves nothing");
            place.done(&["delete", "killc", "--yes"]);
            return;
        }
        let half = place.state();
        let dry = place.done(&["recover", "--dry-run"]);
        let dry: String = dry
            .lines()
            .filter(|l| !l.contains("--end"))
            .fold(String::new(), |all, line| all + line + "\n");
        same(&half, &place.state(), "--dry-run changed something");
        if dry.contains("would be undone") {
            undone += 1;
            // Once is enough to see that others are refused, and once that a dry run is not.
            if undone == 3 {
                let (code, _, err) = place.gpuvm(&place.create("other", how));
                assert_eq!(code, 1, "record {n}: {dry}{err}");
                assert!(err.contains("`create killc`") && err.contains("was interrupted"), "{err}");
                assert!(err.contains("gpuvm recover"), "{err}");
                place.done(&[&place.create("other", how)[..], &["--dry-run"]].concat());
            }
        }
        let (code, out, err) = place.gpuvm(&["recover", "--end", "killc"]);
        assert_eq!(code, 0, "record {n}: {out}{err}");
        assert_eq!(dry.replace("would be undone", "undone").replace("undo: ", "undone: "), out);
        if place.has("killc") {
            assert!(undone >= least, "record {n}: not undone: {out}{err}");
            // Killed after its last step: the guest is whole, and its pool was made.
            place.done(&["delete", "killc", "--yes"]);
            if !before.contains("gpuvm-guests") && place.state().contains("gpuvm-guests") {
                place.forget_pool();
            }
        }
        same(&before, &place.state(), &format!("record {n}: {out}{err}"));
    }
    panic!("it never comes to its end");
}

#[test]
fn a_create_of_a_cloned_disk_killed_at_any_record_is_undone() {
    let Some(place) = Place::with_image() else { return };
    create_killed(&place, &["--os-size", "16M"], 8, 1);
}

#[test]
fn a_create_of_an_overlay_killed_at_any_record_is_undone() {
    let Some(place) = Place::with_image() else { return };
    let (stride, least) = if all_kills() { (1, 6) } else { (3, 2) };
    create_killed(&place, &["--os-size", "16M", "--os-disk", "overlay"], least, stride);
}

#[test]
fn a_create_of_a_blank_disk_killed_at_any_record_is_undone() {
    let Some(place) = Place::new() else { return };
    create_killed(&place, &["--disk-dir", place.disks.to_str().unwrap()], 5, 1);
}

/// Kills the delete of a guest at every record of its journal, or at one in `stride`; `more` are
/// options of the delete.
fn delete_killed(more: &[&str], stride: usize) {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("killd", &["--os-size", "16M"]);
    let delete = [&["delete", "killd", "--yes"], more].concat();
    let kept = |place: &Place| {
        let data = files(&place.disks);
        assert_eq!(data.len(), usize::from(more.contains(&"--keep-data")), "{data:?}");
        data.iter().for_each(|file| std::fs::remove_file(place.disks.join(file)).unwrap());
    };
    // The pool is made by the first guest and stays.
    place.done(&args);
    place.done(&delete);
    kept(&place);
    let before = place.state();
    for n in (1..MOST).step_by(stride) {
        place.done(&args);
        let ended = place.killed(n, &delete);
        let said = place.recover();
        if place.has("killd") {
            assert!(n <= 2, "record {n}: neither whole nor gone: {said}");
            place.done(&delete);
        }
        kept(&place);
        same(&before, &place.state(), &format!("record {n}: {said}"));
        if ended {
            assert!(n > 9, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn a_delete_killed_at_any_record_is_finished() {
    delete_killed(&[], 1);
}

#[test]
fn a_delete_that_keeps_the_data_killed_at_any_record_is_finished() {
    delete_killed(&["--keep-data"], if all_kills() { 1 } else { 3 });
}

#[test]
fn an_unrecoverable_journal_can_be_discarded() {
    let Some(place) = Place::new() else { return };
    // Killed when the second step begins: the disk is made, the domain is not.
    let disks = ["--disk-dir", place.disks.to_str().unwrap()];
    assert!(!place.killed(6, &place.create("killx", &disks)));
    let (code, out, err) = place.gpuvm(&["recover", "--discard"]);
    assert_eq!(code, 2, "{out}{err}");
    assert!(err.contains("not undone: create disk") && err.contains("--yes"), "{err}");
    assert_eq!(files(&place.disks), ["killx.raw"]);
    let (code, _, err) = place.gpuvm(&["recover", "--discard", "--yes"]);
    assert_eq!((code, files(&place.disks)), (0, vec!["killx.raw".to_owned()]), "{err}");
    assert!(place.recover().contains("no change was interrupted"));
}

#[test]
fn an_image_add_killed_at_any_record_is_undone() {
    let Some(place) = Place::new() else { return };
    let image = place.disks.join("a.img");
    std::fs::write(&image, vec![7u8; 1 << 20]).unwrap();
    let image = image.to_str().unwrap();
    let dir = place.daemon.own_path("/var/lib/libvirt/gpuvm-images");
    // The pool is made by the first image, and goes with its change.
    let state = || {
        let pools = place.daemon.virsh(&["pool-list", "--all", "--name"]).1;
        let pools = pools.lines().any(|name| name.trim() == "gpuvm-images");
        (pools, dir.exists(), files(&dir))
    };
    let before = (false, false, Vec::new());
    assert_eq!(state(), before);
    for n in 1..MOST {
        let ended = place.killed(n, &["image", "add", image]);
        let (half, (code, dry, err)) = (state(), place.gpuvm(&["recover", "--dry-run"]));
        assert_eq!((code, state()), (0, half.clone()), "--dry-run changed something: {err}");
        if dry.contains("`image add a`") && dry.contains("would be undone") {
            let (code, _, err) = place.gpuvm(&["image", "remove", "a", "--yes"]);
            assert!(code == 1 && err.contains("gpuvm recover"), "record {n}: {err}");
        }
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!(code, 0, "record {n}: {out}{err}");
        if !ended && state() == before {
            continue;
        }
        assert!(n > 9, "only {n} records were seen: the test proves nothing");
        let whole = (true, true, vec!["a.raw".to_owned()]);
        assert_eq!(state(), whole, "record {n}, from {half:?}: {out}{err}");
        assert!(std::fs::read(dir.join("a.raw")).unwrap() == vec![7u8; 1 << 20]);
        let (code, out, err) = place.gpuvm(&["image", "list"]);
        assert!(code == 0 && out.contains("a ") && out.contains("raw"), "{out}{err}");
        let (code, _, err) = place.gpuvm(&["image", "remove", "a", "--yes"]);
        assert_eq!((code, state()), (0, (true, true, Vec::new())), "{err}");
        if !ended {
            // Killed when only its marker was left. The next run creates the pool again.
            for verb in ["pool-destroy", "pool-delete", "pool-undefine"] {
                assert!(place.daemon.virsh(&[verb, "gpuvm-images"]).0, "{verb}");
            }
            continue;
        }
        let (code, out, err) = place.gpuvm(&["image", "list"]);
        assert!(code == 0 && out.is_empty() && err.contains("gpuvm image add"), "{out}{err}");
        return;
    }
    panic!("it never comes to its end");
}

#[test]
fn an_image_add_killed_in_the_middle_of_its_copy_is_undone() {
    let Some(place) = Place::new() else { return };
    let (image, volumes) = (long_image(&place.disks), place.daemon.fresh_dir("kill-copy-volumes"));
    let dir = volumes.to_str().unwrap();
    assert!(place.daemon.virsh(&["pool-create-as", "kill-copy", "dir", "--target", dir]).0);
    for doing in ["fill volume", "verify that volume"] {
        let mut add = place.command(&["image", "add", &image, "--pool", "kill-copy"]);
        assert_eq!(stopped_at(&mut add, doing, Signal::SIGKILL).0, None);
        assert_eq!(files(&volumes), ["long.adding", "long.raw"], "{doing}");
        let (_, out, err) = place.gpuvm(&["image", "list", "--pool", "kill-copy"]);
        assert!(out.contains("long") && err.contains("its copy is not whole"), "{out}{err}");
        let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
        let newest = resolve(&libvirt, "kill-copy", None).unwrap_err().to_string();
        assert!(newest.contains("holds no image that a guest can be made from"), "{newest}");
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!((code, files(&volumes)), (0, vec![]), "{doing}: {out}{err}");
        assert!(out.contains("undone: make volume `long.raw`"), "{out}");
    }
}
