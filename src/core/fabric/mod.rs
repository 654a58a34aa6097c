//! Fabric Manager's partitions in the shared NVSwitch model: whether one may be activated for a
//! domain, how the list fits the running domains, the meaning of return codes, and the partitions
//! to restore after Fabric Manager restarts (gpuvm-hardware(7), SHARED NVSWITCH).
//!
//! Fabric Manager knows partitions and GPUs by module id, libvirt knows domains; here the two are
//! compared. Running domains take precedence, then the recorded activations, then Fabric Manager's
//! list. Pure: asks neither.

mod codes;
mod decision;
mod listed;
mod need;
mod pauses;
mod readiness;
mod restore;
mod verdict;
mod versions;
mod vgpu;
mod vgpu_restore;

pub use codes::{Call, Code, IN_USE, Meaning, VERSION_MISMATCH};
pub use decision::{Decision, NeededPartition, PartitionRefusal, Release, decide, release};
pub use listed::{Listed, ListedGpu};
pub use need::{Need, NeedRefusal, NeededGpu, by_record, need};
pub use pauses::Pauses;
pub use readiness::{Obstacle, Readiness, Unready, refusals};
pub use restore::{
    FORMAT, KnownPartition, Mode, Restore, RestoreEntry, RestoreList, RestoreListError, pending,
    restore,
};
pub use verdict::{PartitionState, Verdict, modules_of, states};
pub use versions::{FabricVersions, VersionCheck, VersionsApart};
pub use vgpu::{CardShare, CardVgpu, needs_of_vgpus, vgpus_of_domain};
pub use vgpu_restore::{VgpuRestore, restore_vgpus};

use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The highest module id: boards have 8 GPUs, and at most two form one fabric.
pub const HIGHEST_MODULE: u32 = 16;

/// Module ids of a set of GPUs.
pub type Modules = BTreeSet<u32>;

/// A domain, by name and UUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its UUID, with dashes.
    pub uuid: String,
}

/// A running domain and the GPUs of the board that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The domain.
    pub domain: Domain,
    /// Module ids of its GPUs.
    pub modules: Modules,
    /// How many of its GPUs have an unknown module id.
    pub unknown: usize,
    /// Module ids whose GPU is known on this host; no unknown GPU has one of these.
    pub placed: Modules,
    /// Module ids of its GPUs of which it has vGPUs.
    pub vgpus: Modules,
    /// Those of them of which other guests may have vGPUs, too.
    pub parts: Modules,
    /// A virtual function of each GPU of which it has vGPUs, by module id.
    pub functions: BTreeMap<u32, Bdf>,
}

impl Running {
    /// Whether a set is that of one GPU, of which it has a vGPU and others may have some.
    pub fn shares(&self, modules: &Modules) -> bool {
        modules.len() == 1 && modules.is_subset(&self.parts)
    }

    /// Whether it has any GPU of a set.
    pub fn has_any(&self, modules: &Modules) -> bool {
        !self.modules.is_disjoint(modules)
    }

    /// Whether it has exactly the GPUs of a set. With unknown module ids, this is known for the set
    /// of all GPUs only.
    pub fn has_exactly(&self, modules: &Modules, all: &Modules) -> bool {
        if self.shares(modules) {
            // A part of a GPU has the partition of this GPU, whatever else the guest has.
            return true;
        }
        match self.unknown {
            0 => self.modules == *modules,
            _ => modules == all && self.may_have(modules),
        }
    }

    /// Whether it may have exactly the GPUs of a set, some module ids being unknown.
    pub fn may_have(&self, modules: &Modules) -> bool {
        let others: Modules = modules.difference(&self.modules).copied().collect();
        self.unknown > 0
            && self.modules.is_subset(modules)
            && others.len() == self.unknown
            && others.is_disjoint(&self.placed)
    }

    /// Whether one of its GPUs with unknown module id may be in a set.
    pub fn may_have_any(&self, modules: &Modules) -> bool {
        self.unknown > 0 && !modules.is_subset(&self.placed)
    }
}

/// Formatted module ids: `modules 1, 3`.
pub struct ModulesText<'a>(pub &'a Modules);

impl fmt::Display for ModulesText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "module" } else { "modules" })?;
        for (place, module) in self.0.iter().enumerate() {
            write!(f, "{}{module}", if place == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
