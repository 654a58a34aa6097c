//! Interrupted changes: no other begins on the same hypervisor, or on the host if they concern it.

use crate::apply::{Orphan, Orphans, Recovery, Step, Way};
use crate::error::{Class, Result, classed};
use crate::hypervisor::none;
use std::path::Path;

/// The interrupted changes in the caller's directory, otherwise those of this host.
pub fn all(state: Option<&Path>) -> Result<Orphans> {
    Ok(match state {
        Some(state) => Orphan::all_in(&state.join("journal"))?,
        None => Orphan::all()?,
    })
}

/// Refuses a change while one of the hypervisor at this URI is unfinished. Names unreadable
/// journals.
pub fn refuse(uri: &str, state: Option<&Path>, warn: impl Fn(&str)) -> Result<()> {
    let orphans = all(state)?;
    if uri != none::URI {
        name_damaged(&orphans, &warn);
    }
    refuse_these(orphans, uri)
}

/// Names unreadable journals of interrupted changes.
fn name_damaged(orphans: &Orphans, warn: impl Fn(&str)) {
    for damaged in &orphans.damaged {
        warn(&format!(
            "an interrupted change was found, but its journal cannot be read: {}; {}",
            damaged.error,
            damaged.hint()
        ));
    }
}

/// Names interrupted changes, for a verb that changes nothing.
pub fn name(warn: impl Fn(&str)) {
    match all(None) {
        Ok(orphans) => {
            name_damaged(&orphans, &warn);
            for story in orphans.readable.iter().filter_map(|orphan| orphan.story.as_ref()) {
                if Recovery::of(Some(story)).way != Way::Forget {
                    warn(&format!(
                        "`{} {}` was interrupted; `gpuvm recover` finishes or undoes it",
                        story.change.verb, story.change.subject
                    ));
                }
            }
        }
        Err(error) => warn(&format!("not checked: changes that were killed: {error}")),
    }
}

/// Refuses a change while one of these on the hypervisor at a URI is unfinished.
pub fn refuse_these(orphans: Orphans, uri: &str) -> Result<()> {
    // Leftovers of a guest's change are seen when the next one is planned. Those of a change of the
    // host are not: only its journal shows them.
    if let Some(damaged) = orphans.damaged.first().filter(|_| uri == none::URI) {
        return Err(classed(
            Class::Unfinished,
            format!(
                "an interrupted change was found, but its journal cannot be read: {}",
                damaged.error
            ),
            damaged.hint(),
        ));
    }
    for orphan in orphans.readable {
        let Some(story) = &orphan.story else { continue };
        let recovery = Recovery::of(Some(story));
        let ours = story.change.uri == uri;
        if recovery.way != Way::Forget && (ours || recovery.steps.iter().any(Step::is_of_host)) {
            let message = format!(
                "`{} {}` (process {}) was interrupted and is unfinished",
                story.change.verb, story.change.subject, story.change.pid
            );
            return Err(classed(
                Class::Unfinished,
                message,
                "`gpuvm recover` finishes or undoes it; with --dry-run it says how",
            ));
        }
    }
    Ok(())
}
