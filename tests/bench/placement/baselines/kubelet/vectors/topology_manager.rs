//! Vectors of hints and of their merge.

use super::super::super::host::{Device, Host};
use super::super::super::testhost::{GPU, add, even};
use super::super::devices;
use super::super::hints::{Admission, Hint, Hints, generate, merge};
use super::*;

/// A preferred mask of these nodes.
const fn yes(mask: u32) -> Hint {
    Hint { mask: Some(mask), preferred: true }
}

/// A mask of these nodes that is not preferred.
const fn no(mask: u32) -> Hint {
    Hint { mask: Some(mask), preferred: false }
}

/// A hint that names no node.
const fn any(preferred: bool) -> Hint {
    Hint { mask: None, preferred }
}

/// A case: providers (`None` if no opinion), and the merged hint.
type Case<'a> = (&'a [Option<&'a [Hint]>], Hint);

/// Merged alike by best-effort, restricted and single-numa-node, on two nodes
/// (commonPolicyMergeTestCases).
const COMMON: [Case<'_>; 7] = [
    (&[Some(&[yes(1)]), Some(&[yes(1)])], yes(1)),
    (&[Some(&[yes(2)]), Some(&[yes(2)])], yes(2)),
    (&[None, Some(&[yes(1)])], yes(1)),
    (&[Some(&[yes(1), yes(2)]), Some(&[yes(1)])], yes(1)),
    (&[Some(&[yes(1), yes(2)]), Some(&[yes(2)])], yes(2)),
    (&[Some(&[yes(1), yes(2)]), Some(&[yes(1), no(3)])], yes(1)),
    (&[Some(&[yes(2), no(3)]), Some(&[yes(1), yes(2), no(3)])], yes(2)),
];

/// Best-effort and restricted on four nodes: mask 15 is the whole host
/// (bestEffortPolicy.mergeTestCases; the tests' nodes 0, 1, 2, 3 are bits 1, 2, 4, 8).
const BEST_EFFORT: [Case<'_>; 19] = [
    (&[Some(&[yes(3), yes(5)]), Some(&[yes(3), yes(5)])], yes(3)),
    (&[], yes(15)),
    (&[None], yes(15)),
    (&[Some(&[])], no(15)),
    (&[Some(&[any(true)])], yes(15)),
    (&[Some(&[any(false)])], no(15)),
    (&[Some(&[yes(1)]), Some(&[yes(2)])], no(15)),
    (&[Some(&[yes(1)]), Some(&[no(1)])], no(1)),
    (&[Some(&[yes(2)]), Some(&[no(2)])], no(2)),
    (&[Some(&[yes(1)]), Some(&[yes(3)])], no(1)),
    (&[Some(&[yes(1), yes(2)]), Some(&[no(3)])], no(1)),
    (&[Some(&[yes(2)]), Some(&[yes(3)])], no(2)),
    (&[Some(&[no(15), no(3)]), Some(&[no(3)])], no(3)),
    (&[Some(&[no(15), no(3)]), Some(&[no(9)])], no(9)),
    (&[Some(&[no(15), no(3)]), Some(&[no(6)])], no(6)),
    (&[Some(&[no(15), no(3)]), Some(&[no(12)])], no(12)),
    (&[Some(&[no(15), no(3)]), Some(&[no(6), no(12)])], no(6)),
    (&[Some(&[no(15), no(3)]), Some(&[no(14), no(6), no(10), no(12)])], no(6)),
    // Ours: a wide preferred mask goes before a narrow one that is not (KEP 693).
    (&[Some(&[yes(7), no(1)]), Some(&[yes(7), yes(1)])], yes(7)),
];

/// Single-numa-node on four nodes (singleNumaNodePolicy.mergeTestCases; the last one is ours).
const SINGLE: [Case<'_>; 12] = [
    (&[], any(true)),
    (&[None], any(true)),
    (&[Some(&[])], any(false)),
    (&[Some(&[any(true)])], any(true)),
    (&[Some(&[any(false)])], any(false)),
    (&[Some(&[yes(1)]), Some(&[yes(2)])], any(false)),
    (&[Some(&[yes(1)]), Some(&[no(1)])], any(false)),
    (&[Some(&[yes(2)]), Some(&[no(2)])], any(false)),
    (&[Some(&[yes(1), yes(2)]), Some(&[no(3)])], any(false)),
    (&[Some(&[yes(3)]), Some(&[yes(1), yes(2), no(3)])], any(false)),
    (&[Some(&[yes(1), yes(2), no(3)]), None], yes(1)),
    (&[Some(&[yes(4)]), Some(&[yes(4), no(15)])], yes(4)),
];

fn merged(nodes: usize, providers: &[Option<&[Hint]>], admission: Admission) -> Hint {
    let providers: Vec<Hints> = providers.iter().map(|hints| hints.map(<[Hint]>::to_vec)).collect();
    merge(nodes, &providers, admission)
}

#[test]
fn hints_merge_as_published() {
    use Admission::{BestEffort, Restricted, SingleNode};
    for (providers, wanted) in COMMON {
        for admission in [BestEffort, Restricted, SingleNode] {
            assert_eq!(merged(2, providers, admission), wanted, "{admission:?} {providers:?}");
        }
    }
    for (providers, wanted) in BEST_EFFORT {
        for admission in [BestEffort, Restricted] {
            assert_eq!(merged(4, providers, admission), wanted, "{admission:?} {providers:?}");
        }
    }
    for (providers, wanted) in SINGLE {
        assert_eq!(merged(4, providers, SingleNode), wanted, "{providers:?}");
    }
}

/// The count of supersets finds the masks that going through all combinations finds, best included;
/// on all pairs of lists of up to two hints on three nodes.
#[test]
fn counting_supersets_is_the_cross_product() {
    let hints: Vec<Hint> = (1..8).flat_map(|mask| [yes(mask), no(mask)]).collect();
    let pairs = hints.iter().flat_map(|&a| hints.iter().map(move |&b| vec![a, b]));
    let lists: Vec<Vec<Hint>> = pairs.step_by(3).collect();
    for (first, second) in lists.iter().flat_map(|a| lists.iter().map(move |b| (a, b))) {
        let got = merge(3, &[Some(first.clone()), Some(second.clone())], Admission::BestEffort);
        let all = first.iter().flat_map(|a| second.iter().map(move |b| (*a, *b)));
        let both = all.map(|(a, b)| {
            let mask = a.mask.unwrap() & b.mask.unwrap();
            (mask, a.preferred && b.preferred && a.mask == b.mask)
        });
        let least =
            |list: &[Hint]| list.iter().map(|h| h.mask.unwrap().count_ones()).min().unwrap();
        let size = least(first).max(least(second));
        // The rules of 5.2, one after another: preferred; then the size nearest to the best
        // possible, from below first; then the lower mask.
        let rank = |&(mask, preferred): &(u32, bool)| {
            let count = mask.count_ones();
            let away = match preferred {
                true => (0, count),
                false if count == size => (1, 0),
                false if count < size => (2, size - count),
                false => (3, count - size),
            };
            (away, mask)
        };
        let best = both.filter(|(mask, _)| *mask != 0).min_by_key(rank);
        let wanted = best.map_or(no(7), |(mask, preferred)| Hint { mask: Some(mask), preferred });
        assert_eq!(got, wanted, "{first:?} {second:?}");
    }
}

/// Hints for pcpus on two nodes of six: free by node, asked for, hints (`TestGetTopologyHints` of
/// the CPU manager).
#[test]
fn preferred_is_judged_by_the_empty_host() {
    let cases: [([u64; 2], u64, &[Hint]); 6] = [
        ([4, 6], 2, &[yes(1), yes(2), no(3)]),
        ([4, 6], 5, &[yes(2), no(3)]),
        ([4, 6], 7, &[yes(3)]),
        ([4, 6], 11, &[]),
        // Ours, by the same rules. Four would fit one empty node, so two nodes are never preferred.
        ([1, 3], 2, &[yes(2), no(3)]),
        ([2, 2], 4, &[no(3)]),
    ];
    for (free, request, wanted) in cases {
        assert_eq!(generate(&[6, 6], &free, request), wanted, "{request} of {free:?}");
    }
}

/// A case of devices: the node of each with whether it is free, asked for, hints.
type DeviceCase<'a> = (&'a [(Option<usize>, bool)], u64, Option<&'a [Hint]>);

/// Devices on two nodes: asked for and hinted at, by the rules of gpuvm-placement(7), OTHER
/// PLANNERS.
#[test]
fn devices_hint_at_their_nodes() {
    let cases: [DeviceCase<'_>; 7] = [
        (&[(None, true), (None, true)], 1, None),
        (&[(Some(0), true), (Some(1), true)], 1, Some(&[yes(1), yes(2), no(3)])),
        (&[(Some(0), true), (Some(1), true)], 2, Some(&[yes(3)])),
        (&[(Some(0), false), (Some(1), true)], 1, Some(&[yes(2), no(3)])),
        (&[(Some(0), false), (Some(1), true)], 2, Some(&[])),
        (
            &[(Some(0), true), (Some(0), false), (Some(1), true), (Some(1), true)],
            2,
            Some(&[yes(2), no(3)]),
        ),
        (&[(Some(0), true), (None, true)], 1, Some(&[yes(1), no(3)])),
    ];
    let bdf = "01:00.0".parse().unwrap();
    for (devices, request, wanted) in cases {
        let list: Vec<Device> = devices
            .iter()
            .map(|&(node, free)| Device { bdf, node, product: (1, 1), usable: true, free })
            .collect();
        assert_eq!(devices::hints(2, &list, request).as_deref(), wanted, "{devices:?} {request}");
    }
}

/// Nodes of the devices, mask, devices asked for, and how many come from each node
/// (`TestTopologyAlignedAllocation` of the device manager, the cases without a plugin's
/// preference).
#[test]
fn devices_are_aligned_as_published() {
    const PAIRS: [Option<u32>; 6] = [Some(0), Some(1), Some(0), Some(1), Some(0), Some(1)];
    const ROUND: [u32; 8] = [0, 1, 2, 3, 0, 1, 2, 3];
    let round = ROUND.map(Some);
    for (nodes, mask, number, wanted) in [
        (&[None, Some(1)][..], 2, 1, [0, 1, 0, 0]),
        (&PAIRS[..2], 1, 1, [1, 0, 0, 0]),
        (&PAIRS[..2], 2, 1, [0, 1, 0, 0]),
        (&PAIRS[..4], 1, 2, [2, 0, 0, 0]),
        (&PAIRS[..4], 2, 2, [0, 2, 0, 0]),
        (&PAIRS[..], 1, 4, [3, 1, 0, 0]),
        (&PAIRS[..], 2, 4, [1, 3, 0, 0]),
        (&round[..], 10, 4, [0, 2, 0, 2]),
    ] {
        let mut parts = even(4, 2, 1);
        add(&mut parts, GPU, 0x10, nodes);
        let topology = Topology::new(parts).unwrap();
        let host = Host::new(&topology, &[]);
        let chosen = devices::choose(&host, &host.gpus, Some(mask), number, false).unwrap();
        let on = |node: usize| {
            let here = host.gpus.iter().filter(|gpu| gpu.node == Some(node));
            here.filter(|gpu| chosen.contains(&gpu.bdf)).count()
        };
        assert_eq!([0, 1, 2, 3].map(on), wanted, "{nodes:?} {mask} {number}");
    }
}

/// Aligned devices first, of the node with the fewest first, then others, then those without a node
/// (gpuvm-placement(7), OTHER PLANNERS).
#[test]
fn devices_come_from_the_mask_first() {
    let mut parts = even(2, 1, 2);
    add(&mut parts, GPU, 0x10, &[None, Some(0), Some(0), Some(1), Some(1), Some(1)]);
    let topology = Topology::new(parts).unwrap();
    let host = Host::new(&topology, &[]);
    for (mask, number, wanted) in [
        (Some(2), 2, vec![3, 4]),
        (Some(2), 4, vec![3, 4, 5, 1]),
        (Some(3), 3, vec![1, 2, 3]),
        (Some(1), 6, vec![1, 2, 3, 4, 5, 0]),
        (None, 2, vec![0, 1]),
        (None, 7, vec![]),
    ] {
        let got = devices::choose(&host, &host.gpus, mask, number, false).unwrap_or_default();
        let wanted: Vec<_> = wanted.into_iter().map(|at: usize| host.gpus[at].bdf).collect();
        assert_eq!(got, wanted, "{mask:?} {number}");
    }
}
