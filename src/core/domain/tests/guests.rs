//! The recorded hosts, templates and requests that whole guests are made from. Used by the
//! integration tests, too.

use gpuvm_core::domain::guest::{
    Abilities, Disk, DiskFormat, DiskKind, Guest, Made, Record, Role, VirtType,
};
use gpuvm_core::domain::{DomainXml, edits};
use gpuvm_core::placement::Placement;
use gpuvm_core::request::{
    DeviceWish, DomainName, GpuWish, HugePages, PageSize, PinPolicy, Request,
};
use gpuvm_core::topology::{Topology, file};

/// The built-in template, one for direct kernel boot, and one with every kind of PCI device that a
/// template may have.
pub const TEMPLATES: [(&str, &str); 3] = [
    ("gpu-guest", include_str!("../../../../templates/gpu-guest.xml")),
    ("tiny", include_str!("../../../../tests/tiny/domain.xml")),
    ("crowded", include_str!("crowded.xml")),
];

/// The recorded hosts of `topologies`, by name.
const HOSTS: [(&str, &str); 6] = [
    ("dgx-1", include_str!("../../../../topologies/dgx-1.json")),
    ("dgx-2", include_str!("../../../../topologies/dgx-2.json")),
    ("dgx-a100", include_str!("../../../../topologies/dgx-a100.json")),
    ("dgx-h100", include_str!("../../../../topologies/dgx-h100.json")),
    ("dual-socket", include_str!("../../../../topologies/dual-socket.json")),
    ("h100-guest", include_str!("../../../../topologies/h100-guest.json")),
];

/// A recorded host of `topologies`.
pub fn host(name: &str) -> Topology {
    let (_, text) = HOSTS.iter().find(|(of, _)| *of == name).unwrap();
    file::from_json(text).unwrap()
}

/// Every recorded host, by name.
pub fn hosts() -> Vec<(String, Topology)> {
    HOSTS.iter().map(|(name, text)| ((*name).into(), file::from_json(text).unwrap())).collect()
}

/// Requests for a host: every number of GPUs, huge pages, no pins, NICs and drives.
pub fn requests(topology: &Topology) -> Vec<(String, Request)> {
    let gpus = u32::try_from(topology.gpus().count()).unwrap();
    let mut requests: Vec<_> =
        (0..=gpus).map(|n| (format!("g{n}"), Request::for_gpus(n))).collect();
    let most = Request::for_gpus(gpus);
    requests.push((
        "huge-2m".into(),
        Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..most.clone() },
    ));
    requests.push((
        "huge-1g".into(),
        Request { huge_pages: HugePages::Size(PageSize::OneGib), ..most.clone() },
    ));
    let floating = Request { pins: PinPolicy::None, vcpus: Some(4), threads: Some(2), ..most };
    requests.push(("floating".into(), Request { gpus: GpuWish::Count(0), ..floating.clone() }));
    requests.push(("floating-gpus".into(), floating));
    for (name, gpus, nics) in [("beside", 1, 1), ("beside-all", gpus, gpus.max(1)), ("alone", 0, 1)]
    {
        let mut request = Request::for_gpus(gpus);
        request.extras.nics = DeviceWish::Count(nics);
        request.extras.nvmes = DeviceWish::Count(1);
        requests.push((name.into(), request));
    }
    requests
}

/// A guest of this name with two disks.
pub fn guest(name: &str, virt: VirtType, request: &Request) -> Guest {
    let disk = |path: &str, kind| Disk::new(path, DiskFormat::Raw, kind);
    Guest {
        name: DomainName::new(name).unwrap(),
        virt,
        disks: vec![disk("/images/a.raw", DiskKind::File), disk("/dev/vg/b", DiskKind::Block)],
        networks: Vec::new(),
        added_networks: vec!["private-net".into()],
        vf_pools: Vec::new(),
        mac_key: None,
        taken_macs: Vec::new(),
        spare_ports: 0,
        abilities: Abilities::default(),
        record: Record {
            request: request.clone(),
            made: vec![made("/images/a.raw")],
            bound: Vec::new(),
            reserved: Vec::new(),
            guarded: Vec::new(),
            vgpus: Vec::new(),
            nccl: None,
            known: Vec::new(),
            user: None,
            assumed: None,
        },
    }
}

/// Makes a guest from a template.
pub fn render(template: &str, guest: &Guest, place: &Placement, host: &Topology) -> DomainXml {
    let mut xml = DomainXml::parse(template).unwrap();
    let edits = edits(&xml, guest, place, host).unwrap();
    xml.apply_all(&edits).unwrap();
    xml
}

/// A boot disk at a path, as recorded in our metadata.
pub fn made(path: &str) -> Made {
    Made { role: Role::Os, path: path.into(), volume: None }
}
