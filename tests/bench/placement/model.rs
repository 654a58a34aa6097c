//! What every planner of the shoot-out gets and gives: a host, what is taken, a wish; and a place or none.

use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;

/// What one guest asks for. Every planner gets the same numbers.
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

/// Where a guest stands; nothing in it is checked: that is the judge's work (metrics).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// GPUs.
    pub gpus: Vec<Bdf>,
    /// NVSwitches and whatever else has to come along.
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

/// Is one planner.
pub trait Policy {
    /// Its name in the table.
    fn name(&self) -> String;
    /// Inputs that it does not have, in a few words each: `PCIe switches`, `NVLink partitions`.
    fn lacks(&self) -> &'static [&'static str];
    /// Finds a place on a host where these guests already stand; none: it refuses.
    fn place(&self, host: &Topology, guests: &[Place], ask: &Ask) -> Option<Place>;
}
