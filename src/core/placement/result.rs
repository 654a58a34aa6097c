//! The placement of a guest: the answer of [`plan`](super::plan).

use super::reason::{Because, IsolationReason, Reason, Topic};
use super::types::{GuestCache, GuestCell, GuestPcie, GuestTopology, Initiators, NodePages};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::memsize::MemSize;
use crate::occupancy::{GuestVgpu, Held};
use crate::request::{PageSize, PinPolicy};
use crate::topology::{PartitionId, Trust, Weakness};
use serde::{Deserialize, Serialize};

/// A guest's placement on the host: the only source of numbers for everything written later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    /// NVLink partition; `None` if the host has none.
    pub partition: Option<PartitionId>,
    /// Passed-through functions in guest order: GPUs, then NVSwitches, NICs, virtual functions,
    /// NVMe drives, then functions that the IOMMU cannot keep apart from these; each by address.
    pub devices: Vec<Bdf>,
    /// vGPUs: virtual functions among the devices, or mediated devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<GuestVgpu>,
    /// Pin of each vCPU, by vCPU; all empty: not pinned.
    pub vcpu_pins: Vec<CpuSet>,
    /// Pin of the emulator; empty: not pinned.
    pub emulator_pin: CpuSet,
    /// Pin of each I/O thread, thread 1 first; an empty set: not pinned.
    pub iothread_pins: Vec<CpuSet>,
    /// The guest's CPU topology.
    pub topology: GuestTopology,
    /// Source of the guest's cache leaves, so that it sees the host's L3 caches; `None` if nothing
    /// shows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<GuestCache>,
    /// Address bits that the guest's CPU is limited to, where the IOMMU has fewer than the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_limit: Option<u8>,
    /// Guest NUMA cells, by id; at least one.
    pub cells: Vec<GuestCell>,
    /// Its empty cells for the memory of GPUs; `None` if no GPU's memory is coherent with the
    /// CPU's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Initiators>,
    /// Page size that backs the memory; `None` for normal pages.
    pub huge_pages: Option<PageSize>,
    /// Its pages from the pools of huge pages, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_pages: Vec<NodePages>,
    /// Guest PCIe tree.
    pub guest_pcie: GuestPcie,
    /// One per choice.
    pub reasons: Vec<Reason>,
}

impl Placement {
    /// vCPUs of the guest.
    pub fn vcpus(&self) -> u32 {
        let GuestTopology { sockets, dies, cores, threads } = self.topology;
        sockets * dies * cores * threads
    }

    /// Memory of the guest.
    pub fn memory(&self) -> MemSize {
        self.cells.iter().map(|cell| cell.memory_kib).sum()
    }

    /// How it is pinned, where that was left to the planner.
    pub fn pins(&self) -> PinPolicy {
        let pinned = self.vcpu_pins.iter().any(|pin| !pin.is_empty());
        if pinned { PinPolicy::Core } else { PinPolicy::None }
    }

    /// Returns the resources of a guest of this plan once it is defined. It does not run yet, and
    /// counts as one that will.
    pub fn held(&self, name: &str) -> Held {
        let pinned = |set: &CpuSet| (!set.is_empty()).then(|| set.clone());
        Held {
            domain: name.into(),
            active: false,
            vcpu_pins: self.vcpu_pins.iter().filter_map(pinned).collect(),
            emulator_pin: pinned(&self.emulator_pin),
            iothread_pins: self.iothread_pins.iter().filter_map(pinned).collect(),
            devices: self.devices.clone(),
            memory: self.cells.iter().map(|c| (c.host_nodes.clone(), c.memory_kib)).collect(),
            huge_page_kib: self.huge_pages.map(PageSize::size),
            autostart: true,
            macs: Vec::new(),
            vcpus: self.vcpus(),
            uuid: None,
            unread: Vec::new(),
            host_devices: Vec::new(),
            vgpus: self.vgpus.clone(),
            moved: Vec::new(),
        }
    }

    /// Returns it with UUIDs for the mediated devices, made from a key, as MAC addresses are.
    pub fn with_mdevs(mut self, uuid: impl Fn(usize) -> String) -> Placement {
        for (nth, vgpu) in self.vgpus.iter_mut().enumerate() {
            if vgpu.is_mdev() && vgpu.uuid.is_none() {
                vgpu.uuid = Some(uuid(nth));
            }
        }
        self
    }

    /// Returns the placement for a guest without KVM, whose emulated CPU shows neither dies nor
    /// caches of the host.
    pub fn emulated(mut self) -> Placement {
        self.topology = self.topology.without_dies();
        self.cache = None;
        self
    }

    /// Whether the guest has devices of the host by VFIO, which pins its memory: functions, or
    /// mediated devices, which are no functions.
    pub fn passes_devices(&self) -> bool {
        !self.devices.is_empty() || self.vgpus.iter().any(GuestVgpu::is_mdev)
    }

    /// Whether no NVLink partition can be activated for it.
    pub fn has_no_partition(&self) -> bool {
        self.reasons.iter().any(|reason| reason.choice == Topic::Partition && reason.compromise)
    }

    /// Returns why `create` refuses a guest at this place regardless of accepted risks, given the
    /// admin's trust in guests; none if it does not.
    pub fn refused(&self, said: Option<Trust>) -> Option<&Because> {
        let open = self.shared_fabric().filter(|_| Trust::refuses(said, true));
        let is_late = |because: &&Because| {
            matches!(because, Because::Isolation(IsolationReason::NotNow { .. }))
        };
        open.or_else(|| self.reasons.iter().map(|reason| &reason.because).find(is_late))
    }

    /// Returns why this guest and others are not isolated from each other, on NVLink or by ports
    /// that do not redirect; `None` if they are.
    pub fn shared_fabric(&self) -> Option<&Because> {
        self.shared_nvlink().or_else(|| self.open_ports())
    }

    /// The same on NVLink.
    pub fn shared_nvlink(&self) -> Option<&Because> {
        let open = |reason: &&Reason| reason.choice == Topic::Isolation && reason.compromise;
        self.reasons.iter().find(open).map(|reason| &reason.because)
    }

    /// The same by ports.
    pub fn open_ports(&self) -> Option<&Because> {
        let open = |because: &&Because| {
            let because = *because;
            matches!(
                because,
                Because::Isolation(IsolationReason::WeakIommu(Weakness::OpenPorts(_)))
            )
        };
        self.reasons.iter().map(|reason| &reason.because).find(open)
    }
}
