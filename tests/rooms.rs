//! The layers of the source: imports point down only, and code that exists once is not duplicated.

use crate::support::project;
use std::fs;
use std::path::{Path, PathBuf};

/// Source files below a directory, without their unit tests.
pub(crate) fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                all.push((path, text));
            }
        }
    }
    all
}

/// Lines of code that contain one of these words, with their location.
fn naming(room: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources(&project().join("src").join(room)) {
        for (line, number) in text.lines().zip(1..) {
            let code = line.split("//").next().unwrap_or_default();
            if words.iter().any(|word| code.contains(word)) {
                let place = path.strip_prefix(project()).unwrap().display().to_string();
                found.push(format!("{place}:{number}: {}", line.trim()));
            }
        }
    }
    found
}

#[test]
fn every_test_skips_by_one_function() {
    let tests =
        sources(&project().join("tests")).into_iter().chain(sources(&project().join("src")));
    let says = |text: &str| text.contains(concat!("\"skip", "ped:"));
    let found = tests.filter(|(path, text)| !path.ends_with("support/skip.rs") && says(text));
    let found = found.filter(|(path, _)| !path.starts_with(project().join("tests/bench")));
    assert_eq!(found.map(|(path, _)| path).collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

#[test]
fn imports_point_down() {
    let rooms: [(&str, &[&str]); 3] = [
        (
            "core",
            &["gpuvm_host", "clap::", "anyhow::", "nix::", " virt::", "libc::", "hwlocality::"],
        ),
        ("host", &["gpuvm_ops", "clap::", "anyhow::", "tabled::", "indicatif::"]),
        (
            "ops",
            &["clap::", "anyhow::", "tabled::", "indicatif::", "println!", "stdin()", "stdout()"],
        ),
    ];
    for (room, words) in rooms {
        assert_eq!(naming(room, words), [""; 0], "of {room}");
    }
}

/// The verbs: what each command line runs.
const VERBS: [&str; 40] = [
    "apply",
    "autostart",
    "capacity",
    "check",
    "console",
    "create",
    "delete",
    "device",
    "drive",
    "exec",
    "export",
    "fabric",
    "fleet",
    "get",
    "gpu",
    "history",
    "host",
    "image",
    "ip",
    "list",
    "logs",
    "make_room",
    "measure",
    "meta",
    "nccl",
    "network",
    "nic",
    "plan",
    "recover",
    "restart",
    "seed",
    "set",
    "show",
    "slurm",
    "start",
    "stop",
    "top",
    "tune",
    "undo",
    "verify",
];

/// Imports of a verb by another, with the file.
fn imports_between_verbs() -> Vec<String> {
    let cli = project().join("src/cli");
    let mut found = Vec::new();
    for (path, text) in sources(&cli) {
        let place = path.strip_prefix(&cli).unwrap().with_extension("");
        let parts: Vec<&str> = place.iter().map(|part| part.to_str().unwrap()).collect();
        let Some(own) = parts.first().filter(|part| VERBS.contains(part)) else { continue };
        // `super` of a file in a folder is that folder; of `mod.rs` the one above.
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
        let up = "super::".repeat(depth);
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            let rest = line
                .split("crate::cli::")
                .skip(1)
                .chain(line.split(&up).skip(1).filter(|rest| !rest.starts_with("super::")));
            for rest in rest {
                let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next();
                let name = name.unwrap_or_default();
                if VERBS.contains(&name) && name != *own {
                    found.push(format!("{} -> {name}", place.display()));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn no_verb_imports_a_verb() {
    assert_eq!(imports_between_verbs(), [""; 0]);
}

/// The modules of core, and which of them each may use: imports point left along the pipeline.
/// Modules that every module may use come first.
const OF_ALL: [&str; 13] = [
    "bdf",
    "cpuset",
    "ethernet",
    "finding",
    "host_device",
    "memsize",
    "p2p",
    "shell",
    "user",
    "versions",
    "words",
    "golden",
    "share",
];
const MODULES: [(&str, &[&str]); 28] = [
    ("xid", &[]),
    ("health", &["xid"]),
    ("topology", &["health"]),
    ("iommufd", &["topology"]),
    ("fabric", &["topology"]),
    ("image", &[]),
    ("seed", &["nccl"]),
    ("hostnet", &["network"]),
    ("request", &[]),
    ("occupancy", &["topology", "fabric"]),
    ("placement", &["health", "topology", "request", "occupancy", "fabric"]),
    ("domain", &["topology", "request", "occupancy", "placement"]),
    ("network", &["domain"]),
    ("bundle", &["request", "domain"]),
    ("check", &["iommufd", "topology", "request", "occupancy", "placement", "domain"]),
    ("guest", &["topology", "request", "domain", "check"]),
    ("nccl", &["topology", "domain", "check"]),
    (
        "tune",
        &[
            "health",
            "iommufd",
            "topology",
            "request",
            "occupancy",
            "placement",
            "domain",
            "check",
            "guest",
        ],
    ),
    ("load", &["domain"]),
    (
        "verify",
        &[
            "topology",
            "fabric",
            "request",
            "occupancy",
            "placement",
            "domain",
            "check",
            "load",
            "nccl",
        ],
    ),
    ("doctor", &["xid", "iommufd", "topology", "occupancy", "placement", "check", "verify"]),
    ("measure", &[]),
    ("view", &["topology", "request", "occupancy", "placement"]),
    ("metrics", &["topology", "occupancy", "placement"]),
    ("fleet", &["topology", "request", "occupancy", "placement"]),
    ("export", &["topology", "request", "occupancy", "placement"]),
    ("slurm", &["topology", "placement"]),
    // The words of types for JSON Schemas.
    ("schema", &["hostnet", "image", "network", "topology"]),
];

#[test]
fn modules_of_core_point_left_along_the_pipe() {
    let core = project().join("src/core");
    let mut found = Vec::new();
    for (path, text) in sources(&core) {
        let place = path.strip_prefix(&core).unwrap().with_extension("");
        let is_of = |name: &str| place.iter().next().is_some_and(|first| first == name);
        let is_tests = place.iter().any(|part| part == "tests");
        if is_tests || is_of("lib") || OF_ALL.iter().any(|name| is_of(name)) {
            continue;
        }
        let (own, may) = MODULES.iter().find(|(name, _)| is_of(name)).unwrap_or_else(|| {
            panic!("{}: what may it use?", place.display());
        });
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in code.lines().map(|line| line.split("//").next().unwrap_or_default()) {
            for rest in line.split("crate::").skip(1) {
                let name = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
                let fits = name == *own || may.contains(&name) || OF_ALL.contains(&name);
                if MODULES.iter().any(|(module, _)| *module == name) && !fits {
                    found.push(format!("{}: {}", place.display(), line.trim()));
                }
            }
        }
    }
    assert_eq!(found, [""; 0]);
}
