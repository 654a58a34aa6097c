//! Recorded hosts: ours equal their file in `topologies`; those of others load as hwloc sees them,
//! or are refused by name.

use crate::support::tree::{host_text, scratch};
use crate::support::{gpuvm, host_tree, project, run, shared_hosts};
use gpuvm::discover::source;
use gpuvm::topology::file::to_json_with;
use gpuvm::topology::{DeviceKind, Topology};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our recorded hosts.
const HOSTS: [&str; 6] = ["dgx-1", "dgx-2", "dgx-a100", "dgx-h100", "dual-socket", "h100-guest"];

/// Set to renew `topologies` from `tests/hosts`.
const RENEW: &str = "GPUVM_RENEW";

/// Records that hwloc counts differently, with the reason.
const OTHER_THAN_HWLOC: [(&str, &str); 3] = [
    ("nvidiagpunumanodes", "hwloc drops the memory of GPUs from its nodes"),
    ("gb300-tray", "hwloc drops the memory of GPUs from its nodes"),
    ("64amd64-4p2n4ca2co", "hwloc takes the two halves of an AMD compute unit for cores"),
];

/// The sources of a host's facts: the comments of its tree, by paragraph.
fn sources(name: &str) -> Vec<String> {
    let text = host_text(name);
    let lines = text.lines().map_while(|line| line.strip_prefix("# "));
    vec![lines.collect::<Vec<_>>().join(" ")]
}

#[test]
fn every_topology_matches_discovery() {
    let mut stale = Vec::new();
    for name in HOSTS {
        let host = source::load(&host_tree(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = project().join(format!("topologies/{name}.json"));
        let found = to_json_with(&host, sources(name));
        if std::env::var_os(RENEW).is_some() {
            std::fs::write(&file, &found).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        if kept != found {
            let line = kept.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
            let (a, b) = (kept.lines().nth(line), found.lines().nth(line));
            stale.push(format!("{name} line {}: {a:?} in the file, {b:?} found", line + 1));
        }
    }
    assert!(stale.is_empty(), "{RENEW}=1 renews topologies/*.json:\n{}", stale.join("\n"));
    let listed = |dir: &str, ends: &str| {
        let entries = std::fs::read_dir(project().join(dir)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(ends).map(str::to_owned))
            .collect();
        names.sort();
        names
    };
    assert_eq!(listed("tests/hosts", ".tree"), HOSTS);
    assert_eq!(listed("topologies", ".json"), HOSTS);
}

#[test]
fn a_record_of_before_is_read_and_what_it_lacks_is_said() {
    let text = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    file.as_object_mut().unwrap().remove("sources");
    let machine = file["host"]["machine"].as_object_mut().unwrap();
    for field in ["physical_address_bits", "hugetlbfs", "isolation"] {
        assert!(machine.remove(field).is_some(), "{field}");
    }
    for device in file["host"]["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("bars");
    }
    let dir = scratch();
    let old = dir.path().join("old.json");
    std::fs::write(&old, file.to_string()).unwrap();
    let words = ["plan", "--gpus", "1", "--explain", "--host", old.to_str().unwrap()];
    let (code, out, err) = run(&mut gpuvm(&words));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("not set: the record does not know the BARs"), "{out}");
    assert!(out.contains("whether the IOMMU isolates these devices is unknown"), "{out}");
}

#[test]
fn the_file_of_a_host_reads_as_its_tree() {
    for name in HOSTS {
        let file = source::load(&project().join(format!("topologies/{name}.json"))).unwrap();
        assert_eq!(file, source::load(&host_tree(name)).unwrap(), "{name}");
    }
}

#[test]
fn the_scripts_pack_and_unpack_alike() {
    let dir = scratch();
    let script = |name: &str| Command::new(project().join("tests").join(name));
    for name in ["dgx-1", "dual-socket"] {
        let text = host_text(name);
        let out = dir.path().join(name);
        let tree = project().join(format!("tests/hosts/{name}.tree"));
        let (code, _, stderr) = run(script("unpack-host").arg(&tree).arg(&out));
        assert_eq!((code, stderr.as_str()), (0, ""), "{name}");
        let (code, packed, stderr) = run(script("pack-host").arg(&out));
        assert_eq!((code, stderr.as_str()), (0, ""), "{name}");
        let uncommented = |text: &str| {
            text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(uncommented(&packed), uncommented(&text), "{name}");
        assert_eq!(source::load(&out).unwrap(), source::load(&host_tree(name)).unwrap());
    }
}

#[test]
fn an_invalid_host_is_refused_by_name() {
    let dir = scratch();
    let file = |name: &str, content: &[u8]| {
        std::fs::write(dir.path().join(name), content).unwrap();
    };
    file("empty", b"");
    file("blank", b" \n\n");
    file("text", b"hello");
    file("binary", b"\x7fELF\x02\xff\xfe");
    file("packed", b"\xfd7zXZ\0\0");
    file("newer", br#"{"format": "gpuvm-host", "version": 99, "host": {"new": 1}}"#);
    file("other", br#"{"format": "gpuvm-plan", "version": 1}"#);
    file("array", b"{[]}");
    file("cut", b"{\n\"format\": \"gpuvm-host\",\n\"version\": 1, \"host\": {");
    file("xml", b"<domain/>");
    std::fs::File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
    std::fs::create_dir(dir.path().join("bare")).unwrap();
    std::fs::create_dir_all(dir.path().join("hollow/sys/devices/system")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    for (name, reason) in [
        ("missing", "No such file"),
        ("empty", "it is empty"),
        ("blank", "it is empty"),
        ("text", "neither JSON"),
        ("binary", "byte 5 is not UTF-8"),
        ("packed", "tar -xf"),
        ("newer", "host file version 99 is not supported"),
        ("other", "`format` is `gpuvm-plan`"),
        ("array", "line 1 column 2"),
        ("cut", "line 3 column"),
        ("xml", "not an lstopo record"),
        ("huge", "has 1099511627776 bytes, more than the limit of 67108864 bytes"),
        ("bare", "holds no `sys/devices`"),
        ("hollow", "no sys/devices/system/cpu"),
        ("fifo", "is a named pipe, not a regular file"),
    ] {
        let path = dir.path().join(name);
        let error = source::load(&path).expect_err(name).to_string();
        assert!(error.contains(reason), "{name}: {error}");
        assert!(error.contains(path.to_str().unwrap()), "{name}: {error}");
    }
}

/// Files of the recorded hosts beside the project, by name.
fn records(shared: &Path) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(shared).unwrap().map(|entry| entry.unwrap().path());
    let files = dirs.filter(|dir| dir.is_dir()).flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Unpacks a record into a directory.
fn unpacked(record: &Path) -> tempfile::TempDir {
    let dir = scratch();
    let mut tar = Command::new("tar");
    let (code, _, stderr) = run(tar.arg("-xf").arg(record).arg("-C").arg(dir.path()));
    assert_eq!(code, 0, "{}: {stderr}", record.display());
    dir
}

#[test]
fn every_record_of_others_loads_or_is_refused_by_name() {
    let Some(shared) = shared_hosts() else { return };
    let (mut trees, mut texts) = (0, 0);
    for record in records(&shared) {
        let name = record.file_name().unwrap().to_string_lossy().into_owned();
        if name.contains(".tar.") {
            let dir = unpacked(&record);
            let host = source::load(dir.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
            check_against_hwloc(&host, dir.path(), &name);
            trees += 1;
        } else if name.ends_with(".xml") {
            let loaded = source::load(&record);
            let other = record.parent().unwrap();
            let other = ["nccl", "nvidia-smi", "real"].iter().any(|dir| other.ends_with(dir));
            match loaded {
                Ok(host) => assert!(!other && !host.cores().is_empty(), "{name}"),
                Err(error) => {
                    assert!(other || name.contains("hwloc3"), "{name}: {error}");
                    let error = error.to_string();
                    assert!(error.contains(record.to_str().unwrap()), "{name}: {error}");
                    assert!(error.contains("(line "), "{name}: {error}");
                }
            }
            texts += 1;
        }
    }
    assert!(trees >= 30 && texts >= 40, "{trees} trees, {texts} texts");
}

/// Compares counts with hwloc's, if its tools are installed.
fn check_against_hwloc(host: &Topology, dir: &Path, name: &str) {
    if OTHER_THAN_HWLOC.iter().any(|(other, _)| name.starts_with(other)) {
        return;
    }
    let mut level = vec![dir.to_owned()];
    let root = loop {
        if let Some(root) = level.iter().find(|dir| dir.join("sys/devices").is_dir()) {
            break root.clone();
        }
        let below = level.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
        level = below.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    };
    let count = |kind: &str| {
        let mut hwloc = Command::new("hwloc-calc");
        hwloc.arg("--input").arg(&root).args(["--if", "fsroot", "--disallowed", "-N", kind, "all"]);
        hwloc.output().ok().and_then(|out| String::from_utf8(out.stdout).ok()?.trim().parse().ok())
    };
    for (kind, ours) in [
        ("pu", host.pcpus().len()),
        ("core", host.cores().len()),
        ("numa", host.nodes().len()),
        ("l3", host.parts().l3.len()),
    ] {
        if let Some(theirs) = count(kind).filter(|&theirs: &usize| theirs > 0) {
            assert_eq!(ours, theirs, "{name}: {kind}");
        }
    }
}

#[test]
fn hosts_built_from_facts_show_the_facts() {
    let Some(shared) = shared_hosts() else { return };
    let mut seen = 0;
    for facts in records(&shared) {
        let name = facts.file_name().unwrap().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".facts.json") else { continue };
        let record = facts.with_file_name(format!("{stem}.fsroot.tar.xz"));
        let host = source::load(unpacked(&record).path()).unwrap();
        let facts: Value = serde_json::from_slice(&std::fs::read(&facts).unwrap()).unwrap();
        check_facts(&host, &facts, stem);
        seen += 1;
    }
    assert!(seen >= 5, "{seen} hosts");
}

/// Compares a host with the known facts about it.
fn check_facts(host: &Topology, facts: &Value, name: &str) {
    assert_eq!(host.pcpus().len() as u64, facts["cpus"], "{name}");
    let nodes: Vec<_> = host
        .nodes()
        .iter()
        .map(|n| (n.os_index.0.into(), n.pcpus.to_string(), n.memory_kib.kib()))
        .collect();
    let known = facts["numa"].as_array().unwrap().iter().map(|node| {
        let number = |key: &str| node[key].as_u64().unwrap();
        (number("id"), node["cpus"].as_str().unwrap().to_owned(), number("mem_kb"))
    });
    let known: Vec<(u64, String, u64)> = known.collect();
    assert_eq!(nodes, known, "{name}");
    for (node, known) in host.nodes().iter().zip(facts["distance"].as_array().unwrap()) {
        assert_eq!(serde_json::json!(node.distances), *known, "{name}");
    }
    for (kind, key) in [(DeviceKind::Gpu, "gpus"), (DeviceKind::NvSwitch, "nvswitches")] {
        let mut found = Vec::new();
        for device in host.of_kind(kind) {
            let mut path = host.path_to_root(device.bdf);
            path.remove(0);
            path.reverse();
            let path: Vec<String> = path.iter().map(ToString::to_string).collect();
            let node = device.node.map(|node| node.0);
            found.push(serde_json::json!({"bdf": device.bdf, "numa": node, "path": path}));
        }
        found.sort_by_key(|device| device["bdf"].as_str().unwrap().to_owned());
        let mut known = facts[key].as_array().unwrap().clone();
        known.sort_by_key(|device| device["bdf"].as_str().unwrap().to_owned());
        assert_eq!(found, known, "{name} {key}");
    }
    for nic in facts["nics"].as_array().unwrap() {
        let device = host.device(nic["bdf"].as_str().unwrap().parse().unwrap()).unwrap();
        let net = device.net.clone().unwrap_or_default();
        let list = |key: &str| nic.get(key).cloned().unwrap_or(serde_json::json!([]));
        assert_eq!(serde_json::json!(net.rdma), list("rdma"), "{name} {}", device.bdf);
        assert_eq!(serde_json::json!(net.netdevs), list("net"), "{name} {}", device.bdf);
    }
    for nvme in facts["nvme"].as_array().unwrap() {
        let bdf = nvme["bdf"].as_str().unwrap().parse().unwrap();
        let drives = host.parts().drives.iter().filter(|drive| drive.bdf == Some(bdf));
        let names: Vec<&str> = drives.map(|drive| drive.name.as_str()).collect();
        assert_eq!(serde_json::json!(names), nvme["block"], "{name} {bdf}");
    }
}
