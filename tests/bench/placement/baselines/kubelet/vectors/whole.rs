//! The kubelet as one of the policies, on a DGX-2.

use super::super::super::testhost::{ask, dgx2, join, numbers};
use super::super::*;

/// Places a guest on the empty DGX-2.
fn first(kubelet: Kubelet, gpus: u32, vcpus: u32) -> Option<Place> {
    kubelet.place(&dgx2(), &[], &ask(gpus, vcpus))
}

/// A kubelet with the packed taker.
fn packed(admission: Admission) -> Kubelet {
    Kubelet { cpus: Cpus::Packed, whole_cores: false, admission, by_links: false }
}

/// GPUs, vCPUs; whether each topology manager policy admits it on the empty host
/// (gpuvm-placement(7), OTHER PLANNERS: restricted admits preferred hints, single-numa-node those
/// within one node).
#[test]
fn admission_follows_the_policy() {
    for (gpus, vcpus, restricted, single) in
        [(1, 5, true, true), (8, 46, true, true), (16, 92, true, false), (4, 60, false, false)]
    {
        assert!(first(packed(Admission::None), gpus, vcpus).is_some());
        assert!(first(packed(Admission::BestEffort), gpus, vcpus).is_some());
        assert_eq!(first(packed(Admission::Restricted), gpus, vcpus).is_some(), restricted);
        assert_eq!(first(packed(Admission::SingleNode), gpus, vcpus).is_some(), single);
    }
}

/// Packed takes whole cores of the first node, KubeVirt maps guest cores to them, the emulator
/// floats.
#[test]
fn vcpus_sit_on_whole_cores() {
    let place = first(packed(Admission::Restricted), 4, 22).unwrap();
    assert_eq!(numbers(&place.pins)[..6], [0, 48, 1, 49, 2, 50]);
    assert_eq!((join(&place.pins).as_str(), place.memory.len()), ("0-10,48-58", 1));
    assert!(place.emulator.is_empty());
}

/// With `full-pcpus-only` an odd request is refused, without it the odd thread splits a core that
/// the next one fills.
#[test]
fn odd_requests_split_a_core_or_are_refused() {
    let whole = Kubelet { whole_cores: true, ..packed(Admission::Restricted) };
    assert!(first(whole, 1, 5).is_none());
    let kubelet = packed(Admission::Restricted);
    let one = first(kubelet, 1, 5).unwrap();
    assert_eq!(join(&one.pins), "0-2,48-49");
    let two = kubelet.place(&dgx2(), &[one], &ask(1, 5)).unwrap();
    assert_eq!(join(&two.pins), "3-4,50-52");
}

/// Sixteen GPUs take both nodes, and distributed takes the same number of pcpus from each.
#[test]
fn distributed_splits_evenly() {
    let kubelet = Kubelet { cpus: Cpus::Distributed, ..packed(Admission::Restricted) };
    let place = first(kubelet, 16, 92).unwrap();
    assert_eq!(join(&place.pins), "0-22,24-46,48-70,72-94");
    let sizes: Vec<u64> = place.memory.iter().map(|(_, size)| size.kib()).collect();
    assert_eq!(sizes, [32 << 20, 32 << 20]);
}

/// A host of more nodes than the topology manager takes is refused, unless it is off.
#[test]
fn too_many_nodes_are_refused() {
    let host = Topology::new(super::even(9, 3, 2)).unwrap();
    let ask = ask(0, 2);
    assert!(packed(Admission::BestEffort).place(&host, &[], &ask).is_none());
    assert!(packed(Admission::None).place(&host, &[], &ask).is_some());
}

/// By address a guest of two gets GPUs 0 and 1 of a cube mesh, by links a pair that has the most
/// NVLinks there are.
#[test]
fn aligned_gpus_are_chosen_by_links() {
    use gpuvm_core::topology::file::from_json;
    let host = from_json(include_str!("../../../../../../topologies/dgx-1.json")).unwrap();
    let kubelet = Kubelet { by_links: true, ..packed(Admission::BestEffort) };
    let place = kubelet.place(&host, &[], &ask(2, 8)).unwrap();
    let links = host.fabric().links.iter();
    let between = |a, b| links.clone().find(|l| (l.a, l.b) == (a, b)).map_or(0, |l| l.links);
    let best = links.clone().map(|link| link.links).max().unwrap();
    assert_eq!(between(place.gpus[0], place.gpus[1]), best);
    let plain = packed(Admission::BestEffort).place(&host, &[], &ask(2, 8)).unwrap();
    assert_eq!(plain.gpus, host.gpus().take(2).map(|gpu| gpu.bdf).collect::<Vec<_>>());
    assert!(between(plain.gpus[0], plain.gpus[1]) < best);
}
