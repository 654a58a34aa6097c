//! GPUs whose memory is coherent with the CPU's over NVLink-C2C (Grace with Hopper or Blackwell):
//! their models, their NUMA nodes, and what passing them through takes (gpuvm-hardware(7), GRACE).

use super::vendor::VENDOR_NVIDIA;
use super::{NumaNode, PciDevice, Topology, VFIO, is_vfio};
use crate::bdf::Bdf;
use crate::cpuset::NodeSet;
use crate::memsize::MemSize;
use crate::versions::{LIBVIRT_SMMU, QEMU_SMMU, Version};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// The kernel's driver that passes such GPUs through with their memory.
pub const NVGRACE: &str = "nvgrace-gpu-vfio-pci";
/// NUMA nodes of a GPU: one for each MIG instance that it can have, and one for the rest.
pub const NODES_PER_GPU: usize = 8;

/// GPUs of a compute tray of a rack.
pub const GPUS_PER_TRAY: usize = 4;

/// A model of such GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoherentModel {
    /// PCI device id.
    id: u16,
    /// Its memory in GiB, rounded up to a power of two: the BAR by which the driver shows it.
    pub bar_gib: u64,
    /// Whether its NVLinks leave the host.
    pub is_of_rack: bool,
    /// Whether the driver of Linux 7.3 knows it (drivers/vfio/pci/nvgrace-gpu/main.c).
    is_in_driver: bool,
}

/// A row of [`MODELS`].
const fn model(id: u16, bar_gib: u64, is_of_rack: bool, is_in_driver: bool) -> CoherentModel {
    CoherentModel { id, bar_gib, is_of_rack, is_in_driver }
}

/// GH200 (96 and 144 GB), GB200, GB300, and two ids of KubeVirt's enhancement 199.
const MODELS: [CoherentModel; 7] = [
    model(0x2342, 128, false, true),
    model(0x2345, 128, false, true),
    model(0x2348, 256, false, true),
    model(0x2941, 256, true, true),
    model(0x31c2, 512, true, true),
    model(0x3041, 512, true, false),
    model(0x307f, 512, true, false),
];

impl CoherentModel {
    /// Returns the model of a function by its ids; only boards with Arm processors have NVLink-C2C.
    pub fn of(device: &PciDevice) -> Option<CoherentModel> {
        CoherentModel::of_ids((device.vendor, device.device))
    }

    /// The same by vendor and device.
    pub fn of_ids((vendor, device): (u16, u16)) -> Option<CoherentModel> {
        let is_nvidias = vendor == VENDOR_NVIDIA;
        MODELS.into_iter().find(|model| is_nvidias && model.id == device)
    }
}

/// The kernel's support on a host with such GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CoherentHost {
    /// Whether it has the driver nvgrace-gpu-vfio-pci. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvgrace: Option<bool>,
    /// Number of its SMMUv3 units. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smmuv3: Option<u32>,
    /// Size of its normal pages. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_kib: Option<MemSize>,
}

/// The libvirt and QEMU that guests would run in, where these cannot pass such GPUs through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldStack {
    /// libvirt's version; `None` if unknown.
    pub libvirt: Option<Version>,
    /// QEMU's version; `None` if unknown.
    pub qemu: Option<Version>,
    /// Whether they are only assumed, since the record of the host names none.
    pub is_assumed: bool,
}

impl fmt::Display for OldStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |name: &str, version: Option<Version>| {
            version.map(|version| format!("{name} {version}"))
        };
        let found = [of("libvirt", self.libvirt), of("QEMU", self.qemu)];
        let found: Vec<String> = found.into_iter().flatten().collect();
        match &found[..] {
            [] => f.write_str("this libvirt and QEMU")?,
            found => f.write_str(&found.join(" and "))?,
        }
        f.write_str(if self.is_assumed { ", assumed since the record names none" } else { "" })
    }
}

/// Why such a GPU cannot be passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoherentLack {
    /// No table of nvgrace-gpu-vfio-pci that is known has its id, and it is not bound to it.
    Id(u16),
    /// The kernel has no driver for it.
    Driver,
    /// The kernel has no iommufd.
    Iommufd,
    /// The kernel makes no device of VFIO for it.
    Cdev,
    /// The kernel shows no SMMUv3.
    Smmu,
    /// libvirt or QEMU are too old.
    Stack(OldStack),
}

/// Writes it to follow "GPU .. is".
impl fmt::Display for CoherentLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoherentLack::Id(id) => write!(
                f,
                "not supported: no known table of {NVGRACE} has id 10de:{id:04x}; a GPU that is \
                 bound to this driver is supported"
            ),
            CoherentLack::Driver => write!(
                f,
                "not supported: the host's kernel has no driver {NVGRACE} \
                 (CONFIG_NVGRACE_GPU_VFIO_PCI), and vfio-pci passes no memory of such a GPU through"
            ),
            CoherentLack::Iommufd => f.write_str(
                "not supported: the host has no /dev/iommu (CONFIG_IOMMUFD), by which alone guests \
                 get the accelerated SMMUv3 that such a GPU needs",
            ),
            CoherentLack::Cdev => f.write_str(
                "not supported: it has no /dev/vfio/devices/vfioN (CONFIG_VFIO_DEVICE_CDEV), by \
                 which alone iommufd passes it through",
            ),
            CoherentLack::Smmu => f.write_str(
                "not supported: the host shows no SMMUv3 below /sys/class/iommu, and guests need \
                 one that is nested in the host's",
            ),
            CoherentLack::Stack(old) => {
                let (Version(a, b, _), Version(c, ..)) = (LIBVIRT_SMMU, QEMU_SMMU);
                write!(
                    f,
                    "not supported with {old}: guests need an accelerated SMMUv3 and generic \
                     initiators, which libvirt {a}.{b} and QEMU {c} have"
                )
            }
        }
    }
}

impl Topology {
    /// Returns the model of a GPU with coherent memory; `None` if it is another function.
    pub fn coherent_model(&self, device: &PciDevice) -> Option<CoherentModel> {
        CoherentModel::of(device).filter(|_| !self.is_x86())
    }

    /// Whether a function is a GPU with coherent memory.
    pub fn is_coherent(&self, bdf: Bdf) -> bool {
        self.device(bdf).is_some_and(|device| self.coherent_model(device).is_some())
    }

    /// Whether the host has GPUs with coherent memory.
    pub fn has_coherent_gpus(&self) -> bool {
        self.devices().iter().any(|device| self.coherent_model(device).is_some())
    }

    /// Whether the stack that cannot pass such GPUs through is only assumed.
    pub fn has_assumed_stack(&self) -> bool {
        self.machine().old_stack.is_some_and(|stack| stack.is_assumed)
    }

    /// Why a GPU of such a model cannot be passed through, as far as is known; `None` if it can.
    pub(super) fn coherent_lack(
        &self,
        device: &PciDevice,
        model: CoherentModel,
    ) -> Option<CoherentLack> {
        let machine = self.machine();
        let host = machine.coherent.unwrap_or_default();
        let is_bound =
            device.driver.as_deref().is_some_and(|name| name.replace('_', "-") == NVGRACE);
        if !model.is_in_driver && !is_bound {
            return Some(CoherentLack::Id(model.id));
        }
        if host.nvgrace == Some(false) && !is_bound {
            return Some(CoherentLack::Driver);
        }
        if machine.iommufd.is_some_and(|iommufd| !iommufd.node) {
            return Some(CoherentLack::Iommufd);
        }
        if device.vfio.is_some_and(|vfio| !vfio.node) {
            return Some(CoherentLack::Cdev);
        }
        if host.smmuv3 == Some(0) {
            return Some(CoherentLack::Smmu);
        }
        machine.old_stack.map(CoherentLack::Stack)
    }

    /// The same host with the libvirt and QEMU that cannot pass such GPUs through; `None` if they
    /// can.
    pub fn with_old_stack(mut self, stack: Option<OldStack>) -> Topology {
        self.parts.machine.old_stack = stack;
        self
    }

    /// The nodes that a GPU is a generic initiator of, by number; empty if they are unknown.
    pub fn nodes_of_gpu(&self, gpu: Bdf) -> impl Iterator<Item = &NumaNode> {
        self.nodes().iter().filter(move |node| node.gpu == Some(gpu))
    }

    /// Whether a function is such a GPU whose NVLinks leave the host.
    pub fn is_of_rack(&self, bdf: Bdf) -> bool {
        let model = self.device(bdf).and_then(|device| self.coherent_model(device));
        model.is_some_and(|model| model.is_of_rack)
    }

    /// The driver by which a function is passed through.
    pub fn passing_driver(&self, bdf: Bdf) -> &'static str {
        if self.is_coherent(bdf) { NVGRACE } else { VFIO }
    }

    /// Whether a driver that hands functions to guests is the right one for a function.
    pub fn passes_by(&self, bdf: Bdf, driver: &str) -> bool {
        match self.passing_driver(bdf) {
            NVGRACE => driver.replace('_', "-") == NVGRACE,
            _ => is_vfio(driver),
        }
    }

    /// Whether memory of a node is a GPU's, so that no guest and no program gets it. Records of
    /// earlier versions do not say which nodes are a GPU's: of a host with such GPUs, all without
    /// CPUs count.
    pub fn is_gpu_memory(&self, node: &NumaNode) -> bool {
        node.gpu.is_some()
            || (node.pcpus.is_empty()
                && self.nodes().iter().all(|node| node.gpu.is_none())
                && self.has_coherent_gpus())
    }

    /// A node as guests can use it: without memory and huge pages where these are a GPU's.
    pub fn usable<'n>(&self, node: &'n NumaNode) -> Cow<'n, NumaNode> {
        if !self.is_gpu_memory(node) {
            return Cow::Borrowed(node);
        }
        let memory_kib = MemSize::default();
        Cow::Owned(NumaNode { memory_kib, huge_pages: Vec::new(), ..node.clone() })
    }

    /// The nodes with memory of GPUs.
    pub fn gpu_memory_nodes(&self) -> NodeSet {
        let of_gpus = self.nodes().iter().filter(|node| self.is_gpu_memory(node));
        of_gpus.map(|node| node.os_index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Core, Iommufd, Parts, VfioDevice};
    use super::*;
    use crate::cpuset::NodeId;
    use serde_json::json;

    /// A host with a GPU of this id, one node with CPUs and two without.
    fn host(id: u16, change: impl FnOnce(&mut Parts)) -> Topology {
        let node =
            |id: u32, pcpus: &str| json!({ "os_index": id, "pcpus": pcpus, "memory_kib": 1 << 20 });
        let gpu = json!({ "bdf": "0009:01:00.0", "class": "0x030200", "vendor": "0x10de",
            "device": format!("{id:#06x}") });
        let nodes = json!([node(0, "0"), node(1, ""), node(2, "")]);
        let pcpus = "0".parse().unwrap();
        let core = Core { package: 0, die: None, core_id: 0, node: NodeId(0), pcpus };
        let mut parts = Parts {
            nodes: serde_json::from_value(nodes).unwrap(),
            cores: vec![core],
            devices: vec![serde_json::from_value(gpu).unwrap()],
            ..Parts::default()
        };
        parts.machine.architecture = Some("aarch64".into());
        change(&mut parts);
        Topology::new(parts).unwrap()
    }

    #[test]
    fn each_missing_part_is_named_with_its_package() {
        let said = |id, change: &dyn Fn(&mut Parts)| {
            let host = host(id, change);
            let why = host.unsupported(&host.devices()[0]);
            why.map(|why| why.to_string()).unwrap_or_default()
        };
        let kernel = |parts: &mut Parts, nvgrace, smmuv3| {
            parts.machine.coherent = Some(CoherentHost { nvgrace, smmuv3, page_kib: None });
        };
        let bound =
            |parts: &mut Parts| parts.devices[0].driver = Some("nvgrace-gpu-vfio-pci".into());
        let with_stack = |parts: &mut Parts, is_assumed| {
            let (libvirt, qemu) = (Some(Version(11, 3, 0)), Some(Version(10, 0, 2)));
            parts.machine.old_stack = Some(OldStack { libvirt, qemu, is_assumed });
        };
        let old = |parts: &mut Parts| with_stack(parts, false);
        assert_eq!(said(0x2941, &|_| {}), "");
        assert_eq!(said(0x2941, &|parts| kernel(parts, Some(true), Some(4))), "");
        assert!(
            said(0x2941, &|parts| kernel(parts, Some(false), None)).contains("no driver nvgrace")
        );
        assert!(said(0x2941, &|parts| kernel(parts, None, Some(0))).contains("no SMMUv3"));
        let without = |parts: &mut Parts| {
            parts.machine.iommufd =
                Some(Iommufd { node: false, unsafe_interrupts: None, groups: None });
        };
        assert!(said(0x2941, &without).contains("no /dev/iommu"));
        let by_node = |node| {
            move |parts: &mut Parts| parts.devices[0].vfio = Some(VfioDevice { number: 0, node })
        };
        assert!(said(0x2941, &by_node(false)).contains("CONFIG_VFIO_DEVICE_CDEV"));
        assert_eq!(said(0x2941, &by_node(true)), "");
        let of_versions = said(0x2941, &old);
        assert!(of_versions.contains("with libvirt 11.3.0 and QEMU 10.0.2"), "{of_versions}");
        assert!(of_versions.contains("libvirt 12.7 and QEMU 11 have"), "{of_versions}");
        assert!(!of_versions.contains("assumed"), "{of_versions}");
        let of_assumed = said(0x2941, &|parts| with_stack(parts, true));
        let why =
            "libvirt 11.3.0 and QEMU 10.0.2, assumed since the record names none: guests need";
        assert!(of_assumed.contains(why), "{of_assumed}");
        assert!(said(0x3041, &|_| {}).contains("10de:3041"));
        assert_eq!(said(0x3041, &bound), "");
        // The same ids on x86 are those of other boards.
        let x86 = |parts: &mut Parts| {
            parts.machine.architecture = Some("x86_64".into());
            old(parts);
        };
        assert_eq!(said(0x31c2, &x86), "");
    }

    #[test]
    fn nodes_without_cpus_are_a_gpus_if_it_says_so_or_nothing_is_known() {
        let nodes = |host: &Topology| host.gpu_memory_nodes().to_string();
        assert_eq!(nodes(&host(0x2342, |_| {})), "1-2");
        let gpu = Some("0009:01:00.0".parse().unwrap());
        assert_eq!(nodes(&host(0x2342, |parts| parts.nodes[2].gpu = gpu)), "2");
        // Memory behind CXL.
        assert_eq!(nodes(&host(0x2330, |_| {})), "");
    }
}
