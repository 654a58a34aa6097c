//! The guest's cells with their memory, and the reasons for its amount and nodes. The numbers come
//! from the budget.

use super::affinity::distance;
use super::budget::{Budget, CellSize, DGX2, Room, Solution};
use super::cpus::GuestCpus;
use super::explain::Reasons;
use super::reason::{MemoryReason, Rounding, Topic};
use super::types::GuestCell;
use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::request::{Profile, Request};
use crate::topology::Topology;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The input for the cells.
pub(super) struct Memory<'a> {
    pub(super) topology: &'a Topology,
    pub(super) budget: &'a Budget,
    pub(super) solution: &'a Solution,
    /// How many GPUs the guest has.
    pub(super) gpus: usize,
    pub(super) request: &'a Request,
}

impl Memory<'_> {
    /// Makes the cells with their memory.
    pub(super) fn cells(&self, cpus: &GuestCpus, reasons: &mut Reasons) -> Vec<GuestCell> {
        self.explain_nodes(reasons);
        self.explain_size(reasons);
        self.explain_one_cell(reasons);
        self.explain_idle(reasons);
        self.explain_away(reasons);
        let anywhere = self.anywhere(reasons);
        let mut first = 0;
        let mut cells = Vec::new();
        for (at, (_, vcpus)) in cpus.cells.iter().enumerate() {
            cells.push(GuestCell {
                vcpus: first..first + vcpus,
                memory_kib: self.solution.cells[at].size,
                host_nodes: match &anywhere {
                    Some(nodes) => nodes.clone(),
                    None => self.rooms(at).map(|room| self.budget.rooms[room].id).collect(),
                },
                distances: self.distances(cpus, at),
            });
            first += vcpus;
        }
        cells
    }

    /// Returns the nodes of memory that may be anywhere else; `None` if cells have nodes of their own.
    /// Beside nodes whose memory is a GPU's it is bound to the others, or the kernel could choose
    /// those as soon as a driver of the host puts that memory online.
    fn anywhere(&self, reasons: &mut Reasons) -> Option<NodeSet> {
        if self.budget.is_bound() {
            return None;
        }
        let of_gpus = self.topology.gpu_memory_nodes();
        if of_gpus.is_empty() {
            return Some(NodeSet::new());
        }
        let usual = self.budget.rooms.iter().filter(|room| room.usual);
        let nodes: NodeSet = usual.map(|room| room.id).collect();
        reasons.say(Topic::Memory, MemoryReason::NotOfGpus { nodes: nodes.clone(), of_gpus });
        Some(nodes)
    }

    /// Returns the nodes that a cell's memory is bound to, as indexes: those that provide some, and
    /// all nodes of a cell that spans several.
    fn rooms(&self, cell: usize) -> impl Iterator<Item = usize> + '_ {
        let parts = self.solution.parts.iter().filter(move |part| part.cell == cell);
        let (first, end) = self.solution.cells[cell].demands;
        let own = move |room| {
            let demands = &self.solution.demands[first..end];
            demands.len() > 1
                && demands.iter().any(|d| self.budget.nodes[d.node].room == Some(room))
        };
        parts.filter(move |part| !part.size.is_zero() || own(part.room)).map(|part| part.room)
    }

    /// Distances from one cell to all, if there are several and the host reports them.
    fn distances(&self, cpus: &GuestCpus, at: usize) -> Vec<u32> {
        let from = cpus.cells[at].0.and_then(|node| self.topology.node(node));
        let (Some(from), 2..) = (from, cpus.cells.len()) else { return Vec::new() };
        let to =
            |(node, _): &(Option<NodeId>, u32)| distance(self.topology, from.os_index, (*node)?);
        cpus.cells.iter().map(to).collect::<Option<Vec<u32>>>().unwrap_or_default()
    }

    /// Says which nodes have no memory of their own.
    fn explain_nodes(&self, reasons: &mut Reasons) {
        for part in self.solution.parts.iter().filter(|part| !part.away) {
            let (first, end) = self.solution.cells[part.cell].demands;
            for demand in &self.solution.demands[first..end] {
                let stock = &self.budget.nodes[demand.node];
                let from = self.budget.rooms[part.room].id;
                if stock.room == Some(part.room) && stock.id != from {
                    let node = stock.id;
                    reasons.compromise(Topic::Memory, MemoryReason::NoMemory { node, from });
                }
            }
        }
    }

    /// Adds the reason for the amount.
    fn explain_size(&self, reasons: &mut Reasons) {
        let cells = &self.solution.cells;
        let memory: MemSize = cells.iter().map(|cell| cell.size).sum();
        let vendor = self.request.profile == Profile::NvidiaVm && self.budget.is_dgx2;
        let rounding = |given: MemSize| match memory.cmp(&given) {
            Ordering::Equal => Rounding::None,
            Ordering::Greater => Rounding::Up(self.budget.unit()),
            Ordering::Less => Rounding::Down(self.budget.unit()),
        };
        let gpus = self.gpus;
        let why = match self.request.memory_kib {
            Some(asked) if asked == memory => MemoryReason::Asked { memory },
            Some(asked) => {
                let why = MemoryReason::Rounded { memory, asked, rounding: rounding(asked) };
                return reasons.compromise(Topic::Memory, why);
            }
            None if gpus == 0 => MemoryReason::Default { memory },
            None if vendor => {
                let rounding = rounding(DGX2.share(gpus as u64, 16));
                MemoryReason::Vendor { memory, gpus, whole: DGX2, rounding }
            }
            None if self.pooled().next().is_some() => {
                let scarce = self.pooled().filter_map(|room| room.scarce).collect();
                MemoryReason::SharePool { memory, gpus, scarce }
            }
            None => {
                let (kept, without) = (self.request.reserve.memory_kib, self.without());
                MemoryReason::Share { memory, gpus, kept, without }
            }
        };
        reasons.say(Topic::Memory, why);
    }

    /// Returns the nodes whose memory comes with their cores, of which too few vCPUs are requested
    /// to reach them.
    fn without(&self) -> NodeSet {
        if self.request.vcpus.is_none() {
            return NodeSet::default();
        }
        let nodes = &self.budget.nodes;
        let has_vcpus = |node: usize| self.solution.demands.iter().any(|d| d.node == node);
        let annexes = self.solution.homes.iter().flat_map(|&(home, _)| &nodes[home].annexes);
        let left = annexes.filter(|&&node| nodes[node].room.is_some() && !has_vcpus(node));
        left.map(|&node| nodes[node].id).collect()
    }

    /// Returns the nodes with memory of the guest whose GPUs share their pool of huge pages.
    fn pooled(&self) -> impl Iterator<Item = &Room> {
        let parts = &self.solution.parts;
        let is_mine = |at: usize, room: &Room| {
            if parts.is_empty() { room.usual } else { parts.iter().any(|part| part.room == at) }
        };
        let rooms = self.budget.rooms.iter().enumerate();
        rooms.filter(move |(at, room)| room.by_pool && is_mine(*at, room)).map(|(_, room)| room)
    }

    /// Adds that one cell spans several nodes.
    fn explain_one_cell(&self, reasons: &mut Reasons) {
        if let [CellSize { demands: (first, end), .. }] = self.solution.cells[..]
            && end > first + 1
        {
            let nodes: NodeSet = self.rooms(0).map(|room| self.budget.rooms[room].id).collect();
            reasons.compromise(Topic::Memory, MemoryReason::OneCell { nodes });
        }
    }

    /// Adds which memory is not on its cell's nodes because they lack it.
    fn explain_away(&self, reasons: &mut Reasons) {
        for part in self.solution.parts.iter().filter(|part| part.away) {
            let cell = &self.solution.cells[part.cell];
            let own = self.budget.nodes[self.solution.demands[cell.demands.0].node].id;
            let from = self.budget.rooms[part.room].id;
            let why = MemoryReason::Away {
                part: part.size,
                of: cell.size,
                cell: part.cell,
                from,
                distance: distance(self.topology, own, from),
                own,
                has_cpus: self.topology.node(from).is_some_and(|node| !node.pcpus.is_empty()),
            };
            reasons.compromise(Topic::Memory, why);
        }
    }

    /// Adds which memory is in pools that the guest does not use.
    fn explain_idle(&self, reasons: &mut Reasons) {
        let own: BTreeSet<usize> = self.solution.parts.iter().map(|part| part.room).collect();
        let mine = |at: usize, room: &Room| {
            if self.budget.is_bound() { own.contains(&at) } else { room.usual }
        };
        for (at, room) in self.budget.rooms.iter().enumerate() {
            if mine(at, room) && !room.idle.is_zero() {
                let (memory, node) = (room.idle, room.id);
                reasons.compromise(Topic::Memory, MemoryReason::Idle { memory, node });
            }
        }
    }
}
