//! One place on pages of one size: each choice in its order.

use super::affinity::{Among, Homes};
use super::budget::{Budget, Counting, Solution};
use super::caches::with_caches;
use super::cpus::GuestCpus;
use super::explain::Reasons;
use super::memory::Memory;
use super::pcpus::Cores;
use super::reason::{GpuReason, MemoryReason, Reason, Topic};
use super::result::Placement;
use super::shortage::Shortage;
use super::taken::Taken;
use super::types::PlanError;
use super::{
    cliques, coherent, cpus, devices, direct, extras, limits, pages, passing, pcie, score,
};
use crate::occupancy::Occupancy;
use crate::request::{Allow, PinPolicy, Profile, Request};
use crate::topology::Topology;

/// Finds a guest's place, on the requested pages.
pub(super) fn place(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    counting: Counting,
) -> Result<Placement, PlanError> {
    request.check()?;
    cpus::check_shape(topology, request)?;
    let all = Among::of(topology, request);
    let (last, best) = all.split_last().expect("all cores are the last");
    let on = |request, among: &Among| place_on(topology, held, request, counting, *among);
    if best.is_empty() {
        return on(request, last);
    }
    // Cores of another node are worse than others of the guest's own.
    let allow = Allow { remote: false, ..request.allow };
    let near = Request { allow, ..request.clone() };
    best.iter().find_map(|among| on(&near, among).ok()).map_or_else(|| on(request, last), Ok)
}

/// Finds a guest's place with vCPUs on some cores.
fn place_on(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    counting: Counting,
    among: Among,
) -> Result<Placement, PlanError> {
    let mut reasons = Reasons::default();
    let taken = Taken::new(topology, held).asking(request);
    let homes = Homes::of_request(topology, request, among);
    let homes = homes.with(taken.asked());
    let extras = extras::ExtrasSearch::new(topology, &homes, &taken, request);
    let budget = Budget::new(topology, &homes, &taken, request, counting).beside(extras.node());
    extras.check()?;
    let judges = score::Judges { budget: &budget, extras: &extras };
    let chosen = devices::choose(topology, &homes, &taken, &judges, request, &mut reasons)?;
    coherent::check(topology, &homes, request, &chosen.gpus)?;
    let (homes, taken, budget, gpus) = (&homes, &taken, &budget, &chosen.gpus[..]);
    let mut solution = Solution::default();
    budget
        .solve(gpus, request.allow.remote, &mut solution)
        .map_err(|short| Shortage { topology, budget, homes, taken, gpus }.error(short))?;
    let cores = Cores { topology, homes, taken, gpus, request };
    let cpus = pcpus(&cores, &solution, &mut reasons)?;
    let (solution, gpus) = (&solution, gpus.len());
    let memory = Memory { topology, budget, solution, gpus, request };
    let cells = memory.cells(&cpus, &mut reasons);
    warn(topology, gpus, &mut reasons);
    let node_pages = pages::taken_from(topology, taken, request, solution);
    pages::explain(topology, request, &node_pages, &mut reasons);
    let devices = chosen.all();
    let initiators = coherent::initiators(topology, &chosen.gpus, &cpus, &mut reasons);
    let mut guest_pcie = pcie::tree(topology, homes, &devices, &cpus, &mut reasons);
    if !devices.is_empty() {
        passing::explain(topology, request, initiators.is_some(), &mut reasons);
    }
    direct::explain(topology, held, request, &devices, &mut reasons);
    if request.p2p_clique {
        guest_pcie.cliques = cliques::cliques(topology, &chosen.gpus, &mut reasons)?;
    }
    let is_x86 = limits::is_x86(topology, request);
    // QEMU gives dies and cache leaves to x86 guests only.
    let shown = || with_caches(topology, &cpus.vcpu_pins, cpus.topology);
    let shown = is_x86.then(shown).flatten();
    let passes = is_x86 && !devices.is_empty();
    let placement = Placement {
        partition: chosen.partition,
        devices,
        vgpus: Vec::new(),
        address_limit: topology.machine().address_limit().filter(|_| passes),
        vcpu_pins: cpus.vcpu_pins,
        emulator_pin: cpus.emulator_pin,
        iothread_pins: cpus.iothread_pins,
        topology: shown.map_or(cpus.topology, |(shape, _)| shape),
        cache: shown.map(|(_, cache)| cache),
        cells,
        initiators,
        huge_pages: request.huge_pages.asked(),
        node_pages,
        guest_pcie,
        reasons: reasons.0,
    };
    limits::within(placement, topology, request)
}

/// The pcpus of a guest's threads.
fn pcpus(
    chooser: &Cores<'_>,
    solution: &Solution,
    reasons: &mut Reasons,
) -> Result<GuestCpus, PlanError> {
    let Cores { topology, homes, gpus, request, .. } = *chooser;
    if request.pins == PinPolicy::None {
        let cpus = cpus::floating(solution.vcpus, request)?;
        let (because, compromise) = cpus::why_floating(&cpus, request, topology.guest_pcpus());
        reasons.0.push(Reason { choice: Topic::Vcpus, because: because.into(), compromise });
        return Ok(cpus);
    }
    let cores = chooser.choose(solution);
    chooser.explain(&cores, reasons);
    Ok(match request.profile {
        Profile::Share | Profile::Near => {
            let first = gpus.first().map(|&gpu| homes.of_gpu(gpu).0);
            cpus::pinned(topology, &cores, request, first)
        }
        Profile::NvidiaVm => cpus::vendor(&cores, request, gpus.len()),
    })
}

/// Says what of the host could not be read.
fn warn(topology: &Topology, gpus: usize, reasons: &mut Reasons) {
    if let (Some(warning), 1..) = (&topology.fabric().links_unread, gpus) {
        reasons.compromise(Topic::Gpus, GpuReason::LinksUnread { warning: warning.clone() });
    }
    if let Some(warning) = topology.memory_warning() {
        reasons.compromise(Topic::Memory, MemoryReason::OffNodes { warning });
    }
}
