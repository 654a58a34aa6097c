//! Finds GPUs that no guest gets by number, and functions that cannot be passed through at all.
//! Chooses nothing and does not know the occupancy.

use super::model::model;
use super::sharing::{AMD_GIM, VfKind};
use super::vendor::{DISPLAY, THREE_D, VENDOR_AMD, VENDOR_ATI, VENDOR_INTEL, VENDOR_NVIDIA, VGA};
use super::{CoherentLack, DeviceKind, PciDevice, Sriov, Topology};
use crate::bdf::Bdf;
use std::borrow::Cow;
use std::fmt;

/// Why a GPU is set aside: it is not counted, and only its address selects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetAside {
    /// The display of firmware and console (sysfs `boot_vga`).
    BootDisplay,
    /// Part of the processor.
    Integrated,
    /// A virtual function: a share of this card.
    Share(Bdf),
    /// A card that its driver gives out as virtual functions only, each a card of its own.
    GivenOut,
}

impl SetAside {
    /// Returns the reason, as words to follow the function's name.
    pub fn why(self) -> Cow<'static, str> {
        match self {
            SetAside::BootDisplay => "is the host's boot display; only its address takes it".into(),
            SetAside::Integrated => {
                "is integrated in the processor; only its address takes it".into()
            }
            SetAside::Share(card) => {
                format!("is a virtual function of {card}; only its address takes it").into()
            }
            SetAside::GivenOut => {
                "is given to guests as its virtual functions, each a GPU of its own".into()
            }
        }
    }

    /// Returns the loss to the host.
    pub fn costs(self) -> Cow<'static, str> {
        match self {
            SetAside::BootDisplay => {
                "is the host's boot display: the host loses its console".into()
            }
            SetAside::Integrated => {
                "is integrated in the processor: the host loses its display, and few of these work \
                 in a guest"
                    .into()
            }
            SetAside::Share(card) => {
                format!("is a virtual function of {card}: a share of that card").into()
            }
            SetAside::GivenOut => {
                "is given to guests as its virtual functions: these go with it".into()
            }
        }
    }
}

/// Ids of GPUs in AMD's processors, first and last of each range: those that amdgpu and radeon mark
/// as APUs, and the PCI ID list for the ranges (Kaveri, Sumo, Wrestler, Kabini, Mullins, Carrizo,
/// Stoney, Trinity, Van Gogh, Raven, Renoir, Rembrandt, Raphael, Phoenix, Mendocino, Strix,
/// Krackan, Granite Ridge). Newer ones are recognized by their slot.
const IN_AMD_CPUS: &[(u16, u16)] = &[
    (0x1114, 0x1114),
    (0x1304, 0x131d),
    (0x13c0, 0x13c0),
    (0x13db, 0x13db),
    (0x13f9, 0x13fe),
    (0x143f, 0x143f),
    (0x1506, 0x1506),
    (0x150e, 0x150e),
    (0x1586, 0x1586),
    (0x15bf, 0x15bf),
    (0x15c8, 0x15c8),
    (0x15d8, 0x15d8),
    (0x15dd, 0x15dd),
    (0x15e7, 0x15e7),
    (0x1636, 0x1638),
    (0x163f, 0x163f),
    (0x164c, 0x164f),
    (0x1681, 0x1681),
    (0x1900, 0x1901),
    (0x9640, 0x964f),
    (0x9802, 0x980a),
    (0x9830, 0x983f),
    (0x9850, 0x985f),
    (0x9870, 0x9877),
    (0x98e4, 0x98e4),
    (0x9900, 0x99a4),
];

/// Whether a GPU is part of the processor. Intel's are device 2 of the first bus, without a bridge
/// above (QEMU's docs/igd-assign.txt), and cards never do on a real host. AMD's share their slot
/// with functions of the processor's own vendor id (security processor, USB), which no card has.
fn is_integrated(topology: &Topology, gpu: &PciDevice) -> bool {
    let bdf = gpu.bdf;
    let display = matches!(gpu.class >> 8, VGA | THREE_D | DISPLAY);
    match gpu.vendor {
        VENDOR_INTEL => {
            let on_first_bus = gpu.parent.is_none() && bdf.bus() == 0;
            display && on_first_bus && bdf.device() == 2
        }
        VENDOR_ATI if display => {
            IN_AMD_CPUS.iter().any(|(first, last)| (*first..=*last).contains(&gpu.device))
                || topology.slot_of(bdf).any(|mate| mate.vendor == VENDOR_AMD)
        }
        _ => false,
    }
}

/// Why a virtual function is no card of its own, and why a card is none beside its virtual
/// functions.
fn is_share(topology: &Topology, gpu: &PciDevice) -> Option<SetAside> {
    let by_gim = |card: &PciDevice| card.driver.as_deref() == Some(AMD_GIM);
    match gpu.sriov {
        Some(Sriov::Vf { pf }) => match topology.device(pf) {
            // GIM gives a virtual function the card, or a part of it that its admin has set.
            Some(card) if by_gim(card) => None,
            _ => Some(SetAside::Share(pf)),
        },
        Some(Sriov::Pf { enabled: 1.., .. }) if by_gim(gpu) => Some(SetAside::GivenOut),
        _ => None,
    }
}

/// Why passthrough of a function is not supported yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// Its memory is coherent with the CPU's, and something is missing for that.
    Coherent(CoherentLack),
    /// GB10 (DGX Spark), which has no memory of its own.
    Gb10,
    /// A function of any kind whose PCI domain has more than 16 bits.
    Domain,
    /// NVIDIA's virtual function of this card: VFIO opens it only after the vGPU driver has set a
    /// type for it, and its type is chosen by `--vgpu`.
    VgpuSlot(Bdf, VfKind),
}

/// The GPU of GB10: the PCI ID list.
const GB10: u16 = 0x2e12;

/// Writes the missing features, a sentence each, to follow the names of GPUs.
impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = match self {
            Unsupported::VgpuSlot(card, kind) => {
                let what = match kind {
                    VfKind::MdevParent => "that goes to guests as mediated devices only",
                    VfKind::Vgpu => "with a vGPU type; --vgpu requests one",
                    _ => "without a vGPU type",
                };
                return write!(f, "not supported: a virtual function of {card} {what}");
            }
            Unsupported::Coherent(lack) => return lack.fmt(f),
            // https://docs.nvidia.com/dgx/dgx-spark/support.html, "Passthrough virtualization
            // support".
            Unsupported::Gb10 => {
                "not supported: NVIDIA supports no passthrough of a GB10's GPU, which shares its \
                 memory with the CPU"
            }
            Unsupported::Domain => {
                "not supported: QEMU takes no PCI domain above ffff, and what is behind Intel VMD \
                 has one; with VMD off in the firmware's setup it has another"
            }
        };
        f.write_str(rest)
    }
}

impl Topology {
    /// Returns why a GPU is not available by number; `None` if it is, or the function is not a GPU.
    pub fn set_aside(&self, device: &PciDevice) -> Option<SetAside> {
        match device {
            _ if device.kind() != DeviceKind::Gpu => None,
            _ if is_share(self, device).is_some() => is_share(self, device),
            _ if self.unsupported(device).is_some() => None,
            _ if is_integrated(self, device) => Some(SetAside::Integrated),
            PciDevice { boot_vga: true, .. } => Some(SetAside::BootDisplay),
            _ => None,
        }
    }

    /// Where a GPU is that no other slot can hold, as words to follow "it is"; `None` for a card.
    pub fn fixed_place(&self, gpu: &PciDevice) -> Option<&'static str> {
        if is_integrated(self, gpu) {
            return Some("part of the processor");
        }
        let is_arm = !self.is_x86() && gpu.vendor == VENDOR_NVIDIA && gpu.device == GB10;
        let is_module = is_arm || self.coherent_model(gpu).is_some() || model(gpu).contains("SXM");
        is_module.then_some("fixed to its board")
    }

    /// Returns why the devices are unknown; none if functions are listed.
    pub fn unlisted(&self) -> Option<&'static str> {
        self.devices().is_empty().then_some("its record lists no PCI functions")
    }

    /// Returns the sentence that there are none of these devices, or that it is unknown.
    pub fn without(&self, devices: &str) -> String {
        match self.unlisted() {
            Some(why) => format!("whether this host has a {devices} is not known: {why}"),
            None => format!("this host has no {devices}"),
        }
    }

    /// Returns the GPUs set aside, by address, each with the reason.
    pub fn all_aside(&self) -> impl Iterator<Item = (&PciDevice, SetAside)> {
        self.devices().iter().filter_map(|device| Some((device, self.set_aside(device)?)))
    }

    /// Returns the whole GPUs among them.
    pub fn displays(&self) -> impl Iterator<Item = (&PciDevice, SetAside)> {
        self.all_aside().filter(|(_, why)| !matches!(why, SetAside::Share(_)))
    }

    /// Returns why gpuvm cannot pass a function through. Boards of other processors than Arm have
    /// no NVLink-C2C, whatever the id.
    pub fn unsupported(&self, device: &PciDevice) -> Option<Unsupported> {
        // libvirt defines such a domain, and QEMU 10.0 refuses it at start: "Property
        // 'vfio-pci.host' doesn't take value '10000:01:00.0'".
        if device.bdf.segment() > 0xffff {
            return Some(Unsupported::Domain);
        }
        if device.vendor != VENDOR_NVIDIA {
            return None;
        }
        if let (Some(kind), Some(Sriov::Vf { pf })) = (self.vf_kind(device), &device.sriov) {
            return Some(Unsupported::VgpuSlot(*pf, kind));
        }
        if self.is_x86() {
            return None;
        }
        if device.device == GB10 {
            return Some(Unsupported::Gb10);
        }
        let model = self.coherent_model(device)?;
        self.coherent_lack(device, model).map(Unsupported::Coherent)
    }

    /// Whether the host is known to be x86.
    pub(super) fn is_x86(&self) -> bool {
        let machine = self.machine();
        match machine.architecture.as_deref() {
            Some(name) => matches!(name, "x86_64" | "i686"),
            None => {
                matches!(machine.cpu_vendor.as_deref(), Some("GenuineIntel" | "AuthenticAMD"))
            }
        }
    }

    /// The other functions of a function's slot, by address.
    pub fn slot_of(&self, bdf: Bdf) -> impl Iterator<Item = &PciDevice> {
        let at = |function| Bdf::new(bdf.segment(), bdf.bus(), bdf.device(), function);
        let slot = at(0).unwrap_or(bdf)..=at(7).unwrap_or(bdf);
        self.in_order(slot).filter(move |mate| mate.bdf != bdf)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vendor::{PROCESSING, VENDOR_HABANA, VENDOR_QUALCOMM};
    use super::*;
    use crate::topology::{Core, NumaNode, Parts};
    use serde_json::json;

    fn function(bdf: &str, ids: (u16, u16), class: u32) -> PciDevice {
        let json = json!({ "bdf": bdf, "class": format!("{:#08x}", class << 8),
            "vendor": format!("{:#06x}", ids.0), "device": format!("{:#06x}", ids.1) });
        serde_json::from_value(json).unwrap()
    }

    fn host(devices: Vec<PciDevice>, architecture: &str) -> Topology {
        let pcpus = "0".parse().unwrap();
        let core =
            Core { package: 0, die: None, core_id: 0, node: crate::cpuset::NodeId(0), pcpus };
        let node: NumaNode = serde_json::from_value(json!({
            "os_index": 0, "pcpus": "0", "memory_kib": 1 << 20
        }))
        .unwrap();
        let mut parts = Parts { nodes: vec![node], cores: vec![core], devices, ..Parts::default() };
        parts.machine.architecture = Some(architecture.into());
        Topology::new(parts).unwrap()
    }

    #[test]
    fn accelerators_are_recognised_by_vendor_and_class() {
        let kind = |vendor, device, class| function("01:00.0", (vendor, device), class).kind();
        for (vendor, device, class) in [
            (VENDOR_NVIDIA, 0x2330, THREE_D),
            (VENDOR_NVIDIA, 0x2e12, VGA),
            (VENDOR_ATI, 0x74a1, PROCESSING),
            (VENDOR_ATI, 0x740f, DISPLAY),
            (VENDOR_ATI, 0x74b5, PROCESSING),
            (VENDOR_INTEL, 0x0bd5, DISPLAY),
            (VENDOR_INTEL, 0x56c0, DISPLAY),
            (VENDOR_HABANA, 0x1020, PROCESSING),
            (VENDOR_QUALCOMM, 0xa100, PROCESSING),
        ] {
            assert_eq!(kind(vendor, device, class), DeviceKind::Gpu, "{vendor:x}:{device:x}");
        }
        for (vendor, device, class) in [
            // QuickAssist, DSA, an NPU, an FPGA card, an AMD NPU, Alveo.
            (VENDOR_INTEL, 0x4940, 0x0b40),
            (VENDOR_INTEL, 0x0b25, 0x0880),
            (VENDOR_INTEL, 0x7d1d, PROCESSING),
            (VENDOR_INTEL, 0x09c4, PROCESSING),
            (VENDOR_AMD, 0x1502, 0x1180),
            (0x10ee, 0x5000, PROCESSING),
            // BlueField's management function, an ASPEED, an ES1000, a phone's modem.
            (0x15b3, 0xc2d3, 0x0801),
            (0x1a03, 0x2000, VGA),
            (VENDOR_ATI, 0x515e, VGA),
            (VENDOR_QUALCOMM, 0x0306, PROCESSING),
        ] {
            assert_eq!(kind(vendor, device, class), DeviceKind::Other, "{vendor:x}:{device:x}");
        }
        assert_eq!(kind(VENDOR_NVIDIA, 0x22a3, 0x0680), DeviceKind::NvSwitch);
        assert_eq!(kind(0x15b3, 0xa2dc, 0x0200), DeviceKind::Nic);
    }

    #[test]
    fn displays_do_not_count() {
        let card = function("0000:01:00.0", (VENDOR_NVIDIA, 0x2684), VGA);
        let shown = PciDevice { boot_vga: true, ..function("02:00.0", (VENDOR_ATI, 0x744c), VGA) };
        let devices = vec![
            function("0000:00:02.0", (VENDOR_INTEL, 0x4680), VGA),
            card.clone(),
            function("0000:01:00.1", (VENDOR_NVIDIA, 0x22ba), 0x0403),
            shown,
            function("0000:05:00.0", (VENDOR_ATI, 0x1638), VGA),
            // A still unknown id, beside the processor's security processor.
            function("0000:06:00.0", (VENDOR_ATI, 0xfff0), DISPLAY),
            function("0000:06:00.2", (VENDOR_AMD, 0x15c7), 0x1080),
            // A card beside its own USB controller.
            function("0000:07:00.0", (VENDOR_ATI, 0x73bf), VGA),
            function("0000:07:00.2", (VENDOR_ATI, 0x73a6), 0x0c03),
            // Intel's cards are behind a switch of their own, or in a guest at another place.
            function("0000:00:03.0", (VENDOR_INTEL, 0x56a0), VGA),
        ];
        let mut devices = devices;
        devices.sort_by_key(|device| device.bdf);
        let host = host(devices, "x86_64");
        let gpus: Vec<String> = host.gpus().map(|gpu| gpu.bdf.to_string()).collect();
        assert_eq!(gpus, ["0000:00:03.0", "0000:01:00.0", "0000:07:00.0"]);
        let aside: Vec<(String, SetAside)> =
            host.displays().map(|(gpu, why)| (gpu.bdf.to_string(), why)).collect();
        let integrated = |bdf: &str| (bdf.to_owned(), SetAside::Integrated);
        let expected = [
            integrated("0000:00:02.0"),
            ("0000:02:00.0".into(), SetAside::BootDisplay),
            integrated("0000:05:00.0"),
            integrated("0000:06:00.0"),
        ];
        assert_eq!(aside, expected);
    }

    #[test]
    fn shares_of_a_card_are_no_cards() {
        let pf = |bdf: &str, ids, driver: &str| PciDevice {
            sriov: Some(Sriov::Pf { total: 8, enabled: 1 }),
            driver: Some(driver.into()),
            ..function(bdf, ids, DISPLAY)
        };
        let vf = |bdf: &str, of: &str, ids| PciDevice {
            sriov: Some(Sriov::Vf { pf: of.parse().unwrap() }),
            ..function(bdf, ids, DISPLAY)
        };
        let (flex, nvidia, amd) =
            ((VENDOR_INTEL, 0x56c0), (VENDOR_NVIDIA, 0x2bb5), (VENDOR_ATI, 0x740f));
        let host = host(
            vec![
                pf("0000:00:02.0", flex, "i915"),
                vf("0000:00:02.1", "0000:00:02.0", flex),
                pf("0000:01:00.0", nvidia, "nvidia"),
                vf("0000:01:00.4", "0000:01:00.0", nvidia),
                pf("0000:02:00.0", amd, "gim"),
                vf("0000:02:02.0", "0000:02:00.0", amd),
            ],
            "x86_64",
        );
        let gpus: Vec<String> = host.gpus().map(|gpu| gpu.bdf.to_string()).collect();
        assert_eq!(gpus, ["0000:01:00.0", "0000:02:02.0"]);
        let at = |bdf: &str| host.device(bdf.parse().unwrap()).unwrap();
        let share = |bdf: &str| Some(SetAside::Share(bdf.parse().unwrap()));
        assert_eq!(host.set_aside(at("0000:00:02.1")), share("0000:00:02.0"));
        assert_eq!(host.set_aside(at("0000:01:00.4")), share("0000:01:00.0"));
        assert_eq!(host.set_aside(at("0000:02:00.0")), Some(SetAside::GivenOut));
        // Only NVIDIA's cannot be passed as they are.
        assert!(host.unsupported(at("0000:01:00.4")).is_some());
        assert_eq!(host.unsupported(at("0000:00:02.1")), None);
        let displays: Vec<String> = host.displays().map(|(gpu, _)| gpu.bdf.to_string()).collect();
        assert_eq!(displays, ["0000:00:02.0", "0000:02:00.0"]);
    }

    #[test]
    fn gpus_of_arm_processors_are_not_all_supported() {
        for (id, why) in [
            (0x3041, Some(Unsupported::Coherent(CoherentLack::Id(0x3041)))),
            (GB10, Some(Unsupported::Gb10)),
            (0x2330, None),
        ] {
            let gpu =
                || PciDevice { boot_vga: true, ..function("01:00.0", (VENDOR_NVIDIA, id), VGA) };
            let arm = host(vec![gpu()], "aarch64");
            assert_eq!(arm.unsupported(&gpu()), why, "{id:x}");
            assert_eq!(arm.gpus().count(), usize::from(why.is_some()), "{id:x}");
            assert_eq!(host(vec![gpu()], "x86_64").unsupported(&gpu()), None, "{id:x}");
        }
    }
}
