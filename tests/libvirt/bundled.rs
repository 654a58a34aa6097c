//! `export --bundle` and `import` on real libvirtds: a guest moves to another host and is the same
//! one there; damaged, changed or escaping bundles are refused; killed at every record of the
//! journal.

use super::files;
use super::place::{MOST, Place, same};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The guest.
const NAME: &str = "ba";
/// What gpuvm keeps of a guest's disks where none is named.
const IMAGES: &str = "/var/lib/libvirt/images";

/// Where libvirt keeps the settings of guests' firmware.
const NVRAM: &str = "/var/lib/libvirt/qemu/nvram";

/// A guest of an image that has run and is off, with a boot disk in a pool, a data disk that is a
/// file, a seed, settings of its firmware and two NICs.
fn guest() -> Option<Place> {
    let place = Place::with_image()?;
    place.done(&place.create(NAME, &["--no-start", "--image", "tiny", "--os-size", "2M"]));
    let data = place.disks.join(format!("vol-{NAME}"));
    let mut bytes = vec![0; usize::try_from(fs::metadata(&data).unwrap().len()).unwrap()];
    bytes[4096..8192].fill(0x33);
    fs::write(&data, bytes).unwrap();
    place.virsh(&["attach-interface", NAME, "network", "default", "--model", "virtio", "--config"]);
    place.virsh(&["start", NAME]);
    place.virsh(&["destroy", NAME]);
    // A byte of its own, in a file as firmware has it.
    let nvram = place.daemon.inside(NVRAM).join("ba_VARS.fd");
    let mut bytes = fs::read(&nvram).unwrap();
    *bytes.last_mut().unwrap() = 0x77;
    fs::write(nvram, bytes).unwrap();
    Some(place)
}

/// The path of a bundle `name` of the guest, as text.
fn bundle(place: &Place, name: &str) -> String {
    place.daemon.own_path(name).display().to_string()
}

/// Copies a bundle into another directory.
fn copied(from: &str, to: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(to);
    let copy = Command::new("cp").args(["-a", from]).arg(to).status().unwrap();
    assert!(copy.success());
    to.to_owned()
}

/// The devices that a definition's guest sees.
fn seen(xml: &str) -> Vec<String> {
    let own = ["<uuid>", "<mac address=", "<target dev=", "<serial>", "<memory ", "<vcpu "];
    let lines = xml.lines().map(str::trim);
    lines.filter(|line| own.iter().any(|own| line.starts_with(own))).map(str::to_owned).collect()
}

#[test]
fn a_guest_moves_to_another_host_and_is_the_same_there() {
    let (Some(here), Some(there)) = (guest(), Place::new()) else { return };
    let before = here.state();
    let dir = bundle(&here, "moved");
    let dry = here.done(&["export", NAME, "--bundle", &dir, "--dry-run"]);
    assert!(dry.contains("write bundle") && !Path::new(&dir).exists(), "{dry}");
    let (code, out, err) = here.gpuvm(&["export", NAME, "--bundle", &dir, "--json"]);
    let import = format!("`gpuvm import {dir}` on the other host makes it");
    assert!(code == 0 && err.contains(&import), "{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(said["format"], "gpuvm-exported");
    assert_eq!(said["disks"].as_array().unwrap().len(), 3, "{said}");
    same(&before, &here.state(), "an export changed the guest");
    let mut sums = Command::new("sha256sum");
    sums.args(["-c", "--quiet", "SHA256SUMS"]).current_dir(&dir);
    assert!(sums.status().unwrap().success(), "sha256sum refuses it");
    let (code, _, err) = here.gpuvm(&["export", NAME, "--bundle", &dir]);
    assert!(code == 1 && err.contains("already exists"), "{err}");
    // Here it is still: nothing has two of it.
    let (code, _, err) = here.gpuvm(&["import", &dir]);
    assert!(code == 1 && err.contains("has a domain of this name"), "{err}");
    let (code, _, err) = here.gpuvm(&["import", &dir, "--name", "other"]);
    assert!(code == 1 && err.contains("has the UUID") && err.contains("--copy"), "{err}");
    // The other host gets it whole.
    fs::create_dir_all(there.daemon.inside(IMAGES)).unwrap();
    let nothing = there.state();
    let dry = there.done(&["import", &dir, "--dry-run"]);
    assert!(dry.contains("define domain `ba`") && dry.contains("ba-vda.raw"), "{dry}");
    let diff = there.done(&["import", &dir, "--diff"]);
    assert!(diff.contains("+  <name>ba</name>"), "{diff}");
    same(&nothing, &there.state(), "a preview changed something");
    let (code, out, err) = there.gpuvm(&["import", &dir, "--json"]);
    assert!(code == 0 && err.contains("both must not run"), "{out}{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["format"], &said["is_copy"]), (&"gpuvm-imported".into(), &false.into()));
    assert!(said["host"].as_str().is_some_and(|host| err.contains(host)), "{err}");
    let [old, new] = [&here, &there].map(|at| at.virsh(&["dumpxml", "--inactive", NAME]));
    assert_eq!(seen(&old), seen(&new));
    let data = here.disks.join(format!("vol-{NAME}"));
    let images = there.daemon.inside(IMAGES);
    assert_eq!(files(&images), ["ba-vda.raw", "ba-vdb.raw", "ba-vdc.raw"]);
    assert_eq!(fs::read(&data).unwrap(), fs::read(images.join("ba-vdb.raw")).unwrap());
    assert_eq!(there.gpuvm(&["check", NAME]).0, here.gpuvm(&["check", NAME]).0);
    assert!(there.virsh(&["dominfo", NAME]).contains("disable"), "it starts with the host");
    let nvram = [&here, &there].map(|at| at.daemon.inside(NVRAM).join("ba_VARS.fd"));
    assert_eq!(fs::read(&nvram[0]).unwrap(), fs::read(&nvram[1]).unwrap());
    assert_eq!(seen(&old).iter().filter(|line| line.starts_with("<mac ")).count(), 2);
    // It starts there, and is deleted with its disks, or undone with them.
    there.virsh(&["start", NAME]);
    there.virsh(&["destroy", NAME]);
    there.done(&["delete", NAME, "--yes"]);
    same(&nothing, &there.state(), "something of it is left");
    let (code, _, err) = there.gpuvm(&["import", &dir, "--disks", &bundle(&there, "absent")]);
    assert!(code == 1 && err.contains("it is not a directory"), "{err}");
    // Where it does not fit nothing is made of it. Each run gets a copy of these mounts.
    let small = there.daemon.own_path("small").display().to_string();
    fs::create_dir(&small).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=512k", "none", &small];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    let (code, _, err) = there.gpuvm(&["import", &dir, "--disks", &small]);
    let exported = here.gpuvm(&["export", NAME, "--bundle", &format!("{small}/b")]);
    let left = files(Path::new(&small));
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert!(code == 1 && err.contains("does not fit"), "{err}");
    assert!(exported.0 == 1 && exported.2.contains("does not fit"), "{}", exported.2);
    assert_eq!(left, [""; 0]);
    same(&nothing, &there.state(), "something of it is left");
    // As another guest it has all of its own.
    let key = here.key.clone().unwrap();
    let copy = ["import", &dir, "--copy", "--name", "bb", "--ssh-key", &key];
    there.done(&copy);
    let other = there.virsh(&["dumpxml", "--inactive", "bb"]);
    let line = |xml: &str, own: &str| {
        xml.lines().find(|line| line.contains(own)).unwrap_or_else(|| panic!("{own}")).to_owned()
    };
    for own in ["<uuid>", "<mac address="] {
        assert_ne!(line(&old, own), line(&other, own));
    }
    let macs: std::collections::BTreeSet<String> =
        [&old, &other].into_iter().flat_map(|xml| seen(xml)).collect();
    assert_eq!(macs.iter().filter(|line| line.starts_with("<mac ")).count(), 4, "{macs:?}");
    there.done(&["import", &dir]);
    there.done(&["undo", NAME, "--yes"]);
    there.done(&["undo", "bb", "--yes"]);
    assert_eq!(files(&images), [""; 0]);
    here.done(&["delete", NAME, "--yes"]);
}

#[test]
fn unsuitable_guests_and_invalid_bundles_are_refused() {
    let Some(place) = guest() else { return };
    let dir = bundle(&place, "whole");
    let refused = |args: &[&str], says: &str| {
        let (code, out, err) = place.gpuvm(args);
        assert!(code == 1 && err.contains(says), "{says}: {out}{err}");
        assert!(err.contains("hint: "), "{says}: {err}");
    };
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let define = |xml: &str| {
        let file = place.daemon.own_path("/var/lib/libvirt/new.xml");
        fs::write(&file, xml).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
        fs::remove_file(file).unwrap();
    };
    // A drive is refused, and left out by name.
    let (start, end) = (xml.find("<disk ").unwrap(), xml.find("</disk>").unwrap() + 7);
    let disk = &xml[start..end];
    let file = disk.split_once("<source file='").unwrap().1.split_once('\'').unwrap().0;
    let drive = disk.replace("type='file'", "type='block'");
    let drive = drive.replace(&format!("file='{file}'"), "dev='/dev/disk/by-id/nvme-one'");
    define(&xml.replace(disk, &drive));
    let export = ["export", NAME, "--bundle", &dir];
    refused(&export, "drive or a partition");
    refused(&export, "--without vda` leaves it out");
    refused(&["export", NAME, "--bundle", &dir, "--without", "vdz"], "no disk `vdz`");
    let fewer = bundle(&place, "fewer");
    place.done(&["export", NAME, "--bundle", &fewer, "--without", "vda"]);
    let bundled = fs::read_to_string(Path::new(&fewer).join("domain.xml")).unwrap();
    assert!(!bundled.contains("nvme-one") && !bundled.contains("dev='vda'"), "{bundled}");
    // A device that import accepts from no bundle.
    define(&xml.replace("</devices>", "<vsock model='virtio'/></devices>"));
    refused(&export, "has domain/devices/vsock, which a bundle cannot contain");
    define(&xml);
    place.virsh(&["start", NAME]);
    refused(&export, "is not off");
    place.virsh(&["destroy", NAME]);
    place.done(&export);
    place.done(&["delete", NAME, "--yes"]);
    let other = place.daemon.own_path("harmed");
    let at = other.display().to_string();
    fs::create_dir_all(place.daemon.inside(IMAGES)).unwrap();
    let gone = place.state();
    type Harm = (&'static str, fn(&Path));
    let harms: [Harm; 7] = [
        ("is incomplete", |dir| fs::remove_file(dir.join("SHA256SUMS")).unwrap()),
        ("has no manifest", |dir| fs::remove_file(dir.join("manifest.json")).unwrap()),
        ("bytes; it had", |dir| {
            let disk = fs::OpenOptions::new().write(true).open(dir.join("vda.raw")).unwrap();
            disk.set_len(4096).unwrap();
        }),
        ("has SHA-256", |dir| {
            let mut bytes = fs::read(dir.join("vdb.raw")).unwrap();
            bytes[4096] ^= 1;
            fs::write(dir.join("vdb.raw"), bytes).unwrap();
        }),
        ("not a regular file", |dir| {
            fs::remove_file(dir.join("vda.raw")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", dir.join("vda.raw")).unwrap();
        }),
        ("which is not a file of a bundle", |dir| {
            let text = fs::read_to_string(dir.join("manifest.json")).unwrap();
            let text = text.replace("vda.raw", "../vda.raw");
            fs::write(dir.join("manifest.json"), text).unwrap();
        }),
        ("this gpuvm reads bundles up to", |dir| {
            let text = fs::read_to_string(dir.join("manifest.json")).unwrap();
            let text = text.replace("\"version\": 1", "\"version\": 9");
            fs::write(dir.join("manifest.json"), text).unwrap();
        }),
    ];
    for (says, harm) in harms {
        harm(&copied(&dir, &other));
        refused(&["import", &at], says);
    }
    // A definition that leads out of the bundle, with sums that are right.
    let out = copied(&dir, &other);
    let xml = fs::read_to_string(out.join("domain.xml")).unwrap();
    let (_, rest) = xml.split_once("<source file='").unwrap();
    let (path, _) = rest.split_once('\'').unwrap();
    let lie = |text: String| {
        assert_ne!(text, xml);
        fs::write(out.join("domain.xml"), text).unwrap();
        let names = files(&out).into_iter().filter(|name| name != "SHA256SUMS");
        let sums = Command::new("sha256sum").args(names).current_dir(&out).output().unwrap();
        fs::write(out.join("SHA256SUMS"), sums.stdout).unwrap();
    };
    lie(xml.replace(path, "/etc/passwd"));
    refused(&["import", &at], "is not in the bundle");
    let root = "<devices><filesystem type='mount'><source dir='/'/><target dir='x'/></filesystem>";
    lie(xml.replace("<devices>", root));
    refused(&["import", &at], "domain/devices/filesystem, which a bundle cannot contain");
    // Parts that belong to a host are this host's: the program that runs it, and its logs. The
    // objects made for it are only its own disks.
    let (_, rest) = xml.split_once("<emulator>").unwrap();
    let (emulator, _) = rest.split_once('<').unwrap();
    let others = "<gpuvm:made><gpuvm:disk path=\"/etc/hosts\" role=\"data\"/>";
    let lies = xml.replace(emulator, "/usr/bin/true").replace("/var/log/libvirt/qemu", "/etc");
    lie(lies.replace("<gpuvm:made>", &format!("{others}</gpuvm:made>{others}")));
    let diff = place.done(&["import", &at, "--diff"]);
    for theirs in ["/usr/bin/true", "/etc/"] {
        assert!(!diff.contains(theirs), "{diff}");
    }
    assert!(diff.contains("/var/log/libvirt/qemu/ba-serial.log"), "{diff}");
    same(&gone, &place.state(), "a refusal changed something");
}

#[test]
fn an_export_killed_at_any_record_leaves_a_whole_bundle_or_none() {
    let Some(place) = guest() else { return };
    fs::create_dir_all(place.daemon.inside(IMAGES)).unwrap();
    let before = place.state();
    let dir = bundle(&place, "killed");
    for n in 1..MOST {
        let ended = place.killed(n, &["export", NAME, "--bundle", &dir]);
        let said = place.recover();
        same(&before, &place.state(), &format!("record {n}: {said}"));
        let left = files(Path::new(&dir).parent().unwrap());
        assert!(!left.iter().any(|name| name.ends_with(".gpuvm")), "record {n}: {left:?}");
        if !Path::new(&dir).exists() {
            assert!(!ended, "record {n}: it ended and did nothing");
            continue;
        }
        let dry = place.done(&["import", &dir, "--name", "bb", "--copy", "--dry-run"]);
        assert!(dry.contains("define domain `bb`"), "record {n}: {dry}");
        fs::remove_dir_all(&dir).unwrap();
        if ended {
            assert!(n > 2, "only {n} records were seen: the test proves nothing");
            place.done(&["delete", NAME, "--yes"]);
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn an_import_killed_at_any_record_is_gone_or_whole_and_two_at_once_make_one() {
    let Some(place) = guest() else { return };
    let dir = bundle(&place, "whole");
    place.done(&["export", NAME, "--bundle", &dir]);
    place.done(&["delete", NAME, "--yes"]);
    fs::create_dir_all(place.daemon.inside(IMAGES)).unwrap();
    let before = place.state();
    let import = ["import", &*dir];
    // Another import of it waits for the first one, and then finds it here.
    let second = place.halted(3, &import, |_| {
        let (code, out, err) = place.gpuvm(&["import", &dir, "--lock-wait", "0"]);
        assert!(code == 1, "{out}{err}");
    });
    assert_eq!(second.map(|(code, ..)| code), Some(0));
    place.done(&["undo", NAME, "--yes"]);
    same(&before, &place.state(), "undone");
    for n in 1..MOST {
        let ended = place.killed(n, &import);
        let said = place.recover();
        if !place.has(NAME) {
            assert!(!ended, "record {n}: it ended and did nothing");
            same(&before, &place.state(), &format!("record {n}: {said}"));
            continue;
        }
        let os = place.daemon.inside(IMAGES).join("ba-vda.raw");
        assert!(fs::read(os).unwrap().starts_with(&[0x5a; 4096]), "record {n}");
        place.done(&["undo", NAME, "--yes"]);
        same(&before, &place.state(), &format!("record {n}, undone: {said}"));
        if ended {
            assert!(n > 8, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}
