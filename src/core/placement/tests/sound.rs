//! Invariants of every plan, for any request and host: checks for the property tests.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::cpuset::{NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::placement::affinity::{Homes, distance};
use crate::placement::taken::Taken;
use crate::placement::*;
use crate::request::{CellWish, Profile};
use crate::request::{PageSize, PinPolicy, Request};
use crate::topology::Topology;
use crate::topology::{Core, DeviceKind};
use std::collections::BTreeSet;

/// A plan with its input.
pub(super) struct Case<'a> {
    pub(super) topology: &'a Topology,
    pub(super) held: &'a Occupancy,
    pub(super) request: &'a Request,
    pub(super) plan: &'a Placement,
}

impl Case<'_> {
    /// Checks the plan against itself, its request and its host.
    pub(super) fn check(&self) {
        let (request, plan) = (self.request, self.plan);
        let vcpus = plan.vcpus() as usize;
        assert_eq!(plan.vcpu_pins.len(), vcpus, "topology and pins");
        let mut next = 0;
        for cell in &plan.cells {
            assert_eq!(cell.vcpus.start, next, "cells are consecutive");
            next = cell.vcpus.end;
            // Sizes of `nvidia-vm` are whole MiB.
            let vendor = request.profile == Profile::NvidiaVm && request.memory_kib.is_none();
            let normal = if vendor { MemSize::from_kib(1024) } else { PageSize::TwoMib.size() };
            let unit = plan.huge_pages.map_or(normal, PageSize::size);
            let memory = cell.memory_kib;
            assert!(!memory.is_zero() && memory.round_down(unit) == memory);
            assert!(cell.distances.is_empty() || cell.distances.len() == plan.cells.len());
        }
        assert_eq!(next as usize, vcpus, "cells and topology");
        if let Some(asked) = request.vcpus {
            assert_eq!(asked as usize, vcpus, "as requested");
        }
        if let Some(asked) = request.memory_kib {
            let unit = plan.huge_pages.unwrap_or(PageSize::TwoMib).size();
            let (down, up) = (asked.round_down(unit), asked.round_up(unit));
            assert!([down, up].contains(&plan.memory()), "{asked:?}: {:?}", plan.memory());
        }
        if let CellWish::Count(cells) = request.cells {
            assert_eq!(plan.cells.len(), cells as usize, "cells as requested");
        }
        let grouped: Vec<Bdf> =
            plan.guest_pcie.groups.iter().flat_map(|g| g.devices.clone()).collect();
        assert_eq!(BTreeSet::from_iter(&grouped), BTreeSet::from_iter(&plan.devices), "PCIe tree");
        assert_eq!(grouped.len(), plan.devices.len());
        self.check_devices();
        if request.pins == PinPolicy::None {
            assert!(plan.vcpu_pins.iter().all(CpuSet::is_empty) && plan.emulator_pin.is_empty());
            return;
        }
        let mut seen = CpuSet::new();
        for pin in &plan.vcpu_pins {
            assert_eq!(pin.len(), 1);
            assert!(!seen.intersects(pin) && pin.is_subset(&self.topology.pcpus()), "{pin}");
            seen = seen.or(pin);
        }
        self.check_reserve();
        if request.profile != Profile::NvidiaVm {
            self.check_cores();
            self.check_cells();
            self.check_remote();
            self.check_caches();
        }
    }

    fn core(&self, pcpu: PcpuId) -> &Core {
        self.topology.core_of(pcpu).unwrap()
    }

    fn of(&self, pin: &CpuSet) -> &Core {
        self.core(pin.first().unwrap())
    }

    /// Whether a reason says this, as a compromise.
    fn admits(&self, text: &str) -> bool {
        self.plan.reasons.iter().any(|r| r.compromise && r.because.to_string().contains(text))
    }

    /// Cores of the guest, by lowest pcpu.
    fn own(&self) -> BTreeSet<PcpuId> {
        let pins = self.plan.vcpu_pins.iter().chain(&self.plan.iothread_pins);
        let pins = pins.chain([&self.plan.emulator_pin]);
        let pcpus: BTreeSet<PcpuId> = pins.flat_map(|pin| pin.iter().collect::<Vec<_>>()).collect();
        pcpus.into_iter().map(|pcpu| self.core(pcpu).pcpus.first().unwrap()).collect()
    }

    /// Guest cores are host cores, and helper threads are near the vCPUs or float over their cores,
    /// with a reason.
    fn check_cores(&self) {
        let plan = self.plan;
        let threads = plan.topology.threads as usize;
        for cores in plan.vcpu_pins.chunks(threads) {
            let first = self.of(&cores[0]);
            assert!(cores.iter().all(|pin| pin.is_subset(&first.pcpus)), "a guest core is one");
        }
        let vcpus = plan.vcpu_pins.iter().fold(CpuSet::new(), |all, pin| all.or(pin));
        let mut cores = CpuSet::new();
        plan.vcpu_pins.iter().for_each(|pin| cores = cores.or(&self.of(pin).pcpus));
        assert!(!plan.emulator_pin.is_empty());
        if plan.emulator_pin.intersects(&vcpus) {
            assert_eq!(plan.emulator_pin, cores, "it floats over the guest's cores");
            assert!(self.admits("emulator and I/O threads float"), "{:?}", plan.reasons);
        } else {
            assert!(!self.admits("emulator and I/O threads float"), "{:?}", plan.reasons);
            let is_apart = |pin: &CpuSet| pin.is_subset(&plan.emulator_pin);
            assert!(plan.iothread_pins.iter().all(is_apart), "{:?}", plan.iothread_pins);
        }
        for pin in &plan.iothread_pins {
            assert!(pin.is_subset(&plan.emulator_pin) || pin.is_subset(&cores), "{pin}");
            let nodes: BTreeSet<_> = pin.iter().map(|pcpu| self.core(pcpu).node).collect();
            assert_eq!(nodes.len(), 1, "an I/O thread stays on a node");
        }
        assert_eq!(plan.iothread_pins.len(), plan.cells.len(), "an I/O thread for each cell");
    }

    /// Cells are on one node, with their memory there, or a reason says otherwise.
    fn check_cells(&self) {
        let plan = self.plan;
        for (at, cell) in plan.cells.iter().enumerate() {
            let pins = &plan.vcpu_pins[cell.vcpus.start as usize..cell.vcpus.end as usize];
            let nodes: BTreeSet<NodeId> = pins.iter().map(|pin| self.of(pin).node).collect();
            let one = matches!(self.request.cells, CellWish::Count(1));
            assert!(nodes.len() == 1 || one, "a cell stands on one node");
            assert!(!cell.host_nodes.is_empty(), "its memory is bound");
            for node in cell.host_nodes.iter() {
                let memory = self.topology.node(node).unwrap().memory_kib;
                assert!(!memory.is_zero(), "on a node that has some");
                let far = format!("of cell {at} are on node {node}");
                let bare = format!("it is taken from node {node}, the nearest");
                assert!(nodes.contains(&node) || self.admits(&far) || self.admits(&bare));
            }
        }
        assert!(self.request.allow.remote || !self.admits("too little left"));
    }

    /// vCPUs off the nodes of the GPUs are allowed and reported, and used only if those nodes are
    /// full.
    fn check_remote(&self) {
        let homes = Homes::new(self.topology, self.request.reserve.cores);
        let of = |bdf: &&Bdf| self.topology.device(**bdf).unwrap().kind() == DeviceKind::Gpu;
        let gpus: Vec<Bdf> = self.plan.devices.iter().filter(of).copied().collect();
        let mut near: BTreeSet<NodeId> = gpus.iter().map(|&gpu| homes.of_gpu(gpu).0).collect();
        if gpus.is_empty() {
            return;
        }
        let own = near.clone();
        if self.request.profile == Profile::Share {
            near.extend(self.without_gpus(&homes, &own));
        }
        let vcpus = self.plan.vcpu_pins.len();
        for node in self.plan.vcpu_pins.iter().map(|pin| self.of(pin).node) {
            assert!(near.contains(&node) || self.request.allow.remote, "not allowed");
            let said = near.iter().any(|&home| {
                let far = distance(self.topology, home, node);
                let far = far.map_or(String::new(), |far| format!(", distance {far}"));
                self.admits(&format!("on node {node}{far}: node {home} of their GPUs"))
            });
            assert!(near.contains(&node) || said, "{:?}", self.plan.reasons);
        }
        let taken = Taken::new(self.topology, self.held);
        let (own, threads) = (self.own(), self.plan.vcpus().div_ceil(vcpus as u32) as usize);
        for &home in near.iter() {
            if self.admits(&format!("node {home} of their GPUs has too few free cores")) {
                let seats = homes.seats(home).iter().filter(|seat| taken.is_free(seat.at));
                let left = seats.filter(|seat| {
                    !own.contains(&seat.core.pcpus.first().unwrap())
                        && seat.threads >= threads.max(homes.common_threads())
                });
                assert!(left.count() <= 1, "node {home} has more");
            }
        }
    }

    /// Nodes without GPUs in the packages of these nodes.
    fn without_gpus(&self, homes: &Homes<'_>, own: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let cores = self.topology.cores();
        let packages: BTreeSet<u32> =
            cores.iter().filter(|core| own.contains(&core.node)).map(|core| core.package).collect();
        let with: BTreeSet<NodeId> =
            self.topology.gpus().map(|gpu| homes.of_gpu(gpu.bdf).0).collect();
        let beside = cores.iter().filter(|core| packages.contains(&core.package));
        beside.map(|core| core.node).filter(|node| !with.contains(node)).collect()
    }

    /// L3 caches that other guests use are reported, and no others; so is using more of them than
    /// needed.
    fn check_caches(&self) {
        let taken = Taken::new(self.topology, self.held);
        let own = self.own();
        let mut shared = CpuSet::new();
        for cache in &self.topology.parts().l3 {
            let below = |core: &&Core| core.pcpus.intersects(&cache.pcpus);
            let cores: Vec<usize> = (0..self.topology.cores().len())
                .filter(|at| below(&&self.topology.cores()[*at]))
                .collect();
            let mine =
                |at: &usize| own.contains(&self.topology.cores()[*at].pcpus.first().unwrap());
            if cores.iter().any(mine) && cores.iter().any(|at| !taken.is_free(*at)) {
                shared = shared.or(&cache.pcpus);
            }
        }
        let said = self.admits("is shared with domain");
        assert_eq!(said, !shared.is_empty(), "{:?}", self.plan.reasons);
        if said {
            assert!(self.admits(&format!("the L3 cache of pcpus {shared} is shared")));
        }
    }

    /// No guest uses cores reserved for the host.
    fn check_reserve(&self) {
        let rest = Homes::new(self.topology, self.request.reserve.cores);
        let seats = rest.all().iter().flat_map(|home| &home.seats);
        let rest: BTreeSet<_> = seats.map(|seat| seat.core.pcpus.first().unwrap()).collect();
        assert!(self.own().iter().all(|core| rest.contains(core)), "kept for the host");
    }

    /// The guest's devices are one partition's, and switches come from its pool.
    fn check_devices(&self) {
        let (topology, plan) = (self.topology, self.plan);
        let of = |kind| {
            let all = plan.devices.iter().copied();
            all.filter(move |b| topology.device(*b).unwrap().kind() == kind)
        };
        let gpus: BTreeSet<Bdf> = of(DeviceKind::Gpu).collect();
        let switches: Vec<Bdf> = of(DeviceKind::NvSwitch).collect();
        match topology.partitions().iter().find(|partition| Some(partition.id) == plan.partition) {
            Some(partition) => {
                assert_eq!(gpus, partition.gpus.iter().copied().collect());
                assert_eq!(switches.len(), partition.nvswitches as usize);
                assert!(switches.iter().all(|bdf| partition.nvswitch_pool.contains(bdf)));
            }
            None => {
                assert!(switches.is_empty());
                let all: Vec<Bdf> = gpus.iter().copied().collect();
                let split = plan
                    .reasons
                    .iter()
                    .any(|r| r.because.to_string().contains("do not form a partition"));
                assert!(split || topology.partition_of(&all) == Ok(None));
            }
        }
    }
}

/// Checks all guests of a host together.
pub(crate) fn check_together(topology: &Topology, guests: &[Held]) {
    let mut cores: BTreeSet<PcpuId> = BTreeSet::new();
    let mut devices: BTreeSet<Bdf> = BTreeSet::new();
    for guest in guests {
        let pins = guest.vcpu_pins.iter().chain(&guest.iothread_pins).chain(&guest.emulator_pin);
        let own: BTreeSet<PcpuId> = pins
            .flat_map(|pin| pin.iter().collect::<Vec<_>>())
            .map(|pcpu| topology.core_of(pcpu).unwrap().pcpus.first().unwrap())
            .collect();
        assert!(own.iter().all(|core| cores.insert(*core)), "two guests on one core");
        assert!(guest.devices.iter().all(|bdf| devices.insert(*bdf)), "two guests with one device");
    }
    // For the nodes of any guest, all memory bound within them fits there.
    let memory = || guests.iter().flat_map(|guest| &guest.memory).filter(|(n, _)| !n.is_empty());
    let mut sets: BTreeSet<NodeSet> = memory().map(|(nodes, _)| nodes.clone()).collect();
    sets.extend(topology.nodes().iter().map(|node| NodeSet::of(node.os_index)));
    for set in sets {
        let bound: MemSize = memory().filter(|(n, _)| n.is_subset(&set)).map(|(_, s)| *s).sum();
        let nodes = topology.nodes().iter().filter(|node| set.contains(node.os_index));
        let there: MemSize = nodes.map(|node| node.memory_kib).sum();
        assert!(bound <= there, "{bound} on nodes {set} of {there}");
    }
    let all: MemSize = guests.iter().flat_map(|g| &g.memory).map(|(_, size)| *size).sum();
    assert!(all <= topology.nodes().iter().map(|node| node.memory_kib).sum());
}
