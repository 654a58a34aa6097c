//! The members of a released array: whether they exist and are free, and their current content.

use super::super::error::ArrayVerbError;
use super::super::state::{Reason, State};
use super::RestoreArray;
use crate::command::{CommandError, output};
use crate::discover::arrays::array;
use crate::discover::node::kernel_name;
use crate::discover::released::{Released, plain};
use crate::discover::signatures::foreign;
use crate::error::{Coded as _, Error, Refusal, Result};
use crate::fsroot::FsRoot;
use crate::topology::{Content, DriveUse, Signature};
use crate::world::World;
use std::path::Path;

/// Time limit of mdadm for reading superblocks, in seconds.
const EXAMINE_S: u64 = 60;

/// Refuses while a member is missing or used by another than this array; returns the array's device
/// if it already runs.
pub(super) fn members_free(record: &Released, world: &World) -> Result<Option<String>> {
    let state = State::read(world, world.occupancy(false)?)?;
    let drives = &state.topology.parts().drives;
    let mut reasons = Vec::new();
    let mut running = None;
    for member in &record.members {
        let Some(name) = kernel_name(Path::new(&member.id)) else {
            reasons.push(format!(
                "{} (was {}) is not there: taken out, or bound to vfio-pci for a guest",
                member.id, member.name
            ));
            continue;
        };
        let whole = drives.iter().find(|drive| drive.name == name);
        let uses = match whole {
            Some(drive) => state.of_drive(drive),
            None => drives
                .iter()
                .flat_map(|drive| drive.partitions.iter().map(move |part| (drive, part)))
                .find(|(_, part)| part.name == name)
                .map(|(drive, part)| state.of_partition(drive, part))
                .unwrap_or_default(),
        };
        for used in uses {
            match &used {
                Reason::Host { used: DriveUse::Holder { device, .. }, .. }
                    if running.as_ref() == Some(device)
                        || uuid_of("--detail", &format!("/dev/{device}"))
                            == Some(plain(&record.uuid)) =>
                {
                    running = Some(device.clone());
                }
                // Member signatures are handled when superblocks are examined.
                Reason::Host { used: DriveUse::Member { .. }, .. } => {}
                used => reasons.push(used.to_string()),
            }
        }
    }
    if reasons.is_empty() {
        return Ok(running.map(|name| format!("/dev/{name}")));
    }
    reasons.dedup();
    let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
    Err(ArrayVerbError::MembersInUse { name: record.name.clone(), lines }.hint(
        "stop and delete the guests that have its drives; `gpuvm drive list` shows who uses what",
    ))
}

/// The UUID of an array (`--detail`) or in the superblock of a member (`--examine`), without
/// punctuation.
pub(super) fn uuid_of(how: &str, device: &str) -> Option<String> {
    let text = output(&["mdadm", how, "--export", device], EXAMINE_S).ok()?;
    text.lines().find_map(|line| line.strip_prefix("MD_UUID=")).map(plain)
}

/// Returns the members that lost the array's superblocks.
pub(super) fn lost(record: &Released) -> Result<Vec<String>> {
    if let Err(error @ CommandError::Unstarted { .. }) = output(&["mdadm", "--version"], EXAMINE_S)
    {
        let message = error.to_string();
        let refusal = Refusal::around(message, "install it: apt install mdadm");
        return Err(Error::from(error).around(refusal));
    }
    let is_of = |id: &str| uuid_of("--examine", id) == Some(plain(&record.uuid));
    let ids = record.members.iter().map(|member| &member.id);
    Ok(ids.filter(|id| !is_of(id)).cloned().collect())
}

/// Returns the members missing in a running array.
pub(super) fn outside(root: &FsRoot, record: &Released, device: &str) -> Result<Vec<String>> {
    let running = kernel_name(Path::new(device)).map(|name| array(root, &name)).transpose()?;
    let inside = running.flatten().map(|array| array.members).unwrap_or_default();
    let is_in = |id: &str| {
        let name = kernel_name(Path::new(id));
        inside.iter().any(|(_, member)| name.as_ref() == Some(member))
    };
    let ids = record.members.iter().map(|member| &member.id);
    Ok(ids.filter(|id| !is_in(id)).cloned().collect())
}

/// Returns the content of drives to be overwritten, a phrase each; an error if they belong to
/// something else, or have data whose loss was not accepted.
pub(super) fn overwritten<'i>(
    wanted: &RestoreArray,
    record: &Released,
    ids: impl Iterator<Item = &'i String>,
) -> Result<Vec<String>> {
    let (mut known, mut lines, mut refused) = (Vec::new(), String::new(), false);
    for id in ids {
        let content = foreign(Path::new(id), &record.uuid);
        let phrases = content.says(id);
        refused |= matches!(content, Content::Unread(_))
            || content.signatures().iter().any(Signature::is_member);
        phrases.iter().for_each(|phrase| lines += &format!("\n  {phrase}"));
        known.extend(phrases);
    }
    let name = &record.name;
    if refused {
        return Err(ArrayVerbError::MembersOfAnother { name: name.to_string(), lines }
            .hint("`gpuvm drive wipe ID` erases one of them, where nothing needs it"));
    }
    if !known.is_empty() && !wanted.accept_data_loss {
        return Err(ArrayVerbError::MembersHaveData { name: name.to_string(), lines }
            .hint("--accept-data-loss overwrites them"));
    }
    Ok(known)
}
