//! Rules on resources of other domains of the host, running or only defined.

use super::cpu::{cores_of, helper_pins, live_pins};
use super::guest::Guest;
use super::io::SAME_MAC;
use super::report::Report;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::claims::Pin;
use crate::domain::read::{At, Spot};
use crate::finding::Rule;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use crate::placement::{GuestVgpu, Held, Occupancy, floats};
use crate::shell::word;
use crate::topology::Topology;

/// Only one of them can run; libvirt defines both.
const DEVICE: Rule = Rule::error("device-held", "a passed device that another domain has too");
/// The two slow each other down to half speed.
const PCPU: Rule = Rule::error("pcpu-held", "vCPUs on pcpus of another domain's vCPUs");
/// Two tenants on the threads of one core can observe each other's load, and more.
const CORE: Rule = Rule::error("core-split", "vCPUs on a core that carries another domain's vCPUs");
/// Emulator work interrupts the other guest's vCPUs.
const HELPER: Rule = Rule::warning(
    "helper-on-held-core",
    "emulator or I/O threads on a core of another domain's vCPUs, or the reverse",
);

/// Guests with passed-through devices allocate all their memory at start; not all of them can run
/// at once.
const MEMORY: Rule = Rule::warning(
    "memory-held",
    "memory on nodes that cannot hold it together with other domains' memory",
);

/// Those of cores and memory, which several can have at once, each slower.
pub const SHARED: &[Rule] = &[PCPU, CORE, HELPER, MEMORY];

/// The remedy where cores are held.
pub fn free_cores(name: &str) -> String {
    format!(
        "`gpuvm tune {} --all-settings --pins auto` finds free cores, or lets its vCPUs float if there are none",
        word(name)
    )
}

/// Rules of this module.
pub const RULES: &[Rule] = &[DEVICE, PCPU, CORE, HELPER, MEMORY];

/// Checks against other domains.
pub fn check<'t>(
    guest: &Guest<'t>,
    topology: &Topology,
    others: &Occupancy,
    report: &mut Report<'t>,
) {
    for held in &others.domains {
        for passed in guest.passed.iter().filter(|p| held.devices.contains(&p.bdf.value)) {
            let bdf = passed.bdf.value;
            let message = match held.moved_from(bdf) {
                Some(_) => format!("{bdf} {}", held.holds(bdf)),
                None => format!("{bdf} is held by {}", name(held)),
            };
            let hint = "pass another device, or take it from the other domain";
            report.add(&DEVICE, passed.bdf.spot, message, hint);
        }
        shares(guest, topology, held, report);
        for device in &guest.host_devices {
            let Some(_) = held.host_devices.iter().find(|one| one.is(device)) else { continue };
            let message = format!("{} has {}, too", name(held), device.value);
            let hint = "give it to one of the two";
            if held.active {
                report.add(&DEVICE, device.spot, message, hint);
            } else {
                report.note(&DEVICE, device.spot, message);
            }
        }
        for mac in guest.macs.iter().filter(|mac| held.macs.contains(&mac.value)) {
            let message = format!("an interface of {} has {}, too", name(held), mac.value);
            let hint = "give each interface its own <mac address='...'/>";
            if held.active {
                report.add(&SAME_MAC, mac.spot, message, hint);
            } else {
                // Only one of them runs.
                report.note(&SAME_MAC, mac.spot, message);
            }
        }
        threads(guest, topology, held, report);
    }
    memory(guest, topology, others, report);
}

/// A part of a card that a domain has: a virtual function, a mediated device, or a vGPU that is
/// recorded for it, and made before it starts.
struct Share {
    card: Bdf,
    /// Its name: the address of a function, or words.
    name: String,
}

impl Share {
    /// A virtual function; `None` if it is another one.
    fn of_function(topology: &Topology, bdf: Bdf) -> Option<Share> {
        let card = topology.device(bdf)?.pf()?;
        Some(Share { card, name: bdf.to_string() })
    }

    /// A mediated device; `None` if it is another device, or there is none now.
    fn of_device(topology: &Topology, device: &HostDevice) -> Option<Share> {
        let HostDevice::Mediated(uuid) = device else { return None };
        Some(Share { card: topology.card_of_mdev(uuid)?, name: device.to_string() })
    }

    fn of_vgpu(vgpu: &GuestVgpu) -> Share {
        Share { card: vgpu.card, name: format!("vGPU {}", vgpu.name) }
    }

    /// Those of another domain: as recorded first, since that names the type.
    fn of_domain(topology: &Topology, held: &Held) -> Vec<Share> {
        let functions =
            { held.devices.iter() }.filter_map(|bdf| Share::of_function(topology, *bdf));
        let devices =
            { held.host_devices.iter() }.filter_map(|one| Share::of_device(topology, one));
        held.vgpus.iter().map(Share::of_vgpu).chain(functions).chain(devices).collect()
    }

    /// Those of the checked guest, each with its place.
    fn of_guest<'t>(guest: &Guest<'t>, topology: &Topology) -> Vec<(Spot<'t>, Share)> {
        // One that is not there now, as after a restart of the host, is known by the record.
        let recorded = |is_it: &dyn Fn(&GuestVgpu) -> bool| {
            guest.vgpus.iter().find(|vgpu| is_it(vgpu)).map(Share::of_vgpu)
        };
        let functions = { guest.passed.iter() }.filter_map(|passed| {
            let At { value: bdf, spot } = passed.bdf;
            let is_it = |vgpu: &GuestVgpu| !vgpu.is_mdev() && vgpu.function == bdf;
            let share = Share::of_function(topology, bdf);
            Some((spot, share.or_else(|| recorded(&is_it))?))
        });
        let devices = { guest.host_devices.iter() }.filter_map(|one| {
            let share = Share::of_device(topology, &one.value);
            Some((one.spot, share.or_else(|| recorded(&|vgpu| is_mdev(&one.value, vgpu)))?))
        });
        functions.chain(devices).collect()
    }
}

/// Whether a vGPU is this mediated device.
fn is_mdev(device: &HostDevice, vgpu: &GuestVgpu) -> bool {
    let HostDevice::Mediated(own) = device else { return false };
    vgpu.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(own))
}

/// Checks that no card is passed as a whole of which another domain has a share, nor the reverse:
/// virtual functions and mediated devices end with the card's driver.
fn shares<'t>(guest: &Guest<'t>, topology: &Topology, held: &Held, report: &mut Report<'t>) {
    let hint = "pass another device, or take it from the other domain";
    let theirs = Share::of_domain(topology, held);
    for passed in &guest.passed {
        let bdf = passed.bdf.value;
        if let Some(share) = theirs.iter().find(|share| share.card == bdf) {
            let message = format!("{} has {} of {bdf}", name(held), share.name);
            report.add(&DEVICE, passed.bdf.spot, message, hint);
        }
    }
    for (spot, share) in Share::of_guest(guest, topology) {
        let card = share.card;
        // A domain with a share counts as a holder of the parent.
        let is_whole = held.devices.contains(&card) && theirs.iter().all(|one| one.card != card);
        if is_whole {
            let message = format!("{card}, the card of {}, is held by {}", share.name, name(held));
            report.add(&DEVICE, spot, message, hint);
        }
    }
}

/// Checks that bound memory fits into its nodes besides the memory that other domains bind there.
fn memory<'t>(guest: &Guest<'t>, topology: &Topology, others: &Occupancy, report: &mut Report<'t>) {
    for (nodes, wanted, spot) in super::memory::bound(&guest.banks()) {
        let Some(there) = super::memory::memory_of(topology, &nodes) else { continue };
        let inside = |held: &&Held| held.memory.iter().any(|(on, _)| within(on, &nodes));
        let holders: Vec<&Held> = others.domains.iter().filter(inside).collect();
        let bound = |held: &Held| -> MemSize {
            let own = held.memory.iter().filter(|(on, _)| within(on, &nodes));
            own.map(|(_, memory)| *memory).sum()
        };
        let taken: MemSize = holders.iter().map(|held| bound(held)).sum();
        if wanted > there || wanted + taken <= there {
            continue;
        }
        let names: Vec<String> = holders.iter().take(4).map(|held| name(held)).collect();
        let message = format!(
            "{wanted} are bound to node {nodes}, which has {there}, and {taken} of it are bound by \
             {}",
            names.join(", ")
        );
        let yields = |held: &&&Held| held.yields() && held.huge_page_kib.is_none();
        let yielded: MemSize = holders.iter().filter(yields).map(|held| bound(held)).sum();
        if wanted + taken <= there + yielded {
            report.note(&MEMORY, spot, message)
        } else {
            report.add(&MEMORY, spot, message, "ask for less, or never run them together")
        }
    }
}

/// Whether memory is bound to these nodes only.
fn within(on: &NodeSet, nodes: &NodeSet) -> bool {
    !on.is_empty() && on.is_subset(nodes)
}

/// Returns a domain's name with its state.
fn name(held: &Held) -> String {
    let state = if held.active { "running" } else { "defined" };
    format!("domain `{}` ({state})", held.domain)
}

/// Every pcpu of the cores that a set touches.
fn whole_cores(topology: &Topology, cpuset: &CpuSet) -> CpuSet {
    let cores = cores_of(topology, cpuset);
    let cores = cores.iter().filter_map(|&pcpu| topology.core_of(pcpu));
    cores.flat_map(|core| core.pcpus.iter()).chain(cpuset.iter()).collect()
}

fn union<'s>(sets: impl IntoIterator<Item = &'s CpuSet>) -> CpuSet {
    sets.into_iter().fold(CpuSet::new(), |all, set| all.or(set))
}

/// The pcpus of another domain: those of pins to single cores, and those its threads float over.
struct Theirs {
    vcpus: CpuSet,
    cores: CpuSet,
    /// Every pcpu of the cores of its other threads.
    helpers: CpuSet,
    /// Pcpus that its vCPUs float over.
    floating: CpuSet,
    /// Every pcpu of the cores that its other threads float over.
    floating_helpers: CpuSet,
}

impl Theirs {
    /// Reads them like the planner: a pin either holds cores or lets a thread float.
    fn of(topology: &Topology, held: &Held) -> Theirs {
        let parts = |pins: &mut dyn Iterator<Item = &CpuSet>| {
            let (wide, narrow): (Vec<_>, Vec<_>) = pins.partition(|pin| floats(topology, pin));
            (union(narrow), union(wide))
        };
        let (vcpus, floating) = parts(&mut held.vcpu_pins.iter());
        let (helpers, wide) = parts(&mut held.emulator_pin.iter().chain(&held.iothread_pins));
        let cores = whole_cores(topology, &vcpus);
        let helpers = whole_cores(topology, &helpers.minus(&vcpus)).minus(&cores);
        let floating = floating.minus(&cores);
        let all = whole_cores(topology, &floating).or(&cores).or(&helpers);
        let floating_helpers = whole_cores(topology, &wide).minus(&all);
        Theirs { vcpus, cores, helpers, floating, floating_helpers }
    }
}

/// Checks pcpus and cores against one domain: one finding per kind, at the first pin concerned. An
/// overlap with pcpus that the other domain merely floats over is a note: if it floats over all
/// pcpus, no place is free of it, and the planner says so, too. So is an overlap with cores that a
/// stopped domain yields: `start` reports cores taken since.
fn threads<'t>(guest: &Guest<'t>, topology: &Topology, held: &Held, report: &mut Report<'t>) {
    let theirs = Theirs::of(topology, held);
    let split = theirs.cores.minus(&theirs.vcpus);
    let pins: Vec<&At<'t, CpuSet>> = vcpu_sets(guest);
    let own: Vec<_> = helper_pins(guest).into_iter().map(|(_, cpuset)| cpuset).collect();
    let rows = [
        (&PCPU, &pins, &theirs.vcpus, "carry vcpus of"),
        (&CORE, &pins, &split, "are on cores that carry vcpus of"),
        (&HELPER, &pins, &theirs.helpers, "are on cores that carry emulator or I/O threads of"),
        (
            &HELPER,
            &own,
            &theirs.cores,
            "are for emulator or I/O threads, but on cores with vcpus of",
        ),
    ];
    for (rule, sets, theirs, what) in rows {
        if let Some((first, shared)) = shared(sets.iter().copied(), theirs) {
            let message = format!("pcpus {shared} {what} {}", name(held));
            if held.yields() {
                report.note(rule, first.spot, message)
            } else {
                report.add(rule, first.spot, message, free_cores(&guest.name))
            }
        }
    }
    let wide = |set: &&&At<'t, CpuSet>| floats(topology, &set.value);
    // Guests that float over the same pcpus could be given cores of their own.
    if let Some((first, shared)) = shared(pins.iter().filter(wide).copied(), &theirs.floating) {
        let message = format!("pcpus {shared} may carry vcpus of {}", name(held));
        if held.yields() {
            report.note(&PCPU, first.spot, message)
        } else {
            report.add(&PCPU, first.spot, message, free_cores(&guest.name))
        }
    }
    let single: Vec<_> = pins.iter().filter(|set| !wide(set)).copied().collect();
    let rows = [
        (&PCPU, &single, &theirs.floating, "vcpus"),
        (&HELPER, &pins, &theirs.floating_helpers, "emulator or I/O threads"),
        (&HELPER, &own, &theirs.floating, "vcpus"),
    ];
    for (rule, sets, theirs, what) in rows {
        if let Some((first, shared)) = shared(sets.iter().copied(), theirs) {
            let who = name(held);
            let message = format!(
                "{what} of {who} may run on pcpus {shared}, too: not pinned to single cores"
            );
            report.note(rule, first.spot, message);
        }
    }
}

/// Returns the pcpus that the sets share with another, and the first set that does.
fn shared<'g, 't: 'g>(
    sets: impl Iterator<Item = &'g At<'t, CpuSet>>,
    theirs: &CpuSet,
) -> Option<(&'g At<'t, CpuSet>, CpuSet)> {
    let those: Vec<_> = sets.filter(|set| set.intersects(theirs)).collect();
    let first = *those.first()?;
    Some((first, union(those.into_iter().map(|set| &set.value)).and(theirs)))
}

/// The pins of vCPUs, including the default pin if a vCPU floats over it.
fn vcpu_sets<'g, 't>(guest: &'g Guest<'t>) -> Vec<&'g At<'t, CpuSet>> {
    let pins: Vec<&Pin<'t>> = live_pins(guest).collect();
    let floats = pins.len() < guest.vcpus.value as usize;
    let default = guest.default_pin.iter().filter(|_| floats);
    pins.iter().map(|pin| &pin.cpuset).chain(default).collect()
}
