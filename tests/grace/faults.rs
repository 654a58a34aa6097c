//! Trays with GPUs that are missing or cannot be passed through, and guests that a host cannot have.

use super::{NEW, exported, on, states, tray};
use crate::support::grace::{Grace, TRAY};
use crate::support::tree::scratch;
use crate::support::{gpuvm, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A host with these GPUs by socket.
fn with(gpus: &[&[&str]], id: &str) -> tempfile::TempDir {
    let dir = scratch();
    Grace { gpus, id, ..Grace::tray() }.make(dir.path());
    dir
}

#[test]
fn gpus_of_a_rack_are_not_isolated_where_others_of_their_tray_are_missing_or_unknown() {
    for (gpus, id) in [
        (&[&TRAY[..2], &TRAY[2..3]][..], "0x2941"),
        (&[&TRAY[..2], &[]], "0x2941"),
        (&[&TRAY[..2], &TRAY[2..]], "0x3041"),
    ] {
        let host = with(gpus, id);
        for verb in [&["create", "--dry-run", "--name", "a", "--image", "none"][..], &["make-room"]]
        {
            let words = [verb, &["--gpus", "1"], &NEW].concat();
            let (code, out, err) = on(host.path(), &words);
            assert!(code == 1 && err.contains("the rack's switches"), "{verb:?}: {out}{err}");
            let (code, out, err) =
                on(host.path(), &[&words[..], &["--accept-shared-fabric"]].concat());
            assert_eq!(code, 0, "{verb:?}: {out}{err}");
        }
        let (code, out, _) = on(host.path(), &[&["capacity"], &NEW[..]].concat());
        assert!(code == 0 && out.contains("not isolated on NVLink: guests with 1"), "{out}");
    }
    // It is the only GPU that the host has.
    let host = with(&[&TRAY[..1], &[]], "0x2941");
    let words = ["create", "--dry-run", "--name", "a", "--image", "none", "--gpus", "1"];
    let (code, out, err) = on(host.path(), &[&words[..], &NEW].concat());
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn imex_is_for_whole_trays_whatever_the_host_shows_of_them() {
    for (gpus, number) in
        [(&[&TRAY[..2], &[]][..], 2), (&[&TRAY[..2], &TRAY[2..3]], 1), (&[&TRAY[..1], &[]], 1)]
    {
        let host = with(gpus, "0x2941");
        let seen: usize = gpus.iter().map(|gpus| gpus.len()).sum();
        let number = number.to_string();
        let words = ["create", "--dry-run", "--name", "a", "--image", "none", "--gpus", &number];
        let more = ["--imex-node", "10.0.0.2,10.0.0.1", "--accept-shared-fabric"];
        let (code, _, err) = on(host.path(), &[&words[..], &more, &NEW].concat());
        let why = format!("has {number} of the tray's 4 GPUs, of which the host has only {seen}");
        assert!(code == 1 && err.contains(&why), "{err}");
        assert!(err.contains("hint: leave --imex-node out\n"), "{err}");
    }
}

/// A kernel without CONFIG_VFIO_DEVICE_CDEV.
#[test]
fn gpus_without_a_device_of_vfio_are_named_by_every_verb() {
    let host = tray(|root| {
        for (at, gpu) in TRAY.iter().enumerate() {
            let dir = format!("sys/bus/pci/devices/{gpu}/vfio-dev/vfio{at}");
            fs::create_dir_all(root.join(dir)).unwrap();
        }
    });
    let host = host.path();
    let why = "CONFIG_VFIO_DEVICE_CDEV";
    for (state, said) in states(host, &[&["gpu", "list", "--json"], &NEW[..]].concat()) {
        assert!(state == "unsupported" && said.contains(why), "{state}: {said}");
    }
    for words in [
        &["plan", "--gpus", "1"][..],
        &["slurm", "conf", "--node-name", "n"],
        &["make-room", "--gpus", "1"],
    ] {
        let (code, out, err) = on(host, &[words, &NEW].concat());
        assert!(code == 1 && err.contains(why), "{words:?}: {out}{err}");
    }
    let (code, out, _) = on(host, &[&["capacity"], &NEW[..]].concat());
    assert!(code == 0 && out.contains(why), "{out}");
    let (_, out, _) = on(host, &[&["host", "doctor", "--json"], &NEW[..]].concat());
    let answer: Value = serde_json::from_str(&out).unwrap();
    let found = answer["findings"].as_array().unwrap().iter();
    let found = found.filter(|finding| finding["rule"] == "coherent-gpu");
    assert_eq!(found.filter(|finding| finding.to_string().contains(why)).count(), 4, "{out}");
}

/// Writes a guest with one GPU into a file of a host, and returns its path.
fn one_gpu(host: &Path) -> String {
    let file = host.join("one.xml");
    fs::write(&file, exported(host, &["--gpus", "1"]).text()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn hints_name_no_guest_that_the_host_cannot_have() {
    let host = tray(|_| {});
    let host = host.path();
    let one = one_gpu(host);
    let old = ["--assume", "libvirt=12.6,qemu=11.1"];
    for (gpus, assume, why) in [
        ("3", NEW, "3 GPUs of a tray are no unit of it"),
        ("2", old, "not supported with libvirt 12.6.0"),
    ] {
        let (code, out, err) =
            on(host, &[&["set", &one, "--diff", "--gpus", gpus], &assume[..]].concat());
        assert!(code == 1 && err.contains(why), "{out}{err}");
        assert!(err.contains("gpuvm capacity ") && !err.contains("gpuvm export"), "{err}");
    }
    let (code, out, err) = on(host, &[&["tune", &one, "--check", "--json"], &old[..]].concat());
    assert_eq!(code, 1, "{out}{err}");
    let error: Value = serde_json::from_str(&out).unwrap();
    let hint = error["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("gpuvm host doctor"), "{error}");
    // The size of the pages, and not the pins that stay.
    let words = ["tune", &one, "--check", "--huge-pages", "1G"];
    let (code, out, err) = on(host, &[&words[..], &NEW].concat());
    assert!(code == 1 && err.contains("no huge pages of 1 GiB"), "{out}{err}");
    assert!(!err.contains("--pins"), "{err}");
}

#[test]
fn memory_that_is_bound_to_no_node_may_be_a_gpus() {
    let dir = scratch();
    Grace { gpu_kib: 186 << 20, ..Grace::tray() }.make(dir.path());
    let rule = "memory-on-gpu-node";
    let checked = |host: &Path, name: &str, text: &str| {
        let file = host.join(name);
        fs::write(&file, text).unwrap();
        on(host, &["check", file.to_str().unwrap(), NEW[0], NEW[1]])
    };
    let pinned = exported(dir.path(), &["--gpus", "1"]);
    let (code, out, err) = checked(dir.path(), "bound.xml", pinned.text());
    assert!(code == 0 && !out.contains(rule), "{out}{err}");
    let file = dir.path().join("bound.xml");
    let words = ["tune", file.to_str().unwrap(), "--memory-nodes", "off"];
    let (code, unbound, err) = on(dir.path(), &[&words[..], &NEW].concat());
    assert_eq!(code, 0, "{err}");
    let (_, out, err) = checked(dir.path(), "unbound.xml", &unbound);
    assert!(out.contains(rule) && out.contains("nodes 2,10,18,26"), "{out}{err}");
    assert!(out.contains("--memory-nodes on"), "{out}");
    // Guests without pins have it on any node with CPUs.
    let floating = ["--vcpus", "4", "--memory", "8G", "--pins", "none"];
    let floating = exported(dir.path(), &floating).text().to_owned();
    let bound = "<memory mode='strict' nodeset='0-1'/>";
    assert!(floating.contains(bound), "{floating}");
    let (code, out, err) = checked(dir.path(), "floating.xml", &floating);
    assert!(code == 0 && !out.contains(rule), "{out}{err}");
    let without = |text: &str, name: &str| {
        let (start, rest) = text.split_once(&format!("<{name}>")).unwrap();
        format!("{start}{}", rest.split_once(&format!("</{name}>")).unwrap().1)
    };
    let two = ["--vcpus", "4", "--memory", "8G", "--pins", "none", "--cells", "2"];
    let two = without(exported(dir.path(), &two).text(), "numatune");
    let floating = without(&without(&floating, "metadata"), "numatune");
    let bare = without(&floating, "numa");
    let slots = "<maxMemory slots='2' unit='GiB'>16</maxMemory>\n  <memory ";
    let growing = bare.replacen("<memory ", slots, 1);
    let wide = (0..4).map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='60-90'/>"));
    let wide = format!("<cputune>{}</cputune>\n  <os", wide.collect::<String>());
    let wide = bare.replacen("<os", &wide, 1);
    // Pins on both sockets, which no plan of one cell has.
    let far = (0..4).map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>", 70 + vcpu));
    let far = format!("<cputune>{}</cputune>\n  <os", far.collect::<String>());
    let far = bare.replacen("<os", &far, 1);
    let empty = "<cell id='0' memory='0' unit='KiB'/>\n      <cell id='1'";
    let second = floating.replacen("<cell id='0'", empty, 1);
    let mut tuned = String::new();
    // What the hint says binds all of it; nothing else of theirs changes.
    for text in [&two, &without(&two, "metadata"), &growing, &floating, &wide, &far, &second, &bare]
    {
        let (_, out, err) = checked(dir.path(), "floating.xml", text);
        assert!(out.contains(rule), "{out}{err}");
        let (_, hint) = out.split_once("`gpuvm ").unwrap();
        let words = hint.split_once('`').unwrap().0;
        let words: Vec<&str> = words.split(' ').collect();
        assert!(words.ends_with(&["--memory-nodes", "on"]), "{out}");
        let (code, out, err) = run(&mut gpuvm(&words));
        assert!(code == 0 && out.contains(bound), "{words:?}: {out}{err}");
        assert_eq!(out.matches("<cell ").count(), text.matches("<cell ").count(), "{out}");
        assert_eq!(out.contains("<maxMemory"), text.contains("<maxMemory"), "{out}");
        tuned = out;
        let (code, out, err) = checked(dir.path(), "tuned.xml", &tuned);
        assert!(code == 0 && !out.contains(rule), "{out}{err}");
    }
    let file = dir.path().join("tuned.xml");
    let words = ["tune", file.to_str().unwrap(), "--memory-nodes", "2"];
    let (code, _, err) = on(dir.path(), &[&words[..], &NEW].concat());
    assert!(code == 1 && err.contains("the memory of node 2 is a GPU's"), "{err}");
    let preferred = tuned.replace("mode='strict'", "mode='preferred'");
    let (_, out, err) = checked(dir.path(), "preferred.xml", &preferred);
    assert!(out.contains(rule) && out.contains("may leave its nodes"), "{out}{err}");
    // Where the GPUs' nodes have no memory, it comes from none of them.
    let empty = tray(|_| {});
    for text in [&*unbound, &bare] {
        let (_, out, err) = checked(empty.path(), "a.xml", text);
        assert!(!out.contains(rule), "{out}{err}");
    }
}

#[test]
fn cells_of_guests_without_pins_stay_as_many_and_one_without_memory_comes_last() {
    let host = tray(|_| {});
    let host = host.path();
    let size = ["--vcpus", "4", "--memory", "8G", "--pins", "none"];
    let (code, out, err) = on(host, &[&["plan"], &size[..], &NEW].concat());
    assert!(code == 0 && out.contains("on nodes 0-1\n"), "{out}{err}");
    let two = exported(host, &[&size[..], &["--cells", "2"]].concat());
    let file = host.join("a.xml");
    fs::write(&file, two.text()).unwrap();
    let words = ["tune", file.to_str().unwrap(), "--cells", "on"];
    let (code, out, err) = on(host, &[&words[..], &NEW].concat());
    assert_eq!((code, &*out), (0, two.text()), "{err}");
    let text = "<domain type='kvm'><name>a</name><memory unit='GiB'>8</memory><vcpu>4</vcpu><os>\
                <type arch='aarch64' machine='virt'>hvm</type></os><cpu mode='host-passthrough'>\
                <numa><cell id='0' memory='0'/><cell id='1' cpus='0-3' memory='8' unit='GiB'/>\
                </numa></cpu><devices/></domain>";
    fs::write(&file, text).unwrap();
    let (code, out, err) = on(host, &[&words[..2], &NEW].concat());
    assert!(
        code == 1 && err.contains("cell 0 without vCPUs and memory comes before"),
        "{out}{err}"
    );
    assert!(err.contains("`virsh edit a` gives it the last id"), "{err}");
}

#[test]
fn modules_on_nodes_of_gpus_are_found_and_stay() {
    let dir = scratch();
    Grace { gpu_kib: 186 << 20, ..Grace::tray() }.make(dir.path());
    let text = exported(dir.path(), &["--vcpus", "4", "--memory", "8G"]).text().to_owned();
    for (model, nodes, said) in [
        ("dimm", "2-9", "a module's memory is on nodes 2-9"),
        ("virtio-mem", "0,10", "a module's memory is on node 10"),
        ("dimm", "1", ""),
    ] {
        let module = format!(
            "<memory model='{model}'><source><nodemask>{nodes}</nodemask></source><target>\
             <size unit='GiB'>1</size><node>0</node></target></memory>\n  </devices>"
        );
        let file = dir.path().join("a.xml");
        fs::write(&file, text.replacen("</devices>", &module, 1)).unwrap();
        let file = file.to_str().unwrap();
        let (code, out, err) = on(dir.path(), &["check", file, NEW[0], NEW[1]]);
        let is_found = out.contains("memory-on-gpu-node");
        assert!(out.contains(said) && is_found != said.is_empty(), "{out}{err}");
        assert_eq!(code, if is_found { 3 } else { 0 }, "{out}{err}");
        let (code, out, err) = on(dir.path(), &["tune", file, NEW[0], NEW[1]]);
        assert!(code == 0 && out.contains(&module), "{out}{err}");
    }
}

#[test]
fn memory_of_gpus_is_not_slurms() {
    let node_line = |gpu_kib| {
        let dir = scratch();
        Grace { gpu_kib, ..Grace::tray() }.make(dir.path());
        let words = ["slurm", "conf", "--node-name", "n", "--reserve-memory", "8G"];
        let (code, out, err) = on(dir.path(), &[&words[..], &NEW].concat());
        assert_eq!(code, 0, "{err}");
        out.lines().find(|line| line.contains("RealMemory=")).unwrap().to_owned()
    };
    let line = node_line(186 << 20);
    assert!(line.contains(" RealMemory=983040 MemSpecLimit=16384 "), "{line}");
    assert_eq!(line, node_line(0));
}

#[test]
fn doctor_names_no_defect_between_peers_that_the_host_does_not_have() {
    let host = tray(|_| {});
    let (_, out, err) = on(host.path(), &[&["host", "doctor"], &NEW[..]].concat());
    assert!(!out.contains("cannot reach each other"), "{out}{err}");
}
