//! Disks, volumes and NVRAM that others need, and metadata that lies.

use crate::libvirt::place::{MOST, Place};
use crate::support::run;
use std::path::PathBuf;
use std::process::Command;

/// A guest as anybody defines one, with firmware that needs no NVRAM.
pub(super) const PLAIN: &str = "<domain type='qemu'><name>NAME</name><memory \
    unit='MiB'>64</memory><vcpu>1</vcpu>\
    <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><devices>DEVICES</devices></domain>";

/// A machine with guests on it.
pub(super) struct Ground {
    pub place: Place,
}

impl Ground {
    pub fn new() -> Option<Ground> {
        Some(Ground { place: Place::new()? })
    }

    /// A file below the disks' directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.place.disks.join(name)
    }

    /// The same as text.
    pub fn path(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// Makes a guest with gpuvm, which is not started; its disk is `NAME.raw`.
    pub fn guest(&self, name: &str) {
        let template = self.at("template.xml");
        std::fs::write(&template, PLAIN.replace("NAME", "t").replace("DEVICES", "")).unwrap();
        let (template, dir) = (template.to_str().unwrap(), self.place.disks.to_str().unwrap());
        let more = ["--no-start", "--template", template, "--disk-dir", dir, "--os-size", "8M"];
        self.place.done(&self.place.create(name, &more));
        assert!(self.at(&format!("{name}.raw")).exists());
    }

    /// Defines a domain.
    pub fn define(&self, name: &str, xml: &str) {
        let file = self.at(&format!("{name}.xml"));
        std::fs::write(&file, xml).unwrap();
        self.place.virsh(&["define", file.to_str().unwrap()]);
    }

    /// Defines a guest of others with these devices.
    pub fn other(&self, name: &str, devices: &str) {
        if self.place.has(name) {
            self.gone(name);
        }
        self.define(name, &PLAIN.replace("NAME", name).replace("DEVICES", devices));
    }

    /// Starts a guest that does nothing.
    pub fn start(&self, name: &str) {
        self.place.virsh(&["start", "--paused", name]);
    }

    /// Removes a guest of others.
    pub fn gone(&self, name: &str) {
        self.place.daemon.virsh(&["destroy", name]);
        // A transient one no longer exists after its end.
        self.place.daemon.virsh(&["undefine", name, "--nvram", "--snapshots-metadata"]);
        assert!(!self.place.has(name));
    }

    /// The definition of a domain's next start.
    pub fn xml(&self, name: &str) -> String {
        self.place.virsh(&["dumpxml", "--inactive", name])
    }

    /// Deletes a guest, which must succeed. Returns the output.
    pub fn delete(&self, name: &str) -> String {
        let (code, out, err) = self.place.gpuvm(&["delete", name, "--yes"]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(!self.place.has(name) && self.place.journal().is_empty(), "{out}{err}");
        out + &err
    }

    /// Makes guest `a` and `b` of others that needs its disk; deletes `a` and expects that the disk
    /// stays, with this message. Everything is removed at the end.
    pub fn stays(&self, what: &str, said: &str, make: impl FnOnce(&Ground)) {
        self.guest("a");
        make(self);
        let err = self.delete("a");
        assert!(self.at("a.raw").exists(), "{what}: the disk of `b` is deleted: {err}");
        let expected = format!("disk {} stays: {said}", self.path("a.raw"));
        assert!(err.contains(&expected), "{what}: `{expected}` is not said: {err}");
        if self.place.has("b") {
            self.gone("b");
        }
        std::fs::remove_file(self.at("a.raw")).unwrap();
    }
}

/// A disk of a file.
pub(super) fn disk(kind: &str, path: &str) -> String {
    format!(
        "<disk type='file'><driver name='qemu' type='{kind}'/><source file='{path}'/>\
         <target dev='vda' bus='virtio'/></disk>"
    )
}

/// Makes an image.
fn image(args: &[&str]) {
    let (code, out, err) = run(Command::new("qemu-img").arg("create").arg("-q").args(args));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn a_disk_that_another_guest_needs_stays() {
    let Some(ground) = Ground::new() else { return };
    let raw = ground.path("a.raw");
    ground.stays("overlay of a running guest", "domain `b` has an image over it", |g| {
        let over = g.path("over.qcow2");
        image(&["-f", "qcow2", "-F", "raw", "-b", "a.raw", &over]);
        g.other("b", &disk("qcow2", &over));
        g.start("b");
    });
    ground.stays("overlay in QEMU's own words", "domain `b` has an image over it", |g| {
        let over = g.path("json.qcow2");
        let below = format!(
            "json:{{\"driver\":\"raw\",\"file\":{{\"driver\":\"file\",\"filename\":\"{raw}\"}}}}"
        );
        image(&["-f", "qcow2", "-F", "raw", "-u", "-b", &below, &over, "8M"]);
        g.other("b", &disk("qcow2", &over));
    });
    ground.stays("volume", "domain `b` has it as a disk", |g| {
        let dir = g.place.disks.to_str().unwrap();
        g.place.virsh(&["pool-create-as", "raid", "dir", "--target", dir]);
        let volume = "<disk type='volume'><driver name='qemu' type='raw'/><source pool='raid' \
                      volume='a.raw'/>\
                      <target dev='vda' bus='virtio'/></disk>";
        g.other("b", volume);
    });
    ground.place.virsh(&["pool-destroy", "raid"]);
    ground.stays("directory by a link", "domain `b` has it as a disk", |g| {
        std::os::unix::fs::symlink(&g.place.disks, g.at("link")).unwrap();
        g.other("b", &disk("raw", &g.path("link/a.raw")));
    });
    ground.stays("hard link", "domain `b` has it as a disk", |g| {
        std::fs::hard_link(&raw, g.at("hard.raw")).unwrap();
        g.other("b", &disk("raw", &g.path("hard.raw")));
    });
    ground.stays("attached while it runs", "domain `b` has it as a disk", |g| {
        g.other("b", "<controller type='scsi' model='virtio-scsi'/>");
        g.start("b");
        g.place.virsh(&["attach-disk", "b", &raw, "sdb", "--live", "--targetbus", "scsi"]);
        assert!(!g.xml("b").contains("a.raw"));
    });
    ground.stays("a transient guest", "domain `b` has it as a disk", |g| {
        let file = g.at("transient.xml");
        let xml = PLAIN.replace("NAME", "b").replace("DEVICES", &disk("raw", &raw));
        std::fs::write(&file, xml).unwrap();
        g.place.virsh(&["create", "--paused", file.to_str().unwrap()]);
    });
    let merged = ground.at("merged");
    ground.stays("a file below an overlay file system", "domain `b` has it as a disk", |g| {
        let (upper, below) = (g.at("upper"), g.place.disks.to_str().unwrap());
        std::fs::create_dir(&upper).unwrap();
        mount(&["-t", "tmpfs", "none", upper.to_str().unwrap()]);
        let [changed, work] = ["changed", "work"].map(|name| upper.join(name));
        for dir in [&changed, &work, &merged] {
            std::fs::create_dir(dir).unwrap();
        }
        let (changed, work) = (changed.to_str().unwrap(), work.to_str().unwrap());
        let options = format!("lowerdir={below},upperdir={changed},workdir={work}");
        mount(&["-t", "overlay", "-o", &options, "overlay", merged.to_str().unwrap()]);
        g.other("b", &disk("raw", merged.join("a.raw").to_str().unwrap()));
    });
    let (code, _, err) = run(Command::new("umount").args([&merged, &ground.at("upper")]));
    assert_eq!(code, 0, "{err}");
}

/// Mounts a file system.
fn mount(args: &[&str]) {
    let (code, _, err) = run(Command::new("mount").args(args));
    assert_eq!(code, 0, "{args:?}: {err}");
}

#[test]
fn a_snapshot_and_unreadable_images_keep_what_may_lie_below() {
    let Some(ground) = Ground::new() else { return };
    // The guest's old disk is now the backing file of its snapshot, and only the snapshot is its
    // disk.
    ground.stays("own snapshot", "it is not a disk of the domain any more", |g| {
        g.start("a");
        let spec = format!("vda,file={}", g.path("snap.qcow2"));
        let snapshot =
            ["snapshot-create-as", "a", "s", "--disk-only", "--no-metadata", "--diskspec"];
        g.place.virsh(&[&snapshot[..], &[&spec]].concat());
    });
    assert!(ground.at("snap.qcow2").exists());
    ground.stays("an image that does not tell", "domain `b` has image", |g| {
        let over = g.path("odd.qcow2");
        image(&["-f", "qcow2", "-F", "raw", "-u", "-b", "blkdebug::/x", &over, "8M"]);
        g.other("b", &disk("qcow2", &over));
    });
    ground.stays("an overlay that is away", "domain `b` has image", |g| {
        let over = g.path("away.qcow2");
        image(&["-f", "qcow2", "-F", "raw", "-b", "a.raw", &over]);
        g.other("b", &disk("qcow2", &over));
        std::fs::rename(&over, g.at("not-mounted")).unwrap();
    });
    // A backing file that a guest writes into its own raw disk is not trusted.
    ground.guest("a");
    image(&["-f", "qcow2", "-F", "raw", "-b", &ground.path("a.raw"), &ground.path("evil.raw")]);
    ground.other("b", &disk("raw", &ground.path("evil.raw")));
    ground.delete("a");
    assert!(!ground.at("a.raw").exists());
}

#[test]
fn a_disk_that_a_saved_state_has_is_its_guests() {
    let Some(ground) = Ground::new() else { return };
    let raw = ground.path("a.raw");
    ground.guest("a");
    ground.other("b", "<controller type='scsi' model='virtio-scsi'/>");
    ground.start("b");
    ground.place.virsh(&["attach-disk", "b", &raw, "sdb", "--live", "--targetbus", "scsi"]);
    ground.place.virsh(&["managedsave", "b"]);
    let (code, out, err) = ground.place.gpuvm(&["delete", "a", "--yes"]);
    assert!(code == 0 && ground.at("a.raw").exists(), "{out}{err}");
    assert!(err.contains("domain `b` has it as a disk"), "{err}");
    ground.guest("c");
    let (code, _, err) = ground.place.gpuvm(&["disk", "add", "c", &raw]);
    assert!(code == 1 && err.contains("domain `b`"), "{err}");
    ground.place.virsh(&["managedsave-remove", "b"]);
    ground.gone("b");
    // It may have written to a blank disk in its memory.
    ground.place.done(&["disk", "add", "c", "size=2M"]);
    let blank = ground.place.daemon.inside("/var/lib/libvirt/gpuvm-guests/c-vdb.raw");
    assert!(blank.exists(), "{}", ground.xml("c"));
    ground.start("c");
    ground.place.virsh(&["managedsave", "c"]);
    let (code, out, said) = ground.place.gpuvm(&["undo", "c", "--yes"]);
    assert_eq!(code, 0, "{out}{said}");
    assert!(blank.exists() && said.contains("is kept with the guest's data"), "{said}");
}

#[test]
fn nvram_that_another_guest_has_stays() {
    let Some(ground) = Ground::new() else { return };
    let dir = ground.place.disks.to_str().unwrap();
    ground.place.done(&ground.place.create("a", &["--no-start", "--disk-dir", dir]));
    ground.start("a");
    ground.place.virsh(&["destroy", "a"]);
    let xml = ground.xml("a");
    let nvram = xml.split("_VARS.fd</nvram>").next().unwrap().rsplit('>').next().unwrap();
    let nvram = format!("{nvram}_VARS.fd");
    let inside = ground.place.daemon.inside(&nvram);
    assert!(inside.exists(), "{nvram}");
    let os = xml.find("<os").unwrap()..xml.find("</os>").unwrap() + 5;
    let other = PLAIN.replace("NAME", "b").replace("DEVICES", "");
    let plain = other.find("<os>").unwrap()..other.find("</os>").unwrap() + 5;
    let other = format!("{}{}{}", &other[..plain.start], &xml[os], &other[plain.end..]);
    ground.define("b", &other);
    let err = ground.delete("a");
    assert!(inside.exists(), "the NVRAM of `b` is deleted: {err}");
    assert!(err.contains(&format!("NVRAM {nvram} stays: domain `b` has it as its NVRAM")), "{err}");
    ground.gone("b");
    // A definition can name any file, and libvirt removes the named file.
    ground.guest("c");
    let victim = ground.path("victim");
    std::fs::write(&victim, "dear").unwrap();
    let nvram = format!(
        "<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>\
         <nvram>{victim}</nvram></os>"
    );
    ground.define("c", &ground.xml("c").replacen("</os>", &nvram, 1));
    let err = ground.delete("c");
    assert!(ground.at("victim").exists(), "{err}");
    assert!(err.contains("it holds no settings of firmware"), "{err}");
}

#[test]
fn a_copy_takes_nothing_of_its_original_with_it() {
    let Some(ground) = Ground::new() else { return };
    let (raw, clone) = (ground.path("a.raw"), ground.path("c.raw"));
    ground.guest("a");
    // virt-clone copies metadata and makes disks of its own.
    let mut virt_clone = Command::new("virt-clone");
    virt_clone.args(["--connect", &ground.place.daemon.uri(), "-o", "a", "-n", "c", "-f", &clone]);
    let (code, out, err) = run(&mut virt_clone);
    assert_eq!(code, 0, "{out}{err}");
    assert!(ground.xml("c").contains(&format!("path=\"{raw}\"")) || ground.xml("c").contains(&raw));
    let err = ground.delete("c");
    assert!(ground.at("a.raw").exists(), "the original's disk is deleted: {err}");
    assert!(ground.at("c.raw").exists(), "{err}");
    for (path, why) in
        [(&raw, "it was made for the domain of UUID"), (&clone, "it is not recorded as made")]
    {
        assert!(err.contains(&format!("disk {path} stays: {why}")), "{err}");
        // No command is suggested that removes a disk of the original.
        let offered = err.contains(&format!("`rm {path}` removes it"));
        assert_eq!(offered, path == &clone, "{err}");
    }
    // dumpxml, another name, define: the copy has the same disk.
    let xml = ground.xml("a");
    let uuid = xml.split("<uuid>").nth(1).unwrap().split('<').next().unwrap();
    let copy = xml.replace("<name>a</name>", "<name>d</name>");
    ground.define("d", &copy.replace(&format!("<uuid>{uuid}</uuid>"), ""));
    let err = ground.delete("d");
    assert!(ground.at("a.raw").exists(), "the original's disk is deleted: {err}");
    // Its own record still counts.
    ground.delete("a");
    assert!(!ground.at("a.raw").exists());
}

#[test]
fn metadata_that_lies_removes_nothing() {
    let Some(ground) = Ground::new() else { return };
    let victim = ground.path("victim.raw");
    std::fs::write(&victim, "dear").unwrap();
    ground.guest("a");
    let xml = ground.xml("a");
    let raw = ground.path("a.raw");
    // Another file than its disk.
    let at = xml.find("<gpuvm:disk").unwrap();
    let lie = format!("{}{}", &xml[..at], xml[at..].replacen(&raw, &victim, 1));
    ground.define("a", &lie);
    let err = ground.delete("a");
    assert!(ground.at("victim.raw").exists(), "{err}");
    assert!(err.contains(&format!("disk {victim} stays: it is not a disk of the domain")), "{err}");
    // Another volume than its disk.
    let dir = ground.place.disks.to_str().unwrap();
    ground.place.virsh(&["pool-create-as", "raid", "dir", "--target", dir]);
    let disk = format!("{} pool='raid' volume='victim.raw' ", "<gpuvm:disk");
    ground.define("a", &xml.replacen("<gpuvm:disk", &disk, 1));
    let err = ground.delete("a");
    assert!(ground.at("victim.raw").exists(), "{err}");
    assert!(err.contains("stays: volume `victim.raw` of pool `raid` is"), "{err}");
    // As an earlier version wrote it, without the domain's UUID.
    let uuid = xml.split("<uuid>").nth(1).unwrap().split('<').next().unwrap();
    let old = xml.replace(&format!(" uuid=\"{uuid}\""), "").replace(&format!(" uuid='{uuid}'"), "");
    assert_ne!(old, xml);
    ground.define("a", &old);
    let err = ground.delete("a");
    assert!(ground.at("a.raw").exists(), "{err}");
    assert!(
        err.contains("it was made by an earlier version") && err.contains(&format!("`rm {raw}`")),
        "{err}"
    );
    // Text injected into the host's files, and pages that the guest never had.
    for (lie, said) in [
        (
            "<gpuvm:bound><gpuvm:device bdf='0000:00:1f.0' driver='../../x'/></gpuvm:bound>",
            "domain `a`: \"../../x\", the driver of 0000:00:1f.0, is no driver's name",
        ),
        (
            "<gpuvm:reserved><gpuvm:pages node='0' kib='2048' count='99999' \
             boot='b'/></gpuvm:reserved>",
            "of huge pages are more than its memory",
        ),
    ] {
        ground.define("a", &xml.replacen("</gpuvm:guest>", &format!("{lie}</gpuvm:guest>"), 1));
        let (code, out, err) = ground.place.gpuvm(&["delete", "a", "--yes"]);
        assert!(code != 0 && err.contains(said), "{out}{err}");
        assert!(ground.place.has("a") && ground.at("a.raw").exists());
    }
}

#[test]
fn a_foreign_file_in_a_disks_place_stays() {
    let Some(place) = Place::with_image() else { return };
    let dir = place.disks.to_str().unwrap().to_owned();
    place.done(&place.create("a", &["--no-start", "--os-size", "16M"]));
    let xml = place.virsh(&["dumpxml", "a"]);
    let sources = xml.split("<source file='").skip(1).filter_map(|rest| rest.split('\'').next());
    // The boot disk is a volume, the data disk a file.
    let volume = sources.clone().find(|path| path.contains("gpuvm-guests")).unwrap();
    let file = sources.clone().find(|path| path.starts_with(&dir)).unwrap();
    let records = || crate::libvirt::files(&place.daemon.own_path("/var/lib/gpuvm/disks"));
    assert!(records().len() >= 2, "{:?}", records());
    let here = |path: &str| place.daemon.inside(path);
    for path in [volume, file] {
        std::fs::write(here(&format!("{path}.new")), "theirs").unwrap();
        std::fs::rename(here(&format!("{path}.new")), here(path)).unwrap();
    }
    place.virsh(&["pool-refresh", "gpuvm-guests"]);
    let (code, out, err) = place.gpuvm(&["delete", "a", "--dry-run"]);
    assert_eq!(code, 0, "{out}{err}");
    let said = "stays: it is not the one that gpuvm made there";
    assert_eq!(format!("{out}{err}").matches(said).count(), 2, "{out}{err}");
    let (code, out, err) = place.gpuvm(&["delete", "a", "--yes"]);
    assert!(code == 0 && err.matches(said).count() == 2, "{out}{err}");
    for path in [volume, file] {
        assert_eq!(std::fs::read_to_string(here(path)).unwrap(), "theirs");
    }
    // Untouched files are removed, and so are their records.
    std::fs::remove_file(here(volume)).unwrap();
    std::fs::remove_file(here(file)).unwrap();
    place.virsh(&["pool-refresh", "gpuvm-guests"]);
    place.done(&place.create("b", &["--no-start", "--os-size", "16M"]));
    let before = records().len();
    place.done(&["delete", "b", "--yes"]);
    assert!(!here(volume).with_file_name("b.raw").exists() && records().len() + 2 <= before);
}

#[test]
fn a_guest_that_comes_while_another_is_deleted_keeps_its_disk() {
    let Some(ground) = Ground::new() else { return };
    let mut met = 0;
    for record in 1..=MOST {
        ground.guest("a");
        let raw = ground.path("a.raw");
        let meanwhile = |_: &str| ground.other("b", &disk("raw", &raw));
        let ended = ground.place.halted(record, &["delete", "a", "--yes"], meanwhile);
        let Some((code, out, err)) = ended else { break };
        assert!(code == 0 || ground.place.has("a"), "record {record}: {out}{err}");
        if ground.at("a.raw").exists() {
            met += 1;
            let said = format!("disk {raw} stays: domain `b` has it as a disk");
            assert!(err.contains(&said) || ground.place.has("a"), "record {record}: {out}{err}");
            std::fs::remove_file(&raw).unwrap();
        } else {
            // The last record says that the disk is gone.
            assert!(record > 1, "{out}{err}");
        }
        ground.gone("b");
        if ground.place.has("a") {
            ground.gone("a");
        }
    }
    assert!(met >= 2, "the disk stayed {met} times");
}

/// Tries to create guest `n` with this disk, which must be refused with these words.
fn refused(ground: &Ground, disk: &str, said: &str) {
    let more = ["--no-start", "--template", &ground.path("template.xml"), "--disk", disk];
    let (code, out, err) = ground.place.gpuvm(&ground.place.create("n", &more));
    assert!(code != 0 && err.contains(said), "{disk}: `{said}` is not said: {out}{err}");
    assert!(!ground.place.has("n"), "{disk}: {out}{err}");
}

#[test]
fn create_takes_no_file_of_others() {
    let Some(ground) = Ground::new() else { return };
    let template = ground.at("template.xml");
    std::fs::write(&template, PLAIN.replace("NAME", "t").replace("DEVICES", "")).unwrap();
    let sectors = |name: &str| std::fs::write(ground.at(name), vec![0; 1 << 20]).unwrap();
    // Disks of a guest that runs and of one that is off, and the backing files of its images.
    for name in ["base.raw", "b.raw", "off.raw", "free.raw", "open.raw"] {
        sectors(name);
    }
    let over = ground.path("b.qcow2");
    image(&["-f", "qcow2", "-F", "raw", "-b", "base.raw", &over]);
    let second = disk("qcow2", &over).replace("vda", "vdb");
    ground.other("b", &(disk("raw", &ground.path("b.raw")) + &second));
    ground.start("b");
    ground.other("off", &disk("raw", &ground.path("off.raw")));
    std::fs::hard_link(ground.at("b.raw"), ground.at("same.raw")).unwrap();
    for (file, said) in [
        ("b.raw", "domain `b` has it as a disk"),
        ("same.raw", "domain `b` has it as a disk"),
        ("b.qcow2", "domain `b` has it as a disk"),
        ("base.raw", "domain `b` has an image over it"),
        ("off.raw", "domain `off` has it as a disk"),
    ] {
        refused(&ground, &ground.path(file), said);
    }
    // Files that are no disks, and the host's own files.
    run(Command::new("mkfifo").arg(ground.at("fifo")));
    std::os::unix::fs::symlink("/etc/shadow", ground.at("link.raw")).unwrap();
    std::fs::write(ground.at("odd.raw"), "no disk").unwrap();
    for (file, said) in [
        ("/etc/shadow", "it is a file of the host's system, below /etc"),
        (&*ground.path("link.raw"), "it is a file of the host's system, below /etc"),
        (&ground.path("fifo"), "neither a file nor a block device"),
        (&ground.path("."), "neither a file nor a block device"),
        ("/dev/null", "neither a file nor a block device"),
        (&ground.path("odd.raw"), "has 7 bytes; a raw disk has one or more whole sectors"),
    ] {
        refused(&ground, file, said);
    }
    // A file that a process writes, a database for one.
    let mut writer = Command::new("sh");
    writer.args(["-c", "exec 3>>\"$0\"; echo; read x"]).arg(ground.at("open.raw"));
    let pipe = std::process::Stdio::piped;
    let mut writer = writer.stdin(pipe()).stdout(pipe()).spawn().unwrap();
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    refused(&ground, &ground.path("open.raw"), "(sh) has it open for writing");
    drop(writer.stdin.take());
    writer.wait().unwrap();
    // A template's disk is a disk, too.
    let stolen = PLAIN.replace("NAME", "t").replace("DEVICES", &disk("raw", &ground.path("b.raw")));
    std::fs::write(&template, stolen).unwrap();
    refused(&ground, &ground.path("free.raw"), "domain `b` has it as a disk");
    // An unused file is accepted, and one that a process has written before.
    std::fs::write(&template, PLAIN.replace("NAME", "t").replace("DEVICES", "")).unwrap();
    for name in ["free.raw", "open.raw"] {
        let more = ["--no-start", "--template", template.to_str().unwrap(), "--disk"];
        let path = ground.path(name);
        let more = [&more[..], &[&path]].concat();
        ground.place.done(&ground.place.create(name.split('.').next().unwrap(), &more));
    }
    ground.delete("free");
    assert!(ground.at("free.raw").exists(), "a disk that was there is deleted");
}

#[test]
fn check_names_disks_of_others_and_of_the_host() {
    let Some(ground) = Ground::new() else { return };
    std::fs::write(ground.at("b.raw"), vec![0; 1 << 20]).unwrap();
    let plain = disk("raw", &ground.path("b.raw"));
    let with = |mark: &str| plain.replace("</disk>", &format!("{mark}</disk>"));
    ground.other("b", &plain);
    let rules = |devices: &str| {
        let file = ground.at("checked.xml");
        std::fs::write(&file, PLAIN.replace("NAME", "c").replace("DEVICES", devices)).unwrap();
        let (_, out, err) = ground.place.gpuvm(&["--json", "check", file.to_str().unwrap()]);
        let answer: serde_json::Value = serde_json::from_str(&out).expect(&err);
        let found = answer["findings"].as_array().unwrap().iter();
        let ids = found.map(|f| f["rule"].as_str().unwrap().to_owned());
        ids.filter(|id| id.starts_with("disk-")).collect::<Vec<_>>()
    };
    assert_eq!(rules(&plain), ["disk-held"]);
    assert_eq!(rules(&with("<readonly/>")), ["disk-held"], "what another writes is read");
    assert_eq!(rules(&with("<shareable/>")), ["disk-held"], "only one of them bears it");
    assert_eq!(rules(&disk("raw", "/etc/shadow")), ["disk-of-host"]);
    assert_eq!(rules(&disk("raw", &ground.path("absent.raw"))), ["disk-missing"]);
    for mark in ["<shareable/>", "<readonly/>"] {
        ground.other("b", &with(mark));
        assert_eq!(rules(&with(mark)), [""; 0], "{mark}");
    }
    // A domain's own disk does not count as another's.
    ground.other("b", &plain);
    let (_, out, err) = ground.place.gpuvm(&["check", "b"]);
    assert!(!out.contains("disk-held"), "{out}{err}");
}

#[test]
fn check_names_disks_and_nics_with_which_no_start_succeeds() {
    let Some(ground) = Ground::new() else { return };
    let qcow2 = ground.path("image.raw");
    image(&["-f", "qcow2", &qcow2, "8M"]);
    let nic = |source: &str| format!("<interface {source}/><model type='virtio'/></interface>");
    let nics = [
        nic("type='network'><source network='nosuch'"),
        nic("type='bridge'><source bridge='nosuch0'"),
        nic("type='direct'><source dev='nosuch1' mode='bridge'"),
        nic("type='direct'><source dev='lo' mode='bridge'"),
    ];
    ground.other("b", &(disk("raw", &qcow2) + &nics.concat()));
    let (code, out, err) = ground.place.gpuvm(&["check", "b"]);
    assert_eq!(code, 3, "{out}{err}");
    for said in [
        "declared as raw, and is a qcow2 image",
        "there is no network `nosuch`",
        "the host has no bridge `nosuch0`",
        "the host has no network device `nosuch1`",
        "`lo` is the loopback device",
        "gpuvm network host-bridge create nosuch0",
    ] {
        assert!(out.contains(said), "{said}: {out}{err}");
    }
    assert!(!out.contains("image formats"), "{out}");
    let (code, _, err) = ground.place.gpuvm(&["start", "b", "--dry-run"]);
    assert!(err.contains("there is no network `nosuch`"), "{code}: {err}");
    // A correct format is no finding; the data that a guest writes to its raw disk is its own.
    ground.gone("b");
    ground.guest("a");
    std::fs::copy(&qcow2, ground.at("a.raw")).unwrap();
    let (code, out, err) = ground.place.gpuvm(&["check", "a"]);
    assert!(code == 0 || !out.contains("disk-format"), "{out}{err}");
    ground.other("b", &disk("qcow2", &qcow2));
    let (_, out, err) = ground.place.gpuvm(&["check", "b"]);
    assert!(!out.contains("disk-format") && !out.contains("nic-source"), "{out}{err}");
}
