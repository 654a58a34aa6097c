//! A machine for a single test, on which runs are killed, signalled, halted or denied their journal
//! at any record, and everything that a change may leave is compared byte by byte.

use super::files;
use crate::support::daemon::Daemon;
use crate::support::{run, tamper};
use gpuvm::image::Sha256;
use nix::sys::signal::{Signal, kill};
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The directory of the pool for guests' boot disks.
pub const POOL_DIR: &str = "/var/lib/libvirt/gpuvm-guests";
/// An upper limit of the records of the longest change here.
pub const MOST: usize = 60;

/// The machine.
pub struct Place {
    /// Its libvirtd.
    pub daemon: Daemon,
    /// The directory for disks that are files.
    pub disks: PathBuf,
    /// The key of a guest that is made from an image.
    pub key: Option<String>,
    /// Whether the program runs in the network of its libvirtd, not in that of the tests.
    pub net: bool,
    /// A script that prepares the mounts that the program sees, and variables of its environment.
    pub before: Option<(String, Vec<(&'static str, String)>)>,
}

impl Place {
    /// Sets up the machine; none if this machine cannot have it.
    pub fn new() -> Option<Place> {
        Place::on(None)
    }

    /// Sets it up as if on the host recorded in this directory, if any.
    pub fn on(host: Option<&Path>) -> Option<Place> {
        let daemon = Daemon::own(host)?;
        let disks = daemon.fresh_dir("disks");
        Some(Place { daemon, disks, key: None, net: false, before: None })
    }

    /// Sets it up with an image `tiny` of 1 MiB without zero bytes.
    pub fn with_image() -> Option<Place> {
        let mut place = Place::new()?;
        let dir = place.daemon.fresh_dir("files");
        let (file, key) = (dir.join("tiny.img"), dir.join("key.pub"));
        let ed25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
        std::fs::write(&key, format!("ssh-ed25519 {ed25519} me@here\n")).unwrap();
        place.key = key.to_str().map(str::to_owned);
        std::fs::write(&file, vec![0x5a; 1 << 20]).unwrap();
        place.done(&["image", "add", file.to_str().unwrap()]);
        Some(place)
    }

    /// A program on its machine.
    pub fn within(&self, program: &str) -> Command {
        if let Some((script, variables)) = &self.before {
            let mut command = self.daemon.within("bash");
            command.args(["-ec", &format!("{script}; exec \"$@\""), "bash", program]);
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            return command;
        }
        if self.net { self.daemon.within_net(program) } else { self.daemon.within(program) }
    }

    /// The program with these arguments.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.within(env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Its exit code, standard output and standard error.
    pub fn gpuvm(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// Runs the program, which must succeed. Returns its standard output.
    pub fn done(&self, args: &[&str]) -> String {
        let (code, out, err) = self.gpuvm(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    /// Runs virsh, which must succeed.
    pub fn virsh(&self, args: &[&str]) -> String {
        let (done, text) = self.daemon.virsh(args);
        assert!(done, "{args:?}: {text}");
        text
    }

    /// The program, whose records in the journal are tampered with.
    fn tampered(&self, tamper: &str, log: Option<&Path>, args: &[&str]) -> Command {
        let mut command = self.within("env");
        command.args(tamper::variables(tamper, log)).arg(env!("CARGO_BIN_EXE_gpuvm"));
        command.args(args).stdin(Stdio::null());
        command
    }

    /// The program, whose records from the n-th on, or only that one, are tampered with:
    /// `signal=INT:when=3`, `error=ENOSPC:when=3+`.
    pub fn injected(&self, tamper: &str, args: &[&str]) -> (i32, String, String) {
        run(&mut self.tampered(tamper, None, args))
    }

    /// Runs the program, killed at the n-th record. Returns whether it completed before.
    pub fn killed(&self, n: usize, args: &[&str]) -> bool {
        let (code, out, err) = self.injected(&format!("signal=KILL:when={n}"), args);
        assert!(code == 0 || code == 137 || code == -1, "record {n}: {code}: {out}{err}");
        code == 0
    }

    /// Runs the program, halted at the n-th record while something else happens. Returns its exit
    /// code, standard output and standard error, or none if it completed before.
    pub fn halted(
        &self,
        n: usize,
        args: &[&str],
        meanwhile: impl FnOnce(&str),
    ) -> Option<(i32, String, String)> {
        let log = self.daemon.own_path("halted");
        std::fs::write(&log, "").unwrap();
        let tamper = format!("signal=STOP:when={n}");
        let mut command = self.tampered(&tamper, Some(&log), args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stopped = loop {
            if let Some(pid) = tamper::halted(&log) {
                break pid;
            }
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let journal = self.journal();
        meanwhile(&journal);
        kill(stopped, Signal::SIGCONT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Some((ended.status.code().unwrap_or(-1), text(ended.stdout), text(ended.stderr)))
    }

    /// The text of all journals.
    pub fn journal(&self) -> String {
        let dir = self.daemon.own_path("/var/lib/gpuvm/journal");
        files(&dir).iter().map(|file| std::fs::read_to_string(dir.join(file)).unwrap()).collect()
    }

    /// The arguments of a create of a guest, started, with `more`; where there is an image, with a
    /// seed and a data disk.
    pub fn create<'a>(&'a self, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-wait";
        let mut args = vec!["create", "--name", name];
        args.extend(shape.split(' '));
        if let Some(key) = &self.key {
            let disks = self.disks.to_str().unwrap();
            args.extend(["--ssh-key", key, "--data-size", "4M", "--data-dir", disks]);
        }
        args.extend(more);
        args
    }

    /// Whether a domain of this name is there.
    pub fn has(&self, name: &str) -> bool {
        self.daemon.virsh(&["dominfo", name]).0
    }

    /// Everything that a change may leave: domains, networks, pools with their volumes, journals;
    /// and of every file of libvirt's and of the disks' its owner, mode, size and a sum of its
    /// content.
    pub fn state(&self) -> String {
        // virsh takes longer to load than to answer: all names are queried at once, then everything
        // else.
        let lists =
            "list --all --name; echo '#'; net-list --all --name; echo '#'; pool-list --name";
        let lists = self.virsh(&[lists]);
        let asked: [&[&str]; 3] =
            [&["dumpxml --inactive", "domstate"], &["net-dumpxml"], &["vol-list"]];
        let mut script = vec!["pool-list --all".to_owned()];
        for (names, verbs) in lists.split('#').zip(asked) {
            for name in names.split_whitespace() {
                for verb in verbs {
                    script.extend([format!("echo '{verb} {name}: '"), format!("{verb} '{name}'")]);
                }
            }
        }
        let mut text = self.virsh(&[&script.join("; ")]);
        writeln!(text, "journal: {}", self.journal()).unwrap();
        for dir in [self.daemon.own_path("/var/lib/libvirt"), self.disks.clone()] {
            tree(&dir, &mut text);
        }
        tree(&self.daemon.inside("/etc/libvirt"), &mut text);
        text
    }

    /// Removes the guests' pool, which the first guest created and which must be empty.
    pub fn forget_pool(&self) {
        for verb in ["pool-destroy", "pool-delete", "pool-undefine"] {
            self.virsh(&[verb, "gpuvm-guests"]);
        }
    }

    /// Recovers interrupted changes, if any. Returns the output. A running guest is ended if the
    /// question comes.
    pub fn recover(&self) -> String {
        let (mut code, mut out, mut err) = self.gpuvm(&["recover"]);
        let asked =
            err.split("`gpuvm recover --end ").nth(1).and_then(|rest| rest.split('`').next());
        if let Some(name) = asked.map(str::to_owned) {
            assert_eq!(code, 1, "{out}{err}");
            (code, out, err) = self.gpuvm(&["recover", "--end", &name]);
        }
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(self.journal(), "", "a journal is left: {out}{err}");
        out + &err
    }
}

/// Writes the tree below a directory.
fn tree(dir: &Path, text: &mut String) {
    for name in files(dir) {
        let path = dir.join(&name);
        let meta = path.symlink_metadata().unwrap();
        // Leases and start time are dnsmasq's own state.
        if name == "dnsmasq" {
            continue;
        }
        write!(text, "{} {:o}", path.display(), meta.mode()).unwrap();
        // libvirt gives a running guest's backing files to QEMU's user, and does not revert that.
        if !path.parent().is_some_and(|dir| dir.ends_with("gpuvm-images")) {
            write!(text, " {}:{}", meta.uid(), meta.gid()).unwrap();
        }
        // A sparse disk is as large as a guest may make it, and not to be read.
        if meta.is_file() && meta.len() > 64 << 20 {
            write!(text, " {} of {}", meta.blocks(), meta.len()).unwrap();
        } else if meta.is_file() {
            // Optimized in every build, as the standard library's hasher is not.
            let sum = Sha256::of_bytes(&std::fs::read(&path).unwrap());
            write!(text, " {} {sum}", meta.len()).unwrap();
        }
        text.push('\n');
        if meta.is_dir() {
            tree(&path, text);
        }
    }
}

/// Waits until something holds.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !holds() {
        assert!(Instant::now() < end, "{what}: never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Expects two states to be the same, and reports only the differences.
pub fn same(before: &str, after: &str, said: &str) {
    if before != after {
        let differ = |a: &str, b: &str| {
            a.lines().filter(|line| !b.lines().any(|l| l == *line)).collect::<Vec<_>>().join("\n")
        };
        panic!("{said}\ngone:\n{}\nnew:\n{}", differ(before, after), differ(after, before));
    }
}
