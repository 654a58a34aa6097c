//! `clone` on a real libvirtd: a second guest with disks, MAC addresses and a seed of its own,
//! which starts beside the first; undone, deleted before and after the first, and killed at every
//! record of the journal.

use super::files;
use super::place::{MOST, POOL_DIR, Place, same};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The first guest.
const NAME: &str = "ca";
/// Its clone.
const NEW: &str = "cb";

/// A guest of an image that is off, with a boot disk in a pool, a data disk that is a file, and a
/// seed.
fn guest() -> Option<Place> {
    let place = Place::with_image()?;
    place.done(&place.create(NAME, &["--no-start", "--image", "tiny", "--os-size", "2M"]));
    let data = place.disks.join(format!("vol-{NAME}"));
    std::fs::write(&data, data_of(&place, NAME, 0x22)).unwrap();
    Some(place)
}

/// The content that a test writes to the data disk of a guest: as long as that is.
fn data_of(place: &Place, name: &str, byte: u8) -> Vec<u8> {
    let bytes = std::fs::metadata(place.disks.join(format!("vol-{name}"))).unwrap().len();
    let mut all = vec![0; usize::try_from(bytes).unwrap()];
    all[4096..8192].fill(byte);
    all
}

/// The boot disk of a guest.
fn boot_disk(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.daemon.inside(POOL_DIR).join(format!("{name}.os"))).unwrap()
}

/// What `check` and `tune --check` say, and what `verify` finds of its plan.
fn judged(place: &Place, name: &str) -> (i32, i32, Vec<String>) {
    let (_, out, err) = place.gpuvm(&["verify", name, "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let rules = said["findings"].as_array().unwrap_or_else(|| panic!("{out}")).iter();
    let rules = rules.filter_map(|found| Some(found["rule"].as_str()?.to_owned()));
    let rules = rules.filter(|rule| rule.starts_with("plan-")).collect();
    let code = |args: &[&str]| place.gpuvm(args).0;
    (code(&["check", name]), code(&["tune", name, "--check"]), rules)
}

#[test]
fn a_clone_is_a_guest_of_its_own() {
    let Some(place) = guest() else { return };
    let (before, found) = (place.state(), judged(&place, NAME));
    let dry = place.done(&["clone", NAME, NEW, "--dry-run"]);
    assert!(dry.contains("define domain `cb`") && dry.contains("vol-ca"), "{dry}");
    let diff = place.done(&["clone", NAME, NEW, "--diff"]);
    assert!(diff.contains("+  <name>cb</name>"), "{diff}");
    same(&before, &place.state(), "a preview changed something");
    let key = place.key.clone().unwrap();
    let out = place.done(&["clone", NAME, NEW, "--ssh-key", &key, "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((said["format"].as_str(), said["name"].as_str()), (Some("gpuvm-cloned"), Some(NEW)));
    assert_eq!(said["disks"].as_array().unwrap().len(), 2, "{said}");
    assert_eq!(judged(&place, NEW), found, "the clone is judged otherwise");
    let [first, second] = [NAME, NEW].map(|name| place.virsh(&["dumpxml", "--inactive", name]));
    for own in ["<mac address=", "<uuid>", "<source file="] {
        let line = |xml: &str| {
            xml.lines()
                .find(|line| line.contains(own))
                .unwrap_or_else(|| panic!("{own}"))
                .to_owned()
        };
        assert_ne!(line(&first), line(&second));
    }
    for gone in ["/ca.os", "/ca.seed", "vol-ca", "ca_VARS", "ca-serial"] {
        assert!(!second.contains(gone), "{gone}: {second}");
    }
    assert_eq!(boot_disk(&place, NAME), boot_disk(&place, NEW));
    let data = place.disks.join("vol-cb");
    assert_eq!(std::fs::read(&data).unwrap(), data_of(&place, NEW, 0x22));
    // The seed is the clone's: its host name and its instance.
    let seed = |name: &str| {
        let bytes = std::fs::read(place.daemon.inside(POOL_DIR).join(format!("{name}.seed")));
        String::from_utf8_lossy(&bytes.unwrap()).into_owned()
    };
    assert!(
        seed(NEW).contains("local-hostname: cb")
            || seed(NEW).contains("\"local-hostname\": \"cb\"")
    );
    assert!(seed(NEW).contains("cb-") && !seed(NEW).contains("ca-"), "an instance of its own");
    // Both run.
    for name in [NAME, NEW] {
        place.virsh(&["start", name]);
    }
    let (code, _, err) = place.gpuvm(&["clone", NAME, "cc"]);
    assert!(code == 1 && err.contains("`gpuvm stop ca` first"), "{err}");
    let (code, _, err) = place.gpuvm(&["undo", NEW, "--yes"]);
    assert!(code == 1 && err.contains("`gpuvm stop cb` first"), "{err}");
    for name in [NAME, NEW] {
        place.virsh(&["destroy", name]);
    }
    let (code, _, err) = place.gpuvm(&["clone", NAME, NEW]);
    assert!(code == 1 && err.contains("has a domain of this name"), "{err}");
    // The first goes, and the clone is whole.
    place.done(&["delete", NAME, "--yes"]);
    place.virsh(&["start", NEW]);
    place.virsh(&["destroy", NEW]);
    assert_eq!(judged(&place, NEW), found);
    place.done(&["clone", NEW, NAME, "--ssh-key", &key]);
    place.done(&["undo", NAME, "--yes"]);
    assert!(!place.has(NAME) && data.exists(), "undo deletes what was made, and nothing else");
    place.done(&["delete", NEW, "--yes"]);
    assert_eq!(files(&place.disks), [""; 0]);
    assert_eq!(files(&place.daemon.inside(POOL_DIR)), [""; 0]);
}

/// Runs qemu-img, which must succeed.
fn qemu_img(args: &[&str]) -> String {
    let out = Command::new("qemu-img").args(args).output().unwrap();
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn a_guest_with_a_qcow2_boot_disk_has_snapshots_and_a_raw_one_gets_a_remedy() {
    let Some(mut place) = Place::with_image() else { return };
    place.key = None;
    let how = |more: &[&'static str]| {
        [
            &[
                "--no-start",
                "--image",
                "tiny",
                "--os-size",
                "2M",
                "--no-login",
                "--data-size",
                "none",
            ],
            more,
        ]
        .concat()
    };
    let (code, out, err) = place.gpuvm(&place.create(NAME, &how(&[])));
    assert!(code == 0 && err.contains("its boot disk is raw"), "{out}{err}");
    let (code, _, err) = place.gpuvm(&["snapshot", "create", NAME, "one"]);
    assert!(
        code == 1 && err.contains(&format!("`gpuvm tune {NAME} --convert vda=qcow2`")),
        "{err}"
    );
    place.done(&["delete", NAME, "--yes"]);
    let (code, out, err) = place.gpuvm(&place.create(NAME, &how(&["--os-disk", "qcow2"])));
    assert!(code == 0 && !err.contains("its boot disk is raw"), "{out}{err}");
    let dir = place.daemon.inside(POOL_DIR);
    let disk = dir.join(format!("{NAME}.os")).display().to_string();
    let info = qemu_img(&["info", &disk]);
    assert!(info.contains("file format: qcow2") && info.contains("(2097152 bytes)"), "{info}");
    assert!(!info.contains("backing file"), "{info}");
    assert!(place.done(&["get", NAME]).contains("os-disk: qcow2"));
    place.done(&["snapshot", "create", NAME, "one"]);
    assert!(place.done(&["snapshot", "list", NAME]).contains("one"));
    place.done(&["snapshot", "revert", NAME, "one", "--yes"]);
    place.done(&["snapshot", "delete", NAME, "one", "--yes"]);
    place.done(&["delete", NAME, "--yes"]);
    assert_eq!(files(&dir), [""; 0]);
}

#[test]
fn a_copy_is_whole_whatever_the_disk_lies_over() {
    let Some(mut place) = Place::with_image() else { return };
    let key = place.key.clone().unwrap();
    let overlay = ["--no-start", "--image", "tiny", "--os-size", "2M", "--os-disk", "overlay"];
    place.done(&place.create(NAME, &overlay));
    let dir = place.daemon.inside(POOL_DIR);
    let [first, second] =
        [NAME, NEW].map(|name| dir.join(format!("{name}.os")).display().to_string());
    assert!(qemu_img(&["info", &first]).contains("backing file"));
    place.done(&["clone", NAME, NEW, "--ssh-key", &key]);
    let info = qemu_img(&["info", &second]);
    assert!(info.contains("file format: qcow2") && !info.contains("backing file"), "{info}");
    place.done(&["delete", NAME, "--yes"]);
    let bytes = [0x5a; 4096];
    qemu_img(&["convert", "-O", "raw", &second, &format!("{second}.raw")]);
    let raw = std::fs::read(format!("{second}.raw")).unwrap();
    assert!(raw.len() == 2 << 20 && raw.starts_with(&bytes), "{} bytes", raw.len());
    std::fs::remove_file(format!("{second}.raw")).unwrap();
    place.done(&["delete", NEW, "--yes"]);
    assert_eq!(files(&dir), [""; 0]);
    // A qcow2 image in no pool, and one with a snapshot, or over another file.
    let image = place.disks.join("mine.qcow2").display().to_string();
    qemu_img(&["create", "-f", "qcow2", &image, "8M"]);
    place.key = None;
    place.done(&place.create(NAME, &["--no-start", "--disk", &image, "--no-seed"]));
    place.done(&["clone", NAME, NEW]);
    let copy = place.disks.join("cb-vda.qcow2");
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&image).unwrap());
    place.done(&["delete", NEW, "--yes"]);
    assert!(!copy.exists() && Path::new(&image).exists());
    place.done(&["snapshot", "create", NAME, "one"]);
    let refused = |says: &str| {
        let (code, out, err) = place.gpuvm(&["clone", NAME, NEW]);
        assert!(code == 1 && err.contains(says) && !copy.exists(), "{says}: {out}{err}");
    };
    refused("1 snapshot");
    place.done(&["snapshot", "delete", NAME, "one", "--yes"]);
    let base = place.disks.join("base.qcow2").display().to_string();
    std::fs::rename(&image, &base).unwrap();
    qemu_img(&["create", "-f", "qcow2", "-b", &base, "-F", "qcow2", &image]);
    refused("it is an overlay on");
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn disks_that_only_one_guest_can_have_are_refused() {
    let Some(place) = guest() else { return };
    let refused = |says: &str| {
        let before = place.state();
        let (code, out, err) = place.gpuvm(&["clone", NAME, NEW]);
        assert!(code == 1 && err.contains(says), "{says}: {out}{err}");
        same(&before, &place.state(), "a refusal changed something");
    };
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let define = |xml: &str| {
        let file = place.daemon.own_path("/var/lib/libvirt/new.xml");
        std::fs::write(&file, xml).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
        std::fs::remove_file(file).unwrap();
    };
    let (start, end) =
        (xml.find("<disk ").unwrap(), xml.find("</disk>").unwrap() + "</disk>".len());
    let disk = &xml[start..end];
    let file = disk.split_once("<source file='").unwrap().1.split_once('\'').unwrap().0;
    let drive = disk.replace("type='file'", "type='block'");
    let drive = drive.replace(&format!("file='{file}'"), "dev='/dev/disk/by-id/nvme-one'");
    define(&xml.replace(disk, &drive));
    refused("drive or a partition");
    define(&xml.replace(disk, &disk.replace("<target ", "<shareable/><target ")));
    refused("share");
    define(&xml);
    // A file of others in the way of a copy stays.
    let other = place.disks.join("vol-cb");
    std::fs::write(&other, "theirs").unwrap();
    refused("vol-cb");
    assert_eq!(std::fs::read(&other).unwrap(), b"theirs");
    std::fs::remove_file(other).unwrap();
    place.done(&["delete", NAME, "--yes"]);
}

/// A guest of an image that is off, with a boot disk in a pool, `more`, and no seed.
fn plain(more: &[&str]) -> Option<Place> {
    let place = Place::with_image()?;
    let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-start --no-seed";
    let mut args = vec!["create", "--name", NAME, "--image", "tiny", "--os-size", "2M"];
    args.extend(shape.split(' '));
    args.extend(more);
    if !more.contains(&"none") {
        args.extend(["--data-dir", place.disks.to_str().unwrap()]);
    }
    place.done(&args);
    Some(place)
}

/// Writes on an image of the pool, as a guest does.
fn write_on(place: &Place, image: &str, byte: u8) {
    let command = format!("write -P {byte} 64k 4k");
    let mut qemu_io = place.daemon.within("qemu-io");
    let out = qemu_io.args(["-f", "qcow2", "-c", &command, &format!("{POOL_DIR}/{image}")]);
    let out = out.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A guest's view of an image at the place where [`write_on`] writes.
fn reads(place: &Place, image: &str) -> u8 {
    let mut qemu_img = place.daemon.within("qemu-img");
    let [from, to] = [image, "read"].map(|name| format!("{POOL_DIR}/{name}"));
    let out = qemu_img.args(["convert", "-O", "raw", &from, &to]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let raw = place.daemon.inside(POOL_DIR).join("read");
    let byte = std::fs::read(&raw).unwrap()[65_536];
    std::fs::remove_file(raw).unwrap();
    byte
}

#[test]
fn a_clone_over_the_disks_of_another_and_its_read_only_base() {
    let Some(place) = plain(&["--data-size", "4M"]) else { return };
    let disks = place.disks.to_str().unwrap();
    let clone = ["clone", NAME, NEW, "--overlay", "--no-seed"];
    // libvirt makes images in pools only.
    let before = place.state();
    let (code, _, err) = place.gpuvm(&clone);
    assert!(code == 1 && err.contains("pool-create-as") && err.contains("`vdb`"), "{err}");
    same(&before, &place.state(), "a refusal changed something");
    place.virsh(&["pool-create-as", "data", "dir", "--target", disks]);
    let (before, found) = (place.state(), judged(&place, NAME));
    let dry = place.done(&[&clone[..], &["--dry-run"]].concat());
    assert!(dry.contains("domain `ca`") && dry.contains("domain `cb`"), "{dry}");
    let diff = place.done(&[&clone[..], &["--diff"]].concat());
    assert!(diff.contains("ca.os-2") && diff.contains("+  <name>cb</name>"), "{diff}");
    same(&before, &place.state(), "a preview changed something");
    let dir = place.daemon.inside(POOL_DIR);
    let base = dir.join("ca.os");
    let held = std::fs::read(&base).unwrap();
    let out = place.done(&[&clone[..], &["--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap();
    let number = |name: &str| said[name].as_array().unwrap().len();
    assert_eq!((number("disks"), number("original")), (2, 2), "{said}");
    assert_eq!((judged(&place, NAME), judged(&place, NEW)), (found.clone(), found));
    // Each starts, and writes where the other does not see it.
    for name in [NAME, NEW] {
        place.done(&["start", name]);
    }
    for name in [NAME, NEW] {
        place.virsh(&["destroy", name]);
    }
    let (code, _, err) = place.gpuvm(&["undo", NAME, "--yes", "--force"]);
    assert!(code == 1 && err.contains("`gpuvm delete cb` first"), "{err}");
    write_on(&place, "ca.os-2", 0x11);
    write_on(&place, "cb.os", 0x22);
    assert_eq!((reads(&place, "ca.os-2"), reads(&place, "cb.os")), (0x11, 0x22));
    assert_eq!(std::fs::read(&base).unwrap(), held, "the base was written");
    let (code, _, err) = place.gpuvm(&["undo", NEW, "--yes"]);
    assert!(code == 1 && err.contains("`gpuvm undo cb --force` deletes it"), "{err}");
    // The base is the last one's, whoever that is.
    let (code, _, err) = place.gpuvm(&["delete", NAME, "--yes"]);
    assert!(code == 0 && err.contains("ca.os stays: domain `cb` has an image over it"), "{err}");
    assert_eq!(files(&dir), ["ca.os", "cb.os"]);
    assert_eq!(reads(&place, "cb.os"), 0x22);
    place.done(&["delete", NEW, "--yes"]);
    assert_eq!((files(&dir), files(&place.disks)), (Vec::new(), Vec::new()));
    place.virsh(&["pool-destroy", "data"]);
}

#[test]
fn an_overlay_is_taken_back_until_it_is_written() {
    let Some(place) = plain(&["--data-size", "none"]) else { return };
    let clone = ["clone", NAME, NEW, "--overlay", "--no-seed"];
    let before = place.state();
    place.done(&clone);
    // Of what `ca` has not written since, another clone is over the same base.
    let made = place.virsh(&["dumpxml", "--inactive", NAME]);
    place.done(&["clone", NAME, "cc", "--overlay", "--no-seed"]);
    assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), made);
    for name in ["cc", NEW, NAME] {
        place.done(&["undo", name, "--yes"]);
    }
    same(&before, &place.state(), "it was not taken back");
    place.done(&clone);
    place.done(&["delete", NEW, "--yes"]);
    let image = place.daemon.inside(POOL_DIR).join("ca.os-2");
    write_on(&place, "ca.os-2", 0x11);
    let (code, _, err) = place.gpuvm(&["undo", NAME, "--yes"]);
    assert!(code == 1 && err.contains("no longer equals the old one"), "{err}");
    place.done(&["undo", NAME, "--yes", "--force"]);
    assert!(image.exists(), "what it wrote is gone");
    std::fs::remove_file(image).unwrap();
    place.done(&["delete", NAME, "--yes"]);
    assert_eq!(files(&place.daemon.inside(POOL_DIR)), [""; 0]);
}

#[test]
fn an_overlay_with_snapshots_is_kept_and_a_leftover_one_reported() {
    let Some(place) = plain(&["--data-size", "none"]) else { return };
    place.done(&["clone", NAME, NEW, "--overlay", "--no-seed"]);
    place.done(&["delete", NEW, "--yes"]);
    let dir = place.daemon.inside(POOL_DIR);
    let image = dir.join("ca.os-2").display().to_string();
    let refused = |says: &[&str]| {
        let (code, out, err) = place.gpuvm(&["undo", NAME, "--yes"]);
        assert!(code == 1 && says.iter().all(|text| err.contains(text)), "{says:?}: {out}{err}");
        assert!(Path::new(&image).exists());
    };
    // The guest's data is in the snapshot alone, so that both disks read alike.
    place.virsh(&["snapshot-create-as", NAME, "base"]);
    write_on(&place, "ca.os-2", 0x11);
    place.virsh(&["snapshot-create-as", NAME, "work"]);
    place.virsh(&["snapshot-revert", NAME, "base"]);
    refused(&["2 snapshots", "`gpuvm snapshot list ca`", "`gpuvm undo ca --force`"]);
    // One that libvirt does not know.
    for name in ["base", "work"] {
        place.virsh(&["snapshot-delete", NAME, name, "--metadata"]);
    }
    refused(&["it holds 2 internal snapshots"]);
    let (code, _, err) = place.gpuvm(&["undo", NAME, "--yes", "--force"]);
    let says = ["is an overlay on it", "is not started before", "`qemu-img convert -O qcow2 "];
    assert!(code == 0 && says.iter().all(|text| err.contains(text)), "{err}");
    // The header's number of snapshots.
    assert_eq!(std::fs::read(&image).unwrap()[60..64], [0, 0, 0, 2]);
}

#[test]
fn a_link_to_nothing_where_a_copy_goes_stays() {
    let Some(place) = plain(&["--data-size", "none"]) else { return };
    let link = place.daemon.inside(POOL_DIR).join("cb.os");
    std::os::unix::fs::symlink("/not/mounted", &link).unwrap();
    // A dry run says so, too.
    for option in [&["--dry-run"][..], &[]] {
        let (code, out, err) = place.gpuvm(&[&["clone", NAME, NEW, "--no-seed"], option].concat());
        let says = "cb.os already exists and is not replaced";
        assert!(code == 1 && err.contains(says), "{option:?}: {out}{err}");
        assert!(link.symlink_metadata().is_ok(), "the link is gone: {err}");
    }
}

#[test]
fn a_clone_over_a_disk_killed_at_any_record_is_gone_or_whole() {
    let Some(place) = plain(&["--data-size", "none"]) else { return };
    let before = place.state();
    for n in 1..MOST {
        let ended = place.killed(n, &["clone", NAME, NEW, "--overlay", "--no-seed"]);
        let said = place.recover();
        if !place.has(NEW) {
            assert!(!ended, "record {n}: it ended and did nothing");
            same(&before, &place.state(), &format!("record {n}: {said}"));
            continue;
        }
        for name in [NEW, NAME] {
            place.done(&["undo", name, "--yes"]);
        }
        same(&before, &place.state(), &format!("record {n}, undone: {said}"));
        if ended {
            assert!(n > 8, "only {n} records were seen: the test proves nothing");
            place.done(&["delete", NAME, "--yes"]);
            assert_eq!(files(&place.daemon.inside(POOL_DIR)), [""; 0]);
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn a_clone_killed_at_any_record_is_gone_or_whole() {
    let Some(place) = guest() else { return };
    let key = place.key.clone().unwrap();
    let before = place.state();
    for n in 1..MOST {
        let ended = place.killed(n, &["clone", NAME, NEW, "--ssh-key", &key]);
        let said = place.recover();
        if !place.has(NEW) {
            assert!(!ended, "record {n}: it ended and did nothing");
            same(&before, &place.state(), &format!("record {n}: {said}"));
            continue;
        }
        assert_eq!(boot_disk(&place, NAME), boot_disk(&place, NEW), "record {n}");
        place.done(&["undo", NEW, "--yes"]);
        same(&before, &place.state(), &format!("record {n}, undone: {said}"));
        if ended {
            assert!(n > 8, "only {n} records were seen: the test proves nothing");
            place.done(&["delete", NAME, "--yes"]);
            assert!(!Path::new(&place.disks).join("vol-ca").exists());
            return;
        }
    }
    panic!("it never comes to its end");
}
