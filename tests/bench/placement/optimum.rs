//! The exact optimum of one decision: every set of free GPUs is judged by the whole key, and the
//! smallest wins. It is written from the definition that the planner states
//! (src/core/placement/score.rs) and shares no code with it: naive, for small hosts only.

use super::beside::{Board as Devices, Cost};
use super::model::Place;
use super::stream::{CLASSES, home};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::topology::{DeviceKind, FabricModel, PciDevice, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The cost of a set, compared field by field in this order; smaller is better.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Minus the NVLinks inside, if GPUs are linked directly.
    pub nvlink: i64,
    /// Number of nodes of its GPUs.
    pub nodes: usize,
    /// How far the best choice of the wanted NICs and drives is, summed over both.
    pub far: Cost,
    /// Packages, root complexes and PCIe switches above its GPUs.
    pub span: [usize; 3],
    /// Free GPUs that the next guest cannot use, expected, times 100; on an aligned board the loss
    /// of the best policy from the state that the set leaves, in 4096ths of a GPU.
    pub future: i64,
    /// NVLinks between the set and GPUs that stay free.
    pub cut: u64,
    /// Cores that free GPUs on its nodes lose of their share.
    pub strain: usize,
    /// Indexes of its GPUs.
    pub set: Vec<usize>,
}

#[allow(clippy::cast_possible_truncation)]
fn whole(value: f64) -> i64 {
    value.round() as i64
}

/// A host with its occupancy, for guests of default size.
pub struct Board<'a> {
    topology: &'a Topology,
    /// GPUs by index.
    pub gpus: Vec<Bdf>,
    homes: Vec<NodeId>,
    /// Indexes of the free GPUs.
    pub free: Vec<usize>,
    /// Whole free cores of each node.
    cores: BTreeMap<NodeId, usize>,
    guests: Vec<Vec<usize>>,
    /// Free NICs and free drives, with how many of them are wanted.
    wishes: [(Vec<Bdf>, usize); 2],
    /// Values of an aligned board's states.
    values: &'a [f64],
}

/// The request: GPUs, NICs, drives.
pub type Want = [usize; 3];

impl<'a> Board<'a> {
    /// Builds the board of a host with these guests, for a guest that also wants this many NICs and
    /// drives; `values` are those of the states of its board, if its partitions are halves of
    /// halves.
    pub fn new(
        topology: &'a Topology,
        guests: &[Place],
        want: Want,
        values: &'a [f64],
    ) -> Board<'a> {
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        let held: Vec<Bdf> = guests.iter().flat_map(|guest| guest.gpus.clone()).collect();
        let pins = guests.iter().flat_map(|guest| guest.pins.iter().chain([&guest.emulator]));
        let taken = pins.fold(CpuSet::new(), |all, pin| all.or(pin));
        let mut cores: BTreeMap<NodeId, usize> = BTreeMap::new();
        for core in topology.cores() {
            *cores.entry(core.node).or_default() += usize::from(!core.pcpus.intersects(&taken));
        }
        let home = |gpu: &Bdf| home(topology, *gpu).expect("small hosts know their nodes");
        let used: Vec<Bdf> =
            guests.iter().flat_map(|guest| [&guest.nics[..], &guest.nvmes].concat()).collect();
        let free_of = |kind| {
            let all = topology.of_kind(kind).map(|device| device.bdf);
            all.filter(|bdf| !used.contains(bdf)).collect::<Vec<_>>()
        };
        let place = |bdf: &Bdf| gpus.iter().position(|gpu| gpu == bdf);
        let guests =
            guests.iter().map(|guest| guest.gpus.iter().filter_map(place).collect()).collect();
        Board {
            topology,
            homes: gpus.iter().map(home).collect(),
            free: (0..gpus.len()).filter(|at| !held.contains(&gpus[*at])).collect(),
            gpus,
            cores,
            guests,
            wishes: [(free_of(DeviceKind::Nic), want[1]), (free_of(DeviceKind::Nvme), want[2])],
            values,
        }
    }

    /// The number of the state of a block of an aligned board, as the exact solver counts them:
    /// free and held for one GPU; else the unordered pairs of the halves' states, then that one
    /// guest has all of it.
    fn state(&self, block: &[usize], set: &[usize]) -> (usize, usize) {
        let owns = |guest: &[usize]| block.iter().all(|gpu| guest.contains(gpu));
        let held = owns(set) || self.guests.iter().any(|guest| owns(guest));
        if block.len() == 1 {
            return (usize::from(held), 2);
        }
        let (low, high) = block.split_at(block.len() / 2);
        let ((a, states), (b, _)) = (self.state(low, set), self.state(high, set));
        let pairs = states * (states + 1) / 2;
        let (a, b) = (a.min(b), a.max(b));
        (if held { pairs } else { b * (b + 1) / 2 + a }, pairs + 1)
    }

    /// How far the wanted devices are; none where there are too few.
    fn far(&self, set: &[usize]) -> Option<Cost> {
        let gpus: Vec<Bdf> = set.iter().map(|gpu| self.gpus[*gpu]).collect();
        let mut sum = Cost { worst: 0, gpus: 0, devices: 0 };
        for (devices, number) in self.wishes.iter().filter(|(_, number)| *number > 0) {
            let best = Devices::new(self.topology, &gpus, devices).optimum(*number)?;
            sum.worst += best.worst;
            sum.gpus += best.gpus;
            sum.devices += best.devices;
        }
        Some(sum)
    }

    /// GPUs of a set by node.
    fn by_node(&self, set: &[usize]) -> BTreeMap<NodeId, usize> {
        let mut by_node = BTreeMap::new();
        for &gpu in set {
            *by_node.entry(self.homes[gpu]).or_default() += 1;
        }
        by_node
    }

    /// Cores that a GPU of a node owns.
    fn share(&self, node: NodeId) -> usize {
        let gpus = self.homes.iter().filter(|home| **home == node).count();
        self.topology.cores_of(node).count() / gpus.max(1)
    }

    /// Cores that a guest takes of a node for so many GPUs: their share, and at least one beside
    /// the emulator's.
    fn demand(&self, node: NodeId, gpus: usize) -> usize {
        (self.share(node) * gpus).max(2)
    }

    /// Whether a set may be a guest's, and its cores are free.
    fn feasible(&self, set: &[usize]) -> bool {
        let offered = self.topology.partitions();
        let is = |gpus: &[Bdf]| {
            gpus.len() == set.len() && set.iter().all(|at| gpus.contains(&self.gpus[*at]))
        };
        let allowed =
            offered.is_empty() || set.len() == 1 || offered.iter().any(|part| is(&part.gpus));
        let fits = |(node, gpus): (&NodeId, &usize)| self.demand(*node, *gpus) <= self.cores[node];
        allowed && self.far(set).is_some() && self.by_node(set).iter().all(fits)
    }

    fn links(&self, a: usize, b: usize) -> u64 {
        let ends = (self.gpus[a].min(self.gpus[b]), self.gpus[a].max(self.gpus[b]));
        let links = self.topology.fabric().links.iter().filter(|link| (link.a, link.b) == ends);
        links.map(|link| u64::from(link.links)).sum()
    }

    /// The bridges above a GPU that are its PCIe switch; itself if there is none.
    fn switch(&self, gpu: usize) -> Bdf {
        match self.topology.path_to_root(self.gpus[gpu])[..] {
            [_, _, upstream, _, ..] => upstream,
            [_, switch, _] => switch,
            _ => self.gpus[gpu],
        }
    }

    /// How many different values a property has over a set.
    fn different<T: Ord>(&self, set: &[usize], of: impl Fn(usize) -> T) -> usize {
        set.iter().map(|gpu| of(*gpu)).collect::<BTreeSet<T>>().len()
    }

    /// Free GPUs, once a set is taken, that no guest of a size can have: on hosts without
    /// partitions guests of a size fit below the smallest switch, node or host around a GPU that
    /// has so many GPUs.
    fn unusable(&self, left: &[usize], size: usize) -> usize {
        let offered = self.topology.partitions();
        if !offered.is_empty() {
            let place = |bdf: &Bdf| self.gpus.iter().position(|gpu| gpu == bdf);
            let slots = offered.iter().filter(|part| part.gpus.len() == size);
            let slots = slots.map(|part| part.gpus.iter().filter_map(place).collect::<Vec<_>>());
            let mut usable = BTreeSet::new();
            for slot in slots.filter(|slot| slot.iter().all(|gpu| left.contains(gpu))) {
                usable.extend(slot);
            }
            return left.len() - usable.len();
        }
        // The unit that guests of this size on each GPU fit below: 0 and its switch, 1 and its
        // node, 2 for the host.
        let all = 0..self.gpus.len();
        let room = |gpu: usize| {
            let switch = self.switch(gpu);
            let near = all.clone().filter(|&other| self.switch(other) == switch).count();
            let node = self.homes[gpu];
            let around = self.homes.iter().filter(|home| **home == node).count();
            match (near >= size, around >= size, self.gpus.len() >= size) {
                (true, _, _) => Some((0, Some(switch), None)),
                (_, true, _) => Some((1, None, Some(node))),
                (_, _, true) => Some((2, None, None)),
                _ => None,
            }
        };
        let mut rooms: BTreeMap<_, usize> = BTreeMap::new();
        for room in left.iter().filter_map(|gpu| room(*gpu)) {
            *rooms.entry(room).or_default() += 1;
        }
        left.len() - rooms.values().map(|free| free / size * size).sum::<usize>()
    }

    /// The cost of a set.
    pub fn key(&self, set: &[usize]) -> Key {
        let pairs = |a: &[usize], b: &[usize]| -> u64 {
            a.iter().map(|x| b.iter().map(|y| self.links(*x, *y)).sum::<u64>()).sum()
        };
        let left: Vec<usize> = self.free.iter().copied().filter(|gpu| !set.contains(gpu)).collect();
        let direct = self.topology.fabric().model == FabricModel::None;
        let package =
            |gpu: usize| self.topology.cores_of(self.homes[gpu]).next().map(|c| c.package);
        let device = |gpu: usize| -> Option<&PciDevice> { self.topology.device(self.gpus[gpu]) };
        let strain = |(node, gpus): (&NodeId, &usize)| {
            let others = left.iter().filter(|gpu| self.homes[**gpu] == *node).count();
            let (owed, free) = (others * self.share(*node), self.cores[node]);
            let after = free - self.demand(*node, *gpus).min(free);
            owed.saturating_sub(after) - owed.saturating_sub(free)
        };
        let class = |(size, share): &(u32, f64)| {
            let unusable = i64::try_from(self.unusable(&left, *size as usize)).unwrap_or(i64::MAX);
            whole(share * 100.0) * unusable
        };
        let all: Vec<usize> = (0..self.gpus.len()).collect();
        let future = match self.values {
            [] => CLASSES.iter().map(class).sum(),
            values => whole(-4096.0 * values[self.state(&all, set).0]),
        };
        Key {
            nvlink: if direct { -i64::try_from(pairs(set, set) / 2).unwrap_or(0) } else { 0 },
            nodes: self.by_node(set).len(),
            far: self.far(set).unwrap_or(Cost { worst: u32::MAX, gpus: 0, devices: 0 }),
            span: [
                self.different(set, package),
                self.different(set, |gpu| device(gpu).and_then(|d| d.root.clone())),
                self.different(set, |gpu| self.switch(gpu)),
            ],
            future,
            cut: pairs(set, &left),
            strain: self.by_node(set).iter().map(strain).sum(),
            set: set.to_vec(),
        }
    }

    /// The keys of all feasible sets of a size.
    pub fn keys(&self, size: usize) -> Vec<Key> {
        let masks = (0u32..1 << self.free.len()).filter(|mask| mask.count_ones() as usize == size);
        let set = |mask: u32| -> Vec<usize> {
            (0..self.free.len()).filter(|at| mask >> at & 1 == 1).map(|at| self.free[at]).collect()
        };
        let sets = masks.map(set).filter(|set| self.feasible(set));
        sets.map(|set| self.key(&set)).collect()
    }
}
