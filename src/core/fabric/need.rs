//! The partition that a set of GPUs needs where Fabric Manager controls the NVSwitches, decided
//! from the host's record alone: one rule for `create`, `start` and libvirt's hook at start.

use super::{Listed, ListedGpu, Modules, ModulesText};
use crate::bdf::Bdf;
use crate::topology::{FabricModel, NoPartition, Partition, Topology};
use crate::words::{count, nouns};
use std::fmt;

/// A GPU of a needed partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededGpu {
    /// Its address.
    pub bdf: Bdf,
    /// Its module id; `None` if unknown, which only the partition of all GPUs can do without.
    pub module: Option<u32>,
    /// The guest's virtual function of it; `None` if the guest has the whole GPU.
    pub vf: Option<Bdf>,
}

/// A partition that must be active before a guest with its GPUs starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Its number.
    pub partition: u32,
    /// Its GPUs, by module id.
    pub gpus: Vec<NeededGpu>,
    /// Virtual functions of its GPU that other guests may have: then the partition is for all of
    /// them. Empty if it is for one guest.
    pub beside: Vec<Bdf>,
}

/// Why no partition can be activated for a set of GPUs.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "partition-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum NeedRefusal {
    /// No partition has exactly these GPUs.
    #[error(
        "no NVLink partition has exactly {} ({}): partitions have {}",
        count(*gpus, "GPU of this guest"),
        ModulesText(modules),
        listed(sizes)
    )]
    None {
        /// How many GPUs of the board the guest has.
        gpus: usize,
        modules: Modules,
        sizes: Vec<usize>,
        /// The partitions of this many GPUs, by module id.
        same: Vec<Modules>,
    },
    /// Whether a partition has exactly these GPUs is not known.
    #[error(
        "the NVLink partition of exactly {} is unknown: {} of {unknown} of them {} not known",
        count(*gpus, "GPU of this guest"),
        if *unknown == 1 { "the module id" } else { "the module ids" },
        if *unknown == 1 { "is" } else { "are" }
    )]
    UnknownGpus {
        /// How many GPUs of the board the guest has.
        gpus: usize,
        /// How many of them have no known module id.
        unknown: usize,
        how: String,
    },
    /// A reset after the activation turns NVLinks off, and QEMU resets at each start.
    #[error(
        "NVLink partition {partition} would lose its NVLinks at the start: on this board a GPU's \
         reset after the activation turns them off, and QEMU resets GPUs as a guest starts"
    )]
    ResetCutsLinks { partition: u32 },
}

impl NeedRefusal {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            NeedRefusal::UnknownGpus { how, .. } => how.clone(),
            NeedRefusal::None { gpus, same, .. } if !same.is_empty() => {
                let same: Vec<String> =
                    same.iter().map(|modules| ModulesText(modules).to_string()).collect();
                format!("partitions of {}: {}", count(*gpus, "GPU"), same.join("; "))
            }
            NeedRefusal::None { .. } => "`gpuvm fabric show` lists the partitions".to_owned(),
            NeedRefusal::ResetCutsLinks { .. } => {
                "all GPUs of the host form one guest that works; else set FABRIC_MODE=0 in \
                 fabricmanager.cfg and stop nvidia-fabricmanager, so that guests get NVSwitches \
                 along with GPUs"
                    .to_owned()
            }
        }
    }
}

impl Need {
    /// The guest's virtual functions of its GPUs, in their order; empty for whole GPUs.
    pub fn vfs(&self) -> Vec<Bdf> {
        self.gpus.iter().filter_map(|gpu| gpu.vf).collect()
    }

    /// The known module ids.
    pub fn modules(&self) -> Modules {
        self.gpus.iter().filter_map(|gpu| gpu.module).collect()
    }

    /// Each GPU with its module id. If one is unknown, the partition is that of all GPUs and has
    /// the modules that Fabric Manager lists for it; the assignment to GPUs then does not matter.
    /// `None` if it lists another number of modules.
    pub fn placed(&self, listed: &[Listed]) -> Option<Vec<(u32, Bdf)>> {
        let known = self.modules();
        let mut free: Vec<u32> = Vec::new();
        if known.len() < self.gpus.len() {
            let modules = listed.iter().find(|one| one.id == self.partition)?.modules();
            free = modules.difference(&known).copied().collect();
            if free.len() + known.len() != self.gpus.len() {
                return None;
            }
        }
        let mut free = free.into_iter();
        let module = |gpu: &NeededGpu| Some((gpu.module.or_else(|| free.next())?, gpu.bdf));
        self.gpus.iter().map(module).collect()
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.partition)?;
        let modules = self.modules();
        if modules.is_empty() { Ok(()) } else { write!(f, " ({})", ModulesText(&modules)) }
    }
}

/// Returns the partition that must be active for a guest with these devices; `None` if it has no
/// GPU of a board whose NVSwitches Fabric Manager controls.
pub fn need(topology: &Topology, devices: &[Bdf]) -> Result<Option<Need>, NeedRefusal> {
    let fabric = topology.fabric();
    if fabric.model != FabricModel::SharedNvswitch {
        return Ok(None);
    }
    let ruled: Vec<Bdf> = topology.ruled().collect();
    let gpus = ruled.iter().filter(|bdf| devices.contains(bdf)).count();
    let partition = match topology.partition_of(devices) {
        Ok(None) => return Ok(None),
        Ok(Some(partition)) => partition,
        Err(NoPartition { unknown }) => {
            let own: Vec<Bdf> = ruled.into_iter().filter(|bdf| devices.contains(bdf)).collect();
            if unknown > 0 {
                let (gpus, how) = (own.len(), topology.how_modules());
                return Err(NeedRefusal::UnknownGpus { gpus, unknown, how });
            }
            return Err(none(topology, &own));
        }
    };
    let number = partition.id.0;
    if fabric.reset_cuts_links && gpus < ruled.len() {
        return Err(NeedRefusal::ResetCutsLinks { partition: number });
    }
    let module = |bdf: Bdf| {
        let known = fabric.module_ids.iter().find(|(known, _)| *known == bdf);
        NeededGpu { bdf, module: known.map(|(_, module)| *module), vf: None }
    };
    let mut gpus: Vec<NeededGpu> = partition.gpus.iter().copied().map(module).collect();
    gpus.sort_by_key(|gpu| (gpu.module, gpu.bdf));
    Ok(Some(Need { partition: number, gpus, beside: Vec::new() }))
}

/// Returns the refusal of GPUs that form no partition, with the partitions that exist.
pub(super) fn none(topology: &Topology, gpus: &[Bdf]) -> NeedRefusal {
    let fabric = topology.fabric();
    let modules = |gpus: &[Bdf]| -> Modules {
        let known = fabric.module_ids.iter().filter(|(bdf, _)| gpus.contains(bdf));
        known.map(|(_, module)| *module).collect()
    };
    let mut sizes: Vec<usize> = fabric.partitions.iter().map(|one| one.gpus.len()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let same = fabric.partitions.iter().filter(|one| one.gpus.len() == gpus.len());
    let same = same.map(|one| modules(&one.gpus)).filter(|modules| !modules.is_empty()).collect();
    NeedRefusal::None { gpus: gpus.len(), modules: modules(gpus), sizes, same }
}

/// Formats sizes: `1, 2 GPUs`.
fn listed(sizes: &[usize]) -> String {
    let all = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("{all} {}", nouns(sizes.last().copied().unwrap_or_default(), "GPU"))
}

/// Returns the list that Fabric Manager would give according to the host's record: the partitions
/// whose module ids are all known, as inactive.
pub fn by_record(topology: &Topology) -> Vec<Listed> {
    let fabric = topology.fabric();
    let module = |bdf: &Bdf| fabric.module_ids.iter().find(|(known, _)| known == bdf);
    let of = |partition: &Partition| {
        let gpu = |bdf: &Bdf| {
            let (bdf, module) = *module(bdf)?;
            let links = partition.nvlinks_per_gpu;
            Some(ListedGpu { module, bus: Some(bdf), links, most: links })
        };
        let gpus: Option<Vec<ListedGpu>> = partition.gpus.iter().map(gpu).collect();
        Some(Listed { id: partition.id.0, active: false, gpus: gpus? })
    };
    fabric.partitions.iter().filter_map(of).collect()
}
