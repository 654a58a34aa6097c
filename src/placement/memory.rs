//! How much memory a guest gets and from which nodes. Knows nothing of pcpus and of PCIe.

use super::cpus::GuestCpus;
use super::explain::{Reasons, count};
use super::home::{self, Homes};
use super::taken::Taken;
use super::{GuestCell, PlanError, pages};
use crate::bdf::Bdf;
use crate::cpuset::{NodeId, NodeSet};
use crate::memsize::MemSize;
use crate::request::{PageSize, Profile, Request};
use crate::topology::{NumaNode, Topology};
use std::collections::BTreeMap;

/// Memory of a guest without GPUs that asks for none.
const DEFAULT: MemSize = MemSize::from_gib(2);
/// Memory that the replaced tool gave to 16 GPUs of a DGX-2 (spec/nvidia-vm.md 2.3).
const DGX2: MemSize = MemSize::from_kib(1_516_912_640);

/// Is what the memory is chosen on.
pub(super) struct Memory<'a> {
    /// The host.
    pub(super) topology: &'a Topology,
    /// Homes of its GPUs.
    pub(super) homes: &'a Homes<'a>,
    /// What is taken.
    pub(super) taken: &'a Taken<'a>,
    /// The guest's GPUs.
    pub(super) gpus: &'a [Bdf],
    /// What is wanted.
    pub(super) request: &'a Request,
}

/// What stays with the host of a node's memory when a share is computed: one twentieth, at least 1 GiB and at most
/// half; for the kernel, QEMU's own memory and page tables.
fn reserve(node: &NumaNode) -> MemSize {
    keep(node.memory_kib, 20, MemSize::from_gib(1))
}

/// What stays with the host of a node's memory whatever is asked for: one fiftieth, at least 512 MiB and at most half.
fn least(node: &NumaNode) -> MemSize {
    keep(node.memory_kib, 50, MemSize::from_kib(512 << 10))
}

/// One part in `part` of a size, at least `least` and at most half.
fn keep(size: MemSize, part: u64, least: MemSize) -> MemSize {
    size.share(1, part).max(least).min(size.share(1, 2))
}

impl Memory<'_> {
    /// The unit that each cell's memory is a multiple of: the huge page, else 2 MiB (spec/nvidia-vm.md 6, T4).
    fn unit(&self) -> MemSize {
        self.request.huge_pages.unwrap_or(PageSize::TwoMib).size()
    }

    /// Makes the cells with their memory.
    pub(super) fn cells(
        &self,
        cpus: &GuestCpus,
        reasons: &mut Reasons,
    ) -> Result<Vec<GuestCell>, PlanError> {
        let nodes: Vec<Option<NodeId>> =
            cpus.cells.iter().map(|(node, _)| node.and_then(|n| self.memory_node(n))).collect();
        for ((own, _), from) in cpus.cells.iter().zip(&nodes) {
            if let (Some(own), Some(from)) = (own, from)
                && own != from
            {
                let text =
                    format!("node {own} has no memory; it is taken from node {from}, the nearest");
                reasons.compromise("memory", text);
            }
        }
        let sizes = self.sizes(cpus, reasons)?;
        self.check(&nodes, &sizes)?;
        self.explain_idle(&nodes, reasons);
        pages::check(self.topology, self.taken, self.request.huge_pages, &nodes, &sizes, reasons)?;
        let mut first = 0;
        let mut cells = Vec::new();
        for (at, (_, vcpus)) in cpus.cells.iter().enumerate() {
            cells.push(GuestCell {
                vcpus: first..first + vcpus,
                memory_kib: sizes[at],
                host_nodes: nodes[at].into_iter().collect::<NodeSet>(),
                distances: self.distances(cpus, at),
            });
            first += vcpus;
        }
        Ok(cells)
    }

    /// The node that a node's guests have their memory on: itself, else the nearest with memory.
    fn memory_node(&self, node: NodeId) -> Option<NodeId> {
        home::nearest(self.topology, node, |n| !n.memory_kib.is_zero())
    }

    /// Distances from one cell to all, where there are several and the host knows them.
    fn distances(&self, cpus: &GuestCpus, at: usize) -> Vec<u32> {
        let position = |id: NodeId| self.topology.nodes().iter().position(|n| n.os_index == id);
        let from = cpus.cells[at].0.and_then(|node| self.topology.node(node));
        let (Some(from), 2..) = (from, cpus.cells.len()) else { return Vec::new() };
        let to =
            |(node, _): &(Option<NodeId>, u32)| from.distances.get(position((*node)?)?).copied();
        cpus.cells.iter().map(to).collect::<Option<Vec<u32>>>().unwrap_or_default()
    }

    /// What the GPUs at home on a node bring: their part of its memory less what stays with the host. Nodes that have
    /// their memory elsewhere count where they have it.
    fn share(&self, node: NodeId) -> MemSize {
        let Some(from) = self.memory_node(node).and_then(|id| self.topology.node(id)) else {
            return MemSize::default();
        };
        let sharing = self.homes.nodes().filter(|&n| self.memory_node(n) == Some(from.os_index));
        let all: usize = sharing.map(|n| self.homes.gpus(n).count()).sum();
        let mine = self.gpus.iter().filter(|gpu| self.homes.of_gpu(**gpu).0 == node).count();
        (from.memory_kib - reserve(from) - self.idle(from)).share(mine as u64, all.max(1) as u64)
    }

    /// Whether the host is the machine whose sizes the replaced tool had.
    fn is_dgx2(&self) -> bool {
        let product = self.topology.machine().product.as_deref();
        let board = self.topology.fabric().board.as_deref();
        let named =
            |name: Option<&str>| name.is_some_and(|n| n.replace(['-', ' '], "").contains("DGX2"));
        named(product) || named(board)
    }

    /// Memory of each cell.
    fn sizes(&self, cpus: &GuestCpus, reasons: &mut Reasons) -> Result<Vec<MemSize>, PlanError> {
        let unit = self.unit();
        let vendor = self.request.profile == Profile::NvidiaVm && self.is_dgx2();
        let whole: Vec<MemSize> = match self.request.memory_kib {
            Some(asked) => self.split(cpus, asked),
            None if self.gpus.is_empty() => self.split(cpus, DEFAULT),
            None if vendor => self.split(cpus, DGX2.share(self.gpus.len() as u64, 16)),
            None if cpus.cells.iter().all(|(node, _)| node.is_some()) => {
                cpus.cells.iter().map(|(node, _)| node.map_or(DEFAULT, |n| self.share(n))).collect()
            }
            None => {
                let nodes = self.homes.nodes().map(|node| self.share(node));
                self.split(cpus, nodes.sum())
            }
        };
        let sizes: Vec<MemSize> = whole.iter().map(|size| size.round_down(unit)).collect();
        let total: MemSize = sizes.iter().copied().sum();
        if sizes.iter().any(|size| size.is_zero()) {
            let asked: MemSize = whole.iter().copied().sum();
            return Err(PlanError::Impossible {
                what: format!(
                    "{asked} of memory do not give each of {} a page of {unit}",
                    count(sizes.len(), "cell")
                ),
                hint: format!(
                    "at least {} in all",
                    MemSize::from_kib(unit.kib() * sizes.len() as u64)
                ),
            });
        }
        let text = match self.request.memory_kib {
            Some(asked) if asked == total => format!("{total}, as asked for"),
            Some(asked) => format!(
                "{} KiB: the {} KiB asked for, rounded down to whole pages of {unit} in each of {}",
                total.kib(),
                asked.kib(),
                count(sizes.len(), "cell")
            ),
            None if self.gpus.is_empty() => format!("{total}, the default without GPUs"),
            None if vendor => format!(
                "{} KiB: {} of 16 parts of {} KiB as the replaced tool gave, rounded down to \
                 {unit}",
                total.kib(),
                self.gpus.len(),
                DGX2.kib()
            ),
            None => format!(
                "{total}: the share of {} in the nodes' memory, of which one twentieth and at least \
                 1 GiB stays with the host",
                count(self.gpus.len(), "GPU")
            ),
        };
        reasons.say("memory", text);
        Ok(sizes)
    }

    /// Splits an amount over the cells in proportion to their vCPUs.
    fn split(&self, cpus: &GuestCpus, amount: MemSize) -> Vec<MemSize> {
        let all: u32 = cpus.cells.iter().map(|(_, vcpus)| vcpus).sum();
        let part =
            |(_, vcpus): &(Option<NodeId>, u32)| amount.share((*vcpus).into(), all.max(1).into());
        cpus.cells.iter().map(part).collect()
    }

    /// Refuses more memory than the nodes have, or have left.
    fn check(&self, nodes: &[Option<NodeId>], sizes: &[MemSize]) -> Result<(), PlanError> {
        let mut wanted: BTreeMap<Option<NodeId>, MemSize> = BTreeMap::new();
        for (node, size) in nodes.iter().zip(sizes) {
            let sum = wanted.entry(*node).or_default();
            *sum = *sum + *size;
        }
        for (node, size) in wanted {
            let of = |n: &&NumaNode| node.is_none_or(|id| n.os_index == id);
            let those = || self.topology.nodes().iter().filter(of);
            let there: MemSize = those().map(|n| n.memory_kib - least(n)).sum();
            let place = node.map_or("of this host".to_owned(), |id| format!("of node {id}"));
            if size > there {
                let what = format!(
                    "{size} of memory are more than the {there} {place} that a guest can have"
                );
                let most = there.round_down(self.unit()).kib() >> 10;
                let hint = format!("--memory {most}M would fit there on the empty host");
                return Err(PlanError::Impossible { what, hint });
            }
            let left: MemSize = those().map(|n| self.left(n)).sum();
            if size > left {
                let mut holders: Vec<String> =
                    those().flat_map(|n| self.taken.memory_holders(n.os_index)).collect();
                for n in those().filter(|n| !self.idle(n).is_zero()) {
                    holders.push(format!(
                        "{} of node {} lie in huge pages that nobody uses",
                        self.idle(n),
                        n.os_index
                    ));
                }
                let what =
                    format!("{size} of memory are more than the {left} {place} that are left");
                let hint = match left.round_down(self.unit()) {
                    none if none.is_zero() => "`gpuvm list` shows what each domain holds".into(),
                    some => format!("--memory {}M would fit there", some.kib() >> 10),
                };
                return Err(PlanError::Taken { what, holders, hint });
            }
        }
        Ok(())
    }

    /// Memory of a node that no domain has, that stays not with the host and is in no pool that the guest cannot use.
    fn left(&self, node: &NumaNode) -> MemSize {
        node.memory_kib - least(node) - self.taken.memory(node.os_index) - self.idle(node)
    }

    /// Says which memory lies in pools that the guest does not use.
    fn explain_idle(&self, nodes: &[Option<NodeId>], reasons: &mut Reasons) {
        let own = |n: &&NumaNode| nodes.contains(&None) || nodes.contains(&Some(n.os_index));
        for node in self.topology.nodes().iter().filter(own) {
            let idle = self.idle(node);
            if !idle.is_zero() {
                let text = format!(
                    "{idle} of node {} lie in huge pages that nobody uses and this guest does \
                     not ask for",
                    node.os_index
                );
                reasons.compromise("memory", text);
            }
        }
    }

    /// Memory of a node in huge pages of other sizes than the guest's that no domain has or will take.
    fn idle(&self, node: &NumaNode) -> MemSize {
        let page = self.request.huge_pages.map(PageSize::size);
        let others = node.huge_pages.iter().filter(|pool| Some(pool.page_kib) != page);
        others
            .map(|pool| {
                let free = MemSize::from_kib(pool.page_kib.kib().saturating_mul(pool.free));
                free - self.taken.memory_to_come(node.os_index, pool.page_kib)
            })
            .sum()
    }
}
