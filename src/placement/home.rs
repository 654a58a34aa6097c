//! Which cores and which memory belong to a GPU: its node, its share of the node, its block of cores. Knows the host
//! alone; what is taken is not its question.

use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::topology::{Core, NumaNode, Topology};
use std::collections::BTreeMap;
use std::ops::Range;

/// Is why a GPU's home is not simply the node that the kernel names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// The kernel names no node, and there are several.
    Unknown,
    /// The node has no cores.
    NoCores(NodeId),
}

/// Is where the GPUs of a host are at home.
#[derive(Debug)]
pub(super) struct Homes<'a> {
    /// The host.
    topology: &'a Topology,
    /// Node with cores, for each GPU.
    gpus: BTreeMap<Bdf, (NodeId, Option<Moved>)>,
    /// Cores of each node that has some, in the order of the node's caches: as hwloc numbers them.
    cores: BTreeMap<NodeId, Vec<&'a Core>>,
}

impl<'a> Homes<'a> {
    /// Finds every GPU's home.
    pub(super) fn new(topology: &'a Topology) -> Homes<'a> {
        let mut cache_of = BTreeMap::new();
        for cache in &topology.parts().l3 {
            for pcpu in cache.pcpus.iter() {
                cache_of.insert(pcpu, cache.pcpus.first());
            }
        }
        let mut cores: BTreeMap<NodeId, Vec<&Core>> = BTreeMap::new();
        for core in topology.cores() {
            cores.entry(core.node).or_default().push(core);
        }
        for list in cores.values_mut() {
            list.sort_by_key(|core| {
                let first = core.pcpus.first();
                (first.and_then(|pcpu| cache_of.get(&pcpu).copied().flatten()).or(first), first)
            });
        }
        let mut homes = Homes { topology, gpus: BTreeMap::new(), cores };
        for gpu in topology.gpus() {
            let home = homes.find(gpu.node);
            homes.gpus.insert(gpu.bdf, home);
        }
        homes
    }

    /// The node with cores for a device of this node.
    fn find(&self, node: Option<NodeId>) -> (NodeId, Option<Moved>) {
        match node {
            Some(node) if self.cores.contains_key(&node) => (node, None),
            Some(node) => {
                let with_cores = |n: &NumaNode| self.cores.contains_key(&n.os_index);
                (
                    nearest(self.topology, node, with_cores).unwrap_or(node),
                    Some(Moved::NoCores(node)),
                )
            }
            None => {
                let most =
                    self.cores.iter().max_by_key(|(node, c)| (c.len(), std::cmp::Reverse(**node)));
                let node = most.map_or(NodeId(0), |(node, _)| *node);
                (node, (self.cores.len() > 1).then_some(Moved::Unknown))
            }
        }
    }

    /// The node with cores for any device; none where its own node is unknown and there are several.
    pub(super) fn of_device(&self, bdf: Bdf) -> Option<NodeId> {
        match self.find(self.topology.device(bdf)?.node) {
            (_, Some(Moved::Unknown)) => None,
            (node, _) => Some(node),
        }
    }

    /// A GPU's home, and why it is another than the kernel's node.
    pub(super) fn of_gpu(&self, bdf: Bdf) -> (NodeId, Option<Moved>) {
        self.gpus.get(&bdf).copied().unwrap_or_else(|| self.find(None))
    }

    /// Nodes with cores, ascending.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.cores.keys().copied()
    }

    /// Cores of a node, in hwloc's order.
    pub(super) fn cores(&self, node: NodeId) -> &[&'a Core] {
        self.cores.get(&node).map_or(&[], Vec::as_slice)
    }

    /// GPUs at home on a node, by address.
    pub(super) fn gpus(&self, node: NodeId) -> impl Iterator<Item = Bdf> + '_ {
        self.gpus.iter().filter(move |(_, (home, _))| *home == node).map(|(bdf, _)| *bdf)
    }

    /// Cores that each GPU of a node owns: cores of the node over GPUs of the node, at least one.
    pub(super) fn share(&self, node: NodeId) -> usize {
        (self.cores(node).len() / self.gpus(node).count().max(1)).max(1)
    }

    /// The block of cores that a GPU owns, as places in [`Homes::cores`] of its home; the last blocks are empty where
    /// there are more GPUs than cores.
    pub(super) fn block(&self, gpu: Bdf) -> Range<usize> {
        let (node, _) = self.of_gpu(gpu);
        let (share, cores) = (self.share(node), self.cores(node).len());
        let place = self.gpus(node).position(|other| other == gpu).unwrap_or(0);
        (place * share).min(cores)..((place + 1) * share).min(cores)
    }

    /// The number of threads that most cores of the host have; the larger where two numbers tie.
    pub(super) fn common_threads(&self) -> usize {
        let mut by_threads: BTreeMap<usize, usize> = BTreeMap::new();
        for core in self.topology.cores() {
            *by_threads.entry(core.pcpus.len()).or_default() += 1;
        }
        by_threads.iter().max_by_key(|(threads, cores)| (**cores, **threads)).map_or(1, |(t, _)| *t)
    }
}

/// The nearest node to another that has a property, itself first; by distance where the host knows it, then by number.
pub(super) fn nearest(
    topology: &Topology,
    from: NodeId,
    has: impl Fn(&NumaNode) -> bool,
) -> Option<NodeId> {
    let distances = topology.node(from).map_or(&[][..], |node| &node.distances[..]);
    let candidates = topology.nodes().iter().enumerate().filter(|(_, node)| has(node));
    let rank = |(position, node): &(usize, &NumaNode)| {
        let distance = distances.get(*position).copied().unwrap_or(u32::MAX);
        (node.os_index != from, distance, node.os_index.0.abs_diff(from.0), node.os_index)
    };
    candidates.min_by_key(rank).map(|(_, node)| node.os_index)
}
