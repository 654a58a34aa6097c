//! The types that the parts of a placement are made of.

use crate::bdf::Bdf;
use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::request::RequestError;
use serde::{Deserialize, Serialize};

/// Whether a function can be passed through now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// It can.
    Free,
    /// A domain holds it.
    Held,
    /// Excluded by an admin or by the NVIDIA driver.
    Excluded,
    /// It is not tested since its last guest, and the host's policy requires that.
    Untested,
    /// Its health is over a limit.
    Unhealthy,
    /// It does not answer.
    Silent,
    /// The host uses it.
    Host,
    /// It has virtual functions enabled, or its IOMMU group prevents it.
    Blocked,
    /// A drive with data or unknown content: taken only by address, never by number.
    Data,
    /// A boot display or an integrated GPU: taken only by address, never by number.
    Display,
    /// gpuvm cannot pass it through yet.
    Unsupported,
    /// No guest can get it: the IOMMU is off, the firmware keeps memory of its group, or its
    /// memory has no address.
    Barred,
}

/// One guest NUMA cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestCell {
    /// vCPUs of the cell: consecutive numbers.
    pub vcpus: std::ops::Range<u32>,
    /// Memory of the cell, a multiple of the page size in use.
    pub memory_kib: MemSize,
    /// Host nodes that the memory is bound to; empty: not bound.
    pub host_nodes: NodeSet,
    /// Distance to each cell, in cell order; empty if the host knows none or there is only one
    /// cell.
    pub distances: Vec<u32>,
}

/// The empty cells of a GPU with coherent memory, of which it is a generic initiator: its driver puts
/// the memory of its MIG instances there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InitiatorCells {
    /// The GPU.
    pub gpu: Bdf,
    /// Ids of the cells.
    pub cells: std::ops::Range<u32>,
}

/// The empty cells of a guest's GPUs with coherent memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Initiators {
    /// By GPU, in guest order; the first cell follows the last one with vCPUs.
    pub gpus: Vec<InitiatorCells>,
    /// Distance from each cell of the guest to each, those with vCPUs first; null: unknown.
    pub distances: Vec<Vec<Option<u32>>>,
}

impl Initiators {
    /// The cells of a GPU; `None` if it is another function.
    pub fn cells_of(&self, gpu: Bdf) -> Option<std::ops::Range<u32>> {
        let own = self.gpus.iter().find(|own| own.gpu == gpu)?;
        Some(own.cells.clone())
    }

    /// The known distances from a cell, each with the id of the other.
    pub fn distances_from(&self, cell: usize) -> impl Iterator<Item = (usize, u32)> {
        let row = self.distances.get(cell).into_iter().flatten().enumerate();
        row.filter_map(|(to, distance)| Some((to, (*distance)?)))
    }
}

/// A guest's CPU topology: the product is the number of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestTopology {
    /// Packages (libvirt's `sockets`).
    pub sockets: u32,
    /// Dies of a package.
    #[serde(default = "one")]
    pub dies: u32,
    /// Cores of a die.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl GuestTopology {
    /// The same without dies. QEMU 10.0 without KVM ends with `encode_topo_cpuid1f: Assertion ...
    /// failed` when a guest of several dies queries a level missing in leaf 0x1f, as Linux does at
    /// boot; KVM answers by itself.
    pub fn without_dies(self) -> GuestTopology {
        GuestTopology { dies: 1, cores: self.dies * self.cores, ..self }
    }
}

/// Dies of a package in records of versions without dies.
fn one() -> u32 {
    1
}

/// Source of the guest's cache leaves (libvirt's `mode` of a CPU's `<cache>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GuestCache {
    /// The host's CPU: sizes and sharing are the host's.
    Passthrough,
    /// QEMU: an L3 of 16 MiB for each die.
    Emulate,
}

impl GuestCache {
    /// Returns libvirt's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            GuestCache::Passthrough => "passthrough",
            GuestCache::Emulate => "emulate",
        }
    }
}

/// The group of passed-through devices that hang below one expander bus of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PcieGroup {
    /// Index of the guest cell that owns them: the only one, or the one on their node; `None` if
    /// that node has no cell.
    pub cell: Option<u32>,
    /// Devices, one root port each but for [`GuestPcie::beside_gpu`], in guest order.
    pub devices: Vec<Bdf>,
}

/// The part of the guest's PCIe tree that carries passed-through devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestPcie {
    /// One expander bus each.
    pub groups: Vec<PcieGroup>,
    /// Links of the host's path to each device, in guest order; unknown ones are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PcieLink>,
    /// GPUs with peer-to-peer over PCIe, one clique each; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cliques: Vec<Vec<Bdf>>,
    /// Functions of a GPU's card, such as its audio, that keep their function numbers in the slot
    /// of the GPU: drivers look for them there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside_gpu: Vec<Bdf>,
}

impl GuestPcie {
    /// How many root ports the functions of a group have.
    pub fn ports_of(&self, group: &PcieGroup) -> usize {
        group.devices.iter().filter(|bdf| !self.beside_gpu.contains(bdf)).count()
    }
}

/// Capacity of the host's whole path to a device: its slowest link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PcieLink {
    /// The device.
    pub device: Bdf,
    /// Speed in units of 0.1 GT/s (25 is 2.5 GT/s).
    pub speed_dgts: u32,
    /// Width in lanes.
    pub width: u8,
}

/// A guest's pages from the pool of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodePages {
    /// The node.
    pub node: NodeId,
    /// Pages that the guest takes.
    pub needed: u64,
    /// Free pages that no stopped domain will take.
    pub free: u64,
    /// Pages that are reserved there, whoever uses them.
    pub reserved: u64,
}

impl NodePages {
    /// Pages that must be reserved before the guest can start.
    pub fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.free)
    }
}

/// The reason no place was found, with a hint.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "plan-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PlanError {
    /// The request contradicts itself.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Request(#[from] RequestError),
    /// The request cannot be met on this host, even if it were empty.
    #[error("{what}")]
    Impossible {
        what: String,
        /// The nearest possible request, or a command to run.
        hint: String,
    },
    /// The request cannot be met now.
    #[error("{what}")]
    Taken {
        what: String,
        /// Who holds it, one line each.
        holders: Vec<String>,
        hint: String,
    },
}

impl PlanError {
    /// Returns the error with words before what it says.
    pub(super) fn after(mut self, before: &str) -> PlanError {
        if let PlanError::Impossible { what, .. } | PlanError::Taken { what, .. } = &mut self {
            what.insert_str(0, before);
        }
        self
    }
}
