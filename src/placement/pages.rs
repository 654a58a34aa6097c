//! Whether the huge pages of a guest are there. Reserves nothing: a shortfall is said with the command that fills it,
//! since the pool may be filled before the guest starts.

use super::PlanError;
use super::explain::{Reasons, count};
use super::taken::Taken;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::request::PageSize;
use crate::topology::{HugePagePool, NumaNode, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Looks at the pools of the nodes that the cells' memory comes from; none: from any node.
pub(super) fn check(
    topology: &Topology,
    taken: &Taken<'_>,
    page: Option<PageSize>,
    nodes: &[Option<NodeId>],
    sizes: &[MemSize],
    reasons: &mut Reasons,
) -> Result<(), PlanError> {
    let Some(page) = page.map(PageSize::size) else { return Ok(()) };
    if topology.nodes().iter().all(|node| node.huge_pages.is_empty()) {
        let text =
            format!("whether pages of {page} are there is unknown: the record names no pools");
        reasons.compromise("huge-pages", text);
        return Ok(());
    }
    let mut wanted: BTreeMap<Option<NodeId>, u64> = BTreeMap::new();
    for (node, size) in nodes.iter().zip(sizes) {
        *wanted.entry(*node).or_default() += size.kib() / page.kib();
    }
    for (node, pages) in wanted {
        let of = |n: &&NumaNode| node.is_none_or(|id| n.os_index == id);
        let those: Vec<&NumaNode> = topology.nodes().iter().filter(of).collect();
        let pools: Vec<(&NumaNode, &HugePagePool)> = those
            .iter()
            .flat_map(|n| n.huge_pages.iter().map(|pool| (*n, pool)))
            .filter(|(_, pool)| pool.page_kib == page)
            .collect();
        if pools.is_empty() {
            let sizes: BTreeSet<MemSize> =
                those.iter().flat_map(|n| n.huge_pages.iter().map(|pool| pool.page_kib)).collect();
            let sizes: Vec<String> = sizes.iter().map(MemSize::to_string).collect();
            return Err(PlanError::Impossible {
                what: format!("this host has no huge pages of {page}"),
                hint: format!("sizes it has: {}", sizes.join(", ")),
            });
        }
        let free = |(n, pool): &(&NumaNode, &HugePagePool)| {
            let coming = taken.memory_to_come(n.os_index, page).kib().div_ceil(page.kib());
            pool.free.saturating_sub(coming)
        };
        let free: u64 = pools.iter().map(free).fold(0, u64::saturating_add);
        let total: u64 = pools.iter().map(|(_, pool)| pool.total).fold(0, u64::saturating_add);
        let place = node.map_or("this host".to_owned(), |id| format!("node {id}"));
        if free >= pages {
            let needed = count(usize::try_from(pages).unwrap_or(usize::MAX), "page");
            reasons.say("huge-pages", format!("{needed} of {page} on {place}, {free} are free"));
            continue;
        }
        let dir = match node {
            Some(id) => format!("/sys/devices/system/node/node{id}/hugepages"),
            None => "/sys/kernel/mm/hugepages".to_owned(),
        };
        let text = format!(
            "{pages} pages of {page} are needed on {place}, {free} are free; before start: \
             `echo {} | sudo tee {dir}/hugepages-{}kB/nr_hugepages`, then read it back",
            total.saturating_add(pages - free),
            page.kib()
        );
        reasons.compromise("huge-pages", text);
    }
    Ok(())
}
