//! lstopo XML: every recorded one loads or is refused with a reason, and says the same as sysfs of the same machine.

use crate::support::shared_hosts;
use gpuvm::discover::lstopo::from_lstopo_xml;
use gpuvm::topology::{DeviceKind, Topology};
use std::path::{Path, PathBuf};

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
            &"hwloc/nvidiaDGX2.hwloc3.xml: lstopo record of format 3.0 (line 3); formats 1 and 2 are read"
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
