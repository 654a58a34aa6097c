//! Uses read from a test tree, and their hindrances.

use super::*;
use crate::fsroot::FsRoot;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::placement::Held;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::topology::{NetFace, PartitionTableEntry, Parts};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A GPU of the recorded DGX-2.
const GPU: &str = "0000:34:00.0";

/// An address.
fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// The recorded DGX-2, changed.
fn host(change: impl FnOnce(&mut Parts)) -> Topology {
    let host = from_json(include_str!("../../../topologies/dgx-2.json")).unwrap();
    let mut parts = host.parts().clone();
    for (device, group) in parts.devices.iter_mut().zip(1000..) {
        device.iommu_group.get_or_insert(group);
    }
    change(&mut parts);
    Topology::new(parts).unwrap()
}

/// Writes a file of a tree.
fn put(tree: &Path, path: &str, text: &str) {
    let path = tree.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A process of a tree with these files open.
fn process(tree: &Path, pid: u32, name: &str, files: &[&str]) {
    put(tree, &format!("proc/{pid}/comm"), name);
    let dir = tree.join(format!("proc/{pid}/fd"));
    fs::create_dir_all(&dir).unwrap();
    for (number, file) in files.iter().enumerate() {
        symlink(file, dir.join(number.to_string())).unwrap();
    }
}

fn seen(tree: &Path, host: &Topology, functions: &[&str]) -> Vec<(UseKind, String)> {
    let functions: Vec<Bdf> = functions.iter().map(|text| bdf(text)).collect();
    let seen = read(&FsRoot::at(tree).unwrap(), host, &functions).unwrap();
    seen.uses.into_iter().map(|used| (used.kind, used.by)).collect()
}

#[test]
fn processes_are_found_by_every_node_of_a_function() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path();
    let host = host(|parts| {
        for device in &mut parts.devices {
            if device.bdf == bdf(GPU) {
                device.iommu_group = Some(77);
            }
        }
    });
    let sys = format!("sys/bus/pci/devices/{GPU}");
    put(tree, &format!("{sys}/drm/card1/dev"), "226:1");
    put(tree, &format!("{sys}/drm/card1/uevent"), "MAJOR=226\nDEVNAME=dri/card1\n");
    put(tree, &format!("{sys}/0000:35:00.0/drm/card2/dev"), "226:2");
    put(tree, "sys/class/vfio/77/dev", "240:0");
    let information = "Model: \t V100\nDevice Minor: \t 3\n";
    put(tree, &format!("proc/driver/nvidia/gpus/{GPU}/information"), information);
    assert!(seen(tree, &host, &[GPU]).is_empty());
    process(tree, 10, "bash", &["/dev/null", "socket:[1]", "/dev/dri/card2", "/dev/nvidia2"]);
    assert!(seen(tree, &host, &[GPU]).is_empty());
    process(tree, 11, "nvidia-persiste", &["/dev/null", "/dev/nvidia3", "/dev/nvidia3"]);
    process(tree, 12, "Xorg", &["/dev/dri/card1"]);
    process(tree, 13, "qemu-system-x86", &["/dev/vfio/77", "/dev/vfio/78"]);
    let by = [
        "process 11 (nvidia-persiste), which has /dev/nvidia3 open",
        "process 12 (Xorg), which has /dev/dri/card1 open",
        "process 13 (qemu-system-x86), which has /dev/vfio/77 open",
    ];
    let wanted: Vec<_> = by.map(|by| (UseKind::Process, by.to_owned())).into();
    assert_eq!(seen(tree, &host, &[GPU]), wanted);
}

#[test]
fn one_open_switch_holds_all_but_not_their_control() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path();
    let host = host(|_| ());
    let switch = host.of_kind(gpuvm_core::topology::DeviceKind::NvSwitch).next().unwrap().bdf;
    let switch = switch.to_string();
    put(tree, &format!("sys/bus/pci/devices/{switch}/vendor"), "0x10de");
    put(tree, &format!("proc/driver/nvidia-nvswitch/devices/{switch}/information"), "");
    put(tree, "proc/devices", "Character devices:\n195 nvidia\n237 nvidia-nvswitch\n");
    process(tree, 20, "monitor", &["/dev/nvidia-nvswitchctl"]);
    assert!(seen(tree, &host, &[&switch]).is_empty());
    process(tree, 21, "nv-fabricmanage", &["/dev/nvidia-nvswitch5"]);
    let by = "process 21 (nv-fabricmanage), which has /dev/nvidia-nvswitch5 open".to_owned();
    assert_eq!(seen(tree, &host, &[&switch]), [(UseKind::Process, by)]);
}

#[test]
fn an_address_counts_while_the_network_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path();
    let nic = "0000:06:00.0";
    let host = host(|parts| {
        let device = parts.devices.iter_mut().find(|device| device.bdf == bdf(nic)).unwrap();
        device.net = Some(NetFace { netdevs: vec!["eth7".into()], ..NetFace::default() });
    });
    let used = [(UseKind::Address, "the host's network: eth7 is up and has an address".to_owned())];
    put(tree, "sys/class/net/eth7/flags", "0x1003");
    let local = "fe80000000000000005056fffec00008 02 40 20 80     eth7\n";
    put(tree, "proc/net/if_inet6", local);
    assert!(seen(tree, &host, &[nic]).is_empty());
    let global = "20010db8000000000000000000000001 02 40 00 80     eth7\n";
    put(tree, "proc/net/if_inet6", global);
    assert_eq!(seen(tree, &host, &[nic]), used);
    put(tree, "proc/net/if_inet6", "");
    put(tree, "proc/net/route", "Iface\tDestination\neth7\t0009090A\t00000000\n");
    assert_eq!(seen(tree, &host, &[nic]), used);
    put(tree, "sys/class/net/eth7/flags", "0x1002");
    assert!(seen(tree, &host, &[nic]).is_empty());
}

#[test]
fn damaged_records_are_errors_that_name_the_file() {
    let host = host(|_| ());
    for (path, text, wanted) in [
        (format!("sys/bus/pci/devices/{GPU}/drm/card1/dev"), "x", "card1/dev line 1: `x` is not"),
        (format!("sys/bus/pci/devices/{GPU}/drm/card1/dev"), "226", "`226` is not two numbers"),
        (format!("sys/bus/pci/devices/{GPU}/drm/card1/dev"), "-1:0", "`-1:0` is not two numbers"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &path, text);
        let error = read(&FsRoot::at(dir.path()).unwrap(), &host, &[bdf(GPU)]).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join(format!("sys/bus/pci/devices/{GPU}/drm"))).unwrap();
    put(dir.path(), "proc/7/fd", "a file");
    process(
        dir.path(),
        8,
        "a",
        &["/dev/loop", "loop", ""].map(|t| if t.is_empty() { "x" } else { t }),
    );
    assert!(seen(dir.path(), &host, &[GPU]).is_empty());
}

/// The hindrances to taking these, as text.
fn forbids(host: &Topology, held: &Occupancy, asked: &[&str]) -> Vec<String> {
    let asked: Vec<Bdf> = asked.iter().map(|text| bdf(text)).collect();
    let uses = known(host, held, &with_groups(host, &asked));
    let take = Take::new(host, &uses, &asked);
    take.hindrances.iter().map(|hindrance| format!("{} {}", hindrance.bdf, hindrance.why)).collect()
}

#[test]
fn devices_needed_by_the_host_are_never_taken() {
    let nvme = "0000:2e:00.0";
    let with = |change: &dyn Fn(&mut Drive)| {
        host(|parts| {
            let drive = parts.drives.iter_mut().find(|drive| drive.bdf == Some(bdf(nvme))).unwrap();
            drive.name = "nvme9n1".into();
            (drive.used_by, drive.partitions) = (vec![], vec![]);
            change(drive);
        })
    };
    let held = Occupancy::default();
    assert!(forbids(&with(&|_| ()), &held, &[nvme]).is_empty());
    let part = |used| PartitionTableEntry {
        name: "nvme9n1p2".into(),
        number: 2,
        bytes: 1,
        partuuid: None,
        used_by: vec![used],
        content: None,
        efi_system: false,
    };
    let root = with(&|drive| drive.partitions.push(part(DriveUse::Mounted { at: "/".into() })));
    let wanted = "0000:2e:00.0 is used by the host, which has nvme9n1p2 mounted at /";
    assert_eq!(forbids(&root, &held, &[nvme]), [wanted]);
    let member = with(&|drive| {
        drive.used_by.push(DriveUse::Holder { device: "md1".into(), what: None, carries: vec![] })
    });
    let wanted = "0000:2e:00.0 is used by md1, of which nvme9n1 is a part";
    assert_eq!(forbids(&member, &held, &[nvme]), [wanted]);
    let swap = with(&|drive| drive.used_by.push(DriveUse::Swap));
    let uses = known(&swap, &held, &[bdf(nvme)]);
    let take = Take::new(&swap, &uses, &[bdf(nvme)]);
    assert_eq!((take.refusals(false).len(), take.refusals(true).len()), (1, 1), "force is no help");
    assert_eq!(forbids(&swap, &held, &["ff:00.0"]), ["0000:ff:00.0 is not there"]);
}

#[test]
fn a_card_with_mediated_devices_is_never_taken() {
    let shared = host(|parts| {
        let gpu = parts.devices.iter_mut().find(|device| device.bdf == bdf(GPU)).unwrap();
        gpu.mediated = 2;
    });
    let wanted = format!("{GPU} is used by its 2 mediated devices");
    assert_eq!(forbids(&shared, &Occupancy::default(), &[GPU]), [wanted]);
    let uses = known(&shared, &Occupancy::default(), &[bdf(GPU)]);
    assert_eq!(Take::new(&shared, &uses, &[bdf(GPU)]).refusals(true).len(), 1);
}

/// A domain that has the GPU.
fn guest(active: bool) -> Occupancy {
    let domain = Held {
        domain: "train-a".into(),
        active,
        vcpu_pins: vec![],
        emulator_pin: None,
        iothread_pins: vec![],
        devices: vec![bdf(GPU)],
        memory: vec![(Default::default(), MemSize::from_kib(1))],
        huge_page_kib: None,
        ..Held::default()
    };
    Occupancy { domains: vec![domain], ..Occupancy::default() }
}

#[test]
fn a_guest_that_runs_keeps_its_gpu_and_one_that_is_off_may_get_it_bound() {
    let host = host(|_| ());
    let wanted = "0000:34:00.0 is used by domain `train-a`, which runs";
    assert_eq!(forbids(&host, &guest(true), &[GPU]), [wanted]);
    assert!(forbids(&host, &guest(false), &[GPU]).is_empty());
}

#[test]
fn groups_are_taken_whole_or_not_at_all() {
    let other = "0000:36:00.0";
    let with = |driver: Option<&str>, same: bool| {
        host(|parts| {
            for device in &mut parts.devices {
                if [bdf(GPU), bdf(other)].contains(&device.bdf) {
                    device.iommu_group = same.then_some(5005);
                    device.driver = driver.map(str::to_owned);
                }
            }
        })
    };
    let held = Occupancy::default();
    let shared = with(Some("nvidia"), true);
    let wanted = "0000:34:00.0 shares IOMMU group 5005 with 0000:36:00.0, which driver nvidia has";
    assert_eq!(forbids(&shared, &held, &[GPU]), [wanted]);
    assert!(forbids(&shared, &held, &[GPU, other]).is_empty());
    let free = with(None, true);
    let take = Take::new(&free, &[], &[bdf(GPU)]);
    assert_eq!((take.hindrances, take.functions), (vec![], vec![bdf(GPU), bdf(other)]));
    let mut running = guest(true);
    running.domains[0].devices = vec![bdf(other)];
    let wanted = "0000:34:00.0 shares IOMMU group 5005 with 0000:36:00.0, which is used by domain \
                  `train-a`, which runs";
    assert_eq!(forbids(&with(Some("vfio-pci"), true), &running, &[GPU]), [wanted]);
    // It does no DMA, and stays as it is.
    let stub = with(Some("pci-stub"), true);
    let take = Take::new(&stub, &[], &[bdf(GPU)]);
    assert_eq!((take.hindrances, take.functions), (vec![], vec![bdf(GPU)]));
    let off = with(None, false);
    let wanted = "0000:34:00.0 has no IOMMU group: the IOMMU is off or absent";
    assert_eq!(forbids(&off, &held, &[GPU]), [wanted]);
    // A bridge of the group does not matter, and is not given away itself.
    let bridge = shared.path_to_root(bdf(GPU))[1];
    let parts = || {
        let mut parts = free.parts().clone();
        for device in parts.devices.iter_mut().filter(|device| device.bdf == bridge) {
            (device.iommu_group, device.driver) = (Some(5005), Some("pcieport".into()));
        }
        parts
    };
    let bridged = Topology::new(parts()).unwrap();
    assert!(forbids(&bridged, &held, &[GPU]).is_empty());
    let wanted = format!("{bridge} is a bridge, which cannot be passed through");
    assert_eq!(forbids(&bridged, &held, &[&bridge.to_string()]), [wanted]);
}
