//! Free capacity and moves that free more, by known results and by property: counted guests fit,
//! advised moves work.

use super::testhost::{HostSpec, held};
use super::{dgx2, plan_on, run};
use crate::bdf::Bdf;
use crate::placement::*;
use crate::request::GpuWish;
use crate::request::Request;
use crate::topology::Topology;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Guests of these runs of GPUs, named `a`, `b` and so on; all run.
fn guests(host: &Topology, runs: &[(u32, u32)]) -> Vec<Held> {
    let mut domains: Vec<Held> = Vec::new();
    for (name, &(count, first)) in ('a'..='z').zip(runs) {
        let placement = plan_on(host, &domains, &run(count, first)).unwrap();
        domains.push(held(&name.to_string(), &placement));
    }
    domains
}

/// The guests with every default that fit beside these domains.
fn fits(host: &Topology, domains: &[Held]) -> Capacity {
    let occupancy = Occupancy { domains: domains.to_vec(), ..Occupancy::default() };
    capacity(host, &occupancy, &Request::for_gpus(0), &[])
}

/// Size, number now, number on the empty host.
fn rows(capacity: &Capacity) -> Vec<(u32, u32, u32)> {
    capacity.sizes.iter().map(|size| (size.gpus, size.now, size.empty)).collect()
}

/// The advice on the next size: its GPU count, GPUs that are freed, guests that move, their new
/// GPUs, GPUs restarted.
type Counted = (u32, Vec<usize>, Vec<(String, Option<Vec<usize>>)>, usize);

fn answer(capacity: &Capacity) -> Counted {
    let next = capacity.next.as_ref().expect("a size does not fit");
    let advice = next.advice.as_ref().expect("something would free it");
    let guests = advice.guests.iter();
    let guests =
        guests.map(|guest| (guest.domain.clone(), guest.to.as_ref().map(|to| to.gpus.clone())));
    (next.gpus, advice.gpus.clone(), guests.collect(), advice.restarted)
}

#[test]
fn an_empty_dgx2_has_room_for_31_slots() {
    let capacity = fits(&dgx2(), &[]);
    assert_eq!(rows(&capacity), [(1, 16, 16), (2, 8, 8), (4, 4, 4), (8, 2, 2), (16, 1, 1)]);
    assert_eq!((capacity.largest, capacity.next), (Some(16), None));
    assert_eq!(capacity.never_placed, [""; 0]);
}

#[test]
fn one_guest_on_each_board_leaves_no_eight_and_moving_one_frees_them() {
    let host = dgx2();
    let domains = guests(&host, &[(1, 0), (1, 8)]);
    let capacity = fits(&host, &domains);
    assert_eq!(rows(&capacity), [(1, 14, 16), (2, 6, 8), (4, 2, 4), (8, 0, 2), (16, 0, 1)]);
    assert_eq!(capacity.largest, Some(4));
    let next = capacity.next.clone().unwrap();
    assert_eq!((next.what.as_str(), next.bounded), ("no partition of 8 GPUs is free", false));
    assert!(next.holders[0].contains("domain `a`"), "{:?}", next.holders);
    let (gpus, freed, away, restarted) = answer(&capacity);
    assert_eq!((gpus, freed, restarted), (8, (0..8).collect(), 1));
    assert_eq!(away, [("a".to_owned(), Some(vec![9]))]);
}

#[test]
fn a_domain_that_is_off_goes_before_one_that_runs() {
    let host = dgx2();
    let mut domains = guests(&host, &[(1, 0), (2, 8), (1, 10)]);
    domains[1].active = false;
    domains[2].active = false;
    let (_, freed, away, restarted) = answer(&fits(&host, &domains));
    assert_eq!((freed, restarted), ((8..16).collect(), 0));
    assert_eq!(away, [("b".to_owned(), Some(vec![2, 3])), ("c".to_owned(), Some(vec![1]))]);
}

#[test]
fn a_guest_without_another_place_has_to_end() {
    let host = dgx2();
    let domains = guests(&host, &[(8, 0), (4, 8), (4, 12)]);
    let (gpus, freed, away, restarted) = answer(&fits(&host, &domains));
    assert_eq!((gpus, freed, restarted), (1, vec![8], 4));
    assert_eq!(away, [("b".to_owned(), None)]);
}

#[test]
fn cores_that_are_short_are_freed_as_gpus_are() {
    let host = dgx2();
    let mut domains = guests(&host, &[(8, 8)]);
    let hog = Request { vcpus: Some(40), ..Request::for_gpus(0) };
    domains.push(held("hog", &plan_on(&host, &domains, &hog).unwrap()));
    let capacity = fits(&host, &domains);
    let next = capacity.next.as_ref().unwrap();
    assert!(next.holders.iter().any(|line| line.contains("domain `hog`")), "{:?}", next.holders);
    let (gpus, freed, away, _) = answer(&capacity);
    assert_eq!(away, [("hog".to_owned(), None)]);
    assert_eq!(freed.len(), gpus as usize);
}

#[test]
fn a_dead_gpu_is_named_and_its_partitions_are_gone() {
    let mut parts = dgx2().parts().clone();
    let third: Vec<Bdf> = dgx2().gpus().map(|gpu| gpu.bdf).skip(3).take(1).collect();
    for device in parts.devices.iter_mut().filter(|device| third.contains(&device.bdf)) {
        device.device = 0xffff;
    }
    let host = Topology::new(parts).unwrap();
    let capacity = fits(&host, &[]);
    assert_eq!(rows(&capacity), [(1, 15, 15), (2, 7, 7), (4, 3, 3), (8, 1, 1), (16, 0, 0)]);
    let next = capacity.next.unwrap();
    assert!(next.advice.is_none() && next.even_empty.is_some(), "no guest is to blame");
    assert!(capacity.never_placed[0].starts_with("GPU 3 "), "{:?}", capacity.never_placed);
}

#[test]
fn without_partitions_any_guests_may_go_and_the_fewest_gpus_do() {
    let host = HostSpec::even(2, 32, 512, 8).build();
    assert_eq!(rows(&fits(&host, &[])), [(1, 8, 8), (2, 4, 4), (4, 2, 2), (8, 1, 1)]);
    let domains = guests(&host, &[(4, 0), (2, 4), (1, 6)]);
    let capacity = fits(&host, &domains);
    assert_eq!(capacity.largest, Some(1));
    let (gpus, freed, away, restarted) = answer(&capacity);
    assert_eq!((gpus, freed, restarted), (2, vec![6, 7], 1));
    assert_eq!(away, [("c".to_owned(), None)]);
    assert!(!capacity.next.unwrap().bounded);
}

#[test]
fn a_guest_that_is_off_makes_room_for_one_that_runs() {
    let host = dgx2();
    let domains = occupied(&host, &[(1, 0, true), (4, 12, true), (4, 8, false)]);
    let capacity = fits(&host, &domains);
    let (gpus, _, away, restarted) = answer(&capacity);
    assert_eq!(
        (gpus, restarted),
        (8, 1),
        "the single GPU goes where the guest is that is off: {away:?}"
    );
}

#[test]
fn a_size_or_a_shape_that_is_asked_for_is_counted_alone() {
    let host = dgx2();
    let like = Request { vcpus: Some(22), ..Request::for_gpus(1) };
    let some = capacity(&host, &Occupancy::default(), &like, &[1]);
    assert_eq!(rows(&some), [(1, 4, 4)], "11 cores and one more, of 24 on each of two nodes");
    let none = capacity(&host, &Occupancy::default(), &like, &[3]);
    assert_eq!((rows(&none), none.largest), (vec![(3, 0, 0)], None));
    let why = none.next.unwrap().even_empty.unwrap();
    assert!(why.contains("no partition of this board has 3 GPUs"), "{why}");
}

#[test]
fn links_that_are_not_read_are_not_called_nvlinks() {
    let mut parts = HostSpec::even(2, 16, 256, 8).parts();
    for gpu in &mut parts.devices {
        (gpu.vendor, gpu.device, gpu.class) = (0x1002, 0x74a1, 0x12_0000);
    }
    let lines = fits(&Topology::new(parts).unwrap(), &[]).not_isolated();
    let [line, ..] = &lines[..] else { panic!("{lines:?}") };
    let said = "whether Infinity Fabric links lead out of guests with 1, 2, 4 GPUs is unknown";
    assert!(line.starts_with(said), "{line}");
}

fn hosts() -> Vec<Topology> {
    let json = |text| crate::topology::file::from_json(text).unwrap();
    vec![
        dgx2(),
        json(include_str!("../../../../topologies/dgx-a100.json")),
        json(include_str!("../../../../topologies/dgx-1.json")),
        HostSpec::even(2, 16, 256, 4).build(),
    ]
}

/// Places guests of these sizes, each at a place chosen by the number; those that do not fit are
/// left out.
fn occupied(host: &Topology, wishes: &[(u32, u32, bool)]) -> Vec<Held> {
    let mut domains: Vec<Held> = Vec::new();
    for (name, &(size, first, active)) in ('a'..='z').zip(wishes) {
        if let Ok(placement) = plan_on(host, &domains, &run(size, first / size * size)) {
            domains.push(Held { active, ..held(&name.to_string(), &placement) });
        }
    }
    domains
}

/// The least number of GPUs of running guests that must be restarted so that a guest of this size
/// fits and every running guest has a place again, found by trying every set of guests; `None` if
/// no set works.
fn exhaustive(host: &Topology, domains: &[Held], gpus: u32) -> Option<usize> {
    let number = |held: &Held| host.gpus().filter(|gpu| held.devices.contains(&gpu.bdf)).count();
    let mut least = None;
    for set in 0..1_u32 << domains.len() {
        let goes = |at: usize| set & (1 << at) != 0;
        let kept = (0..domains.len()).filter(|&at| !goes(at)).map(|at| domains[at].clone());
        let mut there: Vec<Held> = kept.collect();
        let Ok(guest) = plan_on(host, &there, &Request::for_gpus(gpus)) else { continue };
        there.push(held("new", &guest));
        let mut leaving: Vec<&Held> = (0..domains.len())
            .filter(|&at| goes(at) && domains[at].active)
            .map(|at| &domains[at])
            .collect();
        leaving.sort_by_key(|held| std::cmp::Reverse(number(held)));
        let cost = leaving.iter().map(|held| number(held)).sum();
        let all = leaving.iter().all(|own| {
            let vcpus = u32::try_from(own.vcpu_pins.len()).ok();
            let memory_kib = Some(own.memory.iter().map(|(_, size)| *size).sum());
            let size = u32::try_from(number(own)).unwrap();
            let again = Request { vcpus, memory_kib, ..Request::for_gpus(size) };
            let place = plan_on(host, &there, &again);
            there.extend(place.iter().map(|place| held(&own.domain, place)));
            place.is_ok()
        });
        if all {
            least = Some(least.map_or(cost, |least: usize| least.min(cost)));
        }
    }
    least
}

/// Checks that this many guests fit one after the other, and no more.
fn check_number(host: &Topology, mut domains: Vec<Held>, gpus: u32, number: u32) {
    for at in 0..number {
        let placement = plan_on(host, &domains, &Request::for_gpus(gpus));
        domains.push(held(&format!("new{at}"), &placement.expect("it was counted")));
    }
    if u64::from(number) < host.gpus().count() as u64 {
        assert!(plan_on(host, &domains, &Request::for_gpus(gpus)).is_err(), "one more fits");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn counted_guests_fit_and_advice_frees_room(
        at in 0..4usize,
        wishes in proptest::collection::vec(
            (prop_oneof![Just(1u32), Just(2), Just(4), Just(8)], 0..16u32, any::<bool>()), 0..8),
    ) {
        let host = &hosts()[at];
        let domains = occupied(host, &wishes);
        let capacity = fits(host, &domains);
        prop_assert_eq!(&capacity, &fits(host, &domains), "the same answer twice");
        for size in &capacity.sizes {
            check_number(host, domains.clone(), size.gpus, size.now);
            prop_assert!(size.now <= size.empty);
        }
        let Some(next) = &capacity.next else { return Ok(()) };
        let Some(advice) = &next.advice else {
            prop_assert!(next.even_empty.is_some() || next.bounded);
            return Ok(());
        };
        let names: BTreeSet<&str> = advice.guests.iter().map(|g| g.domain.as_str()).collect();
        let mut after: Vec<Held> =
            domains.iter().filter(|held| !names.contains(held.domain.as_str())).cloned().collect();
        after.extend(advice.guests.iter().filter_map(|guest| Some(guest.to.clone()?.held)));
        let bdfs: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let exact = GpuWish::Exact(advice.gpus.iter().map(|&gpu| bdfs[gpu]).collect());
        let request = Request { gpus: exact, ..Request::for_gpus(0) };
        prop_assert!(plan_on(host, &after, &request).is_ok(), "{advice:?} frees nothing");
        let ended = advice.guests.iter().any(|guest| guest.running && guest.to.is_none());
        if let Some(least) = exhaustive(host, &domains, next.gpus) {
            prop_assert!(!ended, "{advice:?} ends a guest, and none has to end");
            prop_assert!(advice.restarted <= least, "{advice:?} restarts more than {least} GPUs");
        }
    }
}
