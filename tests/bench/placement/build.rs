//! Builds hosts from a few numbers: nodes, L3 groups, PCIe switches with their devices, NVLink.
//!
//! Every device is below its own port of a switch and in its own IOMMU group, bound to vfio-pci;
//! two successive switches of a node share a root complex.

use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId, PcpuId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{
    Core, Fabric, FabricModel, L3, NumaNode, NvLink, Partition, PartitionId, Parts, PciDevice,
    Topology,
};

/// A PCIe switch by the numbers of devices below it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SwitchSpec {
    /// GPUs.
    pub gpus: u8,
    /// NICs.
    pub nics: u8,
    /// NVMe drives.
    pub nvmes: u8,
}

/// One NUMA node.
#[derive(Debug, Clone, Default)]
pub struct NodeSpec {
    /// Its package.
    pub package: u32,
    /// Its cores.
    pub cores: u32,
    /// Its memory.
    pub memory_gib: u64,
    /// Its PCIe switches.
    pub switches: Vec<SwitchSpec>,
}

/// A host in a few numbers.
#[derive(Debug, Clone, Default)]
pub struct HostSpec {
    /// Its nodes.
    pub nodes: Vec<NodeSpec>,
    /// Threads of a core; first threads are numbered first, as the kernel does on x86.
    pub threads: u32,
    /// Cores of an L3 group; 0: all of a node.
    pub l3_cores: u32,
    /// Whether the kernel reports node -1 for the devices.
    pub node_unknown: bool,
    /// NVLink partitions: the whole, halves, and so on, in index order; the switches stay with
    /// Fabric Manager.
    pub partitions: bool,
    /// Direct links: indexes of two GPUs and the number of links.
    pub links: Vec<(usize, usize, u32)>,
}

/// Vendor, device and class of a GPU.
const NVIDIA_GPU: (u16, u16, u32) = (0x10de, 0x2330, 0x03_0200);
/// Vendor, device and class of a NIC.
const NIC: (u16, u16, u32) = (0x15b3, 0x1021, 0x02_0700);
/// Vendor, device and class of a drive.
const NVME: (u16, u16, u32) = (0x144d, 0xa80a, 0x01_0802);
/// Vendor, device and class of a port.
const PORT: (u16, u16, u32) = (0x1000, 0xc030, 0x06_0400);

impl HostSpec {
    /// The host.
    pub fn build(&self) -> Topology {
        let mut parts = Parts::default();
        let all: u32 = self.nodes.iter().map(|node| node.cores).sum();
        let mut first = 0;
        for (at, node) in (0u32..).zip(&self.nodes) {
            self.add_node(&mut parts, at, node, first, all);
            first += node.cores;
            self.add_devices(&mut parts, at, node);
        }
        parts.fabric = self.fabric(&parts.devices);
        Topology::new(parts).expect("what is generated names nothing that is not there")
    }

    /// Adds a node's cores and caches; `first` is the number of its first core, `all` that of all
    /// cores.
    fn add_node(&self, parts: &mut Parts, at: u32, node: &NodeSpec, first: u32, all: u32) {
        let threads = |core: u32| (0..self.threads).map(move |t| PcpuId(core + t * all));
        let cores = || first..first + node.cores;
        for core in cores() {
            parts.cores.push(Core {
                package: node.package,
                die: None,
                core_id: core - first,
                node: NodeId(at),
                pcpus: threads(core).collect(),
            });
        }
        let each = if self.l3_cores == 0 { node.cores.max(1) } else { self.l3_cores };
        for start in cores().step_by(each as usize) {
            let end = (start + each).min(first + node.cores);
            let pcpus = (start..end).flat_map(threads).collect();
            parts.l3.push(L3 { pcpus, size_kib: Some(MemSize::from_kib(32 << 10)) });
        }
        let distance = |to: &NodeSpec, other: u32| match other == at {
            true => 10,
            false if to.package == node.package => 12,
            false => 32,
        };
        parts.nodes.push(NumaNode {
            os_index: NodeId(at),
            pcpus: cores().flat_map(threads).collect::<CpuSet>(),
            memory_kib: MemSize::from_gib(node.memory_gib),
            distances: (0u32..).zip(&self.nodes).map(|(other, to)| distance(to, other)).collect(),
            huge_pages: Vec::new(),
            gpu: None,
        });
    }

    /// Adds a node's switches with the devices below them; each node is a PCI segment of its own.
    fn add_devices(&self, parts: &mut Parts, at: u32, node: &NodeSpec) {
        let bdf = |bus: u8, device: u8| {
            Bdf::new(at, bus, device, 0).expect("buses and devices of a small tree")
        };
        let mut bus = 0u8;
        let mut root_bus = 0u8;
        for (number, switch) in node.switches.iter().enumerate() {
            if number % 2 == 0 {
                root_bus = bus;
                bus += 1;
            }
            let root = format!("pci{at:04x}:{root_bus:02x}");
            let port = u8::from(number % 2 == 1);
            let (up, down) = (bdf(bus, 0), bus + 1);
            let mut add = |bdf: Bdf, parent: Option<Bdf>, ids: (u16, u16, u32)| {
                let group = u32::try_from(parts.devices.len()).unwrap_or(u32::MAX);
                let node = (!self.node_unknown).then_some(NodeId(at));
                parts.devices.push(function(bdf, parent, &root, ids, node, group));
            };
            add(bdf(root_bus, port), None, PORT);
            add(up, Some(bdf(root_bus, port)), PORT);
            let counts = [(switch.gpus, NVIDIA_GPU), (switch.nics, NIC), (switch.nvmes, NVME)];
            let below = counts.iter().flat_map(|&(count, ids)| (0..count).map(move |_| ids));
            bus = down + 1;
            for (place, ids) in (0u8..).zip(below) {
                add(bdf(down, place), Some(up), PORT);
                add(bdf(bus, 0), Some(bdf(down, place)), ids);
                bus += 1;
            }
        }
        parts.devices.sort_by_key(|device| device.bdf);
    }

    fn fabric(&self, devices: &[PciDevice]) -> Fabric {
        let is_gpu = |device: &&PciDevice| device.class == NVIDIA_GPU.2;
        let gpus: Vec<Bdf> = devices.iter().filter(is_gpu).map(|gpu| gpu.bdf).collect();
        let link = |&(a, b, links): &(usize, usize, u32)| NvLink {
            a: gpus[a.min(b)],
            b: gpus[a.max(b)],
            links,
        };
        let links = self.links.iter().map(link).collect();
        if !self.partitions {
            return Fabric { links, ..Fabric::default() };
        }
        let mut fabric = Fabric { model: FabricModel::SharedNvswitch, ..Fabric::default() };
        let mut size = gpus.len();
        while size > 0 {
            for set in gpus.chunks_exact(size) {
                fabric.partitions.push(Partition {
                    id: PartitionId(u32::try_from(fabric.partitions.len()).unwrap_or(u32::MAX)),
                    gpus: set.to_vec(),
                    nvlinks_per_gpu: if size == 1 { 0 } else { 18 },
                    nvswitches: 0,
                    nvswitch_pool: Vec::new(),
                    active: false,
                });
            }
            size /= 2;
        }
        fabric
    }
}

/// A function that responds; `ids` are vendor, device and class.
fn function(
    bdf: Bdf,
    parent: Option<Bdf>,
    root: &str,
    ids: (u16, u16, u32),
    node: Option<NodeId>,
    group: u32,
) -> PciDevice {
    PciDevice {
        bdf,
        parent,
        root: Some(root.to_owned()),
        class: ids.2,
        vendor: ids.0,
        device: ids.1,
        subsystem_vendor: 0,
        subsystem_device: 0,
        node,
        // A drive on vfio-pci may hold data that cannot be seen, so a request by number does not
        // take it.
        driver: Some(
            match ids {
                PORT => "pcieport",
                NVME => "nvme",
                _ => "vfio-pci",
            }
            .to_owned(),
        ),
        iommu_group: Some(group),
        bars: Vec::new(),
        link: None,
        link_max: None,
        sriov: None,
        reset_methods: None,
        net: None,
        boot_vga: false,
        uuid: None,
        health: None,
        acs: None,
        ats: None,
        mediated: 0,
        devctl: None,
        vfio: None,
        vgpu: None,
        mig: None,
        second_display: false,
    }
}
