//! Hosts for tests: regular ones from a few numbers, with the irregularities that real ones have.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::placement::{Held, Placement};
use crate::topology::{
    Core, Fabric, FabricModel, HugePagePool, L3, NumaNode, Partition, PartitionId, Parts,
    PciDevice, Topology,
};

#[derive(Debug, Clone)]
pub(crate) struct NodeSpec {
    pub(crate) cores: u32,
    pub(crate) memory_mib: u64,
}

/// A host in a few numbers.
#[derive(Debug, Clone)]
pub(crate) struct HostSpec {
    pub(crate) nodes: Vec<NodeSpec>,
    /// Threads of a core; the kernel numbers first threads first, as on a DGX-2.
    pub(crate) threads: u32,
    /// Distance between successive pcpu and node numbers: 1 is dense.
    pub(crate) step: u32,
    /// Indexes of pcpus that are offline.
    pub(crate) offline: Vec<u32>,
    /// Cores below each L3 cache; 0: the record names no caches.
    pub(crate) l3: u32,
    /// Indexes of pcpus that the kernel isolates.
    pub(crate) isolated: Vec<u32>,
    /// Node of each GPU, by its place in `nodes`; `None` if the kernel does not report it.
    pub(crate) gpus: Vec<Option<usize>>,
    /// Whether an NVSwitch board makes partitions: all, halves, and so on down to one.
    pub(crate) partitions: bool,
    pub(crate) switches: u32,
    /// Pools of 2 MiB pages: pages of each node; `None` if the record has no pools.
    pub(crate) pages: Option<u64>,
}

impl HostSpec {
    /// Nodes of equal size with SMT pairs, and GPUs spread over them in order.
    pub(crate) fn even(nodes: usize, cores: u32, gib: u64, gpus: usize) -> HostSpec {
        HostSpec {
            nodes: vec![NodeSpec { cores, memory_mib: gib << 10 }; nodes],
            threads: 2,
            step: 1,
            offline: vec![],
            l3: 0,
            isolated: vec![],
            gpus: (0..gpus).map(|gpu| Some(gpu * nodes / gpus)).collect(),
            partitions: false,
            switches: 0,
            pages: None,
        }
    }

    /// The host's data; no cores where all pcpus are offline.
    pub(crate) fn parts(&self) -> Parts {
        let all: u32 = self.nodes.iter().map(|node| node.cores).sum();
        let node_id = |at: usize| NodeId(u32::try_from(at).unwrap() * self.step);
        let mut parts = Parts::default();
        let isolated = self.isolated.iter().filter(|place| !self.offline.contains(place));
        parts.isolated = isolated.map(|place| PcpuId(place * self.step)).collect();
        let (mut first, mut done) = (0, 0);
        for (at, spec) in self.nodes.iter().enumerate() {
            let mut on_node = CpuSet::new();
            for core in first..first + spec.cores {
                let places = (0..self.threads).map(|thread| core + thread * all);
                let pcpus: CpuSet = places
                    .filter(|place| !self.offline.contains(place))
                    .map(|place| PcpuId(place * self.step))
                    .collect();
                on_node = on_node.or(&pcpus);
                if !pcpus.is_empty() {
                    let (package, node) = (u32::try_from(at / 2).unwrap(), node_id(at));
                    let core_id = core - first;
                    parts.cores.push(Core { package, die: None, core_id, node, pcpus });
                }
            }
            let (last, own) = (parts.cores.len(), parts.cores.iter());
            let own: Vec<CpuSet> = own.skip(done).map(|core| core.pcpus.clone()).collect();
            done = last;
            for below in own.chunks(self.l3.max(1) as usize).filter(|_| self.l3 > 0) {
                let pcpus = below.iter().fold(CpuSet::new(), |all, core| all.or(core));
                parts.l3.push(L3 { pcpus, size_kib: None });
            }
            first += spec.cores;
            let pool = |total| HugePagePool {
                page_kib: MemSize::from_kib(2048),
                total,
                free: total,
                surplus: 0,
            };
            parts.nodes.push(NumaNode {
                os_index: node_id(at),
                pcpus: on_node,
                memory_kib: MemSize::from_kib(spec.memory_mib << 10),
                distances: (0..self.nodes.len()).map(|to| if to == at { 10 } else { 21 }).collect(),
                huge_pages: self.pages.map(pool).into_iter().collect(),
                gpu: None,
            });
        }
        for (at, node) in self.gpus.iter().enumerate() {
            let bus = u8::try_from(0x10 + at).unwrap();
            parts.devices.push(device(bus, 0x03_0200, 0x1db8, node.map(node_id)));
        }
        for at in 0..self.switches {
            let bus = u8::try_from(0x80 + at).unwrap();
            parts.devices.push(device(bus, 0x06_8000, 0x1ac2, Some(node_id(0))));
        }
        if self.partitions {
            parts.fabric = self.fabric(&parts.devices);
        }
        parts
    }

    /// The board's partitions: halves of halves, with switches in proportion.
    fn fabric(&self, devices: &[PciDevice]) -> Fabric {
        let bdfs: Vec<Bdf> = devices.iter().map(|device| device.bdf).collect();
        let (gpus, pool) = bdfs.split_at(self.gpus.len());
        let mut fabric = Fabric { model: FabricModel::FullPassthrough, ..Fabric::default() };
        let mut size = self.gpus.len();
        while size > 0 {
            for set in gpus.chunks_exact(size) {
                let id = PartitionId(u32::try_from(fabric.partitions.len()).unwrap());
                let share = u32::try_from(size).unwrap() * self.switches
                    / u32::try_from(self.gpus.len()).unwrap();
                fabric.partitions.push(Partition {
                    id,
                    gpus: set.to_vec(),
                    nvlinks_per_gpu: 6,
                    nvswitches: if size == 1 { 0 } else { share },
                    nvswitch_pool: pool.to_vec(),
                    active: false,
                });
            }
            size /= 2;
        }
        fabric
    }

    pub(crate) fn build(&self) -> Topology {
        Topology::new(self.parts()).unwrap()
    }
}

/// A function that answers, in its own IOMMU group and bound to vfio-pci.
pub(crate) fn device(bus: u8, class: u32, id: u16, node: Option<NodeId>) -> PciDevice {
    let json = serde_json::json!({
        "bdf": format!("0000:{bus:02x}:00.0"), "class": format!("{class:#08x}"), "vendor": "0x10de",
        "device": format!("{id:#06x}"), "node": node, "driver": "vfio-pci", "iommu_group": bus,
    });
    serde_json::from_value(json).unwrap()
}

/// The resources of a running domain of this plan.
pub(crate) fn held(name: &str, placement: &Placement) -> Held {
    Held { active: true, ..placement.held(name) }
}
