//! NICs, virtual functions and drives on real hosts, and on small random ones against every
//! possible choice.

use super::testhost::{HostSpec, device, held};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::placement::affinity::Homes;
use crate::placement::cover::Beside;
use crate::placement::explain::Reasons;
use crate::placement::extras::{Extras, ExtrasSearch};
use crate::placement::nearness::Far;
use crate::placement::taken::Taken;
use crate::placement::*;
use crate::request::Request;
use crate::request::{DeviceWish, GpuWish, Near};
use crate::share::is_all;
use crate::topology::Topology;
use crate::topology::{DeviceKind, NetFace, Parts, PciDevice, Proximity, Sriov, file};
use proptest::prelude::*;

#[allow(clippy::disallowed_methods)] // A file of the project.
fn host(name: &str) -> Topology {
    let path = format!("{}/../../topologies/{name}.json", env!("CARGO_MANIFEST_DIR"));
    file::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[allow(clippy::disallowed_methods)] // Files of the project.
fn recorded() -> Vec<(String, Topology)> {
    let dir = format!("{}/../../topologies", env!("CARGO_MANIFEST_DIR"));
    let names = std::fs::read_dir(dir).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".json").map(str::to_owned)
    });
    names.map(|name| (name.clone(), host(&name))).collect()
}

/// Reads an address.
fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// A request for GPUs by index with this many NICs, virtual functions and drives.
fn request(gpus: &[u32], nics: u32, vfs: u32, nvmes: u32) -> Request {
    let mut request = Request { gpus: GpuWish::Indexes(gpus.to_vec()), ..Request::for_gpus(0) };
    if gpus.is_empty() {
        request.gpus = GpuWish::Count(0);
    }
    request.extras.nics = DeviceWish::Count(nics);
    request.extras.vfs = DeviceWish::Count(vfs);
    request.extras.nvmes = DeviceWish::Count(nvmes);
    request
}

/// A request for exactly these NICs, virtual functions and drives, without GPUs.
fn exactly(nics: &[&str], vfs: &[&str], nvmes: &[&str]) -> Request {
    let exact = |list: &[&str]| DeviceWish::Exact(list.iter().map(|text| bdf(text)).collect());
    let mut request = Request::for_gpus(0);
    request.extras.nics = exact(nics);
    request.extras.vfs = exact(vfs);
    request.extras.nvmes = exact(nvmes);
    request
}

/// A host of one node: GPUs below three switches of one, the NIC below the last of them.
fn three_switches() -> Parts {
    let mut parts = HostSpec::even(1, 16, 64, 0).parts();
    let node = Some(NodeId(0));
    let mut add = |bus, class, parent: Option<u8>| {
        let mut new = device(bus, class, 0x2330, node);
        new.parent = parent.map(|bus| format!("0000:{bus:02x}:00.0").parse().unwrap());
        new.root = Some("pci0000:00".into());
        parts.devices.push(new);
    };
    add(0x01, 0x06_0400, None);
    add(0x02, 0x06_0400, Some(0x01));
    for (at, down) in [0x03, 0x04, 0x05].into_iter().enumerate() {
        let up = 0x10 * (u8::try_from(at).unwrap() + 1);
        add(down, 0x06_0400, Some(0x02));
        add(up, 0x06_0400, Some(down));
        for port in 1..=3 {
            add(up + port, 0x06_0400, Some(up));
        }
        add(up + 4, 0x03_0200, Some(up + 1));
        add(up + 5, 0x03_0200, Some(up + 2));
    }
    add(0x3a, 0x02_0000, Some(0x33));
    parts
}

#[test]
fn among_equal_sets_the_gpu_below_the_switch_of_the_nic_is_taken() {
    let host = Topology::new(three_switches()).unwrap();
    let placed = |gpus| {
        let wanted = Request {
            extras: crate::request::Extras { nics: DeviceWish::Count(1), ..Default::default() },
            ..Request::for_gpus(gpus)
        };
        let placement = plan(&host, &Occupancy::default(), &wanted).unwrap();
        buses(&placement.devices)
    };
    assert_eq!(placed(1), [0x34, 0x3a]);
    assert_eq!(placed(2), [0x34, 0x35, 0x3a]);
}

#[test]
fn of_nics_that_are_equally_near_one_with_rdma_is_taken() {
    let mut parts = three_switches();
    let mut plain = parts.devices.iter().find(|nic| nic.bdf.bus() == 0x3a).unwrap().clone();
    (plain.bdf, plain.iommu_group) = (bdf("0000:39:00.0"), Some(0x39));
    parts.devices.push(plain);
    parts.devices.sort_by_key(|device| device.bdf);
    let taken = |parts: &Parts| {
        buses(&chosen(&Topology::new(parts.clone()).unwrap(), &request(&[4], 1, 0, 0)).nics)
    };
    assert_eq!(taken(&parts), [0x39]);
    let nic = parts.devices.iter_mut().find(|nic| nic.bdf.bus() == 0x3a).unwrap();
    nic.net = Some(NetFace { rdma: vec!["mlx5_0".into()], ..NetFace::default() });
    assert_eq!(taken(&parts), [0x3a]);
}

#[test]
fn gpus_without_a_nic_on_their_node_are_named() {
    let h100 = host("dgx-h100");
    let said = |nics| {
        let all: Vec<u32> = (0..8).collect();
        let (_, reasons) =
            choose(&h100, &Occupancy::default(), &request(&all, nics, 0, 0)).unwrap();
        let reasons = reasons.iter().filter(|reason| reason.compromise);
        let said = reasons.map(|reason| reason.because.to_string());
        said.filter(|text| text.contains("on the node of GPU")).collect::<Vec<_>>()
    };
    assert_eq!(said(1), ["no NIC on the node of GPUs 4, 5, 6 and 7"]);
    assert_eq!(said(2), Vec::<String>::new());
}

#[test]
fn missing_parts_of_each_gpu_are_named_for_a_set_and_more_are_offered() {
    let h100 = host("dgx-h100");
    let mut near = Request::for_gpus(4);
    near.allow.split = true;
    near.extras.nics = DeviceWish::Count(1);
    near.extras.nic_near = Near::Switch;
    let none = Occupancy::default();
    let what = plan(&h100, &none, &near).unwrap_err().to_string();
    assert!(what.starts_with("no set of 4 GPUs fits; for GPUs "), "{what}");
    let found = nearest(&h100, &none, &near);
    let is_more = |near: &Request| near.extras.nics == DeviceWish::Count(4);
    assert!(found.iter().any(is_more), "{found:?}");
}

/// The choice for GPUs by index, with reasons.
fn choose(
    host: &Topology,
    occupancy: &Occupancy,
    request: &Request,
) -> Result<(Extras, Vec<Reason>), PlanError> {
    let (homes, taken) = (Homes::new(host, 0), Taken::new(host, occupancy));
    let all: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let gpus: Vec<Bdf> = match &request.gpus {
        GpuWish::Indexes(indexes) => indexes.iter().map(|&at| all[at as usize]).collect(),
        _ => vec![],
    };
    let search = ExtrasSearch::new(host, &homes, &taken, request);
    search.check()?;
    let mut reasons = Reasons::default();
    let extras = search.choose(&gpus, &mut reasons)?;
    let near = |devices: &[Bdf]| match (devices, &gpus[..]) {
        ([], _) | (_, []) => Far::default(),
        _ => {
            let (worst, all, devices, _) = judged(host, &gpus, devices);
            let steps = |steps: i32| u32::try_from(steps).unwrap();
            Far { worst: steps(worst), gpus: steps(all), devices }
        }
    };
    let all = [&extras.nics, &extras.vfs, &extras.nvmes];
    let far: Far = all.into_iter().map(|devices| near(devices)).sum();
    // Sets of GPUs are compared by what is then chosen.
    assert_eq!(search.far(&gpus), Some(far));
    Ok((extras, reasons.0))
}

/// The choice on an idle host.
fn chosen(host: &Topology, request: &Request) -> Extras {
    choose(host, &Occupancy::default(), request).unwrap().0
}

/// Bus numbers of addresses.
fn buses(bdfs: &[Bdf]) -> Vec<u8> {
    bdfs.iter().map(|bdf| bdf.bus()).collect()
}

/// The refusal, with lines and hint.
fn refusal(host: &Topology, occupancy: &Occupancy, request: &Request) -> (bool, String, String) {
    match choose(host, occupancy, request).map(|_| ()).unwrap_err() {
        PlanError::Taken { what, holders, hint } => (true, format!("{what}: {holders:?}"), hint),
        PlanError::Impossible { what, hint } => (false, what, hint),
        PlanError::Request(error) => panic!("{error}"),
    }
}

#[test]
fn each_gpu_gets_the_nic_of_its_switch() {
    let h100 = host("dgx-h100");
    for gpu in 0..8 {
        let extras = chosen(&h100, &request(&[gpu], 1, 0, 0));
        let gpu = h100.gpus().nth(gpu as usize).unwrap().bdf;
        assert_eq!(h100.proximity(gpu, extras.nics[0]), Proximity::Pxb);
    }
    let all: Vec<u32> = (0..8).collect();
    let extras = chosen(&h100, &request(&all, 8, 0, 0));
    assert_eq!(buses(&extras.nics), [0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc]);
    let a100 = host("dgx-a100");
    assert_eq!(buses(&chosen(&a100, &request(&[0, 1], 2, 0, 2)).nics), [0x0c, 0x12]);
    assert_eq!(buses(&chosen(&a100, &request(&[0, 1], 2, 0, 2)).nvmes), [0x08, 0x09]);
    assert_eq!(
        buses(&chosen(&a100, &request(&all, 8, 0, 0)).nics),
        [0x0c, 0x12, 0x4b, 0x54, 0x8d, 0x94, 0xba, 0xcc]
    );
}

#[test]
fn a_dgx_2_pair_gets_its_own_nic_and_leaves_its_neighbours_theirs() {
    let dgx2 = host("dgx-2");
    assert_eq!(buses(&chosen(&dgx2, &request(&[0, 1], 1, 0, 0)).nics), [0x35]);
    assert_eq!(buses(&chosen(&dgx2, &request(&[2, 3], 1, 0, 2)).nics), [0x3a]);
    assert_eq!(buses(&chosen(&dgx2, &request(&[2, 3], 1, 0, 2)).nvmes), [0x2e, 0x2f]);
    assert_eq!(buses(&chosen(&dgx2, &request(&[0, 2], 2, 0, 0)).nics), [0x35, 0x3a]);
    let all: Vec<u32> = (0..16).collect();
    let nics = chosen(&dgx2, &request(&all, 8, 0, 0)).nics;
    assert_eq!(buses(&nics), [0x35, 0x3a, 0x58, 0x5d, 0xb8, 0xbd, 0xe1, 0xe6]);
    // No GPU needs this NIC, and the drives of the chipset are the system's.
    let ours = chosen(&dgx2, &request(&[], 1, 0, 1));
    assert_eq!((buses(&ours.nics), buses(&ours.nvmes)), (vec![0x86], vec![0xb1]));
}

#[test]
fn fewer_nics_than_gpus_are_near_all_of_them() {
    let all = |gpus: u32| (0..gpus).collect::<Vec<u32>>();
    let h100 = host("dgx-h100");
    let two = chosen(&h100, &request(&all(8), 2, 0, 2));
    let node = |bdf: &Bdf| h100.device(*bdf).unwrap().node.unwrap().0;
    assert_eq!(two.nics.iter().map(node).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(two.nvmes.iter().map(node).collect::<Vec<_>>(), [0, 1]);
    let a100 = host("dgx-a100");
    assert_eq!(buses(&chosen(&a100, &request(&all(4), 2, 0, 0)).nics), [0x0c, 0x4b]);
    // Nodes of one package are nearer to each other than those of two.
    let package = |bdf: &Bdf| {
        let node = a100.device(*bdf).unwrap().node.unwrap();
        a100.cores_of(node).next().unwrap().package
    };
    let two = chosen(&a100, &request(&all(8), 2, 0, 2));
    for devices in [&two.nics, &two.nvmes] {
        assert_eq!(devices.iter().map(package).collect::<Vec<_>>(), [0, 1], "{devices:?}");
    }
    let drive = chosen(&a100, &request(&[6, 7], 0, 0, 1));
    assert_eq!(drive.nvmes.iter().map(package).collect::<Vec<_>>(), [1], "{drive:?}");
    let dgx2 = host("dgx-2");
    let nics = chosen(&dgx2, &request(&all(16), 2, 0, 2));
    assert_eq!((buses(&nics.nics), buses(&nics.nvmes)), (vec![0x35, 0xb8], vec![0x2e, 0xb1]));
    assert_eq!(buses(&chosen(&dgx2, &request(&all(4), 1, 0, 0)).nics), [0x35]);
}

#[test]
fn every_gpu_has_one_that_is_near_enough_or_the_request_is_refused() {
    let (h100, empty) = (host("dgx-h100"), Occupancy::default());
    let all: Vec<u32> = (0..8).collect();
    let asked = |nics: u32, vfs: u32, near: Near| {
        let mut asked = request(&all, nics, vfs, 0);
        asked.extras.nic_near = near;
        asked
    };
    let (is_taken, text, hint) = refusal(&h100, &empty, &asked(2, 0, Near::Switch));
    assert!(!is_taken);
    assert_eq!(
        text,
        "requested 2 NICs, and it takes 8 NICs for each of GPUs 0, 1, 2, 3, 4, 5, 6 and 7 to have one \
         below one PCIe switch with it"
    );
    assert_eq!(hint, "ask for 8 NICs, or `--nic-near node` allows farther ones");
    assert!(choose(&h100, &empty, &asked(8, 0, Near::Switch)).is_ok());
    assert!(choose(&h100, &empty, &asked(2, 0, Near::Node)).is_ok());
    let (_, text, _) = refusal(&h100, &empty, &asked(1, 0, Near::Node));
    assert!(
        text.contains("it takes 2 NICs for each of ") && text.ends_with(" to have one on its node"),
        "{text}"
    );
    // The NIC of one GPU's switch is held: this GPU is named, with the holder.
    let first = plan(&h100, &empty, &request(&[3], 1, 0, 0)).unwrap();
    let mut occupancy = Occupancy { domains: vec![held("first", &first)], ..Occupancy::default() };
    occupancy.domains[0].devices = vec![first.devices[1]];
    let (is_taken, text, _) = refusal(&h100, &occupancy, &asked(7, 0, Near::Switch));
    assert!(is_taken);
    assert!(text.starts_with("no available NIC is below one PCIe switch with GPU 3: "), "{text}");
    assert!(text.contains("is held by domain `first`"), "{text}");
}

#[test]
fn held_devices_are_left_and_the_next_is_marked_as_farther() {
    let h100 = host("dgx-h100");
    let mut occupancy = Occupancy::default();
    let first = plan(&h100, &occupancy, &request(&[0], 1, 0, 1)).unwrap();
    occupancy.domains.push(held("first", &first));
    let asked = request(&[0], 1, 0, 0);
    let (extras, reasons) = choose(&h100, &occupancy, &asked).unwrap();
    // Every other NIC with a GPU below its switch is that GPU's only one. Of the others of the node,
    // one has no RDMA.
    assert_eq!(buses(&extras.nics), [0x29]);
    let compromises: Vec<String> =
        reasons.iter().filter(|r| r.compromise).map(|r| r.because.to_string()).collect();
    assert_eq!(
        compromises,
        [
            "0000:29:00.0 is below no PCIe switch with a GPU of the guest, on the node of one",
            "no NIC available on the switch of GPU 0: 0000:18:00.0 is held by domain `first`"
        ]
    );
    let mut near = asked.clone();
    near.extras.nic_near = Near::Switch;
    let (is_taken, text, hint) = refusal(&h100, &occupancy, &near);
    assert!(is_taken);
    assert_eq!(
        text,
        "requested 1 NIC below one PCIe switch with GPU 0, 0 available: [\"0000:18:00.0 is held by \
         domain `first`\"]"
    );
    assert_eq!(hint, "--nic-near node takes those of the node, too");
    near.extras.nic_near = Near::Node;
    assert_eq!(choose(&h100, &occupancy, &near).unwrap().0, extras);
}

/// No number counts them: which drive a guest shares is its owner's choice.
#[test]
fn free_virtual_functions_of_drives_are_named_where_no_whole_drive_is_free() {
    let mut parts = host("dual-socket").parts().clone();
    let drive = bdf("b0:00.0");
    let at = parts.devices.iter().position(|device| device.bdf == drive).unwrap();
    parts.devices[at].sriov = Some(Sriov::Pf { total: 4, enabled: 2 });
    for function in ["b0:00.1", "b0:00.2"] {
        let sriov = Some(Sriov::Vf { pf: drive });
        let iommu_group = Some(900 + u32::from(bdf(function).function()));
        let own = PciDevice { iommu_group, ..parts.devices[at].clone() };
        let share = PciDevice { bdf: bdf(function), sriov, ..own };
        parts.devices.push(share);
    }
    let shared = Topology::new(parts).unwrap();
    let of = |nvmes: u32| refusal(&shared, &Occupancy::default(), &request(&[0], 0, 0, nvmes)).2;
    assert_eq!(of(1), "--nvme 0000:b0:00.1 takes a virtual function of a drive");
    assert_eq!(of(2), "--nvme 0000:b0:00.1 --nvme 0000:b0:00.2 take virtual functions of drives");
    let share = exactly(&[], &[], &["b0:00.1"]);
    assert_eq!(chosen(&shared, &share).nvmes, [bdf("b0:00.1")]);
}

#[test]
fn devices_used_by_the_host_are_refused_with_the_use() {
    let (host, empty) = (host("dual-socket"), Occupancy::default());
    assert_eq!(
        chosen(&host, &exactly(&["01:00.1"], &["3b:00.2"], &["b0:00.0"])),
        Extras {
            nics: vec![bdf("01:00.1")],
            vfs: vec![bdf("3b:00.2")],
            nvmes: vec![bdf("b0:00.0")]
        }
    );
    for (request, reason, advice) in [
        (exactly(&["01:00.0"], &[], &[]), "network, default route over br0", "01:00.1"),
        (exactly(&["3b:00.0"], &[], &[]), "has 4 virtual functions enabled", "available"),
        (
            exactly(&["3b:00.2"], &[], &[]),
            "is not a NIC but a virtual function",
            "--vf 0000:3b:00.2",
        ),
        (exactly(&["3c:00.0"], &[], &[]), "is not a NIC but an NVMe drive", "--nvme 0000:3c:00.0"),
        (
            exactly(&[], &["3b:00.1"], &[]),
            "is not a virtual function but a NIC",
            "--nic 0000:3b:00.1",
        ),
        (exactly(&[], &[], &["3c:00.0"]), "nvme0n1p", "0000:b0:00.0"),
        (exactly(&[], &[], &["af:00.0"]), "is part of md0", "0000:b0:00.0"),
        (exactly(&["18:00.0"], &[], &[]), "0000:18:00.0 is not a NIC but a GPU", "nic list"),
        (exactly(&["77:00.0"], &[], &[]), "0000:77:00.0 is not a device of this host", "nic list"),
        (exactly(&[], &[], &["77:00.0"]), "0000:77:00.0 is not a device", "drive list"),
        (request(&[0], 9, 0, 0), "requested 9 NICs, this host has 4", "capacity"),
        (request(&[0], 3, 0, 0), "requested 3 NICs, 2 of 4 available", "capacity"),
        (request(&[0], 0, 0, 2), "requested 2 NVMe drives, 1 of 3 available", "capacity"),
        (request(&[0], 0, 5, 0), "requested 5 virtual functions, this host has 4", "nic vfs"),
    ] {
        let (is_taken, text, hint) = refusal(&host, &empty, &request);
        assert!(!is_taken && text.contains(reason), "{text}");
        assert!(hint.contains(advice), "{hint}");
    }
    let taken = plan(&host, &empty, &exactly(&["01:00.1"], &[], &[])).unwrap();
    let occupancy = Occupancy { domains: vec![held("web", &taken)], ..Occupancy::default() };
    let (is_taken, text, _) = refusal(&host, &occupancy, &exactly(&["01:00.1"], &[], &[]));
    assert!(is_taken && text.contains("held by domain `web`"), "{text}");
}

#[test]
fn nearness_of_named_devices_chooses_no_gpu_but_refuses_one() {
    let host = host("dgx-h100");
    let mut asked = request(&[0], 0, 0, 0);
    asked.extras.nics = DeviceWish::Exact(vec![bdf("dc:00.0")]);
    let (_, reasons) = choose(&host, &Occupancy::default(), &asked).unwrap();
    assert_eq!(reasons[0].because.to_string(), "0000:dc:00.0 beside GPU 0 (SYS), as requested");
    assert!(
        reasons[1].compromise
            && reasons[1].because.to_string().contains("not on the node of any GPU")
    );
    asked.extras.nic_near = Near::Switch;
    let (_, text, _) = refusal(&host, &Occupancy::default(), &asked);
    assert_eq!(text, "NIC 0000:dc:00.0 is not below one PCIe switch with GPU 0");
}

#[test]
fn where_a_gpus_node_is_unknown_no_device_is_said_to_be_off_it() {
    let mut parts = host("dgx-h100").parts().clone();
    let gpu = host("dgx-h100").gpus().next().unwrap().bdf;
    parts.devices.iter_mut().find(|device| device.bdf == gpu).unwrap().node = None;
    let mut asked = request(&[0], 0, 0, 0);
    asked.extras.nics = DeviceWish::Exact(vec![bdf("dc:00.0")]);
    let host = Topology::new(parts).unwrap();
    let (_, reasons) = choose(&host, &Occupancy::default(), &asked).unwrap();
    let text = reasons[1].because.to_string();
    assert!(reasons[1].compromise && text.contains("is unknown"), "{text}");
}

#[test]
fn devices_stand_beside_the_gpu_of_their_switch() {
    let host = host("dgx-h100");
    let all: Vec<u32> = (0..8).collect();
    let place = plan(&host, &Occupancy::default(), &request(&all, 8, 0, 2)).unwrap();
    // One group for each host bridge: eight of a GPU and its NIC, and one of each drive.
    let groups = &place.guest_pcie.groups;
    assert_eq!(groups.len(), 10);
    for group in groups {
        let bridges: std::collections::BTreeSet<_> =
            group.devices.iter().map(|bdf| host.host_bridge(*bdf)).collect();
        assert_eq!(bridges.len(), 1, "{group:?}");
    }
    let first = groups.iter().filter(|group| group.cell == Some(0));
    let first: Vec<_> = first.flat_map(|group| group.devices.clone()).collect();
    assert_eq!(buses(&first)[..8], [0x1b, 0x18, 0x43, 0x40, 0x52, 0x4f, 0x61, 0x5e]);
    assert_eq!(place.devices.len(), 18);
    let kinds: Vec<DeviceKind> =
        place.devices.iter().map(|&bdf| host.device(bdf).unwrap().kind()).collect();
    let sorted = [[DeviceKind::Gpu; 8], [DeviceKind::Nic; 8]].concat();
    assert_eq!(kinds[..16], sorted);
}

#[test]
fn iommu_groups_come_whole_without_gpus_too() {
    let place = plan(&host("dgx-2"), &Occupancy::default(), &exactly(&["86:00.0"], &[], &[]));
    let place = place.unwrap();
    assert_eq!(place.devices, [bdf("86:00.0"), bdf("86:00.1")]);
    assert!(place.reasons.iter().any(|r| r.because.to_string().contains("86:00.1 is included")));
    assert!(!place.reasons.iter().any(|r| r.choice == Topic::Isolation));
}

/// A host of 2 nodes with a few switches: the switch of each GPU and device is given; from the
/// third on it means none.
fn small(gpus: &[u8], nics: &[u8]) -> Topology {
    let mut parts: Parts = HostSpec::even(2, 8, 64, 0).parts();
    let node = |switch: u8| Some(NodeId(u32::from(switch) / 2 % 2));
    let with = |mut device: PciDevice, switch: u8| {
        device.parent = (switch < 4).then(|| Bdf::new(0, 1 + switch, 0, 0).unwrap());
        device.root = Some(format!("pci0000:{:02x}", if switch < 4 { 1 + switch } else { 0xf0 }));
        device
    };
    for switch in 0..4 {
        parts.devices.push(with(device(1 + switch, 0x06_0400, 1, node(switch)), 9));
        parts.devices.last_mut().unwrap().root = Some(format!("pci0000:{:02x}", 1 + switch));
    }
    for (at, &switch) in (0x10..).zip(gpus) {
        parts.devices.push(with(device(at, 0x03_0200, 0x1db8, node(switch)), switch));
    }
    for (at, &switch) in (0x40..).zip(nics) {
        parts.devices.push(with(device(at, 0x02_0000, 0x1017, node(switch)), switch));
    }
    Topology::new(parts).unwrap()
}

/// How near a NIC is to a GPU.
fn beside(host: &Topology, gpu: Bdf, nic: Bdf) -> Beside {
    let [gpu, nic] = [gpu, nic].map(|bdf| host.way(host.device(bdf).unwrap()));
    Beside::new(&gpu, Some(&nic))
}

/// The most GPUs that each have a NIC of these on their switch, one NIC for each.
fn most_pairs(host: &Topology, gpus: &[Bdf], nics: &[Bdf]) -> usize {
    let edges: Vec<Vec<usize>> = gpus
        .iter()
        .map(|&gpu| {
            let is_near = |at: &usize| beside(host, gpu, nics[*at]).distance() == 0;
            (0..nics.len()).filter(is_near).collect()
        })
        .collect();
    /// Gives a GPU a NIC; others may have to change theirs.
    fn seat(gpu: usize, edges: &[Vec<usize>], of: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        edges[gpu].iter().any(|&nic| {
            if std::mem::replace(&mut seen[nic], true) {
                return false;
            }
            let is_left = of[nic].is_none_or(|other| seat(other, edges, of, seen));
            if is_left {
                of[nic] = Some(gpu);
            }
            is_left
        })
    }
    let mut of = vec![None; nics.len()];
    (0..gpus.len()).filter(|&gpu| seat(gpu, &edges, &mut of, &mut vec![false; nics.len()])).count()
}

/// The criteria of a choice of NICs; less is better: the rank of the GPU that is farthest from its
/// nearest NIC, all GPUs' ranks, distances of the NICs from their nearest GPU, and GPUs that have
/// no NIC of their own below a switch.
fn judged(host: &Topology, gpus: &[Bdf], nics: &[Bdf]) -> (i32, i32, u32, usize) {
    let nearest = |gpu: &Bdf| nics.iter().map(|&nic| beside(host, *gpu, nic).rank()).min();
    let ranks: Vec<i32> = gpus.iter().filter_map(nearest).collect();
    let far = |nic: &Bdf| gpus.iter().map(|&gpu| beside(host, gpu, *nic).distance()).min().unwrap();
    (
        ranks.iter().copied().max().unwrap_or(0),
        ranks.iter().sum(),
        nics.iter().map(far).sum(),
        gpus.len() - most_pairs(host, gpus, nics),
    )
}

/// The best that any choice of this many can have.
fn best_of(
    host: &Topology,
    gpus: &[Bdf],
    from: &[Bdf],
    near: Near,
    number: usize,
) -> Option<(i32, i32, u32, usize)> {
    let most = match near {
        Near::Switch => 0,
        Near::Node => 1,
        Near::Any => 3,
    };
    let far = |a: Bdf, b: Bdf| beside(host, a, b).distance();
    let is_near = |nic: &Bdf| gpus.iter().any(|&gpu| far(gpu, *nic) <= most);
    let from: Vec<Bdf> = from.iter().copied().filter(is_near).collect();
    let sets = (0..1u64 << from.len()).filter(|set| set.count_ones() as usize == number);
    let picked = sets.map(|set| -> Vec<Bdf> {
        (0..from.len()).filter(|at| set >> at & 1 == 1).map(|at| from[at]).collect()
    });
    let serves = |nics: &Vec<Bdf>| {
        near == Near::Any || gpus.iter().all(|&gpu| nics.iter().any(|&nic| far(gpu, nic) <= most))
    };
    picked.filter(serves).map(|nics| judged(host, gpus, &nics)).min()
}

proptest! {
    #[test]
    fn no_other_choice_is_nearer_or_pairs_more(
        gpus in proptest::collection::vec(0..5u8, 1..5),
        nics in proptest::collection::vec(0..5u8, 0..7),
        number in 1..7u32,
        near in prop_oneof![Just(Near::Switch), Just(Near::Node), Just(Near::Any)],
        chosen in 0..16u32,
    ) {
        let host = small(&gpus, &nics);
        let wanted: Vec<u32> = (0..4).filter(|at| chosen >> at & 1 == 1)
            .filter(|&at| (at as usize) < gpus.len()).collect();
        prop_assume!(!wanted.is_empty());
        let mut asked = request(&wanted, number, 0, 0);
        asked.extras.nic_near = near;
        let all: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let set: Vec<Bdf> = wanted.iter().map(|&at| all[at as usize]).collect();
        let nics: Vec<Bdf> = host.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
        let best = best_of(&host, &set, &nics, near, number as usize);
        match (best, choose(&host, &Occupancy::default(), &asked)) {
            (Some(best), Ok((extras, _))) => {
                prop_assert_eq!(judged(&host, &set, &extras.nics), best);
            }
            (None, Err(_)) => {}
            (best, answer) => prop_assert!(false, "{best:?} {answer:?}"),
        }
    }
}

#[test]
fn on_every_recorded_host_no_other_choice_is_nearer() {
    let mut judged_choices = 0;
    let mut hosts = recorded();
    hosts.sort_by(|one, other| one.0.cmp(&other.0));
    for (at, (name, host)) in hosts.into_iter().enumerate() {
        let all: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
        let sizes = 1..=u32::try_from(all.len()).unwrap();
        for number in sizes.filter(|number| is_all() || (*number as usize + at).is_multiple_of(3)) {
            let Ok(place) = plan(&host, &Occupancy::default(), &Request::for_gpus(number)) else {
                continue;
            };
            let places = (0..).zip(&all).filter(|(_, bdf)| place.devices.contains(bdf));
            let (wanted, gpus): (Vec<u32>, Vec<Bdf>) = places.map(|(at, bdf)| (at, *bdf)).unzip();
            for (kind, near) in [(0, Near::Any), (0, Near::Switch), (1, Near::Any), (1, Near::Node)]
            {
                judged_choices += judge(&name, &host, (&wanted, &gpus), kind, near);
            }
        }
    }
    assert!(judged_choices > if is_all() { 500 } else { 150 }, "{judged_choices}");
}

/// Compares each number of NICs or drives with every other choice; returns how many.
fn judge(
    name: &str,
    host: &Topology,
    (wanted, gpus): (&[u32], &[Bdf]),
    kind: usize,
    near: Near,
) -> usize {
    let mut all = request(wanted, 0, 0, 0);
    let asked = |request: &mut Request, number: u32| {
        let wish = DeviceWish::Count(number);
        let extras = &mut request.extras;
        match kind {
            0 => (extras.nics, extras.nic_near) = (wish, near),
            _ => (extras.nvmes, extras.nvme_near) = (wish, near),
        }
    };
    let of = |extras: Extras| if kind == 0 { extras.nics } else { extras.nvmes };
    // All that are available: as many as can be had.
    let most = (1..=12).rev().find_map(|number| {
        let mut any = request(wanted, 0, 0, 0);
        let wish = DeviceWish::Count(number);
        if kind == 0 {
            any.extras.nics = wish
        } else {
            any.extras.nvmes = wish
        }
        choose(host, &Occupancy::default(), &any).ok().map(|(extras, _)| of(extras))
    });
    let Some(free) = most else { return 0 };
    let mut done = 0;
    for number in 1..=free.len() {
        asked(&mut all, u32::try_from(number).unwrap());
        let best = best_of(host, gpus, &free, near, number);
        let got = choose(host, &Occupancy::default(), &all).ok();
        let got = got.map(|(extras, _)| judged(host, gpus, &of(extras)));
        assert_eq!(got, best, "{name}: {number} of kind {kind} for {wanted:?}, {near:?}");
        done += 1;
    }
    done
}

#[test]
fn virtual_functions_are_spread_over_their_nics() {
    let mut parts: Parts = HostSpec::even(1, 8, 64, 2).parts();
    for bus in [0x40u8, 0x41] {
        let mut pf = device(bus, 0x02_0000, 0x1017, Some(NodeId(0)));
        pf.sriov = Some(Sriov::Pf { total: 4, enabled: 2 });
        let of = pf.bdf;
        parts.devices.push(pf);
        for function in [2, 3] {
            let mut vf = device(bus, 0x02_0000, 0x1018, Some(NodeId(0)));
            vf.bdf = Bdf::new(0, bus, 0, function).unwrap();
            vf.iommu_group = Some(u32::from(bus) << 4 | u32::from(function));
            vf.sriov = Some(Sriov::Vf { pf: of });
            parts.devices.push(vf);
        }
    }
    let host = Topology::new(parts).unwrap();
    let wanted = |vfs| plan(&host, &Occupancy::default(), &request(&[0], 0, vfs, 0)).unwrap();
    assert_eq!(wanted(1).devices[1..], [bdf("40:00.2")]);
    assert_eq!(wanted(2).devices[1..], [bdf("40:00.2"), bdf("41:00.2")]);
    let occupancy = Occupancy { domains: vec![held("one", &wanted(1))], ..Occupancy::default() };
    let mut next = request(&[], 0, 1, 0);
    assert_eq!(plan(&host, &occupancy, &next).unwrap().devices, [bdf("41:00.2")]);
    next.extras.vfs = DeviceWish::Count(4);
    let (is_taken, text, hint) = refusal(&host, &occupancy, &next);
    assert!(is_taken && text.contains("3 of 4 available"), "{text}");
    assert!(hint.contains("gpuvm capacity"), "{hint}");
}

#[test]
fn the_reason_names_the_worst_fact_about_missing_devices_first() {
    // Two GPUs on node 0; a NIC on the switch of the first, one on node 0 without a switch, and one
    // on node 1.
    let host = small(&[0, 1], &[0, 4, 2]);
    let [own, near, far] = ["40:00.0", "41:00.0", "42:00.0"].map(bdf);
    let taken = |devices: &[Bdf]| Occupancy {
        domains: vec![Held {
            domain: "other".into(),
            devices: devices.to_vec(),
            ..Held::default()
        }],
        ..Occupancy::default()
    };
    let reasons = |held: &Occupancy, number| {
        let (_, reasons) = choose(&host, held, &request(&[0], number, 0, 0)).unwrap();
        let said = reasons.iter().filter(|reason| reason.compromise);
        said.map(|reason| reason.because.to_string()).collect::<Vec<_>>()
    };
    let on_switch = "no NIC available on the switch of GPU 0: 0000:40:00.0 is held by domain \
                     `other`";
    let below_none = "0000:41:00.0 is below no PCIe switch with a GPU of the guest, on the node of \
                      one";
    assert_eq!(reasons(&taken(&[own]), 1), [below_none, on_switch]);
    let off_node = "0000:42:00.0 is not on the node of any GPU of the guest";
    let on_node = "no NIC available on the node of GPU 0: 0000:40:00.0 is held by domain `other` \
                   and 0000:41:00.0 is held by domain `other`";
    assert_eq!(reasons(&taken(&[own, near]), 1), [off_node, on_node]);
    assert_eq!(reasons(&taken(&[own]), 2), [off_node, below_none, on_switch]);
    assert_eq!(reasons(&taken(&[far]), 1), [] as [&str; 0]);
    // Each of two GPUs could have one, and both NICs are on another node.
    let host = small(&[0, 1], &[2, 2]);
    let (_, all) = choose(&host, &Occupancy::default(), &request(&[0, 1], 2, 0, 0)).unwrap();
    assert_eq!(all.last().unwrap().because.to_string(), "no NIC on the node of GPUs 0 and 1");
}
