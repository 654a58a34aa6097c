//! The best-connected set of GPUs on hosts where any set may form a guest. Knows links and the PCIe tree; not who
//! holds what: it gets the free ones.

use crate::bdf::Bdf;
use crate::topology::{DeviceKind, PciDevice, Topology};

/// Is how near two devices are, the farthest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nearness {
    /// In different packages, or nothing is known.
    System,
    /// In one package.
    Package,
    /// On one node.
    Node,
    /// Below one root complex.
    Root,
    /// Below one PCIe switch.
    Switch,
}

impl Nearness {
    /// The place that the devices share, to be read after "all" or "both".
    pub(super) fn place(self) -> &'static str {
        match self {
            Nearness::System => "on this host, not all in one package",
            Nearness::Package => "in one package",
            Nearness::Node => "on one node",
            Nearness::Root => "below one root complex",
            Nearness::Switch => "below one PCIe switch",
        }
    }
}

/// Sets above this number are not all tried; then the set grows from each GPU in turn by the one that adds most.
const MAX_SETS: u128 = 50_000;

/// Is a set's worth: NVLinks between its members, then nearness of its pairs.
type Worth = (u64, u64);

/// Is the search for a set.
struct Search<'a> {
    /// GPUs to choose from, by address.
    free: &'a [Bdf],
    /// Worth of each pair.
    pairs: Vec<Vec<Worth>>,
    /// How many are wanted.
    count: usize,
    /// Whether a set can be a guest's.
    allowed: &'a dyn Fn(&[Bdf]) -> bool,
    /// The best set so far, as places in `free`.
    best: Option<(Worth, Vec<usize>)>,
}

/// The set of `count` free GPUs with most NVLinks between them, then the nearest ones; of equal sets the first by
/// address. None where no set is allowed.
pub(super) fn best(
    topology: &Topology,
    free: &[Bdf],
    count: usize,
    allowed: &dyn Fn(&[Bdf]) -> bool,
) -> Option<Vec<Bdf>> {
    if count == 0 || count > free.len() {
        return None;
    }
    let pair = |a: &Bdf, b: &Bdf| (links(topology, *a, *b), nearness(topology, *a, *b) as u64);
    let pairs = free.iter().map(|a| free.iter().map(|b| pair(a, b)).collect()).collect();
    let mut search = Search { free, pairs, count, allowed, best: None };
    if sets(free.len(), count) <= MAX_SETS {
        search.all(&mut Vec::new(), (0, 0));
    } else {
        search.grow();
    }
    search.best.map(|(_, set)| set.into_iter().map(|place| free[place]).collect())
}

impl Search<'_> {
    /// Tries every set that starts with `set`, in order.
    fn all(&mut self, set: &mut Vec<usize>, worth: Worth) {
        if set.len() == self.count {
            self.offer(set, worth);
            return;
        }
        let first = set.last().map_or(0, |last| last + 1);
        let missing = self.count - set.len();
        for next in first..=self.free.len() - missing {
            let with = self.add(worth, set, next);
            set.push(next);
            self.all(set, with);
            set.pop();
        }
    }

    /// Grows a set from each GPU.
    fn grow(&mut self) {
        for seed in 0..self.free.len() {
            let (mut set, mut worth) = (vec![seed], (0, 0));
            while set.len() < self.count {
                let rest = (0..self.free.len()).filter(|place| !set.contains(place));
                let adds = rest.map(|place| (self.add(worth, &set, place), place));
                let Some((with, next)) = adds.max_by_key(|&(w, p)| (w, std::cmp::Reverse(p)))
                else {
                    break;
                };
                worth = with;
                set.push(next);
            }
            set.sort_unstable();
            self.offer(&set, worth);
        }
    }

    /// The worth of a set with one more.
    fn add(&self, worth: Worth, set: &[usize], next: usize) -> Worth {
        set.iter().fold(worth, |sum, &member| {
            let pair = self.pairs[member][next];
            (sum.0 + pair.0, sum.1 + pair.1)
        })
    }

    /// Keeps a set that is better than the best so far and allowed.
    fn offer(&mut self, set: &[usize], worth: Worth) {
        if self.best.as_ref().is_some_and(|(best, _)| *best >= worth) {
            return;
        }
        let devices: Vec<Bdf> = set.iter().map(|&place| self.free[place]).collect();
        if (self.allowed)(&devices) {
            self.best = Some((worth, set.to_vec()));
        }
    }
}

/// How many sets of `count` there are among `of`; stops counting above [`MAX_SETS`].
fn sets(of: usize, count: usize) -> u128 {
    let mut sets = 1u128;
    for step in 0..count.min(of - count) {
        sets = sets * (of - step) as u128 / (step + 1) as u128;
        if sets > MAX_SETS {
            break;
        }
    }
    sets
}

/// NVLinks between two GPUs.
pub(super) fn links(topology: &Topology, a: Bdf, b: Bdf) -> u64 {
    let between = topology.fabric().links.iter();
    between
        .filter(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
        .map(|link| u64::from(link.links))
        .sum()
}

/// How near two devices are.
pub(super) fn nearness(topology: &Topology, a: Bdf, b: Bdf) -> Nearness {
    let (Some(x), Some(y)) = (topology.device(a), topology.device(b)) else {
        return Nearness::System;
    };
    let is_switch = |bdf: &Bdf| {
        let device = topology.device(*bdf);
        device.is_some_and(|d| d.kind() == DeviceKind::Bridge && d.parent.is_some())
    };
    let above: Vec<Bdf> = topology.path_to_root(b).into_iter().skip(1).collect();
    if topology
        .path_to_root(a)
        .iter()
        .skip(1)
        .any(|bridge| is_switch(bridge) && above.contains(bridge))
    {
        return Nearness::Switch;
    }
    let top = |device: &PciDevice| topology.path_to_root(device.bdf).last().copied();
    if (x.root.is_some() && x.root == y.root)
        || (above.last().copied().is_some() && top(x) == top(y))
    {
        return Nearness::Root;
    }
    match (x.node, y.node) {
        (Some(m), Some(n)) if m == n => Nearness::Node,
        (Some(m), Some(n)) => {
            let package = |node| topology.cores_of(node).map(|core| core.package).next();
            let (m, n) = (package(m), package(n));
            if m.is_some() && m == n { Nearness::Package } else { Nearness::System }
        }
        _ => Nearness::System,
    }
}

/// The farthest pair of a set.
pub(super) fn farthest(topology: &Topology, set: &[Bdf]) -> Nearness {
    let pairs = set.iter().enumerate().flat_map(|(at, &a)| set[..at].iter().map(move |&b| (a, b)));
    pairs.map(|(a, b)| nearness(topology, a, b)).min().unwrap_or(Nearness::Switch)
}
