//! Concurrent changes, on a private libvirtd as if on the DGX-2: nothing is assigned twice, and a
//! refused caller learns who holds it.

use super::files;
use super::place::{Place, until};
use crate::support::daemon::Daemon;
use crate::support::{host_tree, run};
use gpuvm::domain::DomainXml;
use std::collections::BTreeSet;
use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::{Child, Stdio};

/// The DGX-2, and a directory for disks; none where this machine cannot have it.
fn dgx2() -> Option<Place> {
    let daemon = Daemon::own(Some(&host_tree("dgx-2")))?;
    let disks = daemon.fresh_dir("disks");
    Some(Place { daemon, disks, key: None, net: false, before: None })
}

/// Starts a run that waits for the lock without limit.
fn begin(place: &Place, line: &str) -> Child {
    let mut command = place.command(&line.split(' ').collect::<Vec<_>>());
    command.args(["--lock-wait", "550"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// How a run ended: its exit code, standard output and standard error.
fn end(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A create of a guest with two GPUs.
fn create(place: &Place, name: &str) -> String {
    let disks = place.disks.display();
    format!("create --gpus 2 --name {name} --no-start --accept-shared-fabric --disk-dir {disks}")
}

/// Reads every domain back, and expects that no device and no pcpu is in two of them. Returns the
/// domains' names.
fn sound(place: &Place) -> Vec<String> {
    let (mut devices, mut pcpus) = (BTreeSet::new(), BTreeSet::new());
    let names = place.virsh(&["list", "--all", "--name"]);
    for name in names.split_whitespace() {
        let xml = place.virsh(&["dumpxml", "--inactive", name]);
        let held = DomainXml::parse(&xml).unwrap().held(false).unwrap();
        assert!(held.devices.len() >= 2 && held.vcpu_pins.len() == 10, "{name}: {held:?}");
        for device in held.devices {
            assert!(devices.insert(device), "{device} is in `{name}` and in another");
        }
        let pins = held.vcpu_pins.iter().chain(&held.emulator_pin).chain(&held.iothread_pins);
        let own: BTreeSet<_> = pins.flat_map(|pins| pins.iter()).collect();
        for pcpu in own {
            assert!(pcpus.insert(pcpu), "pcpu {pcpu} is of `{name}` and of another");
        }
        let (code, out, err) = place.gpuvm(&["check", name]);
        assert_eq!(code, 0, "{out}{err}");
    }
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn of_sixteen_creates_at_once_eight_get_their_gpus() {
    let Some(place) = dgx2() else { return };
    let names: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
    let runs: Vec<_> = names.iter().map(|name| begin(&place, &create(&place, name))).collect();
    let ends: Vec<_> = names.iter().zip(runs.into_iter().map(end)).collect();
    let there = sound(&place);
    assert_eq!(there.len(), 8, "{ends:?}");
    for (name, (code, out, err)) in &ends {
        if there.contains(name) {
            assert!(*code == 0 && out.starts_with(&format!("{name}: create mac: ")), "{err}");
            continue;
        }
        assert!(*code == 1 && out.is_empty(), "{name}: {code}: {out}{err}");
        let held = there.iter().any(|holder| err.contains(&format!("held by domain `{holder}`")));
        assert!(held && err.contains("hint: "), "nobody is named: {err}");
    }
    assert_eq!(files(&place.disks).len(), 8);
    assert_eq!(place.journal(), "");
    let listed = place.done(&["list"]);
    assert_eq!(listed.lines().filter(|line| line.contains("gpuvm")).count(), 8, "{listed}");

    // Half of them are deleted while others are created. A create that comes too early reports it.
    let mut runs = Vec::new();
    for (n, name) in there[..4].iter().enumerate() {
        runs.push(begin(&place, &format!("delete {name} --yes")));
        runs.push(begin(&place, &create(&place, &format!("d{n}"))));
    }
    let mut came = 0;
    for (at, run) in runs.into_iter().enumerate() {
        let (code, out, err) = end(run);
        match at % 2 {
            0 => assert_eq!(code, 0, "{out}{err}"),
            _ => assert!(code == 0 || code == 1 && err.contains("held by domain"), "{out}{err}"),
        }
        came += usize::from(at % 2 == 1 && code == 0);
    }
    let left = sound(&place);
    assert_eq!((left.len(), files(&place.disks).len()), (4 + came, 4 + came), "{left:?}");
    assert!(there[4..].iter().all(|name| left.contains(name)), "{left:?}");
    assert_eq!(place.journal(), "");
}

#[test]
fn a_killed_change_is_recovered_once_whoever_comes_first() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let how = ["--no-start", "--disk-dir", &disks];
    let before = place.state();
    // Killed when its last step begins: the disk is there.
    assert!(!place.killed(5, &place.create("half", &how)));
    let other =
        format!("create --name other --virt-type qemu --pins none --no-start --disk-dir {disks}");
    let runs = ["recover", "recover", &other, "recover"].map(|line| begin(&place, line));
    let [one, two, made, three] = runs.map(end);
    let undone: Vec<_> =
        [&one, &two, &three].into_iter().filter(|e| e.1.contains("undone")).collect();
    assert_eq!(undone.len(), 1, "{one:?} {two:?} {three:?}");
    assert!([one.0, two.0, three.0] == [0; 3], "{one:?} {two:?} {three:?}");
    // The create either comes after the recovery, or must wait for one.
    match made.0 {
        0 => drop(place.done(&["delete", "other", "--yes"])),
        _ => assert!(made.0 == 1 && made.2.contains("gpuvm recover"), "{made:?}"),
    }
    super::place::same(&before, &place.state(), &format!("{one:?} {two:?} {three:?} {made:?}"));
}

#[test]
fn the_holder_of_the_lock_is_named_without_waiting() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let how = ["--no-start", "--disk-dir", &disks];
    let ended = place.halted(3, &place.create("slow", &how), |_| {
        let (code, out, err) =
            place.gpuvm(&[&place.create("fast", &how)[..], &["--lock-wait", "0"]].concat());
        assert!(code == 1 && out.is_empty(), "{out}{err}");
        assert!(
            err.contains("/run/gpuvm/lock is held by process") && err.contains("--lock-wait"),
            "{err}"
        );
        // A change in progress is not mistaken for an interrupted one either.
        let (code, out, err) = place.gpuvm(&["recover", "--lock-wait", "0"]);
        assert!(code == 1 && err.contains("is held by process"), "{out}{err}");
    });
    assert_eq!(ended.unwrap().0, 0);
    place.done(&["delete", "slow", "--yes"]);
    // The lock is held until the guest has started: its resources are not removed meanwhile.
    let create = place.create("slow", &["--disk-dir", &disks]);
    let ended = place.halted(10, &create, |journal| {
        assert!(journal.contains("start-domain"), "{journal}");
        let (code, out, err) = place.gpuvm(&["delete", "slow", "--yes", "--lock-wait", "0"]);
        assert!(code == 1 && err.contains("is held by process"), "{out}{err}");
    });
    let (code, out, err) = ended.unwrap();
    assert!(code == 0 && place.has("slow"), "{out}{err}");
    place.virsh(&["destroy", "slow"]);
    place.done(&["delete", "slow", "--yes"]);
    assert!(!place.has("slow") && files(&place.disks).is_empty() && place.journal().is_empty());
}

/// Starts a run, and returns once it waits for the lock; its output goes to a file.
pub(super) fn waiting(place: &Place, args: &[&str], log: &Path) -> Child {
    let mut command = place.command(args);
    command.args(["--lock-wait", "550"]).stdout(Stdio::piped());
    let child = command.stderr(File::create(log).unwrap()).spawn().unwrap();
    let waits = || read_to_string(log).unwrap().contains("waiting for another change");
    until("it waits for the lock", waits);
    child
}

/// Ends it: its exit code, and all that it said.
pub(super) fn ended(child: Child, log: &Path) -> (i32, String) {
    let (code, out, _) = end(child);
    (code, out + &read_to_string(log).unwrap())
}

#[test]
fn a_waiting_create_of_the_same_guest_finds_it() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let log = place.daemon.own_path("waits.log");
    let how = ["--no-start", "--if-absent", "--os-size", "16M", "--disk-dir", &disks];
    let create = place.create("same", &how);
    let other = [&create[..], &["--network", "none-such"]].concat();
    for (second, code, says) in [
        (&create, 0, "exists as requested; nothing to do"),
        (&other, 1, "domain `same` exists and differs: network"),
    ] {
        let mut late = None;
        let first = place.halted(3, &create, |_| late = Some(waiting(&place, second, &log)));
        let (made, second) = (first.unwrap(), ended(late.unwrap(), &log));
        assert_eq!(made.0, 0, "{made:?}");
        assert!(second.0 == code && second.1.contains(says), "{second:?}");
        place.done(&["delete", "same", "--yes"]);
    }
    assert!(files(&place.disks).is_empty() && place.journal().is_empty());
}

#[test]
fn fifty_guests_are_listed() {
    let Some(place) = Place::new() else { return };
    let names: Vec<String> = (0..50).map(|n| format!("guest-{n:02}")).collect();
    let mut define = String::new();
    for name in &names {
        let file = place.daemon.own_path(name);
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory>65536</memory><vcpu>3</vcpu>\
             <os><type>hvm</type></os></domain>"
        );
        std::fs::write(&file, xml).unwrap();
        define += &format!("define {};", file.display());
    }
    place.virsh(&[&define]);
    place.virsh(&["start", "guest-07", "--paused"]);
    place.virsh(&["start", "guest-08"]);
    until("guest-08 runs", || place.virsh(&["domstate", "guest-08"]).contains("running"));
    let listed = place.done(&["list"]);
    let rows: Vec<Vec<&str>> =
        listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 50, "{listed}");
    for (name, row) in names.iter().zip(&rows) {
        let state = match name.as_str() {
            "guest-07" => &["paused"][..],
            "guest-08" => &["running"],
            _ => &["shut", "off"],
        };
        let (vcpus, memory) = (row[1 + state.len()], row[2 + state.len()]);
        assert_eq!((row[0], &row[1..1 + state.len()], vcpus, memory), (&**name, state, "3", "64"));
    }
    let json: serde_json::Value = serde_json::from_str(&place.done(&["list", "--json"])).unwrap();
    assert!(json.as_array().unwrap().iter().all(|row| row["persistent"] == true), "{json}");
    // One call for each definition, and a few for everything else: 50 guests must not cost 200
    // calls.
    let log = place.daemon.own_path("calls");
    let mut strace = place.daemon.within("strace");
    strace.args(["-f", "-qq", "-e", "trace=write,sendmsg,sendto", "-o", log.to_str().unwrap()]);
    let (code, _, err) = run(strace.args([env!("CARGO_BIN_EXE_gpuvm"), "list"]));
    assert_eq!(code, 0, "{err}");
    let calls = read_to_string(&log).unwrap();
    // Every call of libvirt's protocol names the program 0x20008086.
    let calls = calls.lines().filter(|line| line.contains(" \\0\\200\\206")).count();
    assert!((50..100).contains(&calls), "{calls} calls to libvirt");
}
