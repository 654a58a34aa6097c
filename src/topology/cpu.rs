//! Processors and memory of a host.

use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};

/// Is a pool of huge pages of one size on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HugePagePool {
    /// Page size.
    pub page_kib: MemSize,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    /// Pages of the pool beyond the number that was set: the kernel drops each when it is no longer used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surplus: u64,
}

impl HugePagePool {
    /// The number that was set: what is there without the surplus.
    pub fn reserved(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// Pages in use.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// Whether a number is left out of a record.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Is a file system of huge pages that is mounted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HugetlbMount {
    /// Page size.
    pub page_kib: MemSize,
    /// Where it is mounted.
    pub at: String,
}

/// Is a host NUMA node. Its pcpus may be none (memory only), its memory may be zero (CPUs only).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number; numbers may have gaps.
    pub os_index: NodeId,
    /// Online pcpus.
    #[serde(default)]
    pub pcpus: CpuSet,
    /// Memory of the node.
    pub memory_kib: MemSize,
    /// Distance to each node, in the order of [`super::Parts::nodes`]; 10 is local. Empty where the kernel says none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
    /// Pools of huge pages, by page size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<HugePagePool>,
}

/// Is a core with its online SMT threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Package (`physical_package_id`); 0 where the kernel knows none.
    pub package: u32,
    /// Die within the package, where the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die: Option<u32>,
    /// Core number within the package; not unique on hosts with several dies, and not dense.
    pub core_id: u32,
    /// Node that the core's pcpus belong to.
    pub node: NodeId,
    /// Online pcpus, ascending.
    pub pcpus: CpuSet,
}

/// Is a level-3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct L3 {
    /// Online pcpus that share it.
    pub pcpus: CpuSet,
    /// Its size, where the kernel says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_kib: Option<MemSize>,
}
