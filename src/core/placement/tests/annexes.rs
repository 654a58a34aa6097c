//! Nodes without GPUs, and the GPUs that share them.

use super::testhost::{HostSpec, NodeSpec, held};
use super::{plan_on, refusal, run, says};
use crate::cpuset::CpuSet;
use crate::memsize::MemSize;
use crate::placement::affinity::{Among, Homes};
use crate::placement::*;
use crate::request::CellWish;
use crate::request::{Profile, Request};
use crate::topology::Parts;
use crate::topology::Topology;

/// The recorded DGX A100: GPUs on nodes 1, 3, 5 and 7 of 8.
fn dgx_a100() -> Topology {
    let text = include_str!("../../../../topologies/dgx-a100.json");
    crate::topology::file::from_json(text).unwrap()
}

fn by(profile: Profile, gpus: u32) -> Request {
    Request { profile, ..Request::for_gpus(gpus) }
}

/// Nodes of the vCPUs of a plan.
fn nodes(topology: &Topology, plan: &Placement) -> Vec<u32> {
    let mut nodes: Vec<u32> = plan
        .vcpu_pins
        .iter()
        .flat_map(CpuSet::iter)
        .map(|pcpu| topology.core_of(pcpu).unwrap().node.0)
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Annexes of each node with GPUs, and GPUs of each node without, on a host.
fn shared(host: &Topology) -> Vec<(u32, Vec<u32>, usize)> {
    let homes = Homes::of_request(host, &Request::for_gpus(0), Among::default());
    let id = |at: &usize| homes.all()[*at].id.0;
    let of = homes.all().iter();
    of.map(|h| (h.id.0, h.annexes.iter().map(id).collect(), h.tenants.len())).collect()
}

/// A host of nodes of 8 cores in one package, with GPUs on the nodes with these indexes.
fn package(nodes: usize, gpus: &[usize]) -> Parts {
    let gpus = gpus.iter().map(|&node| Some(node)).collect();
    let mut parts = HostSpec { gpus, ..HostSpec::even(nodes, 8, 64, 0) }.parts();
    parts.cores.iter_mut().for_each(|core| core.package = 0);
    parts
}

#[test]
fn a_dgx_a100_is_used_whole() {
    let host = dgx_a100();
    let sizes = [(1, 28, 14), (2, 60, 30), (4, 120, 60), (8, 240, 120)];
    for (gpus, share, near) in sizes {
        let plan = |profile| plan_on(&host, &[], &by(profile, gpus)).unwrap();
        let (wide, old) = (plan(Profile::Share), plan(Profile::Near));
        assert_eq!((wide.vcpus(), old.vcpus()), (share, near), "{gpus} GPUs");
        assert_eq!(wide.cells.len(), 2 * old.cells.len());
        let double = wide.memory().kib() as f64 / old.memory().kib() as f64;
        assert!((1.99..2.01).contains(&double), "{gpus} GPUs: {double}");
        assert!(wide.reasons.iter().all(|r| !r.compromise || r.choice != Topic::Vcpus));
    }
    let all = plan_on(&host, &[], &Request::for_gpus(8)).unwrap();
    assert_eq!(nodes(&host, &all), [0, 1, 2, 3, 4, 5, 6, 7]);
    let words = "node 0 has 16 cores and no GPU, and is shared by the 2 GPUs nearest to it: 8 for \
                 each, 16 for 2 GPUs of this guest; 30 vCPUs on 15 cores";
    assert!(says(&all, words, false), "{:?}", all.reasons);
}

#[test]
fn eight_guests_of_one_gpu_have_the_same_share_each() {
    let host = dgx_a100();
    let mut guests = Vec::new();
    for gpu in 0..8 {
        let plan = plan_on(&host, &guests, &run(1, gpu)).unwrap();
        assert_eq!((plan.vcpus(), plan.cells.len()), (28, 2), "GPU {gpu}");
        assert!(!says(&plan, "other guests have", true), "GPU {gpu}: {:?}", plan.reasons);
        guests.push(held(&format!("g{gpu}"), &plan));
    }
}

#[test]
fn occupied_parts_of_a_node_without_gpus_are_left_out_and_named() {
    let host = dgx_a100();
    // A guest without GPUs is placed on a node without GPUs.
    let request = Request { vcpus: Some(16), ..Request::for_gpus(0) };
    let small = plan_on(&host, &[], &request).unwrap();
    assert_eq!(nodes(&host, &small), [0]);
    let small = held("small", &small);
    let some = plan_on(&host, std::slice::from_ref(&small), &Request::for_gpus(8)).unwrap();
    assert_eq!((some.vcpus(), some.cells.len()), (240 - 18, 8));
    assert!(says(&some, "12 vCPUs on 6 cores; other guests have 9 of them", true));
    // Of several sets the one with a complete share is taken.
    let two = plan_on(&host, &[small], &Request::for_gpus(2)).unwrap();
    assert_eq!((two.vcpus(), nodes(&host, &two)), (60, vec![2, 3]));
    // With nothing left, the guest gets the resources of its own node.
    let request = Request { vcpus: Some(30), ..Request::for_gpus(0) };
    let large = held("large", &plan_on(&host, &[], &request).unwrap());
    let none = plan_on(&host, &[large], &Request::for_gpus(8)).unwrap();
    assert_eq!((none.vcpus(), none.cells.len()), (210, 7));
    let words = "node 0 has no GPU and 16 of its cores belong to this guest's share, but";
    assert!(says(&none, words, true), "{:?}", none.reasons);
}

#[test]
fn no_node_is_promised_twice_and_shares_are_fair() {
    let of = |nodes, gpus: &[usize]| shared(&Topology::new(package(nodes, gpus)).unwrap());
    // A node each, in order.
    let two = of(4, &[1, 3]);
    assert_eq!(two, [(0, vec![], 1), (1, vec![0], 0), (2, vec![], 1), (3, vec![2], 0)]);
    // One for two nodes: their GPUs share it.
    assert_eq!(of(3, &[0, 1]), [(0, vec![2], 0), (1, vec![2], 0), (2, vec![], 2)]);
    // GPUs of unequal numbers share all.
    let four = of(4, &[0, 1, 1, 1]);
    assert_eq!(four, [(0, vec![2, 3], 0), (1, vec![2, 3], 0), (2, vec![], 4), (3, vec![], 4)]);
    // More GPUs than cores.
    assert_eq!(of(2, &[0; 9]), [(0, vec![], 0), (1, vec![], 0)]);
    // The nearer one has it.
    let mut parts = package(3, &[0, 1]);
    parts.nodes[2].distances = vec![20, 12, 10];
    let near = shared(&Topology::new(parts).unwrap());
    assert_eq!(near, [(0, vec![], 0), (1, vec![2], 0), (2, vec![], 1)]);
    // Another package and a node without memory stay as they are.
    let mut parts = package(3, &[0]);
    let far = parts.cores.iter_mut().filter(|core| core.node.0 == 1);
    far.for_each(|core| core.package = 1);
    parts.nodes[2].memory_kib = MemSize::default();
    let none = shared(&Topology::new(parts).unwrap());
    assert_eq!(none, [(0, vec![], 0), (1, vec![], 0), (2, vec![], 0)]);
}

#[test]
fn a_number_within_the_share_stays_beside_the_gpu() {
    let host = dgx_a100();
    let vcpus = |gpus, vcpus| {
        let plan = plan_on(&host, &[], &Request { vcpus: Some(vcpus), ..run(gpus, 0) }).unwrap();
        nodes(&host, &plan)
    };
    assert_eq!(vcpus(1, 14), [3]);
    assert_eq!(vcpus(1, 16), [3]);
    assert_eq!(vcpus(1, 18), [2, 3]);
    assert_eq!(vcpus(8, 120), [1, 3, 5, 7]);
    assert_eq!(vcpus(8, 200), [0, 1, 2, 3, 4, 5, 6, 7]);
    // Memory that does not fit near the GPU needs no --allow remote.
    let memory_kib = Some(MemSize::from_gib(200));
    let large = Request { vcpus: Some(14), memory_kib, ..run(1, 0) };
    assert_eq!(nodes(&host, &plan_on(&host, &[], &large).unwrap()), [2, 3]);
    let near = Request { profile: Profile::Near, ..large };
    assert!(refusal(plan_on(&host, &[], &near)).0.contains("200 GiB"));
}

#[test]
fn a_number_that_reaches_fewer_nodes_says_whose_memory_is_left() {
    let host = dgx_a100();
    let left = "nothing from node 2, which has no vCPU of this guest";
    let few = plan_on(&host, &[], &Request { vcpus: Some(14), ..run(1, 0) }).unwrap();
    assert!(says(&few, left, false), "{:?}", few.reasons);
    for whole in [run(1, 0), Request { vcpus: Some(18), ..run(1, 0) }] {
        let whole = plan_on(&host, &[], &whole).unwrap();
        assert!(whole.memory() > few.memory() && !says(&whole, "nothing from", false));
    }
}

#[test]
fn cells_that_are_asked_for_choose_the_nodes() {
    let host = dgx_a100();
    let cells = |gpus, cells| {
        let request = Request { cells: CellWish::Count(cells), ..Request::for_gpus(gpus) };
        plan_on(&host, &[], &request).map(|plan| (plan.vcpus(), plan.cells.len()))
    };
    assert_eq!(cells(8, 4), Ok((120, 4)));
    assert_eq!(cells(8, 8), Ok((240, 8)));
    assert_eq!(cells(1, 1), Ok((14, 1)));
    assert_eq!(cells(1, 2), Ok((28, 2)));
    assert!(cells(8, 3).is_err());
}

#[test]
fn nodes_of_one_core_each_are_no_share() {
    // Of a node of one core for each GPU the emulator would have all.
    let mut spec = HostSpec { gpus: vec![Some(0); 4], ..HostSpec::even(2, 16, 64, 0) };
    spec.nodes[1] = NodeSpec { cores: 4, ..spec.nodes[1].clone() };
    let host = spec.build();
    let cells = |gpus| plan_on(&host, &[], &run(gpus, 0)).unwrap().cells.len();
    assert_eq!((cells(1), cells(2), cells(4)), (1, 2, 2));
}
