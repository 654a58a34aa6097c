//! Streams of guests: arrival times, requests and departure times. The same stream for every
//! planner; numbers come from a seed, so a run can be repeated.

use super::hosts::usable;
use super::model::Ask;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::NodeId;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::{DeviceKind, Topology};
use std::collections::BTreeMap;

/// Sizes of guests in GPUs with their share of the arrivals (gpuvm-placement(7), METRICS).
pub const CLASSES: [(u32, f64); 5] = [(1, 0.40), (2, 0.25), (4, 0.20), (8, 0.10), (16, 0.05)];

/// Loads: GPUs requested at any time, over the GPUs of the host.
pub const LOADS: [f64; 3] = [0.60, 0.80, 0.95];

/// What guests request beside GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Their GPUs' share of the cores.
    Plain,
    /// Also NICs and NVMe drives: one for each GPU if the host has enough, otherwise the average
    /// number per GPU.
    Devices,
    /// One thread more, for guests whose cores have two: an odd number of vCPUs.
    Odd,
    /// A quarter of the guests of one and two GPUs want twice the vCPUs.
    Hungry,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 4] = [Variant::Plain, Variant::Devices, Variant::Odd, Variant::Hungry];

    /// The variant in a word.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Plain => "plain",
            Variant::Devices => "NICs and drives",
            Variant::Odd => "odd vCPUs",
            Variant::Hungry => "a quarter wants 2x vCPUs",
        }
    }
}

/// One guest of a stream.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When it comes; a guest lives for 1 on average.
    pub at: f64,
    /// When it leaves, if it was admitted.
    pub leaves: f64,
    /// Its place in the host's classes.
    pub class: usize,
    /// Its request.
    pub ask: Ask,
}

/// A generator of random numbers from a seed: splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to and without 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.bits() % end as u64).unwrap_or(0)
    }

    /// The time until the next event of a process with `rate` events per unit of time.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }
}

/// The sizes of guests on a host: the share of its GPUs in cores, memory and devices.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// GPUs of each node, the largest number first.
    by_node: Vec<u32>,
    cores: u32,
    threads: u32,
    memory: MemSize,
    /// GPUs.
    pub gpus: u32,
    /// NICs that a guest can have.
    nics: u32,
    /// NVMe drives that a guest can have.
    nvmes: u32,
}

/// The node whose cores are nearest to a device; `None` if the host does not say.
pub fn home(topology: &Topology, bdf: Bdf) -> Option<NodeId> {
    let has_cores = |node: NodeId| topology.cores_of(node).next().is_some();
    let only: Vec<NodeId> =
        topology.nodes().iter().map(|n| n.os_index).filter(|node| has_cores(*node)).collect();
    let Some(node) = topology.device(bdf).and_then(|device| device.node) else {
        return if only.len() == 1 { Some(only[0]) } else { None };
    };
    if has_cores(node) {
        return Some(node);
    }
    let distances = topology.node(node).map_or(&[][..], |n| &n.distances);
    let rank = |(at, id): &(usize, NodeId)| (distances.get(*at).copied(), id.0);
    let nodes = topology.nodes().iter().map(|n| n.os_index).enumerate();
    nodes.filter(|(_, id)| has_cores(*id)).min_by_key(rank).map(|(_, id)| id)
}

/// A number of a host as u32.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Sizes {
    /// Derives the sizes of a host. A GPU's share of a node is the smallest of all nodes, so that
    /// sizes fit everywhere.
    pub fn of(topology: &Topology) -> Sizes {
        let largest = topology.nodes().iter().max_by_key(|n| n.pcpus.len()).map(|n| n.os_index);
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for gpu in topology.gpus() {
            let node = home(topology, gpu.bdf).or(largest).unwrap_or(NodeId(0));
            *by_node.entry(node).or_default() += 1;
        }
        let cores = |(node, gpus): (&NodeId, &u32)| small(topology.cores_of(*node).count()) / gpus;
        let memory = |(node, gpus): (&NodeId, &u32)| {
            let size = topology.node(*node).map_or(0, |n| n.memory_kib.kib());
            MemSize::from_kib(size / u64::from(*gpus) * 4 / 5).round_down(MemSize::from_gib(1))
        };
        let count = |kind| {
            let all = topology.of_kind(kind).filter(|device| usable(topology, device));
            small(all.count())
        };
        let sizes = Sizes {
            cores: by_node.iter().map(cores).min().unwrap_or(1).max(1),
            threads: topology.cores().iter().map(|c| small(c.pcpus.len())).max().unwrap_or(1),
            memory: by_node.iter().map(memory).min().unwrap_or_default(),
            gpus: by_node.values().sum(),
            nics: count(DeviceKind::Nic),
            nvmes: count(DeviceKind::Nvme),
            by_node: Vec::new(),
        };
        let mut by_node: Vec<u32> = by_node.into_values().collect();
        by_node.sort_by_key(|gpus| std::cmp::Reverse(*gpus));
        Sizes { by_node, ..sizes }
    }

    /// The fewest nodes that this many GPUs are on.
    pub fn nodes(&self, gpus: u32) -> u32 {
        let mut left = gpus;
        let needed = self.by_node.iter().take_while(|there| {
            let more = left > 0;
            left = left.saturating_sub(**there);
            more
        });
        small(needed.count()).max(1)
    }

    /// The request of a guest with this many GPUs: its share, less one core of each node for its
    /// emulator.
    pub fn ask(&self, gpus: u32) -> Ask {
        let cores = (self.cores * gpus).saturating_sub(self.nodes(gpus)).max(1);
        Ask {
            gpus,
            vcpus: cores * self.threads,
            memory: MemSize::from_kib(self.memory.kib() * u64::from(gpus)),
            nics: 0,
            nvmes: 0,
        }
    }

    /// The sizes of guests that this host can have, with their shares of the arrivals, which sum to
    /// 1.
    pub fn classes(&self) -> Vec<(u32, f64)> {
        let fit: Vec<(u32, f64)> =
            CLASSES.into_iter().filter(|(size, _)| *size <= self.gpus).collect();
        let sum: f64 = fit.iter().map(|(_, share)| share).sum();
        fit.into_iter().map(|(size, share)| (size, share / sum)).collect()
    }

    /// A request changed for a variant.
    fn vary(&self, mut ask: Ask, variant: Variant, random: &mut Random) -> Ask {
        let dice = random.unit();
        match variant {
            Variant::Plain => {}
            Variant::Devices => {
                let part = |there: u32| f64::from(ask.gpus * there) / f64::from(self.gpus.max(1));
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let of = |there: u32| ask.gpus.min((part(there) + dice).floor() as u32);
                (ask.nics, ask.nvmes) = (of(self.nics), of(self.nvmes));
            }
            Variant::Odd if self.threads > 1 => ask.vcpus += 1,
            Variant::Hungry if ask.gpus <= 2 && dice < 0.25 => ask.vcpus *= 2,
            Variant::Odd | Variant::Hungry => {}
        }
        ask
    }

    /// A stream of this many arrivals.
    pub fn stream(&self, load: f64, variant: Variant, arrivals: usize, seed: u64) -> Vec<Arrival> {
        let classes = self.classes();
        let mean: f64 = classes.iter().map(|(size, share)| f64::from(*size) * share).sum();
        let rate = load * f64::from(self.gpus) / mean;
        let mut random = Random(seed);
        let mut now = 0.0;
        let mut next = || {
            now += random.exponential(rate);
            let mut dice = random.unit();
            let class = classes.iter().position(|(_, share)| {
                dice -= share;
                dice < 0.0
            });
            let class = class.unwrap_or(classes.len() - 1);
            let leaves = now + random.exponential(1.0);
            let ask = self.vary(self.ask(classes[class].0), variant, &mut random);
            Arrival { at: now, leaves, class, ask }
        };
        (0..arrivals).map(|_| next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosts::named;
    use super::*;

    #[test]
    fn sizes_are_the_shares_of_the_host() {
        let dgx2 = Sizes::of(&named("dgx-2").topology);
        let vcpus: Vec<u32> = [1, 2, 4, 8, 16].map(|gpus| dgx2.ask(gpus).vcpus).to_vec();
        assert_eq!(vcpus, [4, 10, 22, 46, 92]);
        let a100 = Sizes::of(&named("dgx-a100").topology);
        assert_eq!([1, 2, 4, 8].map(|gpus| a100.ask(gpus).vcpus), [14, 30, 60, 120]);
        assert_eq!(a100.classes().len(), 4);
        let snc = Sizes::of(&named("snc-4").topology);
        assert_eq!([1, 3, 4, 8].map(|gpus| snc.nodes(gpus)), [1, 1, 2, 4]);
    }

    #[test]
    fn a_stream_has_the_load_and_the_mix_that_were_asked_for() {
        let sizes = Sizes::of(&named("dgx-2").topology);
        let stream = sizes.stream(0.8, Variant::Hungry, 20_000, 1);
        let end = stream.last().unwrap().at;
        let work: f64 =
            stream.iter().map(|a| (a.leaves - a.at) * f64::from(a.ask.gpus)).sum::<f64>() / end;
        assert!((work / 16.0 - 0.8).abs() < 0.03, "{work}");
        let share = |class: usize| {
            stream.iter().filter(|a| a.class == class).count() as f64 / stream.len() as f64
        };
        for (class, (_, wanted)) in CLASSES.iter().enumerate() {
            assert!((share(class) - wanted).abs() < 0.015, "{class}: {}", share(class));
        }
        let hungry = stream.iter().filter(|a| a.ask.vcpus == 8 && a.ask.gpus == 1).count() as f64;
        assert!((hungry / (share(0) * 20_000.0) - 0.25).abs() < 0.02, "{hungry}");
        let again = sizes.stream(0.8, Variant::Hungry, 20_000, 1);
        assert!(stream.iter().zip(&again).all(|(a, b)| a.ask == b.ask && a.at == b.at));
    }

    #[test]
    fn devices_are_asked_for_as_far_as_the_host_has_them() {
        let sizes = Sizes::of(&named("xe8640").topology);
        let stream = sizes.stream(0.8, Variant::Devices, 500, 1);
        let of = |gpus: u32| stream.iter().filter(move |a| a.ask.gpus == gpus).map(|a| &a.ask);
        assert!(of(4).all(|ask| (ask.nics, ask.nvmes) == (2, 3)));
        assert!(of(2).all(|ask| ask.nics == 1 && (1..=2).contains(&ask.nvmes)));
        assert!(of(1).any(|ask| ask.nics == 1) && of(1).any(|ask| ask.nics == 0));
    }
}
