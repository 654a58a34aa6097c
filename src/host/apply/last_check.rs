//! Finds the users of an object that a step is about to remove, at the time of the step: since the
//! plan a guest may have been defined, or an overlay made.

use super::StepError;
use super::firmware::{foreign_nvram, tpm_stays};
use crate::discover::hung_mounts::Silent;
use crate::discover::openers::in_use;
use crate::hypervisor::file_users::{Conflict, How, Use, User, Uses};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::identity::FileId;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::guest::VolumeRef;
use std::path::Path;

/// The reason to keep a file that matches the created one only by inode number.
pub(super) const UNBORN: &str =
    "its file system records no birth time, so its identity cannot be verified";
/// The reason to keep a file that was replaced.
const ANOTHER: &str = "it was replaced by another file since the deletion was planned";
/// The reason to keep a file that a journal identifies only by path.
const UNKNOWN: &str = "an older gpuvm did not record which file it was";

/// Why an image must not be deleted; `None` if it is unused. `later`: an interrupted run planned
/// it, so the file may have been recreated since.
pub(super) fn disk_stays(
    path: &Path,
    file: Option<&FileId>,
    later: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<String>, StepError> {
    let words = |why: String| format!("disk {} stays: {why}", path.display());
    if let Some(why) = Silent::read().why(path) {
        return Ok(Some(words(why)));
    }
    if later && file.is_none() && path.symlink_metadata().is_ok() {
        return Ok(Some(words(UNKNOWN.to_owned())));
    }
    if let Some(why) = another(path, file, later) {
        return Ok(Some(words(why.to_owned())));
    }
    let uses = match read(hypervisor)? {
        Ok(uses) => uses,
        Err(why) => return Ok(Some(words(why))),
    };
    let why = first(&uses.of(path)).or_else(|| in_use(path, false));
    Ok(why.map(words))
}

/// As [`disk_stays`], of a volume by pool and name.
pub(super) fn volume_stays(
    (pool, name): (&str, &str),
    file: Option<&FileId>,
    later: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<String>, StepError> {
    let words = |why| format!("volume `{name}` of pool `{pool}` stays: {why}");
    let uses = match read(hypervisor)? {
        Ok(uses) => uses,
        Err(why) => return Ok(Some(words(why))),
    };
    let volume = VolumeRef { pool: pool.to_owned(), name: name.to_owned() };
    // An empty one is a marker of ours, not a disk.
    let known = uses.volume(&volume).filter(|known| known.capacity_bytes > 0);
    if let Some(why) = known.and_then(|known| uses.silent(&known.path)) {
        return Ok(Some(words(why)));
    }
    if let Some(why) = known.and_then(|known| another(&known.path, file, later)) {
        return Ok(Some(words(why.to_owned())));
    }
    let here = hypervisor.machine().is_here();
    let why = known.and_then(|known| {
        let all = uses.of_disk(&known.path, Some(&volume));
        first(&all).or_else(|| here.then(|| in_use(&known.path, false)).flatten())
    });
    Ok(why.map(words))
}

/// Why the NVRAM, or (`tpm`) the TPM state, of an undefined domain must not be removed.
pub(super) fn state_stays(
    xml: &str,
    tpm: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<String>, StepError> {
    let Ok(xml) = DomainXml::parse(xml) else { return Ok(None) };
    if tpm {
        return Ok(tpm_stays(&xml, hypervisor));
    }
    let Some(path) = xml.nvram() else { return Ok(None) };
    let words = |why| format!("NVRAM {path} stays: {why}");
    let uses = match read(hypervisor)? {
        Ok(uses) => uses,
        Err(why) => return Ok(Some(words(why))),
    };
    // If an interrupted run restored it, it has its own.
    let own = xml.uuid().unwrap_or_default();
    let path = Path::new(&path);
    let why = first(&uses.others(path, &own)).or_else(|| uses.as_firmware(path));
    let why = why.or_else(|| foreign_nvram(path, &hypervisor.opened_uri()));
    Ok(why.map(words))
}

/// Refuses a domain whose disks others use, or whose backing files others write: they may have been
/// given away since the plan. `starts`: it exists and is to be started, so only running domains
/// count, and images over the files that it would write: they are worthless after that.
pub(super) fn expects_disks(
    text: &str,
    starts: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<(), StepError> {
    let Ok(xml) = DomainXml::parse(text) else { return Ok(()) };
    match disk_conflict(&xml, starts, hypervisor)? {
        None => Ok(()),
        Some(Conflict { path, used, .. }) => Err(StepError::Taken { path, by: used.to_string() }),
    }
}

/// Finds a disk of a domain, or a backing file of one, that another uses; `starts` as of a step.
pub fn disk_conflict(
    xml: &DomainXml,
    starts: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<Option<Conflict>, HypervisorError> {
    if xml.root().children("devices").all(|devices| devices.child("disk").is_none()) {
        return Ok(None);
    }
    let uses = Uses::read(hypervisor)?;
    let rows = if starts { hypervisor.domains()? } else { Vec::new() };
    let counts = |one: &Use| match &one.by {
        User::Domain { uuid, .. } if starts && one.how != How::Over => {
            rows.iter().any(|row| row.uuid == *uuid && row.state.is_active())
        }
        _ => true,
    };
    let conflicts = uses.conflicts(xml, xml.uuid().as_deref());
    Ok(conflicts.into_iter().find(|conflict| counts(&conflict.used)))
}

/// Returns why a file may not be the one to remove: it was recreated since, or may have been.
pub(super) fn another(path: &Path, was: Option<&FileId>, later: bool) -> Option<&'static str> {
    let (was, now) = (was?, FileId::at(path).ok()??);
    match now {
        // Some file systems get another device number at each boot.
        now if was.is(&now, false) => None,
        now if !was.may_be(&now) => Some(ANOTHER),
        _ => later.then_some(UNBORN),
    }
}

/// Reads all uses; if a definition cannot be parsed, its uses are unknown, and everything stays.
fn read(hypervisor: &dyn Hypervisor) -> Result<Result<Uses, String>, HypervisorError> {
    match Uses::read(hypervisor) {
        Err(error) if error.kind == HypervisorErrorKind::BadXml => Ok(Err(error.to_string())),
        uses => uses.map(Ok),
    }
}

fn first(all: &[Use]) -> Option<String> {
    all.first().map(ToString::to_string)
}
