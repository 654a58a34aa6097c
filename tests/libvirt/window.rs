//! The window for 64-bit BARs, with this machine's own OVMF: a host with so few address bits that
//! the firmware's own window is too small for two GPUs, whose BARs are provided by test devices of
//! QEMU.

use super::view::{number, template, with_stand_ins};
use crate::support::daemon::{Daemon, Tiny, daemon};
use crate::support::{gpuvm, project, run};
use gpuvm::domain::Element;
use serde_json::{Value, json};
use std::path::Path;

/// Address bits of the host; OVMF's own window is an eighth of their range: 64 GiB.
const BITS: u8 = 39;
/// The largest BAR of a V100.
const LARGE: u64 = 32 << 30;
/// Another 64-bit BAR of it, and the only one of an NVSwitch: with both a port costs 64 GiB.
const SMALL: u64 = 32 << 20;

/// The recorded DGX-2 with fewer address bits, and with BARs, which the record lacks.
fn host(dir: &Path) -> String {
    let text = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let mut host: Value = serde_json::from_str(&text).unwrap();
    host["host"]["machine"]["physical_address_bits"] = BITS.into();
    let bar = |index: u8, bytes: u64| json!({ "index": index, "bytes": bytes, "is_64bit": true });
    for device in host["host"]["devices"].as_array_mut().unwrap() {
        let small = json!({ "index": 0, "bytes": 16 << 20 });
        device["bars"] = if device["class"].as_str().unwrap().contains("0302") {
            json!([small, bar(1, LARGE), bar(3, SMALL)])
        } else {
            json!([bar(0, SMALL)])
        };
    }
    let file = dir.join("host.json");
    std::fs::write(&file, host.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The domain of a guest with two GPUs and an NVSwitch, as written for KVM.
fn written(dir: &Path, name: &str) -> String {
    let file = dir.join(format!("{name}.template.xml"));
    std::fs::write(&file, template(name, dir, true)).unwrap();
    let words = ["--gpus", "2", "--vcpus", "2", "--memory", "512M", "--name", name];
    let host = host(dir);
    let args = [&["export", "--host", &host, "--template", file.to_str().unwrap()], &words[..]];
    let (code, xml, err) = run(&mut gpuvm(&args.concat()));
    assert_eq!(code, 0, "{err}");
    let (code, told, err) =
        run(&mut gpuvm(&[&["plan", "--explain", "--host", &host], &words[..]].concat()));
    assert!(
        code == 0 && told.contains(", set explicitly: the firmware would choose 64 GiB"),
        "{told}{err}"
    );
    xml
}

/// What stands in for a function: test devices with its 64-bit BARs, each a function of its own.
fn bars(hostdev: Element<'_>, port: &str) -> Vec<String> {
    let is_gpu = hostdev.find("alias").unwrap().attr("name").unwrap().starts_with("ua-gpu");
    let sizes = if is_gpu { vec![LARGE, SMALL] } else { vec![SMALL] };
    let slot = number(hostdev.child("address").unwrap(), "slot");
    let mut arguments = Vec::new();
    for (function, bytes) in sizes.into_iter().enumerate() {
        let device = json!({
            "driver": "pci-testdev",
            "membar": bytes,
            "bus": port,
            "addr": format!("{slot:#x}.{function:#x}"),
            "multifunction": function == 0,
        });
        arguments.extend(["-device".to_owned(), device.to_string()]);
    }
    arguments
}

/// The sizes of the BARs above 4 GiB that a guest sees after its firmware has placed them,
/// ascending.
fn placed(daemon: &Daemon, tiny: &Tiny, name: &str, change: impl Fn(String) -> String) -> Vec<u64> {
    let dir = tiny.template.parent().unwrap();
    let xml = with_stand_ins(&change(written(dir, name)), bars);
    // An emulated CPU with the host's address bits, which OVMF believes of Intel's.
    let emulated = xml
        .replace("type='kvm'", "type='qemu'")
        .replace("name='vhost'", "name='qemu'")
        .replace(
            "mode='host-passthrough' check='none' migratable='off'>",
            "mode='custom'><model>Haswell-noTSX</model>",
        )
        .replace("<cache mode='passthrough'/>", "")
        .replace(
            "<maxphysaddr mode='passthrough'/>",
            &format!("<maxphysaddr mode='emulate' bits='{BITS}'/>"),
        );
    let file = dir.join(format!("{name}.xml"));
    std::fs::write(&file, emulated).unwrap();
    let (started, text) = daemon.virsh(&["create", file.to_str().unwrap()]);
    assert!(started, "{text}");
    let console = dir.join(format!("{name}.log"));
    let shown = Tiny { template: tiny.template.clone(), console }.wait_for("seen: tree");
    let (gone, text) = daemon.virsh(&["destroy", name]);
    assert!(gone, "{text}");
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let size = |line: &str| {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let ["seen:", "bar", _, start, end] = words[..] else { return None };
        (hex(start) >= 4 << 30).then(|| hex(end) - hex(start) + 1)
    };
    // virtio's devices have small ones of their own.
    let sizes = shown.lines().filter_map(size).filter(|size| *size >= SMALL);
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn firmware_with_a_small_window_gets_a_larger_one() {
    let Some(daemon) = daemon() else { return };
    let dir = daemon.fresh_dir("window");
    let Some(tiny) = Tiny::new(&dir) else { return };
    let placed = |name: &str, change: fn(String) -> String| placed(daemon, &tiny, name, change);
    assert_eq!(placed("window-told", |xml| xml), [SMALL, SMALL, SMALL, LARGE, LARGE]);
    // The same domain without the argument: `pcihole64` alone does not do it.
    let untold = placed("window-own", |xml| {
        let argument = "name=opt/ovmf/X-PciMmio64Mb,string=262144";
        assert!(
            xml.contains(argument) && xml.contains("<pcihole64 unit='KiB'>268435456<"),
            "{xml}"
        );
        xml.replace(argument, "name=opt/not-read,string=262144")
    });
    assert!(!untold.contains(&LARGE), "{untold:?}");
}
