//! Cores and memory that are short: those that domains that are off yield, and floating guests.

use super::*;

/// A laptop: one node, four cores of two threads, 16 GiB.
fn laptop() -> Topology {
    HostSpec::even(1, 4, 16, 0).build()
}

fn guest(vcpus: u32, gib: u64, pins: PinPolicy) -> Request {
    let memory_kib = Some(MemSize::from_gib(gib));
    Request { vcpus: Some(vcpus), memory_kib, pins, ..Request::for_gpus(0) }
}

/// The resources of a stopped guest.
fn off(name: &str, placement: &Placement) -> Held {
    Held { autostart: false, ..placement.held(name) }
}

fn pcpus(placement: &Placement) -> CpuSet {
    placement.vcpu_pins.iter().fold(placement.emulator_pin.clone(), |all, pin| all.or(pin))
}

#[test]
fn a_domain_that_is_off_yields_its_cores_where_no_others_are_free() {
    let host = laptop();
    let two = guest(2, 2, PinPolicy::Core);
    let first = plan_on(&host, &[], &two).unwrap();
    let stopped = [off("a", &first)];
    // As long as others are free, these are taken.
    let second = plan_on(&host, &stopped, &two).unwrap();
    assert!(!pcpus(&second).intersects(&pcpus(&first)));
    assert!(second.reasons.iter().all(|reason| !reason.compromise), "{:?}", second.reasons);
    let both = [off("a", &first), held("b", &second)];
    let third = plan_on(&host, &both, &two).unwrap();
    assert_eq!(pcpus(&third), pcpus(&first));
    assert!(says(&third, "belong to domain `a`, which is off", true), "{:?}", third.reasons);
    assert!(says(&third, "`gpuvm tune a --all-settings --pins off`", true), "{:?}", third.reasons);
    // Pinning these again would lead from one to the other.
    let wide =
        plan_on(&host, &[off("a", &first), off("b", &second)], &guest(6, 2, PinPolicy::Core));
    let wide = wide.unwrap();
    assert!(says(&wide, "to domain `a` and ", true), "{:?}", wide.reasons);
    assert!(says(&wide, "to domain `b`, which are off; no other core", true), "{:?}", wide.reasons);
    assert!(says(&wide, "`gpuvm tune b --all-settings --pins off` let them float", true));
    // One that starts with the host keeps them, and so does one that runs.
    for firm in [Held { autostart: true, ..off("a", &first) }, held("a", &first)] {
        let (what, holders, _) = refusal(plan_on(&host, &[firm, both[1].clone()], &two));
        assert!(what.contains("0 of its 4 are free"), "{what}");
        assert_eq!(holders.len(), 2, "{holders:?}");
    }
}

#[test]
fn a_domain_that_is_off_yields_only_what_is_short() {
    let host = laptop();
    let large = plan_on(&host, &[], &guest(2, 14, PinPolicy::Core)).unwrap();
    let stopped = [off("a", &large)];
    let next = plan_on(&host, &stopped, &guest(2, 4, PinPolicy::Core)).unwrap();
    assert!(!pcpus(&next).intersects(&pcpus(&large)), "other cores are free");
    assert!(says(&next, "memory of domain `a`, which is off", true), "{:?}", next.reasons);
    assert!(!says(&next, "belong to domain `a`", true), "{:?}", next.reasons);
    // Both, where both are short.
    let most = plan_on(&host, &stopped, &guest(6, 4, PinPolicy::Core)).unwrap();
    assert!(pcpus(&most).intersects(&pcpus(&large)));
    assert!(says(&most, "belong to domain `a`", true), "{:?}", most.reasons);
    assert!(says(&most, "memory of domain `a`, which is off", true), "{:?}", most.reasons);
}

/// Cores become free again; memory that the host does not have never comes.
#[test]
fn memory_that_no_host_has_is_refused_before_cores_that_others_hold() {
    let host = laptop();
    let all = plan_on(&host, &[], &guest(6, 2, PinPolicy::Core)).unwrap();
    let held = [held("a", &all)];
    let asked = |gib: u64, pins| plan_on(&host, &held, &guest(2, gib, pins)).unwrap_err();
    for pins in [PinPolicy::Core, PinPolicy::None] {
        let PlanError::Impossible { what, .. } = asked(900, pins) else { panic!("{pins:?}") };
        assert!(what.starts_with("requested 900 GiB of memory; "), "{what}");
    }
    let PlanError::Taken { what, holders, .. } = asked(2, PinPolicy::Core) else { panic!("cores") };
    assert!(what.contains("0 of its 4 are free") && holders.len() == 1, "{what}");
}

#[test]
fn devices_and_huge_pages_of_a_domain_that_is_off_stay_its_own() {
    let host = HostSpec { pages: Some(4096), ..HostSpec::even(1, 8, 64, 1) }.build();
    let one = Request { vcpus: Some(4), memory_kib: Some(MemSize::from_gib(6)), ..run(1, 0) };
    let paged = Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..one };
    let first = plan_on(&host, &[], &paged).unwrap();
    let stopped = [off("a", &first)];
    let (_, holders, _) = refusal(plan_on(&host, &stopped, &paged));
    assert!(holders.iter().any(|line| line.contains("`a`")), "{holders:?}");
    let other = Request { huge_pages: paged.huge_pages, ..guest(14, 4, PinPolicy::Core) };
    let second = plan_on(&host, &stopped, &other).unwrap();
    assert!(says(&second, "belong to domain `a`, which is off", true), "{:?}", second.reasons);
    // 3072 of 4096 pages are the first one's when it starts.
    assert!(says(&second, "2048 pages of 2 MiB are needed on node 0, 1024 are free", true));
}

#[test]
fn memory_of_a_domain_that_is_off_is_lent() {
    let host = laptop();
    let first = plan_on(&host, &[], &guest(1, 10, PinPolicy::Core)).unwrap();
    let stopped = [off("a", &first)];
    for pins in [PinPolicy::Core, PinPolicy::None] {
        let second = plan_on(&host, &stopped, &guest(1, 10, pins)).unwrap();
        assert!(says(&second, "memory of domain `a`, which is off", true), "{:?}", second.reasons);
        assert!(plan_on(&host, &[held("a", &first)], &guest(1, 10, pins)).is_err());
        assert!(plan_on(&host, &stopped, &guest(1, 17, pins)).is_err());
    }
}

#[test]
fn pins_left_to_the_planner_float_only_where_cores_are_short() {
    let host = laptop();
    let two = guest(2, 2, PinPolicy::Auto);
    let first = plan_on(&host, &[], &two).unwrap();
    assert_eq!(
        (first.pins(), first.clone()),
        (PinPolicy::Core, plan_on(&host, &[], &guest(2, 2, PinPolicy::Core)).unwrap())
    );
    let second = plan_on(&host, &[held("a", &first)], &two).unwrap();
    let both = [held("a", &first), held("b", &second)];
    assert_eq!(second.pins(), PinPolicy::Core);
    let third = plan_on(&host, &both, &two).unwrap();
    assert_eq!((third.pins(), third.vcpus()), (PinPolicy::None, 2));
    assert!(says(&third, "no core is left for it alone", true), "{:?}", third.reasons);
    assert!(plan_on(&host, &both, &guest(2, 2, PinPolicy::Core)).is_err());
    // More than one node's cores, but not more than the host has hyperthreads.
    assert_eq!(plan_on(&host, &[], &guest(8, 2, PinPolicy::Auto)).unwrap().vcpus(), 8);
    assert!(plan_on(&host, &[], &guest(9, 2, PinPolicy::Auto)).is_err());
    // Those with cores of their own are counted, and one that floats where there is none.
    let now = |domains: &[Held]| {
        let held = Occupancy { domains: domains.to_vec(), ..Occupancy::default() };
        capacity(&host, &held, &two, &[0]).sizes[0].now
    };
    assert_eq!([now(&[]), now(&both[..1]), now(&both)], [2, 1, 1]);
    let shaped = Request { cells: CellWish::Count(2), ..two.clone() };
    assert!(plan_on(&host, &both, &shaped).is_err());
}

#[test]
fn no_guest_floats_over_cores_of_a_guest_with_gpus() {
    let host = HostSpec::even(1, 4, 64, 2).build();
    let gpu = plan_on(&host, &[], &Request { vcpus: Some(6), ..run(1, 0) }).unwrap();
    let two = guest(2, 2, PinPolicy::Auto);
    assert!(plan_on(&host, &[held("a", &gpu)], &two).is_err());
    assert_eq!(plan_on(&host, &[off("a", &gpu)], &two).unwrap().pins(), PinPolicy::Core);
    // Nor does such a guest itself.
    let second = Request { pins: PinPolicy::Auto, vcpus: Some(6), ..Request::for_gpus(1) };
    assert!(plan_on(&host, &[held("a", &gpu)], &second).is_err());
}
