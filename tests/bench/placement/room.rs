//! What making room gains: over all states of a DGX-2, guests that have no place although enough
//! GPUs are free get one by moves of others (`gpuvm make-room`).

use super::exact::{Board, Policy, SIZES, State, states};
use super::hosts;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::placement::room::{Limits, Mover, gpus_at, room};
use gpuvm_core::placement::{Held, Occupancy, plan};
use gpuvm_core::request::{GpuWish, Request};
use gpuvm_core::topology::Topology;
use std::fmt::Write as _;
use std::ops::Range;

/// The class of guests with eight GPUs.
pub const EIGHT: usize = 3;

/// The guests of a state, as sets of GPUs; the board is these GPUs in order.
pub fn guests(state: State, gpus: &[Bdf], found: &mut Vec<Vec<Bdf>>) {
    if state == 0 {
        return;
    }
    let half = states(gpus.len() / 2);
    if gpus.len() == 1 || state == half * (half + 1) / 2 {
        return found.push(gpus.to_vec());
    }
    let high = (0..half).rfind(|high| high * (high + 1) / 2 <= state).unwrap();
    let (left, right) = gpus.split_at(gpus.len() / 2);
    guests(high, left, found);
    guests(state - high * (high + 1) / 2, right, found);
}

/// The state of a board on which these guests stand.
pub fn state(guests: &[Vec<Bdf>], gpus: &[Bdf]) -> State {
    let touching = || guests.iter().filter(|guest| guest.iter().any(|bdf| gpus.contains(bdf)));
    if touching().next().is_none() {
        return 0;
    }
    if gpus.len() == 1 {
        return 1;
    }
    if guests.iter().any(|guest| guest == gpus) {
        return states(gpus.len()) - 1;
    }
    let (left, right) = gpus.split_at(gpus.len() / 2);
    let (a, b) = (state(guests, left), state(guests, right));
    a.max(b) * (a.max(b) + 1) / 2 + a.min(b)
}

/// What making room came to in one state, for one class of guests.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// The state before.
    pub from: State,
    /// The class of the new guest.
    pub class: usize,
    /// The state after the moves, with the new guest.
    pub to: State,
    /// Guests that are stopped.
    pub stops: u32,
    /// Whether no cheaper moves would do.
    pub is_best: bool,
}

/// Makes room in one of `step` states of a range, for each class of guests that has no place there
/// although enough GPUs are free.
///
/// # Panics
///
/// Where no moves make room.
pub fn made(range: Range<State>, step: usize) -> Vec<Made> {
    let host = hosts::named("dgx-2").topology;
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let board = Board::new(gpus.len());
    let mut all = Vec::new();
    for from in range.step_by(step) {
        let mut there = Vec::new();
        guests(from, &gpus, &mut there);
        let free = gpus.len() - there.iter().map(Vec::len).sum::<usize>();
        let is_short =
            |class: &usize| SIZES[*class] <= free && board.after(from, *class).next().is_none();
        let classes: Vec<usize> = (0..SIZES.len()).filter(is_short).collect();
        if classes.is_empty() {
            continue;
        }
        let mut held = Occupancy::default();
        for (number, set) in there.iter().enumerate() {
            let wish = GpuWish::Exact(set.clone());
            let request = Request { gpus: wish, ..Request::for_gpus(0) };
            let placement = plan(&host, &held, &request).unwrap();
            held.domains.push(Held { active: true, ..placement.held(&format!("g{number}")) });
        }
        all.extend(classes.into_iter().map(|class| one((from, class), &held, &host, &gpus)));
    }
    all
}

/// Makes room for a guest of a class.
fn one((from, class): (State, usize), held: &Occupancy, host: &Topology, gpus: &[Bdf]) -> Made {
    let movers = Mover::all(host, held, |_| true);
    let request = Request::for_gpus(u32::try_from(SIZES[class]).unwrap());
    let found = room(host, held, &request, &movers, Limits::default());
    let found = found.unwrap_or_else(|no| panic!("no room in state {from}: {no:?}"));
    let mut sets: Vec<Vec<Bdf>> = vec![gpus_at(&found.placement, &request, host)];
    let moves = || found.legs.iter().flatten();
    for (number, mover) in movers.iter().enumerate() {
        let moved = moves().find(|one| one.guest == number);
        let own = held.domains.iter().find(|held| held.domain == mover.name).unwrap();
        let of_own = || own.devices.iter().copied().filter(|bdf| gpus.contains(bdf)).collect();
        let set = moved.map(|one| gpus_at(&one.placement, &mover.request, host));
        sets.push(set.unwrap_or_else(of_own));
    }
    sets.iter_mut().for_each(|set| set.sort_by_key(|bdf| gpus.iter().position(|gpu| gpu == bdf)));
    let (stops, is_best) = (found.cost.stops, found.is_best);
    Made { from, class, to: state(&sets, gpus), stops, is_best }
}

/// The best online policy, with room made for guests that it refuses although enough GPUs are free.
pub fn policy(board: &Board, load: f64, made: &[Made]) -> Policy {
    let mut policy = board.greedy(&board.values(load));
    for Made { from, class, to, .. } in made {
        policy[*from][*class] = Some(*to);
    }
    policy
}

/// The results at some loads, as a table.
pub fn table(made: &[Made], loads: &[f64]) -> String {
    let board = Board::new(16);
    let mut text = String::from("guests of 8 GPUs accepted on a DGX-2, by load\n");
    let _ = writeln!(text, "{:<24}{:>8}{:>14}{:>14}", "", "online", "make-room", "stops/guest");
    for &load in loads {
        let with = policy(&board, load, made);
        let (online, room) = (board.optimum(load), board.acceptance(load, &with));
        let shares = board.shares(load, &with);
        let of_eight = || made.iter().filter(|one| one.class == EIGHT);
        let stops: f64 = of_eight().map(|one| shares[one.from] * f64::from(one.stops)).sum();
        let _ = writeln!(
            text,
            "{load:<24}{:>8.3}{:>14.3}{:>14.2}",
            online[EIGHT],
            room[EIGHT],
            stops / room[EIGHT]
        );
    }
    text
}

#[cfg(test)]
#[allow(clippy::print_stdout)]
mod tests {
    use super::super::exact::{MIX, repacked};
    use super::*;

    /// The load of the published figures.
    const LOAD: f64 = 0.9;

    #[test]
    fn moves_make_room_wherever_enough_gpus_are_free() {
        let is_whole = std::env::var("GPUVM_ROOM").is_ok_and(|value| value == "all");
        let number = Board::new(16).states();
        // Plans are slow without optimisation.
        let step = if is_whole { 1 } else { 29 };
        let made = made(0..number, step);
        assert!(made.len() >= 20, "{}", made.len());
        assert!(made.iter().all(|one| one.is_best));
        println!("room made in {} of {} states", made.len(), number.div_ceil(step));
        if !is_whole {
            return;
        }
        println!("{}", table(&made, &[0.5, 0.7, LOAD, 1.2]));
        let board = Board::new(16);
        let accepted = board.acceptance(LOAD, &policy(&board, LOAD, &made));
        let limit = repacked(16, MIX, LOAD);
        for (ours, limit) in accepted.iter().zip(limit) {
            assert!((ours - limit).abs() < 1e-4, "{accepted:?} against {limit:?}");
        }
    }
}
