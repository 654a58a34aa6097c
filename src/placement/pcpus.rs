//! Which cores a guest gets: whole cores, on the nodes of its GPUs. Knows nothing of memory and of PCIe.

use super::PlanError;
use super::explain::{Reasons, count};
use super::home::Homes;
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{Profile, Request};
use crate::topology::{Core, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// vCPUs of a guest without GPUs that asks for no number.
pub(super) const DEFAULT_VCPUS: u32 = 2;

/// Is the cores that a guest gets on one node.
#[derive(Debug, Clone)]
pub(super) struct NodeCores<'a> {
    /// The node.
    pub(super) node: NodeId,
    /// Cores for vCPUs, in hwloc's order.
    pub(super) vcpus: Vec<&'a Core>,
    /// The core for emulator and I/O threads; none in the vendor's profile.
    pub(super) own: Option<&'a Core>,
}

/// Is all cores of a guest.
#[derive(Debug, Clone)]
pub(super) struct GuestCores<'a> {
    /// By node, ascending.
    pub(super) nodes: Vec<NodeCores<'a>>,
    /// Threads of a core that vCPUs use.
    pub(super) threads: usize,
}

impl GuestCores<'_> {
    /// Every pcpu of these cores.
    pub(super) fn pcpus(&self) -> CpuSet {
        let cores = self.nodes.iter().flat_map(|node| node.vcpus.iter().chain(&node.own));
        cores.fold(CpuSet::new(), |set, core| set.or(&core.pcpus))
    }
}

/// Is what the cores are chosen on.
pub(super) struct Cores<'a> {
    /// The host.
    pub(super) topology: &'a Topology,
    /// Homes of its GPUs.
    pub(super) homes: &'a Homes<'a>,
    /// What is taken.
    pub(super) taken: &'a Taken<'a>,
    /// The guest's GPUs.
    pub(super) gpus: &'a [Bdf],
}

/// How many cores are wanted on a node: for vCPUs, and for emulator and I/O threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Demand {
    /// The node.
    node: NodeId,
    /// Cores for vCPUs.
    vcpus: usize,
    /// Cores for emulator and I/O threads, or left free in the vendor's profile: 0 or 1.
    own: usize,
}

impl<'a> Cores<'a> {
    /// GPUs of the guest on each of its nodes, ascending.
    pub(super) fn guest_nodes(&self) -> BTreeMap<NodeId, usize> {
        let mut nodes = BTreeMap::new();
        for &gpu in self.gpus {
            *nodes.entry(self.homes.of_gpu(gpu).0).or_default() += 1;
        }
        nodes
    }

    /// Free cores of a node.
    pub(super) fn free(&self, node: NodeId) -> impl Iterator<Item = &'a Core> + '_ {
        self.homes.cores(node).iter().copied().filter(|core| self.taken.core_is_free(core))
    }

    /// vCPUs that the profile gives when nobody asks for a number.
    pub(super) fn default_vcpus(&self, profile: Profile) -> u32 {
        if self.gpus.is_empty() {
            return DEFAULT_VCPUS;
        }
        let threads = self.homes.common_threads();
        let vcpus: usize = self.share(profile).iter().map(|d| d.vcpus * threads).sum();
        let odd = profile == Profile::NvidiaVm && self.gpus.len() == 1 && threads > 1;
        u32::try_from(vcpus - usize::from(odd)).unwrap_or(u32::MAX)
    }

    /// What the guest's GPUs bring: their shares of their nodes' cores, one core of each node kept for emulator and
    /// I/O threads. The vendor's guest of one GPU uses that core too, all but its last thread.
    fn share(&self, profile: Profile) -> Vec<Demand> {
        let whole =
            profile == Profile::NvidiaVm && self.gpus.len() == 1 && self.homes.common_threads() > 1;
        let demand = |(&node, &gpus): (&NodeId, &usize)| {
            let there = self.homes.cores(node).len();
            let share = (self.homes.share(node) * gpus).min(there.max(2)).max(2);
            let own = usize::from(!whole);
            Demand { node, vcpus: share - own, own }
        };
        self.guest_nodes().iter().map(demand).collect()
    }

    /// What so many cores for vCPUs mean on nodes of these weights: in proportion, the rest to the largest remainders;
    /// nodes that get none drop out.
    fn spread(weights: &BTreeMap<NodeId, usize>, cores: usize, own: usize) -> Vec<Demand> {
        let whole: usize = weights.values().sum::<usize>().max(1);
        let floor = |weight: usize| cores * weight / whole;
        let mut rest = cores - weights.values().map(|&weight| floor(weight)).sum::<usize>();
        let mut by_remainder: Vec<(NodeId, usize)> =
            weights.iter().map(|(n, w)| (*n, *w)).collect();
        by_remainder
            .sort_by_key(|&(node, weight)| (std::cmp::Reverse(cores * weight % whole), node));
        let mut demands: Vec<Demand> = Vec::new();
        for (node, weight) in by_remainder {
            let more = usize::from(rest > 0);
            rest -= more;
            demands.push(Demand { node, vcpus: floor(weight) + more, own });
        }
        demands.retain(|demand| demand.vcpus > 0);
        demands.sort_by_key(|demand| demand.node);
        demands
    }

    /// Chooses the cores of a request.
    pub(super) fn choose(
        &self,
        request: &Request,
        reasons: &mut Reasons,
    ) -> Result<GuestCores<'a>, PlanError> {
        let common = self.homes.common_threads();
        let own = usize::from(request.profile == Profile::Share);
        let mut cores = match (request.vcpus, self.gpus.is_empty()) {
            (None, false) => {
                let demands = self.share(request.profile);
                self.take(&demands, common, 1)?
            }
            (asked, _) => {
                let vcpus = asked.unwrap_or(DEFAULT_VCPUS) as usize;
                self.check_number(vcpus, common, request.profile)?;
                self.choose_number(vcpus, common, own)?
            }
        };
        if request.profile == Profile::NvidiaVm {
            cores.nodes.iter_mut().for_each(|node| node.own = None);
        }
        self.explain(request, &cores, common, reasons);
        Ok(cores)
    }

    /// Refuses numbers of vCPUs that no set of whole cores gives.
    fn check_number(
        &self,
        vcpus: usize,
        threads: usize,
        profile: Profile,
    ) -> Result<(), PlanError> {
        let there = self.topology.pcpus().len();
        if vcpus > there {
            return Err(PlanError::Impossible {
                what: format!("{vcpus} vCPUs are more than the {there} hyperthreads of this host"),
                hint: format!("{}; `--pins none` floats over all", self.at_most(false)),
            });
        }
        if profile == Profile::Share && vcpus > threads && !vcpus.is_multiple_of(threads) {
            let below = vcpus - vcpus % threads;
            return Err(PlanError::Impossible {
                what: format!(
                    "{vcpus} vCPUs do not fill cores of {threads} threads, and a core is never \
                     shared"
                ),
                hint: format!("--vcpus {below} or --vcpus {}", below + threads),
            });
        }
        Ok(())
    }

    /// Chooses cores for a number of vCPUs: with as many threads as most cores have, else with fewer.
    fn choose_number(
        &self,
        vcpus: usize,
        common: usize,
        own: usize,
    ) -> Result<GuestCores<'a>, PlanError> {
        let mut numbers: BTreeSet<usize> =
            self.topology.cores().iter().map(|core| core.pcpus.len()).collect();
        numbers.insert(1);
        let mut refused = None;
        for threads in numbers.into_iter().rev().filter(|&t| t <= common).map(|t| t.min(vcpus)) {
            let fits = vcpus.is_multiple_of(threads) || own == 0;
            if !fits {
                continue;
            }
            let cores = vcpus.div_ceil(threads);
            for weights in self.weights() {
                match self.take(&Self::spread(&weights, cores, own), threads, threads) {
                    Ok(cores) => return Ok(cores),
                    Err(error) => {
                        refused.get_or_insert(error);
                    }
                }
            }
        }
        Err(refused.unwrap_or_else(|| PlanError::Impossible {
            what: "this host has no cores".into(),
            hint: "--pins none".into(),
        }))
    }

    /// Weights of nodes to try, the best first: the nodes of the GPUs; without GPUs the node with most free cores, then
    /// two of them, and so on.
    fn weights(&self) -> Vec<BTreeMap<NodeId, usize>> {
        if !self.gpus.is_empty() {
            return vec![self.guest_nodes()];
        }
        let memory =
            |node: NodeId| self.topology.node(node).is_some_and(|n| !n.memory_kib.is_zero());
        let mut nodes: Vec<NodeId> = self.homes.nodes().collect();
        nodes
            .sort_by_key(|&node| (!memory(node), std::cmp::Reverse(self.free(node).count()), node));
        (1..=nodes.len()).map(|n| nodes[..n].iter().map(|&node| (node, 1)).collect()).collect()
    }

    /// Takes cores on each node; vCPU cores have at least `least` threads, and those with `threads` come first.
    fn take(
        &self,
        demands: &[Demand],
        threads: usize,
        least: usize,
    ) -> Result<GuestCores<'a>, PlanError> {
        let nodes = demands.iter().map(|demand| self.take_on(demand, threads, least));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let fewest = nodes.iter().flat_map(|node| &node.vcpus).map(|core| core.pcpus.len()).min();
        let threads = if least == threads { threads } else { fewest.unwrap_or(1) };
        Ok(GuestCores { nodes, threads })
    }

    /// Takes cores on one node. First those with the wanted number of threads, then the blocks of the guest's GPUs, then
    /// cores that no other free GPU owns, at last those of the GPUs that are given out last.
    fn take_on(
        &self,
        demand: &Demand,
        threads: usize,
        least: usize,
    ) -> Result<NodeCores<'a>, PlanError> {
        let Demand { node, vcpus, own } = *demand;
        let place = |core: &Core| self.homes.cores(node).iter().position(|c| c.pcpus == core.pcpus);
        let mut blocks = BTreeSet::new();
        let mut others = BTreeSet::new();
        for gpu in self.homes.gpus(node) {
            if self.gpus.contains(&gpu) {
                blocks.extend(self.homes.block(gpu));
            } else if self.taken.device(gpu).is_none() {
                others.extend(self.homes.block(gpu));
            }
        }
        let mut free: Vec<(usize, &Core)> =
            self.free(node).filter_map(|core| Some((place(core)?, core))).collect();
        free.sort_by_key(|(at, core)| {
            let odd = core.pcpus.len() < threads;
            let other = others.contains(at);
            let from_end = if other { usize::MAX - at } else { *at };
            (odd, core.pcpus.len() != threads, !blocks.contains(at), other, from_end)
        });
        free.truncate(vcpus + own);
        let short = free.len() < vcpus + own;
        free.sort_by_key(|(at, _)| *at);
        let mut chosen: Vec<&Core> = free.into_iter().map(|(_, core)| core).collect();
        let mut last = None;
        if own == 1 && !short {
            let fewest = chosen.iter().map(|core| core.pcpus.len()).min();
            let at = chosen.iter().rposition(|core| Some(core.pcpus.len()) == fewest);
            last = at.map(|at| chosen.remove(at));
        }
        if short || chosen.iter().any(|core| core.pcpus.len() < least) {
            return Err(self.refusal(demand, least));
        }
        Ok(NodeCores { node, vcpus: chosen, own: last })
    }

    /// The error that a node has too few cores: for good, or for now.
    fn refusal(&self, demand: &Demand, threads: usize) -> PlanError {
        let Demand { node, vcpus, own } = *demand;
        let enough = |core: &&&Core| core.pcpus.len() >= threads;
        let there = self.homes.cores(node).iter().filter(enough).count();
        let free = self.free(node).filter(|core| core.pcpus.len() >= threads).count();
        let what = format!(
            "{} for vCPUs and {own} for emulator and I/O threads are needed on node {node}",
            count(vcpus, "core")
        );
        if there < vcpus + own {
            let hint = format!("{}; `--pins none` plans a guest that floats", self.at_most(false));
            let what = format!("{what}, which has {}", count(there, "core"));
            return PlanError::Impossible { what, hint };
        }
        let what = format!("{what}, {free} of its {there} are free");
        let held = self.homes.cores(node).iter().copied();
        let holders = self.taken.core_holders(node, held);
        PlanError::Taken { what, holders, hint: self.at_most(true) }
    }

    /// The hint that names the largest number of vCPUs that whole cores of the guest's nodes give, now or on the empty
    /// host.
    fn at_most(&self, now: bool) -> String {
        let threads = self.homes.common_threads();
        let available =
            |node: NodeId| if now { self.free(node).count() } else { self.homes.cores(node).len() };
        let fits = |weights: &BTreeMap<NodeId, usize>, cores: usize| {
            Self::spread(weights, cores, 1).iter().all(|d| d.vcpus + d.own <= available(d.node))
        };
        let most = |weights: &BTreeMap<NodeId, usize>| {
            let cores: usize = weights.keys().map(|&node| available(node)).sum();
            (1..=cores).rev().find(|&cores| fits(weights, cores)).unwrap_or(0)
        };
        match self.weights().iter().map(most).max().unwrap_or(0) {
            0 => "no vCPU fits there with a core for emulator and I/O threads".into(),
            cores => format!("at most {} fit: --vcpus {0}", cores * threads),
        }
    }
}
