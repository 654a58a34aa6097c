//! The order of sets of GPUs: the single definition of better, shared by every part of the planner
//! and its tests.
//!
//! A *candidate* is an available set of GPUs of the requested size: on hosts with partitions the
//! offered ones and each GPU alone; with `--allow split` in full passthrough any other set, too, if
//! no partition will do; on hosts without partitions any set. It is *feasible* if its cores and
//! memory fit, its NICs and drives are available as near as requested, and the IOMMU can separate
//! it from the rest. Of the feasible candidates the one with the smallest [`Key`] wins, compared
//! field by field in the order of their declaration.
//!
//! | # | Less is better | Because |
//! |---|---|---|
//! | 1 | NVLinks lost | what GPUs send each other over NVLink takes no PCIe: a partition, else most links inside |
//! | 2 | cores off the GPUs' node | each of their transfers to the GPU crosses nodes, whatever else is near |
//! | 3 | NUMA nodes | each is a cell with memory of its own, which fills up by itself and is far from the others |
//! | 4 | packages, preferred | without NVLinks between all GPUs their own traffic crosses packages: `--prefer package` |
//! | 5 | steps to NICs and drives | of the farthest GPU, of all, of these: GPUDirect below one switch is the fastest |
//! | 6 | packages | as above where NVLinks carry the GPUs' own traffic: `--prefer nic` |
//! | 7 | root complexes | transfers between GPUs stay off the processor's own fabric |
//! | 8 | PCIe switches | transfers between GPUs stay off the root port |
//! | 9 | GPU models | of equally near sets that of equal GPUs: the slowest sets the pace of a job |
//! | 10 | cores of its share that others have | its part of nodes without GPUs is smaller by them |
//! | 11 | neighbours | with `--policy spread` only: other guests on its nodes |
//! | 12 | cost to later guests | large sets stay whole |
//! | 13 | NVLinks cut | links to GPUs that stay free would be lost to both |
//! | 14 | cores of free GPUs | the share of GPUs that stay free |
//! | 15 | indexes | the same answer every time |
//!
//! The same table is in gpuvm-placement(7).
//!
//! Why 2 is before 3: a node more costs less than a package. Idle latency of memory on a Xeon with
//! four nodes a package is 95 ns on the own node, 102 to 123 ns on the others of the package (which
//! have its read bandwidth, 60 to 62 GB/s) and 188 ns (56 GB/s) on the other package (Intel MLC
//! 3.11 at KU Leuven: github.com/gjbex/Code-optimization, info/sapphirerapids_mlc.txt); on EPYC
//! Rome it is 113 ns with four nodes a package, and 122 ns if memory is spread over them (AnandTech
//! 14694). A guest with as much memory as cores on each node that uses all of it alike has 102 ns
//! on average on 2 nodes of one package, and 104 ns, 2 % more, on 3 (1/2, 1/4, 1/4); one core of 30
//! off its GPU's node costs 0.5 % within a package and 3 % across. Neither outweighs the other, but
//! the node more is a cell that the guest sees and can place by, while a core that serves the GPU
//! of another node looks like any other. So no whole core is off its GPU's node without
//! `--allow remote`: proportions are rounded up to whole cores and no further, by the judge of
//! tests/bench, too.
//!
//! Every field but `remote`, `far`, `short`, `strain` and the nodes of cores follows from the set
//! alone, and these five start from lower bounds. So the cores of a set that already loses are
//! never computed: the search compares with the two best so far and keeps the second for
//! `--explain`.

use super::budget::Budget;
use super::extras::ExtrasSearch;
use super::future::Future;
use super::groups;
use super::nearness::Far;
use super::reason::Compared;
use super::slots::{Mask, Slots, bits, touched};
use crate::request::{Policy, Prefer, Request};
use crate::topology::FabricModel;
use std::cmp::Reverse;

/// The cost of a set of GPUs; smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// NVLinks lost: 0 for a partition and 1 for another set of such a board; where GPUs are linked
    /// directly, minus the NVLinks inside the set.
    pub(super) nvlink: i64,
    /// Cores that are not on the node of the GPUs that they serve.
    pub(super) remote: u32,
    /// Nodes that its GPUs and cores are on.
    pub(super) nodes: u32,
    /// Packages of the GPUs if they count before NICs; otherwise 0.
    pub(super) packages_first: u32,
    /// How far the wanted NICs and drives are: from the farthest GPU, from all, and they
    /// themselves, as those of the set are then chosen.
    pub(super) far: Far,
    pub(super) packages: u32,
    pub(super) roots: u32,
    /// PCIe switches of the GPUs; a GPU below none counts as one.
    pub(super) switches: u32,
    /// Models of its GPUs: among equally near sets, equal models win.
    pub(super) models: u32,
    /// Cores of its share of nodes without GPUs that others hold.
    pub(super) short: u32,
    /// With the policy to spread only: GPUs of other guests on its nodes.
    pub(super) neighbours: u32,
    /// Its cost to later guests ([`Future`]).
    pub(super) future: u32,
    /// NVLinks between the set and GPUs that stay free.
    pub(super) cut: u64,
    /// Cores that free GPUs of its nodes lose of their share.
    pub(super) strain: u32,
    /// The set, so that among equals the one with the lowest indexes is the smallest.
    list: Reverse<Mask>,
}

impl Key {
    pub(super) fn set(&self) -> Mask {
        self.list.0.reverse_bits()
    }
}

/// The NVLinks between GPUs if they differ from pair to pair.
#[derive(Debug)]
pub(super) struct Links {
    /// Links of each pair, by index.
    pairs: Vec<Vec<u32>>,
}

impl Links {
    /// Reads the links; none if every pair has the same number, so that all sets of a size are
    /// equal.
    pub(super) fn new(slots: &Slots<'_>) -> Option<Links> {
        let links = &slots.topology.fabric().links;
        let gpus = slots.gpus.bdfs.len();
        let first = links.first()?.links;
        if links.len() == gpus * (gpus - 1) / 2 && links.iter().all(|link| link.links == first) {
            return None;
        }
        let mut pairs = vec![vec![0; gpus]; gpus];
        for link in links {
            if let (Some(a), Some(b)) = (slots.gpus.index(link.a), slots.gpus.index(link.b)) {
                pairs[a][b] += link.links;
                pairs[b][a] += link.links;
            }
        }
        Some(Links { pairs })
    }

    /// Links between a GPU and a set.
    pub(super) fn to(&self, gpu: usize, set: Mask) -> u64 {
        bits(set).map(|other| u64::from(self.pairs[gpu][other])).sum()
    }

    pub(super) fn any(&self, gpu: usize) -> bool {
        self.pairs[gpu].iter().any(|&links| links > 0)
    }

    /// Links between two sets that share no GPU.
    fn between(&self, a: Mask, b: Mask) -> u64 {
        bits(a).map(|gpu| self.to(gpu, b)).sum()
    }

    pub(super) fn inside(&self, set: Mask) -> u64 {
        bits(set).map(|gpu| self.to(gpu, set)).sum::<u64>() / 2
    }
}

/// The criteria of candidate sets besides their GPUs.
pub(super) struct Judges<'a> {
    pub(super) budget: &'a Budget,
    pub(super) extras: &'a ExtrasSearch,
}

/// Makes the keys of sets on one host for one request.
pub(super) struct Scorer<'a> {
    pub(super) slots: &'a Slots<'a>,
    pub(super) future: &'a Future,
    pub(super) links: Option<Links>,
    pub(super) judges: &'a Judges<'a>,
    spread: bool,
    /// Whether one package counts before the distance to NICs.
    package: bool,
    /// Whether GPUs are linked directly, so that links inside a set count.
    direct: bool,
}

impl<'a> Scorer<'a> {
    pub(super) fn new(
        slots: &'a Slots<'a>,
        future: &'a Future,
        judges: &'a Judges<'a>,
        request: &Request,
    ) -> Scorer<'a> {
        let fabric = slots.topology.fabric();
        let direct = fabric.model == FabricModel::None;
        let spread = request.policy == Policy::Spread;
        let gpus = slots.gpus.bdfs.len();
        let package = match request.prefer {
            Prefer::Auto => direct && fabric.links.len() < gpus * gpus.saturating_sub(1) / 2,
            Prefer::Nic => false,
            Prefer::Package => true,
        };
        Scorer { slots, future, links: Links::new(slots), judges, spread, package, direct }
    }

    /// Returns a lower bound of a set's cost; none if that is `limit` or more. `switches` go along
    /// with the set.
    fn least(&self, set: Mask, switches: Mask, split: bool, limit: Option<&Key>) -> Option<Key> {
        let units = &self.slots.units;
        let inside = match &self.links {
            Some(links) if self.direct => links.inside(set),
            _ => 0,
        };
        let nvlink = i64::from(split) - i64::try_from(inside).unwrap_or(i64::MAX);
        let nodes = touched(&units.nodes, set);
        if limit.is_some_and(|l| (nvlink, 0, nodes) > (l.nvlink, l.remote, l.nodes)) {
            return None;
        }
        let packages = touched(&units.packages, set);
        let mut key = Key {
            nvlink,
            remote: 0,
            nodes,
            packages_first: if self.package { packages } else { 0 },
            far: Far::default(),
            packages,
            roots: touched(&units.roots, set),
            switches: touched(&units.switches, set),
            models: touched(&units.models, set),
            short: 0,
            neighbours: 0,
            future: 0,
            cut: 0,
            strain: 0,
            list: Reverse(set.reverse_bits()),
        };
        // The fields not yet known are 0: a strictly larger key stays larger with them.
        if limit.is_some_and(|limit| Key { list: limit.list, ..key } > *limit) {
            return None;
        }
        if self.spread {
            let near = units.nodes.iter().filter(|&&unit| unit & set != 0);
            key.neighbours = near.map(|unit| (unit & self.slots.gpus.held).count_ones()).sum();
        }
        key.future = self.future.after(set, switches);
        if let Some(links) = &self.links {
            key.cut = links.between(set, self.slots.gpus.free & !set);
        }
        limit.is_none_or(|limit| key < *limit).then_some(key)
    }

    /// The cost of a set; none if it is not feasible.
    pub(super) fn key(&self, set: Mask, switches: Mask) -> Option<Key> {
        self.complete(self.least(set, switches, false, None)?, switches)
    }

    /// Adds the cost of cores, memory, NICs and drives; none if the set is not feasible.
    fn complete(&self, mut key: Key, switches: Mask) -> Option<Key> {
        let gpus = self.slots.gpus.of(key.set());
        if self.slots.entangled {
            let all = [&gpus[..], &self.slots.switches.of(switches)].concat();
            if groups::stranger(self.slots.topology, &all).is_some() {
                return None;
            }
        }
        let fit = self.judges.budget.fit(&gpus)?;
        (key.remote, key.nodes, key.strain) = (fit.remote, key.nodes.max(fit.nodes), fit.strain);
        key.short = fit.short;
        key.far = self.judges.extras.far(&gpus)?;
        Some(key)
    }
}

/// The best of the candidates so far.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    pub(super) best: Option<Key>,
    /// The second best feasible one, for `--explain`.
    pub(super) second: Option<Key>,
    /// The best infeasible one, by its known fields.
    pub(super) infeasible: Option<Key>,
    pub(super) seen: usize,
    /// Which of all free sets were offered.
    pub(super) compared: Compared,
    /// The best feasible ones, in order, if they are kept.
    kept: Option<BestCandidates>,
}

/// The best feasible candidates, in order.
#[derive(Debug)]
struct BestCandidates {
    most: usize,
    keys: Vec<Key>,
}

impl BestCandidates {
    /// The key that another candidate has to beat; `None` if it is kept in any case.
    fn limit(&self) -> Option<&Key> {
        self.keys.last().filter(|_| self.keys.len() == self.most)
    }

    /// Keeps another candidate in order; one that is kept already is not kept twice.
    fn keep(&mut self, key: Key) {
        let Err(at) = self.keys.binary_search(&key) else { return };
        self.keys.insert(at, key);
        self.keys.truncate(self.most);
    }
}

impl Ranking {
    /// A ranking that keeps this many candidates, at least one.
    pub(super) fn keeping(most: usize) -> Ranking {
        Ranking { kept: Some(BestCandidates { most, keys: Vec::new() }), ..Ranking::default() }
    }

    /// The candidates that were kept, the best first.
    pub(super) fn kept(self) -> Vec<Key> {
        self.kept.map(|kept| kept.keys).unwrap_or_default()
    }

    pub(super) fn has_none(&self) -> bool {
        self.best.is_none() && self.kept.as_ref().is_none_or(|kept| kept.keys.is_empty())
    }

    /// Considers another candidate. The same set may be offered twice.
    pub(super) fn offer(&mut self, scorer: &Scorer<'_>, set: Mask, switches: Mask, split: bool) {
        self.seen += 1;
        let limit = match &self.kept {
            Some(kept) => kept.limit(),
            None => self.second.as_ref(),
        };
        let Some(least) = scorer.least(set, switches, split, limit) else { return };
        if let Some(kept) = &mut self.kept {
            if let Some(key) = scorer.complete(least, switches) {
                kept.keep(key);
            }
            return;
        }
        if self.best.is_some_and(|best| best.list == least.list) {
            self.seen -= 1;
            return;
        }
        match scorer.complete(least, switches) {
            None => self.infeasible = Some(self.infeasible.map_or(least, |k| k.min(least))),
            Some(key) if self.best.is_none_or(|best| key < best) => {
                self.second = self.best.replace(key);
            }
            Some(key) if self.second.is_none_or(|second| key < second) => self.second = Some(key),
            Some(_) => {}
        }
    }

    /// The set to take: the best feasible one, otherwise the best of the others, whose cores,
    /// memory or devices then show the shortage.
    pub(super) fn winner(&self) -> Option<Key> {
        self.best.or(self.infeasible)
    }
}
