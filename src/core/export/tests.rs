//! The shape of plans on other platforms: rules over all recorded hosts and sizes, and refusals.

use super::kubevirt::{KubeVirtExport, kubevirt};
use super::nova::{NovaExport, nova};
use super::resource::ResourceWish;
use super::{Lost, LostKind, PlatformDisks, PlatformError, PlatformGuest};
use crate::memsize::MemSize;
use crate::placement::{Occupancy, Placement, plan};
use crate::request::{
    Allow, CellWish, DeviceWish, DomainName, HugePages, PageSize, PinPolicy, Profile, Request,
};
use crate::topology::Topology;
use crate::topology::file::from_json;

const HOSTS: [(&str, &str); 5] = [
    ("dgx-1", include_str!("../../../topologies/dgx-1.json")),
    ("dgx-2", include_str!("../../../topologies/dgx-2.json")),
    ("dgx-a100", include_str!("../../../topologies/dgx-a100.json")),
    ("dgx-h100", include_str!("../../../topologies/dgx-h100.json")),
    ("dual-socket", include_str!("../../../topologies/dual-socket.json")),
];

fn host(name: &str) -> Topology {
    let (_, text) = HOSTS.iter().find(|(known, _)| *known == name).unwrap();
    from_json(text).unwrap()
}

fn guest<'a>(
    name: &'a DomainName,
    topology: &'a Topology,
    occupancy: &'a Occupancy,
    request: &'a Request,
    placement: &'a Placement,
) -> PlatformGuest<'a> {
    let disks = PlatformDisks { os: MemSize::from_gib(50), has_image: true, data: None };
    PlatformGuest {
        name,
        topology,
        occupancy,
        request,
        placement,
        disks,
        resources: &[],
        lost: &[],
    }
}

type Both = (Result<KubeVirtExport, PlatformError>, Result<NovaExport, PlatformError>);

/// Plans a guest on an empty host and exports it.
fn exports(topology: &Topology, request: &Request, name: &str, given: &[&str]) -> Both {
    let (name, occupancy) = (DomainName::new(name).unwrap(), Occupancy::default());
    let placement = plan(topology, &occupancy, request).unwrap();
    let resources: Vec<ResourceWish> = given.iter().map(|text| text.parse().unwrap()).collect();
    let guest = guest(&name, topology, &occupancy, request, &placement);
    let guest = PlatformGuest { resources: &resources, ..guest };
    (kubevirt(guest), nova(guest))
}

/// KiB of a quantity of Kubernetes.
fn kib(quantity: &str) -> u64 {
    let (number, unit) = quantity.split_at(quantity.len() - 2);
    let shift = ["Ki", "Mi", "Gi"].iter().position(|known| *known == unit).unwrap();
    number.parse::<u64>().unwrap() << (10 * shift)
}

#[test]
fn every_plan_keeps_the_rules_between_fields() {
    let mut seen = 0;
    for (name, text) in HOSTS {
        let topology = from_json(text).unwrap();
        for gpus in [0, 1, 2, 4, 8, 16] {
            for pages in
                [HugePages::Off, PageSize::TwoMib.into_pages(), PageSize::OneGib.into_pages()]
            {
                for profile in [Profile::Share, Profile::Near, Profile::NvidiaVm] {
                    let request = Request { huge_pages: pages, profile, ..Request::for_gpus(gpus) };
                    let occupancy = Occupancy::default();
                    let Ok(placement) = plan(&topology, &occupancy, &request) else { continue };
                    let named = DomainName::new("guest").unwrap();
                    let guest = guest(&named, &topology, &occupancy, &request, &placement);
                    let what = format!("{name}, {gpus} GPUs, {pages:?}, {profile:?}");
                    rules(&what, &placement, &kubevirt(guest).unwrap());
                    if let Ok(export) = nova(guest) {
                        flavor_rules(&what, &placement, &export);
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 100, "{seen} plans");
}

fn rules(what: &str, placement: &Placement, export: &KubeVirtExport) {
    let spec = &export.virtual_machine.spec.template.spec;
    let (cpu, memory) = (&spec.domain.cpu, &spec.domain.memory);
    assert_eq!(cpu.sockets * cpu.cores * cpu.threads, placement.vcpus(), "{what}");
    let is_backed = memory.hugepages.is_some() && cpu.dedicated_cpu_placement;
    assert_eq!(cpu.numa.is_some(), is_backed, "{what}");
    assert_eq!(spec.domain.resources.requests, spec.domain.resources.limits, "{what}");
    assert_eq!(spec.domain.resources.requests.memory, memory.guest, "{what}");
    assert_eq!(kib(&memory.guest), placement.memory().kib(), "{what}");
    if let Some(pages) = &memory.hugepages {
        assert_eq!(kib(&memory.guest) % kib(&pages.page_size), 0, "{what}");
    }
    // A pod is no larger than the plan, so that as many fit on a host.
    let own: usize =
        placement.iothread_pins.iter().fold(placement.emulator_pin.clone(), |a, b| a.or(b)).len();
    let is_told = export.lost.iter().any(|lost| lost.code == LostKind::Emulator);
    assert!(is_told || export.pcpus as usize <= placement.vcpus() as usize + own, "{what}");
    assert!(!cpu.isolate_emulator_thread || cpu.dedicated_cpu_placement, "{what}");
    let pool = spec.domain.io_threads.is_some();
    let policy = if pool { "supplementalPool" } else { "shared" };
    assert_eq!(spec.domain.io_threads_policy.as_deref(), Some(policy), "{what}");
}

fn flavor_rules(what: &str, placement: &Placement, export: &NovaExport) {
    let spec = |key: &str| export.flavor.extra_specs.get(key).map(String::as_str);
    let number = |key: &str| spec(key).map_or(1, |text| text.parse::<u32>().unwrap());
    let product = number("hw:cpu_sockets") * number("hw:cpu_cores") * number("hw:cpu_threads");
    assert_eq!((product, export.flavor.vcpus), (placement.vcpus(), placement.vcpus()), "{what}");
    assert_eq!(export.flavor.ram << 10, placement.memory().kib(), "{what}");
    let cells = placement.cells.len();
    if cells > 1 {
        let all: u64 =
            (0..cells).map(|cell| u64::from(number(&format!("hw:numa_mem.{cell}")))).sum();
        assert_eq!(all, export.flavor.ram, "{what}");
    }
    let aliases: Vec<&str> = export.host.alias.iter().map(|alias| alias.name.as_str()).collect();
    let asked = spec("pci_passthrough:alias").unwrap_or_default();
    let asked: Vec<&str> =
        asked.split(',').filter_map(|one| Some(one.split_once(':')?.0)).collect();
    assert_eq!(asked, aliases, "{what}");
    assert!(export.host.device_spec.len() >= aliases.len(), "{what}");
}

/// Pages as a request has them.
trait IntoPages {
    fn into_pages(self) -> HugePages;
}

impl IntoPages for PageSize {
    fn into_pages(self) -> HugePages {
        HugePages::Size(self)
    }
}

#[test]
fn unsupported_requests_are_refused() {
    let dgx2 = host("dgx-2");
    let base = Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..Request::for_gpus(1) };
    let odd = Request { vcpus: Some(5), ..base.clone() };
    let (kube, nova) = exports(&dgx2, &odd, "a", &[]);
    // Five vCPUs and the emulator fill three cores.
    assert_eq!(kube.unwrap().pcpus, 6);
    assert_eq!(nova.unwrap_err(), PlatformError::OddVcpus { vcpus: 5, threads: 2, next: 6 });
    let rounded = Request { memory_kib: Some("65537M".parse().unwrap()), ..base.clone() };
    let (kube, nova) = exports(&dgx2, &rounded, "a", &[]);
    let error = kube.unwrap_err();
    assert_eq!(error, nova.unwrap_err());
    assert_eq!(
        error.to_string(),
        "65537M of memory is not a multiple of pages of 2 MiB, and the plan has 65538M"
    );
    let (kube, nova) = exports(&dgx2, &base, "Train_A.", &[]);
    let near = match kube.unwrap_err() {
        PlatformError::Name { near, .. } => near,
        other => panic!("{other}"),
    };
    assert_eq!((near.as_str(), nova.is_ok()), ("train-a", true));
    for bad in ["_", "A", "a.b", "a+b", "a-", &"x".repeat(64)] {
        let refused = exports(&dgx2, &base, bad, &[]).0;
        let Err(PlatformError::Name { near, .. }) = refused else { panic!("{bad}: {refused:?}") };
        assert!(exports(&dgx2, &base, &near, &[]).0.is_ok(), "{bad}: {near}");
    }
    let mut drive = base.clone();
    drive.extras.nvmes = DeviceWish::Count(1);
    let (kube, nova) = exports(&dgx2, &drive, "a", &[]);
    for error in [kube.unwrap_err(), nova.unwrap_err()] {
        assert!(matches!(error, PlatformError::UnknownDevice { .. }), "{error}");
    }
    let (kube, nova) = exports(&dgx2, &drive, "a", &["1344:51a2=example.com/Micron-9200"]);
    assert_eq!(kube.unwrap().resources[1].resource, "example.com/Micron-9200");
    let nova = nova.unwrap();
    assert_eq!(nova.flavor.extra_specs["pci_passthrough:alias"], "v100:1,micron-9200:1");
    assert_eq!(nova.host.alias[1].resource_class, "CUSTOM_NVME_MICRON_9200");
    let (kube, _) = exports(&dgx2, &base, "a", &["1344:51a2=example.com/x"]);
    assert!(matches!(kube.unwrap_err(), PlatformError::UnusedResource { .. }));
    let twice = ["10de:1db8=a.b/v100", "10DE:1DB8=a.b/other"];
    let (kube, nova) = exports(&dgx2, &base, "a", &twice);
    for error in [kube.unwrap_err(), nova.unwrap_err()] {
        assert!(matches!(error, PlatformError::TwoNames { .. }), "{error}");
    }
    let option = exports(&dgx2, &base, "a", &["10de:1db8=a.b/--x"]).1.unwrap_err();
    assert!(matches!(option, PlatformError::ResourceName { .. }), "{option}");
    // Two kinds of one name would be one kind.
    let same = ["1344:51a2=a.b/v100", "10de:1db8=a.b/v100"];
    let (kube, nova) = exports(&dgx2, &drive, "a", &same);
    for error in [kube.unwrap_err(), nova.unwrap_err()] {
        assert!(matches!(error, PlatformError::SameName { .. }), "{error}");
    }
    // One cell over two nodes is no cell of Nova's.
    let wide = Request { cells: CellWish::Count(1), ..Request::for_gpus(16) };
    let (kube, nova) = exports(&dgx2, &wide, "a", &[]);
    assert!(kube.is_ok() && matches!(nova.unwrap_err(), PlatformError::SpreadCell { cell: 0, .. }));
}

#[test]
fn cells_threads_and_types_follow_the_host() {
    // An arm host without threads: machine, architecture, thread policy.
    let mut parts = host("dual-socket").parts().clone();
    parts.machine.architecture = Some("aarch64".into());
    for core in &mut parts.cores {
        core.pcpus = core.pcpus.iter().take(1).collect();
    }
    let online: crate::cpuset::CpuSet =
        parts.cores.iter().flat_map(|core| core.pcpus.iter().collect::<Vec<_>>()).collect();
    for node in &mut parts.nodes {
        node.pcpus = node.pcpus.and(&online);
    }
    for cache in &mut parts.l3 {
        cache.pcpus = cache.pcpus.and(&online);
    }
    parts.offline = crate::cpuset::CpuSet::default();
    let arm = Topology::new(parts).unwrap();
    let request = Request { vcpus: Some(5), ..Request::for_gpus(1) };
    let (kube, nova) = exports(&arm, &request, "a", &[]);
    let (kube, nova) = (kube.unwrap(), nova.unwrap());
    let spec = &kube.virtual_machine.spec.template.spec;
    assert_eq!(spec.architecture.as_deref(), Some("arm64"));
    assert_eq!(spec.domain.io_threads_policy.as_deref(), Some("shared"));
    assert_eq!(kube.pcpus, 6, "five vCPUs, and one pcpu for emulator and I/O thread");
    assert!(
        !kube
            .cluster
            .spec
            .configuration
            .developer_configuration
            .feature_gates
            .contains(&"AlignCPUs".into())
    );
    assert_eq!(nova.image["hw_machine_type"], "virt");
    assert!(!nova.image.contains_key("hw_maxphysaddr_mode"));
    assert!(!nova.flavor.extra_specs.contains_key("hw:cpu_thread_policy"));

    // Functions with virtual ones, without, and virtual ones.
    for (name, gpus, vfs, types) in [
        ("dgx-1", 1, 0, &["type-PCI"][..]),
        ("dgx-h100", 1, 0, &["type-PF"]),
        ("dual-socket", 1, 1, &["type-PCI", "type-VF"]),
    ] {
        let mut request = Request::for_gpus(gpus);
        request.extras.vfs = DeviceWish::Count(vfs);
        let given: &[&str] = if vfs > 0 { &["15b3:1018=a.b/vf"] } else { &[] };
        let export = exports(&host(name), &request, "a", given).1.unwrap();
        let found: Vec<&str> = export.host.alias.iter().map(|a| a.device_type.as_str()).collect();
        assert_eq!(found, types, "{name}");
    }

    // A guest that floats has no cells; its host shares its pcpus.
    let floating = Request {
        vcpus: Some(4),
        memory_kib: Some(MemSize::from_gib(4)),
        pins: PinPolicy::None,
        ..Request::for_gpus(0)
    };
    let (kube, nova) = exports(&host("dgx-2"), &floating, "a", &[]);
    let (kube, nova) = (kube.unwrap(), nova.unwrap());
    assert!(kube.pcpus == 0 && kube.cluster.spec.configuration.permitted_host_devices.is_none());
    assert!(!nova.flavor.extra_specs.keys().any(|key| key.starts_with("hw:numa")));
    assert_eq!((nova.host.cpu_dedicated_set, nova.host.cpu_shared_set), (None, None));
}

fn kinds(lost: &[Lost]) -> Vec<LostKind> {
    lost.iter().map(|lost| lost.code).collect()
}

#[test]
fn lost_settings_are_listed() {
    let a100 = host("dgx-a100");
    let request = Request { profile: Profile::Near, ..Request::for_gpus(4) };
    let (kube, nova) = exports(&a100, &request, "a", &[]);
    let (kube, nova) = (kinds(&kube.unwrap().lost), kinds(&nova.unwrap().lost));
    for kind in [
        LostKind::Pins,
        LostKind::Devices,
        LostKind::Partition,
        LostKind::MmioWindow,
        LostKind::PcieTree,
    ] {
        assert!(kube.contains(&kind) && nova.contains(&kind), "{kind:?}: {kube:?} {nova:?}");
    }
    // Cells of normal pages; and as many of huge ones.
    assert!(kube.contains(&LostKind::Cells), "{kube:?}");
    // Functions of the same IOMMU group are bound on the host.
    let audio = exports(&host("dual-socket"), &Request::for_gpus(1), "a", &[]).0.unwrap();
    let named = audio.lost.iter().find(|lost| lost.code == LostKind::Companions).unwrap();
    assert!(named.what.starts_with("0000:18:00.1 of IOMMU group"), "{named:?}");
    assert_eq!(audio.resources.len(), 1);
    // GPUs that are far from the cores of a guest are only preferred to be near.
    let three = Request {
        allow: Allow { remote: true, split: true, mig: false },
        vcpus: Some(150),
        ..Request::for_gpus(3)
    };
    let (kube, nova) = exports(&a100, &three, "a", &[]);
    let (kube, nova) = (kube.unwrap(), nova.unwrap());
    assert!(kube.virtual_machine.spec.template.spec.domain.cpu.sockets >= 1);
    assert!(nova.flavor.extra_specs.contains_key("hw:numa_nodes"), "{nova:?}");
}
