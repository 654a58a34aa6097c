//! vCPUs that come and go while a guest runs, on a real libvirtd with a guest that boots: up to its
//! maximum and back, refused beyond it, undone, killed at every record of the journal.

use super::place::{MOST, Place, same};
use crate::support::daemon::Tiny;
use crate::support::{gpuvm, project, run};
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "vcpus-s";

/// How many vCPUs it has and may have: of the definition, or of what runs.
fn vcpus(place: &Place, inactive: bool) -> (u32, u32) {
    let more: &[&str] = if inactive { &["--inactive"] } else { &[] };
    let xml = place.virsh(&[&["dumpxml", NAME], more].concat());
    let (head, rest) = xml.split_once("<vcpu ").unwrap().1.split_once('>').unwrap();
    let most = rest.split_once('<').unwrap().0.parse().unwrap();
    let now = head.split_once("current='").map(|(_, rest)| rest.split_once('\'').unwrap().0);
    (now.map_or(most, |now| now.parse().unwrap()), most)
}

/// A verb that is refused with this code; returns its hint.
fn refused(place: &Place, code: &str, args: &[&str]) -> String {
    let (ended, out, err) = place.gpuvm(&[args, &["--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((ended, said["code"].as_str()), (1, Some(code)), "{args:?}: {out}{err}");
    said["hint"].as_str().unwrap_or_default().to_owned()
}

/// The rules by which it is not as it was requested, or runs otherwise than defined.
fn found(place: &Place) -> Vec<String> {
    let (_, out, err) = place.gpuvm(&["verify", NAME, "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let rules = said["findings"].as_array().unwrap_or_else(|| panic!("{out}")).iter();
    let rules = rules.filter_map(|found| Some(found["rule"].as_str()?.to_owned()));
    rules.filter(|rule| rule.starts_with("plan-") || rule.starts_with("pending-")).collect()
}

#[test]
fn room_for_vcpus_comes_with_a_guest_or_at_its_next_start() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let shape = ["--no-start", "--os-size", "16M", "--disk-dir", &disks];
    place.done(&place.create(NAME, &[&shape[..], &["--max-vcpus", "3"]].concat()));
    assert_eq!((vcpus(&place, true), found(&place)), ((1, 3), vec![]));
    let judged = || {
        [&["check", NAME][..], &["tune", NAME, "--check"]].map(|args| {
            let (code, out, _) = place.gpuvm(args);
            let own = out.lines().filter(|line| !line.contains("huge pages that nobody uses"));
            (code, own.collect::<Vec<_>>().join("\n"))
        })
    };
    let before = place.state();
    let (listed, shown) = (place.done(&["list"]), place.done(&["show", NAME]));
    assert!(listed.contains("1 of 3") && shown.contains("1 of 3, not pinned"), "{listed}{shown}");
    // The output of get matches the guest, and a file changes it.
    let file = place.disks.join("guests.yaml");
    let apply = |text: &str, code: i32| {
        std::fs::write(&file, text).unwrap();
        let (ended, out, err) = place.gpuvm(&["apply", "-f", file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(ended, code, "{text}{out}{err}");
        out
    };
    let got = place.done(&["get", NAME]);
    assert!(got.contains("  vcpus: 1\n  max-vcpus: 3\n"), "{got}");
    assert!(apply(&got, 0).contains("unchanged"));
    let more = got.replace("  vcpus: 1\n  max-vcpus: 3\n", "  vcpus: 2\n  max-vcpus: 4\n");
    let said = apply(&more, 0);
    assert!(said.contains("vcpus 1 -> 2; max-vcpus 3 -> 4"), "{said}");
    assert_eq!(vcpus(&place, true), (2, 4));
    assert_eq!(place.done(&["get", NAME]), more);
    let said = apply(&more.replace("  max-vcpus: 4\n", ""), 0);
    assert!(said.contains("max-vcpus 4 -> none"), "{said}");
    assert_eq!((vcpus(&place, true), found(&place)), ((2, 2), vec![]));
    place.done(&["undo", NAME, "--yes"]);
    place.done(&["undo", NAME, "--yes"]);
    same(&before, &place.state(), "undo left something");
    // Another number keeps the room, and one beyond it takes it away.
    for (args, has) in [
        (&["--vcpus", "2"][..], (2, 3)),
        (&["--vcpus", "3"], (3, 3)),
        (&["--vcpus", "1"], (1, 3)),
        (&["--vcpus", "4"], (4, 4)),
        (&["--vcpus", "3"], (3, 3)),
        (&["--max-vcpus", "6"], (3, 6)),
        (&["--vcpus", "2", "--max-vcpus", "2"], (2, 2)),
    ] {
        let set = [&["set", NAME, "--yes"][..], args].concat();
        place.done(&set);
        assert_eq!((vcpus(&place, true), found(&place)), (has, vec![]), "{args:?}");
        assert!(place.done(&set).contains("nothing to do"), "{args:?}");
        let known: Vec<i32> = judged().iter().map(|(code, _)| *code).collect();
        assert_eq!(known, [0, 0], "{args:?}: {:?}", judged());
    }
    // Every change is described by its differences.
    let told = place.done(&["history", NAME, "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    let words = told.to_string();
    for line in words.split('"').filter(|line| line.contains(" -> ")) {
        let (was, now) = line.split_once(": ").unwrap().1.split_once(" -> ").unwrap();
        assert_ne!(was, now, "{line}");
    }
    assert!(words.contains("3 of 6 vCPUs"), "{words}");
    let set = ["set", NAME, "--vcpus", "5", "--max-vcpus", "4", "--yes"];
    let (code, _, err) = place.gpuvm(&set);
    let keeps = format!("`gpuvm set {NAME} --vcpus 5 --max-vcpus 5`");
    assert!(code == 1 && err.contains(&keeps), "{err}");
    let more = [&set[..], &["--memory", "320M"]].concat();
    let (_, _, err) = place.gpuvm(&more);
    assert!(err.contains(&keeps.replace("5`", "5 --memory 320M`")), "{err}");
    let (_, _, err) = place.gpuvm(&["set", NAME, "--max-vcpus", "1", "--yes"]);
    assert!(err.contains(&format!("`gpuvm set {NAME} --max-vcpus 2`")), "{err}");
    // A copy has the room of the first one.
    place.done(&["set", NAME, "--yes", "--vcpus", "1", "--max-vcpus", "3"]);
    place.done(&["clone", NAME, "copied"]);
    let copy = place.done(&["get", "copied"]);
    assert!(copy.contains("  vcpus: 1\n  max-vcpus: 3\n"), "{copy}");
    for name in [NAME, "copied"] {
        place.done(&["delete", name, "--yes"]);
    }
    // It is in a plan, and one with several cells starts.
    let shape = ["--pins", "none", "--memory", "256M", "--vcpus", "1", "--max-vcpus", "4"];
    let plan = place.done(&[&["plan", NAME, "--cells", "2", "--json"][..], &shape].concat());
    std::fs::write(&file, plan).unwrap();
    let from = ["create", "--virt-type", "qemu", "--plan", file.to_str().unwrap(), "--no-wait"];
    let disk = ["--os-size", "16M", "--data-size", "none", "--disk-dir", &disks];
    place.done(&[&from[..], &disk].concat());
    assert_eq!(vcpus(&place, false), (1, 4));
    let again = place.gpuvm(&[&from[..], &disk, &["--if-absent"]].concat());
    assert!(again.0 == 0 && again.2.contains("nothing to do"), "{again:?}");
    place.done(&["set", NAME, "--vcpus", "4", "--live", "--yes"]);
    assert_eq!((vcpus(&place, false), found(&place)), ((4, 4), vec![]));
    std::fs::remove_file(&file).unwrap();
    place.done(&["delete", NAME, "--yes"]);
    let few = ["create", "few", "--no-start", "--vcpus", "4", "--max-vcpus", "3"];
    let (code, _, err) = place.gpuvm(&few);
    assert!(code == 2 && err.contains("4 vCPUs are more than the maximum of 3"), "{err}");
    assert!(err.contains("hint: --max-vcpus takes 4 or more"), "{err}");
}

#[test]
fn vcpus_of_a_running_guest_come_and_go_at_once_or_not_at_all() {
    let Some(place) = Place::new() else { return };
    let Some(tiny) = Tiny::new(&place.disks) else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let template = tiny.template.to_str().unwrap();
    let shape = ["--template", template, "--no-start", "--disk-dir", &disks];
    place.done(&place.create(NAME, &shape));
    let set = |vcpus: &'static str| ["set", NAME, "--vcpus", vcpus, "--live", "--yes"];
    let hint = refused(&place, "set-not-running", &set("2"));
    assert!(hint.contains(&format!("`gpuvm set {NAME} --vcpus 2`")), "{hint}");
    // One without room gets the command that makes some.
    place.virsh(&["start", NAME]);
    let hint = refused(&place, "set-no-room", &set("2"));
    let command = format!("gpuvm set {NAME} --vcpus 2 --max-vcpus 2");
    assert!(hint.contains(&format!("`{command}` changes its next start")), "{hint}");
    place.done(&["set", NAME, "--max-vcpus", "3", "--yes"]);
    refused(&place, "set-not-live", &["set", NAME, "--max-vcpus", "2", "--live", "--yes"]);
    place.virsh(&["destroy", NAME]);
    tiny.forget();
    place.virsh(&["start", NAME]);
    tiny.wait_for("seen: all");
    let before = place.virsh(&["dumpxml", "--inactive", NAME]);
    let both = || (vcpus(&place, true), vcpus(&place, false));
    assert_eq!((both(), found(&place)), (((1, 3), (1, 3)), vec![]));
    let shown = place.done(&["set", NAME, "--vcpus", "3", "--live", "--dry-run"]);
    let step = format!("change vCPUs of running domain `{NAME}` from 1 to 3");
    assert!(shown.contains(&step) && !shown.contains("next start"), "{shown}");
    assert_eq!(both(), ((1, 3), (1, 3)), "a preview changed something");
    let said = place.done(&set("3"));
    assert!(said.contains("vcpus: 1 of 3 -> 3") && !said.contains("next start"), "{said}");
    assert_eq!((both(), found(&place)), (((3, 3), (3, 3)), vec![]));
    assert!(place.done(&set("3")).contains("nothing to do"));
    let hint = refused(&place, "set-no-room", &set("4"));
    assert!(hint.contains("--max-vcpus 4`"), "{hint}");
    // Room that its definition has now stays as it is.
    place.done(&["set", NAME, "--max-vcpus", "6", "--yes"]);
    let hint = refused(&place, "set-no-room", &set("5"));
    assert!(hint.contains(&format!("`gpuvm set {NAME} --vcpus 5` changes its next")), "{hint}");
    place.done(&["undo", NAME, "--yes", "--force"]);
    // QEMU does not report when an emulated guest has released one, so that none is taken: not by
    // `undo` either, which reverts all once it is off.
    let hint = refused(&place, "set-emulated", &set("2"));
    assert!(hint.contains(&format!("`gpuvm set {NAME} --vcpus 2` changes its next")), "{hint}");
    for how in ["--yes", "--dry-run"] {
        let (code, _, err) = place.gpuvm(&["undo", NAME, how]);
        assert!(code == 1 && err.contains(&format!("`gpuvm stop {NAME}`, then")), "{how}: {err}");
        assert!(err.contains("keeps its vCPUs"), "{how}: {err}");
    }
    assert_eq!((both(), found(&place)), (((3, 3), (3, 3)), vec![]));
    place.virsh(&["destroy", NAME]);
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), before);
    killed_while_it_runs(&place, &set("2"), &before);
    place.virsh(&["start", NAME]);
    // Paused it would not hear of one.
    place.virsh(&["suspend", NAME]);
    refused(&place, "set-not-running", &set("2"));
    place.virsh(&["destroy", NAME]);
    // vCPUs that it starts with stay until it is off.
    place.done(&["set", NAME, "--vcpus", "2", "--yes"]);
    place.virsh(&["start", NAME]);
    // A file gives it more without a restart, and less only with one.
    let got = place.done(&["get", NAME]);
    assert!(got.contains("  vcpus: 2\n"), "{got}");
    let file = place.disks.join("guests.yaml");
    let apply = |vcpus: &str, code: i32, says: &str| {
        std::fs::write(&file, got.replace("  vcpus: 2\n", vcpus)).unwrap();
        let (ended, out, err) = place.gpuvm(&["apply", "-f", file.to_str().unwrap()]);
        assert!(ended == code && out.contains(says), "{vcpus}: {out}{err}");
    };
    // One that is paused goes on first, and needs no restart either.
    place.virsh(&["suspend", NAME]);
    let (text, at) = (got.replace("  vcpus: 2\n", "  vcpus: 3\n"), file.to_str().unwrap());
    std::fs::write(&file, &text).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let (code, out, err) = place.gpuvm(&[&["apply", "-f", at], more].concat());
        let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == 3 && out.contains("pending: vcpus 2 -> 3"), "{out}{err}");
        let first = format!("`gpuvm resume {NAME}` first, then `gpuvm apply -f {at}` changes it");
        assert!(said.contains(&first) && !said.contains("--restart"), "{err}");
    }
    let (_, out, err) = place.gpuvm(&["apply", "-f", at, "--dry-run", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    assert_eq!(answer["guests"][0]["wake"], format!("`gpuvm resume {NAME}`"), "{answer}");
    std::fs::write(&file, text.replace("max-vcpus: 3\n", "max-vcpus: 4\n")).unwrap();
    let (code, out, err) = place.gpuvm(&["apply", "-f", at]);
    assert!(code == 3 && err.contains("--restart") && !err.contains("resume"), "{out}{err}");
    place.virsh(&["resume", NAME]);
    apply("  vcpus: 3\n", 0, "changed: vcpus 2 -> 3");
    assert_eq!((both(), found(&place)), (((3, 3), (3, 3)), vec![]));
    apply("  vcpus: 3\n", 0, "unchanged");
    apply("  vcpus: 2\n", 3, "vcpus 3 -> 2");
    assert_eq!(both(), ((3, 3), (3, 3)));
    let hint = refused(&place, "set-started-with", &set("1"));
    assert!(hint.contains(&format!("`gpuvm set {NAME} --vcpus 1` changes its next")), "{hint}");
    place.virsh(&["destroy", NAME]);
    place.done(&["delete", NAME, "--yes"]);
}

/// Kills a change of the running guest at every record. Its definition is changed with the guest,
/// or not at all: an emulated guest keeps added vCPUs until it is off.
fn killed_while_it_runs(place: &Place, set: &[&str], before: &str) {
    for n in 1..MOST {
        place.virsh(&["start", NAME]);
        let ended = place.killed(n, set);
        let said = place.recover();
        let (has, runs) = (vcpus(place, true), vcpus(place, false));
        assert!(has.0 <= runs.0 && has.0 <= 2, "record {n}: {has:?} {runs:?} {said}");
        place.virsh(&["destroy", NAME]);
        if has.0 > 1 {
            place.done(&["undo", NAME, "--yes", "--force"]);
        }
        assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), before, "record {n}");
        if ended {
            assert!(n > 4 && has == runs, "only {n} records were seen: the test proves nothing");
            return;
        }
    }
    panic!("it never comes to its end");
}

#[test]
fn a_guest_on_arm_has_no_room_for_vcpus() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("arm.json");
    let text = std::fs::read_to_string(project().join("topologies/dual-socket.json")).unwrap();
    std::fs::write(&host, text.replace("x86_64", "aarch64")).unwrap();
    let host = host.to_str().unwrap();
    let (code, out, err) =
        run(&mut gpuvm(&["export", "--host", host, "--vcpus", "2", "--max-vcpus", "4"]));
    assert!(code == 1 && err.contains("guests of this architecture cannot"), "{out}{err}");
    assert!(err.contains("hint: --vcpus 4, without --max-vcpus"), "{err}");
}
