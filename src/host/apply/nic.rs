//! Steps on network cards with SR-IOV: how many virtual functions a physical function (PF) has,
//! whether drivers of the host take them, and the permissions of each on the PF. All are
//! idempotent, so doing, undoing and repeating after an interruption are the same operation.

pub mod boot;
mod count;
mod link;

pub(super) use link::delete as delete_link;
pub use link::{LinkError, guard};

use super::bind::{BindError, Live};
use super::owner;
use crate::fsroot::FsError;
use crate::hypervisor::Hypervisor;
use count::Functions;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::request::Guard;
use gpuvm_core::words;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One change of a network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum NicStep {
    /// Sets the number of virtual functions; if it changes, all existing ones are removed first.
    SetCount {
        /// The PF.
        pf: Bdf,
        /// The number.
        count: u32,
        /// The number before.
        was: u32,
    },
    /// Sets whether host drivers bind to new virtual functions of a PF.
    SetAutoprobe {
        /// The PF.
        pf: Bdf,
        /// Whether they do.
        on: bool,
        /// Whether they did.
        was: bool,
    },
    /// Brings a PF's network device up, without which none of its virtual functions has a link.
    LinkUp {
        /// The network device.
        netdev: String,
    },
    /// Sets the permissions of a virtual function on its PF.
    SetGuard {
        /// The PF's network device.
        netdev: String,
        /// Number of the virtual function, from 0.
        vf: u32,
        /// The planned permissions.
        to: Guard,
        /// The present permissions.
        was: Guard,
        /// Whether its guest is gone, so that a function that others use now is left alone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        back: bool,
    },
}

/// The error of a step on a network card.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "nic-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum NicError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// The kernel refuses a write, or does not respond.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Write(#[from] BindError),
    /// The netlink socket failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Link(#[from] LinkError),
    /// There is no such PF, or it has no SR-IOV.
    #[error("{pf} does not exist or has no SR-IOV")]
    Absent { pf: Bdf },
    /// The number has changed since the plan.
    #[error("{pf} has {}; it had {was} when this was planned", functions(*now))]
    Changed { pf: Bdf, now: u32, was: u32 },
    /// The number that was written is not the number that is read.
    #[error("{pf}: requested {}, got {now}", functions(*count))]
    NotMade { pf: Bdf, count: u32, now: u32 },
    /// It failed, and restoring the previous state failed, too.
    #[error("{first}; restoring it also failed: {second}")]
    #[strum(to_string = "not-restored")]
    Twice { first: Box<NicError>, second: Box<NicError> },
}

impl fmt::Display for NicStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicStep::SetCount { pf, count: 0, was } => {
                write!(f, "remove the {} of {pf}", functions(*was))
            }
            NicStep::SetCount { pf, count, was: 0 } => {
                write!(f, "make {} of {pf}", functions(*count))
            }
            NicStep::SetCount { pf, count, was } => {
                write!(f, "remove the {} of {pf} and make {count}", functions(*was))
            }
            NicStep::SetAutoprobe { pf, on: false, .. } => {
                write!(f, "keep the host's drivers off new virtual functions of {pf}")
            }
            NicStep::SetAutoprobe { pf, on: true, .. } => {
                write!(f, "let the host's drivers take new virtual functions of {pf}")
            }
            NicStep::LinkUp { netdev } => write!(f, "take {netdev} up"),
            NicStep::SetGuard { netdev, vf, to, .. } => {
                write!(f, "set {to} for virtual function {vf} of {netdev}")
            }
        }
    }
}

/// A number of them in words.
fn functions(count: u32) -> String {
    words::count(count, "virtual function")
}

/// Works with the virtual functions of this machine; their owners are looked up in the domains of
/// `hypervisor`.
fn on_this_machine<T>(
    hypervisor: &dyn Hypervisor,
    work: impl FnOnce(&Functions<'_>) -> Result<T, NicError>,
) -> Result<T, NicError> {
    owner::on_this_machine(hypervisor, false, |owner| {
        let (root, pause) = (owner.root, Duration::from_millis(100));
        work(&Functions { root, kernel: &Live, owner, pause })
    })
}

/// Refuses a virtual function of a network device that a guest has.
fn free(netdev: &str, vf: u32, hypervisor: &dyn Hypervisor) -> Result<(), NicError> {
    owner::on_this_machine(hypervisor, false, |owner| {
        let name = owner.root.dir(&format!("sys/class/net/{netdev}/device"))?;
        let name = name.map(|dir| dir.link_name(&format!("virtfn{vf}"))).transpose()?.flatten();
        // A function that does not exist is unused.
        let Some(bdf) = name.and_then(|name| name.parse().ok()) else { return Ok(()) };
        Ok(owner.free_of_guests(&[bdf])?)
    })
}

/// Refuses a network device that guests or the host's network now use.
fn needless(netdev: &str, hypervisor: &dyn Hypervisor) -> Result<(), NicError> {
    owner::on_this_machine(hypervisor, false, |owner| {
        let name = owner.root.dir("sys/class/net")?;
        let device = name.map(|dir| dir.link(&format!("{netdev}/device"))).transpose()?.flatten();
        let pf = device.and_then(|path| path.rsplit('/').next()?.parse::<Bdf>().ok());
        let Some(pf) = pf else { return Ok(()) };
        let all = Functions { root: owner.root, kernel: &Live, owner, pause: Duration::ZERO };
        owner.free_of_guests(&all.functions(pf)?)?;
        Ok(owner.carries_none(pf)?)
    })
}

impl NicStep {
    /// Whether it releases resources of a removed guest.
    pub(super) fn gives_back(&self) -> bool {
        matches!(self, NicStep::SetGuard { back: true, .. })
    }

    /// Refuses a step whose card has changed since the change was planned, or whose functions are
    /// in use.
    pub(super) fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), NicError> {
        match self {
            NicStep::SetCount { pf, count, was } => on_this_machine(hypervisor, |all| {
                all.expect(*pf, *was)?;
                all.expect_free(*pf, *count)
            }),
            NicStep::SetGuard { netdev, vf, .. } => free(netdev, *vf, hypervisor),
            NicStep::SetAutoprobe { .. } | NicStep::LinkUp { .. } => Ok(()),
        }
    }

    pub(super) fn perform(&self, hypervisor: &dyn Hypervisor) -> Result<(), NicError> {
        match self {
            NicStep::SetCount { pf, count, was } => {
                on_this_machine(hypervisor, |all| all.change(*pf, *was, *count))
            }
            NicStep::SetAutoprobe { pf, on, .. } => {
                on_this_machine(hypervisor, |all| all.set_autoprobe(*pf, *on))
            }
            NicStep::LinkUp { netdev } => Ok(link::set_up(netdev, true)?),
            NicStep::SetGuard { netdev, vf, to, .. } => {
                free(netdev, *vf, hypervisor)?;
                Ok(link::set_guard(netdev, *vf, *to)?)
            }
        }
    }

    /// Undoes it, where it was done or may have been. Functions removed with their PF need no
    /// undoing; those in use are left alone.
    pub(super) fn undo(&self, hypervisor: &dyn Hypervisor) -> Result<(), NicError> {
        let undone = match self {
            NicStep::SetCount { pf, was, .. } => {
                on_this_machine(hypervisor, |all| all.set(*pf, *was))
            }
            NicStep::SetAutoprobe { pf, was, .. } => {
                on_this_machine(hypervisor, |all| all.set_autoprobe(*pf, *was))
            }
            NicStep::LinkUp { netdev } => match needless(netdev, hypervisor) {
                Ok(()) => link::set_up(netdev, false).map_err(NicError::from),
                refused => refused,
            },
            NicStep::SetGuard { netdev, vf, was, .. } => match free(netdev, *vf, hypervisor) {
                Ok(()) => link::set_guard(netdev, *vf, *was).map_err(NicError::from),
                refused => refused,
            },
        };
        match undone {
            Err(NicError::Link(LinkError::Absent { .. })) => Ok(()),
            undone => undone,
        }
    }
}
