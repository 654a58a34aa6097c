//! `recover`: finishes, undoes or forgets what an interrupted run left, and releases the leftovers
//! of guests that no longer exist. The host's lock is held throughout, also during questions, so
//! that no other change begins before.

use crate::apply::{
    ApplyError, Change as Begun, Damaged, DomainStep, MadeSnapshot, Orphan, Orphans, Recovery,
    SnapshotStep, Step, Way, recover as finish,
};
use crate::change::Change;
use crate::domain::DomainXml;
use crate::domain::disk_change::path_of;
use crate::error::{Class, Error, Refusal, Result, classed, usage};
use crate::gone::{self, Left};
use crate::hypervisor::Hypervisor;
use crate::identity::{DiskState, Identity, uuid_of};
use crate::reporter::{Answer, Question};
use crate::session::{Confirm, Session};
use crate::unfinished;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A request to recover interrupted changes.
#[derive(Debug, Clone, Default)]
pub struct Recover {
    /// Whether they are forgotten, and their effects stay.
    pub discard: bool,
    /// Running guests that may be ended, by name.
    pub end: Vec<String>,
    /// Whether leftovers of guests that no longer exist are released.
    pub gone: bool,
    /// The only verbs whose changes are recovered; empty: all.
    pub only: &'static [&'static str],
}

/// An interrupted change, and its recovery, made or planned.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Killed {
    /// Its journal.
    pub journal: PathBuf,
    /// The change; `None` if interrupted before anything was planned.
    pub change: Option<Begun>,
    /// The recovery.
    #[serde(flatten)]
    pub recovery: Recovery,
    /// Running guests that it ends, once confirmed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
    /// Why its journal cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

impl Killed {
    /// The recovery that a journal needs.
    fn of(orphan: &Orphan) -> Killed {
        Killed {
            journal: orphan.path().to_owned(),
            change: orphan.story.as_ref().map(|story| story.change.clone()),
            recovery: Recovery::of(orphan.story.as_ref()),
            runs: Vec::new(),
            damaged: None,
        }
    }

    /// The report on a journal that cannot be read.
    fn of_damaged(damaged: &Damaged) -> Killed {
        Killed {
            journal: damaged.path.clone(),
            change: damaged.change.clone(),
            recovery: Recovery::of(None),
            runs: Vec::new(),
            damaged: Some(damaged.error.to_string()),
        }
    }

    /// The change in words.
    pub fn name(&self) -> String {
        match &self.change {
            Some(Begun { verb, subject, pid, .. }) => {
                format!("`{verb} {subject}` (process {pid})")
            }
            None => format!("journal {}", self.journal.display()),
        }
    }
}

/// The result of a recovery.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Changes that are settled, or would be.
    pub settled: Vec<Killed>,
    /// The errors of the others.
    pub failed: Vec<Error>,
}

/// Settles every interrupted change: one that fails does not prevent the others.
pub fn recover(session: &mut Session<'_>, wanted: &Recover) -> Result<Outcome> {
    let dry_run = session.manner().dry_run;
    let _lock = if dry_run { None } else { Some(session.lock()?) };
    let state = session.world().settings.state.as_deref();
    let Orphans { readable, damaged } = unfinished::all(state)?;
    let mut outcome = Outcome::default();
    for orphan in readable {
        let killed = Killed::of(&orphan);
        let verb = killed.change.as_ref().map(|change| change.verb.as_str());
        if !wanted.only.is_empty() && verb.is_none_or(|verb| !wanted.only.contains(&verb)) {
            continue;
        }
        if wanted.discard {
            discard(orphan, &killed, session)?;
            outcome.settled.push(killed);
            continue;
        }
        match one(wanted, orphan, killed, session) {
            Ok(killed) => outcome.settled.push(killed),
            Err(error) => outcome.failed.push(error),
        }
    }
    if !wanted.only.is_empty() {
        return Ok(outcome);
    }
    for damaged in damaged {
        let killed = Killed::of_damaged(&damaged);
        match put_away(wanted, damaged, session) {
            Ok(()) => outcome.settled.push(killed),
            Err(error) => outcome.failed.push(error),
        }
    }
    outcome.failed.extend(leftovers(wanted, session).err());
    Ok(outcome)
}

/// Names the leftovers of guests that no longer exist, and releases them if requested.
fn leftovers(wanted: &Recover, session: &mut Session<'_>) -> Result<()> {
    let (world, dry_run) = (session.world(), session.manner().dry_run);
    let all = if wanted.gone { gone::left(world)? } else { gone::left_or_warn(world) };
    for left in all {
        let text = left.text();
        if !wanted.gone || dry_run {
            let warning = format!("{text}; `gpuvm recover --gone` gives it back");
            world.reporter().warning(&warning);
            continue;
        }
        // Read again: the pages of one are counted after those of the previous one were released.
        let now = gone::left(world)?.into_iter().find(|now| now.uuid == left.uuid);
        let Some(Left { name, steps, .. }) = now else { continue };
        session.follow(&Change::new("recover --gone", &name, steps, ()))?;
        world.progress(&format!("{text}; what could be given back is"));
    }
    Ok(())
}

/// Finishes or undoes one change, or reports how to.
fn one(
    wanted: &Recover,
    orphan: Orphan,
    mut killed: Killed,
    session: &mut Session<'_>,
) -> Result<Killed> {
    let dry_run = session.manner().dry_run;
    let Some(hypervisor) = hypervisor(&killed, session)? else {
        if !dry_run {
            orphan.into_journal().close()?;
        }
        return Ok(killed);
    };
    let mut ends = wanted.end.clone();
    killed.runs = running(&killed, &*hypervisor)?;
    let lost = lost(&orphan, &killed, &*hypervisor);
    for line in &lost {
        session.world().warning(line);
    }
    if dry_run {
        return Ok(killed);
    }
    if killed.runs.is_empty() {
        confirm_loss(&lost, &killed, session)?;
    }
    for name in killed.runs.iter().filter(|name| !wanted.end.contains(name)) {
        confirm_end(name, &killed, session)?;
        ends.push(name.clone());
    }
    let done = finish(orphan, &*hypervisor, session.watch(), &ends);
    killed.recovery = done.map_err(|error| neither(error, &killed))?;
    Ok(killed)
}

/// The hypervisor of a change; `None` if nothing must be done.
fn hypervisor(killed: &Killed, session: &Session<'_>) -> Result<Option<Rc<dyn Hypervisor>>> {
    match &killed.change {
        Some(change) if killed.recovery.way != Way::Forget => {
            session.world().hypervisor_of(change).map(Some)
        }
        _ => Ok(None),
    }
}

/// The running guests that undoing or finishing a change would end, by name.
fn running(killed: &Killed, hypervisor: &dyn Hypervisor) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for step in &killed.recovery.steps {
        let (name, uuid) = match (step, killed.recovery.way) {
            (Step::Domain(DomainStep::Start { name, uuid }), Way::Undo) => (name, uuid.clone()),
            (Step::Domain(DomainStep::Define { name, xml }), Way::Undo) => (name, uuid_of(xml)),
            // It may have been started again since, and be in use.
            (
                Step::Domain(
                    DomainStep::End { name, uuid } | DomainStep::ShutDown { name, uuid, .. },
                ),
                Way::Finish,
            ) => (name, uuid.clone()),
            // libvirt ends a guest whose disks it reverts.
            (Step::Snapshot(SnapshotStep::Revert { of, .. }), Way::Finish) => {
                (&of.name, Some(of.uuid.clone()))
            }
            _ => continue,
        };
        // Without a UUID, which older versions did not record, the name decides when finishing.
        let is_it = |theirs: &String| match &uuid {
            Some(uuid) => uuid == theirs,
            None => killed.recovery.way == Way::Finish,
        };
        let row = hypervisor.domain(name)?.filter(|row| is_it(&row.uuid));
        if row.is_some_and(|row| row.state.is_active()) && !names.contains(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}

/// Data written since the change began that finishing it removes, a line each: the agreement
/// covered only data written until then. The state of another machine's disks is unknown.
fn lost(orphan: &Orphan, killed: &Killed, hypervisor: &dyn Hypervisor) -> Vec<String> {
    let Some(story) = orphan.story.as_ref().filter(|_| killed.recovery.way == Way::Finish) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (number, (step, _)) in story.steps.iter().enumerate() {
        let Step::Snapshot(SnapshotStep::Revert { of: MadeSnapshot { snapshot, .. }, xml }) = step
        else {
            continue;
        };
        let Some(xml) = DomainXml::parse(xml).ok().filter(|_| killed.recovery.steps.contains(step))
        else {
            continue;
        };
        // A time proves nothing: the clock may have been set back since.
        let before = match story.made.get(&number) {
            Some(Identity::Disks { disks }) => &disks[..],
            _ => &[],
        };
        let is_as_then = |path: &str| {
            let now = DiskState::at(Path::new(path)).filter(|_| hypervisor.has_guests_here());
            now.is_some_and(|now| before.contains(&now))
        };
        for path in xml.disks().filter_map(path_of).filter(|path| !is_as_then(path)) {
            lines.push(format!(
                "disk {path} may have been written since {} began to revert it to snapshot `{snapshot}`, \
                 which would be lost",
                killed.name()
            ));
        }
    }
    lines
}

/// Asks whether data written since may be lost.
fn confirm_loss(lost: &[String], killed: &Killed, session: &Session<'_>) -> Result<()> {
    if lost.is_empty() || session.manner().confirm == Confirm::Given {
        return Ok(());
    }
    let what = format!("finishing {}", killed.name());
    let lines = Some(lost.to_vec());
    let question = Question::Agree { lines, question: "finish it?", what: what.clone() };
    let why = match session.ask(&question, &[], &[])? {
        Answer::Yes => return Ok(()),
        Answer::No => "was declined",
        Answer::Nobody => "was not confirmed, and there is no terminal to ask at",
    };
    let hint = "`gpuvm recover --yes` finishes it all the same; `gpuvm recover --discard --yes` \
                forgets it, and its disks stay as they are";
    Err(classed(Class::Declined, format!("{what} {why}"), hint))
}

/// Asks whether a running guest may be ended, by its name.
fn confirm_end(name: &str, killed: &Killed, session: &Session<'_>) -> Result<()> {
    let done = if killed.recovery.way == Way::Finish { "finished" } else { "undone" };
    let why = format!("{} would be {done}", killed.name());
    let question = Question::End { why, name: name.to_owned() };
    question.settle(session.ask(&question, &[], &[])?, &[])
}

/// Moves an unreadable journal aside, if requested.
fn put_away(wanted: &Recover, damaged: Damaged, session: &Session<'_>) -> Result<()> {
    let (reporter, manner) = (session.world().reporter(), session.manner());
    let said = damaged.error.to_string();
    if !wanted.discard || damaged.is_newer() {
        let what = "an interrupted change was found, but its journal cannot be read";
        let message = format!("{what}: {said}");
        if manner.dry_run {
            reporter.warning(&message);
            return Ok(());
        }
        let hint = damaged.hint();
        return Err(Error::from(damaged.error).around(Refusal::around(message, hint)));
    }
    reporter.warning(&format!(
        "an interrupted change is not undone, since its journal cannot be read: {said}"
    ));
    if manner.dry_run {
        return Ok(());
    }
    if manner.confirm != Confirm::Given {
        return Err(usage(
            format!("moving journal {} aside needs confirmation", damaged.path.display()),
            "--yes moves it",
        ));
    }
    let away = damaged.put_away()?;
    reporter.progress(&format!("the journal is kept as {}", away.display()));
    Ok(())
}

/// Adds a hint for a change that can be neither finished nor undone.
fn neither(error: ApplyError, killed: &Killed) -> Error {
    let hint = "remove the cause and run `gpuvm recover` again; `gpuvm recover --discard` forgets \
                the change and leaves what it made";
    let message = format!("{} is neither finished nor undone", killed.name());
    Error::from(error).around(Refusal::around(message, hint))
}

/// Forgets a change, and names its remains.
fn discard(orphan: Orphan, killed: &Killed, session: &Session<'_>) -> Result<()> {
    let manner = session.manner();
    let verb = if killed.recovery.way == Way::Undo { "not undone" } else { "not done" };
    for step in &killed.recovery.steps {
        let warning = format!("{}: {verb}: {step}", killed.name());
        session.world().reporter().warning(&warning);
    }
    if manner.dry_run {
        return Ok(());
    }
    if manner.confirm != Confirm::Given {
        return Err(usage(
            format!("forgetting {} is not confirmed", killed.name()),
            "--yes forgets it; without --discard it is finished or undone",
        ));
    }
    Ok(orphan.into_journal().close()?)
}

#[cfg(test)]
mod tests;
