//! Images on a real libvirtd: added, listed, used, removed; and every way in which they are not taken.

use super::files;
use crate::support::daemon::{Daemon, daemon, skip};
use crate::support::run;
use gpuvm::apply::{Observer, Step, apply};
use gpuvm::cli::image::resolve;
use gpuvm::hypervisor::Hypervisor as _;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::hypervisor::storage::NewVolume;
use gpuvm::image::Sha256;
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Is a pool for one test, and a directory for its files.
struct Place {
    /// The daemon.
    daemon: &'static Daemon,
    /// The pool's name, which is that of the test.
    pool: &'static str,
    /// The pool's directory.
    volumes: PathBuf,
    /// Where the files are that become images.
    files: PathBuf,
}

impl Place {
    /// Makes the place; none where the machine cannot have it.
    fn new(pool: &'static str) -> Option<Place> {
        let daemon = daemon()?;
        if !Command::new("qemu-img").arg("--version").output().is_ok_and(|o| o.status.success()) {
            return skip("qemu-img is not installed");
        }
        let place = Place {
            daemon,
            pool,
            volumes: daemon.fresh_dir(pool),
            files: daemon.fresh_dir(&format!("{pool}-files")),
        };
        let libvirt = Libvirt::open(&daemon.uri()).unwrap();
        libvirt.storage().make_pool(pool, &place.volumes).unwrap();
        Some(place)
    }

    /// A verb on images, in this pool.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.daemon.gpuvm(&["image"]);
        command.args(args).args(["--pool", self.pool]).stdin(Stdio::null());
        command
    }

    /// Its exit code, standard output and standard error.
    fn image(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// Expects that a verb is done, and returns what it says: answer and the rest.
    fn done(&self, args: &[&str]) -> (String, String) {
        let (code, out, err) = self.image(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        (out, err)
    }

    /// Expects that a verb is refused with this exit code and these words, and that the pool stays as it is.
    fn refused(&self, args: &[&str], exit: i32, words: &[&str]) {
        let before = files(&self.volumes);
        let (code, out, err) = self.image(args);
        assert_eq!((code, out.as_str()), (exit, ""), "{args:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{args:?}: `{word}` is not in\n{err}");
        }
        assert_eq!(files(&self.volumes), before, "{args:?}: {err}");
    }

    /// A file to become an image.
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.files.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// An image that qemu-img makes.
    fn made(&self, name: &str, args: &[&str]) -> String {
        let path = self.files.join(name);
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q"]).args(args).arg(&path).arg("64M").current_dir(&self.files);
        let (code, _, err) = run(&mut create);
        assert_eq!(code, 0, "{err}");
        path.into_os_string().into_string().unwrap()
    }
}

/// A raw disk with a boot record.
fn disk(bytes: usize) -> Vec<u8> {
    let mut disk: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// The sum of a file.
fn sum(path: &str) -> Sha256 {
    Sha256::of(std::fs::File::open(path).unwrap(), &mut |_| true).unwrap()
}

#[test]
fn an_image_is_added_listed_used_and_removed() {
    let Some(place) = Place::new("image-life") else { return };
    let qcow2 = place.made("base.img", &["-f", "qcow2"]);
    let list = place.files.join("SHA256SUMS");
    std::fs::write(&list, format!("{}  base.img\n", sum(&qcow2))).unwrap();
    let (dry, _) = place.done(&["add", &qcow2, "--dry-run"]);
    assert!(
        dry.contains("make volume `base.qcow2`") && dry.contains("read volume `base.qcow2`"),
        "{dry}"
    );
    assert_eq!(files(&place.volumes), [""; 0]);
    let (out, err) = place.done(&["add", &qcow2]);
    assert!(out.starts_with("base: qcow2 of 64 MiB in pool image-life\nSHA-256 "), "{out}");
    assert!(out.contains("SHA256SUMS says") && !err.contains("warning"), "{out}{err}");
    let copy = place.volumes.join("base.qcow2");
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&qcow2).unwrap());
    assert_eq!(copy.metadata().unwrap().mode() & 0o777, 0o444);
    let again = ["base", "already", "--name", "image remove base"];
    place.refused(&["add", &qcow2], 1, &again);
    // The other format under the same name is the same image.
    let raw = place.file("train.raw", &disk(1 << 20));
    place.refused(&["add", &raw, "--name", "base"], 1, &again);
    let link = place.files.join("latest");
    symlink(&raw, &link).unwrap();
    let url = format!("file://{}", link.display());
    let (out, err) = place.done(&["add", &url, "--sha256", &sum(&raw).to_string(), "--json"]);
    let added: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&added["name"], &added["format"]), (&"latest".into(), &"raw".into()), "{out}");
    assert_eq!((&added["verified"], &added["bytes"]), (&"given".into(), &(1 << 20).into()));
    assert!(!err.contains("warning"), "{err}");
    std::fs::write(place.volumes.join("not-an-image.iso"), "").unwrap();
    std::fs::write(place.volumes.join("wrong.qcow2"), disk(4096)).unwrap();

    // A volume over one, and a domain over that.
    let over = ["vol-create-as", place.pool, "os", "64M", "--format", "qcow2", "--backing-vol"];
    let over = [&over[..], &["base.qcow2", "--backing-vol-format", "qcow2"]].concat();
    assert!(place.daemon.virsh(&over).0, "{:?}", place.daemon.virsh(&over));
    place.refused(&["remove", "base", "--yes"], 1, &["is used", "volume `image-life/os`"]);
    let xml = place.file(
        "domain.xml",
        b"<domain type='qemu'><name>image-user</name><memory>4096</memory><os><type>hvm</type></os><devices>\
          <disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source pool='image-life' \
          volume='os'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
    );
    let (defined, text) = place.daemon.virsh(&["define", &xml]);
    assert!(defined, "{text}");
    place.refused(&["remove", "base", "--yes"], 1, &["is used", "domain `image-user`"]);
    let (out, err) = place.done(&["list"]);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = out.lines().map(words).collect();
    assert_eq!(rows[0], ["NAME", "FORMAT", "SIZE", "ON", "DISK", "USED", "BY"]);
    assert_eq!(rows[1][..2], ["wrong", "qcow2"], "{out}");
    assert_eq!(rows[2], ["latest", "raw", "1", "MiB", "1", "MiB", "-"], "{out}");
    assert_eq!(
        (&rows[3][..4], rows[3].last().unwrap()),
        (&words("base qcow2 64 MiB")[..], &"image-user".into())
    );
    assert!(rows.len() == 4 && err.contains("`wrong` cannot be used"), "{out}{err}");
    let (out, _) = place.done(&["list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed[2]["volumes"], serde_json::json!(["image-life/os"]), "{out}");

    // What `create` takes: the newest that is sound, or the one of a name.
    let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
    let newest = resolve(&libvirt, place.pool, None).unwrap();
    assert_eq!((newest.name.as_str(), &newest.path), ("latest", &place.volumes.join("latest.raw")));
    let named = resolve(&libvirt, place.pool, Some(&"base".parse().unwrap())).unwrap();
    assert_eq!((named.virtual_bytes, named.fault), (64 << 20, None));
    for (name, word) in [("wrong", "libvirt reads raw"), ("absent", "has no image `absent`")] {
        let error = resolve(&libvirt, place.pool, Some(&name.parse().unwrap())).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }

    place.refused(&["remove", "latest"], 2, &["will delete volume `latest.raw`", "--yes"]);
    place.done(&["remove", "latest", "--yes"]);
    place.done(&["remove", "wrong", "--yes"]);
    // What is left of an add whose journal was discarded.
    std::fs::write(place.volumes.join("half.adding"), "").unwrap();
    place.done(&["remove", "half", "--yes"]);
    assert!(place.daemon.virsh(&["undefine", "image-user"]).0);
    assert!(place.daemon.virsh(&["vol-delete", "os", "--pool", place.pool]).0);
    let (dry, _) = place.done(&["remove", "base", "--dry-run"]);
    assert_eq!(dry, "delete volume `base.qcow2` of pool `image-life`\n");
    place.done(&["remove", "base", "--yes"]);
    place.refused(&["remove", "base", "--yes"], 1, &["has no image `base`"]);
    assert_eq!(files(&place.volumes), ["not-an-image.iso"]);
}

#[test]
fn what_is_no_image_that_stands_alone_is_refused() {
    let Some(place) = Place::new("image-bad") else { return };
    let base = place.made("base.qcow2", &["-f", "qcow2"]);
    let over = place.made("over.qcow2", &["-f", "qcow2", "-b", &base, "-F", "qcow2"]);
    let data = place.made("data.qcow2", &["-f", "qcow2", "-o", "data_file=data.bin"]);
    let secret = ["--object", "secret,id=s,data=x", "-f", "qcow2", "-o"];
    let secret = [&secret[..], &["encrypt.format=luks,encrypt.key-secret=s"]].concat();
    let secret = place.made("secret.qcow2", &secret);
    let vmdk = place.made("disk.raw", &["-f", "vmdk"]);
    let cut = std::fs::read(&base).unwrap();
    let head = place.file("head.qcow2", &cut[..90]);
    let cut = place.file("cut.qcow2", &cut[..70_000]);
    let parallels = [b"WithouFreSpacExt", &disk(4096)[16..]].concat();
    let parallels = place.file("parallels.img", &parallels);
    let empty = place.file("empty.img", b"");
    let fifo = place.files.join("fifo.img");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let link = |name: &str, to: &Path| {
        let link = place.files.join(name);
        symlink(to, &link).unwrap();
        link.into_os_string().into_string().unwrap()
    };
    let dir = place.files.to_str().unwrap();
    let cases: [(&str, &[&str]); 16] = [
        (&over, &["backing file", "qemu-img convert"]),
        (&data, &["another file"]),
        (&secret, &["encrypted"]),
        (&vmdk, &["VMDK"]),
        (&parallels, &["Parallels"]),
        (&head, &["cut off after 90 bytes"]),
        (&cut, &["cut off: it has 70000 bytes"]),
        (&empty, &["0 bytes"]),
        (dir, &["not a regular file"]),
        (fifo.to_str().unwrap(), &["not a regular file"]),
        ("/dev/zero", &["not a regular file"]),
        (&link("to-fifo.img", &fifo), &["not a regular file"]),
        (&link("to-zero.img", Path::new("/dev/zero")), &["not a regular file"]),
        (&link("to-none.img", Path::new("/none")), &["No such file"]),
        (&link("to-itself.img", &place.files.join("to-itself.img")), &["symbolic links"]),
        ("/none/x.img", &["No such file"]),
    ];
    for (file, words) in cases {
        place.refused(&["add", file, "--name", "bad"], 1, words);
    }
    for name in ["../x", "/x", "a/b", "..", ".x", "a b", "", "$(id)"] {
        place.refused(&["add", &base, "--name", name], 2, &["image name"]);
        place.refused(&["remove", name, "--yes"], 2, &["image name"]);
    }
    place.refused(&["add", "https://h/x.img"], 2, &["scheme `https`", "curl"]);
    place.refused(&["add", &base, "--sha256", "12"], 2, &["64 hexadecimal digits"]);
    place.refused(&["add", &base, "--host", "x"], 2, &["does not take --host"]);

    let copy = place.files.join("gpuvm");
    std::fs::copy(env!("CARGO_BIN_EXE_gpuvm"), &copy).unwrap();
    let mode = |mode: u32| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&base, mode(0o600)).unwrap();
    let mut nobody = place.daemon.as_nobody(&copy);
    let (code, _, err) = run(nobody.args(["image", "add", &base]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("not permitted on") && err.contains("that you may read"), "{err}");
}

#[test]
fn an_image_that_is_not_the_published_one_is_refused() {
    let Some(place) = Place::new("image-sums") else { return };
    let raw = place.file("a.img", &disk(1 << 20));
    let (good, wrong) = (sum(&raw).to_string(), "0".repeat(64));
    let both = ["is not the image that was published", &good[..], &wrong[..]];
    place.refused(&["add", &raw, "--sha256", &wrong], 1, &both);
    let list = place.files.join("SHA256SUMS");
    let write = |text: &str| std::fs::write(&list, text).unwrap();
    write(&format!("{wrong} *a.img\n"));
    place.refused(&["add", &raw], 1, &both);
    place.refused(&["add", &raw, "--dry-run"], 1, &both);
    write(&format!("{good} *a.img\n<html>\n"));
    place.refused(&["add", &raw], 1, &["SHA256SUMS cannot be used: line 2", "--sha256"]);
    write(&format!("{good}  a.img\n{wrong}  ./a.img\n{wrong}  a.img\n"));
    place.refused(&["add", &raw], 1, &["stands twice"]);
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    place.refused(&["add", &raw], 1, &["SHA256SUMS cannot be used", "not a regular file"]);
    // Who says the sum needs no list.
    place.done(&["add", &raw, "--name", "b", "--sha256", &good.to_uppercase()]);
    std::fs::remove_dir(&list).unwrap();
    write(&format!("{wrong}  another.img\n"));
    let plain = place.file("plain.img", &vec![0; 4096]);
    let (out, err) = place.done(&["add", &plain]);
    assert!(
        out.contains("(not verified)") && err.contains("is not verified: no --sha256"),
        "{err}"
    );
    assert!(err.contains("has no boot record"), "{err}");
    let quiet = place.file("quiet.img", &vec![0; 4096]);
    assert_eq!(place.done(&["add", &quiet, "--quiet"]).1, "");
}

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
fn a_copy_that_is_not_what_was_planned_is_undone() {
    let Some(place) = Place::new("image-odd") else { return };
    // The file changes between the sum and the copy, or while it is copied.
    let raw = place.file("a.img", &disk(1 << 20));
    let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
    let copy = |bytes: u64, sha256: Sha256| {
        let (pool, name) = (place.pool.to_owned(), "a.raw".to_owned());
        let volume = volume(bytes);
        let steps = [
            Step::MakeVolume { pool: pool.clone(), volume, from: None },
            Step::FillVolume {
                pool,
                name,
                source: raw.clone().into(),
                bytes,
                sha256: Some(sha256),
            },
        ];
        let error = apply(&steps, &libvirt, &mut Watch, None).unwrap_err();
        assert_eq!(files(&place.volumes), [""; 0]);
        format!("{error}: {}", std::error::Error::source(&error).unwrap())
    };
    let other = sum(&place.file("b.img", b"b"));
    let text = copy(1 << 20, other);
    assert!(text.contains("changed while it was copied") && text.contains("SHA-256"), "{text}");
    // What lies in the pool is not what was sent.
    let check = Step::CheckVolume {
        pool: place.pool.to_owned(),
        name: "a.raw".into(),
        format: "raw".into(),
        capacity_bytes: 1 << 20,
        bytes: 1 << 20,
        sha256: sum(&raw),
    };
    let at = place.volumes.join("a.raw");
    let qcow2 = std::fs::read(place.made("a.qcow2", &["-f", "qcow2"])).unwrap();
    for (bytes, word) in [
        (Some(disk(1 << 20)), None),
        (Some(vec![7; 1 << 20]), Some("1048576 bytes of it with SHA-256")),
        (Some(disk(1 << 19)), Some("takes it for raw of 524288 bytes")),
        (Some(qcow2), Some("takes it for qcow2 of 67108864 bytes")),
        (None, Some("not there any more")),
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
fn a_pool_that_cannot_take_it_is_told_and_left_as_it_is() {
    let Some(place) = Place::new("image-full") else { return };
    let raw = place.file("a.img", &disk(4 << 20));
    let virsh = |args: &[&str]| {
        let (done, text) = place.daemon.virsh(args);
        assert!(done, "{args:?}: {text}");
    };
    assert!(place.daemon.mount_tmpfs(&place.volumes, "3m"), "no tmpfs");
    virsh(&["pool-refresh", place.pool]);
    place.refused(&["add", &raw], 1, &["has 3 MiB left", "takes 4 MiB", "--pool"]);
    // It fills between the look at it and the copy: the volume is not made, and no stream runs into its end.
    let libvirt = Libvirt::open(&place.daemon.uri()).unwrap();
    let volume = NewVolume { preallocated: true, ..volume(4 << 20) };
    let steps = [Step::MakeVolume { pool: place.pool.to_owned(), volume, from: None }];
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

/// Waits until a run says that it does something, and ends it with a signal; its exit code and what it said after that.
pub fn stopped_at(command: &mut Command, doing: &str, signal: Signal) -> (Option<i32>, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with(doing) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before `{doing}`");
    }
    std::thread::sleep(Duration::from_millis(100));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code(), rest)
}

/// A raw image that is long enough to be broken off on its way, as a file in a directory.
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
    for (doing, said) in [
        ("sum ", "interrupted by SIGINT; nothing was begun"),
        ("fill volume", "interrupted by SIGINT; what was done before is undone"),
        ("read volume", "interrupted by SIGINT; what was done before is undone"),
    ] {
        let mut add = place.command(&["add", &image]);
        let (code, err) = stopped_at(&mut add, doing, Signal::SIGINT);
        assert!(code == Some(1) && err.contains(said), "{doing}: {code:?} {err}");
        assert_eq!(files(&place.volumes), [""; 0], "{doing}: {err}");
    }
}
