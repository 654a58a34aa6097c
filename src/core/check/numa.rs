//! Rules on guest NUMA cells and the host nodes behind them.

use super::guest::{Bank, Guest};
use super::report::Report;
use crate::cpuset::{NodeId, NodeSet};
use crate::domain::claims::{Binding, VcpuId, VcpuSet};
use crate::finding::Rule;
use crate::placement::memory_node;
use crate::topology::Topology;
use std::collections::BTreeSet;

const ABOVE: Rule = Rule::error("cell-vcpu-above-count", "a cell with vCPUs that do not exist");
/// QEMU assigns it to a cell and warns that this will become an error.
const NOWHERE: Rule = Rule::error("vcpu-in-no-cell", "a vCPU that is in no cell");
const TWICE: Rule = Rule::error("vcpu-in-two-cells", "a vCPU that is in two cells");
const NO_CELL: Rule = Rule::error("memnode-no-cell", "a memnode of a cell that does not exist");
/// libvirt accepts it unless huge pages are requested.
const NO_NODE: Rule =
    Rule::error("node-absent", "memory bound to a node that the host does not have");
/// Every access of the guest crosses the link between packages.
const FAR: Rule =
    Rule::error("vcpu-far-from-memory", "vCPUs on other nodes than the memory bound to them");

/// The guest's scheduler takes them for near each other.
const SPLIT: Rule =
    Rule::warning("guest-core-split", "cores or sockets of the guest that its cells cut through");

/// Rules of this module.
pub const RULES: &[Rule] = &[ABOVE, NOWHERE, TWICE, NO_CELL, NO_NODE, FAR, SPLIT];

/// Checks cells and nodes.
pub fn check<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    cells(guest, report);
    split(guest, report);
    nodes(guest, topology, report);
    for bank in guest.banks() {
        far(guest, bank, topology, report);
    }
}

/// Checks that cells hold every vCPU once, and memnodes name cells.
fn cells<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let count = guest.vcpus.value;
    let all: VcpuSet = (0..count).map(VcpuId).collect();
    let mut seen = VcpuSet::new();
    for cell in &guest.cells {
        let Some(vcpus) = &cell.vcpus else { continue };
        let above = vcpus.minus(&all);
        if !above.is_empty() {
            let message =
                format!("cell {} has vcpus {above}, but the guest has {count} vcpus", cell.id);
            report.add(&ABOVE, vcpus.spot, message, "take them out, or raise <vcpu>");
        }
        let again = vcpus.and(&seen);
        if !again.is_empty() {
            let message = format!("vcpus {again} of cell {} are in another cell too", cell.id);
            report.add(&TWICE, vcpus.spot, message, "give every vcpu one cell");
        }
        seen = seen.or(vcpus);
    }
    let left = all.minus(&seen);
    if let Some(last) = guest.cells.last().filter(|_| !left.is_empty()) {
        let spot = last.vcpus.as_ref().map_or(last.memory.spot, |vcpus| vcpus.spot);
        let message = format!("vcpus {left} are in no cell");
        report.add(&NOWHERE, spot, message, "give every vcpu one cell");
    }
    for cell in guest.bindings.iter().filter_map(|binding| binding.cell.as_ref()) {
        if !guest.cells.iter().any(|other| other.id == cell.value) {
            let ids: Vec<String> = guest.cells.iter().map(|cell| cell.id.to_string()).collect();
            let message = format!("memnode names cell {}, which does not exist", cell.value);
            let hint = if ids.is_empty() {
                "define cells in <cpu><numa>, or use <numatune><memory>".to_owned()
            } else {
                format!("the guest's cells are {}", ids.join(", "))
            };
            report.add(&NO_CELL, cell.spot, message, hint);
        }
    }
}

/// Checks that the threads of a core are in one cell.
fn split<'t>(guest: &Guest<'t>, report: &mut Report<'t>) {
    let topology = guest.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref());
    let Some(&[sockets, .., threads]) = topology.map(|topology| &topology.value) else { return };
    let cell_of = |vcpu: VcpuId| {
        let has = |vcpus: &VcpuSet| vcpus.contains(vcpu);
        guest.cells.iter().find(|cell| cell.vcpus.as_ref().is_some_and(|v| has(&v.value)))
    };
    let first = |vcpu: VcpuId| VcpuId(vcpu.0 - vcpu.0 % threads.max(1));
    for vcpu in (0..guest.vcpus.value).map(VcpuId) {
        let (Some(own), Some(of_core)) = (cell_of(vcpu), cell_of(first(vcpu))) else { continue };
        if own.id != of_core.id {
            let message = format!(
                "vcpus {} and {} are threads of one core in cells {} and {}",
                first(vcpu).0,
                vcpu.0,
                of_core.id,
                own.id
            );
            let spot = own.vcpus.as_ref().map_or(own.memory.spot, |vcpus| vcpus.spot);
            let hint = "number the vcpus of each cell one after the other, as in cpus='0-15'";
            return report.add(&SPLIT, spot, message, hint);
        }
    }
    cut(guest, sockets, report);
}

/// Checks that cells do not cut across sockets: a cell is a part of a socket, or of whole ones.
fn cut<'t>(guest: &Guest<'t>, sockets: u32, report: &mut Report<'t>) {
    let of_each = guest.vcpus.value / sockets.max(1);
    if sockets < 2 || of_each == 0 {
        return;
    }
    let sockets_of = |vcpus: &VcpuSet| vcpus.iter().map(|v| v.0 / of_each).collect::<BTreeSet<_>>();
    for cell in &guest.cells {
        let Some(vcpus) = &cell.vcpus else { continue };
        let own = sockets_of(vcpus);
        let has_whole = |socket: &u32| {
            let mut all = (socket * of_each..(socket + 1) * of_each).map(VcpuId);
            all.all(|vcpu| vcpus.contains(vcpu))
        };
        if own.len() > 1 && !own.iter().all(has_whole) {
            let names: Vec<String> = own.iter().map(u32::to_string).collect();
            let message = format!(
                "cell {} has parts of sockets {}: the guest takes cores of one socket for near",
                cell.id,
                names.join(" and ")
            );
            let hint = format!(
                "a socket has {of_each} vcpus, numbered one after the other: give each cell whole \
                 sockets, or a part of one"
            );
            return report.add(&SPLIT, vcpus.spot, message, hint);
        }
    }
}

/// Checks that memory is bound to nodes that exist.
fn nodes<'t>(guest: &Guest<'t>, topology: &Topology, report: &mut Report<'t>) {
    let there: NodeSet = topology.nodes().iter().map(|node| node.os_index).collect();
    for binding in &guest.bindings {
        let absent = binding.nodes.minus(&there);
        if !absent.is_empty() {
            let message = format!("memory is bound to node {absent}, which the host does not have");
            report.add(
                &NO_NODE,
                binding.nodes.spot,
                message,
                format!("the host's nodes are {there}"),
            );
        }
    }
}

/// Checks that the pinned vCPUs of a memory bank can run near it. Nothing is near a node without
/// pcpus.
fn far<'t>(guest: &Guest<'t>, bank: Bank<'_, 't>, topology: &Topology, report: &mut Report<'t>) {
    let Some(binding) = bank.binding.filter(|binding| binding.is_hard()) else { return };
    if !has_pcpus(binding, topology) {
        return;
    }
    let mut far = VcpuSet::new();
    let mut homes = NodeSet::new();
    for pin in super::cpu::live_pins(guest) {
        let vcpu = VcpuId(pin.of.value);
        if bank.cell.is_some() && !bank.vcpus.is_some_and(|vcpus| vcpus.contains(vcpu)) {
            continue;
        }
        let nodes: NodeSet =
            pin.cpuset.iter().filter_map(|p| Some(topology.core_of(p)?.node)).collect();
        // For a node without memory, the node that the planner takes memory from is the nearest.
        let near = nodes.iter().filter_map(|node| memory_node(topology, node));
        if !nodes.is_empty()
            && !nodes.intersects(&binding.nodes)
            && !near.collect::<NodeSet>().intersects(&binding.nodes)
        {
            far.insert(vcpu);
            homes = homes.or(&nodes);
        }
    }
    if far.is_empty() {
        return;
    }
    let (bound, name) = (&binding.nodes.value, bank.name());
    let message = format!(
        "vcpus {far} are pinned to node {homes}, but the memory of {name} is bound to node {bound}"
    );
    if guest.asked.as_ref().is_some_and(|asked| asked.allow.remote) {
        report.note(&FAR, binding.nodes.spot, format!("{message}, as was allowed"));
        return;
    }
    let hint = format!("bind the memory to node {homes}, or pin the vcpus to node {bound}");
    report.add(&FAR, binding.nodes.spot, message, hint);
}

/// Whether some node of a binding has pcpus.
fn has_pcpus(binding: &Binding<'_>, topology: &Topology) -> bool {
    let pcpus = |node: NodeId| topology.node(node).is_some_and(|node| !node.pcpus.is_empty());
    binding.nodes.iter().any(pcpus)
}
