//! A guest's QEMU process as the kernel reports it: where its threads may run, where its memory is,
//! which devices it has open. Values that this user may not read are none, not guessed.

use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its name, at most 15 bytes: `CPU 0/KVM`, `IO iothread1`.
    pub name: String,
    /// Where it may run, as far as the pcpus are there.
    pub pcpus: CpuSet,
}

/// Memory of one kind: its backing, and its amount by node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mapped {
    /// Guest cell by QEMU's name of a memory file (`ram-node1`); `None` if no file, or another
    /// name.
    pub cell: Option<u32>,
    /// Whether the process binds it to nodes.
    pub bound: bool,
    /// Page size.
    pub page_kib: MemSize,
    /// How much lies on which node.
    pub nodes: BTreeMap<NodeId, MemSize>,
}

/// The open files of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Opened {
    /// Ends of virtual network cables: one for each queue.
    pub taps: usize,
    /// Queues that the kernel serves (vhost-net).
    pub vhosts: usize,
    /// Names below /dev/vfio: IOMMU groups, and `devices/vfioN` where a function is opened by
    /// itself.
    pub vfio: BTreeSet<String>,
    /// Files and block devices by path, and whether the host's page cache is passed over (O_DIRECT)
    /// by any opening.
    pub files: BTreeMap<String, bool>,
}

/// A guest's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its threads by id; the first is the main one.
    pub threads: Vec<Thread>,
    /// The kernel's threads that serve its network queues, where they are no threads of its own
    /// (before Linux 6.4).
    pub vhosts: Vec<Thread>,
    /// Its memory; `None` if this user may not see it, or the kernel does not report nodes.
    pub memory: Option<Vec<Mapped>>,
    /// Its open files; `None` if this user may not see them.
    pub opened: Option<Opened>,
    /// How many files it may have open; `None` if this user may not see it.
    pub file_limit: Option<u64>,
}
