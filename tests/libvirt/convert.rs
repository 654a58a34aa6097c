//! `tune --convert` on a real libvirtd: a disk gets another format and the domain the new image, a
//! conversion that would lose something is refused, `undo` restores the old image, and a run killed
//! at any record leaves the domain on its old disk.

use super::files;
use super::place::{MOST, Place};
use crate::support::run;
use crate::xml::tools::has;
use std::path::PathBuf;
use std::process::Command;

/// The pool of the images here.
const POOL: &str = "convert";

/// A machine with a pool of images.
struct Images {
    /// The machine.
    place: Place,
    /// The pool's directory.
    dir: PathBuf,
}

/// Bytes of a disk of 2 MiB, of which the second half is zeros.
fn content() -> Vec<u8> {
    let number = |at: u32| u8::try_from(at / 512 % 251).unwrap() + 1;
    (0..1 << 20).map(number).chain(std::iter::repeat_n(0, 1 << 20)).collect()
}

/// Runs `qemu-img`, which must succeed.
fn qemu_img(args: &[&str]) {
    let (code, out, err) = run(Command::new("qemu-img").args(args));
    assert_eq!(code, 0, "{args:?}: {out}{err}");
}

impl Images {
    /// Sets up the machine with a qcow2 image `a.qcow2`; none if this machine cannot have it.
    fn new() -> Option<Images> {
        if !has("qemu-img") {
            return None;
        }
        let place = Place::new()?;
        let dir = place.daemon.fresh_dir("images");
        let images = Images { place, dir };
        std::fs::write(images.path("a.img"), content()).unwrap();
        qemu_img(&["convert", "-O", "qcow2", &images.path("a.img"), &images.path("a.qcow2")]);
        std::fs::remove_file(images.path("a.img")).unwrap();
        images.place.virsh(&["pool-create-as", POOL, "dir", "--target", &images.path("")]);
        Some(images)
    }

    /// The path of an image.
    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Defines a domain with a disk `vda` on this file and format, and other devices.
    fn define(&self, name: &str, format: &str, file: &str, more: &str) {
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os><devices><disk type='file' \
             device='disk'>\
             <driver name='qemu' type='{format}' cache='none'/><source file='{file}'/>\
             <target dev='vda' bus='virtio'/></disk>{more}</devices></domain>"
        );
        let file = self.place.disks.join(format!("{name}.xml"));
        std::fs::write(&file, xml).unwrap();
        self.place.virsh(&["define", file.to_str().unwrap()]);
    }

    /// The definition of a domain.
    fn definition(&self, name: &str) -> String {
        self.place.virsh(&["dumpxml", "--inactive", "--security-info", name])
    }

    /// Tries a conversion that must be refused with these words and change nothing.
    fn refused(&self, name: &str, convert: &str, words: &[&str]) {
        let before = (self.definition(name), files(&self.dir));
        let args = ["tune", name, "--convert", convert];
        for more in ["--yes", "--dry-run"] {
            let (code, out, err) = self.place.gpuvm(&[&args[..], &[more]].concat());
            assert_eq!(code, 1, "{name} {convert}: {out}{err}");
            for word in ["cannot be tuned", "--convert: ", "hint: "].iter().chain(words) {
                assert!(err.contains(word), "{name} {convert}: `{word}` is not in\n{err}");
            }
        }
        assert_eq!((self.definition(name), files(&self.dir)), before);
    }
}

#[test]
fn a_disk_is_converted_compared_and_given_back() {
    let Some(images) = Images::new() else { return };
    let place = &images.place;
    images.define("conv", "qcow2", &images.path("a.qcow2"), "");
    let (before, old) = (images.definition("conv"), std::fs::read(images.path("a.qcow2")).unwrap());
    let tune = ["tune", "conv", "--convert", "raw"];
    let with = |more: &[&'static str]| [&tune[..], more].concat();
    assert_eq!(place.gpuvm(&with(&["--check"])).0, 3);
    let steps = place.done(&with(&["--dry-run"]));
    for line in
        ["convert: vda qcow2 -> vda raw", "a copy of `a.qcow2`", "byte for byte", "a.qcow2 stays"]
    {
        assert!(steps.contains(line), "{line}: {steps}");
    }
    let diff = place.done(&with(&["--diff"]));
    assert!(diff.contains("type='raw' cache='none'") && diff.contains("/a.raw'/>"), "{diff}");
    assert_eq!(diff.lines().filter(|line| line.starts_with(['+', '-'])).count(), 6, "{diff}");
    assert_eq!(
        (images.definition("conv"), files(&images.dir)),
        (before.clone(), vec!["a.qcow2".into()])
    );
    assert!(!place.done(&["tune", "conv", "--all-settings", "--dry-run"]).contains("convert"));
    let said = place.done(&with(&["--yes"]));
    let gone = format!("`virsh vol-delete --pool {POOL} a.qcow2` destroys it");
    assert!(said.contains(&gone), "{said}");
    assert!(std::fs::read(images.path("a.raw")).unwrap() == content());
    assert!(std::fs::read(images.path("a.qcow2")).unwrap() == old);
    let after = images.definition("conv");
    let moved = before.replace("type='qcow2'", "type='raw'").replace("/a.qcow2", "/a.raw");
    assert_eq!(after, moved);
    assert_eq!(place.done(&with(&["--yes"])), "conv: nothing to do\n");
    // The guest's writes are not lost without consent.
    let mut written = content();
    written[5] = 0;
    std::fs::write(images.path("a.raw"), &written).unwrap();
    let (code, _, err) = place.gpuvm(&["undo", "conv", "--yes"]);
    assert!(code == 1 && err.contains("no longer equals the old one"), "{err}");
    assert!(
        err.contains("Content mismatch at offset 0")
            && err.contains("`gpuvm undo conv --yes --force`"),
        "{err}"
    );
    assert_eq!(images.definition("conv"), after);
    std::fs::write(images.path("a.raw"), content()).unwrap();
    place.done(&["undo", "conv", "--yes"]);
    assert_eq!(
        (images.definition("conv"), files(&images.dir)),
        (before.clone(), vec!["a.qcow2".into()])
    );
    // With force it stays beside the old image, and blocks nothing.
    place.done(&with(&["--yes"]));
    std::fs::write(images.path("a.raw"), &written).unwrap();
    let (code, _, err) = place.gpuvm(&["undo", "conv", "--yes", "--force"]);
    assert!(code == 0 && err.contains("volume `a.raw` of pool `convert` is kept"), "{err}");
    assert_eq!(images.definition("conv"), before);
    place.done(&["tune", "conv", "--convert", "vda=raw", "--yes"]);
    assert_eq!(files(&images.dir), ["a-2.raw", "a.qcow2", "a.raw"]);
    assert!(std::fs::read(images.path("a.raw")).unwrap() == written);
}

#[test]
fn lossy_conversions_are_refused() {
    let Some(images) = Images::new() else { return };
    let place = &images.place;
    let a = images.path("a.qcow2");
    let more = "<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>\
                <disk type='block' device='disk'><source dev='/dev/null'/><target dev='vdb' bus='virtio'/></disk>";
    images.define("conv", "qcow2", &a, more);
    images.refused("conv", "vdz=raw", &["no disk `vdz`", "it has vda, vdb, sda"]);
    images.refused("conv", "sda=qcow2", &["disk `sda` is a medium that the guest only reads"]);
    images.refused("conv", "raw,vdb=qcow2", &["disk `vdb` is of type `block`"]);
    images.define("other", "qcow2", &a, "");
    images.refused("conv", "raw", &["also a disk of domain `other`"]);
    place.virsh(&["undefine", "other"]);
    // With many, one that is refused does not prevent the others.
    images.define("plain", "qcow2", &images.path("b.qcow2"), "");
    qemu_img(&["create", "-q", "-f", "qcow2", &images.path("b.qcow2"), "1M"]);
    qemu_img(&["snapshot", "-c", "s", &a]);
    let (code, out, _) = place.gpuvm(&["tune", "--all", "--convert", "raw", "--dry-run"]);
    assert!(
        code == 1 && out.contains("plain would change") && out.contains("conv: cannot be"),
        "{out}"
    );
    place.virsh(&["undefine", "plain"]);
    images.refused("conv", "raw", &["holds an internal snapshot"]);
    qemu_img(&["snapshot", "-d", "s", &a]);
    let over = images.path("over.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", &a, "-F", "qcow2", &over]);
    images.refused("conv", "raw", &["volumes are overlays on", "convert/over.qcow2"]);
    images.define("above", "qcow2", &over, "");
    images.refused(
        "above",
        "raw",
        &["over.qcow2 of disk `vda` is an overlay on", "virsh blockpull"],
    );
    place.virsh(&["undefine", "above"]);
    images.define("above", "raw", &over, "");
    images.refused("above", "qcow2", &["is raw by its definition", "is qcow2"]);
    place.virsh(&["undefine", "above"]);
    std::fs::remove_file(&over).unwrap();
    images.define("far", "raw", place.disks.join("far.raw").to_str().unwrap(), "");
    images.refused("far", "qcow2", &["in no active pool", "virsh pool-create-as NAME dir"]);
    place.virsh(&["undefine", "far"]);
    // A file is only printed, and has no image here.
    let xml = place.disks.join("conv.xml");
    let (code, _, err) = place.gpuvm(&["tune", xml.to_str().unwrap(), "--convert", "raw"]);
    assert!(code == 2 && err.contains("--convert copies the images of domains"), "{err}");
    place.virsh(&["undefine", "conv"]);
    images.define("conv", "qcow2", &a, "");
    place.virsh(&["snapshot-create-as", "conv", "s"]);
    images.refused("conv", "raw", &["it has 1 snapshot", "gpuvm snapshot list conv"]);
    place.virsh(&["snapshot-delete", "conv", "s"]);
    place.virsh(&["start", "conv"]);
    images.refused("conv", "raw", &["it runs", "gpuvm stop conv"]);
    place.virsh(&["destroy", "conv"]);
    no_room(&images);
}

/// A copy that does not fit into the pool.
fn no_room(images: &Images) {
    let place = &images.place;
    let dir = place.daemon.fresh_dir("small");
    assert!(place.daemon.mount_tmpfs(&dir, "3m"), "no tmpfs");
    let file = place.daemon.inside(dir.join("s.raw").to_str().unwrap());
    std::fs::write(file, vec![7; 2 << 20]).unwrap();
    place.virsh(&["pool-create-as", "small", "dir", "--target", dir.to_str().unwrap()]);
    images.define("small", "raw", dir.join("s.raw").to_str().unwrap(), "");
    images.refused("small", "qcow2", &["pool `small` has 1 MiB free", "of disk `vda` needs 2 MiB"]);
}

#[test]
fn a_conversion_killed_at_any_record_leaves_the_domain_on_a_whole_disk() {
    let Some(images) = Images::new() else { return };
    let place = &images.place;
    let a = images.path("a.qcow2");
    images.define("killv", "qcow2", &a, "");
    let old = std::fs::read(&a).unwrap();
    let before = (images.definition("killv"), vec!["a.qcow2".to_owned()]);
    let state = || (images.definition("killv"), files(&images.dir));
    let mut undone = 0;
    for n in 1..MOST {
        let ended = place.killed(n, &["tune", "killv", "--convert", "raw", "--yes"]);
        let said = place.recover();
        assert!(std::fs::read(&a).unwrap() == old, "record {n}: {said}");
        if state() == before {
            undone += 1;
            assert_eq!(
                place.done(&["history", "killv", "--json"]).trim(),
                "[]",
                "record {n}: {said}"
            );
            assert!(!ended);
            continue;
        }
        assert!(undone > 5, "only {undone} records were seen: the test proves nothing");
        assert_eq!(files(&images.dir), ["a.qcow2", "a.raw"], "record {n}: {said}");
        assert!(std::fs::read(images.path("a.raw")).unwrap() == content(), "record {n}");
        undo_killed(place, &state, &before);
        if ended {
            return;
        }
    }
    panic!("it never comes to its end");
}

/// Kills the undo of the conversion at each record until it completes; at none of them does the
/// domain have a missing disk.
fn undo_killed(
    place: &Place,
    state: &dyn Fn() -> (String, Vec<String>),
    before: &(String, Vec<String>),
) {
    let after = state();
    for n in 1..MOST {
        let ended = place.killed(n, &["undo", "killv", "--yes"]);
        let said = place.recover();
        let now = state();
        assert!(now == after || now == *before, "record {n}: {said}\n{now:?}");
        if now == *before {
            assert!(ended || n > 4, "record {n}: {said}");
            return;
        }
    }
    panic!("it never comes to its end");
}
