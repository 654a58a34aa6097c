//! `capacity --metrics` from outside: the same numbers as `--json`, in a file that is replaced
//! whole. What Prometheus' own tools say is in `tests/browser`, which `make test-view` runs.

use crate::support::{gpuvm, project, run};
use std::collections::BTreeMap;
use std::fs;

/// The arguments that ask about the recorded DGX-2 with its two guests.
const DGX2: [&str; 5] =
    ["capacity", "--host", "topologies/dgx-2.json", "--domain-xml", "tests/golden/capacity"];

/// Runs `capacity` on it.
fn capacity(more: &[&str]) -> (i32, String, String) {
    run(gpuvm(&[&DGX2[..], more].concat()).current_dir(project()))
}

/// Samples by what stands before the value.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).collect()
}

#[test]
fn numbers_are_those_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gpuvm-capacity.prom");
    let (code, out, err) = capacity(&["--metrics", file.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    let written = fs::read_to_string(&file).unwrap();
    let all = samples(&written);
    assert!(written.contains("\ngpuvm_build_info{version=\""), "{written}");
    assert!(written.contains("\",commit=\""), "{written}");
    let (_, json, _) = capacity(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let sizes = json["sizes"].as_array().unwrap();
    assert!(sizes.len() > 3, "{json}");
    for size in sizes {
        for (name, field) in
            [("gpuvm_capacity_guests", "now"), ("gpuvm_capacity_guests_empty_host", "empty")]
        {
            let series = format!("{name}{{gpus=\"{}\"}}", size["gpus"]);
            assert_eq!(all[series.as_str()], size[field].to_string(), "{series}");
        }
    }
    let held =
        "gpuvm_gpu_holder{pci_bus_id=\"00000000:34:00.0\",kind=\"guest\",domain=\"train-a\",";
    assert!(all.keys().any(|series| series.starts_with(held)), "{written}");
    // With --json the document is printed as well; `-` prints the same metrics, but for the time.
    let again = capacity(&["--metrics", file.to_str().unwrap(), "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&again.1).unwrap(), json);
    let (code, out, _) = capacity(&["--metrics", "-"]);
    let untimed = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("timestamp_seconds "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((code, untimed(&out)), (0, untimed(&written)));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left");
}

#[test]
fn only_own_files_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("mine.prom"), "node_up 1\n").unwrap();
    std::os::unix::fs::symlink("nowhere", path("link.prom")).unwrap();
    for (file, says) in [
        (path("mine.prom"), "gpuvm did not make it"),
        (path("link.prom"), "is a symbolic link"),
        (path(""), "is a directory"),
        (path("none/a.prom"), "No such file or directory"),
        ("/dev/null".to_owned(), "is not a regular file"),
    ] {
        let (code, out, err) = capacity(&["--metrics", &file, "--quiet"]);
        assert_eq!((code, out.as_str()), (1, ""), "{file}: {err}");
        assert!(err.contains(says) && err.contains("hint: "), "{file}: {err}");
    }
    assert_eq!(fs::read(path("mine.prom")).unwrap(), b"node_up 1\n");
    assert!(!dir.path().join("nowhere").exists());
    let (code, _, err) = capacity(&["--metrics", &path("a.txt")]);
    assert!(code == 0 && err.contains("no .prom"), "{err}");
    for more in [&["--metrics", "-", "--svg", "-"][..], &["--metrics", "-", "--html", "-"]] {
        let (code, out, err) = capacity(more);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
    }
    assert_eq!(capacity(&["--metrics", "-", "--json"]).0, 2);
}

/// Printed metrics are read by a program, as those of a file: nothing in them is escaped for
/// people.
#[test]
fn a_name_with_a_direction_character_stays_valid() {
    let dir = tempfile::tempdir().unwrap();
    let guests = dir.path().join("guests");
    fs::create_dir(&guests).unwrap();
    let guest = fs::read_to_string(project().join("tests/golden/capacity/train-a.xml")).unwrap();
    let named = guest.replace("<name>train-a</name>", "<name>a&#x202e;b</name>");
    assert_ne!(named, guest);
    fs::write(guests.join("a.xml"), named).unwrap();
    let host = project().join("topologies/dgx-2.json");
    let args = ["capacity", "--metrics", "-", "--host", host.to_str().unwrap(), "--domain-xml"];
    let (code, out, err) = run(gpuvm(&args).arg(&guests));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("domain=\"a\u{202e}b\"") && !out.contains("\\u"), "{out}");
}
