//! NVML's answer about GPUs, as values.

use gpuvm_core::bdf::Bdf;
use gpuvm_core::health::HealthReading;
use gpuvm_core::topology::MigInstances;
use serde::{Deserialize, Serialize};

/// NVML's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlAnswer {
    /// Module ids, in the order of the query.
    pub ids: Vec<(Bdf, u32)>,
    /// GPUs without one, and why.
    pub silent: Vec<(Bdf, String)>,
    /// NVLinks of each GPU that reports them.
    pub links: Vec<GpuLinks>,
}

/// NVML's answer about the health of GPUs: for each the reading, or why there is none.
pub type HealthAnswer = Vec<(Bdf, Result<GpuReading, String>)>;

/// NVML's report about one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReading {
    /// Its health, and MIG mode.
    pub health: HealthReading,
    /// GPU instances behind vGPU types, by number of the type.
    pub instances: Vec<(u32, MigInstances)>,
}

/// The working NVLinks of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLinks {
    /// The GPU.
    pub bdf: Bdf,
    /// Links to other GPUs, each GPU once.
    pub direct: Vec<(Bdf, u32)>,
    /// Links to NVSwitches.
    pub switched: u32,
}
