//! Rules for every baseline on every host: a placement matches its request, and uses no resource
//! that is in use.

use super::super::model::{Ask, Place};
use super::all;
use super::testhost::{GPU, add, ask, even};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;
use gpuvm_core::topology::file::from_json;
use std::collections::BTreeSet;

fn devices(place: &Place) -> Vec<Bdf> {
    [&place.gpus[..], &place.along, &place.nics, &place.nvmes].concat()
}

/// Checks a place against the guests that were there before.
fn check(what: &str, host: &Topology, guests: &[Place], ask: &Ask, place: &Place) {
    let numbers = [place.gpus.len(), place.nics.len(), place.nvmes.len(), place.pins.len()];
    let wanted = [ask.gpus, ask.nics, ask.nvmes, ask.vcpus].map(|number| number as usize);
    assert_eq!(numbers, wanted, "{what}");
    let pins = |place: &Place| place.pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
    assert_eq!(pins(place).len(), place.pins.len(), "{what}: a pcpu twice");
    assert!(pins(place).is_subset(&host.pcpus()), "{what}");
    let mine: BTreeSet<Bdf> = devices(place).into_iter().collect();
    assert_eq!(mine.len(), devices(place).len(), "{what}: a device twice");
    for guest in guests {
        assert!(!pins(place).intersects(&pins(guest)), "{what}: a pcpu that is taken");
        assert!(devices(guest).iter().all(|bdf| !mine.contains(bdf)), "{what}: a taken device");
    }
    let sum: MemSize = place.memory.iter().map(|(_, size)| *size).sum();
    assert_eq!(sum, ask.memory, "{what}");
    for node in host.nodes() {
        let on = guests.iter().chain([place]).flat_map(|guest| &guest.memory);
        let held: MemSize = on.filter(|(id, _)| *id == node.os_index).map(|(_, size)| *size).sum();
        assert!(held <= node.memory_kib, "{what}: node {} has less", node.os_index);
    }
}

/// Fills each recorded host with guests of all sizes, odd vCPU counts and NICs among them, until
/// nothing fits.
#[test]
fn places_are_sound_on_every_recorded_host() {
    for (name, json) in [
        ("dgx-1", include_str!("../../../../topologies/dgx-1.json")),
        ("dgx-2", include_str!("../../../../topologies/dgx-2.json")),
        ("dgx-a100", include_str!("../../../../topologies/dgx-a100.json")),
        ("dgx-h100", include_str!("../../../../topologies/dgx-h100.json")),
        ("dual-socket", include_str!("../../../../topologies/dual-socket.json")),
    ] {
        let host = from_json(json).unwrap();
        let gpus = u32::try_from(host.gpus().count()).unwrap();
        for policy in all() {
            let mut guests: Vec<Place> = Vec::new();
            for (size, vcpus, nics) in [(2, 7, 0), (1, 4, 1), (4, 16, 0), (1, 3, 0), (8, 20, 0)] {
                let ask = Ask { nics, ..ask(size, vcpus) };
                let place = policy.place(&host, &guests, &ask);
                let what = format!("{} on {name}, {size} GPUs", policy.name());
                if let Some(place) = place {
                    check(&what, &host, &guests, &ask, &place);
                    assert_eq!(policy.place(&host, &guests, &ask), Some(place.clone()), "{what}");
                    guests.push(place);
                }
            }
            assert!(guests.is_empty() == (gpus == 0), "{} on {name}", policy.name());
        }
    }
}

/// Two guests on a host of 4096 pcpus, eight nodes and 72 GPUs.
#[test]
fn places_are_sound_on_a_large_host() {
    let mut parts = even(8, 4, 256);
    let node = |gpu: u32| Some(gpu / 9);
    add(&mut parts, GPU, 0x10, &(0..72).map(node).collect::<Vec<_>>());
    let host = Topology::new(parts).unwrap();
    let ask = ask(8, 448);
    for policy in all() {
        let mut guests: Vec<Place> = Vec::new();
        for _ in 0..2 {
            let place = policy.place(&host, &guests, &ask).unwrap();
            check(&policy.name(), &host, &guests, &ask, &place);
            guests.push(place);
        }
    }
}

/// Names are the rows of the table, so they are unique; and every baseline lacks something.
#[test]
fn names_differ() {
    let names: BTreeSet<String> = all().iter().map(|policy| policy.name()).collect();
    assert_eq!(names.len(), all().len());
    assert!(all().iter().all(|policy| !policy.lacks().is_empty()));
}
