//! The settings of `tune`, each to be kept, set as the planner would, removed, or given a value.

use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::DomainXml;
use crate::domain::guest::Made;
use crate::domain::nic_request::NicWish;
use crate::domain::rate::Rate;
use crate::memsize::MemSize;
use crate::placement::{ExtraKind, GuestCache, GuestTopology};
use crate::request::{Allow, DeviceWish, Extras, GpuWish, Near, PageSize, VfSettings, VgpuWish};
use std::collections::{BTreeMap, BTreeSet};

/// The action on one setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Item<T> {
    /// It is kept.
    #[default]
    Keep,
    /// It is set as the planner would for this guest.
    On,
    /// It is removed, so that libvirt's default applies.
    Off,
    /// It gets this value.
    To(T),
}

impl<T> Item<T> {
    /// Whether it is kept.
    pub fn is_kept(&self) -> bool {
        matches!(self, Item::Keep)
    }

    /// Whether it is set as the planner would.
    pub fn is_on(&self) -> bool {
        matches!(self, Item::On)
    }

    /// The value that it gets.
    pub fn value(&self) -> Option<&T> {
        match self {
            Item::To(value) => Some(value),
            _ => None,
        }
    }
}

/// The order in which vCPUs are pinned to the threads of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinOrder {
    /// As [`PinOrder::Core`]; not at all where cores are short, as of a new guest.
    Auto,
    /// Successive vCPUs on the threads of one core.
    Core,
    /// First the first threads of all cores.
    Thread,
}

/// The value type of a setting with only on and off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Never {}

/// The one value of the memory balloon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Virtio;

/// The file that replaces a disk's file, with the same content in another format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Its format: `raw`, `qcow2`.
    pub format: String,
    /// The file and its origin, a volume of a pool.
    pub made: Made,
}

/// The root ports of NICs that a guest gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewNics {
    /// Free ones, otherwise new ones.
    FreeOrNew,
    /// Only these, which are free in the running guest.
    Free(BTreeSet<u8>),
}

/// The passed-through NICs, virtual functions and NVMe drives that a guest gets. Each request is
/// complete for its kind: others of the kind are removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherFunctions {
    /// NICs; `None` if they stay.
    pub nics: Option<DeviceWish>,
    /// Virtual functions; `None` if they stay.
    pub vfs: Option<DeviceWish>,
    /// Settings of virtual functions, as [`Extras::vf_settings`]; omitted ones stay.
    pub vf_settings: Vec<VfSettings>,
    /// NVMe drives; `None` if they stay.
    pub nvmes: Option<DeviceWish>,
    /// The required distance of new NICs and virtual functions; `None` to leave it as requested at creation.
    pub nic_near: Option<Near>,
    /// The required distance of new NVMe drives; `None` to leave it as requested at creation.
    pub nvme_near: Option<Near>,
    /// The root ports that new ones may get, which are free in the running guest; `None` for any,
    /// also new ones.
    pub ports: Option<BTreeSet<u8>>,
}

impl OtherFunctions {
    /// Whether all of them stay.
    pub fn is_kept(&self) -> bool {
        ExtraKind::ALL.into_iter().all(|kind| self.of(kind).is_none())
    }

    /// The request for a kind; `None` if they stay.
    pub fn of(&self, kind: ExtraKind) -> Option<&DeviceWish> {
        match kind {
            ExtraKind::Nic => self.nics.as_ref(),
            ExtraKind::Vf => self.vfs.as_ref(),
            ExtraKind::Nvme => self.nvmes.as_ref(),
        }
    }

    /// The settings requested for a virtual function.
    pub(super) fn settings_of(&self, bdf: crate::bdf::Bdf) -> VfSettings {
        let Some(vfs) = self.vfs.clone() else { return VfSettings::default() };
        let vf_settings = self.vf_settings.clone();
        Extras { vfs, vf_settings, ..Extras::default() }.settings_of(bdf)
    }
}

/// Another size of a guest, or other passed-through functions: settings that depend on it are
/// planned again, settings with other values stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resize {
    /// Number of vCPUs; `None` if it stays, or follows from [`Resize::gpus`].
    pub vcpus: Option<u32>,
    /// The most vCPUs that it may have while it runs.
    pub max_vcpus: Option<u32>,
    /// Amount of memory; `None` if it stays, or follows from [`Resize::gpus`].
    pub memory: Option<MemSize>,
    /// The passed-through GPUs; `None` if they stay.
    pub gpus: Option<GpuWish>,
    /// How they were requested, for the record; `None` for the way of the recorded ones.
    pub gpus_said: Option<GpuWish>,
    /// Its vGPUs.
    pub vgpu: Item<VgpuWish>,
    /// How they were requested, for the record; `None` for the way that they are now.
    pub vgpu_said: Option<VgpuWish>,
    /// The passed-through NICs, virtual functions and NVMe drives.
    pub functions: OtherFunctions,
    /// How many of its vCPUs are plugged at start, which follows from the numbers before.
    pub plugged: Item<u32>,
}

impl Resize {
    /// Everything stays.
    const NOTHING: &'static Resize = &Resize {
        vcpus: None,
        max_vcpus: None,
        memory: None,
        gpus: None,
        gpus_said: None,
        vgpu: Item::Keep,
        vgpu_said: None,
        functions: OtherFunctions {
            nics: None,
            vfs: None,
            vf_settings: Vec::new(),
            nvmes: None,
            nic_near: None,
            nvme_near: None,
            ports: None,
        },
        plugged: Item::Keep,
    };

    /// The GPUs alone.
    pub fn gpus(gpus: Option<GpuWish>) -> Option<Resize> {
        Some(Resize { gpus, ..Resize::default() })
    }
}

/// The action on each setting of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Items {
    /// Another size; `None` if it stays, and so do its functions.
    pub resize: Option<Resize>,
    /// Pins of vCPUs.
    pub pins: Item<PinOrder>,
    /// CPU topology that the guest sees.
    pub topology: Item<GuestTopology>,
    /// Pin of the emulator.
    pub emulator: Item<CpuSet>,
    /// Number of I/O threads, and the disks each serves.
    pub iothreads: Item<u32>,
    /// Pins of I/O threads.
    pub iothread_pins: Item<CpuSet>,
    /// Huge pages.
    pub huge_pages: Item<PageSize>,
    /// Preallocation of memory at start.
    pub fill: Item<Never>,
    /// Guest NUMA cells.
    pub cells: Item<u32>,
    /// Host nodes that the cells' memory is bound to.
    pub memory_nodes: Item<NodeSet>,
    /// Rounding of memory to whole pages of each cell.
    pub memory_rounding: Item<PageSize>,
    /// Disks moved to another file, by the path of their old one; all others stay.
    pub convert: BTreeMap<String, Converted>,
    /// Whether disks on SATA and IDE, and NICs of emulated models, become those of virtio.
    pub convert_devices: bool,
    /// How the host caches disks.
    pub disk_cache: Item<String>,
    /// How QEMU reads and writes disks.
    pub disk_io: Item<String>,
    /// Queues of disks.
    pub disk_queues: Item<u32>,
    /// Queues of NICs.
    pub net_queues: Item<u32>,
    /// Inbound limit of NICs.
    pub inbound: Item<Rate>,
    /// Outbound limit of NICs.
    pub outbound: Item<Rate>,
    /// MTU of NICs.
    pub mtu: Item<u32>,
    /// NICs named by their network, each with whether that network hands out virtual functions.
    pub networks: Vec<(NicWish, bool)>,
    /// Whether these are all of its NICs on networks: others are removed, and new ones get a root
    /// port; `None` if others stay.
    pub all_nics: Option<NewNics>,
    /// Channel of the guest's agent.
    pub agent: Item<Never>,
    /// Places of passed-through functions in the guest's PCIe tree.
    pub pcie: Item<Never>,
    /// Whether passed-through functions are passed through by iommufd.
    pub iommufd: Item<Never>,
    /// Window for 64-bit BARs.
    pub window: Item<MemSize>,
    /// Physical address bits, and with them the CPU model.
    pub maxphysaddr: Item<u8>,
    /// KVM's hints for guests whose vCPUs have pcpus of their own.
    pub kvm_hints: Item<Never>,
    /// Source of the guest's cache leaves.
    pub cpu_cache: Item<GuestCache>,
    /// The invariant TSC, for which the guest's CPU is marked as one that does not migrate.
    pub invtsc: Item<Never>,
    /// Memory balloon.
    pub balloon: Item<Virtio>,
    /// The file that the serial console is written to: its directory; on: the one that the
    /// hypervisor keeps logs in.
    pub serial_log: Item<String>,
    /// Whether it may be moved to make room for others; only guests that gpuvm made.
    pub movable: Item<Never>,
    /// Whether its GPUs and NICs reach each other through their PCIe switch from its next start on;
    /// only guests that gpuvm made.
    pub p2p: Item<Never>,
    /// Which rules may be broken for it; off: none. Only guests that gpuvm made.
    pub allow: Item<Allow>,
    /// Settings that were not named, so that in guests of ours they follow the request of their
    /// creation.
    pub unnamed: BTreeSet<ItemName>,
}

impl Items {
    /// Returns everything that the planner would set. The page size stays, since pages must be
    /// reserved first; rates and MTU belong to the network, iommufd is a choice, and a disk format
    /// changes only on request, since every byte of the disk is copied.
    pub fn all() -> Items {
        Items {
            resize: None,
            pins: Item::On,
            topology: Item::On,
            emulator: Item::On,
            iothreads: Item::On,
            iothread_pins: Item::On,
            huge_pages: Item::Keep,
            fill: Item::On,
            cells: Item::On,
            memory_nodes: Item::On,
            memory_rounding: Item::On,
            convert: BTreeMap::new(),
            convert_devices: false,
            disk_cache: Item::On,
            disk_io: Item::On,
            disk_queues: Item::On,
            net_queues: Item::On,
            inbound: Item::Keep,
            outbound: Item::Keep,
            mtu: Item::Keep,
            networks: Vec::new(),
            all_nics: None,
            agent: Item::On,
            pcie: Item::On,
            iommufd: Item::Keep,
            window: Item::On,
            maxphysaddr: Item::On,
            kvm_hints: Item::On,
            cpu_cache: Item::On,
            invtsc: Item::On,
            balloon: Item::On,
            serial_log: Item::On,
            movable: Item::Keep,
            p2p: Item::Keep,
            allow: Item::Keep,
            unnamed: [
                ItemName::Pins,
                ItemName::Topology,
                ItemName::Emulator,
                ItemName::Cells,
                ItemName::MemoryNodes,
                ItemName::Pcie,
                ItemName::Maxphysaddr,
                ItemName::KvmHints,
                ItemName::CpuCache,
                ItemName::Invtsc,
                ItemName::Iothreads,
            ]
            .into(),
        }
    }

    /// The size and the functions that it gets.
    pub fn size(&self) -> &Resize {
        self.resize.as_ref().unwrap_or(Resize::NOTHING)
    }

    /// Whether a guest gets another size, and keeps its vCPUs and functions.
    pub(super) fn keeps_vcpus(&self) -> bool {
        let size = self.size();
        let is_size = self.resize.is_some() && size.vcpus.is_none() && size.max_vcpus.is_none();
        is_size && size.plugged.is_kept() && !self.moves_functions()
    }

    /// Whether its memory goes to other nodes, and all else stays where it is.
    pub(super) fn only_binds(&self) -> bool {
        let rest = Items { memory_nodes: Item::Keep, ..self.clone() };
        self.memory_nodes.is_on() && self.pins.is_kept() && !rest.need_a_place()
    }

    /// Keeps the CPU that the guest sees if its operating system depends on it: macOS does not boot
    /// with other models, nor with some numbers of cores. The same if an argument of QEMU sets it:
    /// the definition then has no effect.
    pub(super) fn keep_chosen(&mut self, xml: &DomainXml) {
        let is_unnamed = |name| self.unnamed.contains(&name);
        if is_unnamed(ItemName::Topology) && (xml.is_macos() || xml.is_replaced("smp")) {
            self.topology = Item::Keep;
        }
        let by_argument = xml.is_replaced("cpu");
        if is_unnamed(ItemName::Maxphysaddr) && (xml.is_macos() || by_argument) {
            self.maxphysaddr = Item::Keep;
        }
        for (name, item) in
            [(ItemName::KvmHints, &mut self.kvm_hints), (ItemName::Invtsc, &mut self.invtsc)]
        {
            if by_argument && self.unnamed.contains(&name) {
                *item = Item::Keep;
            }
        }
        if by_argument && self.unnamed.contains(&ItemName::CpuCache) {
            self.cpu_cache = Item::Keep;
        }
    }

    /// Whether a setting follows the request of the guest's creation, if gpuvm made it: it is kept
    /// or was not named.
    pub(super) fn is_as_asked<T>(&self, name: ItemName, item: &Item<T>) -> bool {
        item.is_kept() || (item.is_on() && self.unnamed.contains(&name))
    }

    /// Whether the guest gets another number of vCPUs, amount of memory or other GPUs.
    pub(super) fn resizes(&self) -> bool {
        let size = self.size();
        let has_others = size.gpus.is_some() || !size.vgpu.is_kept();
        size.vcpus.is_some() || size.memory.is_some() || has_others
    }

    /// Whether passed-through functions come or go, or get other settings.
    pub(super) fn moves_functions(&self) -> bool {
        let size = self.size();
        size.gpus.is_some() || !size.vgpu.is_kept() || !size.functions.is_kept()
    }

    /// The first kind of functions that come or go; `None` if all stay.
    pub(super) fn first_moved(&self) -> Option<ItemName> {
        if self.size().gpus.is_some() {
            return Some(ItemName::Gpus);
        }
        if !self.size().vgpu.is_kept() {
            return Some(ItemName::Vgpu);
        }
        ExtraKind::ALL
            .into_iter()
            .find(|kind| self.size().functions.of(*kind).is_some())
            .map(ItemName::from)
    }

    /// The same for a running guest that gets functions: its pins, cells and memory stay.
    pub(super) fn without_moves(self) -> Items {
        Items {
            pins: Item::Keep,
            topology: Item::Keep,
            emulator: Item::Keep,
            iothreads: Item::Keep,
            iothread_pins: Item::Keep,
            cells: Item::Keep,
            memory_nodes: Item::Keep,
            memory_rounding: Item::Keep,
            disk_queues: Item::Keep,
            net_queues: Item::Keep,
            kvm_hints: Item::Keep,
            cpu_cache: Item::Keep,
            ..self
        }
    }

    /// Whether some setting depends on the guest's placement.
    pub(super) fn need_a_place(&self) -> bool {
        let on = [
            self.resizes(),
            self.moves_functions(),
            self.iothread_pins.is_on(),
            self.memory_rounding.is_on(),
            !self.pcie.is_kept(),
            self.window.is_on(),
            self.emulator.is_on(),
            self.memory_nodes.is_on(),
        ];
        let changed = [
            matches!(self.pins, Item::On | Item::To(_)),
            matches!(self.topology, Item::On),
            matches!(self.cpu_cache, Item::On),
            matches!(self.iothreads, Item::On | Item::To(_)),
            matches!(self.huge_pages, Item::On | Item::To(_)),
            matches!(self.cells, Item::On | Item::To(_)),
        ];
        on.contains(&true) || changed.contains(&true)
    }
}

/// The name of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, clippy::missing_docs_in_private_items)] // The fields of `Items` say it; `Request` follows them.
pub enum ItemName {
    Vcpus,
    Memory,
    Gpus,
    Vgpu,
    Nic,
    Vf,
    Nvme,
    Pins,
    Topology,
    Emulator,
    Iothreads,
    IothreadPins,
    HugePages,
    Fill,
    Cells,
    MemoryNodes,
    MemoryRounding,
    Convert,
    ConvertDevices,
    DiskCache,
    DiskIo,
    DiskQueues,
    NetQueues,
    Inbound,
    Outbound,
    Mtu,
    Network,
    Agent,
    Pcie,
    Iommufd,
    Window,
    Maxphysaddr,
    KvmHints,
    CpuCache,
    Invtsc,
    Balloon,
    SerialLog,
    Movable,
    P2p,
    /// Rules of the planner that may be broken.
    Allow,
    Request,
}

impl ItemName {
    /// Returns its name, which is also its option; the request has no option.
    pub fn as_str(self) -> &'static str {
        match self {
            ItemName::Vcpus => "vcpus",
            ItemName::Memory => "memory",
            ItemName::Gpus => "gpus",
            ItemName::Vgpu => "vgpu",
            ItemName::Nic => "nic",
            ItemName::Vf => "vf",
            ItemName::Nvme => "nvme",
            ItemName::Pins => "pins",
            ItemName::Topology => "topology",
            ItemName::Emulator => "emulator",
            ItemName::Iothreads => "iothreads",
            ItemName::IothreadPins => "iothread-pins",
            ItemName::HugePages => "huge-pages",
            ItemName::Fill => "fill",
            ItemName::Cells => "cells",
            ItemName::MemoryNodes => "memory-nodes",
            ItemName::MemoryRounding => "memory-rounding",
            ItemName::Convert => "convert",
            ItemName::ConvertDevices => "convert-devices",
            ItemName::DiskCache => "disk-cache",
            ItemName::DiskIo => "disk-io",
            ItemName::DiskQueues => "disk-queues",
            ItemName::NetQueues => "net-queues",
            ItemName::Inbound => "inbound",
            ItemName::Outbound => "outbound",
            ItemName::Mtu => "mtu",
            ItemName::Network => "network",
            ItemName::Agent => "agent",
            ItemName::Pcie => "pcie",
            ItemName::Iommufd => "iommufd",
            ItemName::Window => "window",
            ItemName::Maxphysaddr => "maxphysaddr",
            ItemName::KvmHints => "kvm-hints",
            ItemName::CpuCache => "cpu-cache",
            ItemName::Invtsc => "invtsc",
            ItemName::Balloon => "balloon",
            ItemName::SerialLog => "serial-log",
            ItemName::Movable => "movable",
            ItemName::P2p => "p2p",
            ItemName::Allow => "allow",
            ItemName::Request => "request",
        }
    }
}

impl From<ExtraKind> for ItemName {
    fn from(kind: ExtraKind) -> ItemName {
        match kind {
            ExtraKind::Nic => ItemName::Nic,
            ExtraKind::Vf => ItemName::Vf,
            ExtraKind::Nvme => ItemName::Nvme,
        }
    }
}

impl std::fmt::Display for ItemName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
