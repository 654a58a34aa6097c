//! Finds the guests to move so that another one has a place: those that cost the least together,
//! where each goes, and an order in which each place is free at its time.
//!
//! Sets of guests are examined by their cost, the smallest first, so that the first one that helps
//! costs the least of all. A set of guests whose GPUs cannot lie beside each other on the board is
//! passed over without a plan; every other one is planned together with the new guest (`joint`).
//! Where a search would take too long, guests are taken out by their cost until there is room, and
//! those that need not move are put back; see [`Room::is_best`].

use super::groups;
use super::joint::{Joint, JointGuest, exactly, within};
use super::request_of_domain::{count, is_fixed, request_of};
use super::result::Placement;
use super::short::plan;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, Held, Occupancy};
use crate::request::{GpuWish, Request};
use crate::topology::{DeviceKind, GuestVgpu, Topology, is_type_named};
use serde::Serialize;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The most sets of guests that are examined: all sets of 16, the most that have GPUs on a board.
const SETS: usize = 1 << 16;
/// The most plans of a search: a second or two on the largest hosts.
const PLANS: u32 = 1500;
/// The most plans for one set of guests.
const OF_SET: u32 = 400;
/// The most plans of a search for an order.
const ORDERS: u32 = 200;
/// The name of the new guest in the occupancy.
const NEW: &str = "the new guest";

/// A guest that may be moved.
#[derive(Debug, Clone)]
pub struct Mover {
    /// Its name in the occupancy.
    pub name: String,
    /// Its needs at any place.
    pub request: Request,
    /// Whether it runs, so that it is stopped for a move and started again.
    pub runs: bool,
    /// GPUs that it holds.
    pub gpus: u32,
    /// Its memory.
    pub memory: MemSize,
    /// Its pinned vCPUs.
    pub pins: u32,
    /// vGPUs that it holds.
    pub vgpus: u32,
    /// Whether it has no other place: it can end, and not be moved.
    pub is_fixed: bool,
}

impl Mover {
    /// The guests of a host that hold something, as far as they may be moved, by name; the request
    /// of each is derived from its resources.
    pub fn all(
        topology: &Topology,
        held: &Occupancy,
        may_move: impl Fn(&Held) -> bool,
    ) -> Vec<Mover> {
        let mut movers: BTreeMap<&str, Mover> = BTreeMap::new();
        let gpus = |held: &Held| {
            let is_parent = |bdf| held.vgpus.iter().any(|vgpu| vgpu.function == bdf);
            let own = topology.gpus().filter(|gpu| held.devices.contains(&gpu.bdf));
            count(own.filter(|gpu| !is_parent(gpu.bdf)).count())
        };
        for held in held.domains.iter().filter(|held| may_move(held)) {
            // The state of a running domain comes first.
            movers.entry(&held.domain).or_insert_with(|| Mover {
                name: held.domain.clone(),
                request: request_of(topology, held),
                runs: held.active,
                gpus: gpus(held),
                memory: held.memory.iter().map(|(_, size)| *size).sum(),
                pins: count(held.vcpu_pins.len()),
                vgpus: count(held.vgpus.len()),
                is_fixed: is_fixed(topology, held),
            });
        }
        movers.into_values().collect()
    }

    /// The cost of its move.
    pub fn cost(&self) -> MoveCost {
        let gib = if self.runs { self.memory.kib().div_ceil(1 << 20) } else { 0 };
        MoveCost { stops: u32::from(self.runs), memory_gib: gib, pins: self.pins }
    }
}

/// The cost of moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MoveCost {
    /// Guests that run, and are stopped and started again.
    pub stops: u32,
    /// Their memory, which is filled again, in GiB.
    pub memory_gib: u64,
    /// vCPUs that get other pins.
    pub pins: u32,
}

impl MoveCost {
    /// Returns it as one number: a stop counts 1000, a GiB and a pin 1 each.
    pub fn sum(self) -> u64 {
        u64::from(self.stops) * 1000 + self.memory_gib + u64::from(self.pins)
    }
}

impl std::ops::Add for MoveCost {
    type Output = MoveCost;
    fn add(self, other: MoveCost) -> MoveCost {
        MoveCost {
            stops: self.stops + other.stops,
            memory_gib: self.memory_gib + other.memory_gib,
            pins: self.pins + other.pins,
        }
    }
}

impl std::iter::Sum for MoveCost {
    fn sum<I: Iterator<Item = MoveCost>>(all: I) -> MoveCost {
        all.fold(MoveCost::default(), |sum, one| sum + one)
    }
}

/// The most that may be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Guests that are stopped; `None` for any number.
    pub stops: Option<u32>,
    /// Guests that are moved; `None` for any number.
    pub moves: Option<u32>,
}

/// The weights of moves in a search, and its further permissions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// The most that may be done.
    pub limits: Limits,
    /// The cost of a guest's move.
    pub cost: fn(&Mover) -> u64,
    /// Whether guests that are off may be left without a place.
    pub may_give_up: bool,
    /// The most plans.
    pub plans: u32,
}

/// One guest's move.
#[derive(Debug, Clone)]
pub struct Move {
    /// The guest, by its index in the list.
    pub guest: usize,
    /// Its new place.
    pub placement: Placement,
}

/// A way to make room.
#[derive(Debug, Clone)]
pub struct Room {
    /// The moves in their order. Guests of one entry need each other's places: all of them are off
    /// before the first one gets its new place.
    pub legs: Vec<Vec<Move>>,
    /// Guests that are off and are left without a place; they leave before the first move.
    pub given_up: Vec<usize>,
    /// Their cost.
    pub cost: MoveCost,
    /// The place of the new guest then.
    pub placement: Placement,
    /// Whether no cheaper moves would do.
    pub is_best: bool,
}

/// The reason that no moves make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Whether moves of all of the guests, regardless of limits, were shown not to do.
    pub is_certain: bool,
    /// Whether there would be a way beyond the limits.
    pub is_limited: bool,
}

/// Finds the cheapest moves of these guests after which the request has a place.
pub fn room(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    movers: &[Mover],
    limits: Limits,
) -> Result<Room, NoRoom> {
    let cost = |mover: &Mover| mover.cost().sum();
    let terms = Terms { limits, cost, may_give_up: false, plans: PLANS };
    MoveSearch::new(topology, held, request, movers, terms).cheapest()
}

/// Sets of guests by their cost, the smallest first.
pub(super) struct Cheapest<'a> {
    costs: &'a [u64],
    order: Vec<usize>,
    /// Sets to come: the cost, and places in the order, which ascend.
    heap: BinaryHeap<std::cmp::Reverse<(u64, Vec<usize>)>>,
}

impl<'a> Cheapest<'a> {
    pub fn new(costs: &'a [u64]) -> Cheapest<'a> {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by_key(|&guest| (costs[guest], guest));
        let first = order.first().map(|&guest| std::cmp::Reverse((costs[guest], vec![0])));
        Cheapest { costs, order, heap: first.into_iter().collect() }
    }
}

impl Iterator for Cheapest<'_> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let std::cmp::Reverse((cost, places)) = self.heap.pop()?;
        let last = *places.last()?;
        if let Some(&next) = self.order.get(last + 1) {
            let (own, other) = (self.costs[self.order[last]], self.costs[next]);
            // With the next guest, and with it in the place of the last one: every set comes once.
            let mut with = places.clone();
            with.push(last + 1);
            let mut instead = places.clone();
            instead.pop();
            instead.push(last + 1);
            self.heap.push(std::cmp::Reverse((cost + other, with)));
            self.heap.push(std::cmp::Reverse((cost - own + other, instead)));
        }
        Some(places.into_iter().map(|place| self.order[place]).collect())
    }
}

pub(super) struct MoveSearch<'a> {
    topology: &'a Topology,
    held: Occupancy,
    /// The request that needs a place.
    request: &'a Request,
    movers: &'a [Mover],
    /// The cost of moving each.
    costs: Vec<u64>,
    terms: Terms,
    gpus: Vec<Bdf>,
    /// GPUs that no guest holds, as bits by index.
    free: u64,
    /// GPUs that each guest holds, as bits by index.
    own: Vec<u64>,
    /// The sets of GPUs of partitions, as bits by index; `None` if the board has no partitions.
    slots: Option<BTreeSet<u64>>,
    /// Plans that are left.
    pub plans: Cell<u32>,
    /// Whether something was left out.
    is_cut: Cell<bool>,
}

impl<'a> MoveSearch<'a> {
    pub fn new(
        topology: &'a Topology,
        held: &Occupancy,
        request: &'a Request,
        movers: &'a [Mover],
        terms: Terms,
    ) -> MoveSearch<'a> {
        // Reasons against a partition's activation because of a guest end with its move.
        let is_one = |held: &Held| movers.iter().any(|mover| mover.name == held.domain);
        let readiness = held.readiness.without_domains();
        let held = Occupancy { readiness, ..held.clearing(is_one) };
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).take(64).collect();
        let (mut free, mut own) = (0, vec![0; movers.len()]);
        let taken = Taken::new(topology, &held);
        for (at, &bdf) in gpus.iter().enumerate() {
            match groups::block(topology, &taken, bdf) {
                None => free |= 1 << at,
                Some(block) => {
                    let named = |mover: &Mover| Some(mover.name.as_str()) == block.domain;
                    if let Some(guest) = movers.iter().position(named) {
                        own[guest] |= 1 << at;
                    }
                }
            }
        }
        let bits = |set: &[Bdf]| {
            let at = |bdf: &Bdf| gpus.iter().position(|gpu| gpu == bdf);
            set.iter().filter_map(at).fold(0, |bits, at| bits | 1 << at)
        };
        let partitions = topology.partitions().iter().map(|one| bits(&one.gpus));
        let slots = topology.is_partitioned().then(|| partitions.collect());
        let costs = movers.iter().map(terms.cost).collect();
        let (plans, is_cut) = (Cell::new(terms.plans), Cell::new(false));
        MoveSearch {
            topology,
            request,
            movers,
            costs,
            terms,
            gpus,
            free,
            own,
            slots,
            plans,
            is_cut,
            held,
        }
    }

    /// The moves that cost the least.
    pub fn cheapest(&self) -> Result<Room, NoRoom> {
        let mut sets = Cheapest::new(&self.costs);
        let mut is_limited = false;
        // The cost of the first set of which not every place was tried.
        let mut cut: Option<u64> = None;
        for _ in 0..SETS {
            let Some(set) = sets.next() else {
                return Err(NoRoom { is_certain: !self.is_cut.get(), is_limited });
            };
            if !self.may_fit(&set) {
                continue;
            }
            if !self.is_within(&set) {
                is_limited = true;
                continue;
            }
            if self.plans.get() == 0 {
                break;
            }
            let cost = set.iter().map(|&guest| self.costs[guest]).sum();
            match self.moves(&set) {
                // A set that costs as much would be no better.
                Some(room) => {
                    return Ok(Room { is_best: cut.is_none_or(|cut| cut >= cost), ..room });
                }
                None if self.is_cut.get() => cut = cut.or(Some(cost)),
                None => {}
            }
        }
        self.is_cut.set(true);
        self.plans.set(self.terms.plans);
        self.greedy().ok_or(NoRoom { is_certain: false, is_limited })
    }

    /// Whether moves of a set are within the limits.
    fn is_within(&self, set: &[usize]) -> bool {
        let stops = set.iter().filter(|&&guest| self.movers[guest].runs).count();
        let below = |limit: Option<u32>, number: usize| limit.is_none_or(|n| count(number) <= n);
        below(self.terms.limits.stops, stops) && below(self.terms.limits.moves, set.len())
    }

    /// The guests of a set that have to have a place again.
    fn needy(&self, set: &[usize]) -> Vec<usize> {
        let is_needy = |guest: &usize| !self.terms.may_give_up || self.movers[*guest].runs;
        set.iter().copied().filter(is_needy).collect()
    }

    fn may_fit(&self, set: &[usize]) -> bool {
        self.may_hold(set, &self.needy(set))
    }

    /// Whether the new guest and the needy ones may have GPUs beside each other on the board, once
    /// those of a set have left theirs.
    pub fn may_hold(&self, set: &[usize], needy: &[usize]) -> bool {
        let free = set.iter().fold(self.free, |free, &guest| free | self.own[guest]);
        let mut sizes: Vec<u32> = { needy.iter() }
            .map(|&guest| self.size(&self.movers[guest].request))
            .chain([self.size(self.request)])
            .filter(|&number| number > 0)
            .collect();
        let all: u32 = sizes.iter().sum();
        if all > free.count_ones() && self.gpus.len() < 64 {
            return false;
        }
        let Some(slots) = &self.slots else { return true };
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        can_cover(slots, free, &sizes)
    }

    /// The GPUs that a request takes from others, which a display is not.
    fn size(&self, request: &Request) -> u32 {
        match &request.gpus {
            GpuWish::Exact(gpus) => {
                count(gpus.iter().filter(|gpu| self.gpus.contains(gpu)).count())
            }
            wish => wish.number(),
        }
    }

    /// The occupancy without these guests.
    fn without(&self, set: &[usize]) -> Occupancy {
        let is_one = |held: &Held| set.iter().any(|&at| self.movers[at].name == held.domain);
        let domains = self.held.domains.iter().filter(|held| !is_one(held)).cloned().collect();
        Occupancy { domains, ..self.held.clone() }
    }

    /// The moves of a set after which there is room; `None` if there is none.
    pub fn moves(&self, set: &[usize]) -> Option<Room> {
        let needy = self.needy(set);
        if needy.len() == set.len() {
            return self.moves_of(set, &[]);
        }
        let all = self.may_hold(set, set).then(|| self.moves_of(set, &[])).flatten();
        all.or_else(|| {
            let mut off: Vec<usize> =
                set.iter().copied().filter(|guest| !needy.contains(guest)).collect();
            off.sort_by_key(|&guest| std::cmp::Reverse(self.movers[guest].gpus));
            Some(self.with_places(self.moves_of(&needy, &off)?, &off))
        })
    }

    /// The moves of some guests after which there is room, once others that are off have left.
    fn moves_of(&self, set: &[usize], off: &[usize]) -> Option<Room> {
        if set.iter().any(|&guest| self.movers[guest].is_fixed) {
            return None;
        }
        let all: Vec<usize> = set.iter().chain(off).copied().collect();
        let new = JointGuest { name: NEW, request: self.request, sets: &[] };
        let one = |&guest: &usize| {
            let Mover { name, request, .. } = &self.movers[guest];
            JointGuest { name, request, sets: &[] }
        };
        let wanted: Vec<JointGuest<'_>> = [new].into_iter().chain(set.iter().map(one)).collect();
        let given = self.plans.get().min(OF_SET);
        let (found, left) = within(self.topology, &self.without(&all), &wanted, given);
        self.plans.set(self.plans.get() - given.saturating_sub(left));
        let Joint { placements, .. } = match found {
            Ok(found) => found,
            Err(refused) => {
                self.is_cut.set(self.is_cut.get() || !refused.is_certain);
                return None;
            }
        };
        let cost = set.iter().map(|&guest| self.movers[guest].cost()).sum();
        let is_best = !self.is_cut.get();
        let start = self.without(off);
        let room = self.in_turns(set, &placements, start).and_then(|(legs, held)| {
            let placement = plan(self.topology, &held, self.request).ok()?;
            Some(Room { legs, given_up: Vec::new(), cost, placement, is_best })
        });
        // Other places of the same guests might have an order.
        self.is_cut.set(self.is_cut.get() || room.is_none());
        room
    }

    /// Adds to moves those of guests that are off, as far as they have a place then.
    fn with_places(&self, mut room: Room, off: &[usize]) -> Room {
        let moved = room.legs.iter().flatten();
        let set: Vec<usize> = moved.map(|one| one.guest).chain(off.iter().copied()).collect();
        let mut now = Now { search: self, held: self.without(&set), new: &room.placement };
        for Move { guest, placement } in room.legs.iter().flatten() {
            now.take(*guest, placement);
        }
        let mut legs = Vec::new();
        for &guest in off {
            let Mover { request, is_fixed, .. } = &self.movers[guest];
            match (!is_fixed).then(|| now.plan(guest, request)).flatten() {
                Some(placement) => {
                    now.take(guest, &placement);
                    legs.push(vec![Move { guest, placement }]);
                }
                None => room.given_up.push(guest),
            }
        }
        room.legs.extend(legs);
        room
    }

    /// The moves to these places, that of the new guest first, in an order in which each is free at
    /// its time; and the occupancy after them, without the new guest. `start`: the one before.
    fn in_turns(
        &self,
        set: &[usize],
        placements: &[Placement],
        start: Occupancy,
    ) -> Option<(Vec<Vec<Move>>, Occupancy)> {
        let [new, places @ ..] = placements else { return None };
        let mut now = Now { search: self, held: start, new };
        let mut legs: Vec<Vec<Move>> = Vec::new();
        let mut todo: Vec<usize> = (0..set.len()).collect();
        while !todo.is_empty() {
            let gets = |&at: &usize| {
                let exact = self.at(set[at], &places[at]);
                Some((at, now.plan(set[at], &exact)?))
            };
            let Some((at, placement)) = todo.iter().find_map(gets) else { break };
            now.take(set[at], &placement);
            legs.push(vec![Move { guest: set[at], placement }]);
            todo.retain(|&other| other != at);
        }
        if todo.is_empty() {
            return Some((legs, now.held));
        }
        let mut one_by_one = OneByOne { now, plans: ORDERS };
        let rest: Vec<usize> = todo.iter().map(|&at| set[at]).collect();
        if let Some((found, held)) = one_by_one.go(&rest) {
            legs.extend(found.into_iter().map(|one| vec![one]));
            return Some((legs, held));
        }
        // They need each other's places.
        let mut now = one_by_one.now;
        let is_one = |held: &Held| rest.iter().any(|&at| self.movers[at].name == held.domain);
        now.held.domains.retain(|held| !is_one(held));
        let mut leg = Vec::new();
        for at in todo {
            let placement = now.plan(set[at], &self.at(set[at], &places[at]))?;
            now.take(set[at], &placement);
            leg.push(Move { guest: set[at], placement });
        }
        legs.push(leg);
        Some((legs, now.held))
    }

    /// The request of a guest for the GPUs of a place.
    fn at(&self, guest: usize, placement: &Placement) -> Request {
        let request = &self.movers[guest].request;
        match gpus_at(placement, request, self.topology) {
            gpus if gpus.is_empty() => request.clone(),
            gpus => exactly(request, gpus),
        }
    }

    /// Takes guests out, the cheapest first, until there is room; then puts those back that need
    /// not move, the most expensive first.
    fn greedy(&self) -> Option<Room> {
        let mut order: Vec<usize> = (0..self.movers.len()).collect();
        order.retain(|&guest| !self.movers[guest].is_fixed || self.needy(&[guest]).is_empty());
        order.sort_by_key(|&guest| (self.costs[guest], guest));
        let mut found = None;
        let mut set: Vec<usize> = Vec::new();
        for &guest in &order {
            set.push(guest);
            if self.plans.get() == 0 {
                return None;
            }
            if self.may_fit(&set) && self.is_within(&set) {
                found = self.moves(&set);
                if found.is_some() {
                    break;
                }
            }
        }
        found.as_ref()?;
        for guest in set.clone().into_iter().rev() {
            let less: Vec<usize> = set.iter().copied().filter(|&other| other != guest).collect();
            if less.is_empty() || self.plans.get() == 0 || !self.may_fit(&less) {
                continue;
            }
            if let Some(room) = self.moves(&less) {
                found = Some(room);
                set = less;
            }
        }
        found
    }
}

/// The GPUs of a place.
pub fn gpus_at(placement: &Placement, request: &Request, topology: &Topology) -> Vec<Bdf> {
    let is_gpu = |bdf: &Bdf| topology.device(*bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let gpus = placement.devices.iter().copied().filter(is_gpu);
    let mut gpus: Vec<Bdf> = gpus.take(request.gpus.number() as usize).collect();
    gpus.sort_unstable();
    gpus
}

/// Whether guests of these sizes, the largest first, have partitions or single GPUs beside each
/// other among these GPUs.
fn can_cover(slots: &BTreeSet<u64>, free: u64, sizes: &[u32]) -> bool {
    let Some((&size, rest)) = sizes.split_first() else { return true };
    if size == 1 {
        // All others are single GPUs, too.
        return free.count_ones() as usize >= sizes.len();
    }
    let of_size = slots.iter().filter(|slot| slot.count_ones() == size);
    { of_size }.any(|slot| slot & !free == 0 && can_cover(slots, free & !slot, rest))
}

/// The occupancy during the moves.
#[derive(Clone)]
struct Now<'a> {
    search: &'a MoveSearch<'a>,
    held: Occupancy,
    /// The place that the new guest gets in the end.
    new: &'a Placement,
}

impl Now<'_> {
    /// The place of a guest beside the others' present resources and those of the new guest.
    fn plan(&self, guest: usize, request: &Request) -> Option<Placement> {
        let name = &self.search.movers[guest].name;
        let mut others = self.held.clone();
        others.domains.retain(|held| held.domain != *name);
        others.domains.push(reserved(self.new));
        others.excluded.extend(self.closed(request));
        plan(self.search.topology, &others, request).ok()
    }

    /// The cards on which the new guest gets vGPUs of another type: until one that others leave is
    /// cleared its function shows the old type, beside which the planner would put more of it.
    fn closed(&self, request: &Request) -> Vec<Exclusion> {
        let Some(wish) = &request.vgpu else { return Vec::new() };
        let is_other = |new: &&GuestVgpu| !is_type_named(&wish.type_name, &new.name, &new.type_id);
        let others = self.new.vgpus.iter().filter(is_other);
        others.map(|new| Exclusion::new(new.card, "of another size")).collect()
    }

    /// Gives a guest its new place.
    fn take(&mut self, guest: usize, placement: &Placement) {
        let Mover { name, runs, .. } = &self.search.movers[guest];
        let autostart = self.held.domains.iter().any(|held| held.domain == *name && held.autostart);
        self.held.domains.retain(|held| held.domain != *name);
        self.held.domains.push(Held { active: *runs, autostart, ..placement.held(name) });
    }
}

/// The resources of a place that others must leave before it is taken.
pub fn reserved(placement: &Placement) -> Held {
    Held { active: true, ..placement.held(NEW) }
}

/// A search for an order of moves, each to any place that is free at its time.
struct OneByOne<'a> {
    now: Now<'a>,
    plans: u32,
}

impl OneByOne<'_> {
    fn go(&mut self, rest: &[usize]) -> Option<(Vec<Move>, Occupancy)> {
        if rest.is_empty() {
            return Some((Vec::new(), self.now.held.clone()));
        }
        for &guest in rest {
            self.plans = self.plans.checked_sub(1)?;
            let search = self.now.search;
            let Some(placement) = self.now.plan(guest, &search.movers[guest].request) else {
                continue;
            };
            let before = self.now.held.clone();
            self.now.take(guest, &placement);
            let others: Vec<usize> = rest.iter().copied().filter(|&other| other != guest).collect();
            let found = self.go(&others);
            self.now.held = before;
            if let Some((moves, held)) = found {
                let first = Move { guest, placement };
                return Some(([first].into_iter().chain(moves).collect(), held));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
