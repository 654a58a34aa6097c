//! Hosts for the vectors, from a few numbers: those that the kubelet's, Nova's and OpenNebula's
//! tests use.

use super::super::model::Ask;
use super::host::Host;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::file::from_json;
use gpuvm_core::topology::{Core, L3, NumaNode, Parts, PciDevice, Topology};

/// The shared record of a DGX-2.
pub fn dgx2() -> Topology {
    from_json(include_str!("../../../../topologies/dgx-2.json")).unwrap()
}

/// A wish for GPUs and vCPUs with 4 GiB for each GPU, no NICs and no drives.
pub fn ask(gpus: u32, vcpus: u32) -> Ask {
    let memory = MemSize::from_gib(4 * u64::from(gpus.max(1)));
    Ask { gpus, vcpus, memory, nics: 0, nvmes: 0 }
}

/// Reads a list of pcpus.
pub fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// All pins as one list.
pub fn join(pins: &[CpuSet]) -> String {
    pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin)).to_string()
}

/// Pins of one pcpu each, in order.
pub fn numbers(pins: &[CpuSet]) -> Vec<u32> {
    pins.iter().map(|pin| pin.last().unwrap().0).collect()
}

/// A host's plain data. Each row is package, node, level-3 cache and cores, each core a list of its
/// pcpus with `/` between cores: `0,4/1,5`. Every node has 64 GiB, and distances grow with the
/// difference of node numbers.
pub fn rows(rows: &[(u32, u32, u32, &str)]) -> Parts {
    let mut parts = Parts::default();
    for &(package, node, l3, cores) in rows {
        for pcpus in cores.split('/').map(set) {
            let core_id = pcpus.first().unwrap().0;
            while parts.nodes.len() <= node as usize {
                parts.nodes.push(numa(u32::try_from(parts.nodes.len()).unwrap()));
            }
            let place = &mut parts.nodes[node as usize].pcpus;
            *place = place.or(&pcpus);
            while parts.l3.len() <= l3 as usize {
                parts.l3.push(L3 { pcpus: CpuSet::new(), size_kib: None });
            }
            let cache = &mut parts.l3[l3 as usize].pcpus;
            *cache = cache.or(&pcpus);
            parts.cores.push(Core { package, die: None, core_id, node: NodeId(node), pcpus });
        }
    }
    parts.cores.sort_by_key(|core| core.pcpus.first());
    let nodes = parts.nodes.len();
    for (at, node) in parts.nodes.iter_mut().enumerate() {
        let distance = |to: usize| 10 + u32::try_from(at.abs_diff(to)).unwrap();
        node.distances = (0..nodes).map(distance).collect();
    }
    parts
}

fn numa(number: u32) -> NumaNode {
    NumaNode {
        os_index: NodeId(number),
        pcpus: CpuSet::new(),
        memory_kib: MemSize::from_gib(64),
        distances: Vec::new(),
        huge_pages: Vec::new(),
        gpu: None,
    }
}

/// Nodes of `cores` cores with two threads each, first threads first, as the kernel numbers an
/// Intel host; so many nodes to a package; one level-3 cache for each node.
pub fn even(nodes: u32, per_package: u32, cores: u32) -> Parts {
    let all = nodes * cores;
    let list = |node: u32| {
        let pair = |core: u32| format!("{core},{}", core + all);
        (node * cores..(node + 1) * cores).map(pair).collect::<Vec<_>>().join("/")
    };
    let lists: Vec<String> = (0..nodes).map(list).collect();
    let row = |(node, list): (u32, &'static str)| (node / per_package, node, node, list);
    let lists: Vec<&'static str> = lists.into_iter().map(|l| &*l.leak()).collect();
    rows(&(0..nodes).zip(lists).map(row).collect::<Vec<_>>())
}

/// Adds functions of a class with these nodes, each on a bus of its own from `bus` on.
pub fn add(parts: &mut Parts, class: u32, bus: u8, nodes: &[Option<u32>]) {
    for (bus, node) in (bus..).zip(nodes) {
        let json = serde_json::json!({
            "bdf": format!("0000:{bus:02x}:00.0"), "class": format!("{class:#08x}"),
            "vendor": "0x10de", "device": "0x20b0", "node": node,
        });
        parts.devices.push(serde_json::from_value::<PciDevice>(json).unwrap());
    }
}

/// A graphics processor's class.
pub const GPU: u32 = 0x03_0200;
/// A network controller's class.
pub const NIC: u32 = 0x02_0000;

/// Lets only these pcpus be free.
pub fn only_free(host: &mut Host<'_>, free: &str) {
    let free = set(free);
    for thread in &mut host.threads {
        thread.free = free.contains(thread.pcpu);
    }
}

/// Threads as a list of pcpus.
pub fn list(host: &Host<'_>, threads: &[usize]) -> String {
    join(&host.pins(threads))
}
