//! `undo`: the last change of a domain is taken back, if nobody has edited the domain since.

use super::args::UndoArgs;
use super::change::{Agreed, agree, journal, print_steps, refuse_unfinished, watch};
use super::codes::Class;
use super::context::Context;
use super::diff::Diff;
use super::error::{EXIT_DONE, Hinted, classed, hinted};
use crate::apply::{ApplyError, Step, StepError, apply};
use crate::domain::guest::VolumeRef;
use crate::domain::{DomainXml, differences};
use crate::history::{DiskCopy, Entry, History};
use crate::hypervisor::uses::{Conflict, Uses, files_of};
use crate::hypervisor::{DomainState, Hypervisor, XmlOf};
use crate::shell::word;
use gpuvm_ops::domain_history::{boot, refuse_elsewhere, tell_saved, when};
use gpuvm_ops::guest::find;
use gpuvm_ops::made::said;
use serde::Serialize;

/// Is an undoing that can be done.
struct Undo {
    /// The change that is undone.
    entry: Entry,
    /// The definition now.
    now: String,
    /// Whether the domain runs.
    runs: bool,
    /// What undoes it.
    steps: Vec<Step>,
    /// Copies of disks that stay, and why.
    stays: Vec<String>,
}

/// Is what `undo` answers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Undone {
    /// The domain's name.
    name: String,
    /// The change that was undone.
    number: u32,
    /// What had been changed.
    what: Vec<String>,
    /// Whether what was taken back waits for the next start.
    waits_for_start: bool,
}

/// Runs the verb.
pub fn run(args: &UndoArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("undo")?;
    let mut reporter = watch(cx.output)?;
    let hypervisor = cx.hypervisor()?;
    refuse_elsewhere("undo", &args.name, &*hypervisor)?;
    if args.diff || args.dry_run {
        let undo = plan(&*hypervisor, args, true)?;
        if args.diff {
            Diff::of(&args.name, Some(&undo.now), Some(&undo.entry.before)).print(cx.output)?;
        } else {
            undo.stays.iter().for_each(|why| cx.output.warning(why));
            print_steps(&undo.steps, cx)?;
        }
        return Ok(EXIT_DONE);
    }
    refuse_unfinished(&*hypervisor, cx.output)?;
    let mut agreed = Agreed::default();
    if !args.yes {
        let undo = plan(&*hypervisor, args, args.force)?;
        let what = format!("undoing {} of domain `{}`", named(&undo.entry), args.name);
        agree(&undo.steps, "undo it?", &what)?;
        agreed = Agreed::to(&undo.steps);
    }
    let _lock = reporter.lock(args.lock.wait())?;
    // Once more: it may have been changed while the question stood.
    let undo = plan(&*hypervisor, args, args.force)?;
    agreed.covers(&undo.steps, &[], &format!("gpuvm undo {}", word(&args.name)))?;
    undo.stays.iter().for_each(|why| cx.output.warning(why));
    let journal = journal("undo", &args.name, &*hypervisor)?;
    let applied = apply(&undo.steps, &*hypervisor, &mut reporter, Some(journal));
    applied.map_err(|error| written_since(error, args))?;
    read_back(&*hypervisor, &undo, cx);
    for DiskCopy { pool, name, .. } in undo.entry.copies().filter(|_| args.force) {
        cx.output.warning(&format!(
            "volume `{name}` of pool `{pool}` stays with what the guest wrote on it; `virsh \
             vol-delete --pool {pool} {name}` destroys that",
            pool = word(&pool),
            name = word(&name)
        ));
    }
    let waits = undo.runs && undo.steps.iter().any(|s| matches!(s, Step::RedefineDomain { .. }));
    let answer = Undone {
        name: args.name.clone(),
        number: undo.entry.number,
        what: undo.entry.what.clone(),
        waits_for_start: waits,
    };
    if cx.output.json {
        cx.output.json("gpuvm-undone", &answer)?;
    } else {
        let name = &args.name;
        cx.output.progress(&format!("{} of domain `{name}` is undone", named(&undo.entry)));
        if waits {
            let hint = format!("`gpuvm restart {name}`", name = word(name));
            cx.output.progress(&format!(
                "it runs: its definition counts from its next start on ({hint})"
            ));
        }
    }
    Ok(EXIT_DONE)
}

/// A change in words.
fn named(entry: &Entry) -> String {
    format!("change {} ({}, {})", entry.number, entry.verb, when(entry.at_s))
}

/// Finds what undoes the last change of a domain; `force`: also where it was edited since.
fn plan(hypervisor: &dyn Hypervisor, args: &UndoArgs, force: bool) -> anyhow::Result<Undo> {
    let name = &args.name;
    let summary = find(hypervisor, name)?;
    let history = History::of(&summary.uuid)?;
    let Some(entry) = history.entries.last() else {
        let hint =
            format!("`gpuvm delete {name}` takes away what `create` made", name = word(name));
        return Err(classed(
            Class::NotFound,
            format!("there is no change of domain `{name}` to undo"),
            hint,
        ));
    };
    if entry.domain != *name {
        let renamed =
            format!("domain `{name}` was `{}` when {} was made", entry.domain, named(entry));
        return Err(hinted(
            renamed,
            format!("`virsh domrename {name} {}` first", word(&entry.domain), name = word(name)),
        ));
    }
    let now = hypervisor.xml(name, XmlOf::Inactive)?;
    if !force && entry.after.as_ref() != Some(&now) {
        return Err(hinted(
            format!("domain `{name}` was edited since {}", named(entry)),
            format!(
                "`gpuvm undo {name} --diff` shows what would be lost; --force undoes it nevertheless",
                name = word(name)
            ),
        ));
    }
    if let Some(copy) = entry.copies().find(|copy| !copy.comparable && !args.force) {
        let DiskCopy { pool, name: volume, .. } = copy;
        return Err(hinted(
            format!(
                "{} copied a disk into volume `{volume}` of pool `{pool}`, and whether the guest \
                 has written on that cannot be seen from here",
                named(entry)
            ),
            format!(
                "`gpuvm undo {name}` on its machine sees it; --force goes back to the old image in any case",
                name = word(name)
            ),
        ));
    }
    if !args.force {
        refuse_taken(hypervisor, &entry.before, &now, &summary.uuid)?;
    }
    let runs = !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed);
    let mut steps = entry.undo(&now, runs, &boot()?, !args.force);
    steps.push(history.forget(entry));
    let stays = keep_needed(hypervisor, entry, &summary.uuid, &mut steps)?;
    Ok(Undo { entry: entry.clone(), now, runs, steps, stays })
}

/// Refuses to go back to a disk that another domain has taken since.
fn refuse_taken(
    hypervisor: &dyn Hypervisor,
    before: &str,
    now: &str,
    own_uuid: &str,
) -> anyhow::Result<()> {
    let (before, now) = (DomainXml::parse(before)?, DomainXml::parse(now)?);
    let (old, new) = (files_of(&before, &[]), files_of(&now, &[]));
    if old.iter().all(|file| new.contains(file)) {
        return Ok(());
    }
    let taken = Uses::read(hypervisor)?.conflicts(&before, Some(own_uuid));
    match taken.iter().find(|conflict| !new.contains(&conflict.path)) {
        None => Ok(()),
        Some(Conflict { path, used, .. }) => Err(hinted(
            format!("disk {} is not taken back: {used}", path.display()),
            "`gpuvm list` shows what each guest has; --force undoes it nevertheless",
        )),
    }
}

/// Takes the deletion of copies that others need out of the steps; why they stay.
fn keep_needed(
    hypervisor: &dyn Hypervisor,
    entry: &Entry,
    own_uuid: &str,
    steps: &mut Vec<Step>,
) -> anyhow::Result<Vec<String>> {
    let deletes = |step: &Step| matches!(step, Step::DeleteVolume { .. });
    if !steps.iter().any(deletes) {
        return Ok(Vec::new());
    }
    let uses = Uses::read(hypervisor)?;
    let mut stays = Vec::new();
    for DiskCopy { pool, name, .. } in entry.copies() {
        let volume = VolumeRef { pool, name };
        let Some(path) = uses.volume(&volume).map(|known| known.path.clone()) else { continue };
        let others = uses.others_of_disk(&path, Some(&volume), own_uuid);
        if others.is_empty() {
            continue;
        }
        let VolumeRef { pool, name } = volume;
        stays.push(format!("volume `{name}` of pool `{pool}` stays: {}", said(&others)));
        let delete = Step::DeleteVolume { pool, name, file: None };
        steps.retain(|step| *step != delete);
    }
    Ok(stays)
}

/// The error of an undoing, with what helps where a disk is not any more what it was copied from.
fn written_since(error: ApplyError, args: &UndoArgs) -> anyhow::Error {
    let differs = matches!(&error, ApplyError::Failed { step, source: StepError::OtherVolume { .. }, .. }
        if matches!(**step, Step::CompareDisk { .. }));
    let error = anyhow::Error::from(error);
    if !differs {
        return error;
    }
    let message = format!("domain `{}` has written on its new disk", args.name);
    let hint = "--force goes back to the old image, and leaves the new one as it is".to_owned();
    error.context(Hinted::around(message, hint))
}

/// Warns where the definition is not what it was.
fn read_back(hypervisor: &dyn Hypervisor, undo: &Undo, cx: &Context<'_>) {
    tell_saved(hypervisor, &undo.entry.domain, cx);
    let was = &undo.entry.before;
    let read = hypervisor.xml(&undo.entry.domain, XmlOf::Inactive).unwrap_or_default();
    if read == *was {
        return;
    }
    let told = match (DomainXml::parse(was), DomainXml::parse(&read)) {
        (Ok(was), Ok(read)) => differences(&was, &read).first().map(ToString::to_string),
        _ => None,
    };
    let told = told.unwrap_or_else(|| "the text differs".into());
    cx.output.warning(&format!("the definition is not what it was: {told}"));
}
