//! The errors of showing, activating, releasing and restoring partitions: one type for all verbs,
//! with hints.

use crate::apply::partition::PartitionError;
use crate::error::{Coded, Error};
use gpuvm_core::fabric::{Modules, ModulesText, NeedRefusal, PartitionRefusal};
use gpuvm_host::fabric::{ManagerRefusal, RestoreFileError};

/// The reason partitions are not as wanted.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum FabricError {
    /// This host does not share NVSwitches between guests.
    #[error("Fabric Manager manages no partitions here: this host's NVSwitches are not shared")]
    #[strum(to_string = "fabric-not-shared")]
    NotShared,
    /// Fabric Manager does not answer, so that the guest would have no working CUDA.
    #[error(
        "NVLink partition {partition} cannot be activated for domain `{domain}`, which has no \
         working CUDA without it: {why}"
    )]
    #[strum(to_string = "partition-unreachable")]
    Unreachable { partition: u32, domain: String, why: ManagerRefusal },
    /// The versions of Fabric Manager and of the host's driver differ.
    #[error(
        "Fabric Manager has version {manager}, and the driver of this host has {driver}: guests \
         get NVLink only if they match"
    )]
    #[strum(to_string = "fabric-versions")]
    Versions { manager: String, driver: String },
    /// The versions of Fabric Manager and its client library differ.
    #[error(
        "Fabric Manager has version {manager}, and its client library libnvfm has {library}: they \
         must match"
    )]
    #[strum(to_string = "fabric-library-version")]
    LibraryVersion { manager: String, library: String },
    /// A guest has, or may have, a GPU that may belong to it.
    #[error(
        "NVLink partition {partition}: which GPUs {} are is not known, and not all that may be are \
         free: {why}",
        ModulesText(modules)
    )]
    #[strum(to_string = "fabric-unknown-modules")]
    UnknownModules {
        partition: u32,
        /// The modules whose GPU is unknown.
        modules: Modules,
        /// The holder of a GPU that may be one of these.
        why: String,
    },
    /// The modules of a guest's GPUs are not known, and Fabric Manager lists another number of
    /// them.
    #[error(
        "NVLink partition {partition}: the modules of the GPUs of domain `{domain}` are unknown"
    )]
    #[strum(to_string = "partition-modules-unknown")]
    UnknownGpus { partition: u32, domain: String },
    /// A domain that is started by others has GPUs that form no partition.
    #[error("CUDA would not work in domain `{domain}`: {why}")]
    #[strum(to_string = "fabric-no-partition")]
    NoPartition { domain: String, why: NeedRefusal },
    /// Fabric Manager accepted a partition as active, and lists it as inactive.
    #[error(
        "Fabric Manager accepted the list of active partitions but lists partition {partition} as \
         inactive"
    )]
    #[strum(to_string = "fabric-not-passed")]
    NotTold { partition: u32 },
    /// Fabric Manager lists a partition that was deactivated as active, with other GPUs than
    /// before.
    #[error(
        "NVLink partition {partition} is active: Fabric Manager's list has changed since the plan"
    )]
    #[strum(to_string = "fabric-changed-since")]
    ChangedSince { partition: u32 },
    /// No partition can be activated for a domain's GPUs.
    #[error("{0}")]
    #[strum(transparent, to_string = "-")]
    Need(#[from] NeedRefusal),
    /// A partition is not activated or deactivated: Fabric Manager, its list, or the file of active
    /// partitions.
    #[error("{0}")]
    #[strum(transparent, to_string = "-")]
    Partition(#[from] PartitionError),
}

impl Coded for FabricError {}

impl From<ManagerRefusal> for FabricError {
    fn from(refusal: ManagerRefusal) -> FabricError {
        FabricError::Partition(refusal.into())
    }
}

impl From<PartitionRefusal> for FabricError {
    fn from(refusal: PartitionRefusal) -> FabricError {
        FabricError::Partition(refusal.into())
    }
}

impl From<RestoreFileError> for FabricError {
    fn from(error: RestoreFileError) -> FabricError {
        FabricError::Partition(error.into())
    }
}

impl FabricError {
    /// This error with a hint.
    pub fn with_hint(self) -> Error {
        let helps = self.helps();
        self.hint(helps)
    }

    /// The hint.
    pub fn helps(&self) -> String {
        const MODULES: &str = "`gpuvm host modules` shows which module ids are known";
        const LIST: &str = "`gpuvm fabric show` lists partitions and who holds them";
        match self {
            FabricError::NotShared => "`gpuvm fabric show` shows the model".into(),
            FabricError::Unreachable { why, .. } => {
                why.advice().unwrap_or("`gpuvm fabric show` shows what Fabric Manager says").into()
            }
            FabricError::Versions { driver, .. } => format!(
                "install Fabric Manager {driver} and `systemctl restart nvidia-fabricmanager`, or \
                 reboot where another driver is installed than loaded"
            ),
            FabricError::LibraryVersion { manager, .. } => format!(
                "install its development package (nvidia-fabricmanager-dev or -devel) of version \
                 {manager}"
            ),
            FabricError::UnknownModules { partition, .. } => format!(
                "once that guest is off, `gpuvm fabric release {partition}` deactivates it; \
                 {MODULES}"
            ),
            FabricError::UnknownGpus { .. } => MODULES.into(),
            FabricError::NoPartition { why, .. } | FabricError::Need(why) => why.hint(),
            FabricError::NotTold { .. } => LIST.into(),
            FabricError::ChangedSince { .. } => "`gpuvm fabric show` lists it as it is now".into(),
            FabricError::Partition(PartitionError::Refused(refusal)) => refusal.hint(),
            FabricError::Partition(
                PartitionError::Manager(refusal) | PartitionError::Unsure(refusal),
            ) => refusal.advice().unwrap_or("`journalctl -u nvidia-fabricmanager`").into(),
            FabricError::Partition(PartitionError::File(error)) => {
                error.hint().unwrap_or_else(|| LIST.into())
            }
            FabricError::Partition(_) => LIST.into(),
        }
    }
}
