//! `top` on a real libvirtd: two guests whose vCPUs are busy on one pcpu, and the ways out of the
//! screen.

use crate::schemas::faults;
use crate::support::daemon::Daemon;
use crate::support::run;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A boot sector that runs in a circle: `cli; jmp $-1`.
fn busy() -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[..3].copy_from_slice(&[0xfa, 0xeb, 0xfd]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector.resize(1 << 20, 0);
    sector
}

/// A libvirtd with guests that are busy on pcpu 0.
struct Busy(Daemon);

impl Busy {
    fn new(names: &[&str]) -> Option<Busy> {
        let daemon = Daemon::own(None)?;
        let dir = daemon.fresh_dir("top");
        for name in names {
            let disk = dir.join(format!("{name}.raw"));
            std::fs::write(&disk, busy()).unwrap();
            let file = dir.join(format!("{name}.xml"));
            let xml = format!(
                "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>\
                 <vcpu>1</vcpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>\
                 <os><type machine='pc'>hvm</type></os><devices>\
                 <disk type='file'><driver type='raw'/><source file='{}'/>\
                 <target dev='hda' bus='ide'/></disk><memballoon model='none'/></devices></domain>",
                disk.display()
            );
            std::fs::write(&file, xml).unwrap();
            let (done, text) = daemon.virsh(&["create", file.to_str().unwrap()]);
            assert!(done, "{text}");
        }
        Some(Busy(daemon))
    }

    /// The program where its libvirtd is: it sees the same mounts and processes.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.enter(&["--mount", "--pid"], env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args).stdin(Stdio::null());
        command.env("LIBVIRT_DEFAULT_URI", self.0.uri()).env("LC_ALL", "C");
        command
    }

    fn gpuvm(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// The document of one sample in which both guests are busy.
    fn sampled(&self) -> Value {
        let until = Instant::now() + Duration::from_secs(180);
        loop {
            let (code, out, err) = self.gpuvm(&["top", "--json", "--once"]);
            let document: Value =
                serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}"));
            assert_eq!(faults("gpuvm-top", &document), "");
            let guests = document["guests"].as_array().unwrap();
            let waits = |guest: &Value| guest["wait_ratio"].as_f64().unwrap() > 0.2;
            if code == 3 && guests.len() == 2 && guests.iter().all(waits) {
                return document;
            }
            assert!(Instant::now() < until, "{code}: {document:#}");
        }
    }
}

#[test]
fn two_busy_guests_on_one_pcpu_are_found_to_wait_for_each_other() {
    let Some(busy) = Busy::new(&["one", "two"]) else { return };
    let document = busy.sampled();
    let guest = document["guests"].as_array().unwrap().iter().find(|guest| guest["name"] == "one");
    let guest = guest.unwrap();
    let findings = guest["findings"].as_array().unwrap();
    let waits = findings.iter().find(|finding| finding["rule"] == "vcpu-waits").unwrap();
    assert_eq!(waits["severity"], "warning", "{waits}");
    let says = waits["message"].as_str().unwrap();
    assert!(says.contains("on pcpu 0 also") && says.contains("vCPU 0 of `two`"), "{says}");
    let vcpu = &guest["threads"][0];
    assert_eq!((&vcpu["kind"], &vcpu["index"]), (&Value::from("vcpu"), &Value::from(0)));
    assert_eq!((&vcpu["pcpus"], &vcpu["last_pcpu"]), (&Value::from("0"), &Value::from(0)));

    let mut narrow = busy.command(&["top", "--sort", "name"]);
    let (code, out, err) = run(narrow.env("COLUMNS", "80"));
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    for part in ["2 guests, 1 of", "NAME ", "WAIT%", "\nwarning: one: vCPU 0 waits", "  hint: "] {
        assert!(out.contains(part), "{part}:\n{out}");
    }
    let (code, out, err) = busy.gpuvm(&["top", "--why", "two"]);
    assert!(
        code == 3 && out.contains("vCPU 0 of `one`") && !out.contains("warning: one"),
        "{out}{err}"
    );
    let (code, out, err) = busy.gpuvm(&["verify", "one", "--sample", "1", "--agent-wait", "0"]);
    assert!(code == 3 && out.contains("(vcpu-waits)"), "{out}{err}");

    // A document in a line for each interval; a guest that ends is not in the next one.
    let mut lines = busy.command(&["top", "--json", "--interval", "0.5"]);
    let mut lines = lines.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(lines.stdout.take().unwrap()).lines();
    let mut names = || {
        let document: Value = serde_json::from_str(&said.next().unwrap().unwrap()).unwrap();
        assert_eq!(faults("gpuvm-top", &document), "");
        let guests = document["guests"].as_array().unwrap().iter();
        guests.map(|guest| guest["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names().len(), 2);
    assert!(busy.0.virsh(&["destroy", "two"]).0);
    let until = Instant::now() + Duration::from_secs(30);
    while names() != ["one"] {
        assert!(Instant::now() < until, "it is still shown");
    }
    lines.kill().unwrap();
    lines.wait().unwrap();

    for (args, expected, part) in [
        (&["top", "two"][..], 1, "there is no domain `two`"),
        (&["top", "one", "--why", "one"], 2, "cannot be used with"),
        (&["top", "--interval", "0"], 2, "out of range"),
        (&["top", "--host", "topologies/dgx-2.json"], 2, "does not take --host"),
        (&["top", "--connect", "test:///default"], 1, "test driver"),
    ] {
        let (code, out, err) = busy.gpuvm(args);
        assert!(code == expected && out.is_empty() && err.contains(part), "{args:?}: {code} {err}");
    }
}

/// The terminal of a `top`, and all that it has drawn.
struct Screen {
    terminal: std::fs::File,
    drawn: Vec<u8>,
}

impl Screen {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drawn).into_owned()
    }

    /// Reads until it has drawn this.
    fn until(&mut self, words: &str) {
        let mut buffer = [0; 4096];
        while !self.text().contains(words) {
            let got = self.terminal.read(&mut buffer).unwrap();
            self.drawn.extend_from_slice(&buffer[..got]);
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.terminal.write_all(keys).unwrap();
    }
}

/// Runs `top` at a terminal until it draws, and returns its screen once it has ended.
fn at_a_terminal(busy: &Busy, leave: impl FnOnce(&std::process::Child, &mut Screen)) -> String {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None).unwrap();
    let before = tcgetattr(&pty.slave).unwrap();
    let mut top = busy.command(&["top", "--interval", "0.5"]);
    let [input, output] = [(); 2].map(|()| pty.slave.try_clone().unwrap());
    let mut top = top.stdin(input).stdout(output).env_remove("COLUMNS").spawn().unwrap();
    let mut screen = Screen { terminal: std::fs::File::from(pty.master), drawn: Vec::new() };
    screen.until("one ");
    let flags = tcgetattr(&pty.slave).unwrap().local_flags;
    assert!(!flags.contains(LocalFlags::ICANON), "the terminal is raw");
    leave(&top, &mut screen);
    screen.until("\x1b[?1049l");
    assert_eq!(top.wait().unwrap().code(), Some(0), "{}", screen.text());
    assert_eq!(tcgetattr(&pty.slave).unwrap(), before, "the terminal is as before");
    screen.text()
}

#[test]
fn the_terminal_is_restored_however_the_screen_is_left() {
    let Some(busy) = Busy::new(&["one"]) else { return };
    let drawn = at_a_terminal(&busy, |_, screen| {
        for (keys, words) in [("\x1b[B", ">one"), ("s", "order: name"), ("n", "as of now")] {
            screen.press(keys.as_bytes());
            screen.until(words);
        }
        screen.press(b"q");
    });
    assert!(drawn.contains("\x1b[?1049h"), "{drawn}");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        at_a_terminal(&busy, |top, _| {
            // `nsenter` waits for the program.
            let children = format!("/proc/{0}/task/{0}/children", top.id());
            let child = std::fs::read_to_string(children).unwrap();
            kill(Pid::from_raw(child.trim().parse().unwrap()), signal).unwrap();
        });
    }
    at_a_terminal(&busy, |_, screen| screen.press(b"\x03"));
    at_a_terminal(&busy, |_, screen| {
        screen.press(b"\r");
        screen.until("rules checked");
        screen.press(b"xq");
    });
}

#[test]
fn the_screen_goes_on_while_libvirt_does_not_answer() {
    let Some(busy) = Busy::new(&["one"]) else { return };
    let daemon = busy.0.libvirtd();
    let drawn = at_a_terminal(&busy, |_, screen| {
        kill(daemon, Signal::SIGSTOP).unwrap();
        // The list of guests is read every 5 s.
        std::thread::sleep(Duration::from_secs(10));
        screen.press(b"s");
        std::thread::sleep(Duration::from_secs(1));
        screen.press(b"q");
    });
    kill(daemon, Signal::SIGCONT).unwrap();
    assert!(drawn.contains("s: libvirt or the kernel does not answer"), "{drawn}");
}

#[test]
fn guests_of_another_machine_are_refused_with_the_command_there() {
    let Some(daemon) = Daemon::elsewhere("far-host") else { return };
    let (code, out, err) = run(&mut daemon.gpuvm(&["top"]));
    assert!(code == 1 && out.is_empty(), "{code} {out}{err}");
    assert!(
        err.contains("run on machine `far-host`") && err.contains("`ssh far-host gpuvm top`"),
        "{err}"
    );
}
