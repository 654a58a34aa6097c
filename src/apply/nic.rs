//! Steps on network cards with SR-IOV: how many virtual functions a physical function (PF) has, whether drivers of the
//! host take them, and what the PF lets each of them do. Every one does nothing where nothing is left to do, so doing,
//! undoing and repeating after a kill are one thing.

pub mod boot;
mod count;
mod link;

pub(super) use link::delete as delete_link;
pub use link::{LinkError, guard};

use super::bind::{BindError, Live};
use crate::bdf::Bdf;
use crate::fsroot::{FsError, FsRoot};
use crate::request::Guard;
use count::Functions;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Is one change of a network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum NicStep {
    /// Sets the number of virtual functions; where it is another one now, all that are there go first.
    SetCount {
        /// The PF.
        pf: Bdf,
        /// The number.
        count: u32,
        /// The number before.
        was: u32,
    },
    /// Sets whether drivers of the host take virtual functions of a PF that are made from then on.
    SetAutoprobe {
        /// The PF.
        pf: Bdf,
        /// Whether they do.
        on: bool,
        /// Whether they did.
        was: bool,
    },
    /// Takes a PF's network device up, without which none of its virtual functions has a link.
    LinkUp {
        /// The network device.
        netdev: String,
    },
    /// Sets what a PF lets a virtual function do.
    SetGuard {
        /// The PF's network device.
        netdev: String,
        /// Number of the virtual function, from 0.
        vf: u32,
        /// What it is to be.
        to: Guard,
        /// What it is.
        was: Guard,
    },
}

/// Says why a step on a network card was not possible.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The host's files.
    #[error(transparent)]
    File(#[from] FsError),
    /// The kernel refuses a write, or does not answer.
    #[error(transparent)]
    Write(#[from] BindError),
    /// The kernel's routing socket.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// There is no such PF, or it has no SR-IOV.
    #[error("{pf} has no SR-IOV, or is not there")]
    Absent {
        /// The PF.
        pf: Bdf,
    },
    /// The number is not what it was when the change was planned.
    #[error("{pf} has {now} virtual functions now, and had {was} when this was planned")]
    Changed {
        /// The PF.
        pf: Bdf,
        /// How many it has.
        now: u32,
        /// How many it had.
        was: u32,
    },
    /// The number that was written is not the number that is read.
    #[error("{pf} has {now} virtual functions after {count} were asked for")]
    NotMade {
        /// The PF.
        pf: Bdf,
        /// How many were asked for.
        count: u32,
        /// How many there are.
        now: u32,
    },
    /// It failed, and what it was before could not be restored.
    #[error("{first}; and it is not as it was: {second}")]
    Twice {
        /// What failed.
        first: Box<NicError>,
        /// What failed then.
        second: Box<NicError>,
    },
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
    format!("{count} virtual function{}", if count == 1 { "" } else { "s" })
}

/// Works with the virtual functions of this machine.
fn on_this_machine<T>(
    work: impl FnOnce(&Functions<'_>) -> Result<T, NicError>,
) -> Result<T, NicError> {
    let root = FsRoot::live()?;
    work(&Functions { root: &root, kernel: &Live, pause: Duration::from_millis(100) })
}

impl NicStep {
    /// Refuses a step whose card is not as it was when the change was planned.
    pub(super) fn expects(&self) -> Result<(), NicError> {
        match self {
            NicStep::SetCount { pf, was, .. } => on_this_machine(|all| all.expect(*pf, *was)),
            _ => Ok(()),
        }
    }

    /// Does it.
    pub(super) fn perform(&self) -> Result<(), NicError> {
        match self {
            NicStep::SetCount { pf, count, was } => {
                on_this_machine(|all| all.change(*pf, *was, *count))
            }
            NicStep::SetAutoprobe { pf, on, .. } => {
                on_this_machine(|all| all.set_autoprobe(*pf, *on))
            }
            NicStep::LinkUp { netdev } => Ok(link::set_up(netdev, true)?),
            NicStep::SetGuard { netdev, vf, to, .. } => Ok(link::set_guard(netdev, *vf, *to)?),
        }
    }

    /// Undoes it, where it was done or may have been. What went with its PF needs no undoing.
    pub(super) fn undo(&self) -> Result<(), NicError> {
        let undone = match self {
            NicStep::SetCount { pf, was, .. } => on_this_machine(|all| all.set(*pf, *was)),
            NicStep::SetAutoprobe { pf, was, .. } => {
                on_this_machine(|all| all.set_autoprobe(*pf, *was))
            }
            NicStep::LinkUp { netdev } => Ok(link::set_up(netdev, false)?),
            NicStep::SetGuard { netdev, vf, was, .. } => Ok(link::set_guard(netdev, *vf, *was)?),
        };
        match undone {
            Err(NicError::Link(LinkError::Absent { .. })) => Ok(()),
            undone => undone,
        }
    }
}
