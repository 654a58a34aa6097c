//! Pcpus set aside for guests on hosts with several kinds of cores, and guests confined by
//! machine.slice.

use super::testhost::{HostSpec, held};
use super::{pins, plan_on, refusal, says};
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::placement::Placement;
use crate::request::{GpuWish, PinPolicy, Request};
use crate::topology::{CoreKind, Parts, Speed, Topology};

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A GPU's guest with this many vCPUs.
fn gpu_and(vcpus: u32) -> Request {
    Request { vcpus: Some(vcpus), ..Request::for_gpus(1) }
}

fn used(plan: &Placement) -> CpuSet {
    let all = plan.vcpu_pins.iter().chain([&plan.emulator_pin]).chain(&plan.iothread_pins);
    all.flat_map(|pin| pin.iter()).collect()
}

/// Four performance cores with two threads (0-3, 12-15) and eight efficiency cores (4-11), with
/// isolated pcpus.
fn hybrid(isolated: &str) -> Topology {
    let mut parts = HostSpec::even(1, 12, 64, 1).parts();
    let (fast, slow, gone) = (set("0-3,12-15"), set("4-11"), set("16-23"));
    parts.cores.iter_mut().for_each(|core| core.pcpus = core.pcpus.minus(&gone));
    parts.nodes.iter_mut().for_each(|node| node.pcpus = node.pcpus.minus(&gone));
    let kind = |kind, pcpus| CoreKind { kind, pcpus };
    parts.core_kinds = vec![kind(Speed::Performance, fast), kind(Speed::Efficiency, slow)];
    parts.isolated = set(isolated);
    Topology::new(parts).unwrap()
}

/// A host whose guests are confined to these pcpus.
fn confined(spec: &HostSpec, slice: &str) -> Topology {
    let parts = Parts { machine_slice: Some(set(slice)), ..spec.parts() };
    Topology::new(parts).unwrap()
}

#[test]
fn a_guest_larger_than_the_isolated_performance_cores_has_them_first() {
    let host = hybrid("0-3,12-15");
    for (vcpus, slow) in [(9, 5), (10, 6)] {
        let plan = plan_on(&host, &[], &gpu_and(vcpus)).unwrap();
        assert_eq!(pins(&plan)[..4], [0, 1, 2, 3], "{vcpus}");
        assert_eq!(pins(&plan).iter().filter(|pcpu| (4..12).contains(*pcpu)).count(), slow);
        assert!(says(&plan, "4 on performance cores", true), "{:?}", plan.reasons);
    }
    // They are enough for a smaller one.
    let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&plan), [0, 12, 1, 13, 2, 14, 3, 15]);
    assert_eq!(plan.emulator_pin, set("4"));
}

#[test]
fn efficiency_cores_that_are_set_aside_are_for_guests() {
    let host = hybrid("4-11");
    let first = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&first), [4, 5, 6, 7, 8, 9, 10, 11]);
    assert!(first.emulator_pin.is_subset(&set("0-3,12-15")), "{}", first.emulator_pin);
    let said = "too few performance cores that are isolated are free";
    assert!(says(&first, said, true), "{:?}", first.reasons);
    assert!(!says(&first, "are not isolated", true), "{:?}", first.reasons);
    // A guest for which too few of them are free has others.
    let few = plan_on(&host, &[], &Request { vcpus: Some(6), ..Request::for_gpus(0) }).unwrap();
    let domains = [held("few", &few)];
    let memory_kib = Some(MemSize::from_kib(8 << 20));
    let second = plan_on(&host, &domains, &Request { memory_kib, ..gpu_and(4) }).unwrap();
    assert!(used(&second).is_subset(&set("0-3,12-15")), "{:?}", second.reasons);
    assert!(says(&second, "fewer isolated ones are free than it needs", true));
    assert!(!says(&second, "the slower pcpus", false), "{:?}", second.reasons);
}

#[test]
fn a_few_isolated_efficiency_cores_are_not_for_guests() {
    let plan = plan_on(&hybrid("10-11"), &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&plan), [0, 12, 1, 13, 2, 14, 3, 15]);
}

#[test]
fn guests_have_single_threads_where_machine_slice_has_no_whole_core() {
    let host = confined(&HostSpec::even(1, 8, 64, 1), "1-7");
    for request in [Request::for_gpus(1), gpu_and(4)] {
        let plan = plan_on(&host, &[], &request).unwrap();
        assert!(used(&plan).is_subset(&set("1-7")), "{}", used(&plan));
        let said = "confines guests to pcpus 1-7, of which";
        assert!(says(&plan, said, true), "{:?}", plan.reasons);
        assert_eq!(plan.topology.threads, 1);
    }
    assert!(plan_on(&host, &[], &gpu_and(8)).is_err());
    // A core with one thread in the slice is left out where others are whole.
    let host = confined(&HostSpec::even(1, 8, 64, 1), "1-7,8-15");
    let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert!(used(&plan).is_subset(&set("1-7,9-15")), "{}", used(&plan));
    assert!(says(&plan, "confines guests to pcpus 1-15", false), "{:?}", plan.reasons);
    assert!(says(&plan, "node 0 has 7 cores of machine.slice", false), "{:?}", plan.reasons);
}

#[test]
fn the_pcpus_of_machine_slice_are_all_that_guests_have() {
    let host = confined(&HostSpec::even(1, 16, 64, 1), "0-7,16-23");
    let (what, _, _) = refusal(plan_on(&host, &[], &gpu_and(20)));
    assert!(what.contains("requested 20 vCPUs; machine.slice has 16 hyperthreads"), "{what}");
    let afloat = Request { pins: PinPolicy::None, ..gpu_and(20) };
    let plan = plan_on(&host, &[], &afloat).unwrap();
    assert!(says(&plan, "they float over the 16 pcpus", true), "{:?}", plan.reasons);
}

#[test]
fn a_node_with_single_threads_in_machine_slice_has_cores() {
    // Node 0: 0-7 and 16-23; node 1: 8-15 and 24-31. A GPU is on each.
    let spec = HostSpec::even(2, 8, 64, 2);
    let first = |host: &Topology| {
        let gpu = host.gpus().next().unwrap().bdf;
        let gpus = GpuWish::Exact(vec![gpu]);
        plan_on(host, &[], &Request { gpus, ..Request::for_gpus(1) }).unwrap()
    };
    let plan = first(&confined(&spec, "4-7,12-15,28-31"));
    assert!(used(&plan).is_subset(&set("4-7")), "{:?}", plan.reasons);
    assert_eq!(plan.cells.len(), 1);
    assert!(!says(&plan, "node 1", true), "{:?}", plan.reasons);
    // None of its pcpus are in the slice.
    let plan = first(&confined(&spec, "12-15,28-31"));
    let said = "machine.slice confines guests to pcpus 12-15,28-31, none of which is on node 0";
    assert!(says(&plan, said, true), "{:?}", plan.reasons);
}

#[test]
fn helpers_are_on_the_thread_of_a_core_that_is_not_isolated() {
    // Cores 4-7 with both threads, and the second threads of the others.
    let parts = Parts { isolated: set("4-15"), ..HostSpec::even(1, 8, 64, 1).parts() };
    let host = Topology::new(parts).unwrap();
    let plan = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!((plan.emulator_pin.to_string(), pins(&plan).len()), ("0".into(), 8));
    assert_eq!(plan.iothread_pins, [set("0")]);
    assert!(!says(&plan, "which is isolated", true), "{:?}", plan.reasons);
}

#[test]
fn performance_cores_have_all_threads_beside_a_node_of_efficiency_cores() {
    let spec = HostSpec { gpus: vec![Some(0), Some(1)], ..HostSpec::even(2, 8, 64, 2) };
    let mut parts = spec.parts();
    let gone = set("24-31");
    parts.cores.iter_mut().for_each(|core| core.pcpus = core.pcpus.minus(&gone));
    parts.nodes.iter_mut().for_each(|node| node.pcpus = node.pcpus.minus(&gone));
    // As many efficiency cores as would be the most common.
    let more = parts.cores.iter().filter(|core| core.node == NodeId(1)).cloned();
    let more: Vec<_> = more
        .map(|mut core| {
            let first = core.pcpus.first().unwrap().0 + 24;
            core.pcpus = CpuSet::of(PcpuId(first));
            core.core_id += 8;
            core
        })
        .collect();
    more.iter().for_each(|core| parts.nodes[1].pcpus = parts.nodes[1].pcpus.or(&core.pcpus));
    parts.cores.extend(more);
    let kind = |kind, pcpus: &str| CoreKind { kind, pcpus: set(pcpus) };
    parts.core_kinds =
        vec![kind(Speed::Performance, "0-7,16-23"), kind(Speed::Efficiency, "8-15,32-39")];
    let host = Topology::new(parts).unwrap();
    let gpu = host.gpus().next().unwrap().bdf;
    let exact = GpuWish::Exact(vec![gpu]);
    let request = Request { gpus: exact, ..gpu_and(14) };
    let plan = plan_on(&host, &[], &request).unwrap();
    assert!(used(&plan).is_subset(&set("0-7,16-23")), "{}", used(&plan));
    assert_eq!((plan.topology.threads, plan.vcpu_pins.len()), (2, 14));
    // The slower ones are on the other node, and the emulator is here.
    assert!(!says(&plan, "slower pcpus", false), "{:?}", plan.reasons);
    let gpu = host.gpus().nth(1).unwrap().bdf;
    let exact = GpuWish::Exact(vec![gpu]);
    let plan = plan_on(&host, &[], &Request { gpus: exact, ..gpu_and(14) }).unwrap();
    assert_eq!((plan.topology.threads, plan.vcpu_pins.len()), (1, 14));
    assert!(!says(&plan, "most cores of the host have", true), "{:?}", plan.reasons);
}
