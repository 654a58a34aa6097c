//! `tune`, `history` and `undo` on a real libvirtd: the running guest is changed and changed back,
//! edits by others are kept, and a tune that is killed at any record leaves the domain as it was.

use super::place::{MOST, Place};
use crate::support::daemon::{Daemon, Tiny, daemon};
use crate::support::lawful::NO_LIMITS;
use crate::support::{run, skip};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// The NIC of the guests here.
const MAC: &str = "52:54:00:0b:a0:01";

/// Runs the program, which must end with this code. Returns its standard output and error.
fn gpuvm(daemon: &Daemon, code: i32, args: &[&str]) -> (String, String) {
    let (found, out, err) = run(daemon.within(env!("CARGO_BIN_EXE_gpuvm")).args(args));
    assert_eq!(found, code, "{args:?}: {out}{err}");
    (out, err)
}

/// Runs virsh, which must succeed.
fn virsh(daemon: &Daemon, args: &[&str]) -> String {
    let (done, text) = daemon.virsh(args);
    assert!(done, "{args:?}: {text}");
    text
}

/// The definition of a domain's next start.
fn definition(daemon: &Daemon, name: &str) -> String {
    virsh(daemon, &["dumpxml", "--inactive", "--security-info", name])
}

/// Where the threads of a running domain may run, in virsh's words.
fn pins(daemon: &Daemon, name: &str) -> [String; 2] {
    ["vcpupin", "emulatorpin"].map(|what| virsh(daemon, &[what, name, "--live"]))
}

/// The rates of a running domain's NIC, in virsh's words.
fn rates(daemon: &Daemon, name: &str) -> String {
    virsh(daemon, &["domiftune", name, MAC, "--live"])
}

/// A domain of two vCPUs, as other tools define one. It runs no more than its firmware: it is never
/// queried, and QEMU 10.0 ends some guests of several emulated vCPUs while their kernel sets up its
/// devices (see `view.rs`).
fn define(daemon: &Daemon, tiny: &Tiny, name: &str) {
    let xml = std::fs::read_to_string(&tiny.template).unwrap();
    let start = xml.find("<name>").unwrap();
    let end = xml.find("</name>").unwrap();
    let xml = format!("{}<name>{name}{}", &xml[..start], &xml[end..]);
    let vcpu = xml.find("<vcpu>").unwrap()..xml.find("</vcpu>").unwrap();
    let xml = format!("{}<vcpu>2{}", &xml[..vcpu.start], &xml[vcpu.end..]);
    let kernel = xml.find("<kernel>").unwrap()..xml.find("</os>").unwrap();
    let xml = format!("{}{}", &xml[..kernel.start], &xml[kernel.end..]);
    let nic = format!(
        "<interface type='network'><mac address='{MAC}'/><source network='default'/>\
         <model type='virtio'/></interface></devices>"
    );
    let xml = xml.replacen("</devices>", &nic, 1);
    let file = tiny.template.with_file_name(format!("{name}.xml"));
    std::fs::write(&file, xml).unwrap();
    virsh(daemon, &["define", file.to_str().unwrap()]);
}

/// The daemon's replacement for `tc` if the kernel has classes with rates, and neither `sfq`, the
/// queue of those who share a rate, nor `fw`, which sorts marked packets into the class where all
/// the others go by default.
const PLAIN_TC: &str = r#"case " $* " in *" filter "*) exit 0 ;; esac
exec $real $(echo "$*" | sed 's/ sfq perturb 10/ pfifo/')
"#;

/// Whether the daemon can limit rates, if need be with [`PLAIN_TC`].
fn limits_rates(daemon: &Daemon, name: &str) -> bool {
    let takes = |rate: &str| daemon.virsh(&["domiftune", name, MAC, "--live", "--inbound", rate]).0;
    if takes("1000") {
        return takes("0");
    }
    let (dir, (code, tc, _)) = (daemon.fresh_dir("tc"), run(Command::new("which").arg("tc")));
    if code != 0 {
        return false;
    }
    let (tc, real, plain) = (tc.trim(), dir.join("real"), dir.join("plain"));
    std::fs::copy(tc, &real).unwrap();
    std::fs::write(&plain, format!("#!/bin/sh\nreal={}\n{PLAIN_TC}", real.display())).unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut mount = daemon.enter(&["--mount"], "mount");
    run(mount.arg("--bind").arg(&plain).arg(tc)).0 == 0 && takes("1000") && takes("0")
}

/// The NIC of a running guest gets its rate at once, by libvirt's word and by the kernel's, and is
/// free after `undo`.
fn a_rate_comes_and_goes(daemon: &Daemon, name: &str) {
    if !limits_rates(daemon, name) {
        return skip(NO_LIMITS);
    }
    let (before, free) = (definition(daemon, name), rates(daemon, name));
    assert!(free.contains("inbound.average: 0"), "{free}");
    let tune = ["tune", name, "--inbound", "80Mbit/s", "--live"];
    let (dry, _) = gpuvm(daemon, 0, &[&tune[..], &["--dry-run"]].concat());
    assert!(dry.contains(&format!("change the bandwidth of interface {MAC}")), "{dry}");
    assert_eq!(rates(daemon, name), free);
    let (said, _) = gpuvm(daemon, 0, &[&tune[..], &["--yes"]].concat());
    assert!(said.contains("inbound: free -> 10000 kB/s") && !said.contains("devices"), "{said}");
    let now = rates(daemon, name);
    assert!(now.contains("inbound.average: 10000"), "{now}");
    let nics = virsh(daemon, &["domiflist", name]);
    let nic = nics.split_whitespace().next().unwrap();
    let mut show = daemon.enter(&["--net"], "tc");
    let (_, classes, _) = run(show.args(["class", "show", "dev", nic]));
    assert!(classes.contains("rate 80Mbit"), "{classes}");
    gpuvm(daemon, 0, &["undo", name, "--yes"]);
    assert_eq!((definition(daemon, name), rates(daemon, name)), (before, free));
}

#[test]
fn running_guests_are_tuned_and_undone_and_edits_by_others_kept() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return skip("a guest with a pcpu of its own needs a second one");
    }
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("undo");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let name = "undone";
    define(daemon, &tiny, name);
    virsh(daemon, &["start", name]);
    let (before, ran) = (definition(daemon, name), pins(daemon, name));
    let (_, none) = gpuvm(daemon, 1, &["undo", name, "--yes"]);
    assert!(none.contains("has no change to undo"), "{none}");

    let tune =
        ["tune", name, "--pins", "on", "--emulator", "1", "--huge-pages", "off", "--live", "--yes"];
    let (said, _) = gpuvm(daemon, 0, &tune);
    assert!(said.contains("pin vCPU 0 of running domain"), "{said}");
    let (tuned, runs) = (definition(daemon, name), pins(daemon, name));
    assert!(tuned.contains("<vcpupin vcpu='0' cpuset='0'/>"), "{tuned}");
    assert_ne!(runs, ran, "nothing was changed of what runs");
    let words: Vec<&str> = runs[0].split_whitespace().collect();
    assert!(words.ends_with(&["0", "0", "1", "1"]), "{}", runs[0]);
    assert!(gpuvm(daemon, 0, &tune).0.contains("nothing to do"));
    let (history, _) = gpuvm(daemon, 0, &["history", name]);
    assert!(history.contains("tune") && history.contains("pins: "), "{history}");
    let (diff, _) = gpuvm(daemon, 0, &["history", name, "--diff", "1"]);
    assert!(diff.contains("+    <vcpupin vcpu='0' cpuset='0'/>"), "{diff}");

    a_rate_comes_and_goes(daemon, name);

    // An edit by others is not lost without consent.
    let edited = tuned.replacen("</name>", "</name>\n  <title>theirs</title>", 1);
    let file = dir.join("edited.xml");
    std::fs::write(&file, &edited).unwrap();
    virsh(daemon, &["define", file.to_str().unwrap()]);
    let (_, err) = gpuvm(daemon, 1, &["undo", name, "--yes"]);
    assert!(err.contains("was edited since change 1") && err.contains("--force"), "{err}");
    let (_, dry) = gpuvm(daemon, 1, &["undo", name, "--dry-run"]);
    assert!(dry.contains("was edited since change 1"), "{dry}");
    let (_, dry) = gpuvm(daemon, 0, &["undo", name, "--dry-run", "--force"]);
    assert!(dry.contains("edits of domain `undone` since change 1"), "{dry}");
    assert!(definition(daemon, name).contains("<title>theirs</title>"));
    let (diff, _) = gpuvm(daemon, 0, &["undo", name, "--diff"]);
    assert!(diff.contains("-  <title>theirs</title>"), "{diff}");
    let (_, err) = gpuvm(daemon, 0, &["undo", name, "--yes", "--force"]);
    assert!(err.contains("takes effect at its next start"), "{err}");
    assert_eq!(definition(daemon, name), before);
    assert_eq!(pins(daemon, name), ran);
    assert!(gpuvm(daemon, 0, &["history", name]).0.contains("undone 20"));
    virsh(daemon, &["destroy", name]);

    // Two changes are reverted one by one, and their history is removed with the domain.
    gpuvm(daemon, 0, &["tune", name, "--pins", "on", "--yes"]);
    let once = definition(daemon, name);
    gpuvm(daemon, 0, &["tune", name, "--emulator", "0", "--yes"]);
    gpuvm(daemon, 0, &["undo", name, "--yes"]);
    assert_eq!(definition(daemon, name), once);
    let (steps, _) = gpuvm(daemon, 0, &["delete", name, "--dry-run", "--verbose"]);
    assert!(steps.contains("delete record "), "{steps}");
    gpuvm(daemon, 0, &["delete", name, "--yes"]);
}

#[test]
fn a_tune_killed_at_any_record_leaves_the_domain_as_it_was() {
    let Some(place) = Place::new() else { return };
    let daemon = &place.daemon;
    let dir = daemon.fresh_dir("undo-killed");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let name = "killt";
    define(daemon, &tiny, name);
    let before = definition(daemon, name);
    let mut undone = 0;
    for n in 1..MOST {
        let ended = place.killed(n, &["tune", name, "--pins", "on", "--yes"]);
        let said = place.recover();
        if ended {
            assert!(undone > 3, "only {undone} records were seen: the test proves nothing");
            place.done(&["undo", name, "--yes"]);
            assert_eq!(definition(daemon, name), before);
            place.done(&["delete", name, "--yes"]);
            return;
        }
        let history = place.done(&["history", name, "--json"]);
        if definition(daemon, name) == before {
            undone += 1;
            assert_eq!(history.trim(), "[]", "record {n}: {said}");
        } else {
            // Killed after its last step.
            place.done(&["undo", name, "--yes"]);
        }
    }
    panic!("it never comes to its end");
}
