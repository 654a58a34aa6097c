//! The guest NUMA cell that a function belongs to: the one that represents the function's host
//! node.

use super::{About, Function, Note};
use crate::check::guest::Guest;
use crate::cpuset::{NodeId, NodeSet};
use crate::topology::Topology;
use std::collections::BTreeSet;

/// The cells of a guest with the host nodes that each represents.
pub struct Cells<'h> {
    /// By number; none if the guest has no cells.
    cells: Vec<(u32, NodeSet)>,
    host: &'h Topology,
}

impl<'h> Cells<'h> {
    /// Reads the cells: the nodes that the vCPUs of each are pinned to, otherwise those that its
    /// memory is bound to.
    pub fn new(guest: &Guest<'_>, host: &'h Topology) -> Cells<'h> {
        let nodes = |id: u32| {
            let bound = guest.binding(Some(id)).map(|binding| binding.nodes.value.clone());
            pinned(guest, id, host).or(bound).unwrap_or_default()
        };
        let cells = guest.cells.iter().map(|cell| (cell.id, nodes(cell.id)));
        let mut cells: Vec<_> = cells.collect();
        cells.sort_by_key(|(id, _)| *id);
        Cells { cells, host }
    }

    /// The cell that a function is written below. On a guest without cells it is 0.
    pub fn of(&self, function: &Function<'_>, notes: &mut Vec<Note>) -> u32 {
        let Some((lowest, _)) = self.cells.first() else { return 0 };
        let Some(node) = function.host.node else { return function.seen.unwrap_or(*lowest) };
        let stands_for = |(_, nodes): &&(u32, NodeSet)| nodes.contains(node);
        let mut candidates = self.cells.iter().filter(stands_for).map(|(id, _)| *id).peekable();
        let seen = function.seen;
        if let Some(&first) = candidates.peek() {
            return seen.filter(|seen| candidates.any(|id| id == *seen)).unwrap_or(first);
        }
        let near = seen.or_else(|| self.nearest(node)).unwrap_or(*lowest);
        let says = format!(
            "{} is on host node {node}, which no cell of the guest stands for: it is written below \
             cell {near}",
            function.host.bdf
        );
        notes.push(Note { about: About::Cell, says, compromise: true });
        near
    }

    /// The cell that is nearest to a host node.
    fn nearest(&self, node: NodeId) -> Option<u32> {
        let nodes = self.host.nodes();
        let distances = &self.host.node(node)?.distances;
        let distance = |other: NodeId| {
            let place = nodes.iter().position(|node| node.os_index == other)?;
            distances.get(place).copied()
        };
        let of_cell = |nodes: &NodeSet| nodes.iter().filter_map(distance).min();
        let near = self.cells.iter().filter_map(|(id, nodes)| Some((of_cell(nodes)?, *id)));
        near.min().map(|(_, id)| id)
    }

    /// Notes that a guest without cells has functions of several nodes.
    pub fn note_missing(&self, functions: &[Function<'_>], notes: &mut Vec<Note>) {
        let nodes: BTreeSet<_> = functions.iter().filter_map(|one| one.host.node).collect();
        if !self.cells.is_empty() || nodes.len() < 2 {
            return;
        }
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let says = format!(
            "the guest has no NUMA cells, and its functions are on host nodes {}: all are written \
             below cell 0",
            nodes.join(", ")
        );
        notes.push(Note { about: About::Cell, says, compromise: true });
    }
}

/// The host nodes that the vCPUs of a cell are pinned to; `None` if not all of them are pinned.
fn pinned(guest: &Guest<'_>, cell: u32, host: &Topology) -> Option<NodeSet> {
    let vcpus = guest.cells.iter().find(|one| one.id == cell)?.vcpus.as_ref()?;
    let pin = |vcpu: u32| guest.vcpu_pins.iter().find(|pin| pin.of.value == vcpu);
    let mut nodes = NodeSet::new();
    for vcpu in vcpus.value.iter() {
        let pcpus = &pin(vcpu.0)?.cpuset.value;
        let on = host.nodes().iter().filter(|node| node.pcpus.intersects(pcpus));
        nodes = nodes.or(&on.map(|node| node.os_index).collect());
    }
    Some(nodes).filter(|nodes| !nodes.is_empty())
}
