//! `apply` and `get` on a real libvirtd: made, kept, changed and pruned as a file says, killed at
//! every third record of the journal; and on a DGX-2, planned together.

use super::concurrent::{ended, waiting};
use super::on_dgx2;
use super::place::{MOST, Place, same};
use crate::support::daemon::{Tiny, daemon};
use crate::support::{gpuvm, project, run, skip};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A machine with files of guests.
struct Files {
    /// The machine.
    place: Place,
    /// The file.
    file: PathBuf,
}

impl Files {
    /// Makes it.
    fn new() -> Option<Files> {
        let place = Place::new()?;
        let file = place.daemon.fresh_dir("files").join("guests.yaml");
        Some(Files { place, file })
    }

    /// Writes the file with these guests, each with fields besides the usual ones.
    fn write(&self, guests: &[(&str, &str)]) -> &str {
        let disks = self.place.disks.display();
        let mut text = "format: gpuvm-guests\nversion: 1\nset: lab\nguests:\n".to_owned();
        for (name, more) in guests {
            text += &format!(
                "- name: {name}\n  virt-type: qemu\n  pins: none\n  vcpus: 1\n  os-size: 16M\n  \
                 data-size: none\n  disk-dir: {disks}\n  start: false\n{more}"
            );
        }
        if guests.is_empty() {
            text = text.replace("guests:", "guests: []");
        }
        std::fs::write(&self.file, text).unwrap();
        self.file.to_str().unwrap()
    }

    /// Applies the file with options; returns the exit code and the messages.
    fn apply(&self, more: &[&str]) -> (i32, String) {
        let file = self.file.to_str().unwrap();
        let (code, out, err) = self.place.gpuvm(&[&["apply", "-f", file], more].concat());
        (code, out + &err)
    }

    /// Applies it, which must end with this code.
    #[track_caller]
    fn ends(&self, code: i32, more: &[&str]) -> String {
        let (ended, said) = self.apply(more);
        assert_eq!(ended, code, "{more:?}: {said}");
        said
    }
}

#[test]
fn a_file_is_applied_once_and_differences_are_shown() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let nothing = place.state();
    files.write(&[("ap-a", "  memory: 256M\n"), ("ap-b", "  memory: 256M\n")]);
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("ap-a: would be created") && said.contains("ap-b: would"), "{said}");
    same(&nothing, &place.state(), "a preview changed something");
    let said = files.ends(0, &[]);
    assert!(said.contains("ap-a: created") && said.contains("ap-b: created"), "{said}");
    let made = place.state();
    let said = files.ends(0, &[]);
    assert!(said.contains("ap-a: unchanged") && said.contains("ap-b: unchanged"), "{said}");
    files.ends(0, &["--dry-run"]);
    same(&made, &place.state(), "the second run changed something");
    // Another size is made, and only that.
    files.write(&[("ap-a", "  memory: 320M\n"), ("ap-b", "  memory: 256M\n")]);
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("ap-a: would be changed: memory 256M -> 320M"), "{said}");
    same(&made, &place.state(), "a preview changed something");
    let (code, out, err) = place.gpuvm(&["apply", "-f", files.file.to_str().unwrap(), "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code} {out}{err}"));
    assert_eq!((code, &answer["format"]), (0, &"gpuvm-apply".into()), "{answer}");
    assert_eq!(answer["guests"][0]["action"], "change", "{answer}");
    assert_eq!(answer["guests"][0]["differences"][0]["option"], "memory", "{answer}");
    files.ends(0, &["--dry-run"]);
    // Fixed options are refused before any change.
    let before = place.state();
    files.write(&[("ap-a", "  memory: 320M\n  cells: 1\n  threads: 1\n"), ("ap-c", "")]);
    let said = files.ends(1, &[]);
    assert!(said.contains("`ap-a` differs in fixed options: cells auto -> 1"), "{said}");
    assert!(said.contains("`gpuvm get ap-a`"), "{said}");
    files.write(&[("ap-a", "  memory: 320M\n  os-disk: overlay\n")]);
    let said = files.ends(1, &[]);
    assert!(said.contains("guests.yaml:1") && said.contains("cannot be used with"), "{said}");
    same(&before, &place.state(), "a refusal changed something");
    // Only guests of the set are deleted, after a question.
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&place.create("ap-own", &["--no-start", "--os-size", "16M", "--disk-dir", &disks]));
    files.write(&[("ap-b", "  memory: 256M\n")]);
    let said = files.ends(3, &["--dry-run", "--prune"]);
    assert!(said.contains("ap-a: would be deleted") && !said.contains("ap-own"), "{said}");
    let said = files.ends(2, &["--prune"]);
    assert!(said.contains("--yes") && place.has("ap-a"), "{said}");
    files.ends(0, &["--prune", "--yes"]);
    assert!(!place.has("ap-a") && place.has("ap-b") && place.has("ap-own"));
    // A file that lost all of its guests is a mistake, whatever its caller says to all questions.
    files.write(&[]);
    for more in [&["--prune", "--dry-run"][..], &["--prune"], &["--prune", "--yes"]] {
        let said = files.ends(1, more);
        assert!(said.contains("delete all of set `lab`: ap-b"), "{said}");
        assert!(said.contains("`gpuvm delete ap-b`") && place.has("ap-b"), "{said}");
    }
    files.ends(0, &[]);
    place.done(&["delete", "ap-b", "--yes"]);
    files.ends(0, &["--prune", "--yes"]);
    place.done(&["delete", "ap-own", "--yes"]);
    same(&nothing, &place.state(), "something is left");
}

#[test]
fn a_waiting_apply_of_the_same_file_finds_it_applied() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let log = place.daemon.own_path("waits.log");
    let file = files.file.to_str().unwrap();
    // The first one is halted while it makes its first change; the other has looked by then.
    let both = |args: &[&str]| {
        let mut late = None;
        let first = place.halted(3, args, |_| late = Some(waiting(place, args, &log)));
        let (code, out, err) = first.unwrap();
        assert_eq!(code, 0, "{out}{err}");
        (out, ended(late.unwrap(), &log))
    };
    files.write(&[("tw-a", "  memory: 256M\n"), ("tw-b", "")]);
    let (first, (code, said)) = both(&["apply", "-f", file]);
    // Each guest is made by one of them.
    assert_eq!(code, 0, "{said}");
    for name in ["tw-a", "tw-b"] {
        let made = [&first, &said].map(|said| said.contains(&format!("{name}: created")));
        let is_one = made[0] != made[1];
        assert!(
            is_one && (first.clone() + &said).contains(&format!("{name}: unchanged")),
            "{said}"
        );
    }
    assert!(said.contains("tw-a: unchanged"), "{said}");
    files.write(&[("tw-a", "  memory: 320M\n"), ("tw-b", "")]);
    let (first, (code, said)) = both(&["apply", "-f", file]);
    assert!(first.contains("tw-a: changed: memory 256M -> 320M"), "{first}");
    assert!(code == 0 && said.contains("tw-a: unchanged"), "{said}");
    assert!(!said.contains("is changed"), "{said}");
    let told = place.done(&["history", "tw-a"]);
    assert_eq!(told.lines().filter(|line| line.contains("memory")).count(), 1, "{told}");
    files.write(&[("tw-b", "")]);
    let (first, (code, said)) = both(&["apply", "-f", file, "--prune", "--yes"]);
    assert!(first.contains("tw-a: deleted"), "{first}");
    assert!(code == 0 && !said.contains("tw-a") && said.contains("tw-b: unchanged"), "{said}");
    place.done(&["delete", "tw-b", "--yes"]);
    assert_eq!(place.journal(), "");
}

#[test]
fn two_runs_that_may_restart_a_guest_both_find_it_restarted() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let Some(tiny) = Tiny::new(&place.disks) else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let template = tiny.template.to_str().unwrap();
    let how = ["--template", template, "--no-start", "--disk-dir", &disks];
    place.done(&place.create("tr-a", &how));
    let text = place.done(&["get", "tr-a"]);
    let memory = text.lines().find(|line| line.starts_with("  memory: ")).unwrap().to_owned();
    std::fs::write(&files.file, text.replace(&memory, "  memory: 320M")).unwrap();
    let log = place.daemon.own_path("waits.log");
    let args = ["apply", "--restart", "-f", files.file.to_str().unwrap()];
    let id = || place.virsh(&["domid", "tr-a"]).trim().parse::<u32>().unwrap();
    place.virsh(&["start", "tr-a"]);
    tiny.wait_for("seen: all");
    let before = id();
    // The first one is halted in its first change, for which the other one waits.
    let mut late = None;
    let first = place.halted(3, &args, |_| late = Some(waiting(place, &args, &log))).unwrap();
    let (code, said) = ended(late.unwrap(), &log);
    let all = format!("{first:?}\n{said}");
    assert_eq!((first.0, code), (0, 0), "{all}");
    // The guest shuts down without the lock, so that the other one may still see it run as before.
    assert!((before + 1..=before + 2).contains(&id()), "{all}");
    assert!(all.contains("tr-a: changed: memory"), "{all}");
    files.ends(0, &["--dry-run"]);
    let live = place.virsh(&["dumpxml", "tr-a"]);
    assert!(live.contains("<memory unit='KiB'>327680</memory>"), "{live}");
    assert_eq!(place.journal(), "");
    place.virsh(&["destroy", "tr-a"]);
    place.done(&["delete", "tr-a", "--yes"]);
}

#[test]
fn a_boot_disk_that_is_gone_is_no_guest_as_described() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    files.write(&[("gd-a", "")]);
    files.ends(0, &[]);
    let xml = place.virsh(&["dumpxml", "gd-a"]);
    let (_, rest) = xml.split_once("<source file='").unwrap();
    let disk = rest.split_once('\'').unwrap().0.to_owned();
    let away = format!("{disk}.away");
    std::fs::rename(&disk, &away).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let (code, said) = files.apply(more);
        let told = format!("os-disk no such file -> {disk}");
        assert!(code == if more.is_empty() { 1 } else { 3 } && said.contains(&told), "{said}");
    }
    std::fs::rename(&away, &disk).unwrap();
    files.ends(0, &["--dry-run"]);
    place.done(&["delete", "gd-a", "--yes"]);
}

#[test]
fn only_the_guest_that_a_file_made_and_no_longer_has_is_deleted() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    files.write(&[("ap-d", ""), ("ap-e", "")]);
    files.ends(0, &[]);
    let made = place.state();
    // Impossible requests are reported before anything is deleted.
    for bad in ["  vcpus: 5000\n", "  memory: 900T\n"] {
        files.write(&[("ap-e", "")]);
        let text = std::fs::read_to_string(&files.file).unwrap();
        let text =
            if bad.contains("vcpus") { text.replace("  vcpus: 1\n", bad) } else { text + bad };
        std::fs::write(&files.file, text).unwrap();
        files.ends(1, &["--prune", "--yes"]);
        same(&made, &place.state(), bad);
    }
    files.write(&[("ap-e", ""), ("ap-f", "  image: none-such\n")]);
    let text = std::fs::read_to_string(&files.file).unwrap();
    let (kept, new) = text.split_once("- name: ap-f").unwrap();
    let new = new.replace(&format!("  disk-dir: {}\n", place.disks.display()), "");
    std::fs::write(&files.file, format!("{kept}- name: ap-f{new}")).unwrap();
    let said = files.ends(1, &["--prune", "--dry-run"]);
    assert!(said.contains("none-such"), "{said}");
    let (_, out, _) =
        place.gpuvm(&["apply", "-f", files.file.to_str().unwrap(), "--dry-run", "--json"]);
    let failure: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("two: {out}"));
    assert_eq!(failure["format"], "gpuvm-error", "{failure}");
    files.ends(1, &["--prune", "--yes"]);
    same(&made, &place.state(), "an image that is not there");
    // One that was renamed is the guest of the file.
    place.done(&["rename", "ap-e", "ap-g"]);
    files.write(&[("ap-d", ""), ("ap-e", "")]);
    let said = files.ends(1, &["--prune", "--yes"]);
    assert!(said.contains("`gpuvm rename ap-g ap-e`") && place.has("ap-g"), "{said}");
    place.done(&["rename", "ap-g", "ap-e"]);
    // The file of another set takes a guest over, and the first one leaves it.
    files.write(&[("ap-d", ""), ("ap-e", "")]);
    let lab = std::fs::read_to_string(&files.file).unwrap();
    std::fs::write(&files.file, lab.replace("set: lab", "set: other")).unwrap();
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("ap-e: would be changed: set lab -> other"), "{said}");
    files.ends(0, &[]);
    files.ends(0, &["--dry-run"]);
    files.write(&[]);
    files.ends(0, &["--prune", "--yes"]);
    assert!(place.has("ap-d") && place.has("ap-e"), "the first file has deleted them");
    files.write(&[("ap-f", "")]);
    files.ends(0, &["--prune", "--yes"]);
    assert!(place.has("ap-d") && place.has("ap-e"), "the first file has deleted them");
    place.done(&["delete", "ap-f", "--yes"]);
    // Nor is one deleted that others have defined with the UUID of a guest.
    let text = place.virsh(&["dumpxml", "ap-d", "--inactive"]);
    let (before, rest) = text.split_once("<metadata>").unwrap();
    let bare = format!("{before}{}", rest.split_once("</metadata>").unwrap().1);
    let own = place.disks.join("own.xml");
    std::fs::write(&own, bare).unwrap();
    place.virsh(&["undefine", "ap-d"]);
    place.virsh(&["define", own.to_str().unwrap()]);
    let text = std::fs::read_to_string(&files.file).unwrap().replace("set: lab", "set: other");
    std::fs::write(&files.file, text).unwrap();
    files.ends(0, &["--prune", "--yes"]);
    assert!(place.has("ap-d") && !place.has("ap-e"), "the domain of another was deleted");
    place.done(&["delete", "ap-f", "--yes"]);
}

#[test]
fn a_killed_apply_is_finished_by_recover_and_the_next_one() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let nothing = place.state();
    for n in (1..MOST).step_by(3) {
        files.write(&[("ap-k", "  memory: 256M\n"), ("ap-l", "  memory: 256M\n")]);
        let file = files.file.to_str().unwrap();
        let is_done = place.killed(n, &["apply", "-f", file]);
        place.recover();
        files.ends(0, &[]);
        files.ends(0, &["--dry-run"]);
        assert!(place.has("ap-k") && place.has("ap-l"), "record {n}");
        for name in ["ap-k", "ap-l"] {
            place.done(&["delete", name, "--yes"]);
        }
        same(&nothing, &place.state(), &format!("record {n}"));
        if is_done {
            return;
        }
    }
    panic!("more than {MOST} records");
}

#[test]
fn get_prints_the_present_guest() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let disk = place.disks.join("own.raw");
    std::fs::write(&disk, [0; 4096]).unwrap();
    let disks = place.disks.to_str().unwrap().to_owned();
    let own = ["--no-start", "--disk", disk.to_str().unwrap(), "--data-size", "none"];
    let more = ["--threads", "1", "--cells", "1", "--policy", "spread", "--network", "default"];
    let one = place.create("gt-a", &[&own[..], &more, &["--reserve-memory", "64M"]].concat());
    place.done(&one);
    let blank = ["--no-start", "--os-size", "16M", "--disk-dir", &disks];
    place.done(&place.create("gt-b", &blank));
    // One that was taken off all networks is not put on one by its own description.
    place.done(&place.create("gt-c", &blank));
    place.done(&["set", "gt-c", "--no-network", "--yes"]);
    let made = place.state();
    for (format, end) in [("yaml", "yaml"), ("toml", "toml"), ("json", "yaml")] {
        let file = files.file.with_extension(end);
        let said = place.done(&["get", "--all", "-o", format]);
        assert!(said.contains("gt-a") && said.contains("gt-b"), "{said}");
        std::fs::write(&file, &said).unwrap();
        for more in [&["--dry-run"][..], &[]] {
            let args = [&["apply", "-f", file.to_str().unwrap()], more].concat();
            let (code, out, err) = place.gpuvm(&args);
            assert_eq!(code, 0, "{format}: {said}\n{out}{err}");
        }
    }
    same(&made, &place.state(), "get and apply changed something");
    // `create` of an existing guest does nothing, and of another guest is refused.
    let said = place.gpuvm(&[&one[..], &["--if-absent"]].concat());
    assert_eq!(said.0, 0, "{said:?}");
    let other =
        place.create("gt-b", &[&blank[..], &["--if-absent", "--network", "other"]].concat());
    let (code, out, _) = place.gpuvm(&[&other[..], &["--json"]].concat());
    let failure: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, failure["code"].as_str()), (1, Some("create-differs")), "{failure}");
    same(&made, &place.state(), "--if-absent changed something");
    // Its creation options are compared, and printed.
    for more in [["--os-size", "17M"], ["--ssh-key", "/nope"], ["--template", "/nope.xml"]] {
        let disks = ["--if-absent", "--no-start", "--disk-dir", &disks];
        let size = if more[0] == "--os-size" { &[][..] } else { &["--os-size", "16M"] };
        let (code, out, err) =
            place.gpuvm(&place.create("gt-b", &[&disks[..], size, &more].concat()));
        assert_eq!(code, 1, "{more:?}: {out}{err}");
        assert!(err.contains(more[0].trim_start_matches('-')), "{more:?}: {err}");
    }
    let printed = place.done(&["get", "gt-b"]);
    assert!(printed.contains("  os-size: 16M\n"), "{printed}");
    assert!(printed.contains(&format!("  disk-dir: {disks}\n")), "{printed}");
    // A disk that has grown is printed, and compared, as large as it is.
    place.done(&["disk", "resize", "gt-b", "vda", "24M"]);
    let printed = place.done(&["get", "gt-b"]);
    assert!(printed.contains("  os-size: 24M\n"), "{printed}");
    std::fs::write(&files.file, &printed).unwrap();
    files.ends(0, &["--dry-run"]);
    let was = place.create("gt-b", &[&blank[..], &["--if-absent"]].concat());
    let (code, _, err) = place.gpuvm(&was);
    assert!(code == 1 && err.contains("os-size 24M -> 16M"), "{err}");
    let record = place.daemon.own_path("/var/lib/gpuvm/reserved");
    for file in super::files(&record) {
        let path = record.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"told\"", "\"other\"")).unwrap();
    }
    let printed = place.done(&["get", "gt-b"]);
    assert!(printed.contains("# gt-b: not recorded are its image"), "{printed}");
    let off = place.create("gt-b", &[&blank[1..], &["--if-absent"]].concat());
    let (code, out, err) = place.gpuvm(&off);
    assert!(code == 0 && out.contains("gt-b: create start mac: "), "{out}{err}");
    assert!(err.contains("were not compared"), "{err}");
    assert!(place.virsh(&["domstate", "gt-b"]).contains("running"), "it was not started");
    place.done(&off);
    place.done(&["stop", "gt-b", "--force"]);
    for name in ["gt-a", "gt-b"] {
        place.done(&["delete", name, "--yes"]);
    }
}

#[test]
fn disks_that_come_and_go_are_described_as_they_are() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let disks = place.disks.to_str().unwrap().to_owned();
    let data = ["--no-start", "--os-size", "16M", "--disk-dir", &disks, "--data-size", "8M"];
    place.done(&place.create("dg-a", &[&data[..], &["--data-dir", &disks]].concat()));
    // Its settings are printed in each form, and applied without any change.
    let printed = || {
        for (format, end) in [("toml", "toml"), ("json", "yaml"), ("yaml", "yaml")] {
            let file = files.file.with_extension(end);
            let said = place.done(&["get", "dg-a", "-o", format]);
            std::fs::write(&file, &said).unwrap();
            let (code, out, err) = place.gpuvm(&["apply", "-f", file.to_str().unwrap()]);
            assert!(code == 0 && out.contains("dg-a: unchanged"), "{said}\n{out}{err}");
        }
        std::fs::read_to_string(&files.file).unwrap()
    };
    place.done(&["disk", "add", "dg-a", &format!("size=8M,dir={disks}")]);
    place.done(&["disk", "add", "dg-a", "size=8M"]);
    let said = printed();
    let (file, volume) = (format!("{disks}/dg-a-vdc.raw"), "gpuvm-guests/dg-a-vdd.raw");
    assert!(said.contains(&file) && said.contains(volume), "{said}");
    assert!(said.contains("  data-size: 8M\n"), "{said}");
    place.done(&["disk", "remove", "dg-a", "vdc", "--yes"]);
    let said = printed();
    assert!(!said.contains(&file) && said.contains(volume), "{said}");
    // The one that `create` made.
    place.done(&["disk", "remove", "dg-a", "vdb", "--yes", "--delete-data"]);
    let said = printed();
    assert!(said.contains("  data-size: none\n") && !said.contains("data-dir"), "{said}");
    place.done(&["disk", "remove", "dg-a", "vda", "--yes", "--delete-data"]);
    let said = printed();
    assert!(!said.contains("os-size") && said.contains("  disk:\n"), "{said}");
    place.done(&["disk", "remove", "dg-a", "vdd", "--yes", "--delete-data"]);
    assert!(printed().contains("# dg-a: it has no disk"));
    place.done(&["delete", "dg-a", "--yes"]);
}

#[test]
fn one_disk_of_two_guests_is_refused_with_its_places() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let own = |name: &str| place.disks.join(name).to_str().unwrap().to_owned();
    std::fs::write(own("one.raw"), [0; 4096]).unwrap();
    std::os::unix::fs::symlink("one.raw", own("link.raw")).unwrap();
    std::fs::hard_link(own("one.raw"), own("hard.raw")).unwrap();
    let guest = |name: &str, disk: &str| {
        format!(
            "- name: {name}\n  virt-type: qemu\n  pins: none\n  vcpus: 1\n  data-size: none\n  \
             start: false\n  disk: {disk}\n"
        )
    };
    let head = "format: gpuvm-guests\nversion: 1\nguests:\n";
    let before = place.state();
    for other in ["one.raw", "./one.raw", "link.raw", "hard.raw"] {
        let text = [guest("cl-a", &own("one.raw")), guest("cl-b", &own(other))].concat();
        std::fs::write(&files.file, format!("{head}{text}")).unwrap();
        for more in [&["--dry-run"][..], &[]] {
            let said = files.ends(1, more);
            let at = files.file.display();
            assert!(said.contains(&format!("error: {at}:17:9: {}", own(other))), "{said}");
            assert!(said.contains(&format!("`disk` of guest `cl-a` ({at}:10:9)")), "{said}");
        }
        same(&before, &place.state(), other);
    }
    // Resources that a domain has now are refused as `create` does.
    std::fs::write(&files.file, format!("{head}{}", guest("cl-a", &own("one.raw")))).unwrap();
    files.ends(0, &[]);
    std::fs::write(&files.file, format!("{head}{}", guest("cl-b", &own("hard.raw")))).unwrap();
    let said = files.ends(1, &["--dry-run"]);
    assert!(said.contains("domain `cl-a` has it as a disk"), "{said}");
    place.done(&["delete", "cl-a", "--yes"]);
}

#[test]
fn a_guest_of_a_plan_is_made_once() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let (disks, file) = (place.disks.to_str().unwrap(), files.file.with_extension("json"));
    let plan = |vcpus: &str| {
        let virt = ["--pins", "none", "--memory", "256M", "--vcpus", vcpus];
        let said = place.done(&[&["plan", "pl-a", "--json"][..], &virt].concat());
        std::fs::write(&file, said).unwrap();
    };
    let create = |more: &[&str]| {
        let from = ["create", "--virt-type", "qemu", "--plan", file.to_str().unwrap()];
        let disks = ["--no-start", "--os-size", "16M", "--data-size", "none", "--disk-dir", disks];
        place.gpuvm(&[&from[..], &disks, more].concat())
    };
    plan("1");
    let made = create(&["--if-absent"]);
    assert!(made.0 == 0 && place.has("pl-a"), "{made:?}");
    let state = place.state();
    let again = create(&["--if-absent"]);
    assert!(again.0 == 0 && again.2.contains("nothing to do"), "{again:?}");
    // The name of its own in place of the plan's, and one that is not there.
    let again = create(&["pl-a", "--if-absent"]);
    assert!(again.0 == 0 && again.2.contains("nothing to do"), "{again:?}");
    plan("2");
    let (code, _, err) = create(&["--if-absent"]);
    assert!(code == 1 && err.contains("vcpus 1 -> 2"), "{err}");
    same(&state, &place.state(), "--if-absent changed something");
    let unnamed = ["create", "--if-absent", "--no-start", "--os-size", "16M"];
    let (code, _, err) = place.gpuvm(&unnamed);
    assert!(code == 2 && err.contains("`gpuvm create NAME --if-absent`"), "{err}");
    let (code, _, err) = create(&["pl-b", "--name", "pl-a"]);
    assert!(code == 2 && err.contains("cannot be used with"), "{err}");
    let made = create(&["pl-b", "--movable"]);
    assert!(made.0 == 0 && place.has("pl-b"), "{made:?}");
    let described = place.done(&["get", "pl-b"]);
    assert!(described.contains("movable: true"), "{described}");
    let shown = place.done(&["show", "pl-b"]);
    assert!(shown.contains(" --movable --virt-type qemu\n"), "{shown}");
    for name in ["pl-a", "pl-b"] {
        place.done(&["delete", name, "--yes"]);
    }
}

#[test]
fn edits_by_others_are_shown() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    files.write(&[("ed-a", "  memory: 256M\n")]);
    files.ends(0, &[]);
    let made = place.virsh(&["dumpxml", "--inactive", "--security-info", "ed-a"]);
    let define = |xml: &str| {
        let file = files.file.with_extension("xml");
        std::fs::write(&file, xml).unwrap();
        place.virsh(&["define", file.to_str().unwrap()]);
    };
    // Memory that `create` was asked for differs from its present memory.
    place.virsh(&["setmaxmem", "ed-a", "384M", "--config"]);
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("ed-a: would be changed: memory 384M -> 256M"), "{said}");
    files.ends(0, &[]);
    files.ends(0, &["--dry-run"]);
    // A network in place of the template's.
    assert!(made.contains("network='default'"), "{made}");
    define(&made.replace("network='default'", "network='other'"));
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("network other -> default"), "{said}");
    // A guest without its boot disk.
    let (start, end) = (made.find("<disk ").unwrap(), made.find("</disk>").unwrap());
    define(&[&made[..start], &made[end + "</disk>".len()..]].concat());
    let said = files.ends(3, &["--dry-run"]);
    assert!(said.contains("os-disk no such disk -> "), "{said}");
    let (_, out, _) = place.gpuvm(&["apply", "-f", files.file.to_str().unwrap(), "--json"]);
    let failure: Value = serde_json::from_str(&out).unwrap();
    let hinted = failure["commands"].to_string();
    assert!(hinted.contains("gpuvm get ed-a") && !hinted.contains("delete"), "{failure}");
    define(&made);
    edited_by_virsh(&files, &made, &define);
    // The same value in another spelling is equal.
    let text = std::fs::read_to_string(&files.file).unwrap();
    let other = text
        .replace("os-size: 16M", "os-size: 16384K\n  no-seed: false\n  ssh-key: []\n  image: ~");
    std::fs::write(&files.file, other).unwrap();
    files.ends(0, &["--dry-run"]);
    // No hint has an option that `apply` does not take.
    files.write(&[("ed-a", "  memory: 900T\n")]);
    let said = files.ends(1, &[]);
    assert!(said.contains("cannot be changed") && !said.contains("`gpuvm apply"), "{said}");
    place.done(&["delete", "ed-a", "--yes"]);
}

/// Each edit of a guest by others is shown, and `get` prints its state then.
fn edited_by_virsh(files: &Files, made: &str, define: &dyn Fn(&str)) {
    let place = &files.place;
    let text = std::fs::read_to_string(&files.file).unwrap();
    let extra = place.disks.join("extra.raw");
    std::fs::write(&extra, [0; 4096]).unwrap();
    let own = format!(
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>\
         <target dev='vdz' bus='virtio'/></disk><interface",
        extra.display()
    );
    let pins = "</vcpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>";
    let mtu = "<source network='default'/><mtu size='1400'/>";
    let less = made.replacen(">262144</currentMemory>", ">131072</currentMemory>", 1);
    let one = |said: &str| format!("ed-a: {said}");
    for (xml, said) in [
        (made.replacen("<interface", &own, 1), one("differs in fixed options: add-disk")),
        (made.replacen("</vcpu>", pins, 1), one("differs in fixed options: pins core -> ")),
        (
            made.replacen("<source network='default'/>", mtu, 1),
            one("differs in fixed options: network default,mtu=1400 -> default"),
        ),
        (less, one("would be changed: memory 128M -> 256M")),
    ] {
        assert_ne!(xml, made, "{said}");
        define(&xml);
        std::fs::write(&files.file, &text).unwrap();
        let (code, shown) = files.apply(&["--dry-run"]);
        assert!(code == 3 && shown.contains(&said), "{said}: {shown}");
        std::fs::write(&files.file, place.done(&["get", "ed-a"])).unwrap();
        files.ends(0, &["--dry-run"]);
        let before = place.state();
        files.ends(0, &[]);
        same(&before, &place.state(), "get and apply changed something");
    }
    // The last one is mended by apply.
    std::fs::write(&files.file, &text).unwrap();
    files.ends(0, &[]);
    files.ends(0, &["--dry-run"]);
    let memory = place.virsh(&["dumpxml", "--inactive", "ed-a"]);
    assert!(memory.contains(">262144</currentMemory>"), "{memory}");
    define(made);
}

#[test]
fn a_running_guest_is_changed_only_where_said() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let disks = place.disks.to_str().unwrap().to_owned();
    place.done(&place.create("rn-a", &["--os-size", "16M", "--disk-dir", &disks]));
    let before = place.virsh(&["dumpxml", "--inactive", "rn-a"]);
    files.write(&[("rn-a", "  memory: 320M\n")]);
    for more in [&["--dry-run"][..], &[]] {
        let said = files.ends(3, more);
        assert!(said.contains("rn-a: pending: memory 256M -> 320M"), "{said}");
        assert!(said.contains("`gpuvm apply --restart -f"), "{said}");
    }
    assert_eq!(place.virsh(&["dumpxml", "--inactive", "rn-a"]), before);
    // The next start has that size, the guest that runs has not.
    place.done(&["set", "rn-a", "--memory", "320M", "--yes"]);
    for more in [&["--dry-run"][..], &[]] {
        let said = files.ends(3, more);
        assert!(said.contains("rn-a: pending: memory 256M -> 320M"), "{said}");
    }
    // What `get` prints would be pending, too, and it says so.
    let (code, _, err) = place.gpuvm(&["get", "rn-a"]);
    let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
    let told =
        "`rn-a` runs with memory 256M, and its next start, which is printed, has memory 320M";
    assert!(code == 0 && said.contains(told), "{err}");
    assert!(said.contains("pending until `gpuvm restart rn-a`"), "{err}");
    files.write(&[("rn-a", "  memory: 320M\n  restart: allowed\n")]);
    assert!(files.ends(3, &["--dry-run"]).contains("rn-a: would be changed"));
    // One that would not hear of the restart is refused before it is changed.
    place.virsh(&["suspend", "rn-a"]);
    files.write(&[("rn-a", "  memory: 384M\n  restart: allowed\n")]);
    for more in [&["--dry-run"][..], &[]] {
        let said = files.ends(1, more);
        assert!(said.contains("is paused") && said.contains("`gpuvm resume rn-a`"), "{said}");
    }
    let defined = place.virsh(&["dumpxml", "--inactive", "rn-a"]);
    assert!(defined.contains("<memory unit='KiB'>327680</memory>"), "{defined}");
    place.virsh(&["resume", "rn-a"]);
    files.write(&[("rn-a", "  memory: 320M\n  restart: allowed\n")]);
    place.done(&["stop", "rn-a", "--force"]);
    files.ends(0, &[]);
    place.done(&["delete", "rn-a", "--yes"]);
}

#[test]
fn what_get_prints_of_a_guest_that_runs_with_other_vcpus_is_applied_once() {
    let Some(files) = Files::new() else { return };
    let place = &files.place;
    let disks = place.disks.to_str().unwrap().to_owned();
    let create =
        place.create("vc-a", &["--os-size", "16M", "--disk-dir", &disks, "--max-vcpus", "3"]);
    place.done(&create);
    let printed = || {
        let (code, text, err) = place.gpuvm(&["get", "vc-a"]);
        assert_eq!(code, 0, "{text}{err}");
        std::fs::write(&files.file, text).unwrap();
        err.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let running = || place.virsh(&["dumpxml", "vc-a"]);
    let both = || (running(), place.virsh(&["dumpxml", "--inactive", "vc-a"]));
    // The next start has one vCPU more, which the guest has room for: it gets that, once.
    place.virsh(&["setvcpus", "vc-a", "2", "--config"]);
    let said = printed();
    assert!(
        said.contains("runs with vcpus 1") && said.contains("`apply` gives it those at once"),
        "{said}"
    );
    files.ends(3, &["--dry-run"]);
    files.ends(0, &[]);
    assert!(running().contains("current='2'"), "{}", running());
    let before = both();
    files.ends(0, &["--dry-run"]);
    files.ends(0, &[]);
    assert_eq!(both(), before, "the second run changed something");
    assert_eq!(printed(), "");
    // It has one less: QEMU takes none from an emulated guest, so both runs leave it pending.
    place.virsh(&["setvcpus", "vc-a", "1", "--config"]);
    let said = printed();
    assert!(said.contains("pending until `gpuvm restart vc-a`"), "{said}");
    let before = both();
    for _ in 0..2 {
        assert!(files.ends(3, &[]).contains("vc-a: pending: vcpus 2 -> 1"));
        assert_eq!(both(), before, "what is pending was changed");
    }
    place.done(&["stop", "vc-a", "--force"]);
    files.ends(0, &[]);
    place.done(&["delete", "vc-a", "--yes"]);
}

#[test]
fn a_running_guest_is_restarted_where_said() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("applied");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let file = dir.join("guests.yaml");
    let apply = |memory: &str| {
        let (template, disks) = (tiny.template.display(), dir.display());
        let text = format!(
            "format: gpuvm-guests\nversion: 1\nguests:\n- name: rs-a\n  template: {template}\n  \
             disk-dir: {disks}\n  os-size: 16M\n  virt-type: qemu\n  pins: none\n  vcpus: 1\n  \
             memory: {memory}\n  network: default\n  data-size: none\n  restart: allowed\n"
        );
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = run(&mut daemon.gpuvm(&["apply", "-f", file.to_str().unwrap()]));
        assert_eq!(code, 0, "{out}{err}");
        out
    };
    assert!(apply("256M").contains("rs-a: created"));
    tiny.wait_for("seen: all");
    let id = || daemon.virsh(&["domid", "rs-a"]).1;
    let before = id();
    tiny.forget();
    assert!(apply("320M").contains("rs-a: changed: memory 256M -> 320M"));
    assert!(id() != before && !id().contains('-'), "it was not restarted: {}", id());
    assert!(daemon.virsh(&["dumpxml", "rs-a"]).1.contains("<memory unit='KiB'>327680</memory>"));
    assert!(apply("320M").contains("rs-a: unchanged"));
    // A change that waits for a restart, such as that of a killed run, gets it.
    tiny.wait_for("seen: all");
    let (code, out, err) = run(&mut daemon.gpuvm(&["set", "rs-a", "--memory", "256M", "--yes"]));
    assert_eq!(code, 0, "{out}{err}");
    assert!(apply("256M").contains("rs-a: changed: memory 320M -> 256M"));
    assert!(daemon.virsh(&["dumpxml", "rs-a"]).1.contains("<memory unit='KiB'>262144</memory>"));
    assert!(apply("256M").contains("rs-a: unchanged"));
    let (code, out, err) = run(&mut daemon.gpuvm(&["delete", "rs-a", "--yes"]));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn guests_of_a_dgx_are_placed_together() {
    if !crate::support::daemon::namespaces() {
        return skip("namespaces need root");
    }
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/etc")).unwrap();
    std::fs::create_dir(dir.path().join("disks")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nremember_owner = 0\n";
    std::fs::write(dir.path().join("root/etc/qemu.conf"), conf).unwrap();
    let known = dir.path().join("root").join(crate::support::known::EMBEDDED);
    crate::support::known::give(&known, &crate::support::host_tree("dgx-2"));
    let guest = |name: &str, gpus: u32| {
        format!(
            "- {{name: {name}, gpus: {gpus}, memory: 16G, huge-pages: off, start: false, disk-dir: \
             {}, os-size: 8M, accept-shared-fabric: true, data-size: none}}\n",
            dir.path().join("disks").display()
        )
    };
    let head = "format: gpuvm-guests\nversion: 1\nguests:\n";
    let file = dir.path().join("guests.yaml");
    let all = [guest("one", 1), guest("eight", 8), guest("four", 4), guest("two", 2)].concat();
    std::fs::write(&file, format!("{head}{all}")).unwrap();
    let script = |line: &str| {
        let mut command = on_dgx2(&line.replace("FILE", file.to_str().unwrap()));
        let uri = format!("qemu:///embed?root={}", dir.path().join("root").display());
        run(command.env("LIBVIRT_DEFAULT_URI", uri))
    };
    let (code, out, err) = script("$GPUVM apply -f FILE --dry-run --json");
    assert_eq!(code, 3, "{out}{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let gpus = |at: usize| answer["guests"][at]["gpus"].as_array().unwrap().len();
    assert_eq!([gpus(0), gpus(1), gpus(2), gpus(3)], [1, 8, 4, 2], "{answer}");
    let (code, out, err) = script("$GPUVM apply -f FILE && $GPUVM apply -f FILE --dry-run");
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) =
        script("$GPUVM get --all >FILE.new; cat FILE.new; $GPUVM apply -f FILE.new --dry-run");
    assert_eq!(code, 0, "{out}{err}");
    // More than there are.
    std::fs::write(&file, format!("{head}{all}{}", guest("more", 2))).unwrap();
    let (code, out, err) = script("$GPUVM apply -f FILE --json");
    let failure: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, failure["code"].as_str()), (1, Some("apply-no-place")), "{failure}");
    let (code, out, err) = script("for g in one two four eight; do $GPUVM delete $g --yes; done");
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn bad_files_are_refused_with_line_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let head = "format: gpuvm-guests\nversion: 1\nguests:\n";
    for (text, place, said, code) in [
        ("a: [", "2:1", "", "guests-syntax"),
        ("a: &x 1\nb: *x\n", "2:4", "aliases", "guests-syntax"),
        ("guests: []\n", "1:1", "`format: gpuvm-guests` is missing", "guests-value"),
        ("format: gpuvm-guests\nversion: 2\nguests: []\n", "2:10", "version is", "guests-value"),
        ("format: gpuvm-guests\nversion: 1\nguest: []\n", "3:1", "`guests`", "guests-field"),
        ("HEAD- name: a\n  vcpu: 2\n", "5:3", "`vcpus`", "guests-field"),
        ("HEAD- name: a\n  volGB: 2\n", "5:3", "unknown field", "guests-field"),
        ("HEAD- name: a\n  vcpus: many\n", "5:10", "many", "guests-value"),
        ("HEAD- name: a\n  memory: 4 apples\n", "5:11", "4 apples", "guests-value"),
        ("HEAD- name: a\n  network: {a: b}\n", "5:", "takes no fields", "guests-value"),
        ("HEAD- name: a\n  vcpus: [1, 2]\n", "5:", "takes one value", "guests-value"),
        ("HEAD- name: a\n  no-seed: maybe\n", "5:12", "true or false", "guests-value"),
        ("HEAD- vcpus: 1\n", "4:3", "no `name`", "guests-value"),
        ("HEAD- name: a\n- name: a\n", "5:3", "appears twice", "guests-value"),
        ("HEAD- name: \"a\\nb\"\n", "4:9", "line break", "guests-value"),
        ("HEAD- name: a\n  password-hash: $6$SECRET\n", "5:18", "No such file", "guests-value"),
        ("HEAD- name: a\n  disk: /x\n  image: y\n", "", "cannot be used with", "guests-value"),
    ] {
        let file = dir.path().join("g.yaml");
        std::fs::write(&file, text.replace("HEAD", head)).unwrap();
        let path = file.to_str().unwrap();
        let args = ["apply", "-f", path, "--dry-run", "--connect", "test:///default", "--json"];
        let (ended, out, err) = run(gpuvm(&args).env_remove("GPUVM_IMAGE"));
        let failure: Value =
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{text}: {ended} {out}{err}"));
        let message = format!("{} {}", failure["message"], failure["hint"]);
        assert_eq!((ended, failure["code"].as_str()), (1, Some(code)), "{text}: {message}");
        assert!(message.contains(&format!("g.yaml:{place}")), "{text}: {message}");
        assert!(message.contains(said), "{text}: {message}");
        assert!(!out.contains("SECRET"), "{text}: {out}");
    }
}

#[test]
fn the_schema_of_a_file_has_the_options_of_create() {
    let (code, out, err) = run(gpuvm(&["schema", "gpuvm-guests"]).current_dir(project()));
    assert_eq!(code, 0, "{err}");
    let schema: Value = serde_json::from_str(&out).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let guests = |guest: Value| serde_json::json!({ "format": "gpuvm-guests", "version": 1, "guests": [guest] });
    let good = serde_json::json!({
        "name": "a", "gpus": 4, "memory": "180G", "network": ["default", "lan"], "huge-pages": "1G",
        "autostart": true, "restart": "allowed", "ssh-key": "k.pub", "no-seed": false,
    });
    assert!(validator.is_valid(&guests(good)));
    for bad in [
        serde_json::json!({ "vcpus": 1 }),
        serde_json::json!({ "name": "a", "vcpu": 1 }),
        serde_json::json!({ "name": "a", "huge-pages": "3G" }),
        serde_json::json!({ "name": "a", "vcpus": [1] }),
        serde_json::json!({ "name": "a", "dry-run": true }),
    ] {
        assert!(!validator.is_valid(&guests(bad.clone())), "{bad}");
    }
}
