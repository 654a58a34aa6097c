//! What the domains of a host hold, turned round: by device, by core, by node. Knows what is held, not what is wanted.

use super::{Held, Occupancy};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::topology::{Core, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Is what is taken on a host.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    /// The domain that holds a PCI function.
    devices: BTreeMap<Bdf, &'a str>,
    /// The domains that hold a core, by the core's lowest pcpu.
    cores: BTreeMap<PcpuId, BTreeSet<&'a str>>,
    /// Domains that run and are not held to single cores, with the pcpus that they float over.
    floating: Vec<(&'a str, CpuSet)>,
    /// Memory of each domain on each node.
    memory: BTreeMap<NodeId, Vec<(&'a Held, MemSize)>>,
}

impl<'a> Taken<'a> {
    /// Turns the domains' holdings round.
    pub(super) fn new(topology: &Topology, held: &'a Occupancy) -> Taken<'a> {
        let mut taken = Taken {
            devices: BTreeMap::new(),
            cores: BTreeMap::new(),
            floating: Vec::new(),
            memory: BTreeMap::new(),
        };
        for domain in &held.domains {
            for &bdf in &domain.devices {
                taken.devices.entry(bdf).or_insert(&domain.domain);
            }
            taken.add_pins(topology, domain);
            for (nodes, amount) in &domain.memory {
                let on = |node: NodeId| nodes.is_empty() || nodes.contains(node);
                let sizes = topology.nodes().iter().filter(|n| on(n.os_index));
                let sizes: Vec<_> = sizes.map(|n| (n.os_index, n.memory_kib)).collect();
                let whole: u64 = sizes.iter().map(|(_, size)| size.kib()).sum();
                for (node, size) in sizes.into_iter().filter(|(_, size)| !size.is_zero()) {
                    let share = amount.share(size.kib(), whole);
                    taken.memory.entry(node).or_default().push((domain, share));
                }
            }
        }
        taken
    }

    /// Adds a domain's pins: a pin within one core holds that core, a wider one lets the domain float.
    fn add_pins(&mut self, topology: &Topology, domain: &'a Held) {
        let (mut own, mut wide) = (CpuSet::new(), CpuSet::new());
        let pins = domain.vcpu_pins.iter().chain(&domain.emulator_pin).chain(&domain.iothread_pins);
        for pin in pins {
            let cores: BTreeSet<PcpuId> =
                pin.iter().filter_map(|pcpu| topology.core_of(pcpu)?.pcpus.first()).collect();
            if let [only] = cores.iter().copied().collect::<Vec<_>>()[..] {
                self.cores.entry(only).or_default().insert(&domain.domain);
                own = own.or(&topology.core_of(only).map_or_else(CpuSet::new, |c| c.pcpus.clone()));
            } else {
                wide = wide.or(pin);
            }
        }
        let unpinned = domain.vcpu_pins.iter().all(CpuSet::is_empty);
        let over = if unpinned { topology.pcpus() } else { wide.minus(&own) };
        if domain.active && !over.is_empty() {
            self.floating.push((&domain.domain, over));
        }
    }

    /// The domain that holds a PCI function.
    pub(super) fn device(&self, bdf: Bdf) -> Option<&'a str> {
        self.devices.get(&bdf).copied()
    }

    /// Whether no domain holds a pcpu of the core.
    pub(super) fn core_is_free(&self, core: &Core) -> bool {
        core.pcpus.first().is_none_or(|first| !self.cores.contains_key(&first))
    }

    /// Who holds these cores, one line for each domain.
    pub(super) fn core_holders<'c>(
        &self,
        node: NodeId,
        cores: impl Iterator<Item = &'c Core>,
    ) -> Vec<String> {
        let mut by_domain: BTreeMap<&str, usize> = BTreeMap::new();
        for core in cores {
            let holders = core.pcpus.first().and_then(|first| self.cores.get(&first));
            for name in holders.into_iter().flatten() {
                *by_domain.entry(name).or_default() += 1;
            }
        }
        let line = |(name, number): (&&str, &usize)| {
            let cores = super::explain::count(*number, "core");
            format!("{cores} of node {node} are held by domain `{name}`")
        };
        by_domain.iter().map(line).collect()
    }

    /// Running domains that may run on these pcpus.
    pub(super) fn floating_over(&self, pcpus: &CpuSet) -> Vec<&'a str> {
        let over = self.floating.iter().filter(|(_, set)| set.intersects(pcpus));
        over.map(|(name, _)| *name).collect()
    }

    /// Memory of all domains on a node. What is bound to several nodes, or to none, counts by the nodes' sizes.
    pub(super) fn memory(&self, node: NodeId) -> MemSize {
        self.memory.get(&node).into_iter().flatten().map(|(_, size)| *size).sum()
    }

    /// Memory on a node of domains that are off and will take it from the pool of this page size.
    pub(super) fn memory_to_come(&self, node: NodeId, page: MemSize) -> MemSize {
        let all = self.memory.get(&node).into_iter().flatten();
        all.filter(|(held, _)| !held.active && held.huge_page_kib == Some(page))
            .map(|(_, size)| *size)
            .sum()
    }

    /// Who holds memory of a node, one line for each domain.
    pub(super) fn memory_holders(&self, node: NodeId) -> Vec<String> {
        let mut by_domain: BTreeMap<&str, MemSize> = BTreeMap::new();
        for (held, size) in self.memory.get(&node).into_iter().flatten() {
            let sum = by_domain.entry(&held.domain).or_default();
            *sum = *sum + *size;
        }
        let line = |(name, size): (&&str, &MemSize)| {
            format!("{size} of node {node} are held by domain `{name}`")
        };
        by_domain.iter().map(line).collect()
    }
}
