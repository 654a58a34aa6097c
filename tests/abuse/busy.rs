//! A pool in which others copy files by libvirt, which does not look at its directory meanwhile, or
//! by `cp`: whatever gpuvm makes there, also where it is killed, their files stay as they are.

use crate::libvirt::files;
use crate::libvirt::place::{MOST, POOL_DIR, Place, until};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Data copied by others.
const THEIRS: &[u8] = b"all that they have";
/// The volume that they make.
const COPY: &str = "theirs.qcow2";

/// A volume that others are making in the guests' pool.
struct Copying<'p> {
    place: &'p Place,
    /// The file whose removal lets it come to its end.
    gate: PathBuf,
    /// Their program.
    virsh: Child,
}

impl Copying<'_> {
    /// Begins one that does not end before [`Copying::ends`].
    fn begins(place: &Place) -> Copying<'_> {
        let dir = place.daemon.fresh_dir("qemu-img");
        let (gate, program, own) = (dir.join("gate"), dir.join("program"), "/usr/bin/qemu-img");
        let real = dir.join("real");
        fs::copy(own, &real).unwrap();
        fs::write(&gate, "").unwrap();
        let text = format!(
            "#!/bin/sh\ncase \"$*\" in *{COPY}*) while [ -e {} ]; do sleep 0.1; done ;; esac\n\
             exec {} \"$@\"\n",
            gate.display(),
            real.display()
        );
        fs::write(&program, text).unwrap();
        for file in [&program, &real] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut mount = place.daemon.enter(&["--mount"], "mount");
        let mounted = mount.arg("--bind").arg(&program).arg(own).status().unwrap();
        assert!(mounted.success());
        let mut virsh = place.within("virsh");
        virsh.args(["vol-create-as", "gpuvm-guests", COPY, "1M", "--format", "qcow2"]);
        let virsh = virsh.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let copying = Copying { place, gate, virsh };
        until("the pool is busy", || copying.is_on());
        copying
    }

    /// Whether libvirt does not look at the pool for it.
    fn is_on(&self) -> bool {
        let (done, said) = self.place.daemon.virsh(&["pool-refresh", "gpuvm-guests"]);
        !done && said.contains("asynchronous jobs running")
    }

    /// Lets it come to its end, which it must reach.
    fn ends(mut self) {
        assert!(self.is_on(), "the pool was not busy: the test proves nothing");
        fs::remove_file(&self.gate).unwrap();
        assert!(self.virsh.wait().unwrap().success(), "their volume is not made");
        assert!(self.place.daemon.inside(POOL_DIR).join(COPY).exists());
    }
}

/// A machine with guest `s`, whose boot disk is a volume of the pool, and the pool's directory.
fn pool() -> Option<(Place, PathBuf)> {
    let place = Place::with_image()?;
    place.done(&create(&place, "s"));
    let dir = place.daemon.inside(POOL_DIR);
    fs::write(dir.join("other.raw"), THEIRS).unwrap();
    Some((place, dir))
}

/// The arguments of a create from an image.
fn create<'a>(place: &'a Place, name: &'a str) -> Vec<&'a str> {
    place.create(name, &["--no-start", "--image", "tiny", "--os-size", "2M"])
}

/// Expects a file to be as others have copied it.
fn kept(file: &Path, said: &str) {
    let now = fs::read(file).unwrap_or_default();
    assert_eq!(now, THEIRS, "{}: {}", file.display(), said);
}

#[test]
fn a_file_that_others_copied_into_a_busy_pool_is_neither_replaced_nor_deleted() {
    let Some((place, dir)) = pool() else { return };
    let copying = Copying::begins(&place);
    let remove = ["disk", "remove", "s", "vdd", "--delete-data", "--yes"];
    for (args, undo) in [
        (create(&place, "a"), &["delete", "a", "--yes"][..]),
        (vec!["clone", "s", "b", "--no-seed"], &["delete", "b", "--yes"]),
        (vec!["disk", "add", "s", "size=2M"], &remove),
    ] {
        let before = files(&dir);
        // A busy pool is no obstacle.
        place.done(&args);
        let made: Vec<String> =
            files(&dir).into_iter().filter(|name| !before.contains(name)).collect();
        assert!(!made.is_empty(), "{args:?} made no volume");
        let (code, out, err) = place.gpuvm(undo);
        assert_eq!((code, files(&dir)), (0, before.clone()), "{undo:?}: {out}{err}");
        for name in made {
            let theirs = dir.join(&name);
            fs::write(&theirs, THEIRS).unwrap();
            let (code, out, err) = place.gpuvm(&args);
            assert_eq!(code, 1, "{args:?} over {name}: {out}{err}");
            assert!(err.contains("exists"), "{args:?} over {name}: {out}{err}");
            kept(&theirs, &err);
            assert_eq!(place.journal(), "", "{err}");
            fs::remove_file(theirs).unwrap();
            assert_eq!(files(&dir), before, "{args:?} over {name}: {out}{err}");
        }
    }
    kept(&dir.join("other.raw"), "another file");
    copying.ends();
}

#[test]
fn a_kill_in_a_busy_pool_leaves_what_others_copied_there() {
    let Some((place, dir)) = pool() else { return };
    let copying = Copying::begins(&place);
    let (args, theirs) = (create(&place, "a"), dir.join("a.os"));
    let mut taken = 0;
    for record in 1..MOST {
        let ended = place.killed(record, &args);
        let is_free = !theirs.exists();
        if is_free {
            fs::write(&theirs, THEIRS).unwrap();
            taken += 1;
        }
        let said = if ended { String::new() } else { place.recover() };
        if is_free {
            kept(&theirs, &format!("record {record}: {said}"));
        }
        kept(&dir.join("other.raw"), &format!("record {record}: {said}"));
        let hidden = |name: &String| name.ends_with(".gpuvm");
        assert!(!files(&dir).iter().any(hidden), "record {record}: left: {said}");
        if ended || place.has("a") {
            assert!(taken > 1, "the name was never free: the test proves nothing");
            place.done(&["delete", "a", "--yes"]);
            assert!(!theirs.exists());
            return copying.ends();
        }
        // An object made at once, and not recorded before the kill, is left and named.
        place.daemon.virsh(&["vol-delete", "--pool", "gpuvm-guests", "a.os"]);
        let _ = fs::remove_file(&theirs);
    }
    panic!("it never comes to its end");
}

#[test]
fn a_file_that_comes_in_the_middle_of_a_create_stays() {
    let Some((place, dir)) = pool() else { return };
    let (args, theirs) = (create(&place, "a"), dir.join("a.os"));
    let mut copying = None;
    for is_busy in [false, true] {
        if is_busy {
            copying = Some(Copying::begins(&place));
        }
        let (mut came, mut ended) = (0, false);
        for record in 1..MOST {
            let mut is_theirs = false;
            let done = place.halted(record, &args, |_| {
                if !theirs.exists() {
                    fs::write(&theirs, THEIRS).unwrap();
                    is_theirs = true;
                }
            });
            let Some((code, out, err)) = done else {
                ended = true;
                break;
            };
            if is_theirs {
                came += 1;
                assert_eq!(code, 1, "record {record}: {out}{err}");
                kept(&theirs, &format!("record {record}: {out}{err}"));
                fs::remove_file(&theirs).unwrap();
                let (known, _) = place.daemon.virsh(&["pool-refresh", "gpuvm-guests"]);
                assert_eq!(known, !is_busy);
            } else {
                place.done(&["delete", "a", "--yes"]);
            }
            kept(&dir.join("other.raw"), &err);
            assert!(!place.has("a") && place.journal().is_empty(), "record {record}: {out}{err}");
        }
        assert!(ended && came > 0, "busy {is_busy}: {came}");
        place.done(&["delete", "a", "--yes"]);
    }
    copying.unwrap().ends();
}
