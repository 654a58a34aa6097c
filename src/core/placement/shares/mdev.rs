//! vGPUs that are mediated devices: their places are those that the driver counts, at a card or at
//! its virtual functions.

use super::{Card, ExistingVgpu, Type, VgpuPlace};
use crate::bdf::Bdf;
use crate::host_device::HostDevice;
use crate::occupancy::GuestVgpu;
use crate::topology::{Mdev, MdevType, MigInstances, Vgpu, is_mig_backed};

/// A mediated device of the planned guest.
struct OwnDevice {
    parent: Bdf,
    type_id: Option<String>,
}

/// Whether a vGPU of a guest is this mediated device.
pub(super) fn is_of(own: &GuestVgpu, mdev: &Mdev) -> bool {
    own.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(&mdev.uuid))
}

impl Card<'_> {
    /// The card and its virtual functions, of which each may be a parent of mediated devices.
    fn parents(&self) -> impl Iterator<Item = (Bdf, &[MdevType], &[Mdev])> {
        let functions = std::iter::once(self.card).chain(self.topology.vfs_of(self.card.bdf));
        functions.filter_map(|parent| match &parent.vgpu {
            Some(Vgpu::Mdev { types, devices }) => Some((parent.bdf, &types[..], &devices[..])),
            _ => None,
        })
    }

    /// Types and devices of parents of mediated devices.
    pub(super) fn mdev(&self) -> (Vec<Type>, Vec<ExistingVgpu>) {
        let (mut types, mut existing): (Vec<Type>, Vec<ExistingVgpu>) = Default::default();
        let mut own: Vec<OwnDevice> = Vec::new();
        for (parent, offered, devices) in self.parents() {
            let is_offered = self.is_offered(parent);
            for of in offered {
                let available = if is_offered { of.available as usize } else { 0 };
                let place = std::iter::repeat_n(VgpuPlace::Parent(parent), available);
                match types.iter_mut().find(|known| known.id == of.id) {
                    Some(known) => known.places.extend(place),
                    None => types.push(self.mdev_type(of, place.collect())),
                }
            }
            for mdev in devices {
                let domains = self.holders_of(mdev);
                let is_it = |own: &GuestVgpu| is_of(own, mdev);
                if self.is_own(is_it, &domains) {
                    own.push(OwnDevice { parent, type_id: mdev.type_id.clone() });
                    continue;
                }
                let of = offered.iter().find(|of| Some(&of.id) == mdev.type_id.as_ref());
                existing.push(ExistingVgpu {
                    function: parent,
                    uuid: Some(mdev.uuid.clone()),
                    type_id: mdev.type_id.clone(),
                    name: of.map(|of| of.name.clone()),
                    domains,
                });
            }
        }
        self.free_places(&mut types, &own, existing.is_empty());
        let made = existing.len();
        self.add_recorded(&types, &mut existing);
        self.take_places(&mut types, &existing[made..]);
        (types, existing)
    }

    fn mdev_type(&self, of: &MdevType, places: Vec<VgpuPlace>) -> Type {
        let by_memory = || self.room.of_one_size(&of.name);
        Type {
            id: of.id.clone(),
            name: of.name.clone(),
            frame_buffer: of.frame_buffer_kib,
            max_instances: of.max_instances,
            filling: of.max_instances.or_else(by_memory),
            mig: MigInstances::default(),
            places,
            after_clearing: false,
        }
    }

    /// The domains that have a mediated device.
    pub(super) fn holders_of(&self, mdev: &Mdev) -> Vec<String> {
        let uuid = HostDevice::Mediated(mdev.uuid.to_lowercase());
        self.domains(|held| held.host_devices.contains(&uuid))
    }

    /// Adds the places of mediated devices of the planned guest, which are removed before it gets
    /// others; `is_cleared`: the card has no others, and can have any type then.
    fn free_places(&self, types: &mut [Type], own: &[OwnDevice], is_cleared: bool) {
        if own.is_empty() {
            return;
        }
        for of in types {
            let is_listed = !of.places.is_empty();
            for device in own {
                let place = VgpuPlace::Parent(device.parent);
                let is_its = device.type_id.as_ref() == Some(&of.id);
                // A virtual function has room for one, of whatever type.
                let is_function = device.parent != self.card.bdf;
                let is_new = is_function && is_listed && !of.places.contains(&place);
                of.places.extend((is_its || is_new).then_some(place));
            }
            if is_cleared && !is_mig_backed(&of.name) {
                of.after_clearing = of.places.is_empty();
                for (parent, offered, _) in self.parents() {
                    let Some(same) = offered.iter().find(|same| same.id == of.id) else { continue };
                    let place = VgpuPlace::Parent(parent);
                    let is_card = parent == self.card.bdf;
                    let most = if is_card { same.max_instances.unwrap_or(0) as usize } else { 1 };
                    let has = of.places.iter().filter(|known| **known == place).count();
                    of.places.extend(std::iter::repeat_n(place, most.saturating_sub(has)));
                }
            }
            of.places.sort_unstable();
        }
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
}
