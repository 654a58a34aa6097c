//! `disk` on a real libvirtd: disks of a guest that is off and of one that runs, killed at every
//! record of the journal.

use super::place::{MOST, Place, same};
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "disks-a";

/// A guest that is off, with a disk, and with a root port that is free.
fn guest() -> Option<Place> {
    let place = Place::new()?;
    let disks = place.disks.to_str().unwrap().to_owned();
    let shape = ["--no-start", "--os-size", "16M", "--disk-dir", &disks, "--spare-ports", "0"];
    place.done(&place.create(NAME, &shape));
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let port = "<controller type='pci' model='pcie-root-port'/></devices>";
    let file = place.disks.join("more-ports.xml");
    std::fs::write(&file, xml.replace("</devices>", port)).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    Some(place)
}

/// Whether the definition, and what runs, has a disk.
fn has(place: &Place, target: &str) -> (bool, bool) {
    let has = |more: &[&str]| {
        let all = place.virsh(&[&["domblklist", NAME], more].concat());
        all.lines().any(|line| line.split_whitespace().next() == Some(target))
    };
    (has(&["--inactive"]), has(&[]))
}

/// The exit codes of `check` and of `tune --check`, and their output.
fn judged(place: &Place) -> [(i32, String); 2] {
    [&["check", NAME][..], &["tune", NAME, "--check"]].map(|args| {
        let (code, out, _) = place.gpuvm(args);
        // Other tests reserve huge pages on this machine meanwhile.
        let own = out.lines().filter(|line| !line.contains("huge pages that nobody uses"));
        (code, own.collect::<Vec<_>>().join("\n"))
    })
}

/// The disks as `disk list` has them.
fn listed(place: &Place) -> Vec<Value> {
    serde_json::from_str(&place.done(&["disk", "list", NAME, "--json"])).unwrap()
}

/// A verb that is refused with this code.
fn refused(place: &Place, code: &str, args: &[&str]) {
    let (ended, out, err) = place.gpuvm(&[args, &["--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((ended, said["code"].as_str()), (1, Some(code)), "{args:?}: {out}{err}");
}

#[test]
fn a_disk_of_a_guest_that_is_off_comes_grows_and_goes() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let (before, found) = (place.state(), judged(&place));
    let add = ["disk", "add", NAME, &format!("size=8M,dir={disks}")];
    let shown = place.done(&[&add[..], &["--diff"]].concat());
    assert!(shown.contains("<target dev='vdb' bus='virtio'/>"), "{shown}");
    place.done(&[&add[..], &["--dry-run"]].concat());
    same(&before, &place.state(), "a preview changed something");
    place.done(&add);
    let file = place.disks.join(format!("{NAME}-vdb.raw"));
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    assert_eq!(judged(&place), found, "check or tune see it otherwise");
    let disk = listed(&place).remove(1);
    assert_eq!(
        (&disk["target"], &disk["kind"], &disk["made"]),
        (&"vdb".into(), &"file".into(), &true.into())
    );
    assert_eq!(disk["bytes"], 8 << 20);
    place.done(&["disk", "resize", NAME, "vdb", "12M"]);
    assert_eq!(file.metadata().unwrap().len(), 12 << 20);
    refused(&place, "guest-disk-smaller", &["disk", "resize", NAME, "vdb", "4M"]);
    let history = place.done(&["history", NAME]);
    assert!(history.contains("disk add") && history.contains("disk resize"), "{history}");
    place.done(&["disk", "remove", NAME, "vdb", "--yes"]);
    assert!(file.exists() && !has(&place, "vdb").0);
    place.done(&["undo", NAME, "--yes"]);
    assert!(has(&place, "vdb").0);
    place.done(&["disk", "remove", NAME, "vdb", "--delete-data", "--yes"]);
    assert!(!file.exists());
    assert_eq!(judged(&place), found);
    refused(&place, "undo-data-deleted", &["undo", NAME, "--yes"]);
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn a_running_guest_gets_a_disk_and_a_larger_one_and_keeps_what_it_holds() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    place.virsh(&["start", NAME]);
    let add = ["disk", "add", NAME, &format!("size=8M,dir={disks}"), "--live"];
    place.done(&add);
    assert_eq!(has(&place, "vdb"), (true, true));
    refused(&place, "guest-disk-no-port", &add);
    let (_, verified, err) = place.gpuvm(&["verify", NAME, "--json"]);
    assert!(!verified.contains("pending-disk"), "{verified}{err}");
    let (code, out, err) = place.gpuvm(&["disk", "resize", NAME, "vdb", "16M", "--json"]);
    let grown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, &grown["live"], &grown["bytes"]), (0, &true.into(), &(16 << 20).into()));
    assert!(grown["guest"]["why"].as_str().unwrap().contains("agent"), "{grown}");
    assert_eq!(listed(&place)[1]["bytes"], 16 << 20);
    refused(&place, "guest-disk-runs", &["disk", "remove", NAME, "vdb", "--delete-data", "--yes"]);
    // Nobody is in the guest who would let go of it: then all stays as it was.
    let (code, out, err) = place.gpuvm(&["disk", "remove", NAME, "vdb", "--live", "--yes"]);
    let is_held = code == 1;
    assert_eq!(has(&place, "vdb"), (is_held, is_held), "{out}{err}");
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
}

/// Kills a change of a guest's disks at every record of its journal. A recovered change leaves the
/// earlier state; a finished one is reverted by `back`.
fn killed(place: &Place, args: &[&str], back: &[&[&str]], least: usize) {
    let before = place.state();
    for n in 1..MOST {
        let ended = place.killed(n, args);
        let said = place.recover();
        if place.state() != before {
            for args in back {
                place.done(args);
            }
        }
        same(&before, &place.state(), &format!("record {n}: {said}"));
        if ended {
            assert!(n > least, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn an_added_disk_killed_at_any_record_is_undone() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let add = ["disk", "add", NAME, &format!("size=1M,dir={disks}")];
    killed(&place, &add, &[&["disk", "remove", NAME, "vdb", "--delete-data", "--yes"]], 8);
}

#[test]
fn a_removed_disk_killed_at_any_record_is_given_back() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&["disk", "add", NAME, &format!("size=1M,dir={disks}")]);
    let remove = ["disk", "remove", NAME, "vdb", "--yes"];
    killed(&place, &remove, &[&["undo", NAME, "--yes"]], 6);
}

#[test]
fn a_deletion_and_a_growth_killed_at_any_record_are_undone_or_finished() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let file = place.disks.join(format!("{NAME}-vdb.raw"));
    let add = ["disk", "add", NAME, &format!("size=1M,dir={disks}")];
    let remove = ["disk", "remove", NAME, "vdb", "--delete-data", "--yes"];
    for verb in ["remove", "resize"] {
        for n in 1..MOST {
            place.done(&add);
            let resize = ["disk", "resize", NAME, "vdb", "3M"];
            let ended = place.killed(n, if verb == "remove" { &remove } else { &resize });
            let said = place.recover();
            let bytes = file.metadata().map(|meta| meta.len()).ok();
            assert_eq!(has(&place, "vdb").0, bytes.is_some(), "{verb}, record {n}: {said}");
            assert!(bytes.is_none_or(|bytes| [1 << 20, 3 << 20].contains(&bytes)), "{bytes:?}");
            if bytes.is_some() {
                place.done(&remove);
            }
            if ended {
                assert!(n > 6, "only {n} records were seen: the test proves nothing");
                break;
            }
        }
    }
}

#[test]
fn a_replaced_disk_is_neither_opened_nor_released() {
    let Some(place) = guest() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&["disk", "add", NAME, &format!("size=4M,dir={disks}")]);
    let file = place.disks.join(format!("{NAME}-vdb.raw"));
    place.done(&["disk", "remove", NAME, "vdb", "--yes"]);
    std::fs::rename(&file, place.disks.join("kept.raw")).unwrap();
    std::fs::write(&file, vec![0x55; 4 << 20]).unwrap();
    refused(&place, "undo-other-file", &["undo", NAME, "--yes"]);
    assert!(!has(&place, "vdb").0);
    std::fs::remove_file(&file).unwrap();
    std::fs::rename(place.disks.join("kept.raw"), &file).unwrap();
    place.done(&["undo", NAME, "--yes"]);
    assert!(has(&place, "vdb").0);
    // libvirt would wait for a writer, and the domain with it.
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let disk = listed(&place).remove(1);
    assert!(disk["target"] == "vdb" && disk["bytes"].is_null(), "{disk}");
    refused(&place, "guest-disk-fixed", &["disk", "resize", NAME, "vdb", "8M"]);
    refused(&place, "clone-disk", &["clone", NAME, "disks-b"]);
    place.done(&["disk", "remove", NAME, "vdb", "--yes"]);
}

#[test]
fn no_guest_gets_an_image_of_the_store_nor_what_lies_over_a_file_of_the_host() {
    let Some(place) = Place::with_image() else { return };
    place.done(&place.create(NAME, &["--no-start", "--image", "tiny", "--os-size", "2M"]));
    let before = place.state();
    let image = "/var/lib/libvirt/gpuvm-images/tiny.raw";
    for disk in [image, "volume=gpuvm-images/tiny.raw"] {
        refused(&place, "storage-of-host", &["disk", "add", NAME, disk]);
    }
    let (_, _, err) = place.gpuvm(&["disk", "add", NAME, image]);
    assert!(err.contains("`cp --sparse=always ") && err.contains("--image tiny`"), "{err}");
    refused(&place, "storage-of-host", &["create", "--name", "disks-b", "--disk", image]);
    let over = |name: &str, backing: &str| {
        let path = place.disks.join(name).to_str().unwrap().to_owned();
        let mut qemu = std::process::Command::new("qemu-img");
        qemu.args(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", backing, &path, "1M"]);
        assert!(qemu.status().unwrap().success());
        path
    };
    let below = over("below.qcow2", "/etc/shadow");
    let json = r#"json:{"driver":"raw","file":{"driver":"file","filename":"/etc/shadow"}}"#;
    let mut evil = vec![below.clone(), over("a.qcow2", json), over("b.qcow2", "file:/etc/shadow")];
    let path = place.disks.join("c.qcow2").to_str().unwrap().to_owned();
    let mut qemu = std::process::Command::new("qemu-img");
    qemu.args([
        "create",
        "-q",
        "-u",
        "-f",
        "qcow2",
        "-F",
        "qcow2",
        "-b",
        "below.qcow2",
        &path,
        "1M",
    ]);
    assert!(qemu.status().unwrap().success());
    evil.push(path);
    for disk in &evil {
        refused(&place, "backing-untrusted", &["disk", "add", NAME, disk]);
        std::fs::remove_file(disk).unwrap_or_else(|_| panic!("{disk}"));
        if *disk == below {
            over("below.qcow2", "/etc/shadow");
        }
    }
    std::fs::remove_file(&below).unwrap();
    same(&before, &place.state(), "a refusal changed something");
}

/// Data that a guest writes below an image of another one makes that worthless, whether it runs or
/// not.
#[test]
fn a_guest_is_not_started_on_a_disk_that_an_image_lies_over() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&place.create(NAME, &["--no-start", "--os-size", "1M", "--disk-dir", &disks]));
    let xml = place.virsh(&["dumpxml", "--inactive", NAME]);
    let (base, over) = (format!("{disks}/{NAME}.raw"), format!("{disks}/over.qcow2"));
    assert!(xml.contains(&format!("<source file='{base}'/>")), "{xml}");
    let mut qemu = std::process::Command::new("qemu-img");
    qemu.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &over]);
    assert!(qemu.status().unwrap().success());
    let lines = xml.lines().filter(|line| !line.contains("<uuid>") && !line.contains("<mac "));
    let other: String = lines.map(|line| format!("{line}\n")).collect();
    let other = other.replace(&base, &over).replace(NAME, "disks-o");
    let other = other.replace("type='raw'", "type='qcow2'");
    let file = place.disks.join("other.xml");
    std::fs::write(&file, other).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let before = place.state();
    let says = "domain `disks-o` has an image over it";
    for words in [&["start", NAME][..], &["start", NAME, "--dry-run"]] {
        let (code, out, err) = place.gpuvm(words);
        assert!(code == 1 && err.contains(says), "{words:?}: {out}{err}");
    }
    same(&before, &place.state(), "a refusal changed something");
    let other = place.virsh(&["dumpxml", "--inactive", "disks-o"]);
    place.virsh(&["undefine", "--nvram", "disks-o"]);
    place.done(&["start", NAME]);
    // A restart would power it off, and could not start it again.
    std::fs::write(&file, other).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    for words in [&["restart", NAME, "--force"][..], &["restart", NAME, "--dry-run"]] {
        let (code, out, err) = place.gpuvm(words);
        assert!(code == 1 && err.contains(says), "{words:?}: {out}{err}");
        assert_eq!(place.virsh(&["domstate", NAME]).trim(), "running", "{words:?}");
    }
    place.virsh(&["undefine", "--nvram", "disks-o"]);
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
    std::fs::remove_file(over).unwrap();
}

/// A guest whose network is down is not powered off for a restart that cannot start it again.
#[test]
fn a_guest_is_not_restarted_while_its_network_is_down() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let net = "disks-net";
    place.done(&["network", "create", net, "--kind", "private"]);
    let create = ["--os-size", "1M", "--disk-dir", &disks, "--network", net];
    place.done(&place.create(NAME, &create));
    place.virsh(&["net-destroy", net]);
    for words in [&["restart", NAME, "--force"][..], &["restart", NAME, "--dry-run"]] {
        let (code, out, err) = place.gpuvm(words);
        assert!(code == 1 && err.contains("network `disks-net` is not active"), "{out}{err}");
        assert_eq!(place.virsh(&["domstate", NAME]).trim(), "running", "{words:?}");
    }
    place.virsh(&["destroy", NAME]);
    for (words, ends) in [(&["start", NAME][..], 1), (&["start", NAME, "--dry-run"], 0)] {
        let (code, out, err) = place.gpuvm(words);
        assert!(code == ends && err.contains("`virsh net-start disks-net`"), "{out}{err}");
    }
    place.virsh(&["net-start", net]);
    place.done(&["start", NAME]);
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
    place.done(&["network", "delete", net, "--yes"]);
}

#[test]
fn a_file_that_is_gone_is_said_by_all_verbs_alike() {
    let Some(place) = guest() else { return };
    let own = |name: &str| place.disks.join(name).to_str().unwrap().to_owned();
    let (below, above) = (own("below.qcow2"), own("above.qcow2"));
    let image = |args: &[&str]| {
        let mut command = place.within("qemu-img");
        let made = command.args(["create", "-q", "-f", "qcow2"]).args(args).status();
        assert!(made.unwrap().success(), "{args:?}");
    };
    image(&[&below, "1M"]);
    image(&["-b", &below, "-F", "qcow2", &above]);
    place.done(&["disk", "add", NAME, &above]);
    let first = place.virsh(&["domblklist", NAME]);
    let first = first.split_whitespace().find(|word| word.ends_with(".raw")).unwrap().to_owned();
    let all = |is_gone: bool| {
        [&["check", NAME][..], &["verify", NAME], &["start", NAME, "--dry-run"]].map(|args| {
            let (ended, out, err) = place.gpuvm(&[args, &["--json"]].concat());
            assert_eq!(out.contains("disk-missing"), is_gone, "{args:?}: {out}{err}");
            assert!(ended != 0 || !is_gone, "{args:?}: {out}");
            out
        })
    };
    assert!(all(false).iter().all(|said| !said.contains("no such file")));
    let before = place.state();
    for (gone, target, how) in
        [(&first, "vda", "is on it"), (&below, "vdb", "is an overlay on it, by")]
    {
        let away = format!("{gone}.away");
        std::fs::rename(gone, &away).unwrap();
        for said in all(true) {
            let what = format!("{gone}: no such file; disk `{target}` {how}");
            assert!(said.contains(&what), "{said}");
            assert!(said.contains(&format!("gpuvm disk remove {NAME} {target}")), "{said}");
        }
        refused(&place, "start-disk-missing", &["start", NAME]);
        std::fs::rename(&away, gone).unwrap();
    }
    same(&before, &place.state(), "a verb that only looks changed something");
    place.done(&["disk", "remove", NAME, "vdb", "--yes"]);
    place.done(&["delete", NAME, "--yes"]);
}

/// One file that a guest would write twice, by a link or below an image over it, is refused by all
/// verbs; a disk that another guest has is kept without a command that deletes it.
#[test]
fn a_file_of_two_disks_is_refused_and_others_files_are_not_offered_to_rm() {
    let Some(place) = guest() else { return };
    let own = |name: &str| place.disks.join(name).to_str().unwrap().to_owned();
    let (base, above, link) = (own("base.qcow2"), own("over.qcow2"), own("link.qcow2"));
    let image = |args: &[&str]| {
        let mut command = place.within("qemu-img");
        let made = command.args(["create", "-q", "-f", "qcow2"]).args(args).status();
        assert!(made.unwrap().success(), "{args:?}");
    };
    image(&[&base, "1M"]);
    image(&["-b", &base, "-F", "qcow2", &above]);
    std::os::unix::fs::symlink(&base, &link).unwrap();
    let before = place.state();
    for (first, second) in [(&base, &link), (&base, &above), (&above, &base)] {
        let args = place.create("twice", &["--no-start", "--disk", first, "--disk", second]);
        let (code, out, err) = place.gpuvm(&args);
        assert!(code != 0 && err.contains("of the same domain"), "{first} {second}: {out}{err}");
    }
    same(&before, &place.state(), "a refused guest left something");
    place.done(&["disk", "add", NAME, &base]);
    let (code, out, err) = place.gpuvm(&["disk", "add", NAME, &above]);
    assert!(code != 0 && err.contains("are in one chain of overlays"), "{out}{err}");
    // By hand it is defined, and found.
    let target = "--targetbus virtio --config";
    place.virsh(
        &[&["attach-disk", NAME, &link, "vdx"][..], &target.split(' ').collect::<Vec<_>>()]
            .concat(),
    );
    let (code, out, err) = place.gpuvm(&["check", NAME]);
    assert!(code == 3 && out.contains("disk-held"), "{code}: {out}{err}");
    place.done(&["disk", "remove", NAME, "vdx", "--yes"]);
    place.done(&["disk", "remove", NAME, "vdb", "--yes"]);
    // Made for this guest, and had by another, too.
    place.done(&["disk", "add", NAME, &format!("size=1M,dir={}", place.disks.display())]);
    let made = place.virsh(&["domblklist", NAME]);
    let made = made.lines().find(|line| line.trim().starts_with("vdb")).unwrap();
    let made = made.split_whitespace().last().unwrap().to_owned();
    image(&[&own("other.qcow2"), "1M"]);
    place.done(&place.create("other", &["--no-start", "--disk", &own("other.qcow2")]));
    place.virsh(
        &[&["attach-disk", "other", &made, "vdx"][..], &target.split(' ').collect::<Vec<_>>()]
            .concat(),
    );
    for args in
        [&["undo", NAME, "--yes", "--dry-run"][..], &["disk", "remove", NAME, "vdb", "--yes"]]
    {
        let (code, out, err) = place.gpuvm(args);
        let said = format!("{out}{err}");
        assert!(code == 0 && said.contains("domain `other` has it as a disk"), "{args:?}: {said}");
        assert!(!said.contains("`rm "), "{args:?}: {said}");
    }
    place.done(&["delete", "other", "--yes"]);
    place.done(&["delete", NAME, "--yes"]);
}
