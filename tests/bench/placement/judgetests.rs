//! Tests of the judge, on places written by hand.

use super::hosts::named;
use super::metrics::{Judge, LOCAL, MEMORY, NVLINK, WHOLE};
use super::model::{Ask, Place};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{DeviceKind, Topology};

/// A guest on these GPUs, by index, with a vCPU on each of these pcpus.
fn place(topology: &Topology, gpus: &[usize], pcpus: &str) -> Place {
    let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let pcpus: CpuSet = pcpus.parse().unwrap();
    Place {
        gpus: gpus.iter().map(|gpu| all[*gpu]).collect(),
        pins: pcpus.iter().map(CpuSet::of).collect(),
        memory: vec![(NodeId(0), MemSize::from_gib(8))],
        ..Place::default()
    }
}

/// The ask that a place answers.
fn ask(place: &Place) -> Ask {
    let count = |list: usize| u32::try_from(list).unwrap();
    Ask {
        gpus: count(place.gpus.len()),
        vcpus: count(place.pins.len()),
        memory: MemSize::from_gib(8),
        nics: count(place.nics.len()),
        nvmes: count(place.nvmes.len()),
    }
}

/// Asserts that a metric has a value.
fn assert_share(found: Option<f64>, wanted: f64) {
    let found = found.expect("it applies");
    assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
}

#[test]
fn only_an_offered_partition_has_nvlink() {
    let host = named("dgx-2").topology;
    let judge = Judge::new(&host);
    let nvlink = |gpus: &[usize]| {
        let place = place(&host, gpus, "0-3");
        judge.quality(&[], &ask(&place), &place)[NVLINK]
    };
    assert_eq!(nvlink(&[3]), None);
    assert_share(nvlink(&[3, 2]), 1.0);
    assert_share(nvlink(&[3, 4]), 0.0);
    assert_share(nvlink(&[0, 1, 2]), 0.0);
}

#[test]
fn direct_links_count_against_the_best_set_of_that_size() {
    // A DGX-1's GPUs 0, 1, 2, 3 are all linked; 0 and 4 are, 0 and 5 are not (gpuvm-hardware(7),
    // BOARDS).
    let host = named("dgx-1").topology;
    let judge = Judge::new(&host);
    let of = |gpus: &[usize]| {
        let place = place(&host, gpus, "0-3");
        judge.quality(&[], &ask(&place), &place)[NVLINK]
    };
    assert_share(of(&[0, 5]), 0.0);
    let best = (1..8).map(|other| of(&[0, other]).unwrap()).fold(0.0, f64::max);
    assert_share(Some(best), 1.0);
}

#[test]
fn remote_vcpus_and_memory_count() {
    let host = named("dgx-2").topology;
    let judge = Judge::new(&host);
    let of = |gpus: &[usize], pcpus: &str| {
        let place = place(&host, gpus, pcpus);
        judge.quality(&[], &ask(&place), &place)
    };
    let half = of(&[0], "0-3,24-27");
    assert_share(half[LOCAL], 0.5);
    assert_share(half[2], 0.5);
    assert_share(half[MEMORY], 1.0);
    assert_share(of(&[8], "24-27")[MEMORY], 0.0);
    // Two GPUs on two nodes: half of the vCPUs belong to each, rounded up to whole cores.
    assert_share(of(&[0, 8], "0-3,24-27")[LOCAL], 1.0);
    assert_share(of(&[0, 8], "0-4,24-27")[LOCAL], 1.0);
    assert_share(of(&[0, 8], "0-5,24-25")[LOCAL], 0.75);
    assert_share(of(&[0, 8], "0-7")[LOCAL], 0.5);
}

#[test]
fn a_core_is_whole_only_for_one_guest() {
    let host = named("dgx-2").topology;
    let judge = Judge::new(&host);
    let (a, b) = (place(&host, &[0], "0-1,48"), place(&host, &[1], "49,2-3"));
    assert_share(judge.quality(std::slice::from_ref(&a), &ask(&b), &b)[WHOLE], 2.0 / 3.0);
    let emulator = Place { emulator: "50".parse().unwrap(), pins: vec![], ..a.clone() };
    assert_share(judge.quality(&[emulator], &ask(&b), &b)[WHOLE], 2.0 / 3.0);
    assert_eq!(judge.split_cores(&[a.clone(), b]), 1);
    assert_eq!(judge.split_cores(&[a]), 0);
}

#[test]
fn devices_count_as_pairs_without_a_host_bridge_between() {
    let host = named("xe8640").topology;
    let judge = Judge::new(&host);
    let nics: Vec<Bdf> = host.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
    let of = |gpus: &[usize], nics: &[Bdf]| {
        let place = Place { nics: nics.to_vec(), ..place(&host, gpus, "0-3") };
        judge.quality(&[], &ask(&place), &place)[3]
    };
    assert_share(of(&[1], &nics[..1]), 1.0);
    assert_share(of(&[0], &nics[..1]), 0.0);
    assert_share(of(&[0, 1], &nics), 0.5);
    assert_eq!(of(&[0], &[]), None);
}

#[test]
fn double_use_is_a_fault() {
    let host = named("dgx-2").topology;
    let judge = Judge::new(&host);
    let (a, b) = (place(&host, &[0], "0-3"), place(&host, &[1], "3-6"));
    assert!(judge.faults(&[], &ask(&a), &a).is_empty());
    assert_eq!(judge.faults(std::slice::from_ref(&a), &ask(&b), &b).len(), 1);
    assert_eq!(judge.faults(std::slice::from_ref(&a), &ask(&a), &a).len(), 2);
    assert_eq!(judge.faults(&[], &Ask { vcpus: 5, ..ask(&a) }, &a).len(), 1);
    let absent = place(&host, &[1], "94-97");
    assert_eq!(judge.faults(&[], &ask(&absent), &absent).len(), 1);
}

#[test]
fn the_largest_free_slot_needs_its_cores() {
    let host = named("dgx-2").topology;
    let judge = Judge::new(&host);
    assert_eq!(judge.largest(&[]), 16);
    assert_eq!(judge.largest(&[place(&host, &[0], "0-2")]), 8);
    assert_eq!(judge.largest(&[place(&host, &[0], "24-27")]), 4);
    let both = [place(&host, &[0], "0-2"), place(&host, &[15], "24-26")];
    assert_eq!(judge.largest(&both), 4);
}
