//! Why a plan is as it is, as data. Knows no rule of placement.

use serde::{Deserialize, Serialize};

/// What a reason is about; in JSON and in text its name in kebab case.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::Display,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Topic {
    /// Which GPUs.
    Gpus,
    /// Which NVSwitches.
    Nvswitches,
    /// Which NICs.
    Nics,
    /// Which virtual functions.
    Vfs,
    /// Which NVMe drives.
    Nvmes,
    /// Functions that are missing beside those of a tuned guest.
    Devices,
    /// Drivers of the functions.
    Drivers,
    /// Whether other guests reach the GPUs over NVLink.
    Isolation,
    /// Whether the IOMMU keeps the functions apart from others.
    Iommu,
    /// Peer-to-peer between GPUs over PCIe.
    P2p,
    /// Host nodes.
    Nodes,
    /// Number of vCPUs and their cores.
    Vcpus,
    /// Pins of vCPUs.
    Pins,
    /// Pin of the emulator.
    Emulator,
    /// I/O threads.
    Iothreads,
    /// Guest memory.
    Memory,
    /// Rounding of memory to whole pages of each cell.
    MemoryRounding,
    /// Host nodes that the cells' memory is bound to.
    MemoryNodes,
    /// Pools of huge pages.
    HugePages,
    /// Mounts of huge pages.
    Hugetlbfs,
    /// Guest PCIe tree.
    Pcie,
    /// 64-bit PCI MMIO window.
    Window,
    /// What the domain's template lacks.
    Template,
}

/// Why one choice was made, one line of `--explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reason {
    /// What was chosen.
    pub choice: Topic,
    /// The reason, a sentence without full stop.
    pub because: String,
    /// Whether it is a compromise that the admin should know of.
    #[serde(default)]
    pub compromise: bool,
}
