//! Huge pages that are reserved for a guest and released with it.
//!
//! Exactly the missing pages are reserved on each node of the plan, and the guest's metadata
//! records them together with the boot ID: no pool outlives a boot, so there is nothing to release
//! afterwards. What `start` then reserves is in the domain's history, like the changes of `tune`.

use crate::apply::Step;
use crate::apply::pages::PagesStep;
use crate::cpuset::{NodeId, NodeSet};
use crate::discover::hugetlb;
use crate::domain::DomainXml;
use crate::domain::guest::Reserved;
use crate::error::{Class, Coded, Error, Result, classed, usage};
use crate::fsroot::FsRoot;
use crate::hypervisor::machine::command_there;
use crate::memsize::MemSize;
use crate::placement::{NodePages, page_to_reserve};
use crate::planned::Planned;
use crate::request::{HugePages, PageSize};
use crate::shell::word;
use crate::topology::Topology;
use crate::words;
use crate::world::World;
use gpuvm_core::check::guest::Guest;
use gpuvm_core::check::memory::wanted_pages;
use std::collections::BTreeMap;

/// The reason a guest does not get its huge pages.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-pages-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum GuestPagesError {
    /// Huge pages are missing for the start of the domain.
    #[error("domain `{name}` could not start: huge pages are missing{lines}")]
    Missing { name: String, lines: String },
    /// The node has less free memory than the huge pages need.
    #[error(
        "{count} more pages of {page} on node {node} are {wanted}, but only {left} of its memory \
         is left"
    )]
    Full {
        count: String,
        page: String,
        node: String,
        wanted: String,
        /// The free memory of the node.
        left: String,
    },
}

impl Coded for GuestPagesError {}

/// The kernel's file with the boot ID.
pub const BOOT: &str = "proc/sys/kernel/random/boot_id";

/// The reservation of a guest's huge pages before it starts.
#[derive(Debug, Default)]
pub struct Reservation {
    /// The steps.
    pub steps: Vec<Step>,
    /// The reserved pages.
    pub reserved: Vec<Reserved>,
}

/// The steps that reserve the missing pages of a planned guest if `reserve`; otherwise a guest that
/// would start without them is refused.
pub fn reserve(
    planned: &Planned,
    reserve: bool,
    starts: bool,
    world: &World,
) -> Result<Reservation> {
    let placement = &planned.placement;
    let Some(page) = placement.huge_pages.map(PageSize::size) else {
        return Ok(Reservation::default());
    };
    let missing = placement.node_pages.iter().filter(|pages| pages.missing() > 0);
    let missing: Vec<(MemSize, NodePages)> = missing.map(|pages| (page, pages.clone())).collect();
    let lacks = starts && world.settings.host.is_none() && world.has_guests_here()?;
    if missing.is_empty() || !(reserve || lacks) {
        return Ok(Reservation::default());
    }
    if !reserve {
        return Err(short(planned.name.as_str(), &missing, false));
    }
    let root = root(world)?;
    let boot = match &root {
        Some(root) => root.read(BOOT)?.unwrap_or_default(),
        None => String::new(),
    };
    let mut reservation = Reservation::default();
    let steps = steps(&placement.node_pages, page, &mut Pools::new(), root.as_ref())?;
    for step in steps {
        let (node, count) = (step.node, step.to - step.was);
        reservation.steps.push(step.into());
        reservation.reserved.push(Reserved { node, page_kib: page, count, boot: boot.clone() });
    }
    Ok(reservation)
}

/// The huge pages that a stopped domain is missing to start, by size and node, whoever defined it.
/// Pages bound to several nodes count as missing on the one with most free memory.
pub fn missing(
    xml: &DomainXml,
    topology: &Topology,
    root: &FsRoot,
) -> Result<Vec<(MemSize, NodePages)>> {
    let guest = Guest::read(xml);
    if guest.huge_pages.is_none() {
        return Ok(Vec::new());
    }
    let mut wanted: Vec<_> = wanted_pages(&guest.banks(), topology).into_iter().collect();
    // Pages bound to a single node come first.
    wanted.sort_by_key(|((nodes, _), _)| nodes.len());
    let mut taken: BTreeMap<(NodeId, MemSize), u64> = BTreeMap::new();
    let mut missing = Vec::new();
    for ((nodes, page), (mut needed, _)) in wanted {
        let mut here = Vec::new();
        for node in topology.nodes().iter().filter(|node| nodes.contains(node.os_index)) {
            let Some(pool) = node.huge_pages.iter().find(|pool| pool.page_kib == page) else {
                continue;
            };
            let id = node.os_index;
            let used = taken.entry((id, page)).or_default();
            let takes = needed.min(pool.free.saturating_sub(*used));
            *used += takes;
            needed -= takes;
            here.push((hugetlb::available(root, id)?, takes, id, pool));
        }
        // If no node has a pool of the size, `check` reports it.
        let most = here.into_iter().max_by_key(|(left, ..)| *left);
        let Some((_, takes, node, pool)) = most.filter(|_| needed > 0 && !grows(root, page)) else {
            continue;
        };
        let (needed, reserved) = (takes + needed, pool.reserved());
        missing.push((page, NodePages { node, needed, free: takes, reserved }));
    }
    Ok(missing)
}

/// Whether the kernel adds pages of a size on demand.
fn grows(root: &FsRoot, page: MemSize) -> bool {
    let path =
        format!("sys/kernel/mm/hugepages/hugepages-{}kB/nr_overcommit_hugepages", page.kib());
    root.read(&path).ok().flatten().is_some_and(|number| number != "0")
}

/// The steps that reserve the pages missing for a domain's start; refused with a hint if reserving
/// was not requested.
pub fn to_start(name: &str, xml: &DomainXml, reserve: bool, world: &World) -> Result<Vec<Step>> {
    let root = world.has_guests_here()?.then(FsRoot::live).transpose()?;
    let Some(root) = root.filter(|_| Guest::read(xml).huge_pages.is_some()) else {
        return Ok(Vec::new());
    };
    let missing = missing(xml, &world.topology()?, &root)?;
    if !reserve && !missing.is_empty() {
        return Err(short(name, &missing, true));
    }
    let (mut pools, mut all) = (Pools::new(), Vec::new());
    for (page, pages) in missing {
        all.extend(steps(&[pages], page, &mut pools, Some(&root))?.into_iter().map(Step::from));
    }
    Ok(all)
}

/// The steps that reserve the pages missing for a guest's start at a new place, once its old one is
/// free; `running`: whether it runs there.
pub fn to_move(
    name: &str,
    before: &DomainXml,
    running: bool,
    after: &DomainXml,
    world: &World,
) -> Result<Vec<Step>> {
    let root = world.has_guests_here()?.then(FsRoot::live).transpose()?;
    let Some(root) = root.filter(|_| Guest::read(after).huge_pages.is_some()) else {
        return Ok(Vec::new());
    };
    if !running {
        return to_start(name, after, true, world);
    }
    let topology = world.topology()?;
    let own = wanted_pages(&Guest::read(before).banks(), &topology);
    let (mut pools, mut all) = (Pools::new(), Vec::new());
    for (page, mut pages) in missing(after, &topology, &root)? {
        let is_there = |nodes: &NodeSet, of: MemSize| {
            of == page && nodes.len() == 1 && nodes.contains(pages.node)
        };
        let own = own.iter().filter(|((nodes, of), _)| is_there(nodes, *of));
        pages.free += own.map(|(_, (count, _))| *count).sum::<u64>();
        all.extend(steps(&[pages], page, &mut pools, Some(&root))?.into_iter().map(Step::from));
    }
    Ok(all)
}

/// The number of pages of a size that nodes will have after the steps so far.
pub type Pools = BTreeMap<(NodeId, MemSize), u64>;

/// Refuses to reserve pages on another machine.
pub fn refuse_elsewhere(verb: &str, world: &World) -> Result<()> {
    // A hypervisor that cannot be reached is not proven to be this machine's.
    if world.is_recorded() || world.has_guests_here().unwrap_or(false) {
        return Ok(());
    }
    Err(usage(
        format!("pages cannot be reserved on the machine of {}", world.settings.connect),
        format!("`gpuvm {verb} ... --reserve-pages` there, or leave --reserve-pages out"),
    ))
}

/// The size of the pages that are reserved for a guest whose pages were left to the planner, which
/// found none.
pub fn size_to_reserve(asked: HugePages, topology: &Topology) -> Result<PageSize> {
    if asked == HugePages::Off {
        return Err(usage(
            "--reserve-pages with normal pages",
            "--huge-pages 2M --reserve-pages, or 1G in place of 2M",
        ));
    }
    page_to_reserve(topology).ok_or_else(|| {
        usage(
            "--reserve-pages: this host has no pool of 2 MiB or 1 GiB pages that is mounted",
            "`gpuvm host pages` shows the sizes; leave --reserve-pages out",
        )
    })
}

/// The machine that pages are reserved on; `None` for a recorded one, on which nothing is reserved.
pub fn root(world: &World) -> Result<Option<FsRoot>> {
    world.root().map(|root| root.filter(FsRoot::is_live))
}

/// The steps that reserve a guest's missing pages. With several guests the plan of each includes
/// the pages of those before it, and `pools` the pages reserved for them.
pub fn steps(
    pages: &[NodePages],
    page_kib: MemSize,
    pools: &mut Pools,
    root: Option<&FsRoot>,
) -> Result<Vec<PagesStep>> {
    let mut steps = Vec::new();
    for pages in pages.iter().filter(|pages| pages.missing() > 0) {
        let NodePages { node, needed, reserved, .. } = *pages;
        let number = pools.entry((node, page_kib)).or_insert(reserved);
        let was = *number;
        *number += pages.missing();
        if let Some(root) = root {
            refuse_full(root, node, page_kib, *number - reserved)?;
        }
        steps.push(PagesStep { node, page_kib, to: *number, was, needed });
    }
    Ok(steps)
}

/// The error that a guest has fewer pages than it needs, defined or to be created.
fn short(name: &str, missing: &[(MemSize, NodePages)], defined: bool) -> Error {
    let mut lines = String::new();
    let mut commands = Vec::new();
    for (page, pages) in missing {
        let NodePages { node, needed, free, reserved } = pages;
        lines += &format!(
            "\n  {} {} needed on node {node}, {free} {} free",
            words::count(*needed, &format!("page of {page}")),
            words::are(*needed),
            words::are(*free)
        );
        let (size, count) = (page.typed(), reserved + pages.missing());
        commands.push(format!("`gpuvm host pages --node {node} --size {size} --count {count}`"));
    }
    let hint = if defined {
        format!(
            "`gpuvm start {name} --reserve-pages` reserves them for it, {} for whoever comes",
            commands.join(" and "),
            name = word(name)
        )
    } else {
        "--reserve-pages reserves those that are missing, --no-start only defines the guest"
            .to_owned()
    };
    GuestPagesError::Missing { name: name.to_string(), lines: lines.to_string() }.hint(hint)
}

/// Refuses to reserve more than the free memory of a node.
pub fn refuse_full(root: &FsRoot, node: NodeId, page: MemSize, count: u64) -> Result<()> {
    let Some(left) = hugetlb::available(root, node)? else { return Ok(()) };
    let wanted = MemSize::from_kib(page.kib().saturating_mul(count));
    if wanted <= left {
        return Ok(());
    }
    Err(GuestPagesError::Full {
        count: count.to_string(),
        page: page.to_string(),
        node: node.to_string(),
        wanted: wanted.to_string(),
        left: left.to_string(),
    }
    .hint("`gpuvm list` shows what each domain holds; a smaller --memory needs fewer"))
}

/// The steps that release the pages reserved for a guest that is removed. Reservations from before
/// the machine booted no longer exist.
pub fn give_back(xml: &DomainXml, world: &World) -> Result<Vec<Step>> {
    let reserved = xml.reserved()?;
    if let (false, Some(host)) = (reserved.is_empty(), world.machine()?.elsewhere()) {
        let name = xml.name();
        let message = format!(
            "domain `{name}` has reserved huge pages on machine `{host}`: release them there"
        );
        return Err(classed(
            Class::OtherMachine,
            message,
            format!("`{}`", command_there(host, &format!("delete {}", word(&name)))),
        ));
    }
    if reserved.is_empty() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    give_back_these(reserved)
}

/// The steps that release these pages if they were reserved since the machine booted.
pub fn give_back_these(reserved: Vec<Reserved>) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let boot = root.read(BOOT)?;
    let mut steps = Vec::new();
    for Reserved { node, page_kib, count, .. } in
        reserved.into_iter().filter(|reserved| Some(&reserved.boot) == boot.as_ref())
    {
        let pools = hugetlb::of_node(&root, node)?.unwrap_or_default();
        let Some(pool) = pools.iter().find(|pool| pool.page_kib == page_kib) else { continue };
        let was = pool.reserved();
        let to = was.saturating_sub(count);
        if to < was {
            steps.push(PagesStep { node, page_kib, to, was, needed: 0 }.into());
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_are_tuned_together_add_up() {
        let page = MemSize::from_kib(2048);
        let pages = |needed, free| NodePages { node: NodeId(0), needed, free, reserved: 10 };
        let mut pools = Pools::new();
        let mut to = |pages: NodePages| -> Vec<(u64, u64, u64)> {
            let steps = steps(&[pages], page, &mut pools, None).unwrap();
            steps.iter().map(|step| (step.was, step.to, step.needed)).collect()
        };
        assert_eq!(to(pages(8, 6)), [(10, 12, 8)]);
        // Nothing is free any more, because the first guest takes it.
        assert_eq!(to(pages(5, 0)), [(12, 17, 5)]);
        assert_eq!(to(pages(0, 0)), []);
    }
}
