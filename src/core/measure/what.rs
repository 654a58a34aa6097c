//! Measured quantities: their units, better direction, and possible causes of bad values.

use serde::{Deserialize, Serialize};

/// A measured quantity.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::EnumString,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum What {
    /// Copies from memory to a GPU.
    HostToDevice,
    /// Copies from a GPU to memory.
    DeviceToHost,
    /// Copies from one GPU to another, read by the receiver.
    DeviceToDevice,
    /// Bus bandwidth of an all-reduce over all GPUs.
    AllReduce,
    /// RDMA writes from memory to memory, between two NICs.
    RdmaWrite,
    /// RDMA reads from memory to memory.
    RdmaRead,
    /// RDMA writes from GPU memory to GPU memory (GPUDirect RDMA).
    RdmaWriteGpu,
    /// RDMA reads from GPU memory to GPU memory.
    RdmaReadGpu,
    /// Sequential reads of a file.
    DiskRead,
    /// Random reads of 4 KiB of a file.
    DiskRandomRead,
    /// STREAM's triad on all vCPUs, or on those of a cell with its memory.
    Triad,
    /// Latency of reads of memory from a cell, of its own memory or another one's.
    MemoryLatency,
    /// The latest wake-up of a timer.
    TimerLatency,
}

impl What {
    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            What::DiskRandomRead => "IOPS",
            What::TimerLatency => "us",
            What::MemoryLatency => "ns",
            What::RdmaWrite | What::RdmaRead | What::RdmaWriteGpu | What::RdmaReadGpu => "Gb/s",
            _ => "GB/s",
        }
    }

    /// Whether smaller values are better.
    pub fn is_delay(self) -> bool {
        matches!(self, What::TimerLatency | What::MemoryLatency)
    }

    /// Whether a value is worse than a limit.
    pub fn is_worse(self, value: f64, limit: f64) -> bool {
        if self.is_delay() { value > limit } else { value < limit }
    }
}

/// A value that a program measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The quantity.
    pub what: What,
    /// The GPU, the pair of GPUs or NICs, or the cells; `None` if it is about the whole guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The value, in the quantity's unit.
    pub value: f64,
}

/// Returns the rules of `verify` and `host doctor` whose findings can explain a bad value, the most
/// likely cause first.
pub fn candidates(what: What) -> Vec<&'static str> {
    let ids: &[&str] = match what {
        What::HostToDevice | What::DeviceToHost => &[
            "link-width",
            "guest-device-cell",
            "memory-off-node",
            "memory-not-on-huge-pages",
            "aspm",
        ],
        What::DeviceToDevice | What::AllReduce => &[
            "partition-missing",
            "partition-degraded",
            "partition-pending",
            "nccl-file",
            "guest-driver",
            "link-width",
        ],
        What::DiskRead | What::DiskRandomRead => {
            &["iothread-affinity", "iothread-missing", "emulator-affinity", "disk-cache"]
        }
        What::RdmaWrite | What::RdmaRead => {
            &["link-width", "guest-device-cell", "vcpu-waits", "memory-off-node"]
        }
        What::RdmaWriteGpu | What::RdmaReadGpu => {
            &["p2p-redirected", "p2p-rejected", "nccl-file", "link-width", "guest-device-cell"]
        }
        What::Triad | What::MemoryLatency => &[
            "guest-cells",
            "memory-off-node",
            "memory-not-on-huge-pages",
            "transparent-huge-pages-off",
        ],
        What::TimerLatency => &[
            "vcpu-waits",
            "vcpu-throttled",
            "emulator-affinity",
            "vcpu-affinity",
            "governor",
            "isolation-mismatch",
            "irqbalance",
        ],
    };
    ids.to_vec()
}
