//! vGPUs that the cards of a host have left, by type. Chooses none, and knows of no cores.
//!
//! What can be created now is what the driver lists, less what domains that are off have by their
//! definition. The driver lists nothing about how many fit: that is computed from the card's memory
//! and the frame buffers in the names of types. vGPUs of a guest that gets others are cleared
//! first, and count as free.

mod mdev;

use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, GuestVgpu, Held, Occupancy};
use crate::topology::{
    Mdev, Mig, MigInstances, PciDevice, Room, Topology, VfioType, Vgpu, VgpuInterface,
    frame_buffer, is_mig_backed, is_type_named,
};
use crate::words::count;
use serde::Serialize;
use std::collections::BTreeMap;

/// Why the number of a type that MIG backs is an upper bound.
pub const UNKNOWN_INSTANCES: &str = "counted by frame buffer, since the number of GPU instances of \
                                     MIG is unknown";

/// The whole of a card, of which each of its vGPUs takes a part: a multiple of all numbers up to 32,
/// so that parts add up.
const WHOLE: u64 = 288_807_105_787_200;

/// A vGPU's place on its card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VgpuPlace {
    /// A virtual function that gets the type.
    Vf(Bdf),
    /// A parent on which a mediated device is made.
    Parent(Bdf),
}

/// A card's offer of a type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuOffer {
    /// The card.
    #[serde(skip)]
    pub card: Bdf,
    /// The type: its number, or the name of its directory below `mdev_supported_types`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Frame buffer of each; `None` if its name has none.
    pub frame_buffer_kib: Option<MemSize>,
    /// Whether a GPU instance of MIG is behind it.
    pub mig_backed: bool,
    /// How many a card has at most; `None` if not known.
    pub max_instances: Option<u32>,
    /// GPU instances of MIG for it; `None` if not known, or MIG does not back it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instances: Option<u32>,
    /// The most vGPUs of it in one GPU instance; `None` if not known, or MIG does not back it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_gpu_instance: Option<u32>,
    /// The profile of these instances.
    #[serde(skip)]
    pub profile: Option<u32>,
    /// How many can be created now.
    pub creatable: u32,
    /// How many the card has.
    pub in_use: u32,
    /// Where they can be created, as many as fit.
    #[serde(skip)]
    pub places: Vec<VgpuPlace>,
    /// Whether the driver does not list it before the planned guest's own vGPUs are cleared.
    #[serde(skip)]
    pub after_clearing: bool,
}

/// A vGPU that exists, or that a domain has by its definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExistingVgpu {
    /// The virtual function, or the parent of the mediated device.
    pub function: Bdf,
    /// UUID of the mediated device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Id of its type; `None` if it has none now, as after a restart of the host.
    pub type_id: Option<String>,
    /// Name of its type; `None` if not known.
    pub name: Option<String>,
    /// Domains that have it, running or not; empty: unknown.
    pub domains: Vec<String>,
}

impl ExistingVgpu {
    /// Whether it is a function that a domain has, and whose type is neither set nor recorded: what
    /// part of the card it will take is not known.
    pub(super) fn is_untyped(&self) -> bool {
        self.type_id.is_none() && self.uuid.is_none()
    }
}

/// A card with its vGPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCard {
    /// Address.
    pub bdf: Bdf,
    /// Node.
    pub node: Option<NodeId>,
    /// By which interface.
    pub interface: VgpuInterface,
    /// Its memory; `None` if not known.
    pub frame_buffer_kib: Option<MemSize>,
    /// Its types.
    pub offers: Vec<VgpuOffer>,
    /// Its vGPUs.
    pub existing: Vec<ExistingVgpu>,
    /// Why it gets no more; `None` if nothing speaks against it.
    pub closed: Option<String>,
    /// Its virtual functions that an admin took out of use, each with the reason, to follow "is".
    pub excluded: Vec<(Bdf, String)>,
}

/// Cards of which guests have shares, or could, with what is left.
pub fn shared_cards(topology: &Topology, held: &Occupancy) -> Vec<SharedCard> {
    let mut holders: Vec<(Bdf, &str)> = held
        .domains
        .iter()
        .flat_map(|held| held.devices.iter().map(|bdf| (*bdf, held.domain.as_str())))
        .collect();
    // The domains of a function stay in their order.
    holders.sort_by_key(|(bdf, _)| *bdf);
    let holders = &holders[..];
    let cards: Vec<(&PciDevice, VgpuInterface)> = topology.shared_gpus().collect();
    let rooms = topology.rooms(&cards.iter().map(|(card, _)| *card).collect::<Vec<_>>());
    let of =
        |((card, interface), room)| Card { topology, held, holders, card, room }.shared(interface);
    cards.into_iter().zip(rooms).map(of).collect()
}

/// How many more vGPUs of a type a card has room for beside those that exist now, by its row of
/// [`shared_cards`] without domains. `None` if that is not known, or not room decides.
pub(crate) fn room_now(cards: &[SharedCard], card: Bdf, type_id: &str) -> Option<u32> {
    let card = cards.iter().find(|one| one.bdf == card)?;
    // Of a type whose name is not known the size is not known either.
    if card.closed.is_some() || card.existing.iter().any(|one| one.name.is_none()) {
        return None;
    }
    card.offers.iter().find(|offer| offer.id == type_id).map(|offer| offer.creatable)
}

/// Whether a card's MIG mode permits a type; where the mode is not known, the driver decides.
pub(crate) fn is_in_mode(card: &PciDevice, name: &str) -> bool {
    card.mig.is_none_or(|mig| mig.enabled == is_mig_backed(name))
}

/// The part of a card that one of so many takes.
fn part(max_instances: Option<u32>) -> u64 {
    max_instances.filter(|most| *most > 0).map_or(0, |most| WHOLE / u64::from(most))
}

struct Card<'t> {
    topology: &'t Topology,
    held: &'t Occupancy,
    /// Functions with the domains that have them, by address.
    holders: &'t [(Bdf, &'t str)],
    card: &'t PciDevice,
    room: Room,
}

/// Limits that the vGPUs of a card set for further ones.
#[derive(Default)]
struct Present {
    /// Whether MIG backs one.
    has_mig: bool,
    /// Whether there is one that MIG does not back.
    has_others: bool,
    /// Frame buffers of those that MIG does not back, as recorded for domains, on a card that has
    /// none now; none if the driver's list says what it permits.
    sizes: Vec<MemSize>,
}

impl Present {
    /// Whether a type does not go with them. A card has one MIG mode, which they show where it is
    /// not known (`mode`). Without a vGPU now, only those of the recorded size fit, unless an admin
    /// has turned on the mixed mode, which does not outlive a restart either.
    fn excludes(&self, name: &str, mode: Option<Mig>) -> bool {
        if is_mig_backed(name) {
            return mode.is_none() && self.has_others;
        }
        let is_other = |own: MemSize| self.sizes.iter().any(|size| *size != own);
        mode.is_none() && self.has_mig || frame_buffer(name).is_some_and(is_other)
    }
}

/// A type before what is left of it is known.
struct Type {
    id: String,
    name: String,
    frame_buffer: Option<MemSize>,
    max_instances: Option<u32>,
    /// How many of it fill the card's memory; `None` if not known.
    filling: Option<u32>,
    mig: MigInstances,
    places: Vec<VgpuPlace>,
    after_clearing: bool,
}

impl Card<'_> {
    fn shared(&self, interface: VgpuInterface) -> SharedCard {
        let (types, existing) = match interface {
            VgpuInterface::Vfio => self.vfio(),
            VgpuInterface::Mdev => self.mdev(),
            VgpuInterface::None | VgpuInterface::Unknown => (Vec::new(), self.all_recorded()),
        };
        let closed = self.closed();
        let offers = self.offers(types, &existing, closed.is_some());
        let (bdf, node) = (self.card.bdf, self.card.node);
        let (frame_buffer_kib, excluded) = (self.room.0, self.excluded());
        SharedCard { bdf, node, interface, frame_buffer_kib, offers, existing, closed, excluded }
    }

    /// Its virtual functions that are excluded themselves, each with the reason.
    fn excluded(&self) -> Vec<(Bdf, String)> {
        let pf = |one: &Exclusion| self.topology.device(one.bdf)?.pf();
        let is_its = |one: &&Exclusion| pf(one) == Some(self.card.bdf);
        let excluded = self.held.excluded.iter().filter(is_its);
        excluded.map(|one| (one.bdf, one.says())).collect()
    }

    /// Whether a function gets a vGPU: no excluded one does, unless the guest has it already.
    fn is_offered(&self, function: Bdf) -> bool {
        let is_own = self.held.own_vgpus.vgpus.iter().any(|own| own.function == function);
        is_own || self.held.excluded.iter().all(|excluded| excluded.bdf != function)
    }

    /// Why no guest gets a share of it.
    fn closed(&self) -> Option<String> {
        let bdf = self.card.bdf;
        if let Some(mode) = self.topology.no_vgpu_mode(bdf) {
            return Some(mode.to_string());
        }
        let is_whole = |held: &&Held| held.devices.contains(&bdf) && !self.has_mdev(held);
        if let Some(held) = self.held.domains.iter().find(is_whole) {
            return Some(format!("{bdf} {}, as a whole", held.holds(bdf)));
        }
        if let Some(excluded) = self.held.excluded.iter().find(|excluded| excluded.bdf == bdf) {
            return Some(format!("{bdf} is {}", excluded.says()));
        }
        let health = self.card.health.as_ref().filter(|health| health.is_over());
        health.map(|health| format!("{bdf} is unhealthy: {}", health.why()))
    }

    /// Whether a domain has a mediated device of the card, by which it counts as a holder of its
    /// parent.
    fn has_mdev(&self, held: &Held) -> bool {
        let Some(Vgpu::Mdev { devices, .. }) = &self.card.vgpu else { return false };
        let is_its =
            |uuid: &str| held.host_devices.contains(&HostDevice::Mediated(uuid.to_lowercase()));
        devices.iter().any(|mdev| is_its(&mdev.uuid))
            || held.vgpus.iter().any(|vgpu| vgpu.function == self.card.bdf)
    }

    /// Domains that fulfil a condition, each once.
    fn domains(&self, has: impl Fn(&Held) -> bool) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for held in self.held.domains.iter().filter(|held| has(held)) {
            if !names.contains(&held.domain) {
                names.push(held.domain.clone());
            }
        }
        names
    }

    /// A vGPU that is recorded for a domain.
    fn recorded(&self, is_it: impl Fn(&GuestVgpu) -> bool) -> Option<&GuestVgpu> {
        self.held.domains.iter().flat_map(|held| &held.vgpus).find(|one| is_it(one))
    }

    /// The vGPUs that are recorded for domains, of a card without virtual functions now: they are
    /// made again once it has these.
    fn all_recorded(&self) -> Vec<ExistingVgpu> {
        let of_domain = |held: &Held| -> Vec<ExistingVgpu> {
            let own = held.vgpus.iter().filter(|vgpu| vgpu.card == self.card.bdf);
            let existing = own.map(|vgpu| ExistingVgpu {
                function: vgpu.function,
                uuid: vgpu.uuid.clone(),
                type_id: Some(vgpu.type_id.clone()),
                name: Some(vgpu.name.clone()),
                domains: vec![held.domain.clone()],
            });
            existing.collect()
        };
        self.held.domains.iter().flat_map(of_domain).collect()
    }

    /// Whether a function, or a mediated device, is the planned guest's own, and no other domain's.
    fn is_own(&self, is_it: impl Fn(&GuestVgpu) -> bool, domains: &[String]) -> bool {
        domains.is_empty() && self.held.own_vgpus.vgpus.iter().any(is_it)
    }

    /// The domains that have a function.
    fn holders(&self, function: Bdf) -> Vec<String> {
        let first = self.holders.partition_point(|(bdf, _)| *bdf < function);
        let own = self.holders[first..].iter().take_while(|(bdf, _)| *bdf == function);
        let mut names: Vec<String> = own.map(|(_, name)| (*name).to_owned()).collect();
        names.dedup();
        names
    }

    fn is_own_function(&self, function: Bdf) -> bool {
        self.is_own(|own| own.function == function, &self.holders(function))
    }

    /// Types and vGPUs of virtual functions on the vendor's VFIO driver.
    fn vfio(&self) -> (Vec<Type>, Vec<ExistingVgpu>) {
        let mut existing = Vec::new();
        let mut places: BTreeMap<u32, Vec<VgpuPlace>> = BTreeMap::new();
        let listed = match &self.card.vgpu {
            Some(Vgpu::Card { types }) => types.as_slice(),
            _ => &[],
        };
        let once_cleared = self.once_cleared(listed);
        for vf in self.topology.vfs_of(self.card.bdf) {
            let Some(Vgpu::Vfio { current, creatable }) = &vf.vgpu else { continue };
            let domains = self.holders(vf.bdf);
            let is_own = *current != 0 && self.is_own(|own| own.function == vf.bdf, &domains);
            if is_own || *current == 0 && domains.is_empty() {
                if !self.is_offered(vf.bdf) {
                    continue;
                }
                let own = is_own.then(|| listed.iter().map(|of| of.id).chain([*current]));
                let cleared = once_cleared.iter().map(|of| of.id).chain(own.into_iter().flatten());
                let place = VgpuPlace::Vf(vf.bdf);
                for number in creatable.iter().copied().chain(cleared) {
                    let places = places.entry(number).or_default();
                    if places.last() != Some(&place) {
                        places.push(place);
                    }
                }
                continue;
            }
            let recorded = self.recorded(|one| one.function == vf.bdf);
            let number = vf.vgpu_type().map(|number| number.to_string());
            let name = vf.vgpu_type().and_then(|of| self.topology.vgpu_type_name(self.card, of));
            existing.push(ExistingVgpu {
                function: vf.bdf,
                uuid: None,
                type_id: number.or_else(|| Some(recorded?.type_id.clone())),
                name: name.map(str::to_owned).or_else(|| Some(recorded?.name.clone())),
                domains,
            });
        }
        let mut types = self.vfio_types(listed, &once_cleared, &existing);
        for of in &mut types {
            let number = of.id.parse::<u32>().ok();
            of.places = number.and_then(|number| places.remove(&number)).unwrap_or_default();
        }
        (types, existing)
    }

    /// Types that the driver lists only once the vGPUs of the planned guest are cleared, where the
    /// card has no others: those of its model. Types backed by MIG follow a card's instances.
    fn once_cleared(&self, listed: &[VfioType]) -> Vec<VfioType> {
        let vfs = self.topology.vfs_of(self.card.bdf);
        let typed: Vec<Bdf> = vfs.filter(|vf| vf.vgpu_type().is_some()).map(|vf| vf.bdf).collect();
        let own = self.held.own_vgpus.vgpus.iter().filter(|own| own.card == self.card.bdf);
        let are_own = !typed.is_empty() && typed.iter().all(|vf| self.is_own_function(*vf));
        if !are_own || own.map(|own| &own.name).any(|name| is_mig_backed(name)) {
            return Vec::new();
        }
        let mut types: Vec<VfioType> = Vec::new();
        for other in self.topology.alike(self.card) {
            let Some(Vgpu::Card { types: all }) = &other.vgpu else { continue };
            for of in all.iter().filter(|of| !is_mig_backed(&of.name)) {
                if listed.iter().chain(&types).all(|known| known.id != of.id) {
                    types.push(of.clone());
                }
            }
        }
        types
    }

    /// The types that the driver lists, those that it lists once vGPUs are cleared, and those of
    /// vGPUs that leave no room for another one, which it lists no longer.
    fn vfio_types(
        &self,
        listed: &[VfioType],
        once_cleared: &[VfioType],
        existing: &[ExistingVgpu],
    ) -> Vec<Type> {
        let functions = self.topology.vfs_of(self.card.bdf).count();
        let functions = u32::try_from(functions).unwrap_or(u32::MAX);
        let to_type = |id: String, name: &str, mig: Option<MigInstances>| {
            let mig = mig.unwrap_or_default();
            let filling = self.room.of_one_size(name);
            let by_instances = is_mig_backed(name) && mig.are_known();
            Type {
                id,
                name: name.to_owned(),
                frame_buffer: frame_buffer(name),
                // A function has one.
                max_instances: filling.filter(|_| !by_instances).map(|most| most.min(functions)),
                filling,
                mig,
                places: Vec::new(),
                after_clearing: false,
            }
        };
        let mut types: Vec<Type> =
            listed.iter().map(|of| to_type(of.id.to_string(), &of.name, of.mig)).collect();
        let own = self.held.own_vgpus.vgpus.iter().filter(|own| own.card == self.card.bdf);
        let own = own.map(|own| (Some(&own.type_id), Some(&own.name)));
        let there = existing.iter().map(|one| (one.type_id.as_ref(), one.name.as_ref()));
        for (id, name) in own.chain(there) {
            if let (Some(id), Some(name)) = (id, name)
                && types.iter().all(|of| of.id != *id)
            {
                let of = to_type(id.clone(), name, None);
                let max_instances = of.max_instances.filter(|_| !is_mig_backed(name));
                types.push(Type { max_instances, ..of });
            }
        }
        for of in once_cleared {
            let id = of.id.to_string();
            if types.iter().all(|known| known.id != id) {
                types.push(Type { after_clearing: true, ..to_type(id, &of.name, None) });
            }
        }
        types
    }

    /// Limits that its vGPUs set for further ones.
    fn present(&self, existing: &[ExistingVgpu]) -> Present {
        let mut present = Present::default();
        for name in existing.iter().filter_map(|one| one.name.as_deref()) {
            if is_mig_backed(name) {
                present.has_mig = true;
                continue;
            }
            present.has_others = true;
            let size = frame_buffer(name).filter(|size| !present.sizes.contains(size));
            present.sizes.extend(size);
        }
        let is_others = |mdev: &Mdev| {
            !self.is_own(|own: &GuestVgpu| mdev::is_of(own, mdev), &self.holders_of(mdev))
        };
        let has_vgpu = |function: &PciDevice| match &function.vgpu {
            Some(Vgpu::Mdev { devices, .. }) => devices.iter().any(is_others),
            _ => function.vgpu_type().is_some() && !self.is_own_function(function.bdf),
        };
        let mut functions = std::iter::once(self.card).chain(self.topology.vfs_of(self.card.bdf));
        if !present.sizes.is_empty() && functions.any(has_vgpu) {
            // The driver's list says what it permits.
            present.sizes.clear();
        }
        present
    }

    /// Whether the card is in mixed mode: it has vGPUs of several sizes, or the driver lists another
    /// size than theirs. Without a vGPU nothing shows it.
    fn has_mixed_sizes(&self, types: &[Type], existing: &[ExistingVgpu]) -> bool {
        let size = |name: &str| frame_buffer(name).filter(|_| !is_mig_backed(name));
        let mut sizes = existing.iter().filter(|one| self.is_there(one));
        let Some(first) = sizes.find_map(|one| size(one.name.as_deref()?)) else { return false };
        let is_listed = |of: &&Type| !of.places.is_empty() && !of.after_clearing;
        let listed = types.iter().filter(is_listed).filter_map(|of| size(&of.name));
        let mut others = sizes.filter_map(|one| size(one.name.as_deref()?)).chain(listed);
        others.any(|size| size != first)
    }

    /// Whether a vGPU exists on the card now.
    fn is_there(&self, one: &ExistingVgpu) -> bool {
        match self.topology.device(one.function).map(|function| &function.vgpu) {
            Some(Some(Vgpu::Mdev { devices, .. })) => {
                devices.iter().any(|mdev| Some(&mdev.uuid) == one.uuid.as_ref())
            }
            Some(Some(Vgpu::Vfio { current, .. })) => *current != 0,
            _ => false,
        }
    }

    /// The part of a card that its vGPUs leave. Those of a function of unknown type take at least as
    /// much as the smallest; where the size of a type is not known, the driver's list says what it
    /// leaves at least.
    fn left(&self, types: &[Type], existing: &[ExistingVgpu], is_mixed: bool) -> u64 {
        let filling = |one: &ExistingVgpu| {
            let of = types.iter().find(|of| Some(&of.id) == one.type_id.as_ref());
            of.map_or_else(|| self.filling(one.name.as_deref()?, is_mixed), |of| of.filling)
        };
        let parts = types.iter().map(|of| part(of.filling)).filter(|part| *part > 0);
        let least = parts.min().unwrap_or(0);
        let taken = |one: &ExistingVgpu| {
            if one.is_untyped() { least } else { part(filling(one)) }
        };
        let used: u64 = existing.iter().map(taken).sum();
        let left = WHOLE.saturating_sub(used);
        let is_unknown =
            |one: &ExistingVgpu| one.uuid.is_none() && !one.is_untyped() && filling(one).is_none();
        if !existing.iter().any(is_unknown) {
            return left;
        }
        let listed = types.iter().filter(|of| !of.places.is_empty() && !of.after_clearing);
        left.min(listed.map(|of| part(of.filling)).max().unwrap_or(0))
    }

    fn filling(&self, name: &str, is_mixed: bool) -> Option<u32> {
        let is_mixed = is_mixed && !is_mig_backed(name);
        if is_mixed { self.room.of_mixed_sizes(name) } else { self.room.of_one_size(name) }
    }

    /// What is left of each type beside the vGPUs that exist.
    fn offers(
        &self,
        mut types: Vec<Type>,
        existing: &[ExistingVgpu],
        closed: bool,
    ) -> Vec<VgpuOffer> {
        let is_mixed = self.has_mixed_sizes(&types, existing);
        for of in types.iter_mut().filter(|of| is_mixed && !is_mig_backed(&of.name)) {
            of.filling = self.filling(&of.name, true).or(of.filling);
            let least = |most: u32| of.filling.map_or(most, |filling| most.min(filling));
            of.max_instances = of.max_instances.map(least);
        }
        let left = self.left(&types, existing, is_mixed);
        let present = self.present(existing);
        let in_use =
            |of: &Type| existing.iter().filter(|one| one.type_id.as_ref() == Some(&of.id)).count();
        let in_instances: Vec<Option<usize>> =
            types.iter().map(|of| fitting_instances(of, &types, &in_use)).collect();
        let offer = |(of, in_instances): (Type, Option<usize>)| {
            let in_use = in_use(&of);
            let fit = of.filling.map_or(usize::MAX, |most| {
                usize::try_from(left.saturating_mul(u64::from(most)) / WHOLE).unwrap_or(usize::MAX)
            });
            let is_in_mode = is_in_mode(self.card, &of.name);
            let is_shut = closed || !is_in_mode || present.excludes(&of.name, self.card.mig);
            let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
            // In another mode, none beside those that exist; never fewer than these.
            let max_instances = of.max_instances.map(|most| most.max(in_use));
            let max_instances = if is_in_mode { max_instances } else { Some(in_use) };
            let mut places = of.places;
            let fit = fit.min(in_instances.unwrap_or(usize::MAX));
            places.truncate(if is_shut { 0 } else { fit });
            VgpuOffer {
                card: self.card.bdf,
                mig_backed: is_mig_backed(&of.name),
                id: of.id,
                name: of.name,
                frame_buffer_kib: of.frame_buffer,
                max_instances,
                gpu_instances: of.mig.count,
                max_per_gpu_instance: of.mig.vgpus_each,
                profile: of.mig.profile,
                creatable: u32::try_from(places.len()).unwrap_or(u32::MAX),
                in_use,
                places,
                after_clearing: of.after_clearing,
            }
        };
        types.into_iter().zip(in_instances).map(offer).collect()
    }
}

/// How many more vGPUs of a type fit into its GPU instances of MIG; `None` if not known. vGPUs of
/// another type do not share an instance with them.
fn fitting_instances(of: &Type, types: &[Type], in_use: &impl Fn(&Type) -> usize) -> Option<usize> {
    let (profile, count, each) = (of.mig.profile?, of.mig.count?, of.mig.vgpus_each?);
    let others =
        types.iter().filter(|other| other.id != of.id && other.mig.profile == Some(profile));
    let taken: usize = others
        .map(|other| in_use(other).div_ceil(other.mig.vgpus_each.unwrap_or(1).max(1) as usize))
        .sum();
    let left = (count as usize).saturating_sub(taken) * each as usize;
    Some(left.saturating_sub(in_use(of)))
}

impl VgpuOffer {
    /// Its GPU instances, in words: `4 GPU instances for 12 each`; `None` if MIG does not back it.
    pub fn instance_words(&self) -> Option<String> {
        let known = self.gpu_instances.zip(self.max_per_gpu_instance);
        self.mig_backed.then(|| match known {
            Some((instances, each)) => {
                format!("{} for {each} each", count(instances, "GPU instance"))
            }
            None => "number of GPU instances unknown".to_owned(),
        })
    }

    /// Whether MIG backs it and the number of its instances is not known: only the card's memory
    /// limits it then. Of mediated devices the driver says how many can be made.
    pub fn has_unknown_instances(&self) -> bool {
        let (count, vgpus_each) = (self.gpu_instances, self.max_per_gpu_instance);
        let are_known = MigInstances { profile: None, count, vgpus_each }.are_known();
        self.mig_backed && !are_known && self.id.parse::<u32>().is_ok()
    }

    /// Whether none of its known GPU instances has room.
    pub fn lacks_instances(&self) -> bool {
        let room = self.gpu_instances.zip(self.max_per_gpu_instance);
        self.creatable == 0 && room.is_some()
    }

    /// Whether a request means this type.
    pub fn is_named(&self, wanted: &str) -> bool {
        is_type_named(wanted, &self.name, &self.id)
    }
}
