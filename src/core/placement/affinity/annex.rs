//! Distributes nodes without GPUs among GPUs, so that a host with GPUs on only some nodes is fully
//! used: on a DGX A100 the GPUs are on 4 of 8 nodes.
//!
//! A node with cores and memory, but without GPUs, belongs to the GPUs of the nearest nodes of its
//! own package, by the firmware's distances (SLIT). If several are equally near and have the same
//! number of GPUs, each gets the same number of whole nodes, as many as possible; the rest, and
//! nodes between unequal numbers of GPUs, are shared equally by all their GPUs. So no node is
//! promised twice, GPUs of one node never differ, and a package without GPUs is left to guests
//! without GPUs.

use super::{Home, distance};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::topology::Topology;

/// Assigns the nodes without GPUs to nodes with GPUs.
pub(super) fn share_out(topology: &Topology, nodes: &mut [Home<'_>]) {
    if nodes.iter().all(|home| !home.gpus.is_empty()) {
        return;
    }
    let mut groups: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for annex in (0..nodes.len()).filter(|&at| is_annex(topology, &nodes[at])) {
        let nearest = nearest(topology, nodes, annex);
        match groups.iter_mut().find(|(homes, _)| *homes == nearest) {
            Some((_, annexes)) => annexes.push(annex),
            None => groups.push((nearest, vec![annex])),
        }
    }
    for (homes, annexes) in groups.iter().filter(|(homes, _)| !homes.is_empty()) {
        let first = nodes[homes[0]].gpus.len();
        let alike = homes.iter().all(|&home| nodes[home].gpus.len() == first);
        let whole = if alike { annexes.len() / homes.len() * homes.len() } else { 0 };
        let (each, rest) = annexes.split_at(whole);
        let runs = each.chunks(homes.len().max(1)).flat_map(|run| run.iter().zip(homes));
        runs.for_each(|(&annex, &home)| give(nodes, annex, &[home]));
        rest.iter().for_each(|&annex| give(nodes, annex, homes));
    }
}

/// Whether a node has cores and memory of its own, and no GPU.
fn is_annex(topology: &Topology, home: &Home<'_>) -> bool {
    let has_memory = topology.node(home.id).is_some_and(|node| !node.memory_kib.is_zero());
    home.gpus.is_empty() && !home.seats.is_empty() && has_memory
}

/// Nodes with GPUs in the package of a node that are nearest to it, by number.
fn nearest(topology: &Topology, nodes: &[Home<'_>], annex: usize) -> Vec<usize> {
    let package = |home: &Home<'_>| home.seats.first().map(|seat| seat.core.package);
    let far = |home: &Home<'_>| {
        let hops = |from: NodeId, to: NodeId| distance(topology, from, to).unwrap_or(u32::MAX);
        hops(nodes[annex].id, home.id)
    };
    let own = package(&nodes[annex]);
    let homes = nodes.iter().enumerate();
    let homes = homes.filter(|(_, home)| !home.gpus.is_empty() && package(home) == own);
    let homes: Vec<(usize, u32)> = homes.map(|(at, home)| (at, far(home))).collect();
    let least = homes.iter().map(|(_, far)| *far).min();
    homes.iter().filter(|(_, far)| Some(*far) == least).map(|(at, _)| *at).collect()
}

/// Assigns a node to the GPUs of other nodes if each gets at least one core.
fn give(nodes: &mut [Home<'_>], annex: usize, homes: &[usize]) {
    let mut gpus: Vec<Bdf> = homes.iter().flat_map(|&home| nodes[home].gpus.clone()).collect();
    if gpus.len() > nodes[annex].seats.len() {
        return;
    }
    gpus.sort_unstable();
    nodes[annex].tenants = gpus;
    homes.iter().for_each(|&home| nodes[home].annexes.push(annex));
}
