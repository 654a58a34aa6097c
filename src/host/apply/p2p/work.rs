//! Changes ACS control of ports, on a root directory that is handed in.

use super::P2pError;
use super::record::{DIR, PortRecord};
use crate::fsroot::FsRoot;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::p2p::{Registers, bits, control_at};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The state of a port after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As wanted.
    Done,
    /// The port does not keep the bit, as if it were read-only.
    NotSet { now: u16 },
    /// Another has changed the register since: it is left.
    Left { now: u16, set: u16 },
}

/// ACS control of a port.
#[derive(Debug, Clone, Copy)]
struct Control {
    /// Vendor and device id.
    ids: (u16, u16),
    /// Offset in config space.
    at: u16,
    /// Its value.
    value: u16,
}

/// Changes ports below a root directory.
pub(super) struct Work<'a> {
    root: &'a FsRoot,
}

impl Work<'_> {
    pub fn on(root: &FsRoot) -> Work<'_> {
        Work { root }
    }

    fn control(&self, port: Bdf) -> Result<Control, P2pError> {
        let dir = self.root.dir(&format!("sys/bus/pci/devices/{port}"))?;
        let dir = dir.ok_or(P2pError::Absent { port })?;
        let unreadable = P2pError::Unreadable { port };
        let Some(config) = dir.words("config") else { return Err(unreadable) };
        let Some(ids) = config.at(0).filter(|ids| *ids != u32::MAX) else { return Err(unreadable) };
        let ids = ((ids & 0xffff) as u16, (ids >> 16) as u16);
        let read = |at| config.at(at);
        match (control_at(ids, read), Registers::read(ids, read).acs) {
            (Some(at), Some(acs)) => Ok(Control { ids, at, value: acs.ctl }),
            _ => Err(unreadable),
        }
    }

    /// Writes the register and returns its value after that.
    fn write(&self, port: Bdf, control: Control, value: u16) -> Result<u16, P2pError> {
        let path = self.root.path().join(format!("sys/bus/pci/devices/{port}/config"));
        let written = OpenOptions::new().write(true).open(path);
        let written =
            written.and_then(|file| file.write_all_at(&value.to_le_bytes(), u64::from(control.at)));
        written.map_err(|source| P2pError::Write { port, source })?;
        Ok(self.control(port)?.value)
    }

    fn recorded(&self, port: Bdf, ids: (u16, u16)) -> Option<PortRecord> {
        PortRecord::read(self.root, port).filter(|record| record.ids == ids)
    }

    fn keep(&self, record: &PortRecord) -> Result<(), P2pError> {
        let failed = |source| record_error(record.port, source);
        record.write(self.root).map_err(failed)
    }

    fn forget(&self, port: Bdf) -> Result<(), P2pError> {
        PortRecord::remove(self.root, port).map_err(|source| record_error(port, source))
    }

    /// Refuses a port whose register is neither as planned nor as it is to be.
    pub fn expect(&self, port: Bdf, was: u16) -> Result<(), P2pError> {
        let now = self.control(port)?.value;
        if now | bits::DT == was | bits::DT {
            return Ok(());
        }
        Err(P2pError::Changed { port, now, was })
    }

    /// Sets the bit for a guest. The record comes first, so that a kill leaves no bit without one.
    /// A bit that another has set is used, and is not ours.
    pub fn set(&self, port: Bdf, guest: &str) -> Result<Outcome, P2pError> {
        let control = self.control(port)?;
        let (ids, now) = (control.ids, control.value);
        let recorded = self.recorded(port, ids);
        if now & bits::DT != 0 {
            if let Some(mut record) = recorded
                && record.guests.insert(guest.to_owned())
            {
                self.keep(&record)?;
            }
            return Ok(Outcome::Done);
        }
        // A reset of the port has cleared the bit that an earlier guest needed.
        let mut guests = recorded.map(|record| record.guests).unwrap_or_default();
        guests.insert(guest.to_owned());
        let set = now | bits::DT;
        self.keep(&PortRecord { port, ids, was: now, set, guests })?;
        let now = match self.write(port, control, set) {
            Ok(now) => now,
            Err(error) => {
                // It was not written, so there is nothing to undo.
                self.forget(port)?;
                return Err(error);
            }
        };
        if now == set {
            return Ok(Outcome::Done);
        }
        self.forget(port)?;
        Ok(Outcome::NotSet { now })
    }

    /// Ends the use by a guest. For the last one the register gets its former value, if it still
    /// has the one that was written; then the record goes.
    pub fn clear(&self, port: Bdf, guest: &str) -> Result<Outcome, P2pError> {
        let Some(mut record) = PortRecord::read(self.root, port) else { return Ok(Outcome::Done) };
        if !record.guests.remove(guest) {
            return Ok(Outcome::Done);
        }
        let control = match self.control(port) {
            Err(error) if error.is_gone() => {
                self.forget(port)?;
                return Ok(Outcome::Done);
            }
            control => control?,
        };
        if !record.guests.is_empty() && record.ids == control.ids {
            self.keep(&record)?;
            return Ok(Outcome::Done);
        }
        let (now, set) = (control.value, record.set);
        let mut outcome = Outcome::Done;
        if record.ids != control.ids || now & bits::DT != 0 && now != set {
            outcome = Outcome::Left { now, set };
        } else if now == set {
            let after = self.write(port, control, record.was)?;
            if after != record.was {
                outcome = Outcome::Left { now: after, set };
            }
        }
        self.forget(port)?;
        Ok(outcome)
    }
}

fn record_error(port: Bdf, source: io::Error) -> P2pError {
    P2pError::Record { port, path: format!("/{DIR}/{port}.json"), source }
}
