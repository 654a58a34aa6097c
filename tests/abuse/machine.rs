//! Connections to other machines, libvirt daemons that are frozen, and machines without libvirt.

use crate::support::daemon::Daemon;
use crate::support::{project, run, skip, tamper};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program.
const GPUVM: &str = env!("CARGO_BIN_EXE_gpuvm");
/// The name of the other machine.
const NAME: &str = "other-host";
/// A guest without devices.
const SHAPE: &str = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-start --no-seed";

/// Another machine, and the program here.
struct Other {
    /// Its libvirtd; the program's lock and journals are beside it, so that no other test sees
    /// them.
    daemon: Daemon,
    /// A directory that is the same path on both.
    dir: PathBuf,
    /// A record of its host.
    record: String,
}

impl Other {
    /// Sets up the machine.
    fn new() -> Option<Other> {
        let daemon = Daemon::elsewhere(NAME)?;
        let dir = daemon.fresh_dir("files");
        let record = dir.join("host.json").to_str().unwrap().to_owned();
        let (code, _, err) = run(daemon.within(GPUVM).args(["host", "capture", &record]));
        // The machine's own connection leads to another machine, and a capture still records this
        // one.
        assert_eq!(code, 0, "{err}");
        Some(Other { daemon, dir, record })
    }

    /// The program here, connected there.
    fn here(&self, args: &[&str]) -> (i32, String, String) {
        let uri = self.daemon.uri();
        run(self.daemon.within(GPUVM).args(["--connect", &uri]).args(args).stdin(Stdio::null()))
    }

    /// The program on the other machine.
    fn there(&self, args: &[&str]) -> (i32, String, String) {
        let all = ["--mount", "--net", "--uts", "--pid"];
        run(self.daemon.enter(&all, GPUVM).args(args).stdin(Stdio::null()))
    }

    /// The arguments of a create.
    fn create<'a>(&'a self, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["create", "--name", name];
        args.extend(SHAPE.split(' '));
        args.extend(more);
        args
    }

    /// Creates a guest on the other machine, with its disk in the directory.
    fn made(&self, name: &str) {
        let args =
            self.create(name, &["--os-size", "1M", "--disk-dir", self.dir.to_str().unwrap()]);
        let (code, out, err) = self.there(&args);
        assert_eq!(code, 0, "{out}{err}");
    }

    /// A `delete` from here that is stopped at its `when`-th journal write. Returns its process ID
    /// and the child.
    fn halted_delete(&self, name: &str, when: u32) -> (Pid, Child) {
        let log = self.dir.join("halted");
        let mut delete = self.daemon.within("env");
        delete.args(tamper::variables(&format!("signal=STOP:when={when}"), Some(&log)));
        delete.args([GPUVM, "--connect", &self.daemon.uri(), "delete", name, "--yes"]);
        delete.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = delete.spawn().unwrap();
        (stopped(&log), child)
    }

    /// A replacement for ssh that enters the other machine's namespaces instead of using a network,
    /// and runs the same command there; `logged`: the text that it logs of each call;
    /// `environment`: the variables it sets.
    fn fake_ssh(&self, logged: &str, environment: &str) -> (PathBuf, PathBuf) {
        let (fake, log) = (self.dir.join("ssh"), self.dir.join("ssh.log"));
        let first = self.daemon.inside("/");
        let first = first.parent().and_then(Path::file_name).unwrap().to_str().unwrap();
        let script = format!(
            "#!/bin/sh\necho \"{logged}\" >>{log}\nwhile [ \"$1\" != -- ]; do shift; done; shift \
             2\n\
             exec nsenter --mount --net --uts --pid --target {first} {environment} sh -c \"$*\"\n",
            log = log.display(),
        );
        write_program(&fake, &script);
        (fake, log)
    }

    /// Whether a domain exists there.
    fn has(&self, name: &str) -> bool {
        self.daemon.virsh(&["dominfo", name]).0
    }

    /// The journals that are left here.
    fn journals(&self) -> PathBuf {
        self.daemon.own_path("/var/lib/gpuvm/journal")
    }

    /// The process ID of its libvirtd, as seen from outside.
    fn libvirtd(&self) -> Pid {
        self.daemon.libvirtd()
    }
}

/// Writes a program.
fn write_program(path: &Path, script: &str) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Stops a libvirtd; it continues when this is dropped.
pub(super) struct Frozen(Pid);

impl Frozen {
    /// Stops it.
    pub fn new(pid: Pid) -> Frozen {
        kill(pid, Signal::SIGSTOP).unwrap();
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[test]
fn a_change_on_another_machine_leaves_the_files_of_this_one() {
    let Some(other) = Other::new() else { return };
    let dir = other.dir.to_str().unwrap();
    other.made("train-a");
    let disk = other.dir.join("train-a.raw");
    assert!(disk.exists());
    // The same path is a file of this machine; for libvirt's machine it is another machine's file.
    let (code, out, err) = other.here(&["delete", "train-a", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!other.has("train-a") && disk.exists(), "{err}");
    for text in [NAME, "train-a.raw stays", "ssh other-host rm -i -- "] {
        assert!(err.contains(text), "no `{text}` in: {err}");
    }
    // A file there cannot be created from here, and nothing begins.
    for more in [&["--disk-dir", dir][..], &["--disk", disk.to_str().unwrap()]] {
        let args = [&["--host", &other.record], &other.create("train-b", more)[..]].concat();
        let (code, out, err) = other.here(&args);
        assert!(code == 1 && err.contains("ssh other-host gpuvm create"), "{code} {out}{err}");
        assert!(!other.dir.join("train-b.raw").exists() && !other.has("train-b"));
    }
    let (code, _, err) =
        other.here(&["host", "pages", "--node", "0", "--size", "2M", "--count", "1"]);
    assert!(code == 2 && err.contains("is of machine `other-host`"), "{err}");
}

#[test]
fn volumes_of_another_machine_are_made_and_deleted_through_its_libvirt() {
    let Some(other) = Other::new() else { return };
    let image = other.dir.join("tiny.img");
    std::fs::write(&image, vec![0x5a; 1 << 20]).unwrap();
    let (code, out, err) = other.here(&["image", "add", image.to_str().unwrap()]);
    assert_eq!(code, 0, "{out}{err}");
    let more = ["--image", "tiny", "--os-size", "2M", "--data-size", "none"];
    let args = [&["--host", &other.record], &other.create("train-v", &more)[..]].concat();
    let (code, out, err) = other.here(&args);
    assert_eq!(code, 0, "{out}{err}");
    let volumes = || other.daemon.virsh(&["vol-list", "gpuvm-guests"]).1;
    assert!(other.has("train-v") && volumes().contains("train-v.os"), "{}", volumes());
    let (code, out, err) = other.here(&["delete", "train-v", "--yes"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!other.has("train-v") && !volumes().contains("train-v"), "{} {err}", volumes());
    assert!(!err.contains("stays"), "{err}");
}

#[test]
fn recover_leaves_files_here_to_a_change_elsewhere() {
    let Some(other) = Other::new() else { return };
    let disk = other.dir.join("mine.raw");
    std::fs::write(&disk, b"of this machine").unwrap();
    std::fs::create_dir_all(other.journals()).unwrap();
    let journal = other.journals().join("1-0.jsonl");
    let uri = other.daemon.uri();
    let path = disk.display();
    // A journal of the previous version, which created its files here; and one of a third machine.
    let third = r#","machine":{"host":"third","uuid":"00000000-0000-0000-0000-000000000001"}"#;
    for (machine, said) in [("", "it is on machine `other-host`"), (third, "machine `third`")] {
        let change = format!(
            "{{\"change\":{{\"format\":1,\"verb\":\"create\",\"subject\":\"x\",\"uri\":\"{uri}\",\
             \"pid\":1{machine}}}}}\n{{\"plan\":[{{\"step\":\"create-disk\",\"path\":\"{path}\",\
             \"bytes\":15}}]}}\n{{\"begin\":0}}\n{{\"done\":0}}\n"
        );
        std::fs::write(&journal, change).unwrap();
        let (code, out, err) = other.here(&["recover"]);
        assert!(disk.exists(), "{out}{err}");
        assert!(code == 1 && err.contains(said), "{code} {out}{err}");
        assert!(journal.exists(), "its journal is gone: {err}");
    }
}

#[test]
fn the_layout_of_another_machine_is_its_own_or_refused() {
    let Some(other) = Other::new() else { return };
    let wish = ["--vcpus", "1", "--memory", "256M", "--pins", "none"];
    for verb in ["plan", "export", "capacity"] {
        let wish = if verb == "capacity" { &[][..] } else { &wish[..] };
        let (code, out, err) = other.here(&[&[verb], wish].concat());
        assert!(code == 1 && out.is_empty(), "{verb}: {code} {out}{err}");
        for text in ["ssh other-host gpuvm host capture -", "--host host.json", NAME] {
            assert!(err.contains(text), "{verb}: no `{text}` in: {err}");
        }
        let (code, _, err) = other.here(&[&[verb, "--host", &other.record], wish].concat());
        assert_eq!(code, 0, "{verb}: {err}");
    }
    // A record that names its machine must be of that machine.
    let text = std::fs::read_to_string(&other.record).unwrap();
    let named = |name: &str| {
        text.replacen(
            "{\n    \"machine\": {",
            &format!("{{\n    \"machine\": {{ \"host_name\": \"{name}\","),
            1,
        )
    };
    for (name, code) in [("third", 1), (NAME, 0)] {
        std::fs::write(&other.record, named(name)).unwrap();
        let (found, _, err) = other.here(&["capacity", "--host", &other.record]);
        assert!(found == code && (code == 0) != err.contains("record of machine `third`"), "{err}");
    }
}

#[test]
fn the_doctor_of_another_machine_never_judges_this_one() {
    let Some(other) = Other::new() else { return };
    let (code, out, err) = other.here(&["host", "doctor"]);
    assert!(code == 1 && out.is_empty() && err.contains(NAME), "{code} {out}{err}");
    assert!(err.contains("ssh other-host gpuvm host capture -"), "{err}");
    // Beside a record of it, only what that says is known: whatever this machine merges.
    let mut record: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&other.record).unwrap()).unwrap();
    for ksm in [Some(true), None] {
        record["host"]["facts"] = serde_json::json!({ "kernel": { "ksm": ksm } });
        std::fs::write(&other.record, record.to_string()).unwrap();
        let (_, out, err) = other.here(&["host", "doctor", "--json", "--host", &other.record]);
        let answer: serde_json::Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
        assert_eq!(answer["findings"].to_string().contains(r#""rule":"ksm""#), ksm.is_some());
        let not_checked = answer["not_checked"].to_string();
        assert_eq!(not_checked.contains("ksm ("), ksm.is_none(), "{not_checked}");
        // Nor are files of this machine known of it.
        assert!(
            not_checked.contains("memlock (/etc/systemd/system is not known)"),
            "{not_checked}"
        );
    }
}

#[test]
fn the_layout_of_another_machine_is_read_by_ssh_as_libvirt_connects() {
    let Some(other) = Other::new() else { return };
    let bin = Path::new(GPUVM).parent().unwrap().display();
    let (fake, log) = other.fake_ssh("$SSH_AUTH_SOCK $*", &format!("env PATH={bin}:$PATH"));
    let mount = format!("mount --bind {} /usr/bin/ssh && exec \"$@\"", fake.display());
    let by_ssh = |uri: &str, args: &[&str]| {
        let mut command = other.daemon.within("sh");
        command.env("SSH_AUTH_SOCK", "/run/agent");
        command.args(["-c", &mount, "sh", GPUVM, "--connect", uri]).args(args);
        run(&mut command)
    };
    let uri = "qemu+ssh://me@other-host:2222/system";
    let wish = ["plan", "--vcpus", "1", "--memory", "256M", "--pins", "none"];
    let (code, out, err) = by_ssh(uri, &wish);
    assert!(code == 0 && out.contains("1 socket"), "{code} {out}{err}");
    let said = std::fs::read_to_string(&log).unwrap();
    let asked = "-p 2222 -l me -- other-host gpuvm host capture -";
    // With the caller's keys, as libvirt's own ssh has them.
    let ours = |line: &str| line.starts_with("/run/agent ") && line.ends_with(asked);
    assert!(said.lines().any(ours), "{said}");
    let (code, shown, err) = by_ssh(uri, &["host", "show"]);
    assert!(code == 0 && shown.contains("Nodes"), "{code} {shown}{err}");
}

#[test]
fn offered_commands_lead_to_their_machine() {
    let Some(other) = Other::new() else { return };
    let (code, _, err) = other.here(&["show", "nobody"]);
    let led = format!("`gpuvm list --connect '{}'`", other.daemon.uri());
    assert!(code == 1 && err.contains(&led), "no {led} in: {err}");
    // A record of this machine would be mistaken for one of the other.
    let (code, out, err) = other.here(&["host", "capture", "-"]);
    assert!(code == 1 && out.is_empty() && err.contains("ssh other-host gpuvm"), "{code} {err}");
}

#[test]
fn networks_of_another_machine_are_changed_and_nothing_is_kept_here() {
    let Some(other) = Other::new() else { return };
    let create = ["network", "create", "lab", "--kind", "private", "--yes"];
    let again = [&create[..], &["--replace", "--range", "10.98.0.0/24"]].concat();
    for args in [&create[..], &again, &["network", "delete", "lab", "--yes"]] {
        let (code, out, err) = other.here(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
    }
    assert!(!other.daemon.virsh(&["net-info", "lab"]).0, "it is there still");
    assert!(!other.daemon.own_path("/var/lib/gpuvm/networks").exists(), "something is kept here");
    let (code, _, err) = other.here(&["network", "undo", "lab"]);
    assert!(code == 1 && err.contains("`ssh other-host gpuvm network undo lab`"), "{code} {err}");
}

#[test]
fn a_frozen_libvirtd_ends_every_verb_and_a_signal_ends_it_sooner() {
    let Some(other) = Other::new() else { return };
    other.made("cold");
    let uri = other.daemon.uri();
    // One is connected already, and halted before its first step.
    let (pid, halted) = other.halted_delete("cold", 2);
    let frozen = Frozen::new(other.libvirtd());
    kill(pid, Signal::SIGCONT).unwrap();
    let begun = Instant::now();
    let run = |args: &[&str]| {
        let mut command = other.daemon.within(GPUVM);
        command.args(["--connect", &uri]).args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Nothing has begun, so a signal ends it like any program.
    let signalled = run(&["list"]);
    std::thread::sleep(Duration::from_secs(2));
    kill(Pid::from_raw(signalled.id().cast_signed()), Signal::SIGTERM).unwrap();
    let ended = signalled.wait_with_output().unwrap();
    assert!(ended.status.code().is_none() && begun.elapsed() < Duration::from_secs(20));
    let verbs: [&[&str]; 4] =
        [&["list"], &["show", "cold"], &["start", "cold"], &["plan", "--vcpus", "1"]];
    let all: Vec<_> = verbs.iter().map(|args| (args, run(args))).collect();
    for (args, child) in all {
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            ended.status.code() == Some(1) && err.contains("has not answered"),
            "{args:?} {err}"
        );
    }
    let ended = halted.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && err.contains("has not answered"), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    drop(frozen);
    assert!(other.has("cold"), "{err}");
}

#[test]
fn a_second_signal_ends_a_change_that_waits_and_its_journal_stays() {
    let Some(other) = Other::new() else { return };
    other.made("slow");
    let (pid, delete) = other.halted_delete("slow", 3);
    let _frozen = Frozen::new(other.libvirtd());
    kill(pid, Signal::SIGCONT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    kill(pid, Signal::SIGTERM).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    kill(pid, Signal::SIGTERM).unwrap();
    let ended = delete.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?} {err}", begun.elapsed());
    assert!(err.contains("another signal ends gpuvm") && err.contains("SIGTERM again"), "{err}");
    assert_eq!(std::fs::read_dir(other.journals()).unwrap().count(), 1, "{err}");
}

/// Waits until a program is halted at a record of its journal, and returns its number.
fn stopped(log: &Path) -> Pid {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(pid) = tamper::halted(log) {
            return pid;
        }
        assert!(Instant::now() < until, "it does not come to its journal");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn reading_verbs_answer_without_libvirt() {
    if !crate::support::daemon::namespaces() {
        return skip("namespaces need root");
    }
    // libvirt's library and its socket are gone, one after the other.
    let no_library = "for lib in /usr/lib/*/libvirt.so.0 /usr/lib64/libvirt.so.0; do [ ! -e $lib ] \
                      || mount --bind /dev/null $lib || exit 9; done; ";
    let no_daemon = "mkdir -p /run/libvirt; mount -t tmpfs none /run/libvirt; ";
    let wish: &[&str] = &["--vcpus", "1", "--memory", "256M", "--pins", "none"];
    let verbs: [&[&str]; 7] = [
        &["gpu", "list"],
        &["device", "list"],
        &["nic", "list"],
        &["drive", "list"],
        &["capacity"],
        &["plan"],
        &["export"],
    ];
    let run_without = |without: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c"]);
        command.arg(format!("{without} exec \"$@\"")).arg("sh").arg(GPUVM).args(args);
        command.args(["--connect", "qemu:///system"]).current_dir(project());
        run(command.env("LC_ALL", "C").stdin(Stdio::null()))
    };
    for without in [no_library, no_daemon] {
        for verb in verbs {
            let wish = if matches!(verb, ["plan"] | ["export"]) { wish } else { &[] };
            let (code, out, err) = run_without(without, &[verb, wish].concat());
            assert_eq!(code, 0, "{verb:?}: {out}{err}");
            let told = err.matches("guests were not examined").count();
            assert_eq!(told, 1, "{verb:?}: {err}");
        }
        let (_, json, err) = run_without(without, &[&["plan", "--json"], wish].concat());
        assert!(json.contains("guests were not examined"), "{json}{err}");
        let create = [&["create", "--name", "x", "--no-start"], wish].concat();
        let (code, out, err) = run_without(without, &create);
        assert!(
            code == 1 && out.is_empty() && err.contains("connect to qemu"),
            "{code} {out}{err}"
        );
    }
}

/// Passes connections on to another socket, as ssh does: the kernel reports this process as the
/// peer.
fn forward(from: &Path, to: PathBuf) {
    let listener = UnixListener::bind(from).unwrap();
    std::thread::spawn(move || {
        for mut here in listener.incoming().map_while(Result::ok) {
            let Ok(mut there) = UnixStream::connect(&to) else { continue };
            let (mut back, mut answer) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut here, &mut there);
                let _ = there.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answer, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Both);
            });
        }
    });
}

#[test]
fn placeholder_uuids_of_boards_identify_no_machine() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let Some(daemon) = Daemon::elsewhere(name.trim()) else { return };
    let configuration = "/etc/libvirt/libvirtd.conf";
    if !Path::new(configuration).exists() {
        return skip(format!("no {configuration} that this machine's could stand over"));
    }
    let dir = daemon.fresh_dir("files");
    let socket = dir.join("forwarded");
    forward(&socket, daemon.uri().split_once("socket=").unwrap().1.into());
    let theirs = daemon.inside(configuration);
    let before = std::fs::read_to_string(&theirs).unwrap();
    let before: Vec<&str> = before.lines().filter(|line| !line.starts_with("host_uuid")).collect();
    let uri = format!("qemu+unix:///system?socket={}", socket.display());
    let is_here = |uuid: &str| {
        let text = format!("{}\nhost_uuid = \"{uuid}\"\n", before.join("\n"));
        std::fs::write(&theirs, text).unwrap();
        daemon.restart();
        // This machine has the same identity.
        let ours = dir.join("ours.conf");
        std::fs::write(&ours, format!("host_uuid = \"{uuid}\"\n")).unwrap();
        let script = format!("mount --bind {} {configuration} && exec \"$@\"", ours.display());
        let mut command = daemon.within("sh");
        command.args(["-c", &script, "sh", GPUVM, "--connect", &uri]);
        command.args(["plan", "--vcpus", "1", "--memory", "256M", "--pins", "none"]);
        let (code, out, err) = run(command.stdin(Stdio::null()));
        assert!(code == 0 || err.contains("leads to machine"), "{code}: {out}{err}");
        code == 0
    };
    assert!(is_here("0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"), "one UUID, one name: one machine");
    let boards = [
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
    ];
    for board in boards {
        assert!(!is_here(board), "{board}");
    }
}

#[test]
fn no_part_of_a_uri_becomes_a_command() {
    let Some(other) = Other::new() else { return };
    // It enters the other machine, whatever its name.
    let (fake, log) = other.fake_ssh("$*", "");
    let made = other.dir.join("made");
    // A program `ssh` in the caller's PATH is not run.
    let evil = other.dir.join("evil");
    std::fs::create_dir(&evil).unwrap();
    let stolen = other.dir.join("stolen");
    write_program(&evil.join("ssh"), &format!("#!/bin/sh\n: >{}\nexit 1\n", stolen.display()));
    let mount = format!(
        "mount --bind {} /usr/bin/ssh && export PATH={}:$PATH && exec \"$@\"",
        fake.display(),
        evil.display()
    );
    let touch = format!("touch${{IFS}}{}", made.display());
    for uri in [
        format!("qemu+ssh://$({touch})@other-host/system"),
        format!("qemu+ssh://me@$({touch})/system"),
        format!("qemu+ssh://me@other-host;{touch};/system"),
        format!("qemu+ssh://`{touch}`@other-host/system"),
        "qemu+ssh://-oProxyCommand=x@other-host/system".to_owned(),
    ] {
        let mut command = other.daemon.within("sh");
        command.args(["-c", &mount, "sh", GPUVM, "--connect", &uri]);
        command.args(["plan", "--vcpus", "1", "--memory", "256M", "--pins", "none"]);
        let (code, out, err) = run(command.stdin(Stdio::null()));
        assert!(code == 1 && out.is_empty(), "{uri}: {code} {out}{err}");
        assert!(!made.exists(), "{uri}: {err}");
        // The suggested commands are safe to paste as well.
        for offered in err.split('`').skip(1).step_by(2).filter(|text| text.starts_with("ssh ")) {
            let mut bash = Command::new("bash");
            bash.args(["-c", &format!("ssh() {{ :; }}; {offered}")]).current_dir(&other.dir);
            run(&mut bash);
            assert!(!made.exists(), "{uri}: `{offered}`");
        }
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(!said.contains("gpuvm host capture"), "{said}");
    assert!(!stolen.exists(), "the caller's PATH chose the ssh");
}

#[test]
fn libvirt_outside_of_this_container_is_of_another_machine() {
    let Some(daemon) = Daemon::own(None) else { return };
    let disks = daemon.fresh_dir("disks");
    let dir = disks.to_str().unwrap();
    let socket = daemon.uri().split_once("socket=").unwrap().1.to_owned();
    let socket = Path::new(&socket).parent().unwrap().to_owned();
    // libvirt's own socket, as it is handed to containers.
    let own = format!(
        "mkdir -p /run/libvirt; mount --bind {} /run/libvirt && exec \"$@\"",
        socket.display()
    );
    let create = |prefix: &[&str], name: &str| {
        let mut command = daemon.within("sh");
        command.args(["-c", &own, "sh"]).args(prefix).arg(GPUVM);
        command.args(["--connect", "qemu:///system", "create", "--name", name]);
        command.args(SHAPE.split(' ')).args(["--os-size", "1M", "--disk-dir", dir]);
        run(command.stdin(Stdio::null()))
    };
    let (code, out, err) = create(&[], "inside");
    assert_eq!(code, 0, "{out}{err}");
    let container = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (code, out, err) = create(&container, "outside");
    assert!(code == 1 && err.contains("machine"), "{code} {out}{err}");
    assert!(!disks.join("outside.raw").exists() && !daemon.virsh(&["dominfo", "outside"]).0);
}
