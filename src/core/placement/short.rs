//! Places for guests if cores or memory are short: those of stopped domains are used, and guests
//! whose pins are left to the planner float. A place beside all domains is always preferred.

use super::budget::Counting;
use super::place::place;
use super::reason::{Because, Reason, Topic};
use super::reason::{CoreReason, MemoryReason, VgpuReason};
use super::result::Placement;
use super::taken::{Taken, floats};
use super::types::PlanError;
use super::{auto, limits, vgpu};
use crate::cpuset::CpuSet;
use crate::cpuset::NodeSet;
use crate::memsize::MemSize;
use crate::occupancy::{Held, Occupancy};
use crate::request::{CellWish, HugePages, PinPolicy, Profile, Request};
use crate::topology::Topology;

/// Finds a guest's place.
pub fn plan(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    let without = |held: &Occupancy, request: &Request| without_vgpus(topology, held, request);
    match &request.vgpu {
        None => {
            let of_functions = vgpu::of_functions(topology, request);
            let sized = of_functions.as_ref().map_or(request, |(sized, _)| sized);
            let mut found = vgpu::beside_mig(topology, held, sized, without)?;
            if let Some((_, thousandths)) = of_functions {
                let because = Because::Vgpu(VgpuReason::Functions { thousandths });
                found.reasons.push(Reason { choice: Topic::Gpus, because, compromise: false });
            }
            Ok(found)
        }
        Some(wish) => vgpu::plan(topology, held, (request, wish), without),
    }
}

/// Finds the place of a guest without vGPUs.
fn without_vgpus(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    limits::refuse_host_devices(held, request)?;
    let is_auto = request.pins == PinPolicy::Auto;
    let pinned = |pins| Request { pins, ..request.clone() };
    let by_core = pinned(PinPolicy::Core);
    let firm = if is_auto { &by_core } else { request };
    let refused = match on_pages(topology, held, firm) {
        Err(refused @ (PlanError::Taken { .. } | PlanError::Impossible { .. })) => refused,
        answer => return answer,
    };
    let is_taken = matches!(refused, PlanError::Taken { .. });
    let beside = |request: &Request| {
        let mut free = held.yielding_less().filter(|_| is_taken);
        let found = free.find_map(|free| on_pages(topology, &free, request).ok())?;
        Some(with_lenders(found, topology, held))
    };
    if let Some(found) = beside(firm) {
        return Ok(found);
    }
    if is_auto && may_float(topology, held, request) {
        let floating = pinned(PinPolicy::None);
        let found = on_pages(topology, held, &floating).ok().or_else(|| beside(&floating));
        if let Some(mut found) = found {
            found.reasons.push(compromise(Topic::Pins, CoreReason::NoneLeft));
            return Ok(found);
        }
    }
    Err(refused)
}

/// Finds a place beside all resources that are held, pinned or not, on the requested pages or the
/// best.
fn on_pages(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    match request.huge_pages {
        HugePages::Auto => auto::plan(topology, held, request),
        HugePages::Off | HugePages::Size(_) => place(topology, held, request, Counting::default()),
    }
}

/// Whether a guest may float if cores are short: it has no passed-through functions, requests
/// nothing about cores, fits on the host's pcpus, and no pinned guest with such functions runs.
fn may_float(topology: &Topology, held: &Occupancy, request: &Request) -> bool {
    let extras = &request.extras;
    let passed = request.gpus.number() as usize
        + extras.nics.number()
        + extras.vfs.number()
        + extras.nvmes.number();
    let says_nothing = request.threads.is_none()
        && request.reserve.cores == 0
        && matches!(request.cells, CellWish::Auto | CellWish::Count(1))
        && request.profile != Profile::NvidiaVm;
    let fits = request.vcpus.is_none_or(|vcpus| vcpus as usize <= topology.pcpus().len());
    let has_cores = |held: &Held| {
        let pinned = held.vcpu_pins.iter().any(|pin| !floats(topology, pin));
        !held.yields() && !held.devices.is_empty() && pinned
    };
    let passed = passed + held.given.len();
    passed == 0 && says_nothing && fits && !held.domains.iter().any(has_cores)
}

/// Adds whose cores and memory a place shares.
fn with_lenders(mut found: Placement, topology: &Topology, held: &Occupancy) -> Placement {
    let taken = Taken::new(topology, held);
    let helpers = found.iothread_pins.iter().chain([&found.emulator_pin]);
    let pcpus = found.vcpu_pins.iter().chain(helpers);
    let pcpus = pcpus.fold(CpuSet::new(), |all, pin| all.or(pin));
    let cores = taken.yielded_cores(&pcpus);
    let nodes = short_nodes(&found, topology, &taken, cores.is_empty());
    let memory = taken.yielded_memory(&nodes);
    if !cores.is_empty() {
        found.reasons.push(compromise(Topic::Pins, CoreReason::Yielded { cores }));
    }
    if !memory.is_empty() {
        let reason = MemoryReason::Yielded { domains: memory };
        found.reasons.push(compromise(Topic::Memory, reason));
    }
    found
}

/// Returns the nodes, by index, whose memory is too small for a guest and all domains; `all`: all
/// nodes of its memory.
fn short_nodes(found: &Placement, topology: &Topology, taken: &Taken<'_>, all: bool) -> Vec<usize> {
    let mut short = Vec::new();
    for cell in &found.cells {
        let nodes = places(topology, &cell.host_nodes);
        let left = |at: &usize| topology.nodes()[*at].memory_kib.saturating_sub(taken.memory(*at));
        let left: MemSize = nodes.iter().map(left).sum();
        if all || left < cell.memory_kib {
            short.extend(nodes);
        }
    }
    short.sort_unstable();
    short.dedup();
    short
}

/// Returns the nodes with memory, by index, that a cell bound to these may use; bound to none: all.
fn places(topology: &Topology, bound: &NodeSet) -> Vec<usize> {
    let on = |at: &usize| {
        let node = &topology.nodes()[*at];
        !node.memory_kib.is_zero() && (bound.is_empty() || bound.contains(node.os_index))
    };
    (0..topology.nodes().len()).filter(on).collect()
}

/// Makes a reason that is a compromise.
fn compromise(choice: Topic, because: impl Into<Because>) -> Reason {
    Reason { choice, because: because.into(), compromise: true }
}
