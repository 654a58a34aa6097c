//! Steps on vGPUs: the virtual functions of a card by NVIDIA's script, the type of a virtual
//! function, mediated devices. What somebody has is never changed, and what is found otherwise than
//! planned is left.

pub mod boot;
mod ours;
mod work;

pub use ours::is_ours;

use super::Observer;
use super::bind::{BindError, Live};
use super::owner;
use crate::command::CommandError;
use crate::fsroot::FsError;
use crate::hypervisor::Hypervisor;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::words;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use work::Work;

/// NVIDIA's script, below the root.
pub const SRIOV_MANAGE: &str = "usr/lib/nvidia/sriov-manage";
/// How long to wait before the script is run again, which may leave the card without a driver.
const AGAIN: Duration = Duration::from_secs(30);
/// How long to wait between two checks whether virtual functions are ready.
const PAUSE: Duration = Duration::from_millis(200);

/// One change of vGPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum VgpuStep {
    /// Enables or disables the virtual functions of a card by NVIDIA's script.
    SetFunctions {
        /// The card.
        pf: Bdf,
        /// Whether it has them.
        on: bool,
        /// Whether it had them.
        was: bool,
    },
    /// Sets the vGPU type of a virtual function.
    SetType {
        /// The function.
        vf: Bdf,
        /// Number of the type; 0: none.
        to: u32,
        /// The number before.
        was: u32,
        /// Whether its guest is gone, so that a function that another guest uses since, or that has
        /// another type, is left alone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        back: bool,
    },
    /// Makes a mediated device.
    CreateMdev {
        /// Its UUID.
        uuid: String,
        /// The card, or its virtual function.
        parent: Bdf,
        /// Name of the type's directory.
        type_id: String,
    },
    /// Removes a mediated device.
    RemoveMdev {
        /// Its UUID.
        uuid: String,
        /// The card, or its virtual function.
        parent: Bdf,
        /// Name of the type's directory.
        type_id: String,
    },
}

/// The error of a step on vGPUs.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "vgpu-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum VgpuError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// The kernel refuses a write, or does not respond.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Write(#[from] BindError),
    /// The script failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Script(#[from] CommandError),
    /// There is no such card, or it has no SR-IOV.
    #[error("{pf} does not exist or has no SR-IOV")]
    #[strum(to_string = "card-absent")]
    NoCard { pf: Bdf },
    /// The driver has no virtual function of this kind at the address.
    #[error("{vf} is no virtual function that a vGPU type can be set for")]
    #[strum(to_string = "function-absent")]
    NoFunction { vf: Bdf },
    /// The virtual functions were enabled or disabled since the plan.
    #[error("{pf} has {} now, otherwise than when this was planned", functions(*now))]
    FunctionsChanged { pf: Bdf, now: u32 },
    /// The script left the card without its driver, as often as it was run.
    #[error("{pf} is without its driver after sriov-manage, {} in a row", words::count(*runs, "time"))]
    Unbound { pf: Bdf, runs: usize },
    /// The script did not enable or disable the functions.
    #[error("{pf} has {} after sriov-manage", functions(*now))]
    NotMade { pf: Bdf, now: u32 },
    /// The driver offers no types of its functions.
    #[error("{vf} of {pf} lists no vGPU types: NVIDIA's vGPU host driver does not have it")]
    NotReady { pf: Bdf, vf: Bdf },
    /// A vGPU ends with the functions of its card.
    #[error("{vf} of {pf} has vGPU type {number}, which would end")]
    Typed { pf: Bdf, vf: Bdf, number: u32 },
    /// The type of a function has changed since the plan.
    #[error("{vf} has vGPU type {now}; it had {was} when this was planned")]
    TypeChanged { vf: Bdf, now: u32, was: u32 },
    /// The driver does not offer the type now.
    #[error("{vf} offers no vGPU type {to} now{}", offered(types))]
    NotCreatable {
        vf: Bdf,
        to: u32,
        /// What it offers.
        types: Vec<String>,
    },
    /// The type that was written is not the type that is read.
    #[error("{vf}: vGPU type {to} was written, {now} is read")]
    NotSet { vf: Bdf, to: u32, now: u32 },
    /// The parent has no such type, or no room for one more.
    #[error("{parent} has no room for another mediated device of type {type_id}")]
    #[strum(to_string = "no-instance")]
    NoInstance { parent: Bdf, type_id: String },
    /// A mediated device is there already.
    #[error("mediated device {uuid} exists already")]
    MdevThere { uuid: String },
    /// A mediated device has another type than the one to be removed.
    #[error("mediated device {uuid} is not of type {type_id}, so it is left as it is")]
    MdevChanged { uuid: String, type_id: String },
    /// A guest has the mediated device open.
    #[error("mediated device {uuid} is in use, so it is left as it is")]
    MdevOpen { uuid: String },
    /// The kernel made or removed no mediated device.
    #[error("mediated device {uuid} of {parent} was not {done}")]
    MdevNotDone {
        uuid: String,
        parent: Bdf,
        /// `made` or `removed`.
        done: &'static str,
    },
}

impl VgpuError {
    /// Whether the object to be released is another's now, or gone: it is left as it is.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(
            self,
            VgpuError::TypeChanged { .. }
                | VgpuError::NoFunction { .. }
                | VgpuError::MdevChanged { .. }
                | VgpuError::MdevOpen { .. }
        )
    }

    /// Whether the kernel may have made the change without confirming it.
    pub(super) fn may_have_done(&self) -> bool {
        matches!(
            self,
            VgpuError::Write(_) | VgpuError::NotSet { .. } | VgpuError::MdevNotDone { .. }
        )
    }
}

/// A number of them in words.
fn functions(count: u32) -> String {
    words::count(count, "virtual function")
}

/// What a function offers, to follow a sentence.
fn offered(types: &[String]) -> String {
    if types.is_empty() { String::new() } else { format!("; it offers {}", types.join(", ")) }
}

impl fmt::Display for VgpuStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VgpuStep::SetFunctions { pf, on: true, .. } => {
                write!(f, "enable the virtual functions of {pf} by sriov-manage")
            }
            VgpuStep::SetFunctions { pf, on: false, .. } => {
                write!(f, "disable the virtual functions of {pf} by sriov-manage")
            }
            VgpuStep::SetType { vf, to: 0, was, .. } => {
                write!(f, "clear vGPU type {was} of {vf}")
            }
            VgpuStep::SetType { vf, to, .. } => write!(f, "set vGPU type {to} for {vf}"),
            VgpuStep::CreateMdev { uuid, parent, type_id } => {
                write!(f, "make mediated device {uuid} of type {type_id} on {parent}")
            }
            VgpuStep::RemoveMdev { uuid, parent, .. } => {
                write!(f, "remove mediated device {uuid} of {parent}")
            }
        }
    }
}

/// Works with the vGPUs of this machine; their owners are looked up in the domains of `hypervisor`.
fn on_this_machine<T>(
    hypervisor: &dyn Hypervisor,
    work: impl FnOnce(&Work<'_>) -> Result<T, VgpuError>,
) -> Result<T, VgpuError> {
    owner::on_this_machine(hypervisor, false, |owner| {
        let is_free = |functions: &[Bdf]| owner.free_of_guests(functions);
        let (root, pause, again) = (owner.root, PAUSE, AGAIN);
        // A group has one opener at a time.
        let is_open = |group: &str| matches!(owner::open_node(group), Err(Errno::EBUSY));
        work(&Work { root, kernel: &Live, is_free: &is_free, is_open: &is_open, pause, again })
    })
}

impl VgpuStep {
    /// Whether it releases resources of a removed guest.
    pub(super) fn gives_back(&self) -> bool {
        matches!(self, VgpuStep::SetType { back: true, .. } | VgpuStep::RemoveMdev { .. })
    }

    /// Refuses a step whose card or function is not as it was when the change was planned, or that
    /// somebody has.
    pub(super) fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), VgpuError> {
        on_this_machine(hypervisor, |work| match self {
            VgpuStep::SetFunctions { pf, on, was } => work.expect_functions(*pf, *was, *on),
            VgpuStep::SetType { vf, was, .. } => work.expect_type(*vf, *was),
            VgpuStep::CreateMdev { uuid, parent, type_id } => {
                work.expect_instance(uuid, *parent, type_id)
            }
            VgpuStep::RemoveMdev { .. } => Ok(()),
        })
    }

    pub(super) fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
    ) -> Result<(), VgpuError> {
        on_this_machine(hypervisor, |work| match self {
            VgpuStep::SetFunctions { pf, on, .. } => {
                work.set_functions(*pf, *on, &mut |text| observer.note(text))
            }
            VgpuStep::SetType { vf, to, was, .. } => work.change_type(*vf, *was, *to),
            VgpuStep::CreateMdev { uuid, parent, type_id } => {
                work.create_mdev(uuid, *parent, type_id)
            }
            VgpuStep::RemoveMdev { uuid, parent, type_id } => {
                work.remove_mdev(uuid, *parent, type_id)
            }
        })
    }

    /// Undoes it, where it was done or may have been. What went with its card needs no undoing; what
    /// was changed since is left.
    pub(super) fn undo(&self, hypervisor: &dyn Hypervisor) -> Result<(), VgpuError> {
        let undone = on_this_machine(hypervisor, |work| match self {
            VgpuStep::SetFunctions { pf, was, .. } => work.set_functions(*pf, *was, &mut |_| {}),
            VgpuStep::SetType { vf, to, was, .. } => work.revert_type(*vf, *to, *was),
            VgpuStep::CreateMdev { uuid, parent, type_id } => {
                work.remove_mdev(uuid, *parent, type_id)
            }
            VgpuStep::RemoveMdev { uuid, parent, type_id } => {
                work.create_mdev(uuid, *parent, type_id)
            }
        });
        match undone {
            Err(VgpuError::NoCard { .. } | VgpuError::NoFunction { .. }) => Ok(()),
            undone => undone,
        }
    }
}
