//! Shares of a GPU: by which interface a vendor's driver gives them to guests, and the kind of a virtual
//! function of a GPU is. Told by files that the driver makes, never by versions of kernel or driver.

use super::vendor::{VENDOR_ATI, VENDOR_INTEL, VENDOR_NVIDIA};
use super::vgpu::Vgpu;
use super::{DeviceKind, PciDevice, Sriov, Topology};
use crate::bdf::Bdf;
use serde::Serialize;
use std::collections::BTreeMap;

/// The kind of a virtual function of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VfKind {
    /// The parent of mediated devices: these go to guests, not the function.
    MdevParent,
    /// NVIDIA's, without a vGPU type: VFIO opens it only once it has one.
    FreeSlot,
    /// NVIDIA's, with a vGPU type: a share of its card.
    Vgpu,
    /// NVIDIA's, without the vGPU host driver.
    Untyped,
    /// AMD's, by GIM: the card for guests, or a partition of it.
    Gim,
    /// Intel's, of a card: a share with memory of its own.
    IntelShare,
    /// Intel's, of the processor's graphics.
    IntelIntegrated,
    /// Of a driver that is not known.
    Unknown,
}

/// By which interface guests share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VgpuInterface {
    /// None if guests get the whole GPU.
    None,
    /// Not known until virtual functions are enabled.
    Unknown,
    /// Mediated devices.
    Mdev,
    /// Virtual functions on the vendor's VFIO driver.
    Vfio,
}

impl VgpuInterface {
    /// The word that JSON has.
    pub fn word(self) -> &'static str {
        match self {
            VgpuInterface::None => "none",
            VgpuInterface::Unknown => "unknown",
            VgpuInterface::Mdev => "mdev",
            VgpuInterface::Vfio => "vfio",
        }
    }
}

/// The driver that gives AMD's Instinct cards out as virtual functions
/// (https://github.com/amd/MxGPU-Virtualization).
pub(super) const AMD_GIM: &str = "gim";
/// NVIDIA's driver, also of virtual functions with a vGPU type.
pub const NVIDIA: &str = "nvidia";

/// The name of a type among those that a card's virtual functions offer.
fn offered_name(card: &PciDevice, number: u32) -> Option<&str> {
    let Some(Vgpu::Card { types }) = &card.vgpu else { return None };
    types.iter().find(|of| of.id == number).map(|of| of.name.as_str())
}

impl PciDevice {
    /// The number of the vGPU type that is set for a virtual function; `None` if it has none, or is
    /// none of the vendor's VFIO driver.
    pub fn vgpu_type(&self) -> Option<u32> {
        match self.vgpu {
            Some(Vgpu::Vfio { current, .. }) => Some(current).filter(|current| *current != 0),
            _ => None,
        }
    }
}

/// The virtual functions among these devices, by their card.
pub(super) fn vf_index(devices: &[PciDevice]) -> Vec<(Bdf, usize)> {
    let pf = |(at, device): (usize, &PciDevice)| Some((device.pf()?, at));
    let mut all: Vec<(Bdf, usize)> = devices.iter().enumerate().filter_map(pf).collect();
    all.sort_unstable();
    all
}

impl Topology {
    /// Virtual functions of a card, by address.
    pub fn vfs_of(&self, pf: Bdf) -> impl Iterator<Item = &PciDevice> {
        let first = self.vf_index.partition_point(|(of, _)| *of < pf);
        let own = self.vf_index[first..].iter().take_while(move |(of, _)| *of == pf);
        own.map(|(_, at)| &self.parts.devices[*at])
    }

    /// The card that a mediated device is a share of; `None` if there is no such device now.
    pub fn card_of_mdev(&self, uuid: &str) -> Option<Bdf> {
        let has = |device: &&PciDevice| match &device.vgpu {
            Some(Vgpu::Mdev { devices, .. }) => {
                devices.iter().any(|mdev| mdev.uuid.eq_ignore_ascii_case(uuid))
            }
            _ => false,
        };
        let parent = self.devices().iter().find(has)?;
        Some(parent.pf().unwrap_or(parent.bdf))
    }

    /// The kind of a virtual function of a GPU; `None` if it is another function.
    pub fn vf_kind(&self, vf: &PciDevice) -> Option<VfKind> {
        let Some(Sriov::Vf { pf }) = vf.sriov else { return None };
        if vf.kind() != DeviceKind::Gpu {
            return None;
        }
        let card = self.device(pf);
        let driver = card.and_then(|card| card.driver.as_deref());
        let is_integrated = card.is_some_and(PciDevice::is_intel_graphics);
        Some(match (&vf.vgpu, vf.vendor) {
            (Some(Vgpu::Mdev { .. }), _) => VfKind::MdevParent,
            (Some(Vgpu::Vfio { current: 0, .. }), VENDOR_NVIDIA) => VfKind::FreeSlot,
            (Some(Vgpu::Vfio { .. }), VENDOR_NVIDIA) => VfKind::Vgpu,
            (_, VENDOR_NVIDIA) => VfKind::Untyped,
            (_, VENDOR_ATI) if driver == Some(AMD_GIM) => VfKind::Gim,
            (_, VENDOR_INTEL) if is_integrated => VfKind::IntelIntegrated,
            (_, VENDOR_INTEL) if matches!(driver, Some("xe" | "i915")) => VfKind::IntelShare,
            _ => VfKind::Unknown,
        })
    }

    /// Whether a function is a vGPU, or a slot for one, which stays on the vendor's driver.
    pub fn is_vgpu_function(&self, bdf: Bdf) -> bool {
        let kind = self.device(bdf).and_then(|vf| self.vf_kind(vf));
        matches!(kind, Some(VfKind::FreeSlot | VfKind::Vgpu))
    }

    /// By which interface guests share a card.
    pub fn vgpu_interface(&self, card: &PciDevice) -> VgpuInterface {
        let mut vgpus = std::iter::once(card).chain(self.vfs_of(card.bdf)).map(|one| &one.vgpu);
        let found = vgpus.find_map(|vgpu| match vgpu.as_ref()? {
            Vgpu::Mdev { .. } => Some(VgpuInterface::Mdev),
            Vgpu::Vfio { .. } => Some(VgpuInterface::Vfio),
            Vgpu::Card { .. } => None,
        });
        let may_have = card.vendor == VENDOR_NVIDIA
            && card.driver.as_deref() == Some(NVIDIA)
            && matches!(card.sriov, Some(Sriov::Pf { total: 1.., enabled: 0 }));
        found.unwrap_or(if may_have { VgpuInterface::Unknown } else { VgpuInterface::None })
    }

    /// Whole GPUs of which guests can have shares, or could once virtual functions are enabled, by
    /// address.
    pub fn shared_gpus(&self) -> impl Iterator<Item = (&PciDevice, VgpuInterface)> {
        let cards = self.of_kind(DeviceKind::Gpu).filter(|gpu| !gpu.is_vf());
        let with_interface = cards.map(|card| (card, self.vgpu_interface(card)));
        with_interface.filter(|(_, interface)| *interface != VgpuInterface::None)
    }

    /// The name of a type of a card's virtual functions; `None` if no function of such a card
    /// offers it now.
    pub fn vgpu_type_name(&self, card: &PciDevice, number: u32) -> Option<&str> {
        let alike = |other: &&PciDevice| (other.vendor, other.device) == (card.vendor, card.device);
        let others = self.devices().iter().filter(alike);
        let mut cards = self.device(card.bdf).into_iter().chain(others);
        cards.find_map(|card| offered_name(card, number))
    }

    /// Which vGPUs a card has, and how many: `8 x H200X-18C`, a number where the name is not known;
    /// empty: none.
    pub fn vgpus_of(&self, card: &PciDevice) -> Vec<(String, u32)> {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for function in std::iter::once(card).chain(self.vfs_of(card.bdf)) {
            match &function.vgpu {
                Some(Vgpu::Vfio { current: number @ 1.., .. }) => {
                    let name = self.vgpu_type_name(card, *number).map(str::to_owned);
                    *counts.entry(name.unwrap_or_else(|| format!("type {number}"))).or_default() +=
                        1;
                }
                Some(Vgpu::Mdev { types, devices }) => {
                    for mdev in devices {
                        let of = types.iter().find(|of| Some(&of.id) == mdev.type_id.as_ref());
                        let name = of.map_or("unknown type", |of| &of.name).to_owned();
                        *counts.entry(name).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        counts.into_iter().collect()
    }
}
