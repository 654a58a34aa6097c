//! Steps on switch ports that pass the transfers of one guest directly: bit DT of ACS control. No
//! other bit is ever changed, and the bit is cleared only where gpuvm has set it and the register
//! still has the value that was written.

pub mod boot;
mod record;
mod work;

pub use record::{PortRecord, PortState, owners, records};

use super::Observer;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;
use work::{Outcome, Work};

/// One change of a switch port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum P2pStep {
    /// Has a port pass translated requests directly while a guest runs.
    SetDirect {
        /// The port.
        port: Bdf,
        /// UUID of the guest.
        guest: String,
        /// ACS control when this was planned.
        was: u16,
    },
    /// Ends that for a guest; for the last one the register gets its former value.
    ClearDirect {
        /// The port.
        port: Bdf,
        /// UUID of the guest.
        guest: String,
    },
}

/// The error of a step on a switch port.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "p2p-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum P2pError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// The port is gone.
    #[error("port {port} does not exist")]
    #[strum(to_string = "port-absent")]
    Absent { port: Bdf },
    /// Its registers are not readable.
    #[error("ACS control of port {port} cannot be read")]
    #[strum(to_string = "control-unreadable")]
    Unreadable { port: Bdf },
    /// The register has changed since the plan.
    #[error("ACS control of port {port} is {now:#x}; it was {was:#x} when this was planned")]
    #[strum(to_string = "control-changed")]
    Changed { port: Bdf, now: u16, was: u16 },
    /// The kernel refuses a write to config space.
    #[error(
        "ACS control of port {port} cannot be written: {source}; a kernel in lockdown sets it only \
         by its argument pci=config_acs=1x111x1@{port}"
    )]
    #[strum(to_string = "control-refused")]
    Write {
        port: Bdf,
        #[source]
        source: std::io::Error,
    },
    /// The record of its guests cannot be read or written.
    #[error("{path}, the record of port {port}: {source}")]
    #[strum(to_string = "port-record")]
    Record {
        port: Bdf,
        path: String,
        #[source]
        source: std::io::Error,
    },
}

impl P2pError {
    /// Whether the port to be cleared is gone, so that nothing is left to clear.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, P2pError::Absent { .. })
    }

    /// Whether the register may have been written, or a guest recorded.
    pub(super) fn may_have_done(&self) -> bool {
        matches!(self, P2pError::Write { .. } | P2pError::Record { .. })
    }
}

impl fmt::Display for P2pStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            P2pStep::SetDirect { port, .. } => {
                write!(f, "set DT at {port}, for direct transfers below its switch")
            }
            P2pStep::ClearDirect { port, .. } => {
                write!(f, "clear DT at {port}, unless another guest needs it")
            }
        }
    }
}

impl P2pStep {
    /// Whether it releases resources of a removed guest.
    pub(super) fn gives_back(&self) -> bool {
        matches!(self, P2pStep::ClearDirect { .. })
    }

    /// Refuses a port whose register has changed since the plan.
    pub(super) fn expects(&self) -> Result<(), P2pError> {
        match self {
            P2pStep::SetDirect { port, was, .. } => Work::on(&FsRoot::live()?).expect(*port, *was),
            P2pStep::ClearDirect { .. } => Ok(()),
        }
    }

    pub(super) fn perform(&self, observer: &mut dyn Observer) -> Result<(), P2pError> {
        self.perform_on(&FsRoot::live()?, observer)
    }

    fn perform_on(&self, root: &FsRoot, observer: &mut dyn Observer) -> Result<(), P2pError> {
        let work = Work::on(root);
        let (port, outcome) = match self {
            P2pStep::SetDirect { port, guest, .. } => (port, work.set(*port, guest)?),
            P2pStep::ClearDirect { port, guest } => (port, work.clear(*port, guest)?),
        };
        match outcome {
            Outcome::Done => {}
            // The guest works without it, at a lower rate.
            Outcome::NotSet { now } => observer.note(&format!(
                "p2p-not-set: port {port} does not keep bit DT (ACS control {now:#x}): transfers \
                 go over the root complex"
            )),
            Outcome::Left { now, set } => observer.note(&format!(
                "ACS control of port {port} is {now:#x}, not {set:#x} as set by gpuvm: it is left \
                 as it is"
            )),
        }
        Ok(())
    }

    /// Undoes it, where it was done or may have been.
    pub(super) fn undo(&self) -> Result<(), P2pError> {
        self.undo_on(&FsRoot::live()?)
    }

    fn undo_on(&self, root: &FsRoot) -> Result<(), P2pError> {
        let work = Work::on(root);
        let undone = match self {
            P2pStep::SetDirect { port, guest, .. } => work.clear(*port, guest),
            P2pStep::ClearDirect { port, guest } => work.set(*port, guest),
        };
        match undone {
            Err(error) if error.is_gone() => Ok(()),
            undone => undone.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
