//! Impossible and interrupted requests: they give an error with a hint, and leave nothing behind.

use super::files;
use crate::support::daemon::{Daemon, Tiny, daemon, namespaces};
use crate::support::{gpuvm, project, run, skip};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The arguments of a small guest.
fn create<'a>(name: &'a str, disk_dir: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let shape = "--virt-type qemu --pins none --vcpus 1 --memory 64M";
    let mut args = vec!["create", "--name", name];
    if !more.contains(&"--disk") {
        args.extend(["--disk-dir", disk_dir.to_str().unwrap()]);
    }
    args.extend(shape.split(' '));
    args.extend(more);
    args
}

/// Runs a create that must fail, and expects these words and nothing left.
fn refused(daemon: &Daemon, name: &str, disk_dir: &Path, more: &[&str], words: &[&str]) {
    let before = files(disk_dir);
    let (code, out, err) = run(&mut daemon.gpuvm(&create(name, disk_dir, more)));
    assert_eq!(code, 1, "{name} {more:?}: {out}{err}");
    assert_eq!(out, "", "an answer for what failed");
    assert!(err.starts_with("error: ") || err.contains("\nerror: "), "{err}");
    for word in words {
        assert!(err.contains(word), "{name} {more:?}: `{word}` is not in\n{err}");
    }
    assert_eq!(files(disk_dir), before, "{err}");
}

#[test]
fn without_libvirt_each_verb_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("qemu+unix:///system?socket={}/none", dir.path().display());
    for verb in ["list", "show x", "start x", "stop x", "delete x --yes", "create --name x"] {
        let args: Vec<&str> = verb.split(' ').chain(["--connect", &uri]).collect();
        let (code, out, err) = run(&mut gpuvm(&args));
        assert_eq!((code, out.as_str()), (1, ""), "{verb}: {err}");
        assert!(err.contains("error: connect to") && err.contains("hint: is libvirtd"), "{err}");
    }
}

#[test]
fn a_user_without_permission_may_look_and_sees_the_limits() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("denied");
    let copy = dir.join("gpuvm");
    std::fs::copy(env!("CARGO_BIN_EXE_gpuvm"), &copy).unwrap();
    let (code, _, err) = run(&mut daemon.gpuvm(&create("seen", &dir, &["--no-start"])));
    assert_eq!(code, 0, "{err}");
    let unprivileged = |args: &[&str]| run(daemon.as_unprivileged(&copy).args(args));
    let (code, out, err) = unprivileged(&["list"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.lines().any(|line| line.trim_start().starts_with("seen ")), "{out}");
    let (code, out, err) = unprivileged(&["show", "seen"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("seen.raw, raw, made for it"), "{out}");
    // What root has recorded is not said not to be there.
    for verb in ["history", "undo"] {
        let (code, out, err) = unprivileged(&[verb, "seen"]);
        assert_eq!((code, out.as_str()), (1, ""), "{verb}: {err}");
        assert!(err.contains("permission denied: the history of domain `seen`"), "{err}");
        assert!(err.contains(&format!("hint: `sudo gpuvm {verb} seen`")), "{err}");
    }
    let (code, _, err) = unprivileged(&["recover", "--dry-run"]);
    assert!(code == 0 && err.contains("no change of this user was interrupted"), "{err}");
    assert!(err.contains("warning: root's records in /var/lib/gpuvm are not read"), "{err}");
    let (code, out, err) = unprivileged(&["get", "seen"]);
    assert!(code == 0 && out.contains("# seen: not known are its image"), "{out}{err}");
    assert!(err.contains("root's records in /var/lib/gpuvm are not read"), "{err}");
    let new = create("new", &dir, &["--no-start"]);
    for args in [&["start", "seen"][..], &["delete", "seen", "--yes"], &new] {
        let (code, out, err) = unprivileged(args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(
            err.contains("ermission denied") || err.contains("not permitted"),
            "{args:?}: {err}"
        );
        assert!(err.contains("hint: "), "{args:?}: {err}");
    }
    let (code, _, err) = run(&mut daemon.gpuvm(&["delete", "seen", "--yes"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(files(&dir), ["gpuvm"]);
}

#[test]
fn names_that_hurt_are_refused_before_anything_is_done() {
    let long = "x".repeat(300);
    for name in ["a/b", "..", "a'b", "a\"b", "a\nb", "a\u{1}b", "<a>", "", long.as_str()] {
        let (code, out, err) = run(&mut gpuvm(&["create", "--name", name]));
        assert_eq!((code, out.as_str()), (2, ""), "{name:?}: {err}");
        // Not found, or not connected, but never taken for something else.
        let args = ["delete", "--yes", "--connect", "test:///default", "--", name];
        let (code, _, err) = run(&mut gpuvm(&args));
        assert!(code == 1 || code == 2, "{name:?}: {code} {err}");
    }
}

#[test]
fn a_changing_verb_does_not_take_a_recorded_host() {
    for verb in ["create --name x", "start x", "stop x", "delete x --yes"] {
        let args: Vec<&str> = verb.split(' ').chain(["--host", "nowhere.json"]).collect();
        let (code, _, err) = run(&mut gpuvm(&args));
        assert_eq!(code, 2, "{verb}: {err}");
        assert!(err.contains("does not take --host"), "{err}");
    }
}

#[test]
fn a_create_that_cannot_be_done_leaves_nothing() {
    let Some(daemon) = daemon() else { return };
    let disks = daemon.fresh_dir("bad-disks");
    refused(daemon, "bad1", &disks.join("absent"), &[], &["does not exist", "--disk-dir"]);
    refused(daemon, "bad2", &disks, &["--network", "nonet"], &["nonet", "network list"]);
    let absent = disks.join("absent.img");
    refused(daemon, "bad3", &disks, &["--disk", absent.to_str().unwrap()], &["absent.img"]);
    std::fs::write(disks.join("bad4.raw"), "someone's").unwrap();
    refused(daemon, "bad4", &disks, &["--no-start"], &["already exists", "not replaced"]);
    assert_eq!(std::fs::read_to_string(disks.join("bad4.raw")).unwrap(), "someone's");
    refused(daemon, "bad5", &disks, &["--volGB", "5"], &["/raid", "--data-dir"]);
    // A template that asks for a device that no host has: libvirt would define it.
    let template = disks.join("template.xml");
    let hostdev = "<hostdev mode='subsystem' type='pci' managed='yes'><source><address \
                   domain='0x0000' bus='0xf9' slot='0x00' \
                   function='0x0'/></source></hostdev></devices>";
    let tiny = std::fs::read_to_string(project().join("tests/tiny/domain.xml")).unwrap();
    std::fs::write(&template, tiny.replace("</devices>", hostdev)).unwrap();
    let more = ["--no-start", "--template", template.to_str().unwrap()];
    refused(
        daemon,
        "bad6",
        &disks,
        &more,
        &["0000:f9:00.0, which was not requested", "hint: remove it from the template"],
    );
    for name in ["bad1", "bad2", "bad3", "bad4", "bad5", "bad6"] {
        assert!(!daemon.virsh(&["dominfo", name]).0, "domain {name} is left");
    }
}

#[test]
fn a_full_file_system_is_reported() {
    let Some(daemon) = daemon() else { return };
    if !namespaces() {
        return skip("namespaces need root");
    }
    let dir = daemon.fresh_dir("full");
    // Two inodes: one is the root directory, one is taken.
    let script = "mount -t tmpfs -o nr_inodes=2 tmpfs $FULL; touch $FULL/taken; $GPUVM \"$@\"; \
                  code=$?; ls $FULL; exit $code";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", script, "full"]);
    command.args(create("full", &dir, &["--no-start"]));
    command.env("GPUVM", env!("CARGO_BIN_EXE_gpuvm")).env("FULL", &dir);
    let (code, out, err) = run(command.env("LIBVIRT_DEFAULT_URI", daemon.uri()));
    assert_eq!((code, out.trim()), (1, "taken"), "{err}");
    assert!(err.contains("no space is left") && err.contains("--disk-dir"), "{err}");
    assert!(!daemon.virsh(&["dominfo", "full"]).0);
}

#[test]
fn a_create_whose_wait_is_ended_by_a_signal_leaves_the_guest_running() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("killed");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let disks = daemon.fresh_dir("killed-disks");
    let template = tiny.template.to_str().unwrap();
    // Without a NIC that gets an address it would wait forever; the signal comes while it waits.
    // What comes before undoes all of it (`abuse::machine`, `killed`).
    let more = ["--template", template, "--network", "private-net", "--wait", "3000"];
    let mut command = daemon.gpuvm(&create("killed", &disks, &more));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(600);
    let mut told = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    while !told.contains("waiting up to 3000 s") {
        assert!(Instant::now() < until, "it does not start: {told}");
        lines.read_line(&mut told).unwrap();
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGINT).unwrap();
    lines.read_to_string(&mut told).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{told}");
    for text in
        ["SIGINT: the wait ends; the guest stays", "`killed` runs on", "gpuvm ip killed --wait"]
    {
        assert!(told.contains(text), "no {text:?} in {told}");
    }
    assert!(String::from_utf8_lossy(&ended.stdout).contains("killed: create start mac:"));
    assert!(daemon.virsh(&["domstate", "killed"]).1.contains("running"), "it does not run");
    // Nothing of it is unfinished.
    let (code, _, err) = run(&mut daemon.gpuvm(&["delete", "killed", "--yes"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(files(&disks), [""; 0], "a disk is left");
}

#[test]
fn of_two_creates_of_one_name_exactly_one_is_done() {
    let Some(daemon) = daemon() else { return };
    let disks = daemon.fresh_dir("twice-disks");
    let args = create("twice", &disks, &["--no-start"]);
    let start = |_| {
        let mut command = daemon.gpuvm(&args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(start).collect();
    let ends: Vec<_> = children.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    let codes: Vec<i32> = ends.iter().map(|end| end.status.code().unwrap()).collect();
    let errs: String = ends.iter().map(|e| String::from_utf8_lossy(&e.stderr)).collect();
    assert_eq!(codes.iter().filter(|&&code| code == 0).count(), 1, "{codes:?}\n{errs}");
    assert_eq!(errs.matches("has a domain of this name").count(), 3, "{errs}");
    assert_eq!(files(&disks), ["twice.raw"]);
    let (code, _, err) = run(&mut daemon.gpuvm(&["delete", "twice", "--yes"]));
    assert_eq!(code, 0, "{err}");
    assert_eq!(files(&disks), [""; 0]);
}

#[test]
fn delete_asks_and_does_nothing_without_an_answer() {
    let Some(daemon) = daemon() else { return };
    let disks = daemon.fresh_dir("asked-disks");
    let (code, _, err) = run(&mut daemon.gpuvm(&create("asked", &disks, &["--no-start"])));
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(daemon.gpuvm(&["delete", "asked"]).stdin(Stdio::null()));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("will undefine domain `asked`") && err.contains("asked.raw"), "{err}");
    assert!(err.contains("--yes"), "{err}");
    // At a terminal: the wrong name, then the right one.
    for (answer, goes) in [("yes", false), ("asked", true)] {
        let line = format!("{} delete asked", env!("CARGO_BIN_EXE_gpuvm"));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("LIBVIRT_DEFAULT_URI", daemon.uri());
        script.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = script.spawn() else {
            return skip("script is not installed");
        };
        std::io::Write::write_all(
            &mut child.stdin.take().unwrap(),
            format!("{answer}\n").as_bytes(),
        )
        .unwrap();
        assert_eq!(child.wait().unwrap().success(), goes, "{answer}");
        assert_eq!(daemon.virsh(&["dominfo", "asked"]).0, !goes, "{answer}");
    }
    assert_eq!(files(&disks), [""; 0]);
}
