//! Several domains tuned together.

use super::domains::Wanted;
use crate::support::{gpuvm, project, run};
use crate::xml::guests::host;
use gpuvm::domain::DomainXml;
use std::collections::BTreeSet;
use std::fs;

/// Writes guests into a directory, and returns it.
fn files(wanted: &[Wanted]) -> tempfile::TempDir {
    let (dir, dgx2) = (tempfile::tempdir().unwrap(), host("dgx-2"));
    for wanted in wanted {
        fs::write(dir.path().join(format!("{}.xml", wanted.name)), wanted.xml(&dgx2)).unwrap();
    }
    dir
}

/// Runs `tune --all` on a directory.
fn tune(dir: &std::path::Path, args: &[&str]) -> (i32, String, String) {
    let topology = project().join("topologies/dgx-2.json");
    let words = ["tune", "--all", "--host", topology.to_str().unwrap(), "--domain-xml"];
    run(&mut gpuvm(&[&words[..], &[dir.to_str().unwrap()], args].concat()))
}

#[test]
fn no_two_of_several_guests_get_the_same_core() {
    let plain = Wanted {
        name: "plain",
        vcpus: 6,
        memory_kib: 8 << 20,
        pins: vec![24, 25, 26, 72, 73, 74],
        gpus: 0..0,
        more: "",
    };
    // The guest without GPUs is in the way of the one whose GPUs are on node 1.
    let dir = files(&[Wanted::vendor(0, 4), Wanted::vendor(8, 2), Wanted::vendor(4, 1), plain]);
    let (code, said, err) = tune(dir.path(), &["--json", "--check"]);
    assert_eq!(code, 3, "{said}{err}");
    let (code, diff, err) = tune(dir.path(), &["--diff"]);
    assert_eq!(code, 0, "{err}");
    let mut pins = BTreeSet::new();
    for line in diff.lines().filter(|line| line.starts_with('+') && line.contains("vcpupin")) {
        let pcpu: u32 =
            line.split("cpuset='").nth(1).unwrap().trim_end_matches("'/>").parse().unwrap();
        assert!(pins.insert(pcpu % 48 + 100 * u32::from(pcpu >= 48)), "pcpu {pcpu} twice:\n{diff}");
    }
}

#[test]
fn the_one_after_sees_the_place_of_the_one_before() {
    // Both are pinned to the same pcpus.
    let one = Wanted::vendor(0, 1);
    let two = Wanted { name: "other", gpus: 1..2, ..one.clone() };
    let dir = files(&[one, two]);
    let (code, said, err) = tune(dir.path(), &["--dry-run"]);
    assert_eq!(code, 0, "{said}{err}");
    let pins = |name: &str| {
        let part = said.split(&format!("{name} would change")).nth(1).unwrap();
        part.lines().find(|line| line.contains("pins:")).unwrap().to_owned()
    };
    assert_ne!(pins("one"), pins("other"), "{said}");
}

#[test]
fn one_that_is_refused_does_not_keep_the_others() {
    let dir = files(&[Wanted::vendor(0, 1)]);
    let lxc = "<domain type='lxc'><name>box</name><memory>1048576</memory></domain>";
    fs::write(dir.path().join("box.xml"), lxc).unwrap();
    let (code, said, err) = tune(dir.path(), &["--dry-run"]);
    assert_eq!(code, 1, "{said}{err}");
    assert!(said.contains("one would change") && said.contains("box: cannot be tuned"), "{said}");
    assert!(err.contains("`lxc`"), "{err}");
}

#[test]
fn a_file_is_printed_tuned_and_not_changed() {
    let dir = files(&[Wanted::vendor(0, 1)]);
    let file = dir.path().join("one.xml");
    let before = fs::read_to_string(&file).unwrap();
    let topology = project().join("topologies/dgx-2.json");
    let args = ["tune", file.to_str().unwrap(), "--host", topology.to_str().unwrap()];
    let (code, out, err) = run(&mut gpuvm(&args));
    assert_eq!(code, 0, "{err}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let tuned = DomainXml::parse(&out).unwrap();
    assert_eq!(tuned.name(), "one");
    let (code, json, _) = run(&mut gpuvm(&[&args[..], &["--json"]].concat()));
    assert_eq!(code, 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["xml"].as_str(), Some(out.as_str()));
    assert_eq!(json["changes"][0]["item"], "pins");
    // A name needs a definition, and a recorded host has only those that are given.
    let name = ["tune", "one-name", "--host", topology.to_str().unwrap(), "--yes"];
    let (code, _, err) = run(&mut gpuvm(&name));
    assert_eq!(code, 2, "{err}");
}
