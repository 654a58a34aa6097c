//! Cores, helpers, cells and memory by example: each rule with its text.

use super::testhost::{HostSpec, NodeSpec, held};
use super::{dgx2, pins, plan_on, refusal, run, says};
use crate::bdf::Bdf;
use crate::cpuset::PcpuId;
use crate::cpuset::{CpuSet, NodeId};
use crate::memsize::MemSize;
use crate::placement::affinity::Homes;
use crate::placement::budget::Counting;
use crate::placement::budget::{Budget, Solution};
use crate::placement::taken::Taken;
use crate::placement::*;
use crate::request::{Allow, CellWish, GpuWish, L3Wish, Policy, Reserve};
use crate::request::{PinPolicy, Request};
use crate::topology::Topology;
use crate::topology::{CoreKind, KeptOff, KeptOffBy, NumaNode, Parts, Speed};

/// A request for this many vCPUs without GPUs.
fn vcpus(number: u32) -> Request {
    Request { vcpus: Some(number), ..Request::for_gpus(0) }
}

/// One node with 16 cores of one thread below four L3 caches.
fn caches() -> HostSpec {
    HostSpec { threads: 1, l3: 4, ..HostSpec::even(1, 16, 64, 0) }
}

#[test]
fn l3_caches_are_left_whole_and_unshared() {
    let host = caches().build();
    let four = plan_on(&host, &[], &vcpus(3)).unwrap();
    assert_eq!((pins(&four), four.emulator_pin.to_string()), (vec![0, 1, 2], "3".into()));
    let two = plan_on(&host, &[held("four", &four)], &vcpus(1)).unwrap();
    assert_eq!((pins(&two), two.emulator_pin.to_string()), (vec![4], "5".into()));
    // Five cores are on two caches: an entirely free one, and part of an unused one.
    let domains = [held("four", &four), held("two", &two)];
    let five = plan_on(&host, &domains, &vcpus(4)).unwrap();
    assert_eq!(pins(&five), [8, 9, 10, 11]);
    assert!(!says(&five, "is shared with", true), "{:?}", five.reasons);
    // The rest is below caches of others, which a reason says.
    let domains = [&domains[..], &[held("five", &five)]].concat();
    let last = plan_on(&host, &domains, &vcpus(4)).unwrap();
    assert!(says(
        &last,
        "the L3 cache of pcpus 4-7,12-15 is shared with domains `five` and `two`",
        true
    ));
}

#[test]
fn more_caches_than_needed_are_said() {
    let host = caches().build();
    let mut domains: Vec<Held> = Vec::new();
    for core in [0, 1, 4, 5, 8, 9, 12, 13] {
        let pin = CpuSet::of(PcpuId(core));
        domains.push(Held { domain: format!("d{core}"), vcpu_pins: vec![pin], ..Held::default() });
    }
    let plan = plan_on(&host, &domains, &vcpus(3)).unwrap();
    assert!(says(&plan, "use 2 L3 caches; 1 would suffice on an empty node", true));
}

#[test]
fn odd_numbers_own_whole_cores_and_the_emulator_another() {
    let host = dgx2();
    // Within the share of a GPU there is a core for the emulator.
    let three = plan_on(&host, &[], &Request { vcpus: Some(3), ..run(1, 0) }).unwrap();
    assert_eq!((pins(&three), three.topology.threads), (vec![0, 48, 1], 1));
    assert_eq!(three.emulator_pin.to_string(), "2,50");
    assert!(says(&three, "`--vcpus 4` costs no core more", false), "{:?}", three.reasons);
    // With exactly the share, the unused thread serves the emulator; without one, or beyond the
    // share, one more core is taken if the node has one.
    let five = plan_on(&host, &[], &Request { vcpus: Some(5), ..run(1, 0) }).unwrap();
    assert_eq!((pins(&five), five.emulator_pin.to_string()), (vec![0, 48, 1, 49, 2], "50".into()));
    let six = plan_on(&host, &[], &Request { vcpus: Some(6), ..run(1, 0) }).unwrap();
    assert_eq!(six.emulator_pin.to_string(), "23,71");
    let odd = plan_on(&host, &[], &Request { vcpus: Some(47), ..run(1, 0) }).unwrap();
    assert_eq!(odd.emulator_pin.to_string(), "71");
    let all = plan_on(&host, &[], &Request { vcpus: Some(48), ..run(1, 0) }).unwrap();
    assert_eq!(all.emulator_pin.to_string(), "0-23,48-71");
    assert!(says(&all, "emulator and I/O threads float over the guest's own cores", true));
}

#[test]
fn cores_of_four_threads_are_taken_whole_and_shown_so() {
    let host = HostSpec { threads: 4, ..HostSpec::even(1, 8, 64, 0) }.build();
    let on = |request: &Request| plan_on(&host, &[], request).unwrap();
    let core = |plan: &Placement| {
        let cores = plan.vcpu_pins.iter().flat_map(|pin| pin.iter()).map(|p| host.core_place(p));
        let cores: std::collections::BTreeSet<_> = cores.collect();
        (cores.len(), plan.topology.cores, plan.topology.threads)
    };
    // No number is requested: a whole core, and no reason about cores with fewer threads.
    let default = on(&Request::for_gpus(0));
    assert_eq!(core(&default), (1, 1, 4));
    assert!(!says(&default, "the guest sees", true), "{:?}", default.reasons);
    let floats = on(&Request { pins: PinPolicy::None, ..Request::for_gpus(0) });
    assert_eq!(floats.vcpu_pins.len(), 4);
    // Part of a core: the guest sees threads of one core as such, and a reason names the cost of
    // the rest.
    for (number, seen, whole) in [(2, (1, 1, 2), 4), (6, (2, 3, 2), 8), (10, (3, 5, 2), 12)] {
        let plan = on(&vcpus(number));
        assert_eq!(core(&plan), seen, "{number}");
        let cheap = format!("`--vcpus {whole}` costs no core more");
        assert!(says(&plan, &cheap, false), "{number}: {:?}", plan.reasons);
    }
    assert_eq!(core(&on(&vcpus(7))), (2, 7, 1));
    assert_eq!(core(&on(&vcpus(8))), (2, 2, 4));
    // The rest of a core stays unused: the next guest gets another one.
    let first = on(&vcpus(2));
    let next = plan_on(&host, &[held("first", &first)], &vcpus(2)).unwrap();
    let cores = |plan: &Placement| {
        let pins = plan.vcpu_pins.iter().flat_map(|pin| pin.iter());
        pins.map(|pcpu| host.core_place(pcpu)).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(cores(&first).is_disjoint(&cores(&next)));
    // A guest whose memory needs two nodes gets some of both, and no core with four threads is
    // blamed.
    let two = HostSpec { threads: 4, ..HostSpec::even(2, 8, 8, 0) }.build();
    let memory = Some(MemSize::from_gib(12));
    let spread = plan_on(&two, &[], &Request { memory_kib: memory, ..vcpus(4) }).unwrap();
    assert_eq!((spread.cells.len(), spread.topology.threads), (2, 1));
    assert!(says(&spread, "its cores have 4: its vCPUs are spread over 2 nodes", true));
}

#[test]
fn guests_without_gpus_are_counted_by_their_needs() {
    let host = HostSpec::even(1, 8, 64, 0).build();
    let counted = |held: &Occupancy| {
        let capacity = capacity(&host, held, &vcpus(2), &[0]);
        (capacity.sizes[0].now, capacity.sizes[0].empty)
    };
    // Each has a core for its vCPUs and one for its emulator.
    assert_eq!(counted(&Occupancy::default()), (4, 4));
    let one = held("one", &plan_on(&host, &[], &vcpus(2)).unwrap());
    let taken = Occupancy { domains: vec![one], ..Occupancy::default() };
    assert_eq!(counted(&taken), (3, 4));
}

#[test]
fn thread_order_puts_first_threads_first() {
    let request = Request { pins: PinPolicy::Thread, vcpus: Some(5), ..run(1, 0) };
    let plan = plan_on(&dgx2(), &[], &request).unwrap();
    assert_eq!((pins(&plan), plan.topology.threads), (vec![0, 1, 2, 48, 49], 1));
    assert_eq!(plan.emulator_pin.to_string(), "50");
}

#[test]
fn cores_reserved_for_the_host_are_no_share_of_a_gpu() {
    let reserve = Reserve { cores: 8, memory_kib: Some(MemSize::from_gib(256)) };
    let plan = plan_on(&dgx2(), &[], &Request { reserve, ..run(1, 0) }).unwrap();
    assert_eq!((pins(&plan), plan.emulator_pin.to_string()), (vec![8, 56], "9,57".into()));
    assert!(says(&plan, "16 cores besides the 8 kept for the host and 8 GPUs: 2 for each", false));
    let reserve = Reserve { cores: 24, memory_kib: None };
    let (what, _, _) = refusal(plan_on(&dgx2(), &[], &Request { reserve, ..run(1, 0) }));
    assert!(what.contains("which has 0 cores besides the 24 kept for the host"), "{what}");
}

#[test]
fn missing_cores_and_memory_come_from_the_nearest_nodes_where_allowed() {
    let mut parts = HostSpec::even(3, 8, 64, 3).parts();
    parts.nodes[0].distances = vec![10, 31, 21];
    let host = Topology::new(parts).unwrap();
    let request = Request { vcpus: Some(22), ..run(1, 0) };
    let (what, _, hint) = refusal(plan_on(&host, &[], &request));
    assert!(what.contains("which has 8 cores"), "{what}");
    assert!(hint.contains("`--allow remote` takes the rest"), "{hint}");
    let allow = Allow { remote: true, ..Allow::default() };
    let plan = plan_on(&host, &[], &Request { allow, ..request }).unwrap();
    assert_eq!(plan.cells.len(), 2);
    assert!(says(&plan, "6 of 22 vCPUs on node 2, distance 21: node 0 of their GPUs", true));
    let memory_kib = Some(MemSize::from_gib(80));
    let request = Request { memory_kib, ..run(1, 0) };
    let (_, _, hint) = refusal(plan_on(&host, &[], &request));
    assert!(hint.contains("`--allow remote`"), "{hint}");
    let plan = plan_on(&host, &[], &Request { allow, ..request }).unwrap();
    assert_eq!(plan.cells[0].host_nodes, "0,2".parse().unwrap());
    assert!(says(&plan, "of the 80 GiB of cell 0 are on node 2, distance 21", true));
}

#[test]
fn cells_are_one_per_node_or_one_in_all() {
    let host = dgx2();
    let one = Request { cells: CellWish::Count(1), ..run(16, 0) };
    let plan = plan_on(&host, &[], &one).unwrap();
    assert_eq!((plan.cells.len(), plan.vcpus(), plan.iothread_pins.len()), (1, 92, 1));
    assert_eq!(plan.cells[0].host_nodes, "0-1".parse().unwrap());
    // Its emulator's cores on both nodes are its own, though one pin names both.
    let small = Request { cells: CellWish::Count(2), ..vcpus(4) };
    let (_, holders, _) = refusal(plan_on(&host, &[held("all", &plan)], &vcpus(2)));
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(plan_on(&host, &[], &small).unwrap().cells.len(), 2);
    let (what, _, hint) =
        refusal(plan_on(&host, &[], &Request { cells: CellWish::Count(3), ..one }));
    assert!(
        what.contains(
            "a pinned guest on 2 host nodes has one cell, or one for each node; requested 3"
        ),
        "{what}"
    );
    assert!(hint.contains("--cells 2"), "{hint}");
}

#[test]
fn isolated_pcpus_are_for_vcpus() {
    let isolated = (4..8).chain(12..16).collect();
    let host = HostSpec { isolated, ..HostSpec::even(1, 8, 64, 0) }.build();
    let plan = plan_on(&host, &[], &vcpus(4)).unwrap();
    assert_eq!((pins(&plan), plan.emulator_pin.to_string()), (vec![4, 12, 5, 13], "0,8".into()));
}

#[test]
fn the_first_io_thread_is_beside_the_first_gpu() {
    let spec = HostSpec { gpus: vec![Some(1), Some(0)], ..HostSpec::even(2, 8, 64, 2) };
    let plan = plan_on(&spec.build(), &[], &Request::for_gpus(2)).unwrap();
    let threads: Vec<String> = plan.iothread_pins.iter().map(CpuSet::to_string).collect();
    assert_eq!(threads, ["15,31", "7,23"]);
}

#[test]
fn the_memory_of_gpus_is_no_guests() {
    // A node of GPU memory is nearer than the other node with CPUs.
    let mut spec = HostSpec::even(2, 8, 64, 2);
    spec.nodes.push(NodeSpec { cores: 0, memory_mib: 96 << 10 });
    let mut parts = spec.parts();
    parts.nodes[0].memory_kib = MemSize::default();
    parts.nodes[0].distances = vec![10, 40, 20];
    let plan = plan_on(&Topology::new(parts).unwrap(), &[], &run(1, 0)).unwrap();
    assert_eq!(plan.cells[0].host_nodes, "1".parse().unwrap());
}

#[test]
fn guests_without_gpus_take_what_costs_gpus_least() {
    // GPUs are at home on node 0 and share node 1.
    let host = HostSpec { gpus: vec![Some(0); 4], ..HostSpec::even(2, 8, 64, 4) }.build();
    assert_eq!(pins(&plan_on(&host, &[], &vcpus(2)).unwrap()), [14, 30]);
    let first = held("first", &plan_on(&host, &[], &vcpus(2)).unwrap());
    let spread = Request { policy: Policy::Spread, ..vcpus(2) };
    let plan = plan_on(&host, std::slice::from_ref(&first), &spread).unwrap();
    assert!(pins(&plan)[0] < 8, "the emptiest node: {:?}", pins(&plan));
    assert_eq!(pins(&plan_on(&host, &[first], &vcpus(2)).unwrap()), [12, 28]);
}

#[test]
fn the_budget_counts_the_cost_of_a_set() {
    let host = HostSpec::even(2, 8, 64, 4).build();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let fit = |request: &Request, domains: &[Held], set: &[Bdf]| {
        let held = Occupancy { domains: domains.to_vec(), ..Occupancy::default() };
        let (homes, taken) = (Homes::new(&host, 0), Taken::new(&host, &held));
        let budget = Budget::new(&host, &homes, &taken, request, Counting::default());
        let mut solution = Solution::default();
        let solved = budget.solve(set, request.allow.remote, &mut solution).is_ok();
        let fit = budget.fit(set);
        assert_eq!(fit.is_some(), solved);
        fit.map(|fit| (fit.remote, fit.nodes, fit.strain))
    };
    let ask = |vcpus| Request { vcpus, gpus: GpuWish::Count(1), ..Request::for_gpus(1) };
    assert_eq!(fit(&ask(None), &[], &gpus[..1]), Some((0, 1, 0)));
    assert_eq!(fit(&ask(None), &[], &[gpus[0], gpus[2]]), Some((0, 2, 0)));
    assert_eq!(
        fit(&ask(Some(12)), &[], &gpus[..1]),
        Some((0, 1, 3)),
        "two cores of GPU 1, and one for the emulator"
    );
    assert_eq!(fit(&ask(Some(18)), &[], &gpus[..1]), None);
    let remote = Request { allow: Allow { remote: true, ..Allow::default() }, ..ask(Some(18)) };
    assert_eq!(
        fit(&remote, &[], &gpus[..1]),
        Some((1, 2, 6)),
        "one core of node 1, and one for its I/O threads"
    );
    assert_eq!(fit(&remote, &[], &gpus), Some((0, 2, 0)));
}

#[test]
fn a_guest_is_never_given_fewer_threads_than_it_asks_for() {
    let spec = HostSpec {
        nodes: vec![NodeSpec { cores: 1, memory_mib: 0 }, NodeSpec { cores: 3, memory_mib: 2048 }],
        threads: 3,
        gpus: vec![None],
        ..HostSpec::even(1, 1, 1, 0)
    };
    let host = spec.build();
    let first = plan(&host, &Occupancy::default(), &Request::for_gpus(1)).unwrap();
    let held = Occupancy { domains: vec![held("a", &first)], ..Occupancy::default() };
    let second = plan(&host, &held, &Request::for_gpus(0));
    assert!(matches!(second, Err(PlanError::Impossible { .. })), "{second:?}");
    let bare = Request { memory_kib: Some(MemSize::from_kib(1 << 20)), ..vcpus(2) };
    let remote = Request { allow: Allow { remote: true, ..Allow::default() }, ..bare };
    match plan(&host, &held, &remote) {
        Ok(placed) => assert_eq!(placed.vcpus(), 2),
        Err(error) => assert!(matches!(error, PlanError::Taken { .. }), "{error}"),
    }
}

#[test]
fn helpers_of_a_full_node_are_on_the_spare_core_of_another() {
    let spec = HostSpec { gpus: vec![Some(0); 4], ..HostSpec::even(2, 16, 64, 0) };
    let host = spec.build();
    let request = Request {
        vcpus: Some(62),
        allow: Allow { remote: true, ..Allow::default() },
        ..Request::for_gpus(4)
    };
    let place = plan(&host, &Occupancy::default(), &request).unwrap();
    let vcpus = place.vcpu_pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
    assert!(!place.emulator_pin.is_empty() && !place.emulator_pin.intersects(&vcpus));
    for pin in &place.iothread_pins {
        assert_eq!(pin, &place.emulator_pin, "{:?}", place.iothread_pins);
    }
}

#[test]
fn memory_of_other_nodes_comes_from_the_nearest_with_cpus_first() {
    // Memory behind CXL is nearer by the firmware's distances than that of the other package.
    let mut parts = HostSpec::even(2, 8, 64, 2).parts();
    let [near, far] = [2, 3].map(|id| {
        let (os_index, pcpus) = (NodeId(id), CpuSet::new());
        NumaNode { os_index, pcpus, ..parts.nodes[0].clone() }
    });
    parts.nodes.extend([near, far]);
    let distances = [[10, 21, 14, 24], [21, 10, 24, 14], [14, 24, 10, 26], [24, 14, 26, 10]];
    for (node, distances) in parts.nodes.iter_mut().zip(distances) {
        node.distances = distances.to_vec();
    }
    let place = |architecture: &str, gib| {
        let mut parts = parts.clone();
        parts.machine.architecture = Some(architecture.into());
        let remote = Request {
            memory_kib: Some(MemSize::from_gib(gib)),
            vcpus: Some(4),
            allow: Allow { remote: true, ..Allow::default() },
            ..Request::for_gpus(1)
        };
        plan(&Topology::new(parts).unwrap(), &Occupancy::default(), &remote).unwrap()
    };
    for architecture in ["x86_64", "aarch64"] {
        let near = place(architecture, 100);
        assert_eq!(near.cells[0].host_nodes.to_string(), "0-1");
        assert!(!near.reasons.iter().any(|one| one.because.to_string().contains("no CPUs")));
        let all = place(architecture, 150);
        assert_eq!(all.cells[0].host_nodes.to_string(), "0-2");
        let said =
            "on node 2, distance 14, which has no CPUs (memory behind CXL or of a GPU): node 0";
        assert!(says(&all, said, true), "{:?}", all.reasons);
    }
}

/// One node with 4 cores of two threads and 8 slower ones of one, and a GPU.
fn hybrid() -> Topology {
    let mut parts = HostSpec::even(1, 12, 64, 1).parts();
    let set = |text: &str| -> CpuSet { text.parse().unwrap() };
    let (fast, slow, gone) = (set("0-3,12-15"), set("4-11"), set("16-23"));
    parts.cores.iter_mut().for_each(|core| core.pcpus = core.pcpus.minus(&gone));
    parts.nodes.iter_mut().for_each(|node| node.pcpus = node.pcpus.minus(&gone));
    parts.l3.iter_mut().for_each(|cache| cache.pcpus = cache.pcpus.minus(&gone));
    let kind = |kind, pcpus| CoreKind { kind, pcpus };
    parts.core_kinds = vec![kind(Speed::Performance, fast), kind(Speed::Efficiency, slow)];
    Topology::new(parts).unwrap()
}

#[test]
fn vcpus_are_on_fast_cores_and_helpers_on_slow_ones() {
    let host = hybrid();
    let all = |gpus| plan_on(&host, &[], &Request { vcpus: Some(8), ..Request::for_gpus(gpus) });
    for plan in [all(0), all(1), plan_on(&host, &[], &Request::for_gpus(1))] {
        let plan = plan.unwrap();
        assert_eq!(pins(&plan), [0, 12, 1, 13, 2, 14, 3, 15]);
        assert_eq!((plan.topology.cores, plan.topology.threads), (4, 2));
        assert_eq!((plan.emulator_pin.to_string(), plan.iothread_pins.len()), ("4".into(), 1));
        assert_eq!(plan.iothread_pins[0].to_string(), "4");
        assert!(says(&plan, "on performance cores; the slower pcpus 4-11 are for", false));
    }
    // The host's are slow ones, too.
    let kept = Request { reserve: Reserve { cores: 3, ..Reserve::default() }, ..vcpus(8) };
    let kept = plan_on(&host, &[], &kept).unwrap();
    assert_eq!((pins(&kept).len(), kept.emulator_pin.to_string()), (8, "7".into()));
}

#[test]
fn kinds_of_cores_are_mixed_only_where_none_alone_has_as_many() {
    let host = hybrid();
    let first = held("first", &plan_on(&host, &[], &vcpus(6)).unwrap());
    let domains = std::slice::from_ref(&first);
    let second = plan_on(&host, domains, &vcpus(2)).unwrap();
    assert_eq!((pins(&second), second.emulator_pin.to_string()), (vec![0, 12], "5".into()));
    let slow = plan_on(&host, domains, &vcpus(4)).unwrap();
    assert_eq!((pins(&slow), slow.topology.threads), (vec![7, 8, 9, 10], 1));
    assert!(says(&slow, "on efficiency cores, which are slower", true), "{:?}", slow.reasons);
    let mixed = plan_on(&host, &[], &vcpus(9)).unwrap();
    assert_eq!(pins(&mixed), [0, 1, 2, 3, 6, 7, 8, 9, 10]);
    assert!(says(&mixed, "4 on performance cores, 5 on efficiency cores", true));
    assert!(plan_on(&host, &[], &vcpus(13)).is_err());
}

#[test]
fn isolated_cores_are_for_vcpus_and_the_others_for_helpers() {
    let mut parts = HostSpec::even(1, 8, 64, 1).parts();
    parts.isolated = "4-7,12-15".parse().unwrap();
    let host = Topology::new(parts).unwrap();
    let share = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&share), [4, 12, 5, 13, 6, 14, 7, 15]);
    assert_eq!(share.emulator_pin.to_string(), "0,8");
    assert!(says(&share, "pcpus 4-7,12-15 are isolated", false));
    let few = plan_on(&host, &[], &vcpus(4)).unwrap();
    assert_eq!((pins(&few), few.emulator_pin.to_string()), (vec![6, 14, 7, 15], "0,8".into()));
    // More than are isolated: threads that disturb are still on the others.
    let many = plan_on(&host, &[], &vcpus(12)).unwrap();
    assert!(says(&many, "are not isolated", true), "{:?}", many.reasons);
    assert!(!many.emulator_pin.intersects(&host.parts().isolated), "{}", many.emulator_pin);
}

/// A node of 8 cores below two L3 caches, with one GPU and a change.
fn eight_cores(change: impl FnOnce(&mut Parts)) -> Topology {
    let mut parts = HostSpec { l3: 4, ..HostSpec::even(1, 8, 64, 1) }.parts();
    change(&mut parts);
    Topology::new(parts).unwrap()
}

#[test]
fn guests_beyond_the_isolated_cores_use_others_and_no_isolated_one_is_idle() {
    let host = eight_cores(|parts| parts.isolated = "4-7,12-15".parse().unwrap());
    let many = plan_on(&host, &[], &vcpus(12)).unwrap();
    let used: CpuSet = many.vcpu_pins.iter().flat_map(|pin| pin.iter()).collect();
    assert!(host.parts().isolated.is_subset(&used), "{used}");
    assert!(!many.emulator_pin.intersects(&host.parts().isolated), "{}", many.emulator_pin);
    // The emulator's core is below the other cache on purpose, and the node has more cores.
    let share = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert!(!says(&share, "L3 caches", true), "{:?}", share.reasons);
    assert!(says(&share, "node 0 has 4 isolated cores and 1 GPU", false), "{:?}", share.reasons);
}

#[test]
fn emulator_threads_are_on_isolated_pcpus_only_where_no_other_core_is_free() {
    // The first threads of half the cores are isolated.
    let half = eight_cores(|parts| parts.isolated = "0-3".parse().unwrap());
    for number in [2, 4, 6] {
        let plan = plan_on(&half, &[], &vcpus(number)).unwrap();
        let all = plan.vcpu_pins.iter().chain([&plan.emulator_pin]);
        let used: CpuSet = all.flat_map(|pin| pin.iter()).collect();
        assert!(!used.intersects(&half.parts().isolated), "{number}: {used}");
    }
    let plan = plan_on(&half, &[], &vcpus(12)).unwrap();
    assert!(!plan.emulator_pin.intersects(&half.parts().isolated), "{}", plan.emulator_pin);
    assert!(!says(&plan, "which are isolated", true), "{:?}", plan.reasons);
    // All are.
    let whole = eight_cores(|parts| parts.isolated = "0-15".parse().unwrap());
    let plan = plan_on(&whole, &[], &vcpus(4)).unwrap();
    let text = "which are isolated: no other core of node 0 is free";
    assert!(says(&plan, text, true), "{:?}", plan.reasons);
}

#[test]
fn pcpus_that_other_settings_set_aside_are_for_vcpus_too() {
    let pcpus: CpuSet = "4-7,12-15".parse().unwrap();
    let kept_off = |by| Some(KeptOff { pcpus: "4-7,12-15".parse().unwrap(), by });
    let host = eight_cores(|parts| parts.kept_off = kept_off(KeptOffBy::NohzFull));
    let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&plan), [4, 12, 5, 13, 6, 14, 7, 15]);
    assert_eq!(plan.emulator_pin.to_string(), "0,8");
    assert!(says(&plan, "pcpus 4-7,12-15 are set aside for guests by nohz_full=", false));
    assert!(says(&plan, "node 0 has 4 cores set aside for guests", false), "{:?}", plan.reasons);
    let many = plan_on(&host, &[], &vcpus(12)).unwrap();
    assert!(says(&many, "are not set aside for guests by nohz_full=", true), "{:?}", many.reasons);
    // isolcpus= counts before it.
    let host = eight_cores(|parts| {
        parts.isolated = "0-3,8-11".parse().unwrap();
        parts.kept_off = kept_off(KeptOffBy::CpuAffinity);
    });
    let plan = plan_on(&host, &[], &vcpus(4)).unwrap();
    assert!(pins(&plan).iter().all(|pcpu| pcpu % 8 < 4), "{:?}", pins(&plan));
    // Guests cannot leave machine.slice, their emulators neither.
    let host = eight_cores(|parts| {
        parts.kept_off = kept_off(KeptOffBy::SystemSlice);
        parts.machine_slice = Some(pcpus.clone());
    });
    let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    let all = plan.vcpu_pins.iter().chain([&plan.emulator_pin]).chain(&plan.iothread_pins);
    let used: CpuSet = all.flat_map(|pin| pin.iter()).collect();
    assert!(used.is_subset(&pcpus), "{used}");
    let text = "machine.slice confines guests, their emulators included, to pcpus 4-7,12-15";
    assert!(says(&plan, text, true), "{:?}", plan.reasons);
}

#[test]
fn no_more_vcpus_are_offered_than_the_cores_have_threads_for() {
    // Of the last four cores the second threads are offline.
    let host = HostSpec { offline: (12..16).collect(), ..HostSpec::even(1, 8, 64, 0) }.build();
    for number in 1..8 {
        let plan = plan_on(&host, &[], &vcpus(number)).unwrap();
        let said = plan.reasons.iter().map(|reason| reason.because.to_string());
        for text in said.filter(|text| text.contains("costs no core more")) {
            let (_, rest) = text.split_once("--vcpus ").unwrap();
            let more = rest.split('`').next().unwrap().parse().unwrap();
            assert!(plan_on(&host, &[], &vcpus(more)).is_ok(), "{number}: {text}");
        }
    }
}

#[test]
fn a_gpu_on_a_node_of_efficiency_cores_has_these() {
    let mut parts = HostSpec { gpus: vec![Some(1)], ..HostSpec::even(2, 8, 64, 1) }.parts();
    let kind = |kind, pcpus: &str| CoreKind { kind, pcpus: pcpus.parse().unwrap() };
    parts.core_kinds =
        vec![kind(Speed::Performance, "0-7,16-23"), kind(Speed::Efficiency, "8-15,24-31")];
    let host = Topology::new(parts).unwrap();
    let plan = plan_on(&host, &[], &Request { vcpus: Some(4), ..Request::for_gpus(1) }).unwrap();
    let on = |pin: &CpuSet| host.core_of(pin.first().unwrap()).unwrap().node;
    assert!(plan.vcpu_pins.iter().chain([&plan.emulator_pin]).all(|pin| on(pin) == NodeId(1)));
    assert!(!says(&plan, "has no cores", true), "{:?}", plan.reasons);
    let text = "on efficiency cores, which are slower: node 1 has no performance cores";
    assert!(says(&plan, text, true), "{:?}", plan.reasons);
    // A guest without GPUs has the faster ones.
    let plan = plan_on(&host, &[], &vcpus(4)).unwrap();
    assert!(plan.vcpu_pins.iter().all(|pin| on(pin) == NodeId(0)));
}

#[test]
fn a_gpu_of_an_unknown_node_has_one_home_whichever_cores_are_taken() {
    let spec = HostSpec { gpus: vec![None], ..HostSpec::even(2, 8, 64, 0) };
    let isolated = (4..8).chain(20..24).collect();
    for host in [spec.build(), HostSpec { isolated, ..spec }.build()] {
        let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
        let on = host.core_of(plan.vcpu_pins[0].first().unwrap()).unwrap().node;
        assert_eq!(on, NodeId(0), "{:?}", plan.reasons);
    }
}

#[test]
fn cores_below_the_largest_l3_are_taken_on_request_and_named_in_any_case() {
    let mut parts = HostSpec { l3: 8, ..HostSpec::even(1, 16, 64, 1) }.parts();
    let size = |gib: u64| Some(MemSize::from_kib(gib << 10));
    (parts.l3[0].size_kib, parts.l3[1].size_kib) = (size(96), size(32));
    let host = Topology::new(parts.clone()).unwrap();
    let any = plan_on(&host, &[], &vcpus(8)).unwrap();
    let said = "below L3 caches of 32 MiB, and others of 96 MiB: --l3 large";
    assert!(says(&any, said, false), "{:?}", any.reasons);
    let large = |number| Request { l3: L3Wish::Large, ..vcpus(number) };
    let found = plan_on(&host, &[], &large(16)).unwrap();
    let core = |pcpu: u32| host.core_of(PcpuId(pcpu)).unwrap().pcpus.first().unwrap().0;
    assert!(pins(&found).into_iter().all(|pcpu| core(pcpu) < 8), "{:?}", pins(&found));
    assert!(found.emulator_pin.iter().all(|pcpu| core(pcpu.0) >= 8), "{}", found.emulator_pin);
    assert!(says(&found, "below L3 caches of 96 MiB", false), "{:?}", found.reasons);
    let (what, _, _) = refusal(plan_on(&host, &[], &large(18)));
    let said = "requested 18 vCPUs; this host has 16 hyperthreads below the largest L3 caches";
    assert!(what.starts_with(said), "{what}");
    // Holders of some of these cores are named, with the cores that they hold.
    let domains = [held("a", &plan_on(&host, &[], &large(12)).unwrap())];
    for request in [large(8), Request { l3: L3Wish::Large, ..Request::for_gpus(1) }] {
        let (what, holders, _) = refusal(plan_on(&host, &domains, &request));
        assert!(what.contains("2 of its 8 below the largest L3 caches are free"), "{what}");
        assert_eq!(holders, ["6 cores of node 0 are held by domain `a`"]);
    }
    let refused = |request: &Request, parts: Parts| {
        refusal(plan_on(&Topology::new(parts).unwrap(), &[], request)).0
    };
    let floats = Request { pins: PinPolicy::None, ..large(4) };
    assert!(refused(&floats, parts.clone()).contains("not pinned"));
    parts.l3[0].size_kib = size(32);
    assert!(refused(&large(4), parts).contains("all L3 caches of this host have 32 MiB"));
}

/// AMD's "L3 as NUMA domain": a guest over several nodes of a package loses one core, not one of
/// each.
#[test]
fn nodes_that_are_l3_caches_have_one_core_for_helpers_together() {
    let slices = |l3| HostSpec { l3, ..HostSpec::even(4, 4, 64, 4) }.build();
    let four = Request::for_gpus(4);
    // Two packages of two nodes: seven cores of each.
    let sliced = plan_on(&slices(4), &[], &four).unwrap();
    assert_eq!(sliced.vcpu_pins.len(), 2 * 14);
    assert_eq!(sliced.emulator_pin.len(), 2 * 2, "one core of each package");
    // Each I/O thread is on the core of its package.
    let helpers: Vec<String> = sliced.iothread_pins.iter().map(ToString::to_string).collect();
    assert_eq!(helpers[0], helpers[1]);
    assert_eq!(helpers[2], helpers[3]);
    assert_ne!(helpers[0], helpers[2]);
    let plain = plan_on(&slices(2), &[], &four).unwrap();
    assert_eq!((plain.vcpu_pins.len(), plain.emulator_pin.len()), (4 * 6, 4 * 2));
    // As many vCPUs as requested, where only these fit.
    let all = Request { vcpus: Some(28), ..Request::for_gpus(0) };
    assert_eq!(plan_on(&slices(4), &[], &all).unwrap().vcpu_pins.len(), 28);
}

#[test]
fn a_core_with_a_thread_that_is_off_is_not_said_to_be_missing() {
    let text = include_str!("../../../../topologies/dual-socket.json");
    let host = crate::topology::file::from_json(text).unwrap();
    let allow = Allow { remote: true, ..Allow::default() };
    let request = Request { vcpus: Some(63), allow, ..Request::for_gpus(2) };
    let (what, _, _) = refusal(plan_on(&host, &[], &request));
    assert!(what.starts_with("1 more core with 2 hyperthreads is needed for vCPUs;"), "{what}");
}
