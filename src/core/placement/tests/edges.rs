//! Rules at their limits, where one more or less changes the result.

use super::testhost::{HostSpec, device, held};
use super::{dgx2, plan_on, refusal, run, says};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::placement::reason::{CoreReason, GpuReason, TreeReason};
use crate::placement::*;
use crate::request::{CellWish, DeviceWish, GpuWish, HugePages, Reserve};
use crate::request::{PageSize, PinPolicy, Request};
use crate::topology::NvLink;
use crate::topology::Topology;

#[test]
fn functions_are_free_or_held() {
    let host = dgx2();
    let place = plan_on(&host, &[], &run(1, 0)).unwrap();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let taken = Occupancy { domains: vec![held("a", &place)], ..Occupancy::default() };
    let states = device_states(&host, &taken, &gpus[..2]);
    assert_eq!(states[0].0, DeviceState::Held);
    assert!(states[0].1.as_ref().unwrap().contains("`a`"), "{states:?}");
    assert_eq!(states[1], (DeviceState::Free, None));
}

#[test]
fn a_refused_clique_offers_other_gpus_only_where_a_host_has_them() {
    let hint = |host: &Topology, gpus: &[u32]| {
        let gpus = GpuWish::Indexes(gpus.to_vec());
        let mut request = Request { gpus, p2p_clique: true, ..Request::for_gpus(0) };
        request.allow.split = true;
        refusal(plan_on(host, &[], &request)).2
    };
    let text = include_str!("../../../../topologies/dgx-h100.json");
    let h100 = crate::topology::file::from_json(text).unwrap();
    let refused = hint(&h100, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(refused.starts_with("leave --p2p-clique out"), "{refused}");
    assert!(hint(&dgx2(), &[0, 8]).contains("--gpu names them"));
}

#[test]
fn a_guest_keeps_a_gpu_that_no_other_gets() {
    use crate::health::{Health, HealthCode, HealthFinding, HealthSource};
    let host = dgx2();
    let gpu = host.gpus().next().unwrap().bdf;
    let mut parts = host.parts().clone();
    let text = "remapping a row of its memory failed".to_owned();
    let finding = HealthFinding { code: HealthCode::RemapFailed, text };
    let health =
        Health { source: HealthSource::Nvml, findings: vec![finding], accepted: Vec::new() };
    parts.devices.iter_mut().find(|device| device.bdf == gpu).unwrap().health = Some(health);
    let sick = Topology::new(parts).unwrap();
    let excluded = vec![Exclusion::new(gpu, "it is loud")];
    for (host, excluded) in [(&sick, Vec::new()), (&host, excluded)] {
        let new = Occupancy { excluded, ..Occupancy::default() };
        let own = Occupancy { own_devices: vec![gpu], ..new.clone() };
        let request = Request { gpus: GpuWish::Exact(vec![gpu]), ..Request::for_gpus(0) };
        assert!(plan(host, &new, &request).is_err());
        assert_eq!(plan(host, &own, &request).unwrap().devices, [gpu]);
        let sixteen = plan(host, &new, &Request::for_gpus(16));
        assert!(sixteen.is_err(), "no partition has all GPUs but this one");
        assert!(!plan(host, &new, &Request::for_gpus(8)).unwrap().devices.contains(&gpu));
    }
}

#[test]
fn an_untested_gpu_is_left_out_or_named_and_its_own_guest_keeps_it() {
    use crate::placement::{DeviceState, Formerly, device_states};
    let host = dgx2();
    let gpu = host.gpus().next().unwrap().bdf;
    let request = Request { gpus: GpuWish::Exact(vec![gpu]), ..Request::for_gpus(0) };
    let excluded = vec![Exclusion::untested(gpu, "domain `a` had it")];
    let required = Occupancy { excluded, ..Occupancy::default() };
    let [(state, why)] = &device_states(&host, &required, &[gpu])[..] else { panic!() };
    assert_eq!(*state, DeviceState::Untested);
    assert_eq!(why.as_deref(), Some("is untested: domain `a` had it"));
    let error = plan(&host, &required, &request).unwrap_err();
    assert!(error.to_string().contains("is untested: domain `a` had it"), "{error}");
    let PlanError::Impossible { hint, .. } = &error else { panic!("{error:?}") };
    assert!(hint.contains(&format!("`gpuvm gpu include {gpu} --untested`")), "{hint}");
    assert!(!plan(&host, &required, &Request::for_gpus(8)).unwrap().devices.contains(&gpu));
    let remedy = format!(
        "`gpuvm gpu test {gpu}` tests it; `gpuvm gpu include {gpu} --untested` accepts it without a \
         test"
    );
    let error = plan(&host, &required, &Request::for_gpus(16)).unwrap_err();
    let PlanError::Impossible { hint, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*hint, remedy);
    // Capacity has the remedy, too, and does not call the host too small.
    let all = capacity(&host, &required, &Request::for_gpus(0), &[16]);
    assert!(all.never_placed.iter().any(|line| line.ends_with(&remedy)), "{all:?}");
    assert_eq!(all.next.unwrap().even_empty, None);
    // Without partitions as well.
    let two = HostSpec::even(1, 8, 64, 2).build();
    let excluded = two.gpus().map(|gpu| Exclusion::untested(gpu.bdf, "domain `a` had it"));
    let none = Occupancy { excluded: excluded.collect(), ..Occupancy::default() };
    let hint = |number: u32| match plan(&two, &none, &Request::for_gpus(number)).unwrap_err() {
        PlanError::Impossible { hint, .. } => hint,
        error => panic!("{error:?}"),
    };
    assert!(hint(1).contains("--untested` accepts it without"), "{}", hint(1));
    assert!(hint(2).contains("tests them; ") && hint(2).contains("accepts one"), "{}", hint(2));
    let failed = Exclusion::untested(gpu, "it failed its test: PCIe width 8 of 16");
    assert_eq!(failed.says(), "withheld: it failed its test: PCIe width 8 of 16");
    let own = Occupancy { own_devices: vec![gpu], ..required };
    assert_eq!(plan(&host, &own, &request).unwrap().devices, [gpu]);
    // Where a test is only noted it is taken, and named; of its own guest nothing is said.
    let formerly = vec![Formerly { bdf: gpu, why: "domain `a` had it".into() }];
    let noted = Occupancy { formerly, ..Occupancy::default() };
    let said = |held: &Occupancy| {
        let place = plan(&host, held, &request).unwrap();
        let words = format!("not tested since their last guest: {gpu}: domain `a` had it");
        place.reasons.iter().any(|why| why.compromise && why.because.to_string() == words)
    };
    assert!(said(&noted));
    assert!(!said(&Occupancy { own_devices: vec![gpu], ..noted }));
}

#[test]
fn a_partition_without_its_switches_is_refused_with_who_has_them() {
    let host = dgx2();
    let switches = host.of_kind(crate::topology::DeviceKind::NvSwitch).map(|device| device.bdf);
    let other = Held { domain: "b".into(), devices: switches.collect(), ..Held::default() };
    let wish = GpuWish::Exact(host.gpus().take(8).map(|gpu| gpu.bdf).collect());
    let request = Request { gpus: wish, ..Request::for_gpus(0) };
    let (what, holders, _) = refusal(plan_on(&host, &[other], &request));
    assert!(what.contains("GPUs 0 to 7"), "{what}");
    let [line] = &holders[..] else { panic!("{what}: {holders:?}") };
    assert!(line.contains("0 of 6 available; domain `b` holds others"), "{line}");
}

#[test]
fn where_no_gpu_is_left_that_is_said() {
    let host = HostSpec::even(2, 16, 64, 4).build();
    let all = plan_on(&host, &[], &Request::for_gpus(4)).unwrap();
    let three = plan_on(&host, &[], &Request::for_gpus(3)).unwrap();
    let hint = |place: &Placement| {
        let (_, _, hint) = refusal(plan_on(&host, &[held("a", place)], &Request::for_gpus(2)));
        hint
    };
    assert!(hint(&all).starts_with("no GPU is free; "), "{}", hint(&all));
    assert!(!hint(&three).contains("no GPU is free"), "{}", hint(&three));
}

#[test]
fn a_cell_over_two_nodes_is_bound_to_both() {
    let host = HostSpec::even(2, 8, 64, 2).build();
    let request = Request {
        cells: CellWish::Count(1),
        memory_kib: Some(MemSize::from_gib(2)),
        ..Request::for_gpus(2)
    };
    let place = plan_on(&host, &[], &request).unwrap();
    assert_eq!(place.cells.len(), 1);
    assert_eq!(place.cells[0].host_nodes.to_string(), "0-1", "although one of them has all of it");
}

#[test]
fn pages_are_counted_where_some_are_needed() {
    let host = HostSpec { pages: Some(4096), ..HostSpec::even(2, 8, 64, 0) }.build();
    let request = Request {
        pins: PinPolicy::None,
        vcpus: Some(2),
        memory_kib: Some(MemSize::from_gib(4)),
        huge_pages: HugePages::Size(PageSize::TwoMib),
        ..Request::for_gpus(0)
    };
    let place = plan_on(&host, &[], &request).unwrap();
    let nodes: Vec<(u32, u64)> = place.node_pages.iter().map(|p| (p.node.0, p.needed)).collect();
    assert_eq!(nodes, [(0, 2048)]);
}

#[test]
fn a_guest_that_is_bound_nowhere_can_have_all_memory() {
    let host = HostSpec::even(2, 8, 64, 0).build();
    let request = |kib| Request {
        pins: PinPolicy::None,
        vcpus: Some(2),
        memory_kib: Some(MemSize::from_kib(kib)),
        reserve: Reserve { memory_kib: Some(MemSize::default()), ..Reserve::default() },
        ..Request::for_gpus(0)
    };
    let all = 128 << 20;
    assert_eq!(plan_on(&host, &[], &request(all)).unwrap().memory().kib(), all);
    assert!(plan_on(&host, &[], &request(all + 2048)).is_err());
}

#[test]
fn memory_follows_the_vcpus_of_each_cell() {
    let host = HostSpec::even(2, 8, 64, 2).build();
    let request =
        Request { vcpus: Some(7), memory_kib: Some(MemSize::from_gib(7)), ..Request::for_gpus(2) };
    let place = plan_on(&host, &[], &request).unwrap();
    let cells: Vec<(u32, u64)> = place
        .cells
        .iter()
        .map(|cell| (cell.vcpus.end - cell.vcpus.start, cell.memory_kib.kib() >> 20))
        .collect();
    assert_eq!(cells, [(4, 4), (3, 3)]);
}

#[test]
fn a_guest_without_gpus_has_as_many_cells_as_it_asks_for() {
    let host = HostSpec::even(2, 8, 64, 0).build();
    let request =
        |cells| Request { vcpus: Some(8), cells: CellWish::Count(cells), ..Request::for_gpus(0) };
    for cells in [1, 2] {
        let place = plan_on(&host, &[], &request(cells)).unwrap();
        assert_eq!(place.cells.len(), cells as usize);
        assert_eq!(place.vcpus(), 8);
    }
}

#[test]
fn only_a_share_that_is_full_puts_the_emulator_on_a_spare_thread() {
    let host = dgx2();
    for (vcpus, pcpus) in [(5, 1), (7, 2)] {
        let request = Request { vcpus: Some(vcpus), ..run(1, 0) };
        let place = plan_on(&host, &[], &request).unwrap();
        assert_eq!(place.emulator_pin.len(), pcpus, "{vcpus} vCPUs: {}", place.emulator_pin);
    }
}

#[test]
fn a_device_is_beside_the_display_that_was_asked_for() {
    let mut spec = HostSpec::even(2, 8, 64, 2);
    spec.gpus.push(Some(1));
    let mut parts = spec.parts();
    parts.devices[2].boot_vga = true;
    parts.devices.push(device(0x50, 0x02_0000, 0x1017, Some(NodeId(1))));
    let display = parts.devices[2].bdf;
    let host = Topology::new(parts).unwrap();
    let mut request =
        Request { gpus: GpuWish::Exact(vec![display]), vcpus: Some(2), ..Request::for_gpus(0) };
    request.extras.nics = DeviceWish::Count(1);
    let place = plan_on(&host, &[], &request).unwrap();
    let text = format!("beside GPU {display} (");
    assert!(says(&place, &text, false), "{:#?}", place.reasons);
}

#[test]
fn a_set_grows_along_nvlinks_where_there_are_too_many_to_try() {
    let mut parts = HostSpec::even(2, 16, 256, 16).parts();
    let gpus: Vec<Bdf> = parts.devices.iter().map(|device| device.bdf).collect();
    let linked: Vec<Bdf> = gpus.iter().copied().step_by(2).collect();
    for (at, &a) in linked.iter().enumerate() {
        for &b in &linked[at + 1..] {
            parts.fabric.links.push(NvLink { a, b, links: 1 });
        }
    }
    let host = Topology::new(parts).unwrap();
    let request = Request { vcpus: Some(8), ..Request::for_gpus(8) };
    let place = plan_on(&host, &[], &request).unwrap();
    assert_eq!(place.devices, linked);
    assert!(says(&place, "28 NVLinks between them", false));
}

#[test]
fn words_follow_numbers() {
    let bdf: Bdf = "0000:10:00.0".parse().unwrap();
    let one: CpuSet = "5".parse().unwrap();
    let two: CpuSet = "5,53".parse().unwrap();
    let spare = |pcpus| CoreReason::EmulatorSpare { pcpus, node: NodeId(0) }.to_string();
    assert!(spare(one).starts_with("pcpu 5, the free thread"));
    assert!(spare(two).starts_with("pcpus 5,53, the free thread"));
    let floats = |threads_only, nodes: &[u32]| {
        let nodes = nodes.iter().copied().map(NodeId).collect();
        CoreReason::EmulatorFloats { threads_only, nodes }.to_string()
    };
    assert!(
        floats(true, &[0])
            .starts_with("I/O threads of node 0 run beside the emulator of another node:")
    );
    assert!(floats(false, &[0, 1]).contains("emulator and I/O threads"));
    assert!(floats(false, &[0, 1]).contains("on nodes 0 and 1:"));
    let unbound = |functions: &[Bdf]| {
        GpuReason::Unbound { functions: functions.to_vec(), driver: None, to: "vfio-pci" }
            .to_string()
    };
    assert!(unbound(&[bdf]).contains("0000:10:00.0 must be"));
    assert!(unbound(&[bdf, bdf]).contains("0000:10:00.0 and 0000:10:00.0 must be"));
    assert!(unbound(&[bdf]).ends_with("(now: no driver)"));
    let near = |is_known| TreeReason::NearNone { devices: vec![bdf], is_known }.to_string();
    assert!(near(true).contains("no cell is on their node"));
    assert!(near(false).contains("their node is unknown"));
}
