//! The hosts of the shoot-out: every recorded one that the project ships, and generated ones for
//! the shapes that these lack.

use super::build::{HostSpec, NodeSpec, SwitchSpec};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{DeviceKind, PciDevice, Sriov, Topology, file};

/// A host with its name.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its name in the tables.
    pub name: String,
    /// The host.
    pub topology: Topology,
}

/// Every host of the table, the recorded ones first.
pub fn all() -> Vec<Host> {
    [recorded(), generated()].concat()
}

/// One of them.
pub fn named(name: &str) -> Host {
    let found = all().into_iter().find(|host| host.name == name);
    found.unwrap_or_else(|| panic!("no host is called {name}"))
}

/// The hosts of topologies/, by name.
pub fn recorded() -> Vec<Host> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies");
    let entries = std::fs::read_dir(&dir).expect("topologies/ is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    let host = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).expect("a recorded host can be read");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Host { name, topology: file::from_json(&text).expect("a recorded host loads") }
    };
    paths.iter().map(host).collect()
}

/// A PCIe switch with this many GPUs, NICs and drives.
fn switch(gpus: u8, nics: u8, nvmes: u8) -> SwitchSpec {
    SwitchSpec { gpus, nics, nvmes }
}

fn node(package: u32, cores: u32, memory_gib: u64, switches: &[SwitchSpec]) -> NodeSpec {
    NodeSpec { package, cores, memory_gib, switches: switches.to_vec() }
}

/// Links between every two of the first `gpus` GPUs.
fn every_pair(gpus: usize, links: u32) -> Vec<(usize, usize, u32)> {
    (0..gpus).flat_map(|a| (0..a).map(move |b| (b, a, links))).collect()
}

/// Shapes that the recorded hosts lack.
pub fn generated() -> Vec<Host> {
    let smt = HostSpec { threads: 2, ..HostSpec::default() };
    let three = [switch(2, 2, 1), switch(1, 1, 1)];
    let pair = [switch(2, 2, 2)];
    let single = [switch(1, 1, 1); 4];
    let specs = [
        // Sub-NUMA clusters: three GPUs on one node, one on the next.
        ("snc-4", {
            let nodes = vec![
                node(0, 28, 512, &three),
                node(0, 28, 512, &single[..1]),
                node(1, 28, 512, &three),
                node(1, 28, 512, &single[..1]),
            ];
            HostSpec { nodes, partitions: true, ..smt.clone() }
        }),
        // NPS4 with L3 groups of 8 cores; GPUs on four of the eight nodes, not in node order.
        ("epyc-nps4", {
            let own = |at: u32| if at % 2 == 1 { &pair[..] } else { &[] };
            let nodes = (0..8).map(|at| node(at / 4, 16, 128, own(at))).collect();
            HostSpec { nodes, l3_cores: 8, ..smt.clone() }
        }),
        // A NIC for every GPU, on its own switch.
        ("nic-per-gpu", {
            let nodes = vec![node(0, 64, 1024, &single), node(1, 64, 1024, &single)];
            HostSpec { nodes, ..smt.clone() }
        }),
        // Four linked GPUs, of which one shares a switch with a NIC (KEP 6072).
        ("xe8640", {
            let lone = switch(1, 0, 0);
            let nodes = vec![
                node(0, 32, 512, &[lone, switch(1, 1, 1)]),
                node(1, 32, 512, &[lone, lone, switch(0, 1, 2)]),
            ];
            HostSpec { nodes, links: every_pair(4, 6), ..smt.clone() }
        }),
        ("workstation", {
            let nodes = vec![node(0, 32, 256, &[switch(1, 0, 0); 4])];
            HostSpec { nodes, l3_cores: 8, ..smt.clone() }
        }),
        // Firmware that names no node for its devices.
        ("no-node", {
            let nodes = vec![node(0, 24, 256, &pair), node(1, 24, 256, &pair)];
            HostSpec { nodes, node_unknown: true, ..smt }
        }),
    ];
    let host = |(name, spec): (&str, HostSpec)| Host { name: name.into(), topology: spec.build() };
    specs.into_iter().map(host).collect()
}

/// A host with this many pcpus and GPUs on `nodes` nodes: two threads a core, L3 groups of 8 cores,
/// PCIe switches of up to 4 GPUs with as many NICs.
pub fn large(nodes: u32, pcpus: u32, gpus: u32) -> Host {
    let each = u8::try_from(gpus / nodes).expect("a node has few GPUs");
    let whole = usize::from(each / 4);
    let mut switches = vec![switch(4, 4, 1); whole];
    if !each.is_multiple_of(4) {
        switches.push(switch(each % 4, each % 4, 1));
    }
    let cores = pcpus / 2 / nodes;
    let nodes = (0..nodes).map(|at| node(at / 4, cores, 1024, &switches)).collect();
    let spec = HostSpec { nodes, threads: 2, l3_cores: 8, ..HostSpec::default() };
    Host { name: format!("{pcpus} pcpus, {gpus} GPUs"), topology: spec.build() }
}

/// Hosts that are small enough to try every set of GPUs.
pub fn small() -> Vec<Host> {
    let smt = HostSpec { threads: 2, ..HostSpec::default() };
    let even = |switches: &[SwitchSpec]| vec![node(0, 8, 64, switches), node(1, 8, 64, switches)];
    let mut mesh = every_pair(4, 1);
    mesh.extend(every_pair(4, 1).iter().map(|(a, b, links)| (a + 4, b + 4, *links)));
    mesh.extend((0..4).map(|at| (at, at + 4, 2)));
    let specs = [
        ("two switches", HostSpec { nodes: even(&[switch(2, 1, 1)]), ..smt.clone() }),
        ("one node", {
            let nodes = vec![node(0, 8, 64, &[switch(1, 1, 0), switch(3, 1, 1)])];
            HostSpec { nodes, l3_cores: 4, ..smt.clone() }
        }),
        ("tree of 4", {
            HostSpec { nodes: even(&[switch(2, 2, 0)]), partitions: true, ..smt.clone() }
        }),
        ("tree of 8", {
            let nodes = even(&[switch(2, 1, 1), switch(2, 1, 0)]);
            HostSpec { nodes, partitions: true, l3_cores: 4, ..smt.clone() }
        }),
        ("cube mesh", {
            let nodes = even(&[switch(2, 1, 0), switch(2, 0, 1)]);
            HostSpec { nodes, links: mesh, ..smt.clone() }
        }),
        ("three and one", {
            let nodes =
                vec![node(0, 6, 64, &[switch(3, 2, 1)]), node(0, 6, 64, &[switch(1, 1, 0)])];
            HostSpec { nodes, ..smt }
        }),
    ];
    let host = |(name, spec): (&str, HostSpec)| Host { name: name.into(), topology: spec.build() };
    specs.into_iter().map(host).collect()
}

/// Hosts with NICs and drives beside some of their GPUs only.
pub fn uneven() -> Vec<Host> {
    let smt = HostSpec { threads: 2, ..HostSpec::default() };
    let bare = switch(2, 0, 0);
    let two = |one: &[SwitchSpec], other: &[SwitchSpec]| HostSpec {
        nodes: vec![node(0, 16, 128, one), node(1, 16, 128, other)],
        ..smt.clone()
    };
    let specs = [
        ("a NIC on node 1 only", two(&[bare, bare], &[switch(2, 1, 0), switch(2, 0, 1)])),
        ("NICs on the inner switches", two(&[bare, switch(2, 1, 0)], &[switch(2, 1, 0), bare])),
        ("NICs without a GPU", two(&[switch(0, 2, 1), bare], &[bare, switch(0, 1, 1)])),
        ("four nodes of two packages", {
            let nodes = vec![
                node(0, 8, 64, &[switch(0, 1, 1)]),
                node(0, 8, 64, &[bare]),
                node(1, 8, 64, &[switch(0, 1, 1)]),
                node(1, 8, 64, &[bare]),
            ];
            HostSpec { nodes, ..smt.clone() }
        }),
        ("one NIC for three", two(&[switch(1, 0, 1), switch(3, 1, 0)], &[switch(3, 1, 0)])),
    ];
    let host = |(name, spec): (&str, HostSpec)| Host { name: name.into(), topology: spec.build() };
    specs.into_iter().map(host).collect()
}

/// Whether a function can be passed to a guest by itself: also, nothing but bridges shares its
/// IOMMU group.
pub fn usable(topology: &Topology, device: &PciDevice) -> bool {
    unused(topology, device) && parted(topology, device, &[])
}

/// Whether a function responds, the host does not use it, and it has no virtual functions in use
/// and is none.
pub fn unused(topology: &Topology, device: &PciDevice) -> bool {
    let answers = [device.vendor, device.device].iter().all(|id| !matches!(id, 0 | 0xffff));
    let used = device.net.as_ref().is_some_and(|net| !net.used_by.is_empty());
    let drive_used = topology.parts().drives.iter().any(|drive| {
        let parts = drive.partitions.iter().any(|part| !part.used_by.is_empty());
        drive.bdf == Some(device.bdf) && (parts || !drive.used_by.is_empty())
    });
    let virtual_ones = match device.sriov {
        Some(Sriov::Pf { enabled, .. }) => enabled > 0,
        Some(Sriov::Vf { .. }) => true,
        None => false,
    };
    answers && !used && !drive_used && !virtual_ones
}

/// Whether all members of a function's IOMMU group but bridges go along with it.
pub fn parted(topology: &Topology, device: &PciDevice, along: &[Bdf]) -> bool {
    topology.iommu_group(device.bdf).is_none_or(|group| {
        let others = group.members.iter().filter(|member| **member != device.bdf);
        let bridge = |kind| matches!(kind, DeviceKind::Bridge | DeviceKind::HostBridge);
        let others = others.filter_map(|member| topology.device(*member));
        let mut others = others.filter(|other| !bridge(other.kind()));
        others.all(|other| along.contains(&other.bdf))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_as_large_as_their_names_say() {
        let host = large(16, 4096, 128).topology;
        assert_eq!(host.pcpus().len(), 4096);
        assert_eq!(host.gpus().count(), 128);
        let host = large(8, 4096, 72).topology;
        assert_eq!((host.pcpus().len(), host.gpus().count()), (4096, 72));
    }

    #[test]
    fn devices_of_a_generated_host_are_usable_and_stand_behind_switches() {
        for host in [generated(), small()].concat() {
            let topology = &host.topology;
            for gpu in topology.gpus() {
                assert!(usable(topology, gpu), "{}: {}", host.name, gpu.bdf);
                assert_eq!(topology.path_to_root(gpu.bdf).len(), 4, "{}: {}", host.name, gpu.bdf);
            }
        }
        let node_of =
            |name: &str| named(name).topology.gpus().map(|gpu| gpu.node).collect::<Vec<_>>();
        assert!(node_of("no-node").iter().all(Option::is_none));
        let ids: Vec<_> = node_of("epyc-nps4").iter().flatten().map(|node| node.0).collect();
        assert_eq!(ids, [1, 1, 3, 3, 5, 5, 7, 7]);
    }
}
