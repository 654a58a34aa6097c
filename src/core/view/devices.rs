//! The devices of a picture: which are drawn, their names, and whether a guest may have them.

use super::guests::Guest;
use crate::bdf::Bdf;
use crate::occupancy::Occupancy;
use crate::placement::{DeviceState, device_states};
use crate::topology::model::{ids, model};
use crate::topology::{DeviceKind, PciDevice, Sriov, Topology};
use crate::words::count;
use std::collections::{BTreeMap, BTreeSet};

/// The most virtual functions of a card that are drawn although they are free.
pub(super) const MOST_VFS: usize = 16;

/// How a device looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nobody has it, and a guest may.
    Free,
    /// A guest has it.
    Guest,
    /// The host uses it, or it has content: it is not offered by number.
    Host,
    /// Fabric Manager has it.
    FabricManager,
    /// No guest can have it.
    Unusable,
}

/// A device that is drawn.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its address.
    pub bdf: Bdf,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its name: `GPU 0`, `nvme0n1`, `mlx5_0`.
    pub name: String,
    /// Its model, or the ids.
    pub model: String,
    /// How it looks.
    pub look: Look,
    /// Guests that have it, by their places; running ones first.
    pub guests: Vec<usize>,
    /// Why it is not free, to be read after its name.
    pub why: Option<String>,
    /// The card that it is a virtual function of.
    pub pf: Option<Bdf>,
}

/// An address without segment 0, as `lspci` prints it.
pub(super) fn short(bdf: Bdf) -> String {
    let text = bdf.to_string();
    text.strip_prefix("0000:").map_or_else(|| text.clone(), ToOwned::to_owned)
}

/// A link, as `8 GT/s x16`; where both ends could do more, as `2.5 of 16 GT/s x8 of x16`.
pub(super) fn link(device: &PciDevice) -> Option<String> {
    let rate = |dgts: u32| match (dgts / 10, dgts % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    };
    let (now, best) = (device.link.as_ref()?, device.link_max.as_ref());
    let best_speed = best.and_then(|best| best.speed_dgts);
    let speed = now.speed_dgts.map(|speed| match best_speed {
        Some(best) if speed < best => format!("{} of {} GT/s", rate(speed), rate(best)),
        _ => format!("{} GT/s", rate(speed)),
    });
    let width = now.width.map(|width| match best.and_then(|best| best.width) {
        Some(best) if width < best => format!("x{width} of x{best}"),
        _ => format!("x{width}"),
    });
    let parts: Vec<String> = speed.into_iter().chain(width).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Whether a device is drawn although it is free. Of virtual functions, those of NICs are, up to
/// [`MOST_VFS`] of a card.
fn is_drawn(device: &PciDevice) -> bool {
    let kinds = [DeviceKind::Gpu, DeviceKind::NvSwitch, DeviceKind::Nic, DeviceKind::Nvme];
    match device.sriov {
        Some(Sriov::Vf { .. }) => device.kind() == DeviceKind::Nic,
        _ => kinds.contains(&device.kind()) || device.may_be_silent_gpu(),
    }
}

/// Virtual functions that are not drawn, since their card has too many and they are free.
fn left_out(topology: &Topology, holders: &BTreeMap<Bdf, Vec<usize>>) -> BTreeSet<Bdf> {
    let mut free: BTreeMap<Bdf, usize> = BTreeMap::new();
    let is_left = |device: &&PciDevice| {
        let Some(pf) = device.pf().filter(|_| !holders.contains_key(&device.bdf)) else {
            return false;
        };
        let number = free.entry(pf).or_default();
        *number += 1;
        *number > MOST_VFS
    };
    topology.devices().iter().filter(is_left).map(|device| device.bdf).collect()
}

/// Number of enabled virtual functions of a device.
fn enabled(device: &PciDevice) -> u32 {
    match device.sriov {
        Some(Sriov::Pf { enabled, .. }) => enabled,
        _ => 0,
    }
}

/// Returns the devices of a picture, by address: those that guests are made with, and everything
/// that a guest has.
pub(super) fn devices(topology: &Topology, held: &Occupancy, guests: &[Guest<'_>]) -> Vec<Device> {
    let mut holders: BTreeMap<Bdf, Vec<usize>> = BTreeMap::new();
    for (guest, place) in guests.iter().zip(0..) {
        guest.devices().into_iter().for_each(|bdf| holders.entry(bdf).or_default().push(place));
    }
    for places in holders.values_mut() {
        places.sort_by_key(|place| (!guests[*place].active, *place));
    }
    let left_out = left_out(topology, &holders);
    let is_shown = |d: &&PciDevice| {
        let is_bridge = matches!(d.kind(), DeviceKind::Bridge | DeviceKind::HostBridge);
        let is_held = !is_bridge && holders.contains_key(&d.bdf);
        is_held || is_drawn(d) && !left_out.contains(&d.bdf)
    };
    let shown: Vec<&PciDevice> = topology.devices().iter().filter(is_shown).collect();
    let functions: Vec<Bdf> = shown.iter().map(|device| device.bdf).collect();
    let states = device_states(topology, held, &functions);
    let names = names(topology);
    let made = shown.into_iter().zip(states).map(|(device, (state, mut why))| {
        let guests = holders.remove(&device.bdf).unwrap_or_default();
        let vfs = enabled(device);
        let look = match state {
            _ if !guests.is_empty() => Look::Guest,
            DeviceState::Host if topology.is_fabric_managers(device.bdf) => Look::FabricManager,
            // As `device list` says.
            DeviceState::Blocked if vfs > 0 => {
                why = Some(format!("is used by its {}", count(vfs, "virtual function")));
                Look::Host
            }
            DeviceState::Free => Look::Free,
            DeviceState::Host | DeviceState::Data | DeviceState::Display => Look::Host,
            // Held by a guest that the picture replaces.
            DeviceState::Held => Look::Free,
            DeviceState::Excluded
            | DeviceState::Untested
            | DeviceState::Unhealthy
            | DeviceState::Silent
            | DeviceState::Barred
            | DeviceState::Blocked
            | DeviceState::Unsupported => Look::Unusable,
        };
        let why = why.filter(|_| !matches!(look, Look::Free | Look::Guest));
        let name = names.get(&device.bdf).cloned().unwrap_or_else(|| kind_name(device).to_owned());
        let (bdf, kind, model) = (device.bdf, device.kind(), model(device));
        Device { bdf, kind, name, model, look, guests, why, pf: device.pf() }
    });
    made.collect()
}

/// The name of a device without its own name.
fn kind_name(device: &PciDevice) -> &'static str {
    match device.kind() {
        DeviceKind::Gpu => "GPU",
        DeviceKind::NvSwitch => "NVSwitch",
        DeviceKind::Nic if device.is_vf() => "VF",
        DeviceKind::Nic => "NIC",
        DeviceKind::Nvme => "NVMe",
        DeviceKind::Bridge | DeviceKind::HostBridge | DeviceKind::Other => "function",
    }
}

/// Names of devices: index of a GPU or NVSwitch, the kernel's name of a NIC or drive.
fn names(topology: &Topology) -> BTreeMap<Bdf, String> {
    let mut names: BTreeMap<Bdf, String> = BTreeMap::new();
    for device in topology.of_kind(DeviceKind::Nic) {
        let net = device.net.as_ref();
        let name = net.and_then(|net| net.netdevs.first().or(net.rdma.first()));
        names.extend(name.map(|name| (device.bdf, name.clone())));
    }
    for drive in &topology.parts().drives {
        if let Some(bdf) = drive.bdf {
            names.entry(bdf).or_insert_with(|| drive.name.clone());
        }
    }
    let numbered = |kind, word: &str| -> Vec<(Bdf, String)> {
        let all = topology.of_kind(kind).enumerate();
        all.map(|(at, device)| (device.bdf, format!("{word} {at}"))).collect()
    };
    names.extend(numbered(DeviceKind::NvSwitch, "NVSwitch"));
    // Displays have no index.
    let gpus = topology.gpus().enumerate();
    names.extend(gpus.map(|(at, gpu)| (gpu.bdf, format!("GPU {at}"))));
    names
}

/// How a function is reset; `None` if not known.
pub(super) fn resets(device: &PciDevice) -> Option<String> {
    let all = device.reset_methods.as_ref()?;
    Some(if all.is_empty() { "impossible".into() } else { all.join(", ") })
}

/// The facts of a device, for people: its kind, place and holder.
pub(super) fn facts(device: &Device, topology: &Topology, guests: &[Guest<'_>]) -> Vec<String> {
    let mut facts = vec![format!("{} {}", device.name, device.bdf)];
    let Some(pci) = topology.device(device.bdf) else { return facts };
    let ids = ids(pci);
    facts.push(if device.model == ids { ids } else { format!("{} ({ids})", device.model) });
    facts.extend(pci.node.map(|node| format!("node {node}")));
    facts.extend(pci.iommu_group.map(|group| format!("IOMMU group {group}")));
    facts.extend(pci.driver.as_ref().map(|driver| format!("driver {driver}")));
    facts.extend(link(pci).map(|link| format!("link {link}")));
    facts.extend(resets(pci).map(|all| format!("reset {all}")));
    match pci.sriov {
        Some(Sriov::Pf { total, enabled }) if total > 0 => {
            facts.push(format!("{enabled} of {total} VFs"));
        }
        Some(Sriov::Vf { pf }) => facts.push(format!("VF of {pf}")),
        _ => {}
    }
    facts.push(standing(device, guests));
    facts
}

/// The holder of a device, or why it is not offered.
pub(super) fn standing(device: &Device, guests: &[Guest<'_>]) -> String {
    match device.look {
        Look::Free => "free".into(),
        Look::Guest => {
            let names = device.guests.iter().map(|&place| {
                let Guest { name, letter, .. } = &guests[place];
                format!("{name} ({letter}, {})", guests[place].state())
            });
            format!("held by {}", names.collect::<Vec<_>>().join(" and "))
        }
        Look::Host | Look::FabricManager | Look::Unusable => {
            let why = device.why.as_deref().unwrap_or("is not available");
            format!("not for guests: it {why}")
        }
    }
}
