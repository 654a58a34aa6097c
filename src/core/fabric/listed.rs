//! Fabric Manager's list of partitions.

use super::Modules;
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};

/// A partition of Fabric Manager's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its number.
    pub id: u32,
    /// Whether it is active: its NVLinks are routed for a guest.
    pub active: bool,
    /// Its GPUs, in Fabric Manager's order.
    pub gpus: Vec<ListedGpu>,
}

/// A GPU of such a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedGpu {
    /// Its module id.
    pub module: u32,
    /// Its address; none where Fabric Manager does not know it, as on H100 and later.
    pub bus: Option<Bdf>,
    /// Number of working NVLinks.
    pub links: u32,
    /// Number of NVLinks that it should have in this partition.
    pub most: u32,
}

impl Listed {
    /// Module ids of its GPUs.
    pub fn modules(&self) -> Modules {
        self.gpus.iter().map(|gpu| gpu.module).collect()
    }

    /// Whether it has any GPU of a set.
    pub fn has_any(&self, modules: &Modules) -> bool {
        self.gpus.iter().any(|gpu| modules.contains(&gpu.module))
    }
}
