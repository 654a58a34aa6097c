//! Finds which guests to move to make room for another, which of them have to end, and where the
//! others go: first of all the fewest GPUs of running guests end, then the fewest are restarted.
//! Guests that are off may be left without a place.
//!
//! Sets of guests that end are examined by their cost, the smallest first, none of them before all.
//! Beside each the others may be moved as `room` moves them.

use super::result::Placement;
use super::room::{Cheapest, Limits, Move, MoveSearch, Mover, Room, Terms, reserved};
use super::short::plan;
use crate::bdf::Bdf;
use crate::occupancy::{Held, Occupancy};
use crate::request::Request;
use crate::topology::{PartitionId, Topology};
use serde::Serialize;

/// The most sets of guests that may end; most need no plan.
const SETS: usize = 1 << 16;
/// The most plans of a search: some seconds on the largest hosts.
const PLANS: u32 = 1200;
/// The most plans for moves beside one set of guests that end.
const OF_SET: u32 = 400;

/// A way to make room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Advice {
    /// The partition that is free then; `None` if the host has none.
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
    /// Its number of vGPUs.
    #[serde(skip_serializing_if = "is_zero")]
    pub vgpus: usize,
    /// Whether it cannot be moved, wherever there is a place: its GPUs have coherent memory, or
    /// gpuvm did not set up its vGPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
    /// Where it can be moved; `None` if it fits nowhere else.
    pub to: Option<Place>,
}

/// Another placement of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// Its partition; `None` if the host has none.
    pub partition: Option<PartitionId>,
    /// Indexes of its GPUs.
    pub gpus: Vec<usize>,
    /// Its resources there.
    #[serde(skip)]
    pub held: Held,
}

/// Whether a number is left out.
fn is_zero(number: &usize) -> bool {
    *number == 0
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
}

/// Finds the cheapest way to free a place for a request that fits only on the empty host; and
/// whether possibly cheaper ways were skipped.
pub(super) fn cheapest(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> (Option<Advice>, bool) {
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut guests = Mover::all(topology, held, |_| true);
    // Of guests that cost the same, those with the first GPUs go.
    guests.sort_by_cached_key(|guest| {
        let own = held.domains.iter().find(|held| held.domain == guest.name);
        gpus.iter().position(|gpu| own.is_some_and(|own| own.devices.contains(gpu)))
    });
    let held = &held.clearing(|_| true);
    Ends { topology, held, request, gpus, guests }.cheapest()
}

/// The cost of a move: GPUs and number of running guests that are restarted, and guests in all.
fn restarts(guest: &Mover) -> u64 {
    let running = if guest.runs { u64::from(guest.gpus) << 40 | 1 << 20 } else { 0 };
    running | 1
}

/// A search for guests that have to end.
struct Ends<'a> {
    topology: &'a Topology,
    held: &'a Occupancy,
    /// The request that needs a place.
    request: &'a Request,
    /// GPUs of the host, by index.
    gpus: Vec<Bdf>,
    guests: Vec<Mover>,
}

impl Ends<'_> {
    fn cheapest(&self) -> (Option<Advice>, bool) {
        let running: Vec<usize> =
            (0..self.guests.len()).filter(|&at| self.guests[at].runs).collect();
        let costs: Vec<u64> =
            running.iter().map(|&at| u64::from(self.guests[at].gpus) << 20 | 1).collect();
        let all: Vec<usize> = (0..self.guests.len()).collect();
        let whole = self.search(self.held, &self.guests, 0);
        let (mut best, mut plans, mut is_cut): (Option<(u64, Advice)>, _, _) = (None, PLANS, false);
        let sets = std::iter::once(Vec::new()).chain(Cheapest::new(&costs));
        for (number, set) in sets.enumerate() {
            let cost = set.iter().map(|&place| costs[place]).sum();
            if best.as_ref().is_some_and(|(least, _)| cost > *least) {
                break;
            }
            if number == SETS || plans == 0 {
                is_cut = true;
                break;
            }
            let ended: Vec<usize> = set.iter().map(|&place| running[place]).collect();
            let needy: Vec<usize> =
                running.iter().copied().filter(|guest| !ended.contains(guest)).collect();
            if !whole.may_hold(&all, &needy) {
                continue;
            }
            let found = self.beside(&ended, &mut plans);
            is_cut |= found.is_cut;
            let Some(way) = found.way else { continue };
            if best.as_ref().is_none_or(|(_, best)| way.cost() < best.cost()) {
                best = Some((cost, way));
            }
            // No other set of this cost restarts less.
            if found.is_alone {
                break;
            }
        }
        let best = best.map(|(_, way)| way).or_else(|| self.greedy(&running, &costs));
        (best, is_cut)
    }

    fn search<'s>(&'s self, held: &Occupancy, guests: &'s [Mover], plans: u32) -> MoveSearch<'s> {
        let limits = Limits::default();
        let terms = Terms { limits, cost: restarts, may_give_up: true, plans };
        MoveSearch::new(self.topology, held, self.request, guests, terms)
    }

    /// Examines one set of guests that end: whether there is room then, or after moves of others.
    fn beside(&self, ended: &[usize], plans: &mut u32) -> Found {
        let held = self.without(ended);
        let others: Vec<Mover> = (0..self.guests.len())
            .filter(|at| !ended.contains(at))
            .map(|at| self.guests[at].clone())
            .collect();
        let given = (*plans).min(OF_SET);
        let search = self.search(&held, &others, given);
        let at_once = (!ended.is_empty()).then(|| search.moves(&[])).flatten();
        let is_alone = at_once.is_some();
        let (room, is_cut) = match at_once.map_or_else(|| search.cheapest(), Ok) {
            Ok(room) if is_alone => (Some(room), false),
            Ok(room) => {
                let is_best = room.is_best;
                (Some(room), !is_best)
            }
            Err(no) => (None, !no.is_certain),
        };
        *plans -= given.saturating_sub(search.plans.get()).max(1);
        let way = room.map(|room| self.way(ended, &others, &room));
        Found { way, is_alone, is_cut }
    }

    /// The occupancy without these guests.
    fn without(&self, ended: &[usize]) -> Occupancy {
        let is_one = |held: &&Held| !ended.iter().any(|&at| self.guests[at].name == held.domain);
        let domains = self.held.domains.iter().filter(is_one).cloned().collect();
        Occupancy { domains, ..self.held.clone() }
    }

    /// The way that ends these guests and moves some of the others.
    fn way(&self, ended: &[usize], others: &[Mover], room: &Room) -> Advice {
        let ended = ended.iter().map(|&at| self.away(&self.guests[at], None));
        let moved = room.legs.iter().flatten();
        let moved = moved.map(|Move { guest, placement }| (&others[*guest], Some(placement)));
        let given_up = room.given_up.iter().map(|&guest| (&others[guest], None));
        let left = moved.chain(given_up).map(|(guest, to)| self.away(guest, to));
        self.advice(ended.chain(left).collect(), &room.placement)
    }

    fn advice(&self, mut guests: Vec<Away>, placement: &Placement) -> Advice {
        let order = |guest: &Away| (guest.gpus, guest.running);
        guests.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.domain.cmp(&b.domain)));
        let restarted = guests.iter().filter(|guest| guest.running).map(|guest| guest.gpus).sum();
        let gpus = self.indexes(&placement.devices);
        Advice { partition: placement.partition, gpus, guests, restarted }
    }

    /// A guest that goes to this place; `None` if it ends.
    fn away(&self, guest: &Mover, to: Option<&Placement>) -> Away {
        let to = to.map(|place| Place {
            partition: place.partition,
            gpus: self.cards(place),
            held: Held { active: false, ..place.held(&guest.name) },
        });
        let Mover { name, runs, gpus, vgpus, is_fixed, .. } = guest;
        Away {
            domain: name.clone(),
            running: *runs,
            gpus: *gpus as usize,
            vgpus: *vgpus as usize,
            fixed: *is_fixed,
            to,
        }
    }

    /// Ends guests, the cheapest first, until there is a place; then puts back those that need not
    /// end, the most expensive first, and moves those that have another place.
    fn greedy(&self, running: &[usize], costs: &[u64]) -> Option<Advice> {
        let place = |ended: &[usize]| plan(self.topology, &self.without(ended), self.request).ok();
        let off = (0..self.guests.len()).filter(|&at| !self.guests[at].runs);
        let mut order: Vec<(u64, usize)> =
            costs.iter().copied().zip(running.iter().copied()).collect();
        order.sort_unstable();
        let mut ended: Vec<usize> = Vec::new();
        for at in off.chain(order.into_iter().map(|(_, at)| at)) {
            ended.push(at);
            if place(&ended).is_some() {
                break;
            }
        }
        for at in ended.clone().into_iter().rev() {
            let less: Vec<usize> = ended.iter().copied().filter(|&other| other != at).collect();
            if place(&less).is_some() {
                ended = less;
            }
        }
        let placement = place(&ended)?;
        let mut held = self.without(&ended);
        held.domains.push(reserved(&placement));
        ended.sort_by_key(|&at| std::cmp::Reverse(self.guests[at].gpus));
        let mut guests = Vec::new();
        for at in ended {
            let guest = &self.guests[at];
            let to = plan(self.topology, &held, &guest.request).ok().filter(|_| !guest.is_fixed);
            held.domains.extend(to.as_ref().map(|to| to.held(&guest.name)));
            guests.push(self.away(guest, to.as_ref()));
        }
        Some(self.advice(guests, &placement))
    }

    /// Indexes of the GPUs of a place, and of the cards of its vGPUs.
    fn cards(&self, place: &Placement) -> Vec<usize> {
        let cards = place.vgpus.iter().map(|vgpu| vgpu.card);
        self.indexes(&cards.chain(place.devices.iter().copied()).collect::<Vec<_>>())
    }

    /// Indexes of the GPUs among these functions.
    fn indexes(&self, devices: &[Bdf]) -> Vec<usize> {
        (0..self.gpus.len()).filter(|&at| devices.contains(&self.gpus[at])).collect()
    }
}

/// The result of ending one set of guests.
struct Found {
    way: Option<Advice>,
    /// Whether no other guest must be moved.
    is_alone: bool,
    /// Whether something was left out.
    is_cut: bool,
}
