//! A GPU's memory, as far as it is known without its driver, and the number of vGPUs of a type that
//! follows from it. The driver's list of the moment is no measure: beside a vGPU it has only types
//! that still fit.

use super::vendor::VENDOR_NVIDIA;
use super::{PciDevice, Topology, Vgpu, frame_buffer, is_mig_backed};
use crate::memsize::MemSize;

/// Memory by device id, in GiB, as the name of the largest vGPU type has it (NVIDIA AI Enterprise,
/// "NVIDIA vGPU Types Reference"). Boards that share an id and differ in memory are left out.
const GIB: &[(u16, u64)] = &[
    (0x15f8, 16),
    (0x15f9, 16),
    (0x1b38, 24),
    (0x1db1, 16),
    (0x1db4, 16),
    (0x1db5, 32),
    (0x1db6, 32),
    (0x1db8, 32),
    (0x1eb8, 16),
    (0x20b0, 40),
    (0x20b2, 80),
    (0x20b3, 64),
    (0x20b5, 80),
    (0x20b7, 24),
    (0x20bd, 40),
    (0x20f1, 40),
    (0x20f3, 80),
    (0x2230, 48),
    (0x2231, 24),
    (0x2235, 48),
    (0x2236, 24),
    (0x2321, 94),
    (0x2324, 80),
    (0x2329, 96),
    (0x232c, 141),
    (0x2330, 80),
    (0x2331, 80),
    (0x2335, 141),
    (0x233b, 141),
    (0x2342, 96),
    (0x2345, 96),
    (0x26b1, 48),
    (0x26b5, 48),
    (0x26b9, 48),
    (0x27b8, 24),
    (0x2bb1, 96),
    (0x2bb5, 96),
];

/// Half of the unit in which names of types have a frame buffer.
const HALF_GIB_KIB: u64 = 512 << 10;

/// The memory by the model.
fn of_model(card: &PciDevice) -> Option<MemSize> {
    let is_it = |(id, _): &&(u16, u64)| card.vendor == VENDOR_NVIDIA && *id == card.device;
    GIB.iter().find(is_it).map(|(_, gib)| MemSize::from_gib(*gib))
}

/// The ids of a model and its maker, and whether it is a virtual function.
type Model = (u16, u16, u16, u16, bool);

fn model(one: &PciDevice) -> Model {
    (one.vendor, one.device, one.subsystem_vendor, one.subsystem_device, one.is_vf())
}

/// Knowledge of a model's memory: all of it, or that it has at least so much.
#[derive(Debug, Clone, Copy)]
struct ByModel {
    exact: Option<MemSize>,
    least: Option<MemSize>,
}

impl Topology {
    /// A card's memory: that of the largest type of a card of this model without vGPUs, or of the
    /// model; else its largest BAR, which is at least as large. `None` if not known.
    pub fn card_memory(&self, card: &PciDevice) -> Option<MemSize> {
        self.memory_by(card, self.by_model(card))
    }

    fn by_model(&self, card: &PciDevice) -> ByModel {
        let mut exact = of_model(card);
        let mut least = None;
        let offers = self.alike(card).filter_map(|other| match &other.vgpu {
            Some(Vgpu::Card { types }) => Some((other, types)),
            _ => None,
        });
        for (other, types) in offers {
            let is_empty = self.vfs_of(other.bdf).all(|vf| vf.vgpu_type().is_none());
            for of in types {
                let size = frame_buffer(&of.name);
                least = least.max(size);
                // The largest GPU instance of MIG may be a part of the card.
                if is_empty && !is_mig_backed(&of.name) {
                    exact = exact.max(size);
                }
            }
        }
        ByModel { exact, least }
    }

    fn memory_by(&self, card: &PciDevice, ByModel { exact, least }: ByModel) -> Option<MemSize> {
        if exact.is_some() {
            return exact.max(least);
        }
        let all_of = |(name, count): (String, u32)| {
            Some(MemSize::from_kib(frame_buffer(&name)?.kib() * u64::from(count)))
        };
        let used: MemSize = self.vgpus_of(card).into_iter().filter_map(all_of).sum();
        let largest = card.bars.iter().filter(|bar| bar.is_64bit).map(|bar| bar.bytes).max();
        let largest = largest.map(|bytes| MemSize::from_kib(bytes >> 10));
        // A small one is a window that does not show all of the memory.
        largest.filter(|bar| Some(*bar) >= least && *bar >= used)
    }

    /// How many vGPUs of a type a card's memory has room for; `None` if not known.
    pub fn vgpus_that_fit(&self, card: &PciDevice, name: &str) -> Option<u32> {
        Some(fitting(self.card_memory(card)?, frame_buffer(name)?))
    }

    /// The memory of these cards, by which vGPUs are counted; each model is looked at once.
    pub(crate) fn rooms(&self, cards: &[&PciDevice]) -> Vec<Room> {
        let mut models: Vec<(Model, ByModel)> = Vec::new();
        let mut room = |card: &PciDevice| {
            let model = model(card);
            let known = models.iter().find(|(of, _)| *of == model).map(|(_, known)| *known);
            let known = known.unwrap_or_else(|| {
                let found = self.by_model(card);
                models.push((model, found));
                found
            });
            Room(self.memory_by(card, known))
        };
        cards.iter().map(|card| room(card)).collect()
    }

    /// Cards of the same model and maker, itself included.
    pub(crate) fn alike(&self, card: &PciDevice) -> impl Iterator<Item = &PciDevice> {
        let own = model(card);
        self.devices().iter().filter(move |other| model(other) == own)
    }
}

/// A card's memory, as room for vGPUs; `None` if it is not known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room(pub Option<MemSize>);

impl Room {
    /// How many vGPUs of a type it is for, all of them of one size.
    pub fn of_one_size(self, name: &str) -> Option<u32> {
        Some(fitting(self.0?, frame_buffer(name)?))
    }

    /// How many vGPUs of a type it is for where sizes are mixed: each then takes as much as in the
    /// next smaller number that the driver can place anywhere.
    pub fn of_mixed_sizes(self, name: &str) -> Option<u32> {
        let (whole, own) = (self.0?, frame_buffer(name)?);
        let number = fitting(whole, own);
        let is_h20 = is_type_of(name, "H20");
        if is_h20 && let Some((_, most)) = H20_MIXED.iter().find(|(gib, _)| is_gib(own, *gib)) {
            return Some(*most);
        }
        let is_exact = is_gib(whole, 141);
        Some(if is_exact { number } else { 1 << number.max(1).ilog2() })
    }
}

/// Frame buffers in GiB whose number on an H20 of 96 GiB with mixed sizes follows no rule (NVIDIA,
/// "Hopper Architecture vGPU Types").
const H20_MIXED: [(u64, u32); 5] = [(24, 2), (16, 4), (12, 4), (6, 8), (4, 8)];

/// Numbers of a frame buffer in a memory, both in GiB, that are less than would fit, by the same
/// page.
const LESS: [(u64, u64, u32); 2] = [(141, 8, 16), (141, 4, 32)];

/// The most vGPUs of a card whose frame buffer is rounded up in the name of their type.
const ROUNDED_UP: u64 = 8;

fn is_gib(size: MemSize, gib: u64) -> bool {
    size == MemSize::from_gib(gib)
}

/// Whether a type is one of a model, as `H20-24C`.
fn is_type_of(name: &str, model: &str) -> bool {
    let last = name.rsplit(' ').next().unwrap_or(name);
    last.strip_prefix(model).is_some_and(|rest| rest.starts_with('-'))
}

/// How many of a frame buffer a memory has. Names of large types round: of 141 GiB there are 8 of
/// 18 (`H200X-18C`), but of 94 GiB 15 of 6 (`H100L-6C`).
fn fitting(whole: MemSize, own: MemSize) -> u32 {
    let is_it = |(of, size, _): &&(u64, u64, u32)| is_gib(whole, *of) && is_gib(own, *size);
    if let Some((.., number)) = LESS.iter().find(is_it) {
        return *number;
    }
    let (whole, own) = (whole.kib(), own.kib().max(1));
    let less = whole / own;
    let nearest = (whole + own / 2) / own;
    let is_rounded_up =
        nearest > less && nearest <= ROUNDED_UP && whole / nearest + HALF_GIB_KIB >= own;
    let number = if is_rounded_up { nearest } else { less };
    u32::try_from(number.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Bar, Sriov, VfioType, file};

    #[test]
    fn numbers_of_types_are_those_that_nvidia_documents() {
        for (whole, own, number) in [
            (94, 94, 1),
            (94, 47, 2),
            (94, 23, 4),
            (94, 15, 6),
            (94, 11, 8),
            (141, 141, 1),
            (141, 70, 2),
            (141, 35, 4),
            (141, 28, 5),
            (141, 18, 8),
            (141, 17, 8),
            (141, 14, 10),
            (141, 8, 16),
            (141, 7, 20),
            (141, 4, 32),
            (94, 6, 15),
            (94, 4, 23),
            (80, 16, 5),
            (80, 10, 8),
            (80, 4, 20),
            (16, 1, 16),
            (96, 2, 48),
            (48, 141, 1),
        ] {
            let found = fitting(MemSize::from_gib(whole), MemSize::from_gib(own));
            assert_eq!(found, number, "{own} of {whole}");
        }
        assert_eq!(fitting(MemSize::from_gib(8), MemSize::from_kib(512 << 10)), 16);
    }

    #[test]
    fn numbers_of_mixed_sizes_are_those_that_nvidia_documents() {
        for (whole, name, number) in [
            (48, "NVIDIA L40-48C", 1),
            (48, "NVIDIA L40-16C", 2),
            (48, "NVIDIA L40-8C", 4),
            (48, "NVIDIA L40-6C", 8),
            (48, "NVIDIA L40-4C", 8),
            (24, "NVIDIA L4-8C", 2),
            (40, "GRID A100-8C", 4),
            (40, "GRID A100-4C", 8),
            (80, "NVIDIA H100XM-16C", 4),
            (80, "NVIDIA H100XM-5C", 16),
            (94, "NVIDIA H100L-15C", 4),
            (94, "NVIDIA H100L-6C", 8),
            (94, "NVIDIA H100L-4C", 16),
            (141, "NVIDIA H200X-28C", 5),
            (141, "NVIDIA H200X-14C", 10),
            (141, "NVIDIA H200X-4C", 32),
            (96, "NVIDIA H20-48C", 2),
            (96, "NVIDIA H20-24C", 2),
            (96, "NVIDIA H20-12C", 4),
            (96, "NVIDIA H20-4C", 8),
        ] {
            let found = Room(Some(MemSize::from_gib(whole))).of_mixed_sizes(name);
            assert_eq!(found, Some(number), "{name} of {whole}");
        }
        assert_eq!(Room(None).of_mixed_sizes("L40-8C"), None);
    }

    /// A host with two GPUs of an unlisted model, each with a function; each card lists these
    /// types, and the function of the first has this type and the card this BAR.
    fn memory(types: [&[(u32, &str)]; 2], current: u32, bar_gib: u64) -> Option<u64> {
        let text = include_str!("../../../topologies/dual-socket.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let is_vf = |device: &PciDevice| matches!(device.sriov, Some(Sriov::Vf { .. }));
        let vf = parts.devices.iter().find(|device| is_vf(device)).unwrap().clone();
        let gpus = Topology::new(parts.clone()).unwrap();
        let gpus: Vec<_> = gpus.gpus().map(|gpu| gpu.bdf).take(2).collect();
        for (bdf, types) in gpus.iter().zip(types) {
            let gpu = parts.devices.iter_mut().find(|device| device.bdf == *bdf).unwrap();
            (gpu.vendor, gpu.device) = (VENDOR_NVIDIA, 0xfff0);
            gpu.sriov = Some(Sriov::Pf { total: 1, enabled: 1 });
            gpu.bars = vec![Bar { is_64bit: true, ..Bar::new(1, bar_gib << 30) }];
            let of =
                |(id, name): &(u32, &str)| VfioType { id: *id, name: (*name).into(), mig: None };
            gpu.vgpu = Some(Vgpu::Card { types: types.iter().map(of).collect() });
        }
        let own = parts.devices.iter_mut().find(|device| device.bdf == vf.bdf).unwrap();
        own.sriov = Some(Sriov::Vf { pf: gpus[0] });
        own.vgpu = Some(Vgpu::Vfio { current, creatable: vec![] });
        let topology = Topology::new(parts).unwrap();
        let card = topology.device(gpus[0]).unwrap();
        topology.card_memory(card).map(|size| size.kib() >> 20)
    }

    #[test]
    fn types_beside_a_vgpu_are_no_measure_of_a_cards_memory() {
        let (all, few) = ([(1, "X-50C"), (2, "X-10C")], [(2, "X-10C")]);
        // No vGPU, a card of the model without one, and nothing but the BAR.
        assert_eq!(memory([&all, &all], 0, 64), Some(50));
        assert_eq!(memory([&few, &all], 2, 64), Some(50));
        assert_eq!(memory([&few, &[]], 2, 64), Some(64));
        // A window that is smaller than a type.
        assert_eq!(memory([&few, &[]], 2, 8), None);
        // Instances of MIG may be a part of the card.
        assert_eq!(memory([&[(3, "X-1-10C")], &[]], 0, 64), Some(64));
    }
}
