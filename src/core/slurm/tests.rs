//! The description of a job, and the configuration of a node.

use super::*;
use crate::memsize::MemSize;
use crate::topology::Topology;
use crate::topology::file::from_json;

const HOSTS: [&str; 5] = [
    include_str!("../../../topologies/dgx-1.json"),
    include_str!("../../../topologies/dgx-2.json"),
    include_str!("../../../topologies/dgx-a100.json"),
    include_str!("../../../topologies/dgx-h100.json"),
    include_str!("../../../topologies/dual-socket.json"),
];

/// A recorded DGX-2.
fn dgx2() -> Topology {
    from_json(HOSTS[1]).unwrap()
}

#[test]
fn gres_requests_are_read_in_the_words_of_every_version() {
    let read = |text: &str| GresRequest::read(text, "gpuvm").map(|gres| (gres.count, gres.of));
    let v100 = Some("v100".to_owned());
    for (text, wanted) in [
        ("N/A", (0, None)),
        ("(null)", (0, None)),
        ("", (0, None)),
        ("gres:gpuvm", (1, None)),
        ("gres:gpuvm:2", (2, None)),
        ("gres/gpuvm:2", (2, None)),
        ("gres:gpuvm:v100", (1, v100.clone())),
        ("gres:gpuvm:v100:3", (3, v100.clone())),
        ("gres:gpuvm:v100:3,gres:gpuvm:v100:1", (4, v100.clone())),
        ("gres:license:9,gres:gpuvm:0", (0, None)),
        ("gres:gpu:8", (0, None)),
        ("gres:gpuvmx:8", (0, None)),
    ] {
        assert_eq!(read(text), Ok(wanted), "{text}");
    }
    for bad in
        ["gres:gpuvm:2K", "gres:gpuvm:v100:x", "gres:gpuvm:v100:1:2", "gres:gpuvm:4294967296"]
    {
        assert!(matches!(read(bad), Err(JobError::Gres { .. })), "{bad}");
    }
    let sum = "gres:gpuvm:4294967295,gres:gpuvm:1";
    assert!(matches!(read(sum), Err(JobError::Gres { .. })));
    assert!(matches!(read("gres:gpuvm:a:1,gres:gpuvm:b:1"), Err(JobError::Types { .. })));
}

#[test]
fn a_comment_has_values_of_few_kinds() {
    let said = read_comment("run 7 image=debian-12\n vcpus=8\tmemory=64G").unwrap();
    let said: Vec<_> = said.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(said, [("image", "debian-12"), ("vcpus", "8"), ("memory", "64G")]);
    assert_eq!(read_comment("nothing to say"), Ok(Vec::new()));
    for hostile in [
        "image=$(reboot)",
        "image=`id`",
        "image=a;b",
        "image=../../etc/shadow",
        "image=/dev/sda",
        "image=--disk",
        "image=a|b",
        "image='a'",
        "image=a\u{1b}[1m",
        "image=ä",
        "image=",
        "image=a=b",
        "image=a image=b",
    ] {
        assert!(matches!(read_comment(hostile), Err(JobError::Value { .. })), "{hostile:?}");
    }
    assert!(read_comment(&format!("image={}", "a".repeat(129))).is_err());
    let error = read_comment("disk=/dev/sda").unwrap_err().to_string();
    assert_eq!(error, "comment of the job: unknown key `disk`; it takes image, vcpus, memory");
    let long = read_comment(&format!("{}=1", "k".repeat(5000))).unwrap_err().to_string();
    assert!(long.len() < 200, "{long}");
}

#[test]
fn a_reason_is_one_line_that_slurm_can_show() {
    let said = reason("no partition of 4 GPUs is free\n  held by `a`;\thint: \"x\"\u{7}");
    assert_eq!(said, "no partition of 4 GPUs is free held by 'a'; hint: 'x'");
    assert!(reason(&"word ".repeat(1000)).len() < 1000);
    assert_eq!(reason(""), "");
}

#[test]
fn a_dgx_2_has_its_node_line() {
    let wanted = ConfRequest { node: "dgx01".into(), ..ConfRequest::default() };
    let lines = conf(&dgx2(), &wanted).unwrap();
    assert_eq!(lines.gres_conf, ["NodeName=dgx01 Name=gpuvm Type=v100 Count=16"]);
    let line =
        "NodeName=dgx01 CPUs=96 Boards=1 SocketsPerBoard=2 CoresPerSocket=24 ThreadsPerCore=2 ";
    assert!(lines.node_line.starts_with(line), "{}", lines.node_line);
    assert!(lines.node_line.ends_with(" Gres=gpuvm:v100:16"), "{}", lines.node_line);
    assert!(lines.settings.contains(&"GresTypes=gpuvm".to_owned()), "{:?}", lines.settings);
    let kept = ConfRequest {
        reserve_cores: 1,
        reserve_memory: MemSize::from_kib(8 << 20),
        ..wanted.clone()
    };
    let line = conf(&dgx2(), &kept).unwrap().node_line;
    assert!(line.contains(" MemSpecLimit=16384 CpuSpecList=0-1,48-49 "), "{line}");
    let all = ConfRequest { reserve_cores: 24, ..wanted.clone() };
    assert!(matches!(conf(&dgx2(), &all), Err(SlurmConfError::NoCores { cores: 24, .. })));
    assert!(conf(&dgx2(), &ConfRequest { reserve_cores: 23, ..wanted.clone() }).is_ok());
    let all = ConfRequest { reserve_memory: MemSize::from_gib(9000), ..wanted.clone() };
    assert!(matches!(conf(&dgx2(), &all), Err(SlurmConfError::NoMemory { .. })));
    for node in ["", "-x", "a b", "a;b", "a\nb"] {
        let wanted = ConfRequest { node: node.into(), ..wanted.clone() };
        assert!(matches!(conf(&dgx2(), &wanted), Err(SlurmConfError::NodeName { .. })), "{node}");
    }
}

#[test]
fn only_memory_that_guests_get_is_counted_and_reserved() {
    let with = |nodes: &[(u64, bool)]| {
        let mut parts = dgx2().parts().clone();
        let model = parts.nodes[0].clone();
        for (at, &(gib, is_gpus)) in nodes.iter().enumerate() {
            parts.nodes.push(crate::topology::NumaNode {
                os_index: crate::cpuset::NodeId(u32::try_from(2 + at).unwrap()),
                pcpus: crate::cpuset::CpuSet::new(),
                memory_kib: MemSize::from_gib(gib),
                gpu: is_gpus.then(|| dgx2().gpus().next().unwrap().bdf),
                ..model.clone()
            });
        }
        for node in &mut parts.nodes {
            node.distances = Vec::new();
        }
        Topology::new(parts).unwrap()
    };
    let wanted = ConfRequest {
        node: "n".into(),
        reserve_memory: MemSize::from_kib(8 << 20),
        ..ConfRequest::default()
    };
    let plain = conf(&with(&[]), &wanted).unwrap();
    for (nodes, said) in [
        (&[(0, false)][..], None),
        (&[(96, true)], None),
        (&[(512, false)], Some("512 GiB of node 2")),
    ] {
        let found = conf(&with(nodes), &wanted).unwrap();
        assert_eq!((&found.node_line, &found.settings), (&plain.node_line, &plain.settings));
        assert_eq!(found.left_out.len(), usize::from(said.is_some()), "{:?}", found.left_out);
        let part = said.unwrap_or_default();
        assert!(found.left_out.iter().all(|line| line.contains(part)), "{:?}", found.left_out);
    }
    // A node with cores alone has nothing to reserve.
    let mut parts = dgx2().parts().clone();
    parts.nodes[1].memory_kib = MemSize::default();
    let line = conf(&Topology::new(parts).unwrap(), &wanted).unwrap().node_line;
    assert!(line.contains(" MemSpecLimit=8192 "), "{line}");
}

#[test]
fn every_gpu_has_its_file_and_its_links() {
    let wanted = ConfRequest { node: "n".into(), files: true, ..ConfRequest::default() };
    let lines = conf(&dgx2(), &wanted).unwrap();
    assert_eq!((lines.gres.as_str(), lines.gres_conf.len()), ("gpu", 16));
    for (number, line) in lines.gres_conf.iter().enumerate() {
        let links = line.split(" Links=").nth(1).unwrap().split(' ').next().unwrap();
        let links: Vec<i32> = links.split(',').map(|link| link.parse().unwrap()).collect();
        assert_eq!(links.len(), 16, "{line}");
        let own: Vec<_> = (0..16).filter(|other| links[*other] == -1).collect();
        assert_eq!(own, [number], "{line}");
        let cores = if number < 8 { " Cores=0-23" } else { " Cores=24-47" };
        assert!(line.ends_with(cores) && line.contains(" File=/dev/vfio/"), "{line}");
    }
    assert!(lines.settings.contains(&"DefCpuPerGPU=6".to_owned()), "{:?}", lines.settings);
}

#[test]
fn every_recorded_host_with_gpus_has_lines() {
    let mut seen = 0;
    for record in HOSTS {
        let topology = from_json(record).unwrap();
        let wanted = ConfRequest { node: "n".into(), ..ConfRequest::default() };
        match conf(&topology, &wanted) {
            Ok(conf) => {
                seen += 1;
                assert_eq!(conf.types.values().sum::<u32>() as usize, topology.gpus().count());
                assert!(conf.types.keys().all(|of| !of.contains([' ', ':', ','])), "{conf:?}");
            }
            Err(error) => assert_eq!(error, SlurmConfError::NoGpus),
        }
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn cards_with_virtual_functions_are_not_counted_whole() {
    let with = |shared: usize| {
        let mut record: serde_json::Value = serde_json::from_str(HOSTS[1]).unwrap();
        let devices = record["host"]["devices"].as_array_mut().unwrap();
        let gpus = devices.iter_mut().filter(|one| one["class"] == "0x030200");
        for gpu in gpus.take(shared) {
            gpu["sriov"] = serde_json::json!({ "role": "pf", "total": 16, "enabled": 16 });
        }
        from_json(&record.to_string()).unwrap()
    };
    for files in [false, true] {
        let wanted = ConfRequest { node: "n".into(), files, ..ConfRequest::default() };
        let lines = conf(&with(12), &wanted).unwrap();
        assert_eq!(lines.types.values().sum::<u32>(), 4);
        assert_eq!(lines.gres_conf.len(), if files { 4 } else { 1 });
        let is_shared = |error| matches!(error, SlurmConfError::NoWholeGpus { .. });
        assert!(conf(&with(16), &wanted).is_err_and(is_shared));
    }
}

/// A DGX-2 whose first GPU is changed.
fn with_first(change: impl Fn(&mut crate::topology::PciDevice)) -> (Topology, crate::bdf::Bdf) {
    let host = dgx2();
    let first = host.gpus().next().unwrap().bdf;
    let mut parts = host.parts().clone();
    let gpu = parts.devices.iter_mut().find(|device| device.bdf == first).unwrap();
    change(gpu);
    (Topology::new(parts).unwrap(), first)
}

#[test]
fn cards_that_no_guest_gets_whole_are_neither_counted_nor_numbered() {
    use crate::health::{Health, HealthCode, HealthFinding, HealthSource};
    use crate::topology::{Sriov, Vgpu};
    let wanted = ConfRequest { node: "n".into(), ..ConfRequest::default() };
    let counted = |host: &Topology| conf(host, &wanted).unwrap().types.values().sum::<u32>();
    let numbered = |host: &Topology| {
        gpus_by_file(host).map(|gpus| gpus.iter().map(|gpu| gpu.bdf).collect::<Vec<_>>())
    };
    let all = numbered(&dgx2()).unwrap();
    let finding = HealthFinding { code: HealthCode::GpuLost, text: "it is lost".into() };
    let (source, findings, accepted) = (HealthSource::Nvml, vec![finding], Vec::new());
    let sick = Health { source, findings, accepted };
    assert!(sick.is_over());
    for sick in [None, Some(sick)] {
        let (host, first) = with_first(|gpu| {
            gpu.sriov = Some(Sriov::Pf { total: 16, enabled: 2 });
            gpu.health.clone_from(&sick);
        });
        assert_eq!(counted(&host), 15);
        assert_eq!(numbered(&host).unwrap(), all[1..]);
        assert_eq!(all[0], first);
        // Health alone moves no number.
        let (host, _) = with_first(|gpu| gpu.health.clone_from(&sick));
        assert_eq!((counted(&host), numbered(&host).unwrap()), (16, all.clone()));
    }
    let (host, _) = with_first(|gpu| gpu.mediated = 1);
    assert_eq!(counted(&host), 15);
    // It is whole again once its last mediated device is gone.
    for mediated in [0, 1] {
        let (host, first) = with_first(|gpu| {
            gpu.mediated = mediated;
            gpu.vgpu = Some(Vgpu::Mdev { types: Vec::new(), devices: Vec::new() });
        });
        assert_eq!(counted(&host), 16 - mediated);
        assert_eq!(numbered(&host), Err(SlurmConfError::Mediated { bdf: first.to_string() }));
    }
}

#[test]
fn a_kernel_without_vfio_groups_has_no_files() {
    let mut parts = dgx2().parts().clone();
    let groups = Some(false);
    parts.machine.iommufd =
        Some(crate::topology::Iommufd { node: true, unsafe_interrupts: None, groups });
    let host = Topology::new(parts).unwrap();
    let wanted = ConfRequest { node: "n".into(), files: true, ..ConfRequest::default() };
    assert_eq!(conf(&host, &wanted), Err(SlurmConfError::NoVfioGroups));
}

#[test]
fn types_are_words_of_slurm() {
    for (model, wanted) in [
        ("V100 SXM3 32 GB", "v100"),
        ("H100 NVL", "h100"),
        ("RTX A6000", "rtx_a6000"),
        ("Quadro RTX 6000/8000", "quadro_rtx_6000"),
        ("Instinct MI50 32 GB", "instinct_mi50"),
        ("10de:2330", "10de_2330"),
        ("", "unknown"),
    ] {
        assert_eq!(gpu_type(model), wanted);
    }
}

#[test]
fn cores_are_named_only_if_slurm_knows_cores() {
    let (mut even, mut uneven) = (0, 0);
    for host in HOSTS {
        let wanted = ConfRequest { node: "n".into(), files: true, ..ConfRequest::default() };
        let Ok(lines) = conf(&from_json(host).unwrap(), &wanted) else { continue };
        let is_told = lines.node_line.contains("CoresPerSocket=");
        *(if is_told { &mut even } else { &mut uneven }) += 1;
        let names = |line: &String| line.contains("Cores=");
        assert!(lines.gres_conf.iter().all(|line| names(line) == is_told), "{lines:?}");
    }
    assert!(even > 0 && uneven > 0, "{even}, {uneven}");
}
