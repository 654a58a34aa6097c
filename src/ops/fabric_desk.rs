//! Where Fabric Manager is asked, and where it is remembered what was activated: this machine's own, or that of a caller.

use gpuvm_core::fabric::{FabricVersions, RestoreList};
use gpuvm_host::apply::partition::Partitions;
use gpuvm_host::fabric::{RestoreFile, RestoreFileError};
use std::path::PathBuf;
use std::rc::Rc;

/// Fabric Manager, and where it is remembered what was activated.
#[derive(Clone)]
pub struct FabricDesk {
    /// Whom to ask.
    pub manager: Rc<dyn Partitions>,
    /// The file of active partitions.
    pub file: PathBuf,
    /// The versions; none: they are looked for when they matter.
    pub versions: Option<FabricVersions>,
}

impl FabricDesk {
    /// What is remembered.
    pub fn remembered(&self) -> Result<RestoreList, RestoreFileError> {
        RestoreFile::read(&self.file)
    }
}
