//! The topology of a host: its parts and their connections, as values. No I/O.
//!
//! [`Parts`] is the plain data, as in a recorded host's file; [`Topology::new`] checks that every
//! cross-reference resolves, so code that holds a [`Topology`] need not check again. This module
//! does not know where the data came from, nor the occupancy: that is
//! [`crate::placement::Occupancy`].

mod accelerator;
pub mod binding;
mod card_memory;
mod checked;
pub mod coherent;
pub mod cpu;
pub(crate) mod direct;
pub mod drive;
pub mod fabric;
pub mod facts;
pub mod file;
pub mod for_guests;
pub mod identity;
pub mod isolation;
pub mod matrix;
pub mod model;
pub mod pages;
pub mod pairs;
pub mod pci;
mod peers;
pub mod proximity;
mod set_aside;
pub mod sharing;
pub mod software;
mod trust;
pub mod vendor;
pub mod vgpu;

pub use binding::{Binding, VFIO, is_vfio, leaves_group};
pub(crate) use card_memory::Room;
pub use coherent::{
    CoherentHost, CoherentLack, CoherentModel, GPUS_PER_TRAY, NODES_PER_GPU, NVGRACE, OldStack,
};
pub use cpu::{Core, CoreKind, L3, NumaNode, Speed};
pub use direct::{DirectPort, DirectPorts, DirectRefusal, OtherFunction};
pub use drive::{Content, Drive, DriveUse, PartitionTableEntry, Signature};
pub use fabric::{
    FABRIC_CONFIG, Fabric, FabricModel, NoPartition, NoVgpuMode, NvLink, Partition, PartitionId,
};
pub use facts::Facts;
pub use for_guests::{KeptOff, KeptOffBy};
pub use identity::{DeviceIdentity, KnownDevice, Likeness, MarkKind};
pub use isolation::{Barred, Iommu, Iommufd, Isolated, Isolation, Weakness};
pub use matrix::{Matrix, MatrixRow};
pub use pages::{HugePagePool, HugetlbMount};
pub use pci::{Bar, DeviceKind, IommuGroup, Link, NetFace, PciDevice, Sriov, VfioDevice};
pub use peers::{Meeting, Moment, OpenPort};
pub use proximity::{Proximity, Way};
pub use set_aside::{SetAside, Unsupported};
pub use sharing::{VfKind, VgpuInterface};
pub use trust::{TAKES_ONE, Trust};
pub use vgpu::{
    GuestVgpu, Mdev, MdevType, Mig, MigInstances, VfioType, Vgpu, are_of_one_model, frame_buffer,
    is_mig_backed, is_type_named, plain_name,
};

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, MAX_ID, NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::versions::Stack;
use checked::{check_core, check_devices, dangling, index};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Properties of a host other than its processors and devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Maker, from DMI `sys_vendor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product, from DMI `product_name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Architecture as `uname -m` prints it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// `vendor_id` of /proc/cpuinfo: `GenuineIntel`, `AuthenticAMD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_vendor: Option<String>,
    /// `model name` of /proc/cpuinfo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Physical address bits, from `address sizes` of /proc/cpuinfo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u8>,
    /// Address bits of the narrowest IOMMU, if it reports them (Intel's MGAW, AMD's HATS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_address_bits: Option<u8>,
    /// Arguments of the kernel command line that concern VMs (iommu, hugepages, isolcpus, vfio), in
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_arguments: Vec<String>,
    /// Kernel release as `uname -r` prints it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// libvirt and QEMU when it was recorded, with their features. `None` if the record has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// Mounted hugetlbfs: libvirt backs guests only with page sizes that have one. `None` if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugetlbfs: Option<Vec<HugetlbMount>>,
    /// Whether automatic NUMA balancing is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_balancing: Option<bool>,
    /// Kernel settings that weaken IOMMU isolation. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The state of the IOMMU as the kernel shows it. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu: Option<Iommu>,
    /// The kernel's support of iommufd. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommufd: Option<Iommufd>,
    /// The kernel's support for GPUs whose memory is coherent with the CPU's. `None` if there are
    /// no such GPUs, or it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coherent: Option<CoherentHost>,
    /// libvirt and QEMU that cannot pass such GPUs through; not recorded. `None` if they can, or
    /// are unknown.
    #[serde(skip)]
    pub old_stack: Option<OldStack>,
    /// Memory of the machine that no node reports, if it is much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_nodes_kib: Option<MemSize>,
    /// Whether the guests of the host trust each other, as set by its admin; `None` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Why its admin's declaration is not used, so that its guests are treated as strangers; `None`
    /// if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_unread: Option<String>,
    /// Health of GPUs that could not be read, with the reason; not recorded.
    #[serde(skip)]
    pub health_unread: Vec<String>,
    /// Host name; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
}

impl Machine {
    /// Address bits that a guest with passed-through functions may have, if the IOMMU has fewer
    /// than the processor: it maps nothing above.
    pub fn address_limit(&self) -> Option<u8> {
        self.iommu_address_bits.filter(|bits| Some(*bits) < self.physical_address_bits)
    }

    /// Maker and product, the maker once; `None` if the product is not known.
    pub fn title(&self) -> Option<String> {
        let product = self.product.as_deref()?;
        let vendor = self.vendor.as_deref().unwrap_or_default();
        let is_told = vendor.is_empty() || product.starts_with(vendor);
        Some(if is_told { product.to_owned() } else { format!("{vendor} {product}") })
    }
}

/// A host's data, unchecked; the `host` of a recorded host's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// The machine itself.
    pub machine: Machine,
    /// NUMA nodes, by id; CPU-less and memory-less ones included.
    pub nodes: Vec<NumaNode>,
    /// Cores with at least one online pcpu, by their lowest pcpu.
    pub cores: Vec<Core>,
    /// Last-level caches of level 3, by their lowest pcpu.
    #[serde(default)]
    pub l3: Vec<L3>,
    /// Pcpus that are present but offline.
    #[serde(default)]
    pub offline: CpuSet,
    /// Pcpus that the kernel keeps tasks off (`isolcpus=`).
    #[serde(default)]
    pub isolated: CpuSet,
    /// Pcpus that another setting keeps the host's own tasks off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_off: Option<KeptOff>,
    /// Pcpus that machine.slice confines guests to; `None` if to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_slice: Option<CpuSet>,
    /// Kinds of cores, the fastest first; empty where all are of one kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core_kinds: Vec<CoreKind>,
    /// Every PCI function, by address.
    #[serde(default)]
    pub devices: Vec<PciDevice>,
    /// Block devices that are whole drives, by name.
    #[serde(default)]
    pub drives: Vec<Drive>,
    /// NVLink and NVSwitch.
    #[serde(default)]
    pub fabric: Fabric,
    /// Further facts for `host doctor`; only a captured host has them. `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<Facts>>,
    /// Unreadable and contradictory data, for people; a host with notes is still usable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The error of a contradiction in a host's data.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "topology-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum TopologyError {
    /// The same item appears twice.
    #[error("{kind} {id} appears twice")]
    Twice { kind: &'static str, id: String },
    /// An item refers to something missing.
    #[error("{kind} {id} names {names} {missing}, which does not exist")]
    Dangling {
        kind: &'static str,
        id: String,
        /// The kind of the missing object.
        names: &'static str,
        /// The id of the missing object.
        missing: String,
    },
    /// A value contradicts another.
    #[error("{kind} {id}: {reason}")]
    Contradiction { kind: &'static str, id: String, reason: String },
}

/// The index that means "none"; hosts have far fewer cores and caches.
const NONE: u32 = u32::MAX;

/// A host whose every cross-reference resolves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    parts: Parts,
    /// Index into `parts.devices` by address.
    device_index: Vec<(u64, usize)>,
    /// Virtual functions by card: indexes into `parts.devices`, in order.
    vf_index: Vec<(Bdf, usize)>,
    /// Indexes in `parts.cores` by pcpu number; [`NONE`] for numbers that no online pcpu has.
    core_index: Vec<u32>,
    /// Indexes in `parts.l3` by pcpu number; [`NONE`] for numbers below no cache.
    l3_index: Vec<u32>,
    groups: BTreeMap<u32, IommuGroup>,
    /// Indexes in `parts.devices` of the GPUs available by number: every plan needs them many
    /// times.
    counted: Vec<usize>,
    /// Ports that do not keep IOMMU groups apart; none on a sound host.
    openings: Vec<peers::Opening>,
    /// The part of each of `parts.cores` that machine.slice leaves to guests; none: all.
    confined: Option<Vec<Option<Core>>>,
}

impl Topology {
    /// Checks every cross-reference and makes the host. On a host with one node every function is
    /// on that node, even if the kernel does not report it (`numa_node` is -1).
    pub fn new(mut parts: Parts) -> Result<Topology, TopologyError> {
        if let [only] = &parts.nodes[..] {
            let only = only.os_index;
            parts.devices.iter_mut().for_each(|device| _ = device.node.get_or_insert(only));
        }
        pci::mark_second_displays(&mut parts.devices);
        let device_index = index("PCI function", parts.devices.iter().map(|d| d.bdf))?;
        let nodes = index("node", parts.nodes.iter().map(|n| n.os_index))?;
        let last = parts.cores.iter().filter_map(|core| core.pcpus.last()).max();
        let mut core_index = vec![NONE; last.map_or(0, |pcpu| pcpu.0 as usize + 1)];
        for (core, position) in parts.cores.iter().zip(0u32..) {
            check_core(core, &parts, &nodes)?;
            for pcpu in core.pcpus.iter() {
                let place = &mut core_index[pcpu.0 as usize];
                if *place != NONE {
                    return Err(TopologyError::Twice { kind: "pcpu", id: pcpu.to_string() });
                }
                *place = position;
            }
        }
        let mut on_nodes = CpuSet::new();
        for node in &parts.nodes {
            let contradiction = |reason: String| {
                let id = node.os_index.to_string();
                Err(TopologyError::Contradiction { kind: "node", id, reason })
            };
            if node.os_index.0 > MAX_ID {
                return contradiction(format!("its number is above {MAX_ID}"));
            }
            if on_nodes.intersects(&node.pcpus) {
                let twice = on_nodes.and(&node.pcpus);
                return contradiction(format!("pcpus {twice} are on another node, too"));
            }
            on_nodes = on_nodes.or(&node.pcpus);
            let distances = node.distances.len();
            if distances != 0 && distances != parts.nodes.len() {
                return contradiction(format!(
                    "{distances} distances for {} nodes",
                    parts.nodes.len()
                ));
            }
            let known = |p: &PcpuId| core_index.get(p.0 as usize).is_some_and(|at| *at != NONE);
            if let Some(pcpu) = node.pcpus.iter().find(|p| !known(p)) {
                return Err(dangling("node", node.os_index, "pcpu", pcpu));
            }
        }
        if parts.cores.is_empty() {
            let reason = "it has no online pcpu".into();
            return Err(TopologyError::Contradiction { kind: "host", id: String::new(), reason });
        }
        check_devices(&parts, &device_index, &nodes)?;
        let groups = groups(&parts);
        let device_index = device_index.into_iter().map(|(bdf, at)| (bdf.key(), at)).collect();
        let l3_index = l3_index(&parts.l3);
        let mut host = Topology {
            confined: for_guests::confined(&parts),
            vf_index: sharing::vf_index(&parts.devices),
            parts,
            device_index,
            core_index,
            l3_index,
            groups,
            counted: Vec::new(),
            openings: Vec::new(),
        };
        host.counted = host.countable();
        host.openings = peers::openings(&host);
        Ok(host)
    }

    /// Returns the places of the GPUs available by number.
    fn countable(&self) -> Vec<usize> {
        let counts = |(_, gpu): &(usize, &PciDevice)| {
            gpu.kind() == DeviceKind::Gpu && self.set_aside(gpu).is_none()
        };
        self.parts.devices.iter().enumerate().filter(counts).map(|(at, _)| at).collect()
    }

    /// Returns the data, for JSON and for anything without a query of its own.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The machine itself.
    pub fn machine(&self) -> &Machine {
        &self.parts.machine
    }

    /// Returns the remedy if guests are not isolated on NVLink, by the admin's declaration of
    /// trust.
    pub fn trust_advice(&self) -> Cow<'static, str> {
        let Machine { trust, trust_unread, .. } = self.machine();
        Trust::advice_of_host(*trust, trust_unread.as_deref())
    }

    /// NUMA nodes by id.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.parts.nodes
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&NumaNode> {
        self.parts.nodes.iter().find(|n| n.os_index == id)
    }

    /// Cores with at least one online pcpu, by lowest pcpu.
    pub fn cores(&self) -> &[Core] {
        &self.parts.cores
    }

    /// Cores of a node, by lowest pcpu.
    pub fn cores_of(&self, node: NodeId) -> impl Iterator<Item = &Core> {
        self.parts.cores.iter().filter(move |core| core.node == node)
    }

    /// The core that a pcpu belongs to; none where the pcpu is absent or offline.
    pub fn core_of(&self, pcpu: PcpuId) -> Option<&Core> {
        self.core_place(pcpu).map(|place| &self.parts.cores[place])
    }

    /// Of which kind a core is; none where all are of one kind, or its own is not known.
    pub fn speed(&self, core: &Core) -> Option<Speed> {
        let first = core.pcpus.first()?;
        let kind = self.parts.core_kinds.iter().find(|kind| kind.pcpus.contains(first))?;
        (self.parts.core_kinds.len() > 1).then_some(kind.kind)
    }

    /// Returns the index in [`Topology::cores`] of the core that a pcpu belongs to; none where it
    /// is absent or offline.
    pub fn core_place(&self, pcpu: PcpuId) -> Option<usize> {
        let place = *self.core_index.get(pcpu.0 as usize)?;
        (place != NONE).then_some(place as usize)
    }

    /// Returns the index in [`Parts::l3`] of the L3 cache above a pcpu; none if unknown.
    pub fn l3_place(&self, pcpu: PcpuId) -> Option<usize> {
        let place = *self.l3_index.get(pcpu.0 as usize)?;
        (place != NONE).then_some(place as usize)
    }

    /// Online pcpus of the host.
    pub fn pcpus(&self) -> CpuSet {
        let online = self.core_index.iter().zip(0..).filter(|(place, _)| **place != NONE);
        online.map(|(_, number)| PcpuId(number)).collect()
    }

    /// Returns a warning if the nodes do not account for all memory; `None` if they do.
    pub fn memory_warning(&self) -> Option<String> {
        let missing = self.parts.machine.off_nodes_kib?;
        let shown: MemSize = self.parts.nodes.iter().map(|node| node.memory_kib).sum();
        let all = shown + missing;
        Some(format!(
            "the nodes show {shown} of the machine's {all} of memory; the other {missing} are not \
             planned with"
        ))
    }

    /// Every PCI function, by address.
    pub fn devices(&self) -> &[PciDevice] {
        &self.parts.devices
    }

    /// A PCI function.
    pub fn device(&self, bdf: Bdf) -> Option<&PciDevice> {
        let found = self.device_index.binary_search_by_key(&bdf.key(), |&(key, _)| key).ok()?;
        Some(&self.parts.devices[self.device_index[found].1])
    }

    /// Functions of a range of addresses, by address.
    fn in_order(&self, range: RangeInclusive<Bdf>) -> impl Iterator<Item = &PciDevice> {
        let (first, last) = (range.start().key(), range.end().key());
        let from = self.device_index.partition_point(|&(key, _)| key < first);
        let until = self.device_index[from..].iter().take_while(move |&&(key, _)| key <= last);
        until.map(|&(_, position)| &self.parts.devices[position])
    }

    /// Returns the GPUs available by number, by address: the index of a GPU (`--gpu-index`) is its
    /// place in this order, as in `nvidia-vm`. Boot displays and integrated GPUs do not count
    /// ([`Topology::set_aside`]).
    pub fn gpus(&self) -> impl Iterator<Item = &PciDevice> {
        self.counted.iter().map(|&at| &self.parts.devices[at])
    }

    /// Functions of a kind, by address.
    pub fn of_kind(&self, kind: DeviceKind) -> impl Iterator<Item = &PciDevice> {
        self.parts.devices.iter().filter(move |d| d.kind() == kind)
    }

    /// NVMe drives, by address, without virtual functions.
    pub fn drives(&self) -> impl Iterator<Item = &PciDevice> {
        self.of_kind(DeviceKind::Nvme).filter(|drive| !drive.is_vf())
    }

    /// Functions of a kind among these, in their order; `vf`: virtual functions, or the others. A
    /// virtual function that is a card by itself, as with AMD's GIM, is one of the others, and so
    /// is that of a drive, which is requested like one.
    pub fn among(&self, functions: &[Bdf], kind: DeviceKind, vf: bool) -> Vec<&PciDevice> {
        let is_card = |device: &PciDevice| match kind {
            DeviceKind::Gpu => self.unsupported(device).is_none(),
            kind => kind == DeviceKind::Nvme,
        };
        let is_vf = |device: &PciDevice| device.is_vf() && !is_card(device);
        let devices = functions.iter().filter_map(|bdf| self.device(*bdf));
        devices.filter(|device| device.kind() == kind && is_vf(device) == vf).collect()
    }

    /// The function and the bridges above it: endpoint first, root port last. Empty for an unknown
    /// function.
    pub fn path_to_root(&self, bdf: Bdf) -> Vec<Bdf> {
        self.way_up(bdf).map(|device| device.bdf).collect()
    }

    /// The same as functions, without memory of its own.
    pub fn way_up(&self, bdf: Bdf) -> impl Iterator<Item = &PciDevice> {
        std::iter::successors(self.device(bdf), |device| self.device(device.parent?))
    }

    /// The IOMMU group of a function; none where the IOMMU is off.
    pub fn iommu_group(&self, bdf: Bdf) -> Option<&IommuGroup> {
        self.groups.get(&self.device(bdf)?.iommu_group?)
    }

    /// NVLink and NVSwitch.
    pub fn fabric(&self) -> &Fabric {
        &self.parts.fabric
    }

    /// Sets of GPUs that may form a guest; empty if any set may.
    pub fn partitions(&self) -> &[Partition] {
        &self.parts.fabric.partitions
    }
}

/// Collects IOMMU groups from their members.
fn groups(parts: &Parts) -> BTreeMap<u32, IommuGroup> {
    let mut groups = BTreeMap::new();
    for device in &parts.devices {
        if let Some(number) = device.iommu_group {
            groups
                .entry(number)
                .or_insert_with(|| IommuGroup { number, members: Vec::new() })
                .members
                .push(device.bdf);
        }
    }
    groups
}

/// Indexes of L3 caches by pcpu number.
fn l3_index(caches: &[L3]) -> Vec<u32> {
    let last = caches.iter().filter_map(|cache| cache.pcpus.last()).max();
    let mut index = vec![NONE; last.map_or(0, |pcpu| pcpu.0 as usize + 1)];
    for (cache, place) in caches.iter().zip(0..) {
        cache.pcpus.iter().for_each(|pcpu| index[pcpu.0 as usize] = place);
    }
    index
}

#[cfg(test)]
mod tests;
