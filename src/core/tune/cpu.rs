//! Tunes a guest's CPUs and memory.

use super::items::{Resize, Virtio};
use super::place::is_held;
use super::request_of_domain::starts_with_less;
use super::work::Work;
use super::{Item, ItemName, TuneError};
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::claims::{Cell, Claims};
use crate::domain::edit::DomainEdit;
use crate::domain::setting::serial_log_path;
use crate::domain::setting::{AddressBits, Setting};
use crate::domain::{DomainXml, Element, MOST_FILL_THREADS};
use crate::memsize::MemSize;
use crate::placement::{
    GuestCache, GuestCell, GuestTopology, MOST_VCPUS, Placement, Topic, has_own_pcpus,
    needs_remapping,
};
use crate::request::PinPolicy;
use crate::shell::{domain, word};
use crate::topology::Topology;
use crate::words::count;

pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    vcpus(work)?;
    pages(work)?;
    memory(work)?;
    vcpu_pins(work)?;
    emulator(work)?;
    topology(work)?;
    cells(work)?;
    memory_nodes(work)?;
    address_bits(work)?;
    cpu_cache(work)?;
    invtsc(work)?;
    kvm_hints(work)?;
    window(work)?;
    balloon(work)?;
    serial_log(work)
}

/// Sets the number of vCPUs, all of which are there from the start unless that is requested
/// otherwise.
fn vcpus(work: &mut Work<'_>) -> Result<(), TuneError> {
    let (items, item) = (work.given.items, ItemName::Vcpus);
    if let Some(why) = work.cells_stay().filter(|_| items.resizes()) {
        let item = match items.size() {
            Resize { vcpus: Some(_), .. } => item,
            Resize { memory: Some(_), .. } => ItemName::Memory,
            _ => items.first_moved().unwrap_or(ItemName::Memory),
        };
        let hint = format!("`virsh edit {}` changes its cells", domain(&work.xml.name()));
        return Err(TuneError::item(item, format!("{why}, so its cells stay"), hint));
    }
    let vcpus = work.vcpus();
    let is_other = vcpus != work.guest.claims.vcpus.value;
    let start = items.size().plugged.value().copied().filter(|start| *start < vcpus);
    let plugged =
        (!items.size().plugged.is_kept()).then_some(DomainEdit::SetPlugged { vcpus: start });
    if !is_other && items.size().vcpus.is_none() {
        return plugged.map_or(Ok(()), |plugged| work.make(item, &[plugged]));
    }
    let edits = [DomainEdit::SetVcpus { vcpus, pinned: false }].into_iter().chain(plugged);
    work.make(item, &edits.collect::<Vec<_>>())?;
    let many = work.placement.is_some_and(|placement| needs_remapping(placement.topology));
    if !many || !work.xml.is_x86() || work.xml.remaps_interrupts() {
        return Ok(());
    }
    if !work.xml.can_remap_interrupts() {
        let message = format!(
            "more than {MOST_VCPUS} need machine q35 and no <iommu> in the domain but Intel's"
        );
        return Err(TuneError::item(item, message, format!("--vcpus {MOST_VCPUS}")));
    }
    let is_own = work.xml.root().find("devices/iommu").is_some();
    let translates_dma = work.given.abilities.translates_dma || is_own;
    work.set(item, Setting::RemapInterrupts { translates_dma })
}

/// Tunes huge pages and preallocation of memory.
fn pages(work: &mut Work<'_>) -> Result<(), TuneError> {
    let items = work.given.items;
    let pages = work.guest.request.huge_pages.asked();
    match items.huge_pages {
        Item::Keep => {}
        Item::On | Item::Off | Item::To(_) => {
            work.set(ItemName::HugePages, Setting::Pages { pages })?;
        }
    }
    let fills = work.guest.passes() || pages.is_some();
    match items.fill {
        Item::On if fills => {
            let threads = work.vcpus().min(MOST_FILL_THREADS);
            work.set(ItemName::Fill, Setting::Fill { threads })
        }
        Item::Off => work.set(ItemName::Fill, Setting::NoFill),
        _ => Ok(()),
    }
}

/// Tunes the amount of memory if rounding or passed-through functions change it.
fn memory(work: &mut Work<'_>) -> Result<(), TuneError> {
    let Some(placement) = work.placement else { return Ok(()) };
    let item = if work.given.items.resizes() { ItemName::Memory } else { ItemName::MemoryRounding };
    if matches!(work.given.items.memory_rounding, Item::Keep | Item::Off) {
        return Ok(());
    }
    if let Some(why) = work.cells_stay() {
        work.note(Topic::MemoryRounding, format!("{why}, so its amount and its cells stay"));
        return Ok(());
    }
    let (memory, was) = (placement.memory(), work.guest.claims.memory.value);
    let divided = !work.guest.claims.cells.is_empty();
    if memory != was && divided && work.given.items.cells.is_kept() {
        let message = format!("{} KiB are divided among cells that stay", was.kib());
        return Err(TuneError::item(item, message, "add --cells on"));
    }
    let is_whole = work.guest.passes() || work.given.items.size().memory.is_some();
    if memory == was && !(is_whole && starts_with_less(&work.xml, work.guest.claims)) {
        return Ok(());
    }
    work.make(item, &[DomainEdit::SetMemory { memory }])
}

fn vcpu_pins(work: &mut Work<'_>) -> Result<(), TuneError> {
    let pins = match (&work.given.items.pins, work.placement) {
        (Item::Keep, _) => return Ok(()),
        (Item::Off, _) => Vec::new(),
        (_, Some(placement)) => placement.vcpu_pins.clone(),
        (_, None) => return Ok(()),
    };
    if pins.iter().any(|pin| !pin.is_empty()) && has_individual_vcpus(work) {
        work.note(Topic::Pins, "vCPUs that are plugged later get their pins too".to_owned());
    }
    work.set(ItemName::Pins, Setting::VcpuPins { pins })
}

/// Whether some vCPUs are not plugged at start.
fn has_individual_vcpus(work: &Work<'_>) -> bool {
    let root = work.xml.root();
    root.child("vcpu").is_some_and(|vcpu| vcpu.attr("current").is_some())
}

/// Tunes the pin of the emulator.
fn emulator(work: &mut Work<'_>) -> Result<(), TuneError> {
    let pin = match (&work.given.items.emulator, work.placement) {
        (Item::Keep, _) => return Ok(()),
        (Item::Off, _) => CpuSet::new(),
        (Item::To(pin), _) => {
            there(work.given.topology, pin, ItemName::Emulator)?;
            pin.clone()
        }
        (Item::On, Some(placement)) if keeps_emulator(work, placement) => return Ok(()),
        (Item::On, Some(placement)) => placement.emulator_pin.clone(),
        (Item::On, None) => return Ok(()),
    };
    work.set(ItemName::Emulator, Setting::EmulatorPin { pin })
}

/// Whether the emulator stays where its owner has it: the vCPUs stay, too, and it is on none of
/// their cores.
fn keeps_emulator(work: &Work<'_>, placement: &Placement) -> bool {
    let pin = work.guest.claims.emulator_pin.as_ref().map(|pin| &pin.value);
    pin.is_some_and(|pin| !pin.is_empty() && !is_held(pin, work.given))
        && placement.vcpu_pins == work.guest.pins
        && work.leaves(
            ItemName::Emulator,
            &["emulator-on-vcpu-core", "pin-absent-pcpu", "pin-offline-pcpu", "pin-outside-slice"],
        )
}

/// Whether the guest sees the topology that its owner chose: on a host of one node no other is
/// nearer to what there is.
fn keeps_topology(work: &Work<'_>) -> bool {
    const FAULTS: [&str; 5] = [
        "topology-product",
        "vcpu-pair-split",
        "core-split",
        "guest-core-split",
        "vcpu-in-two-cells",
    ];
    is_of_one_node(work.given.topology)
        && work.xml.root().find("cpu/topology").is_some()
        && work.leaves(ItemName::Topology, &FAULTS)
}

/// A topology as it is written; `None` if it cannot be read.
fn shown_topology(shown: Element<'_>) -> Option<GuestTopology> {
    let of = |name| match shown.attr(name) {
        Some(text) => text.parse::<u32>().ok(),
        None => Some(1),
    };
    let [sockets, dies, cores, threads] =
        [of("sockets")?, of("dies")?, of("cores")?, of("threads")?];
    Some(GuestTopology { sockets, dies, cores, threads })
}

/// Refuses pcpus that the host does not have.
pub(super) fn there(topology: &Topology, pin: &CpuSet, item: ItemName) -> Result<(), TuneError> {
    let absent = pin.minus(&topology.pcpus());
    if absent.is_empty() {
        return Ok(());
    }
    let message = format!("this host has no pcpu {absent}, or it is offline");
    Err(TuneError::item(item, message, "`gpuvm host show` shows the pcpus of each node"))
}

fn topology(work: &mut Work<'_>) -> Result<(), TuneError> {
    let topology = match (work.given.items.topology, work.placement) {
        (Item::Keep, _) | (Item::On, None) => return Ok(()),
        (Item::Off, _) => None,
        (Item::On, Some(_)) if keeps_topology(work) => {
            let shown = work.xml.root().find("cpu/topology").and_then(shown_topology);
            match shown.filter(|_| work.faults.contains("topoext-missing")) {
                Some(shown) => Some(shown),
                None => return Ok(()),
            }
        }
        (Item::On, Some(placement)) if !work.guest.kvm => Some(placement.topology.without_dies()),
        (Item::On, Some(placement)) if keeps_one_die(work, placement.topology) => {
            let name = word(&work.xml.name()).into_owned();
            work.note(
                Topic::Vcpus,
                format!(
                    "the guest keeps one die a socket, as it was made, and so sees other L3 caches \
                     than the host\'s: `gpuvm tune {name} --topology on --cpu-cache on` shows it \
                     these"
                ),
            );
            return Ok(());
        }
        (Item::On, Some(placement)) => Some(placement.topology),
        (Item::To(shape), _) => Some(shape),
    };
    let vcpus = work.vcpus();
    if let Some(GuestTopology { sockets, dies, cores, threads }) = topology {
        let product =
            u128::from(sockets) * u128::from(dies) * u128::from(cores) * u128::from(threads);
        if product != u128::from(vcpus) {
            let message = format!(
                "{sockets}x{dies}x{cores}x{threads} are {product} vCPUs, and the guest has {vcpus}"
            );
            return Err(TuneError::item(ItemName::Topology, message, "--topology on"));
        }
    }
    let vendor = work.given.topology.machine().cpu_vendor.as_deref();
    let caches =
        work.given.items.topology.is_on() && work.placement.is_some_and(|p| p.cache.is_some());
    let topoext = work.guest.kvm
        && topology.is_some_and(|topology| topology.threads > 1 || caches)
        && vendor.is_some_and(crate::placement::is_amd);
    work.set(ItemName::Topology, Setting::Topology { topology, topoext })
}

/// Whether the topology was not named and differs from the planned one only by its dies, unknown to
/// older versions: the CPU that a guest sees changes only on request, since licences and settings
/// in it may depend on that.
fn keeps_one_die(work: &Work<'_>, planned: GuestTopology) -> bool {
    let is_named = !work.given.items.unnamed.contains(&ItemName::Topology);
    let one_die = Setting::Topology { topology: Some(planned.without_dies()), topoext: false };
    planned.dies > 1 && !is_named && !work.xml.would_change(&DomainEdit::Set { setting: one_die })
}

/// Tunes the source of the guest's cache leaves. The planner's choice fits only its topology and
/// the host's CPU model.
fn cpu_cache(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::CpuCache;
    let is_hosts = has_hosts_cpu(&work.xml);
    let cache = match (work.given.items.cpu_cache, work.placement) {
        (Item::Keep, _) | (Item::On, None) => return Ok(()),
        (Item::Off, _) => None,
        (Item::To(GuestCache::Passthrough), _) if !(is_hosts && work.guest.kvm) => {
            let message = "only a guest on KVM with the host's CPU can have the host's caches";
            return Err(TuneError::item(item, message, "--cpu-cache emulate"));
        }
        (Item::To(cache), _) => Some(cache),
        (Item::On, Some(placement)) => {
            let setting = Setting::Topology { topology: Some(placement.topology), topoext: false };
            let is_planned = !work.xml.would_change(&DomainEdit::Set { setting });
            let fits = is_planned && is_hosts && work.guest.kvm && work.xml.is_x86();
            let Some(cache) = placement.cache.filter(|_| fits) else { return Ok(()) };
            Some(cache)
        }
    };
    work.set(item, Setting::CpuCache { cache })
}

/// Whether a domain's CPU is the host's.
fn has_hosts_cpu(xml: &DomainXml) -> bool {
    let mode = xml.root().child("cpu").and_then(|cpu| cpu.attr("mode"));
    mode.is_some_and(|mode| mode == "host-passthrough")
}

/// Tunes the invariant TSC of guests that cannot migrate anyway.
fn invtsc(work: &mut Work<'_>) -> Result<(), TuneError> {
    let passes = work.guest.passes();
    let is_off = match work.given.items.invtsc {
        Item::Off => false,
        Item::On if passes && work.guest.kvm && work.xml.is_x86() && has_hosts_cpu(&work.xml) => {
            true
        }
        _ => return Ok(()),
    };
    work.set(ItemName::Invtsc, Setting::Migratable { is_off })
}

/// Tunes KVM's hints, which are true only while vCPUs have pcpus of their own.
fn kvm_hints(work: &mut Work<'_>) -> Result<(), TuneError> {
    let items = work.given.items;
    let on = match items.kvm_hints {
        Item::On if work.guest.kvm && work.xml.is_x86() => {
            let mut pins = vec![CpuSet::new(); work.vcpus() as usize];
            for pin in &Claims::read(&work.xml).vcpu_pins {
                if let Some(place) = pins.get_mut(pin.of.value as usize) {
                    place.clone_from(&pin.cpuset.value);
                }
            }
            let is_alone = has_own_pcpus(&pins);
            // libvirt accepts them only for guests with the host's CPU.
            if is_alone && !has_hosts_cpu(&work.xml) {
                return Ok(());
            }
            is_alone
        }
        Item::Keep if matches!(items.pins, Item::Off) => false,
        Item::Off => false,
        _ => return Ok(()),
    };
    work.set(ItemName::KvmHints, Setting::KvmHints { on })
}

fn cells(work: &mut Work<'_>) -> Result<(), TuneError> {
    let cells = match (work.given.items.cells, work.placement) {
        (Item::Keep, _) | (Item::On | Item::To(_), None) => return Ok(()),
        (Item::Off, _) => Vec::new(),
        (_, Some(placement)) => placement.cells.clone(),
    };
    if keeps_no_cells(work) {
        return Ok(());
    }
    if let Some(memory) = scaled(work) {
        return work.set(ItemName::Cells, Setting::CellMemory { memory });
    }
    if let Some(why) = work.cells_stay() {
        if work.given.items.cells.is_on() {
            return Ok(());
        }
        let message = format!("{why}, so its cells stay");
        return Err(TuneError::item(ItemName::Cells, message, "--cells keep"));
    }
    let bound = cells.iter().any(|cell| !cell.host_nodes.is_empty());
    let asked = work.given.items.cells.value().is_some();
    let there = !work.guest.claims.cells.is_empty();
    let wanted = cells.len() > 1 || bound || asked || there || !work.guest.hostdevs.is_empty();
    if work.given.items.cells.is_on() && !wanted || is_so(work.guest.claims, work, &cells) {
        return Ok(());
    }
    work.set(ItemName::Cells, Setting::Cells { cells })
}

/// The memory of the cells of a guest that gpuvm did not make, and that gets another size of memory
/// alone: in their present proportion, in whole pages. `None` if they are planned.
fn scaled(work: &Work<'_>) -> Option<Vec<MemSize>> {
    let (items, cells) = (work.given.items, &work.guest.claims.cells);
    let is_so = items.keeps_vcpus() && work.leaves(ItemName::Cells, &[]) && !cells.is_empty();
    let (new, old) = (work.placement?.memory(), work.guest.claims.memory.value);
    if !is_so || old.is_zero() {
        return None;
    }
    let unit = work.guest.unit().kib();
    let share = |cell: &Cell<'_>| {
        let part = u128::from(cell.memory.value.kib()) * u128::from(new.kib());
        let part = u64::try_from(part / u128::from(old.kib())).unwrap_or(u64::MAX);
        MemSize::from_kib((part / unit).max(1) * unit)
    };
    let mut all: Vec<MemSize> = cells.iter().map(share).collect();
    let last = all.pop()?;
    let rest =
        new.saturating_sub(all.iter().copied().fold(MemSize::default(), |sum, one| sum + one));
    all.push(if rest.is_zero() { last } else { rest });
    Some(all)
}

/// Whether the guest stays without cells, as its owner has it: on a host of one node nothing is
/// nearer than anything else. Beside nodes of GPUs its memory is bound.
fn keeps_no_cells(work: &Work<'_>) -> bool {
    work.guest.claims.cells.is_empty()
        && is_of_one_node(work.given.topology)
        && work.given.topology.gpu_memory_nodes().is_empty()
        && work.given.items.cells.is_on()
        && work.leaves(ItemName::Cells, &[])
}

/// Whether a host has one node with CPUs.
pub(super) fn is_of_one_node(topology: &Topology) -> bool {
    topology.nodes().iter().filter(|node| !node.pcpus.is_empty()).count() < 2
}

/// Whether the cells are these already, whatever unit their memory is written in.
fn is_so(claims: &Claims<'_>, work: &Work<'_>, cells: &[GuestCell]) -> bool {
    let numa = work.xml.root().find("cpu/numa");
    let elements = numa.into_iter().flat_map(|numa| numa.children("cell"));
    let same = |((found, element), cell): ((&Cell<'_>, Element<'_>), &GuestCell)| {
        let vcpus =
            found.vcpus.as_ref().map(|set| set.value.iter().map(|vcpu| vcpu.0).collect::<Vec<_>>());
        let siblings =
            element.child("distances").into_iter().flat_map(|all| all.children("sibling"));
        let distances: Option<Vec<u32>> =
            siblings.map(|sibling| sibling.attr("value")?.parse().ok()).collect();
        vcpus.is_some_and(|vcpus| vcpus.into_iter().eq(cell.vcpus.clone()))
            && found.memory.value == cell.memory_kib
            && distances.as_ref() == Some(&cell.distances)
    };
    claims.cells.len() == cells.len()
        && is_counted(claims)
        && claims.cells.iter().zip(elements).zip(cells).all(same)
}

/// Tunes the host nodes that the guest's memory is bound to.
fn memory_nodes(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::MemoryNodes;
    let there = work.xml.root().find("cpu/numa").map_or(0, |numa| numa.children("cell").count());
    let there = there.saturating_sub(work.guest.claims.empty_cells.len());
    let cells: Vec<NodeSet> = match (&work.given.items.memory_nodes, work.placement) {
        (Item::Keep, _) | (Item::On, None) => return Ok(()),
        (Item::Off, _) => Vec::new(),
        (Item::To(nodes), _) => {
            let known = |node| work.given.topology.node(node).is_some();
            let of_gpus = work.given.topology.gpu_memory_nodes();
            let message = match nodes.iter().find(|node| !known(*node) || of_gpus.contains(*node)) {
                Some(node) if known(node) => format!("the memory of node {node} is a GPU's"),
                Some(node) => format!("this host has no node {node}"),
                None => return bind(work, nodes, there),
            };
            return Err(TuneError::item(item, message, "`gpuvm host show` shows the nodes"));
        }
        (Item::On, Some(placement)) => match nodes_of_pins(work, placement) {
            Some(nodes) => return bind(work, &nodes, there),
            None => placement.cells.iter().map(|cell| cell.host_nodes.clone()).collect(),
        },
    };
    let all = cells.iter().fold(NodeSet::new(), |all, nodes| all.or(nodes));
    let is_named = !work.given.items.unnamed.contains(&item);
    if (cells.len() == there && is_counted(work.guest.claims)) || all.is_empty() {
        // Bound by another mode it does not leave these nodes either.
        if !is_named && is_bound_to(work.guest.claims, &cells) {
            return Ok(());
        }
        return work.make(item, &[DomainEdit::SetNumatune { cells }]);
    }
    // The guest has other cells than the plan.
    let (is_on, stay) = (work.given.items.memory_nodes.is_on(), work.cells_stay().is_some());
    let is_one = cells.iter().all(|nodes| *nodes == all);
    if is_on && keeps_no_cells(work) {
        return Ok(());
    }
    let claims = work.guest.claims;
    let is_right = claims.is_bound() && !work.faults.contains("memory-on-gpu-node");
    let is_near = claims.bindings.iter().all(|binding| binding.nodes.value.is_subset(&all));
    if is_right && if is_one { !is_named && is_near } else { stay } {
        work.note(Topic::MemoryNodes, "its memory stays bound as it is".to_owned());
        return Ok(());
    }
    if !stay && !is_one && !work.given.items.only_binds() {
        let message = match there {
            0 => "the guest has no NUMA cell whose memory could be bound".to_owned(),
            _ => format!(
                "the guest has {}, and {} are planned",
                count(there, "NUMA cell"),
                cells.len()
            ),
        };
        return Err(TuneError::item(item, message, "add --cells on"));
    }
    bind(work, &all, there)
}

/// Returns the nodes of vCPUs whose pins stay as they are, though no plan has these; `None` where
/// they are planned, some vCPU has none, or the nodes have less memory than the guest.
fn nodes_of_pins(work: &Work<'_>, placement: &Placement) -> Option<NodeSet> {
    let topology = work.given.topology;
    if !work.given.items.only_binds() || placement.pins() != PinPolicy::None {
        return None;
    }
    let pcpus = work.guest.pcpus()?;
    let nodes: NodeSet =
        pcpus.iter().filter_map(|pcpu| Some(topology.core_of(pcpu)?.node)).collect();
    let memory = nodes.iter().filter_map(|node| topology.node(node)).map(|node| node.memory_kib);
    let has_room = memory.sum::<MemSize>() >= work.guest.claims.memory.value;
    (has_room && !nodes.is_empty()).then_some(nodes)
}

/// Whether the ids of cells with memory are 0, 1 and so on: no cell of a GPU comes before one.
fn is_counted(claims: &Claims<'_>) -> bool {
    (0..).zip(&claims.cells).all(|(id, cell)| cell.id == id)
}

/// Whether the memory of these cells, no others, is never outside these nodes.
fn is_bound_to(claims: &Claims<'_>, cells: &[NodeSet]) -> bool {
    let is_it = |(cell, nodes): (&Cell<'_>, &NodeSet)| {
        let binding = claims.binding(Some(cell.id)).filter(|binding| binding.is_hard());
        binding.is_some_and(|binding| binding.nodes.value == *nodes)
    };
    claims.cells.len() == cells.len()
        && !cells.is_empty()
        && claims.cells.iter().zip(cells).all(is_it)
}

/// Binds all memory of a guest, with or without cells, to the same nodes.
fn bind(work: &mut Work<'_>, nodes: &NodeSet, there: usize) -> Result<(), TuneError> {
    let edit = if there == 0 || !is_counted(work.guest.claims) {
        DomainEdit::SetMemoryNodes { nodes: nodes.clone() }
    } else {
        DomainEdit::SetNumatune { cells: vec![nodes.clone(); there] }
    };
    work.make(ItemName::MemoryNodes, &[edit])
}

/// Tunes physical address bits; the host's bits require the host's CPU model.
fn address_bits(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Maxphysaddr;
    let passes = !work.guest.hostdevs.is_empty();
    let limit = work.given.topology.machine().address_limit().filter(|_| passes);
    if work.given.items.unnamed.contains(&item) && has_bits(&work.xml, limit) {
        return Ok(());
    }
    let bits = match work.given.items.maxphysaddr {
        Item::On if has_chosen_cpu(&work.xml) && work.leaves(item, &BITS) => {
            return Ok(());
        }
        Item::On if passes && work.guest.kvm && work.xml.is_x86() => {
            work.set(item, Setting::HostCpu)?;
            Some(AddressBits::Passthrough { limit })
        }
        Item::Keep | Item::On => return Ok(()),
        Item::Off => None,
        Item::To(bits) => {
            let most = work.given.topology.machine().physical_address_bits;
            if most.is_some_and(|most| bits > most) || bits < 32 {
                let most = most.unwrap_or(64);
                let message = format!("{bits} bits: the host has {most}, and a guest needs 32");
                return Err(TuneError::item(item, message, "--maxphysaddr on"));
            }
            Some(AddressBits::Emulate(bits))
        }
    };
    work.set(item, Setting::AddressBits { bits })
}

/// The rules whose fault other address bits cure.
const BITS: [&str; 2] = ["maxphysaddr-missing", "maxphysaddr-over-iommu"];

/// Whether the guest's CPU is one that its owner chose, and not the host's as it is.
fn has_chosen_cpu(xml: &DomainXml) -> bool {
    let mode = xml.root().child("cpu").and_then(|cpu| cpu.attr("mode"));
    mode.is_some_and(|mode| mode == "host-model" || mode == "custom")
}

/// Whether a guest has as many address bits as its owner chose, or the host's, which QEMU passes on
/// with the host's CPU, and which the IOMMU does not limit.
fn has_bits(xml: &DomainXml, limit: Option<u8>) -> bool {
    let Some(cpu) = xml.root().child("cpu") else { return false };
    let is_hosts = || {
        let mode = cpu.attr("mode");
        mode.is_some_and(|mode| mode == "host-passthrough" || mode == "maximum")
    };
    cpu.child("maxphysaddr").is_some() || (limit.is_none() && is_hosts())
}

/// Tunes the window for 64-bit BARs.
fn window(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Window;
    let mut edits = match (work.given.items.window, work.placement) {
        (Item::Keep, _) | (Item::On, None) => return Ok(()),
        (Item::Off, _) => return work.set(item, Setting::NoPciHole),
        (Item::To(_), _) if !work.xml.is_pcie() => {
            let message = "only machine types with PCI Express have one window for all BARs";
            return Err(TuneError::item(item, message, "--window keep"));
        }
        (Item::To(size), _) => vec![DomainEdit::SetPciHole { kib: size.kib() }],
        (Item::On, Some(placement)) if work.guest.kvm && work.xml.is_pcie() => {
            crate::domain::window_edits(&work.xml, placement, work.given.topology)?
        }
        (Item::On, Some(_)) => return Ok(()),
    };
    let now = hole(&work.xml);
    // The same size in another unit is right, too.
    edits.retain(|edit| !matches!(edit, DomainEdit::SetPciHole { kib } if now == Some(MemSize::from_kib(*kib))));
    work.make(item, &edits)
}

/// The window that a document sets.
fn hole(xml: &DomainXml) -> Option<MemSize> {
    let devices = xml.root().child("devices")?;
    let hole = devices.children("controller").find_map(|found| found.child("pcihole64"))?;
    let unit = hole.attr("unit");
    crate::domain::read::memory(&hole.text(), unit.as_deref()).ok()
}

/// The file that the serial console is written to. One that is there stays, wherever it is.
fn serial_log(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::SerialLog;
    let devices = work.xml.root().child("devices");
    let serial = devices.and_then(|devices| devices.children("serial").next());
    let is_pty = serial.is_some_and(|serial| serial.attr("type").is_some_and(|k| k == "pty"));
    let logs = serial.map(|serial| serial.child("log").is_some());
    match (&work.given.items.serial_log, logs) {
        // A port that leads to a file or a socket has its reader.
        (Item::To(dir), Some(false)) if is_pty => {
            let path = Some(serial_log_path(dir, &work.xml.name()));
            work.set(item, Setting::SerialLog { path })
        }
        (Item::Off, Some(true)) => work.set(item, Setting::SerialLog { path: None }),
        _ => Ok(()),
    }
}

fn balloon(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Balloon;
    let none = DomainEdit::SetBalloon { address: None };
    match work.given.items.balloon {
        Item::On if work.guest.passes() => work.make(item, &[none]),
        Item::Off => work.make(item, &[none]),
        Item::To(Virtio) => work.set(item, Setting::Balloon),
        Item::Keep | Item::On => Ok(()),
    }
}
