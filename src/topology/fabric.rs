//! NVLink and NVSwitch: which sets of GPUs may form one guest, and how GPUs are linked.

use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Is a partition's number: Fabric Manager's in the shared model, ours in full passthrough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Is how the NVSwitches of a host serve guests (spec/nvswitch.md 1.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricModel {
    /// No NVSwitch: any set of GPUs may form a guest.
    #[default]
    None,
    /// Guests get NVSwitches along with GPUs.
    FullPassthrough,
    /// Switches stay with Fabric Manager; guests get GPUs of one partition.
    SharedNvswitch,
}

/// Is a set of GPUs that one guest may have with NVLink between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Its number, unique on the host.
    pub id: PartitionId,
    /// Its GPUs, by address.
    pub gpus: Vec<Bdf>,
    /// NVLinks of each GPU that work in it.
    pub nvlinks_per_gpu: u32,
    /// NVSwitches that a guest needs with it; 0 in the shared model.
    #[serde(default)]
    pub nvswitches: u32,
    /// NVSwitches to take them from: those of the GPUs' boards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvswitch_pool: Vec<Bdf>,
    /// Whether Fabric Manager had it active when the host was read; says nothing in full passthrough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub active: bool,
}

/// Is a direct link between two GPUs, or the count of links between two GPUs over switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// One GPU; the lower address.
    pub a: Bdf,
    /// The other.
    pub b: Bdf,
    /// How many NVLinks.
    pub links: u32,
}

/// Is what is known of NVLink on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// The board, in words: `DGX-2`, `HGX H100`; none where there is none or it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// How NVSwitches serve guests.
    #[serde(default)]
    pub model: FabricModel,
    /// Where partitions and links come from, in words: a table for a known board, or read from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Sets of GPUs that may form a guest, by number; empty: any set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Partition>,
    /// Links between GPUs, by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<NvLink>,
    /// Module id of each GPU, 1-based, where known; never derived from PCI order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub module_ids: Vec<(Bdf, u32)>,
    /// What is missing against the board's plan: a GPU or a switch that does not answer. Not empty: degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
}
