//! The change that moves guests: off, elsewhere, on again. Until one of them is being started again
//! all of it can be undone, by which those that ran run where they were.

use super::live::repinned;
use super::look::Ground;
use super::rules::{accepted, cannot_move, is_movable, moved, refuse_fixed, refuse_unready};
use super::{RoomRequest, Target};
use crate::apply::{DomainStep, Step};
use crate::bdf::Bdf;
use crate::change::{Change, DomainChange, Hold, Part};
use crate::claim::{Claim, claim, give_back_some};
use crate::domain::DomainXml;
use crate::domain::guest::Bound;
use crate::domain::live::live_changes;
use crate::error::{Class, Error, Refusal, Result, classed};
use crate::hypervisor::XmlOf;
use crate::lookup::find;
use crate::pages;
use crate::partition;
use crate::placement::{Held, Occupancy, plan};
use crate::set::{allowed, functions::Moves};
use crate::shell::word;
use crate::source::Source;
use crate::stop::{Down, way_down};
use crate::taken::{Taken, taken_for_off};
use crate::topology::{GuestVgpu, Topology};
use crate::tune::Tune;
use crate::tune::live;
use crate::tune::subject::Subject;
use crate::tune::subjects::{self, Subjects};
use crate::vgpu;
use crate::world::World;
use gpuvm_core::guest::gpus_of;
use gpuvm_core::tune::Tuned;

struct Moving<'a> {
    subject: &'a Subject,
    tuned: Tuned,
    /// The functions that come and go.
    moves: Moves,
}

/// Plans the moves of guests that are off at the same time.
pub(super) fn move_guests(
    world: &World,
    leg: &[Target],
    new: &Held,
    wanted: &RoomRequest,
) -> Result<Change<()>> {
    let sources = leg.iter().map(|target| Source::Domain(target.name.clone())).collect();
    let subjects = subjects::read(world, &Tune { sources, ..Tune::default() })?;
    let all = subjects.all.iter().map(|subject| &subject.xml);
    let mut now = taken_for_off(world, &Taken::default(), subjects.topology(), all)?;
    let is_one = |held: &Held| leg.iter().any(|target| target.name == held.domain);
    now = now.clearing(is_one);
    now.domains.retain(|held| !is_one(held));
    let others = now.clone();
    let mut moving = Vec::new();
    for (subject, target) in subjects.all.iter().zip(leg) {
        refuse_changed(subject, target, wanted, world)?;
        let places = (&target.gpus[..], target.vgpu.as_ref(), subjects.topology());
        let mut tuned = moved(subject, &subjects, (&now, new), places)
            .map_err(|error| cannot_move(subject, &error))?;
        let held = tuned.after.held_instead(&subjects.occupancy().domains)?;
        now.domains.push(Held { active: subject.running, ..held });
        let accepted = accepted(wanted);
        allowed(&subjects, subject, tuned.placement.as_ref(), &accepted, world)?;
        let moves = Moves::between(&subject.xml, &tuned.after)?;
        if tuned.changes.is_empty() {
            // It is there already.
            continue;
        }
        refuse_unready(world, subject, &tuned, false)?;
        tuned.changes.retain(|change| change.was != change.now);
        moving.push(Moving { subject, tuned, moves });
    }
    let names: Vec<&str> = leg.iter().map(|target| target.name.as_str()).collect();
    let mut change = Change::new("make-room", &names.join(" "), Vec::new(), ());
    change.parts = parts(world, &subjects, &others, moving, wanted.wait_s)?;
    change.hold = Hold::Through;
    Ok(change)
}

/// Plans other pins of a guest that runs.
pub(super) fn repin(
    world: &World,
    target: &Target,
    new: &Held,
    wanted: &RoomRequest,
) -> Result<Change<()>> {
    let sources = vec![Source::Domain(target.name.clone())];
    let subjects = subjects::read(world, &Tune { sources, live: true, ..Tune::default() })?;
    let [subject] = &subjects.all[..] else { unreachable!("one domain is named") };
    refuse_changed(subject, target, wanted, world)?;
    let now = subjects.occupancy();
    let tuned =
        repinned(subject, &subjects, now, new).map_err(|error| cannot_move(subject, &error))?;
    let name = &subject.name;
    let mut change = Change::new("make-room", name, Vec::new(), ());
    if tuned.changes.is_empty() {
        return Ok(change);
    }
    let all = subjects.topology().pcpus();
    let last = match &subject.live {
        Some(live) => live::steps(name, &live_changes(live, &tuned.after, &all)),
        None => Vec::new(),
    };
    let what = tuned.changes.iter().map(ToString::to_string);
    change.parts = vec![Part::Domain(DomainChange {
        verb: "make-room",
        name: name.clone(),
        what: what.chain(last.iter().map(Step::to_string)).collect(),
        before: subject.text().to_owned(),
        after: tuned.after,
        first: Vec::new(),
        last,
    })];
    Ok(change)
}

/// Refuses another guest of the name, and one that may not be moved any more, or not as stated.
fn refuse_changed(
    subject: &Subject,
    target: &Target,
    wanted: &RoomRequest,
    world: &World,
) -> Result<()> {
    let name = &target.name;
    let changed = |why: String, hint: String| Err(classed(Class::Changed, why, hint));
    if !subject.xml.uuid().is_some_and(|uuid| uuid.eq_ignore_ascii_case(&target.uuid)) {
        let why = format!("domain `{name}` is now a different one, so it is not moved");
        return changed(why, format!("`gpuvm show {}` shows it", word(name)));
    }
    if subject.text() != target.before {
        let why = format!("domain `{name}` was edited meanwhile, so it is not moved");
        return changed(why, "run it again: it shows where the guest goes then".to_owned());
    }
    let hypervisor = world.hypervisor()?;
    let row = find(&*hypervisor, name)?;
    refuse_fixed(&*hypervisor, &row)?;
    let is_named = wanted.allow_stop.contains(name);
    if !is_named && !is_movable(&subject.xml) {
        let why = format!("domain `{name}` may not be moved any more");
        return changed(why, format!("`--allow-stop {}` allows it", word(name)));
    }
    if subject.running && !target.stops && !target.live {
        let why =
            format!("domain `{name}` was started since the plan; it was to be moved while off");
        let hint = "run it again: it shows which guests are stopped then";
        return changed(why, hint.to_owned());
    }
    Ok(())
}

/// Refuses to continue if others have taken the space that the moves are for. `rest`: the guests
/// that are still to be moved.
pub(super) fn refuse_taken(
    world: &World,
    wanted: &RoomRequest,
    rest: &[Target],
    new: &Held,
) -> Result<()> {
    let Ground { topology, mut held, request, .. } = Ground::without_guests(world, wanted)?;
    let is_one = |held: &Held| rest.iter().any(|target| target.name == held.domain);
    held = held.clearing(is_one);
    held.domains.retain(|held| !is_one(held));
    let holder = |bdf: &Bdf| held.domains.iter().find(|held| held.devices.contains(bdf));
    let taken = new.devices.iter().find_map(|bdf| Some((bdf, holder(bdf)?)));
    if let Some((bdf, holder)) = taken {
        let name = &holder.domain;
        let why = format!("{bdf} has been taken by domain `{name}` since the plan");
        let hint = format!("run it again, or `gpuvm show {}` shows the guest", word(name));
        return Err(classed(Class::Changed, why, hint));
    }
    match plan(&topology, &held, &request) {
        Ok(_) => Ok(()),
        Err(error) => {
            let why = "the space freed by the moves has been taken";
            let hint = "run it again: it shows what would have to move now";
            Err(Error::from(error).around(Refusal::new(Class::Changed, why, hint)))
        }
    }
}

/// The steps in their order.
fn parts(
    world: &World,
    subjects: &Subjects,
    others: &Occupancy,
    mut moving: Vec<Moving<'_>>,
    wait_s: u64,
) -> Result<Vec<Part>> {
    if moving.is_empty() {
        return Ok(Vec::new());
    }
    let hypervisor = world.hypervisor()?;
    let (mut downs, mut ends, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for one in moving.iter().filter(|one| one.subject.running) {
        let down = Down { force: false, wait_s };
        let (step, _) = way_down(&*hypervisor, &one.subject.name, down)?;
        downs.extend(step.map(again));
    }
    for one in &moving {
        let Subject { name, running, xml, .. } = one.subject;
        let before = if *running {
            DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?
        } else {
            xml.clone()
        };
        let (steps, next) = partition::to_move(world, &before, &one.tuned.after, *running)?;
        ends.extend(steps);
        if *running {
            starts.extend(vgpu::claim::claim_of(&one.tuned.after, subjects.topology(), world)?);
            starts.extend(next);
            let (name, uuid) = (name.clone(), xml.uuid());
            starts.push(DomainStep::Start { name, uuid }.into());
        }
    }
    let mut parts = Vec::new();
    let has_gpus = |one: &Moving<'_>| !gpus_of(&one.subject.xml, subjects.topology()).is_empty();
    if world.has_guests_here()? && moving.iter().any(has_gpus) {
        parts.push(Part::Reports);
    }
    parts.extend([Part::Steps(downs), Part::Steps(ends)]);
    // Functions that one of them has and another one gets stay bound.
    let stays: Vec<Bdf> = moving.iter().flat_map(|one| one.moves.comes.clone()).collect();
    let had: Vec<Bdf> = moving.iter().flat_map(|one| one.moves.gone.clone()).collect();
    let mut bound: Vec<Bound> = Vec::new();
    for one in &moving {
        bound.extend(one.subject.xml.bound()?);
    }
    let mut gets: Vec<GuestVgpu> = Vec::new();
    for one in &moving {
        gets.extend(one.tuned.after.vgpus()?);
    }
    for one in &mut moving {
        let mut change = definition(world, (subjects, others), one, (&stays, &had, &bound))?;
        change.last.extend(cleared(world, one, &gets, subjects.topology())?);
        parts.push(Part::Domain(change));
    }
    parts.extend([Part::Steps(starts), Part::Complete]);
    Ok(parts)
}

/// A step that asks a guest to shut down, for the time of the change.
fn again(step: Step) -> Step {
    match step {
        Step::Domain(DomainStep::ShutDown { name, uuid, by, wait_s, .. }) => {
            Step::Domain(DomainStep::ShutDown { name, uuid, by, wait_s, restarts: true })
        }
        step => step,
    }
}

/// The steps that clear the vGPUs which a guest leaves, but for functions that others of this change
/// get.
fn cleared(
    world: &World,
    one: &Moving<'_>,
    gets: &[GuestVgpu],
    topology: &Topology,
) -> Result<Vec<Step>> {
    let Moving { subject, tuned, .. } = one;
    let mut lost = vgpu::claim::lost(&subject.xml, &tuned.after)?;
    lost.retain(|vgpu| vgpu.is_mdev() || gets.iter().all(|new| new.function != vgpu.function));
    let steps = vgpu::claim::give_back_these(&subject.xml, &lost, world)?;
    if world.has_guests_here()? {
        vgpu::claim::refuse_uncleared(&subject.xml, &tuned.after, &steps, topology)?;
    }
    Ok(steps)
}

/// The change of a guest's definition, with the functions bound for it and given back. `stays`:
/// functions that guests of this change get, `had`: those that they lose, `bound`: those that were
/// bound for them.
fn definition(
    world: &World,
    (subjects, others): (&Subjects, &Occupancy),
    one: &mut Moving<'_>,
    (stays, had, bound): (&[Bdf], &[Bdf], &[Bound]),
) -> Result<DomainChange> {
    let Moving { subject, tuned, moves } = one;
    let Subject { name, xml, running, .. } = *subject;
    let (theirs, free): (Vec<Bdf>, Vec<Bdf>) =
        moves.comes.iter().partition(|bdf| had.contains(bdf));
    let topology = subjects.topology();
    let Claim { steps, bound: mut more } = claim(name, &free, topology, others, world)?;
    // One that is off gets its devices when it starts.
    let mut first = if *running { steps } else { Vec::new() };
    more.extend(bound.iter().filter(|one| theirs.contains(&one.bdf)).cloned());
    moves.rebind(xml, &mut tuned.after, &more, world)?;
    first.extend(pages::to_move(name, xml, *running, &tuned.after, world)?);
    let mut gone = moves.gone.clone();
    gone.retain(|bdf| !stays.contains(bdf));
    let last = give_back_some(xml, &gone, world)?;
    let beside = first.iter().chain(&last).map(Step::to_string);
    Ok(DomainChange {
        verb: "make-room",
        name: name.clone(),
        what: tuned.changes.iter().map(ToString::to_string).chain(beside).collect(),
        before: subject.text().to_owned(),
        after: tuned.after.clone(),
        first,
        last,
    })
}
