//! Computes the cores and memory that come with a set of GPUs, in numbers only: it runs for every
//! candidate set, so it chooses no core and writes no text. Cores (pcpus.rs) and memory (memory.rs)
//! are then taken by the same result, so they cannot disagree.

mod demand;
mod node_memory;

pub use node_memory::memory_node;
pub(super) use node_memory::reserve;

use super::affinity::{self, Homes};
use super::reason::ScarcePool;
use super::taken::Taken;
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::cpuset::{NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::request::{PinPolicy, Profile, Request};
use crate::topology::Topology;
use std::cell::RefCell;

/// Memory that `nvidia-vm` gives to 16 GPUs of a DGX-2 (gpuvm-nvidia-vm(7), SIZES).
pub(super) const DGX2: MemSize = MemSize::from_kib(1_516_912_640);

/// The memory that the GPUs of a node share if no amount is requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PerGpu {
    /// The node's memory, less the host's reserve and unused huge pages of other sizes.
    #[default]
    OfNode,
    /// The node's pool of the requested page size, if that is less.
    OfPool,
    /// Those of its pages that are free, for the GPUs that are, if that is less still.
    OfFree,
    /// The node's memory, less the host's reserve and all huge pages, in use or not.
    BesidePools,
    /// The node's memory as it would be if no huge pages were reserved.
    WithoutPools,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counting {
    pub(super) per_gpu: PerGpu,
    /// Whether only free pages of the requested size count; otherwise missing ones can be reserved.
    pub(super) only_free: bool,
}

/// The cost of a set's cores and memory; smaller is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Cores for vCPUs that are not on the node of their GPUs, and cells that lack memory on their
    /// node.
    pub(super) remote: u32,
    /// Nodes that cores and GPUs are on.
    pub(super) nodes: u32,
    /// Cores of the GPUs' share of nodes without GPUs that others hold.
    pub(super) short: u32,
    /// Cores that free GPUs of these nodes lose of their share.
    pub(super) strain: u32,
}

/// The resources of a node with cores.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) id: NodeId,
    pub(super) cores: u32,
    /// GPUs with a share of it that no domain holds.
    pub(super) free_gpus: u32,
    /// Cores that each of these GPUs owns.
    pub(super) share: u32,
    /// Whether slower cores are free for emulator and I/O threads.
    pub(super) has_helpers: bool,
    /// Its package, where the package's nodes are its L3 caches (AMD's "L3 as NUMA domain"): such a
    /// node is so small that one core of each would be too much for emulator and I/O threads, and
    /// the others of the package are near. `None` if its helpers have a core of its own.
    pub(super) slice_of: Option<u32>,
    /// Whether it is the home of GPUs.
    pub(super) has_gpus: bool,
    /// Nodes without GPUs shared by its GPUs, as indexes in [`Budget::nodes`].
    pub(super) annexes: Vec<usize>,
    /// Index in [`Budget::rooms`] of the node that its memory comes from; `None` if no node has
    /// memory.
    pub(super) room: Option<usize>,
    /// Number of free cores with at least as many threads as the index.
    free: Vec<u32>,
    /// The same on the empty host.
    there: Vec<u32>,
}

impl Stock {
    /// Free cores with at least this many threads.
    pub(super) fn free(&self, threads: u32) -> u32 {
        self.free.get(threads as usize).copied().unwrap_or(0)
    }

    /// Cores with at least this many threads, free or not.
    pub(super) fn there(&self, threads: u32) -> u32 {
        self.there.get(threads as usize).copied().unwrap_or(0)
    }

    /// Cores that free GPUs lose of their share when a guest with `gpus` of the node's GPUs takes
    /// `cores`.
    pub(super) fn strain(&self, gpus: u32, cores: u32) -> u32 {
        let owed = self.free_gpus.saturating_sub(gpus) * self.share;
        let free = self.free(1);
        owed.saturating_sub(free.saturating_sub(cores)) - owed.saturating_sub(free)
    }
}

#[derive(Debug)]
pub(super) struct Room {
    pub(super) id: NodeId,
    /// Memory available to guests on the empty host.
    pub(super) there: MemSize,
    pub(super) left: MemSize,
    /// Memory shared by the GPUs that have their memory here.
    base: MemSize,
    /// Whether that is their pool of huge pages, which is less than their part of the node.
    pub(super) by_pool: bool,
    /// That pool, if its free part is less than the share of the free GPUs.
    pub(super) scarce: Option<ScarcePool>,
    gpus: u32,
    /// Memory in huge pages of other sizes than the guest's that no domain holds or will take.
    pub(super) idle: MemSize,
    /// Whether it can have pages of the requested size.
    pub(super) pages: bool,
    /// Whether unbound memory may come from here, too.
    pub(super) usual: bool,
}

/// The cores wanted on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// The node, as an index in [`Budget::nodes`].
    pub(super) node: usize,
    pub(super) vcpus: u32,
    /// Whether one more core is wanted for emulator and I/O threads, or left free in the vendor's
    /// profile.
    pub(super) own: bool,
    /// The guest's GPUs at home there or sharing it.
    pub(super) gpus: u32,
}

/// Cores on another node than the GPUs that they serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loan {
    /// The node of the GPUs, as an index in [`Budget::nodes`].
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) cores: u32,
}

/// Memory that one cell has on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) cell: usize,
    /// The node, as an index in [`Budget::rooms`].
    pub(super) room: usize,
    pub(super) size: MemSize,
    /// Whether it comes from other nodes than the cell's own.
    pub(super) away: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellSize {
    /// Half-open range of demands whose cores it holds; empty: it is bound to no node.
    pub(super) demands: (usize, usize),
    /// vCPUs, or cores where the number of their threads follows from the choice.
    pub(super) weight: u32,
    pub(super) size: MemSize,
}

/// The cores and the memory of a guest in numbers; reused for each set, to avoid allocations.
#[derive(Debug, Clone, Default)]
pub(super) struct Solution {
    /// Nodes of the guest's GPUs with their number, by node.
    pub(super) homes: Vec<(usize, u32)>,
    /// Nodes without GPUs that the guest's GPUs share, with the number of these, by node; empty if
    /// the guest takes none.
    pub(super) annexes: Vec<(usize, u32)>,
    /// Cores of that share that others hold.
    pub(super) short: u32,
    /// Nodes where others hold all of the share, or all but one core.
    pub(super) dropped: u32,
    /// Cores by node; none without pins.
    pub(super) demands: Vec<Demand>,
    pub(super) loans: Vec<Loan>,
    /// vCPUs requested; 0: one per thread of the cores.
    pub(super) vcpus: u32,
    /// Threads of a core that vCPUs use; 0: as many as every chosen core has.
    pub(super) threads: u32,
    /// Cells with their memory; never empty.
    pub(super) cells: Vec<CellSize>,
    /// Where the memory of bound cells is.
    pub(super) parts: Vec<Part>,
    /// The remaining resources of each node while parts are taken.
    pub(super) left: Vec<MemSize>,
}

/// The resource that a guest lacks.
#[derive(Debug)]
pub(super) enum Short {
    /// More vCPUs than the host has hyperthreads.
    Threads {
        /// vCPUs.
        vcpus: u32,
        /// Hyperthreads available to guests.
        there: u32,
    },
    /// A node has too few cores.
    Cores {
        /// The demand.
        demand: Demand,
        /// Threads that a core for vCPUs needs.
        threads: u32,
    },
    /// All nodes together have too few cores.
    Everywhere {
        /// The node of the GPUs, with the missing cores.
        demand: Demand,
        /// How many hyperthreads each would have.
        threads: u32,
    },
    /// Fewer cores than nodes that the GPUs are on.
    Nodes {
        /// Cores for vCPUs.
        cores: u32,
        /// Nodes of the GPUs.
        nodes: u32,
    },
    /// The number of cells differs from that of the nodes.
    Cells {
        /// Requested cells.
        asked: u32,
        /// Nodes that the guest is on, or the most it could be on.
        nodes: u32,
    },
    /// The memory is less than a page for each cell.
    Page {
        /// The memory.
        asked: MemSize,
        /// Cells.
        cells: usize,
    },
    /// The record does not say how much memory the host has.
    Unknown,
    /// The nodes have no huge pages of the size.
    Pages {
        /// The nodes, as indexes.
        rooms: Vec<usize>,
    },
    /// Too little memory.
    Memory {
        /// The nodes, as indexes; `None` for the whole host, for unbound memory.
        rooms: Option<Vec<usize>>,
        /// Memory wanted from them.
        size: MemSize,
    },
    /// Refused whatever the host has.
    Refused(PlanError),
}

/// The available cores and memory of a host's nodes, and the request for them.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) request: Request,
    pub(super) nodes: Vec<Stock>,
    /// Whether GPUs share nodes without GPUs.
    pub(super) has_annexes: bool,
    /// vCPUs and memory of the cells that the guest has already.
    own_cells: Vec<(u32, MemSize)>,
    /// All nodes' memory, in the record's order.
    pub(super) rooms: Vec<Room>,
    /// Whether the host is the machine whose sizes `nvidia-vm` has.
    pub(super) is_dgx2: bool,
    /// Whether any node's memory is known; records of lstopo may leave it out.
    pub(super) has_memory: bool,
    pub(super) threads: u32,
    /// The most common number of threads per core.
    pub(super) common: u32,
    /// Numbers of threads to try, from the common one down to 1.
    pub(super) levels: Vec<u32>,
    /// For each node with cores, all others by distance.
    pub(super) near: Vec<Vec<usize>>,
    /// For each node with cores, all other rooms by distance, those without CPUs last.
    pub(super) near_rooms: Vec<Vec<usize>>,
    /// GPUs by address, with the index of their node in `nodes`.
    gpus: Vec<(Bdf, usize)>,
    /// Requested display GPUs: they bring no share unless the guest has no other GPU.
    displays: Vec<Bdf>,
    /// The node of most of the requested NICs and drives; none: there are none.
    beside: Option<usize>,
    scratch: RefCell<Solution>,
}

/// A count as the tables hold it; hosts are checked to have at most 65536 pcpus.
pub(super) fn small(number: usize) -> u32 {
    u32::try_from(number).expect("no more than the host's pcpus and functions")
}

/// The package of a node that is one of the package's L3 caches; `None` if it is no such node, or
/// the only one of its package.
fn slice_of(topology: &Topology, node: NodeId) -> Option<u32> {
    let own = &topology.node(node)?.pcpus;
    let first = own.first()?;
    let cache = topology.l3_place(first)?;
    let package = topology.core_of(first)?.package;
    let is_of_cache = |pcpu: PcpuId| topology.l3_place(pcpu) == Some(cache);
    let on_package = topology.cores().iter().filter(|core| core.package == package);
    let mut others = on_package.filter(|core| core.node != node).peekable();
    let is_slice = own.iter().all(is_of_cache)
        && others.peek().is_some()
        && others.all(|core| core.pcpus.first().is_some_and(|pcpu| !is_of_cache(pcpu)));
    is_slice.then_some(package)
}

impl Budget {
    pub(super) fn new(
        topology: &Topology,
        homes: &Homes<'_>,
        taken: &Taken<'_>,
        request: &Request,
        counting: Counting,
    ) -> Budget {
        let most = homes.all().iter().flat_map(|home| &home.seats).map(|seat| seat.threads).max();
        let most = most.unwrap_or(1).max(1);
        let nodes = homes.all().iter().map(|home| {
            let (mut free, mut there) = (vec![0; most + 1], vec![0; most + 1]);
            for seat in &home.seats {
                there[seat.threads] += 1;
                free[seat.threads] += u32::from(taken.is_free(seat.at));
            }
            for at in (0..most).rev() {
                free[at] += free[at + 1];
                there[at] += there[at + 1];
            }
            let owners = home.owners().iter();
            let free_gpus = owners.filter(|gpu| taken.device(**gpu).is_none()).count();
            Stock {
                id: home.id,
                cores: small(home.seats.len()),
                free_gpus: small(free_gpus),
                share: small(homes.share(home.id)),
                has_helpers: home.helpers.iter().any(|seat| taken.is_free(seat.at)),
                slice_of: slice_of(topology, home.id),
                has_gpus: !home.gpus.is_empty(),
                annexes: home.annexes.clone(),
                room: node_memory::of(topology, home.id),
                free,
                there,
            }
        });
        let nodes: Vec<Stock> = nodes.collect();
        let threads = homes.all().iter().flat_map(|home| &home.seats).map(|seat| seat.threads);
        let threads = small(threads.sum());
        let common = small(homes.common_threads());
        let has = |t: u32| t == 1 || nodes.iter().any(|node| node.there(t) > node.there(t + 1));
        let levels = (1..=common).rev().filter(|&t| has(t)).collect();
        let rooms = node_memory::table(topology, homes, taken, request, counting, &nodes);
        let mut budget = Budget {
            request: request.clone(),
            has_annexes: nodes.iter().any(|node| !node.annexes.is_empty()),
            nodes,
            own_cells: taken.own_cells.to_vec(),
            rooms,
            is_dgx2: node_memory::is_dgx2(topology),
            has_memory: topology.nodes().iter().any(|node| !node.memory_kib.is_zero()),
            threads,
            common,
            levels,
            near: Vec::new(),
            near_rooms: Vec::new(),
            gpus: homes.places().collect(),
            displays: taken.asked().to_vec(),
            beside: None,
            scratch: RefCell::default(),
        };
        budget.look_around(topology);
        budget
    }

    /// The same for a guest whose NICs and drives are on a node. Without GPUs its cores are near
    /// them.
    pub(super) fn beside(mut self, node: Option<NodeId>) -> Budget {
        self.beside = node.and_then(|node| self.nodes.iter().position(|stock| stock.id == node));
        self
    }

    /// Sorts the other nodes by distance from each.
    fn look_around(&mut self, topology: &Topology) {
        let place = |id: NodeId| topology.nodes().iter().position(|node| node.os_index == id);
        let at: Vec<Option<usize>> = self.nodes.iter().map(|node| place(node.id)).collect();
        let usual = super::taken::ordinary(topology);
        // A node without CPUs is a GPU's memory, or memory behind CXL: that of three devices has
        // 1.35 to 3 times the latency of the other package's DRAM (Sun et al., Demystifying CXL
        // Memory, MICRO 2023, 4.1), though the firmware calls it nearer (14 against 21).
        let is_last = |room: usize| !usual(&topology.nodes()[room]);
        for (own, stock) in self.nodes.iter().enumerate() {
            let rank = affinity::rank(topology, stock.id);
            let far = |at: usize| rank(at, &topology.nodes()[at]);
            let mut others: Vec<usize> = (0..at.len()).filter(|other| *other != own).collect();
            others.sort_by_key(|other| at[*other].map(far));
            self.near.push(others);
            let mut rooms: Vec<usize> = (0..self.rooms.len()).collect();
            rooms.sort_by_key(|&room| (is_last(room), far(room)));
            self.near_rooms.push(rooms);
        }
    }

    /// Returns the cost for a guest with these GPUs; `None` if its cores or its memory do not fit.
    pub(super) fn fit(&self, gpus: &[Bdf]) -> Option<Fit> {
        let mut solution = self.scratch.borrow_mut();
        self.solve(gpus, self.request.allow.remote, &mut solution).ok()?;
        Some(self.cost(&solution))
    }

    /// Returns the cost of a solution.
    fn cost(&self, solution: &Solution) -> Fit {
        let alone =
            |(node, _): &&(usize, u32)| solution.demands.iter().all(|demand| demand.node != *node);
        let alone = solution.homes.iter().filter(alone).count();
        let strain = solution.demands.iter().map(|demand| {
            let cores = demand.vcpus + u32::from(demand.own);
            self.nodes[demand.node].strain(demand.gpus, cores)
        });
        let cores: u32 = solution.loans.iter().map(|loan| loan.cores).sum();
        let away = solution.parts.iter().filter(|part| part.away).count();
        Fit {
            remote: cores + small(away),
            nodes: small(solution.demands.len() + alone) + solution.dropped,
            short: solution.short,
            strain: strain.sum(),
        }
    }

    /// Finds the cores and memory of a guest with these GPUs, or the shortage.
    pub(super) fn solve(
        &self,
        gpus: &[Bdf],
        remote: bool,
        out: &mut Solution,
    ) -> Result<(), Short> {
        self.count(gpus, out);
        if self.request.pins == PinPolicy::None {
            return self.float(out);
        }
        match (self.request.vcpus, gpus.is_empty()) {
            (None, false) => self.by_share(remote, out),
            (Some(vcpus), _) => self.by_number(vcpus, remote, out),
            (None, true) => self.by_number(self.default_vcpus(out), remote, out),
        }
    }

    /// Counts the GPUs of each node.
    pub(super) fn count(&self, gpus: &[Bdf], out: &mut Solution) {
        out.homes.clear();
        let brings = |gpu: &&Bdf| self.displays.is_empty() || !self.displays.contains(gpu);
        let only_displays = !gpus.iter().any(|gpu| brings(&gpu));
        let instead = gpus.iter().take(usize::from(only_displays));
        for gpu in gpus.iter().filter(brings).chain(instead) {
            let at = self.gpus.binary_search_by_key(gpu, |(other, _)| *other);
            let node = at.map_or(0, |at| self.gpus[at].1);
            match out.homes.iter_mut().find(|(other, _)| *other == node) {
                Some((_, number)) => *number += 1,
                None => out.homes.push((node, 1)),
            }
        }
        out.homes.sort_unstable();
        out.annexes.clear();
        (out.short, out.dropped) = (0, 0);
    }

    /// Whether the rule of `nvidia-vm` for one GPU applies: vCPUs on all threads of its cores but
    /// one.
    pub(super) fn is_vendors_odd(&self, gpus: u32) -> bool {
        self.request.profile == Profile::NvidiaVm && gpus == 1 && self.common > 1
    }
}
