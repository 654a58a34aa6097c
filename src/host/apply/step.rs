//! One change of the machine, as a value: it can be printed, written into a journal and done later.

mod check;
mod device;
mod domain;
mod error;
mod file;
mod host;
mod kind;
mod live;
mod noun;
mod partition;
mod snapshot;
#[cfg(test)]
mod tests;
mod volume;

pub use check::CheckStep;
pub use device::DeviceStep;
pub use domain::DomainStep;
pub use error::StepError;
pub use file::FileStep;
pub use host::HostStep;
pub use kind::unknown_step;
pub use live::{LET_GO_S, LiveStep};
pub(super) use noun::Ours;
pub use partition::PartitionChange;
pub use snapshot::{MadeSnapshot, SnapshotStep, is_by_gpuvm};
pub use volume::{RESERVATION, VolumeStep};

use super::array::ArrayStep;
use super::drive::WipeStep;
use super::hostnet::HostNetStep;
use super::network::NetworkStep;
use super::nic::NicStep;
use super::p2p::P2pStep;
use super::pages::PagesStep;
use super::setting::SettingStep;
use super::text::TextStep;
use super::vgpu::VgpuStep;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::Machine;
use noun::Noun;
use serde::Serialize;
use std::fmt;

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Step {
    /// A change of a domain.
    Domain(DomainStep),
    /// A change of the snapshots of a domain.
    Snapshot(SnapshotStep),
    /// A change of a running guest; the definition is unchanged.
    Live(LiveStep),
    /// A change of a pool or a volume.
    Volume(VolumeStep),
    /// A check of a disk; changes nothing.
    Check(CheckStep),
    /// A change of a file or a directory.
    File(FileStep),
    /// A change of a PCI function.
    Device(DeviceStep),
    /// A change of an NVLink partition.
    Partition(PartitionChange),
    /// A change of the host or of a network.
    Host(HostStep),
}

/// Makes steps of those of each noun.
macro_rules! from_nouns {
    ($($step:ident: $of:path),+ $(,)?) => {
        $(
            impl From<$step> for Step {
                fn from(step: $step) -> Step {
                    Step::from($of(step))
                }
            }
        )+
    };
}

from_nouns! {
    DomainStep: Step::Domain,
    SnapshotStep: Step::Snapshot,
    LiveStep: Step::Live,
    VolumeStep: Step::Volume,
    CheckStep: Step::Check,
    FileStep: Step::File,
    DeviceStep: Step::Device,
    PartitionChange: Step::Partition,
    HostStep: Step::Host,
    ArrayStep: HostStep::Array,
    WipeStep: HostStep::WipeDrive,
    NicStep: HostStep::Nic,
    VgpuStep: HostStep::Vgpu,
    P2pStep: HostStep::P2p,
    PagesStep: HostStep::SetPages,
    NetworkStep: HostStep::Network,
    TextStep: HostStep::EditText,
    SettingStep: HostStep::Set,
    HostNetStep: HostStep::HostNet,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.noun().fmt(f)
    }
}

impl Step {
    /// The step as one of its noun.
    pub(super) fn noun(&self) -> &dyn Noun {
        match self {
            Step::Domain(step) => step,
            Step::Snapshot(step) => step,
            Step::Live(step) => step,
            Step::Volume(step) => step,
            Step::Check(step) => step,
            Step::File(step) => step,
            Step::Device(step) => step,
            Step::Partition(step) => step,
            Step::Host(step) => step,
        }
    }

    /// Refuses a step on this machine if the hypervisor's domains are on another: a path, a device
    /// or an address there means something else here.
    pub(super) fn refuse_elsewhere(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        match hypervisor.machine() {
            Machine::Elsewhere { host } if self.is_of_machine() => {
                Err(StepError::Elsewhere { host })
            }
            _ => Ok(()),
        }
    }

    /// Returns the step that reverts this one, as a change of its own; `None` if there is none, or
    /// its product is removed by other means.
    pub fn reversed(&self) -> Option<Step> {
        match self {
            Step::Domain(step) => step.reversed().map(Step::Domain),
            Step::Live(step) => step.reversed().map(Step::Live),
            // Equality is symmetric.
            Step::Check(CheckStep::Compare(_)) => Some(self.clone()),
            Step::File(step) => step.reversed().map(Step::File),
            Step::Device(step) => step.reversed().map(Step::Device),
            Step::Partition(step) => step.reversed().map(Step::Partition),
            Step::Host(step) => step.reversed().map(Step::Host),
            Step::Snapshot(_) | Step::Volume(_) | Step::Check(_) => None,
        }
    }

    /// The same step after its domain has another name; one of another domain stays.
    pub fn renamed(&self, before: &str, after: &str) -> Step {
        let mut new = self.clone();
        let name = match &mut new {
            Step::Domain(step) => step.name_mut(),
            Step::Live(step) => Some(step.name_mut()),
            Step::Check(step) => step.name_mut(),
            _ => None,
        };
        if let Some(name) = name.filter(|name| *name == before) {
            after.clone_into(name);
        }
        new
    }

    /// Whether it releases resources of a removed guest: those in use by others now are left, which
    /// counts as released.
    pub fn gives_back(&self) -> bool {
        self.noun().gives_back()
    }

    /// Returns the existing domain that it is about, by name and UUID; no UUID: older versions did
    /// not record it.
    pub fn domain(&self) -> Option<(&str, Option<String>)> {
        self.noun().domain()
    }

    /// Whether its effect ends with the boot of the machine, so that a reboot reverts it.
    pub fn ends_with_boot(&self) -> bool {
        self.noun().ends_with_boot()
    }

    /// Returns the command that manually removes its product; `None` if there is none.
    pub fn by_hand(&self) -> Option<String> {
        self.noun().by_hand()
    }

    /// Whether it makes an image over another.
    pub fn makes_overlay(&self) -> bool {
        matches!(
            self,
            Step::Volume(VolumeStep::Make { volume, .. }) if volume.backing.is_some()
        )
    }

    /// Whether it changes only a running domain, until that stops.
    pub fn is_of_running(&self) -> bool {
        matches!(self, Step::Live(step) if step.ends_with_guest())
    }

    /// Whether it attaches a device or vCPUs to a running guest or detaches them.
    pub fn is_plugging(&self) -> bool {
        matches!(self, Step::Live(step) if step.is_plugging())
    }

    /// Whether it makes a disk as the copy of another one.
    pub fn makes_copy(&self) -> bool {
        matches!(
            self,
            Step::File(FileStep::CreateDisk { from: Some(_), .. })
                | Step::Volume(VolumeStep::Make { from: Some(_), .. })
        )
    }

    /// Whether it starts a guest.
    pub fn is_start(&self) -> bool {
        matches!(self, Step::Domain(DomainStep::Start { .. }))
    }

    /// Whether it shuts down a guest only for the rest of the change.
    pub(super) fn is_off_meanwhile(&self) -> bool {
        matches!(self, Step::Domain(DomainStep::ShutDown { restarts: true, .. }))
    }

    /// Whether it erases a drive.
    pub(super) fn erases(&self) -> bool {
        matches!(self, Step::Host(HostStep::WipeDrive(_)))
    }

    /// Whether it cannot be undone, so that a later failure leaves it in effect.
    pub fn is_final(&self) -> bool {
        self.noun().is_final()
    }

    /// Whether an interrupted run that has begun it is finished rather than undone: the state that
    /// it removes cannot be restored completely, such as a running guest's memory or its NVRAM.
    pub fn takes_away(&self) -> bool {
        self.noun().takes_away() || self.is_final()
    }

    /// Whether it is internal bookkeeping: records of products, and the reservation of an image's
    /// name.
    pub fn is_internal(&self) -> bool {
        match self {
            Step::File(FileStep::Remember { .. } | FileStep::Forget { .. }) => true,
            Step::Volume(step) => step.reserves(),
            _ => false,
        }
    }

    /// Whether undoing has an effect.
    pub fn is_undone(&self) -> bool {
        !self.is_final() && !self.noun().leaves_nothing()
    }

    /// Whether it acts on the machine itself rather than through the hypervisor: files, sysfs,
    /// leases, history. It is refused if the hypervisor's domains are on another machine.
    pub fn is_of_machine(&self) -> bool {
        self.noun().is_of_machine() || self.is_of_host()
    }

    /// Whether it changes the host itself, so that being half done affects everybody. Such a step
    /// need not be undone before it is repeated: it reaches the same state from anywhere, and no
    /// driver has to release a function more often than necessary.
    pub fn is_of_host(&self) -> bool {
        self.noun().is_of_host()
    }
}
