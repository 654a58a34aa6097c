//! The rule on pins of a host whose pcpus are partly set aside for guests.

use super::cpu::{helper_pins, live_pins};
use super::guest::Guest;
use super::report::Report;
use crate::cpuset::{CpuSet, NodeSet};
use crate::finding::Rule;
use crate::placement::{Occupancy, idle_cores};
use crate::request::{L3Wish, Profile, Request};
use crate::topology::{Core, Topology};

/// The host's tasks interrupt vCPUs, and what QEMU does beside them runs where it disturbs others.
const AGAINST: Rule = Rule::warning(
    "pins-against-isolation",
    "vCPUs on pcpus of the host while those set aside for guests are free, or emulator and I/O \
     threads on these",
);

/// Rules of this module.
pub const RULES: &[Rule] = &[AGAINST];

/// Checks that vCPUs are on pcpus set aside for guests, and emulator and I/O threads on others,
/// where the planner would have them so.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    report: &mut Report<'t>,
) {
    let set_aside = topology.for_guests();
    let has_own_rule =
        |asked: &Request| asked.profile == Profile::NvidiaVm || asked.l3 == L3Wish::Large;
    let own_rule = guest.asked.as_ref().is_some_and(has_own_rule);
    if set_aside.is_empty() || own_rule {
        return;
    }
    let by = topology
        .kept_off_by()
        .map_or("isolated".to_owned(), |by| format!("set aside for guests by {}", by.setting()));
    let vcpus = live_pins(guest).fold(CpuSet::new(), |all, pin| all.or(&pin.cpuset.value));
    let nodes: NodeSet =
        vcpus.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
    let kept = guest.asked.as_ref().map_or(0, |asked| asked.reserve.cores);
    let idle = idle_cores(topology, others, kept, &nodes);
    let mut parts = Vec::new();
    let mut spot = None;
    let helper = helper_pins(guest).into_iter().find(|(_, pin)| {
        let is_of_vcpus = of_cores(topology, &pin.value).intersects(&of_cores(topology, &vcpus));
        pin.value.intersects(set_aside) && !is_of_vcpus
    });
    let is_clean = |core: &&Core| !core.pcpus.intersects(set_aside);
    let clean = whole(topology, &idle, is_clean);
    let has_other = |pin: &CpuSet| !clean.is_empty() || splits(topology, pin, set_aside);
    if let Some((what, pin)) = helper.filter(|(_, pin)| has_other(&pin.value)) {
        let on = pin.value.and(set_aside);
        parts.push(format!("{what} may run on pcpus {on}, which are {by}"));
        spot = Some(pin.spot);
    }
    let off = vcpus.minus(set_aside);
    let better = better(topology, &vcpus, &off, &idle);
    if !better.is_empty() {
        parts.push(format!("vCPUs are on pcpus {off}, while {better} are {by} and free"));
        let first = live_pins(guest).find(|pin| pin.cpuset.value.intersects(&off));
        spot = spot.or(first.map(|pin| pin.cpuset.spot));
    }
    if let Some(spot) = spot {
        let name = crate::shell::word(&guest.name);
        let hint = format!(
            "`gpuvm tune {name} --pins on --emulator on --iothread-pins on` pins vCPUs to these and \
             the other threads to the host's"
        );
        report.add(&AGAINST, spot, parts.join("; "), hint);
    }
}

/// Idle pcpus set aside for guests that vCPUs could be on instead of these: of their nodes, where
/// cores are set aside for guests, on cores of the same kind with as many threads, or on enough of
/// another kind for all of them.
fn better(topology: &Topology, vcpus: &CpuSet, off: &CpuSet, idle: &CpuSet) -> CpuSet {
    let cores: Vec<&Core> = off.iter().filter_map(|pcpu| topology.core_of(pcpu)).collect();
    let least = cores.iter().map(|core| core.pcpus.and(vcpus).len()).max().unwrap_or(0);
    let is_open = |core: &Core| {
        topology.is_for_guests(core)
            && !core.pcpus.intersects(vcpus)
            && cores.iter().any(|own| own.node == core.node)
            && topology.has_guest_cores(core.node)
    };
    let is_like = |core: &Core| cores.iter().any(|own| topology.speed(own) == topology.speed(core));
    let like =
        whole(topology, idle, |core| is_open(core) && is_like(core) && core.pcpus.len() >= least);
    let all = whole(topology, idle, |core| is_open(core));
    let number = topology.cores().iter().filter(|core| core.pcpus.intersects(&all)).count();
    if like.is_empty() && number >= vcpus.len() { all } else { like }
}

/// Whether a pin has, of one core, both pcpus that are set aside and others.
fn splits(topology: &Topology, pin: &CpuSet, set_aside: &CpuSet) -> bool {
    let parts = topology.cores().iter().map(|core| core.pcpus.and(pin));
    let mut parts = parts.filter(|part| part.intersects(set_aside));
    parts.any(|part| !part.is_subset(set_aside))
}

/// The pcpus of cores of which all are among these.
fn whole(topology: &Topology, pcpus: &CpuSet, is: impl Fn(&&Core) -> bool) -> CpuSet {
    let cores = topology.cores().iter().filter(|core| core.pcpus.is_subset(pcpus)).filter(is);
    cores.flat_map(|core| core.pcpus.iter()).collect()
}

/// All pcpus of the cores that these are of.
fn of_cores(topology: &Topology, pcpus: &CpuSet) -> CpuSet {
    let cores = pcpus.iter().filter_map(|pcpu| topology.core_of(pcpu));
    cores.flat_map(|core| core.pcpus.iter()).collect()
}
