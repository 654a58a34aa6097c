//! The holdings of a host's domains, inverted: by device, by core, by node. Knows the occupancy,
//! not the request.

use super::explain::count;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::fabric::Readiness;
use crate::memsize::MemSize;
use crate::occupancy::{Exclusion, Formerly, GuestVgpu, Held, Occupancy};
use crate::request::{DeviceWish, Extras, GpuWish, Request};
use crate::topology::{DeviceKind, NumaNode, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// The index that means "no domain".
const NOBODY: u32 = u32::MAX;

/// A domain's memory on one node: the domain's index, and how much.
type Amount = (u32, MemSize);

/// The occupancy of domains on a host.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    topology: &'a Topology,
    domains: &'a [Held],
    /// PCI functions by address, with the index of the domain that holds each; the first domain
    /// comes first.
    devices: Vec<(Bdf, u32)>,
    /// Cards of which a domain has a vGPU by its record, with the index of the domain.
    shares: Vec<(Bdf, u32)>,
    /// Indexes of the first domain that holds each core, in the order of [`Topology::cores`].
    owners: Vec<u32>,
    /// Indexes of domains that are not pinned to single cores, with the pcpus that they float over;
    /// `None` if it runs and may use all.
    floating: Vec<(u32, Option<CpuSet>)>,
    /// Memory of each domain, in the order of [`Topology::nodes`].
    memory: Vec<Vec<Amount>>,
    /// GPUs and NVSwitches that an admin excluded, and GPUs that must be tested first.
    excluded: &'a [Exclusion],
    /// GPUs that are not tested since their last guest, and offered.
    pub(super) formerly: &'a [Formerly],
    /// Functions of a guest that is planned again.
    own_devices: &'a [Bdf],
    /// The reasons why NVLink partitions cannot be activated.
    pub(super) readiness: &'a Readiness,
    /// Pcpus whose cores no guest gets.
    closed: &'a CpuSet,
    /// vCPUs and memory of the cells of a guest that is planned again.
    pub(super) own_cells: &'a [(u32, MemSize)],
    /// Functions that the planned guest gets in any case.
    given: &'a [Bdf],
    /// Memory of such a guest by place of a node.
    own_memory: Vec<MemSize>,
    /// Displays that the request names by address, by address.
    asked: Vec<Bdf>,
    /// NICs and drives that the request names, which the guest has in any case.
    named: Vec<Bdf>,
    /// Whether the request names its GPUs, by index or address.
    names_gpus: bool,
}

impl<'a> Taken<'a> {
    /// Functions that the planned guest gets in any case.
    pub(super) fn given(&self) -> &'a [Bdf] {
        self.given
    }

    pub(super) fn new(topology: &'a Topology, held: &'a Occupancy) -> Taken<'a> {
        let mut taken = Taken {
            topology,
            domains: &held.domains,
            devices: Vec::new(),
            shares: Vec::new(),
            owners: vec![NOBODY; topology.cores().len()],
            floating: Vec::new(),
            memory: vec![Vec::new(); topology.nodes().len()],
            excluded: &held.excluded,
            formerly: &held.formerly,
            own_devices: &held.own_devices,
            readiness: &held.readiness,
            closed: &held.closed,
            own_cells: &held.own_cells,
            given: &held.given,
            own_memory: Vec::new(),
            asked: Vec::new(),
            named: Vec::new(),
            names_gpus: false,
        };
        for (domain, at) in held.domains.iter().zip(0..) {
            taken.devices.extend(domain.devices.iter().map(|&bdf| (bdf, at)));
            taken.shares.extend(domain.vgpus.iter().map(|vgpu| (vgpu.card, at)));
            taken.add_pins(domain, at);
        }
        taken.devices.sort();
        // Memory bound to one node is there; the rest is where that leaves room.
        taken.add_memories(held, true);
        for (nodes, amount) in &held.own_memory {
            taken.add_memory(NOBODY, &nodes_of(topology, nodes), *amount);
        }
        taken.add_memories(held, false);
        let own = |amounts: &Vec<Amount>| {
            let own = amounts.iter().filter(|(domain, _)| *domain == NOBODY);
            own.map(|(_, size)| *size).sum()
        };
        taken.own_memory = taken.memory.iter().map(own).collect();
        for amounts in &mut taken.memory {
            amounts.retain(|(domain, _)| *domain != NOBODY);
        }
        taken
    }

    /// Adds the memory that domains bind to a single node, or all other.
    fn add_memories(&mut self, held: &Occupancy, one: bool) {
        for (domain, at) in held.domains.iter().zip(0..) {
            for (nodes, amount) in &domain.memory {
                let those = nodes_of(self.topology, nodes);
                if (those.len() == 1) == one {
                    self.add_memory(at, &those, *amount);
                }
            }
        }
    }

    /// Records the devices that the request names: GPUs that only an address can take (boot displays and
    /// integrated ones), and NICs and drives.
    pub(super) fn asking(mut self, request: &Request) -> Taken<'a> {
        let Extras { nics, vfs, nvmes, .. } = &request.extras;
        let exact = [nics, vfs, nvmes].into_iter().filter_map(|wish| match wish {
            DeviceWish::Exact(bdfs) => Some(bdfs),
            DeviceWish::Count(_) => None,
        });
        self.named = exact.flatten().copied().collect();
        self.names_gpus = !matches!(request.gpus, GpuWish::Count(_));
        if let GpuWish::Exact(bdfs) = &request.gpus {
            let aside = |bdf: &&Bdf| {
                let device = self.topology.device(**bdf);
                device.is_some_and(|device| self.topology.set_aside(device).is_some())
            };
            self.asked = bdfs.iter().filter(aside).copied().collect();
            self.asked.sort_unstable();
        }
        self
    }

    /// Displays that the request names, by address.
    pub(super) fn asked(&self) -> &[Bdf] {
        &self.asked
    }

    /// Whether the request names a NIC or drive, so that the guest has it in any case.
    pub(super) fn names(&self, bdf: Bdf) -> bool {
        self.named.contains(&bdf)
    }

    /// Whether the request names this NIC or drive and its GPUs, too: that it names all members of
    /// their group is then for the set to show.
    pub(super) fn names_with_gpus(&self, bdf: Bdf) -> bool {
        self.names_gpus && self.names(bdf)
    }

    /// Whether the request names a display.
    pub(super) fn asks_for(&self, bdf: Bdf) -> bool {
        self.asked.contains(&bdf)
    }

    /// Adds a domain's pins: a pin within one core, or with one core of each of several nodes,
    /// holds these cores (as the emulators of guests on several nodes are pinned); a wider one lets
    /// the domain float.
    fn add_pins(&mut self, domain: &'a Held, at: u32) {
        let mut wide = CpuSet::new();
        for pin in pins(domain) {
            match narrow(self.topology, pin) {
                Some(cores) => cores.for_each(&mut |core| {
                    let owner = &mut self.owners[core];
                    *owner = if *owner == NOBODY { at } else { *owner };
                }),
                None => wide = wide.or(pin),
            }
        }
        if domain.vcpu_pins.iter().all(CpuSet::is_empty) {
            // Where it will run is unknown until it does.
            self.floating.extend(domain.active.then_some((at, None)));
        } else if !wide.is_empty() {
            let own = self.own(domain);
            let over = wide.minus(&own);
            if !over.is_empty() {
                self.floating.push((at, Some(over)));
            }
        }
    }

    /// Pcpus of all cores that a domain holds.
    fn own(&self, domain: &Held) -> CpuSet {
        let mut own = CpuSet::new();
        for cores in pins(domain).filter_map(|pin| narrow(self.topology, pin)) {
            cores.for_each(&mut |core| own.extend(self.topology.cores()[core].pcpus.iter()));
        }
        own
    }

    /// Adds a domain's memory to these nodes, in proportion to the free memory of each, or to their
    /// sizes if none is free.
    fn add_memory(&mut self, domain: u32, those: &[usize], amount: MemSize) {
        let size = |at: usize| self.topology.nodes()[at].memory_kib;
        if let [only] = those[..] {
            self.memory[only].push((domain, amount));
            return;
        }
        let left = |at: &usize| size(*at) - sum(&self.memory[*at]);
        let mut weights: Vec<u64> = those.iter().map(|at| left(at).kib()).collect();
        if weights.iter().all(|weight| *weight == 0) {
            weights = those.iter().map(|at| size(*at).kib()).collect();
        }
        let whole: u64 = weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight));
        for (at, weight) in those.iter().zip(weights).filter(|(_, weight)| *weight > 0) {
            self.memory[*at].push((domain, amount.share(weight, whole)));
        }
    }

    /// The domain that holds a PCI function.
    pub(super) fn device(&self, bdf: Bdf) -> Option<&'a str> {
        Some(self.holder(bdf)?.domain.as_str())
    }

    /// The resources of the domain that holds a PCI function.
    pub(super) fn holder(&self, bdf: Bdf) -> Option<&'a Held> {
        let at = self.devices.partition_point(|(other, _)| *other < bdf);
        let (found, domain) = self.devices.get(at)?;
        (*found == bdf).then(|| &self.domains[*domain as usize])
    }

    /// The first domain that has a vGPU of a card, and the vGPU. Its virtual function need not exist
    /// now: it is gone after a restart of the host.
    pub(super) fn sharer(&self, card: Bdf) -> Option<(&'a str, &'a GuestVgpu)> {
        let (_, at) = self.shares.iter().find(|(known, _)| *known == card)?;
        let held = &self.domains[*at as usize];
        Some((&held.domain, held.vgpus.iter().find(|vgpu| vgpu.card == card)?))
    }

    /// Returns the exclusion of a function, or of its card; `None` if it is not excluded.
    pub(super) fn excluded(&self, bdf: Bdf) -> Option<&'a Exclusion> {
        Exclusion::of(self.excluded, self.topology, bdf)
    }

    /// Whether a guest that is planned again has a function.
    pub(super) fn is_own(&self, bdf: Bdf) -> bool {
        self.own_devices.contains(&bdf)
    }

    /// Returns the NVSwitches that an admin excluded.
    pub(super) fn withdrawn_switches(&self) -> impl Iterator<Item = Bdf> + '_ {
        let is_switch = |bdf: &Bdf| {
            self.topology.device(*bdf).is_some_and(|d| d.kind() == DeviceKind::NvSwitch)
        };
        self.excluded.iter().map(|excluded| excluded.bdf).filter(is_switch)
    }

    /// Whether no domain holds a pcpu of the core at this place of [`Topology::cores`].
    pub(super) fn is_free(&self, core: usize) -> bool {
        self.owners[core] == NOBODY
            && (self.closed.is_empty()
                || !self.closed.intersects(&self.topology.cores()[core].pcpus))
    }

    /// The first domain that holds a core.
    pub(super) fn owner(&self, core: usize) -> Option<&'a str> {
        self.domains.get(self.owners[core] as usize).map(|held| held.domain.as_str())
    }

    /// Returns the holders of cores of a node among these, one line for each domain.
    pub(super) fn core_holders(&self, node: NodeId, among: &[usize]) -> Vec<String> {
        let mut by_domain: BTreeMap<&str, usize> = BTreeMap::new();
        let mut pcpus = CpuSet::new();
        among.iter().for_each(|core| pcpus.extend(self.topology.cores()[*core].pcpus.iter()));
        for domain in self.domains {
            let mut own: BTreeSet<usize> = BTreeSet::new();
            let here = pins(domain).filter(|pin| pin.intersects(&pcpus));
            for cores in here.filter_map(|pin| narrow(self.topology, pin)) {
                cores.for_each(&mut |core| {
                    own.insert(core);
                });
            }
            let number = among.iter().filter(|core| own.contains(core)).count();
            if number > 0 {
                *by_domain.entry(&domain.domain).or_default() += number;
            }
        }
        let line = |(name, number): (&&str, &usize)| {
            let cores = count(*number, "core");
            let verb = if *number == 1 { "is" } else { "are" };
            format!("{cores} of node {node} {verb} held by domain `{name}`")
        };
        by_domain.iter().map(line).collect()
    }

    /// Domains that yield cores among these pcpus, with the pcpus.
    pub(super) fn yielded_cores(&self, pcpus: &CpuSet) -> Vec<(String, CpuSet)> {
        let yielding = self.domains.iter().filter(|domain| domain.yields());
        let shared = yielding.map(|domain| (domain.domain.clone(), self.own(domain).and(pcpus)));
        shared.filter(|(_, pcpus)| !pcpus.is_empty()).collect()
    }

    /// Domains that yield memory on nodes at these places.
    pub(super) fn yielded_memory(&self, nodes: &[usize]) -> Vec<String> {
        let on =
            |at: &u32| nodes.iter().any(|&node| self.memory[node].iter().any(|(d, _)| d == at));
        let yields = |at: &u32| {
            let domain = &self.domains[*at as usize];
            domain.yields() && domain.huge_page_kib.is_none()
        };
        let all = 0..u32::try_from(self.domains.len()).unwrap_or(NOBODY);
        all.filter(yields).filter(on).map(|at| self.domains[at as usize].domain.clone()).collect()
    }

    /// Returns the domains that run, or may run, on these pcpus.
    pub(super) fn floating_over(&self, pcpus: impl FnOnce() -> CpuSet) -> Vec<&'a str> {
        if self.floating.is_empty() {
            return Vec::new();
        }
        let pcpus = &pcpus();
        let over = |set: &Option<CpuSet>| set.as_ref().is_none_or(|set| set.intersects(pcpus));
        let those = self.floating.iter().filter(|(_, set)| over(set));
        those.map(|(at, _)| self.domains[*at as usize].domain.as_str()).collect()
    }

    /// Memory of all domains on the node at this place of [`Topology::nodes`]. Memory bound to
    /// several nodes, or to none, counts in proportion to the free memory of these.
    pub(super) fn memory(&self, node: usize) -> MemSize {
        sum(&self.memory[node])
    }

    /// Returns the memory of a guest that is planned again on the node at this place of
    /// [`Topology::nodes`].
    pub(super) fn own_memory(&self, node: usize) -> MemSize {
        self.own_memory[node]
    }

    /// Returns the memory of a node that stopped domains will take from the pool of this page size.
    pub(super) fn memory_to_come(&self, node: usize, page: MemSize) -> MemSize {
        let off = |(at, _): &&Amount| {
            let held = &self.domains[*at as usize];
            !held.active && held.huge_page_kib == Some(page)
        };
        self.memory[node].iter().filter(off).map(|(_, size)| *size).sum()
    }

    /// Returns the holders of a node's memory, one line for each domain.
    pub(super) fn memory_holders(&self, node: usize) -> Vec<String> {
        let mut by_domain: BTreeMap<&str, MemSize> = BTreeMap::new();
        for (at, size) in &self.memory[node] {
            let sum = by_domain.entry(&self.domains[*at as usize].domain).or_default();
            *sum = *sum + *size;
        }
        let id = self.topology.nodes()[node].os_index;
        let line = |(name, size): (&&str, &MemSize)| {
            format!("{size} of node {id} are held by domain `{name}`")
        };
        by_domain.iter().map(line).collect()
    }
}

/// Whether a pin covers more than one core of a node, so that it holds none of them.
pub fn floats(topology: &Topology, pin: &CpuSet) -> bool {
    narrow(topology, pin).is_none()
}

/// Returns the cores that a pin holds; none if it is too wide for that.
fn narrow(topology: &Topology, pin: &CpuSet) -> Option<Narrow> {
    let core = |pcpu: PcpuId| topology.core_place(pcpu);
    let mut cores = pin.iter().filter_map(core);
    let Some(first) = cores.next() else { return Some(Narrow::Several(Vec::new())) };
    if cores.all(|other| other == first) {
        return Some(Narrow::One(first));
    }
    let all: BTreeSet<usize> = pin.iter().filter_map(core).collect();
    let node = |at: &usize| topology.cores()[*at].node;
    let nodes: BTreeSet<NodeId> = all.iter().map(node).collect();
    (nodes.len() == all.len()).then(|| Narrow::Several(all.into_iter().collect()))
}

/// The cores that a pin holds, by index; the first case covers nearly all and needs no list.
enum Narrow {
    /// One core.
    One(usize),
    /// One core of each of several nodes, or none.
    Several(Vec<usize>),
}

impl Narrow {
    fn for_each(&self, call: &mut dyn FnMut(usize)) {
        match self {
            Narrow::One(core) => call(*core),
            Narrow::Several(cores) => cores.iter().for_each(|core| call(*core)),
        }
    }
}

fn pins(domain: &Held) -> impl Iterator<Item = &CpuSet> {
    domain.vcpu_pins.iter().chain(&domain.emulator_pin).chain(&domain.iothread_pins)
}

/// A node's memory of all domains.
fn sum(amounts: &[Amount]) -> MemSize {
    amounts.iter().map(|(_, size)| *size).sum()
}

/// Returns the nodes with memory that a domain bound to these uses, as indexes; an empty set means
/// [`ordinary`] ones.
fn nodes_of(topology: &Topology, nodes: &crate::cpuset::NodeSet) -> Vec<usize> {
    let usual = nodes.is_empty().then(|| ordinary(topology));
    let on = |node: &NumaNode| match &usual {
        Some(usual) => usual(node),
        None => nodes.contains(node.os_index) && !node.memory_kib.is_zero(),
    };
    let all = topology.nodes().iter().enumerate();
    all.filter(|(_, node)| on(node)).map(|(at, _)| at).collect()
}

/// Returns a test for nodes that unbound memory comes from: those with CPUs and memory. The memory
/// of a GPU is a node without CPUs (GB300 has 32 of them) and counts only if no other node has
/// memory.
pub(super) fn ordinary(topology: &Topology) -> impl Fn(&NumaNode) -> bool {
    let usual = |node: &NumaNode| !node.memory_kib.is_zero() && !node.pcpus.is_empty();
    let some = topology.nodes().iter().any(usual);
    let other = |node: &NumaNode| !node.memory_kib.is_zero() && !topology.is_gpu_memory(node);
    move |node| if some { usual(node) } else { other(node) }
}
