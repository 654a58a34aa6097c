//! Errors of steps.

use super::super::disk::DiskError;
use super::super::error::{ArrayError, BindError};
use super::super::hostnet::HostNetError;
use super::super::journal::JournalError;
use super::super::lock::LockError;
use super::super::nic::NicError;
use super::super::p2p::P2pError;
use super::super::pages::PagesError;
use super::super::partition::PartitionError;
use super::super::setting::SettingError;
use super::super::vgpu::VgpuError;
use super::Step;
use crate::blockdev::BlockError;
use crate::command::CommandError;
use crate::fabric::ManagerRefusal;
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use gpuvm_core::domain::live::Plugged;
use gpuvm_core::seed::SeedError;
use gpuvm_core::shell::word;
use std::path::PathBuf;

/// The error of a step or of its undo.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "step-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum StepError {
    /// The hypervisor failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Hypervisor(#[from] HypervisorError),
    /// The file system failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Disk(#[from] DiskError),
    /// The kernel failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Bind(#[source] BindError),
    /// The device to be taken, reset or released is in use now, so it is left as it is.
    #[error("{what} is in use by {by}")]
    InUse {
        /// The address of the function.
        what: String,
        by: String,
    },
    /// A file that was moved is open, so it is not moved back.
    #[error("{} is open by {by}", path.display())]
    FileOpen { path: PathBuf, by: String },
    /// A disk of a domain to be defined or started is in use.
    #[error("its disk {} is no longer free: {by}", path.display())]
    #[strum(to_string = "disk-in-use")]
    Taken {
        /// The disk, or its backing file.
        path: PathBuf,
        by: String,
    },
    /// It is unknown whether the device to be taken, reset or released is in use, so it is left as
    /// it is.
    #[error("unknown whether {what} is in use: {why}")]
    #[strum(to_string = "use-unknown")]
    Untold {
        /// The address of the function.
        what: String,
        why: String,
    },
    /// A drive is in use, or could not be erased.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Block(#[from] BlockError),
    /// The volume of a guest's seed could not be made.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Seed(#[from] SeedError),
    /// An array, or a file that refers to it, could not be changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Array(#[from] ArrayError),
    /// A network card could not be changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Nic(#[source] NicError),
    /// vGPUs could not be changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Vgpu(#[source] VgpuError),
    /// A switch port could not be changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    P2p(#[from] P2pError),
    /// The number of huge pages could not be set.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Pages(#[from] PagesError),
    /// A partition could not be activated or deactivated.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Partition(#[source] PartitionError),
    /// A setting of the kernel could not be changed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Setting(#[from] SettingError),
    /// The host's network could not be changed, or is not as planned.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    HostNet(#[from] HostNetError),
    /// The journal could not be written, so the step was not begun.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Journal(#[from] JournalError),
    /// The guest did not shut down in time.
    #[error("domain `{name}` still runs after {wait_s} s")]
    StillRuns {
        name: String,
        /// How long it waited, in seconds.
        wait_s: u64,
    },
    /// The guest did not release a disk in time.
    #[error("guest `{name}` did not release disk {path} within {wait_s} s{}", why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    HoldsDisk {
        name: String,
        /// The disk's path on the host.
        path: String,
        /// How long it waited, in seconds.
        wait_s: u64,
        why: Option<Box<HypervisorError>>,
    },
    /// The guest did not release a NIC or a passed-through function in time.
    #[error("guest `{name}` did not release {device} within {wait_s} s{}", why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    HoldsDevice {
        name: String,
        device: Plugged,
        /// How long it waited, in seconds.
        wait_s: u64,
        why: Option<Box<HypervisorError>>,
    },
    /// The running guest does not give back vCPUs.
    #[error("domain `{name}` is emulated, and QEMU takes no vCPUs from emulated guests")]
    KeepsVcpus { name: String },
    /// The running guest has a device of this identity already.
    #[error("running domain `{name}` already has {device}")]
    Plugged { name: String, device: Plugged },
    /// A file has changed since the plan.
    #[error("{} changed while it was copied: {what}", path.display())]
    #[strum(to_string = "file-changed")]
    Changed { path: PathBuf, what: String },
    /// A definition has changed since the plan.
    #[error("the definition of domain `{name}` was changed by someone else in the meantime")]
    #[strum(to_string = "domain-edited")]
    Edited { name: String },
    /// The guest has written on a disk that only the new definition has, so that stays.
    #[error("domain `{name}` keeps disk {}, on which it has written since", path.display())]
    WrittenSince { name: String, path: PathBuf },
    /// Another domain has the name now.
    #[error("domain `{name}` is now a different one: its UUID is {theirs}, not {uuid}")]
    OtherDomain {
        name: String,
        /// The UUID of the intended domain.
        uuid: String,
        /// The UUID of the existing domain.
        theirs: String,
    },
    /// An object of the name exists, but it is not the step's product.
    #[error("{what} is not the one that was made: {why}")]
    #[strum(to_string = "not-made-here")]
    NotOurs { what: String, why: String },
    /// NVRAM that may be older than the definition that is removed.
    #[error(
        "NVRAM {} was kept: it may be older than the domain, or another domain has it; if no guest \
         needs it, `rm {}` removes it",
        path.display(),
        word(&path.to_string_lossy())
    )]
    #[strum(to_string = "nvram-stays")]
    NvramStays { path: PathBuf },
    /// Another change of the host is in progress, and a guest started now could take the same
    /// resources.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Lock(#[from] LockError),
    /// A guest runs that this run has not started.
    #[error("domain `{name}` is running, and was not started by this change")]
    StartedSince { name: String },
    /// A guest runs, and ending it was not confirmed.
    #[error("domain `{name}` is running, and ending it was not confirmed")]
    NotConfirmed { name: String },
    /// A step was not tried, because one that may need it could not be undone.
    #[error("the step after it is not undone")]
    NotReached,
    /// A network's definition has changed since the plan.
    #[error("the definition of network `{name}` was changed by someone else in the meantime")]
    NetworkEdited { name: String },
    /// A network differs from the plan.
    #[error("network `{name}` is not what was planned: {seen}")]
    OtherNetwork { name: String, seen: String },
    /// A volume is not as expected.
    #[error("{seen}")]
    OtherVolume { seen: String },
    /// Two disks could not be compared.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Command(#[from] CommandError),
    /// It is about the machine of the hypervisor's domains, which is another one.
    #[error("it is on machine `{host}`, and gpuvm runs on another")]
    #[strum(to_string = "other-machine")]
    Elsewhere { host: String },
    /// A signal came while waiting.
    #[error("received {signal}")]
    Signal { signal: String },
}

impl From<BindError> for StepError {
    fn from(error: BindError) -> StepError {
        match error {
            BindError::InUse { bdf, by } => StepError::InUse { what: bdf.to_string(), by },
            BindError::Untold { bdf, why } => StepError::Untold { what: bdf.to_string(), why },
            error => StepError::Bind(error),
        }
    }
}

impl From<NicError> for StepError {
    fn from(error: NicError) -> StepError {
        match error {
            NicError::Write(error) => match error.into() {
                StepError::Bind(error) => StepError::Nic(NicError::Write(error)),
                error => error,
            },
            error => StepError::Nic(error),
        }
    }
}

impl From<VgpuError> for StepError {
    fn from(error: VgpuError) -> StepError {
        match error {
            VgpuError::Write(error) => match error.into() {
                StepError::Bind(error) => StepError::Vgpu(VgpuError::Write(error)),
                error => error,
            },
            error => StepError::Vgpu(error),
        }
    }
}

impl From<PartitionError> for StepError {
    fn from(error: PartitionError) -> StepError {
        match error {
            PartitionError::Guest(error) => error.into(),
            PartitionError::Journal(error) => StepError::Journal(error),
            PartitionError::Signal { signal } => StepError::Signal { signal },
            error => StepError::Partition(error),
        }
    }
}

impl StepError {
    /// Whether the object to be released or removed belongs to others now, or is not known to be
    /// ours: it stays, and nothing is left to do.
    pub fn is_handed_over(&self) -> bool {
        use StepError::{Array, Edited, InUse, NotOurs, OtherDomain, Partition, WrittenSince};
        matches!(
            self,
            InUse { .. }
                | OtherDomain { .. }
                | NotOurs { .. }
                | Edited { .. }
                | WrittenSince { .. }
                | Array(ArrayError::Unproven { .. } | ArrayError::InitramfsOlder { .. })
                // Others have it, or some of its GPUs, now.
                | Partition(PartitionError::Reassigned { .. } | PartitionError::Refused(_))
        )
    }

    /// Returns the signal that cancelled the step, if any.
    pub fn signal(&self) -> Option<&str> {
        use PartitionError::{Manager, Unsure};
        match self {
            StepError::Signal { signal }
            | StepError::Partition(
                Manager(ManagerRefusal::Interrupted { signal })
                | Unsure(ManagerRefusal::Interrupted { signal }),
            ) => Some(signal),
            _ => None,
        }
    }

    /// Whether the hypervisor was unreachable.
    pub fn is_away(&self) -> bool {
        matches!(self, StepError::Hypervisor(error) if error.kind == HypervisorErrorKind::NoConnection)
    }

    /// Whether earlier steps must not be undone after this failure: a guest that runs, or may run,
    /// uses them.
    pub fn ends_undoing(&self, step: &Step) -> bool {
        step.noun().is_needed_by_guest() || matches!(self, StepError::Hypervisor(_))
    }

    /// Whether a step that releases a guest's resource is no longer needed: others have it now, or
    /// bound it differently, or it is gone.
    pub fn lets_be(&self, step: &Step) -> bool {
        let others = matches!(
            self,
            StepError::InUse { .. }
                | StepError::Bind(BindError::Changed { .. } | BindError::Absent { .. })
                | StepError::Partition(PartitionError::Reassigned { .. })
        );
        let others = others || matches!(self, StepError::Vgpu(error) if error.is_handed_over());
        let others = others || matches!(self, StepError::P2p(error) if error.is_gone());
        step.gives_back() && others
    }

    /// Whether a drive that an interrupted run was erasing is left: erasing continues only if it is
    /// proven to be the same, and unused.
    pub fn leaves_drive(&self, step: &Step) -> bool {
        step.erases()
            && matches!(self, StepError::Block(BlockError::InUse { .. } | BlockError::Other { .. }))
    }

    /// Whether an array is not proven to be the intended one, or one of its drives has new content:
    /// it is left as it is, and all later steps are skipped.
    pub fn leaves_array(&self) -> bool {
        use ArrayError::{Become, OtherArray, OtherContent, Unproven};
        let StepError::Array(error) = self else { return false };
        matches!(error, Unproven { .. } | OtherArray { .. } | OtherContent { .. } | Become { .. })
    }

    /// Whether a step may be done, or half done, although it failed: the hypervisor disconnected
    /// during it, or returned an unknown error. A refused step, such as one whose product already
    /// exists, has not begun.
    pub fn may_have_done(&self, step: &Step) -> bool {
        use HypervisorErrorKind::{NoConnection, Other};
        match self {
            // It may shut down all the same.
            StepError::Signal { .. } | StepError::StillRuns { .. } => step.is_off_meanwhile(),
            StepError::Hypervisor(error) if step.is_final() => error.kind == NoConnection,
            StepError::Hypervisor(error) => matches!(error.kind, NoConnection | Other),
            StepError::Pages(error) => error.may_have_done(),
            StepError::Vgpu(error) => error.may_have_done(),
            StepError::P2p(error) => error.may_have_done(),
            StepError::Partition(error) => error.may_have_done(),
            StepError::Setting(error) => !matches!(error, SettingError::Changed { .. }),
            // How much netplan has applied of a failed change is unknown.
            StepError::HostNet(error) => !matches!(error, HostNetError::Changed { .. }),
            StepError::Array(ArrayError::Changed { .. }) => false,
            // A failed command may have done part of its work.
            StepError::Array(_) => !step.is_final(),
            _ => false,
        }
    }
}
