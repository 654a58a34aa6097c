//! Vectors of the kubelet's takers and of its topology manager.
//!
//! Hosts and results are the facts of the kubelet's own tests (`cpu_assignment_test.go` with the
//! topologies of `policy_test.go`; `policy_test.go` of the topology manager;
//! `topology_hints_test.go` of the CPU and device managers), as lists of pcpus. Cases of our own
//! are marked.

mod takers;
mod topology_manager;
mod whole;

use super::super::testhost::{even, rows};
use gpuvm_core::topology::Topology;

fn built(list: &[(u32, u32, u32, &str)]) -> Topology {
    Topology::new(rows(list)).unwrap()
}

/// One package, four cores with two threads.
fn single_ht() -> Topology {
    built(&[(0, 0, 0, "0,4/1,5/2,6/3,7")])
}

/// Two packages with a node each, three cores each, even pcpus on the first; one level-3 cache, as
/// the tests have it.
fn dual_ht() -> Topology {
    built(&[(0, 0, 0, "0,6/2,8/4,10"), (1, 1, 0, "1,7/3,9/5,11")])
}

/// Two packages with a node each, four cores of one thread each.
fn dual_no_ht() -> Topology {
    built(&[(0, 0, 0, "0/1/2/3"), (1, 1, 1, "4/5/6/7")])
}

/// Three packages with a node each, numbered in another order than their pcpus.
fn triple_ht() -> Topology {
    built(&[(1, 1, 1, "0,1/2,3/4,5"), (0, 0, 0, "6,7/8,9/10,11"), (2, 2, 2, "12,13/14,15/16,17")])
}

/// Two packages with two nodes each, ten cores with two threads on each node; siblings are 40
/// apart.
fn four_nodes() -> Topology {
    Topology::new(even(4, 2, 10)).unwrap()
}

/// Eight nodes on two packages, 16 cores with two threads on each; siblings are 128 apart.
fn eight_nodes() -> Topology {
    Topology::new(even(8, 4, 16)).unwrap()
}

/// Four packages of ten cores, two to a node; siblings are 40 apart.
fn packages_in_nodes() -> Topology {
    let list = |first: u32| {
        (first..first + 10)
            .map(|core| format!("{core},{}", core + 40))
            .collect::<Vec<_>>()
            .join("/")
    };
    let lists = [0, 10, 20, 30].map(list);
    built(&[(0, 0, 0, &lists[0]), (1, 0, 0, &lists[1]), (2, 1, 1, &lists[2]), (3, 1, 1, &lists[3])])
}

/// One package of 16 cores of one thread with four level-3 caches.
fn l3_no_smt() -> Topology {
    built(&[
        (0, 0, 0, "0/1/2/3"),
        (0, 0, 1, "4/5/6/7"),
        (0, 0, 2, "8/9/10/11"),
        (0, 0, 3, "12/13/14/15"),
    ])
}

/// The same caches on two packages of one node.
fn l3_dual() -> Topology {
    built(&[
        (0, 0, 0, "0/1/2/3"),
        (0, 0, 1, "4/5/6/7"),
        (1, 0, 2, "8/9/10/11"),
        (1, 0, 3, "12/13/14/15"),
    ])
}

/// The same caches on two nodes of one package.
fn l3_two_nodes() -> Topology {
    built(&[
        (0, 0, 0, "0/1/2/3"),
        (0, 0, 1, "4/5/6/7"),
        (0, 1, 2, "8/9/10/11"),
        (0, 1, 3, "12/13/14/15"),
    ])
}

/// One package of eight cores with two threads and two level-3 caches.
fn l3_smt() -> Topology {
    built(&[(0, 0, 0, "0,8/1,9/2,10/3,11"), (0, 0, 1, "4,12/5,13/6,14/7,15")])
}
