//! Who needs what a step is about to remove, asked at the moment of the step: a guest may have been defined, or an image
//! been laid over it, since the change was planned.

use super::{Step, StepError};
use crate::domain::DomainXml;
use crate::domain::guest::VolumeRef;
use crate::hypervisor::uses::{Use, Uses};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use std::path::Path;

/// Why what a step removes stays, in words; none: nobody needs it, or the step removes nothing.
pub(super) fn stays(step: &Step, hypervisor: &dyn Hypervisor) -> Result<Option<String>, StepError> {
    match step {
        Step::DeleteDisk { path } => {
            let uses = match read(hypervisor)? {
                Ok(uses) => uses,
                Err(why) => return Ok(Some(format!("disk {} stays: {why}", path.display()))),
            };
            Ok(first(&uses.of(path)).map(|why| format!("disk {} stays: {why}", path.display())))
        }
        Step::DeleteVolume { pool, name } => {
            let words = |why| format!("volume `{name}` of pool `{pool}` stays: {why}");
            let uses = match read(hypervisor)? {
                Ok(uses) => uses,
                Err(why) => return Ok(Some(words(why))),
            };
            let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
            // One that holds nothing is a mark of ours and nobody's disk.
            let known = uses.volume(&volume).filter(|known| known.capacity_bytes > 0);
            let all = known.map(|known| uses.of_disk(&known.path, Some(&volume)));
            Ok(all.and_then(|all| first(&all)).map(words))
        }
        Step::DropNvram { xml, .. } => {
            let Ok(xml) = DomainXml::parse(xml) else { return Ok(None) };
            let Some(path) = nvram(&xml) else { return Ok(None) };
            let words = |why| format!("NVRAM {path} stays: {why}");
            let uses = match read(hypervisor)? {
                Ok(uses) => uses,
                Err(why) => return Ok(Some(words(why))),
            };
            // Put back by a run that was killed, it has its own.
            let own = xml.uuid().unwrap_or_default();
            Ok(first(&uses.others(Path::new(&path), &own)).map(words))
        }
        _ => Ok(None),
    }
}

/// Who uses what; where a definition cannot be understood, what it uses is not known, and everything stays.
fn read(hypervisor: &dyn Hypervisor) -> Result<Result<Uses, String>, HypervisorError> {
    match Uses::read(hypervisor) {
        Err(error) if error.kind == HypervisorErrorKind::BadXml => Ok(Err(error.to_string())),
        uses => uses.map(Ok),
    }
}

/// The first use in words.
fn first(all: &[Use]) -> Option<String> {
    all.first().map(ToString::to_string)
}

/// The file that holds the settings of a domain's firmware.
pub fn nvram(xml: &DomainXml) -> Option<String> {
    let nvram = xml.root().find("os/nvram")?;
    let source = nvram.child("source").and_then(|source| source.attr("file"));
    let path = source.map_or_else(|| nvram.text().into_owned(), |path| path.into_owned());
    path.starts_with('/').then_some(path)
}
