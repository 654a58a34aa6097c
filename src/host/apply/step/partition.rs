//! Steps on NVLink partitions.

use super::StepError;
use super::noun::{Noun, Ours};
use crate::apply::partition::{PartitionStep, Watched, on_this_machine};
use crate::apply::{Observer, bind};
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::identity::Proof;
use gpuvm_core::topology::is_vfio;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One change of an NVLink partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum PartitionChange {
    /// Activates the NVLink partition of a guest that is to start.
    #[serde(rename = "activate-partition")]
    Activate(PartitionStep),
    /// Deactivates the NVLink partition of a guest that is off.
    #[serde(rename = "deactivate-partition")]
    Deactivate(PartitionStep),
}

impl PartitionChange {
    /// The step that reverts it; `None` if its guest is off: its next start activates the partition
    /// that it needs then.
    pub(super) fn reversed(&self) -> Option<PartitionChange> {
        match self {
            PartitionChange::Activate(step) => Some(PartitionChange::Deactivate(step.clone())),
            PartitionChange::Deactivate(step) if step.may_wait || is_of_no_guest(step) => None,
            PartitionChange::Deactivate(step) => Some(PartitionChange::Activate(step.clone())),
        }
    }
}

impl Noun for PartitionChange {
    fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
        ours: &mut Ours<'_>,
    ) -> Result<(), StepError> {
        let observer = &mut Watched(Some(observer));
        on_this_machine(hypervisor, |switch| match self {
            PartitionChange::Activate(step) => switch.activate(step, observer, ours.made),
            PartitionChange::Deactivate(step) => switch.deactivate(step, observer, ours.made),
        })?;
        Ok(())
    }

    fn undo(&self, hypervisor: &dyn Hypervisor, proof: &Proof<'_>) -> Result<(), StepError> {
        match self {
            // Without a record of its beginning nothing was changed.
            _ if proof.made.is_none() => {}
            PartitionChange::Activate(step) => {
                on_this_machine(hypervisor, |switch| switch.undo_activation(step))?;
                reset(step, hypervisor);
            }
            // Its guest is off, and its partition is not activated again.
            PartitionChange::Deactivate(step) if step.may_wait || is_of_no_guest(step) => {}
            PartitionChange::Deactivate(step) => {
                on_this_machine(hypervisor, |switch| switch.undo_deactivation(step))?;
            }
        }
        Ok(())
    }

    fn by_hand(&self) -> Option<String> {
        let PartitionChange::Activate(step) = self else { return None };
        Some(format!("gpuvm fabric release {}", step.partition))
    }

    fn gives_back(&self) -> bool {
        matches!(self, PartitionChange::Deactivate(_))
    }

    fn ends_with_boot(&self) -> bool {
        true
    }

    /// A partition of a removed guest is not activated again.
    fn takes_away(&self) -> bool {
        matches!(self, PartitionChange::Deactivate(_))
    }

    fn is_of_host(&self) -> bool {
        true
    }
}

impl fmt::Display for PartitionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionChange::Activate(step) => write!(f, "activate {step}"),
            PartitionChange::Deactivate(step) => write!(f, "deactivate {step}"),
        }
    }
}

/// Whether a partition of vGPUs had no guest whose functions would activate it again.
fn is_of_no_guest(step: &PartitionStep) -> bool {
    step.vfs.is_empty() && !step.beside.is_empty()
}

/// Resets the GPUs of a partition after its deactivation, to clear a guest's data. A failed reset
/// is ignored, since each GPU is reset before its next guest starts.
fn reset(step: &PartitionStep, hypervisor: &dyn Hypervisor) {
    let Ok(root) = FsRoot::live() else { return };
    for gpu in &step.gpus {
        // `driver_override` is not read: that blocks forever while an unbind hangs.
        let dir = root.dir(&format!("sys/bus/pci/devices/{}", gpu.bdf)).ok().flatten();
        let bound = dir.and_then(|dir| dir.link_name("driver").ok().flatten());
        if bound.as_deref().is_some_and(is_vfio) {
            let _ = bind::on_this_machine(hypervisor, false, |binder| binder.reset(gpu.bdf));
        }
    }
}
