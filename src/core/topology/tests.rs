//! Contradictory hosts that are refused.

use super::*;

/// A host of two nodes, a bridge and a function below it.
fn host() -> Parts {
    let node = |id: u32, pcpus: &str| NumaNode {
        os_index: NodeId(id),
        pcpus: pcpus.parse().unwrap(),
        memory_kib: MemSize::from_gib(1),
        distances: vec![10, 21],
        huge_pages: Vec::new(),
        gpu: None,
    };
    let core = |core_id: u32, node: u32, pcpus: &str| Core {
        package: node,
        die: None,
        core_id,
        node: NodeId(node),
        pcpus: pcpus.parse().unwrap(),
    };
    let device = |bdf: &str, parent: Option<&str>| PciDevice {
        bdf: bdf.parse().unwrap(),
        parent: parent.map(|parent| parent.parse().unwrap()),
        root: None,
        class: 0,
        vendor: 1,
        device: 1,
        subsystem_vendor: 0,
        subsystem_device: 0,
        node: Some(NodeId(0)),
        driver: None,
        iommu_group: Some(7),
        bars: Vec::new(),
        link: None,
        link_max: None,
        sriov: None,
        reset_methods: None,
        net: None,
        boot_vga: false,
        uuid: None,
        health: None,
        acs: None,
        ats: None,
        mediated: 0,
        devctl: None,
        vfio: None,
        vgpu: None,
        mig: None,
        second_display: false,
    };
    Parts {
        nodes: vec![node(0, "0,2"), node(1, "1")],
        cores: vec![core(0, 0, "0,2"), core(1, 1, "1")],
        devices: vec![device("00:01.0", None), device("01:00.0", Some("00:01.0"))],
        ..Parts::default()
    }
}

#[test]
fn refuses_what_contradicts_itself() {
    type Damage = fn(&mut Parts);
    let damages: [(&str, Damage); 16] = [
        ("node 1 appears twice", |p| p.nodes[0].os_index = NodeId(1)),
        ("node 65536: its number is above 65535", |p| {
            p.nodes[1].os_index = NodeId(65_536);
            p.cores[1].node = NodeId(65_536);
        }),
        ("node 1: pcpus 2 are on another node, too", |p| {
            p.nodes[1].pcpus.insert(PcpuId(2));
        }),
        ("node 1: 1 distances for 2 nodes", |p| p.nodes[1].distances.truncate(1)),
        ("node 1 names pcpu 9, which does not exist", |p| p.nodes[1].pcpus.insert(PcpuId(9))),
        ("core 1 of package 1 names node 3, which does not exist", |p| p.cores[1].node = NodeId(3)),
        ("core 1 of package 1: pcpus 1 are not all on node 0", |p| p.cores[1].node = NodeId(0)),
        ("core 1 of package 1: no online pcpu", |p| p.cores[1].pcpus = CpuSet::new()),
        ("pcpu 0 appears twice", |p| p.cores.push(p.cores[0].clone())),
        ("it has no online pcpu", |p| {
            p.cores.clear();
            p.nodes.clear();
        }),
        ("PCI function 0000:01:00.0 appears twice", |p| p.devices.push(p.devices[1].clone())),
        ("PCI function 0000:00:01.0 names node 4, which does not exist", |p| {
            p.devices[0].node = Some(NodeId(4));
        }),
        ("PCI function 0000:00:01.0: it stands above itself", |p| {
            p.devices[0].parent = Some(p.devices[1].bdf);
        }),
        ("names bridge 0000:09:00.0, which does not exist", |p| {
            p.devices[0].parent = "09:00.0".parse().ok();
        }),
        ("names physical function 0000:09:00.0, which does not exist", |p| {
            p.devices[0].sriov = Some(Sriov::Vf { pf: "09:00.0".parse().unwrap() });
        }),
        ("fabric NVLink names PCI function 0000:09:00.0, which does not exist", |p| {
            p.fabric.module_ids.push(("09:00.0".parse().unwrap(), 1));
        }),
    ];
    Topology::new(host()).unwrap();
    for (text, damage) in damages {
        let mut parts = host();
        damage(&mut parts);
        let error = Topology::new(parts).expect_err(text).to_string();
        assert!(error.contains(text), "{error:?} does not say {text:?}");
    }
}

#[test]
fn a_record_with_amounts_that_no_machine_has_is_refused() {
    let read = |change: &dyn Fn(&mut Parts)| {
        let mut parts = host();
        change(&mut parts);
        file::from_json(&file::to_json(&Topology::new(parts).unwrap())).map_err(|e| e.to_string())
    };
    let pool =
        |free| HugePagePool { page_kib: MemSize::from_kib(2048), total: 4, free, surplus: 0 };
    assert!(read(&|parts| parts.nodes[0].huge_pages = vec![pool(4)]).is_ok());
    let error = read(&|parts| parts.nodes[0].huge_pages = vec![pool(5)]).unwrap_err();
    assert!(error.contains("5 of 4 huge pages of 2 MiB are free"), "{error}");
    let error = read(&|parts| parts.nodes[0].memory_kib = MemSize::from_kib(u64::MAX)).unwrap_err();
    assert!(error.contains("more than 4096 TiB"), "{error}");
}

#[test]
fn finds_related_objects() {
    let host = Topology::new(host()).unwrap();
    let bdf = |text: &str| text.parse::<Bdf>().unwrap();
    assert_eq!(host.path_to_root(bdf("01:00.0")), [bdf("01:00.0"), bdf("00:01.0")]);
    assert_eq!(host.path_to_root(bdf("02:00.0")), []);
    assert_eq!(host.iommu_group(bdf("01:00.0")).unwrap().members.len(), 2);
    assert_eq!(host.core_of(PcpuId(2)).unwrap().core_id, 0);
    assert!(host.core_of(PcpuId(3)).is_none());
    assert_eq!(host.pcpus().to_string(), "0-2");
    assert_eq!(host.cores_of(NodeId(1)).count(), 1);
}

#[test]
fn a_string_that_discovery_reads_is_read_from_a_record_however_it_is_escaped() {
    let with = |letter: &str, count: usize| {
        let mut parts = host();
        parts.machine.vendor = Some(letter.repeat(count));
        let host = Topology::new(parts).unwrap();
        file::from_json(&file::to_json(&host)).map(|read| assert_eq!(read, host))
    };
    for letter in ["x", "\u{1}", "\"", "\\"] {
        assert!(with(letter, file::MOST_STRING).is_ok(), "{letter:?}");
        assert!(with(letter, file::MOST_STRING + 1).is_err(), "{letter:?}");
    }
}
