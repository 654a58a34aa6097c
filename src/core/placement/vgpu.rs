//! The place of a guest with vGPUs: the cards first, then cores and memory on their node, by the
//! part of a card that it has.

mod refused;

use super::budget::reserve;
use super::explain::list;
use super::reason::{Because, Reason, Topic, VgpuReason};
use super::result::Placement;
use super::shares::{ExistingVgpu, SharedCard, VgpuOffer, VgpuPlace, is_in_mode, shared_cards};
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, GuestVgpu, Occupancy};
use crate::request::{GpuWish, PinPolicy, Request, VgpuWish};
use crate::topology::{
    DeviceKind, FabricModel, Partition, PciDevice, Sriov, Topology, VgpuInterface,
};
pub(super) use refused::Cards;
pub(crate) use refused::mig_words;
use refused::{mig_mode, short, without};
use std::cmp::Reverse;

/// Cards of one node with the vGPUs that a guest gets.
#[derive(Default)]
struct Choice {
    node: Option<NodeId>,
    vgpus: Vec<GuestVgpu>,
    /// Parts of a card that they are, in thousandths.
    part: u64,
    /// How many more of the type the chosen cards could have.
    left: usize,
    /// Whether none of the cards had a vGPU before.
    opens_card: bool,
    /// Whether a guest has a function of such a card whose type is not known.
    has_untyped: bool,
    /// Whether the guest has them already, and keeps them.
    is_kept: bool,
    /// Whether MIG backs them and the number of its instances is not known.
    is_unsure: bool,
    /// Whether the driver does not list the type before the guest's own vGPUs are cleared.
    after_clearing: bool,
}

/// Everything on which the place of a guest with one vGPU depends beside the nodes of its card: its
/// node, whether it has a function, the part of a card that it is, and the ids of the card.
type Demand = (Option<NodeId>, bool, u64, (u16, u16));

impl Choice {
    /// The virtual functions among its vGPUs.
    fn functions(&self) -> impl Iterator<Item = Bdf> {
        self.vgpus.iter().filter(|vgpu| !vgpu.is_mdev()).map(|vgpu| vgpu.function)
    }

    /// `None` if the functions themselves decide: by their groups, their partition, or each other.
    fn demand(&self, topology: &Topology) -> Option<Demand> {
        let [vgpu] = &self.vgpus[..] else { return None };
        let is_alone =
            |bdf| topology.iommu_group(bdf).is_some_and(|group| group.members.len() == 1);
        if topology.fabric().model == FabricModel::SharedNvswitch || !self.functions().all(is_alone)
        {
            return None;
        }
        let card = topology.device(vgpu.card)?;
        Some((self.node, !vgpu.is_mdev(), self.part, (card.vendor, card.device)))
    }
}

/// Finds the place of a guest with vGPUs; `whole` finds that of one without.
pub(super) fn plan(
    topology: &Topology,
    held: &Occupancy,
    (request, wish): (&Request, &VgpuWish),
    whole: impl Fn(&Occupancy, &Request) -> Result<Placement, PlanError>,
) -> Result<Placement, PlanError> {
    refuse(request)?;
    let mut search = Search { topology, request, whole, beside: held.clone() };
    if let Some(choice) = kept(topology, held) {
        return search.place(&choice);
    }
    let cards = &Cards { topology, held, all: shared_cards(topology, held) };
    let mut refused: Vec<(Vec<NodeId>, Option<Demand>, PlanError)> = Vec::new();
    for choice in choices(cards, wish)? {
        // It would be refused as one like it was.
        let (nodes, demand) = (nodes(topology, &choice), choice.demand(topology));
        let is_like = |of: &Option<Demand>| of.is_some() && *of == demand;
        if refused.iter().any(|(at, of, _)| *at == nodes && is_like(of)) {
            continue;
        }
        match search.place(&choice) {
            Ok(placement) => return Ok(placement),
            Err(error) => refused.push((nodes, demand, error)),
        }
    }
    Err(refused.into_iter().next().map_or_else(|| short(cards, wish), |(.., error)| error))
}

/// The vGPUs that a guest has and keeps; none: it gets new ones.
fn kept(topology: &Topology, held: &Occupancy) -> Option<Choice> {
    let own = Some(&held.own_vgpus).filter(|own| own.stay)?;
    let node = topology.device(own.vgpus.first()?.card).and_then(|card| card.node);
    let vgpus = own.vgpus.clone();
    Some(Choice { node, vgpus, is_kept: true, ..Choice::default() })
}

/// Finds the place of a guest without vGPUs: several GPUs of it are ones with MIG off, unless the
/// request accepts that there is no NVLink between them; `whole` finds a place by all else.
pub(super) fn beside_mig(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    whole: impl Fn(&Occupancy, &Request) -> Result<Placement, PlanError>,
) -> Result<Placement, PlanError> {
    let mut placement = whole(held, request)?;
    let is_on = |gpu: &&PciDevice| gpu.mig.is_some_and(|mig| mig.enabled);
    let own = topology.among(&placement.devices, DeviceKind::Gpu, false);
    let number = own.len();
    let gpus: Vec<Bdf> = own.into_iter().filter(is_on).map(|gpu| gpu.bdf).collect();
    if number < 2 || gpus.is_empty() {
        return Ok(placement);
    }
    if request.allow.mig {
        let because = Because::Vgpu(VgpuReason::Mig { gpus });
        placement.reasons.push(Reason { choice: Topic::Gpus, because, compromise: true });
        return Ok(placement);
    }
    let mut others = held.clone();
    let on = topology.gpus().filter(is_on);
    others.excluded.extend(on.map(|gpu| Exclusion::new(gpu.bdf, "MIG is on")));
    whole(&others, request).map_err(|_| no_nvlink(&gpus, number))
}

/// The error of several GPUs of which some have MIG on.
fn no_nvlink(gpus: &[Bdf], number: usize) -> PlanError {
    let names: Vec<String> = gpus.iter().map(Bdf::to_string).collect();
    PlanError::Impossible {
        what: format!(
            "MIG is on in {}, which leaves no NVLink between {number} GPUs of one guest",
            names.join(", ")
        ),
        hint: format!(
            "`nvidia-smi -i {} -mig 0` turns it off while no guest has the GPU; `--allow mig` \
             accepts it",
            names.join(",")
        ),
    }
}

/// Refuses options that exclude vGPUs.
fn refuse(request: &Request) -> Result<(), PlanError> {
    let impossible = |what: &str, hint: &str| {
        Err(PlanError::Impossible { what: what.into(), hint: hint.into() })
    };
    if request.gpus.number() != 0 {
        let what = "a guest has whole GPUs or vGPUs, not both";
        return impossible(what, "leave --gpus and --gpu out, or --vgpu");
    }
    if request.p2p_clique {
        let what = "--p2p-clique is of whole GPUs: a vGPU has no peer-to-peer over PCIe";
        return impossible(what, "leave --p2p-clique out");
    }
    Ok(())
}

/// A search for a guest's place.
struct Search<'s, W> {
    topology: &'s Topology,
    request: &'s Request,
    whole: W,
    /// The occupancy, a copy that the search changes.
    beside: Occupancy,
}

impl<W: Fn(&Occupancy, &Request) -> Result<Placement, PlanError>> Search<'_, W> {
    /// Finds a guest's place with these vGPUs: on their node, elsewhere only if that is allowed.
    fn place(&mut self, choice: &Choice) -> Result<Placement, PlanError> {
        let Search { topology, request, whole, beside } = self;
        let sized = sized(topology, request, choice.part, &nodes(topology, choice));
        beside.given = choice.functions().collect();
        let on_node = choice.node.filter(|_| topology.nodes().len() > 1);
        let found = match on_node {
            None => whole(beside, &sized).map(|placement| (placement, false)),
            Some(node) => {
                let own = topology.node(node).map(|node| node.pcpus.clone()).unwrap_or_default();
                let near = beside.closed.or(&topology.pcpus().minus(&own));
                let closed = std::mem::replace(&mut beside.closed, near);
                let near = whole(beside, &sized);
                beside.closed = closed;
                match near {
                    Err(_) if request.allow.remote => {
                        whole(beside, &sized).map(|placement| (placement, true))
                    }
                    near => near.map(|placement| (placement, false)),
                }
            }
        };
        let (placement, is_remote) = found?;
        let remote = on_node.filter(|_| is_remote);
        Ok(explained(placement, request, choice, remote))
    }
}

/// Adds the vGPUs of a guest and the reasons for them. `remote`: the node of its cards, if its
/// cores and memory are elsewhere.
fn explained(
    mut placement: Placement,
    request: &Request,
    choice: &Choice,
    remote: Option<NodeId>,
) -> Placement {
    let mut reasons = Vec::new();
    let mut because = |because, compromise| {
        let because = Because::Vgpu(because);
        reasons.push(Reason { choice: Topic::Vgpus, because, compromise });
    };
    if !choice.is_kept {
        let Choice { vgpus, left, opens_card, .. } = choice;
        let (vgpus, left, opens_card) = (vgpus.clone(), *left, *opens_card);
        because(VgpuReason::Chosen { vgpus, left, opens_card }, false);
    }
    if choice.is_unsure {
        let mut gpus: Vec<Bdf> = choice.vgpus.iter().map(|vgpu| vgpu.card).collect();
        gpus.dedup();
        because(VgpuReason::Instances { gpus }, true);
    }
    if remote.is_some() {
        because(VgpuReason::Remote { node: remote }, true);
    }
    if !choice.is_kept && (request.vcpus.is_none() || request.memory_kib.is_none()) {
        because(VgpuReason::Share { thousandths: choice.part }, false);
    }
    placement.reasons.splice(0..0, reasons);
    placement.vgpus.clone_from(&choice.vgpus);
    placement
}

/// The request for virtual functions of GPUs with cores and memory by the part of their cards that
/// they are, in thousandths; `None` if it names none, or both sizes.
pub(super) fn of_functions(topology: &Topology, request: &Request) -> Option<(Request, u64)> {
    let GpuWish::Exact(bdfs) = &request.gpus else { return None };
    let part = |bdf: &Bdf| {
        let gpu = topology.device(*bdf)?;
        let pf = match gpu.sriov {
            Some(Sriov::Vf { pf }) if topology.gpus().all(|card| card.bdf != gpu.bdf) => pf,
            _ => return None,
        };
        match topology.device(pf)?.sriov {
            Some(Sriov::Pf { enabled, .. }) => Some(1000 / u64::from(enabled.max(1))),
            _ => None,
        }
    };
    let has_both = request.vcpus.is_some() && request.memory_kib.is_some();
    if has_both || bdfs.iter().all(|bdf| part(bdf).is_none()) {
        return None;
    }
    let all = bdfs.iter().map(|bdf| part(bdf).unwrap_or(1000)).sum();
    let of_gpu = |bdf: &Bdf| topology.device(*bdf)?.node;
    let nodes = these_or_first(topology, bdfs.iter().filter_map(of_gpu).collect());
    Some((sized(topology, request, all, &nodes), all))
}

/// The request with cores and memory by the part of a card, in thousandths, of these nodes.
fn sized(topology: &Topology, request: &Request, part: u64, nodes: &[NodeId]) -> Request {
    let is_there = |gpu: &&PciDevice| gpu.node.is_none_or(|node| nodes.contains(&node));
    let cards = topology.gpus().filter(is_there).count().max(1);
    let cards = u64::try_from(cards).unwrap_or(1);
    let vcpus = request.vcpus.or_else(|| {
        let cores: Vec<_> = nodes.iter().flat_map(|node| topology.cores_of(*node)).collect();
        let kept = (request.reserve.cores as usize * nodes.len()).min(cores.len());
        let threads = cores.iter().map(|core| core.pcpus.len()).min().unwrap_or(1);
        let own = (cores.len() - kept) as u64 * part / (1000 * cards);
        // One of several is the emulator's.
        let own = if own > 1 { own - 1 } else { 1 };
        let floats = request.pins == PinPolicy::None && request.threads.is_none();
        let threads = if floats { 1 } else { threads.max(1) };
        u32::try_from(own).ok()?.checked_mul(u32::try_from(threads).ok()?)
    });
    let memory_kib = request.memory_kib.or_else(|| {
        let mut all = MemSize::from_kib(0);
        for node in nodes {
            let node = topology.node(super::memory_node(topology, *node)?)?;
            let kept = request.reserve.memory_kib.unwrap_or_else(|| reserve(node));
            all = all + node.memory_kib.saturating_sub(kept).share(part, 1000 * cards);
        }
        let unit = MemSize::from_gib(1);
        Some(if all > unit {
            all.round_down(unit)
        } else {
            all.round_down(MemSize::from_kib(2048))
        })
    });
    Request { vgpu: None, vcpus, memory_kib, ..request.clone() }
}

/// The nodes of the chosen cards; where they have none, the first.
fn nodes(topology: &Topology, choice: &Choice) -> Vec<NodeId> {
    let of_card = |vgpu: &GuestVgpu| topology.device(vgpu.card)?.node;
    let nodes: Vec<NodeId> = match choice.node {
        Some(node) => vec![node],
        None => choice.vgpus.iter().filter_map(of_card).collect(),
    };
    these_or_first(topology, nodes)
}

/// These nodes, each once; where there are none, the host's first.
fn these_or_first(topology: &Topology, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.is_empty() {
        nodes.extend(topology.nodes().first().map(|node| node.os_index));
    }
    nodes
}

/// The cards that have the type, with their offer of it; an error if the host has none.
fn offers<'c>(
    cards: &'c Cards<'_>,
    wish: &VgpuWish,
) -> Result<Vec<(&'c SharedCard, &'c VgpuOffer)>, PlanError> {
    let found = cards.named(wish)?.into_iter();
    let found = found.flat_map(|card| card.offers.iter().map(move |offer| (card, offer)));
    let found: Vec<_> = found.filter(|(_, offer)| offer.is_named(&wish.type_name)).collect();
    if found.is_empty() {
        return Err(without(cards, wish));
    }
    Ok(found)
}

/// The ways to give a guest its vGPUs, the best first: on as few cards as possible, on a card that
/// has vGPUs already, where the fewest are left; a card with a function of an unknown type may turn
/// out not to permit theirs, and one of which the driver lists the type only later not to have it:
/// they come after others like them.
fn choices(cards: &Cards<'_>, wish: &VgpuWish) -> Result<Vec<Choice>, PlanError> {
    let topology = cards.topology;
    let all = offers(cards, wish)?;
    let offers = in_mode(topology, &all);
    if let (true, Some((card, offer))) = (offers.is_empty(), all.first()) {
        return Err(mig_mode(card.bdf, offer));
    }
    let modes = offers.iter().map(|(card, _)| topology.no_vgpu_mode(card.bdf));
    if let Some(Some(mode)) = modes.min_by_key(Option::is_some) {
        return Err(PlanError::Impossible { what: mode.to_string(), hint: mode.hint() });
    }
    if let Some(found) = of_partitions(topology, &offers, wish)? {
        return Ok(found);
    }
    let mut nodes: Vec<Option<NodeId>> = offers.iter().map(|(card, _)| card.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let count = wish.count as usize;
    let mut found: Vec<Choice> = offers.iter().filter_map(|one| chosen(&[*one], count)).collect();
    for node in nodes {
        let on_node = offers.iter().filter(|(card, _)| card.node == node);
        let mut on_node: Vec<(&SharedCard, &VgpuOffer)> = on_node.copied().collect();
        on_node.sort_by_key(|(card, offer)| {
            (has_untyped(card), offer.after_clearing, Reverse(offer.places.len()), card.bdf)
        });
        if found.iter().all(|choice| choice.node != node) {
            found.extend(chosen(&on_node, count));
        }
    }
    found.sort_by_key(|choice| {
        let first = choice.vgpus.first().map(|vgpu| vgpu.function);
        (choice.opens_card, choice.has_untyped, choice.after_clearing, choice.left, first)
    });
    Ok(found)
}

/// Those whose card's MIG mode permits the type.
fn in_mode<'c>(
    topology: &Topology,
    offers: &[(&'c SharedCard, &'c VgpuOffer)],
) -> Vec<(&'c SharedCard, &'c VgpuOffer)> {
    let is_fit = |(card, offer): &&(&SharedCard, &VgpuOffer)| {
        topology.device(card.bdf).is_none_or(|device| is_in_mode(device, &offer.name))
    };
    offers.iter().filter(is_fit).copied().collect()
}

/// Whether a guest has a function of a card whose type is not known.
fn has_untyped(card: &SharedCard) -> bool {
    card.existing.iter().any(ExistingVgpu::is_untyped)
}

/// The ways to give a guest several whole cards of a board whose NVSwitches Fabric Manager controls:
/// those of one partition, without which there is no CUDA. `None` if the cards are others.
fn of_partitions(
    topology: &Topology,
    offers: &[(&SharedCard, &VgpuOffer)],
    wish: &VgpuWish,
) -> Result<Option<Vec<Choice>>, PlanError> {
    if !is_by_partition(topology, offers, wish) {
        return Ok(None);
    }
    let count = wish.count as usize;
    let partitions = topology.partitions();
    if partitions.iter().all(|partition| partition.gpus.len() != count) {
        return Err(no_set(partitions, wish));
    }
    let of = |partition: &Partition| {
        let cards = offers.iter().filter(|(card, _)| partition.gpus.contains(&card.bdf));
        let cards: Vec<_> = cards.filter(|(_, offer)| !offer.places.is_empty()).copied().collect();
        let mut choice = chosen(&cards, count).filter(|_| cards.len() == count)?;
        if cards.iter().any(|(card, _)| card.node != choice.node) {
            choice.node = None;
        }
        Some(choice)
    };
    let sets = partitions.iter().filter(|partition| partition.gpus.len() == count);
    let mut found: Vec<Choice> = sets.filter_map(of).collect();
    // On one node first.
    found.sort_by_key(|choice| {
        (choice.node.is_none(), choice.vgpus.first().map(|one| one.function))
    });
    Ok(Some(found))
}

/// Whether a guest gets several whole cards of a board whose NVSwitches Fabric Manager controls.
fn is_by_partition(
    topology: &Topology,
    offers: &[(&SharedCard, &VgpuOffer)],
    wish: &VgpuWish,
) -> bool {
    let ruled: Vec<Bdf> = topology.ruled().collect();
    let fits_once = |(card, offer): (&SharedCard, &VgpuOffer)| match card.interface {
        VgpuInterface::Mdev => offer.max_instances == Some(1),
        _ => {
            let fit = |device| topology.vgpus_that_fit(device, &offer.name);
            topology.device(card.bdf).and_then(fit) == Some(1)
        }
    };
    let is_whole = |one: &(&SharedCard, &VgpuOffer)| {
        !one.1.mig_backed && ruled.contains(&one.0.bdf) && fits_once(*one)
    };
    let is_shared = topology.fabric().model == FabricModel::SharedNvswitch;
    is_shared && wish.count >= 2 && wish.gpu.is_none() && offers.iter().all(is_whole)
}

/// The error of a number of whole cards that no partition has.
fn no_set(partitions: &[Partition], wish: &VgpuWish) -> PlanError {
    let mut sizes: Vec<usize> = partitions.iter().map(|one| one.gpus.len()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let less = sizes.iter().rev().find(|size| **size < wish.count as usize).copied().unwrap_or(1);
    let nearest = VgpuWish { count: u32::try_from(less).unwrap_or(1), ..wish.clone() };
    PlanError::Impossible {
        what: format!(
            "{} of a whole GPU each need an NVLink partition of exactly these GPUs: partitions have \
             {} GPUs",
            crate::words::count(wish.count, "vGPU"),
            list(sizes.iter())
        ),
        hint: format!(
            "`gpuvm plan --vgpu {}` fits; `gpuvm host show` lists the partitions",
            crate::shell::word(&nearest.to_string())
        ),
    }
}

/// Takes this many of a type from cards, in their order; `None` if they have fewer.
fn chosen(offers: &[(&SharedCard, &VgpuOffer)], count: usize) -> Option<Choice> {
    let (first, _) = offers.first()?;
    let mut choice = Choice { node: first.node, ..Choice::default() };
    for (card, offer) in offers {
        let wanted = count - choice.vgpus.len();
        if wanted == 0 {
            break;
        }
        let taken = offer.places.iter().take(wanted);
        choice.vgpus.extend(taken.map(|place| GuestVgpu {
            card: card.bdf,
            function: match place {
                VgpuPlace::Vf(bdf) | VgpuPlace::Parent(bdf) => *bdf,
            },
            type_id: offer.id.clone(),
            name: offer.name.clone(),
            uuid: None,
        }));
        let number = wanted.min(offer.places.len());
        choice.part += part(card, offer) * number as u64;
        choice.left += offer.places.len() - number;
        choice.opens_card |= card.existing.iter().all(ExistingVgpu::is_untyped);
        choice.has_untyped |= has_untyped(card);
        choice.is_unsure |= offer.has_unknown_instances();
        choice.after_clearing |= offer.after_clearing;
    }
    (choice.vgpus.len() == count).then_some(choice)
}

/// The part of a card that a vGPU is, in thousandths: by its number on a card, or by frame buffers;
/// else by the places that the card has.
fn part(card: &SharedCard, offer: &VgpuOffer) -> u64 {
    if let Some(most) = offer.max_instances.filter(|most| *most > 0) {
        return 1000 / u64::from(most);
    }
    let largest = card.offers.iter().filter_map(|other| other.frame_buffer_kib).max();
    // Beside a vGPU the driver may list its own size alone.
    let largest = largest.filter(|largest| Some(*largest) > offer.frame_buffer_kib);
    let of_card = card.frame_buffer_kib.or(largest);
    match of_card.zip(offer.frame_buffer_kib) {
        Some((whole, own)) if whole.kib() > 0 => (own.kib() * 1000 / whole.kib()).max(1),
        _ => 1000 / u64::try_from(offer.places.len() + offer.in_use as usize).unwrap_or(1).max(1),
    }
}

/// The most vGPUs of the type that one guest can have: those of one node, since no guest gets cards
/// of several; of whole cards on a board with NVSwitches, those of one partition.
fn most(topology: &Topology, offers: &[(&SharedCard, &VgpuOffer)], wish: &VgpuWish) -> usize {
    let number = |(_, offer): &(&SharedCard, &VgpuOffer)| offer.places.len();
    if is_by_partition(topology, offers, wish) {
        let is_free = |one: &Partition| {
            let cards = offers.iter().filter(|(card, _)| one.gpus.contains(&card.bdf));
            cards.map(number).sum::<usize>() == one.gpus.len()
        };
        let free = topology.partitions().iter().filter(|one| is_free(one));
        return free.map(|one| one.gpus.len()).max().unwrap_or(0);
    }
    let on_node = |node: Option<NodeId>| {
        let cards = offers.iter().filter(|(card, _)| card.node == node);
        cards.map(number).sum::<usize>()
    };
    offers.iter().map(|(card, _)| on_node(card.node)).max().unwrap_or(0)
}
