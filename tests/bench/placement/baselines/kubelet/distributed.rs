//! The CPU manager's distributed taker (KEP 2902): equal shares from the fewest nodes that can
//! provide them, the rest so that the nodes stay most balanced (gpuvm-placement(7), OTHER
//! PLANNERS).
//!
//! The kubelet keeps a set of nodes whose memory its own search may overwrite when four or more
//! nodes are tried (5.2, "caution"); this model keeps the set that was meant.

use super::super::host::Host;
use super::packed::{self, Level, Options, Taker};

/// A way to spread a request over nodes.
struct Spread {
    nodes: Vec<usize>,
    /// Nodes that give the rest, one group after another.
    rest: Vec<usize>,
    /// Standard deviation of the free resources left on the nodes.
    balance: f64,
}

/// A request for threads in groups.
#[derive(Clone, Copy)]
struct Wish {
    need: usize,
    /// Threads that must stay together: those of a core with `full-pcpus-only`, else 1.
    group: usize,
}

impl Wish {
    /// The share of each of this many nodes.
    fn share(self, nodes: usize) -> usize {
        self.need / nodes / self.group * self.group
    }
}

/// Takes threads among the available ones; `None` if there are too few.
pub fn take(
    host: &Host<'_>,
    available: &[bool],
    need: usize,
    group: usize,
    options: Options,
) -> Option<Vec<usize>> {
    // This taker does not know level-3 caches.
    let options = Options { by_l3: false, ..options };
    if need == 0 || !need.is_multiple_of(group) {
        return packed::take(host, available, need, options);
    }
    let taker = Taker::new(host, available, need);
    let (order, free) = (taker.order(Level::Node), taker.left_on_nodes());
    if free.iter().sum::<usize>() < need {
        return None;
    }
    let wish = Wish { need, group };
    let with_cores = host.nodes.iter().filter(|node| !node.cores.is_empty()).count();
    let per_node = host.threads.len().div_ceil(group).div_ceil(with_cores);
    let fewest = (need / group).div_ceil(per_node);
    let most = (need / group).min(order.len());
    let spread = (fewest..=most).find_map(|number| best(&order, free, number, wish));
    let Some(spread) = spread else {
        return packed::take(host, available, need, options);
    };
    let mut left = available.to_vec();
    let mut taken = Vec::new();
    let mut from = |node: usize, number: usize| {
        let here: Vec<bool> =
            left.iter().enumerate().map(|(t, free)| *free && host.node_of(t) == node).collect();
        let got = packed::take(host, &here, number, options).unwrap_or_default();
        got.iter().for_each(|&thread| left[thread] = false);
        taken.extend(&got);
        got.len()
    };
    let share = wish.share(spread.nodes.len());
    for &node in &spread.nodes {
        from(node, share);
    }
    let mut rest = need - share * spread.nodes.len();
    while rest > 0 {
        let before = rest;
        for &node in &spread.rest {
            if rest > 0 {
                rest -= from(node, group);
            }
        }
        if rest == before {
            return None;
        }
    }
    Some(taken)
}

/// The best spread over this number of nodes; `None` if no such set can give equal shares.
fn best(order: &[usize], free: &[usize], number: usize, wish: Wish) -> Option<Spread> {
    let mut best: Option<Spread> = None;
    for nodes in subsets(order, number) {
        if best.as_ref().is_some_and(|best| best.balance == 0.0) {
            break;
        }
        let share = wish.share(number);
        let groups: usize = nodes.iter().map(|&node| free[node] / wish.group).sum();
        if groups * wish.group < wish.need || nodes.iter().any(|&node| free[node] < share) {
            continue;
        }
        let mut left = free.to_vec();
        nodes.iter().for_each(|&node| left[node] -= share);
        let rest = wish.need - share * number;
        let found = remainder(order, &nodes, &left, Wish { need: rest, ..wish });
        if let Some((rest, balance)) = found
            && best.as_ref().is_none_or(|best| balance < best.balance)
        {
            best = Some(Spread { nodes, rest, balance });
        }
    }
    best
}

/// Which nodes provide the rest, and how balanced the nodes are afterwards. Larger sets are tried
/// first.
fn remainder(
    order: &[usize],
    nodes: &[usize],
    left: &[usize],
    wish: Wish,
) -> Option<(Vec<usize>, f64)> {
    if wish.need == 0 {
        return Some((Vec::new(), deviation(order, left)));
    }
    let able: Vec<usize> = nodes.iter().copied().filter(|&node| left[node] >= wish.group).collect();
    let mut best: Option<(Vec<usize>, f64)> = None;
    for set in (1..=able.len()).rev().flat_map(|number| subsets(&able, number)) {
        let Some(after) = round_robin(&set, left, wish) else { continue };
        let balance = deviation(order, &after);
        if best.as_ref().is_none_or(|(_, least)| balance < *least) {
            best = Some((set, balance));
        }
    }
    best
}

/// The rest when the nodes give one group after another; `None` if they have too few.
fn round_robin(set: &[usize], left: &[usize], wish: Wish) -> Option<Vec<usize>> {
    let mut after = left.to_vec();
    let mut need = wish.need;
    while need > 0 {
        let before = need;
        for &node in set {
            if need > 0 && after[node] >= wish.group {
                after[node] -= wish.group;
                need -= wish.group;
            }
        }
        if need == before {
            return None;
        }
    }
    Some(after)
}

/// The standard deviation of what these nodes have left; mean and result have three decimals, as
/// the kubelet's.
fn deviation(order: &[usize], left: &[usize]) -> f64 {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    #[allow(clippy::cast_precision_loss)] // threads of a host are few
    let values: Vec<f64> = order.iter().map(|&node| left[node] as f64).collect();
    #[allow(clippy::cast_precision_loss)] // as above
    let number = values.len() as f64;
    let mean = round(values.iter().sum::<f64>() / number);
    round((values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / number).sqrt())
}

/// All subsets of a size, in the order of their places.
pub fn subsets(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, &item) in items.iter().enumerate() {
        for mut rest in subsets(&items[at + 1..], size - 1) {
            rest.insert(0, item);
            all.push(rest);
        }
    }
    all
}
