//! `host pages`: the number of huge pages of a size on a node, now and at boot.

use crate::apply::boot::steps as boot_steps;
use crate::apply::pages::{PagesError, PagesStep, boot};
use crate::apply::{HostStep, Step};
use crate::change::Change;
use crate::cpuset::NodeId;
use crate::discover::hugetlb;
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::host_settings::HostVerbError;
use crate::memsize::MemSize;
use crate::pages::refuse_full;
use crate::reporter::Question;
use crate::topology::Topology;
use crate::topology::pages::{how_to_mount, not_mounted};
use crate::world::World;
use serde::Serialize;
use std::collections::BTreeSet;

/// The huge pages of one size on a node.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodePool {
    /// Its node.
    pub node: NodeId,
    /// Its page size.
    pub page_kib: MemSize,
    /// Pages that are reserved.
    pub reserved: u64,
    /// Pages in use, the surplus included.
    pub used: u64,
    /// Free pages.
    pub free: u64,
    /// Pages that the kernel added and drops when they are no longer used.
    pub surplus: u64,
    /// The largest number of further pages that the node's memory could provide now; `None` if
    /// unknown.
    pub room: Option<u64>,
    /// Pages that are reserved at boot by our file.
    pub at_boot: Option<u64>,
    /// Mount point of the hugetlbfs of this page size; `None` if unknown.
    pub mounted: Option<Vec<String>>,
}

/// The pools of a host, or of one node or size, by node and size.
pub fn pools(
    world: &World,
    of_node: Option<NodeId>,
    of_page: Option<MemSize>,
) -> Result<Vec<NodePool>> {
    let topology = world.topology()?;
    let root = world.root()?;
    let at_boot = root.as_ref().map(boot::numbers).transpose()?.unwrap_or_default();
    let mounts = topology.machine().hugetlbfs.as_ref();
    let mut rows = Vec::new();
    for node in topology.nodes() {
        let id = node.os_index;
        if of_node.is_some_and(|asked| asked != id) {
            continue;
        }
        let left = match &root {
            Some(root) => hugetlb::available(root, id)?,
            None => None,
        };
        for pool in &node.huge_pages {
            let page = pool.page_kib;
            if of_page.is_some_and(|asked| asked != page) {
                continue;
            }
            let of_size = mounts.map(|mounts| mounts.iter().filter(|mount| mount.page_kib == page));
            rows.push(NodePool {
                node: id,
                page_kib: page,
                reserved: pool.reserved(),
                used: pool.used(),
                free: pool.free,
                surplus: pool.surplus,
                room: left.map(|left| left.kib() / page.kib()),
                at_boot: at_boot.get(&(id, page)).copied(),
                mounted: of_size.map(|mounts| mounts.map(|mount| mount.at.clone()).collect()),
            });
        }
    }
    Ok(rows)
}

/// Warnings of sizes with reserved pages but no mounted hugetlbfs: guests cannot use them.
pub fn not_mounted_pools(rows: &[NodePool]) -> Vec<String> {
    let lacks = |row: &&NodePool| {
        let wanted = row.reserved > 0 || row.at_boot.is_some_and(|count| count > 0);
        wanted && row.mounted.as_ref().is_some_and(Vec::is_empty)
    };
    let sizes: BTreeSet<MemSize> = rows.iter().filter(lacks).map(|row| row.page_kib).collect();
    let warning = |page| format!("{}; {}", not_mounted(page), how_to_mount(page));
    sizes.into_iter().map(warning).collect()
}

/// A more reliable way to reserve the same pages at boot; `None` if nothing of this size is
/// reserved at boot.
pub fn surer(page: MemSize) -> Result<Option<String>> {
    let numbers = boot::numbers(&FsRoot::live()?)?;
    Ok(numbers.keys().any(|(_, size)| *size == page).then(|| {
        let arguments = boot::arguments(&numbers, page);
        format!(
            "surer, since it comes before anything uses memory: the kernel's arguments \
             `{arguments}` in the boot loader's configuration (Linux 5.16 and later)"
        )
    }))
}

/// The wanted number of huge pages on a node.
#[derive(Debug, Clone, Copy)]
pub struct NodePages {
    /// The node.
    pub node: NodeId,
    /// The size of a page.
    pub page: MemSize,
    /// How many.
    pub count: u64,
    /// Whether it applies now.
    pub now: bool,
    /// Whether it applies at boot.
    pub at_boot: bool,
}

/// Plans the change on this machine. Releasing surplus pages requires consent.
pub fn set_pages(world: &World, wanted: &NodePages) -> Result<Change> {
    let steps = steps(wanted)?;
    let grows =
        |step: &Step| !matches!(step, Step::Host(HostStep::SetPages(step)) if step.to < step.was);
    if wanted.count > 0 && steps.iter().any(grows) {
        refuse_memory_of_gpu(wanted.node, &world.topology()?)?;
    }
    let lowers =
        |step: &&Step| matches!(step, Step::Host(HostStep::SetPages(step)) if step.to < step.was);
    let lowered: Vec<String> = steps.iter().filter(lowers).map(Step::to_string).collect();
    let question = (!lowered.is_empty()).then(|| Question::Agree {
        lines: Some(lowered),
        question: "give them back?",
        what: "giving pages back".into(),
    });
    let subject = format!("of {} on node {}", wanted.page, wanted.node);
    Ok(Change { question, ..Change::new("host pages", &subject, steps, ()) })
}

/// Refuses pages of a node whose memory is a GPU's.
fn refuse_memory_of_gpu(node: NodeId, topology: &Topology) -> Result<()> {
    let gpu = topology.nodes().iter().find(|one| one.os_index == node).and_then(|one| one.gpu);
    let Some(gpu) = gpu else { return Ok(()) };
    let (node, gpu) = (node.to_string(), gpu.to_string());
    Err(HostVerbError::MemoryOfGpu { node, gpu }
        .hint("`gpuvm host show` lists the nodes with CPUs, whose pages guests can have"))
}

fn steps(wanted: &NodePages) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let NodePages { node, page, count, .. } = *wanted;
    let pools = hugetlb::of_node(&root, node)?.ok_or(PagesError::NoNode { node })?;
    let pool = pools.iter().find(|pool| pool.page_kib == page);
    let pool = pool.ok_or(PagesError::NoSize { node, page })?;
    let was = pool.reserved();
    let mut steps = Vec::new();
    if wanted.now && count != was {
        if count < pool.used() {
            let (page, node) = (page.to_string(), node.to_string());
            let (used, count) = (pool.used().to_string(), count.to_string());
            return Err(HostVerbError::PagesInUse { used, page, node, count }
                .hint("`gpuvm list` shows which domains have huge pages"));
        }
        if count > was {
            refuse_full(&root, node, page, count - was)?;
        }
        let step = PagesStep { node, page_kib: page, to: count, was, needed: 0 };
        steps.push(step.into());
    }
    if wanted.at_boot {
        let mut numbers = boot::numbers(&root)?;
        match count {
            0 => numbers.remove(&(node, page)),
            count => numbers.insert((node, page), count),
        };
        steps.extend(boot_steps([boot::file(&numbers)])?);
    }
    Ok(steps)
}
