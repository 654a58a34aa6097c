//! The interface of every planner of the shoot-out: a host, its guests and a request; and a
//! placement or none.

use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;

/// The request for one guest. Every planner gets the same numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// GPUs.
    pub gpus: u32,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory.
    pub memory: MemSize,
    /// NICs, whole physical functions.
    pub nics: u32,
    /// NVMe drives, whole functions.
    pub nvmes: u32,
}

/// The placement of a guest; it is not checked here but by the judge (metrics).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// GPUs.
    pub gpus: Vec<Bdf>,
    /// NVSwitches and other devices that must be included.
    pub along: Vec<Bdf>,
    /// NICs.
    pub nics: Vec<Bdf>,
    /// NVMe drives.
    pub nvmes: Vec<Bdf>,
    /// Pin of each vCPU.
    pub pins: Vec<CpuSet>,
    /// Pcpus of the emulator that no vCPU of the guest has; empty: it floats over the vCPUs'.
    pub emulator: CpuSet,
    /// Memory by node.
    pub memory: Vec<(NodeId, MemSize)>,
}

/// One planner.
pub trait Policy {
    /// Its name in the table.
    fn name(&self) -> String;
    /// Inputs that it does not have, in a few words each: `PCIe switches`, `NVLink partitions`.
    fn lacks(&self) -> &'static [&'static str];
    /// Finds a placement on a host with these guests; `None` if it refuses.
    fn place(&self, host: &Topology, guests: &[Place], ask: &Ask) -> Option<Place>;
}
