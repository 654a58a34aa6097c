//! Whether the huge pages of a guest are there. Reserves nothing: a shortfall is said with the command that fills it,
//! since the pool may be filled before the guest starts.

use super::budget::Solution;
use super::explain::{Reasons, count};
use super::taken::Taken;
use crate::request::{PageSize, Request};
use crate::topology::{HugePagePool, Topology};
use std::collections::BTreeMap;

/// Looks at the pools of the nodes that the cells' memory comes from; that they are there, the budget has checked.
pub(super) fn explain(
    topology: &Topology,
    taken: &Taken<'_>,
    request: &Request,
    solution: &Solution,
    reasons: &mut Reasons,
) {
    let Some(page) = request.huge_pages.map(PageSize::size) else { return };
    if topology.nodes().iter().all(|node| node.huge_pages.is_empty()) {
        let text =
            format!("whether pages of {page} are there is unknown: the record names no pools");
        reasons.compromise("huge-pages", text);
        return;
    }
    let mut wanted: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    if solution.parts.is_empty() {
        let all = solution.cells.iter().map(|cell| cell.size.kib() / page.kib()).sum();
        wanted.insert(None, all);
    }
    for part in &solution.parts {
        *wanted.entry(Some(part.room)).or_default() += part.size.kib() / page.kib();
    }
    wanted.retain(|_, pages| *pages > 0);
    for (node, pages) in wanted {
        let mut those: Vec<(usize, &HugePagePool)> = Vec::new();
        for (at, record) in topology.nodes().iter().enumerate() {
            if node.is_none_or(|only| only == at) {
                let pools = record.huge_pages.iter().filter(|pool| pool.page_kib == page);
                those.extend(pools.map(|pool| (at, pool)));
            }
        }
        let free = |(at, pool): &(usize, &HugePagePool)| {
            let coming = taken.memory_to_come(*at, page).kib().div_ceil(page.kib());
            pool.free.saturating_sub(coming)
        };
        let free: u64 = those.iter().map(free).fold(0, u64::saturating_add);
        let total: u64 = those.iter().map(|(_, pool)| pool.total).fold(0, u64::saturating_add);
        let id = node.map(|at| topology.nodes()[at].os_index);
        let place = id.map_or("this host".to_owned(), |id| format!("node {id}"));
        if free >= pages {
            let needed = count(usize::try_from(pages).unwrap_or(usize::MAX), "page");
            reasons.say("huge-pages", format!("{needed} of {page} on {place}, {free} are free"));
            continue;
        }
        let dir = match id {
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
}
