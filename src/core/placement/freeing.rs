//! Finds which guests to move to make room for another, and where to: the solution that restarts
//! the fewest GPUs. Every solution is verified by planning it. Guests that stay are not moved to
//! make room for those that leave.

use super::again::{count, request_of};
use super::groups;
use super::result::Placement;
use super::short::plan;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::occupancy::{Held, Occupancy};
use crate::request::{GpuWish, Request};
use crate::topology::{PartitionId, Topology};
use serde::Serialize;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// The most plans of one search: some seconds on the largest hosts, and more than all slots of a
/// board need.
const PLANS: u32 = 400;
/// The plans granted at least to the search of one slot.
const LEAST: u32 = 60;
/// The most sets of guests that one search examines; most need no plan.
const SETS: u32 = 20_000;

/// A way to make room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Advice {
    /// The partition that is free then; none: the host has none.
    pub partition: Option<PartitionId>,
    /// Indexes of the GPUs that the guest gets then.
    pub gpus: Vec<usize>,
    /// Guests that must be moved or stopped, most GPUs first.
    pub guests: Vec<Away>,
    /// GPUs of running guests that are restarted or ended.
    pub restarted: usize,
}

/// A guest that must be moved or stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Away {
    /// Its name.
    pub domain: String,
    /// Whether it runs now.
    pub running: bool,
    /// Its number of GPUs.
    pub gpus: usize,
    /// Where it can be moved; none: it fits nowhere else.
    pub to: Option<Place>,
}

/// Another placement of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// Its partition; none: the host has none.
    pub partition: Option<PartitionId>,
    /// Indexes of its GPUs.
    pub gpus: Vec<usize>,
    /// Its resources there.
    #[serde(skip)]
    pub held: Held,
}

/// The cost of a solution, most important first: GPUs and number of guests that end, GPUs and
/// number of running guests that are restarted, guests in all, and the place as tie-break.
type Cost = (usize, usize, usize, usize, usize, Vec<usize>);

impl Advice {
    fn cost(&self) -> Cost {
        let running = || self.guests.iter().filter(|guest| guest.running);
        let ended = || running().filter(|guest| guest.to.is_none());
        let gpus: usize = ended().map(|guest| guest.gpus).sum();
        let (ended, running) = (ended().count(), running().count());
        (gpus, ended, self.restarted, running, self.guests.len(), self.gpus.clone())
    }

    fn keeps_all(&self) -> bool {
        self.guests.iter().all(|guest| !guest.running || guest.to.is_some())
    }
}

/// A guest that might be moved.
#[derive(Debug)]
struct Guest<'a> {
    /// Its resources: the running ones, or else as defined.
    held: &'a Held,
    running: bool,
    gpus: usize,
}

/// A search for the cheapest solution.
struct Search<'a> {
    topology: &'a Topology,
    held: &'a Occupancy,
    /// The request that needs a place.
    request: &'a Request,
    /// GPUs of the host, by index.
    gpus: Vec<Bdf>,
    /// Guests that might be moved, the cheapest first.
    guests: Vec<Guest<'a>>,
    /// The holder of each blocked GPU, as an index in `guests`; none: the host or the device
    /// itself.
    blocked: BTreeMap<Bdf, Option<usize>>,
    plans: Cell<u32>,
    sets: Cell<u32>,
    bounded: Cell<bool>,
}

/// Finds the cheapest way to free a place for a request of this many GPUs that fits only on the
/// empty host; and whether possibly cheaper ways were skipped.
pub(super) fn cheapest(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    number: usize,
) -> (Option<Advice>, bool) {
    let search = Search::new(topology, held, request);
    let mut best: Option<Advice> = None;
    if !topology.is_partitioned() {
        search.around(&BTreeSet::new(), &GpuWish::Count(count(number)), number, &mut best);
    } else {
        let slots = search.slots(number);
        let each = (PLANS / count(slots.len().max(1))).max(LEAST);
        for slot in slots {
            search.plans.set(each);
            let inside: Option<BTreeSet<usize>> =
                slot.iter().filter_map(|gpu| search.blocked.get(gpu).copied()).collect();
            let wish = GpuWish::Exact(slot);
            // A slot with a GPU that is permanently unusable cannot be freed.
            let Some(inside) = inside else { continue };
            if search.fits(&(0..search.guests.len()).collect(), &wish) {
                search.around(&inside, &wish, 0, &mut best);
            }
        }
    }
    (best, search.bounded.get())
}

impl<'a> Search<'a> {
    fn new(topology: &'a Topology, held: &'a Occupancy, request: &'a Request) -> Search<'a> {
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        let mut by_name: BTreeMap<&str, Guest<'a>> = BTreeMap::new();
        for held in &held.domains {
            let number = held.devices.iter().filter(|bdf| gpus.contains(bdf)).count();
            let guest = Guest { held, running: held.active, gpus: number };
            // A domain is listed twice if it will hold other resources after its next start; the
            // running state comes first.
            let known = by_name.entry(&held.domain).or_insert(guest);
            known.gpus = known.gpus.max(number);
        }
        let mut guests: Vec<Guest<'a>> = by_name.into_values().collect();
        guests.sort_by_key(|g| (if g.running { g.gpus } else { 0 }, g.running, g.gpus));
        let taken = Taken::new(topology, held);
        let in_the_way = |&bdf: &Bdf| {
            let block = groups::block(topology, &taken, bdf)?;
            let named = |guest: &Guest<'_>| Some(guest.held.domain.as_str()) == block.domain;
            Some((bdf, guests.iter().position(named)))
        };
        let blocked = gpus.iter().filter_map(in_the_way).collect();
        let (plans, sets) = (Cell::new(PLANS), Cell::new(SETS));
        let bounded = Cell::new(false);
        Search { topology, held, request, gpus, guests, blocked, plans, sets, bounded }
    }

    /// Sets of GPUs that a guest of this size may get on a board with partitions.
    fn slots(&self, number: usize) -> Vec<Vec<Bdf>> {
        let partitions = self.topology.partitions().iter().map(|p| p.gpus.clone());
        let single = self.gpus.iter().map(|&gpu| vec![gpu]);
        let all: BTreeSet<Vec<Bdf>> = partitions
            .chain(single)
            .filter(|slot| slot.len() == number)
            .map(|mut slot| {
                slot.sort();
                slot
            })
            .collect();
        all.into_iter().collect()
    }

    /// Returns the occupancy without these guests.
    fn without(&self, away: &BTreeSet<usize>) -> Occupancy {
        let names: BTreeSet<&str> =
            away.iter().map(|&at| self.guests[at].held.domain.as_str()).collect();
        let stays = |held: &&Held| !names.contains(held.domain.as_str());
        let domains = self.held.domains.iter().filter(stays).cloned().collect();
        Occupancy { domains, ..self.held.clone() }
    }

    /// Plans, while the budget of plans lasts.
    fn plan(&self, held: &Occupancy, request: &Request) -> Option<Placement> {
        match self.plans.get().checked_sub(1) {
            None => {
                self.bounded.set(true);
                None
            }
            Some(left) => {
                self.plans.set(left);
                plan(self.topology, held, request).ok()
            }
        }
    }

    fn place(&self, away: &BTreeSet<usize>, wish: &GpuWish) -> Option<Placement> {
        let request = Request { gpus: wish.clone(), ..self.request.clone() };
        self.plan(&self.without(away), &request)
    }

    /// Whether there is a place without these guests.
    fn fits(&self, away: &BTreeSet<usize>, wish: &GpuWish) -> bool {
        self.place(away, wish).is_some()
    }

    /// Examines sets of guests that include one that has to go in any case, the smallest first, and
    /// keeps the best solution. With fewer than `number` GPUs free a set is not planned.
    fn around(
        &self,
        inside: &BTreeSet<usize>,
        wish: &GpuWish,
        number: usize,
        best: &mut Option<Advice>,
    ) {
        let others: Vec<usize> = (0..self.guests.len()).filter(|at| !inside.contains(at)).collect();
        let mut found: Vec<BTreeSet<usize>> = Vec::new();
        for size in 0..=others.len() {
            let mut places: Vec<usize> = (0..size).collect();
            let mut alive = false;
            loop {
                let Some(left) = self.sets.get().checked_sub(1).filter(|_| self.plans.get() > 0)
                else {
                    self.bounded.set(true);
                    return self.greedy(inside, wish, best);
                };
                self.sets.set(left);
                let more = places.iter().map(|&place| others[place]);
                let set: BTreeSet<usize> = inside.iter().copied().chain(more).collect();
                // If no guest ends, additional guests make no solution cheaper; otherwise a stopped
                // one may make room for a running one.
                let needless = found.iter().any(|less| less.is_subset(&set));
                if !needless && !self.is_dearer(&set, best) {
                    alive = true;
                    if self.consider(&set, wish, number, best) {
                        found.push(set);
                    }
                }
                if !next(&mut places, others.len()) {
                    break;
                }
            }
            // If no set of a size is promising, no larger one is.
            if !alive {
                return;
            }
        }
    }

    /// GPUs of the running guests of a set.
    fn restarted(&self, away: &BTreeSet<usize>) -> usize {
        let running = away.iter().map(|&at| &self.guests[at]).filter(|guest| guest.running);
        running.map(|guest| guest.gpus).sum()
    }

    /// Whether a set costs more than the best way even if all its guests have other places.
    fn is_dearer(&self, away: &BTreeSet<usize>, best: &Option<Advice>) -> bool {
        let dearer = |best: &Advice| best.keeps_all() && best.restarted < self.restarted(away);
        best.as_ref().is_some_and(dearer)
    }

    /// Examines one set of guests; returns whether a place is free without them and every running
    /// one has another.
    fn consider(
        &self,
        away: &BTreeSet<usize>,
        wish: &GpuWish,
        number: usize,
        best: &mut Option<Advice>,
    ) -> bool {
        let free = |gpu: &&Bdf| match self.blocked.get(gpu) {
            None => true,
            Some(guest) => guest.is_some_and(|guest| away.contains(&guest)),
        };
        if self.gpus.iter().filter(free).count() < number {
            return false;
        }
        let Some(placement) = self.place(away, wish) else { return false };
        let way = self.way(away, &placement);
        let keeps_all = way.keeps_all();
        if best.as_ref().is_none_or(|best| way.cost() < best.cost()) {
            *best = Some(way);
        }
        keeps_all
    }

    /// Finds places for the guests of a set, the largest first; if a running one finds none in this
    /// order, running ones first.
    fn way(&self, away: &BTreeSet<usize>, placement: &Placement) -> Advice {
        let largest = self.way_in(away, placement, |guest| (guest.gpus, guest.running.into()));
        if !largest.guests.iter().any(|guest| guest.running && guest.to.is_none()) {
            return largest;
        }
        let running = self.way_in(away, placement, |guest| (guest.running.into(), guest.gpus));
        if running.cost() < largest.cost() { running } else { largest }
    }

    /// Finds places for the guests of a set in this order, the highest first.
    fn way_in(
        &self,
        away: &BTreeSet<usize>,
        placement: &Placement,
        order: impl Fn(&Guest<'_>) -> (usize, usize),
    ) -> Advice {
        let mut held = self.without(away);
        held.domains.push(placement.held(""));
        let mut leaving: Vec<&Guest<'_>> = away.iter().map(|&at| &self.guests[at]).collect();
        let name = |guest: &Guest<'_>| guest.held.domain.clone();
        leaving.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| name(a).cmp(&name(b))));
        let mut guests = Vec::new();
        for Guest { held: own, running, gpus } in leaving {
            let place = self.plan(&held, &request_of(self.topology, own));
            let to = place.map(|place| Place {
                partition: place.partition,
                gpus: self.indexes(&place.devices),
                held: Held { active: false, ..place.held(&own.domain) },
            });
            held.domains.extend(to.iter().map(|to| to.held.clone()));
            guests.push(Away { domain: own.domain.clone(), running: *running, gpus: *gpus, to });
        }
        let gpus = self.indexes(&placement.devices);
        let restarted = self.restarted(away);
        Advice { partition: placement.partition, gpus, guests, restarted }
    }

    /// Removes guests, the cheapest first, until a place is free; then keeps those that need not
    /// move, the most expensive first.
    fn greedy(&self, inside: &BTreeSet<usize>, wish: &GpuWish, best: &mut Option<Advice>) {
        if best.is_some() {
            return;
        }
        // Each guest takes a plan when it is removed, when it may stay, and for its new place.
        self.plans.set(3 * count(self.guests.len()) + LEAST);
        let mut away = inside.clone();
        for at in 0..self.guests.len() {
            away.insert(at);
            if self.fits(&away, wish) {
                break;
            }
        }
        for at in (0..self.guests.len()).rev().filter(|at| !inside.contains(at)) {
            if away.remove(&at) && !self.fits(&away, wish) {
                away.insert(at);
            }
        }
        self.consider(&away, wish, 0, best);
    }

    /// Indexes of the GPUs among these functions.
    fn indexes(&self, devices: &[Bdf]) -> Vec<usize> {
        (0..self.gpus.len()).filter(|&at| devices.contains(&self.gpus[at])).collect()
    }
}

/// The next choice of places below `of`, in order; false after the last.
fn next(places: &mut [usize], of: usize) -> bool {
    let size = places.len();
    let Some(at) = (0..size).rev().find(|&at| places[at] + (size - at) < of) else { return false };
    places[at] += 1;
    for later in at + 1..size {
        places[later] = places[later - 1] + 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_of_places_comes_once() {
        let mut places = vec![0, 1];
        let mut seen = vec![places.clone()];
        while next(&mut places, 4) {
            seen.push(places.clone());
        }
        assert_eq!(seen, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert!(!next(&mut [], 4));
    }
}
