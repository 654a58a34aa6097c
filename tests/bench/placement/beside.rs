//! The judge of NICs and drives: the best set of so many for some GPUs, by trying every set. It
//! knows the host's tree alone and shares no code with the planner.

use super::hosts::Host;
use super::stream::Random;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::placement::{Occupancy, plan};
use gpuvm_core::request::{DeviceWish, GpuWish, PinPolicy, Profile, Request};
use gpuvm_core::topology::{DeviceKind, Proximity, Topology};
use std::collections::BTreeSet;

/// The cost of a set of devices, compared field by field; smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Steps from the GPU that is farthest from its nearest device.
    pub worst: u32,
    /// Steps from each GPU to its nearest device, summed.
    pub gpus: u32,
    /// From each device to its nearest GPU, summed: 0 with no host bridge between, 1 on one node,
    /// 2 on one package, else 3.
    pub devices: u32,
}

/// Steps between two functions: a PCIe switch, several, a host bridge, a node, a package, packages.
fn steps(topology: &Topology, one: Bdf, other: Bdf) -> u32 {
    let package = |bdf: Bdf| {
        let node = topology.device(bdf)?.node?;
        topology.cores().iter().find(|core| core.node == node).map(|core| core.package)
    };
    match topology.proximity(one, other) {
        Proximity::Same | Proximity::NvLink(_) | Proximity::Pix => 0,
        Proximity::Pxb => 1,
        Proximity::Phb => 2,
        Proximity::Node => 3,
        Proximity::Sys if package(one).is_some() && package(one) == package(other) => 4,
        Proximity::Sys => 5,
    }
}

/// GPUs and the devices to choose from.
pub struct Board {
    /// Steps from each GPU to each device, a row for each GPU.
    steps: Vec<Vec<u32>>,
}

impl Board {
    /// Reads the tree.
    pub fn new(topology: &Topology, gpus: &[Bdf], devices: &[Bdf]) -> Board {
        let row = |gpu: &Bdf| devices.iter().map(|device| steps(topology, *gpu, *device)).collect();
        Board { steps: gpus.iter().map(row).collect() }
    }

    /// The cost of devices, by their places.
    pub fn cost(&self, chosen: &[usize]) -> Cost {
        let nearest = self.steps.iter().map(|row| chosen.iter().map(|&at| row[at]).min());
        let nearest: Vec<u32> = nearest.map(Option::unwrap_or_default).collect();
        let own = |at: &usize| match self.steps.iter().map(|row| row[*at]).min() {
            Some(0 | 1) => 0,
            Some(2 | 3) => 1,
            Some(4) => 2,
            _ => 3,
        };
        Cost {
            worst: nearest.iter().copied().max().unwrap_or_default(),
            gpus: nearest.iter().sum(),
            devices: chosen.iter().map(own).sum(),
        }
    }

    /// The least cost of all sets of so many devices.
    pub fn optimum(&self, number: usize) -> Option<Cost> {
        let all = self.steps.first().map_or(0, Vec::len);
        let mut chosen: Vec<usize> = (0..number).collect();
        let mut best = None;
        if number > all {
            return None;
        }
        loop {
            let cost = self.cost(&chosen);
            best = Some(best.map_or(cost, |best: Cost| best.min(cost)));
            // The next combination: the last place that can move on, and those after it behind it.
            let Some(at) = (0..number).rev().find(|&at| chosen[at] + number - at < all) else {
                return best;
            };
            chosen[at] += 1;
            for later in at + 1..number {
                chosen[later] = chosen[later - 1] + 1;
            }
        }
    }
}

/// The devices of a kind that the planner gives to a guest with these GPUs; `None` if it refuses.
pub fn ours(host: &Host, gpus: &[Bdf], kind: DeviceKind, number: usize) -> Option<Vec<Bdf>> {
    taken(host, GpuWish::Exact(gpus.to_vec()), kind, number).map(|(_, devices)| devices)
}

/// The GPUs and the devices of a kind that the planner gives; `None` if it refuses.
fn taken(
    host: &Host,
    gpus: GpuWish,
    kind: DeviceKind,
    number: usize,
) -> Option<(Vec<Bdf>, Vec<Bdf>)> {
    let mut request = Request::for_gpus(0);
    request.gpus = gpus;
    // Cores and memory are not judged here.
    (request.pins, request.profile) = (PinPolicy::None, Profile::Near);
    (request.vcpus, request.memory_kib) = (Some(1), Some(MemSize::from_gib(1)));
    let wish = DeviceWish::Count(u32::try_from(number).ok()?);
    match kind {
        DeviceKind::Nic => request.extras.nics = wish,
        _ => request.extras.nvmes = wish,
    }
    let placement = plan(&host.topology, &Occupancy::default(), &request).ok()?;
    let of = |kind: DeviceKind| {
        let is = move |bdf: &&Bdf| host.topology.device(**bdf).is_some_and(|d| d.kind() == kind);
        placement.devices.iter().filter(is).copied().collect::<Vec<Bdf>>()
    };
    let mut devices = of(kind);
    devices.truncate(number);
    Some((of(DeviceKind::Gpu), devices))
}

/// So many GPUs that the planner chooses, and the devices of a kind with them; `None` if it
/// refuses.
pub fn ours_of(
    host: &Host,
    gpus: usize,
    kind: DeviceKind,
    number: usize,
) -> Option<(Vec<Bdf>, Vec<Bdf>)> {
    taken(host, GpuWish::Count(u32::try_from(gpus).ok()?), kind, number)
}

/// Sets of GPUs to judge: the partitions, where there are; else runs and random sets, `each` of
/// each size.
pub fn sets(topology: &Topology, each: usize, random: &mut Random) -> BTreeSet<Vec<Bdf>> {
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut sets = BTreeSet::new();
    for size in 1..=gpus.len() {
        let offered = topology.partitions().iter().map(|partition| &partition.gpus[..]);
        let offered = offered.filter(|set| set.len() == size).map(<[Bdf]>::to_vec);
        if topology.is_partitioned() {
            sets.extend(offered.take(each));
            continue;
        }
        sets.extend(gpus.chunks_exact(size).map(<[Bdf]>::to_vec).take(each));
        for _ in 0..each {
            let mut left = gpus.clone();
            let mut set: Vec<Bdf> =
                (0..size).map(|_| left.swap_remove(random.below(left.len()))).collect();
            set.sort_unstable();
            sets.insert(set);
        }
    }
    sets
}

/// Compares the planner with the optimum on a host: for each kind, number of devices and set of
/// GPUs. Returns how often, and the cases in which it is worse.
pub fn judge(host: &Host, each: usize) -> (usize, Vec<String>) {
    let (mut judged, mut worse) = (0, Vec::new());
    let sets = sets(&host.topology, each, &mut Random(7));
    for kind in [DeviceKind::Nic, DeviceKind::Nvme] {
        let there = host.topology.of_kind(kind).count();
        for gpus in &sets {
            // A request by number may take the GPUs of the largest one.
            let Some(all) = (1..=there).rev().find_map(|most| ours(host, gpus, kind, most)) else {
                continue;
            };
            let board = Board::new(&host.topology, gpus, &all);
            for number in 1..all.len() {
                let Some(chosen) = ours(host, gpus, kind, number) else { continue };
                let place = |bdf: &Bdf| all.iter().position(|other| other == bdf);
                let places: Vec<usize> = chosen.iter().filter_map(place).collect();
                let (cost, best) = (board.cost(&places), board.optimum(number));
                judged += 1;
                if places.len() < number || Some(cost) != best {
                    let name = &host.name;
                    worse.push(format!(
                        "{name}: {number} of {kind:?} for {gpus:?}: {chosen:?} {cost:?}, {best:?}"
                    ));
                }
            }
        }
    }
    (judged, worse)
}

/// What counts before NICs and drives in the order of sets of GPUs, on a host whose GPUs have no
/// partitions: NVLinks inside (negative), nodes, and packages where NVLinks do not connect all GPUs.
fn earlier(topology: &Topology, set: &[Bdf]) -> (i64, usize, usize) {
    let links = &topology.fabric().links;
    let inside = links.iter().filter(|link| set.contains(&link.a) && set.contains(&link.b));
    let inside: i64 = inside.map(|link| i64::from(link.links)).sum();
    let nodes: BTreeSet<_> = set.iter().filter_map(|gpu| topology.device(*gpu)?.node).collect();
    let package = |node| topology.cores_of(node).next().map(|core| core.package);
    let packages: BTreeSet<_> = nodes.iter().map(|node| package(*node)).collect();
    let gpus = topology.gpus().count();
    let is_first = links.len() < gpus * gpus.saturating_sub(1) / 2;
    (-inside, nodes.len(), if is_first { packages.len() } else { 0 })
}

/// The sets of so many of these.
fn subsets<T: Copy>(all: &[T], number: usize) -> Vec<Vec<T>> {
    if number == 0 {
        return vec![Vec::new()];
    }
    let with = |at: usize| {
        let rest = subsets(&all[at + 1..], number - 1).into_iter();
        rest.map(move |rest| [&[all[at]][..], &rest].concat())
    };
    (0..all.len()).flat_map(with).collect()
}

/// Compares the planner's choice of GPUs and devices together with the optimum of all sets of GPUs
/// that are as good in what counts before: for each kind, number of GPUs and number of devices, on a
/// host without partitions of at most `most` GPUs. Returns how often, and the cases in which it is
/// worse.
pub fn judge_sets(host: &Host, most: usize) -> (usize, Vec<String>) {
    let (mut judged, mut worse) = (0, Vec::new());
    let topology = &host.topology;
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let has_nodes = topology
        .gpus()
        .all(|gpu| gpu.node.is_some_and(|node| topology.cores_of(node).next().is_some()));
    if topology.is_partitioned() || gpus.len() > most || !has_nodes {
        return (judged, worse);
    }
    for kind in [DeviceKind::Nic, DeviceKind::Nvme] {
        let there = topology.of_kind(kind).count();
        let Some(all) = (1..=there).rev().find_map(|number| ours(host, &gpus, kind, number)) else {
            continue;
        };
        for size in 1..=gpus.len() {
            for number in 1..all.len().min(5) {
                let Some((set, chosen)) = ours_of(host, size, kind, number) else { continue };
                let cost = |set: &[Bdf]| Board::new(topology, set, &all).optimum(number);
                let now = Board::new(topology, &set, &chosen);
                let now = now.cost(&(0..chosen.len()).collect::<Vec<_>>());
                // Only `plan` knows the faults of another set: cores, or an IOMMU group of its own.
                let can = |set: &Vec<Bdf>| ours(host, set, kind, number).is_some();
                let like = earlier(topology, &set);
                let others = subsets(&gpus, size).into_iter();
                let others = others.filter(|other| earlier(topology, other) == like);
                let better =
                    others.filter(|other| cost(other).is_some_and(|cost| cost < now)).find(can);
                judged += 1;
                if let Some(other) = better {
                    let name = &host.name;
                    worse.push(format!(
                        "{name}: {size} GPUs, {number} of {kind:?}: {set:?} {chosen:?} {now:?}; \
                         {other:?} {:?}",
                        cost(&other)
                    ));
                }
            }
        }
    }
    (judged, worse)
}

#[cfg(test)]
mod tests {
    use super::super::hosts;
    use super::*;

    #[test]
    fn the_optimum_is_that_of_all_sets() {
        let board = Board { steps: vec![vec![0, 5, 2, 4], vec![5, 5, 2, 1]] };
        // Each GPU has its own; or one in the middle serves both.
        assert_eq!(board.optimum(2), Some(board.cost(&[0, 3])));
        assert_eq!(board.cost(&[0, 3]), Cost { worst: 1, gpus: 1, devices: 0 });
        assert_eq!(board.optimum(1), Some(Cost { worst: 2, gpus: 4, devices: 1 }));
        assert_eq!(board.optimum(4), Some(board.cost(&[0, 1, 2, 3])));
        assert_eq!(board.optimum(5), None);
    }

    #[test]
    fn ours_takes_the_best_nics_and_drives_on_every_host() {
        let is_whole = std::env::var("GPUVM_BESIDE").is_ok_and(|value| value == "all");
        let each = if is_whole { 20 } else { 1 };
        let (mut judged, mut worse) = (0, Vec::new());
        for host in [hosts::all(), hosts::small()].concat() {
            let (number, cases) = judge(&host, each);
            judged += number;
            worse.extend(cases);
        }
        assert!(worse.is_empty(), "{} of {judged}\n{}", worse.len(), worse.join("\n"));
        assert!(judged > 100, "{judged}");
    }
    #[test]
    fn ours_takes_the_gpus_that_are_nearest_to_nics_and_drives_among_equals() {
        let (mut judged, mut worse) = (0, Vec::new());
        for host in [hosts::all(), hosts::small(), hosts::uneven()].concat() {
            let (number, cases) = judge_sets(&host, 8);
            judged += number;
            worse.extend(cases);
        }
        assert!(worse.is_empty(), "{} of {judged}\n{}", worse.len(), worse.join("\n"));
        assert!(judged > 100, "{judged}");
    }
}
