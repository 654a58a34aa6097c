//! The planner by property: whatever the host and the stream of requests, guests never share and plans never
//! contradict themselves.

use super::testhost::{HostSpec, NodeSpec, held};
use super::*;
use crate::cpuset::PcpuId;
use crate::request::{CellWish, GpuWish};
use crate::topology::DeviceKind;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Is one event of a stream.
#[derive(Debug, Clone)]
enum Event {
    /// A guest is asked for.
    Ask(Request),
    /// The guest at this place, counted round, goes.
    Depart(usize),
}

/// Hosts: 1 to 8 nodes, SMT 1, 2 or 4, gaps, offline pcpus, nodes without memory or cores, 0 to 16 GPUs.
fn host() -> impl Strategy<Value = Topology> {
    let cores = prop_oneof![1 => Just(0u32), 10 => 1..33u32];
    let memory = prop_oneof![1 => Just(0u64), 10 => 2048..262_144u64];
    let nodes = proptest::collection::vec((cores, memory), 1..=8);
    let threads = prop_oneof![Just(1u32), Just(2), Just(4)];
    let number = prop_oneof![0..=16usize, Just(8), Just(16)];
    let place = prop_oneof![1 => Just(None), 12 => (0..8usize).prop_map(Some)];
    let gpus = number.prop_flat_map(move |n| proptest::collection::vec(place.clone(), n));
    let board = (gpus, any::<bool>(), 0..13u32, proptest::option::of(0..4096u64));
    let offline = proptest::collection::vec(0..200u32, 0..6);
    ((nodes, threads, 1..3u32), offline, board)
        .prop_map(|((nodes, threads, step), offline, (gpus, partitions, switches, pages))| {
            let count = nodes.len();
            let node = |(cores, memory_mib)| NodeSpec { cores, memory_mib };
            HostSpec {
                nodes: nodes.into_iter().map(node).collect(),
                threads,
                step,
                offline,
                gpus: gpus.into_iter().map(|node| node.map(|n| n % count)).collect(),
                partitions,
                switches,
                pages,
            }
        })
        .prop_filter_map("a host has an online pcpu", |spec| Topology::new(spec.parts()).ok())
}

/// Which GPUs, sensible and not.
fn gpu_wish() -> impl Strategy<Value = GpuWish> {
    let run = |first, count| GpuWish::Run { first, count };
    let bdf = |bus| Bdf::new(0, bus, 0, 0).unwrap();
    prop_oneof![
        12 => prop_oneof![Just(0u32), Just(1), Just(2), Just(4)].prop_map(GpuWish::Count),
        3 => (0..18u32).prop_map(GpuWish::Count),
        3 => (0..12u32, 1..3u32).prop_map(move |(first, count)| run(first, count)),
        1 => any::<(u32, u32)>().prop_map(move |(first, count)| run(first, count)),
        1 => proptest::collection::btree_set(0x10..0x22u8, 0..5)
            .prop_map(move |buses| GpuWish::Exact(buses.into_iter().map(bdf).collect())),
    ]
}

/// Requests, sensible and not.
fn request() -> impl Strategy<Value = Request> {
    let vcpus = prop_oneof![
        8 => Just(None),
        4 => (1..12u32).prop_map(Some),
        1 => (0..200u32).prop_map(Some),
        1 => any::<u32>().prop_map(Some),
    ];
    let memory = prop_oneof![
        8 => Just(None),
        4 => (1..4_000_000u64).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ];
    let pages = prop_oneof![
        6 => Just(None),
        2 => Just(Some(PageSize::TwoMib)),
        1 => Just(Some(PageSize::OneGib)),
    ];
    let profile = prop_oneof![2 => Just(Profile::Share), 1 => Just(Profile::NvidiaVm)];
    let floating = |(cells, threads)| (PinPolicy::None, CellWish::Count(cells), threads);
    let shape = prop_oneof![
        12 => Just((PinPolicy::Core, CellWish::Auto, None)),
        2 => (1..5u32, proptest::option::of(0..5u32)).prop_map(floating),
        1 => any::<(u32, Option<u32>)>().prop_map(floating),
    ];
    (gpu_wish(), vcpus, memory, pages, profile, shape).prop_map(
        |(gpus, vcpus, memory, huge_pages, profile, (pins, cells, threads))| {
            let memory_kib = memory.map(MemSize::from_kib);
            Request {
                gpus,
                vcpus,
                memory_kib,
                huge_pages,
                profile,
                pins,
                cells,
                threads,
                ..Request::for_gpus(0)
            }
        },
    )
}

/// Streams of requests with departures.
fn stream() -> impl Strategy<Value = Vec<Event>> {
    let event =
        prop_oneof![4 => request().prop_map(Event::Ask), 1 => (0..32usize).prop_map(Event::Depart)];
    proptest::collection::vec(event, 1..14)
}

/// Checks a plan against itself and its host.
fn check_plan(topology: &Topology, request: &Request, plan: &Placement) {
    let vcpus = plan.vcpus() as usize;
    assert_eq!(plan.vcpu_pins.len(), vcpus, "topology and pins");
    let mut next = 0;
    for cell in &plan.cells {
        assert_eq!(cell.vcpus.start, next, "cells are consecutive");
        next = cell.vcpus.end;
        let unit = plan.huge_pages.unwrap_or(PageSize::TwoMib).size();
        assert!(!cell.memory_kib.is_zero() && cell.memory_kib.round_down(unit) == cell.memory_kib);
        assert!(cell.distances.is_empty() || cell.distances.len() == plan.cells.len());
    }
    assert_eq!(next as usize, vcpus, "cells and topology");
    if let Some(asked) = request.vcpus {
        assert_eq!(asked as usize, vcpus, "as asked for");
    }
    if let Some(asked) = request.memory_kib {
        assert!(plan.memory() <= asked);
    }
    let grouped: Vec<Bdf> = plan.guest_pcie.groups.iter().flat_map(|g| g.devices.clone()).collect();
    assert_eq!(BTreeSet::from_iter(&grouped), BTreeSet::from_iter(&plan.devices), "PCIe tree");
    assert_eq!(grouped.len(), plan.devices.len());
    if request.pins == PinPolicy::None {
        assert!(plan.vcpu_pins.iter().all(CpuSet::is_empty) && plan.emulator_pin.is_empty());
        return;
    }
    let mut seen = CpuSet::new();
    for pin in &plan.vcpu_pins {
        assert_eq!(pin.len(), 1);
        assert!(!seen.intersects(pin) && pin.is_subset(&topology.pcpus()), "{pin}");
        seen = seen.or(pin);
    }
    if request.profile == Profile::Share {
        check_share(topology, plan);
    }
}

/// Checks what holds for the default profile: whole cores in order, cells on their nodes, a core for the emulator.
fn check_share(topology: &Topology, plan: &Placement) {
    let core = |pcpu: PcpuId| topology.core_of(pcpu).unwrap();
    for cores in plan.vcpu_pins.chunks(plan.topology.threads as usize) {
        let first = core(cores[0].first().unwrap());
        assert!(cores.iter().all(|pin| pin.is_subset(&first.pcpus)), "a guest core is a host core");
    }
    for (at, cell) in plan.cells.iter().enumerate() {
        let pins = &plan.vcpu_pins[cell.vcpus.start as usize..cell.vcpus.end as usize];
        let nodes: BTreeSet<_> = pins.iter().map(|pin| core(pin.first().unwrap()).node).collect();
        let node = *nodes.first().unwrap();
        assert_eq!(nodes.len(), 1, "a cell stands on one node");
        assert_eq!(cell.host_nodes.len(), 1, "its memory is bound");
        if !topology.node(node).unwrap().memory_kib.is_zero() {
            assert_eq!(cell.host_nodes, NodeSet::of(node), "its memory is there too");
        }
        let own = core(plan.iothread_pins[at].first().unwrap());
        assert_eq!((own.node, &own.pcpus), (node, &plan.iothread_pins[at]));
        assert!(plan.iothread_pins[at].is_subset(&plan.emulator_pin));
        for pin in &plan.vcpu_pins {
            assert!(!own.pcpus.intersects(pin), "no vCPU on the emulator's core");
        }
    }
}

/// Checks that the guest's devices are one partition's and that switches come from its pool.
fn check_devices(topology: &Topology, plan: &Placement) {
    let of = |kind| {
        plan.devices.iter().copied().filter(move |b| topology.device(*b).unwrap().kind() == kind)
    };
    let gpus: BTreeSet<Bdf> = of(DeviceKind::Gpu).collect();
    let switches: Vec<Bdf> = of(DeviceKind::NvSwitch).collect();
    match topology.partitions().iter().find(|partition| Some(partition.id) == plan.partition) {
        Some(partition) => {
            assert_eq!(gpus, partition.gpus.iter().copied().collect());
            assert_eq!(switches.len(), partition.nvswitches as usize);
            assert!(switches.iter().all(|bdf| partition.nvswitch_pool.contains(bdf)));
        }
        None => {
            assert!(switches.is_empty());
            assert!(topology.partitions().is_empty() || gpus.len() <= 1);
        }
    }
}

/// Checks all guests of a host together.
fn check_together(topology: &Topology, guests: &[Held]) {
    let mut cores: BTreeSet<PcpuId> = BTreeSet::new();
    let mut devices: BTreeSet<Bdf> = BTreeSet::new();
    for guest in guests {
        let pins = guest.vcpu_pins.iter().chain(&guest.iothread_pins);
        let own: BTreeSet<PcpuId> = pins
            .flat_map(|pin| pin.iter().collect::<Vec<_>>())
            .map(|pcpu| topology.core_of(pcpu).unwrap().pcpus.first().unwrap())
            .collect();
        assert!(own.iter().all(|core| cores.insert(*core)), "two guests on one core");
        assert!(guest.devices.iter().all(|bdf| devices.insert(*bdf)), "two guests with one device");
    }
    for node in topology.nodes() {
        let memory = guests.iter().flat_map(|guest| &guest.memory);
        let bound: MemSize =
            memory.filter(|(nodes, _)| nodes.contains(node.os_index)).map(|(_, size)| *size).sum();
        assert!(
            bound <= node.memory_kib,
            "{bound} on node {} of {}",
            node.os_index,
            node.memory_kib
        );
    }
    let all: MemSize = guests.iter().flat_map(|g| &g.memory).map(|(_, size)| *size).sum();
    assert!(all <= topology.nodes().iter().map(|node| node.memory_kib).sum());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn guests_never_share_and_plans_never_contradict(topology in host(), events in stream()) {
        let mut occupancy = Occupancy::default();
        for (at, event) in events.into_iter().enumerate() {
            let request = match event {
                Event::Depart(place) if occupancy.domains.is_empty() => { let _ = place; continue }
                Event::Depart(place) => {
                    let place = place % occupancy.domains.len();
                    occupancy.domains.remove(place);
                    continue;
                }
                Event::Ask(request) => request,
            };
            let answer = plan(&topology, &occupancy, &request);
            prop_assert_eq!(&answer, &plan(&topology, &occupancy, &request), "the same answer twice");
            match answer {
                Ok(placement) => {
                    check_plan(&topology, &request, &placement);
                    check_devices(&topology, &placement);
                    occupancy.domains.push(held(&format!("guest{at}"), &placement));
                    check_together(&topology, &occupancy.domains);
                }
                Err(PlanError::Taken { what, holders, hint }) => {
                    prop_assert!(!what.is_empty() && !hint.is_empty());
                    prop_assert!(!holders.is_empty(), "{what}");
                }
                Err(PlanError::Impossible { what, hint }) => {
                    prop_assert!(!what.is_empty() && !hint.is_empty(), "{what}");
                }
                Err(PlanError::Request(_)) => prop_assert!(request.check().is_err()),
            }
        }
    }

    #[test]
    fn an_empty_host_says_impossible_and_not_taken(topology in host(), request in request()) {
        let idle = topology.nodes().iter().any(|node| !node.huge_pages.is_empty());
        if let Err(PlanError::Taken { what, .. }) = plan(&topology, &Occupancy::default(), &request) {
            prop_assert!(idle, "{what}");
        }
    }
}
