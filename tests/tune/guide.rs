//! The examples of the vendor's guide, chapter 12, as they should have been (gpuvm-nvidia-vm(7),
//! REQUIREMENTS OF THE GUIDE, 17 to 30, and the traps), on the recorded DGX-2. Each difference
//! is kept in `tests/golden/tune`.

use super::domains::Wanted;
use crate::support::{gpuvm, project, run};
use crate::xml::guests::host;
use std::fs;

/// The tunings by guest, with the name of the golden file, which begins with the item of the
/// checklist.
fn examples() -> Vec<(&'static str, Wanted, &'static [&'static str])> {
    let vendor = Wanted::vendor;
    let bare = |wanted: Wanted| Wanted { pins: Vec::new(), ..wanted };
    let paged = |wanted: Wanted| Wanted {
        more: "\n  <memoryBacking>\n    <hugepages/>\n  </memoryBacking>",
        ..wanted
    };
    let threads = |wanted: Wanted| Wanted { more: "\n  <iothreads>46</iothreads>", ..wanted };
    vec![
        ("17-virtio", vendor(0, 8), &["--net-queues", "on", "--agent", "on", "--balloon", "on"]),
        ("19-pins-8", bare(vendor(0, 8)), &["--pins", "thread", "--emulator", "on"]),
        ("19-unpinned", vendor(0, 8), &["--pins", "off"]),
        ("20-cores-1", vendor(9, 1), &["--pins", "on", "--topology", "on"]),
        ("20-cores-2", vendor(0, 2), &["--pins", "on", "--topology", "on"]),
        ("20-cores-4", vendor(4, 4), &["--pins", "on", "--topology", "on"]),
        ("20-cores-8", vendor(8, 8), &["--pins", "on", "--topology", "on"]),
        (
            "20-cores-16",
            vendor(0, 16),
            &["--pins", "on", "--topology", "on", "--cells", "on", "--memory-nodes", "on"],
        ),
        ("22-pages-2m", vendor(0, 16), &["--all-settings", "--huge-pages", "2M"]),
        (
            "22-pages-2m-1",
            vendor(8, 1),
            &["--pins", "on", "--huge-pages", "2M", "--memory-rounding", "on"],
        ),
        ("23-pages-1g", vendor(0, 16), &["--all-settings", "--huge-pages", "1G"]),
        ("24-no-pages", paged(vendor(0, 8)), &["--huge-pages", "off"]),
        ("26-cells-16", bare(vendor(0, 16)), &["--all-settings"]),
        ("27-cell-1", vendor(9, 1), &["--pins", "on", "--cells", "on", "--memory-nodes", "on"]),
        ("28-emulator-1", vendor(0, 1), &["--pins", "on", "--emulator", "on"]),
        ("28-no-emulator", vendor(0, 1), &["--emulator", "off"]),
        (
            "29-disk-46",
            vendor(0, 8),
            &["--disk-cache", "on", "--disk-io", "on", "--disk-queues", "on"],
        ),
        (
            "29-disk-92",
            vendor(0, 16),
            &["--disk-cache", "on", "--disk-io", "on", "--disk-queues", "on"],
        ),
        (
            "30-iothreads",
            threads(vendor(0, 8)),
            &["--pins", "on", "--iothreads", "on", "--iothread-pins", "on"],
        ),
        ("30-no-iothreads", threads(vendor(0, 8)), &["--iothreads", "off"]),
        ("13-mtu", vendor(0, 2), &["--mtu", "9000"]),
        ("14-net-queues", vendor(0, 2), &["--net-queues", "on"]),
        ("16-rates", vendor(0, 2), &["--inbound", "1Gbit/s,2Gbit/s,4M", "--outbound", "500MB/s"]),
        ("all-1", vendor(0, 1), &[]),
        ("all-8", vendor(8, 8), &[]),
    ]
}

/// Runs `tune` on a file, as on a DGX-2.
fn tune(file: &std::path::Path, args: &[&str]) -> (i32, String, String) {
    let topology = project().join("topologies/dgx-2.json");
    let words = ["tune", file.to_str().unwrap(), "--host", topology.to_str().unwrap()];
    run(&mut gpuvm(&[&words[..], args].concat()))
}

/// Compares a text with the golden copy, or renews it. Returns the difference in words.
fn kept(name: &str, text: &str) -> Option<String> {
    let golden = project().join("tests/golden/tune").join(name);
    if std::env::var_os("GPUVM_RENEW").is_some() {
        fs::write(&golden, text).unwrap();
    }
    let same = fs::read_to_string(&golden).is_ok_and(|golden| golden == text);
    (!same).then(|| format!("{name}:\n{text}"))
}

#[test]
fn the_guides_examples_come_out_correct() {
    let dgx2 = host("dgx-2");
    let dir = tempfile::tempdir().unwrap();
    let mut stale = Vec::new();
    for (name, wanted, args) in examples() {
        let file = dir.path().join(format!("{name}.xml"));
        fs::write(&file, wanted.xml(&dgx2)).unwrap();
        let (code, diff, err) = tune(&file, &[args, &["--diff"]].concat());
        assert_eq!(code, 0, "{name}: {err}");
        stale.extend(kept(&format!("{name}.diff"), &diff));
        let (code, tuned, err) = tune(&file, args);
        assert_eq!(code, 0, "{name}: {err}");
        assert!(
            tuned.contains("<their:note xmlns:their='urn:their'>ours &amp; theirs</their:note>")
        );
        fs::write(&file, &tuned).unwrap();
        let (code, said, err) = tune(&file, &[args, &["--check"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{name} has more to do: {said}");
    }
    assert!(stale.is_empty(), "GPUVM_RENEW=1 renews tests/golden/tune:\n{}", stale.join("\n"));
}

#[test]
fn more_vcpus_than_the_host_has_threads_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many.xml");
    let wanted = Wanted { vcpus: 97, pins: Vec::new(), ..Wanted::vendor(0, 16) };
    fs::write(&file, wanted.xml(&host("dgx-2"))).unwrap();
    let (code, out, err) = tune(&file, &["--all-settings"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let said = err.replace(file.to_str().unwrap(), "many.xml");
    let said = said.replace(&format!("{}/", project().display()), "");
    let (code, _, err) = tune(&file, &["--all-settings", "--pins", "off"]);
    assert_eq!(code, 0, "what is offered does not work: {err}");
    assert_eq!(kept("18-overcommit.err", &said), None, "GPUVM_RENEW=1 renews tests/golden/tune");
}

#[test]
fn each_item_of_the_checklist_has_a_golden_file_or_is_the_hosts() {
    let files = fs::read_dir(project().join("tests/golden/tune")).unwrap();
    let names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let rules: Vec<&str> = gpuvm::verify::rules().map(|rule| rule.id).collect();
    for item in 17..=30 {
        match item {
            // Kernel settings of the host are not part of a domain; `verify` judges them.
            21 => assert!(rules.contains(&"transparent-huge-pages-off")),
            25 => assert!(rules.contains(&"numa-balancing-off")),
            item => {
                let start = format!("{item}-");
                assert!(names.iter().any(|name| name.starts_with(&start)), "item {item}");
            }
        }
    }
    // Every file is one of a test.
    for name in names.iter().filter_map(|name| name.strip_suffix(".diff")) {
        assert!(examples().iter().any(|(known, ..)| *known == name), "{name} is left over");
    }
}

#[test]
fn errors_of_the_guide_are_refused_with_numbers() {
    let dgx2 = host("dgx-2");
    let dir = tempfile::tempdir().unwrap();
    let eight = Wanted::vendor(0, 8);
    for (trap, wanted, args, said) in [
        (
            "T6",
            Wanted::vendor(0, 2),
            &["--topology", "1x23x2"][..],
            "1x23x2 are 46 vCPUs, and the guest has 10",
        ),
        ("T13", eight.clone(), &["--emulator", "500"], "this host has no pcpu 500"),
        (
            "T21",
            eight.clone(),
            &["--pins", "on", "--iothreads", "46", "--assume", "libvirt=9.0"],
            "46 threads, and the guest's disks can use 2",
        ),
        (
            "T22 disk",
            Wanted::vendor(0, 1),
            &["--disk-queues", "32"],
            "32 queues, and a disk takes 1 to 5",
        ),
        (
            "T22 NIC",
            eight.clone(),
            &["--net-queues", "300"],
            "300 queues, and a NIC of this guest takes 1 to 46",
        ),
        (
            "T23",
            eight,
            &["--disk-io", "native"],
            "cannot be read natively through the host's cache",
        ),
    ] {
        let file = dir.path().join("trap.xml");
        fs::write(&file, wanted.xml(&dgx2)).unwrap();
        let (code, out, err) = tune(&file, args);
        assert_eq!((code, out.as_str()), (1, ""), "{trap}: {err}");
        assert!(err.contains(said) && err.contains("\nhint: "), "{trap}: {err}");
    }
}
