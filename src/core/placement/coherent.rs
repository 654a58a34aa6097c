//! What guests with GPUs of coherent memory have for it: eight empty cells for each GPU, with the
//! distances of its nodes on the host (gpuvm-hardware(7), GRACE). Knows no XML.

use super::affinity::{Homes, distance};
use super::cpus::GuestCpus;
use super::explain::{Reasons, list};
use super::reason::{Topic, TreeReason};
use super::types::{InitiatorCells, Initiators, PlanError};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::request::{IommufdWish, Request};
use crate::topology::{NODES_PER_GPU, Topology};

/// The distance of a node from itself (ACPI 6.5, 5.2.17).
const LOCAL: u32 = 10;

/// Those of a guest's GPUs whose memory is coherent.
fn coherent(topology: &Topology, gpus: &[Bdf]) -> Vec<Bdf> {
    gpus.iter().filter(|gpu| topology.is_coherent(**gpu)).copied().collect()
}

/// Refuses what such guests cannot have.
pub(super) fn check(
    topology: &Topology,
    homes: &Homes<'_>,
    request: &Request,
    gpus: &[Bdf],
) -> Result<(), PlanError> {
    let own = coherent(topology, gpus);
    let Some(&first) = own.first() else { return Ok(()) };
    let refuse =
        |what: String, hint: &str| Err(PlanError::Impossible { what, hint: hint.to_owned() });
    if request.iommufd == IommufdWish::Off {
        let what = format!(
            "{first} needs an SMMUv3 in the guest that is nested in the host's, and only iommufd has \
             that"
        );
        return refuse(what, "leave --iommufd off out");
    }
    if request.p2p_clique {
        let what = format!("{first} has its peers on NVLink: --p2p-clique is for GPUs on PCIe");
        return refuse(what, "leave --p2p-clique out");
    }
    if !own.iter().any(|gpu| topology.is_of_rack(*gpu)) {
        return Ok(());
    }
    let is_apart = || homes.of_gpu(own[0]).0 != homes.of_gpu(own[1]).0;
    match own.len() {
        1 | 4 => Ok(()),
        2 if !is_apart() => Ok(()),
        2 => {
            let what = format!("{} are on two sockets of their tray", list(&own));
            refuse(what, "guests of a tray have 1 GPU, the 2 of one socket, or all 4")
        }
        number => {
            let what = format!("{number} GPUs of a tray are no unit of it");
            refuse(what, "guests of a tray have 1 GPU, the 2 of one socket, or all 4")
        }
    }
}

/// Makes the cells of a guest's GPUs with coherent memory, which follow those with vCPUs; `None` if
/// it has no such GPU.
pub(super) fn initiators(
    topology: &Topology,
    gpus: &[Bdf],
    cpus: &GuestCpus,
    reasons: &mut Reasons,
) -> Option<Initiators> {
    let own = coherent(topology, gpus);
    if own.is_empty() {
        return None;
    }
    let mut nodes: Vec<Option<NodeId>> = cpus.cells.iter().map(|(node, _)| *node).collect();
    let mut cells = Vec::new();
    for gpu in own {
        let first = u32::try_from(nodes.len()).expect("cells are few");
        let there = topology.nodes_of_gpu(gpu).map(|node| Some(node.os_index));
        let mut there: Vec<Option<NodeId>> = there.collect();
        there.resize(NODES_PER_GPU, None);
        nodes.extend(there);
        let end = u32::try_from(nodes.len()).expect("cells are few");
        cells.push(InitiatorCells { gpu, cells: first..end });
    }
    let between = |at: usize, to: usize| match (nodes[at], nodes[to]) {
        _ if at == to => Some(LOCAL),
        // Hosts have been seen to report a node's own distance between nodes of one GPU [VEP199]; a
        // guest's firmware may not.
        (Some(from), Some(to)) => distance(topology, from, to).map(|far| far.max(LOCAL + 1)),
        _ => None,
    };
    let all = 0..nodes.len();
    let row = |at: usize| all.clone().map(|to| between(at, to)).collect();
    let distances: Vec<Vec<Option<u32>>> = all.clone().map(row).collect();
    let is_known = distances.iter().flatten().all(Option::is_some);
    let gpus = cells.clone();
    let why = TreeReason::Initiators { cells: gpus, is_known };
    if is_known {
        reasons.say(Topic::Nodes, why);
    } else {
        reasons.compromise(Topic::Nodes, why);
    }
    Some(Initiators { gpus: cells, distances })
}
