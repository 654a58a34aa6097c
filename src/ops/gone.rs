//! Leftovers of guests undefined by other means: reported by `verify --all` and `recover`, released
//! by `recover --gone`. A guest is gone if its hypervisor has no domain of its UUID.

use crate::apply::{self, FileStep, Step, forget_made_at};
use crate::domain::guest::{Made, VolumeRef};
use crate::domain_history::boot;
use crate::error::Result;
use crate::history::guest::{self, KnownGuest};
use crate::hypervisor::file_users::Uses;
use crate::made::removal;
use crate::pages;
use crate::vfs;
use crate::words;
use crate::world::World;
use std::collections::BTreeSet;
use std::path::Path;

/// The leftovers of one guest.
pub struct Left {
    /// The domain's name then.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The leftovers, a line each, with the command that removes them if `recover --gone` does not.
    pub what: Vec<String>,
    /// The steps that release resources proven to be its own.
    pub steps: Vec<Step>,
}

impl Left {
    /// Describes them.
    pub fn text(&self) -> String {
        let Left { name, uuid, what, .. } = self;
        format!("of domain `{name}` ({uuid}), which is gone, is left: {}", what.join("; "))
    }
}

/// The same for a verb about something else: a failure is a warning.
pub fn left_or_warn(world: &World) -> Vec<Left> {
    left(world).unwrap_or_else(|error| {
        world.warning(&format!(
            "not checked: what is left of guests that are gone: {}",
            error.whole()
        ));
        Vec::new()
    })
}

/// Returns the leftovers of guests that the hypervisor no longer has.
pub fn left(world: &World) -> Result<Vec<Left>> {
    let known = guest::all(world.state())?;
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let hypervisor = world.hypervisor()?;
    if !hypervisor.machine().is_here() {
        return Ok(Vec::new());
    }
    let there: BTreeSet<String> = hypervisor.domains()?.into_iter().map(|row| row.uuid).collect();
    let gone = known.into_iter();
    let gone = gone.filter(|known| known.uri == hypervisor.uri() && !there.contains(&known.uuid));
    let gone: Vec<KnownGuest> = gone.collect();
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let uses = Uses::read(&*hypervisor)?;
    let all = gone.iter().map(|known| left_of(known, &uses, world));
    all.filter(|left| left.as_ref().map_or(true, |left| !left.what.is_empty())).collect()
}

/// Returns the leftovers of one guest.
fn left_of(known: &KnownGuest, uses: &Uses, world: &World) -> Result<Left> {
    let (mut what, mut steps, boot) = (Vec::new(), Vec::new(), boot()?);
    if let Some(record) = &known.record {
        steps.extend(pages::give_back_these(record.reserved.clone())?);
        if !record.guarded.is_empty() {
            steps.extend(vfs::give_back_of_gone(&record.uuid, &record.guarded, world)?);
        }
    }
    if let Some(history) = &known.history {
        steps.extend(history.give_back_pages(&boot));
    }
    what.extend(steps.iter().map(Step::to_string));
    if let Some(history) = &known.history {
        what.push(format!("its history of {}", words::count(history.entries.len(), "change")));
        steps.extend(history.forget_all());
    }
    if let Some(record) = &known.record {
        what.extend(record.made.iter().filter_map(|made| disk(made, uses)));
        let forget = guest::forget(world.state(), &record.uuid)?;
        // Otherwise a record without any other remains would stay for ever, unnamed.
        what.extend(forget.iter().filter_map(record_path));
        steps.extend(forget);
        let state = world.state().map_or_else(apply::state_root, Path::to_owned);
        let made = record.made.iter().map(|made| Path::new(&made.path));
        let is_gone = |path: &&Path| uses.silent(path).is_none();
        let forgotten = made.filter(is_gone).filter_map(|path| forget_made_at(&state, path));
        steps.extend(forgotten);
    }
    Ok(Left { name: known.name.clone(), uuid: known.uuid.clone(), what, steps })
}

/// Describes a record that is deleted.
fn record_path(step: &Step) -> Option<String> {
    match step {
        Step::File(FileStep::Remember { path, .. }) => {
            Some(format!("its record {}", path.display()))
        }
        _ => None,
    }
}

/// Describes a disk made for a guest if it still exists unused, with the command that deletes it.
fn disk(made: &Made, uses: &Uses) -> Option<String> {
    let remove = removal(made);
    match &made.volume {
        None => {
            let path = Path::new(&made.path);
            let is_there = uses.silent(path).is_none() && path.symlink_metadata().is_ok();
            let left = is_there && uses.of(path).is_empty();
            left.then(|| format!("disk {} ({remove} removes it)", made.path))
        }
        Some(volume) => {
            let known = uses.volume(volume)?;
            let VolumeRef { pool, name } = volume;
            let left = uses.of_disk(&known.path, Some(volume)).is_empty();
            left.then(|| format!("volume `{name}` of pool `{pool}` ({remove} removes it)"))
        }
    }
}
