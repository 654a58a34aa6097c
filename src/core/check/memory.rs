//! Rules on the amount of memory and its pages.

use super::fabric::NOT_READY_ID;
use super::guest::{Bank, Guest};
use super::hostdev::ISOLATION_IDS;
use super::report::{Finding, Report};
use crate::cpuset::NodeSet;
use crate::domain::read::Spot;
use crate::finding::Rule;
use crate::memsize::MemSize;
use crate::placement::{Reason, Topic};
use crate::topology::pages::{how_to_mount, not_mounted};
use crate::topology::{HugePagePool, NumaNode, Topology};
use crate::words;
use std::collections::BTreeMap;

/// The guest cannot get a single page there.
const EMPTY: Rule = Rule::error("memory-node-empty", "memory bound to nodes that have none");
/// The kernel's out-of-memory killer ends the guest.
const EXCEEDS: Rule =
    Rule::error("memory-exceeds-node", "more memory than the nodes that it is bound to have");
const NO_POOL: Rule =
    Rule::error("huge-page-pool-absent", "huge pages of a size that the host has no pool of");
/// The start would fail now; pages can be reserved.
const SHORT: Rule = Rule::warning("huge-pages-short", "fewer free huge pages than the guest needs");
const MULTIPLE: Rule =
    Rule::error("memory-no-page-multiple", "memory that is no multiple of its huge pages");

/// The start would fail now; hugetlbfs can be mounted.
const NO_MOUNT: Rule = Rule::warning(
    "huge-pages-not-mounted",
    "huge pages of a size that no file system is mounted for on the host",
);

/// VFIO pins every page of it, and the kernel writes them to the disk.
const SHARED_FILE: Rule = Rule::warning(
    "shared-memory-file",
    "shared memory in a file of a disk's file system, beside passed devices",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[EMPTY, EXCEEDS, NO_POOL, SHORT, MULTIPLE, NO_MOUNT, SHARED_FILE];

/// ID of the rule that a running guest breaks by holding its own pages.
pub const SHORT_ID: &str = SHORT.id;
/// ID of the rule that a running guest refutes.
pub const NOT_MOUNTED_ID: &str = NO_MOUNT.id;

/// Whether a plan's reasons already contain a finding: that pages are missing or not mounted, a
/// partition is not ready, the IOMMU does not isolate.
pub fn is_said(finding: &Finding, reasons: &[Reason]) -> bool {
    let topic = match finding.rule {
        SHORT_ID => Topic::HugePages,
        NOT_MOUNTED_ID => Topic::Hugetlbfs,
        NOT_READY_ID => Topic::Partition,
        rule if ISOLATION_IDS.contains(&rule) => Topic::Iommu,
        _ => return false,
    };
    reasons.iter().any(|reason| reason.compromise && reason.choice == topic)
}

/// Checks amounts and pages.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let banks = guest.banks();
    amounts(&banks, topology, report);
    if let Some(spot) = guest.shared_file.filter(|_| !guest.passed.is_empty()) {
        let message = "the guest's memory is shared, and without a source libvirt puts it into a file \
                       below /var/lib/libvirt/qemu/ram";
        let hint = "write <source type='memfd'/> into <memoryBacking>, or use huge pages";
        report.add(&SHARED_FILE, spot, message, hint);
    }
    if guest.huge_pages.is_some() {
        multiples(&banks, topology, report);
        pools(guest, &banks, topology, report);
        mounts(guest, &banks, topology, report);
    }
}

/// Returns the memory of a set of nodes; none if the host's record has no amounts at all.
pub fn memory_of(topology: &Topology, nodes: &NodeSet) -> Option<MemSize> {
    let known = topology.nodes().iter().any(|node| !node.memory_kib.is_zero());
    known.then(|| among(topology, nodes).map(|node| node.memory_kib).sum())
}

/// Returns the nodes of a set that exist.
fn among<'h>(topology: &'h Topology, nodes: &'h NodeSet) -> impl Iterator<Item = &'h NumaNode> {
    topology.nodes().iter().filter(|node| nodes.contains(node.os_index))
}

/// Returns memory by the nodes it cannot leave, memory bound to a subset of them included, with the
/// place that binds it.
pub fn bound<'t>(banks: &[Bank<'_, 't>]) -> Vec<(NodeSet, MemSize, Spot<'t>)> {
    let mut bound: BTreeMap<&NodeSet, (MemSize, Spot<'t>)> = BTreeMap::new();
    for bank in banks {
        if let Some(binding) = bank.binding.filter(|binding| binding.is_hard()) {
            let nodes = &binding.nodes;
            let entry = bound.entry(&nodes.value).or_insert((MemSize::default(), nodes.spot));
            entry.0 = entry.0 + bank.memory.value;
        }
    }
    let inside = |nodes: &NodeSet| {
        let inside = bound.iter().filter(|(other, _)| other.is_subset(nodes));
        inside.map(|(_, (memory, _))| *memory).sum()
    };
    bound.iter().map(|(&nodes, &(_, spot))| (nodes.clone(), inside(nodes), spot)).collect()
}

/// Checks that bound memory fits into its nodes.
fn amounts<'t>(banks: &[Bank<'_, 't>], topology: &Topology, report: &mut Report<'t>) {
    for (nodes, wanted, spot) in bound(banks) {
        let Some(there) = memory_of(topology, &nodes) else { continue };
        if among(topology, &nodes).next().is_none() {
            continue; // another rule's finding
        }
        if there.is_zero() {
            let message = format!("{wanted} are bound to node {nodes}, which has no memory");
            report.add(&EMPTY, spot, message, with_memory(topology));
        } else if wanted > there {
            let message = format!("{wanted} are bound to node {nodes}, which has {there}");
            report.add(&EXCEEDS, spot, message, "ask for less memory, or bind it to more nodes");
        }
    }
}

/// Lists the nodes that have memory.
fn with_memory(topology: &Topology) -> String {
    let nodes = topology.nodes().iter().filter(|node| !node.memory_kib.is_zero());
    let nodes: NodeSet = nodes.map(|node| node.os_index).collect();
    format!("nodes with memory are {nodes}")
}

/// Returns the page size of a bank: the one named for it, otherwise the host's default.
pub fn page_size(bank: &Bank<'_, '_>, topology: &Topology) -> MemSize {
    bank.page
        .map_or_else(|| default_page_size(&topology.machine().kernel_arguments), |page| page.value)
}

/// Returns the page size that the kernel's arguments make the default.
pub(crate) fn default_page_size(arguments: &[String]) -> MemSize {
    let mut sizes = arguments.iter().filter_map(|a| a.strip_prefix("default_hugepagesz="));
    let size = sizes.next_back().and_then(|size| size.parse().ok());
    size.unwrap_or(MemSize::from_kib(2048))
}

/// Returns how many pages of each size a guest's memory needs on which nodes, with the place that
/// names the size; unbound memory may use all nodes.
pub fn wanted_pages<'t>(
    banks: &[Bank<'_, 't>],
    topology: &Topology,
) -> BTreeMap<(NodeSet, MemSize), (u64, Option<Spot<'t>>)> {
    let everywhere: NodeSet = topology.nodes().iter().map(|node| node.os_index).collect();
    let mut wanted: BTreeMap<(NodeSet, MemSize), (u64, Option<Spot<'t>>)> = BTreeMap::new();
    for bank in banks {
        let hard = bank.binding.filter(|binding| binding.is_hard());
        let nodes = hard.map_or(&everywhere, |binding| &binding.nodes.value).clone();
        let page = page_size(bank, topology);
        let spot = bank.page.map(|page| page.spot);
        let entry = wanted.entry((nodes, page)).or_insert((0, spot));
        entry.0 += bank.memory.value.kib().div_ceil(page.kib());
    }
    wanted
}

/// Checks that memory is a multiple of its pages, in every cell.
fn multiples<'t>(banks: &[Bank<'_, 't>], topology: &Topology, report: &mut Report<'t>) {
    for bank in banks {
        let (page, memory) = (page_size(bank, topology), bank.memory.value);
        if memory.round_down(page) != memory {
            let message = format!(
                "memory of {} is {} KiB, {} KiB above a multiple of its {page} pages",
                bank.name(),
                memory.kib(),
                memory.kib() % page.kib()
            );
            let down = memory.round_down(page).kib();
            let hint = format!("{down} KiB or {} KiB are multiples", down + page.kib());
            report.add(&MULTIPLE, bank.memory.spot, message, hint);
        }
    }
}

/// Checks that the host has pools of the page sizes, with enough free pages.
fn pools<'t>(
    guest: &Guest<'t>,
    banks: &[Bank<'_, 't>],
    topology: &Topology,
    report: &mut Report<'t>,
) {
    if topology.nodes().iter().all(|node| node.huge_pages.is_empty()) {
        return; // not in the record
    }
    let Some(asked) = &guest.huge_pages else { return };
    for ((nodes, page), (count, spot)) in wanted_pages(banks, topology) {
        let spot = spot.unwrap_or(asked.spot);
        let of_size = |pool: &&HugePagePool| pool.page_kib == page;
        let pools = || among(topology, &nodes).flat_map(|n| n.huge_pages.iter()).filter(of_size);
        if pools().next().is_none() {
            let message = format!("node {nodes} has no pool of {page} pages");
            let hint = format!(
                "boot the host with hugepagesz={}, or ask for a size that it has",
                page.to_string().replace(" GiB", "G").replace(" MiB", "M")
            );
            report.add(&NO_POOL, spot, message, hint);
            continue;
        }
        let free: u64 = pools().map(|pool| pool.free).sum();
        if free < count {
            let message = format!(
                "{} {} needed on node {nodes}, {free} {} free",
                words::count(count, &format!("page of {page}")),
                words::are(count),
                words::are(free)
            );
            let reserved: u64 = pools().map(HugePagePool::reserved).sum();
            // Across several nodes, the admin decides how many each gets.
            let (node, number) = match nodes.len() {
                1 => (nodes.to_string(), (reserved + count - free).to_string()),
                _ => ("NODE".to_owned(), "NUMBER".to_owned()),
            };
            let size = page.typed();
            let hint = format!("gpuvm host pages --node {node} --size {size} --count {number}");
            report.add(&SHORT, spot, message, hint);
        }
    }
}

/// Checks that libvirt can use pages of the sizes.
fn mounts<'t>(
    guest: &Guest<'t>,
    banks: &[Bank<'_, 't>],
    topology: &Topology,
    report: &mut Report<'t>,
) {
    let Some(asked) = &guest.huge_pages else { return };
    let sizes = banks
        .iter()
        .map(|bank| (page_size(bank, topology), bank.page.map_or(asked.spot, |page| page.spot)));
    for (page, spot) in sizes.collect::<BTreeMap<_, _>>() {
        if topology.machine().mounts_pages(page) == Some(false) {
            report.add(&NO_MOUNT, spot, not_mounted(page), how_to_mount(page));
        }
    }
}
