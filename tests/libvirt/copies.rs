//! Renaming guests and their snapshots on a real libvirt: everything that is theirs follows,
//! nothing else is touched, and a run killed at any record is undone.

use super::files;
use super::place::{MOST, Place, same};
use crate::support::run;
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
            // Undone changes stay in the history.
            if String::from_utf8_lossy(&bytes).contains("\"undone_at_s\"") {
                continue;
            }
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
    // It starts, its changes are taken back, and its name is free for another guest with firmware
    // of its own.
    place.done(&["start", "rb"]);
    place.done(&["stop", "--force", "rb"]);
    let diff = place.done(&["undo", "rb", "--diff"]);
    assert!(diff.contains("+  <name>ra</name>") && diff.contains("+    <nvram"), "{diff}");
    place.done(&["undo", "rb", "--yes"]);
    assert!(place.has("ra") && !place.has("rb"), "the last change is the name");
    assert_eq!(files(&nvram), ["ra_VARS.fd", "ra_VARS.fd.old"]);
    place.done(&["undo", "ra", "--yes"]);
    let (code, _, err) = place.gpuvm(&["undo", "ra", "--yes"]);
    assert!(code == 1 && err.contains("no change"), "{err}");
    // The log of a deleted guest stays, and blocks no other guest.
    let logs = place.daemon.own_path(LOGS);
    std::fs::write(logs.join("rc-serial.log"), "theirs").unwrap();
    place.done(&["rename", "ra", "rc"]);
    assert_eq!(files(&logs), ["rc-serial.1.log", "rc-serial.log"]);
    assert_eq!(std::fs::read_to_string(logs.join("rc-serial.log")).unwrap(), "theirs");
    assert!(place.virsh(&["dumpxml", "--inactive", "rc"]).contains("rc-serial.1.log"));
    place.done(&["rename", "rc", "ra"]);
    assert_eq!(files(&logs), ["ra-serial.log", "rc-serial.log"]);
    place.done(&["delete", "ra", "--yes"]);
    assert_eq!((files(&nvram), files(&place.disks)), (vec!["ra_VARS.fd.old".into()], vec![]));
    assert!(files(&place.daemon.inside("/var/lib/gpuvm/reserved")).is_empty());
}

#[test]
fn firmware_that_guests_start_from_is_no_guests_own() {
    let Some(place) = Place::new() else { return };
    let mut all = ["fa", "fb"].into_iter().map(|name| {
        let dir = place.disks.to_str().unwrap();
        place.done(&place.create(name, &["--disk-dir", dir, "--no-start"]));
        place.virsh(&["dumpxml", "--inactive", name])
    });
    let (one, other) = (all.next().unwrap(), all.next().unwrap());
    // A template as it is installed, and as a user has it.
    let from = other.split_once("template='").unwrap().1.split('\'').next().unwrap();
    let template = place.disks.join("TEMPLATE.fd");
    std::fs::copy(from, &template).unwrap();
    let define = |xml: &str| {
        let file = place.daemon.own_path("/var/lib/libvirt/new.xml");
        std::fs::write(&file, xml).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
    };
    let path = template.to_str().unwrap();
    // libvirt looks for firmware that it knows where it chooses.
    let by_hand = |xml: &str| {
        let (before, rest) = xml.split_once("<firmware>").unwrap();
        format!("{before}{}", rest.split_once("</firmware>").unwrap().1)
            .replace(" firmware='efi'", "")
    };
    define(&by_hand(&other.replace(from, path)));
    // A common mistake: the settings of a guest are to be in the template.
    let start = one.find("<nvram").unwrap();
    let end = start + one[start..].find("</nvram>").unwrap();
    define(&by_hand(&format!("{}<nvram>{path}{}", &one[..start], &one[end..])));
    let (code, _, err) = place.gpuvm(&["delete", "fa", "--yes"]);
    let says = format!("NVRAM {path} stays: domain `fb` starts from it");
    assert!(code == 0 && err.contains(&says), "{err}");
    assert!(template.exists() && !place.has("fa"));
    place.done(&["delete", "fb", "--yes"]);
    assert!(template.exists(), "another guest's template went with it");
}

#[test]
fn a_disk_that_gpuvm_has_no_record_of_stays_where_it_has_those_of_others() {
    let Some(place) = Place::new() else { return };
    let dir = place.disks.to_str().unwrap();
    place.done(
        &place.create(
            "fc",
            &["--disk-dir", dir, "--data-size", "1M", "--data-dir", dir, "--no-start"],
        ),
    );
    let xml = place.virsh(&["dumpxml", "--inactive", "fc"]);
    let data = files(&place.disks).into_iter().find(|file| file != "fc.raw").unwrap();
    let theirs = place.disks.join("theirs.raw");
    std::fs::write(&theirs, "theirs").unwrap();
    // Definition and metadata are edited alike.
    let edited = xml.replace(&format!("/{data}"), "/theirs.raw");
    assert_ne!(edited, xml);
    let file = place.daemon.own_path("/var/lib/libvirt/new.xml");
    std::fs::write(&file, edited).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    let (code, _, err) = place.gpuvm(&["delete", "fc", "--yes"]);
    assert!(code == 0 && err.contains("theirs.raw stays: gpuvm has a record of other"), "{err}");
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
}

#[test]
fn settings_of_firmware_that_are_there_are_neither_adopted_nor_deleted() {
    let Some(place) = Place::new() else { return };
    guest(&place, "ra");
    let nvram = place.daemon.own_path("/var/lib/libvirt/qemu/nvram");
    for name in ["rk", "rl"] {
        std::fs::write(nvram.join(format!("{name}_VARS.fd")), "theirs").unwrap();
    }
    let disks = place.disks.to_str().unwrap();
    let create = place.create("rk", &["--disk-dir", disks]);
    let before = state(&place);
    for args in [&create[..], &[&create[..], &["--dry-run"]].concat(), &["clone", "ra", "rl"]] {
        let (code, out, err) = place.gpuvm(args);
        let says = ["_VARS.fd already", "`ls -l ", "mv -n "];
        assert!(code == 1 && says.iter().all(|text| err.contains(text)), "{args:?}: {out}{err}");
    }
    same(&before, &state(&place), "a refusal changed something");
}

#[test]
fn an_impossible_rename_is_refused_with_a_remedy() {
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
    for n in 1..MOST {
        let ended = place.killed(n, &["rename", "ra", "rb"]);
        let said = place.recover();
        if place.has("rb") {
            assert!(n > 10, "only {n} records were seen: {said}");
            place.done(&["undo", "rb", "--yes"]);
        }
        same(&before, &state(&place), &format!("record {n}: {said}"));
        if ended {
            return;
        }
    }
    panic!("it never comes to its end");
}

/// Runs qemu-img or qemu-io, which must succeed.
pub fn qemu(program: &str, args: &[&str]) -> String {
    let out = std::process::Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && !text.contains("Pattern"), "{program} {args:?}: {text}{err}");
    text
}

/// Writes a byte over the start of an image, or checks that it is there.
pub fn bytes(deed: &str, byte: u8, image: &str) {
    qemu("qemu-io", &["-f", "qcow2", "-c", &format!("{deed} -P {byte} 0 64k"), image]);
}

/// Whether an image starts with this byte.
pub fn holds(byte: u8, image: &str) -> bool {
    let read = format!("read -P {byte} 0 64k");
    let out =
        std::process::Command::new("qemu-io").args(["-f", "qcow2", "-c", &read, image]).output();
    !String::from_utf8_lossy(&out.unwrap().stdout).contains("Pattern")
}

/// A guest that is off, with a qcow2 image of its own; its path.
pub fn with_image(place: &Place, name: &str) -> String {
    let image = place.disks.join(format!("{name}.qcow2")).to_str().unwrap().to_owned();
    qemu("qemu-img", &["create", "-f", "qcow2", &image, "8M"]);
    place.done(&place.create(name, &["--disk", &image]));
    place.done(&["stop", "--force", name]);
    image
}

/// The snapshots of a guest, by libvirt and in its image, and its definition.
pub fn snapshots(place: &Place, name: &str, image: &str) -> (String, usize, String) {
    let listed = place.virsh(&["snapshot-list", name, "--name"]).trim().to_owned();
    let inside = qemu("qemu-img", &["snapshot", "-l", image]).lines().skip(2).count();
    (listed, inside, place.virsh(&["dumpxml", "--inactive", name]))
}

#[test]
fn a_snapshot_gives_the_disks_back_and_leaves_the_definition() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    bytes("write", 0x11, &image);
    let before = snapshots(&place, "sa", &image);
    place.done(&["snapshot", "create", "sa", "one", "--dry-run"]);
    assert_eq!(snapshots(&place, "sa", &image), before);
    let out = place.done(&["snapshot", "create", "sa", "one", "--json"]);
    assert!(out.contains("\"created\"") && out.contains("\"vda\""), "{out}");
    let out = place.done(&["snapshot", "list", "sa", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said[0]["name"], &said[0]["kind"]), (&"one".into(), &"internal".into()));
    assert_eq!((&said[0]["usable"], &said[0]["disks"][0]), (&true.into(), &"vda".into()));
    // Later changes of the definition stay; data written on the disk does not.
    bytes("write", 0x22, &image);
    place.done(&["tune", "sa", "--balloon", "off", "--yes"]);
    let xml = snapshots(&place, "sa", &image).2;
    assert!(xml != before.2);
    let (code, _, err) = place.gpuvm(&["snapshot", "revert", "sa", "one"]);
    assert!(code == 2 && err.contains("what was written on disk `vda`"), "{err}");
    assert!(holds(0x22, &image));
    let (code, out, err) = place.gpuvm(&["snapshot", "revert", "sa", "one", "--yes"]);
    assert!(code == 0 && err.contains("is lost"), "{out}{err}");
    assert!(holds(0x11, &image));
    assert_eq!(snapshots(&place, "sa", &image), ("one".into(), 1, xml.clone()));
    let (code, _, err) = place.gpuvm(&["undo", "sa", "--yes"]);
    assert!(code == 1 && err.contains("`gpuvm undo sa --force` forgets it"), "{err}");
    assert_eq!(snapshots(&place, "sa", &image).2, xml, "an earlier change was taken for the last");
    place.done(&["undo", "sa", "--yes", "--force"]);
    place.done(&["undo", "sa", "--yes"]);
    assert_eq!(snapshots(&place, "sa", &image).2, before.2);
    place.done(&["start", "sa"]);
    let (code, _, err) = place.gpuvm(&["snapshot", "delete", "sa", "one", "--yes"]);
    assert!(code == 1 && err.contains("`gpuvm stop sa` first"), "{err}");
    place.done(&["stop", "--force", "sa"]);
    place.done(&["snapshot", "delete", "sa", "one", "--yes"]);
    assert_eq!(snapshots(&place, "sa", &image), before);
    assert!(holds(0x11, &image));
    assert!(place.done(&["snapshot", "list", "sa"]).is_empty());
}

#[test]
fn undo_takes_back_a_name_or_a_snapshot_and_never_the_clone_before_it() {
    let Some(place) = Place::new() else { return };
    with_image(&place, "sa");
    place.done(&["clone", "sa", "sb"]);
    let image = place.disks.join("sb.qcow2").to_str().unwrap().to_owned();
    place.done(&["rename", "sb", "sc"]);
    let history = place.done(&["history", "sc"]);
    assert!(history.contains("name: sb -> sc"), "{history}");
    place.done(&["undo", "sc", "--yes"]);
    assert!(place.has("sb") && Path::new(&image).exists(), "undo of a name deleted the guest");
    let before = snapshots(&place, "sb", &image);
    place.done(&["snapshot", "create", "sb", "one"]);
    place.done(&["undo", "sb", "--yes"]);
    assert_eq!(snapshots(&place, "sb", &image), before);
    // One of others by this name stays.
    place.done(&["snapshot", "create", "sb", "one"]);
    place.virsh(&["snapshot-delete", "sb", "one"]);
    place.virsh(&["snapshot-create-as", "sb", "one"]);
    let (code, _, err) = place.gpuvm(&["undo", "sb", "--yes"]);
    assert!(code == 0 && err.contains("was replaced since and is kept"), "{err}");
    assert_ne!(snapshots(&place, "sb", &image), before);
    place.virsh(&["snapshot-delete", "sb", "one"]);
    place.done(&["snapshot", "create", "sb", "one"]);
    place.done(&["snapshot", "delete", "sb", "one", "--yes"]);
    let (code, _, err) = place.gpuvm(&["undo", "sb", "--yes"]);
    assert!(code == 1 && err.contains("snapshot `one` is gone"), "{err}");
    assert!(place.has("sb") && Path::new(&image).exists());
    place.done(&["undo", "sb", "--yes", "--force"]);
    let (code, _, err) = place.gpuvm(&["undo", "sb", "--yes"]);
    assert!(code == 0 && err.contains("gone already"), "{err}");
    assert!(place.has("sb"));
    // It is written since, and not deleted unasked.
    let mut write = std::process::Command::new("qemu-io");
    let (code, _, err) = run(write.args(["-f", "qcow2", "-c", "write -P 7 1M 64k", &image]));
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = place.gpuvm(&["undo", "sb", "--yes"]);
    assert!(code == 1 && err.contains("may have written on disk"), "{err}");
    assert!(place.has("sb") && Path::new(&image).exists());
    place.done(&["undo", "sb", "--yes", "--force"]);
    assert!(!place.has("sb") && !Path::new(&image).exists());
}

#[test]
fn impossible_snapshots_are_refused_with_an_alternative() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    let refused = |args: &[&str], says: &[&str]| {
        let before = snapshots(&place, "sa", &image);
        let (code, out, err) = place.gpuvm(args);
        assert!(code == 1 && says.iter().all(|text| err.contains(text)), "{args:?}: {out}{err}");
        assert_eq!(snapshots(&place, "sa", &image), before, "{args:?}");
    };
    refused(&["snapshot", "revert", "sa", "no", "--yes"], &["no snapshot `no`, nor any other"]);
    place.done(&["snapshot", "create", "sa", "one"]);
    refused(&["snapshot", "create", "sa", "one"], &["has a snapshot `one`"]);
    refused(&["rename", "sa", "sb"], &["1 snapshot", "`gpuvm snapshot list sa`"]);
    let disks = place.disks.to_str().unwrap();
    place.done(&["disk", "add", "sa", &format!("size=4M,dir={disks}")]);
    let convert = "`gpuvm tune sa --convert vdb=qcow2`";
    refused(&["snapshot", "create", "sa", "two"], &["`vdb`", "is raw", convert]);
    place.done(&["disk", "remove", "sa", "vdb", "--yes"]);
    let other = place.disks.join("other.qcow2").to_str().unwrap().to_owned();
    qemu("qemu-img", &["create", "-f", "qcow2", &other, "8M"]);
    place.done(&["disk", "add", "sa", &other]);
    refused(
        &["snapshot", "revert", "sa", "one", "--yes"],
        &["had vda (", "vdb (", "`gpuvm undo sa`"],
    );
    place.done(&["disk", "remove", "sa", "vdb", "--yes"]);
    // A snapshot of others, in files of its own.
    let top = place.disks.join("top.qcow2").to_str().unwrap().to_owned();
    let spec = format!("vda,snapshot=external,file={top}");
    place.virsh(&["snapshot-create-as", "sa", "theirs", "--disk-only", "--diskspec", &spec]);
    refused(&["snapshot", "delete", "sa", "theirs", "--yes"], &["files of its own", "virsh"]);
}

#[test]
fn changes_of_snapshots_killed_at_any_record_are_undone_or_finished() {
    let Some(place) = Place::new() else { return };
    let image = with_image(&place, "sa");
    bytes("write", 0x11, &image);
    let before = snapshots(&place, "sa", &image);
    let runs = |args: &[&str], check: &dyn Fn(usize, bool, &str)| {
        for n in 1..MOST {
            let ended = place.killed(n, args);
            let said = place.recover();
            check(n, ended, &said);
            if ended {
                assert!(n > 3, "only {n} records were seen: the test proves nothing");
                return;
            }
        }
        panic!("it never comes to its end");
    };
    runs(&["snapshot", "create", "sa", "one"], &|n, ended, said| {
        let now = snapshots(&place, "sa", &image);
        if now.1 == 1 {
            assert!(now.0 == "one" && n > 3, "record {n}: {said}");
            place.done(&["snapshot", "delete", "sa", "one", "--yes"]);
        } else {
            assert!(!ended, "{said}");
        }
        assert_eq!(snapshots(&place, "sa", &image), before, "record {n}: {said}");
    });
    place.done(&["snapshot", "create", "sa", "one"]);
    place.done(&["tune", "sa", "--balloon", "off", "--yes"]);
    let with = snapshots(&place, "sa", &image);
    runs(&["snapshot", "revert", "sa", "one", "--yes"], &|n, ended, said| {
        assert_eq!(snapshots(&place, "sa", &image), with, "record {n}: {said}");
        // Begun, it is finished.
        assert!(holds(0x11, &image) || !ended && n < 6, "record {n}: {said}");
        bytes("write", 0x22, &image);
    });
    runs(&["snapshot", "delete", "sa", "one", "--yes"], &|n, ended, said| {
        let now = snapshots(&place, "sa", &image);
        assert!(now == with || now == (String::new(), 0, with.2.clone()), "record {n}: {said}");
        assert!(now != with || !ended, "{said}");
        if now != with {
            place.done(&["snapshot", "create", "sa", "one"]);
        }
    });
}
