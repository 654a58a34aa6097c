//! `set` on a real libvirtd: another size of a guest that is off and of one that runs, with undo,
//! and killed at every record of the journal.

use super::place::{MOST, Place, same};
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "sized-a";

/// A guest that is off, of one vCPU and 256 MiB, with a disk.
fn guest() -> Option<Place> {
    let place = Place::new()?;
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&place.create(NAME, &["--no-start", "--os-size", "16M", "--disk-dir", &disks]));
    Some(place)
}

/// vCPUs and memory in MiB: of the definition, or of what runs.
fn size(place: &Place, inactive: bool) -> (String, u64) {
    let more: &[&str] = if inactive { &["--inactive"] } else { &[] };
    let xml = place.virsh(&[&["dumpxml", NAME], more].concat());
    let text = |name: &str| {
        let rest = xml.split_once(&format!("<{name} ")).unwrap().1.split_once('>').unwrap().1;
        rest.split_once('<').unwrap().0.to_owned()
    };
    (text("vcpu"), text("memory").parse::<u64>().unwrap() >> 10)
}

/// What `check`, `tune --check` and `verify` find.
fn judged(place: &Place) -> [(i32, String); 2] {
    [&["check", NAME][..], &["tune", NAME, "--check"]].map(|args| {
        let (code, out, _) = place.gpuvm(args);
        // How many pages are free is up to the tests beside this one.
        let lines = out.lines().filter(|line| !line.contains("are in unused huge pages"));
        (code, lines.collect::<Vec<_>>().join("\n"))
    })
}

/// The rules by which the guest is not as it was asked for.
fn not_as_asked(place: &Place) -> Vec<String> {
    let (_, out, err) = place.gpuvm(&["verify", NAME, "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let rules = said["findings"].as_array().unwrap_or_else(|| panic!("{out}")).iter();
    let rules = rules.filter_map(|found| Some(found["rule"].as_str()?.to_owned()));
    rules.filter(|rule| rule.starts_with("plan-")).collect()
}

#[test]
fn a_guest_that_is_off_gets_another_size_and_its_old_one_back() {
    let Some(place) = guest() else { return };
    let (before, found) = (place.state(), judged(&place));
    let set = ["set", NAME, "--vcpus", "2", "--memory", "320M"];
    let shown = place.done(&[&set[..], &["--diff"]].concat());
    assert!(shown.contains("+  <vcpu placement='static'>2</vcpu>"), "{shown}");
    let (_, out, err) = place.gpuvm(&[&set[..], &["--dry-run", "--json"]].concat());
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(said["format"], "gpuvm-set");
    assert_eq!(said["domains"][0]["changes"][0]["item"], "vcpus", "{said}");
    same(&before, &place.state(), "a preview changed something");
    place.done(&[&set[..], &["--yes"]].concat());
    assert_eq!(size(&place, true), ("2".into(), 320));
    assert_eq!(judged(&place), found, "check or tune see it otherwise");
    assert_eq!(not_as_asked(&place), [""; 0]);
    let again = place.done(&[&set[..], &["--yes"]].concat());
    assert!(again.contains("nothing to do"), "{again}");
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!(size(&place, true), ("1".into(), 256));
    same(&before, &place.state(), "undo left something");
    for (option, least) in [("--vcpus", "1"), ("--memory", "1G")] {
        let none = if option == "--vcpus" { "0" } else { "1K" };
        let (code, _, err) = place.gpuvm(&["set", NAME, option, none, "--yes"]);
        assert!(
            code == 1 && err.contains(&format!("`gpuvm set {NAME} {option} {least}`")),
            "{err}"
        );
    }
    // No host has so many.
    let (code, out, err) = place.gpuvm(&["set", NAME, "--memory", "900T", "--yes", "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, said["code"].as_str()), (1, Some("plan-impossible")), "{said}");
    let command = said["commands"].to_string();
    assert!(command.contains(&format!("gpuvm set {NAME}")), "{said}");
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn a_running_guest_gets_another_size_at_its_next_start() {
    let Some(place) = guest() else { return };
    place.virsh(&["start", NAME]);
    let said = place.done(&["set", NAME, "--vcpus", "2", "--memory", "320M", "--yes"]);
    assert!(said.contains("at its next start"), "{said}");
    assert_eq!((size(&place, false).0, size(&place, true).0), ("1".into(), "2".into()));
    place.virsh(&["destroy", NAME]);
    place.virsh(&["start", NAME]);
    assert_eq!(size(&place, false), ("2".into(), 320));
    assert_eq!(not_as_asked(&place), [""; 0]);
    // One that is saved starts as it was: previews and the change itself say so.
    place.virsh(&["managedsave", NAME]);
    for more in [&["--dry-run"][..], &["--diff"], &["--yes"]] {
        let said = place.gpuvm(&[&["set", NAME, "--vcpus", "1"][..], more].concat());
        assert!(said.0 == 0 && said.2.contains("has a saved state"), "{more:?}: {said:?}");
    }
    let (code, _, err) = place.gpuvm(&["tune", NAME, "--huge-pages", "2M", "--dry-run"]);
    assert!(code == 0 && err.contains("has a saved state"), "{err}");
    let (code, _, err) = place.gpuvm(&["set", NAME, "--vcpus", "1", "--dry-run"]);
    assert!(code == 0 && !err.contains("has a saved state"), "nothing changes: {err}");
    let (code, _, err) = place.gpuvm(&["set", NAME, "--vcpus", "3", "--live", "--yes"]);
    let hint = err.split("hint: ").nth(1).unwrap_or_else(|| panic!("{err}"));
    let hint = hint.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(code == 1 && hint.starts_with("it has a saved state, from which it starts"), "{err}");
    let after = format!("throws it away; after that `gpuvm set {NAME} --vcpus 3` changes its next");
    assert!(hint.contains(&after), "{err}");
    place.virsh(&["managedsave-remove", NAME]);
    let (code, _, err) = place.gpuvm(&["set", NAME, "--vcpus", "3", "--live", "--yes"]);
    assert!(code == 1 && !err.contains("saved state"), "{err}");
    place.done(&["delete", NAME, "--yes"]);
}

#[test]
fn a_foreign_guest_keeps_its_settings() {
    let Some(place) = Place::new() else { return };
    let file = place.disks.join("theirs.xml");
    let xml = format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>256</memory><vcpu \
         current='1'>2</vcpu>\
         <description>mine</description><os><type arch='x86_64' machine='q35'>hvm</type></os>\
         <devices><serial type='pty'/></devices></domain>"
    );
    std::fs::write(&file, xml).unwrap();
    place.virsh(&["define", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    let before = place.virsh(&["dumpxml", "--inactive", NAME]);
    let said = place.done(&["set", NAME, "--vcpus", "3", "--yes"]);
    assert!(said.contains("vcpus: 1 of 2 -> 3"), "{said}");
    let after = place.virsh(&["dumpxml", "--inactive", NAME]);
    let vcpus = "<vcpu placement='static'>3</vcpu>";
    let changed: Vec<&str> =
        after.lines().filter(|line| !before.lines().any(|was| was == *line)).collect();
    assert_eq!(changed.iter().map(|line| line.trim()).collect::<Vec<_>>(), [vcpus]);
    place.done(&["undo", NAME, "--yes"]);
    assert_eq!(place.virsh(&["dumpxml", "--inactive", NAME]), before);
    place.virsh(&["undefine", NAME]);
}

#[test]
fn a_set_killed_at_any_record_is_undone_or_whole() {
    let Some(place) = guest() else { return };
    let before = place.state();
    let set = ["set", NAME, "--vcpus", "2", "--memory", "320M", "--yes"];
    let mut undone = 0;
    for n in 1..MOST {
        let ended = place.killed(n, &set);
        place.recover();
        if size(&place, true).0 == "1" {
            assert!(!ended, "record {n}: it ended and did nothing");
            undone += 1;
            same(&before, &place.state(), &format!("record {n}"));
            continue;
        }
        assert_eq!(size(&place, true), ("2".into(), 320), "record {n}");
        if !ended {
            // Killed when only its marker was left, or its history.
            let (code, out, err) = place.gpuvm(&["undo", NAME, "--yes", "--force"]);
            assert_eq!(code, 0, "record {n}: {out}{err}");
            same(&before, &place.state(), &format!("record {n}"));
            continue;
        }
        assert!(undone > 2, "only {undone} records were seen: the test proves nothing");
        place.done(&["delete", NAME, "--yes"]);
        return;
    }
    panic!("it never comes to its end");
}
