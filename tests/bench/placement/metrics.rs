//! The judge: how good a guest's placement is, and how unfragmented the host stays. It uses only
//! the host and the placements, and no planner.

use super::hosts::{parted, unused};
use super::model::{Ask, Place};
use super::stream::{Sizes, home};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::{CpuSet, NodeId};
use gpuvm_core::topology::{NumaNode, Proximity, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The metrics of a guest, in the order of our planner's ranking. Each is a share: 1 is best.
pub const METRICS: [&str; 7] =
    ["NVLink", "vCPUs local", "nodes", "NICs near", "drives near", "whole cores", "memory local"];
/// Place of the NVLink share among [`METRICS`].
pub const NVLINK: usize = 0;
/// Place of the share of local vCPUs.
pub const LOCAL: usize = 1;
/// Place of the share of whole cores.
pub const WHOLE: usize = 5;
/// Place of the share of local memory.
pub const MEMORY: usize = 6;

/// The metrics of a guest's placement; `None` if the metric does not apply to it.
pub type Quality = [Option<f64>; METRICS.len()];

/// Differences below this are rounding.
pub const EPSILON: f64 = 1e-9;

/// Most GPUs of a host whose best linked sets are looked for among all sets.
const MOST_LINKED: usize = 16;

/// Judges places on one host.
pub struct Judge<'a> {
    topology: &'a Topology,
    /// The sizes of guests on this host.
    pub sizes: Sizes,
    /// Node of each GPU; those with an unknown node are missing.
    homes: BTreeMap<Bdf, NodeId>,
    /// The most links inside any set of GPUs of the empty host, by the set's size.
    most_links: Vec<u64>,
}

/// A count as a number to compute with.
#[allow(clippy::cast_precision_loss)]
fn float(count: usize) -> f64 {
    count as f64
}

impl<'a> Judge<'a> {
    /// Builds the judge of a host.
    pub fn new(topology: &'a Topology) -> Judge<'a> {
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        let homes = gpus.iter().filter_map(|&gpu| Some((gpu, home(topology, gpu)?))).collect();
        let mut most_links = vec![0; gpus.len() + 1];
        if !topology.fabric().links.is_empty() && gpus.len() <= MOST_LINKED {
            for set in 1u32..1 << gpus.len() {
                let inside: Vec<Bdf> =
                    (0..gpus.len()).filter(|at| set >> at & 1 == 1).map(|at| gpus[at]).collect();
                let best = &mut most_links[inside.len()];
                *best = (*best).max(links_inside(topology, &inside));
            }
        }
        Judge { topology, sizes: Sizes::of(topology), homes, most_links }
    }

    /// The metrics of a guest's placement beside the other guests.
    pub fn quality(&self, others: &[Place], ask: &Ask, place: &Place) -> Quality {
        let near = |devices: &[Bdf]| self.near(&place.gpus, devices);
        [
            self.nvlink(&place.gpus),
            self.local(place),
            self.nodes(ask, place),
            near(&place.nics),
            near(&place.nvmes),
            self.whole(others, place),
            self.memory(ask, place),
        ]
    }

    /// Partition hosts: 1 for an offered partition, else 0; linked hosts: links inside over the
    /// most that any set of so many GPUs has. NVSwitches that the partition needs are taken as
    /// given: no peer asks for them.
    fn nvlink(&self, gpus: &[Bdf]) -> Option<f64> {
        if gpus.len() < 2 {
            return None;
        }
        let set: BTreeSet<Bdf> = gpus.iter().copied().collect();
        if !self.topology.partitions().is_empty() {
            let is = |offered: &[Bdf]| offered.iter().copied().collect::<BTreeSet<_>>() == set;
            let offered = self.topology.partitions().iter().any(|p| is(&p.gpus));
            return Some(f64::from(u8::from(offered)));
        }
        match self.most_links.get(gpus.len()).copied().unwrap_or(0) {
            0 => None,
            #[allow(clippy::cast_precision_loss)]
            most => Some(links_inside(self.topology, gpus) as f64 / most as f64),
        }
    }

    /// Parts of the guest's GPUs by node; none where a node is unknown, or without GPUs.
    fn parts(&self, place: &Place) -> Option<BTreeMap<NodeId, f64>> {
        let mut parts = BTreeMap::new();
        for gpu in &place.gpus {
            *parts.entry(*self.homes.get(gpu)?).or_default() += 1.0 / float(place.gpus.len());
        }
        (!parts.is_empty()).then_some(parts)
    }

    /// vCPUs by node; one that floats counts on each of its nodes in part.
    fn vcpus(&self, place: &Place) -> BTreeMap<NodeId, f64> {
        let mut vcpus = BTreeMap::new();
        for pin in &place.pins {
            for pcpu in pin.iter() {
                if let Some(core) = self.topology.core_of(pcpu) {
                    *vcpus.entry(core.node).or_default() += 1.0 / float(pin.len());
                }
            }
        }
        vcpus
    }

    /// The share of one core's threads in the guest's vCPUs: what proportions are rounded to.
    fn grain(&self, place: &Place) -> f64 {
        let threads = self.topology.cores().iter().map(|core| core.pcpus.len()).max().unwrap_or(1);
        float(threads) / float(place.pins.len().max(1))
    }

    /// A part of the guest's vCPUs, rounded up to whole cores: a core beyond that is off its GPU's
    /// node, as the planner counts it (src/core/placement/score.rs).
    fn rounded(&self, part: f64, place: &Place) -> f64 {
        let grain = self.grain(place);
        (part / grain - EPSILON).ceil() * grain
    }

    /// The share of the vCPUs on the nodes of the GPUs, in proportion to these up to whole cores.
    fn local(&self, place: &Place) -> Option<f64> {
        let parts = self.parts(place)?;
        let vcpus = self.vcpus(place);
        let all: f64 = vcpus.values().sum();
        let share = |(node, there): (&NodeId, &f64)| {
            let part = parts.get(node).map_or(0.0, |part| self.rounded(*part, place));
            (there / all).min(part)
        };
        (all > 0.0).then(|| vcpus.iter().map(share).sum::<f64>().min(1.0))
    }

    /// The share of the memory on the nodes of the GPUs, likewise; unbound memory counts by the
    /// nodes' sizes.
    fn memory(&self, ask: &Ask, place: &Place) -> Option<f64> {
        let has = |node: &&NumaNode| !node.memory_kib.is_zero();
        let nodes = || self.topology.nodes().iter().filter(has);
        let mut parts: BTreeMap<NodeId, f64> = BTreeMap::new();
        for (node, part) in self.parts(place)? {
            let distances = self.topology.node(node).map_or(&[][..], |n| &n.distances);
            let place = |id| self.topology.nodes().iter().position(|n| n.os_index == id);
            let distance = |id| place(id).and_then(|at| distances.get(at).copied());
            let rank = |n: &&NumaNode| (n.os_index != node, distance(n.os_index), n.os_index);
            if let Some(from) = nodes().min_by_key(rank) {
                *parts.entry(from.os_index).or_default() += part;
            }
        }
        #[allow(clippy::cast_precision_loss)]
        let size = |kib: u64| kib as f64;
        let mut there: BTreeMap<NodeId, f64> = BTreeMap::new();
        if place.memory.is_empty() {
            there.extend(nodes().map(|n| (n.os_index, size(n.memory_kib.kib()))));
        }
        for (node, amount) in &place.memory {
            *there.entry(*node).or_default() += size(amount.kib());
        }
        let all: f64 = there.values().sum();
        let page = size(1 << 20) / size(ask.memory.kib().max(1));
        let share = |(node, amount): (&NodeId, &f64)| {
            let part = parts.get(node).map_or(0.0, |part| self.rounded(*part, place) + page);
            (amount / all).min(part)
        };
        (all > 0.0).then(|| there.iter().map(share).sum::<f64>().min(1.0))
    }

    /// The fewest nodes that the ask needs on the empty host, over the nodes that its GPUs and
    /// vCPUs stand on.
    fn nodes(&self, ask: &Ask, place: &Place) -> Option<f64> {
        let mut spanned: BTreeSet<NodeId> = self.vcpus(place).into_keys().collect();
        spanned.extend(place.gpus.iter().filter_map(|gpu| self.homes.get(gpu)));
        let mut sizes: Vec<usize> =
            self.topology.nodes().iter().map(|node| node.pcpus.len()).collect();
        sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
        let mut left = ask.vcpus as usize;
        let for_vcpus = sizes.iter().take_while(|size| {
            let more = left > 0;
            left = left.saturating_sub(**size);
            more
        });
        let fewest = for_vcpus.count().max(self.sizes.nodes(ask.gpus) as usize);
        (!spanned.is_empty()).then(|| (float(fewest) / float(spanned.len())).min(1.0))
    }

    /// Pairs of a GPU and a device with no host bridge between them, over the most pairs that there
    /// could be.
    fn near(&self, gpus: &[Bdf], devices: &[Bdf]) -> Option<f64> {
        let most = gpus.len().min(devices.len());
        let near = |gpu: Bdf, device: Bdf| self.topology.proximity(gpu, device) <= Proximity::Pxb;
        let edges: Vec<Vec<usize>> = gpus
            .iter()
            .map(|&gpu| (0..devices.len()).filter(|&at| near(gpu, devices[at])).collect())
            .collect();
        (most > 0).then(|| float(pairs(&edges, devices.len())) / float(most))
    }

    /// The share of the vCPUs on cores that no other guest has a part of.
    fn whole(&self, others: &[Place], place: &Place) -> Option<f64> {
        let theirs = others.iter().fold(CpuSet::new(), |all, other| all.or(&held(other)));
        let mut own = 0.0;
        for pin in &place.pins {
            let cores = pin.iter().filter_map(|pcpu| self.topology.core_of(pcpu));
            let alone = cores.filter(|core| !core.pcpus.intersects(&theirs)).count();
            own += float(alone) / float(pin.len().max(1));
        }
        (!place.pins.is_empty()).then(|| own / float(place.pins.len()))
    }

    /// Cores that several guests have parts of.
    pub fn split_cores(&self, guests: &[Place]) -> usize {
        let sets: Vec<CpuSet> = guests.iter().map(held).collect();
        let holders = |pcpus: &CpuSet| sets.iter().filter(|set| set.intersects(pcpus)).count();
        self.topology.cores().iter().filter(|core| holders(&core.pcpus) > 1).count()
    }

    /// GPUs of the largest class whose GPUs and whole cores are free: an offered partition, or a
    /// run of GPUs in index order that starts at a multiple of its length.
    pub fn largest(&self, guests: &[Place]) -> u32 {
        let taken: BTreeSet<Bdf> = guests.iter().flat_map(|guest| &guest.gpus).copied().collect();
        let pcpus = guests.iter().fold(CpuSet::new(), |all, guest| all.or(&held(guest)));
        let gpus: Vec<Bdf> = self.topology.gpus().map(|gpu| gpu.bdf).collect();
        let fits = |size: u32, set: &[Bdf]| {
            let wanted = self.sizes.ask(size).vcpus as usize;
            let parts = self.parts(&Place { gpus: set.to_vec(), ..Place::default() });
            set.iter().all(|gpu| !taken.contains(gpu))
                && parts.into_iter().flatten().all(|(node, part)| {
                    let free = self.topology.cores_of(node);
                    let free = free.filter(|core| !core.pcpus.intersects(&pcpus));
                    let threads: usize = free.map(|core| core.pcpus.len()).sum();
                    float(threads) + EPSILON >= part * float(wanted)
                })
        };
        let room = |size: u32| {
            let many = size as usize;
            let offered = self.topology.partitions().iter().map(|partition| &partition.gpus[..]);
            match self.topology.partitions() {
                [] => gpus.chunks_exact(many).any(|set| fits(size, set)),
                _ => offered.filter(|set| set.len() == many).any(|set| fits(size, set)),
            }
        };
        let classes = self.sizes.classes();
        classes.iter().rev().map(|(size, _)| *size).find(|size| room(*size)).unwrap_or(0)
    }

    /// The faults of a placement as such: resources used twice, missing, or not as requested.
    pub fn faults(&self, others: &[Place], ask: &Ask, place: &Place) -> Vec<String> {
        let mut faults = Vec::new();
        let devices = |of: &Place| [&of.gpus[..], &of.along, &of.nics, &of.nvmes].concat();
        let taken: BTreeSet<Bdf> = others.iter().flat_map(devices).collect();
        let mut seen = BTreeSet::new();
        for bdf in devices(place) {
            if taken.contains(&bdf) || !seen.insert(bdf) {
                faults.push(format!("{bdf} is used twice"));
            }
        }
        let own = devices(place);
        let may = |device| unused(self.topology, device) && parted(self.topology, device, &own);
        for bdf in own.iter().filter(|bdf| !self.topology.device(**bdf).is_some_and(may)) {
            faults.push(format!("{bdf} cannot be given away"));
        }
        let theirs = others.iter().flat_map(|other| &other.pins);
        let theirs = theirs.fold(CpuSet::new(), |all, pin| all.or(pin));
        let own = place.pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
        if own.intersects(&theirs) || own.len() < place.pins.len() {
            faults.push("pcpus are used twice".into());
        }
        let asked = [ask.gpus, ask.vcpus, ask.nics, ask.nvmes].map(|number| number as usize);
        let lists = [&place.gpus, &place.nics, &place.nvmes].map(Vec::len);
        if asked != [lists[0], place.pins.len(), lists[1], lists[2]] {
            faults.push(format!("{ask:?} is not what it got"));
        }
        if let Some(pcpu) = own.iter().find(|pcpu| self.topology.core_of(*pcpu).is_none()) {
            faults.push(format!("pcpu {pcpu} is not there"));
        }
        faults
    }
}

/// Pcpus that a guest has a part of.
fn held(place: &Place) -> CpuSet {
    place.pins.iter().fold(place.emulator.clone(), |all, pin| all.or(pin))
}

/// NVLinks between GPUs of a set.
fn links_inside(topology: &Topology, set: &[Bdf]) -> u64 {
    let inside = |bdf: Bdf| set.contains(&bdf);
    let links = topology.fabric().links.iter().filter(|link| inside(link.a) && inside(link.b));
    links.map(|link| u64::from(link.links)).sum()
}

/// The most pairs that can be made (Kuhn's algorithm): `edges` has the rights that each left one
/// goes with.
fn pairs(edges: &[Vec<usize>], rights: usize) -> usize {
    fn augment(
        left: usize,
        edges: &[Vec<usize>],
        of: &mut [Option<usize>],
        seen: &mut [bool],
    ) -> bool {
        edges[left].iter().any(|&right| {
            if std::mem::replace(&mut seen[right], true) {
                return false;
            }
            let free = of[right].is_none_or(|other| augment(other, edges, of, seen));
            if free {
                of[right] = Some(left);
            }
            free
        })
    }
    let mut of = vec![None; rights];
    (0..edges.len()).filter(|&left| augment(left, edges, &mut of, &mut vec![false; rights])).count()
}
