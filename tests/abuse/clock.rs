//! Whatever a time, a name or a size says, the data of a guest and files of others stay: clocks are
//! set back, and names are taken again.

use super::uses::Ground;
use crate::libvirt::files;
use crate::libvirt::place::Place;
use crate::support::skip;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// The data that a guest writes.
const DATA: &[u8] = b"all that the guest has";

/// Has a guest write on its disk while the clock is years behind.
fn write_in_the_past(disk: &Path) {
    let file = OpenOptions::new().write(true).open(disk).unwrap();
    file.write_all_at(DATA, 1 << 20).unwrap();
    set_back(&file);
}

/// Sets the time of a file years back.
fn set_back(file: &File) {
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
}

/// Whether a disk has what its guest wrote.
fn is_written(disk: &Path) -> bool {
    let mut bytes = vec![0; DATA.len()];
    File::open(disk).unwrap().read_exact_at(&mut bytes, 1 << 20).unwrap();
    bytes == DATA
}

/// Expects that an undo is refused, that it offers no other verb, and that the guest stays.
fn refused(place: &Place, name: &str, said: &str) {
    let (code, out, err) = place.gpuvm(&["undo", name, "--yes"]);
    assert!(code == 1 && err.contains(said), "`{said}` is not said: {out}{err}");
    assert!(err.contains(&format!("`gpuvm undo {name} --force` deletes it")), "{out}{err}");
    assert!(place.has(name), "{out}{err}");
}

#[test]
fn undo_keeps_what_a_clone_wrote_whichever_way_the_clock_was_set() {
    let Some(ground) = Ground::new() else { return };
    let (place, [a, b]) = (&ground.place, ["a.raw", "b.raw"].map(|name| ground.at(name)));
    ground.guest("a");
    std::fs::write(&a, vec![7; 8 << 20]).unwrap();
    place.done(&["clone", "a", "b"]);
    write_in_the_past(&b);
    refused(place, "b", "may have written on disk");
    assert!(is_written(&b), "the data is gone");
    place.done(&["undo", "b", "--yes", "--force"]);
    assert!(!b.exists());
    // One that was not written goes, even if its time says otherwise.
    place.done(&["clone", "a", "b"]);
    OpenOptions::new()
        .write(true)
        .open(&b)
        .unwrap()
        .set_modified(UNIX_EPOCH + Duration::from_secs(8_000_000_000))
        .unwrap();
    place.done(&["undo", "b", "--yes"]);
    assert!(!b.exists() && a.exists());
    // Whether it was written is not known once its source has changed or is gone.
    place.done(&["clone", "a", "b"]);
    write_in_the_past(&a);
    refused(place, "b", "may have written on disk");
    std::fs::rename(&a, ground.at("away.raw")).unwrap();
    refused(place, "b", "is gone");
    assert!(b.exists());
    ground.delete("b");
    assert!(!b.exists());
}

#[test]
fn undo_keeps_what_a_copied_volume_got_whichever_way_the_clock_was_set() {
    let Some(place) = Place::with_image() else { return };
    place.done(&place.create("a", &["--no-start", "--image", "tiny", "--os-size", "2M"]));
    place.done(&["clone", "a", "b", "--no-seed"]);
    let dir = place.daemon.inside(crate::libvirt::place::POOL_DIR);
    let disk = dir.join("b.os");
    write_in_the_past(&disk);
    refused(&place, "b", "may have written on disk");
    assert!(is_written(&disk), "the data is gone");
    place.done(&["delete", "b", "--yes"]);
    place.done(&["clone", "a", "b", "--no-seed"]);
    place.done(&["undo", "b", "--yes"]);
    assert!(!disk.exists() && dir.join("a.os").exists());
}

#[test]
fn undo_keeps_a_clone_whose_firmware_has_run() {
    let Some(place) = Place::new() else { return };
    let dir = place.disks.to_str().unwrap();
    place.done(&place.create("a", &["--no-start", "--disk-dir", dir, "--os-size", "8M"]));
    place.done(&["clone", "a", "b"]);
    place.virsh(&["start", "--paused", "b"]);
    place.virsh(&["destroy", "b"]);
    refused(&place, "b", "b_VARS.fd");
    place.done(&["delete", "b", "--yes"]);
}

#[test]
fn undo_keeps_what_an_imported_guest_wrote_whichever_way_the_clock_was_set() {
    let Some(ground) = Ground::new() else { return };
    let place = &ground.place;
    ground.guest("a");
    std::fs::write(ground.at("a.raw"), vec![7; 8 << 20]).unwrap();
    let bundle = ground.path("bundle");
    place.done(&["export", "a", "--bundle", &bundle]);
    let disks = place.disks.to_str().unwrap();
    let import = ["import", &bundle, "--copy", "--name", "c", "--disks", disks];
    place.done(&import);
    let listed = place.virsh(&["domblklist", "c"]);
    let disk = listed.split_whitespace().last().unwrap();
    write_in_the_past(Path::new(disk));
    refused(place, "c", "may have written on disk");
    assert!(is_written(Path::new(disk)), "the data is gone");
    ground.delete("c");
    // Its checksum is recorded: the bundle is not needed to see that it was not written.
    place.done(&import);
    std::fs::rename(&bundle, ground.at("away")).unwrap();
    place.done(&["undo", "c", "--yes"]);
    assert!(!place.has("c") && !Path::new(disk).exists());
}

#[test]
fn a_volume_that_took_the_name_after_a_kill_stays() {
    let Some(place) = Place::with_image() else { return };
    let args = place.create("a", &["--no-start", "--image", "tiny", "--os-size", "2M"]);
    let pool = place.daemon.inside(crate::libvirt::place::POOL_DIR);
    let mut taken = 0;
    for record in 1..40 {
        let ended = place.killed(record, &args);
        if ended || place.has("a") && !place.recover().contains("undone") {
            assert!(taken > 1, "the name was never free: the test proves nothing");
            return;
        }
        let is_free = pool.is_dir() && !pool.join("a.os").exists();
        if is_free {
            let volume = ["gpuvm-guests", "a.os", "2M", "--format", "raw"];
            place.virsh(&[&["vol-create-as"], &volume[..]].concat());
            taken += 1;
        }
        let said = place.recover();
        assert!(!is_free || pool.join("a.os").exists(), "record {record}: deleted: {said}");
        let hidden = |name: &String| name.ends_with(".gpuvm");
        if pool.is_dir() {
            assert!(!files(&pool).iter().any(hidden), "record {record}: left: {said}");
        }
        if is_free {
            // An undo of the pool's making leaves volumes of others in it.
            let _ = std::fs::remove_file(pool.join("a.os"));
            place.daemon.virsh(&["pool-refresh", "gpuvm-guests"]);
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn nvram_that_an_administrator_made_stays_with_its_command() {
    let Some(ground) = Ground::new() else { return };
    let place = &ground.place;
    let (code, vars) = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd");
    if !Path::new(vars).exists() {
        return skip("OVMF is not installed");
    }
    let (file, path) = (ground.at("enrolled.fd"), ground.path("enrolled.fd"));
    std::fs::copy(vars, &file).unwrap();
    ground.other("x", "");
    let firmware =
        format!("<loader readonly='yes' type='pflash'>{code}</loader><nvram>{path}</nvram></os>");
    let xml = ground.xml("x").replacen("</os>", &firmware, 1);
    ground.define("x", &xml);
    let steps = place.done(&["delete", "x", "--dry-run"]);
    assert!(!steps.contains("NVRAM"), "{steps}");
    let said = ground.delete("x");
    assert!(file.exists(), "the administrator's NVRAM is deleted: {said}");
    assert!(said.contains(&format!("NVRAM {path} stays")), "{said}");
    assert!(said.contains(&format!("`rm {path}`")), "{said}");
    // The path of one that goes is in the step.
    let dir = place.disks.to_str().unwrap();
    place.done(&place.create("y", &["--no-start", "--disk-dir", dir]));
    ground.start("y");
    place.virsh(&["destroy", "y"]);
    let own = "/var/lib/libvirt/qemu/nvram/y_VARS.fd";
    let steps = place.done(&["delete", "y", "--dry-run"]);
    assert!(steps.contains(&format!("delete NVRAM {own} of domain `y`")), "{steps}");
    ground.delete("y");
    assert!(!place.daemon.inside(own).exists());
}

#[test]
fn tpm_state_that_an_administrator_placed_stays_with_its_command() {
    let Some(ground) = Ground::new() else { return };
    let place = &ground.place;
    let state = ground.at("tpm");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("tpm2-00.permall"), "secrets").unwrap();
    let path = ground.path("tpm");
    let tpm = |source: &str| {
        let tpm = format!(
            "<tpm model='tpm-crb'><backend type='emulator' version='2.0'>{source}</backend></tpm>"
        );
        let file = ground.at("x.xml");
        let xml = super::uses::PLAIN.replace("NAME", "x").replace("DEVICES", &tpm);
        std::fs::write(&file, xml).unwrap();
        place.daemon.virsh(&["define", file.to_str().unwrap()])
    };
    let (done, why) = tpm(&format!("<source type='dir' path='{path}'/>"));
    if !done {
        return skip(format!("this libvirt defines no TPM with a path: {why}"));
    }
    let said = ground.delete("x");
    assert!(state.join("tpm2-00.permall").exists(), "the TPM's secrets are deleted: {said}");
    assert!(said.contains(&format!("TPM state {path} stays")), "{said}");
    assert!(said.contains(&format!("`rm -r {path}`")), "{said}");
    assert!(tpm("").0);
    let steps = place.done(&["delete", "x", "--dry-run"]);
    assert!(steps.contains("delete the TPM state of domain `x`"), "{steps}");
    // libvirt would empty the link's target.
    let uuid = place.virsh(&["domuuid", "x"]).trim().to_owned();
    let own = place.daemon.inside(&format!("/var/lib/libvirt/swtpm/{uuid}"));
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&state, &own).unwrap();
    let said = ground.delete("x");
    assert!(state.join("tpm2-00.permall").exists(), "the TPM's secrets are deleted: {said}");
    assert!(said.contains("it is a link to another directory"), "{said}");
    assert!(own.is_symlink(), "{said}");
}

#[test]
fn records_of_a_gone_guest_are_named_and_removed() {
    let Some(ground) = Ground::new() else { return };
    let place = &ground.place;
    ground.guest("a");
    place.virsh(&["undefine", "a"]);
    std::fs::remove_file(ground.at("a.raw")).unwrap();
    let state =
        ["reserved", "disks"].map(|kind| place.daemon.own_path("/var/lib/gpuvm").join(kind));
    assert!(state.iter().all(|dir| !files(dir).is_empty()), "nothing was recorded");
    for args in [&["verify", "--all"][..], &["recover"]] {
        let (_, out, err) = place.gpuvm(args);
        assert!(
            err.contains("of domain `a`") && err.contains("its record "),
            "{args:?}: {out}{err}"
        );
        assert!(err.contains("`gpuvm recover --gone`"), "{args:?}: {out}{err}");
    }
    place.done(&["recover", "--gone"]);
    for dir in &state {
        assert!(files(dir).is_empty(), "{}: {:?}", dir.display(), files(dir));
    }
    for args in [&["verify", "--all"][..], &["recover"]] {
        let (_, out, err) = place.gpuvm(args);
        assert!(!err.contains("domain `a`"), "{args:?}: {out}{err}");
    }
}
