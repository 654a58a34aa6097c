//! Images whose copy fails or is interrupted: an error, and nothing left.

use super::files;
use super::image::{Place, disk, sum};
use gpuvm::apply::{CheckStep, Observer, Step, VolumeStep, WrittenVolume, apply};
use gpuvm::hypervisor::Hypervisor as _;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::hypervisor::storage::NewVolume;
use gpuvm::image::Sha256;
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Watches nothing.
struct Watch;

impl Observer for Watch {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

/// The volume of an image `a`, as long as its file.
fn volume(bytes: u64) -> NewVolume {
    NewVolume {
        name: "a.raw".into(),
        format: "raw".into(),
        capacity_bytes: bytes,
        preallocated: false,
        backing: None,
        mode: 0o444,
    }
}

#[test]
fn an_unplanned_copy_is_undone() {
    let Some(place) = Place::new("image-odd") else { return };
    // The file changes between the checksum and the copy, or while it is copied.
    let raw = place.file("a.img", &disk(1 << 20));
    let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
    let copy = |bytes: u64, sha256: Sha256| {
        let (pool, name) = (place.pool.to_owned(), "a.raw".to_owned());
        let volume = volume(bytes);
        let steps = [
            Step::Volume(VolumeStep::Make { pool: pool.clone(), volume, from: None }),
            Step::Volume(VolumeStep::Fill {
                pool,
                name,
                source: raw.clone().into(),
                bytes,
                sha256: Some(sha256),
            }),
        ];
        let error = apply(&steps, &libvirt, &mut Watch, None).unwrap_err();
        assert_eq!(files(&place.volumes), [""; 0]);
        format!("{error}: {}", std::error::Error::source(&error).unwrap())
    };
    let other = sum(&place.file("b.img", b"b"));
    let text = copy(1 << 20, other);
    assert!(text.contains("changed while it was copied") && text.contains("SHA-256"), "{text}");
    // The volume's content differs from the data sent.
    let check = Step::Check(CheckStep::Volume(WrittenVolume {
        pool: place.pool.to_owned(),
        name: "a.raw".into(),
        format: "raw".into(),
        capacity_bytes: 1 << 20,
        bytes: 1 << 20,
        sha256: sum(&raw),
    }));
    let at = place.volumes.join("a.raw");
    let qcow2 = std::fs::read(place.made("a.qcow2", &["-f", "qcow2"])).unwrap();
    for (bytes, word) in [
        (Some(disk(1 << 20)), None),
        (Some(vec![7; 1 << 20]), Some("1048576 bytes of it with SHA-256")),
        (Some(disk(1 << 19)), Some("takes it for raw of 524288 bytes")),
        (Some(qcow2), Some("takes it for qcow2 of 67108864 bytes")),
        (None, Some("no longer exists")),
    ] {
        match bytes {
            Some(bytes) => std::fs::write(&at, bytes).unwrap(),
            None => std::fs::remove_file(&at).unwrap(),
        }
        let end = apply(std::slice::from_ref(&check), &libvirt, &mut Watch, None);
        let error = end.err().map(|error| std::error::Error::source(&error).unwrap().to_string());
        assert_eq!(error.is_some(), word.is_some(), "{error:?}");
        assert!(error.unwrap_or_default().contains(word.unwrap_or_default()), "{word:?}");
    }
    let text = copy(2 << 20, sum(&raw));
    assert!(text.contains("it had 2097152 bytes, and 1048576 were read"), "{text}");
}

#[test]
fn an_unsuitable_pool_is_reported_and_left() {
    let Some(place) = Place::new("image-full") else { return };
    let raw = place.file("a.img", &disk(4 << 20));
    let virsh = |args: &[&str]| {
        let (done, text) = place.daemon.virsh(args);
        assert!(done, "{args:?}: {text}");
    };
    assert!(place.daemon.mount_tmpfs(&place.volumes, "3m"), "no tmpfs");
    virsh(&["pool-refresh", place.pool]);
    place.refused(&["add", &raw], 1, &["has 3 MiB free", "needs 4 MiB", "--pool"]);
    // The pool becomes full between the check and the copy: the volume is not made, and no stream
    // runs into its end.
    let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
    let volume = NewVolume { preallocated: true, ..volume(4 << 20) };
    let steps =
        [Step::Volume(VolumeStep::Make { pool: place.pool.to_owned(), volume, from: None })];
    let error = apply(&steps, &libvirt, &mut Watch, None).unwrap_err();
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains("No space left"), "{text}");
    assert_eq!(libvirt.storage().volumes(place.pool).unwrap(), []);

    virsh(&["pool-destroy", place.pool]);
    place.refused(&["add", &raw], 1, &["is not active", "virsh pool-start image-full"]);
    place.refused(&["list"], 1, &["is not active"]);
    virsh(&["pool-undefine", place.pool]);
    for args in [&["add", &raw[..]][..], &["list"], &["remove", "a", "--yes"]] {
        place.refused(args, 1, &["find pool `image-full`", "virsh pool-list --all"]);
    }
}

/// Waits until a run reports an action, and ends it with a signal. Returns its exit code and the
/// output after that.
pub fn stopped_at(command: &mut Command, doing: &str, signal: Signal) -> (Option<i32>, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let (mut line, mut all) = (String::new(), String::new());
    while !line.starts_with(doing) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before `{doing}`: {all}");
        all += &line;
    }
    std::thread::sleep(Duration::from_millis(10));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code(), rest)
}

/// A raw image that is long enough to be interrupted during the copy, as a file in a directory.
pub fn long_image(dir: &Path) -> String {
    let path = dir.join("long.img");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(512 << 20).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
fn a_copy_that_is_broken_off_leaves_nothing() {
    let Some(place) = Place::new("image-stop") else { return };
    let image = long_image(&place.files);
    // Before anything has begun, a signal ends the program like any other.
    for (doing, ended, said) in [
        ("compute the SHA-256 ", None, ""),
        ("fill volume", Some(1), "interrupted by SIGINT; earlier steps are undone"),
        ("verify that volume", Some(1), "interrupted by SIGINT; earlier steps are undone"),
    ] {
        let mut add = place.command(&["add", &image]);
        let (code, err) = stopped_at(&mut add, doing, Signal::SIGINT);
        assert!(code == ended && err.contains(said), "{doing}: {code:?} {err}");
        assert_eq!(files(&place.volumes), [""; 0], "{doing}: {err}");
    }
}
