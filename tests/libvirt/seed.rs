//! The seed of a guest on a real libvirtd: who may read it, where its content appears, and how it
//! is removed.

use super::files;
use crate::support::daemon::{Daemon, Tiny, daemon};
use crate::support::{run, skip};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words in a guest's seed that may not appear anywhere else.
const SECRETS: [&str; 3] = ["hunter2-in-user-data", "AAAAKEYBODY", "QVZlcnlTZWNyZXRIYXNo"];

/// A place for guests with seeds.
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
    /// Sets up the place; none if the machine cannot have it.
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
    let (code, out, err) =
        place.gpuvm(&[&create[..], &["--no-start".into(), "-vv".into()]].concat());
    assert_eq!(code, 0, "{err}");
    // All steps are reported, and the seed only by name.
    for told in ["libvirt: upload volume `sealed.seed`", "libvirt: define a domain", "wrote /"] {
        assert!(err.contains(told), "{told}: {err}");
    }
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
    // libvirt does not restore the owner of a read-only disk, since another guest may use it.
    assert_eq!(rights(&seed), (uid, 0o600), "after the end");
    let (code, _, err) = place.gpuvm(&["delete".into(), "sealed".into(), "--yes".into()]);
    assert_eq!((code, files(&place.volumes)), (0, vec![]), "{err}");
}

/// The words of a command line.
fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_create_runs_no_program_and_passes_secrets_to_libvirt_only() {
    let Some(place) = Place::new("seed-traced") else { return };
    if !Command::new("strace").arg("-V").output().is_ok_and(|out| out.status.success()) {
        return skip("strace is not installed");
    }
    let log = place.files.join("strace.log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "1000000", "-o", log.to_str().unwrap(), "-e"]);
    strace.arg("trace=execve,write,writev,pwrite64,pwritev,sendto,sendmsg");
    let create = place.create("traced");
    strace.arg(env!("CARGO_BIN_EXE_gpuvm")).args(&create).arg("--no-start");
    let (code, _, err) = run(strace.env("LIBVIRT_DEFAULT_URI", place.daemon.uri()));
    assert_eq!(code, 0, "{err}");
    let log = std::fs::read_to_string(log).unwrap();
    let (mut programs, mut told, mut journal) = (0, 0, false);
    for line in log.lines() {
        programs += usize::from(line.contains(" execve("));
        journal |= line.contains("seal-volume");
        if SECRETS.iter().any(|secret| line.contains(secret)) {
            let (call, _) = line.split_once(", ").unwrap();
            assert!(call.contains("<socket:") || call.contains("<UNIX"), "told elsewhere: {call}");
            told += 1;
        }
    }
    assert_eq!(programs, 1, "another program was run");
    assert!(told > 0 && journal, "neither seed nor journal was seen: the test proves nothing");
    assert_eq!(place.gpuvm(&words("delete traced --yes")).0, 0);
}

#[test]
fn names_and_files_from_outside_stay_in_their_places() {
    let Some(place) = Place::new("seed-names") else { return };
    let with = |name: &str, more: &[&str]| {
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        place.gpuvm(&[&place.create(name)[..], &["--no-start".into()], &more].concat())
    };
    for name in ["../up", "a/b", "a;id", "$(id)", "a'><evil/>", "a b", "-a", ".a", "a\n"] {
        let (code, _, err) = with(name, &[]);
        assert_eq!(code, 2, "{name}: {err}");
    }
    for user in ["root:x", "a'><evil/>", "$(id)", "../a", "A", ""] {
        let (code, _, err) = with("outside", &["--user", user]);
        assert_eq!(code, 2, "{user}: {err}");
    }
    let odd = place.files.join("a b;$(touch x)'\"<evil>&.pub");
    std::fs::copy(place.file("key.pub"), &odd).unwrap();
    let key = ["--ssh-key", odd.to_str().unwrap()];
    // A path is refused if it is no regular file, too large, or of the wrong kind; and nothing is
    // created before that check.
    let fifo = place.files.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (flag, file) in [
        ("--ssh-key", fifo.to_str().unwrap()),
        ("--ssh-key", &place.file("hash")),
        ("--network-config", "/dev/zero"),
        ("--meta-data", &place.file("absent")),
        ("--meta-data", place.files.to_str().unwrap()),
    ] {
        let (code, out, err) = with("outside", &[flag, file]);
        assert_eq!(code, 1, "{flag} {file}: {err}");
        assert_silent("the error", &(out + &err));
    }
    assert_eq!(files(&place.volumes), [""; 0]);
    let (code, _, err) = with("outside", &key);
    assert_eq!(code, 0, "{err}");
    let xml = place.daemon.virsh(&["dumpxml", "outside"]).1;
    assert!(!xml.contains("evil"), "{xml}");
    assert_eq!(place.gpuvm(&words("delete outside --yes")).0, 0);
}

#[test]
fn a_link_in_the_place_of_a_seed_is_not_followed() {
    let Some(place) = Place::new("seed-links") else { return };
    let (victim, absent) = (place.files.join("victim"), place.files.join("absent"));
    std::fs::write(&victim, "precious").unwrap();
    for target in [&victim, &absent] {
        let link = place.volumes.join("linked.seed");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let (code, _, err) = place.gpuvm(&place.create("linked"));
        assert_eq!(code, 1, "{err}");
        assert_eq!(std::fs::read_link(&link).unwrap(), *target, "the link was replaced: {err}");
        std::fs::remove_file(link).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!absent.exists(), "a file was made through a link");
    assert!(!place.daemon.virsh(&["dominfo", "linked"]).0, "the domain is left");
}

#[test]
fn a_seed_is_dropped_from_a_guest_that_lets_go_of_it() {
    let Some(place) = Place::new("seed-drop") else { return };
    let Some(tiny) = Tiny::new(&place.files) else { return };
    let mut create = place.create("dropped");
    create.extend(["--template".to_owned(), tiny.template.to_str().unwrap().into()]);
    let (code, _, err) = place.gpuvm(&create);
    assert_eq!(code, 0, "{err}");
    let seen = tiny.wait_for("seen: all");
    assert!(seen.contains("seen: disk vdb sectors 8192"), "the guest has no seed:\n{seen}");
    // It has no agent to ask.
    let (code, _, err) = place.gpuvm(&words("seed drop dropped --wait 1"));
    assert!(code == 1 && err.contains("cloud-init of `dropped` is not done after 1 s"), "{err}");
    let (_, dry, _) = place.gpuvm(&words("seed drop dropped --dry-run"));
    assert_eq!(dry.lines().count(), 3, "{dry}");
    let (code, out, err) = place.gpuvm(&words("seed drop dropped --now --json"));
    assert!(code == 0 && out.contains("\"dropped\": true"), "{out}{err}");
    assert_eq!(files(&place.volumes), [""; 0]);
    for which in [&["dumpxml", "dropped"][..], &["dumpxml", "--inactive", "dropped"]] {
        let xml = place.daemon.virsh(which).1;
        let (_, devices) = xml.split_once("<devices>").expect("it runs");
        assert!(!devices.contains("dropped.seed"), "{which:?}: {xml}");
    }
    let (_, show, _) = place.gpuvm(&words("show dropped --json"));
    assert!(!show.contains("dropped.seed"), "{show}");
    let (code, _, err) = place.gpuvm(&words("seed drop dropped --now"));
    assert!(code == 0 && err.contains("has no seed"), "{err}");
    assert_eq!(place.gpuvm(&words("delete dropped --yes")).0, 0);
}

#[test]
fn a_guest_that_keeps_its_seed_loses_it_when_it_is_off() {
    let Some(place) = Place::new("seed-kept") else { return };
    let mut create = place.create("kept");
    create.extend(words("--drop-seed --wait 1"));
    create.retain(|word| word != "--no-wait");
    let (code, _, err) = place.gpuvm(&create);
    // It runs, and has no address.
    assert!(code == 3 && err.contains("the seed of `kept` stays: cloud-init is not done"), "{err}");
    // Its processor stands still, so it hears nothing.
    assert!(place.daemon.virsh(&["suspend", "kept"]).0);
    let (code, _, err) = place.gpuvm(&words("seed drop kept --now"));
    assert!(code == 0 && err.contains("did not release disk"), "{err}");
    assert_eq!(files(&place.volumes), ["kept.seed"]);
    let xml = place.daemon.virsh(&["dumpxml", "--inactive", "kept"]).1;
    let (metadata, devices) = xml.split_once("<devices>").unwrap();
    assert!(metadata.contains("kept.seed") && !devices.contains("kept.seed"), "{xml}");
    assert_eq!(place.gpuvm(&words("stop kept --force")).0, 0);
    let (code, _, err) = place.gpuvm(&words("seed drop kept"));
    assert_eq!((code, files(&place.volumes)), (0, vec![]), "{err}");
    assert_eq!(place.gpuvm(&words("delete kept --yes")).0, 0);
}
