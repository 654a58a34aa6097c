//! Counts the huge pages that a guest takes from each node, and checks whether they are free.
//! Reserves nothing: a shortage is reported with the command that fixes it, since the pool may be
//! filled before the guest starts.

use super::budget::Solution;
use super::explain::Reasons;
use super::reason::{MemoryReason, Topic};
use super::taken::{Taken, ordinary};
use super::types::NodePages;
use crate::request::{HugePages, PageSize, Request};
use crate::topology::{HugePagePool, Topology};
use std::collections::BTreeMap;

/// Returns the page size advised for a guest on normal pages: 2 MiB, which the kernel can still
/// allocate after a long uptime, otherwise 1 GiB; `None` if the host has no pools of either.
pub(super) fn advised(topology: &Topology) -> Option<PageSize> {
    let pools = || topology.nodes().iter().flat_map(|node| &node.huge_pages);
    let has = |page: &PageSize| pools().any(|pool| pool.page_kib == page.size());
    [PageSize::TwoMib, PageSize::OneGib].into_iter().find(has)
}

/// The size of pages that are reserved for a guest which asks for none: as it is advised, of those
/// that libvirt can use.
pub fn page_to_reserve(topology: &Topology) -> Option<PageSize> {
    let has = |page: PageSize| {
        let pools = || topology.nodes().iter().flat_map(|node| &node.huge_pages);
        pools().any(|pool| pool.page_kib == page.size())
            && topology.machine().mounts_pages(page.size()) != Some(false)
    };
    advised(topology).into_iter().chain([PageSize::OneGib]).find(|&page| has(page))
}

/// Returns the pages that the guest takes from each node; empty without huge pages, or if the
/// record names no pools. The budget has checked that pools of the size exist. If the planner chose
/// normal pages: the pages of the advised size that it would take.
pub(super) fn taken_from(
    topology: &Topology,
    taken: &Taken<'_>,
    request: &Request,
    solution: &Solution,
) -> Vec<NodePages> {
    let page = match request.huge_pages {
        HugePages::Off => None,
        HugePages::Auto => advised(topology),
        HugePages::Size(page) => Some(page),
    };
    let Some(page) = page.map(PageSize::size) else { return Vec::new() };
    let nodes = topology.nodes().iter().enumerate();
    let pools: Vec<(usize, &HugePagePool)> = nodes
        .flat_map(|(at, node)| node.huge_pages.iter().map(move |pool| (at, pool)))
        .filter(|(_, pool)| pool.page_kib == page)
        .collect();
    let mut wanted: BTreeMap<usize, u64> = BTreeMap::new();
    for part in &solution.parts {
        *wanted.entry(part.room).or_default() += part.size.kib().div_ceil(page.kib());
    }
    let free = |at: usize, pool: &HugePagePool| {
        let coming = taken.memory_to_come(at, page).kib().div_ceil(page.kib());
        pool.free.saturating_sub(coming)
    };
    if solution.parts.is_empty() {
        let all: u64 = solution.cells.iter().map(|cell| cell.size.kib().div_ceil(page.kib())).sum();
        let usual = ordinary(topology);
        let here = pools.iter().filter(|(at, _)| usual(&topology.nodes()[*at]));
        let most = |at: usize| topology.nodes()[at].memory_kib.kib() / page.kib();
        let free = here.map(|&(at, pool)| NodeFree { at, free: free(at, pool), most: most(at) });
        let free = free.collect();
        wanted = anywhere(all, free);
    }
    let of = |&(at, pool): &(usize, &HugePagePool)| {
        let needed = wanted.get(&at).copied().filter(|needed| *needed > 0)?;
        let (node, free) = (topology.nodes()[at].os_index, free(at, pool));
        Some(NodePages { node, needed, free, reserved: pool.reserved() })
    };
    pools.iter().filter_map(of).collect()
}

/// Pages of a node.
struct NodeFree {
    /// The node, by index.
    at: usize,
    /// How many are free.
    free: u64,
    /// The most that the node could hold.
    most: u64,
}

/// Spreads the pages of an unbound guest over nodes: first the free ones, then as evenly as the
/// kernel does.
fn anywhere(mut pages: u64, mut free: Vec<NodeFree>) -> BTreeMap<usize, u64> {
    // Pages that do not fit on a small node go to larger ones.
    free.sort_by_key(|node| node.most);
    let mut left = free.len() as u64;
    let mut wanted = BTreeMap::new();
    for NodeFree { at, free, .. } in &free {
        let own = pages.min(*free);
        pages -= own;
        wanted.insert(*at, own);
    }
    for NodeFree { at, most, .. } in free {
        let of_node = wanted.entry(at).or_default();
        let own = pages.div_ceil(left).min(most.saturating_sub(*of_node));
        *of_node += own;
        (pages, left) = (pages - own, left - 1);
    }
    wanted
}

/// Adds whether the pages are free, and whether libvirt can use them.
pub(super) fn explain(
    topology: &Topology,
    request: &Request,
    nodes: &[NodePages],
    reasons: &mut Reasons,
) {
    let Some(page) = request.huge_pages.asked().map(PageSize::size) else { return };
    if topology.machine().mounts_pages(page) == Some(false) {
        reasons.compromise(Topic::Hugetlbfs, MemoryReason::NotMounted { page });
    }
    if topology.nodes().iter().all(|node| node.huge_pages.is_empty()) {
        reasons.compromise(Topic::HugePages, MemoryReason::NoPools { page });
        return;
    }
    for pages in nodes {
        let why = MemoryReason::Pages { page, pages: pages.clone() };
        if pages.missing() == 0 {
            reasons.say(Topic::HugePages, why);
        } else {
            reasons.compromise(Topic::HugePages, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_on_any_node_come_from_free_ones_first() {
        let node = |at, free, most| NodeFree { at, free, most };
        let small = anywhere(10, vec![node(0, 0, 20), node(1, 0, 2), node(2, 1, 20)]);
        assert_eq!(small.into_values().collect::<Vec<_>>(), [4, 2, 4], "node 1 holds two");
        for (pages, free, wanted) in [
            (10, &[20, 5][..], &[10, 0][..]),
            (10, &[4, 5], &[5, 5]),
            (10, &[0, 0, 0], &[4, 3, 3]),
            (7, &[6, 0], &[7, 0]),
            (3, &[], &[]),
        ] {
            let nodes = free.iter().enumerate().map(|(at, free)| node(at, *free, 100));
            let spread = anywhere(pages, nodes.collect());
            assert_eq!(spread.into_values().collect::<Vec<_>>(), wanted, "{pages} of {free:?}");
        }
    }
}
