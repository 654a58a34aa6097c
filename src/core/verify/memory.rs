//! Compares the nodes and pages of a guest's memory with its XML; and checks whether its next start
//! will find pages.

use super::Host;
use super::report::{Between, Report, Wrong};
use crate::check::guest::{Bank, Guest};
use crate::check::memory::{page_size, wanted_pages};
use crate::cpuset::NodeSet;
use crate::finding::Rule;
use crate::memsize::MemSize;
use crate::shell::word;
use crate::topology::Topology;
use crate::verify::process::{Mapped, Process};
use std::collections::BTreeMap;

/// Every access of the guest to it crosses the link between packages.
const OFF_NODE: Rule =
    Rule::error("memory-off-node", "guest memory on other nodes than it is bound to");
/// QEMU was started without, or has mapped another file.
const NOT_HUGE: Rule =
    Rule::error("memory-not-on-huge-pages", "guest memory that is not on the huge pages requested");
/// The guest runs, but would not start again.
const NEXT: Rule = Rule::warning(
    "huge-pages-next-start",
    "fewer huge pages than the guest needs to start again, its own included",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[OFF_NODE, NOT_HUGE, NEXT];

/// QEMU's own memory besides the guest's, which may be on any node: its heap, code, the pages of
/// its libraries.
const OWN: MemSize = MemSize::from_kib(256 << 10);

/// Compares a process' memory with the XML it runs by.
pub fn compare(live: &Guest<'_>, process: &Process, topology: &Topology, report: &mut Report) {
    let Some(memory) = &process.memory else { return };
    let at = format!("/proc/{}/numa_maps", process.pid);
    let banks = live.banks();
    if live.huge_pages.is_some() {
        huge(live, &banks, memory, &at, topology, report);
    }
    let named = |bank: &Bank<'_, '_>| memory.iter().any(|mapped| mapped.cell == bank.cell);
    for bank in banks.iter().filter(|bank| bank.cell.is_some() && named(bank)) {
        let nodes = bank.binding.filter(|binding| binding.is_hard());
        let own = memory.iter().filter(|mapped| mapped.cell == bank.cell);
        let Some(nodes) = nodes.map(|binding| &binding.nodes.value) else { continue };
        stray(&bank.name(), nodes, own, MemSize::default(), &at, report);
    }
    // Memory without a cell's name must be on the nodes of all cells together, except QEMU's own
    // memory.
    let hard = banks.iter().map(|bank| bank.binding.filter(|binding| binding.is_hard()));
    let Some(nodes) = hard.map(|b| b.map(|b| &b.nodes.value)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let nodes = nodes.into_iter().fold(NodeSet::new(), |all, nodes| all.or(nodes));
    let rest = || memory.iter().filter(|mapped| mapped.cell.is_none());
    let small = MemSize::from_kib(64);
    stray(
        "the guest",
        &nodes,
        rest().filter(|m| m.page_kib > small),
        MemSize::default(),
        &at,
        report,
    );
    if live.huge_pages.is_none() {
        stray("the guest", &nodes, rest().filter(|m| m.page_kib <= small), OWN, &at, report);
    }
}

/// Finds memory outside of nodes that it is bound to.
fn stray<'m>(
    whose: &str,
    nodes: &NodeSet,
    memory: impl Iterator<Item = &'m Mapped>,
    allowed: MemSize,
    at: &str,
    report: &mut Report,
) {
    let mut outside: BTreeMap<_, MemSize> = BTreeMap::new();
    for (node, size) in memory.flat_map(|mapped| &mapped.nodes) {
        if !nodes.contains(*node) {
            let sum = outside.entry(*node).or_default();
            *sum = *sum + *size;
        }
    }
    let sum: MemSize = outside.values().copied().sum();
    if sum > allowed {
        let found: Vec<String> =
            outside.iter().map(|(node, size)| format!("{size} on node {node}")).collect();
        let wrong = Wrong {
            what: format!("memory of {whose} is on node"),
            expected: nodes.to_string(),
            found: found.join(", "),
            at: at.to_owned(),
            hint: "a restart allocates it again where it is bound; `migratepages` moves pages that \
                   are not huge",
        };
        report.differs(&OFF_NODE, Between::Reality, wrong);
    }
}

/// Compares the amount on huge pages with the request.
fn huge(
    live: &Guest<'_>,
    banks: &[Bank<'_, '_>],
    memory: &[Mapped],
    at: &str,
    topology: &Topology,
    report: &mut Report,
) {
    let mut wanted: BTreeMap<MemSize, MemSize> = BTreeMap::new();
    for bank in banks {
        let sum = wanted.entry(page_size(bank, topology)).or_default();
        *sum = *sum + bank.memory.value;
    }
    for (page, wanted) in wanted {
        let of_size = memory.iter().filter(|mapped| mapped.page_kib == page);
        let there: MemSize = of_size.flat_map(|mapped| mapped.nodes.values().copied()).sum();
        if there < wanted {
            let hint = format!("`gpuvm restart {}` allocates it again", word(&live.name));
            let wrong = Wrong {
                what: format!("memory on pages of {page}"),
                expected: wanted.to_string(),
                found: there.to_string(),
                at: at.to_owned(),
                hint: &hint,
            };
            report.differs(&NOT_HUGE, Between::Reality, wrong);
        }
    }
}

/// Judges whether a guest that runs would find its pages again: free ones, and its own except those
/// released with it. Stopped guests are left to `check`.
pub fn next_start(
    defined: &Guest<'_>,
    process: Option<&Process>,
    host: Host<'_>,
    report: &mut Report,
) {
    let Some(memory) = process.and_then(|process| process.memory.as_ref()) else { return };
    if defined.huge_pages.is_none() {
        return;
    }
    for ((nodes, page), (wanted, _)) in wanted_pages(&defined.banks(), host.topology) {
        let among = host.topology.nodes().iter().filter(|node| nodes.contains(node.os_index));
        let pools = among.flat_map(|node| &node.huge_pages).filter(|pool| pool.page_kib == page);
        let (free, surplus) = pools.fold((0, 0), |(free, surplus): (u64, u64), pool| {
            (free + pool.free, surplus + pool.surplus)
        });
        let of_size = memory.iter().filter(|mapped| mapped.page_kib == page);
        let own = of_size.flat_map(|mapped| &mapped.nodes).filter(|(n, _)| nodes.contains(**n));
        let own: u64 = own.map(|(_, size)| size.kib() / page.kib()).sum();
        let there = (free + own).saturating_sub(surplus);
        if there < wanted {
            let size = page.typed();
            let hint =
                format!("`gpuvm host pages --node {nodes} --size {size} --count N` reserves them");
            let wrong = Wrong {
                what: format!("pages of {page} for its next start on node {nodes}"),
                expected: wanted.to_string(),
                found: format!("{there} ({free} free, {own} its own, {surplus} of them to go)"),
                at: format!(
                    "/sys/devices/system/node/node{nodes}/hugepages/hugepages-{}kB",
                    page.kib()
                ),
                hint: &hint,
            };
            report.differs(&NEXT, Between::Host, wrong);
        }
    }
}
