//! A change that is killed at every record of its journal, one run for each, and what `recover` makes of it. The kill
//! comes from outside: strace ends the process when it makes the n-th `fdatasync`, which only the journal does.

use super::files;
use super::imagefail::{long_image, stopped_at};
use crate::support::daemon::{Daemon, daemon, skip};
use crate::support::run;
use gpuvm::cli::image::resolve;
use gpuvm::hypervisor::libvirt::Libvirt;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Records that the longest change here writes, with room to spare.
const MOST: usize = 40;

/// Is the place of one test on the daemon: a URI of its own, so that its killed changes hold up nobody else's.
struct Place {
    /// The daemon.
    daemon: &'static Daemon,
    /// Its URI under another name.
    uri: String,
    /// Where new disks go.
    disks: PathBuf,
    /// Held by one test at a time: `recover` takes up every change of the machine that was killed.
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    /// Makes the place; none where the machine cannot have it.
    fn new(name: &str) -> Option<Place> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let daemon = daemon()?;
        if !Command::new("strace").arg("-V").output().is_ok_and(|out| out.status.success()) {
            return skip("strace is not installed");
        }
        let alias = daemon.fresh_dir(name);
        let uri = daemon.uri();
        let (scheme, socket) = uri.split_once("socket=").unwrap();
        std::os::unix::fs::symlink(socket, alias.join("sock")).unwrap();
        let uri = format!("{scheme}socket={}", alias.join("sock").display());
        Some(Place {
            daemon,
            uri,
            disks: daemon.fresh_dir(&format!("{name}-disks")),
            _alone: alone,
        })
    }

    /// The program with these arguments.
    fn gpuvm(&self, args: &[&str]) -> (i32, String, String) {
        run(self.daemon.gpuvm(args).env("LIBVIRT_DEFAULT_URI", &self.uri))
    }

    /// The program, killed at the n-th record; whether it came to its end before.
    fn killed(&self, n: usize, args: &[&str]) -> bool {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"]);
        strace.arg(format!("inject=fdatasync:signal=KILL:when={n}"));
        strace.arg(env!("CARGO_BIN_EXE_gpuvm")).args(args).env("LIBVIRT_DEFAULT_URI", &self.uri);
        let (code, out, err) = run(&mut strace);
        assert!(code == 0 || code == 137 || code == -1, "record {n}: {code}: {out}{err}");
        code == 0
    }

    /// What is there: domains, disks, NVRAM of guests whose name begins so.
    fn state(&self, name: &str) -> [Vec<String>; 3] {
        let named = |mut all: Vec<String>| {
            all.retain(|one| one.starts_with(name));
            all
        };
        let domains = self.daemon.virsh(&["list", "--all", "--name"]).1;
        let nvram = self.daemon.inside("/var/lib/libvirt/qemu/nvram");
        [
            named(domains.lines().map(str::to_owned).collect()),
            files(&self.disks),
            named(files(&nvram)),
        ]
    }

    /// The create of a guest that is started; its firmware has variables of its own.
    fn create<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-wait";
        let mut args = vec!["create", "--name", name, "--disk-dir", self.disks()];
        args.extend(shape.split(' '));
        args
    }

    /// Where new disks go, as text.
    fn disks(&self) -> &str {
        Path::to_str(&self.disks).unwrap()
    }
}

#[test]
fn a_create_killed_at_any_record_is_undone() {
    let Some(place) = Place::new("kill-create") else { return };
    let mut undone = 0;
    for n in 1..MOST {
        let (name, before) = (format!("killc{n}"), place.state("killc"));
        if place.killed(n, &place.create(&name)) {
            assert!(undone >= 5, "only {undone} records were seen: the test proves nothing");
            let (code, _, err) = place.gpuvm(&["delete", &name, "--yes"]);
            assert_eq!((code, place.state("killc")), (0, before), "{err}");
            return;
        }
        let half = place.state("killc");
        let (code, dry, err) = place.gpuvm(&["recover", "--dry-run"]);
        assert_eq!((code, place.state("killc")), (0, half), "--dry-run changed something: {err}");
        let begun = dry.contains("would be undone");
        let (code, _, err) = place.gpuvm(&place.create("killc-other"));
        assert_eq!(code, i32::from(begun), "record {n}: {dry}{err}");
        if begun {
            assert!(err.contains(&format!("`create {name}` was killed half way")), "{err}");
            assert!(err.contains("gpuvm recover"), "{err}");
            undone += 1;
        } else {
            assert_eq!(place.gpuvm(&["delete", "killc-other", "--yes"]).0, 0);
        }
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!(code, 0, "record {n}: {out}{err}");
        assert_eq!(dry.replace("would be undone", "undone").replace("undo: ", "undone: "), out);
        if !begun && place.state("killc")[0].contains(&name) {
            // Killed after its last step: the guest is whole.
            assert_eq!(place.gpuvm(&["delete", &name, "--yes"]).0, 0);
        }
        assert_eq!(place.state("killc"), before, "record {n}: {out}{err}");
    }
    panic!("it never comes to its end");
}

#[test]
fn a_delete_killed_at_any_record_is_finished() {
    let Some(place) = Place::new("kill-delete") else { return };
    let before = place.state("killd");
    for n in 1..MOST {
        let name = format!("killd{n}");
        let (code, _, err) = place.gpuvm(&place.create(&name));
        assert_eq!(code, 0, "{err}");
        let ended = place.killed(n, &["delete", &name, "--yes"]);
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!(code, 0, "record {n}: {out}{err}");
        if place.state("killd") != before {
            assert!(n <= 2, "record {n}: neither whole nor gone: {out}{err}");
            assert_eq!(place.gpuvm(&["delete", &name, "--yes"]).0, 0);
        }
        assert_eq!(place.state("killd"), before, "record {n}: {out}{err}");
        if ended {
            assert!(n > 5, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn what_cannot_be_recovered_can_be_discarded() {
    let Some(place) = Place::new("kill-discard") else { return };
    // Killed when the second step begins: the disk is made, the domain is not.
    assert!(!place.killed(5, &place.create("killx")));
    let (code, out, err) = place.gpuvm(&["recover", "--discard"]);
    assert_eq!(code, 2, "{out}{err}");
    assert!(err.contains("not undone: create disk") && err.contains("--yes"), "{err}");
    assert_eq!(place.state("killx")[1], ["killx.raw"]);
    let (code, _, err) = place.gpuvm(&["recover", "--discard", "--yes"]);
    assert_eq!((code, &place.state("killx")[1][..]), (0, &["killx.raw".to_owned()][..]), "{err}");
    let (code, _, err) = place.gpuvm(&["recover"]);
    assert_eq!(code, 0);
    assert!(!err.contains("killx"), "{err}");
}

#[test]
fn an_image_add_killed_at_any_record_is_undone() {
    let Some(place) = Place::new("kill-image") else { return };
    let image = place.disks.join("a.img");
    std::fs::write(&image, vec![7u8; 1 << 20]).unwrap();
    let image = image.to_str().unwrap();
    let dir = place.daemon.inside("/var/lib/libvirt/gpuvm-images");
    // The pool is made by the first image, and goes with its change.
    let state = || {
        let pools = place.daemon.virsh(&["pool-list", "--all", "--name"]).1;
        let pools = pools.lines().any(|name| name.trim() == "gpuvm-images");
        (pools, dir.exists(), files(&dir))
    };
    let before = (false, false, Vec::new());
    assert_eq!(state(), before);
    for n in 1..MOST {
        let ended = place.killed(n, &["image", "add", image]);
        let (half, (code, dry, err)) = (state(), place.gpuvm(&["recover", "--dry-run"]));
        assert_eq!((code, state()), (0, half.clone()), "--dry-run changed something: {err}");
        if dry.contains("`image add a`") && dry.contains("would be undone") {
            let (code, _, err) = place.gpuvm(&["image", "remove", "a", "--yes"]);
            assert!(code == 1 && err.contains("gpuvm recover"), "record {n}: {err}");
        }
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!(code, 0, "record {n}: {out}{err}");
        if !ended && state() == before {
            continue;
        }
        assert!(n > 9, "only {n} records were seen: the test proves nothing");
        let whole = (true, true, vec!["a.raw".to_owned()]);
        assert_eq!(state(), whole, "record {n}, from {half:?}: {out}{err}");
        assert!(std::fs::read(dir.join("a.raw")).unwrap() == vec![7u8; 1 << 20]);
        let (code, out, err) = place.gpuvm(&["image", "list"]);
        assert!(code == 0 && out.contains("a ") && out.contains("raw"), "{out}{err}");
        let (code, _, err) = place.gpuvm(&["image", "remove", "a", "--yes"]);
        assert_eq!((code, state()), (0, (true, true, Vec::new())), "{err}");
        if !ended {
            // Killed when only its marker was left. The next run makes the pool anew.
            for verb in ["pool-destroy", "pool-delete", "pool-undefine"] {
                assert!(place.daemon.virsh(&[verb, "gpuvm-images"]).0, "{verb}");
            }
            continue;
        }
        let (code, out, err) = place.gpuvm(&["image", "list"]);
        assert!(code == 0 && out.is_empty() && err.contains("gpuvm image add"), "{out}{err}");
        return;
    }
    panic!("it never comes to its end");
}

#[test]
fn an_image_add_killed_in_the_middle_of_its_copy_is_undone() {
    let Some(place) = Place::new("kill-copy") else { return };
    let (image, volumes) = (long_image(&place.disks), place.daemon.fresh_dir("kill-copy-volumes"));
    let dir = volumes.to_str().unwrap();
    assert!(place.daemon.virsh(&["pool-create-as", "kill-copy", "dir", "--target", dir]).0);
    for doing in ["fill volume", "read volume"] {
        let mut add = place.daemon.gpuvm(&["image", "add", &image, "--pool", "kill-copy"]);
        add.env("LIBVIRT_DEFAULT_URI", &place.uri);
        assert_eq!(stopped_at(&mut add, doing, Signal::SIGKILL).0, None);
        assert_eq!(files(&volumes), ["long.adding", "long.raw"], "{doing}");
        let (_, out, err) = place.gpuvm(&["image", "list", "--pool", "kill-copy"]);
        assert!(out.contains("long") && err.contains("its copy is not whole"), "{out}{err}");
        let libvirt = Libvirt::open(&place.uri).unwrap();
        let newest = resolve(&libvirt, "kill-copy", None).unwrap_err().to_string();
        assert!(newest.contains("holds no image that a guest can be made from"), "{newest}");
        let (code, out, err) = place.gpuvm(&["recover"]);
        assert_eq!((code, files(&volumes)), (0, vec![]), "{doing}: {out}{err}");
        assert!(out.contains("undone: make volume `long.raw`"), "{out}");
    }
}
