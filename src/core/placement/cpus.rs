//! The guest's CPU: pins, threads, cells. Does not know how cores were chosen.

use super::explain::count;
use super::pcpus::{GuestCores, NodeCores};
use super::reason::CoreReason;
use super::types::{GuestTopology, PlanError};
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{CellWish, L3Wish, PinPolicy, Profile, Request};
use crate::topology::Topology;
use std::collections::BTreeSet;

/// The most vCPUs of QEMU's q35 machine (QEMU 10.0).
const MAX_VCPUS: u32 = 4096;
/// The most NUMA cells of QEMU (`MAX_NODES`).
const MAX_CELLS: u32 = 128;

#[derive(Debug)]
pub(super) struct GuestCpus {
    pub(super) vcpu_pins: Vec<CpuSet>,
    pub(super) emulator_pin: CpuSet,
    pub(super) iothread_pins: Vec<CpuSet>,
    /// The CPU topology that the guest sees.
    pub(super) topology: GuestTopology,
    /// vCPUs of each cell, and the host node that they are pinned to; `None` if not pinned, or to
    /// several.
    pub(super) cells: Vec<(Option<NodeId>, u32)>,
}

/// Converts a count; hosts are checked to have at most 65536 pcpus.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("no more than the host's pcpus or MAX_VCPUS")
}

/// Pins each vCPU to a pcpu, node by node: successive ones to the threads of one core, or in thread
/// order. `first` is the node of the first GPU, whose cell has the first I/O thread.
pub(super) fn pinned(
    topology: &Topology,
    cores: &GuestCores<'_>,
    request: &Request,
    first: Option<NodeId>,
) -> GuestCpus {
    let threads = cores.threads;
    let mut vcpu_pins: Vec<CpuSet> = Vec::with_capacity(cores.vcpus());
    for node in &cores.nodes {
        vcpu_pins.extend(order(node, threads, request.pins).map(CpuSet::of));
    }
    let (emulator_pin, threads_of) = helpers(cores, topology.for_guests());
    let mut cells: Vec<(Option<NodeId>, u32)> =
        cores.nodes.iter().map(|node| (Some(node.node), small(node.number))).collect();
    let start = cores.nodes.iter().position(|node| Some(node.node) == first).unwrap_or(0);
    let mut iothread_pins: Vec<CpuSet> = threads_of;
    iothread_pins[..=start].rotate_right(1);
    if request.cells == CellWish::Count(1) && cells.len() > 1 {
        cells = vec![(None, small(vcpu_pins.len()))];
        iothread_pins.truncate(1);
    }
    let threads = if request.pins == PinPolicy::Core { cores.seen_threads() } else { 1 };
    let sockets = if vcpu_pins.len().is_multiple_of(cores.threads) { sockets(cores) } else { 1 };
    let shape = GuestTopology {
        sockets: small(sockets),
        dies: 1,
        cores: small(vcpu_pins.len() / threads / sockets),
        threads: small(threads),
    };
    GuestCpus { vcpu_pins, emulator_pin, iothread_pins, topology: shape, cells }
}

/// Returns the pcpus of a node's vCPUs in order.
fn order<'n>(
    node: &'n NodeCores<'_>,
    threads: usize,
    pins: PinPolicy,
) -> impl Iterator<Item = crate::cpuset::PcpuId> + 'n {
    let mut places: Vec<(usize, usize)> =
        (0..node.number).map(|vcpu| (vcpu / threads, vcpu % threads)).collect();
    if pins == PinPolicy::Thread {
        places.sort_by_key(|&(core, thread)| (thread, core));
    }
    let pcpu = |(core, thread): (usize, usize)| node.vcpus.get(core)?.core.pcpus.iter().nth(thread);
    places.into_iter().filter_map(pcpu)
}

/// Pins of the emulator, and of the I/O threads of each node: on the core taken for them, otherwise
/// on unused threads of the last core, otherwise as those of its other node next in number,
/// otherwise over the guest's cores.
fn helpers(cores: &GuestCores<'_>, set_aside: &CpuSet) -> (CpuSet, Vec<CpuSet>) {
    let helper = |node: &NodeCores<'_>| match node.own {
        Some(seat) => seat.for_helpers(set_aside),
        None => node.spare(cores.threads),
    };
    let alone: Vec<CpuSet> = cores.nodes.iter().map(helper).collect();
    let all = alone.iter().fold(CpuSet::new(), |all, set| all.or(set));
    if all.is_empty() {
        let emulator = cores.nodes.iter().fold(all, |all, node| all.or(&node.pcpus()));
        return (emulator, cores.nodes.iter().map(NodeCores::pcpus).collect());
    }
    let pin = |at: usize| {
        let some = (0..alone.len()).filter(|other| !alone[*other].is_empty());
        let nearest = some.min_by_key(|other| other.abs_diff(at));
        nearest.map_or_else(CpuSet::new, |nearest| alone[nearest].clone())
    };
    let threads = (0..alone.len()).map(pin).collect();
    (all, threads)
}

/// Returns the number of guest packages: one per host package if each has equally many of the
/// guest's cores, otherwise one.
fn sockets(cores: &GuestCores<'_>) -> usize {
    let mut packages: Vec<(u32, usize)> = Vec::new();
    for seat in cores.nodes.iter().flat_map(|node| &node.vcpus) {
        match packages.last_mut() {
            Some((package, number)) if *package == seat.core.package => *number += 1,
            _ => packages.push((seat.core.package, 1)),
        }
    }
    let even = packages.iter().all(|(_, number)| *number == packages[0].1);
    let mut each: Vec<u32> = packages.iter().map(|(package, _)| *package).collect();
    each.sort_unstable();
    each.dedup();
    if even && each.len() == packages.len() { packages.len().max(1) } else { 1 }
}

/// Pins in the order of `nvidia-vm`: first threads of all cores, then second ones
/// (gpuvm-nvidia-vm(7), PINS). Its guest of one GPU has one vCPU fewer than its cores have threads.
/// One cell, bound to no node; emulator and I/O threads float.
pub(super) fn vendor(cores: &GuestCores<'_>, request: &Request, gpus: usize) -> GuestCpus {
    let all: Vec<&CpuSet> =
        cores.nodes.iter().flat_map(|node| &node.vcpus).map(|seat| &seat.core.pcpus).collect();
    let level = |at: usize| all.iter().filter_map(move |pcpus| pcpus.iter().nth(at));
    let mut vcpu_pins: Vec<CpuSet> = (0..cores.threads).flat_map(level).map(CpuSet::of).collect();
    let odd = gpus == 1 && cores.threads > 1;
    let wanted = request.vcpus.map_or(vcpu_pins.len() - usize::from(odd), |vcpus| vcpus as usize);
    vcpu_pins.truncate(wanted);
    let vcpus = small(vcpu_pins.len());
    GuestCpus {
        vcpu_pins,
        emulator_pin: CpuSet::new(),
        iothread_pins: vec![CpuSet::new()],
        topology: GuestTopology { sockets: 1, dies: 1, cores: vcpus, threads: 1 },
        cells: vec![(None, vcpus)],
    }
}

/// Returns the cells of a guest without pins, and the threads of its cores.
pub(super) fn shape(vcpus: u32, request: &Request) -> Result<(u32, u32), PlanError> {
    let threads = request.threads.unwrap_or(1);
    let cells = match request.cells {
        CellWish::Auto => 1,
        CellWish::Count(cells) => cells,
    };
    let impossible = |what: String, hint: String| Err(PlanError::Impossible { what, hint });
    if vcpus > MAX_VCPUS {
        let what = format!("{vcpus} vCPUs are more than the {MAX_VCPUS} that QEMU takes");
        return impossible(what, format!("at most {MAX_VCPUS}"));
    }
    if cells == 0 || cells > MAX_CELLS {
        let what = format!("{cells} NUMA cells: QEMU takes 1 to {MAX_CELLS}");
        return impossible(what, "--cells 1".into());
    }
    let step = u64::from(cells) * u64::from(threads);
    if step == 0 || !u64::from(vcpus).is_multiple_of(step) {
        let hint = format!("--vcpus takes a multiple of {} with these", step.max(1));
        let what = format!(
            "{} do not divide into {} with {}",
            count(vcpus, "vCPU"),
            count(cells, "cell of cores"),
            count(threads, "thread")
        );
        return impossible(what, hint);
    }
    Ok((cells, threads))
}

/// Makes a guest without pins, with the requested cells and threads.
pub(super) fn floating(vcpus: u32, request: &Request) -> Result<GuestCpus, PlanError> {
    let (cells, threads) = shape(vcpus, request)?;
    let each = vcpus / cells;
    Ok(GuestCpus {
        vcpu_pins: vec![CpuSet::new(); vcpus as usize],
        emulator_pin: CpuSet::new(),
        iothread_pins: vec![CpuSet::new()],
        topology: GuestTopology { sockets: cells, dies: 1, cores: each / threads, threads },
        cells: vec![(None, each); cells as usize],
    })
}

/// Refuses a CPU shape that contradicts the pins.
pub(super) fn check_shape(topology: &Topology, request: &Request) -> Result<(), PlanError> {
    if request.l3 == L3Wish::Large {
        check_caches(topology, request)?;
    }
    if request.pins == PinPolicy::None || request.threads.is_none() {
        return Ok(());
    }
    let what = "the threads of a pinned guest's cores are those of its host cores";
    Err(PlanError::Impossible { what: what.into(), hint: "--pins none".into() })
}

/// Refuses the largest L3 caches where they mean nothing.
fn check_caches(topology: &Topology, request: &Request) -> Result<(), PlanError> {
    let sizes: BTreeSet<_> = topology.parts().l3.iter().map(|cache| cache.size_kib).collect();
    let what = match (sizes.len(), sizes.first()) {
        _ if request.pins == PinPolicy::None => {
            "a guest that is not pinned is below all".to_owned()
        }
        _ if request.profile == Profile::NvidiaVm => {
            "the vendor's profile chooses cores".to_owned()
        }
        (2.., _) => return Ok(()),
        (1, Some(Some(size))) => format!("all L3 caches of this host have {size}"),
        _ => "no L3 cache of this host is known by its size".to_owned(),
    };
    Err(PlanError::Impossible {
        what: format!("--l3 large: {what}"),
        hint: "leave --l3 out".into(),
    })
}

/// Adds the reason for a guest without pins.
pub(super) fn why_floating(
    cpus: &GuestCpus,
    request: &Request,
    pcpus: usize,
) -> (CoreReason, bool) {
    let vcpus = cpus.vcpu_pins.len();
    let is_asked = request.vcpus.is_some();
    let why = CoreReason::Floating { vcpus, rule: request.profile, is_asked, pcpus };
    (why, vcpus > pcpus)
}
