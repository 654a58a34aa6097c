//! The planner by property: whatever the host and the stream of requests, guests never share and
//! plans never contradict themselves.

use super::sound::{Case, check_together};
use super::testhost::{HostSpec, NodeSpec, held};
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::placement::reason::MemoryReason;
use crate::placement::reason::NoPages;
use crate::placement::*;
use crate::request::{Allow, CellWish, GpuWish, HugePages, Policy, Reserve};
use crate::request::{PageSize, PinPolicy, Profile, Request};
use crate::share::cases;
use crate::topology::Topology;
use proptest::prelude::*;

/// One event of a stream.
#[derive(Debug, Clone)]
enum Event {
    /// A guest is requested.
    Ask(Box<Request>),
    /// The guest with this index, modulo their number, leaves.
    Depart(usize),
}

/// Hosts: 1 to 8 nodes, SMT 1 to 4, gaps, offline and isolated pcpus, L3 caches, nodes without
/// memory or cores, 0 to 16 GPUs.
pub(crate) fn host() -> impl Strategy<Value = Topology> {
    let cores = prop_oneof![1 => Just(0u32), 10 => 1..33u32];
    let memory = prop_oneof![1 => Just(0u64), 10 => 2048..262_144u64];
    let nodes = proptest::collection::vec((cores, memory), 1..=8);
    let threads = prop_oneof![2 => Just(1u32), 4 => Just(2), 1 => Just(3), 2 => Just(4)];
    let number = prop_oneof![0..=16usize, Just(8), Just(16)];
    let place = prop_oneof![1 => Just(None), 12 => (0..8usize).prop_map(Some)];
    let gpus = number.prop_flat_map(move |n| proptest::collection::vec(place.clone(), n));
    let board = (gpus, any::<bool>(), 0..13u32, proptest::option::of(0..4096u64));
    let offline = proptest::collection::vec(0..200u32, 0..6);
    let isolated = prop_oneof![
        3 => Just(vec![]),
        1 => (0..64u32, 0..64u32).prop_map(|(first, n)| (first..first + n).collect::<Vec<u32>>()),
    ];
    let caches = (prop_oneof![Just(0u32), Just(4), 1..20u32], isolated);
    ((nodes, threads, 1..3u32), offline, board, caches)
        .prop_map(|((nodes, threads, step), offline, board, (l3, isolated))| {
            let (gpus, partitions, switches, pages) = board;
            let count = nodes.len();
            let node = |(cores, memory_mib)| NodeSpec { cores, memory_mib };
            HostSpec {
                nodes: nodes.into_iter().map(node).collect(),
                threads,
                step,
                offline,
                l3,
                isolated,
                gpus: gpus.into_iter().map(|node| node.map(|n| n % count)).collect(),
                partitions,
                switches,
                pages,
            }
        })
        .prop_filter_map("a host has an online pcpu", |spec| Topology::new(spec.parts()).ok())
}

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
        4 => Just(HugePages::Off),
        4 => Just(HugePages::Auto),
        2 => Just(HugePages::Size(PageSize::TwoMib)),
        1 => Just(HugePages::Size(PageSize::OneGib)),
    ];
    let profile = prop_oneof![
        3 => Just(Profile::Share), 1 => Just(Profile::Near), 1 => Just(Profile::NvidiaVm),
    ];
    let floating = |(cells, threads)| (PinPolicy::None, CellWish::Count(cells), threads);
    let shape = prop_oneof![
        12 => Just((PinPolicy::Core, CellWish::Auto, None)),
        2 => (1..5u32, proptest::option::of(0..5u32)).prop_map(floating),
        1 => any::<(u32, Option<u32>)>().prop_map(floating),
        3 => Just((PinPolicy::Thread, CellWish::Auto, None)),
        2 => (0..4u32).prop_map(|cells| (PinPolicy::Core, CellWish::Count(cells), None)),
    ];
    let reserve = prop_oneof![3 => Just(0u32), 1 => 0..4u32, 1 => any::<u32>()];
    let kept = proptest::option::weighted(0.2, 0..40_000_000u64);
    let reserve = (reserve, kept)
        .prop_map(|(cores, kept)| Reserve { cores, memory_kib: kept.map(MemSize::from_kib) });
    let rules = (reserve, any::<bool>(), any::<bool>());
    (gpu_wish(), vcpus, memory, pages, profile, shape, rules).prop_map(
        |(gpus, vcpus, memory, huge_pages, profile, (pins, cells, threads), rules)| {
            let (reserve, spread, remote) = rules;
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
                reserve,
                policy: if spread { Policy::Spread } else { Policy::Pack },
                allow: Allow { remote, ..Allow::default() },
                ..Request::for_gpus(0)
            }
        },
    )
}

fn stream() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![4 => request().prop_map(|request| Event::Ask(Box::new(request))), 1 => (0..32usize).prop_map(Event::Depart)];
    proptest::collection::vec(event, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), failure_persistence: None, ..ProptestConfig::default() })]
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
                Event::Ask(request) => *request,
            };
            let answer = plan(&topology, &occupancy, &request);
            prop_assert_eq!(&answer, &plan(&topology, &occupancy, &request), "the same answer twice");
            match answer {
                Ok(placement) => {
                    let case = Case {
                        topology: &topology, held: &occupancy, request: &request, plan: &placement,
                    };
                    case.check();
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
    fn pages_left_to_the_planner_refuse_nothing(
        topology in host(), large in any::<bool>(), before in request(), request in request()
    ) {
        // The hosts' pools are smaller than guests that get huge pages by default.
        let mut parts = topology.parts().clone();
        for pool in parts.nodes.iter_mut().flat_map(|node| &mut node.huge_pages).filter(|_| large) {
            (pool.total, pool.free) = (pool.total * 32, pool.free * 32);
        }
        let topology = Topology::new(parts).unwrap();
        let mut held = Occupancy::default();
        if let Ok(placement) = plan(&topology, &held, &before) {
            held.domains.push(super::testhost::held("before", &placement));
        }
        let on = |topology: &Topology, huge_pages| {
            let memory_kib = request.memory_kib.filter(|_| !large);
            plan(topology, &held, &Request { huge_pages, memory_kib, ..request.clone() })
        };
        let (auto, off) = (on(&topology, HugePages::Auto), on(&topology, HugePages::Off));
        prop_assert!(auto.is_ok() || off.is_err(), "{auto:?}");
        let Ok(auto) = auto else { return Ok(()) };
        let missing = auto.node_pages.iter().map(NodePages::missing).sum::<u64>();
        prop_assert_eq!(missing, 0, "what is chosen is there");
        prop_assert_eq!(auto.huge_pages.is_some(), !auto.node_pages.is_empty());
        if let (None, Ok(off)) = (auto.huge_pages, off) {
            let rest = |p: &Placement| {
                (p.devices.clone(), p.vcpu_pins.clone(), p.cells.clone(), p.node_pages.clone())
            };
            prop_assert_eq!(rest(&auto), rest(&off), "on normal pages all is as with `off`");
        }
        // After the advised command the guest gets them.
        let advice = auto.reasons.iter().find_map(|reason| match &reason.because {
            Because::Memory(MemoryReason::Normal { why: NoPages::Few, page, nodes, .. }) => {
                Some((*page, nodes.clone()))
            }
            _ => None,
        });
        // None is advised where it would not help.
        let is_told = |nodes: &[NodePages]| nodes.iter().any(|pages| pages.missing() > 0);
        let Some((page, nodes)) = advice.filter(|(_, nodes)| is_told(nodes)) else { return Ok(()) };
        let mut parts = topology.parts().clone();
        for pages in nodes {
            let node = parts.nodes.iter_mut().find(|node| node.os_index == pages.node).unwrap();
            let pool = node.huge_pages.iter_mut().find(|pool| pool.page_kib == page).unwrap();
            pool.total += pages.missing();
            pool.free += pages.missing();
        }
        let after = on(&Topology::new(parts).unwrap(), HugePages::Auto).unwrap();
        prop_assert_eq!(after.huge_pages.map(PageSize::size), Some(page));
    }

    #[test]
    fn an_empty_host_says_impossible_and_not_taken(topology in host(), request in request()) {
        let idle = topology.nodes().iter().any(|node| !node.huge_pages.is_empty());
        if let Err(PlanError::Taken { what, .. }) = plan(&topology, &Occupancy::default(), &request) {
            prop_assert!(idle, "{what}");
        }
    }
}
