//! Vectors of the packed and the distributed taker.

use super::super::super::host::Host;
use super::super::super::testhost::{list, only_free, set};
use super::super::packed::{Level, Options, Taker};
use super::super::{distributed, packed};
use super::*;

type Build = fn() -> Topology;

/// A host with these pcpus free, and which of its threads they are.
fn with<R>(build: Build, free: &str, then: impl Fn(&Host<'_>, &[bool]) -> R) -> R {
    let topology = build();
    let mut host = Host::new(&topology, &[]);
    only_free(&mut host, free);
    let available: Vec<bool> = host.threads.iter().map(|thread| thread.free).collect();
    then(&host, &available)
}

/// Host, free pcpus, pcpus asked for, pcpus taken (`-`: too few), for both takers
/// (commonTakeByTopologyTestCases).
const BOTH: [(Build, &str, usize, &str); 13] = [
    (single_ht, "0,2,4,6", 5, "-"),
    (single_ht, "0-7", 0, ""),
    (single_ht, "0-7", 1, "0"),
    (single_ht, "1,3,5-7", 1, "6"),
    (single_ht, "0-7", 2, "0,4"),
    (single_ht, "0-7", 8, "0-7"),
    (single_ht, "0-3,6", 2, "2,6"),
    (dual_ht, "0-11", 6, "0,2,4,6,8,10"),
    (four_nodes, "0-79", 40, "0-19,40-59"),
    (four_nodes, "0-79", 20, "0-9,40-49"),
    (four_nodes, "10-39,50-79", 20, "10-19,50-59"),
    (four_nodes, "0-79", 60, "0-29,40-69"),
    (four_nodes, "1-39,41-79", 60, "10-39,50-79"),
];

/// The packed taker alone (TestTakeByTopologyNUMAPacked; the last two are ours, by the rules of
/// gpuvm-placement(7), OTHER PLANNERS).
const PACKED: [(Build, &str, usize, &str); 5] = [
    (dual_ht, "1-5,7-11", 1, "2"),
    (dual_ht, "0-11", 8, "0-2,4,6-8,10"),
    (four_nodes, "0-79", 64, "0-31,40-71"),
    (dual_no_ht, "0-7", 2, "0-1"),
    (dual_no_ht, "1-7", 4, "4-7"),
];

#[test]
fn packed_fills_the_fullest_unit() {
    for (build, free, need, wanted) in BOTH.into_iter().chain(PACKED) {
        let got = with(build, free, |host, available| {
            let threads = packed::take(host, available, need, Options::default());
            threads.map_or("-".into(), |threads| list(host, &threads))
        });
        assert_eq!(got, wanted, "{need} of {free}");
    }
}

/// `prefer-align-cpus-by-uncorecache` (TestTakeByTopologyNUMAPacked, the cases with that option).
const BY_L3: [(Build, &str, usize, &str); 8] = [
    (l3_no_smt, "1-15", 10, "1-2,4-11"),
    (dual_ht, "1-5,7-11", 1, "1"),
    (l3_dual, "0-15", 4, "0-3"),
    (l3_dual, "2-15", 6, "2-7"),
    (l3_dual, "8-15", 4, "8-11"),
    (l3_two_nodes, "3-8,12", 2, "4-5"),
    (l3_smt, "2-7,10-15", 6, "4-6,12-14"),
    (l3_smt, "1-7,9-15", 10, "1,4-7,9,12-15"),
];

#[test]
fn by_l3_breaks_no_more_caches_than_it_must() {
    for (build, free, need, wanted) in BY_L3 {
        let options = Options { by_l3: true, across_cores: false };
        let got = with(build, free, |host, available| {
            list(host, &packed::take(host, available, need, options).unwrap())
        });
        assert_eq!(got, wanted, "{need} of {free}");
    }
}

/// `distribute-cpus-across-cores` (TestTakeByTopologyWithSpreadPhysicalCPUsPreferredOption).
const ACROSS_CORES: [(Build, &str, usize, &str); 7] = [
    (single_ht, "0-7", 3, "0-2"),
    (dual_ht, "0-11", 2, "0,2"),
    (dual_ht, "0-11", 3, "0,2,4"),
    (dual_ht, "0-11", 6, "0,2,4,6,8,10"),
    (dual_ht, "0-11", 8, "0-4,6,8,10"),
    (dual_no_ht, "0-7", 2, "0-1"),
    (four_nodes, "0-79", 8, "0-7"),
];

#[test]
fn across_cores_takes_one_thread_of_each() {
    for (build, free, need, wanted) in ACROSS_CORES {
        let options = Options { by_l3: false, across_cores: true };
        let got = with(build, free, |host, available| {
            list(host, &packed::take(host, available, need, options).unwrap())
        });
        assert_eq!(got, wanted, "{need} of {free}");
    }
}

/// The distributed taker: host, free, asked for, group size, taken
/// (commonTakeByTopologyExtendedTestCases, TestTakeByTopologyNUMADistributed; the last one is
/// ours).
const DISTRIBUTED: [(Build, &str, usize, usize, &str); 17] = [
    (dual_ht, "0-11", 8, 1, "0-3,6-9"),
    (four_nodes, "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
    (four_nodes, "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
    (four_nodes, "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
    (four_nodes, "2-29,31-39,42-69,71-79", 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
    (
        four_nodes,
        "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
        16,
        1,
        "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
    ),
    (dual_ht, "1-5,7-11", 1, 1, "1"),
    (dual_ht, "1-5,7-11", 1, 2, "2"),
    (four_nodes, "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
    (four_nodes, "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
    (four_nodes, "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
    (four_nodes, "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
    (
        four_nodes,
        "0-8,10-18,20-39,40-48,50-58,60-79",
        62,
        1,
        "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
    ),
    (
        four_nodes,
        "0-8,10-18,20-39,40-48,50-58,60-79",
        62,
        2,
        "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
    ),
    (
        four_nodes,
        "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
        34,
        1,
        "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
    ),
    (
        eight_nodes,
        "0,30-31,43-47,62-63,75-79,94,96,101-111,126-128,158-159,171-175,190-191,203-207,222-223,\
         229-239,254-255",
        28,
        1,
        "43-47,75-79,96,101-105,171-174,203-206,229-232",
    ),
    (dual_no_ht, "0-7", 6, 1, "0-2,4-6"),
];

#[test]
fn distributed_gives_equal_shares() {
    let common = BOTH.into_iter().map(|(build, free, need, wanted)| (build, free, need, 1, wanted));
    for (build, free, need, group, wanted) in common.chain(DISTRIBUTED) {
        let got = with(build, free, |host, available| {
            let threads = distributed::take(host, available, need, group, Options::default());
            threads.map_or("-".into(), |threads| list(host, &threads))
        });
        let wanted = if wanted == "-" { "-".into() } else { set(wanted).to_string() };
        assert_eq!(got, wanted, "{need} by {group} of {free}");
    }
}

/// Wholly free units: host, free, level, units in any order (TestCPUAccumulatorFreeSockets,
/// ..FreeNUMANodes).
const WHOLE: [(Build, &str, Level, &[usize]); 20] = [
    (single_ht, "0-7", Level::Package, &[0]),
    (single_ht, "1-7", Level::Package, &[]),
    (dual_ht, "0-11", Level::Package, &[0, 1]),
    (dual_ht, "0-9,11", Level::Package, &[1]),
    (dual_ht, "0,2-9,11", Level::Package, &[]),
    (four_nodes, "0-79", Level::Package, &[0, 1]),
    (four_nodes, "1-79", Level::Package, &[1]),
    (four_nodes, "1-78", Level::Package, &[]),
    (packages_in_nodes, "0-79", Level::Package, &[0, 1, 2, 3]),
    (packages_in_nodes, "0-19,21-79", Level::Package, &[0, 1, 3]),
    (packages_in_nodes, "0-59,61-78", Level::Package, &[0, 1]),
    (packages_in_nodes, "1-19,21-38,41-60,61-78", Level::Package, &[1]),
    (packages_in_nodes, "0-40,42-49,51-68,71-79", Level::Package, &[]),
    (dual_ht, "0-9,11", Level::Node, &[1]),
    (four_nodes, "1-79", Level::Node, &[1, 2, 3]),
    (four_nodes, "1-9,11-79", Level::Node, &[2, 3]),
    (four_nodes, "1-9,11-59,61-79", Level::Node, &[3]),
    (four_nodes, "1-9,11-59,61-78", Level::Node, &[]),
    (packages_in_nodes, "0-9,11-79", Level::Node, &[1]),
    (packages_in_nodes, "0-9,11-59,61-79", Level::Node, &[]),
];

#[test]
fn whole_units_are_found() {
    for (build, free, level, wanted) in WHOLE {
        let got = with(build, free, |host, available| {
            let mut units = Taker::new(host, available, 0).whole(level);
            units.sort_unstable();
            units
        });
        assert_eq!(got, wanted, "{level:?} of {free}");
    }
}

/// Single threads in the order in which they would be taken (TestCPUAccumulatorFreeCPUs).
const ORDER: [(Build, &str, &[u32]); 6] = [
    (single_ht, "0-7", &[0, 4, 1, 5, 2, 6, 3, 7]),
    (single_ht, "3-7", &[4, 5, 6, 3, 7]),
    (dual_ht, "0-11", &[0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
    (dual_ht, "1-11", &[6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
    (dual_ht, "1-5,7-11", &[2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
    (triple_ht, "0-3,6-13", &[12, 13, 0, 1, 2, 3, 6, 7, 8, 9, 10, 11]),
];

#[test]
fn the_most_used_come_first() {
    for (build, free, wanted) in ORDER {
        let got: Vec<u32> = with(build, free, |host, available| {
            let cores = Taker::new(host, available, 0).order(Level::Core);
            let threads = cores.into_iter().flat_map(|core| host.free_of(core));
            threads.map(|thread| host.threads[thread].pcpu.0).collect()
        });
        assert_eq!(got, wanted, "{free}");
    }
}
