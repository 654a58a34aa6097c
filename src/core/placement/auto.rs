//! Chooses a guest's page size if that is left to the planner: the largest pages free on its nodes,
//! otherwise normal ones with a note on their cost. Reserves nothing.

use super::budget::{Counting, PerGpu, reserve};
use super::pages::advised;
use super::place::place;
use super::reason::{Because, Reason};
use super::reason::{MemoryReason, NoPages, Topic};
use super::result::Placement;
use super::types::{NodePages, PlanError};
use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::occupancy::Occupancy;
use crate::request::{GpuWish, HugePages, PageSize, Request};
use crate::topology::pages::{how_to_mount, not_mounted};
use crate::topology::{NumaNode, Topology};
use std::cell::OnceCell;

/// The least memory of a guest that gets huge pages by default: smaller guests start in seconds on
/// any pages.
const LEAST: MemSize = MemSize::from_gib(32);

/// The sizes that guests get, the best first.
const SIZES: [PageSize; 2] = [PageSize::OneGib, PageSize::TwoMib];

/// Finds a guest's place and pages. A request that fits on normal pages always succeeds.
pub(super) fn plan(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    let search = PageSearch { topology, held, request, bare: OnceCell::new() };
    if search.is_small() {
        return search.small();
    }
    let mut unmounted = None;
    for page in SIZES.into_iter().filter(|&page| search.is_free(page)) {
        match search.on_free(page) {
            Some(found) if search.is_mounted(page) => {
                return Ok(chosen(found, MemoryReason::Chosen { page: page.size() }));
            }
            Some(_) => unmounted = unmounted.or(Some(page)),
            None => {}
        }
    }
    let mut normal = search.normal_with_pages().map_err(|error| mounting(error, unmounted))?;
    let nodes = std::mem::take(&mut normal.node_pages);
    if let Some(page) = unmounted {
        search.explain(&mut normal, NoPages::NotMounted, page, Vec::new());
    } else if normal.memory() >= LEAST {
        search.explain_few(&mut normal, nodes);
    }
    Ok(normal)
}

/// An error with the command that would make the pages usable that the guest does not get.
fn mounting(mut error: PlanError, unmounted: Option<PageSize>) -> PlanError {
    if let (PlanError::Taken { hint, .. } | PlanError::Impossible { hint, .. }, Some(page)) =
        (&mut error, unmounted)
    {
        *hint = format!("{}: {}", not_mounted(page.size()), how_to_mount(page.size()));
    }
    error
}

/// A place with the reason for its pages.
fn chosen(mut found: Placement, because: MemoryReason) -> Placement {
    let because = because.into();
    let reason = Reason { choice: Topic::HugePages, because, compromise: false };
    let first = found.reasons.iter().position(|reason| reason.choice == Topic::HugePages);
    found.reasons.insert(first.unwrap_or(found.reasons.len()), reason);
    found
}

struct PageSearch<'a> {
    topology: &'a Topology,
    held: &'a Occupancy,
    /// The request, with its pages left to the planner.
    request: &'a Request,
    /// The place on a host without pools, looked for once; `None` if there is none.
    bare: OnceCell<Option<Placement>>,
}

impl PageSearch<'_> {
    /// Whether the guest gets normal pages whatever place is found.
    fn is_small(&self) -> bool {
        let memory = self.request.memory_kib;
        self.request.gpus.number() == 0 || memory.is_some_and(|memory| memory < LEAST)
    }

    /// Plans on normal pages, and counts the pages it would take of the advised size.
    fn normal_with_pages(&self) -> Result<Placement, PlanError> {
        place(self.topology, self.held, self.request, Counting::default())
    }

    /// The place of a small guest: on normal pages, else on those that it wastes least of.
    fn small(&self) -> Result<Placement, PlanError> {
        let mut unmounted = None;
        let error = match self.normal_with_pages() {
            Ok(mut found) => {
                found.node_pages.clear();
                return Ok(found);
            }
            Err(error) => error,
        };
        let counting = Counting { only_free: true, ..Counting::default() };
        for page in SIZES.into_iter().rev().filter(|&page| self.is_free(page)) {
            let found = self.on(page, counting).ok().filter(|found| is_free(&found.node_pages));
            match found {
                Some(found) if self.is_mounted(page) => {
                    return Ok(chosen(found, MemoryReason::OnlyPages { page: page.size() }));
                }
                Some(_) => unmounted = unmounted.or(Some(page)),
                None => {}
            }
        }
        Err(mounting(error, unmounted))
    }

    /// The place on pages of a size.
    fn on(&self, page: PageSize, counting: Counting) -> Result<Placement, PlanError> {
        let request = Request { huge_pages: HugePages::Size(page), ..self.request.clone() };
        place(self.topology, self.held, &request, counting)
    }

    /// The place on pages of a size that are free now, where it is no worse than one that leaves
    /// them alone. Of pools that hold most of the nodes' memory each GPU has its part, so that all
    /// guests fit: an admin who makes such pools wants guests that fill them. Guests take their
    /// share of the node from smaller pools, until these are used up. Where too few pages are free
    /// for either, guests share those that are.
    fn on_free(&self, page: PageSize) -> Option<Placement> {
        let found = |per_gpu| {
            let found = self.on(page, Counting { per_gpu, only_free: true }).ok()?;
            let is_large = found.memory() >= LEAST
                || per_gpu != PerGpu::OfNode && self.normal_memory() <= found.memory();
            (is_large && is_free(&found.node_pages) && !self.is_worse(&found)).then_some(found)
        };
        match self.request.memory_kib {
            Some(_) => found(PerGpu::OfNode),
            None => [PerGpu::OfPool, PerGpu::OfNode, PerGpu::OfFree].into_iter().find_map(found),
        }
    }

    /// Returns the memory of a guest on normal pages; none, if it has no place.
    fn normal_memory(&self) -> MemSize {
        self.normal_with_pages().map_or(MemSize::default(), |normal| normal.memory())
    }

    /// Whether a place has fewer vCPUs, more cells or more memory far from its cell than one on a
    /// host without pools, or by default less memory than one that leaves pools alone: pages are
    /// not worth that.
    fn is_worse(&self, found: &Placement) -> bool {
        let far = |placement: &Placement| {
            let is_far = |why: &Because| matches!(why, Because::Memory(MemoryReason::Away { .. }));
            placement.reasons.iter().filter(|reason| is_far(&reason.because)).count()
        };
        let bare = self.bare.get_or_init(|| {
            let counting = Counting { per_gpu: PerGpu::WithoutPools, only_free: false };
            place(self.topology, self.held, self.request, counting).ok()
        });
        bare.as_ref().is_some_and(|bare| {
            found.vcpus() < bare.vcpus()
                || found.cells.len() > bare.cells.len()
                || far(found) > far(bare)
        }) || self.request.memory_kib.is_none()
            && self.beside(found).is_some_and(|beside| {
                let shape = |placement: &Placement| (placement.vcpus(), placement.cells.len());
                shape(found) == shape(&beside) && found.memory() < beside.memory()
            })
    }

    /// The same GPUs with memory that leaves all huge pages alone.
    fn beside(&self, found: &Placement) -> Option<Placement> {
        let is_gpu = |bdf: &Bdf| self.topology.gpus().any(|gpu| gpu.bdf == *bdf);
        let gpus = found.devices.iter().copied().filter(is_gpu).collect();
        let request = Request { gpus: GpuWish::Exact(gpus), ..self.request.clone() };
        let counting = Counting { per_gpu: PerGpu::BesidePools, only_free: false };
        place(self.topology, self.held, &request, counting).ok()
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

    /// Says that too few pages are free, and how to get more. `nodes`: the pages of the advised
    /// size that the guest would take instead of normal pages.
    fn explain_few(&self, normal: &mut Placement, nodes: Vec<NodePages>) {
        let mut pools = self.topology.nodes().iter().flat_map(|node| &node.huge_pages);
        let Some(page) = advised(self.topology) else {
            let why = if pools.next().is_none() { NoPages::Unknown } else { NoPages::NoPools };
            return self.explain(normal, why, PageSize::TwoMib, nodes);
        };
        // Memory in its pool counts for a guest on its pages.
        let found = self.is_free(page).then(|| self.on(page, Counting::default()).ok()).flatten();
        let mut nodes = found
            .filter(|found| found.memory() >= LEAST && !self.is_worse(found))
            .map_or(nodes, |f| f.node_pages);
        if self.has_small_nodes() && !self.would_help(page, &nodes) {
            nodes.clear();
        }
        self.explain(normal, NoPages::Few, page, nodes);
    }

    /// Whether a guest can come to a node that leaves it so little memory that it gets no huge
    /// pages there.
    fn has_small_nodes(&self) -> bool {
        let asked = self.request.reserve.memory_kib;
        let left = |node: &NumaNode| node.memory_kib - asked.unwrap_or_else(|| reserve(node));
        let mut nodes = self.topology.nodes().iter().filter(|node| !node.memory_kib.is_zero());
        nodes.any(|node| left(node) < LEAST)
    }

    /// Whether the guest gets pages of a size once those are reserved that it is missing on these
    /// nodes.
    fn would_help(&self, page: PageSize, nodes: &[NodePages]) -> bool {
        let mut parts = self.topology.parts().clone();
        for pages in nodes {
            let node = parts.nodes.iter_mut().find(|node| node.os_index == pages.node);
            let pools = node.into_iter().flat_map(|node| &mut node.huge_pages);
            for pool in pools.filter(|pool| pool.page_kib == page.size()) {
                pool.total = pool.total.saturating_add(pages.missing());
                pool.free = pool.free.saturating_add(pages.missing());
            }
        }
        let Ok(topology) = Topology::new(parts) else { return false };
        let (held, request) = (self.held, self.request);
        let search = PageSearch { topology: &topology, held, request, bare: OnceCell::new() };
        search.on_free(page).is_some()
    }

    /// Adds the cost of normal pages and how to get others.
    fn explain(&self, normal: &mut Placement, why: NoPages, page: PageSize, nodes: Vec<NodePages>) {
        let mounted = matches!(why, NoPages::Unknown | NoPages::NoPools) || self.is_mounted(page);
        let page = page.size();
        let because: Because = MemoryReason::Normal { why, page, nodes, mounted }.into();
        normal.reasons.push(Reason { choice: Topic::HugePages, because, compromise: true });
    }
}

fn is_free(nodes: &[NodePages]) -> bool {
    !nodes.is_empty() && nodes.iter().all(|pages| pages.missing() == 0)
}

#[cfg(test)]
mod tests;
