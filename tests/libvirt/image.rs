//! Images on a real libvirtd: added, listed, used, removed; and every way in which they are
//! refused.

use super::files;
use crate::support::daemon::{Daemon, daemon};
use crate::support::{run, skip};
use gpuvm::hypervisor::Hypervisor as _;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::image::Sha256;
use gpuvm_ops::images::resolve;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A pool for one test, and a directory for its files.
pub(super) struct Place {
    /// The daemon.
    pub(super) daemon: &'static Daemon,
    /// The pool's name, which is that of the test.
    pub(super) pool: &'static str,
    /// The pool's directory.
    pub(super) volumes: PathBuf,
    /// The directory of the files that become images.
    pub(super) files: PathBuf,
}

impl Place {
    /// Sets up the place; none if the machine cannot have it.
    pub(super) fn new(pool: &'static str) -> Option<Place> {
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
        libvirt.storage().make_pool(pool, &place.volumes, None).unwrap();
        Some(place)
    }

    /// A verb on images, in this pool.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.daemon.gpuvm(&["image"]);
        command.args(args).args(["--pool", self.pool]).stdin(Stdio::null());
        command
    }

    /// Its exit code, standard output and standard error.
    pub(super) fn image(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// Runs a verb, which must succeed. Returns both outputs.
    pub(super) fn done(&self, args: &[&str]) -> (String, String) {
        let (code, out, err) = self.image(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        (out, err)
    }

    /// Expects that a verb is refused with this exit code and these words, and that the pool stays
    /// as it is.
    pub(super) fn refused(&self, args: &[&str], exit: i32, words: &[&str]) {
        let before = files(&self.volumes);
        let (code, out, err) = self.image(args);
        assert_eq!((code, out.as_str()), (exit, ""), "{args:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{args:?}: `{word}` is not in\n{err}");
        }
        assert_eq!(files(&self.volumes), before, "{args:?}: {err}");
    }

    /// A file to become an image.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.files.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// An image that qemu-img makes.
    pub(super) fn made(&self, name: &str, args: &[&str]) -> String {
        let path = self.files.join(name);
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q"]).args(args).arg(&path).arg("64M").current_dir(&self.files);
        let (code, _, err) = run(&mut create);
        assert_eq!(code, 0, "{err}");
        path.into_os_string().into_string().unwrap()
    }
}

/// A raw disk with a boot record.
pub(super) fn disk(bytes: usize) -> Vec<u8> {
    let mut disk: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// The sum of a file.
pub(super) fn sum(path: &str) -> Sha256 {
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
        dry.contains("make volume `base.qcow2`") && dry.contains("verify that volume `base.qcow2`"),
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
    place.refused(&["remove", "base", "--yes"], 1, &["is in use", "volume `image-life/os`"]);
    let xml = place.file(
        "domain.xml",
        b"<domain type='qemu'><name>image-user</name><memory>4096</memory><os><type>hvm</type></os><devices>\
          <disk type='volume' device='disk'><driver name='qemu' type='qcow2'/><source \
          pool='image-life' \
          volume='os'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
    );
    let (defined, text) = place.daemon.virsh(&["define", &xml]);
    assert!(defined, "{text}");
    place.refused(&["remove", "base", "--yes"], 1, &["is in use", "domain `image-user`"]);
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
    // Remains of an add whose journal was discarded.
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
fn an_image_with_a_backing_file_is_refused() {
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
    place.refused(&["add", "ftp://h/x.img"], 2, &["scheme `ftp`"]);
    place.refused(&["add", &base, "--sha256", "12"], 2, &["64 hexadecimal digits"]);
    place.refused(&["add", &base, "--host", "x"], 2, &["does not take --host"]);

    let copy = place.files.join("gpuvm");
    std::fs::copy(env!("CARGO_BIN_EXE_gpuvm"), &copy).unwrap();
    let mode = |mode: u32| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&base, mode(0o600)).unwrap();
    let mut unprivileged = place.daemon.as_unprivileged(&copy);
    let (code, _, err) = run(unprivileged.args(["image", "add", &base]));
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
    place.refused(&["add", &raw], 1, &["appears twice"]);
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    place.refused(&["add", &raw], 1, &["SHA256SUMS cannot be used", "not a regular file"]);
    // With a given checksum no list is needed.
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
