//! `list` against `virsh list --all` with 50 guests, and `create` of a guest whose volumes are there against `virsh
//! define` and `virsh start` with the same XML, on a libvirtd of the benchmark's own.

use crate::measure::{Subject, Verdict, median, rotate};
use crate::support::daemon::Daemon;
use crate::support::run;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The most of `virsh list --all` that `list` of 50 guests may take.
const OF_VIRSH_LIST: f64 = 2.0;
/// The most of `virsh define` and `virsh start` that `create` may take.
const OF_VIRSH_START: f64 = 1.10;
/// Guests that are listed.
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
    let ours = [env!("CARGO_BIN_EXE_gpuvm"), "-c", &uri, "list"];
    let mut subjects = [
        Subject::new("gpuvm list, 50 guests", &ours),
        Subject::new("virsh list --all, 50 guests", &virsh(&uri, &["list", "--all"])),
    ];
    rotate(&mut subjects, if quick { 5 } else { 31 });
    for subject in &subjects {
        println!("{:<34} {:>10.1} ms", subject.name, subject.median_ms());
    }
    let value = subjects[0].median_ms() / subjects[1].median_ms();
    let what = "gpuvm list / virsh list --all, 50 guests".to_owned();
    vec![Verdict { what, value, limit: OF_VIRSH_LIST, unit: "x", gate: true }]
}

/// Runs a command that has to come to a good end.
fn done(command: &mut Command) -> String {
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{command:?}: {out}{err}");
    out
}

/// Measures the making of a guest, without the wait for its address.
pub fn create(quick: bool) -> Vec<Verdict> {
    let Some(daemon) = Daemon::own(None) else { return Vec::new() };
    let (uri, dir) = (daemon.uri(), daemon.fresh_dir("disks"));
    let (disk, file) = (dir.join("disk.raw"), dir.join("guest.xml"));
    std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    let text = |path: &Path| path.to_str().expect("a temporary path is UTF-8").to_owned();
    let (disk, file) = (text(&disk), text(&file));
    let shape = "--virt-type qemu --pins none --vcpus 2 --memory 256M --no-wait --name guest";
    let args: Vec<&str> =
        ["create"].into_iter().chain(shape.split(' ')).chain(["--disk", &disk]).collect();
    let ours = || drop(done(&mut daemon.gpuvm(&args)));
    let peer = |args: &[&str]| {
        let line = virsh(&uri, args);
        done(Command::new(line[0]).args(&line[1..]))
    };
    let gone = || {
        peer(&["destroy", "guest"]);
        peer(&["undefine", "guest", "--nvram"]);
    };
    ours();
    let xml = peer(&["dumpxml", "--inactive", "guest"]);
    std::fs::write(&file, xml).expect("the definition is written");
    gone();
    let timed = |make: &dyn Fn()| {
        let started = Instant::now();
        make();
        let ms = started.elapsed().as_secs_f64() * 1000.0;
        gone();
        ms
    };
    let theirs = || {
        peer(&["define", &file]);
        peer(&["start", "guest"]);
    };
    let (mut our_ms, mut their_ms) = (Vec::new(), Vec::new());
    for round in 0..=(if quick { 5 } else { 21 }) {
        let (one, other) = (timed(&ours), timed(&theirs));
        // The first round warms caches.
        if round > 0 {
            our_ms.push(one);
            their_ms.push(other);
        }
    }
    for (name, times) in
        [("gpuvm create --disk", &our_ms), ("virsh define, virsh start", &their_ms)]
    {
        println!("{name:<34} {:>10.1} ms", median(times));
    }
    let what = "gpuvm create --disk --no-wait / virsh define + start".to_owned();
    let value = median(&our_ms) / median(&their_ms);
    vec![Verdict { what, value, limit: OF_VIRSH_START, unit: "x", gate: true }]
}
