//! What a guest's CPU looks like: pins, threads, cells. Knows nothing of how cores were chosen.

use super::pcpus::{Cores, GuestCores};
use super::{GuestTopology, PlanError};
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{CellWish, Profile, Request};

/// vCPUs that QEMU's q35 machine takes (QEMU 10.0).
const MAX_VCPUS: u32 = 4096;
/// NUMA cells that QEMU takes (`MAX_NODES`).
const MAX_CELLS: u32 = 128;

/// Is a guest's CPU.
#[derive(Debug)]
pub(super) struct GuestCpus {
    /// Pin of each vCPU.
    pub(super) vcpu_pins: Vec<CpuSet>,
    /// Pin of the emulator.
    pub(super) emulator_pin: CpuSet,
    /// Pin of each I/O thread.
    pub(super) iothread_pins: Vec<CpuSet>,
    /// What the guest's CPU looks like.
    pub(super) topology: GuestTopology,
    /// vCPUs of each cell, and the host node that they are pinned to; none: not bound.
    pub(super) cells: Vec<(Option<NodeId>, u32)>,
}

/// A number for the guest; hosts are checked to have at most 65536 pcpus.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("no more than the host's pcpus or MAX_VCPUS")
}

/// Pins successive vCPUs to the threads of one core, core by core and node by node.
pub(super) fn by_core(cores: &GuestCores<'_>) -> GuestCpus {
    let threads = cores.threads;
    let mut cpus = GuestCpus {
        vcpu_pins: Vec::new(),
        emulator_pin: CpuSet::new(),
        iothread_pins: Vec::new(),
        topology: GuestTopology { sockets: 1, cores: 1, threads: small(threads) },
        cells: Vec::new(),
    };
    for node in &cores.nodes {
        for core in &node.vcpus {
            cpus.vcpu_pins.extend(core.pcpus.iter().take(threads).map(CpuSet::of));
        }
        if let Some(own) = node.own {
            cpus.emulator_pin = cpus.emulator_pin.or(&own.pcpus);
            cpus.iothread_pins.push(own.pcpus.clone());
        }
        cpus.cells.push((Some(node.node), small(node.vcpus.len() * threads)));
    }
    let sockets = sockets(cores);
    cpus.topology.sockets = small(sockets);
    cpus.topology.cores = small(cpus.vcpu_pins.len() / threads / sockets);
    cpus
}

/// Guest packages: one for each host package where each has as many cores of the guest, else one for all.
fn sockets(cores: &GuestCores<'_>) -> usize {
    let mut packages: Vec<(u32, usize)> = Vec::new();
    for core in cores.nodes.iter().flat_map(|node| &node.vcpus) {
        match packages.last_mut() {
            Some((package, number)) if *package == core.package => *number += 1,
            _ => packages.push((core.package, 1)),
        }
    }
    let even = packages.iter().all(|(_, number)| *number == packages[0].1);
    let mut each: Vec<u32> = packages.iter().map(|(package, _)| *package).collect();
    each.sort_unstable();
    each.dedup();
    if even && each.len() == packages.len() { packages.len().max(1) } else { 1 }
}

/// The replaced tool's order: first threads of all cores, then second ones (spec/nvidia-vm.md 2.4). Its guest of one
/// GPU has one vCPU less than its cores have threads. One cell, bound to no node; emulator and I/O threads float.
pub(super) fn vendor(cores: &GuestCores<'_>, request: &Request, gpus: usize) -> GuestCpus {
    let all: Vec<&CpuSet> =
        cores.nodes.iter().flat_map(|node| &node.vcpus).map(|core| &core.pcpus).collect();
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
        topology: GuestTopology { sockets: 1, cores: vcpus, threads: 1 },
        cells: vec![(None, vcpus)],
    }
}

/// A guest without pins, with the cells and threads that were asked for.
pub(super) fn floating(cores: &Cores<'_>, request: &Request) -> Result<GuestCpus, PlanError> {
    let vcpus = request.vcpus.unwrap_or_else(|| cores.default_vcpus(request.profile));
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
        let below = u64::from(vcpus) - u64::from(vcpus) % step.max(1);
        let hint = match below {
            0 => format!("--vcpus {step}"),
            _ => format!("--vcpus {below} or --vcpus {}", below + step),
        };
        let what = format!(
            "{vcpus} vCPUs do not divide into {cells} cells of cores with {threads} threads"
        );
        return impossible(what, hint);
    }
    let each = vcpus / cells;
    Ok(GuestCpus {
        vcpu_pins: vec![CpuSet::new(); vcpus as usize],
        emulator_pin: CpuSet::new(),
        iothread_pins: vec![CpuSet::new()],
        topology: GuestTopology { sockets: cells, cores: each / threads, threads },
        cells: vec![(None, each); cells as usize],
    })
}

/// Refuses a shape of the guest that contradicts its pins.
pub(super) fn check_shape(request: &Request, pinned: bool) -> Result<(), PlanError> {
    let what = match (request.cells, request.threads) {
        (CellWish::Count(_), _) if pinned => {
            "the number of cells of a pinned guest is that of its host nodes"
        }
        (_, Some(_)) if pinned => {
            "the threads of a pinned guest's cores are those of its host cores"
        }
        _ => return Ok(()),
    };
    Err(PlanError::Impossible { what: what.into(), hint: "--pins none".into() })
}

/// The reason for a guest without pins.
pub(super) fn why_floating(cpus: &GuestCpus, request: &Request, there: usize) -> (String, bool) {
    let vcpus = cpus.vcpu_pins.len();
    let rule = match request.profile {
        _ if request.vcpus.is_some() => "as asked for",
        Profile::Share => "as a pinned guest would have",
        Profile::NvidiaVm => "as the replaced tool gave",
    };
    let text = format!(
        "{}, {rule}; not pinned: they float over the {there} pcpus",
        super::explain::count(vcpus, "vCPU")
    );
    (text, vcpus > there)
}
