//! PCI functions of a host.

use super::accelerator;
use super::vendor::VENDOR_NVIDIA;
use super::vgpu::{Mig, Vgpu};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::health::Health;
use crate::p2p::{Acs, Ats};
use serde::{Deserialize, Serialize};

/// A base address register that asks for memory or ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Number: 0 to 5 for BARs, 6 for the expansion ROM, 7 and up for bridge windows and VF BARs.
    pub index: u8,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it is an I/O port range.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub io: bool,
    /// Whether it may be above 4 GiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_64bit: bool,
    /// Whether it is prefetchable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefetchable: bool,
    /// Whether the kernel found no addresses for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unassigned: bool,
}

impl Bar {
    /// A BAR of memory below 4 GiB.
    pub fn new(index: u8, bytes: u64) -> Bar {
        Bar { index, bytes, io: false, is_64bit: false, prefetchable: false, unassigned: false }
    }
}

/// A PCIe link as sysfs shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Speed in units of 0.1 GT/s (25 is 2.5 GT/s); none if the kernel reports "Unknown".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_dgts: Option<u32>,
    /// Width in lanes; none if the kernel reports 0 or 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u8>,
}

/// A function's part in SR-IOV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "role", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sriov {
    /// A physical function.
    Pf {
        /// Maximum number of VFs.
        total: u32,
        /// Number of VFs.
        enabled: u32,
    },
    /// A virtual function.
    Vf {
        /// Its physical function.
        pf: Bdf,
    },
}

/// A network device or an RDMA device of a PCI function, as the kernel names them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NetFace {
    /// Network devices (`enp134s0f0`, `ib0`), by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub netdevs: Vec<String>,
    /// RDMA devices (`mlx5_0`), by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<String>,
    /// MAC addresses by network device; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
    /// Why the host needs it (default route, member of a bridge or bond); empty: it does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
}

/// One PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PciDevice {
    /// Its address.
    pub bdf: Bdf,
    /// The bridge right above it; none below a root complex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Bdf>,
    /// Root complex above it, by the kernel's name (`pci0000:2b`); `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Class, subclass and programming interface, 24 bits.
    #[serde(with = "hex")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub class: u32,
    /// Vendor id; 0xffff or 0 if the device does not respond.
    #[serde(with = "hex")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub vendor: u16,
    /// Device id.
    #[serde(with = "hex")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub device: u16,
    /// Subsystem vendor id.
    #[serde(with = "hex", default)]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub subsystem_vendor: u16,
    /// Subsystem device id.
    #[serde(with = "hex", default)]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub subsystem_device: u16,
    /// Node reported by the kernel; none for -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Driver that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// IOMMU group; none if the IOMMU is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// Base address registers, by number; empty if the record has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bars: Vec<Bar>,
    /// Link now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// The best link it can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_max: Option<Link>,
    /// Its part in SR-IOV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
    /// Reset methods in the kernel's order; empty: it has none. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_methods: Option<Vec<String>>,
    /// Its network and RDMA devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<NetFace>,
    /// Whether the firmware and the console use it as display (sysfs `boot_vga`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_vga: bool,
    /// A GPU's UUID, as NVIDIA's tools print it; only if identifying data was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// A GPU's health; `None` if not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Access Control Services of a bridge, or of a function that has them; `None` if unknown, or a
    /// function without. Only root can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs: Option<Acs>,
    /// Address Translation Services of a GPU, NIC or NVMe drive; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ats: Option<Ats>,
    /// Mediated devices below it, which guests may have; the function itself goes to none
    /// meanwhile.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mediated: u32,
    /// Device control of its PCI Express capability; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devctl: Option<u16>,
    /// Its device of VFIO; `None` if no VFIO driver has it, or a kernel before 6.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vfio: Option<VfioDevice>,
    /// Its offer of vGPUs; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<Vgpu>,
    /// A GPU's MIG mode; `None` if it has none, or NVML did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Whether it is the second display of a card whose GPU is another function of its slot, as on
    /// Radeons up to the HD 4000; set by [`super::Topology::new`].
    #[serde(skip)]
    pub second_display: bool,
}

/// The device that VFIO makes of a function while one of its drivers has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VfioDevice {
    /// N of `vfio-dev/vfioN`.
    pub number: u32,
    /// Whether it has a node, /dev/vfio/devices/vfioN, which a guest by iommufd opens: kernels
    /// built with CONFIG_VFIO_DEVICE_CDEV.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node: bool,
}

/// The kind of a function, for the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A GPU or accelerator, by a table of vendors, classes and ids; VGA adapters of management
    /// controllers do not count.
    Gpu,
    /// NVIDIA, class 0x0680.
    #[serde(rename = "nvswitch")]
    NvSwitch,
    /// Ethernet, InfiniBand: class 0x02.
    Nic,
    /// Class 0x0108.
    Nvme,
    /// Class 0x0604: root port, switch port, PCI bridge.
    Bridge,
    /// Class 0x0600.
    HostBridge,
    /// Anything else.
    Other,
}

/// A set of functions that the IOMMU cannot keep apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IommuGroup {
    /// The kernel's number.
    pub number: u32,
    /// Functions in it, by address.
    pub members: Vec<Bdf>,
}

impl PciDevice {
    /// Whether it does not respond: its ids read all ones, or nothing.
    pub fn is_silent(&self) -> bool {
        [self.vendor, self.device].iter().any(|&id| id == 0 || id == 0xffff)
    }

    /// The card that it is a virtual function of; `None` if it is another function.
    pub fn pf(&self) -> Option<Bdf> {
        match self.sriov {
            Some(Sriov::Vf { pf }) => Some(pf),
            _ => None,
        }
    }

    /// Whether it is a virtual function of a card.
    pub fn is_vf(&self) -> bool {
        matches!(self.sriov, Some(Sriov::Vf { .. }))
    }

    /// The drive that an NVMe function shares as its virtual function; `None` if it is a drive
    /// itself, or another kind. Its share of queues and namespaces is set at the drive.
    pub fn drive_share(&self) -> Option<Bdf> {
        match self.sriov {
            Some(Sriov::Vf { pf }) if self.kind() == DeviceKind::Nvme => Some(pf),
            _ => None,
        }
    }

    /// Whether it is the Intel graphics of the processor, without its virtual functions: 00:02.0.
    pub fn is_intel_graphics(&self) -> bool {
        let place = (self.bdf.segment(), self.bdf.bus(), self.bdf.device(), self.bdf.function());
        self.vendor == 0x8086 && self.class >> 16 == 0x03 && place == (0, 0, 2, 0)
    }

    /// Whether it does not respond but may be a GPU or an NVSwitch: its class is one of theirs
    /// (gpuvm-hardware(7), DEVICE IDS), or unreadable, too.
    pub fn may_be_silent_gpu(&self) -> bool {
        let class = self.class >> 8;
        self.is_silent() && matches!(class, 0x0300 | 0x0302 | 0x0380 | 0x0680 | 0xffff)
    }

    /// Returns the kind of the function. NVSwitches are class 0x0680, so only 0x0600 and 0x0604
    /// count as bridges (gpuvm-hardware(7), DEVICE IDS).
    pub fn kind(&self) -> DeviceKind {
        match self.class >> 8 {
            0x0600 => DeviceKind::HostBridge,
            0x0604 => DeviceKind::Bridge,
            0x0680 if self.vendor == VENDOR_NVIDIA => DeviceKind::NvSwitch,
            0x0108 => DeviceKind::Nvme,
            class if class >> 8 == 0x02 => DeviceKind::Nic,
            _ if self.second_display => DeviceKind::Other,
            class if accelerator::is_gpu(self.vendor, self.device, class) => DeviceKind::Gpu,
            _ => DeviceKind::Other,
        }
    }
}

/// Marks second displays of cards by AMD (once ATI) and Intel: display functions beside one of another
/// id with a lower number in their slot. Equal ids are GPUs that a hypervisor has put into one slot,
/// and so are GPUs without a display, of any id.
pub(super) fn mark_second_displays(devices: &mut [PciDevice]) {
    devices.iter_mut().for_each(|device| device.second_display = false);
    let is_card = |device: &&PciDevice| is_display(device) && !device.is_vf();
    let cards: Vec<(Bdf, u16, u16)> =
        devices.iter().filter(is_card).map(|gpu| (gpu.bdf, gpu.vendor, gpu.device)).collect();
    let slot = |bdf: Bdf| (bdf.segment(), bdf.bus(), bdf.device());
    for device in devices.iter_mut().filter(|device| device.bdf.function() > 0 && !device.is_vf()) {
        let is_first = |(gpu, vendor, id): &(Bdf, u16, u16)| {
            slot(*gpu) == slot(device.bdf)
                && gpu.function() < device.bdf.function()
                && (*vendor, *id != device.device) == (device.vendor, true)
        };
        device.second_display = is_display(device) && cards.iter().any(is_first);
    }
}

/// Whether it is a GPU of the classes and vendors whose cards have a function for each display.
fn is_display(device: &PciDevice) -> bool {
    const VENDORS: [u16; 2] = [0x1002, 0x8086];
    const CLASSES: [u32; 2] = [0x0300, 0x0380];
    device.kind() == DeviceKind::Gpu
        && VENDORS.contains(&device.vendor)
        && CLASSES.contains(&(device.class >> 8))
}

/// Whether there are none.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Writes ids as `0x10de`, classes as `0x030200`, and reads hexadecimal with `0x` only.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes all digits of an id, or the six of a class.
    pub fn serialize<T: Copy + Into<u32>, S: Serializer>(
        value: &T,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        let width = 2 + (2 * size_of::<T>()).min(6);
        s.collect_str(&format_args!("{:#0width$x}", (*value).into()))
    }

    /// Reads `0x` and digits.
    pub fn deserialize<'de, T: TryFrom<u32>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        let text = String::deserialize(d)?;
        text.strip_prefix("0x")
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| {
                serde::de::Error::custom(format!("`{text}` is not an id such as 0x10de"))
            })
    }
}
