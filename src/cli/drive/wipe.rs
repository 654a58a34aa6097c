//! `drive wipe`: erases a drive that nobody uses, such as one that a guest had.

use super::named;
use crate::apply::Step;
use crate::apply::drive::WipeStep;
use crate::bdf::Bdf;
use crate::blockdev::Known;
use crate::cli::args::WipeArgs;
use crate::cli::change::asking;
use crate::cli::codes::Class;
use crate::cli::context::Context;
use crate::cli::error::{Coded, EXIT_DONE, classed};
use crate::fsroot::FsRoot;
use crate::shell::word;
use crate::topology::{Drive, DriveUse};
use gpuvm_ops::change::Change;
use gpuvm_ops::drives::error::DriveError;
use gpuvm_ops::drives::state::{Reason, State};
use gpuvm_ops::reporter::Deed;
use gpuvm_ops::session::Session;
use serde::Serialize;
use std::path::PathBuf;

/// Is the answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Wiped {
    /// The kernel's name.
    name: String,
    /// The path that it was erased by.
    path: PathBuf,
    /// Its size.
    bytes: u64,
    /// What was on it.
    content: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &WipeArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("drive wipe")?;
    cx.refuse_elsewhere("drive wipe")?;
    let (yes, dry_run) = (args.change.yes, args.change.dry_run);
    let mut session = Session::begin(cx, asking(&args.change.lock, (yes, dry_run)))?;
    let done = session.run(|_| -> anyhow::Result<_> {
        let (name, step) = plan(&args.id, cx)?;
        let what = ("drive wipe", name.as_str());
        let steps = vec![Step::WipeDrive(step.clone())];
        let change = named(what, (Deed::Erase, "drive", &args.id), steps, (name.clone(), step));
        Ok(Change { again: format!("gpuvm drive wipe {}", word(&args.id)), ..change })
    })?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let (name, WipeStep { path, bytes, content, .. }) = done.change.about;
    let told = format!("drive {name} ({}) is erased", path.display());
    if cx.output.json {
        cx.output.json("gpuvm-wiped-drive", &Wiped { name, path, bytes, content })?;
    }
    cx.output.progress(&told);
    Ok(EXIT_DONE)
}

/// The kernel's name of the drive and the step, or why it is not erased.
fn plan(id: &str, cx: &Context<'_>) -> anyhow::Result<(String, WipeStep)> {
    let state = State::read(cx, cx.occupancy(false)?)?;
    let drive = find(&state, id)?;
    // A mark alone is what is erased.
    let is_mark =
        |reason: &Reason| matches!(reason, Reason::Host { used: DriveUse::Member { .. }, .. });
    let (marks, reasons): (Vec<_>, Vec<_>) = state.of_drive(drive).into_iter().partition(is_mark);
    if let Some(first) = reasons.first() {
        let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
        let hint = match first {
            reason if reason.is_system() => "the host runs from it, so it is never erased",
            Reason::Disk { .. } | Reason::Function { .. } => {
                "`gpuvm delete NAME` deletes the guest and keeps the drive's data until it is erased"
            }
            _ => "free it first; `gpuvm drive list` shows who uses what",
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
    let known = Known::of(&FsRoot::live()?, &drive.name);
    let step = WipeStep { path: path.into(), bytes: drive.bytes, content, known };
    Ok((drive.name.clone(), step))
}

/// The drive that an id or the PCI address of its function names.
fn find<'s>(state: &'s State, id: &str) -> anyhow::Result<&'s Drive> {
    let Ok(bdf) = id.parse::<Bdf>() else { return Ok(state.find_drive(id)?) };
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
