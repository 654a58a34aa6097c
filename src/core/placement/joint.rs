//! Places for several guests at once. One after the other, each in its best place, is not the best
//! of all: a small guest may take the GPU, the NIC or the cores that a later one needs. Here they
//! are placed together, so that all of them fit and their costs, summed, are the least.
//!
//! The cost is that of the planner (`score`), field by field, without the cost to guests that may
//! come later: those that do come are known. First of all count guests that share cores or memory
//! because none are left. Guests whose GPUs are named come first, then those with the most GPUs,
//! then those without, the largest first; in this order every feasible set of GPUs of each is
//! tried, the best first, and a branch ends where the sum, with the least cost that the others
//! could have, is not below the best one found. The planner chooses the other resources of a guest
//! at its turn. So the answer is the least over all sets of GPUs in this order, unless the search
//! was cut short, which it says.

use super::affinity::{Among, Homes};
use super::budget::{Budget, Counting};
use super::reason::Topic;
use super::result::Placement;
use super::score::{Judges, Key};
use super::short::plan;
use super::taken::Taken;
use super::types::PlanError;
use super::{devices, extras};
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::request::{GpuWish, HugePages, Request};
use crate::topology::{DeviceKind, Topology};
use std::ops::Add;

/// The most sets of GPUs that are tried for one guest at its turn.
const SETS: usize = 512;
/// The most plans of a search: some hundred milliseconds.
const PLANS: u32 = 2000;
/// The most orders that are tried of guests without GPUs.
const ORDERS: usize = 8;

/// A guest that needs a place.
#[derive(Debug, Clone, Copy)]
pub struct JointGuest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its request.
    pub request: &'a Request,
    /// The sets of GPUs of which it gets one; empty: any.
    pub sets: &'a [Vec<Bdf>],
}

impl JointGuest<'_> {
    /// Whether another guest could have the place of this one.
    fn is_like(&self, other: &JointGuest<'_>) -> bool {
        self.request == other.request && self.sets.is_empty() && other.sets.is_empty()
    }

    /// The requests for each of its sets; the request itself where any will do.
    fn exact(&self) -> Vec<Request> {
        if self.sets.is_empty() {
            return vec![self.request.clone()];
        }
        self.sets.iter().map(|gpus| exactly(self.request, gpus.clone())).collect()
    }
}

/// The request for exactly these GPUs.
pub(super) fn exactly(request: &Request, gpus: Vec<Bdf>) -> Request {
    let gpus = if gpus.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(gpus) };
    Request { gpus, gpu_model: None, ..request.clone() }
}

/// The cost of places; smaller is better. The fields are summed over guests and compared in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost([i64; FIELDS]);

const FIELDS: usize = 14;

impl Cost {
    /// Returns the cost of a set of GPUs.
    fn of_set(key: &Key) -> Cost {
        let Key { remote, nodes, packages_first, far, packages, .. } = *key;
        let Key { roots, switches, models, short, neighbours, .. } = *key;
        let fields = [
            remote,
            nodes,
            packages_first,
            far.worst,
            far.gpus,
            far.devices,
            packages,
            roots,
            switches,
            models,
            short,
            neighbours,
        ];
        let mut cost = [0; FIELDS];
        cost[1] = key.nvlink;
        cost[2..].iter_mut().zip(fields).for_each(|(cost, field)| *cost = i64::from(field));
        Cost(cost)
    }

    /// Returns the cost of a place for a guest without GPUs.
    fn of_cells(placement: &Placement) -> Cost {
        let mut fields = [0; FIELDS];
        fields[3] = i64::try_from(placement.cells.len()).unwrap_or(i64::MAX);
        Cost(fields)
    }

    /// The same for a guest that shares cores or memory.
    fn shared(mut self, placement: &Placement) -> Cost {
        let shares = placement.reasons.iter().any(|reason| {
            let is_pins = reason.compromise && reason.choice == Topic::Pins;
            is_pins || reason.because.is_of_stopped()
        });
        self.0[0] = i64::from(shares);
        self
    }
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost(std::array::from_fn(|at| self.0[at].saturating_add(other.0[at])))
    }
}

/// Places of several guests.
#[derive(Debug, Clone)]
pub struct Joint {
    /// The place of each, in the order of the request.
    pub placements: Vec<Placement>,
    /// The order in which they were placed, and must be created.
    pub order: Vec<usize>,
    /// Their cost.
    pub cost: Cost,
    /// Whether no other sets of GPUs cost less.
    pub is_best: bool,
}

/// The reason that guests have no place together.
#[derive(Debug, Clone)]
pub struct NoJoint {
    /// The guest that no place is left for.
    pub guest: usize,
    /// Those that have a place without it.
    pub placed: Vec<usize>,
    /// Why.
    pub error: PlanError,
    /// Whether every set of GPUs was tried.
    pub is_certain: bool,
}

/// Finds places for all of these guests together.
pub fn joint(
    topology: &Topology,
    held: &Occupancy,
    wanted: &[JointGuest<'_>],
) -> Result<Joint, NoJoint> {
    let plans = PLANS.max(4 * u32::try_from(wanted.len()).unwrap_or(u32::MAX / 4));
    within(topology, held, wanted, plans).0
}

/// The same with at most about so many plans; returns how many are left.
pub(super) fn within(
    topology: &Topology,
    held: &Occupancy,
    wanted: &[JointGuest<'_>],
    plans: u32,
) -> (Result<Joint, NoJoint>, u32) {
    // One after the other takes a plan each, and so does the least cost of each.
    let each = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
    let plans = plans.saturating_sub(each.saturating_mul(2)).max(1);
    let mut search = match JointSearch::new(topology, held, wanted, plans) {
        Ok(search) => search,
        Err(refused) => return (Err(refused), plans),
    };
    // The result of planning them one by one in the order of the request is never lost.
    if let Ok(found) = in_order(topology, held, wanted) {
        search.found = Some(found);
    }
    let mut orders = 0;
    loop {
        search.go(0, held.clone(), Cost::default());
        if search.found.is_some() || search.plans == 0 || orders == ORDERS || !search.put_first() {
            break;
        }
        orders += 1;
    }
    let is_best = search.is_done() || !search.is_cut;
    let answer = match (search.found, search.refused) {
        (Some(found), _) => Ok(Joint { is_best, ..found }),
        (None, Some((mut before, error))) => {
            let guest = before.pop().unwrap_or_default();
            Err(NoJoint { guest, placed: before, error, is_certain: !search.is_cut })
        }
        (None, None) => unreachable!("a search without an answer was refused"),
    };
    (answer, search.plans)
}

/// Places the guests one after the other, as they are listed, each in its best place.
pub fn in_order(
    topology: &Topology,
    held: &Occupancy,
    wanted: &[JointGuest<'_>],
) -> Result<Joint, NoJoint> {
    let mut all = held.clone();
    let (mut placements, mut cost) = (Vec::new(), Cost::default());
    for (guest, one) in wanted.iter().enumerate() {
        let placement = first(topology, &all, one).map_err(|error| NoJoint {
            guest,
            placed: (0..guest).collect(),
            error,
            is_certain: true,
        })?;
        cost = cost + cost_of(topology, &all, one.request, &placement);
        all.domains.push(placement.held(one.name));
        placements.push(placement);
    }
    let order = (0..wanted.len()).collect();
    Ok(Joint { placements, order, cost, is_best: false })
}

/// The place of a guest alone, on the first of its sets that has one.
fn first(
    topology: &Topology,
    held: &Occupancy,
    one: &JointGuest<'_>,
) -> Result<Placement, PlanError> {
    let mut refused = None;
    for request in one.exact() {
        match plan(topology, held, &request) {
            Ok(placement) => return Ok(placement),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or_else(|| plan(topology, held, one.request), Err)
}

/// The cost of a place that was found.
fn cost_of(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    placement: &Placement,
) -> Cost {
    let is_gpu = |bdf: &Bdf| topology.device(*bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let number = request.gpus.number() as usize;
    let gpus: Vec<Bdf> = placement.devices.iter().copied().filter(is_gpu).take(number).collect();
    if gpus.is_empty() {
        return Cost::of_cells(placement).shared(placement);
    }
    let exact = exactly(request, gpus);
    let free = held.without_yielded();
    let scored = ranked(topology, held, &exact);
    let scored =
        scored.into_iter().next().or_else(|| ranked(topology, free.as_ref()?, &exact).pop());
    scored
        .map_or_else(|| Cost::of_cells(placement), |(key, _)| Cost::of_set(&key))
        .shared(placement)
}

/// The feasible sets of GPUs of a request, the best first.
fn ranked(topology: &Topology, held: &Occupancy, request: &Request) -> Vec<(Key, Vec<Bdf>)> {
    let huge_pages = match request.huge_pages {
        HugePages::Auto => HugePages::Off,
        asked => asked,
    };
    let request = &Request { huge_pages, ..request.clone() };
    let on = |among| ranked_on(topology, held, request, among);
    Among::of(topology, request)
        .into_iter()
        .map(on)
        .find(|sets| !sets.is_empty())
        .unwrap_or_default()
}

/// Those with vCPUs on some cores.
fn ranked_on(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    among: Among,
) -> Vec<(Key, Vec<Bdf>)> {
    let taken = Taken::new(topology, held).asking(request);
    let homes = Homes::of_request(topology, request, among);
    let homes = homes.with(taken.asked());
    let budget = Budget::new(topology, &homes, &taken, request, Counting::default());
    let extras = extras::ExtrasSearch::new(topology, &homes, &taken, request);
    let judges = Judges { budget: &budget, extras: &extras };
    devices::ranked(topology, &homes, &taken, &judges, request, SETS)
}

/// One way to place a guest at its turn.
struct Choice {
    /// The request for exactly this set of GPUs.
    request: Request,
    /// Its cost, as far as it is known.
    cost: Cost,
    /// Its GPUs, if the planner has a choice.
    gpus: Vec<Bdf>,
}

struct JointSearch<'a> {
    topology: &'a Topology,
    wanted: &'a [JointGuest<'a>],
    /// The order in which they are placed.
    order: Vec<usize>,
    /// The least cost of each guest, whatever the others get.
    least: Vec<Cost>,
    /// The places so far, by their turn.
    made: Vec<Placement>,
    /// The first GPU of each guest that was placed, by its turn.
    firsts: Vec<Option<Bdf>>,
    found: Option<Joint>,
    /// The most guests that were come to, and why the last of them had no place.
    refused: Option<(Vec<usize>, PlanError)>,
    plans: u32,
    is_cut: bool,
}

impl<'a> JointSearch<'a> {
    /// Makes a search; an error if a guest has no place even alone.
    fn new(
        topology: &'a Topology,
        held: &Occupancy,
        wanted: &'a [JointGuest<'a>],
        plans: u32,
    ) -> Result<JointSearch<'a>, NoJoint> {
        let mut least: Vec<Cost> = Vec::with_capacity(wanted.len());
        for (guest, one) in wanted.iter().enumerate() {
            if let Some(same) = wanted[..guest].iter().position(|w| w.is_like(one)) {
                least.push(least[same]);
                continue;
            }
            let placement = first(topology, held, one).map_err(|error| NoJoint {
                guest,
                placed: Vec::new(),
                error,
                is_certain: true,
            })?;
            let best = |request: &Request| ranked(topology, held, request).into_iter().next();
            let sets = one.exact();
            let costs = sets.iter().filter_map(best).map(|(key, _)| Cost::of_set(&key));
            let mut cost =
                costs.min().unwrap_or_else(|| cost_of(topology, held, one.request, &placement));
            // It may share nothing in another place.
            cost.0[0] = 0;
            least.push(cost);
        }
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|&guest| {
            let request = wanted[guest].request;
            let is_counted = matches!(request.gpus, GpuWish::Count(_));
            let sizes = (request.gpus.number(), request.vcpus, request.memory_kib);
            (is_counted, std::cmp::Reverse((sizes, request.gpu_model.is_some())))
        });
        Ok(JointSearch {
            topology,
            wanted,
            order,
            least,
            made: Vec::new(),
            firsts: Vec::new(),
            found: None,
            refused: None,
            plans,
            is_cut: false,
        })
    }

    /// Whether the best places cost the least that any could.
    fn is_done(&self) -> bool {
        let least = self.least.iter().fold(Cost::default(), |sum, &cost| sum + cost);
        self.found.as_ref().is_some_and(|found| found.cost <= least)
    }

    /// Puts a guest without GPUs that had no place before all others of its kind; returns whether
    /// that is another order.
    fn put_first(&mut self) -> bool {
        let last = self.refused.as_ref().and_then(|(come_to, _)| come_to.last());
        let at = self.order.iter().position(|guest| Some(guest) == last);
        let has_gpus = |guest: &usize| self.wanted[*guest].request.gpus.number() > 0;
        let first = self.order.iter().filter(|guest| has_gpus(guest)).count();
        let Some(at) = at.filter(|&at| at > first) else { return false };
        self.order[first..=at].rotate_right(1);
        true
    }

    /// The ways to place the guest of a turn, the best first.
    fn choices(&mut self, turn: usize, held: &Occupancy) -> Vec<Choice> {
        let wanted = self.wanted[self.order[turn]];
        let request = wanted.request;
        let exact = |(key, gpus): (Key, Vec<Bdf>)| {
            let request = exactly(request, gpus.clone());
            Choice { request, cost: Cost::of_set(&key), gpus }
        };
        let mut all: Vec<Choice> = match request.gpus {
            _ if !wanted.sets.is_empty() => {
                let sets = wanted.exact();
                let best = |one: &Request| ranked(self.topology, held, one).into_iter().next();
                let mut all: Vec<Choice> = sets.iter().filter_map(best).map(exact).collect();
                all.sort_by_key(|choice| choice.cost);
                all
            }
            GpuWish::Count(1..) => {
                ranked(self.topology, held, request).into_iter().map(exact).collect()
            }
            _ => Vec::new(),
        };
        self.is_cut |= all.len() == SETS;
        if all.is_empty() {
            let cost = self.least[self.order[turn]];
            // Its error is the reason.
            let request = wanted.exact().into_iter().next().unwrap_or_else(|| request.clone());
            all.push(Choice { request, cost, gpus: Vec::new() });
        }
        all
    }

    /// Whether a set is the mirror of another: guests with one request get their sets in the order
    /// of their first GPUs.
    fn is_mirrored(&self, turn: usize, choice: &Choice) -> bool {
        let Some(before) = turn.checked_sub(1).filter(|_| self.found.is_some()) else {
            return false;
        };
        let of = |turn: usize| &self.wanted[self.order[turn]];
        of(before).is_like(of(turn))
            && self.firsts[before].is_some_and(|first| choice.gpus.first() < Some(&first))
    }

    /// Places the guests from a turn on.
    fn go(&mut self, turn: usize, held: Occupancy, cost: Cost) {
        let Some(&guest) = self.order.get(turn) else {
            self.keep(cost);
            return;
        };
        let rest = self.order[turn + 1..].iter();
        let rest = rest.fold(Cost::default(), |sum, &other| sum + self.least[other]);
        for choice in self.choices(turn, &held) {
            let least = cost + choice.cost + rest;
            if self.found.as_ref().is_some_and(|found| least >= found.cost) {
                return;
            }
            if self.is_mirrored(turn, &choice) {
                continue;
            }
            if self.plans == 0 {
                self.is_cut = true;
                return;
            }
            self.plans -= 1;
            let placement = match plan(self.topology, &held, &choice.request) {
                Ok(placement) => placement,
                Err(error) => {
                    if self.refused.as_ref().is_none_or(|(most, _)| turn >= most.len()) {
                        self.refused = Some((self.order[..=turn].to_vec(), error));
                    }
                    continue;
                }
            };
            let own = if choice.gpus.is_empty() {
                cost_of(self.topology, &held, &choice.request, &placement)
            } else {
                choice.cost.shared(&placement)
            };
            let mut with = held.clone();
            with.domains.push(placement.held(self.wanted[guest].name));
            self.made.push(placement);
            self.firsts.push(choice.gpus.first().copied());
            self.go(turn + 1, with, cost + own);
            self.made.pop();
            self.firsts.pop();
            if self.is_done() {
                return;
            }
        }
    }

    /// Keeps places that cost less than the best so far.
    fn keep(&mut self, cost: Cost) {
        if self.found.as_ref().is_some_and(|found| cost >= found.cost) {
            return;
        }
        let mut turns: Vec<(usize, &Placement)> =
            self.order.iter().copied().zip(&self.made).collect();
        turns.sort_by_key(|(guest, _)| *guest);
        let placements = turns.into_iter().map(|(_, placement)| placement.clone()).collect();
        self.found = Some(Joint { placements, order: self.order.clone(), cost, is_best: false });
    }
}

#[cfg(test)]
mod tests;
