//! Moves that make room: the least of all, verified move by move, and in an order that works.

use super::*;
use crate::placement::joint::joint;
use crate::placement::tests::dgx2;
use crate::placement::tests::testhost::HostSpec;
use crate::share;

/// Small random numbers, the same in every run.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A guest of this many GPUs, small beside them.
fn small(gpus: u32) -> Request {
    let memory_kib = Some(MemSize::from_gib(2));
    Request { vcpus: Some(2), memory_kib, ..Request::for_gpus(gpus) }
}

/// Puts a guest there, on exactly these GPUs by index; none for anywhere.
fn put(topology: &Topology, held: &mut Occupancy, name: &str, on: &[usize], runs: bool) {
    let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let gpus = on.iter().map(|&at| all[at]).collect();
    let request = exactly(&small(count(on.len())), gpus);
    let placement = plan(topology, held, &request).unwrap();
    held.domains.push(Held { active: runs, ..placement.held(name) });
}

fn all(topology: &Topology, held: &Occupancy) -> Vec<Mover> {
    Mover::all(topology, held, |_| true)
}

/// Makes the moves, each beside the occupancy at its time, and places the request in the end.
fn verify(topology: &Topology, held: &Occupancy, request: &Request, movers: &[Mover], room: &Room) {
    let mut now = held.clone();
    for leg in &room.legs {
        let is_one = |held: &Held| leg.iter().any(|one| movers[one.guest].name == held.domain);
        now.domains.retain(|held| !is_one(held));
        for Move { guest, placement } in leg {
            let Mover { name, request, runs, .. } = &movers[*guest];
            let exact = exactly(request, gpus_at(placement, request, topology));
            let exact = if request.gpus.number() == 0 { request.clone() } else { exact };
            let mut others = now.clone();
            others.domains.push(reserved(&room.placement));
            assert!(plan(topology, &others, &exact).is_ok(), "{name} has no place at its time");
            now.domains.push(Held { active: *runs, ..placement.held(name) });
        }
    }
    let placed = plan(topology, &now, request).unwrap();
    assert_eq!(placed.devices, room.placement.devices);
}

#[test]
fn one_guest_moves_where_one_is_enough() {
    let (topology, mut held) = (dgx2(), Occupancy::default());
    for (name, gpu) in [("train-a", 2), ("train-b", 8), ("train-c", 10), ("train-d", 12)] {
        put(&topology, &mut held, name, &[gpu], true);
    }
    let request = Request { vcpus: Some(16), ..small(8) };
    let movers = all(&topology, &held);
    let found = room(&topology, &held, &request, &movers, Limits::default()).unwrap();
    verify(&topology, &held, &request, &movers, &found);
    let [leg] = &found.legs[..] else { panic!("{:?}", found.legs) };
    let [Move { guest, placement }] = &leg[..] else { panic!("{leg:?}") };
    assert_eq!(movers[*guest].name, "train-a");
    assert!(found.is_best && found.cost.stops == 1, "{:?}", found.cost);
    // It goes beside another one, so that nothing larger is broken.
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let at = gpus.iter().position(|gpu| placement.devices[0] == *gpu).unwrap();
    assert!([9, 11, 13].contains(&at), "{at}");
    // It is not asked, or no guest may be stopped.
    let others = Mover::all(&topology, &held, |held| held.domain == "train-b");
    let found = room(&topology, &held, &request, &others, Limits::default()).unwrap_err();
    assert_eq!(found, NoRoom { is_certain: true, is_limited: false });
    let limits = Limits { stops: Some(0), moves: None };
    let found = room(&topology, &held, &request, &movers, limits).unwrap_err();
    assert!(found.is_limited);
}

#[test]
fn a_large_guest_goes_once_small_ones_have_made_its_place() {
    let (topology, mut held) = (dgx2(), Occupancy::default());
    put(&topology, &mut held, "large", &[0, 1, 2, 3], true);
    put(&topology, &mut held, "one", &[8], true);
    put(&topology, &mut held, "two", &[12], true);
    let request = Request { vcpus: Some(16), ..small(8) };
    let movers = all(&topology, &held);
    let found = room(&topology, &held, &request, &movers, Limits::default()).unwrap();
    verify(&topology, &held, &request, &movers, &found);
    // The two small ones cost a stop less in memory than the large one and one of them.
    assert!(found.legs.iter().all(|leg| leg.len() == 1), "{:?}", found.legs);
    assert_eq!(found.cost.stops, 2);
}

#[test]
fn guests_that_are_off_go_first() {
    let (topology, mut held) = (dgx2(), Occupancy::default());
    put(&topology, &mut held, "runs", &[0], true);
    put(&topology, &mut held, "off", &[8], false);
    let request = Request { vcpus: Some(16), ..small(8) };
    let movers = all(&topology, &held);
    let found = room(&topology, &held, &request, &movers, Limits::default()).unwrap();
    verify(&topology, &held, &request, &movers, &found);
    assert_eq!((found.cost.stops, found.cost.memory_gib), (0, 0));
    assert_eq!(movers[found.legs[0][0].guest].name, "off");
}

/// Whether these have places, tried in every order and on every set of GPUs.
fn have_places(topology: &Topology, held: &Occupancy, left: &[Request]) -> bool {
    if left.is_empty() {
        return true;
    }
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    (0..left.len()).any(|at| {
        let mut others = left.to_vec();
        let request = others.remove(at);
        let number = request.gpus.number();
        let sets = (0_u32..1 << gpus.len()).filter(|bits| bits.count_ones() == number);
        let set = |bits: u32| -> Vec<Bdf> {
            let is_in = |at: &usize| bits >> at & 1 == 1;
            (0..gpus.len()).filter(is_in).map(|at| gpus[at]).collect()
        };
        let exact = |bits: u32| match number {
            0 => request.clone(),
            _ => exactly(&request, set(bits)),
        };
        { sets }.any(|bits| {
            let Ok(placement) = plan(topology, held, &exact(bits)) else { return false };
            let mut with = held.clone();
            with.domains.push(placement.held("a"));
            have_places(topology, &with, &others)
        })
    })
}

/// The least cost of all sets of guests without which there is room for them and the request.
fn least(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    movers: &[Mover],
) -> Option<u64> {
    let cost = |bits: u32| -> u64 {
        let moved = (0..movers.len()).filter(|at| bits >> at & 1 == 1);
        moved.map(|at| movers[at].cost().sum()).sum()
    };
    let fits = |bits: &u32| {
        let is_moved =
            |name: &str| (0..movers.len()).any(|at| bits >> at & 1 == 1 && movers[at].name == name);
        let mut rest = held.clone();
        rest.domains.retain(|held| !is_moved(&held.domain));
        let moved = (0..movers.len()).filter(|at| bits >> at & 1 == 1);
        let all: Vec<Request> = [request.clone()]
            .into_iter()
            .chain(moved.map(|at| movers[at].request.clone()))
            .collect();
        have_places(topology, &rest, &all)
    };
    (1..1_u32 << movers.len()).filter(fits).map(cost).min()
}

#[test]
fn the_cost_is_that_of_an_exhaustive_search() {
    let mut random = Random(20_261_127);
    let (mut made, mut refused) = (0, 0);
    let cases = share::cases(100);
    for case in 0..cases {
        let number = [2, 4, 4, 4][random.below(4) as usize];
        let partitions = random.below(2) == 0;
        let nodes = 1 + random.below(2) as usize;
        let cores = 6 + random.below(8) as u32;
        let spec = HostSpec { partitions, ..HostSpec::even(nodes, cores, 16, number) };
        let (topology, mut held) = (spec.build(), Occupancy::default());
        let all_gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        for guest in 0..2 + random.below(2) {
            let at = random.below(number as u64) as usize;
            let gpus = if random.below(4) == 0 { vec![] } else { vec![all_gpus[at]] };
            let vcpus = Some(2 + 2 * random.below(2) as u32);
            let base = Request { vcpus, ..small(count(gpus.len())) };
            let request = if gpus.is_empty() { base } else { exactly(&base, gpus) };
            let Ok(placement) = plan(&topology, &held, &request) else { continue };
            let active = random.below(3) > 0;
            held.domains.push(Held { active, ..placement.held(&format!("g{guest}")) });
        }
        let gpus = 1 + random.below(2) as u32;
        let vcpus = Some(2 + 2 * random.below(3) as u32);
        let request = Request { vcpus, ..small(gpus) };
        if plan(&topology, &held, &request).is_ok() {
            continue;
        }
        let movers = all(&topology, &held);
        let found = room(&topology, &held, &request, &movers, Limits::default());
        let least = least(&topology, &held, &request, &movers);
        match (&found, least) {
            (Ok(room), Some(least)) => {
                assert!(room.is_best, "case {case}");
                assert_eq!(room.cost.sum(), least, "case {case}: {:?}", room.legs);
                verify(&topology, &held, &request, &movers, room);
                made += 1;
            }
            (Err(no), None) => {
                assert!(no.is_certain, "case {case}");
                refused += 1;
            }
            (found, least) => panic!("case {case}: {found:?} against {least:?}"),
        }
    }
    assert!(made >= cases / 20 && refused >= cases / 20, "{made} made, {refused} refused");
}

#[test]
fn sets_come_by_their_cost_and_each_once() {
    let costs = [5, 1, 3, 1];
    let mut seen: Vec<(u64, Vec<usize>)> = Vec::new();
    for mut set in Cheapest::new(&costs) {
        set.sort_unstable();
        let cost = set.iter().map(|&at| costs[at]).sum();
        assert!(seen.last().is_none_or(|(last, _)| *last <= cost), "{seen:?}");
        assert!(seen.iter().all(|(_, other)| *other != set), "{set:?} twice");
        seen.push((cost, set));
    }
    assert_eq!(seen.len(), 15);
    assert!(Cheapest::new(&[]).next().is_none());
}

#[test]
fn two_that_need_each_others_places_are_off_before_the_first_one_moves() {
    // Node 0 has the larger memory; each guest fits only where the other one is.
    let (topology, mut held) = (HostSpec::even(2, 8, 16, 2).build(), Occupancy::default());
    put(&topology, &mut held, "a", &[0], true);
    put(&topology, &mut held, "b", &[1], true);
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut movers = all(&topology, &held);
    for (mover, gpu) in movers.iter_mut().zip([gpus[1], gpus[0]]) {
        mover.request = exactly(&mover.request, vec![gpu]);
    }
    let request = small(0);
    let cost = |mover: &Mover| mover.cost().sum();
    let terms = Terms { limits: Limits::default(), cost, may_give_up: false, plans: PLANS };
    let search = MoveSearch::new(&topology, &held, &request, &movers, terms);
    let wanted: Vec<JointGuest<'_>> = [(NEW, &request)]
        .into_iter()
        .chain(movers.iter().map(|mover| (mover.name.as_str(), &mover.request)))
        .map(|(name, request)| JointGuest { name, request, sets: &[] })
        .collect();
    let found = joint(&topology, &search.without(&[0, 1]), &wanted).unwrap();
    let (legs, after) = search.in_turns(&[0, 1], &found.placements, held.clone()).unwrap();
    let [leg] = &legs[..] else { panic!("{legs:?}") };
    assert_eq!(leg.len(), 2);
    assert_eq!(after.domains.iter().map(|held| held.devices.len()).sum::<usize>(), 2);
}
