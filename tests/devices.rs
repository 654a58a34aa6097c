//! Which functions count as GPUs, which are included with them, and which odd records load: small
//! hosts built here.

use crate::support::tree::{Small, host_text, scratch, unpack};
use gpuvm::discover::source::load;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A card's VGA function and its root port.
fn card(host: &Small, bus: &str, ids: &str, group: u32, files: &[(&str, &str)]) {
    let port = format!("pci0000:00/0000:00:{bus}.0");
    if !host.path().join("sys/devices").join(&port).exists() {
        host.function(&port, "0604 8086:460d", 90 + group, &[]);
    }
    host.function(&format!("{port}/0000:{bus}:00.0"), ids, group, files);
}

/// A desktop: the processor's GPU, which shows the console, and a card with audio, USB and UCSI.
fn desktop() -> Small {
    let host = Small::new(1, 8);
    host.function("pci0000:00/0000:00:02.0", "0300 8086:4680", 0, &[("boot_vga", "1")]);
    card(&host, "01", "0300 10de:2684", 14, &[("boot_vga", "0")]);
    for (function, ids) in
        [("1", "0403 10de:22ba"), ("2", "0c03 10de:1ad8"), ("3", "0c80 10de:1ad9")]
    {
        host.function(&format!("pci0000:00/0000:00:01.0/0000:01:00.{function}"), ids, 14, &[]);
    }
    host
}

/// Addresses of a plan's functions.
fn devices(plan: &Value) -> Vec<&str> {
    plan["placement"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bdf| bdf.as_str().unwrap())
        .collect()
}

/// Checks that an answer has this exit code and holds these texts.
#[track_caller]
fn holds((code, out, err): (i32, String, String), wanted: i32, parts: &[&str]) {
    let text = out + &err;
    assert_eq!(code, wanted, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// The functions of the card.
const CARD: [&str; 4] = ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2", "0000:01:00.3"];

#[test]
fn a_display_is_never_taken_by_number_and_takes_no_share() {
    let host = desktop();
    let plan = host.json(&["plan", "--gpus", "1"]);
    assert_eq!(devices(&plan), CARD);
    // The card has all eight cores, one of them for the emulator.
    assert_eq!(plan["placement"]["vcpu_pins"].as_array().unwrap().len(), 14);
    assert_eq!(devices(&host.json(&["plan", "--gpu", "0"])), CARD);
    holds(host.run(&["plan", "--gpus", "2"]), 1, &["requested 2 GPUs, this host has 1"]);
    let capacity = host.json(&["capacity"]);
    assert_eq!(capacity["sizes"], json!([{ "gpus": 1, "now": 1, "empty": 1 }]));
    let why = "0000:00:02.0 is integrated in the processor; only its address takes it";
    assert_eq!(capacity["never_placed"], json!([format!("GPU {why}")]));
    holds(host.run(&["gpu", "list"]), 0, &["is integrated in the processor", "free"]);
    let rows = host.json(&["gpu", "list"]);
    assert_eq!((&rows[0]["bdf"], &rows[0]["index"]), (&json!("0000:01:00.0"), &json!(0)));
    assert_eq!((&rows[1]["state"], &rows[1]["index"]), (&json!("display"), &Value::Null));
    let plan = host.json(&["plan", "--gpu", "00:02.0"]);
    assert_eq!(devices(&plan), ["0000:00:02.0"]);
    assert_eq!(plan["name"], "gpuvm-1g00.02.0");
    let warned = plan["placement"]["reasons"].as_array().unwrap().iter().any(|reason| {
        reason["compromise"] == true
            && reason["because"].as_str().unwrap().contains("the host loses its display")
    });
    assert!(warned, "{plan}");
    holds(host.run(&["plan", "--gpu", "00:02.0"]), 0, &["GPUs         0000:00:02.0, node 0"]);
    let both = host.json(&["plan", "--gpu", "00:02.0", "--gpu", "01:00.0"]);
    assert_eq!(devices(&both), [&["0000:00:02.0"][..], &CARD].concat());
    assert_eq!(both["name"], "gpuvm-2g0+00.02.0");
}

#[test]
fn a_card_that_shows_the_console_is_taken_only_by_address() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[("boot_vga", "1")]);
    card(&host, "02", "0300 10de:2204", 2, &[("boot_vga", "0")]);
    assert_eq!(devices(&host.json(&["plan", "--gpus", "1"])), ["0000:02:00.0"]);
    let text = "the host loses its console";
    holds(host.run(&["plan", "--gpu", "01:00.0"]), 0, &["0000:01:00.0", text]);
    holds(host.run(&["export", "--gpu", "01:00.0", "--name", "a"]), 0, &["bus='0x01'", text]);
    let only = Small::new(1, 8);
    card(&only, "01", "0300 10de:2204", 1, &[("boot_vga", "1")]);
    let hint = "--gpu 0000:01:00.0 takes it";
    holds(only.run(&["plan", "--gpus", "1"]), 1, &["is the host's boot display", hint]);
    holds(only.run(&["plan", "--gpu", "0"]), 1, &["is the host's boot display"]);
    assert_eq!(only.json(&["capacity"])["largest"], Value::Null);
}

#[test]
fn gpus_of_one_group_go_together_with_all_functions_of_their_cards() {
    let host = Small::new(1, 8);
    for bus in ["01", "02"] {
        card(&host, bus, "0300 10de:2204", 1, &[]);
        host.function(
            &format!("pci0000:00/0000:00:{bus}.0/0000:{bus}:00.1"),
            "0403 10de:1aef",
            1,
            &[],
        );
    }
    let all = ["0000:01:00.0", "0000:02:00.0", "0000:01:00.1", "0000:02:00.1"];
    assert_eq!(devices(&host.json(&["plan", "--gpus", "2"])), all);
    assert_eq!(devices(&host.json(&["plan", "--gpu", "0", "--gpu", "1"])), all);
    holds(host.run(&["plan", "--gpus", "1"]), 1, &["some GPUs share an IOMMU group"]);
    let shares = "shares IOMMU group 1 with 0000:02:00.0, which is not in the set";
    holds(host.run(&["plan", "--gpu", "0"]), 1, &[shares]);
    // The exported domain is sound.
    let (code, xml, err) = host.run(&["export", "--gpus", "2", "--name", "both"]);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("both.xml");
    fs::write(&file, xml).unwrap();
    let (_, out, _) = host.run(&["check", file.to_str().unwrap()]);
    assert!(!out.contains("iommu-group-split"), "{out}");
}

#[test]
fn a_group_of_a_gpu_and_a_drive_goes_to_the_guest_that_names_both() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    host.function("pci0000:00/0000:00:02.0/0000:02:00.0", "0108 144d:a80a", 1, &[]);
    card(&host, "03", "0300 10de:2204", 3, &[]);
    let both = ["--gpu", "0", "--nvme", "02:00.0"];
    let hint = "--gpu 0000:01:00.0 --nvme 0000:02:00.0 give one guest the whole group";
    holds(host.run(&["plan", "--gpu", "0"]), 1, &["an NVMe drive that stays", hint]);
    holds(host.run(&["plan", "--gpus", "2"]), 1, &["an NVMe drive that stays"]);
    for gpus in ["0", "1"] {
        let (_, out, err) = host.run(&["plan", "--gpus", gpus, "--nvme", "02:00.0"]);
        assert!(out.is_empty() && err.contains("with 0000:01:00.0, a GPU") && err.contains(hint));
    }
    let whole = ["0000:01:00.0", "0000:02:00.0"];
    assert_eq!(devices(&host.json(&[&["plan"], &both[..]].concat())), whole);
    let other = ["plan", "--gpu", "1", "--nvme", "02:00.0"];
    holds(host.run(&other), 1, &["with 0000:01:00.0, which is not in the set"]);
    assert_eq!(devices(&host.json(&["plan", "--gpus", "1"])), ["0000:03:00.0"]);
    let (code, xml, err) = host.run(&[&["export", "--name", "both"], &both[..]].concat());
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("both.xml");
    fs::write(&file, xml).unwrap();
    let (_, out, _) = host.run(&["check", file.to_str().unwrap()]);
    assert!(!out.contains("iommu-group"), "{out}");
    // Two NICs of one group, each of its own slot, without a GPU.
    for bus in ["05", "06"] {
        host.function(
            &format!("pci0000:00/0000:00:{bus}.0/0000:{bus}:00.0"),
            "0200 15b3:1021",
            5,
            &[],
        );
    }
    let hint = "--nic 0000:05:00.0 --nic 0000:06:00.0 give one guest the whole group";
    holds(host.run(&["plan", "--nic", "05:00.0"]), 1, &["a NIC that stays with the host", hint]);
    let nics = ["plan", "--nic", "05:00.0", "--nic", "06:00.0"];
    assert_eq!(devices(&host.json(&nics)), ["0000:05:00.0", "0000:06:00.0"]);
}

#[test]
fn virtual_functions_in_a_gpus_group_are_free_for_no_verb() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    let nic = "pci0000:00/0000:00:02.0/0000:02:00";
    let pf = [("sriov_totalvfs", "4"), ("sriov_numvfs", "1")];
    host.function(&format!("{nic}.0"), "0200 15b3:1021", 1, &pf);
    host.function(&format!("{nic}.1"), "0200 15b3:101e", 1, &[]);
    let own = host.path().join(format!("sys/devices/{nic}.1/physfn"));
    std::os::unix::fs::symlink("../0000:02:00.0", own).unwrap();
    for list in ["nic", "device"] {
        let (code, out, err) = host.run(&[list, "list"]);
        let vf = out.lines().find(|line| line.contains("02:00.1")).unwrap_or_default();
        assert!(code == 0 && vf.contains("shares IOMMU group 1 with"), "{out}{err}");
    }
    holds(host.run(&["plan", "--vf", "02:00.1"]), 1, &["shares IOMMU group 1 with"]);
    // No option gives the group away: its PF has a virtual function.
    let (_, out, err) = host.run(&["host", "doctor"]);
    assert!(!format!("{out}{err}").contains("gpuvm plan"), "{out}{err}");
    let (code, _, err) = host.run(&["plan", "--gpu", "0"]);
    assert!(code == 1 && !err.contains("the whole group"), "{err}");
}

#[test]
fn a_card_goes_whole_where_the_iommu_would_part_it() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    host.function("pci0000:00/0000:00:01.0/0000:01:00.1", "0403 10de:1aef", 2, &[]);
    let (code, out, err) = host.run(&["plan", "--gpus", "1", "--explain"]);
    assert_eq!(code, 0, "{err}");
    let text = "0000:01:00.1 is included: a function of the same card";
    assert!(out.contains(text), "{out}");
    // Another device in the audio function's group stays with the host, so the card does, too.
    host.function("pci0000:00/0000:00:1f.3", "0401 8086:7a50", 2, &[]);
    let why = "shares IOMMU group 2 with 0000:00:1f.3, a device of class 0x040100";
    holds(host.run(&["plan", "--gpus", "1"]), 1, &[why]);
}

/// A workstation with two 5090s and two 4090s in turn, each below a root port of its own.
fn workstation() -> Small {
    let host = Small::new(1, 16);
    for (bus, ids) in [
        ("01", "0300 10de:2b85"),
        ("02", "0300 10de:2684"),
        ("03", "0300 10de:2b85"),
        ("04", "0300 10de:2684"),
    ] {
        card(&host, bus, ids, bus.parse().unwrap(), &[]);
    }
    host
}

#[test]
fn equal_gpus_go_together_and_a_model_can_be_asked_for() {
    let host = workstation();
    assert_eq!(devices(&host.json(&["plan", "--gpus", "2"])), ["0000:01:00.0", "0000:03:00.0"]);
    for (name, bdf) in
        [("RTX 4090", "0000:02:00.0"), ("rtx4090", "0000:02:00.0"), ("2b85", "0000:01:00.0")]
    {
        assert_eq!(
            devices(&host.json(&["plan", "--gpus", "1", "--gpu-model", name])),
            [bdf],
            "{name}"
        );
    }
    let both = ["plan", "--gpus", "2", "--gpu-model", "4090"];
    assert_eq!(devices(&host.json(&both)), ["0000:02:00.0", "0000:04:00.0"]);
    holds(
        host.run(&["plan", "--gpus", "3"]),
        0,
        &["of several models: 2 x RTX 5090 and 1 x RTX 4090"],
    );
    holds(
        host.run(&["plan", "--gpus", "3", "--gpu-model", "4090"]),
        1,
        &["requested 3 GPUs of model `4090`, this host has 2"],
    );
    let unknown = [
        "this host has no GPU of model `H100`",
        "2 x RTX 5090 (10de:2b85)",
        "2 x RTX 4090 (10de:2684)",
    ];
    for verb in [
        &["plan", "--gpus", "1"][..],
        &["export", "--gpus", "1", "--name", "a"],
        &["create", "--gpus", "1", "--name", "a", "--dry-run"],
        &["capacity"],
    ] {
        holds(host.run(&[verb, &["--gpu-model", "H100"]].concat()), 1, &unknown);
    }
    holds(host.run(&["plan", "--gpu", "0", "--gpu-model", "5090"]), 2, &["--gpu-model"]);
    let capacity = host.json(&["capacity"]);
    let models = capacity["models"].as_array().unwrap();
    assert_eq!((&models[0]["model"], &models[1]["ids"]), (&json!("RTX 5090"), &json!("10de:2684")));
    let size = |gpus: u32, now: u32| json!({ "gpus": gpus, "now": now, "empty": now });
    assert_eq!(models[0]["sizes"], json!([size(1, 2), size(2, 1)]));
    let of = host.json(&["capacity", "--gpu-model", "5090"]);
    assert_eq!(of["sizes"], json!([size(1, 2), size(2, 1), size(4, 0)]));
    assert_eq!(of["models"], Value::Null);
    holds(
        host.run(&["capacity"]),
        0,
        &["RTX 4090 (10de:2684): 2 GPUs; guests that fit: 2 with 1 GPU, 1 with 2 GPUs"],
    );
}

#[test]
fn accelerators_of_all_makers_are_planned_with() {
    for ids in ["1200 1002:74a1", "0380 1002:740f", "1200 1da3:1020", "0380 8086:0bd5"] {
        let host = Small::new(1, 8);
        card(&host, "01", ids, 1, &[]);
        card(&host, "02", "1200 8086:7d1d", 2, &[]);
        card(&host, "03", "0b40 8086:4940", 3, &[]);
        assert_eq!(devices(&host.json(&["plan", "--gpus", "1"])), ["0000:01:00.0"], "{ids}");
        assert_eq!(host.json(&["gpu", "list"]).as_array().unwrap().len(), 1, "{ids}");
    }
}

#[test]
fn coherent_gpus_are_refused_by_every_verb_with_missing_parts() {
    let grace = Small::new(1, 8);
    grace.write("proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f");
    grace.write("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "0x00000000410fd4f0");
    for bus in ["01", "02"] {
        card(&grace, bus, "0302 10de:2941", bus.parse().unwrap(), &[]);
    }
    let missing = ["libvirt 12.7", "QEMU 11", "generic initiators", "SMMUv3"];
    for verb in [
        &["plan", "--gpus", "1"][..],
        &["plan", "--gpu", "01:00.0"],
        &["export", "--gpus", "2", "--name", "a"],
        &["create", "--gpus", "1", "--name", "a", "--dry-run"],
    ] {
        holds(grace.run(verb), 1, &missing);
    }
    let capacity = grace.json(&["capacity"]);
    assert_eq!(capacity["largest"], Value::Null);
    assert!(capacity["never_placed"][0].as_str().unwrap().contains(missing[0]), "{capacity}");
    holds(grace.run(&["gpu", "list"]), 0, &missing);
    assert_eq!(grace.json(&["gpu", "list"])[0]["state"], "unsupported");
    assert_eq!(devices(&grace.json(&["plan", "--vcpus", "4", "--memory", "1G"])).len(), 0);
    let text = "<domain type='kvm'><name>a</name><memory>1</memory><vcpu>1</vcpu><devices><hostdev \
        mode='subsystem' type='pci'><source><address domain='0' bus='1' slot='0' \
        function='0'/></source>\
        </hostdev></devices></domain>";
    let file = grace.path().join("a.xml");
    fs::write(&file, text).unwrap();
    holds(grace.run(&["check", file.to_str().unwrap()]), 3, &["(gi-missing)"]);
}

#[test]
fn a_record_without_pci_says_so_and_knows_a_sparks_gpu() {
    let host = Small::new(1, 8);
    fs::remove_dir_all(host.path().join("sys/bus/pci")).unwrap();
    holds(host.run(&["host", "show"]), 0, &["GPUs, NICs and drives are not known"]);
    holds(host.run(&["plan", "--gpus", "1"]), 1, &["its record lists no PCI functions"]);
    host.write("sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark");
    holds(
        host.run(&["host", "show", "--json"]),
        0,
        &["NVIDIA supports no passthrough of a GB10's GPU"],
    );
}

#[test]
fn a_record_whose_links_end_in_a_slash_reads_as_any_other() {
    let dir = scratch();
    unpack(&host_text("dual-socket"), dir.path()).unwrap();
    let plain = load(dir.path()).unwrap();
    slashes(dir.path());
    assert_eq!(load(dir.path()).unwrap(), plain);
}

/// Adds a slash to the target of every link below a directory.
fn slashes(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            slashes(&path);
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(format!("{}/", target.display()), &path).unwrap();
        }
    }
}

#[test]
fn drives_behind_vmd_are_listed_and_refused_by_name() {
    let host = Small::new(1, 8);
    card(&host, "01", "0302 10de:2330", 1, &[]);
    host.function("pci0000:00/0000:00:0e.0", "0104 8086:467f", 2, &[]);
    let below = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0";
    host.function(below, "0604 8086:464d", 2, &[]);
    host.function(&format!("{below}/10000:e1:00.0"), "0108 144d:a80a", 2, &[]);
    assert_eq!(load(host.path()).unwrap().devices().len(), 5);
    holds(host.run(&["host", "show"]), 0, &["10000:e1:00.0"]);
    assert_eq!(devices(&host.json(&["plan", "--gpus", "1"])), ["0000:01:00.0"]);
    let why = "10000:e1:00.0 is not supported: QEMU takes no PCI domain above ffff";
    holds(host.run(&["plan", "--gpus", "1", "--nvme", "1"]), 1, &[why]);
    holds(host.run(&["plan", "--gpus", "1", "--nvme", "10000:e1:00.0"]), 1, &[why]);
}

/// An lstopo record of one package: two nodes with memory around cores 0 and 1, cores 2 and 3 on
/// none, as hwloc shows a Threadripper's dies without memory; `sets` are the Machine's cpuset, and
/// `busid` a drive's address.
fn lstopo(nodes: &str, cores: std::ops::Range<u32>, busid: &str) -> String {
    let set = |bits: u32, name: &str, nodes: u32| {
        format!(
            "{name}=\"0x{bits:08x}\" complete_{name}=\"0x{bits:08x}\" nodeset=\"0x{nodes:08x}\" \
             complete_nodeset=\"0x{nodes:08x}\""
        )
    };
    let all: u32 = cores.clone().map(|core| 1 << core).sum();
    let core = |core: u32| {
        let own = set(1 << core, "cpuset", if core < 2 { 1 << core } else { 0 });
        let id = core * 3;
        let core_and_pu = format!(
            "<object type=\"Core\" os_index=\"{core}\" {own} gp_index=\"{}\"><object type=\"PU\" \
             os_index=\"{core}\" {own} gp_index=\"{}\"/></object>",
            100 + id,
            101 + id
        );
        if core < 2 && nodes.contains(&core.to_string()) {
            let memory = format!(
                "<object type=\"NUMANode\" os_index=\"{core}\" {own} gp_index=\"{}\" \
                 local_memory=\"17179869184\"/>",
                102 + id
            );
            return format!(
                "<object type=\"Group\" {own} gp_index=\"{}\">{memory}{core_and_pu}</object>",
                200 + core
            );
        }
        core_and_pu
    };
    let mask: u32 = nodes.bytes().map(|digit| 1 << (digit - b'0')).sum();
    let own = set(all, "cpuset", mask);
    let cores: String = cores.map(core).collect();
    format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology \
         version=\"2.0\">\n\
         <object type=\"Machine\" os_index=\"0\" {own} allowed_cpuset=\"0x{all:08x}\" \
         allowed_nodeset=\"0x{mask:08x}\" gp_index=\"1\">\n\
         <object type=\"Package\" os_index=\"0\" {own} gp_index=\"2\">{cores}</object>\n\
         <object type=\"Bridge\" gp_index=\"3\" bridge_type=\"0-1\" depth=\"0\" \
         bridge_pci=\"{domain}:[00-01]\">\n\
         <object type=\"PCIDev\" gp_index=\"4\" pci_busid=\"{busid}\" pci_type=\"0108 [144d:a80a] \
         [0:0] 00\" \
         pci_link_speed=\"0.000000\"/></object></object></topology>",
        domain = busid.split(':').next().unwrap()
    )
}

#[test]
fn pcpus_on_no_recorded_node_are_counted_to_the_nearest() {
    let dir = scratch();
    let file = dir.path().join("host.xml");
    for (nodes, own) in [("01", ["0,2-3", "1"]), ("1", ["", "0-3"])] {
        fs::write(&file, lstopo(nodes, 0..4, "0000:01:00.0")).unwrap();
        let host = load(&file).unwrap();
        let found: Vec<(u32, String)> =
            host.nodes().iter().map(|n| (n.os_index.0, n.pcpus.to_string())).collect();
        let own = (0..2).zip(own).filter(|(_, pcpus)| !pcpus.is_empty());
        assert_eq!(found, own.map(|(id, pcpus)| (id, pcpus.to_owned())).collect::<Vec<_>>());
        assert!(host.parts().notes.iter().any(|note| note.contains("on no recorded node")));
        assert_eq!(host.cores().len(), 4);
    }
}

#[test]
fn lstopo_records_keep_drives_behind_vmd() {
    let dir = scratch();
    let file = dir.path().join("host.xml");
    fs::write(&file, lstopo("01", 0..2, "10000:01:00.0")).unwrap();
    let host = load(&file).unwrap();
    let bdfs: Vec<String> = host.devices().iter().map(|device| device.bdf.to_string()).collect();
    assert_eq!(bdfs, ["10000:01:00.0"]);
    assert_eq!(host.devices()[0].root.as_deref(), Some("pci10000:00"));
}

#[test]
fn a_group_that_a_guest_has_whole_is_held_by_that_guest() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    host.function("pci0000:00/0000:00:02.0/0000:02:00.0", "0108 144d:a80a", 1, &[]);
    card(&host, "03", "0300 10de:2204", 3, &[]);
    let hint = "--gpu 0000:01:00.0 --nvme 0000:02:00.0 give one guest the whole group";
    let never = host.json(&["capacity"])["never_placed"].clone();
    assert!(never[0].as_str().unwrap().ends_with(hint), "{never}");
    let guest = ["export", "--name", "a", "--gpu", "0", "--nvme", "02:00.0"];
    let (code, xml, err) = host.run(&guest);
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    fs::write(&file, xml).unwrap();
    let held = ["--domain-xml", file.to_str().unwrap()];
    let beside = |verb: &[&'static str]| [verb, &held[..]].concat();
    let capacity = host.json(&beside(&["capacity"]));
    assert_eq!(capacity["never_placed"], json!([]), "{capacity}");
    let (_, out, _) = host.run(&beside(&["capacity"]));
    let says = "2 GPUs do not fit now: requested 2 GPUs, 1 of 2 available\n  GPU 0 \
                (0000:01:00.0) is held by domain `a`";
    assert!(out.contains(says), "{out}");
    let (_, out, _) = host.run(&beside(&["gpu", "list"]));
    assert!(out.contains("is held by domain `a`"), "{out}");
    // No hint offers a group that a guest has.
    let (code, out, err) = host.run(&beside(&["plan", "--gpus", "2"]));
    assert!(code == 1 && err.contains("held by domain `a`"), "{out}{err}");
    assert!(!err.contains("the whole group"), "{err}");
}

/// Of several members that prevent it: not an idle one before it.
#[test]
fn the_member_of_a_group_that_a_guest_has_is_the_reason_in_every_list() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    for function in ["0", "1"] {
        let at = format!("pci0000:00/0000:00:02.0/0000:02:00.{function}");
        host.function(&at, "0200 8086:1521", 1, &[]);
    }
    let file = host.path().join("part.xml");
    fs::write(
        &file,
        "<domain type='kvm'><name>part</name><memory unit='GiB'>1</memory><vcpu>1</vcpu><os><type \
         arch='x86_64' machine='q35'>hvm</type></os><devices><hostdev mode='subsystem' \
         type='pci'><source><address domain='0' bus='2' slot='0' function='1'/></source></hostdev>\
         </devices></domain>",
    )
    .unwrap();
    let held = ["--domain-xml", file.to_str().unwrap()];
    for verb in [
        &["device", "list"][..],
        &["gpu", "list"],
        &["plan", "--gpu", "0"],
        &["plan", "--gpus", "1"],
        &["capacity"],
    ] {
        let (_, out, err) = host.run(&[verb, &held[..]].concat());
        let said = out + &err;
        assert!(said.contains("with 0000:02:00.1"), "{verb:?}: {said}");
        assert!(said.contains("domain `part`"), "{verb:?}: {said}");
        assert!(!said.contains("the whole group"), "{verb:?}: {said}");
    }
}

/// The options by which a hint gives a guest a whole IOMMU group.
fn whole_group(text: &str) -> Vec<&str> {
    let before = text.split(" give one guest the whole group").next().unwrap();
    let words: Vec<&str> = before.rsplit("hint: ").next().unwrap().split(' ').collect();
    assert!(words.len() > 2 && words[0].starts_with("--"), "{text}");
    words
}

#[test]
fn requests_by_number_that_a_shared_group_prevents_have_a_hint_that_works() {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    host.function("pci0000:00/0000:00:02.0/0000:02:00.0", "0108 144d:a80a", 1, &[]);
    card(&host, "03", "0300 10de:2204", 3, &[]);
    for (bus, class) in [("05", "0200 15b3:1021"), ("06", "0108 144d:a80a")] {
        host.function(&format!("pci0000:00/0000:00:{bus}.0/0000:{bus}:00.0"), class, 5, &[]);
    }
    for (line, needed) in [
        ("--gpus 2", "--gpu"),
        ("--gpus 1 --nvme 1", "--nvme"),
        ("--gpus 1 --nic 1", "--nic"),
        ("--gpus 0 --nic 1", "--nic"),
        ("--gpus 1 --nic 1 --nic-near node", "--nic"),
    ] {
        let words: Vec<&str> = ["plan"].into_iter().chain(line.split(' ')).collect();
        let (code, out, err) = host.run(&words);
        assert!(code == 1 && out.is_empty(), "{line}: {out}");
        let options = whole_group(&err);
        assert!(options.contains(&needed), "{line}: {err}");
        let (code, _, refused) = host.run(&[&["plan"][..], &options].concat());
        assert_eq!(code, 0, "{line}: {options:?}: {refused}");
    }
    // Two more than the group has are not offered.
    let (_, _, err) = host.run(&["plan", "--nic", "2"]);
    assert!(!err.contains("the whole group"), "{err}");
}

/// A host with a drive that has two virtual functions, and one that has none.
fn with_drive_functions() -> Small {
    let host = Small::new(1, 8);
    card(&host, "01", "0300 10de:2204", 1, &[]);
    let pf = [("sriov_totalvfs", "8"), ("sriov_numvfs", "2")];
    let port = "pci0000:00/0000:00:02.0/0000:02:00";
    host.function(&format!("{port}.0"), "0108 144d:a80a", 2, &pf);
    for (function, group) in [(1, 21), (2, 22)] {
        host.function(&format!("{port}.{function}"), "0108 144d:a80a", group, &[]);
        let own = host.path().join(format!("sys/devices/{port}.{function}/physfn"));
        std::os::unix::fs::symlink("../0000:02:00.0", own).unwrap();
    }
    host.function("pci0000:00/0000:00:03.0/0000:03:00.0", "0108 144d:a80a", 3, &[]);
    host
}

#[test]
fn a_virtual_function_of_a_drive_is_no_drive() {
    let host = with_drive_functions();
    let (_, out, _) = host.run(&["host", "show"]);
    assert!(out.contains("2 NVMe drives, 2 virtual functions of drives"), "{out}");
    // The drive with virtual functions goes to no guest, so that one is left.
    let plan = host.json(&["plan", "--gpus", "1", "--nvme", "1"]);
    assert_eq!(devices(&plan), ["0000:01:00.0", "0000:03:00.0"]);
    let says = ["requested 2 NVMe drives, 1 of 2 available", "2 virtual functions enabled"];
    holds(host.run(&["plan", "--gpus", "1", "--nvme", "2"]), 1, &says);
    holds(host.run(&["plan", "--nvme", "3"]), 1, &["this host has 2"]);
    let capacity = host.json(&["capacity", "--nvme", "2"]);
    assert_eq!(capacity["sizes"][0]["now"], 0, "{capacity}");
    let aside = "is a virtual function of 0000:02:00.0; only its address takes it";
    holds(host.run(&["device", "list"]), 0, &[aside, "is used by its 2 virtual functions"]);
    let (_, matrix, _) = host.run(&["host", "matrix", "--nvme"]);
    assert!(!matrix.contains("02:00.1") && matrix.contains("0000:03:00.0"), "{matrix}");
    // Its address takes it, and the guest keeps it.
    let by_address = ["--gpus", "1", "--nvme", "02:00.1"];
    let plan = host.json(&[&["plan"], &by_address[..]].concat());
    assert_eq!(devices(&plan), ["0000:01:00.0", "0000:02:00.1"]);
    let (code, xml, err) = host.run(&[&["export", "--name", "a"], &by_address[..]].concat());
    assert_eq!(code, 0, "{err}");
    let file = host.path().join("a.xml");
    fs::write(&file, &xml).unwrap();
    let (code, out, _) = host.run(&["check", file.to_str().unwrap()]);
    assert!(code == 0 && !out.contains("hostdev-used-by-host"), "{out}");
    // The drive itself is in use by them.
    fs::write(
        &file,
        xml.replace(
            "bus='0x02' slot='0x00' function='0x1'",
            "bus='0x02' slot='0x00' function='0x0'",
        ),
    )
    .unwrap();
    let (_, out, err) = host.run(&["check", file.to_str().unwrap()]);
    assert!(
        format!("{out}{err}").contains("the host uses 0000:02:00.0: 2 virtual functions"),
        "{out}{err}"
    );
}

#[test]
fn the_second_display_of_an_old_radeon_is_part_of_its_card() {
    for (groups, second) in
        [((1, 1), "0380 1002:95a8"), ((1, 2), "0380 1002:95a8"), ((1, 1), "0300 1002:7166")]
    {
        let host = Small::new(1, 8);
        card(&host, "01", "0300 1002:9588", groups.0, &[]);
        host.function("pci0000:00/0000:00:01.0/0000:01:00.1", second, groups.1, &[]);
        card(&host, "03", "0300 1002:744c", 3, &[]);
        let gpus = host.json(&["gpu", "list"]);
        assert_eq!(gpus.as_array().unwrap().len(), 2, "{gpus}");
        let both = ["0000:01:00.0", "0000:01:00.1"];
        assert_eq!(devices(&host.json(&["plan", "--gpu", "0"])), both);
        let sizes = host.json(&["capacity"])["sizes"].clone();
        assert_eq!(
            sizes,
            json!([{ "gpus": 1, "now": 2, "empty": 2 }, { "gpus": 2, "now": 1, "empty": 1 }])
        );
        let (_, out, _) = host.run(&["host", "show"]);
        assert!(out.contains("1 × 1002:744c, 1 × 1002:9588\n"), "{out}");
    }
    // Equal ids in one slot are two GPUs that a hypervisor put there, and so are two models of
    // GPUs without a display.
    for second in ["0302 10de:2330", "0302 10de:20b5"] {
        let host = Small::new(1, 8);
        card(&host, "01", "0302 10de:2330", 1, &[]);
        host.function("pci0000:00/0000:00:01.0/0000:01:00.1", second, 2, &[]);
        assert_eq!(host.json(&["gpu", "list"]).as_array().unwrap().len(), 2);
    }
}

#[test]
fn all_lists_say_the_same_of_functions_without_an_iommu_group() {
    let dir = scratch();
    let text = fs::read_to_string(crate::support::project().join("topologies/dual-socket.json"));
    let mut record: Value = serde_json::from_str(&text.unwrap()).unwrap();
    for device in record["host"]["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("iommu_group");
    }
    for (iommu, why) in [
        (None, "has no IOMMU group in this record, so whether it can be passed through"),
        (Some(json!({ "groups": 0 })), "the IOMMU is off, so the host has no IOMMU group"),
        (Some(json!({ "groups": 9 })), "has no IOMMU group: the IOMMU is off or absent"),
    ] {
        let machine = record["host"]["machine"].as_object_mut().unwrap();
        machine.remove("iommu");
        machine.extend(iommu.map(|iommu| ("iommu".to_owned(), iommu)));
        let file = dir.path().join("host.json");
        fs::write(&file, record.to_string()).unwrap();
        for list in ["device", "gpu", "nic", "drive"] {
            let line = [list, "list", "--host", file.to_str().unwrap()];
            let (code, out, err) = crate::support::run(&mut crate::support::gpuvm(&line));
            assert!(code == 0 && out.contains(why), "{list} {why}\n{out}{err}");
            let is_free = |line: &str| line.trim_end().ends_with(" free");
            assert!(!out.lines().any(is_free), "{list}: {out}");
        }
    }
}

#[test]
fn a_gpu_of_the_processor_that_is_not_reset_has_no_other_slot() {
    let host = Small::new(1, 8);
    host.write("proc/sys/kernel/osrelease", "6.12.0");
    host.function("pci0000:00/0000:00:02.0", "0300 8086:4680", 0, &[("reset_method", "")]);
    card(&host, "01", "0300 10de:2204", 1, &[("reset_method", "")]);
    let (_, out, err) = host.run(&["host", "doctor"]);
    let text = out + &err;
    let hints: Vec<&str> = text.lines().filter(|line| line.contains("slot")).collect();
    let integrated = "it is part of the processor, so no other slot helps: reboot the host before \
                      another guest gets it, or leave it to the host";
    assert!(hints.iter().any(|hint| hint.ends_with(integrated)), "{text}");
    assert!(hints.iter().any(|hint| hint.contains("use another slot or a newer kernel")), "{text}");
}
