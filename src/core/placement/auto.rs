//! Chooses a guest's page size if that is left to the planner: the largest pages free on its nodes,
//! otherwise normal ones with a note on their cost. Reserves nothing.

use super::budget::PerGpu;
use super::pages::advised;
use super::reason::{MemoryReason, NoPages, Topic};
use super::{Because, NodePages, Occupancy, Placement, PlanError, Reason, place};
use crate::memsize::MemSize;
use crate::request::{HugePages, PageSize, Request};
use crate::topology::Topology;

/// The least memory of a guest that gets huge pages by default: smaller guests start in seconds on
/// any pages.
const LEAST: MemSize = MemSize::from_gib(32);

/// Finds a guest's place and pages. A request that fits on normal pages always succeeds.
pub(super) fn plan(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    let search = Search { topology, held, request };
    if search.is_small() {
        return search.normal();
    }
    let mut wanted = None;
    for page in
        [PageSize::OneGib, PageSize::TwoMib].into_iter().filter(|&page| search.is_free(page))
    {
        let Ok(found) = search.on(page, PerGpu::OfNode) else { continue };
        if search.is_there(page, &found) {
            return Ok(chosen(found, page));
        }
        wanted = (Some(page) == advised(topology)).then_some(found.node_pages).or(wanted);
    }
    let normal = search.normal_with_pages();
    // An admin who put most memory into pools wants guests that fill them.
    if request.memory_kib.is_none() {
        let least = normal.as_ref().map_or(MemSize::default(), Placement::memory);
        for page in [PageSize::OneGib, PageSize::TwoMib] {
            let found = search.is_free(page).then(|| search.on(page, PerGpu::OfPool));
            let found = found.and_then(Result::ok).filter(|found| found.memory() >= least);
            if let Some(found) = found.filter(|found| search.is_there(page, found)) {
                return Ok(chosen(found, page));
            }
        }
    }
    let mut normal = normal?;
    let nodes = std::mem::take(&mut normal.node_pages);
    if normal.memory() >= LEAST {
        search.explain(&mut normal, wanted.unwrap_or(nodes));
    }
    Ok(normal)
}

/// A place with the reason for its pages.
fn chosen(mut found: Placement, page: PageSize) -> Placement {
    let because = MemoryReason::Chosen { page: page.size() }.into();
    let reason = Reason { choice: Topic::HugePages, because, compromise: false };
    let first = found.reasons.iter().position(|reason| reason.choice == Topic::HugePages);
    found.reasons.insert(first.unwrap_or(found.reasons.len()), reason);
    found
}

/// A search for pages.
struct Search<'a> {
    /// The host.
    topology: &'a Topology,
    /// What domains hold.
    held: &'a Occupancy,
    /// The request, with its pages left to the planner.
    request: &'a Request,
}

impl Search<'_> {
    /// Whether the guest gets normal pages whatever place is found.
    fn is_small(&self) -> bool {
        let memory = self.request.memory_kib;
        self.request.gpus.number() == 0 || memory.is_some_and(|memory| memory < LEAST)
    }

    /// Plans on normal pages, and counts the pages it would take of the advised size.
    fn normal_with_pages(&self) -> Result<Placement, PlanError> {
        place(self.topology, self.held, self.request, PerGpu::OfNode)
    }

    /// Plans on normal pages.
    fn normal(&self) -> Result<Placement, PlanError> {
        let mut found = self.normal_with_pages()?;
        found.node_pages.clear();
        Ok(found)
    }

    /// Plans on pages of a size, free or not.
    fn on(&self, page: PageSize, per_gpu: PerGpu) -> Result<Placement, PlanError> {
        let request = Request { huge_pages: HugePages::Size(page), ..self.request.clone() };
        place(self.topology, self.held, &request, per_gpu)
    }

    /// Whether some node has free pages of a size.
    fn is_free(&self, page: PageSize) -> bool {
        let pools = self.topology.nodes().iter().flat_map(|node| &node.huge_pages);
        pools.into_iter().any(|pool| pool.page_kib == page.size() && pool.free > 0)
    }

    /// Whether libvirt can back guests with pages of a size. systemd mounts hugetlbfs for the
    /// default size, 2 MiB; an admin mounts it for 1 GiB pages.
    fn is_mounted(&self, page: PageSize) -> bool {
        let mounted = self.topology.machine().mounts_pages(page.size());
        mounted.unwrap_or(page == PageSize::TwoMib)
    }

    /// Whether all pages of a place are free.
    fn is_there(&self, page: PageSize, found: &Placement) -> bool {
        found.memory() >= LEAST && is_free(&found.node_pages) && self.is_mounted(page)
    }

    /// Adds the cost of normal pages and how to get others.
    fn explain(&self, normal: &mut Placement, nodes: Vec<NodePages>) {
        let pools = || self.topology.nodes().iter().flat_map(|node| &node.huge_pages);
        let page = advised(self.topology);
        let why = match page {
            None if pools().next().is_none() => NoPages::Unknown,
            None => NoPages::NoPools,
            Some(_) if is_free(&nodes) => NoPages::NotMounted,
            Some(_) => NoPages::Few,
        };
        let mounted = page.is_none_or(|page| self.is_mounted(page));
        let page = page.unwrap_or(PageSize::TwoMib).size();
        let because: Because = MemoryReason::Normal { why, page, nodes, mounted }.into();
        normal.reasons.push(Reason { choice: Topic::HugePages, because, compromise: true });
    }
}

/// Whether no page is missing.
fn is_free(nodes: &[NodePages]) -> bool {
    !nodes.is_empty() && nodes.iter().all(|pages| pages.missing() == 0)
}

#[cfg(test)]
mod tests;
