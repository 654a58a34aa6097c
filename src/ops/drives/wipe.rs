//! `drive wipe`: erases an unused drive, such as one that a guest had.

use super::error::DriveError;
use super::named;
use super::state::{Reason, State};
use crate::apply::drive::WipeStep;
use crate::bdf::Bdf;
use crate::blockdev::DriveIdentity;
use crate::change::Change;
use crate::error::{Class, Coded as _, Result, classed};
use crate::fsroot::FsRoot;
use crate::reporter::Deed;
use crate::shell::word;
use crate::topology::{Drive, DriveUse};
use crate::world::World;
use serde::Serialize;
use std::path::PathBuf;

/// A drive to be erased.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Wiped {
    /// The kernel's name.
    pub name: String,
    /// The path under which it was erased.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its previous content.
    pub content: Vec<String>,
}

/// Plans to erase the drive named by id or by the PCI address of its function.
pub fn wipe(world: &World, id: &str) -> Result<Change<Wiped>> {
    plan(&State::read(world, world.occupancy(false)?)?, id)
}

/// The same for a host already read.
fn plan(state: &State, id: &str) -> Result<Change<Wiped>> {
    let drive = find(state, id)?;
    // Mere signatures are to be erased.
    let is_mark =
        |reason: &Reason| matches!(reason, Reason::Host { used: DriveUse::Member { .. }, .. });
    let (marks, reasons): (Vec<_>, Vec<_>) = state.of_drive(drive).into_iter().partition(is_mark);
    if let Some(first) = reasons.first() {
        let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
        let hint = match first {
            reason if reason.is_system() => "the host runs from it, so it is never erased".into(),
            Reason::Function { domain, bdf, recorded_at: Some(_) } => format!(
                "`gpuvm set {} --nvme {bdf}` gives it to the guest that has it recorded; \
                 `--no-nvme` has the guest give it up",
                word(domain)
            ),
            Reason::Disk { domain, .. } | Reason::Function { domain, .. } => format!(
                "`gpuvm delete {}` deletes the guest and keeps the drive's data until it is \
                 erased",
                word(domain)
            ),
            _ => "free it first; `gpuvm drive list` shows who uses what".into(),
        };
        return Err(classed(
            Class::InUse,
            format!("drive {id} is not erased: it is in use{lines}"),
            hint,
        ));
    }
    let mut content = drive.remains();
    content.extend(marks.iter().map(ToString::to_string));
    let path = State::stable_path(drive).unwrap_or_else(|| format!("/dev/{}", drive.name));
    let known = DriveIdentity::of(&FsRoot::live()?, &drive.name);
    let (name, path, bytes) = (drive.name.clone(), PathBuf::from(path), drive.bytes);
    let step = WipeStep { path: path.clone(), bytes, content: content.clone(), known };
    let about = Wiped { name: name.clone(), path, bytes, content };
    let change = named(("drive wipe", &name), (Deed::Erase, "drive", id), vec![step.into()], about);
    Ok(Change { again: format!("gpuvm drive wipe {}", word(id)), ..change })
}

/// Finds the drive named by id or by the PCI address of its function.
fn find<'s>(state: &'s State, id: &str) -> Result<&'s Drive> {
    let Ok(bdf) = id.parse::<Bdf>() else { return state.find_drive(id) };
    let mut drives = state.topology.parts().drives.iter().filter(|drive| drive.bdf == Some(bdf));
    match (drives.next(), drives.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(DriveError::Several { bdf: bdf.to_string() }
            .hint("`gpuvm drive list` shows the name of each")),
        (None, _) => {
            let device = state.topology.device(bdf);
            let driver = device.and_then(|device| device.driver.as_deref());
            Err(match driver.filter(|driver| crate::topology::is_vfio(driver)) {
                Some(driver) => {
                    DriveError::OnVfio { bdf: bdf.to_string(), driver: driver.to_string() }.hint(
                        format!("`gpuvm device release {bdf}` gives it to the host's driver first"),
                    )
                }
                None => DriveError::NoneAt { bdf: bdf.to_string() }
                    .hint("`gpuvm drive list` shows drives and partitions with their names"),
            })
        }
    }
}

#[cfg(test)]
mod tests;
