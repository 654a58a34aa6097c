//! What is left of guests that were undefined behind our back: named by `verify --all` and `recover`, given back by
//! `recover --gone`. A guest is gone where the hypervisor that it was made on has no domain of its UUID.

use super::context::Context;
use super::history::boot;
use super::pages;
use crate::apply::Step;
use crate::domain::guest::{Made, VolumeRef};
use crate::hypervisor::Hypervisor;
use crate::kept::{self, Known};
use crate::shell::word;
use std::collections::BTreeSet;
use std::path::Path;

/// Is what is left of one guest.
pub struct Left {
    /// The domain's name then.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// What is left, a line each, with the command that takes it away where `recover --gone` does not.
    pub what: Vec<String>,
    /// The steps that give back what can be proven to be its own.
    pub steps: Vec<Step>,
}

impl Left {
    /// It in words.
    pub fn text(&self) -> String {
        let Left { name, uuid, what, .. } = self;
        format!("of domain `{name}` ({uuid}), which is gone, is left: {}", what.join("; "))
    }
}

/// What is left of guests of a hypervisor that it does not have any more.
pub fn left(cx: &Context<'_>) -> anyhow::Result<Vec<Left>> {
    let known = kept::all()?;
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let hypervisor = cx.hypervisor()?;
    if !hypervisor.machine().is_here() {
        return Ok(Vec::new());
    }
    let there: BTreeSet<String> = hypervisor.domains()?.into_iter().map(|row| row.uuid).collect();
    let gone = known.into_iter();
    let gone = gone.filter(|known| known.uri == hypervisor.uri() && !there.contains(&known.uuid));
    gone.map(|known| left_of(&known, &*hypervisor)).collect()
}

/// What is left of one guest.
fn left_of(known: &Known, hypervisor: &dyn Hypervisor) -> anyhow::Result<Left> {
    let (mut what, mut steps, boot) = (Vec::new(), Vec::new(), boot()?);
    if let Some(kept) = &known.kept {
        steps.extend(pages::give_back_these(kept.reserved.clone())?);
    }
    if let Some(history) = &known.history {
        steps.extend(history.give_back_pages(&boot));
    }
    what.extend(steps.iter().map(Step::to_string));
    if let Some(history) = &known.history {
        what.push(format!("its history of {} changes", history.entries.len()));
        steps.extend(history.forget_all());
    }
    if let Some(kept) = &known.kept {
        what.extend(kept.made.iter().filter_map(|made| disk(made, hypervisor)));
        let functions = kept.guarded.iter();
        what.extend(
            functions.map(|guarded| {
                format!("what the card was told of function {} for it", guarded.bdf)
            }),
        );
        steps.extend(kept::forget(&kept.uuid)?);
    }
    Ok(Left { name: known.name.clone(), uuid: known.uuid.clone(), what, steps })
}

/// A disk that was made for a guest, where it is there still, with the command that deletes it.
fn disk(made: &Made, hypervisor: &dyn Hypervisor) -> Option<String> {
    match &made.volume {
        None if Path::new(&made.path).exists() => {
            Some(format!("disk {} (`rm {}`)", made.path, word(&made.path)))
        }
        Some(VolumeRef { pool, name }) => {
            hypervisor.storage().volume_id(pool, name).ok()??;
            let command = format!("virsh vol-delete --pool {} {}", word(pool), word(name));
            Some(format!("volume `{name}` of pool `{pool}` (`{command}`)"))
        }
        None => None,
    }
}
