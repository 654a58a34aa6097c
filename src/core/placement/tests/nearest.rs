//! The nearest requests: for anything refused, a near request is planned, or none is promised.

use super::testhost::held;
use super::{dgx2, plan_on, run};
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::placement::*;
use crate::request::{Allow, CellWish, DeviceWish, Extras, GpuWish, HugePages, Near, Reserve};
use crate::request::{PinPolicy, Request};
use crate::topology::Topology;

/// The recorded DGX A100.
fn a100() -> Topology {
    crate::topology::file::from_json(include_str!("../../../../topologies/dgx-a100.json")).unwrap()
}

/// The nearest requests on a host with these domains; each is planned, and none is the one that was
/// refused.
fn near(host: &Topology, domains: &[Held], request: &Request) -> Vec<Request> {
    assert!(plan_on(host, domains, request).is_err(), "{request:?} is planned");
    let occupancy = Occupancy { domains: domains.to_vec(), ..Occupancy::default() };
    let found = nearest(host, &occupancy, request);
    for near in &found {
        assert!(plan(host, &occupancy, near).is_ok(), "{near:?} was promised");
        assert_ne!(near, request);
    }
    assert_eq!(found, nearest(host, &occupancy, request), "the same answer twice");
    assert!(found.len() <= 4);
    found
}

/// A guest with these GPUs on a host with these domains.
fn guest(host: &Topology, domains: &[Held], name: &str, request: &Request) -> Held {
    held(name, &plan_on(host, domains, request).unwrap())
}

#[test]
fn every_kind_of_refusal_names_something_that_is_planned() {
    let base = || Request::for_gpus(1);
    let many = |nics| Extras { nics: DeviceWish::Count(nics), ..Extras::default() };
    let unknown: Bdf = "0000:99:00.0".parse().unwrap();
    let requests = [
        Request::for_gpus(3),
        Request::for_gpus(17),
        run(4, 5),
        run(1, 16),
        Request { gpus: GpuWish::Indexes(vec![1, 2, 4]), ..base() },
        Request { gpus: GpuWish::Exact(vec![unknown]), ..base() },
        Request { vcpus: Some(1000), ..base() },
        Request { memory_kib: Some(MemSize::from_gib(90_000)), ..base() },
        Request { vcpus: Some(1000), memory_kib: Some(MemSize::from_gib(90_000)), ..base() },
        Request { vcpus: Some(1000), ..Request::for_gpus(3) },
        Request {
            vcpus: Some(1000),
            memory_kib: Some(MemSize::from_gib(90_000)),
            ..Request::for_gpus(3)
        },
        Request { vcpus: Some(1000), vcpus_at_start: Some(3), ..base() },
        Request { cells: CellWish::Count(7), ..base() },
        Request { threads: Some(2), pins: PinPolicy::None, vcpus: Some(5), ..base() },
    ];
    for host in [dgx2(), a100()] {
        for request in &requests {
            assert!(!near(&host, &[], request).is_empty(), "{request:?}");
        }
        // Requests for more devices than any host has, in every place where the planner looks at
        // them.
        let request = Request { extras: many(99), ..base() };
        if plan_on(&host, &[], &request).is_err() {
            assert!(!near(&host, &[], &request).is_empty());
        }
    }
}

#[test]
fn the_largest_sizes_that_fit_are_named() {
    let host = dgx2();
    let vcpus = |request: &Request| near(&host, &[], request).iter().find_map(|r| r.vcpus);
    let request = Request { vcpus: Some(200), ..run(1, 0) };
    let most = vcpus(&request).unwrap();
    assert!(most >= 46, "{most}");
    let more = Request { vcpus: Some(most + 2), ..request };
    assert!(plan_on(&host, &[], &more).is_err(), "{most} is not the most");
    let request = Request { memory_kib: Some(MemSize::from_gib(900)), ..run(1, 0) };
    let found = near(&host, &[], &request);
    let most = found.iter().find_map(|r| r.memory_kib.filter(|m| m.kib() < 900 << 20)).unwrap();
    let more = Request { memory_kib: Some(most + MemSize::from_gib(1)), ..request };
    assert!(plan_on(&host, &[], &more).is_err(), "{most} is not the most");
}

#[test]
fn the_smallest_change_comes_first() {
    let host = dgx2();
    let first = guest(&host, &[], "a", &run(4, 0));
    let found = near(&host, std::slice::from_ref(&first), &run(4, 0));
    assert_eq!(found[0], Request { gpus: GpuWish::Count(4), ..run(4, 0) });
    let other = guest(&host, &[], "b", &run(1, 8));
    let found = near(&host, &[first, other], &Request::for_gpus(8));
    assert_eq!(found.last(), Some(&Request::for_gpus(4)), "the size of partition that is free");
}

#[test]
fn where_one_change_does_not_help_two_or_more_do() {
    let host = dgx2();
    let request = Request {
        vcpus: Some(1000),
        memory_kib: Some(MemSize::from_gib(90_000)),
        ..Request::for_gpus(16)
    };
    for near in near(&host, &[], &request) {
        assert_eq!(near.gpus, request.gpus);
        assert!(near.vcpus < request.vcpus && near.memory_kib < request.memory_kib);
    }
    let request = Request { gpus: GpuWish::Count(3), ..request };
    let found = near(&host, &[], &request);
    let [split, fewer] = &found[..] else { panic!("NVLinks or GPUs are given up: {found:?}") };
    assert!(split.gpus == request.gpus && split.allow.split, "{split:?}");
    assert!(fewer.gpus == GpuWish::Count(2) && !fewer.allow.split, "{fewer:?}");
    assert!(fewer.vcpus > Some(40), "given up no further than needed: {fewer:?}");
}

#[test]
fn nothing_is_promised_where_nothing_is_left_or_the_request_contradicts_itself() {
    let host = dgx2();
    let all = guest(&host, &[], "all", &Request::for_gpus(16));
    assert_eq!(near(&host, &[all], &Request::for_gpus(1)), []);
    assert_eq!(near(&host, &[], &Request { vcpus: Some(0), ..Request::for_gpus(1) }), []);
    let occupancy = Occupancy::default();
    assert_eq!(nearest(&host, &occupancy, &Request::for_gpus(1)), [], "it is not refused");
}

#[test]
fn a_knob_that_does_not_matter_is_left_alone() {
    let host = dgx2();
    let request = Request {
        extras: Extras { nics: DeviceWish::Count(1), nic_near: Near::Any, ..Extras::default() },
        reserve: Reserve { cores: 1, memory_kib: None },
        allow: Allow { remote: true, ..Allow::default() },
        ..Request::for_gpus(17)
    };
    for near in near(&host, &[], &request) {
        assert_eq!(near.extras, request.extras);
        assert_eq!((near.reserve, near.huge_pages), (request.reserve, HugePages::Auto));
    }
}
