//! Boards built by hand: whole ones, and each way in which one is damaged.

use super::*;
use gpuvm_core::cpuset::{CpuSet, NodeId, PcpuId};
use gpuvm_core::topology::{Core, Machine as Dmi, PciDevice};

/// A function with ids; `id` 0 reads as dead.
fn device(bus: u8, parent: Option<Bdf>, class: u32, id: u16, node: u32) -> PciDevice {
    let vendor = if id == 0 { 0 } else { 0x10de };
    let text = format!(
        "{{\"bdf\":\"{}\",\"class\":\"{:#06x}\",\"vendor\":\"{vendor:#06x}\",\
         \"device\":\"{id:#06x}\",\"node\":{node}}}",
        bdf(bus),
        if id == 0 { 0 } else { class },
    );
    PciDevice { parent, ..serde_json::from_str(&text).unwrap() }
}

/// The first function of a bus.
fn bdf(bus: u8) -> Bdf {
    Bdf::new(0, bus, 0, 0).unwrap()
}

/// A host of two packages with a node each, and the given functions.
fn host(product: &str, devices: Vec<PciDevice>) -> Parts {
    let core = |package: u32| Core {
        package,
        die: None,
        core_id: 0,
        node: NodeId(package),
        pcpus: CpuSet::of(PcpuId(package)),
    };
    Parts {
        machine: Dmi { product: Some(product.into()), ..Dmi::default() },
        cores: vec![core(0), core(1)],
        devices,
        ..Parts::default()
    }
}

/// GPUs in pairs below a leaf, two leaves below a root port, and the board's switches below one
/// root port.
fn boards(count: u32, gpu: u16, switch: u16, switches: u8) -> Vec<PciDevice> {
    let mut devices = Vec::new();
    for board in 0..count {
        let base = 0x10 + 0x60 * u8::try_from(board).unwrap();
        let bridge = |bus: u8, parent| device(bus, parent, 0x060400, 0xffff, board);
        for root in 0..2u8 {
            let port = base + root * 0x10;
            devices.push(bridge(port, None));
            for leaf in 0..2u8 {
                let up = port + 1 + leaf * 4;
                devices.push(bridge(up, Some(bdf(port))));
                devices.push(device(up + 1, Some(bdf(up)), 0x030200, gpu, board));
                devices.push(device(up + 2, Some(bdf(up)), 0x030200, gpu, board));
            }
        }
        let port = base + 0x30;
        devices.push(bridge(port, None));
        for place in 0..switches {
            devices.push(device(port + 1 + place, Some(bdf(port)), 0x068000, switch, board));
        }
    }
    devices
}

/// The fabric of a host known only by its parts.
fn fabric(parts: &Parts) -> Fabric {
    planned(parts, &links::Read::default()).0
}

/// How many partitions there are of each size from 16 down to 1.
fn sizes(fabric: &Fabric) -> [usize; 5] {
    [16, 8, 4, 2, 1].map(|n| fabric.partitions.iter().filter(|p| p.gpus.len() == n).count())
}

#[test]
fn a_whole_dgx2_has_31_slots() {
    let fabric = fabric(&host("NVIDIA DGX-2", boards(2, 0x1db8, 0x1ac2, 6)));
    assert_eq!(fabric.board.as_deref(), Some("DGX-2"));
    assert_eq!(fabric.model, FabricModel::FullPassthrough);
    assert_eq!(fabric.degraded, Vec::<String>::new());
    assert_eq!(sizes(&fabric), [1, 2, 4, 8, 16]);
    assert_eq!(fabric.links.len(), 120);
    assert!(fabric.links.iter().all(|link| link.links == 6));
    let needs: Vec<(u32, u32, usize)> = [0, 1, 3, 7, 15]
        .map(|p: usize| &fabric.partitions[p])
        .map(|p| (p.nvlinks_per_gpu, p.nvswitches, p.nvswitch_pool.len()))
        .to_vec();
    assert_eq!(needs, [(6, 12, 12), (6, 6, 6), (3, 3, 6), (1, 1, 6), (0, 0, 0)]);
    let last_pair = &fabric.partitions[14];
    assert!(last_pair.nvswitch_pool.iter().all(|switch| switch.bus() >= 0xa0), "its own board");
}

#[test]
fn a_dead_switch_takes_only_the_partitions_that_need_it() {
    let mut devices = boards(2, 0x1db8, 0x1ac2, 6);
    let place = devices.iter().position(|d| d.device == 0x1ac2).unwrap();
    let dead = devices[place].clone();
    devices[place] = device(dead.bdf.bus(), dead.parent, 0, 0, 0);
    let fabric = fabric(&host("NVIDIA DGX-2H", devices));
    assert_eq!(sizes(&fabric), [0, 1, 4, 8, 16]);
    assert_eq!(fabric.degraded.len(), 2, "{:?}", fabric.degraded);
    assert!(fabric.degraded[0].contains(&dead.bdf.to_string()));
    assert_eq!(fabric.degraded[1], "11 of 12 NVSwitches answer");
    assert_eq!(fabric.partitions[0].id, PartitionId(2), "numbers stay");
}

#[test]
fn a_gpu_that_is_gone_or_dead_takes_its_runs() {
    for gone in [true, false] {
        for victim in 0..16 {
            let mut devices = boards(2, 0x1db8, 0x1ac2, 6);
            let gpus: Vec<usize> =
                (0..devices.len()).filter(|&i| devices[i].device == 0x1db8).collect();
            let place = gpus[victim];
            if gone {
                devices.remove(place);
            } else {
                let dead = device(devices[place].bdf.bus(), devices[place].parent, 0, 0, 0);
                devices[place] = PciDevice { node: devices[place].node, ..dead };
            }
            let fabric = fabric(&host("NVIDIA DGX-2", devices));
            assert_eq!(sizes(&fabric), [0, 1, 3, 7, 15], "gone {gone}, victim {victim}");
            assert!(fabric.degraded.contains(&"15 of 16 GPUs answer".to_owned()));
            let sound = if victim < 8 { 8..16 } else { 0..8 };
            let first = &fabric.partitions[0];
            assert_eq!(first.gpus.len(), 8);
            assert!(first.gpus.iter().all(|gpu| (gpu.bus() >= 0x70) == sound.contains(&8)));
        }
    }
}

#[test]
fn boards_of_hopper_need_module_ids() {
    let devices = boards(1, 0x2330, 0x22a3, 4);
    let bare = fabric(&host("SYS-821GE-TNHR", devices.clone()));
    assert_eq!((bare.model, sizes(&bare)), (FabricModel::SharedNvswitch, [0, 1, 0, 0, 0]));
    assert_eq!(bare.module_ids, []);
    let named = fabric(&host("DGXH100", devices.clone()));
    assert_eq!(sizes(&named), [0, 1, 2, 4, 8]);
    assert_eq!(named.module_ids.len(), 8);
    let pair = named.partitions.iter().find(|p| p.id == PartitionId(3)).unwrap();
    assert_eq!(pair.gpus, [named.module_ids[0].0, named.module_ids[2].0], "modules 1 and 3");
    assert!(named.source.unwrap().contains("not verified on this machine"));
    let mut less = devices;
    less.pop();
    let less = fabric(&host("DGXH100", less));
    assert_eq!((sizes(&less), less.links.len()), ([0, 0, 0, 0, 8], 0));
    assert_eq!(less.degraded, ["3 of 4 NVSwitches answer"]);
}

#[test]
fn boards_without_switches_on_pci() {
    for id in [0x2901, 0x3182] {
        let blackwell = fabric(&host("", boards(1, id, 0, 0)));
        assert_eq!(sizes(&blackwell), [0, 1, 0, 0, 0], "{id:x}");
        assert_eq!(blackwell.partitions[0].id, PartitionId(1));
        assert_eq!(blackwell.links.len(), 28);
    }
    let mut tray = boards(1, 0x31c2, 0, 0);
    tray.truncate(7);
    let tray = fabric(&host("", tray));
    assert_eq!((tray.board.as_deref(), tray.links.len()), (Some("GB300 tray"), 6));
    assert_eq!((tray.model, tray.partitions.len()), (FabricModel::None, 0));
}

#[test]
fn the_cube_mesh_needs_the_machine_and_all_gpus() {
    let devices = boards(1, 0x1db5, 0, 0);
    let mesh = fabric(&host("NVIDIA DGX-1", devices.clone()));
    assert_eq!(mesh.links.iter().map(|link| link.links).sum::<u32>(), 24);
    assert_eq!(fabric(&host("SYS-4029GP-TVRT", devices.clone())), Fabric::default());
    let mut less = devices;
    less.remove(2);
    let less = fabric(&host("NVIDIA DGX-1", less));
    assert_eq!(
        (less.links.len(), less.degraded.as_slice()),
        (0, &["7 of 8 GPUs answer".into()][..])
    );
}

#[test]
fn other_hosts_have_no_fabric() {
    assert_eq!(fabric(&Parts::default()), Fabric::default());
    assert_eq!(fabric(&host("", boards(2, 0x1eb8, 0, 0))), Fabric::default(), "T4");
    let odd = fabric(&host("", boards(2, 0x230e, 0x22a3, 2)));
    assert_eq!((odd.board, odd.model), (None, FabricModel::None));
    assert!(odd.source.unwrap().starts_with("4 NVSwitches, but"));
}

/// Buses of the GPUs of a host made by [`boards`], by address.
fn gpus(devices: &[PciDevice]) -> Vec<Bdf> {
    let mut gpus: Vec<Bdf> =
        devices.iter().filter(|d| d.class >> 8 == 0x0302).map(|d| d.bdf).collect();
    gpus.sort_unstable();
    gpus
}

/// The fabric of a host in the shared model, with module ids given in bus order.
fn shared_by(
    parts: &Parts,
    ids: &[u32],
    listed: Option<Vec<gpuvm_core::fabric::Listed>>,
) -> (Fabric, Vec<String>) {
    let found = Found::of(parts).ok().unwrap();
    let mut modules = Modules::default();
    modules.add(modules::Source::File, gpus(&parts.devices).into_iter().zip(ids.iter().copied()));
    let model = FabricModel::SharedNvswitch;
    judged(&found, &BoardReports { model, modules, listed, ..BoardReports::nothing(&found) })
}

/// The sets of a size, as GPU indexes from 0, with numbers and NVLinks.
fn sets(fabric: &Fabric, parts: &Parts, size: usize) -> Vec<(u32, Vec<usize>, u32)> {
    let all = gpus(&parts.devices);
    let index = |gpu: &Bdf| all.iter().position(|other| other == gpu).unwrap();
    let sized = fabric.partitions.iter().filter(|p| p.gpus.len() == size);
    sized.map(|p| (p.id.0, p.gpus.iter().map(index).collect(), p.nvlinks_per_gpu)).collect()
}

#[test]
fn the_shared_list_of_two_boards() {
    let ids: Vec<u32> = (1..=16).collect();
    let dgx2 = host("NVIDIA DGX-2", boards(2, 0x1db8, 0x1ac2, 6));
    let (fabric, notes) = shared_by(&dgx2, &ids, None);
    assert_eq!(fabric.partitions.len(), 33);
    assert_eq!(sizes(&fabric), [1, 4, 4, 8, 16]);
    assert_eq!(sets(&fabric, &dgx2, 8)[2], (3, vec![0, 3, 5, 6, 8, 11, 13, 14], 5));
    assert_eq!(sets(&fabric, &dgx2, 2)[0], (9, vec![0, 3], 5));
    assert_eq!(sets(&fabric, &dgx2, 1)[15], (32, vec![15], 0));
    assert_eq!(sets(&fabric, &dgx2, 16)[0].2, 6);
    assert!(notes.iter().any(|note| note.contains("stock QEMU")), "{notes:?}");

    let a100 = host("two boards", boards(2, 0x20b2, 0x1af1, 6));
    let (fabric, _) = shared_by(&a100, &ids, None);
    assert_eq!(sizes(&fabric), [1, 6, 4, 8, 16]);
    assert_eq!(sets(&fabric, &a100, 8)[5], (6, vec![4, 5, 6, 7, 8, 9, 10, 11], 12));
    assert_eq!(sets(&fabric, &a100, 1)[0], (19, vec![0], 0));
    // Without module ids only the whole board is certain.
    let (fabric, _) = shared_by(&a100, &[], None);
    assert_eq!(sizes(&fabric), [1, 0, 0, 0, 0]);
    assert!(fabric.source.unwrap().contains("gpuvm host modules --write"));
}

#[test]
fn a_board_alone_has_one_half_of_the_list() {
    let a100 = host("one board", boards(1, 0x20b2, 0x1af1, 6));
    for (first, whole, single) in [(1, 1, 19), (9, 2, 27)] {
        let ids: Vec<u32> = (first..first + 8).collect();
        let (fabric, _) = shared_by(&a100, &ids, None);
        assert_eq!(sizes(&fabric), [0, 1, 2, 4, 8], "{first}");
        assert_eq!(sets(&fabric, &a100, 8)[0].0, whole);
        assert_eq!(sets(&fabric, &a100, 1)[0].0, single);
    }
    let (unknown, _) = shared_by(&a100, &[], None);
    assert_eq!(sets(&unknown, &a100, 8), [(1, (0..8).collect(), 12)]);
    assert_eq!(unknown.partitions.len(), 1);
}

#[test]
fn a_dead_switch_takes_the_shared_partitions_of_its_board() {
    let ids: Vec<u32> = (1..=16).collect();
    let mut devices = boards(2, 0x1db8, 0x1ac2, 6);
    let place = devices.iter().position(|d| d.device == 0x1ac2).unwrap();
    let dead = devices[place].clone();
    devices[place] = device(dead.bdf.bus(), dead.parent, 0, 0, 0);
    let parts = host("NVIDIA DGX-2", devices);
    let (fabric, _) = shared_by(&parts, &ids, None);
    assert_eq!(sizes(&fabric), [0, 1, 2, 4, 16]);
    assert_eq!(sets(&fabric, &parts, 8)[0], (2, (8..16).collect(), 6), "numbers stay");
}

#[test]
fn full_passthrough_of_later_boards_is_all_or_one() {
    for (id, switch, switches, needed) in [(0x2330, 0x22a3, 4, 4), (0x2901, 0, 0, 0)] {
        let parts = host("", boards(1, id, switch, switches));
        let found = Found::of(&parts).ok().unwrap();
        let reports =
            BoardReports { model: FabricModel::FullPassthrough, ..BoardReports::nothing(&found) };
        let (fabric, notes) = judged(&found, &reports);
        assert_eq!(sizes(&fabric), [0, 1, 0, 0, 8], "{id:x}");
        assert_eq!(
            (fabric.partitions[0].nvlinks_per_gpu, fabric.partitions[0].nvswitches),
            (18, needed)
        );
        assert_eq!(notes.len(), usize::from(switches == 0), "{notes:?}");
        assert!(fabric.links_stay_on, "{id:x}");
        if switches == 0 {
            assert!(notes[0].contains("which are not known here"), "{notes:?}");
            let bridge: Vec<Bdf> =
                ["0000:05:00.0", "0000:05:00.1"].map(|b| b.parse().unwrap()).to_vec();
            let (fabric, notes) =
                judged(&found, &BoardReports { bridge: bridge.clone(), ..reports });
            assert_eq!(fabric.bridge, bridge);
            assert!(notes[0].contains("0000:05:00.0, 0000:05:00.1, which `--nic`"), "{notes:?}");
        }
    }
    let a100 = host("", boards(1, 0x20b2, 0x1af1, 6));
    assert!(!fabric(&a100).links_stay_on, "its links are off without a switch");
}

#[test]
fn fabric_managers_list_has_the_last_word() {
    let parts = host("", boards(1, 0x2330, 0x22a3, 4));
    let ids = [5, 7, 6, 8, 1, 3, 2, 4];
    let gpu = |module, links| gpuvm_core::fabric::ListedGpu { module, bus: None, links, most: 18 };
    let listed = |id, active, modules: &[u32]| {
        let links = |module| if module == 3 { 16 } else { 18 };
        let gpus = modules.iter().map(|&module| gpu(module, links(module))).collect();
        gpuvm_core::fabric::Listed { id, active, gpus }
    };
    let all = || {
        vec![
            listed(0, false, &[1, 2, 3, 4, 5, 6, 7, 8]),
            listed(42, true, &[1, 3]),
            listed(43, false, &[5, 6]),
        ]
    };
    let (fabric, notes) = shared_by(&parts, &ids, Some(all()));
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(sets(&fabric, &parts, 2), [(42, vec![4, 5], 16), (43, vec![0, 2], 18)]);
    assert_eq!(
        fabric.partitions.iter().map(|p| p.active).collect::<Vec<_>>(),
        [false, true, false]
    );
    let worn = gpus(&parts.devices)[5];
    assert_eq!(fabric.degraded, [format!("GPU {worn} (module 3) has 16 of 18 NVLinks")]);
    assert_eq!(fabric.links.iter().filter(|link| link.links == 16).count(), 7);
    assert!(fabric.source.unwrap().starts_with("partitions read from Fabric Manager; "));

    // Without module ids only the whole board is certain, and the rest is counted.
    let (fabric, notes) = shared_by(&parts, &[], Some(all()));
    assert_eq!((fabric.partitions.len(), fabric.partitions[0].id), (1, PartitionId(0)));
    assert!(notes[0].starts_with("2 of 3 partitions of Fabric Manager are left out"), "{notes:?}");
    assert_eq!(fabric.degraded, ["GPU (module 3) has 16 of 18 NVLinks"]);

    // A GPU that does not answer removes its partitions without a note on module ids.
    let mut devices = boards(1, 0x2330, 0x22a3, 4);
    let gone = gpus(&devices)[5];
    devices.retain(|device| device.bdf != gone);
    let less = host("", devices);
    let (fabric, notes) = shared_by(&less, &[5, 7, 6, 8, 1, 2, 4], Some(all()));
    assert_eq!((sizes(&fabric), notes), ([0, 0, 0, 1, 0], Vec::new()));
}
