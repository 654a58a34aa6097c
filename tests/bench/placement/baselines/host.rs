//! The host as a baseline sees it: the same cores, memory and devices for each, less what guests
//! hold.
//!
//! Built once for each decision. Fields are indexes into lists, not the kernel's numbers, so that a
//! baseline can count without looking anything up.

use super::super::model::{Ask, Place};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId, PcpuId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{DeviceKind, NumaNode, PciDevice, Sriov, Topology};
use std::collections::BTreeSet;
use std::ops::Range;

/// One pcpu.
#[derive(Debug, Clone, Copy)]
pub struct Thread {
    /// The kernel's number.
    pub pcpu: PcpuId,
    /// Its core.
    pub core: usize,
    /// Whether no guest holds it.
    pub free: bool,
}

/// One core.
#[derive(Debug, Clone)]
pub struct Core {
    /// Its node.
    pub node: usize,
    /// Its package.
    pub package: usize,
    /// Its level-3 cache; cores of which none is known share one.
    pub l3: usize,
    /// Its threads, ascending.
    pub threads: Range<usize>,
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// Its cores, by lowest pcpu.
    pub cores: Vec<usize>,
    /// Memory that guests may have.
    pub memory: MemSize,
    /// The part that no guest holds.
    pub free: MemSize,
    /// Nodes by distance, itself first.
    pub near: Vec<usize>,
}

/// A function that a guest may request.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// Its address.
    pub bdf: Bdf,
    /// Its node, if the kernel reports one.
    pub node: Option<usize>,
    /// Vendor and device id.
    pub product: (u16, u16),
    /// Whether it responds and the host does not use it.
    pub usable: bool,
    /// Whether it is usable and no guest holds it.
    pub free: bool,
}

/// A host with what its guests hold.
#[derive(Debug)]
pub struct Host<'a> {
    /// The host itself.
    pub topology: &'a Topology,
    /// Nodes, by number.
    pub nodes: Vec<Node>,
    /// Packages.
    pub packages: usize,
    /// Level-3 caches, including the placeholder for unknown ones.
    pub l3: usize,
    /// Cores, by lowest pcpu.
    pub cores: Vec<Core>,
    /// Threads, by core.
    pub threads: Vec<Thread>,
    /// GPUs, by address; the place of one is its index.
    pub gpus: Vec<Device>,
    /// NICs that are physical functions, by address.
    pub nics: Vec<Device>,
    /// NVMe drives, by address.
    pub nvmes: Vec<Device>,
    held: BTreeSet<Bdf>,
}

/// A guest's limit of a node's memory: all but one fiftieth, at least 512 MiB and at most half,
/// which stay with the host: the same for every planner of the shoot-out.
fn usable_memory(node: &NumaNode) -> MemSize {
    let least = MemSize::from_kib(512 << 10);
    let all = node.memory_kib;
    all - all.share(1, 50).max(least).min(all.share(1, 2))
}

impl<'a> Host<'a> {
    /// Builds the view of a host with its guests.
    pub fn new(topology: &'a Topology, guests: &[Place]) -> Host<'a> {
        let held = |guest: &Place| -> Vec<Bdf> {
            [&guest.gpus[..], &guest.along, &guest.nics, &guest.nvmes].concat()
        };
        let mut host = Host {
            topology,
            nodes: nodes(topology, guests),
            packages: 0,
            l3: topology.parts().l3.len() + 1,
            cores: Vec::with_capacity(topology.cores().len()),
            threads: Vec::with_capacity(topology.cores().len() * 2),
            gpus: Vec::new(),
            nics: Vec::new(),
            nvmes: Vec::new(),
            held: guests.iter().flat_map(held).collect(),
        };
        host.add_cores(&taken(guests));
        host.add_devices();
        host
    }

    fn add_cores(&mut self, taken: &CpuSet) {
        let l3 = l3_by_pcpu(self.topology);
        let mut packages: Vec<u32> = self.topology.cores().iter().map(|c| c.package).collect();
        packages.sort_unstable();
        packages.dedup();
        self.packages = packages.len();
        for core in self.topology.cores() {
            let first = self.threads.len();
            let place = self.cores.len();
            for pcpu in ascending(&core.pcpus) {
                self.threads.push(Thread { pcpu, core: place, free: !taken.contains(pcpu) });
            }
            let node = self.nodes.iter().position(|n| n.id == core.node).unwrap_or(0);
            let number = self.threads[first].pcpu.0 as usize;
            self.cores.push(Core {
                node,
                package: packages.partition_point(|&p| p < core.package),
                l3: l3.get(number).copied().flatten().unwrap_or(self.l3 - 1),
                threads: first..self.threads.len(),
            });
            self.nodes[node].cores.push(place);
        }
    }

    /// Adds the functions that guests ask for.
    fn add_devices(&mut self) {
        let drives = host_drives(self.topology);
        for device in self.topology.devices() {
            let list = match device.kind() {
                DeviceKind::Gpu => &mut self.gpus,
                DeviceKind::Nic if !matches!(device.sriov, Some(Sriov::Vf { .. })) => {
                    &mut self.nics
                }
                DeviceKind::Nvme => &mut self.nvmes,
                _ => continue,
            };
            let usable = usable(self.topology, &drives, device);
            list.push(Device {
                bdf: device.bdf,
                node: device.node.and_then(|id| self.nodes.iter().position(|n| n.id == id)),
                product: (device.vendor, device.device),
                usable,
                free: usable && !self.held.contains(&device.bdf),
            });
        }
        for list in [&mut self.gpus, &mut self.nics, &mut self.nvmes] {
            list.sort_by_key(|device| device.bdf);
        }
    }

    /// Threads of a core that no guest holds, ascending.
    pub fn free_of(&self, core: usize) -> impl Iterator<Item = usize> + '_ {
        self.cores[core].threads.clone().filter(|&thread| self.threads[thread].free)
    }

    /// Whether no guest holds a thread of the core.
    pub fn is_whole(&self, core: usize) -> bool {
        self.threads[self.cores[core].threads.clone()].iter().all(|thread| thread.free)
    }

    /// Free threads of a node.
    pub fn free_threads(&self, node: usize) -> usize {
        self.nodes[node].cores.iter().map(|&core| self.free_of(core).count()).sum()
    }

    /// Threads of a node.
    pub fn all_threads(&self, node: usize) -> usize {
        self.nodes[node].cores.iter().map(|&core| self.cores[core].threads.len()).sum()
    }

    /// The node of a thread.
    pub fn node_of(&self, thread: usize) -> usize {
        self.cores[self.threads[thread].core].node
    }

    /// Threads of the largest core.
    pub fn smt(&self) -> usize {
        self.cores.iter().map(|core| core.threads.len()).max().unwrap_or(1)
    }

    /// A pin of each of these threads, in order.
    pub fn pins(&self, threads: &[usize]) -> Vec<CpuSet> {
        threads.iter().map(|&thread| CpuSet::of(self.threads[thread].pcpu)).collect()
    }

    /// NVSwitches that a guest with exactly these GPUs needs: the lowest free ones of their
    /// partition. Planners that do not know partitions get them when their set happens to be one:
    /// their operator would pass them through. `None` if too few are free. A set that is no
    /// partition gets none.
    pub fn switches(&self, gpus: &[Bdf]) -> Option<Vec<Bdf>> {
        let wanted: BTreeSet<Bdf> = gpus.iter().copied().collect();
        let same = |p: &&gpuvm_core::topology::Partition| {
            p.gpus.len() == wanted.len() && p.gpus.iter().all(|gpu| wanted.contains(gpu))
        };
        let Some(partition) = self.topology.partitions().iter().find(same) else {
            return Some(Vec::new());
        };
        let answers = |bdf: &Bdf| self.topology.device(*bdf).is_some_and(answers);
        let pool = partition.nvswitch_pool.iter().copied();
        let free: Vec<Bdf> = pool.filter(|bdf| !self.held.contains(bdf) && answers(bdf)).collect();
        free.get(..partition.nvswitches as usize).map(<[Bdf]>::to_vec)
    }

    /// Memory without a binding: the kernel allocates it where the vCPUs run, and the rest from the
    /// nearest other nodes with cores. `None` if it does not fit at all.
    pub fn first_touch(&self, size: MemSize, threads: &[usize]) -> Option<Vec<(NodeId, MemSize)>> {
        let mut weights = vec![0u64; self.nodes.len()];
        for &thread in threads {
            weights[self.node_of(thread)] += 1;
        }
        let all: u64 = weights.iter().sum::<u64>().max(1);
        let mut got = vec![MemSize::default(); self.nodes.len()];
        let mut left = size;
        for (at, node) in self.nodes.iter().enumerate() {
            got[at] = size.share(weights[at], all).min(node.free);
            left = left - got[at];
        }
        let home = weights.iter().position(|&weight| weight > 0).unwrap_or(0);
        let with_cores = |at: &&usize| !self.nodes[**at].cores.is_empty();
        for &at in self.nodes[home].near.iter().filter(with_cores) {
            let more = left.min(self.nodes[at].free - got[at]);
            got[at] = got[at] + more;
            left = left - more;
        }
        if !left.is_zero() {
            return None;
        }
        let some = self.nodes.iter().zip(got).filter(|(_, size)| !size.is_zero());
        Some(some.map(|(node, size)| (node.id, size)).collect())
    }

    /// Guest cells into which a fixed size of guest must be cut, so that it fits the empty host at
    /// all: the fewest nodes that have its devices and, in equal parts, its vCPUs and memory.
    /// `None` if it never fits.
    pub fn cells_for(&self, ask: &Ask) -> Option<usize> {
        let on = |list: &[Device], at: usize| {
            list.iter().filter(|device| device.usable && device.node == Some(at)).count()
        };
        let mut order: Vec<(usize, usize, MemSize, usize, usize)> = (0..self.nodes.len())
            .filter(|&at| !self.nodes[at].cores.is_empty())
            .map(|at| {
                let memory = self.nodes[at].memory;
                let (nics, nvmes) = (on(&self.nics, at), on(&self.nvmes, at));
                (on(&self.gpus, at), self.all_threads(at), memory, nics, nvmes)
            })
            .collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let anywhere = |list: &[Device]| {
            list.iter().filter(|device| device.usable && device.node.is_none()).count()
        };
        let spare = [anywhere(&self.gpus), anywhere(&self.nics), anywhere(&self.nvmes)];
        let wanted = [ask.gpus, ask.nics, ask.nvmes].map(|number| number as usize);
        (1..=order.len()).find(|&cells| {
            let first = &order[..cells];
            let has = [
                first.iter().map(|node| node.0).sum::<usize>(),
                first.iter().map(|node| node.3).sum(),
                first.iter().map(|node| node.4).sum(),
            ];
            let share = (ask.vcpus as usize).div_ceil(cells);
            let memory = ask.memory.share(1, cells as u64);
            (0..3).all(|kind| has[kind] + spare[kind] >= wanted[kind])
                && first.iter().all(|node| node.1 >= share && node.2 >= memory)
        })
    }
}

/// The lowest free functions of a kind; `None` if there are too few.
pub fn lowest(list: &[Device], number: u32) -> Option<Vec<Bdf>> {
    let free: Vec<Bdf> = list.iter().filter(|device| device.free).map(|d| d.bdf).collect();
    free.get(..number as usize).map(<[Bdf]>::to_vec)
}

/// A number cut into equal parts; the first ones take the remainder.
pub fn parts(number: u64, parts: usize) -> Vec<u64> {
    let parts = parts.max(1) as u64;
    (0..parts).map(|at| number / parts + u64::from(at < number % parts)).collect()
}

/// Nodes with their memory; their cores are added later.
fn nodes(topology: &Topology, guests: &[Place]) -> Vec<Node> {
    let near = |node: &NumaNode| {
        let distance = |at: usize| node.distances.get(at).copied().unwrap_or(0);
        let mut order: Vec<usize> = (0..topology.nodes().len()).collect();
        let own = |at: usize| topology.nodes()[at].os_index != node.os_index;
        order.sort_by_key(|&at| (own(at), distance(at), at));
        order
    };
    let node = |node: &NumaNode| {
        let memory = usable_memory(node);
        let held = guests.iter().flat_map(|guest| &guest.memory);
        let held: MemSize =
            held.filter(|(id, _)| *id == node.os_index).map(|(_, size)| *size).sum();
        let (free, near) = (memory - held, near(node));
        Node { id: node.os_index, cores: Vec::new(), memory, free, near }
    };
    topology.nodes().iter().map(node).collect()
}

/// Pcpus that guests hold. Most pins are of one pcpu, and that is the quick way for those.
fn taken(guests: &[Place]) -> CpuSet {
    let mut taken = CpuSet::new();
    for pin in guests.iter().flat_map(|guest| guest.pins.iter().chain([&guest.emulator])) {
        match pin.last() {
            Some(only) if pin.len() == 1 => taken.insert(only),
            _ => taken = taken.or(pin),
        }
    }
    taken
}

/// The pcpus of a small set, taken from its end: on a host with thousands of pcpus, iterating over
/// all lower numbers is expensive.
fn ascending(set: &CpuSet) -> Vec<PcpuId> {
    let (mut left, mut list) = (set.clone(), Vec::new());
    while let Some(last) = left.last() {
        left.remove(last);
        list.push(last);
    }
    list.reverse();
    list
}

/// The level-3 cache of each pcpu, by the kernel's number.
fn l3_by_pcpu(topology: &Topology) -> Vec<Option<usize>> {
    let mut of = Vec::new();
    for (at, cache) in topology.parts().l3.iter().enumerate() {
        for pcpu in cache.pcpus.iter() {
            let number = pcpu.0 as usize;
            if of.len() <= number {
                of.resize(number + 1, None);
            }
            of[number] = Some(at);
        }
    }
    of
}

/// Drives that the host uses, as PCI functions.
fn host_drives(topology: &Topology) -> BTreeSet<Bdf> {
    let used = topology.parts().drives.iter().filter(|drive| {
        !drive.used_by.is_empty() || drive.partitions.iter().any(|part| !part.used_by.is_empty())
    });
    used.filter_map(|drive| drive.bdf).collect()
}

/// Whether a function's IDs show that it responds.
fn answers(device: &PciDevice) -> bool {
    [device.vendor, device.device].iter().all(|&id| id != 0 && id != 0xffff)
}

/// Whether a function may be passed through: it responds, is no physical function with virtual
/// ones, and neither it nor its IOMMU group is used by the host.
fn usable(topology: &Topology, drives: &BTreeSet<Bdf>, device: &PciDevice) -> bool {
    let used = |device: &PciDevice| {
        drives.contains(&device.bdf)
            || device.net.as_ref().is_some_and(|net| !net.used_by.is_empty())
    };
    let group = topology.iommu_group(device.bdf);
    let members = group.into_iter().flat_map(|group| &group.members);
    let shares = members.filter_map(|&bdf| topology.device(bdf)).any(used);
    let has_vfs = matches!(device.sriov, Some(Sriov::Pf { enabled: 1.., .. }));
    answers(device) && !has_vfs && !used(device) && !shares
}
