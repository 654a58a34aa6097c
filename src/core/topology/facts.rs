//! Facts of a host beyond its topology that the rules of `host doctor` use. Every value is
//! optional: facts that a record lacks or a user may not read are not checked.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::topology::software::{Platform, Software};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A range of physical addresses, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
}

impl AddressRange {
    /// Whether another range lies in it.
    pub fn contains(&self, other: &AddressRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// A memory range that the kernel keeps for the firmware's picture, from /proc/iomem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Framebuffer {
    /// The kernel's name for it: `BOOTFB`, `efifb`.
    pub name: String,
    /// Where it is.
    pub range: AddressRange,
}

/// Known facts about one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionFacts {
    /// Its address.
    pub bdf: Bdf,
    /// Its power state: `D0`, `D3hot`, `D3cold`, `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<String>,
    /// Whether its power may be cut while it is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d3cold_allowed: Option<bool>,
    /// Whether the kernel shows reset methods of it, on a host where it shows those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_reset: Option<bool>,
    /// Addresses of its memory BARs by number; `None` if the BAR has no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<BTreeMap<u8, Option<AddressRange>>>,
    /// Size of BAR 1 in bytes, and the largest that it can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resizable: Option<(u64, u64)>,
}

/// The file that gives vfio-pci ids, and the ids (`10de:2330`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GivenIds {
    /// The file, or `proc/cmdline`.
    pub at: String,
    /// The ids.
    pub ids: Vec<String>,
}

/// Services that open every GPU of the driver nvidia, by the names of their processes.
pub const GPU_SERVICES: [&str; 3] = ["nvidia-persistenced", "nv-hostengine", "dcgm-exporter"];
/// The service that spreads interrupts.
pub const IRQBALANCE: &str = "irqbalance";
/// The unit of `gpuvm device bind --at-boot`.
pub const BINDING_UNIT: &str = "etc/systemd/system/gpuvm-vfio.service";

/// The configuration that decides at boot which driver gets a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BootDrivers {
    /// Ids given to vfio-pci.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfio_ids: Vec<GivenIds>,
    /// Drivers that are loaded after vfio-pci (`softdep DRIVER pre: vfio-pci`) or never.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<String>,
    /// Functions that `gpuvm device bind --at-boot` has listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_boot: Vec<Bdf>,
    /// Those among them, and cards that get virtual functions at boot, whose identity an older
    /// version did not record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unidentified: Vec<Bdf>,
    /// The file that still lists the module `vfio_virqfd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virqfd: Option<String>,
    /// Whether vfio-pci is built into the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_in: Option<bool>,
    /// The running kernel's initramfs, and the file or directory that it has an older copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<(String, String)>,
}

/// A program that a file of ours runs as root later, and that others than root can replace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplaceableProgram {
    /// The file that runs it.
    pub file: String,
    /// The program.
    pub program: String,
    /// Why others can replace it.
    pub why: String,
}

/// A user of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionUser {
    /// The GPU.
    pub bdf: Bdf,
    /// Who uses it and how, to be read after "by".
    pub by: String,
}

/// Changes by an admin in the unit of a daemon of libvirt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DaemonUnit {
    /// The unit: `libvirtd.service`.
    pub unit: String,
    /// `LimitMEMLOCK` in bytes and its file; the largest number for `infinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<(u64, String)>,
    /// Of the capabilities that locked memory needs those that the unit takes away, and the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<(Vec<String>, String)>,
}

/// Free memory of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FreeBlocks {
    /// The node.
    pub node: NodeId,
    /// All free memory in KiB.
    pub free_kib: u64,
    /// That in blocks of 2 MiB and more.
    pub large_kib: u64,
}

/// Kernel settings by their file; only those that were readable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelSettings {
    /// Whether VFIO puts idle functions into D3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_d3: Option<bool>,
    /// The most mappings that VFIO makes for one guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma_entry_limit: Option<u64>,
    /// Whether equal pages of guests are merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ksm: Option<bool>,
    /// Policy of PCIe link power management.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aspm: Option<String>,
    /// Pcpus by their frequency governor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governors: Option<BTreeMap<String, CpuSet>>,
    /// Policy of transparent huge pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_huge_pages: Option<String>,
    /// Whether `nvidia_drm` shows a console of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drm_console: Option<bool>,
    /// Whether KVM offers guests with SEV-SNP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sev_snp: Option<bool>,
    /// Whether the kernel serves virtio NICs: /dev/vhost-net is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_net: Option<bool>,
    /// Whether the kernel offers hardware virtualization: /dev/kvm is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<bool>,
}

/// Settings of libvirt about devices and shutdown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LibvirtConfig {
    /// `cgroup_device_acl` of qemu.conf; `None` for libvirt's own list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_acl: Option<Vec<String>>,
    /// `user` of qemu.conf; `None` for the distribution's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether libvirt's daemon ends guests itself at shutdown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto_shutdown: bool,
}

/// How guests are ended when the host goes down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestsUnit {
    /// Whether `libvirt-guests.service` is enabled.
    pub enabled: bool,
    /// `SHUTDOWN_TIMEOUT` in seconds and its file; `None` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<(u64, String)>,
}

/// Tests of GPUs between guests, as the policy of the host has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuTests {
    /// Why they cannot be made where they are required; `None`: they can, or need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untestable: Option<String>,
}

/// How arguments of the kernel are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BootLoader {
    /// `/etc/default/grub` and `update-grub` (Debian, Ubuntu).
    UpdateGrub,
    /// `grubby` (Fedora, RHEL).
    Grubby,
    /// `/etc/kernel/cmdline` and `proxmox-boot-tool`.
    ProxmoxBootTool,
}

/// The program that makes the initramfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum InitramfsTool {
    /// initramfs-tools (Debian, Ubuntu).
    UpdateInitramfs,
    /// dracut (Fedora, RHEL).
    Dracut,
    /// mkinitcpio (Arch).
    Mkinitcpio,
}

impl InitramfsTool {
    /// Its command that renews the initramfs of every kernel.
    pub fn command(self) -> &'static str {
        match self {
            InitramfsTool::UpdateInitramfs => "update-initramfs -u -k all",
            InitramfsTool::Dracut => "dracut --force --regenerate-all",
            InitramfsTool::Mkinitcpio => "mkinitcpio -P",
        }
    }
}

/// Known facts about a host beyond its topology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The machine below the kernel: virtual or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// The programs that guests need; `None` if the files are not those of a whole system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<Software>,
    /// The firmware's tables of IOMMUs: `DMAR`, `IVRS`, `IORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_tables: Option<Vec<String>>,
    /// Groups whose DMA is mapped strictly (`type` is `DMA`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_groups: Option<Vec<u32>>,
    /// Memory of the firmware's picture; `None` if /proc/iomem is not readable or hides addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framebuffers: Option<Vec<Framebuffer>>,
    /// Devices of the firmware's picture: `efi-framebuffer.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framebuffer_devices: Option<Vec<String>>,
    /// GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionFacts>,
    /// The configuration that binds drivers at boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_drivers: Option<BootDrivers>,
    /// Users of GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<FunctionUser>>,
    /// Services that run, of those that matter: `nvidia-persistenced`, `irqbalance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<String>>,
    /// Kernel settings.
    #[serde(default)]
    pub kernel: KernelSettings,
    /// Changed units of libvirt's daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon_units: Option<Vec<DaemonUnit>>,
    /// Free memory by node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_blocks: Option<Vec<FreeBlocks>>,
    /// Whether irqbalance has a list of pcpus to leave alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqbalance_banned: Option<bool>,
    /// PCIe ports that send requests between devices to the root, in older records; the functions
    /// have their registers now.
    #[serde(default, skip_serializing)]
    pub redirecting_ports: Option<Vec<Bdf>>,
    /// Files that name the register of ACS, such as boot scripts that clear it; `None` if not
    /// looked for, since no port is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs_files: Option<Vec<String>>,
    /// libvirt's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<LibvirtConfig>,
    /// How guests are ended at shutdown; `None` if libvirt-guests is not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests_unit: Option<GuestsUnit>,
    /// How kernel arguments are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_loader: Option<BootLoader>,
    /// The program that makes the initramfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs: Option<InitramfsTool>,
    /// Tests of GPUs between guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_tests: Option<GpuTests>,
    /// Programs that others could replace before root runs them; `None` if not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaceable: Option<Vec<ReplaceableProgram>>,
    /// Facts that could not be read, by the path that a rule examines, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<String, String>,
}

impl Facts {
    /// The facts of a function.
    pub fn function(&self, bdf: Bdf) -> Option<&FunctionFacts> {
        self.functions.iter().find(|function| function.bdf == bdf)
    }
}
