//! Places a domain: on the planner's choice, or on its current cores if these are as good. Its
//! functions stay unless others are requested.

use super::kinds::Kinds;
use super::request_of_domain::Guest;
use super::{Given, Item, ItemName, Items, TuneError};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, NodeSet, PcpuId};
use crate::domain::DomainXml;
use crate::domain::arguments::Arguments;
use crate::domain::bound_memory;
use crate::domain::claims::{Cell, Claims, Pin};
use crate::guest::gpus_of;
use crate::memsize::MemSize;
use crate::occupancy::OwnVgpus;
use crate::placement::reason::TreeReason;
use crate::placement::{
    Because, GuestCell, Held, Occupancy, PcieGroup, Placement, PlanError, Reason, Topic, plan,
};
use crate::request::{PageSize, PinPolicy, Profile, Request};
use crate::shell::word;
use crate::topology::{DeviceKind, Topology};
use std::collections::BTreeSet;

/// The most repetitions of planning on the previous plan's cores until the plan is stable.
const ROUNDS: usize = 4;

pub(super) fn place(
    current: &DomainXml,
    guest: &Guest<'_>,
    given: &Given<'_>,
) -> Result<Placement, TuneError> {
    let of_arguments = guest.claims.passed.iter().filter(|passed| passed.by_argument);
    let of_arguments = of_arguments.map(|passed| passed.bdf.value);
    let stay = given.items.size().vgpu.is_kept();
    let mut own_vgpus = OwnVgpus { vgpus: guest.vgpus.clone(), stay };
    if !stay {
        // Those that other guests leave are free, too.
        own_vgpus.vgpus.extend(given.others.own_vgpus.vgpus.iter().cloned());
    }
    let mut beside = Occupancy {
        own_vgpus: own_vgpus.clone(),
        own_memory: bound_memory(guest.claims),
        own_devices: guest.hostdevs.iter().copied().chain(of_arguments).collect(),
        ..given.others.clone()
    };
    if given.items.size().functions.nvmes.is_some() {
        // A drive that is a disk of its own is no drive that it can be passed.
        let disks = guest.claims.passed.iter();
        let disks = disks.filter(|passed| !passed.is_hostdev() && !passed.by_argument);
        let devices: Vec<Bdf> = disks.map(|passed| passed.bdf.value).collect();
        beside.domains.push(Held { domain: current.name(), devices, ..Held::default() });
    }
    if guest.asked.is_some() {
        beside.own_cells = guest.claims.cells.iter().map(vcpus_and_memory).collect();
    }
    let own_devices = beside.own_devices.clone();
    let without = Occupancy { own_devices, own_vgpus, ..given.others.clone() };
    let given = &Given { others: &beside, ..*given };
    let mut placement = match as_asked(guest, given) {
        Some(placement) => placement,
        None => chosen(guest, &guest.request, given)?,
    };
    if !is_as_it_is(&placement, guest)
        && let Some(new) = as_asked(guest, &Given { others: &without, ..*given })
        && is_as_it_is(&new, guest)
    {
        // `create` would make it just so now. Beside its own memory that of others without a
        // binding counts elsewhere, and another place only looks better.
        placement = new;
    }
    let mut own: BTreeSet<Bdf> = guest.hostdevs.iter().copied().collect();
    if given.items.moves_functions() {
        let kinds = Kinds::new(given.topology, current);
        let moves = |bdf: &Bdf| moves(*bdf, given.items, given.topology, &kinds);
        own.retain(|bdf| !moves(bdf));
        own.extend(placement.devices.iter().copied().filter(moves));
    }
    let has: BTreeSet<Bdf> = guest.claims.passed.iter().map(|passed| passed.bdf.value).collect();
    only_own(&mut placement, &own, &has, current, given);
    rounded(&mut placement, guest, given);
    if !current.is_pcie() && !own.is_empty() && !given.items.pcie.is_kept() {
        let machine = current.root().find("os/type").and_then(|kind| kind.attr("machine"));
        let machine = machine.unwrap_or_default().into_owned();
        placement.reasons.push(compromise(Topic::Pcie, TreeReason::NoPcie { machine }));
    }
    Ok(placement)
}

/// Whether a plan's vCPUs, emulator and memory are those that the guest has.
fn is_as_it_is(placement: &Placement, guest: &Guest<'_>) -> bool {
    let Claims { emulator_pin, cells, .. } = guest.claims;
    let emulator = emulator_pin.as_ref().map(|pin| &pin.value);
    let is_bound = |(at, planned): (u32, &GuestCell)| {
        let nodes = guest.claims.binding(Some(at)).map(|binding| &binding.nodes.value);
        let memory = cells.get(at as usize).map(|cell| cell.memory.value);
        nodes == Some(&planned.host_nodes) && memory == Some(planned.memory_kib)
    };
    placement.vcpu_pins == guest.pins
        && emulator == Some(&placement.emulator_pin)
        && cells.len() == placement.cells.len()
        && (0..).zip(&placement.cells).all(is_bound)
}

/// Refuses other functions of a kind of which the domain has one by an argument of QEMU: edits
/// change devices alone. Mediated devices count as vGPUs, beside which no guest has whole GPUs.
pub(super) fn refuse_arguments(
    current: &DomainXml,
    claims: &Claims<'_>,
    items: &Items,
    (topology, kinds): (&Topology, &Kinds<'_>),
) -> Result<(), TuneError> {
    let Some(item) = items.first_moved() else { return Ok(()) };
    let mut passed = claims.passed.iter().filter(|passed| passed.by_argument);
    let passed = passed.find(|passed| moves(passed.bdf.value, items, topology, kinds));
    let gets_gpus = items.size().gpus.as_ref().is_some_and(|gpus| gpus.number() > 0);
    let mediated = Arguments::read(current.root()).mediated;
    let mediated = mediated.first().filter(|_| gets_gpus || !items.size().vgpu.is_kept());
    let found = match (passed, mediated) {
        (Some(passed), _) => (passed.bdf.value.to_string(), passed.bdf.spot.path()),
        (None, Some(mdev)) => (format!("mediated device {}", mdev.value), mdev.spot.path()),
        (None, None) => return Ok(()),
    };
    let message = format!(
        "it has {} by an argument of QEMU ({}), which gpuvm does not change",
        found.0, found.1
    );
    Err(TuneError::item(item, message, "`virsh edit` replaces the argument by a <hostdev>"))
}

/// Whether a function comes or goes with these settings: it is of a kind that does, or in the IOMMU
/// group of one, since these come and go together. NVSwitches do so with GPUs.
fn moves(bdf: Bdf, items: &Items, topology: &Topology, kinds: &Kinds<'_>) -> bool {
    let group = topology.iommu_group(bdf).map(|group| &group.members[..]).unwrap_or_default();
    let of_kind = |bdf: &Bdf| {
        items.size().gpus.is_some() && kinds.is_of_board(*bdf)
            || !items.size().vgpu.is_kept() && kinds.is_vgpu(*bdf)
            || kinds.extra(*bdf).is_some_and(|kind| items.size().functions.of(kind).is_some())
    };
    group.iter().chain([&bdf]).any(of_kind)
}

/// How many vCPUs a cell has, and its memory.
fn vcpus_and_memory(cell: &Cell<'_>) -> (u32, MemSize) {
    let vcpus = cell.vcpus.iter().map(|set| set.value.len()).sum::<usize>();
    (u32::try_from(vcpus).unwrap_or(u32::MAX), cell.memory.value)
}

/// Makes a reason that is a compromise.
pub(super) fn compromise(choice: Topic, because: impl Into<Because>) -> Reason {
    Reason { choice, because: because.into(), compromise: true }
}

/// Plans the request of the guest's creation by gpuvm, if its vCPUs and memory are still those of
/// such a plan, the memory to within a page per cell.
fn as_asked(guest: &Guest<'_>, given: &Given<'_>) -> Option<Placement> {
    let own = guest.asked.as_ref().filter(|_| !given.items.resizes())?;
    let rule = guest.request.profile;
    // An older version did not share nodes without GPUs: its guests are right where they are.
    let before = (rule == Profile::Share).then_some(Profile::Near);
    [rule].into_iter().chain(before).find_map(|profile| {
        [(own.vcpus, own.memory_kib), (own.vcpus, guest.request.memory_kib)].into_iter().find_map(
            |(vcpus, memory_kib)| {
                as_sized(
                    guest,
                    Request { vcpus, memory_kib, profile, ..guest.request.clone() },
                    given,
                )
            },
        )
    })
}

/// Plans with sizes left to the planner, if the result has the guest's sizes.
fn as_sized(guest: &Guest<'_>, request: Request, given: &Given<'_>) -> Option<Placement> {
    let placement = chosen(guest, &request, given).ok()?;
    let so = |there: MemSize, planned: MemSize, cells: u64| {
        there >= planned && there.saturating_sub(planned).kib() < guest.unit().kib() * cells
    };
    let cells = &guest.claims.cells;
    let same = match cells.len() {
        // Without cells only the total memory is compared.
        0 => so(guest.claims.memory.value, placement.memory(), placement.cells.len() as u64),
        number => {
            let mut pairs = cells.iter().zip(&placement.cells);
            number == placement.cells.len()
                && pairs.all(|(cell, planned)| so(cell.memory.value, planned.memory_kib, 1))
        }
    };
    (same && placement.vcpus() == guest.claims.vcpus.value).then_some(placement)
}

/// Plans freely, then on the cores that the domain has, and takes these if they are as good.
fn chosen(guest: &Guest<'_>, request: &Request, given: &Given<'_>) -> Result<Placement, TuneError> {
    let Given { topology, others, .. } = *given;
    if request.pins == PinPolicy::Auto {
        let pins = plan(topology, others, request)?.pins();
        return chosen(guest, &Request { pins, ..request.clone() }, given);
    }
    if request.pins == PinPolicy::None {
        return Ok(plan(topology, others, request)?);
    }
    let stays = given.items.pins.is_kept();
    let here = cores_of(guest, topology);
    let free = if stays { None } else { Some(plan(topology, others, request)?) };
    let is_planned = |free: &Placement| free.vcpu_pins == guest.pins;
    if !free.as_ref().is_some_and(is_planned)
        && let Some(own) = in_place(guest, request, given, free.as_ref())
    {
        return Ok(own);
    }
    let Some(free) = free else {
        let kept = here.and_then(|here| plan_on(topology, others, request, &here).ok());
        let kept = kept.filter(|kept| kept.vcpu_pins == guest.pins);
        if kept.is_none() && (given.items.keeps_vcpus() || given.items.only_binds()) {
            // Its vCPUs stay where they are: only its memory is planned.
            let floats = Request { pins: PinPolicy::None, ..request.clone() };
            return Ok(plan(topology, others, &floats)?);
        }
        return kept.ok_or_else(|| match plan(topology, others, request) {
            // With other pins there is none either.
            Err(error @ PlanError::Impossible { .. }) => error.into(),
            _ => TuneError::item(
                ItemName::Pins,
                "the vCPUs' pins stay as they are, and no plan has these",
                "--pins on pins them again",
            ),
        });
    };
    if free.vcpu_pins == guest.pins {
        return Ok(free);
    }
    let Some(mut here) = here else {
        return Ok(confined(guest, request, given, &free).unwrap_or(free));
    };
    if let Some(resized) = resized(guest, request, given, &free) {
        return Ok(resized);
    }
    let mut last: Option<Placement> = None;
    for _ in 0..ROUNDS {
        let Ok(kept) = plan_on(topology, others, request, &here) else { break };
        // Its own cores may leave none for the emulator while others are free.
        let helpers = pins(&free).skip(free.vcpu_pins.len());
        let more = here.or(&whole_cores(topology, helpers.flat_map(CpuSet::iter)));
        let is_short = shares_cores(&kept, topology) && !shares_cores(&free, topology);
        // Where one more core is enough, the vCPUs stay on theirs: also of a guest that this has
        // been done to before, and whose emulator is not pinned.
        if is_short && let Some(beside) = with_one_more(guest, request, given, &here, &free) {
            return Ok(beside);
        }
        if is_short && more != here {
            here = more;
            continue;
        }
        let is_so = kept.vcpus() == free.vcpus() && kept.memory() == free.memory();
        if !is_as_good(&kept, &free, topology) || (given.items.resizes() && !is_so) {
            break;
        }
        if last.as_ref().is_some_and(|last| last.vcpu_pins == kept.vcpu_pins) {
            return Ok(with_own_helpers(kept, guest, given));
        }
        here = whole_cores(topology, pins(&kept).flat_map(CpuSet::iter));
        last = Some(kept);
    }
    Ok(free)
}

/// A plan of a guest that gpuvm did not make on the part of the host that its owner has confined its
/// vCPUs or its memory to, if it has no pins of its own and that is as good as a free plan.
fn confined(
    guest: &Guest<'_>,
    request: &Request,
    given: &Given<'_>,
    free: &Placement,
) -> Option<Placement> {
    if guest.asked.is_some() {
        return None;
    }
    let Given { topology, others, .. } = *given;
    let bound = guest.claims.bindings.iter().flat_map(|binding| binding.nodes.value.iter());
    let nodes: NodeSet = bound.collect();
    let pcpus = |node: NodeId| topology.node(node).map(|node| &node.pcpus);
    let of_memory: CpuSet = nodes.iter().filter_map(pcpus).flat_map(CpuSet::iter).collect();
    let here: CpuSet = match guest.pcpus() {
        Some(pcpus) if of_memory.is_empty() => pcpus,
        Some(pcpus) => of_memory.and(&pcpus),
        None => of_memory,
    };
    let cores = whole_cores(topology, here.iter());
    let on: BTreeSet<_> =
        here.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
    let near = on.into_iter().filter_map(pcpus).flat_map(CpuSet::iter).collect();
    // Where these pcpus are too few, the rest of their nodes comes before others.
    [cores, near].into_iter().filter(|here| !here.is_empty()).find_map(|here| {
        let plan = plan_on(topology, others, request, &here).ok()?;
        let is_so = plan.vcpus() == free.vcpus() && plan.memory() == free.memory();
        let is_short = shares_cores(&plan, topology) && !shares_cores(free, topology);
        (is_so && !is_short && is_as_good(&plan, free, topology)).then_some(plan)
    })
}

/// The guest where it is, vCPU by vCPU, and its emulator on the cores that it has, if that is as
/// good as a free plan (`free`; `None` if it stays whatever a plan would have): each vCPU has a
/// pcpu of its own, all threads of its cores are the guest's, in the order that it sees them, on
/// one node and on no more caches than the plan needs.
fn in_place(
    guest: &Guest<'_>,
    request: &Request,
    given: &Given<'_>,
    free: Option<&Placement>,
) -> Option<Placement> {
    let Given { topology, others, .. } = *given;
    let pcpus: Vec<PcpuId> = guest.pins.iter().map(single).collect::<Option<_>>()?;
    let own: CpuSet = pcpus.iter().copied().collect();
    let is_whole = own == whole_cores(topology, own.iter()) && own.len() == pcpus.len();
    let node = topology.core_of(*pcpus.first()?)?.node;
    let on_node = |pcpu: PcpuId| topology.core_of(pcpu).is_some_and(|core| core.node == node);
    if !is_whole || !pcpus.iter().all(|pcpu| on_node(*pcpu)) || !in_order(&pcpus, topology) {
        return None;
    }
    let emulator = guest.claims.emulator_pin.as_ref().map(|pin| &pin.value);
    let is_free = |pin: &&CpuSet| !pin.intersects(&own) && !is_held(pin, given);
    let emulator = emulator.filter(|pin| !pin.is_empty()).filter(is_free);
    if let Some(free) = free {
        let of_vcpus = || free.vcpu_pins.iter().flat_map(CpuSet::iter);
        let caches = |pcpus: &mut dyn Iterator<Item = PcpuId>| {
            let all: BTreeSet<_> = pcpus.filter_map(|pcpu| topology.l3_place(pcpu)).collect();
            all.len()
        };
        let is_near = of_vcpus().all(on_node) && free.vcpus() == guest.vcpus;
        if !is_near || caches(&mut own.iter()) > caches(&mut of_vcpus()) {
            return None;
        }
    }
    // The planner is given these cores and one more, of which it has the emulator on the last: the
    // guest chooses the role of each.
    let named = emulator.and_then(|pin| pin.iter().find(|pcpu| on_node(*pcpu)));
    let last = own.iter().last()?;
    let free_of = topology.pcpus().minus(&own);
    let (before, after): (Vec<_>, Vec<_>) = free_of.iter().partition(|pcpu| *pcpu < last);
    let mut tried = own.clone();
    for pcpu in named.into_iter().chain(after).chain(before) {
        let core = topology.core_of(pcpu).filter(|core| core.node == node);
        let Some(core) = core.filter(|core| !tried.intersects(&core.pcpus)) else { continue };
        tried.extend(core.pcpus.iter());
        let Ok(mut plan) = plan_on(topology, others, request, &own.or(&core.pcpus)) else {
            continue;
        };
        let is_good = free.is_none_or(|free| is_as_good(&plan, free, topology));
        if plan.vcpu_pins.len() != pcpus.len() || shares_cores(&plan, topology) || !is_good {
            continue;
        }
        let helper = emulator.cloned().unwrap_or_else(|| core.pcpus.clone());
        plan.vcpu_pins.clone_from(&guest.pins);
        // Threads that the plan leaves floating keep floating.
        let pins = plan.iothread_pins.iter_mut().chain([&mut plan.emulator_pin]);
        pins.filter(|pin| !pin.is_empty()).for_each(|pin| pin.clone_from(&helper));
        let chosen = |at: usize| {
            let id = u32::try_from(at).ok()? + 1;
            let pin = guest.claims.iothread_pins.iter().find(|pin| pin.of.value == id)?;
            let pcpus = &pin.cpuset.value;
            (!pcpus.is_empty() && !pcpus.intersects(&own)).then(|| pcpus.clone())
        };
        for (at, pin) in plan.iothread_pins.iter_mut().enumerate() {
            *pin = chosen(at).unwrap_or_else(|| std::mem::take(pin));
        }
        if free.is_some_and(|free| !is_as_apart(&plan, free, topology)) {
            continue;
        }
        return Some(plan);
    }
    None
}

/// Plans more or fewer vCPUs of a guest that gpuvm did not make, so that those that it keeps stay on
/// their cores: others come to free cores of the same nodes. `None` if that is not as good as a
/// free plan.
fn resized(
    guest: &Guest<'_>,
    request: &Request,
    given: &Given<'_>,
    free: &Placement,
) -> Option<Placement> {
    let Given { topology, others, .. } = *given;
    let (new, old) = (free.vcpu_pins.len(), guest.pins.len());
    if guest.asked.is_some() || new == old {
        return None;
    }
    let stay = &guest.pins[..new.min(old)];
    let own = whole_cores(topology, stay.iter().flat_map(CpuSet::iter));
    let nodes: BTreeSet<_> =
        own.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
    let helpers = guest.claims.emulator_pin.iter().map(|pin| &pin.value);
    let helpers = whole_cores(topology, helpers.flat_map(CpuSet::iter));
    let last = own.iter().last()?;
    let (before, after): (Vec<_>, Vec<_>) =
        topology.pcpus().minus(&own).minus(&helpers).iter().partition(|pcpu| *pcpu < last);
    let mut here = own;
    for pcpu in after.into_iter().chain(before) {
        let Some(core) = topology.core_of(pcpu).filter(|core| nodes.contains(&core.node)) else {
            continue;
        };
        if here.intersects(&core.pcpus) || is_held(&core.pcpus, given) {
            continue;
        }
        here.extend(core.pcpus.iter());
        let Ok(plan) = plan_on(topology, others, request, &here) else { continue };
        let stays = plan.vcpu_pins.starts_with(stay) && !shares_cores(&plan, topology);
        if stays && is_as_good(&plan, free, topology) {
            return Some(with_own_helpers(plan, guest, given));
        }
    }
    None
}

/// A plan with the emulator and the I/O threads of a guest that gpuvm did not make on the cores that
/// they have, where these are on the vCPUs' nodes and no other domain's.
fn with_own_helpers(mut plan: Placement, guest: &Guest<'_>, given: &Given<'_>) -> Placement {
    let topology = given.topology;
    if guest.asked.is_some() {
        return plan;
    }
    let vcpus = whole_cores(topology, plan.vcpu_pins.iter().flat_map(CpuSet::iter));
    let node = |pcpu: PcpuId| topology.core_of(pcpu).map(|core| core.node);
    let nodes: BTreeSet<_> = vcpus.iter().filter_map(node).collect();
    let is_right = |pin: &CpuSet| {
        let is_near = |pcpu| node(pcpu).is_some_and(|node| nodes.contains(&node));
        !pin.is_empty()
            && !pin.intersects(&vcpus)
            && pin.iter().all(is_near)
            && !is_held(pin, given)
    };
    let own = guest.claims.emulator_pin.as_ref().map(|pin| &pin.value);
    if let Some(own) = own.filter(|own| is_right(own)) {
        plan.emulator_pin = own.clone();
    }
    for (at, pin) in plan.iothread_pins.iter_mut().enumerate() {
        let has = |pin: &&Pin<'_>| pin.of.value as usize == at + 1;
        let own = guest.claims.iothread_pins.iter().find(has).map(|pin| &pin.cpuset.value);
        if let Some(own) = own.filter(|own| is_right(own)) {
            pin.clone_from(own);
        }
    }
    plan
}

/// Whether vCPUs of another domain are on a core of this pin.
pub(super) fn is_held(pin: &CpuSet, given: &Given<'_>) -> bool {
    let cores = whole_cores(given.topology, pin.iter());
    given.others.domains.iter().flat_map(|held| &held.vcpu_pins).any(|held| held.intersects(&cores))
}

/// The only pcpu of a set.
fn single(pin: &CpuSet) -> Option<PcpuId> {
    let mut all = pin.iter();
    all.next().filter(|_| all.next().is_none())
}

/// Whether the vCPUs of each core follow each other, as a guest sees the threads of its cores.
fn in_order(pcpus: &[PcpuId], topology: &Topology) -> bool {
    let mut rest = pcpus;
    while let Some(core) = rest.first().and_then(|first| topology.core_of(*first)) {
        let threads = core.pcpus.len();
        if rest.len() < threads || !rest[..threads].iter().all(|pcpu| core.pcpus.contains(*pcpu)) {
            return false;
        }
        rest = &rest[threads..];
    }
    rest.is_empty()
}

/// Plans a domain on its vCPUs' cores and one more on their nodes, which its emulator gets. `None`
/// if no core does that without moving a vCPU to another core.
fn with_one_more(
    guest: &Guest<'_>,
    request: &Request,
    given: &Given<'_>,
    here: &CpuSet,
    free: &Placement,
) -> Option<Placement> {
    let Given { topology, others, .. } = *given;
    let cores = |pins: &[CpuSet]| whole_cores(topology, pins.iter().flat_map(CpuSet::iter));
    let own = cores(&guest.pins);
    let nodes: BTreeSet<_> =
        here.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
    let mut tried = here.clone();
    // After its cores first: there the planner puts the emulator.
    let last = here.iter().last()?;
    let (before, after): (Vec<_>, Vec<_>) =
        topology.pcpus().minus(here).iter().partition(|pcpu| *pcpu < last);
    for pcpu in after.into_iter().chain(before) {
        let Some(core) = topology.core_of(pcpu).filter(|core| nodes.contains(&core.node)) else {
            continue;
        };
        if tried.intersects(&core.pcpus) {
            continue;
        }
        tried.extend(core.pcpus.iter());
        let Ok(plan) = plan_on(topology, others, request, &here.or(&core.pcpus)) else { continue };
        let stays = cores(&plan.vcpu_pins) == own && !shares_cores(&plan, topology);
        if stays && is_as_good(&plan, free, topology) {
            return Some(plan);
        }
    }
    None
}

fn pins(placement: &Placement) -> impl Iterator<Item = &CpuSet> {
    let others = placement.iothread_pins.iter().chain([&placement.emulator_pin]);
    placement.vcpu_pins.iter().chain(others)
}

/// Whether the emulator runs on a core of a vCPU.
fn shares_cores(placement: &Placement, topology: &Topology) -> bool {
    let vcpus = whole_cores(topology, placement.vcpu_pins.iter().flat_map(CpuSet::iter));
    placement.emulator_pin.intersects(&vcpus)
}

/// All pcpus of the cores of these.
fn whole_cores(topology: &Topology, pcpus: impl Iterator<Item = PcpuId>) -> CpuSet {
    let cores = pcpus.filter_map(|pcpu| topology.core_of(pcpu));
    cores.flat_map(|core| core.pcpus.iter()).collect()
}

/// Returns the cores that a domain uses: one per vCPU, and those of its helper threads if they are
/// pinned to one per node. `None` if its vCPUs are not pinned to cores.
fn cores_of(guest: &Guest<'_>, topology: &Topology) -> Option<CpuSet> {
    let mut pcpus = CpuSet::new();
    for pin in &guest.pins {
        let cores: BTreeSet<_> = pin.iter().map(|pcpu| topology.core_place(pcpu)).collect();
        if cores.len() != 1 || cores.contains(&None) {
            return None;
        }
        pcpus.extend(pin.iter());
    }
    let emulator = guest.claims.emulator_pin.iter().map(|pin| &pin.value);
    let iothreads = guest.claims.iothread_pins.iter().map(|pin| &pin.cpuset.value);
    for pin in emulator.chain(iothreads) {
        let cores: BTreeSet<_> = pin.iter().filter_map(|p| topology.core_place(p)).collect();
        let nodes: BTreeSet<_> =
            pin.iter().filter_map(|p| Some(topology.core_of(p)?.node)).collect();
        if cores.len() == nodes.len() {
            pcpus.extend(pin.iter());
        }
    }
    Some(whole_cores(topology, pcpus.iter()))
}

fn plan_on(
    topology: &Topology,
    others: &Occupancy,
    request: &Request,
    here: &CpuSet,
) -> Result<Placement, PlanError> {
    let closed = topology.pcpus().minus(here);
    let occupancy = Occupancy { closed, ..others.clone() };
    plan(topology, &occupancy, request)
}

/// Whether a plan is no worse than another: no more cells and no more compromises, and nothing of
/// stopped domains where the other has none.
fn is_as_good(kept: &Placement, free: &Placement, topology: &Topology) -> bool {
    let takes = |placement: &Placement| {
        placement.reasons.iter().any(|reason| reason.because.is_of_stopped())
    };
    if takes(kept) && !takes(free) {
        return false;
    }
    let compromises =
        |placement: &Placement| placement.reasons.iter().filter(|reason| reason.compromise).count();
    kept.cells.len() <= free.cells.len()
        && compromises(kept) <= compromises(free)
        && is_as_apart(kept, free, topology)
}

/// Whether no more vCPUs are on pcpus of the host, nor more of the other threads on those set aside
/// for guests, than by a free plan.
fn is_as_apart(kept: &Placement, free: &Placement, topology: &Topology) -> bool {
    let [kept, free] = [kept, free].map(|placement| mixed(placement, topology));
    kept.iter().zip(free).all(|(kept, free)| *kept <= free)
}

/// How many vCPUs are on pcpus of the host, and other threads on pcpus set aside for guests.
fn mixed(placement: &Placement, topology: &Topology) -> [usize; 2] {
    let aside = topology.for_guests();
    if aside.is_empty() {
        return [0; 2];
    }
    let [own, helpers] = [&placement.vcpu_pins[..], std::slice::from_ref(&placement.emulator_pin)];
    let off = own.iter().filter(|pin| !pin.is_subset(aside)).count();
    let on = helpers.iter().chain(&placement.iothread_pins).filter(|pin| pin.intersects(aside));
    [off, on.count()]
}

/// Restricts a plan to the domain's own functions, and adds those unknown to the planner.
fn only_own(
    placement: &mut Placement,
    own: &BTreeSet<Bdf>,
    has: &BTreeSet<Bdf>,
    current: &DomainXml,
    given: &Given<'_>,
) {
    let topology = given.topology;
    let more = placement.devices.iter().copied().filter(|bdf| !own.contains(bdf));
    let more: Vec<Bdf> = more.collect();
    placement.leave_out(&more, topology, given.others);
    let more: Vec<Bdf> = more.into_iter().filter(|bdf| !has.contains(bdf)).collect();
    let added: Vec<Bdf> =
        own.iter().copied().filter(|bdf| !placement.devices.contains(bdf)).collect();
    placement.devices.extend(&added);
    let cells = placement.cells.len();
    let groups = &mut placement.guest_pcie.groups;
    for bdf in added {
        let node = topology.device(bdf).and_then(|device| device.node);
        let on = |node: NodeId| placement.cells.iter().position(|c| c.host_nodes.contains(node));
        let cell = if cells == 1 { Some(0) } else { node.and_then(on) };
        let cell = cell.and_then(|cell| u32::try_from(cell).ok());
        let bridge = topology.host_bridge(bdf);
        let is_near = |group: &PcieGroup| {
            let first = group.devices.first();
            first.is_some_and(|first| topology.host_bridge(*first) == bridge)
        };
        let of_cell = |group: &PcieGroup| group.cell == cell || cells == 1;
        let near = groups.iter().position(|group| of_cell(group) && is_near(group));
        match near.and_then(|at| groups.get_mut(at)) {
            Some(group) => group.devices.push(bdf),
            None => groups.push(PcieGroup { cell, devices: vec![bdf] }),
        }
    }
    if !more.is_empty() {
        let names: Vec<String> = more.iter().map(ToString::to_string).collect();
        let all = topology.among(&more, DeviceKind::NvSwitch, false).len() == more.len();
        let number = gpus_of(current, topology).len();
        let adds = if all {
            format!(": `gpuvm set {} --gpus {number}` adds NVSwitches", word(&current.name()))
        } else {
            String::new()
        };
        let names = names.join(", ");
        let why = format!("a new guest would get {names} too; tuning adds no functions{adds}");
        placement.reasons.push(compromise(Topic::Devices, why));
    }
}

/// Sets the cells' memory to the planner's, in whole pages, or keeps it.
fn rounded(placement: &mut Placement, guest: &Guest<'_>, given: &Given<'_>) {
    match given.items.memory_rounding {
        Item::On | Item::To(_) => divided_before(placement, guest, given),
        Item::Keep | Item::Off => {
            let (was, now) = (guest.memory(), placement.memory());
            if let Some(last) = placement.cells.last_mut() {
                last.memory_kib = (last.memory_kib + was).saturating_sub(now);
            }
            placement.reasons.retain(|reason| !reason.because.is_rounded());
        }
    }
}

/// Whether a domain's cells have the same vCPUs as a plan's, so that only their memory can differ.
pub(super) fn is_same_cells(claims: &Claims<'_>, placement: &Placement) -> bool {
    let same = |(cell, planned): (&Cell<'_>, &GuestCell)| {
        let vcpus = cell.vcpus.iter().flat_map(|set| set.value.iter()).map(|vcpu| vcpu.0);
        vcpus.eq(planned.vcpus.clone())
    };
    let there = &claims.cells;
    !there.is_empty()
        && there.len() == placement.cells.len()
        && there.iter().zip(&placement.cells).all(same)
}

/// Keeps the cells' memory if it is in whole pages and as close to their shares as the plan's:
/// memory once rounded cell by cell is not divided again.
fn divided_before(placement: &mut Placement, guest: &Guest<'_>, given: &Given<'_>) {
    let (there, unit) = (&guest.claims.cells, guest.unit());
    let most = unit.kib() * there.len() as u64;
    let is_so = |(cell, planned): (&Cell<'_>, &GuestCell)| {
        let size = cell.memory.value;
        let vcpus = cell.vcpus.iter().flat_map(|set| set.value.iter()).map(|vcpu| vcpu.0);
        size == size.round_down(unit)
            && size.kib().abs_diff(planned.memory_kib.kib()) <= most
            && vcpus.eq(planned.vcpus.clone())
    };
    let is_whole = guest.memory() == placement.memory() && !given.items.resizes();
    if !is_whole
        || there.len() != placement.cells.len()
        || !there.iter().zip(&placement.cells).all(is_so)
    {
        return;
    }
    for (cell, planned) in there.iter().zip(&mut placement.cells) {
        let (was, now) = (planned.memory_kib, cell.memory.value);
        planned.memory_kib = now;
        let pages = &mut placement.node_pages;
        let at = pages.iter().position(|pages| planned.host_nodes.contains(pages.node));
        if let Some(pages) = pages.get_mut(at.unwrap_or(0)) {
            let page = guest.request.huge_pages.asked().unwrap_or(PageSize::TwoMib).size().kib();
            pages.needed = (pages.needed + now.kib() / page).saturating_sub(was.kib() / page);
        }
    }
}
