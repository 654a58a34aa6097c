//! Fabric Manager and the file of active partitions: this machine's own, or a caller's.

use gpuvm_core::fabric::{FabricVersions, RestoreList};
use gpuvm_host::apply::partition::Partitions;
use gpuvm_host::fabric::{RestoreFile, RestoreFileError};
use std::path::PathBuf;
use std::rc::Rc;

/// Fabric Manager, and the file of active partitions.
#[derive(Clone)]
pub struct FabricDesk {
    /// Fabric Manager.
    pub manager: Rc<dyn Partitions>,
    /// The file of active partitions.
    pub file: PathBuf,
    /// The versions; `None` if read when needed.
    pub versions: Option<FabricVersions>,
    /// Whether its partitions are those of vGPUs (`FABRIC_MODE=2`).
    pub is_of_vgpu: bool,
}

impl FabricDesk {
    /// Reads the recorded activations.
    pub fn remembered(&self) -> Result<RestoreList, RestoreFileError> {
        RestoreFile::read(&self.file)
    }
}
