//! Sets the number of a physical function's virtual functions through sysfs. The kernel accepts a
//! new number only from 0, so a change goes through 0 and removes all existing ones.
//!
//! A PF's driver may take long, and forever if a virtual function is in use: each write is made by
//! a process of its own ([`Kernel`]).

use super::NicError;
use crate::apply::bind::Kernel;
use crate::apply::owner::Owner;
use crate::fsroot::{Dir, FsRoot};
use gpuvm_core::bdf::Bdf;
use std::time::Duration;

/// How long the removal of all virtual functions may take, in seconds.
const REMOVE_S: u64 = 60;
/// How long making them may take, in seconds: drivers of large cards set each of them up.
const MAKE_S: u64 = 120;
/// How long writing a setting may take, in seconds: no driver is involved.
const SETTING_S: u64 = 10;
/// How often to check whether all exist.
const LOOKS: u32 = 50;

/// The means of setting the number of virtual functions.
pub(super) struct Functions<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// The writer to the kernel.
    pub kernel: &'a dyn Kernel,
    /// Finds the owner of a function.
    pub owner: &'a dyn Owner,
    /// How long to wait between two checks.
    pub pause: Duration,
}

fn path(pf: Bdf) -> String {
    format!("sys/bus/pci/devices/{pf}")
}

impl Functions<'_> {
    fn dir(&self, pf: Bdf) -> Result<Dir<'_>, NicError> {
        self.root.dir(&path(pf))?.ok_or(NicError::Absent { pf })
    }

    fn now(&self, pf: Bdf) -> Result<u32, NicError> {
        self.dir(pf)?.number("sriov_numvfs")?.ok_or(NicError::Absent { pf })
    }

    /// Refuses a PF whose number has changed.
    pub fn expect(&self, pf: Bdf, was: u32) -> Result<(), NicError> {
        match self.now(pf)? {
            now if now == was => Ok(()),
            now => Err(NicError::Changed { pf, now, was }),
        }
    }

    /// Refuses to remove functions in use.
    pub fn expect_free(&self, pf: Bdf, count: u32) -> Result<(), NicError> {
        match self.now(pf)? {
            now if now == count || now == 0 => Ok(()),
            _ => {
                self.owner.free(&self.functions(pf)?)?;
                Ok(())
            }
        }
    }

    /// The functions of a PF, by number.
    pub fn functions(&self, pf: Bdf) -> Result<Vec<Bdf>, NicError> {
        let dir = self.dir(pf)?;
        let mut functions = Vec::new();
        while let Some(name) = dir.link_name(&format!("virtfn{}", functions.len()))? {
            let Ok(bdf) = name.parse() else { break };
            functions.push(bdf);
        }
        Ok(functions)
    }

    /// Changes the number from `was` to `count`; on failure, back to `was`.
    pub fn change(&self, pf: Bdf, was: u32, count: u32) -> Result<(), NicError> {
        let Err(first) = self.set(pf, count) else { return Ok(()) };
        match self.set(pf, was) {
            Ok(()) => Err(first),
            Err(second) => {
                Err(NicError::Twice { first: Box::new(first), second: Box::new(second) })
            }
        }
    }

    /// Sets the number to `count`, whatever it is now, and waits until each of them exists.
    pub fn set(&self, pf: Bdf, count: u32) -> Result<(), NicError> {
        let file = format!("{}/sriov_numvfs", path(pf));
        let now = self.now(pf)?;
        if now != count {
            if now != 0 {
                // All of them are removed, even those of guests that appeared since.
                drop(self.owner.free(&self.functions(pf)?)?);
                self.kernel.write(&file, "0", REMOVE_S)?;
            }
            if count != 0 {
                self.kernel.write(&file, &count.to_string(), MAKE_S)?;
            }
        }
        let mut there = self.there(pf)?;
        for _ in 0..LOOKS {
            if there == count {
                break;
            }
            std::thread::sleep(self.pause);
            there = self.there(pf)?;
        }
        let now = self.now(pf)?;
        if now == count && there == count {
            Ok(())
        } else {
            Err(NicError::NotMade { pf, count, now: now.min(there) })
        }
    }

    /// Returns how many are visible as PCI functions.
    fn there(&self, pf: Bdf) -> Result<u32, NicError> {
        let dir = self.dir(pf)?;
        let mut there = 0;
        while let Some(name) = dir.link_name(&format!("virtfn{there}"))? {
            if !self.root.exists(&format!("sys/bus/pci/devices/{name}")) {
                break;
            }
            there += 1;
        }
        Ok(there)
    }

    /// Sets whether host drivers bind new ones.
    pub fn set_autoprobe(&self, pf: Bdf, on: bool) -> Result<(), NicError> {
        let text = if on { "1" } else { "0" };
        if self.dir(pf)?.read("sriov_drivers_autoprobe")?.as_deref() == Some(text) {
            return Ok(());
        }
        let file = format!("{}/sriov_drivers_autoprobe", path(pf));
        Ok(self.kernel.write(&file, text, SETTING_S)?)
    }
}

#[cfg(test)]
mod tests;
