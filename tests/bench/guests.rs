//! `list` against `virsh list --all` with 50 guests, `create` of a guest whose volumes exist
//! against `virsh define` and `virsh start` with the same XML, and `delete` of it against `virsh
//! destroy` and `virsh undefine`, on a libvirtd of the benchmark's own. `GPUVM_BEFORE=PROGRAM`
//! measures another gpuvm, an older one, in the same rotation.

use crate::measure::{Subject, Verdict, median, rotate};
use crate::support::daemon::Daemon;
use crate::support::run;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Limit as a multiple of `virsh list --all` that `list` of 50 guests may take, and the one to stay
/// below.
const OF_VIRSH_LIST: (f64, f64) = (2.0, 0.7);
/// Limit as a multiple of `virsh define` and `virsh start` that `create` may take, and the one to
/// stay below.
const OF_VIRSH_START: (f64, f64) = (1.10, 1.03);
/// Limit as a multiple of `virsh destroy` and `virsh undefine` that `delete` may take.
const OF_VIRSH_UNDEFINE: f64 = 2.5;
/// Limit as a multiple of the time of the gpuvm in `GPUVM_BEFORE`.
const OF_BEFORE: f64 = 1.10;
const GUESTS: usize = 50;

/// The arguments of virsh on a libvirtd.
fn virsh<'a>(uri: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["virsh", "-q", "-c", uri], args].concat()
}

/// Measures the list.
pub fn list(quick: bool) -> Vec<Verdict> {
    let Some(daemon) = Daemon::own(None) else { return Vec::new() };
    let (uri, dir) = (daemon.uri(), daemon.fresh_dir("disks"));
    let dir = dir.to_str().expect("a temporary path is UTF-8");
    for number in 0..GUESTS {
        let name = format!("guest-{number}");
        let shape = "--virt-type qemu --pins none --vcpus 2 --memory 256M --no-start --disk-dir";
        let mut create = daemon.gpuvm(&["create", "--name", &name]);
        let (code, _, err) = run(create.args(shape.split(' ')).arg(dir));
        assert_eq!(code, 0, "{err}");
    }
    let mut subjects = vec![
        Subject::new("gpuvm list, 50 guests", &[env!("CARGO_BIN_EXE_gpuvm"), "-c", &uri, "list"]),
        Subject::new("virsh list --all, 50 guests", &virsh(&uri, &["list", "--all"])),
        // What libvirt's library takes to load and to connect, which is in both.
        Subject::new("virsh uri", &virsh(&uri, &["uri"])),
    ];
    let older = before();
    subjects.extend(older.iter().map(|program| {
        Subject::new("gpuvm list of before, 50 guests", &[program, "-c", &uri, "list"])
    }));
    rotate(&mut subjects, if quick { 5 } else { 31 });
    for subject in &subjects {
        println!("{:<34} {:>10.1} ms", subject.name, subject.median_ms());
    }
    let value = subjects[0].median_ms() / subjects[1].median_ms();
    let peers = against_peer("gpuvm list / virsh list --all, 50 guests", value, OF_VIRSH_LIST);
    let (ours, before) = (subjects[0].median_ms(), subjects.get(3).map(Subject::median_ms));
    let before = before.map(|before| against("list, 50 guests", ours, before));
    peers.into_iter().chain(before).collect()
}

/// The comparison with a peer: the gate, and the goal.
fn against_peer(what: &str, value: f64, (gate, goal): (f64, f64)) -> [Verdict; 2] {
    let verdict = |what: String, limit, gate| Verdict { what, value, limit, unit: "x", gate };
    [verdict(what.to_owned(), goal, false), verdict(format!("{what}, at most"), gate, true)]
}

/// Runs a command, which must succeed.
fn done(command: &mut Command) -> String {
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{command:?}: {out}{err}");
    out
}

/// The earlier program, if one is named.
pub fn before() -> Option<String> {
    std::env::var("GPUVM_BEFORE").ok().filter(|program| !program.is_empty())
}

/// The comparison with the earlier program.
pub fn against(what: &str, ours: f64, before: f64) -> Verdict {
    let what = format!("gpuvm {what} / the same of before");
    Verdict { what, value: ours / before, limit: OF_BEFORE, unit: "x", gate: true }
}

/// A guest with its own disk, for every way of creating and ending it.
struct Rig {
    daemon: Daemon,
    uri: String,
    /// Arguments of the `create` that makes the guest.
    create: Vec<String>,
    file: String,
}

impl Rig {
    /// Sets up the guest; none if this machine cannot.
    fn new() -> Option<Rig> {
        let daemon = Daemon::own(None)?;
        let (uri, dir) = (daemon.uri(), daemon.fresh_dir("disks"));
        let (disk, file) = (dir.join("disk.raw"), dir.join("guest.xml"));
        std::fs::File::create(&disk)
            .and_then(|file| file.set_len(64 << 20))
            .expect("a sparse file");
        let text = |path: &Path| path.to_str().expect("a temporary path is UTF-8").to_owned();
        let shape = "create --virt-type qemu --pins none --vcpus 2 --memory 256M --no-wait --name";
        let words = shape.split(' ').chain(["guest", "--disk"]).map(str::to_owned);
        let rig =
            Rig { create: words.chain([text(&disk)]).collect(), daemon, uri, file: text(&file) };
        rig.create(env!("CARGO_BIN_EXE_gpuvm"));
        let xml = rig.virsh(&["dumpxml", "--inactive", "guest"]);
        std::fs::write(&rig.file, xml).expect("the definition is written");
        rig.end();
        Some(rig)
    }

    /// Defines other guests beside it, each with a disk of its own.
    fn with_others(self) -> Rig {
        let xml = std::fs::read_to_string(&self.file).expect("it was written");
        let uuid = xml.lines().find(|line| line.contains("<uuid>")).expect("libvirt gives one");
        let disk = self.create.last().expect("the disk is the last argument");
        for number in 0..GUESTS {
            let other = format!("{disk}.{number}");
            std::fs::File::create(&other)
                .and_then(|file| file.set_len(64 << 20))
                .expect("a sparse file");
            let name = format!("<name>other-{number}</name>");
            let xml = xml.replace(uuid, "").replace("<name>guest</name>", &name);
            let file = format!("{}.{number}", self.file);
            std::fs::write(&file, xml.replace(disk, &other)).expect("the definition is written");
            self.virsh(&["define", &file]);
        }
        self
    }

    fn gpuvm(&self, program: &str, args: &[String]) {
        done(Command::new(program).args(args).env("LIBVIRT_DEFAULT_URI", self.daemon.uri()));
    }

    /// Makes the guest and starts it.
    fn create(&self, program: &str) {
        self.gpuvm(program, &self.create);
    }

    fn virsh(&self, args: &[&str]) -> String {
        let line = virsh(&self.uri, args);
        done(Command::new(line[0]).args(&line[1..]))
    }

    /// Makes the guest and starts it, by virsh.
    fn begin(&self) {
        self.virsh(&["define", &self.file]);
        self.virsh(&["start", "guest"]);
    }

    fn end(&self) {
        self.virsh(&["destroy", "guest"]);
        self.virsh(&["undefine", "guest", "--nvram"]);
    }

    /// Times these in rotation, each after `first` and before `last`; their medians in ms.
    fn rotate(
        quick: bool,
        (first, last): (&dyn Fn(), &dyn Fn()),
        timed: &[(&str, &dyn Fn())],
    ) -> Vec<f64> {
        let mut times = vec![Vec::new(); timed.len()];
        for round in 0..=(if quick { 5 } else { 21 }) {
            for (at, (_, run)) in timed.iter().enumerate() {
                first();
                let started = Instant::now();
                run();
                let ms = started.elapsed().as_secs_f64() * 1000.0;
                last();
                // The first round warms caches.
                if round > 0 {
                    times[at].push(ms);
                }
            }
        }
        for ((name, _), times) in timed.iter().zip(&times) {
            println!("{name:<34} {:>10.1} ms", median(times));
        }
        times.iter().map(|times| median(times)).collect()
    }
}

/// Measures the making of a guest, without the wait for its address.
pub fn create(quick: bool) -> Vec<Verdict> {
    let Some(rig) = Rig::new() else { return Vec::new() };
    let ours = || rig.create(env!("CARGO_BIN_EXE_gpuvm"));
    let (theirs, end) = (|| rig.begin(), || rig.end());
    let older = before();
    let older = older.as_ref().map(|program| || rig.create(program));
    let mut timed: Vec<(&str, &dyn Fn())> =
        vec![("gpuvm create --disk", &ours), ("virsh define, virsh start", &theirs)];
    timed.extend(older.iter().map(|older| ("gpuvm create, before", older as &dyn Fn())));
    let times = Rig::rotate(quick, (&|| (), &end), &timed);
    let what = "gpuvm create --disk --no-wait / virsh define + start";
    let peers = against_peer(what, times[0] / times[1], OF_VIRSH_START);
    let before = times.get(2).map(|before| against("create --disk", times[0], *before));
    peers.into_iter().chain(before).collect()
}

/// Measures the end of a guest that runs, with others beside it.
pub fn delete(quick: bool) -> Vec<Verdict> {
    let Some(rig) = Rig::new().map(Rig::with_others) else { return Vec::new() };
    let args = ["delete", "guest", "--yes"].map(str::to_owned);
    let ours = || rig.gpuvm(env!("CARGO_BIN_EXE_gpuvm"), &args);
    let (theirs, begin) = (|| rig.end(), || rig.begin());
    let older = before();
    let older = older.as_ref().map(|program| || rig.gpuvm(program, &args));
    let mut timed: Vec<(&str, &dyn Fn())> =
        vec![("gpuvm delete --yes", &ours), ("virsh destroy, virsh undefine", &theirs)];
    timed.extend(older.iter().map(|older| ("gpuvm delete, before", older as &dyn Fn())));
    let times = Rig::rotate(quick, (&begin, &|| ()), &timed);
    let what = "gpuvm delete --yes / virsh destroy + undefine, 50 guests".to_owned();
    let value = times[0] / times[1];
    let peer = Verdict { what, value, limit: OF_VIRSH_UNDEFINE, unit: "x", gate: true };
    let before = times.get(2).map(|before| against("delete --yes", times[0], *before));
    [peer].into_iter().chain(before).collect()
}
