//! The planner on a DGX-2: its 31 slots in both profiles, and the refusal when they are taken.

use super::testhost::held;
use super::{dgx2, pins, plan_on, refusal, run, says};
use crate::request::{Profile, Request};
use crate::topology::FabricModel;

/// Slots of `nvidia-vm`: count and first index (gpuvm-nvidia-vm(7), SLOTS).
fn slots() -> impl Iterator<Item = (u32, u32)> {
    [16, 8, 4, 2, 1].into_iter().flat_map(|n| (0..16).step_by(n as usize).map(move |i| (n, i)))
}

#[test]
fn every_dgx2_slot_has_core_pairs_and_its_emulator_core() {
    let host = dgx2();
    assert_eq!(slots().count(), 31);
    for (count, first) in slots() {
        let placement = plan_on(&host, &[], &run(count, first)).unwrap();
        let mut expected = Vec::new();
        let mut own = Vec::new();
        for socket in 0..2 {
            let gpus = (first..first + count).filter(|gpu| gpu / 8 == socket);
            let cores: Vec<u32> = gpus
                .flat_map(|gpu| (0..3).map(move |core| 24 * socket + 3 * (gpu % 8) + core))
                .collect();
            if let Some((last, vcpus)) = cores.split_last() {
                expected.extend(vcpus.iter().flat_map(|&core| [core, core + 48]));
                own.extend([*last, last + 48]);
            }
        }
        assert_eq!(pins(&placement), expected, "{count} GPUs from {first}");
        own.sort_unstable();
        assert_eq!(placement.emulator_pin.iter().map(|p| p.0).collect::<Vec<_>>(), own);
        let vcpus = [(1, 4), (2, 10), (4, 22), (8, 46), (16, 92)];
        assert!(vcpus.contains(&(count, placement.vcpus())), "{count}: {}", placement.vcpus());
        assert_eq!(placement.cells.len(), if count == 16 { 2 } else { 1 });
        let switches = [(1, 0), (2, 1), (4, 3), (8, 6), (16, 12)];
        assert!(switches.contains(&(count, placement.devices.len() as u32 - count)));
    }
}

#[test]
fn every_dgx2_slot_has_the_replaced_tools_pins_and_sizes() {
    let host = dgx2();
    for (count, first) in slots() {
        let request = Request { profile: Profile::NvidiaVm, ..run(count, first) };
        let placement = plan_on(&host, &[], &request).unwrap();
        let c0 = 24 * (first / 8) + 3 * (first % 8);
        let range = |from: u32, number: u32| from..from + number;
        let expected: Vec<u32> = match count {
            1 => range(c0, 3).chain(range(c0 + 48, 2)).collect(),
            16 => [range(0, 23), range(24, 23), range(48, 23), range(72, 23)]
                .into_iter()
                .flatten()
                .collect(),
            _ => range(c0, 3 * count - 1).chain(range(c0 + 48, 3 * count - 1)).collect(),
        };
        assert_eq!(pins(&placement), expected, "{count} GPUs from {first}");
        assert_eq!(placement.memory().kib(), 1_516_912_640 * u64::from(count) / 16);
        assert!(placement.emulator_pin.is_empty() && placement.cells.len() == 1);
        assert!(placement.cells[0].host_nodes.is_empty(), "nvidia-vm binds no memory");
    }
}

#[test]
fn sixteen_guests_of_one_gpu_fill_a_dgx2_and_the_next_refusal_names_them() {
    let host = dgx2();
    for profile in [Profile::Share, Profile::NvidiaVm] {
        let mut domains = Vec::new();
        for index in 0..16 {
            let request = Request { profile, ..Request::for_gpus(1) };
            let placement = plan_on(&host, &domains, &request).unwrap();
            assert_eq!(pins(&placement)[0], 24 * (index / 8) + 3 * (index % 8));
            domains.push(held(&format!("g{index}"), &placement));
        }
        let (what, holders, hint) = refusal(plan_on(&host, &domains, &Request::for_gpus(1)));
        assert_eq!(what, "no GPU is free");
        assert_eq!(holders.len(), 16);
        assert!(holders[3].contains("held by domain `g3`"), "{holders:?}");
        assert!(hint.contains("gpuvm capacity"), "{hint}");
    }
}

#[test]
fn a_taken_partition_is_named_with_its_domain_and_what_would_fit() {
    let host = dgx2();
    let mut domains = Vec::new();
    for (name, first) in [("train-a", 0), ("train-b", 8)] {
        let placement = plan_on(&host, &domains, &run(8, first)).unwrap();
        domains.push(held(name, &placement));
    }
    let (what, holders, hint) = refusal(plan_on(&host, &domains, &Request::for_gpus(4)));
    assert_eq!(what, "no partition of 4 GPUs is free");
    assert_eq!(holders[0], "partition 3 is held by domain `train-a`");
    assert_eq!(holders.len(), 4);
    assert!(hint.starts_with("no GPU is free; `gpuvm capacity` shows"), "{hint}");
    let small = plan_on(&host, &[], &run(2, 2)).unwrap();
    let domains = [held("two", &small), domains[1].clone()];
    let (_, holders, hint) = refusal(plan_on(&host, &domains, &run(4, 0)));
    assert_eq!(holders, ["GPUs 2 and 3 are held by domain `two`"]);
    assert_eq!(hint, "free now: GPUs 4 to 7");
    let (_, _, hint) = refusal(plan_on(&host, &domains, &Request::for_gpus(8)));
    assert!(hint.starts_with("`gpuvm capacity` shows"), "what fits is found by planning: {hint}");
}

#[test]
fn the_largest_partitions_are_left_whole() {
    let host = dgx2();
    let first = plan_on(&host, &[], &Request::for_gpus(4)).unwrap();
    let domains = [held("four", &first)];
    for (count, index) in [(4, 4), (2, 4), (1, 4), (8, 8)] {
        let placement = plan_on(&host, &domains, &Request::for_gpus(count)).unwrap();
        let lowest = host.gpus().position(|gpu| gpu.bdf == placement.devices[0]);
        assert_eq!(lowest, Some(index), "{count} GPUs");
    }
    let pair = held("pair", &plan_on(&host, &[], &run(2, 8)).unwrap());
    let one = plan_on(&host, &[pair], &Request::for_gpus(1)).unwrap();
    assert_eq!(host.gpus().position(|gpu| gpu.bdf == one.devices[0]), Some(10));
}

#[test]
fn isolation_is_stated_for_every_size() {
    let host = dgx2();
    let sizes = [
        (1, "no NVSwitch is handed out", false),
        (2, "not isolated on NVLink: the guest holds 1 NVSwitch ", true),
        (4, "not isolated on NVLink: the guest holds 3 NVSwitches ", true),
        (8, "the guest owns every GPU and all 6 NVSwitches of its board", false),
        (16, "the guest owns every GPU of the host", false),
    ];
    for (count, text, compromise) in sizes {
        let placement = plan_on(&host, &[], &run(count, 0)).unwrap();
        assert!(says(&placement, text, compromise), "{count}: {:?}", placement.reasons);
    }
    let two = held("two", &plan_on(&host, &[], &run(2, 0)).unwrap());
    let one = plan_on(&host, &[two], &run(1, 8)).unwrap();
    assert!(says(&one, "domain `two` holds NVSwitches", true));
    assert_eq!(host.fabric().model, FabricModel::FullPassthrough);
}
