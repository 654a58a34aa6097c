//! Effects of `recover`, undo and a power cut on objects created since.

use crate::libvirt::files;
use crate::libvirt::place::{Place, same};
use std::path::PathBuf;

/// The records of a create of a guest with one file for a disk, started.
const BEGIN_DISK: usize = 3;
const BEGIN_DEFINE: usize = 8;
const BEGIN_START: usize = 11;
const START_DONE: usize = 12;

/// The arguments of that create.
fn create<'a>(place: &'a Place, name: &'a str) -> Vec<&'a str> {
    place.create(name, &["--disk-dir", place.disks.to_str().unwrap()])
}

/// Kills that create at a record.
fn killed(place: &Place, record: usize, name: &str) {
    assert!(!place.killed(record, &create(place, name)), "it came to its end");
}

/// The directory of the journals.
fn journals(place: &Place) -> PathBuf {
    place.daemon.own_path("/var/lib/gpuvm/journal")
}

/// Defines a guest of a name by virsh, with a file as its disk, and starts it if asked.
fn define(place: &Place, name: &str, disk: Option<&str>, starts: bool) -> String {
    let disk = disk.map_or(String::new(), |disk| {
        format!(
            "<devices><disk type='file'><driver name='qemu' type='raw'/><source file='{disk}'/>\
             <target dev='vda' bus='virtio'/></disk></devices>"
        )
    });
    let file = place.daemon.own_path("theirs.xml");
    let xml = format!(
        "<domain type='qemu'><name>{name}</name><memory>65536</memory><os><type>hvm</type></os>\
         {disk}</domain>"
    );
    std::fs::write(&file, xml).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    if starts {
        place.virsh(&["start", name]);
    }
    place.virsh(&["domuuid", name]).trim().to_owned()
}

#[test]
fn a_newer_guest_of_the_name_is_neither_ended_nor_undefined() {
    let Some(place) = Place::new() else { return };
    killed(&place, START_DONE, "a");
    place.virsh(&["destroy", "a"]);
    place.virsh(&["undefine", "a", "--nvram"]);
    let uuid = define(&place, "a", None, true);
    let (code, out, err) = place.gpuvm(&["recover", "--end", "a"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("domain `a` is now a different one"), "{out}{err}");
    assert!(out.contains("left as it is: define domain `a`"), "{out}{err}");
    assert_eq!(place.virsh(&["domuuid", "a"]).trim(), uuid);
    assert_eq!(place.virsh(&["domstate", "a"]).trim(), "running");
    // Created objects that are not needed are removed.
    assert_eq!((files(&place.disks), place.journal()), (vec![], String::new()), "{out}{err}");
}

#[test]
fn a_disk_taken_by_another_guest_stays() {
    let Some(place) = Place::new() else { return };
    killed(&place, BEGIN_DEFINE, "a");
    let disk = place.disks.join("a.raw");
    define(&place, "b", disk.to_str(), false);
    let (code, out, err) = place.gpuvm(&["recover"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("is in use by domain `b`"), "{out}{err}");
    assert!(disk.exists() && place.journal().is_empty(), "{out}{err}");
}

#[test]
fn a_file_that_took_the_name_of_a_disk_stays() {
    let Some(place) = Place::new() else { return };
    for record in [BEGIN_DISK, BEGIN_DEFINE] {
        killed(&place, record, "a");
        let disk = place.disks.join("a.raw");
        let _ = std::fs::remove_file(&disk);
        std::fs::write(&disk, "theirs").unwrap();
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(err.contains("is not the one that was made"), "record {record}: {out}{err}");
        assert!(err.contains("`rm "), "no command: {err}");
        assert_eq!(std::fs::read_to_string(&disk).unwrap(), "theirs");
        assert_eq!(files(&place.disks), ["a.raw"], "an unfinished file is left");
        std::fs::remove_file(&disk).unwrap();
    }
}

#[test]
fn a_guest_that_runs_is_ended_by_its_name_only() {
    let Some(place) = Place::new() else { return };
    let before = place.state();
    for record in [BEGIN_DEFINE + 1, START_DONE] {
        killed(&place, record, "a");
        if record == BEGIN_DEFINE + 1 {
            // Defined by the change that was killed, and started by others.
            place.virsh(&["start", "a"]);
        }
        let half = place.state();
        for args in [&["recover"][..], &["recover", "--yes"], &["recover", "--end", "b"]] {
            let (code, out, err) = place.gpuvm(args);
            assert!(code == 1 && err.contains("domain `a` is running"), "{args:?}: {out}{err}");
            assert!(err.contains("gpuvm recover --end a") && err.contains("--discard"), "{err}");
            same(&half, &place.state(), &format!("{args:?}: {out}{err}"));
        }
        assert!(place.done(&["recover", "--dry-run"]).contains("--end a"));
        place.done(&["recover", "--end", "a"]);
        same(&before, &place.state(), "not undone");
    }
    // Or it runs on.
    killed(&place, START_DONE, "a");
    place.done(&["recover", "--discard", "--yes"]);
    assert_eq!(place.virsh(&["domstate", "a"]).trim(), "running");
    assert_eq!((files(&place.disks), place.journal()), (vec!["a.raw".to_owned()], String::new()));
}

#[test]
fn an_edit_is_not_put_over_by_the_definition_of_before() {
    let Some(place) = Place::new() else { return };
    place.done(&[&create(&place, "a")[..], &["--no-start"]].concat());
    let xml = || place.virsh(&["dumpxml", "--inactive", "a"]);
    let before = xml();
    let tune = ["tune", "a", "--disk-io", "threads", "--yes"];
    let steps = place.done(&[&tune[..], &["--dry-run"]].concat());
    assert!(steps.contains("change the definition"), "{steps}");
    for edits in [false, true] {
        let mut changed = false;
        for record in 1..20 {
            assert!(!place.killed(record, &tune), "it came to its end");
            if xml() == before {
                place.recover();
                continue;
            }
            changed = true;
            break;
        }
        assert!(changed, "the definition was never changed");
        if edits {
            place.virsh(&["desc", "a", "--config", "by the admin"]);
        }
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!((code, place.journal()), (0, String::new()), "{out}{err}");
        if edits {
            assert!(xml().contains("by the admin"), "{out}{err}");
            assert!(err.contains("was changed by someone else"), "{out}{err}");
        } else {
            assert_eq!(xml(), before, "{out}{err}")
        }
    }
}

#[test]
fn a_change_whose_journal_comes_back_is_not_undone() {
    let Some(place) = Place::new() else { return };
    let dir = journals(&place);
    let kept = place.daemon.own_path("kept");
    // The last record marks the end; the removal of the journal is lost in a power cut.
    let args = [&create(&place, "a")[..], &["--no-start"]].concat();
    let ended = place.halted(10, &args, |journal| {
        assert!(journal.contains("\"over\""), "{journal}");
        std::fs::copy(dir.join(&files(&dir)[0]), &kept).unwrap();
    });
    assert_eq!(ended.unwrap().0, 0);
    let back = || std::fs::copy(&kept, dir.join("1-0.jsonl")).unwrap();
    let before = place.state();
    back();
    // It does not block others.
    place.done(&[&create(&place, "b")[..], &["--no-start"]].concat());
    place.done(&["delete", "b", "--yes"]);
    place.recover();
    same(&before, &place.state(), "a change that was over was undone");
    // Nor is one that was undone undone twice.
    let ended = place.halted(BEGIN_DEFINE, &create(&place, "c"), |journal| {
        assert!(journal.contains("define-domain"), "{journal}");
        define(&place, "c", None, false);
    });
    assert_eq!(ended.unwrap().0, 1);
    assert!(place.has("c") && files(&place.disks) == ["a.raw"]);
}

#[test]
fn resources_lost_at_boot_are_not_returned_after_it() {
    let Some(place) = Place::new() else { return };
    let dir = journals(&place);
    std::fs::create_dir_all(&dir).unwrap();
    let step = r#"{"step":"set-pages","node":0,"page_kib":2048,"to":8,"was":4}"#;
    let journal = |more: &str| {
        format!(
            "{{\"change\":{{\"format\":1,\"verb\":\"create\",\"subject\":\"a\",\"uri\":\"{}\",\
             \"pid\":1{more}}}}}\n{{\"plan\":[{step}]}}\n{{\"begin\":0}}\n{{\"done\":0}}\n",
            place.daemon.uri()
        )
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let path = dir.join("1-0.jsonl");
    // A journal of the version before is of this boot, as it was written in it.
    let this = format!(",\"boot\":\"{}\"", boot.trim());
    for (more, undone) in [("", true), (&this[..], true), (",\"boot\":\"another\"", false)] {
        std::fs::write(&path, journal(more)).unwrap();
        let dry = place.done(&["recover", "--dry-run"]);
        assert_eq!(dry.contains("undo: reserve 4 pages"), undone, "{more}: {dry}");
    }
    let out = place.done(&["recover"]);
    assert!(out.contains("nothing is left of it"), "{out}");
    std::fs::write(&path, journal("")).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
    let dry = place.done(&["recover", "--dry-run"]);
    assert!(!dry.contains("undo:"), "{dry}");
}

#[test]
fn a_journal_that_cannot_be_read_hinders_no_other() {
    let Some(place) = Place::new() else { return };
    killed(&place, BEGIN_DEFINE, "a");
    let (dir, bad) = (journals(&place), journals(&place).join("0-0.jsonl"));
    std::fs::write(&bad, "{\"change\":7}\n\u{0}garbage\n").unwrap();
    std::os::unix::fs::symlink("/etc/shadow", dir.join("0-1.jsonl")).unwrap();
    // The other is undone, and this one is named.
    let (code, out, err) = place.gpuvm(&["recover"]);
    assert!(code == 1 && out.contains("undone: create disk"), "{out}{err}");
    assert!(err.contains("0-0.jsonl") && err.contains("gpuvm recover --discard"), "{err}");
    assert_eq!(files(&place.disks), Vec::<String>::new());
    // Guests are made, the host is not changed.
    place.done(&[&create(&place, "b")[..], &["--no-start"]].concat());
    let (code, _, err) = place.gpuvm(&["host", "undo", "--yes"]);
    assert!(code == 1 && err.contains("gpuvm recover --discard"), "{err}");
    let (code, _, err) = place.gpuvm(&["recover", "--discard"]);
    assert!(code == 2 && err.contains("--yes") && bad.exists(), "{err}");
    place.done(&["recover", "--discard", "--yes"]);
    let kept = std::fs::read_to_string(dir.join("0-0.jsonl.damaged")).unwrap();
    assert!(kept.contains("garbage") && !bad.exists());
    assert!(place.gpuvm(&["recover"]).2.contains("no change was interrupted"));
    place.done(&["delete", "b", "--yes"]);
}

#[test]
fn nothing_is_deleted_after_a_start_that_cannot_be_undone() {
    let Some(place) = Place::new() else { return };
    let uri = place.daemon.uri();
    let socket = PathBuf::from(uri.split_once("socket=").unwrap().1);
    let away = socket.with_extension("away");
    let before = place.state();
    // libvirtd ends when the guest is to be started, and does not come back.
    let ended = place.halted(BEGIN_START, &create(&place, "a"), |_| {
        place.daemon.restart();
        std::fs::rename(&socket, &away).unwrap();
    });
    let (code, out, err) = ended.unwrap();
    assert!(code == 1 && err.contains("gpuvm recover"), "{out}{err}");
    assert!(err.contains("the step after it is not undone"), "{out}{err}");
    assert_eq!(files(&place.disks), ["a.raw"], "{out}{err}");
    assert!(place.journal().contains("undo"), "the journal is gone");
    std::fs::rename(&away, &socket).unwrap();
    assert!(place.has("a"), "{out}{err}");
    place.done(&["recover", "--end", "a"]);
    same(&before, &place.state(), &err);
}

#[test]
fn the_host_is_locked_until_the_guest_has_started() {
    let Some(place) = Place::new() else { return };
    let ended = place.halted(BEGIN_START, &create(&place, "a"), |_| {
        let (code, _, err) = place.gpuvm(&["list", "--json"]);
        assert_eq!(code, 0, "{err}");
        let other = [&create(&place, "b")[..], &["--lock-wait", "0"]].concat();
        let (code, _, err) = place.gpuvm(&other);
        assert!(code == 1 && err.contains("is held by"), "{err}");
    });
    assert_eq!(ended.unwrap().0, 0);
    place.done(&["delete", "a", "--yes"]);
}

#[test]
fn leftovers_of_a_gone_guest_are_named_and_released() {
    let Some(place) = Place::new() else { return };
    let uuid = define(&place, "b", None, false);
    let dir = place.daemon.own_path("/var/lib/gpuvm/reserved");
    std::fs::create_dir_all(&dir).unwrap();
    let disk = place.disks.join("gone one.raw");
    std::fs::write(&disk, "theirs, perhaps").unwrap();
    // Reserved in another boot, so that nothing is given back here.
    let kept = |uuid: &str, name: &str, uri: &str| {
        let text = serde_json::json!({
            "format": 1, "uuid": uuid, "name": name, "uri": uri,
            "reserved": [{"node": 0, "page_kib": 2048, "count": 4, "boot": "another"}],
            "made": [{"role": "os", "path": disk}],
        });
        std::fs::write(dir.join(format!("{uuid}.json")), text.to_string()).unwrap();
    };
    let (gone, other) =
        ("11111111-2222-4333-8444-555555555555", "11111111-2222-4333-8444-666666666666");
    kept(&uuid, "b", &place.daemon.uri());
    kept(gone, "a", &place.daemon.uri());
    kept(other, "c", "qemu:///session");
    let all = files(&dir);
    for args in [&["verify", "--all"][..], &["recover"], &["recover", "--gone", "--dry-run"]] {
        let (_, out, err) = place.gpuvm(args);
        assert!(err.contains("of domain `a`") && err.contains(gone), "{args:?}: {out}{err}");
        assert!(err.contains(&format!("`rm '{}'` removes it", disk.display())), "{err}");
        assert!(err.contains("gpuvm recover --gone"), "{err}");
        assert!(!err.contains("domain `b`") && !err.contains("domain `c`"), "{err}");
        assert_eq!(files(&dir), all, "{args:?} changed something");
    }
    place.done(&["recover", "--gone"]);
    // Data of existing guests, or of another hypervisor's, is kept; and no disk is removed because
    // of a file's content.
    assert_eq!(files(&dir).len(), 2);
    assert!(!dir.join(format!("{gone}.json")).exists() && disk.exists());
}
