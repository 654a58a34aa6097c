//! Whether a guest modelled on another, by `clone` or `import`, has written since: its disks are
//! the only evidence. The bytes decide, never a time: clocks are set back, and a guest may have
//! been started by other means. Disks not proven unwritten count as written.

use super::{UndoError, delete_hint, named};
use crate::apply::{self, CheckStep, FileStep, MadeAs, Step, VolumeStep};
use crate::domain::DomainXml;
use crate::domain::guest::{Made, Role, VolumeRef};
use crate::error::{Coded as _, Result};
use crate::history::Entry;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::machine::tpm_state_of;
use crate::world::World;
use std::path::{Path, PathBuf};

/// Plans the comparison of the disks that a change made for a guest with their recorded state, and
/// refuses one that is known to have been written, or that has no record. Not of a seed, which is
/// filled after it is made.
pub(super) fn unwritten(world: &World, name: &str, entry: &Entry, now: &str) -> Result<Vec<Step>> {
    let hypervisor = &*world.hypervisor()?;
    let xml = DomainXml::parse(now)?;
    let of = Of { entry, name, xml: &xml };
    let made: Vec<Made> = xml.made();
    let made = made.into_iter().filter(|made| !matches!(made.role, Role::Seed | Role::Base));
    let made: Vec<Made> = made.collect();
    if !world.is_here()? {
        return of.refuse_unseen(&made);
    }
    if let Some(kept) = hypervisor.keeps(name)?.into_iter().next() {
        let (name, change) = (name.to_owned(), named(entry));
        return Err(UndoError::Kept { name, kept: kept.what, change }.hint(kept.hint));
    }
    let uses = Uses::read(hypervisor)?;
    let mut steps = Vec::new();
    for made in &made {
        steps.extend(of.disk(made, &uses)?);
    }
    steps.extend(of.firmware(hypervisor)?);
    Ok(steps)
}

/// A guest and the change that made it.
struct Of<'a> {
    entry: &'a Entry,
    name: &'a str,
    xml: &'a DomainXml,
}

impl Of<'_> {
    /// Refuses disks of another machine, since it cannot be verified whether they were written.
    fn refuse_unseen(&self, made: &[Made]) -> Result<Vec<Step>> {
        let Some(VolumeRef { pool, name }) = made.iter().find_map(|made| made.volume.clone())
        else {
            return Ok(Vec::new());
        };
        let change = named(self.entry);
        Err(UndoError::CopyUnseen { change, volume: name, pool }.hint(delete_hint(self.name)))
    }

    /// The step that compares a disk; `None` if it is gone, or seen to be unwritten.
    fn disk(&self, made: &Made, uses: &Uses) -> Result<Option<Step>> {
        let known = made.volume.as_ref().and_then(|volume| uses.volume(volume));
        let path = known.map_or_else(|| PathBuf::from(&made.path), |known| known.path.clone());
        if path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        if self.is_overlay(made) {
            if apply::is_untouched(&path) {
                return Ok(None);
            }
            return self.written(&path);
        }
        match self.made_as(made, uses) {
            Ok(made) => Ok(Some(self.check(path, made))),
            Err(why) => {
                let (name, change) = (self.name.to_owned(), named(self.entry));
                let path = path.display().to_string();
                let error = UndoError::Unproven { name, path, change, why };
                Err(error.hint(delete_hint(self.name)))
            }
        }
    }

    /// Whether the change made a disk as an image over another one.
    fn is_overlay(&self, made: &Made) -> bool {
        self.entry.steps.iter().any(|step| step.makes_overlay() && is_of(step, made))
    }

    /// The state of a disk when it was made; an error if it is not known any more.
    fn made_as(&self, made: &Made, uses: &Uses) -> std::result::Result<MadeAs, String> {
        let step = self.entry.steps.iter().find(|step| step.makes_copy() && is_of(step, made));
        let gone = |disk: &Path| {
            if disk.exists() {
                Ok(disk.to_owned())
            } else {
                Err(format!("{}, of which it is a copy, is gone", disk.display()))
            }
        };
        match step {
            Some(Step::File(FileStep::CreateDisk { bytes, sha256: Some(sha256), .. })) => {
                Ok(MadeAs::Bytes { bytes: *bytes, sha256: *sha256 })
            }
            Some(Step::File(FileStep::CreateDisk { from: Some(from), .. })) => {
                let driver = self.xml.disk(&made.path).and_then(|disk| disk.child("driver"));
                let format = driver.and_then(|driver| driver.attr("type")).unwrap_or_default();
                let format = if format.is_empty() { "raw".to_owned() } else { format.into_owned() };
                Ok(MadeAs::CopyOf { disk: gone(from)?, format })
            }
            Some(Step::Volume(VolumeStep::Make { volume, from: Some(from), .. })) => {
                let Some(source) = uses.volume(from) else {
                    let VolumeRef { pool, name } = from;
                    return Err(format!(
                        "volume `{name}` of pool `{pool}`, of which it is a copy, is gone"
                    ));
                };
                Ok(MadeAs::CopyOf { disk: gone(&source.path)?, format: volume.format.clone() })
            }
            _ => Err("what it was is not recorded".to_owned()),
        }
    }

    /// The comparison of its NVRAM, which only a start makes, unless the change itself did. Refuses
    /// state that a start made.
    fn firmware(&self, hypervisor: &dyn Hypervisor) -> Result<Option<Step>> {
        let uuid = self.xml.uuid().unwrap_or_default();
        if self.xml.has_tpm() {
            match tpm_state_of(&hypervisor.opened_uri(), &uuid) {
                Some(dir) if apply::is_absent(&dir) => {}
                Some(dir) => return self.written(&dir),
                None => return self.written(Path::new("of its TPM")),
            }
        }
        let nvram = self.xml.nvram().map(PathBuf::from);
        let Some(path) = nvram.filter(|path| !apply::is_absent(path)) else {
            return Ok(None);
        };
        let copied =
            self.entry.steps.iter().find_map(|step| match step {
                Step::File(FileStep::CreateDisk {
                    path: of, bytes, sha256: Some(sha256), ..
                }) if *of == path => Some(MadeAs::Bytes { bytes: *bytes, sha256: *sha256 }),
                _ => None,
            });
        match copied {
            Some(made) => Ok(Some(self.check(path, made))),
            None => self.written(&path),
        }
    }

    /// The step that compares a file with its recorded state.
    fn check(&self, path: PathBuf, made: MadeAs) -> Step {
        Step::Check(CheckStep::AsMade { domain: self.name.to_owned(), path, made })
    }

    /// The error of a file that was written.
    fn written<T>(&self, path: &Path) -> Result<T> {
        let (change, name) = (named(self.entry), self.name.to_owned());
        let path = path.display().to_string();
        Err(UndoError::Written { change, path, name }.hint(delete_hint(self.name)))
    }
}

/// Whether a step made a disk.
fn is_of(step: &Step, made: &Made) -> bool {
    match step {
        Step::File(FileStep::CreateDisk { path, .. }) => {
            made.volume.is_none() && *path == Path::new(&made.path)
        }
        Step::Volume(VolumeStep::Make { pool, volume, .. }) => {
            made.volume.as_ref().is_some_and(|of| of.pool == *pool && of.name == volume.name)
        }
        _ => false,
    }
}
