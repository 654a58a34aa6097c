//! lstopo XML: every recorded one loads or is refused with a reason, and agrees with sysfs of the
//! same machine.

use crate::support::{host_tree, shared_hosts};
use gpuvm::discover::lstopo::from_lstopo_xml;
use gpuvm::discover::source;
use gpuvm::topology::{DeviceKind, Topology};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The XML files below a folder of recorded hosts.
fn records(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "xml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_recorded_one_loads_or_is_refused_with_a_reason() {
    let Some(hosts) = shared_hosts() else { return };
    let (mut loaded, mut refused) = (0, Vec::new());
    for dir in ["hwloc", "mpibind", "synthetic", "nccl", "nvidia-smi"] {
        for file in records(&hosts.join(dir)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let name = format!("{dir}/{}", file.file_name().unwrap().display());
            match from_lstopo_xml(&text) {
                Ok(topology) => {
                    assert!(!topology.cores().is_empty() && !topology.nodes().is_empty(), "{name}");
                    loaded += 1;
                }
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
    }
    eprintln!("{loaded} loaded, refused:\n{}", refused.join("\n"));
    let hwloc: Vec<&String> = refused
        .iter()
        .filter(|r| !r.starts_with("nccl/") && !r.starts_with("nvidia-smi"))
        .collect();
    assert_eq!(loaded, 25);
    assert_eq!(
        hwloc,
        [
            &"hwloc/nvidiaDGX2.hwloc3.xml: lstopo record of format 3.0 (line 3); formats 1 and 2 are \
           read"
        ]
    );
    assert!(refused.iter().all(|reason| reason.contains("(line ")));
}

/// Reads one recorded XML.
fn load(hosts: &Path, file: &str) -> Topology {
    from_lstopo_xml(&std::fs::read_to_string(hosts.join(file)).unwrap()).unwrap()
}

#[test]
fn the_real_dgx2_lacks_one_switch() {
    let Some(hosts) = shared_hosts() else { return };
    let dgx2 = load(&hosts, "hwloc/nvidiaDGX2.xml");
    assert_eq!(dgx2.gpus().count(), 16);
    assert_eq!(dgx2.of_kind(DeviceKind::NvSwitch).count(), 11);
    let fabric = dgx2.fabric();
    assert_eq!(fabric.board.as_deref(), Some("DGX-2"));
    assert_eq!(
        fabric.degraded,
        ["NVSwitch 0000:66:00.0 does not answer: ids 0000:0000", "11 of 12 NVSwitches answer"]
    );
    let of = |size| fabric.partitions.iter().filter(|p| p.gpus.len() == size).count();
    assert_eq!([16, 8, 4, 2, 1].map(of), [0, 1, 4, 8, 16]);
    assert_eq!(dgx2.nodes()[0].memory_kib.kib(), 791_244_484);
    assert_eq!(dgx2.nodes()[0].distances, [10, 21]);
}

/// The data on a host's processors that both kinds of record have. hwloc leaves out dies that are
/// whole packages.
fn processors(host: &Topology) -> Vec<String> {
    let cores = host.cores().iter().map(|c| {
        format!("core package {} id {} node {} pcpus {}", c.package, c.core_id, c.node, c.pcpus)
    });
    let nodes = host.nodes().iter().map(|n| {
        let kib = n.memory_kib.kib();
        format!("node {} pcpus {} kib {kib} distances {:?}", n.os_index, n.pcpus, n.distances)
    });
    let l3 = host.parts().l3.iter().map(|c| format!("l3 {} {:?}", c.pcpus, c.size_kib));
    let offline = format!("offline {}", host.parts().offline);
    cores.chain(nodes).chain(l3).chain([offline]).collect()
}

/// The data on PCI functions that both have, less the programming interface and what hwloc leaves
/// out.
fn functions(host: &Topology) -> Vec<String> {
    let wanted = |kind| {
        matches!(
            kind,
            DeviceKind::Gpu
                | DeviceKind::NvSwitch
                | DeviceKind::Nic
                | DeviceKind::Nvme
                | DeviceKind::Bridge
        )
    };
    host.devices()
        .iter()
        .filter(|d| wanted(d.kind()))
        .map(|d| {
            let net = d.net.clone().unwrap_or_default();
            // hwloc reports no subsystem IDs of bridges.
            let subsystem = (d.kind() != DeviceKind::Bridge)
                .then_some((d.subsystem_vendor, d.subsystem_device));
            format!(
                "{} {:?} {:04x}:{:04x} {subsystem:x?} below {:?} in {:?} node {:?} {:?} {:?}",
                d.bdf,
                d.kind(),
                d.vendor,
                d.device,
                d.parent,
                d.root,
                d.node,
                net.netdevs,
                net.rdma
            )
        })
        .collect()
}

/// Drives by name, address and size.
fn drives(host: &Topology) -> Vec<String> {
    let drives = &host.parts().drives;
    drives.iter().map(|d| format!("{} {:?} {}", d.name, d.bdf, d.bytes)).collect()
}

#[test]
fn lstopo_and_sysfs_say_the_same_of_a_machine() {
    let Some(hosts) = shared_hosts() else { return };
    // Unpacking takes long where disks are slow, so only hosts that are not among our own are
    // unpacked.
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let packed = hosts.join("synthetic/gb300-tray.fsroot.tar.xz");
    let tar = Command::new("tar").arg("-xf").arg(&packed).arg("-C").arg(dir.path()).status();
    assert!(tar.unwrap().success(), "{} cannot be unpacked", packed.display());
    for (name, tree) in [
        ("dgx1", host_tree("dgx-1")),
        ("dgx2", host_tree("dgx-2")),
        ("dgx-a100", host_tree("dgx-a100")),
        ("dgx-h100", host_tree("dgx-h100")),
        ("gb300-tray", dir.path().to_owned()),
    ] {
        let sysfs = source::load(&tree).unwrap();
        let lstopo = load(&hosts, &format!("synthetic/{name}.hwloc2.xml"));
        for part in [processors, functions, drives] {
            for (a, b) in part(&sysfs).iter().zip(part(&lstopo).iter()) {
                assert_eq!(a, b, "{name}: sysfs, then lstopo");
            }
            assert_eq!(part(&sysfs).len(), part(&lstopo).len(), "{name}");
        }
        // A tree shows that there is no fabricmanager.cfg, lstopo's XML does not.
        let fabric = |host: &Topology| {
            let mut fabric = host.fabric().clone();
            let source = fabric.source.as_mut();
            if let Some(source) = source {
                *source = source.replace(": no FABRIC_MODE is set", "");
            }
            fabric
        };
        assert_eq!(fabric(&sysfs), fabric(&lstopo), "{name}");
    }
}

#[test]
fn a_damaged_record_is_an_error_and_never_a_panic() {
    let Some(hosts) = shared_hosts() else { return };
    let text = std::fs::read_to_string(hosts.join("hwloc/nvidiaDGX2.xml")).unwrap();
    let mut refused = 0;
    for step in 1..40 {
        let cut = (0..=text.len() * step / 40).rev().find(|&at| text.is_char_boundary(at)).unwrap();
        refused += usize::from(from_lstopo_xml(&text[..cut]).is_err());
    }
    assert_eq!(refused, 39, "a record that ends early");
    let lines: Vec<&str> = text.lines().collect();
    for victim in (0..lines.len()).step_by(23) {
        let mut less = lines.clone();
        less.remove(victim);
        // With or without an error: it must come back.
        let _ = from_lstopo_xml(&less.join("\n"));
    }
}

#[test]
fn nvlinks_come_from_hwlocs_matrix() {
    let Some(hosts) = shared_hosts() else { return };
    let links = |name: &str| -> Vec<u32> {
        let host = source::load(&hosts.join("hwloc").join(name)).unwrap();
        host.fabric().links.iter().map(|link| link.links).collect()
    };
    // POWER8 with four P100: two pairs with two links of 20 GB/s each; those to the processors are
    // not between GPUs.
    assert_eq!(links("power8gpudistances.xml"), [2, 2]);
    // A DGX-2H: one link to each of six switches, 120 pairs.
    assert_eq!(links("nvidiaDGX2.xml"), [6; 120]);
}
