//! vGPUs that the cards of a host have left, by type. Chooses none, and knows of no cores.
//!
//! What can be created now is what the driver lists, less what domains that are off have by their
//! definition. The driver lists nothing about how many fit: that is computed from the frame buffers
//! that the names of types tell.

use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, GuestVgpu, Held, Occupancy};
use crate::topology::{
    MigInstances, PciDevice, Topology, Vgpu, VgpuInterface, frame_buffer, is_mig_backed, plain_name,
};
use crate::words::count;
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole of a card, of which each of its vGPUs takes a part.
const WHOLE: u64 = 1_000_000_000;

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
    /// Its frame buffer, by the largest type of its model; `None` if not known.
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
    let cards = topology.shared_gpus();
    cards.map(|(card, interface)| Card { topology, held, card }.shared(interface)).collect()
}

/// Whether a card's MIG mode permits a type; where the mode is not known, the driver decides.
pub(super) fn is_in_mode(card: &PciDevice, name: &str) -> bool {
    card.mig.is_none_or(|mig| mig.enabled == is_mig_backed(name))
}

/// The part of a card that one of so many takes.
fn part(max_instances: Option<u32>) -> u64 {
    max_instances.filter(|most| *most > 0).map_or(0, |most| WHOLE / u64::from(most))
}

struct Card<'t> {
    topology: &'t Topology,
    held: &'t Occupancy,
    card: &'t PciDevice,
}

/// A type before what is left of it is known.
struct Type {
    id: String,
    name: String,
    frame_buffer: Option<MemSize>,
    max_instances: Option<u32>,
    mig: MigInstances,
    places: Vec<VgpuPlace>,
}

impl Card<'_> {
    fn shared(&self, interface: VgpuInterface) -> SharedCard {
        let (types, existing) = match interface {
            VgpuInterface::Vfio => self.vfio(),
            VgpuInterface::Mdev => self.mdev(),
            VgpuInterface::None | VgpuInterface::Unknown => Default::default(),
        };
        let closed = self.closed();
        let offers = self.offers(types, &existing, closed.is_some());
        let (bdf, node) = (self.card.bdf, self.card.node);
        let (frame_buffer_kib, excluded) = (self.frame_buffer(), self.excluded());
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

    /// Adds mediated devices of domains that do not exist now, as after a restart of the host.
    fn add_recorded(&self, types: &[Type], existing: &mut Vec<ExistingVgpu>) {
        for held in &self.held.domains {
            for vgpu in held.vgpus.iter().filter(|one| one.card == self.card.bdf && one.is_mdev()) {
                let is_it = |one: &ExistingVgpu| one.uuid.is_some() && one.uuid == vgpu.uuid;
                let is_offered = types.iter().any(|of| of.id == vgpu.type_id);
                if is_offered && !existing.iter().any(is_it) {
                    existing.push(ExistingVgpu {
                        function: vgpu.function,
                        uuid: vgpu.uuid.clone(),
                        type_id: Some(vgpu.type_id.clone()),
                        name: Some(vgpu.name.clone()),
                        domains: vec![held.domain.clone()],
                    });
                }
            }
        }
    }

    /// Types and vGPUs of virtual functions on the vendor's VFIO driver.
    fn vfio(&self) -> (Vec<Type>, Vec<ExistingVgpu>) {
        let mut existing = Vec::new();
        let mut places: BTreeMap<u32, Vec<VgpuPlace>> = BTreeMap::new();
        for vf in self.topology.vfs_of(self.card.bdf) {
            let Some(Vgpu::Vfio { current, creatable }) = &vf.vgpu else { continue };
            let domains = self.domains(|held| held.devices.contains(&vf.bdf));
            let mut own = self.held.own_vgpus.vgpus.iter();
            if *current != 0 && domains.is_empty() && own.any(|own| own.function == vf.bdf) {
                places.entry(*current).or_default().push(VgpuPlace::Vf(vf.bdf));
                continue;
            }
            if *current == 0 && domains.is_empty() {
                for number in creatable.iter().filter(|_| self.is_offered(vf.bdf)) {
                    places.entry(*number).or_default().push(VgpuPlace::Vf(vf.bdf));
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
        let all = match &self.card.vgpu {
            Some(Vgpu::Card { types }) => types.as_slice(),
            _ => &[],
        };
        let whole = self.frame_buffer();
        let to_type = |of: &crate::topology::VfioType| {
            let own = frame_buffer(&of.name);
            Type {
                id: of.id.to_string(),
                name: of.name.clone(),
                frame_buffer: own,
                max_instances: whole
                    .zip(own)
                    .and_then(|(whole, own)| fitting(whole, own, &of.name)),
                mig: of.mig.unwrap_or_default(),
                places: places.remove(&of.id).unwrap_or_default(),
            }
        };
        (all.iter().map(to_type).collect(), existing)
    }

    /// The frame buffer of the largest type of a card of this model: the whole card's.
    fn frame_buffer(&self) -> Option<MemSize> {
        let ids = |device: &PciDevice| (device.vendor, device.device);
        let alike = self.topology.devices().iter().filter(|other| ids(other) == ids(self.card));
        let names = alike.filter_map(|card| match &card.vgpu {
            Some(Vgpu::Card { types }) => Some(types),
            _ => None,
        });
        names.flatten().filter_map(|of| frame_buffer(&of.name)).max()
    }

    /// Types and devices of parents of mediated devices.
    fn mdev(&self) -> (Vec<Type>, Vec<ExistingVgpu>) {
        let (mut types, mut existing): (Vec<Type>, Vec<ExistingVgpu>) = Default::default();
        let functions = std::iter::once(self.card).chain(self.topology.vfs_of(self.card.bdf));
        for parent in functions {
            let Some(Vgpu::Mdev { types: offered, devices }) = &parent.vgpu else { continue };
            let is_offered = self.is_offered(parent.bdf);
            for of in offered {
                let available = if is_offered { of.available as usize } else { 0 };
                let place = std::iter::repeat_n(VgpuPlace::Parent(parent.bdf), available);
                match types.iter_mut().find(|known| known.id == of.id) {
                    Some(known) => known.places.extend(place),
                    None => types.push(Type {
                        id: of.id.clone(),
                        name: of.name.clone(),
                        frame_buffer: of.frame_buffer_kib,
                        max_instances: of.max_instances,
                        mig: MigInstances::default(),
                        places: place.collect(),
                    }),
                }
            }
            for mdev in devices {
                let uuid = HostDevice::Mediated(mdev.uuid.to_lowercase());
                let of = offered.iter().find(|of| Some(&of.id) == mdev.type_id.as_ref());
                existing.push(ExistingVgpu {
                    function: parent.bdf,
                    uuid: Some(mdev.uuid.clone()),
                    type_id: mdev.type_id.clone(),
                    name: of.map(|of| of.name.clone()),
                    domains: self.domains(|held| held.host_devices.contains(&uuid)),
                });
            }
        }
        let made = existing.len();
        self.add_recorded(&types, &mut existing);
        self.take_places(&mut types, &existing[made..]);
        (types, existing)
    }

    /// Takes the places of mediated devices that are to be made again.
    fn take_places(&self, types: &mut [Type], recorded: &[ExistingVgpu]) {
        for one in recorded {
            let place = VgpuPlace::Parent(one.function);
            if one.function != self.card.bdf {
                // A virtual function has room for one, of whatever type.
                types.iter_mut().for_each(|of| of.places.retain(|known| *known != place));
                continue;
            }
            // The rest for a card's other types follows from its frame buffer.
            let of = types.iter_mut().find(|of| Some(&of.id) == one.type_id.as_ref());
            if let Some(places) = of.map(|of| &mut of.places)
                && let Some(at) = places.iter().position(|known| *known == place)
            {
                places.remove(at);
            }
        }
    }

    /// Whether a card that has no vGPU now will have some of another frame buffer, as recorded for
    /// domains: then only these fit, unless an admin has turned on the mixed mode, which does not
    /// outlive a restart either. vGPUs that MIG backs may differ.
    fn is_other_size(&self, of: &Type, existing: &[ExistingVgpu]) -> bool {
        let has_vgpu = |function: &PciDevice| match &function.vgpu {
            Some(Vgpu::Mdev { devices, .. }) => !devices.is_empty(),
            _ => function.vgpu_type().is_some(),
        };
        let mut functions = std::iter::once(self.card).chain(self.topology.vfs_of(self.card.bdf));
        if functions.any(has_vgpu) {
            // The driver's list says what it permits.
            return false;
        }
        let size = |name: &str| frame_buffer(name).filter(|_| !is_mig_backed(name));
        let mut sizes = existing.iter().filter_map(|one| size(one.name.as_deref()?));
        size(&of.name).is_some_and(|own| sizes.any(|other| other != own))
    }

    /// What is left of each type beside the vGPUs that exist.
    fn offers(&self, types: Vec<Type>, existing: &[ExistingVgpu], closed: bool) -> Vec<VgpuOffer> {
        let most = |id: &Option<String>| {
            let of = types.iter().find(|of| Some(&of.id) == id.as_ref())?;
            of.max_instances
        };
        // One of an unknown type takes at least as much as the smallest.
        let parts = types.iter().map(|of| part(of.max_instances)).filter(|part| *part > 0);
        let least = parts.min().unwrap_or(0);
        let taken = |one: &ExistingVgpu| {
            if one.is_untyped() { least } else { part(most(&one.type_id)) }
        };
        let used: u64 = existing.iter().map(taken).sum();
        let left = WHOLE.saturating_sub(used);
        let in_use =
            |of: &Type| existing.iter().filter(|one| one.type_id.as_ref() == Some(&of.id)).count();
        let in_instances: Vec<Option<usize>> =
            types.iter().map(|of| fitting_instances(of, &types, &in_use)).collect();
        let offer = |(of, in_instances): (Type, Option<usize>)| {
            let in_use = in_use(&of);
            let fit = of.max_instances.map_or(usize::MAX, |most| {
                usize::try_from(left.saturating_mul(u64::from(most)) / WHOLE).unwrap_or(usize::MAX)
            });
            let is_in_mode = is_in_mode(self.card, &of.name);
            let is_shut = closed || !is_in_mode || self.is_other_size(&of, existing);
            let in_use = u32::try_from(in_use).unwrap_or(u32::MAX);
            // In another mode, none beside those that exist.
            let max_instances = if is_in_mode { of.max_instances } else { Some(in_use) };
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

/// How many of a frame buffer a card has: the nearest number, since names round (eight of
/// `H200X-18C` make up 141 GB). `None` where, of those that MIG backs, several may share an instance.
fn fitting(whole: MemSize, own: MemSize, name: &str) -> Option<u32> {
    if is_mig_backed(name) || own.kib() == 0 {
        return None;
    }
    let nearest = (whole.kib() + own.kib() / 2) / own.kib();
    u32::try_from(nearest.max(1)).ok()
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

    /// Whether none of its known GPU instances has room.
    pub fn lacks_instances(&self) -> bool {
        let room = self.gpu_instances.zip(self.max_per_gpu_instance);
        self.creatable == 0 && room.is_some()
    }

    /// Whether a request means this type: by its name, the last word of it, or its id; whatever the
    /// case, with or without the vendor's name in front.
    pub fn is_named(&self, wanted: &str) -> bool {
        let wanted = plain_name(wanted);
        let last = self.name.rsplit(' ').next().unwrap_or_default();
        let words = [self.name.as_str(), last, self.id.as_str()];
        words.iter().any(|word| word.eq_ignore_ascii_case(wanted))
    }
}
