//! Changes while a question is open, devices held by another hypervisor of the same machine, and
//! resources in use without a definition that shows it.

use super::uses::{Ground, disk};
use crate::libvirt::files;
use crate::support::lawful::NO_FUSE;
use crate::support::{run, skip};
use nix::pty::openpty;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// Runs a verb at a terminal; when it asks, something happens before the answer is typed. Returns
/// its exit code and output.
fn asked(
    ground: &Ground,
    args: &[&str],
    answer: &str,
    meanwhile: impl FnOnce(&Ground),
) -> (i32, String) {
    let pty = openpty(None, None).unwrap();
    let mut verb = ground.place.command(args);
    verb.stdin(pty.slave.try_clone().unwrap()).stderr(pty.slave);
    let mut child = verb.stdout(Stdio::null()).spawn().unwrap();
    drop(verb);
    let mut terminal = std::fs::File::from(pty.master);
    let (mut all, mut buffer) = (String::new(), [0; 4096]);
    while !all.contains("[y/N]") && !all.contains("type the") {
        let got = terminal.read(&mut buffer).expect("it asks");
        all += &String::from_utf8_lossy(&buffer[..got]);
    }
    meanwhile(ground);
    writeln!(terminal, "{answer}").unwrap();
    // The terminal closes with the last process that has it open.
    while let Ok(got @ 1..) = terminal.read(&mut buffer) {
        all += &String::from_utf8_lossy(&buffer[..got]);
    }
    (child.wait().unwrap().code().unwrap_or(-1), all)
}

#[test]
fn unrequested_changes_are_not_made() {
    let Some(ground) = Ground::new() else { return };
    let unasked = "the plan has changed since";
    // Another domain of the same name.
    ground.guest("a");
    let (code, said) = asked(&ground, &["delete", "a"], "a", |g| {
        g.gone("a");
        g.other("a", "");
    });
    assert!(code == 1 && said.contains(unasked) && ground.place.has("a"), "{said}");
    ground.gone("a");
    std::fs::remove_file(ground.at("a.raw")).unwrap();
    // The same one, which runs since.
    ground.guest("a");
    let (code, said) = asked(&ground, &["delete", "a"], "a", |g| g.start("a"));
    assert!(code == 1 && said.contains(unasked), "{said}");
    assert_eq!(ground.place.virsh(&["domstate", "a"]).trim(), "paused");
    // The request is carried out even if less of it is left to do.
    let (code, said) = asked(&ground, &["delete", "a"], "a", |g| {
        g.place.virsh(&["destroy", "a"]);
    });
    assert!(code == 0 && !ground.place.has("a") && !ground.at("a.raw").exists(), "{said}");
    // The last change is now another one.
    ground.other("a", "");
    ground.place.done(&["tune", "a", "--yes", "--topology", "1x1x1"]);
    ground.place.done(&["tune", "a", "--yes", "--emulator", "0"]);
    let (code, said) = asked(&ground, &["undo", "a"], "y", |g| {
        g.place.done(&["undo", "a", "--yes"]);
    });
    assert!(code == 1 && said.contains(unasked), "{said}");
    assert!(ground.xml("a").contains("<topology"), "the change before is undone, too: {said}");
    // An edit, and another domain, while the question whether to tune is open.
    let (code, said) = asked(&ground, &["tune", "a", "--emulator", "0"], "y", |g| {
        g.other("a", "<controller type='scsi' model='virtio-scsi'/>");
    });
    assert!(code == 1 && said.contains(unasked), "{said}");
    assert!(!ground.xml("a").contains("emulatorpin"), "{said}");
    assert!(ground.place.journal().is_empty());
}

#[test]
fn a_domain_of_the_same_uuid_on_another_hypervisor_takes_nothing() {
    let Some(ground) = Ground::new() else { return };
    ground.guest("a");
    ground.place.done(&["tune", "a", "--yes", "--emulator", "0"]);
    let state = ["history", "reserved"].map(|kind| {
        let dir = ground.place.daemon.own_path("/var/lib/gpuvm").join(kind);
        assert!(!files(&dir).is_empty(), "nothing is kept in {}", dir.display());
        dir
    });
    // As with `virsh -c qemu:///session define`; the test driver needs no second daemon.
    let node = ground.at("node.xml");
    let xml = ground.xml("a").replace("type='qemu'", "type='test'");
    std::fs::write(&node, format!("<node>{xml}</node>")).unwrap();
    let uri = format!("test://{}", node.display());
    for args in [&["undo", "a", "--yes", "--force"][..], &["history", "a"]] {
        let (code, out, err) = ground.place.gpuvm(&[args, &["--connect", &uri]].concat());
        assert!(code == 1 && err.contains("same UUID at qemu"), "{args:?}: {out}{err}");
    }
    let (code, out, err) = ground.place.gpuvm(&["delete", "a", "--yes", "--connect", &uri]);
    assert!(code == 0 && ground.at("a.raw").exists(), "{out}{err}");
    assert!(err.contains(&format!("disk {} stays", ground.path("a.raw"))), "{err}");
    assert!(state.iter().all(|dir| !files(dir).is_empty()), "what is kept is gone: {err}");
    // Its own hypervisor still knows it.
    ground.delete("a");
    assert!(!ground.at("a.raw").exists());
    assert!(state.iter().all(|dir| files(dir).is_empty()));
}

#[test]
fn a_disk_in_use_without_a_definition_stays() {
    let Some(ground) = Ground::new() else { return };
    let raw = ground.path("a.raw");
    // A volume of a pool that is not active.
    let dir = ground.place.disks.to_str().unwrap().to_owned();
    ground.stays("inactive pool", "domain `b` has it as a disk", |g| {
        g.place.virsh(&["pool-define-as", "raid", "dir", "--target", &dir]);
        g.other(
            "b",
            "<disk type='volume'><driver name='qemu' type='raw'/><source pool='raid' \
             volume='a.raw'/>\
             <target dev='vda' bus='virtio'/></disk>",
        );
    });
    // Nor of a pool that is no longer known.
    ground.stays("forgotten pool", "domain `b` has it as a disk", |g| {
        let volume = "<disk type='volume'><driver name='qemu' type='raw'/><source pool='raid' \
                      volume='a.raw'/><target dev='vda' bus='virtio'/></disk>";
        g.other("b", volume);
        g.place.virsh(&["pool-undefine", "raid"]);
    });
    // Another program, here a QEMU that is no guest of this libvirt's.
    ground.stays("another program", "process", |g| {
        let (socket, pid) = (g.path("nbd.sock"), g.path("nbd.pid"));
        let mut nbd = Command::new("qemu-nbd");
        nbd.args(["-f", "raw", "-t", "--fork", "-k", &socket, "--pid-file", &pid, &raw]);
        let (code, out, err) = run(&mut nbd);
        assert_eq!(code, 0, "{out}{err}");
    });
    let pid = std::fs::read_to_string(ground.at("nbd.pid")).unwrap();
    run(Command::new("kill").arg(pid.trim()));
    // Its own QEMU does not count.
    ground.guest("a");
    ground.start("a");
    ground.delete("a");
    assert!(!ground.at("a.raw").exists());
    // A file that cannot be removed is reported before anything is removed.
    ground.guest("a");
    let immutable = |flag: &str| run(Command::new("chattr").arg(flag).arg(&raw)).0 == 0;
    if immutable("+i") {
        let said = ground.delete("a");
        assert!(immutable("-i") && said.contains("is immutable"), "{said}");
        assert!(ground.at("a.raw").exists());
    }
}

#[test]
fn a_hung_file_system_blocks_no_verb() {
    let Some(ground) = Ground::new() else { return };
    let dead = ground.place.daemon.fresh_dir("dead");
    let on_it = |kind: &str, name: &str| disk(kind, dead.join(name).to_str().unwrap());
    ground.guest("a");
    ground.guest("c");
    ground.other("raw", &on_it("raw", "x.raw"));
    std::os::unix::fs::symlink(&dead, ground.at("link")).unwrap();
    ground.other("link", &disk("raw", &ground.path("link/y.raw")));
    // A FUSE daemon that never answers, visible only to the program.
    let script = "exec 3<>/dev/fuse && mount -i -t fuse -o \
                  fd=3,rootmode=40000,user_id=0,group_id=0 none \"$0\" && exec timeout 120 \"$@\"";
    let there = |args: &[&str]| {
        let mut verb = ground.place.daemon.within("bash");
        verb.args(["-c", script]).arg(&dead).arg(env!("CARGO_BIN_EXE_gpuvm")).args(args);
        let (code, out, err) = run(&mut verb);
        (code, out + &err)
    };
    if there(&["--version"]).0 != 0 {
        return skip(NO_FUSE);
    }
    let silent = "does not answer";
    let (code, said) = there(&["drive", "list"]);
    assert!(code == 0, "{said}");
    let (code, said) = there(&["check", "raw"]);
    assert!(code != 124 && said.contains(silent), "{said}");
    let (code, said) = there(&["tune", "raw", "--yes", "--topology", "1x1x1"]);
    assert!(code != 124, "{said}");
    // A raw image has no backing file, so no other disk is in doubt.
    let (code, said) = there(&["delete", "a", "--yes"]);
    assert!(code == 0 && !ground.at("a.raw").exists(), "{said}");
    ground.other("over", &on_it("qcow2", "z.qcow2"));
    let (code, said) = there(&["delete", "c", "--yes"]);
    assert!(code == 0 && said.contains(silent) && ground.at("c.raw").exists(), "{said}");
}

#[test]
fn shared_devices_are_allowed_and_saved_guests_reported() {
    let Some(ground) = Ground::new() else { return };
    let (template, dir) =
        (ground.path("template.xml"), ground.place.disks.to_str().unwrap().to_owned());
    for (name, mark) in [("shared", "<shareable/>"), ("read", "<readonly/>")] {
        let file = ground.at(&format!("{name}.img"));
        std::fs::write(&file, vec![0; 1 << 20]).unwrap();
        let plain = disk("raw", file.to_str().unwrap()).replace("vda", "vdb");
        let plain = plain.replace("type='raw'", "type='raw' cache='none'");
        let plain = plain.replace("</disk>", &format!("{mark}</disk>"));
        ground.other(name, &plain);
        ground.start(name);
        let xml = ground.xml(name).replace(&format!("<name>{name}</name>"), "<name>t</name>");
        let uuid = xml.find("<uuid>").unwrap()..xml.find("</uuid>").unwrap() + 7;
        std::fs::write(&template, format!("{}{}", &xml[..uuid.start], &xml[uuid.end..])).unwrap();
        let more = ["--no-start", "--template", &template, "--disk-dir", &dir, "--os-size", "8M"];
        ground.place.done(&ground.place.create(&format!("{name}-2"), &more));
        ground.delete(&format!("{name}-2"));
        assert!(file.exists());
    }
    // A guest that was saved starts as it was then, whatever its definition says.
    ground.other("saved", "");
    ground.start("saved");
    ground.place.virsh(&["managedsave", "saved"]);
    for args in [&["tune", "saved", "--yes", "--emulator", "0"][..], &["undo", "saved", "--yes"]] {
        let (code, out, err) = ground.place.gpuvm(args);
        assert!(code == 0 && err.contains("starts as it was when it was saved"), "{out}{err}");
    }
}

#[test]
fn the_base_of_a_snapshot_that_stays_is_not_offered_to_be_removed() {
    let Some(ground) = Ground::new() else { return };
    ground.guest("a");
    ground.start("a");
    let spec = format!("vda,file={}", ground.path("snap.qcow2"));
    let snapshot = ["snapshot-create-as", "a", "s", "--disk-only", "--diskspec", &spec];
    ground.place.virsh(&snapshot);
    let said = ground.delete("a");
    assert!(ground.at("a.raw").exists() && ground.at("snap.qcow2").exists(), "{said}");
    assert!(!said.contains("`rm"), "{said}");
}
