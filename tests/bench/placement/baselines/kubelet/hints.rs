//! The topology manager: hints of each provider, their merge, and which pods are admitted
//! (gpuvm-placement(7), OTHER PLANNERS).
//!
//! Masks are sets of nodes, bit by place. The kubelet goes through the cross product of all
//! providers' hints; here the same masks are found by counting supersets, which gives the same
//! answer for eight nodes in microseconds.

/// The most nodes that the topology manager accepts by default (KEP 4622).
pub const MOST_NODES: usize = 8;

/// Nodes from which a provider could satisfy the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// Nodes; `None` for any.
    pub mask: Option<u32>,
    /// Whether it needs no more nodes than the provider would at best.
    pub preferred: bool,
}

/// The hints of a provider; `None` without preference. An empty list: it cannot satisfy the
/// request.
pub type Hints = Option<Vec<Hint>>;

/// Which pods are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// All, and no hint counts.
    None,
    /// All, near the best hint.
    BestEffort,
    /// Those whose merged hint is preferred.
    Restricted,
    /// Those that fit on one node.
    SingleNode,
}

/// A provider's hints: every mask that has enough free; preferred are those of the size that would
/// do on an empty host. `all` and `free` are by node.
pub fn generate(all: &[u64], free: &[u64], request: u64) -> Vec<Hint> {
    let nodes = all.len();
    let sum = |list: &[u64], mask: u32| -> u64 {
        (0..nodes).filter(|at| mask >> at & 1 == 1).map(|at| list[at]).sum()
    };
    let masks = 1..1u32 << nodes;
    let could = masks.clone().filter(|&mask| sum(all, mask) >= request);
    let least = could.map(u32::count_ones).min().unwrap_or(0);
    let hint = |mask: u32| Hint { mask: Some(mask), preferred: mask.count_ones() == least };
    masks.filter(|&mask| sum(free, mask) >= request).map(hint).collect()
}

/// Merges the hints of all providers on a host of so many nodes: the mask, and whether it is
/// preferred.
pub fn merge(nodes: usize, providers: &[Hints], admission: Admission) -> Hint {
    let every = u32::try_from((1u64 << nodes) - 1).unwrap_or(u32::MAX);
    let unsure = |preferred| vec![Hint { mask: None, preferred }];
    let lists: Vec<Vec<Hint>> = providers
        .iter()
        .map(|hints| match hints {
            None => unsure(true),
            Some(hints) if hints.is_empty() => unsure(false),
            Some(hints) => hints.clone(),
        })
        .map(|hints| match admission {
            Admission::SingleNode => hints.into_iter().filter(is_single).collect(),
            _ => hints,
        })
        .collect();
    let best = best(nodes, every, &lists);
    let mask = best.mask.unwrap_or(every);
    match admission {
        Admission::SingleNode if mask == every => Hint { mask: None, ..best },
        _ => Hint { mask: Some(mask), ..best },
    }
}

/// Whether the single-node policy looks at a hint at all.
fn is_single(hint: &Hint) -> bool {
    hint.preferred && hint.mask.is_none_or(|mask| mask.count_ones() == 1)
}

/// The best of all combinations; a mask of none: there is no combination with a node in common.
fn best(nodes: usize, every: u32, lists: &[Vec<Hint>]) -> Hint {
    let preferred = |mask: u32| {
        lists.iter().all(|hints| {
            hints.iter().any(|hint| hint.preferred && hint.mask.is_none_or(|own| own == mask))
        })
    };
    let masks = || 1..=every;
    let narrow = |mask: &u32| (mask.count_ones(), *mask);
    if let Some(mask) = masks().filter(|&mask| preferred(mask)).min_by_key(narrow) {
        // If no provider names a node, all masks qualify and the answer is the whole host.
        let free = lists
            .iter()
            .all(|hints| hints.iter().any(|hint| hint.preferred && hint.mask.is_none()));
        return Hint { mask: (!free).then_some(mask), preferred: true };
    }
    let size = best_size(lists);
    let reach = reachable(nodes, every, lists);
    let rank = |mask: &u32| {
        let count = mask.count_ones();
        let (group, away) = match count.cmp(&size) {
            std::cmp::Ordering::Equal => (0, 0),
            std::cmp::Ordering::Less => (1, size - count),
            std::cmp::Ordering::Greater => (2, count - size),
        };
        (group, away, *mask)
    };
    Hint { mask: masks().filter(|&mask| reach[mask as usize]).min_by_key(rank), preferred: false }
}

/// Nodes that the neediest provider wants at least: the size that masks which are not preferred are
/// measured by.
fn best_size(lists: &[Vec<Hint>]) -> u32 {
    let least = |hints: &Vec<Hint>| {
        hints.iter().filter_map(|hint| Some(hint.mask?.count_ones())).min().unwrap_or(0)
    };
    lists.iter().map(least).max().unwrap_or(0)
}

/// Masks that are the intersection of some combination of one hint of each provider, by mask. The
/// number of combinations whose intersection is a superset of S is the product of each provider's
/// such hints; differences of these numbers show which masks occur.
fn reachable(nodes: usize, every: u32, lists: &[Vec<Hint>]) -> Vec<bool> {
    let mut product = vec![1i64; every as usize + 1];
    for hints in lists {
        let mut count = vec![0i64; every as usize + 1];
        for hint in hints {
            count[(hint.mask.unwrap_or(every) & every) as usize] += 1;
        }
        for node in 0..nodes {
            for mask in (0..count.len()).filter(|mask| mask >> node & 1 == 0) {
                count[mask] += count[mask | 1 << node];
            }
        }
        product.iter_mut().zip(count).for_each(|(all, own)| *all *= own);
    }
    for node in 0..nodes {
        for mask in (0..product.len()).filter(|mask| mask >> node & 1 == 0) {
            product[mask] -= product[mask | 1 << node];
        }
    }
    product.into_iter().map(|number| number > 0).collect()
}
