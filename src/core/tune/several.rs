//! Several guests that get another size together, beside guests that are new: one plan of all of
//! them, and the order in which each change has a place. Who gets less comes first; where each
//! waits for what another one has, guests that are off give up theirs before they get the new.

use super::items::Resize;
use super::{Given, Items, TuneError, Tuned, candidates, together, tune};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::guest::gpus_of;
use crate::memsize::MemSize;
use crate::placement::joint::{Joint, JointGuest, NoJoint, joint};
use crate::placement::{Held, Occupancy, Placement};
use crate::request::{Allow, GpuWish, Request};
use crate::topology::{DeviceKind, Topology};

/// A guest that gets another size.
#[derive(Debug, Clone)]
pub struct Resized<'a> {
    /// Its definition.
    pub xml: &'a DomainXml,
    /// Its vCPUs, memory and pages, as far as they change.
    pub items: Items,
    /// The GPUs that it gets; `None` if it keeps its own.
    pub gpus: Option<GpuWish>,
    /// Which rules may be broken.
    pub allow: Allow,
    /// Whether it is off, so that it can be without its GPUs for a while.
    pub is_off: bool,
}

/// One change of one guest.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The guest.
    pub guest: usize,
    /// Its settings.
    pub items: Items,
    /// Whether it only releases resources that others need, and gets the rest in a later turn.
    pub gives_up: bool,
    /// The GPUs that it has then; `None` if it keeps its own.
    pub gpus: Option<Vec<Bdf>>,
    /// The guest after the change.
    pub tuned: Tuned,
    /// The occupancy by others at that time.
    pub others: Occupancy,
}

/// A plan of all.
#[derive(Debug, Clone)]
pub struct Several {
    /// The changes in their order.
    pub turns: Vec<Turn>,
    /// The places of the new guests after them.
    pub new: Joint,
    /// The occupancy then, without the new guests.
    pub held: Occupancy,
}

/// The reason that there is no plan of all.
#[derive(Debug, Clone)]
pub enum NoSeveral {
    /// A guest cannot be changed so, whatever the others do.
    Guest {
        /// The guest.
        guest: usize,
        /// Why.
        error: TuneError,
    },
    /// They have no place together; guests that change come first in its numbers.
    NoPlace(NoJoint),
    /// A guest fits only once another one releases its place, which must be off for that.
    Runs {
        /// The guest.
        guest: usize,
        /// Running guests that hold resources to exchange.
        runs: Vec<usize>,
        /// Why it has no place before.
        error: TuneError,
    },
}

/// Plans changes of guests, and places of new ones beside them. `given.items` is not read, and
/// `given.others` is all that is held now. Guests that get another number of GPUs keep their own;
/// where there is no plan with them, all of their GPUs may be others.
pub fn several(
    given: &Given<'_>,
    resized: &[Resized<'_>],
    new: &[JointGuest<'_>],
) -> Result<Several, NoSeveral> {
    let refused = match beside_own(given, resized, new) {
        Err(refused) => refused,
        found => return found,
    };
    let moves = |one: &Resized<'_>| {
        let own = gpus_of(one.xml, given.topology).len();
        matches!(one.gpus, Some(GpuWish::Count(count)) if own > 0 && count as usize != own)
    };
    if !resized.iter().any(moves) {
        return Err(refused);
    }
    let moved = chosen(given, resized, new, true);
    moved.and_then(|sets| in_turns(given, resized, new, sets)).map_err(|_| refused)
}

/// A plan in which guests keep their own GPUs, as far as they keep any.
fn beside_own(
    given: &Given<'_>,
    resized: &[Resized<'_>],
    new: &[JointGuest<'_>],
) -> Result<Several, NoSeveral> {
    let alone = resized.len() + new.len() == 1;
    let sets = if resized.is_empty() || alone {
        vec![None; resized.len()]
    } else {
        match chosen(given, resized, new, false) {
            // Beside guests that are off, which yield their cores, one after the other may go.
            Err(NoSeveral::NoPlace(_)) => vec![None; resized.len()],
            chosen => chosen?,
        }
    };
    in_turns(given, resized, new, sets)
}

/// The plan with these GPUs of each guest that changes; `None` if it keeps its own, or chooses.
fn in_turns(
    given: &Given<'_>,
    resized: &[Resized<'_>],
    new: &[JointGuest<'_>],
    sets: Vec<Option<GpuWish>>,
) -> Result<Several, NoSeveral> {
    let mut order = Order::new(given, resized, sets);
    order.go()?;
    let Order { turns, held, .. } = order;
    let new = joint(given.topology, &held, new).map_err(|mut refused| {
        refused.guest += resized.len();
        refused.placed = (0..resized.len())
            .chain(refused.placed.iter().map(|guest| guest + resized.len()))
            .collect();
        NoSeveral::NoPlace(refused)
    })?;
    Ok(Several { turns, new, held })
}

/// The GPUs of a placement for a guest with this many, by address.
fn gpus_at(placement: &Placement, number: usize, topology: &Topology) -> Vec<Bdf> {
    let is_gpu = |bdf: &&Bdf| topology.device(**bdf).is_some_and(|d| d.kind() == DeviceKind::Gpu);
    let mut gpus: Vec<Bdf> =
        placement.devices.iter().filter(is_gpu).take(number).copied().collect();
    gpus.sort_unstable();
    gpus
}

/// The wish for exactly these GPUs.
fn exactly(gpus: Vec<Bdf>) -> GpuWish {
    if gpus.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(gpus) }
}

/// The settings of a change with these GPUs.
fn with_gpus(items: &Items, gpus: Option<GpuWish>) -> Items {
    Items { resize: Some(Resize { gpus, ..items.size().clone() }), ..items.clone() }
}

/// The sets of GPUs of which a guest gets one, the nearest first; `moves`: where their number
/// changes, it need not keep its own.
fn sets_of(
    one: &Resized<'_>,
    others: &Occupancy,
    topology: &Topology,
    moves: bool,
) -> Vec<GpuWish> {
    let own = gpus_of(one.xml, topology);
    match &one.gpus {
        None => vec![exactly(own)],
        Some(GpuWish::Count(count)) if own.len() == *count as usize => vec![exactly(own)],
        Some(GpuWish::Count(count)) if moves => vec![GpuWish::Count(*count)],
        Some(GpuWish::Count(count)) => candidates(topology, others, &own, *count),
        Some(named) => vec![named.clone()],
    }
}

/// The GPUs of each guest by a plan of all of them, old and new; `None` if it keeps its own.
fn chosen(
    given: &Given<'_>,
    resized: &[Resized<'_>],
    new: &[JointGuest<'_>],
    moves: bool,
) -> Result<Vec<Option<GpuWish>>, NoSeveral> {
    let topology = given.topology;
    let names: Vec<String> = resized.iter().map(|one| one.xml.name()).collect();
    let mut held = given.others.clone();
    held.domains.retain(|one| !names.contains(&one.domain));
    let (mut requests, mut sets): (Vec<Request>, Vec<Vec<Vec<Bdf>>>) = (Vec::new(), Vec::new());
    for (guest, one) in resized.iter().enumerate() {
        let wishes = sets_of(one, &held, topology, moves);
        let Some(first) = wishes.first() else {
            // `tune` says why there is none.
            let items = with_gpus(&one.items, one.gpus.clone());
            let error = tune(one.xml, &Given { items: &items, others: &held, ..*given });
            let Err(error) = error else { continue };
            return Err(NoSeveral::Guest { guest, error });
        };
        let items = with_gpus(&one.items, Some(first.clone()));
        let given = Given { items: &items, others: &held, allow: one.allow, ..*given };
        let request = super::planned_request(one.xml, &given)
            .map_err(|error| NoSeveral::Guest { guest, error })?;
        let exact = |wish: GpuWish| match wish {
            GpuWish::Exact(gpus) => Some(gpus),
            _ => None,
        };
        let exact: Option<Vec<Vec<Bdf>>> = wishes.into_iter().map(exact).collect();
        let sets_of_it = exact.filter(|sets| sets.iter().all(|gpus| !gpus.is_empty()));
        requests.push(request);
        sets.push(sets_of_it.unwrap_or_default());
    }
    let olds = names.iter().zip(requests.iter().zip(&sets));
    let olds = olds.map(|(name, (request, sets))| JointGuest { name, request, sets });
    let all: Vec<JointGuest<'_>> = olds.chain(new.iter().copied()).collect();
    let found = joint(topology, &held, &all).map_err(NoSeveral::NoPlace)?;
    let wish = |(guest, one): (usize, &Resized<'_>)| {
        let number = requests[guest].gpus.number() as usize;
        let gpus = gpus_at(&found.placements[guest], number, topology);
        let is_kept = gpus == gpus_of(one.xml, topology);
        (!is_kept).then(|| exactly(gpus))
    };
    Ok(resized.iter().enumerate().map(wish).collect())
}

/// The changes in an order in which each has a place.
struct Order<'a> {
    /// The host, and the features of the hypervisor.
    given: &'a Given<'a>,
    resized: &'a [Resized<'a>],
    /// The GPUs that each gets by the plan of all; `None` if it keeps its own, or chooses.
    sets: Vec<Option<GpuWish>>,
    /// The present definition of each.
    now: Vec<DomainXml>,
    /// Those that have not got their size.
    todo: Vec<usize>,
    /// Those that have released resources that others need.
    given_up: Vec<usize>,
    turns: Vec<Turn>,
    held: Occupancy,
}

impl<'a> Order<'a> {
    /// Begins with those that get fewer GPUs.
    fn new(
        given: &'a Given<'a>,
        resized: &'a [Resized<'a>],
        sets: Vec<Option<GpuWish>>,
    ) -> Order<'a> {
        let mut todo: Vec<usize> = (0..resized.len()).collect();
        todo.sort_by_key(|&guest| {
            let one = &resized[guest];
            let own = gpus_of(one.xml, given.topology).len();
            let wanted = one.gpus.as_ref().map_or(own, |gpus| gpus.number() as usize);
            wanted >= own
        });
        let now = resized.iter().map(|one| one.xml.clone()).collect();
        let (given_up, turns, held) = (Vec::new(), Vec::new(), given.others.clone());
        Order { given, resized, sets, now, todo, given_up, turns, held }
    }

    /// Finds the order.
    fn go(&mut self) -> Result<(), NoSeveral> {
        while !self.todo.is_empty() {
            let mut refused = None;
            let mut fits = None;
            for (at, &guest) in self.todo.iter().enumerate() {
                match self.whole(guest) {
                    Ok(turn) => {
                        fits = Some((at, turn));
                        break;
                    }
                    Err(error) => refused = refused.or(Some((guest, error))),
                }
            }
            if let Some((at, turn)) = fits {
                self.todo.remove(at);
                self.take(turn);
                continue;
            }
            if let Some(turn) = self.less() {
                self.given_up.push(turn.guest);
                self.take(turn);
                continue;
            }
            let Some((guest, error)) = refused else { return Ok(()) };
            let runs = self.todo.iter().filter(|&&other| other != guest);
            let runs = runs.filter(|&&other| !self.resized[other].is_off).copied();
            let runs: Vec<usize> = runs.collect();
            return Err(match error {
                TuneError::Plan(_) if !runs.is_empty() => NoSeveral::Runs { guest, runs, error },
                error => NoSeveral::Guest { guest, error },
            });
        }
        Ok(())
    }

    /// The change of a guest to its final state.
    fn whole(&self, guest: usize) -> Result<Turn, TuneError> {
        let one = &self.resized[guest];
        let own = gpus_of(&self.now[guest], self.given.topology);
        let wishes = match &self.sets[guest] {
            Some(GpuWish::Exact(gpus)) if *gpus == own => vec![None],
            Some(wish) => vec![Some(wish.clone())],
            // Alone it chooses as `set` does, with the present occupancy by others.
            None => match &one.gpus {
                None => vec![None],
                Some(GpuWish::Count(count)) if own.len() == *count as usize => vec![None],
                Some(_) => {
                    let now = Resized { xml: &self.now[guest], ..one.clone() };
                    let others = together::without(&self.held, &one.xml.name());
                    sets_of(&now, &others, self.given.topology, false)
                        .into_iter()
                        .map(Some)
                        .collect()
                }
            },
        };
        let mut found: Option<Result<Turn, TuneError>> = None;
        for wish in wishes {
            let turn = self.turn(guest, &one.items, wish, false);
            if turn.is_ok() {
                return turn;
            }
            found = found.or(Some(turn));
        }
        found.unwrap_or_else(|| self.turn(guest, &one.items, one.gpus.clone(), false))
    }

    fn turn(
        &self,
        guest: usize,
        items: &Items,
        wish: Option<GpuWish>,
        gives_up: bool,
    ) -> Result<Turn, TuneError> {
        let topology = self.given.topology;
        let xml = &self.now[guest];
        let items = with_gpus(items, wish.clone());
        let others = together::without_member(&self.held, xml, wish.is_some());
        let allow = self.resized[guest].allow;
        let given = Given { items: &items, others: &others, allow, ..*self.given };
        let tuned = tune(xml, &given)?;
        let gpus = wish.map(|_| gpus_of(&tuned.after, topology));
        Ok(Turn { guest, items, gives_up, gpus, tuned, others })
    }

    /// A change by which a stopped guest releases the resources that it loses, or GPUs that it does
    /// not keep; none if there are none.
    fn less(&self) -> Option<Turn> {
        let off = self.todo.iter().filter(|guest| !self.given_up.contains(guest));
        { off }.filter(|&&guest| self.resized[guest].is_off).find_map(|&guest| {
            let xml = &self.now[guest];
            let items = &self.resized[guest].items;
            let claims = Claims::read(xml);
            let (vcpus, memory): (u32, MemSize) = (claims.vcpus.value, claims.memory.value);
            let resize = Resize {
                vcpus: items.size().vcpus.filter(|number| *number < vcpus),
                memory: items.size().memory.filter(|size| *size < memory),
                ..Resize::default()
            };
            let is_less = resize.vcpus.is_some() || resize.memory.is_some();
            let less = Items { resize: Some(resize), ..Items::default() };
            let own = gpus_of(xml, self.given.topology);
            let stays: Vec<Bdf> = match &self.sets[guest] {
                Some(GpuWish::Exact(gpus)) => {
                    own.iter().copied().filter(|gpu| gpus.contains(gpu)).collect()
                }
                Some(_) => Vec::new(),
                None => own.clone(),
            };
            let wishes = if stays == own {
                vec![None]
            } else {
                let some = (!stays.is_empty()).then_some(GpuWish::Exact(stays));
                some.into_iter().chain([GpuWish::Count(0)]).map(Some).collect()
            };
            let wishes = wishes.into_iter().filter(|wish| is_less || wish.is_some());
            { wishes }.find_map(|wish| self.turn(guest, &less, wish, true).ok())
        })
    }

    fn take(&mut self, turn: Turn) {
        let name = self.resized[turn.guest].xml.name();
        let own = self.held.domains.iter().filter(|held| held.domain == name);
        let autostart = { own }.any(|held| held.autostart);
        let new = turn.tuned.after.held_instead(&self.held.domains);
        self.held.domains.retain(|held| held.domain != name);
        if let Ok(new) = new {
            // One that runs has it once it is started again.
            let active = !self.resized[turn.guest].is_off;
            self.held.domains.push(Held { active, autostart, ..new });
        }
        self.now[turn.guest] = turn.tuned.after.clone();
        self.turns.push(turn);
    }
}

#[cfg(test)]
mod tests;
