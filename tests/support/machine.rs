//! The program's files on a machine, and those for its boot, are private to a test run: each thread
//! of a test gets a mount namespace of its own, in which the run's directories are in place of the
//! machine's. So no test writes into those, whatever it does, also where it fails.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The directories of the machine that are private.
pub const PRIVATE: [&str; 8] = [
    "/run/gpuvm",
    "/var/lib/gpuvm",
    "/var/cache/gpuvm",
    "/etc/gpuvm",
    "/etc/systemd/system",
    "/etc/tmpfiles.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
];

/// The prefix of the directory's name of a test run.
const PREFIX: &str = "gpuvm-test-machine-";

thread_local! {
    /// Whether this thread has them.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Makes them private to this thread, and to the programs and threads that it starts from now on.
/// Without root there are none: the program then keeps all in the home directory.
pub fn enter() {
    if ENTERED.replace(true) || !nix::unistd::geteuid().is_root() {
        return;
    }
    // A test program that a test has started has them already, and reads in /proc/self/mountinfo
    // what its first thread sees.
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    if mounts.contains(PREFIX) {
        return;
    }
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        return; // A container without the right to: the tests that change something are skipped.
    }
    let none: Option<&Path> = None;
    // Mounts made here must not appear outside.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .expect("mounts are private");
    for place in PRIVATE {
        std::fs::create_dir_all(place).unwrap();
        let own = of_run().join(&place[1..]);
        mount(Some(&own), place, none, MsFlags::MS_BIND, none)
            .unwrap_or_else(|e| panic!("{place}: {e}"));
    }
}

/// The directory of this test run, which goes with it, however it ends.
pub fn of_run() -> &'static Path {
    /// Where it is.
    static DIR: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (dir, _) = DIR.get_or_init(|| {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap().keep();
        for place in PRIVATE {
            std::fs::create_dir_all(dir.join(&place[1..])).unwrap();
        }
        let mut goes = Command::new("sh");
        goes.args(["-c", "cat >/dev/null; rm -rf \"$0\""]).arg(&dir);
        // Its standard input closes when this process ends.
        (dir, goes.stdin(Stdio::piped()).spawn().unwrap())
    });
    dir
}

/// The files of the machine itself below these directories, as those see it who started the tests.
fn of_machine() -> Option<Vec<PathBuf>> {
    let root = PathBuf::from(format!("/proc/{}/root", std::os::unix::process::parent_id()));
    root.join("etc").read_dir().ok()?;
    let mut all = Vec::new();
    for place in PRIVATE {
        below(&root.join(&place[1..]), &mut all);
    }
    Some(all)
}

/// Adds the files below a directory.
fn below(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            below(&path, all);
        } else {
            all.push(path);
        }
    }
}

#[test]
fn nothing_is_written_into_the_machine_that_runs_the_tests() {
    use super::daemon::daemon;
    use super::run;
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("machine-images");
    let file = dir.join("private.raw");
    std::fs::write(&file, [1; 512]).unwrap();
    let disks = dir.to_str().unwrap();
    let name = "of-no-machine";
    let shape = "--virt-type qemu --pins none --vcpus 1 --memory 64M --no-start --os-size 1M";
    let mut create = vec!["create", "--name", name, "--disk-dir", disks, "--data-size", "none"];
    create.extend(shape.split(' '));
    for args in [&create[..], &["autostart", name, "on"]] {
        let (code, out, err) = run(&mut daemon.gpuvm(args));
        assert_eq!(code, 0, "{args:?}: {out}{err}");
    }
    let has = |dir: &str, what: &str| {
        let mut all = Vec::new();
        below(Path::new(dir), &mut all);
        all.iter().any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(what)))
    };
    // The user who runs the tests sees the files, and the machine does not.
    assert!(has("/var/lib/gpuvm", disks) && has("/etc/systemd/system", "gpuvm"));
    let found = of_machine().unwrap_or_default().into_iter().filter(|path| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(disks))
            || path.ends_with("gpuvm-recover.service")
    });
    let found: Vec<_> = found.collect();
    let (code, out, err) = run(&mut daemon.gpuvm(&["delete", name, "--yes"]));
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(found, [""; 0].map(PathBuf::from), "written into the machine itself");
}
