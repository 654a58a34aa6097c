//! Processors and memory of a host.

use super::pages::HugePagePool;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// A host NUMA node. Its pcpus may be none (memory only), its memory may be zero (CPUs only).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number; numbers may have gaps.
    pub os_index: NodeId,
    /// Online pcpus.
    #[serde(default)]
    pub pcpus: CpuSet,
    /// Memory of the node.
    pub memory_kib: MemSize,
    /// Distance to each node, in the order of [`super::Parts::nodes`]; 10 is local. Empty if the
    /// kernel reports none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
    /// Pools of huge pages, by page size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<HugePagePool>,
    /// The GPU that is a generic initiator of the node and whose memory it may have; `None` if it
    /// is the machine's own, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Bdf>,
}

/// A core with its online SMT threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Package (`physical_package_id`); 0 if the kernel knows none.
    pub package: u32,
    /// Die within the package, if the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die: Option<u32>,
    /// Core number within the package; not unique on hosts with several dies, and not dense.
    pub core_id: u32,
    /// Node that the core's pcpus belong to.
    pub node: NodeId,
    /// Online pcpus, ascending.
    pub pcpus: CpuSet,
}

/// How fast a core is among those of a host with several kinds; the order is the planner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Speed {
    /// Intel's P cores; on Arm, those with at least three quarters of the largest capacity.
    Performance,
    /// Intel's E cores; on Arm, the others.
    Efficiency,
    /// Intel's low-power E cores.
    LowPower,
}

impl Speed {
    /// The name of cores of this kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Speed::Performance => "performance",
            Speed::Efficiency => "efficiency",
            Speed::LowPower => "low-power",
        }
    }
}

/// The cores of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CoreKind {
    /// The kind.
    pub kind: Speed,
    /// Its online pcpus.
    pub pcpus: CpuSet,
}

/// A level-3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct L3 {
    /// Online pcpus that share it.
    pub pcpus: CpuSet,
    /// Its size, if the kernel reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_kib: Option<MemSize>,
}
