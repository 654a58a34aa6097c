//! NVLink and NVSwitch: which sets of GPUs may form one guest, and how GPUs are linked.

use super::{DeviceKind, PciDevice, Topology};
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Path of Fabric Manager's configuration in NVIDIA's packages.
pub const FABRIC_CONFIG: &str = "/usr/share/nvidia/nvswitch/fabricmanager.cfg";

/// A partition's number: Fabric Manager's in the shared model, ours in full passthrough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How the NVSwitches of a host serve guests (gpuvm-hardware(7), NVSWITCH MODELS).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// A set of GPUs that one guest may have with NVLink between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Whether Fabric Manager had it active when the host was read; says nothing in full
    /// passthrough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub active: bool,
}

/// A direct link between two GPUs, or the count of links between two GPUs over switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// One GPU; the lower address.
    pub a: Bdf,
    /// The other.
    pub b: Bdf,
    /// Number of NVLinks.
    pub links: u32,
}

/// The known NVLinks and partitions of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// The board, such as `DGX-2` or `HGX H100`; `None` if no board, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// How NVSwitches serve guests.
    #[serde(default)]
    pub model: FabricModel,
    /// Where partitions and links come from, in words: a table for a known board, or read from the
    /// host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Sets of GPUs that may form a guest, by number; empty: any set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Partition>,
    /// Links between GPUs, by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<NvLink>,
    /// Module id of each GPU, 1-based, if known; never derived from PCI order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub module_ids: Vec<(Bdf, u32)>,
    /// Missing parts of the board: a GPU or a switch that does not respond. Not empty: degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// Whether a GPU's reset after its partition was activated leaves its NVLinks off: in the
    /// shared model, before H100.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset_cuts_links: bool,
    /// Whether the NVLinks of a guest with some of the GPUs stay on unless blocked: in full
    /// passthrough, from H100 on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub links_stay_on: bool,
    /// Functions of the ConnectX-7 bridge in front of NVSwitches that are not PCI functions, by
    /// address; empty if there is none or it is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bridge: Vec<Bdf>,
    /// Why NVML has no module ids, in words; `None` if it has them, or was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules_untold: Option<String>,
    /// Why the recorded NVLinks are not used, in words, with the remedy; none if they are used, or
    /// none were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links_unread: Option<String>,
    /// Whether Fabric Manager is in a mode for whole GPUs (`FABRIC_MODE` 0 or 1), in which it
    /// activates no partition with virtual functions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_gpus_only: bool,
}

/// The reason no guest gets a vGPU of a card: Fabric Manager's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoVgpuMode {
    card: Bdf,
}

impl NoVgpuMode {
    /// Returns the remedy.
    pub fn hint(self) -> String {
        format!(
            "`sed -i 's/^FABRIC_MODE=.*/FABRIC_MODE=2/' {FABRIC_CONFIG}`, then `systemctl restart \
             nvidia-fabricmanager` while no guest has a GPU"
        )
    }
}

impl fmt::Display for NoVgpuMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is on an NVSwitch board whose Fabric Manager is not in the mode for vGPUs",
            self.card
        )
    }
}

/// The error of a set of GPUs that may not form a guest: it is not an NVLink partition of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPartition {
    /// GPUs of the set whose module id is unknown, so that their partition is unknown, too.
    pub unknown: usize,
}

/// How to learn module ids if NVML was not asked, as words to follow a semicolon.
const HOW_MODULES: &str = "NVML reports module ids only while the GPUs are bound to `nvidia`: \
`gpuvm host modules --write` on the host saves them, and `gpuvm host capture -` \
                               there records them";

impl Topology {
    /// Returns how to learn module ids, as words to follow a semicolon.
    pub fn how_modules(&self) -> String {
        match &self.fabric().modules_untold {
            None => HOW_MODULES.to_owned(),
            Some(why) => {
                format!(
                    "NVML has no module ids: {why}; once it has, `gpuvm host modules --write` keeps them"
                )
            }
        }
    }

    /// Whether this host restricts sets of GPUs to partitions; otherwise any set may form a guest.
    pub fn is_partitioned(&self) -> bool {
        let fabric = self.fabric();
        fabric.model != FabricModel::None || !fabric.partitions.is_empty()
    }

    /// Why no guest gets a vGPU of a card by Fabric Manager's mode; `None` if the mode permits it, or
    /// the card is not on an NVSwitch board. `plan` and `start` share this decision.
    pub fn no_vgpu_mode(&self, card: Bdf) -> Option<NoVgpuMode> {
        let is_refused = self.fabric().whole_gpus_only && self.ruled().any(|gpu| gpu == card);
        is_refused.then_some(NoVgpuMode { card })
    }

    /// Whether a function is an NVSwitch that stays with Fabric Manager: in the shared model,
    /// guests get GPUs only.
    pub fn is_fabric_managers(&self, bdf: Bdf) -> bool {
        self.fabric().model == FabricModel::SharedNvswitch
            && self.device(bdf).is_some_and(|device| device.kind() == DeviceKind::NvSwitch)
    }

    /// Returns the partition of a set of GPUs in full passthrough whose NVSwitches are reached only
    /// through a bridge, since they are not PCI functions; none if the set needs no bridge.
    pub fn behind_bridge(&self, gpus: &[Bdf]) -> Option<&Partition> {
        let is_passed = self.fabric().model == FabricModel::FullPassthrough;
        let own = self.partition_of(gpus).ok().flatten().filter(|_| is_passed)?;
        let is_behind = own.gpus.len() > 1 && own.nvlinks_per_gpu > 0 && own.nvswitches == 0;
        is_behind.then_some(own)
    }

    /// Whether a set of GPUs is a part of a board whose NVLinks stay on unless blocked.
    pub fn keeps_links_on(&self, gpus: &[Bdf]) -> bool {
        let own = self.ruled().filter(|bdf| gpus.contains(bdf)).count();
        self.fabric().links_stay_on && (1..self.ruled().count()).contains(&own)
    }

    /// Returns the GPUs that guests get only in partitions: those of the NVLink board. A GPU beside
    /// the board, recognized by its id, needs none. Where Fabric Manager controls the switches this
    /// applies to a single GPU, too: CUDA in its guest waits until a partition of exactly that GPU
    /// is active (cuInit 802; "Fabric Manager User Guide", shared NVSwitch).
    pub fn ruled(&self) -> impl Iterator<Item = Bdf> {
        let id = |gpu: &PciDevice| (gpu.vendor, gpu.device);
        let mut models = self.gpus().map(id);
        let first = models.next();
        // On most hosts all GPUs are of one model.
        let ids = if models.all(|model| Some(model) == first) { Vec::new() } else { self.board() };
        let ruled = move |gpu: &&PciDevice| ids.is_empty() || ids.contains(&id(gpu));
        let any = self.is_partitioned();
        self.gpus().filter(move |gpu| any && ruled(gpu)).map(|gpu| gpu.bdf)
    }

    /// Vendor and device ids of the GPUs known to be on the NVLink board.
    fn board(&self) -> Vec<(u16, u16)> {
        let fabric = self.fabric();
        let named = fabric.partitions.iter().flat_map(|partition| partition.gpus.iter().copied());
        let linked = fabric.links.iter().flat_map(|link| [link.a, link.b]);
        let known = fabric.module_ids.iter().map(|(bdf, _)| *bdf);
        let id = |bdf| self.device(bdf).map(|device| (device.vendor, device.device));
        let mut ids: Vec<_> = named.chain(linked).chain(known).filter_map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The partition that a set of GPUs forms; none if it needs none. The planner, the checks and
    /// all other judges of GPU sets share this decision.
    pub fn partition_of(&self, gpus: &[Bdf]) -> Result<Option<&Partition>, NoPartition> {
        let mut set: Vec<Bdf> = self.ruled().filter(|bdf| gpus.contains(bdf)).collect();
        set.sort_unstable();
        if set.is_empty() {
            return Ok(None);
        }
        let same = |partition: &&Partition| {
            partition.gpus.len() == set.len() && partition.gpus.iter().all(|gpu| set.contains(gpu))
        };
        let unknown = || NoPartition { unknown: self.without_module(&set) };
        self.fabric().partitions.iter().find(same).map(Some).ok_or_else(unknown)
    }

    /// Returns how many of these GPUs have no known module id although their partitions are defined
    /// by it.
    pub fn without_module(&self, gpus: &[Bdf]) -> usize {
        let fabric = self.fabric();
        let known = |gpu: &&Bdf| !fabric.module_ids.iter().any(|(bdf, _)| bdf == *gpu);
        match fabric.model {
            FabricModel::SharedNvswitch => gpus.iter().filter(known).count(),
            FabricModel::None | FabricModel::FullPassthrough => 0,
        }
    }
}
