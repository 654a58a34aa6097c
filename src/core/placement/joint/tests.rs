//! Places together: never worse than one after the other, and the least cost of all.

use super::*;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::placement::tests::dgx2;
use crate::placement::tests::testhost::{HostSpec, NodeSpec, device};
use crate::request::PinPolicy;

fn named(requests: &[Request]) -> Vec<JointGuest<'_>> {
    requests.iter().map(|request| JointGuest { name: "a", request, sets: &[] }).collect()
}

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

/// A small random host with GPUs and NICs.
fn host(random: &mut Random) -> Topology {
    let nodes = 1 + random.below(4) as usize;
    let node = |random: &mut Random| NodeSpec {
        cores: 9 + random.below(8) as u32,
        memory_mib: (16 + random.below(24)) << 10,
    };
    let specs: Vec<NodeSpec> = (0..nodes).map(|_| node(random)).collect();
    let gpus = 2 + random.below(4) as usize;
    let gpus: Vec<Option<usize>> =
        (0..gpus).map(|_| Some(random.below(nodes as u64) as usize)).collect();
    let partitions = gpus.len().is_power_of_two() && random.below(2) == 0;
    let spec = HostSpec { nodes: specs, gpus, partitions, ..HostSpec::even(1, 4, 8, 0) };
    let mut parts = spec.parts();
    for nic in 0..random.below(3) as u8 {
        let on = NodeId(random.below(nodes as u64) as u32);
        parts.devices.push(device(0x40 + nic, 0x02_0000, 0x1017, Some(on)));
    }
    Topology::new(parts).unwrap()
}

fn guest(random: &mut Random) -> Request {
    let mut request = Request::for_gpus([0, 1, 1, 2, 2, 3][random.below(6) as usize]);
    request.vcpus = Some(2 + 2 * random.below(5) as u32);
    request.memory_kib = Some(MemSize::from_gib(1 + random.below(6)));
    if request.gpus.number() > 0 && random.below(4) == 0 {
        request.extras.nics = crate::request::DeviceWish::Count(1);
    }
    request
}

/// The least cost of all sets of GPUs, each tried, in the order of the search.
fn least(
    topology: &Topology,
    held: &Occupancy,
    order: &[usize],
    wanted: &[JointGuest<'_>],
) -> Option<Cost> {
    let Some((&first, rest)) = order.split_first() else { return Some(Cost::default()) };
    let request = wanted[first].request;
    let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let number = request.gpus.number() as usize;
    let sets: Vec<Vec<Bdf>> = (0u32..1 << all.len())
        .filter(|set| set.count_ones() as usize == number)
        .map(|set| (0..all.len()).filter(|at| set >> at & 1 == 1).map(|at| all[at]).collect())
        .collect();
    let cost = |gpus: Vec<Bdf>| {
        let gpus = if gpus.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(gpus) };
        let exact = Request { gpus, ..request.clone() };
        let placement = plan(topology, held, &exact).ok()?;
        let own = cost_of(topology, held, &exact, &placement);
        let mut with = held.clone();
        with.domains.push(placement.held("a"));
        Some(own + least(topology, &with, rest, wanted)?)
    };
    sets.into_iter().filter_map(cost).min()
}

#[test]
fn it_finds_the_least_cost_of_all_sets_on_small_hosts() {
    let (mut random, held) = (Random(7), Occupancy::default());
    let (mut placed, mut better) = (0, 0);
    for case in 0..80 {
        let topology = host(&mut random);
        let requests: Vec<Request> = (0..3).map(|_| guest(&mut random)).collect();
        let wanted = named(&requests);
        let Ok(search) = JointSearch::new(&topology, &held, &wanted, PLANS) else { continue };
        let brute = least(&topology, &held, &search.order, &wanted);
        let one_by_one = in_order(&topology, &held, &wanted);
        let brute = [brute, one_by_one.as_ref().ok().map(|found| found.cost)];
        let brute = brute.into_iter().flatten().min();
        match (joint(&topology, &held, &wanted), brute) {
            (Ok(found), Some(brute)) => {
                assert!(found.is_best, "case {case}");
                assert_eq!(found.cost, brute, "case {case}: {requests:?}");
                placed += 1;
                better += u32::from(one_by_one.is_ok_and(|one| found.cost < one.cost));
            }
            (Err(_), None) => {}
            // Guests without GPUs are tried in more orders than that one.
            (Ok(_), None) => placed += 1,
            (Err(error), Some(_)) => panic!("case {case}: {error:?} of {requests:?}"),
        }
    }
    assert!(placed > 20 && better > 0, "{placed} placed, {better} better");
}

/// Places the guests in their order as `create` would, each with the others as domains.
fn again(topology: &Topology, found: &Joint, wanted: &[JointGuest<'_>]) {
    let mut held = Occupancy::default();
    for &guest in &found.order {
        let placement = &found.placements[guest];
        let is_gpu = |bdf: &Bdf| topology.device(*bdf).unwrap().kind() == DeviceKind::Gpu;
        let gpus: Vec<Bdf> = placement.devices.iter().copied().filter(is_gpu).collect();
        let gpus = if gpus.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(gpus) };
        let exact = Request { gpus, ..wanted[guest].request.clone() };
        let made = plan(topology, &held, &exact).unwrap();
        assert_eq!((&made.devices, &made.vcpu_pins), (&placement.devices, &placement.vcpu_pins));
        held.domains.push(made.held(&guest.to_string()));
    }
    crate::placement::tests::check_together(topology, &held.domains);
}

#[test]
fn a_guest_leaves_resources_that_later_ones_need() {
    // A GPU beside the only NIC, and a pair on the other node, which one after the other keeps
    // whole for later guests.
    let gpus = vec![Some(0), Some(1), Some(1)];
    let mut parts = HostSpec { gpus, ..HostSpec::even(2, 8, 64, 3) }.parts();
    parts.devices.push(device(0x40, 0x02_0000, 0x1017, Some(NodeId(0))));
    let topology = Topology::new(parts).unwrap();
    let plain =
        Request { vcpus: Some(4), memory_kib: Some(MemSize::from_gib(8)), ..Request::for_gpus(1) };
    let mut with_nic = plain.clone();
    with_nic.extras.nics = crate::request::DeviceWish::Count(1);
    with_nic.extras.nic_near = crate::request::Near::Node;
    let requests = [plain, with_nic];
    let wanted = named(&requests);
    let refused = in_order(&topology, &Occupancy::default(), &wanted).unwrap_err();
    assert_eq!(refused.guest, 1);
    let found = joint(&topology, &Occupancy::default(), &wanted).unwrap();
    assert!(found.is_best);
    again(&topology, &found, &wanted);
}

#[test]
fn memory_without_gpus_is_packed() {
    // 64 GiB on each of two nodes: one after the other the small guests split the room of the large
    // one.
    let topology = HostSpec::even(2, 16, 64, 0).build();
    let sized = |gib| Request {
        vcpus: Some(2),
        memory_kib: Some(MemSize::from_gib(gib)),
        ..Request::for_gpus(0)
    };
    let requests = [sized(20), sized(36), sized(20), sized(36)];
    let wanted = named(&requests);
    let found = joint(&topology, &Occupancy::default(), &wanted).unwrap();
    again(&topology, &found, &wanted);
}

#[test]
fn contradictions_are_refused_with_the_guest() {
    let topology = dgx2();
    let requests = [Request::for_gpus(8), Request::for_gpus(8), Request::for_gpus(1)];
    let wanted = named(&requests);
    let refused = joint(&topology, &Occupancy::default(), &wanted).unwrap_err();
    assert_eq!((refused.guest, refused.placed, refused.is_certain), (2, vec![0, 1], true));
    let alone = [Request::for_gpus(3)];
    let refused = joint(&topology, &Occupancy::default(), &named(&alone)).unwrap_err();
    assert!(refused.placed.is_empty());
    assert!(joint(&topology, &Occupancy::default(), &[]).unwrap().placements.is_empty());
}

#[test]
fn fifty_guests_take_one_plan_each() {
    let topology = dgx2();
    let small = Request {
        vcpus: Some(2),
        memory_kib: Some(MemSize::from_gib(4)),
        pins: PinPolicy::None,
        ..Request::for_gpus(0)
    };
    let mut requests = vec![small; 38];
    for gpus in [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1] {
        let vcpus = Some(2 * gpus);
        requests.push(Request {
            vcpus,
            memory_kib: Some(MemSize::from_gib(16)),
            ..Request::for_gpus(gpus)
        });
    }
    let wanted = named(&requests);
    let mut search = JointSearch::new(&topology, &Occupancy::default(), &wanted, PLANS).unwrap();
    search.go(0, Occupancy::default(), Cost::default());
    assert!(search.found.is_some(), "{:?}", search.refused);
    assert_eq!((PLANS - search.plans, search.is_done()), (50, true));
    let found = joint(&topology, &Occupancy::default(), &wanted).unwrap();
    again(&topology, &found, &wanted);
}
