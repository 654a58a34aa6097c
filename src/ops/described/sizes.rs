//! Other sizes of guests of a file, planned together with its new guests: guests that shrink make
//! room for guests that grow, and no GPU is promised twice.

use super::{ApplyRequest, DescribedError, no_place};
use crate::domain::view::gpu_indexes;
use crate::error::{Class, Coded as _, Error, Result};
use crate::hypervisor::DomainSummary;
use crate::placement::joint::{Joint, JointGuest, joint};
use crate::placement::{GuestVgpu, Occupancy, Placement};
use crate::request::{GpuWish, Request};
use crate::set::{SetRequest, cannot, refuse_shared, set};
use crate::shell::word;
use crate::source::Source;
use crate::storage::remains;
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::tune::Tune;
use crate::tune::subject::Subject;
use crate::tune::subjects::{self, Subjects};
use crate::world::World;
use gpuvm_core::tune::several::{NoSeveral, Resized, Several, Turn, several};

#[derive(Debug, Clone)]
pub(super) struct SizeTurn {
    /// Its number in the file.
    pub number: usize,
    /// Its size then.
    pub request: SetRequest,
    /// Whether it only releases resources that others need, and gets the rest in a later turn.
    pub gives_up: bool,
    /// Indexes of the GPUs that it has then; `None` if they stay.
    pub gpus: Option<Vec<usize>>,
    /// vGPUs that it gets; empty: none, or they stay.
    pub vgpus: Vec<GuestVgpu>,
    /// Data on drives that it gets, a phrase each.
    pub losses: Vec<String>,
}

pub(super) struct Together {
    /// Changes, in the order in which each has a place.
    pub turns: Vec<SizeTurn>,
    /// The new guests in the order in which they are made: number, place, request.
    pub places: Vec<(usize, Placement, Request)>,
    /// Whether there are no better places.
    pub is_best: bool,
}

/// The actions on guests of a file that need places, by their numbers in the file.
pub(super) struct ToPlace<'a> {
    /// The missing ones, with their requests.
    pub missing: &'a [(usize, Request)],
    /// Those that get another size.
    pub changing: &'a [(usize, SetRequest)],
    /// Domains that are deleted before.
    pub gone: &'a [DomainSummary],
}

/// Finds places for the missing guests, and sizes of those that change, without those that are
/// deleted before.
pub(super) fn together(
    world: &World,
    wanted: &ApplyRequest,
    ToPlace { missing, changing, gone }: ToPlace<'_>,
    topology: &Topology,
) -> Result<Together> {
    if missing.is_empty() && changing.is_empty() {
        return Ok(Together { turns: Vec::new(), places: Vec::new(), is_best: true });
    }
    let gets = |set: &SetRequest| set.gpus.unwrap_or_default() > 0 || set.gpu_set.is_some();
    let has_gpus = missing.iter().any(|(_, request)| request.gpus.number() > 0)
        || changing.iter().any(|(_, set)| gets(set));
    let mut held = taken_for_new(world, &Taken::default(), topology, has_gpus)?;
    held.domains.retain(|domain| gone.iter().all(|row| row.name != domain.domain));
    let name = |number: usize| wanted.guests[number].name.as_str();
    let new: Vec<JointGuest<'_>> = missing
        .iter()
        .map(|(number, request)| JointGuest { name: name(*number), request, sets: &[] })
        .collect();
    if changing.is_empty() {
        let found = joint(topology, &held, &new)
            .map_err(|refused| no_place(&refused, &new, (&[], &held, topology)))?;
        return Ok(of_joint((Vec::new(), found), missing));
    }
    let subjects = read(world, changing)?;
    let found = plan(&held, (&subjects, changing), &new, topology).map_err(|refused| {
        refusal(refused, (world, &held), (changing, &subjects), (&new, topology))
    })?;
    let Several { turns, new: joint, .. } = found;
    for turn in &turns {
        let (_, request) = &changing[turn.guest];
        let placement = turn.tuned.placement.as_ref();
        refuse_shared(&subjects, turn.guest, placement, request, world)?;
    }
    let turns = turns.into_iter().map(|turn| {
        let losses = losses(&turn, &subjects.all[turn.guest], topology)?;
        Ok(size_turn(turn, losses, changing, topology))
    });
    let turns = turns.collect::<Result<Vec<SizeTurn>>>()?;
    Ok(of_joint((turns, joint), missing))
}

/// Data on drives that a guest gets, a phrase each.
fn losses(turn: &Turn, subject: &Subject, topology: &Topology) -> Result<Vec<String>> {
    let had = subject.xml.held(false)?.devices;
    let mut comes = turn.tuned.after.held(false)?.devices;
    comes.retain(|bdf| !had.contains(bdf));
    Ok(remains(topology, &comes))
}

/// Changes and places of new guests.
fn of_joint((turns, found): (Vec<SizeTurn>, Joint), missing: &[(usize, Request)]) -> Together {
    let Joint { placements, order, is_best, .. } = found;
    let place = |at: usize| (missing[at].0, placements[at].clone(), missing[at].1.clone());
    Together { turns, places: order.into_iter().map(place).collect(), is_best }
}

/// The definitions of the guests that change; none if no guest does.
fn read(world: &World, changing: &[(usize, SetRequest)]) -> Result<Subjects> {
    let sources = changing.iter().map(|(_, set)| Source::Domain(set.name.clone())).collect();
    subjects::read(world, &Tune { sources, ..Tune::default() })
}

fn plan(
    held: &Occupancy,
    (subjects, changing): (&Subjects, &[(usize, SetRequest)]),
    new: &[JointGuest<'_>],
    topology: &Topology,
) -> Result<Several, NoSeveral> {
    let items = Tune::default().items;
    let given = subjects.beside(held, &items, topology);
    let all: Vec<Resized<'_>> = subjects
        .all
        .iter()
        .zip(changing)
        .map(|(subject, (_, set))| resized(subject, set))
        .collect();
    several(&given, &all, new)
}

/// A guest that gets another size.
fn resized<'a>(subject: &'a Subject, set: &SetRequest) -> Resized<'a> {
    let Tune { items, allow, .. } = set.tuning(None, None);
    let (xml, gpus, is_off) = (&subject.xml, wish(set), !subject.running);
    Resized { xml, items, gpus, allow, is_off }
}

/// The GPUs that a change names.
fn wish(set: &SetRequest) -> Option<GpuWish> {
    match &set.gpu_set {
        Some(gpus) if gpus.is_empty() => Some(GpuWish::Count(0)),
        Some(gpus) => Some(GpuWish::Exact(gpus.clone())),
        None => set.gpus.map(GpuWish::Count),
    }
}

/// A change as it is made.
fn size_turn(
    turn: Turn,
    losses: Vec<String>,
    changing: &[(usize, SetRequest)],
    topology: &Topology,
) -> SizeTurn {
    let Turn { guest, items, gives_up, gpus, tuned, .. } = turn;
    let size = items.size().clone();
    let (number, whole) = &changing[guest];
    let placement = tuned.placement.filter(|_| !whole.vgpu.is_kept());
    let vgpus = placement.map(|placement| placement.vgpus).unwrap_or_default();
    let count = gpus.as_ref().map(|gpus| u32::try_from(gpus.len()).unwrap_or(u32::MAX));
    let request = SetRequest {
        vcpus: size.vcpus,
        max_vcpus: size.max_vcpus,
        memory: size.memory,
        huge_pages: items.huge_pages,
        gpus: count,
        gpu_set: gpus.clone(),
        functions: size.functions,
        ..whole.clone()
    };
    let gpus = gpus.map(|gpus| gpu_indexes(topology, &gpus));
    SizeTurn { number: *number, request, gives_up, gpus, vgpus, losses }
}

/// The error that there is no plan of all.
fn refusal(
    refused: NoSeveral,
    (world, held): (&World, &Occupancy),
    (changing, subjects): (&[(usize, SetRequest)], &Subjects),
    (new, topology): (&[JointGuest<'_>], &Topology),
) -> Error {
    let name = |guest: usize| match changing.get(guest) {
        Some((_, set)) => set.name.as_str(),
        None => new[guest - changing.len()].name,
    };
    match refused {
        NoSeveral::Guest { guest, error } => {
            let request = &changing[guest].1;
            // Alone it is refused with the nearest sizes that it can get.
            match set(world, request) {
                Err(said) if !is_running(&said) => said,
                _ => cannot(&subjects.all[guest], &error),
            }
        }
        NoSeveral::Runs { guest, runs, error } => {
            let others: Vec<String> = runs.iter().map(|&at| format!("`{}`", name(at))).collect();
            let what = format!(
                "guest `{}` needs what {} of the file gives up, and all of them run",
                name(guest),
                others.join(", ")
            );
            let stop = format!("`gpuvm stop {}`, then apply the file again", word(name(runs[0])));
            Error::from(error).around(DescribedError::NoPlace { what }.refusal(stop))
        }
        NoSeveral::NoPlace(refused) if refused.guest < changing.len() => {
            let request = &changing[refused.guest].1;
            let placed: Vec<&str> = refused.placed.iter().map(|&guest| name(guest)).collect();
            match set(world, request) {
                Err(said) if !is_running(&said) && placed.is_empty() => said,
                _ => {
                    let beside = placed.join(", ");
                    let what = format!(
                        "guest `{}` has no place with its new size beside those of the file: {beside}",
                        request.name
                    );
                    let hint = "`gpuvm capacity` shows what fits";
                    Error::from(refused.error)
                        .around(DescribedError::NoPlace { what }.refusal(hint))
                }
            }
        }
        NoSeveral::NoPlace(mut refused) => {
            let mut held = held.clone();
            let is_changed = |domain: &str| changing.iter().any(|(_, set)| set.name == domain);
            held.domains.retain(|domain| !is_changed(&domain.domain));
            let olds = refused.placed.iter().filter(|guest| **guest < changing.len());
            let olds: Vec<String> = olds.map(|&guest| name(guest).to_owned()).collect();
            refused.guest -= changing.len();
            refused.placed.retain(|guest| *guest >= changing.len());
            for guest in &mut refused.placed {
                *guest -= changing.len();
            }
            no_place(&refused, new, (&olds, &held, topology))
        }
    }
}

/// Whether a guest is refused only because it runs, which apply ends for a while.
fn is_running(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| refusal.code == "set-runs")
}

/// The refusal of a place that was taken.
pub(super) fn is_taken(error: &Error) -> bool {
    let changed: &str = Class::Changed.into();
    error.refusal().is_some_and(|refusal| refusal.code == changed)
}
