//! Placement of a guest: [`plan`] chooses devices, pcpus, memory and the guest's PCIe tree
//! together. Pure: the same host, occupancy and request give the same result; no clock, no I/O, no
//! environment.

mod affinity;
mod again;
mod assign;
mod auto;
mod blocked;
mod budget;
mod caches;
mod candidates;
mod capacity;
mod chosen;
mod cliques;
mod compare;
mod cover;
mod cpus;
mod devices;
pub mod explain;
mod extras;
mod freeing;
mod future;
mod groups;
mod isolation;
pub mod joint;
mod left_out;
mod limits;
mod memory;
mod names;
mod nearest;
mod pages;
mod partitions;
mod pcie;
mod pcpus;
mod pick;
pub mod reason;
pub mod room;
mod score;
mod search;
mod short;
mod shortage;
mod slots;
mod taken;
mod whycores;
mod window;

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, NodeSet};
use crate::memsize::MemSize;
pub use crate::occupancy::{Exclusion, Held, Moved, Occupancy};
use crate::request::{Allow, HugePages, PageSize, PinPolicy, Profile, Request, RequestError};
use crate::topology::{PartitionId, Topology, Trust, Weakness};
use affinity::{Among, Homes};
pub use again::model_of;
pub use budget::memory_node;
use budget::{Counting, Solution};
pub use caches::{
    GuestCache, caches_of, has_own_pcpus, needs_remapping, shows_caches, with_caches,
};
pub use candidates::Kind as ExtraKind;
pub use capacity::{Blocked, Capacity, OfModel, RoomOffer, Size, capacity};
use explain::Reasons;
pub use freeing::{Advice, Away, Place};
pub use isolation::{not_ready, shared_fabric, shared_nvlink};
pub use limits::MOST_VCPUS;
use memory::Memory;
pub use nearest::nearest;
pub use pages::page_to_reserve;
use pcpus::Cores;
pub use reason::{Because, Reason, Topic};
use reason::{GpuReason, IsolationReason, MemoryReason};
use serde::{Deserialize, Serialize};
use shortage::Shortage;
use taken::Taken;
pub use taken::floats;
pub use window::{fits_no_guest, is_amd, window, window_reason};

/// Whether a function can be passed through now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// It can.
    Free,
    /// A domain holds it.
    Held,
    /// Excluded by an admin or by the NVIDIA driver.
    Excluded,
    /// Its health is over a limit.
    Unhealthy,
    /// It does not answer.
    Silent,
    /// The host uses it.
    Host,
    /// It has virtual functions enabled, or its IOMMU group prevents it.
    Blocked,
    /// A drive with data or unknown content: taken only by address, never by number.
    Data,
    /// A boot display or an integrated GPU: taken only by address, never by number.
    Display,
    /// gpuvm cannot pass it through yet.
    Unsupported,
    /// The IOMMU gives it to no guest: it is off, or the firmware keeps memory of its group.
    Barred,
}

/// Why no guest gets an NVSwitch in the shared model, as words to follow its name.
pub const FABRIC_MANAGERS: &str = "stays with Fabric Manager, which sets up the NVLinks of guests";

/// Returns whether functions can be passed through now, and why not, as words to follow a
/// function's name.
pub fn device_states(
    topology: &Topology,
    held: &Occupancy,
    functions: &[Bdf],
) -> Vec<(DeviceState, Option<String>)> {
    let taken = Taken::new(topology, held);
    let aside = |bdf| topology.device(bdf).and_then(|device| topology.set_aside(device));
    let state = |&bdf: &Bdf| match groups::block(topology, &taken, bdf) {
        None if topology.is_fabric_managers(bdf) => {
            (DeviceState::Host, Some(FABRIC_MANAGERS.to_owned()))
        }
        None => match (groups::remains(topology, bdf), aside(bdf)) {
            (Some(why), _) => (DeviceState::Data, Some(why)),
            (None, Some(why)) => (DeviceState::Display, Some(why.why().into_owned())),
            (None, None) => (DeviceState::Free, None),
        },
        Some(block) => (block.state(), Some(block.why(1))),
    };
    functions.iter().map(state).collect()
}

/// One guest NUMA cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestCell {
    /// vCPUs of the cell: consecutive numbers.
    pub vcpus: std::ops::Range<u32>,
    /// Memory of the cell, a multiple of the page size in use.
    pub memory_kib: MemSize,
    /// Host nodes that the memory is bound to; empty: not bound.
    pub host_nodes: NodeSet,
    /// Distance to each cell, in cell order; empty if the host knows none or there is only one
    /// cell.
    pub distances: Vec<u32>,
}

/// What a guest's CPU looks like: the product is the number of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestTopology {
    /// Packages (libvirt's `sockets`).
    pub sockets: u32,
    /// Dies of a package.
    #[serde(default = "one")]
    pub dies: u32,
    /// Cores of a die.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl GuestTopology {
    /// The same without dies. QEMU 10.0 without KVM ends with `encode_topo_cpuid1f: Assertion ...
    /// failed` when a guest of several dies queries a level missing in leaf 0x1f, as Linux does at
    /// boot; KVM answers by itself.
    pub fn without_dies(self) -> GuestTopology {
        GuestTopology { dies: 1, cores: self.dies * self.cores, ..self }
    }
}

/// Dies of a package in records of versions without dies.
fn one() -> u32 {
    1
}

/// The group of passed-through devices that hang below one expander bus of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PcieGroup {
    /// Index of the guest cell that owns them: the only one, or the one on their node; none: that
    /// node has no cell.
    pub cell: Option<u32>,
    /// Devices, one root port each but for [`GuestPcie::beside_gpu`], in guest order.
    pub devices: Vec<Bdf>,
}

/// The part of the guest's PCIe tree that carries passed-through devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestPcie {
    /// One expander bus each.
    pub groups: Vec<PcieGroup>,
    /// Links of the host's path to each device, in guest order; unknown ones are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PcieLink>,
    /// GPUs with peer-to-peer over PCIe, one clique each; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cliques: Vec<Vec<Bdf>>,
    /// Functions of a GPU's card, such as its audio, that keep their function numbers in the slot
    /// of the GPU: drivers look for them there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside_gpu: Vec<Bdf>,
}

impl GuestPcie {
    /// How many root ports the functions of a group have.
    pub fn ports_of(&self, group: &PcieGroup) -> usize {
        group.devices.iter().filter(|bdf| !self.beside_gpu.contains(bdf)).count()
    }
}

/// Capacity of the host's whole path to a device: its slowest link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PcieLink {
    /// The device.
    pub device: Bdf,
    /// Speed in units of 0.1 GT/s (25 is 2.5 GT/s).
    pub speed_dgts: u32,
    /// Width in lanes.
    pub width: u8,
}

/// What a guest takes from the pool of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodePages {
    /// The node.
    pub node: NodeId,
    /// Pages that the guest takes.
    pub needed: u64,
    /// Free pages that no stopped domain will take.
    pub free: u64,
    /// Pages that are reserved there, whoever uses them.
    pub reserved: u64,
}

impl NodePages {
    /// Pages that have to be reserved before the guest can start.
    pub fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.free)
    }
}

/// A guest's placement on the host: the only source of numbers for everything written later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    /// NVLink partition; none: the host has none.
    pub partition: Option<PartitionId>,
    /// Passed-through functions in guest order: GPUs, then NVSwitches, NICs, virtual functions,
    /// NVMe drives, then functions that the IOMMU cannot keep apart from these; each by address.
    pub devices: Vec<Bdf>,
    /// Pin of each vCPU, by vCPU; all empty: not pinned.
    pub vcpu_pins: Vec<CpuSet>,
    /// Pin of the emulator; empty: not pinned.
    pub emulator_pin: CpuSet,
    /// Pin of each I/O thread, thread 1 first; an empty set: not pinned.
    pub iothread_pins: Vec<CpuSet>,
    /// What the guest's CPU looks like.
    pub topology: GuestTopology,
    /// Source of the guest's cache leaves, so that it sees the host's L3 caches; none: nothing
    /// shows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<GuestCache>,
    /// Address bits that the guest's CPU is limited to, where the IOMMU has fewer than the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_limit: Option<u8>,
    /// Guest NUMA cells, by id; at least one.
    pub cells: Vec<GuestCell>,
    /// Page size that backs the memory; none: normal pages.
    pub huge_pages: Option<PageSize>,
    /// What it takes from the pools of huge pages, by node.
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

    /// Returns what a guest of this plan will hold once it is defined. It does not run yet, and
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
            moved: Vec::new(),
        }
    }

    /// Returns the placement for a guest without KVM, whose emulated CPU shows neither dies nor
    /// caches of the host.
    pub fn emulated(mut self) -> Placement {
        self.topology = self.topology.without_dies();
        self.cache = None;
        self
    }

    /// Whether no NVLink partition can be activated for it.
    pub fn has_no_partition(&self) -> bool {
        self.reasons.iter().any(|reason| reason.choice == Topic::Partition && reason.compromise)
    }

    /// Returns why `create` refuses a guest at this place whatever is accepted for it, given what
    /// the admin says of guests; none: it does not.
    pub fn refused(&self, said: Option<Trust>) -> Option<&Because> {
        let open = self.shared_fabric().filter(|_| Trust::refuses(said, true));
        let is_late = |because: &&Because| {
            matches!(because, Because::Isolation(IsolationReason::NotNow { .. }))
        };
        open.or_else(|| self.reasons.iter().map(|reason| &reason.because).find(is_late))
    }

    /// Returns why this guest and others are not isolated from each other, on NVLink or by ports
    /// that do not redirect; none: they are.
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

/// The reason no place was found, with a hint.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "plan-")]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum PlanError {
    /// The request contradicts itself.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Request(#[from] RequestError),
    /// The request cannot be met on this host, even if it were empty.
    #[error("{what}")]
    Impossible {
        what: String,
        /// The nearest possible request, or a command to run.
        hint: String,
    },
    /// The request cannot be met now.
    #[error("{what}")]
    Taken {
        what: String,
        /// Who holds it, one line each.
        holders: Vec<String>,
        hint: String,
    },
}

/// Refuses a model that no GPU of the host has.
pub fn check_model(topology: &Topology, name: &str) -> Result<(), PlanError> {
    devices::of_this_model(topology, name).map(drop)
}

/// Finds a guest's place.
pub fn plan(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    limits::refuse_host_devices(held, request)?;
    short::plan(topology, held, request)
}

/// Finds a place beside all that is held, pinned or not, on the pages that are asked for or the
/// best.
fn on_pages(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
) -> Result<Placement, PlanError> {
    match request.huge_pages {
        HugePages::Auto => auto::plan(topology, held, request),
        HugePages::Off | HugePages::Size(_) => place(topology, held, request, Counting::default()),
    }
}

/// Finds a guest's place, on the requested pages.
fn place(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    counting: Counting,
) -> Result<Placement, PlanError> {
    request.check()?;
    cpus::check_shape(topology, request)?;
    let all = Among::of(topology, request);
    let (last, best) = all.split_last().expect("all cores are the last");
    let on = |request, among: &Among| place_on(topology, held, request, counting, *among);
    if best.is_empty() {
        return on(request, last);
    }
    // Cores of another node are worse than others of the guest's own.
    let allow = Allow { remote: false, ..request.allow };
    let near = Request { allow, ..request.clone() };
    best.iter().find_map(|among| on(&near, among).ok()).map_or_else(|| on(request, last), Ok)
}

/// Finds a guest's place with vCPUs on some cores.
fn place_on(
    topology: &Topology,
    held: &Occupancy,
    request: &Request,
    counting: Counting,
    among: Among,
) -> Result<Placement, PlanError> {
    let mut reasons = Reasons::default();
    let taken = Taken::new(topology, held).asking(&request.gpus);
    let homes = Homes::of_request(topology, request, among);
    let homes = homes.with(taken.asked());
    let budget = budget::Budget::new(topology, &homes, &taken, request, counting);
    let extras = extras::Search::new(topology, &homes, &taken, request);
    extras.check()?;
    let judges = score::Judges { budget: &budget, extras: &extras };
    let chosen = devices::choose(topology, &homes, &taken, &judges, request, &mut reasons)?;
    let (homes, taken, budget, gpus) = (&homes, &taken, &budget, &chosen.gpus[..]);
    let mut solution = Solution::default();
    budget
        .solve(gpus, request.allow.remote, &mut solution)
        .map_err(|short| Shortage { topology, budget, homes, taken, gpus }.error(short))?;
    let cpus = if request.pins == PinPolicy::None {
        let cpus = cpus::floating(solution.vcpus, request)?;
        let (because, compromise) = cpus::why_floating(&cpus, request, topology.pcpus().len());
        reasons.0.push(Reason { choice: Topic::Vcpus, because: because.into(), compromise });
        cpus
    } else {
        let chooser = Cores { topology, homes, taken, gpus, request };
        let cores = chooser.choose(&solution);
        chooser.explain(&cores, &mut reasons);
        match request.profile {
            Profile::Share | Profile::Near => {
                cpus::pinned(&cores, request, gpus.first().map(|&gpu| homes.of_gpu(gpu).0))
            }
            Profile::NvidiaVm => cpus::vendor(&cores, request, gpus.len()),
        }
    };
    let (solution, gpus) = (&solution, gpus.len());
    let memory = Memory { topology, budget, solution, gpus, request };
    let cells = memory.cells(&cpus, &mut reasons);
    if let (Some(warning), 1..) = (&topology.fabric().links_unread, gpus) {
        reasons.compromise(Topic::Gpus, GpuReason::LinksUnread { warning: warning.clone() });
    }
    if let Some(warning) = topology.memory_warning() {
        reasons.compromise(Topic::Memory, MemoryReason::OffNodes { warning });
    }
    let node_pages = pages::taken_from(topology, taken, request, solution);
    pages::explain(topology, request, &node_pages, &mut reasons);
    let devices = chosen.all();
    let mut guest_pcie = pcie::tree(topology, homes, &devices, &cpus, &mut reasons);
    if request.p2p_clique {
        guest_pcie.cliques = cliques::cliques(topology, &chosen.gpus, &mut reasons)?;
    }
    let is_x86 = limits::is_x86(topology, request);
    // QEMU gives dies and cache leaves to x86 guests only.
    let shown = || with_caches(topology, &cpus.vcpu_pins, cpus.topology);
    let shown = is_x86.then(shown).flatten();
    let passes = is_x86 && !devices.is_empty();
    let placement = Placement {
        partition: chosen.partition,
        devices,
        address_limit: topology.machine().address_limit().filter(|_| passes),
        vcpu_pins: cpus.vcpu_pins,
        emulator_pin: cpus.emulator_pin,
        iothread_pins: cpus.iothread_pins,
        topology: shown.map_or(cpus.topology, |(shape, _)| shape),
        cache: shown.map(|(_, cache)| cache),
        cells,
        huge_pages: request.huge_pages.asked(),
        node_pages,
        guest_pcie,
        reasons: reasons.0,
    };
    limits::within(placement, topology, request)
}

/// Pcpus of cores of these nodes that a guest could have: no domain holds them, and none is among
/// the first `kept` cores of its node, which are reserved for the host.
pub fn idle_cores(topology: &Topology, held: &Occupancy, kept: u32, nodes: &NodeSet) -> CpuSet {
    let (homes, taken) = (Homes::new(topology, kept), Taken::new(topology, held));
    let seats = nodes.iter().flat_map(|node| homes.seats(node));
    let free = seats.filter(|seat| taken.is_free(seat.at));
    free.flat_map(|seat| seat.core.pcpus.iter()).collect()
}

#[cfg(test)]
pub(crate) mod tests;
