//! The memory of a guest's cells and the nodes it comes from, in numbers. Knows no pcpu and writes
//! no text.

use super::{Budget, CellSize, Counting, DGX2, Demand, Part, PerGpu, Room, Short, Solution, Stock};
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::placement::affinity::{self, Homes};
use crate::placement::reason::ScarcePool;
use crate::placement::taken::{Taken, ordinary};
use crate::request::{PageSize, PinPolicy, Profile, Request};
use crate::topology::{HugePagePool, NumaNode, Topology};

/// Memory of a guest without GPUs that requests no amount.
const DEFAULT: MemSize = MemSize::from_gib(2);

/// The host's part of a node's memory when shares are computed: one twentieth, at least 1 GiB and
/// at most half; for the kernel, QEMU's own memory and page tables.
pub fn reserve(node: &NumaNode) -> MemSize {
    keep(node.memory_kib, 20, MemSize::from_gib(1))
}

/// The host's part of a node's memory whatever is requested: one fiftieth, at least 512 MiB and at
/// most half.
fn least(node: &NumaNode) -> MemSize {
    keep(node.memory_kib, 50, MemSize::from_kib(512 << 10))
}

/// Returns 1/`part` of a size, at least `least` and at most half.
fn keep(size: MemSize, part: u64, least: MemSize) -> MemSize {
    size.share(1, part).max(least).min(size.share(1, 2))
}

/// Memory of a node in huge pages of other sizes than the guest's that no domain holds or will
/// take.
fn idle(topology: &Topology, taken: &Taken<'_>, at: usize, page: Option<MemSize>) -> MemSize {
    let pools = topology.nodes()[at].huge_pages.iter();
    let others = pools.filter(|pool| Some(pool.page_kib) != page);
    others.map(|pool| free(taken, at, pool)).sum()
}

/// Memory of a node in the pages of a pool that no domain has or will take.
fn free(taken: &Taken<'_>, at: usize, pool: &HugePagePool) -> MemSize {
    let free = MemSize::from_kib(pool.page_kib.kib().saturating_mul(pool.free));
    free - taken.memory_to_come(at, pool.page_kib)
}

/// Returns the node that guests of a node get their memory from: itself, otherwise the nearest with
/// memory, those with CPUs first; none if no node has memory.
pub fn memory_node(topology: &Topology, node: NodeId) -> Option<NodeId> {
    let usual = ordinary(topology);
    let near = |has: &dyn Fn(&NumaNode) -> bool| affinity::nearest(topology, node, has);
    let own = |n: &NumaNode| n.os_index == node && !n.memory_kib.is_zero();
    near(&own).or_else(|| near(&usual))
}

/// The same as an index in [`Topology::nodes`].
pub(super) fn of(topology: &Topology, node: NodeId) -> Option<usize> {
    let id = memory_node(topology, node)?;
    topology.nodes().iter().position(|n| n.os_index == id)
}

/// Whether the host is the machine whose sizes `nvidia-vm` has.
pub(super) fn is_dgx2(topology: &Topology) -> bool {
    let product = topology.machine().product.as_deref();
    let board = topology.fabric().board.as_deref();
    let named =
        |name: Option<&str>| name.is_some_and(|n| n.replace(['-', ' '], "").contains("DGX2"));
    named(product) || named(board)
}

/// All of these pools, whoever uses them.
fn total<'p>(pools: impl Iterator<Item = &'p HugePagePool>) -> MemSize {
    pools.map(|pool| MemSize::from_kib(pool.page_kib.kib().saturating_mul(pool.total))).sum()
}

/// The GPUs' share of a pool of huge pages.
struct PoolShare {
    memory: MemSize,
    /// By how many GPUs it is divided.
    gpus: u32,
    /// Whether only the free part is divided.
    is_scarce: bool,
}

/// Memory that GPUs share.
#[derive(Clone, Copy)]
struct OfGpus {
    memory: MemSize,
    gpus: u32,
}

impl PoolShare {
    /// All of a pool for all GPUs, or the free part for the free GPUs, if each gets less then:
    /// others have more than their share, or no GPU. `None` if GPUs share the node.
    fn new(per_gpu: PerGpu, free: OfGpus, all: OfGpus) -> Option<PoolShare> {
        let product = |size: MemSize, gpus: u32| u128::from(size.kib()) * u128::from(gpus);
        let is_scarce =
            free.gpus > 0 && product(free.memory, all.gpus) < product(all.memory, free.gpus);
        let share = |OfGpus { memory, gpus }, is_scarce| PoolShare { memory, gpus, is_scarce };
        match per_gpu {
            PerGpu::OfFree if is_scarce => Some(share(free, true)),
            PerGpu::OfPool | PerGpu::OfFree => Some(share(all, false)),
            PerGpu::OfNode | PerGpu::BesidePools | PerGpu::WithoutPools => None,
        }
    }

    /// Whether it is less for each GPU than this memory for so many.
    fn is_below(&self, memory: MemSize, gpus: u32) -> bool {
        self.memory.share(gpus.max(1).into(), self.gpus.max(1).into()) < memory
    }
}

/// Whether a guest's cells are bound to nodes.
fn is_bound(request: &Request) -> bool {
    request.pins != PinPolicy::None && request.profile != Profile::NvidiaVm
}

/// Makes the table of a host's memory.
pub(super) fn table(
    topology: &Topology,
    homes: &Homes<'_>,
    taken: &Taken<'_>,
    request: &Request,
    counting: Counting,
    nodes: &[Stock],
) -> Vec<Room> {
    let page = request.huge_pages.asked().map(PageSize::size);
    let known = topology.nodes().iter().any(|node| !node.huge_pages.is_empty());
    let usual = ordinary(topology);
    let room = |(at, node): (usize, &NumaNode)| {
        let node = &*topology.usable(node);
        let idle = match counting.per_gpu {
            PerGpu::WithoutPools => MemSize::default(),
            _ => idle(topology, taken, at, page),
        };
        let asked = request.reserve.memory_kib;
        let own = || node.huge_pages.iter().filter(|pool| Some(pool.page_kib) == page);
        let there = match asked {
            Some(asked) => node.memory_kib - asked,
            // Of pages that are there the host has no use.
            None => (node.memory_kib - least(node)).max(total(own()).min(node.memory_kib)),
        };
        let there = match taken.own_cells {
            [] => there,
            // An existing guest keeps its memory even if the host's reserve needs it.
            _ => there.max((taken.own_memory(at) + taken.memory(at) + idle).min(node.memory_kib)),
        };
        let left = there - taken.memory(at) - idle;
        let free_pages: MemSize = own().map(|pool| free(taken, at, pool)).sum();
        let shared = node.memory_kib - asked.unwrap_or_else(|| reserve(node));
        let here = || nodes.iter().zip(homes.all()).filter(|(stock, _)| stock.room == Some(at));
        let gpus: usize = here().map(|(_, home)| home.owners().len()).sum();
        let free_gpus: u32 = here().map(|(stock, _)| stock.free_gpus).sum();
        let of_node = if idle.is_zero() || free_gpus == 0 {
            shared - idle
        } else {
            // Guests that left the pool with too little for one more have more than the others get.
            let rest = shared - taken.memory(at) - idle;
            (shared - idle).min(rest.share(gpus as u64, free_gpus.into()))
        };
        let gpus = super::small(gpus);
        let (free, all) = (free_pages, total(own()));
        let of_free = OfGpus { memory: free, gpus: free_gpus };
        let pool = PoolShare::new(counting.per_gpu, of_free, OfGpus { memory: all, gpus });
        let pool = pool.filter(|pool| pool.is_below(of_node, gpus));
        let scarce = ScarcePool { node: node.os_index, free, all };
        Room {
            id: node.os_index,
            there,
            // Pages that are free are there, unless the admin keeps so much of the node for the
            // host.
            left: match (counting.only_free, asked) {
                (false, _) => left,
                (true, _) if !is_bound(request) => free_pages,
                (true, Some(_)) => free_pages.min(left),
                (true, None) => free_pages.min(node.memory_kib - taken.memory(at)),
            },
            base: match counting.per_gpu {
                PerGpu::BesidePools => shared - total(node.huge_pages.iter()),
                _ => pool.as_ref().map_or(of_node, |pool| pool.memory),
            },
            by_pool: pool.is_some(),
            scarce: pool.as_ref().filter(|pool| pool.is_scarce).map(|_| scarce),
            gpus: pool.map_or(gpus, |pool| pool.gpus),
            idle,
            pages: page.is_none()
                || !known
                || node.huge_pages.iter().any(|pool| page == Some(pool.page_kib)),
            usual: usual(node),
        }
    };
    topology.nodes().iter().enumerate().map(room).collect()
}

/// Divides pages among cells by weight: the whole pages of each share, then the rest one by one to
/// the cells furthest below theirs, the first of equals first.
fn divide(pages: u64, unit: MemSize, cells: &mut [CellSize]) {
    let all: u64 = cells.iter().map(|cell| u64::from(cell.weight)).sum::<u64>().max(1);
    let mut rest = pages;
    for cell in cells.iter_mut() {
        cell.size = MemSize::from_kib(pages).share(cell.weight.into(), all);
        rest -= cell.size.kib();
    }
    // Products of pages and weights stay far below 2^127.
    let lacks = |cell: &CellSize| {
        i128::from(pages) * i128::from(cell.weight) - i128::from(cell.size.kib()) * i128::from(all)
    };
    for _ in 0..rest {
        let most = cells.iter().map(lacks).max();
        if let Some(cell) = cells.iter_mut().find(|cell| Some(lacks(cell)) == most) {
            cell.size = cell.size + MemSize::from_kib(1);
        }
    }
    for cell in cells {
        cell.size = MemSize::from_kib(cell.size.kib().saturating_mul(unit.kib()));
    }
}

impl Budget {
    /// The unit that each cell's memory is a multiple of: the huge page, otherwise 2 MiB
    /// (gpuvm-nvidia-vm(7), TRAPS OF THE GUIDE, T4). The sizes of `nvidia-vm` are whole MiB (SIZES
    /// there) and are kept as they are in normal pages.
    pub(in crate::placement) fn unit(&self) -> MemSize {
        let request = &self.request;
        let pages = request.huge_pages.asked().or(request.rounding).or_else(|| {
            let own = self.is_vendors() && request.memory_kib.is_none();
            (!own).then_some(PageSize::TwoMib)
        });
        let rounding = request.rounding.map_or(MemSize::default(), PageSize::size);
        pages.map_or(MemSize::from_kib(1024), PageSize::size).max(rounding)
    }

    /// Whether the guest gets the sizes of `nvidia-vm`.
    fn is_vendors(&self) -> bool {
        self.request.profile == Profile::NvidiaVm && self.is_dgx2
    }

    /// Whether cells are bound to nodes.
    pub(in crate::placement) fn is_bound(&self) -> bool {
        is_bound(&self.request)
    }

    /// Returns the memory share of this many GPUs at home on a node, after the host's part. Nodes
    /// without memory of their own count at the node they use.
    fn share(&self, node: usize, gpus: u32) -> MemSize {
        let room = self.nodes[node].room.map(|at| &self.rooms[at]);
        room.map_or(MemSize::default(), |r| r.base.share(gpus.into(), r.gpus.max(1).into()))
    }

    /// Returns the share of a demand's GPUs in its node's memory; on a node without GPUs, no more
    /// than others have left.
    fn part_of(&self, demand: &Demand) -> MemSize {
        let (stock, share) = (&self.nodes[demand.node], self.share(demand.node, demand.gpus));
        match stock.room.map(|at| &self.rooms[at]) {
            Some(room) if !stock.has_gpus => share.min(room.left),
            _ => share,
        }
    }

    /// Sizes the memory of this many cells and finds it. An amount that is not a whole number of
    /// pages is rounded up if the nodes have enough, otherwise down.
    pub(super) fn memory(&self, cells: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        if !self.has_memory {
            return Err(Short::Unknown);
        }
        self.lay_out(cells as usize, out);
        let larger = self.sized(true, remote, out);
        let is_whole =
            self.given(out).is_none_or(|amount| amount == amount.round_down(self.unit()));
        match larger {
            Err(Short::Memory { .. }) if !is_whole => self.sized(false, remote, out),
            larger => larger,
        }
    }

    /// Sizes the cells, rounding the total up or down, and finds their memory.
    fn sized(&self, up: bool, remote: bool, out: &mut Solution) -> Result<(), Short> {
        self.size(up, out)?;
        out.parts.clear();
        if self.is_bound() { self.take(remote, out) } else { self.take_anywhere(out) }
    }

    /// Returns the guest's total memory if it is given rather than the sum of shares.
    fn given(&self, out: &Solution) -> Option<MemSize> {
        let gpus: u32 = out.homes.iter().map(|(_, gpus)| gpus).sum();
        match self.request.memory_kib {
            Some(asked) => Some(asked),
            None if gpus == 0 => Some(DEFAULT),
            None if self.is_vendors() => Some(DGX2.share(gpus.into(), 16)),
            None => None,
        }
    }

    /// Makes the cells without their memory.
    fn lay_out(&self, cells: usize, out: &mut Solution) {
        out.cells.clear();
        let nothing = MemSize::default();
        let cell = |demands, weight| CellSize { demands, weight, size: nothing };
        if !self.is_bound() {
            out.cells.extend((0..cells).map(|_| cell((0, 0), 1)));
            return;
        }
        let whole = out.demands.len();
        let all: u32 = out.demands.iter().map(|demand| demand.vcpus * out.threads.max(1)).sum();
        let unused = if out.vcpus == 0 { 0 } else { all - out.vcpus };
        let each = if cells == 1 { whole } else { 1 };
        for first in (0..whole).step_by(each.max(1)) {
            let end = first + each;
            let cores: u32 = out.demands[first..end].iter().map(|demand| demand.vcpus).sum();
            let last = if end == whole { unused } else { 0 };
            out.cells.push(cell((first, end), cores * out.threads.max(1) - last));
        }
    }

    /// Gives each cell its size, in whole pages. A given amount is rounded once and divided in
    /// whole pages, so that the cells get all of it; shares are rounded down one by one, since
    /// their nodes have no more.
    fn size(&self, up: bool, out: &mut Solution) -> Result<(), Short> {
        let unit = self.unit();
        let given = self.given(out);
        match given {
            Some(amount) => {
                let whole = if up { amount.round_up(unit) } else { amount.round_down(unit) };
                if !self.stays_divided(whole, &mut out.cells) {
                    divide(whole.kib() / unit.kib(), unit, &mut out.cells);
                }
            }
            None => self.size_by_share(out),
        }
        if out.cells.iter().any(|cell| cell.size.is_zero()) {
            Err(Short::Page {
                asked: given.unwrap_or_else(|| out.cells.iter().map(|cell| cell.size).sum()),
                cells: out.cells.len(),
            })
        } else {
            Ok(())
        }
    }

    /// Leaves cells that a guest has already the memory that they have, where that is the whole in
    /// pages, and they get the same part of its vCPUs.
    fn stays_divided(&self, whole: MemSize, cells: &mut [CellSize]) -> bool {
        let (unit, own) = (self.unit(), &self.own_cells);
        let vcpus: u64 = own.iter().map(|(vcpus, _)| u64::from(*vcpus)).sum();
        let weights: u64 = cells.iter().map(|cell| u64::from(cell.weight)).sum();
        let is_same = |((own, size), cell): (&(u32, MemSize), &CellSize)| {
            u64::from(*own) * weights == u64::from(cell.weight) * vcpus
                && *size == size.round_down(unit)
        };
        let stays = own.len() == cells.len()
            && own.iter().map(|(_, size)| *size).sum::<MemSize>() == whole
            && own.iter().zip(&*cells).all(is_same);
        if stays {
            cells.iter_mut().zip(own).for_each(|(cell, (_, size))| cell.size = *size);
        }
        stays
    }

    /// Gives each cell the share of its GPUs, or of all GPUs if cores are borrowed from other
    /// nodes.
    fn size_by_share(&self, out: &mut Solution) {
        let at_home = out.loans.is_empty() && self.is_bound();
        let shares = out.homes.iter().chain(&out.annexes);
        let sum: MemSize = shares.map(|&(node, gpus)| self.share(node, gpus)).sum();
        let all: u32 = out.cells.iter().map(|cell| cell.weight).sum();
        for cell in &mut out.cells {
            let (first, end) = cell.demands;
            let whole = if at_home {
                out.demands[first..end].iter().map(|d| self.part_of(d)).sum()
            } else {
                sum.share(cell.weight.into(), all.max(1).into())
            };
            cell.size = whole.round_down(self.unit());
        }
    }

    /// Checks unbound memory against all nodes that it may come from.
    fn take_anywhere(&self, out: &Solution) -> Result<(), Short> {
        if !self.rooms.iter().any(|room| room.pages) {
            return Err(Short::Pages { rooms: (0..self.rooms.len()).collect() });
        }
        let size = out.cells.iter().map(|cell| cell.size).sum();
        let usual = self.rooms.iter().enumerate().filter(|(_, room)| room.usual);
        let rooms = usual.map(|(at, _)| at);
        let left: MemSize = rooms.clone().map(|at| self.rooms[at].left).sum();
        let there: MemSize = rooms.clone().map(|at| self.rooms[at].there).sum();
        if size > left || size > there { Err(Short::Memory { rooms: None, size }) } else { Ok(()) }
    }

    /// Takes the memory of bound cells from their nodes; the rest comes from the nearest other
    /// nodes, if that is allowed.
    fn take(&self, remote: bool, out: &mut Solution) -> Result<(), Short> {
        out.left.clear();
        out.left.extend(self.rooms.iter().map(|room| {
            if room.pages { room.left.round_down(self.unit()) } else { MemSize::default() }
        }));
        for cell in 0..out.cells.len() {
            let (first, end) = out.cells[cell].demands;
            let mut rest = out.cells[cell].size;
            for demand in first..end {
                let Some(room) = self.nodes[out.demands[demand].node].room else { continue };
                let size = rest.min(out.left[room]);
                out.left[room] = out.left[room] - size;
                rest = rest - size;
                out.parts.push(Part { cell, room, size, away: false });
            }
            if !rest.is_zero() && !remote {
                return Err(self.short(cell, out));
            }
        }
        for cell in 0..out.cells.len() {
            let found = out.parts.iter().filter(|part| part.cell == cell).map(|part| part.size);
            let mut rest = out.cells[cell].size - found.sum();
            let near = out.demands[out.cells[cell].demands.0].node;
            for &room in &self.near_rooms[near] {
                let size = rest.min(out.left[room]);
                if !size.is_zero() {
                    out.left[room] = out.left[room] - size;
                    rest = rest - size;
                    out.parts.push(Part { cell, room, size, away: true });
                }
            }
            if !rest.is_zero() {
                return Err(self.short(cell, out));
            }
        }
        Ok(())
    }

    /// Whether the first of two insufficient places comes closer: one with enough cores that lacks
    /// memory; among two lacking memory, the one that has it once others leave, otherwise the
    /// larger.
    pub(super) fn comes_nearer(&self, one: &Short, other: &Short) -> bool {
        let near = |short: &Short| match short {
            Short::Memory { rooms: Some(rooms), size } => {
                let total = |what: fn(&Room) -> MemSize| -> MemSize {
                    rooms.iter().map(|&at| what(&self.rooms[at])).sum()
                };
                let (there, left) = (total(|room| room.there), total(|room| room.left));
                let is_there = there >= *size;
                Some((*size, (is_there, if is_there { left } else { there })))
            }
            _ => None,
        };
        match (near(one), near(other)) {
            (Some((size, one)), Some((same, other))) => size == same && one > other,
            (Some(_), None) => matches!(other, Short::Cores { .. }),
            (None, _) => false,
        }
    }

    /// Returns the shortage of a cell, with the demand of all cells on the same nodes.
    fn short(&self, cell: usize, out: &Solution) -> Short {
        let rooms_of = |cell: &CellSize| -> Vec<usize> {
            let (first, end) = cell.demands;
            let demands = &out.demands[first..end];
            let mut rooms: Vec<usize> =
                demands.iter().filter_map(|demand| self.nodes[demand.node].room).collect();
            rooms.sort_unstable();
            rooms.dedup();
            rooms
        };
        let rooms = rooms_of(&out.cells[cell]);
        if !rooms.iter().any(|&at| self.rooms[at].pages) {
            return Short::Pages { rooms };
        }
        let same = out.cells.iter().filter(|cell| rooms_of(cell) == rooms);
        Short::Memory { size: same.map(|cell| cell.size).sum(), rooms: Some(rooms) }
    }
}
