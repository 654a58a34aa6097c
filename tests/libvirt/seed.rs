//! The seed of a guest on a real libvirtd: who may read it, where its content shows, and how it goes.

use super::files;
use crate::support::daemon::{Daemon, daemon};
use crate::support::run;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that stand in what a guest is told and may be seen nowhere else.
const SECRETS: [&str; 3] = ["hunter2-in-user-data", "AAAAKEYBODY", "QVZlcnlTZWNyZXRIYXNo"];

/// Is a place for guests with seeds.
struct Place {
    /// The daemon.
    daemon: &'static Daemon,
    /// The pool's name, which is that of the test.
    pool: &'static str,
    /// The pool's directory.
    volumes: PathBuf,
    /// A guest's boot disk, keys, user-data and password hash.
    files: PathBuf,
}

impl Place {
    /// Makes the place; none where the machine cannot have it.
    fn new(pool: &'static str) -> Option<Place> {
        let daemon = daemon()?;
        let (volumes, files) = (daemon.fresh_dir(pool), daemon.fresh_dir(&format!("{pool}-files")));
        let (done, text) =
            daemon.virsh(&["pool-create-as", pool, "dir", "--target", volumes.to_str()?]);
        assert!(done, "{text}");
        let [user_data, key, hash] = SECRETS;
        for (name, content) in [
            ("boot.raw", "\0".repeat(1 << 20)),
            ("user-data", format!("#cloud-config\nbootcmd: [[echo, {user_data}]]\n")),
            ("key.pub", format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{key}{} me\n", "a".repeat(40))),
            ("hash", format!("$6$saltsalt${hash}{}\n", "x".repeat(60))),
        ] {
            std::fs::write(files.join(name), content).unwrap();
        }
        Some(Place { daemon, pool, volumes, files })
    }

    /// The path of a file, as text.
    fn file(&self, name: &str) -> String {
        self.files.join(name).to_str().unwrap().to_owned()
    }

    /// Arguments that make a small guest with a seed that holds every secret.
    fn create(&self, name: &str) -> Vec<String> {
        let shape = "--virt-type qemu --pins none --vcpus 1 --memory 256M --no-wait --pool";
        let mut args = vec!["create".to_owned(), "--name".into(), name.into()];
        args.extend(shape.split(' ').map(str::to_owned));
        args.push(self.pool.into());
        for (flag, file) in [
            ("--disk", "boot.raw"),
            ("--user-data", "user-data"),
            ("--ssh-key", "key.pub"),
            ("--password-hash", "hash"),
        ] {
            args.extend([flag.to_owned(), self.file(file)]);
        }
        args
    }

    /// Runs the program: its exit code, standard output and standard error.
    fn gpuvm(&self, args: &[String]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// The program with these arguments.
    fn command(&self, args: &[String]) -> Command {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.daemon.gpuvm(&args)
    }
}

/// Expects that no secret is in a text.
fn assert_silent(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{what} holds {secret}:\n{text}");
    }
}

/// Owner and permissions of a file.
fn rights(path: &Path) -> (u32, u32) {
    let meta = path.metadata().unwrap();
    (meta.uid(), meta.mode() & 0o7777)
}

#[test]
fn a_seed_is_readable_by_root_and_qemu_alone_and_its_content_shows_nowhere() {
    let Some(place) = Place::new("seed-rights") else { return };
    let create = place.create("sealed");
    let dry = |more: &str| [&create[..], &["--dry-run".into(), more.into()]].concat();
    for more in ["--json", "--quiet"] {
        let (code, out, err) = place.gpuvm(&dry(more));
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("sealed.seed"), "{out}");
        assert_silent("--dry-run", &(out + &err));
    }
    assert_eq!(files(&place.volumes), [""; 0]);
    let (code, out, err) = place.gpuvm(&[&create[..], &["--no-start".into()]].concat());
    assert_eq!(code, 0, "{err}");
    assert_silent("the answer", &(out + &err));
    let seed = place.volumes.join("sealed.seed");
    assert_eq!(rights(&seed), (0, 0o600), "before the start");
    let content = String::from_utf8_lossy(&std::fs::read(&seed).unwrap()).into_owned();
    for secret in SECRETS {
        assert!(content.contains(secret), "{secret} is not in the seed: the test proves nothing");
    }
    assert!(place.gpuvm(&["start".into(), "sealed".into()]).0 == 0);
    let (owner, mode) = rights(&seed);
    assert_eq!(mode, 0o600, "while it runs");
    // The owner of QEMU's own process.
    let uid = place.daemon.uid_of("guest=sealed");
    assert_eq!(owner, uid, "the seed is not QEMU's while it runs");
    for which in [&["dumpxml", "sealed"][..], &["dumpxml", "--security-info", "sealed"]] {
        let xml = place.daemon.virsh(which).1;
        assert!(xml.contains("sealed.seed") && xml.contains("<readonly/>"), "{xml}");
        assert_silent("the domain's XML", &xml);
    }
    for verb in ["show", "list"] {
        let mut args = vec![verb.to_owned(), "--json".into()];
        args.extend((verb == "show").then(|| "sealed".to_owned()));
        let (_, out, err) = place.gpuvm(&args);
        assert_silent(verb, &(out + &err));
    }
    assert_eq!(place.gpuvm(&["stop".into(), "sealed".into(), "--force".into()]).0, 0);
    // libvirt gives no disk back that a guest only reads, since another may read it too.
    assert_eq!(rights(&seed), (uid, 0o600), "after the end");
    let (code, _, err) = place.gpuvm(&["delete".into(), "sealed".into(), "--yes".into()]);
    assert_eq!((code, files(&place.volumes)), (0, vec![]), "{err}");
}
