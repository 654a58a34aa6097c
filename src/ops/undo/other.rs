//! Undoes changes other than those of a definition: another name, a snapshot. Changes that removed
//! content are refused, so that no earlier change is undone in their place.

use super::{UndoError, Undoing, named};
use crate::apply::{SnapshotStep, Step, is_by_gpuvm, now_s};
use crate::change::Change;
use crate::error::{Coded as _, Result};
use crate::history::{Beyond, Entry, History};
use crate::hypervisor::DomainSummary;
use crate::rename::renaming;
use crate::reporter::Question;
use crate::request::DomainName;
use crate::shell::word;
use crate::snapshot::{self, SnapshotOf};
use crate::world::World;

/// Plans to undo it; `force`: a change that cannot be undone is forgotten.
pub(super) fn undo(
    world: &World,
    (row, force): (&DomainSummary, bool),
    (history, entry, beyond): (&History, &Entry, Beyond<'_>),
    about: Undoing,
) -> Result<Change<Undoing>> {
    let hypervisor = &*world.hypervisor()?;
    let name = &row.name;
    let mut warnings = Vec::new();
    let mut steps: Vec<Step> = match beyond {
        Beyond::Renamed(before) => {
            let mut earlier = history.clone();
            earlier.entries.retain(|one| one.number != entry.number);
            renaming(world, hypervisor, row, before, &earlier)?.0
        }
        Beyond::SnapshotMade(snapshot) => {
            let (steps, notes) = unmade(world, name, entry, snapshot)?;
            warnings = notes;
            steps
        }
        Beyond::Reverted(_) | Beyond::SnapshotDeleted(_) if force => {
            warnings
                .push(format!("{} is removed from the history; its effects remain", named(entry)));
            Vec::new()
        }
        Beyond::Reverted(snapshot) => {
            let why = format!("the earlier content of the disks is lost; they hold `{snapshot}`");
            return Err(kept(name, entry, why));
        }
        Beyond::SnapshotDeleted(snapshot) => {
            return Err(kept(name, entry, format!("snapshot `{snapshot}` is gone")));
        }
    };
    steps.extend(history.undone(entry, now_s()));
    let what = format!("undoing {} of domain `{name}`", named(entry));
    let question = Some(Question::Agree { lines: None, question: "undo it?", what });
    let again = format!("gpuvm undo {}", word(name));
    let is_renaming = matches!(beyond, Beyond::Renamed(_));
    let mut about = about;
    if !is_renaming {
        // The definition stays as it is.
        about.entry.before.clone_from(&about.now);
    }
    let change = Change::new("undo", name, steps, about);
    Ok(Change { warnings, question, again, ..change })
}

/// The error of a change that nothing takes back.
fn kept(name: &str, entry: &Entry, why: String) -> crate::error::Error {
    let hint = format!(
        "`gpuvm undo {} --force` forgets it, so that the change before it can be undone",
        word(name)
    );
    UndoError::Final { change: named(entry), why }.hint(hint)
}

/// The steps that delete the snapshot that a change has made; empty if it is gone, or another has
/// its name now.
fn unmade(
    world: &World,
    name: &str,
    entry: &Entry,
    snapshot: &str,
) -> Result<(Vec<Step>, Vec<String>)> {
    let known = world.hypervisor()?.snapshots(name)?;
    let its = known.iter().find(|one| one.name == snapshot);
    let is_it = its.is_some_and(|one| is_by_gpuvm(one) && one.made_s >= entry.at_s);
    let Some(of) = DomainName::new(snapshot).ok().filter(|_| is_it) else {
        let why = if its.is_some() { "was replaced since and is kept" } else { "is gone already" };
        return Ok((Vec::new(), vec![format!("snapshot `{snapshot}` {why}")]));
    };
    let change = snapshot::delete(world, &SnapshotOf { name: name.to_owned(), snapshot: of })?;
    let deletes = |step: &Step| matches!(step, Step::Snapshot(SnapshotStep::Delete(_)));
    Ok((change.steps().into_iter().filter(deletes).collect(), change.warnings))
}
