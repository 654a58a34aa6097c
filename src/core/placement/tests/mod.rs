//! The planner by example: each rule with its text.

mod annexes;
mod answers;
mod aside;
mod capacity;
mod choices;
mod cores;
mod edges;
mod extras;
mod nearest;
pub(crate) mod properties;
mod short;
mod slots;
mod sound;
pub(crate) use sound::check_together;
pub(crate) mod testhost;

use super::*;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::cpuset::{CpuSet, NodeSet};
use crate::memsize::MemSize;
use crate::request::{CellWish, GpuWish, HugePages};
use crate::request::{PageSize, PinPolicy, Profile, Request};
use crate::topology::Topology;
use crate::topology::{Drive, DriveUse, HugetlbMount, NetFace, Parts, Sriov};
use testhost::{HostSpec, device, held};

/// The recorded DGX-2.
pub(crate) fn dgx2() -> Topology {
    crate::topology::file::from_json(include_str!("../../../../topologies/dgx-2.json")).unwrap()
}

/// Plans on a host with these domains.
pub(super) fn plan_on(
    topology: &Topology,
    domains: &[Held],
    request: &Request,
) -> Result<Placement, PlanError> {
    plan(topology, &Occupancy { domains: domains.to_vec(), ..Occupancy::default() }, request)
}

/// A request for a run of GPUs.
pub(super) fn run(count: u32, first: u32) -> Request {
    Request { gpus: GpuWish::Run { first, count }, ..Request::for_gpus(0) }
}

pub(super) fn pins(placement: &Placement) -> Vec<u32> {
    placement.vcpu_pins.iter().map(|pin| pin.first().unwrap().0).collect()
}

/// Headline, holders and hint of a refusal.
pub(super) fn refusal(answer: Result<Placement, PlanError>) -> (String, Vec<String>, String) {
    match answer.unwrap_err() {
        PlanError::Taken { what, holders, hint } => (what, holders, hint),
        PlanError::Impossible { what, hint } => (what, vec![], hint),
        PlanError::Request(error) => (error.to_string(), vec![], String::new()),
    }
}

/// Whether a reason of the plan holds this text, as a compromise or not.
pub(super) fn says(placement: &Placement, text: &str, compromise: bool) -> bool {
    placement
        .reasons
        .iter()
        .any(|r| r.because.to_string().contains(text) && r.compromise == compromise)
}

#[test]
fn impossible_sizes_are_refused_with_possible_ones() {
    let host = dgx2();
    let base = || Request::for_gpus(0);
    for (request, what, hint) in [
        (Request::for_gpus(3), "no partition of this board has 3 GPUs", "1, 2, 4, 8, 16"),
        (Request::for_gpus(17), "no partition of this board has 17 GPUs", "1, 2, 4, 8, 16"),
        (run(4, 5), "GPUs 5 to 8 do not form an NVLink partition", "for 4 GPUs: 0, 4, 8, 12"),
        (run(1, 16), "1 GPU from index 16 on: this host has 16", "0 to 15"),
        (run(u32::MAX, u32::MAX), "this host has 16", "0 to 15"),
        (
            Request { vcpus: Some(97), ..base() },
            "requested 97 vCPUs; this host has 96 hyperthreads",
            "gpuvm capacity",
        ),
        (Request { vcpus: Some(49), ..run(1, 0) }, "which has 24 cores", "--allow remote"),
        (
            Request { memory_kib: Some(MemSize::from_gib(900)), ..run(1, 0) },
            "at most 739.5 GiB of node 0",
            "--allow remote",
        ),
        (
            Request {
                memory_kib: Some(MemSize::from_kib(1024)),
                pins: PinPolicy::None,
                cells: CellWish::Count(2),
                ..base()
            },
            "a page of 2 MiB",
            "--memory 4M at least",
        ),
        (Request { threads: Some(2), ..base() }, "threads of a pinned guest", "--pins none"),
        (
            Request { cells: CellWish::Count(2), ..run(1, 0) },
            "a pinned guest on 1 host node has one cell, or one for each node; requested 2",
            "--cells 1",
        ),
        (
            Request { pins: PinPolicy::None, vcpus: Some(5), threads: Some(2), ..base() },
            "5 vCPUs do not divide",
            "a multiple of 2",
        ),
        (
            Request { pins: PinPolicy::None, vcpus: Some(u32::MAX), ..base() },
            "that QEMU takes",
            "4096",
        ),
    ] {
        let (said, _, hinted) = refusal(plan_on(&host, &[], &request));
        assert!(said.contains(what), "{said:?} lacks {what:?}");
        assert!(hinted.contains(hint), "{hinted:?} lacks {hint:?}");
    }
}

#[test]
fn a_small_host_is_advised_to_float() {
    let host = HostSpec { threads: 1, ..HostSpec::even(1, 2, 4, 0) }.build();
    let three = Request { vcpus: Some(3), ..Request::for_gpus(0) };
    let (what, _, hint) = refusal(plan_on(&host, &[], &three));
    assert!(what.contains("requested 3 vCPUs; this host has 2 hyperthreads"), "{what}");
    assert!(hint.contains("gpuvm capacity"), "{hint}");
    let found = nearest(&host, &Occupancy::default(), &three);
    assert_eq!(found.last().map(|near| near.pins), Some(PinPolicy::None), "{found:?}");
    let request = Request { pins: PinPolicy::None, vcpus: Some(4), ..Request::for_gpus(0) };
    let placement = plan_on(&host, &[], &request).unwrap();
    assert!(says(&placement, "they float over the 2 pcpus", true));
}

#[test]
fn a_vcpu_alone_leaves_its_sibling_idle() {
    let host = HostSpec::even(2, 4, 16, 0).build();
    let placement =
        plan_on(&host, &[], &Request { vcpus: Some(1), ..Request::for_gpus(0) }).unwrap();
    assert_eq!((pins(&placement), placement.topology.threads), (vec![0], 1));
}

#[test]
fn cores_that_domains_hold_are_named() {
    let host = HostSpec::even(1, 8, 64, 0).build();
    let request = |vcpus| Request { vcpus: Some(vcpus), ..Request::for_gpus(0) };
    let first = held("big", &plan_on(&host, &[], &request(10)).unwrap());
    let (what, holders, hint) = refusal(plan_on(&host, std::slice::from_ref(&first), &request(6)));
    assert!(what.ends_with("2 of its 8 are free"), "{what}");
    assert_eq!(holders, ["6 cores of node 0 are held by domain `big`"]);
    assert!(hint.starts_with("`gpuvm capacity`"), "{hint}");
    let wide = Held {
        vcpu_pins: vec!["0-7".parse().unwrap()],
        active: true,
        domain: "wide".into(),
        ..first
    };
    let placement = plan_on(&host, &[wide], &request(6)).unwrap();
    assert!(says(&placement, "domain `wide` may run on the same pcpus", true));
}

#[test]
fn odd_cores_carry_the_emulator() {
    // Core 1 of 4 has lost its sibling (place 5).
    let host = HostSpec { offline: vec![5], ..HostSpec::even(1, 4, 64, 1) }.build();
    let placement = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&placement), [0, 4, 2, 6, 3, 7]);
    assert_eq!(placement.emulator_pin.to_string(), "1");
    let host = HostSpec { offline: vec![5, 6], ..HostSpec::even(1, 4, 64, 1) }.build();
    let placement = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!((pins(&placement), placement.topology.threads), (vec![0, 1, 3], 1));
    assert!(says(&placement, "the guest sees 1 thread of a core", true));
}

/// A host of two nodes and four GPUs, changed.
fn changed(change: impl FnOnce(&mut Parts)) -> Topology {
    let mut parts = HostSpec::even(2, 8, 64, 4).parts();
    change(&mut parts);
    Topology::new(parts).unwrap()
}

#[test]
fn gpus_that_cannot_be_had_are_never_placed() {
    let drive = |used_by| Drive {
        name: "nvme0n1".into(),
        bdf: Some("40:00.0".parse().unwrap()),
        bytes: 1,
        model: None,
        rotational: false,
        stable_ids: vec![],
        partitions: vec![],
        used_by,
        content: None,
    };
    let neighbour = |parts: &mut Parts, class| {
        let mut other = device(0x40, class, 0x1234, None);
        other.iommu_group = Some(0x10);
        parts.devices.push(other);
    };
    let cases: [(Topology, &str); 6] = [
        (changed(|p| p.devices[0].device = 0xffff), "does not answer"),
        (
            changed(|p| p.devices[0].sriov = Some(Sriov::Pf { total: 8, enabled: 2 })),
            "has 2 virtual functions enabled",
        ),
        (
            changed(|p| {
                neighbour(p, 0x01_0802);
                p.drives.push(drive(vec![DriveUse::Mounted { at: "/".into() }]));
            }),
            "shares IOMMU group 16 with 0000:40:00.0, which the host uses: nvme0n1 is mounted at /",
        ),
        (
            changed(|p| {
                neighbour(p, 0x02_0000);
                let used_by = vec!["it has the default route".into()];
                p.devices[4].net = Some(NetFace { used_by, ..NetFace::default() });
            }),
            "which the host uses: network, it has the default route",
        ),
        (changed(|p| neighbour(p, 0x02_0000)), "a NIC that stays with the host"),
        (changed(|p| neighbour(p, 0x0c_0330)), "a USB controller that stays with the host"),
    ];
    for (host, why) in cases {
        let (what, _, _) = refusal(plan_on(&host, &[], &run(1, 0)));
        assert!(what.contains(why), "{what:?} lacks {why:?}");
        let placement = plan_on(&host, &[], &Request::for_gpus(3)).unwrap();
        assert!(!placement.devices.contains(&host.gpus().next().unwrap().bdf));
    }
}

#[test]
fn functions_of_the_same_slot_come_along_and_bridges_stay() {
    let host = changed(|parts| {
        for (bdf, class) in [("10:00.1", 0x04_0300), ("08:00.0", 0x06_0400)] {
            let mut other = device(0x40, class, 0x10f0, None);
            (other.bdf, other.iommu_group) = (bdf.parse().unwrap(), Some(0x10));
            parts.devices.push(other);
        }
    });
    let placement = plan_on(&host, &[], &run(1, 0)).unwrap();
    let devices: Vec<String> = placement.devices.iter().map(Bdf::to_string).collect();
    assert_eq!(devices, ["0000:10:00.0", "0000:10:00.1"]);
    assert!(says(&placement, "0000:10:00.1 is included", false));
}

#[test]
fn gpus_of_one_iommu_group_go_together_or_not_at_all() {
    let host = changed(|parts| parts.devices[1].iommu_group = Some(0x10));
    let (what, _, _) = refusal(plan_on(&host, &[], &run(1, 0)));
    assert!(
        what.contains("shares IOMMU group 16 with 0000:11:00.0, which is not in the set"),
        "{what}"
    );
    let one = plan_on(&host, &[], &Request::for_gpus(1)).unwrap();
    assert_eq!(one.devices[0].to_string(), "0000:12:00.0");
    assert!(plan_on(&host, &[], &run(2, 0)).is_ok());
}

#[test]
fn huge_pages_that_lack_are_said_with_the_command() {
    let host = HostSpec { pages: Some(100), ..HostSpec::even(2, 8, 64, 2) }.build();
    let request = Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..run(1, 1) };
    let request = Request { memory_kib: Some(MemSize::from_gib(1)), ..request };
    let placement = plan_on(&host, &[], &request).unwrap();
    let command = "`gpuvm host pages --node 1 --size 2M --count 512`";
    assert!(says(&placement, command, true), "{:?}", placement.reasons);
    assert!(says(&placement, "reserves the 412 that are missing", true), "{:?}", placement.reasons);
    let node_pages = NodePages { node: NodeId(1), needed: 512, free: 100, reserved: 100 };
    assert_eq!(placement.node_pages, [node_pages]);
    let one_gib = Request { huge_pages: HugePages::Size(PageSize::OneGib), ..request };
    let (what, _, hint) = refusal(plan_on(&host, &[], &one_gib));
    assert!(what.contains("no huge pages of 1 GiB") && hint.contains("2 MiB"), "{what} {hint}");
}

#[test]
fn a_size_that_is_mounted_nowhere_is_said() {
    let gib = Request { huge_pages: HugePages::Size(PageSize::OneGib), ..run(1, 0) };
    let mount = |page_kib| HugetlbMount { page_kib, at: "/dev/hugepages".into() };
    for (mounts, said) in [
        (None, false),
        (Some(vec![]), true),
        (Some(vec![mount(MemSize::from_kib(2048))]), true),
        (Some(vec![mount(MemSize::from_gib(1))]), false),
    ] {
        let host = changed(|parts| parts.machine.hugetlbfs = mounts.clone());
        let placement = plan_on(&host, &[], &gib).unwrap();
        let is_said = says(&placement, "mount -t hugetlbfs -o pagesize=1G hugetlbfs", true);
        assert_eq!(is_said, said, "{mounts:?}: {:?}", placement.reasons);
        let plain = plan_on(&host, &[], &run(1, 0)).unwrap();
        assert!(!says(&plain, "hugetlbfs", true));
    }
}

#[test]
fn memory_is_divided_in_whole_pages_and_what_is_rounded_is_said() {
    let host = dgx2();
    let on = |memory_kib, pages: Option<PageSize>| {
        let huge_pages = pages.into();
        let request = Request { memory_kib: Some(memory_kib), huge_pages, ..run(16, 0) };
        plan_on(&host, &[], &request).unwrap()
    };
    let sizes = |placement: &Placement| -> Vec<u64> {
        placement.cells.iter().map(|cell| cell.memory_kib.kib()).collect()
    };
    let placement = on(MemSize::from_gib(1447), Some(PageSize::OneGib));
    let missing: Vec<u64> = placement.node_pages.iter().map(NodePages::missing).collect();
    assert_eq!(missing, [724, 723]);
    assert_eq!(sizes(&placement), [724 << 20, 723 << 20]);
    assert!(says(&placement, "as requested", false));
    assert_eq!(placement.cells[0].distances, [10, 21]);
    assert_eq!(placement.cells[1].distances, [21, 10]);
    // Up if the nodes have it, otherwise down; both are reported by default.
    let up = on(MemSize::from_kib((8 << 20) + 1), None);
    assert_eq!(up.memory().kib(), (8 << 20) + 2048);
    assert!(says(&up, "the 8388609 KiB requested, rounded up to whole pages of 2 MiB", true));
    let most = placement_most(&host);
    let down = on(MemSize::from_kib((most << 20) + 1), Some(PageSize::OneGib));
    assert_eq!(down.memory().kib(), most << 20);
    assert!(says(&down, "rounded down to whole pages of 1 GiB: no room for one more", true));
}

/// The GiB that a guest of all GPUs gets at most in pages of 1 GiB.
fn placement_most(host: &Topology) -> u64 {
    let fits = |gib: &u64| {
        let memory_kib = Some(MemSize::from_gib(*gib));
        let huge_pages = HugePages::Size(PageSize::OneGib);
        plan_on(host, &[], &Request { memory_kib, huge_pages, ..run(16, 0) }).is_ok()
    };
    (1..2048).rev().find(fits).unwrap()
}

#[test]
fn the_sizes_of_nvidia_vm_are_unchanged() {
    // gpuvm-nvidia-vm(7), SIZES, in KiB; the size for one GPU is an odd number of MiB.
    for (gpus, kib) in [(1, 94_807_040), (2, 189_614_080), (4, 379_228_160), (8, 758_456_320)] {
        let request = Request { profile: Profile::NvidiaVm, ..run(gpus, 0) };
        assert_eq!(plan_on(&dgx2(), &[], &request).unwrap().memory().kib(), kib);
        let request = Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..request };
        let placement = plan_on(&dgx2(), &[], &request).unwrap();
        assert_eq!(placement.memory().kib(), kib.div_ceil(2048) * 2048);
        assert_eq!(says(&placement, "as nvidia-vm gave, rounded up to", false), gpus == 1);
    }
}

#[test]
fn a_record_without_memory_is_refused() {
    let mut parts = dgx2().parts().clone();
    parts.nodes.iter_mut().for_each(|node| node.memory_kib = MemSize::default());
    let host = Topology::new(parts).unwrap();
    for request in [Request::for_gpus(0), run(1, 0), Request { pins: PinPolicy::None, ..run(2, 0) }]
    {
        let error = plan_on(&host, &[], &request).unwrap_err();
        let PlanError::Impossible { what, hint } = error else { panic!("{error}") };
        assert_eq!(what, "how much memory this host has is not known: the record names none");
        assert!(!hint.contains("page"), "{hint}");
    }
}

#[test]
fn nodes_without_memory_or_cores_have_neighbours() {
    let host = changed(|parts| parts.nodes[1].memory_kib = MemSize::default());
    let placement = plan_on(&host, &[], &run(1, 3)).unwrap();
    assert_eq!(placement.cells[0].host_nodes, NodeSet::of(NodeId(0)));
    assert!(says(&placement, "node 1 has no memory", true));
    let host = changed(|parts| {
        parts.cores.retain(|core| core.node == NodeId(0));
        parts.nodes[1].pcpus = CpuSet::new();
    });
    let placement = plan_on(&host, &[], &run(1, 3)).unwrap();
    assert!(says(&placement, "has no cores; they are taken from node 0", true));
    assert_eq!(placement.cells[0].host_nodes, NodeSet::of(NodeId(0)));
    let host = changed(|parts| parts.devices[3].node = None);
    let placement = plan_on(&host, &[], &run(1, 3)).unwrap();
    assert!(says(&placement, "the kernel reports no node for 0000:13:00.0", true));
    assert_eq!(placement.guest_pcie.groups[0].cell, Some(0), "the only cell");
}

#[test]
fn memory_that_domains_hold_is_named() {
    let host = HostSpec::even(1, 8, 64, 0).build();
    let request =
        |gib| Request { memory_kib: Some(MemSize::from_gib(gib)), ..Request::for_gpus(0) };
    let big = held("big", &plan_on(&host, &[], &request(50)).unwrap());
    let (what, holders, hint) = refusal(plan_on(&host, &[big], &request(20)));
    assert!(what.starts_with("requested 20 GiB of memory; "), "{what}");
    assert_eq!(holders, ["50 GiB of node 0 are held by domain `big`"]);
    assert!(hint.starts_with("`gpuvm capacity`"), "{hint}");
}

#[test]
fn drivers_other_than_vfio_are_said() {
    let host = changed(|parts| parts.devices[0].driver = Some("nvidia".into()));
    let placement = plan_on(&host, &[], &run(2, 0)).unwrap();
    assert!(says(
        &placement,
        "0000:10:00.0 must be bound to vfio-pci before start (now: nvidia)",
        false
    ));
    let host = changed(|parts| parts.devices.iter_mut().for_each(|d| d.iommu_group = None));
    assert!(says(&plan_on(&host, &[], &run(1, 0)).unwrap(), "the IOMMU must be on", true));
}

#[test]
fn without_partitions_the_nearest_gpus_go_together() {
    let host = HostSpec::even(2, 8, 64, 4).build();
    let one = held("one", &plan_on(&host, &[], &run(1, 0)).unwrap());
    let two = plan_on(&host, &[one], &Request::for_gpus(2)).unwrap();
    let devices: Vec<String> = two.devices.iter().map(Bdf::to_string).collect();
    assert_eq!(devices, ["0000:12:00.0", "0000:13:00.0"]);
    assert!(says(&two, "GPUs 2 and 3, all on one node", false));
}

#[test]
fn a_gpus_own_block_of_cores_comes_first() {
    let host = HostSpec::even(1, 12, 64, 4).build();
    let small = Request { vcpus: Some(2), ..run(1, 0) };
    let domains = [held("small", &plan_on(&host, &[], &small).unwrap())];
    let next = plan_on(&host, &domains, &Request::for_gpus(1)).unwrap();
    assert_eq!(pins(&next), [3, 15, 4, 16]);
    // A guest without GPUs first gets the rest of the small guest's block.
    let none = Request { vcpus: Some(2), ..Request::for_gpus(0) };
    assert_eq!(pins(&plan_on(&host, &domains, &none).unwrap()), [2, 14]);
}

#[test]
fn pools_are_counted_with_those_who_will_take_them() {
    let host = HostSpec { pages: Some(16_384), ..HostSpec::even(1, 12, 64, 1) }.build();
    let gib = |gib| Request { memory_kib: Some(MemSize::from_gib(gib)), ..Request::for_gpus(0) };
    let paged = Request { huge_pages: HugePages::Size(PageSize::TwoMib), ..gib(20) };
    // A guest without huge pages cannot use the pool of 32 GiB.
    let (what, holders, _) = refusal(plan_on(&host, &[], &gib(40)));
    assert!(what.starts_with("requested 40 GiB of memory; "), "{what}");
    assert_eq!(holders, ["32 GiB of node 0 are in unused huge pages"]);
    let normal = Request { huge_pages: HugePages::Off, ..Request::for_gpus(1) };
    let share = plan_on(&host, &[], &normal).unwrap();
    assert!(share.memory() < MemSize::from_gib(29), "{}", share.memory());
    // A stopped domain takes its pages from the pool when it starts, and is not counted twice.
    let first = plan_on(&host, &[], &paged).unwrap();
    assert!(says(&first, "10240 pages of 2 MiB on node 0, 16384 are free", false));
    let off = Held { active: false, ..held("off", &first) };
    let second = plan_on(&host, std::slice::from_ref(&off), &paged).unwrap();
    assert!(says(&second, "10240 pages of 2 MiB are needed on node 0, 6144 are free", true));
    assert!(says(&second, "--count 20480`", true));
    assert!(plan_on(&host, &[off], &gib(30)).is_ok());
}

#[test]
fn the_nearest_node_is_that_of_the_least_distance() {
    let mut parts = HostSpec::even(3, 8, 64, 3).parts();
    parts.nodes[1].memory_kib = MemSize::default();
    parts.nodes[1].distances = vec![31, 10, 21];
    let placement = plan_on(&Topology::new(parts).unwrap(), &[], &run(1, 1)).unwrap();
    assert_eq!(placement.cells[0].host_nodes, NodeSet::of(NodeId(2)));
}
