//! Consistency: for any request and host, the plan, the export and the definition of `create`
//! agree.

use super::*;
use crate::create::{self, CreateRequest};
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::domain::guest::VirtType;
use crate::export::export;
use crate::guest::{NameRequest, PlannedPlace};
use crate::memsize::MemSize;
use crate::placement::GuestTopology;
use crate::reporter::Answer;
use crate::request::{
    CellWish, DeviceWish, DomainName, GpuWish, HugePages, PageSize, PinPolicy, Profile, Request,
};
use crate::stage::{Caller, Stage, UUID};
use crate::storage::{DataRequest, Keyless, SeedRequest, SeedWanted, StorageRequest};
use crate::taken::Taken;
use crate::topology::{Topology, file};
use crate::world::Settings;
use proptest::prelude::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static HOSTS: LazyLock<Vec<Topology>> = LazyLock::new(|| {
    let files = [
        include_str!("../../../topologies/dgx-1.json"),
        include_str!("../../../topologies/dgx-2.json"),
        include_str!("../../../topologies/dgx-a100.json"),
        include_str!("../../../topologies/dgx-h100.json"),
        include_str!("../../../topologies/dual-socket.json"),
    ];
    let hosts = files.map(|text| file::from_json(text).unwrap());
    let arm = hosts.each_ref().map(|host| {
        let mut parts = host.parts().clone();
        parts.machine.architecture = Some("aarch64".into());
        Topology::new(parts).unwrap()
    });
    hosts.into_iter().chain(arm).collect()
});

/// A template whose own disk is served by its third I/O thread.
const TEMPLATE: &str = "<domain type='kvm'>\n  <name>t</name>\n  <memory>1</memory>\n  \
    <vcpu>1</vcpu>\n  <iothreads>3</iothreads>\n  <os>\n    <type arch='x86_64' \
    machine='q35'>hvm</type>\n  </os>\n  <devices>\n    <disk type='file' device='disk'>\n      \
    <driver name='qemu' iothread='3'/>\n      <source file='/own.raw'/>\n      <target dev='vdq' \
    bus='virtio'/>\n    </disk>\n  </devices>\n</domain>\n";

#[derive(Debug, Clone)]
struct Case {
    /// The index of the host, modulo their number.
    host: usize,
    request: Request,
    virt: VirtType,
    /// `None` if the host is a recorded one; otherwise whether its hypervisor can map queues of a
    /// disk to I/O threads.
    maps_queues: Option<bool>,
    /// Whether its template has a disk of its own.
    own_template: bool,
    /// Whether the boot disk exists already; otherwise it is created from an image.
    own_disk: bool,
}

/// Guests that fit on the host and guests that do not.
fn request() -> impl Strategy<Value = Request> {
    let gpus = prop_oneof![0..17u32, Just(1), Just(2), Just(4), Just(8)];
    let vcpus = proptest::option::weighted(0.4, 1..130u32);
    let memory = proptest::option::weighted(0.4, 1..200_000_000u64);
    let pages = [HugePages::Off, HugePages::Auto, HugePages::Size(PageSize::TwoMib)];
    let pages = proptest::sample::select(pages.to_vec());
    let profile = prop_oneof![4 => Just(Profile::Share), 1 => Just(Profile::Near), 1 => Just(Profile::NvidiaVm)];
    let shape = prop_oneof![
        6 => Just((PinPolicy::Core, CellWish::Auto)),
        1 => Just((PinPolicy::Thread, CellWish::Auto)),
        2 => (1..4u32).prop_map(|cells| (PinPolicy::None, CellWish::Count(cells))),
        1 => (1..4u32).prop_map(|cells| (PinPolicy::Core, CellWish::Count(cells))),
    ];
    let beside = (0..3u32, 0..3u32, any::<bool>());
    (gpus, vcpus, memory, pages, profile, shape, beside).prop_map(
        |(gpus, vcpus, memory, huge_pages, profile, (pins, cells), (nics, nvmes, remote))| {
            let memory_kib = memory.map(MemSize::from_kib);
            let base = Request::for_gpus(gpus);
            let mut request =
                Request { vcpus, memory_kib, huge_pages, profile, pins, cells, ..base };
            request.extras.nics = DeviceWish::Count(nics);
            request.extras.nvmes = DeviceWish::Count(nvmes);
            request.allow.remote = remote;
            request
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let virt = prop_oneof![2 => Just(VirtType::Kvm), 1 => Just(VirtType::Qemu)];
    let maps_queues = prop_oneof![2 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (0..HOSTS.len(), request(), virt, maps_queues, proptest::bool::weighted(0.2), any::<bool>())
        .prop_map(|(host, request, virt, maps_queues, own_template, own_disk)| Case {
            host,
            request,
            virt,
            maps_queues,
            own_template,
            own_disk,
        })
}

/// The numbers of a guest that both a plan and a definition have.
#[derive(Debug, PartialEq)]
struct Numbers {
    name: String,
    memory: MemSize,
    vcpu_pins: Vec<CpuSet>,
    emulator_pin: CpuSet,
    iothread_pins: Vec<CpuSet>,
    topology: GuestTopology,
    /// vCPUs, memory and host nodes of each cell.
    cells: Vec<(Vec<u32>, MemSize, String)>,
    devices: Vec<Bdf>,
    /// The source of its cache leaves.
    cache: Option<String>,
    /// Its huge pages, in KiB.
    pages: Option<MemSize>,
}

impl Numbers {
    /// The numbers of a plan. A single cell without a host node is not written for a guest without
    /// passed-through devices.
    fn planned(planned: &Planned) -> Numbers {
        let place = &planned.placement;
        let is_numa = place.cells.len() > 1
            || !place.devices.is_empty()
            || place.cells.iter().any(|cell| !cell.host_nodes.is_empty());
        let cells = place.cells.iter().filter(|_| is_numa).map(|cell| {
            (cell.vcpus.clone().collect(), cell.memory_kib, cell.host_nodes.to_string())
        });
        let mut devices = place.devices.clone();
        devices.sort();
        Numbers {
            name: planned.name.to_string(),
            memory: place.memory(),
            vcpu_pins: place.vcpu_pins.clone(),
            emulator_pin: place.emulator_pin.clone(),
            iothread_pins: place.iothread_pins.clone(),
            topology: place.topology,
            cells: cells.collect(),
            devices,
            cache: place.cache.map(|cache| cache.as_str().to_owned()),
            pages: place.huge_pages.map(PageSize::size),
        }
    }

    fn defined(xml: &DomainXml) -> Numbers {
        let claims = Claims::read(xml);
        assert!(claims.faults.is_empty(), "{:?}", claims.faults);
        let mut vcpu_pins = vec![CpuSet::new(); claims.vcpus.value as usize];
        for pin in &claims.vcpu_pins {
            vcpu_pins[pin.of.value as usize] = pin.cpuset.value.clone();
        }
        let mut iothread_pins = vec![CpuSet::new(); claims.iothreads.len()];
        for pin in &claims.iothread_pins {
            iothread_pins[pin.of.value as usize - 1] = pin.cpuset.value.clone();
        }
        let cells = claims.cells.iter().map(|cell| {
            let vcpus = cell.vcpus.as_ref().map(|set| set.value.iter().map(|v| v.0).collect());
            let nodes =
                claims.binding(Some(cell.id)).map(|binding| binding.nodes.value.to_string());
            (vcpus.unwrap_or_default(), cell.memory.value, nodes.unwrap_or_default())
        });
        let cpu = xml.root().child("cpu").unwrap();
        let topology = cpu.child("topology").unwrap();
        let part = |name| topology.attr(name).map_or(1, |value| value.parse().unwrap());
        let mut devices: Vec<Bdf> = claims.passed.iter().map(|passed| passed.bdf.value).collect();
        devices.sort();
        Numbers {
            name: claims.name.clone(),
            memory: claims.memory.value,
            vcpu_pins,
            emulator_pin: claims
                .emulator_pin
                .as_ref()
                .map(|pin| pin.value.clone())
                .unwrap_or_default(),
            iothread_pins,
            topology: GuestTopology {
                sockets: part("sockets"),
                dies: part("dies"),
                cores: part("cores"),
                threads: part("threads"),
            },
            cells: cells.collect(),
            devices,
            cache: cpu.child("cache").and_then(|cache| cache.attr("mode")).map(Into::into),
            pages: xml.held(false).unwrap().huge_page_kib,
        }
    }
}

/// The disks of a case: one writable disk.
fn disks(case: &Case, dir: &Path) -> StorageRequest {
    let disk = dir.join("disk.raw");
    let is_named = case.own_disk || case.maps_queues.is_some();
    StorageRequest {
        disk: is_named.then_some(disk).into_iter().collect(),
        data: DataRequest::None,
        ..StorageRequest::default()
    }
}

/// The definition that `create` would make.
fn created(world: &World, guest: &GuestRequest, storage: &StorageRequest) -> DomainXml {
    let seed = SeedRequest {
        ssh_key: Vec::new(),
        home: None,
        user: None,
        password_hash: None,
        password_file: None,
        user_data: None,
        meta_data: None,
        network_config: None,
        agent: false,
        nccl: crate::storage::NcclWanted::Link,
        imex_nodes: Vec::new(),
        wanted: SeedWanted::No,
        keyless: Keyless::Refused,
    };
    let wanted = CreateRequest {
        guest: guest.clone(),
        storage: storage.clone(),
        seed,
        uuid: None,
        private_net: false,
        without_nics: false,
        reserve_pages: false,
        accept_shared_fabric: true,
        starts: true,
        applied: None,
        job: None,
    };
    create::create(world, &wanted).unwrap_or_else(|error| panic!("create: {error}")).about
}

/// A definition without gpuvm's own metadata, such as the drivers that `create` unbinds.
fn without_record(xml: &DomainXml) -> String {
    let record = xml.root().child("metadata").unwrap().xml();
    xml.text().replace(record, "")
}

/// The answer of `plan --json`.
fn answer(planned: &Planned, template: Option<&Path>) -> String {
    let Planned { name, request, placement, .. } = planned;
    let (format, version) = ("gpuvm-plan", 1);
    let answer = json!({ "format": format, "version": version, "name": name, "request": request, "template": template, "placement": placement });
    answer.to_string()
}

/// A guest that is planned from the answer has the very same place.
fn same_by_its_answer(world: &World, guest: &GuestRequest, planned: &Planned, file: &Path) {
    std::fs::write(file, answer(planned, guest.template.as_deref())).unwrap();
    let place = Some(PlannedPlace::read(file).unwrap());
    let again = GuestRequest { request: Request::for_gpus(0), place, ..guest.clone() };
    let again =
        plan(world, &again).unwrap_or_else(|error| panic!("{:?}: {error}", planned.request));
    let without_reasons =
        |planned: &Planned| Placement { reasons: Vec::new(), ..planned.placement.clone() };
    assert_eq!(without_reasons(&again), without_reasons(planned), "{:?}", planned.request);
}

/// Compares the three. Returns whether the guest fits on the host.
fn agree(case: &Case) -> bool {
    let stage = Stage::who_says(Answer::Yes);
    let dir = stage.dir.path();
    std::fs::write(dir.join("disk.raw"), vec![0; 4096]).unwrap();
    std::fs::write(dir.join("template.xml"), TEMPLATE).unwrap();
    let topology = HOSTS[case.host].clone();
    let world = match case.maps_queues {
        Some(maps) => {
            stage.fake.maps_queues.set(maps);
            stage.world.with_topology(topology)
        }
        None => {
            let host = Some(PathBuf::from("recorded.json"));
            let settings = Settings { connect: "test:///fake".into(), host, ..Settings::default() };
            World::new(settings, Caller::who_says(Answer::Yes)).with_topology(topology)
        }
    };
    let guest = GuestRequest {
        request: case.request.clone(),
        name: NameRequest::Exact(DomainName::new("one").unwrap()),
        template: case.own_template.then(|| dir.join("template.xml")),
        virt: case.virt,
        networks: Vec::new(),
        taken: Taken::default(),
        place: None,
    };
    let Ok(planned) = plan(&world, &guest) else { return false };
    same_by_its_answer(&world, &guest, &planned, &dir.join("plan.json"));
    let storage = disks(case, dir);
    let numbers = Numbers::planned(&planned);
    let Ok((_, xml)) = export(&world, &guest, &storage) else { return false };
    assert_eq!(Numbers::defined(&xml), numbers, "{case:?}\n{}", xml.text());
    // Nothing of a recorded host can be bound on the machine of the test.
    if case.maps_queues.is_none() {
        let dry = created(&world, &guest, &storage);
        let (xml, dry) = (without_record(&xml), without_record(&dry));
        let differing = xml.lines().zip(dry.lines()).find(|(left, right)| left != right);
        assert_eq!((differing, xml.len()), (None, dry.len()), "{case:?}");
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plan_export_and_create_agree(case in case()) {
        agree(&case);
    }
}

#[test]
fn a_place_that_is_not_free_any_more_is_refused_and_a_free_one_is_had_exactly() {
    let stage = Stage::who_says(Answer::Yes);
    let world = stage.world.with_topology(HOSTS[1].clone());
    let guest = |request: Request, name: &str| GuestRequest {
        request,
        name: NameRequest::Exact(DomainName::new(name).unwrap()),
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken::default(),
        place: None,
    };
    let file = stage.dir.path().join("plan.json");
    let disk = stage.dir.path().join("disk.raw");
    std::fs::write(&disk, vec![0; 4096]).unwrap();
    let xml = |request: Request, name: &str| {
        let storage = StorageRequest { disk: vec![disk.clone()], ..StorageRequest::default() };
        let (_, xml) = export(&world, &guest(request, name), &storage).unwrap();
        let named = xml.text().replacen("</name>", &format!("</name><uuid>{UUID}</uuid>"), 1);
        stage.fake.put_xml(&named, true);
    };
    let gpu = |index| Request { gpus: GpuWish::Indexes(vec![index]), ..Request::for_gpus(0) };
    xml(gpu(7), "beside");
    let first = plan(&world, &guest(Request::for_gpus(2), "a")).unwrap().placement;
    std::fs::write(&file, answer(&plan(&world, &guest(Request::for_gpus(2), "a")).unwrap(), None))
        .unwrap();
    let mut again = guest(Request::for_gpus(0), "b");
    again.place = Some(PlannedPlace::read(&file).unwrap());
    // The one whose cores were avoided is gone: the planner would choose these now.
    stage.fake.domains.borrow_mut().clear();
    let anew = plan(&world, &guest(Request::for_gpus(2), "a")).unwrap().placement;
    assert_ne!(anew.vcpu_pins, first.vcpu_pins);
    let now = plan(&world, &again).unwrap().placement;
    assert_eq!((&now.devices, &now.vcpu_pins), (&first.devices, &first.vcpu_pins));
    // One of its GPUs is taken.
    let text = std::fs::read_to_string(&file).unwrap();
    let taken = GpuWish::Exact(first.devices[..1].to_vec());
    xml(Request { gpus: taken, ..Request::for_gpus(0) }, "other");
    let error = plan(&world, &again).unwrap_err();
    assert!(error.to_string().starts_with("the place in "), "{error}");
    for (text, said) in [
        ("", "is not a plan"),
        ("{\"format\": \"gpuvm-host\", \"version\": 1}", "format `gpuvm-host` version 1"),
        ("{\"format\": \"gpuvm-plan\", \"version\": 2}", "version 2"),
        ("{\"format\": \"gpuvm-plan\", \"version\": 1}", "missing field `name` at line 1"),
        (&text.replace("\"cells\":[{", "\"cells\":[],\"was\":[{"), "no cells"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = PlannedPlace::read(&file).unwrap_err().to_string();
        assert!(error.contains(said), "{text:.60}: {error}");
    }
}

#[test]
fn a_guest_of_every_host_agrees() {
    for host in 0..HOSTS.len() {
        for virt in [VirtType::Kvm, VirtType::Qemu] {
            for maps_queues in [None, Some(false), Some(true)] {
                let is_arm = host >= HOSTS.len() / 2;
                let own_template = maps_queues == Some(false) && !is_arm;
                let has_gpus = host % (HOSTS.len() / 2) != 4;
                let request = Request::for_gpus(if has_gpus { 8 } else { 0 });
                let case = Case { host, request, virt, maps_queues, own_template, own_disk: true };
                assert!(agree(&case), "{case:?}");
            }
        }
    }
}
