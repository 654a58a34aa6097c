//! The number of cores that a guest wants on each node. Knows neither individual cores nor devices.

use super::{Budget, Demand, Loan, Short, Solution, small};
use crate::placement::cpus;
use crate::request::{CellWish, Policy, Profile};
use std::cmp::Reverse;

/// The least vCPUs of a guest without GPUs that requests no number.
const DEFAULT_VCPUS: u32 = 2;

/// Default vCPUs of a guest without GPUs on cores with this many threads: whole cores, since no
/// other guest gets the rest of one.
fn default_vcpus(threads: u32) -> u32 {
    DEFAULT_VCPUS.next_multiple_of(threads.max(1))
}

/// Whether a node's helpers have a core of their own: of the nodes that are L3 caches of one
/// package only those of the first one do.
fn is_first(slice_of: Option<u32>, seen: &mut Vec<u32>) -> bool {
    let Some(package) = slice_of else { return true };
    let is_first = !seen.contains(&package);
    if is_first {
        seen.push(package);
    }
    is_first
}

impl Budget {
    fn gpus_of(out: &Solution) -> u32 {
        out.homes.iter().map(|(_, gpus)| gpus).sum()
    }

    /// Computes the shares of the guest's GPUs: cores of their nodes and of the listed nodes
    /// without GPUs, with one core of each reserved for emulator and I/O threads. The vendor
    /// profile's guest of one GPU uses that core, too, except its last thread.
    fn shares(&self, out: &mut Solution) {
        let own = !self.is_vendors_odd(Self::gpus_of(out));
        out.demands.clear();
        let mut slices = Vec::new();
        for &(node, gpus) in out.homes.iter().chain(&out.annexes) {
            let stock = &self.nodes[node];
            let has_own = !stock.has_helpers && is_first(stock.slice_of, &mut slices);
            let own = own && has_own;
            let least = 1 + u32::from(has_own);
            let share = (stock.share * gpus).min(stock.cores.max(least)).max(least);
            out.demands.push(Demand { node, vcpus: share - u32::from(own), own, gpus });
        }
        if !out.annexes.is_empty() {
            out.demands.sort_unstable_by_key(|demand| demand.node);
        }
    }

    /// Lists the nodes without GPUs shared by the guest's GPUs. A single core there is useless: it
    /// would be the emulator's.
    fn widen(&self, out: &mut Solution) {
        out.annexes.clear();
        for &(home, gpus) in &out.homes {
            for &node in &self.nodes[home].annexes {
                match out.annexes.iter_mut().find(|(other, _)| *other == node) {
                    Some((_, number)) => *number += gpus,
                    None => out.annexes.push((node, gpus)),
                }
            }
        }
        out.annexes.retain(|&(node, gpus)| self.nodes[node].share * gpus > 1);
    }

    /// Removes the resources of others from nodes without GPUs; fewer than two cores or no memory
    /// there is useless.
    fn narrow(&self, out: &mut Solution) {
        let Solution { demands, annexes, short, dropped, .. } = out;
        demands.retain_mut(|demand| {
            let stock = &self.nodes[demand.node];
            if stock.has_gpus || !annexes.iter().any(|(node, _)| *node == demand.node) {
                return true;
            }
            let room = stock.room.map(|at| &self.rooms[at]);
            let memory = room.is_some_and(|r| r.pages && !r.left.round_down(self.unit()).is_zero());
            let own = u32::from(demand.own || stock.slice_of.is_none());
            let wanted = demand.vcpus + own;
            let left = stock.free(1).min(wanted);
            let stays = memory && left > own;
            *short += wanted - if stays { left } else { 0 };
            *dropped += u32::from(!stays);
            demand.vcpus = left.max(own) - own;
            stays
        });
        annexes.retain(|(node, _)| demands.iter().any(|demand| demand.node == *node));
    }

    /// Whether the requested number of cells allows this many nodes.
    fn may_widen(&self, demands: usize) -> bool {
        match self.request.cells {
            CellWish::Auto => true,
            CellWish::Count(cells) => cells > 1 && cells == small(demands),
        }
    }

    /// Returns the profile's default vCPUs, with the listed nodes without GPUs.
    pub(super) fn default_vcpus(&self, out: &mut Solution) -> u32 {
        if out.homes.is_empty() {
            return default_vcpus(self.common);
        }
        self.shares(out);
        let cores: u32 = out.demands.iter().map(|demand| demand.vcpus).sum();
        out.demands.clear();
        cores * self.common - u32::from(self.is_vendors_odd(Self::gpus_of(out)))
    }

    /// Solves a guest without pins: it needs memory only.
    pub(super) fn float(&self, out: &mut Solution) -> Result<(), Short> {
        if self.has_annexes && self.request.vcpus.is_none() {
            self.widen(out);
            if self.floating(out).is_ok() {
                return Ok(());
            }
            out.annexes.clear();
        }
        self.floating(out)
    }

    /// The same, including the listed nodes without GPUs.
    fn floating(&self, out: &mut Solution) -> Result<(), Short> {
        let vcpus = self.request.vcpus.unwrap_or_else(|| self.default_vcpus(out));
        let (cells, _) = cpus::shape(vcpus, &self.request).map_err(Short::Refused)?;
        out.demands.clear();
        out.loans.clear();
        (out.vcpus, out.threads) = (vcpus, 0);
        self.memory(cells, false, out)
    }

    /// Solves a guest of default size with its share of nodes without GPUs, less the resources of
    /// others there. False: it has no such share, or does not fit, without a reason.
    fn by_wide_share(&self, out: &mut Solution) -> bool {
        self.widen(out);
        let cores = out.annexes.iter().map(|&(node, gpus)| self.nodes[node].share * gpus);
        let wanted = (cores.sum(), small(out.annexes.len()));
        let nodes = out.homes.len() + out.annexes.len();
        if out.annexes.is_empty() || !self.may_widen(nodes) {
            out.annexes.clear();
            return false;
        }
        self.shares(out);
        self.narrow(out);
        let fits = |out: &mut Solution| {
            self.lend(1, false, out)?;
            self.bind(false, out)
        };
        if !out.annexes.is_empty() && fits(out).is_ok() {
            return true;
        }
        out.annexes.clear();
        (out.short, out.dropped) =
            if self.request.cells == CellWish::Auto { wanted } else { (0, 0) };
        false
    }

    /// Solves a guest of default size.
    pub(super) fn by_share(&self, remote: bool, out: &mut Solution) -> Result<(), Short> {
        (out.vcpus, out.threads) = (0, 0);
        if self.has_annexes && self.by_wide_share(out) {
            return Ok(());
        }
        self.shares(out);
        self.lend(1, remote, out)?;
        if !out.loans.is_empty() {
            self.give_own(out);
        }
        self.bind(remote, out)
    }

    /// Solves a guest with a number of vCPUs: on cores with the common number of threads, otherwise
    /// on cores with fewer.
    pub(super) fn by_number(
        &self,
        vcpus: u32,
        remote: bool,
        out: &mut Solution,
    ) -> Result<(), Short> {
        let there = self.threads;
        if vcpus > there {
            return Err(Short::Threads { vcpus, there });
        }
        let mut refused = None;
        for remote in [false, true].into_iter().filter(|far| remote || !far) {
            // Where other nodes may lend, one node with too few cores is no reason.
            if remote {
                refused = refused.filter(|short| !matches!(short, Short::Cores { .. }));
            }
            for threads in self.levels.iter().map(|&t| t.min(vcpus)) {
                let cores = vcpus.div_ceil(threads);
                (out.vcpus, out.threads) = (vcpus, threads);
                let tried = if out.homes.is_empty() {
                    self.anywhere(cores, remote, out)
                } else {
                    self.near_gpus(cores, remote, out)
                };
                match tried {
                    Ok(()) => return Ok(()),
                    // With fewer threads per core there may be enough cores, while something else
                    // is short.
                    Err(error) => match &refused {
                        None | Some(Short::Nodes { .. }) => refused = Some(error),
                        Some(_) => {}
                    },
                }
            }
        }
        Err(refused.unwrap_or(Short::Threads { vcpus, there }))
    }

    /// Places `cores` on the nodes of the GPUs and, if they exceed the GPUs' share or do not fit
    /// there, on the nodes without GPUs that they share.
    fn near_gpus(&self, cores: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        if !self.has_annexes {
            return self.on_homes(cores, remote, out);
        }
        let share: u32 = out.homes.iter().map(|&(node, gpus)| self.nodes[node].share * gpus).sum();
        self.widen(out);
        let nodes = out.homes.len() + out.annexes.len();
        if out.annexes.is_empty() || cores < small(nodes) || !self.may_widen(nodes) {
            return self.on_homes(cores, remote, out);
        }
        if cores > share {
            return match self.on_all(cores, remote, out) {
                Ok(()) => Ok(()),
                Err(wide) => self.on_homes(cores, false, out).map_err(|_| wide),
            };
        }
        match self.on_homes(cores, false, out) {
            Ok(()) => Ok(()),
            Err(near) => self.on_all(cores, remote, out).map_err(|_| near),
        }
    }

    /// Places `cores` on the nodes of the GPUs and on the nodes without GPUs that they share, in
    /// proportion to the shares.
    fn on_all(&self, cores: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        self.widen(out);
        self.shares(out);
        for demand in &mut out.demands {
            // Among equal remainders, that of a node with GPUs counts as larger.
            let beside = u32::from(self.nodes[demand.node].has_gpus);
            demand.vcpus = 64 * self.nodes[demand.node].share * demand.gpus + beside;
            demand.own = false;
        }
        spread(cores, &mut out.demands);
        each_some(&mut out.demands);
        self.settle(remote, out)
    }

    /// Places `cores` on the nodes of the GPUs.
    fn on_homes(&self, cores: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        out.demands.clear();
        out.annexes.clear();
        let nodes = small(out.homes.len());
        if !remote && cores < nodes {
            return Err(Short::Nodes { cores, nodes });
        }
        let homes = out.homes.iter().map(|&(node, gpus)| (node, gpus, gpus));
        out.demands.extend(homes.map(|(node, vcpus, gpus)| Demand {
            node,
            vcpus,
            own: false,
            gpus,
        }));
        spread(cores, &mut out.demands);
        if !remote {
            each_some(&mut out.demands);
        }
        self.settle(remote, out)
    }

    /// Places `cores` of a guest without GPUs: on one node, otherwise on as few as possible.
    fn anywhere(&self, cores: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        let spreading = self.request.policy == Policy::Spread;
        let threads = out.threads;
        let bare = |node: usize| {
            let stock = &self.nodes[node];
            stock.room.is_none_or(|room| self.rooms[room].id != stock.id)
        };
        let free = |node: usize| self.nodes[node].free(threads);
        let far = |node: usize| match self.beside {
            Some(own) if own != node => self.near[own].iter().position(|near| *near == node),
            _ => None,
        };
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_key(|&node| (bare(node), far(node), Reverse(free(node)), node));
        let mut fitting: Vec<usize> =
            nodes.iter().copied().filter(|&node| free(node) >= cores).collect();
        if !spreading {
            fitting.sort_by_key(|&node| {
                let stock = &self.nodes[node];
                let strain = stock.strain(0, cores + 1);
                // Cores near a GPU are worth more to it than its share of a node without GPUs.
                let beside = if stock.has_gpus { strain } else { 0 };
                let is_full = stock.free(1) <= cores;
                (bare(node), far(node), is_full, beside, strain, free(node), node)
            });
        }
        let exactly = match self.request.cells {
            CellWish::Count(cells @ 2..) if self.request.profile != Profile::NvidiaVm => {
                cells as usize
            }
            _ => 0,
        };
        let mut refused: Option<Short> = None;
        let mut attempt = |demands: &[(usize, u32)], out: &mut Solution| {
            out.demands.clear();
            let demand = |&(node, vcpus)| Demand { node, vcpus, own: false, gpus: 0 };
            out.demands.extend(demands.iter().map(demand));
            spread(cores, &mut out.demands);
            match self.settle(remote, out) {
                Ok(()) => true,
                Err(error) => {
                    if refused.as_ref().is_none_or(|first| self.comes_nearer(&error, first)) {
                        refused = Some(error);
                    }
                    false
                }
            }
        };
        if exactly == 0 && fitting.iter().any(|&node| attempt(&[(node, 1)], out)) {
            return Ok(());
        }
        for number in 1..=nodes.len() {
            if exactly != 0 && number != exactly {
                continue;
            }
            let even: Vec<(usize, u32)> = nodes[..number].iter().map(|&node| (node, 1)).collect();
            let full: Vec<(usize, u32)> =
                nodes[..number].iter().map(|&node| (node, free(node))).collect();
            if attempt(&even, out) || attempt(&full, out) {
                return Ok(());
            }
        }
        let asked = small(exactly);
        Err(refused.unwrap_or(Short::Cells { asked, nodes: small(nodes.len()) }))
    }

    /// Fits the demands of a number of vCPUs, gives the emulator a core of each node that has one
    /// left, and adds memory.
    fn settle(&self, remote: bool, out: &mut Solution) -> Result<(), Short> {
        self.lend(out.threads, remote, out)?;
        self.give_own(out);
        self.bind(remote, out)
    }

    /// Gives emulator and I/O threads a core of each node that has one left. If the guest has
    /// exactly the share of its GPUs and its last vCPU leaves a thread of its core free, they use
    /// that thread, so that the guest stays within its share (gpuvm-nvidia-vm(7), TRAPS OF THE
    /// GUIDE, T39).
    fn give_own(&self, out: &mut Solution) {
        if self.request.profile == Profile::NvidiaVm {
            return;
        }
        let spare = out.threads > 0 && !out.vcpus.is_multiple_of(out.threads);
        let mut slices = Vec::new();
        for demand in &mut out.demands {
            let stock = &self.nodes[demand.node];
            let rest = stock.free(1).saturating_sub(demand.vcpus);
            let owed = stock.free_gpus.saturating_sub(demand.gpus) * stock.share;
            let is_share = demand.gpus > 0 && demand.vcpus == stock.share * demand.gpus;
            demand.own = rest > 0
                && !stock.has_helpers
                && !(spare && is_share && rest <= owed)
                && is_first(stock.slice_of, &mut slices);
        }
    }

    /// Checks that each node has its cores; the missing ones come from the nearest other nodes, if
    /// that is allowed.
    fn lend(&self, threads: u32, remote: bool, out: &mut Solution) -> Result<(), Short> {
        out.loans.clear();
        out.demands.retain(|demand| demand.vcpus > 0);
        let wanted_own = out.demands.iter().any(|demand| demand.own);
        for at in 0..out.demands.len() {
            let demand = &mut out.demands[at];
            let stock = &self.nodes[demand.node];
            let most = self.most_there(demand, threads);
            let enough = u32::from(demand.own) < stock.free(1) || !demand.own;
            if demand.vcpus <= most && enough {
                continue;
            }
            if !remote {
                return Err(Short::Cores { demand: *demand, threads });
            }
            demand.own &= most > 0;
            let most = self.most_there(demand, threads);
            let loan = Loan { from: demand.node, to: demand.node, cores: demand.vcpus - most };
            demand.vcpus = most;
            out.loans.push(loan);
        }
        if out.loans.is_empty() {
            return Ok(());
        }
        let missing = std::mem::take(&mut out.loans);
        for Loan { from, mut cores, .. } in missing {
            for &to in &self.near[from] {
                let found = out.demands.iter_mut().find(|demand| demand.node == to);
                let there = found.as_deref().copied();
                let there = there.unwrap_or(Demand { node: to, vcpus: 0, own: false, gpus: 0 });
                let more = self.most_there(&there, threads).saturating_sub(there.vcpus).min(cores);
                if more == 0 {
                    continue;
                }
                cores -= more;
                let with = Demand { vcpus: there.vcpus + more, ..there };
                match found {
                    Some(demand) => *demand = with,
                    None => out.demands.push(with),
                }
                out.loans.push(Loan { from, to, cores: more });
            }
            if cores > 0 {
                let demand = Demand { node: from, vcpus: cores, own: false, gpus: 0 };
                return Err(Short::Everywhere { demand, threads });
            }
        }
        out.demands.retain(|demand| demand.vcpus > 0);
        out.demands.sort_unstable_by_key(|demand| demand.node);
        if wanted_own && out.demands.iter().all(|demand| !demand.own) {
            let free = |d: &&mut Demand| self.nodes[d.node].free(1) > d.vcpus;
            if let Some(demand) = out.demands.iter_mut().find(free) {
                demand.own = true;
            }
        }
        Ok(())
    }

    /// Returns the cores for vCPUs that a node has for a demand, without the emulator's core.
    fn most_there(&self, demand: &Demand, threads: u32) -> u32 {
        let stock = &self.nodes[demand.node];
        stock.free(threads).min(stock.free(1).saturating_sub(u32::from(demand.own)))
    }

    /// Makes the cells of a pinned guest and adds their memory.
    fn bind(&self, remote: bool, out: &mut Solution) -> Result<(), Short> {
        let nodes = small(out.demands.len());
        let cells = match (self.request.cells, self.request.profile) {
            (CellWish::Auto, Profile::Share | Profile::Near) => nodes,
            (CellWish::Auto | CellWish::Count(1), _) => 1,
            (CellWish::Count(asked), Profile::NvidiaVm) => {
                return Err(Short::Cells { asked, nodes: 1 });
            }
            (CellWish::Count(cells), _) if cells == nodes => nodes,
            (CellWish::Count(asked), _) => return Err(Short::Cells { asked, nodes }),
        };
        self.memory(cells, remote, out)
    }
}

/// Spreads cores over demands in proportion to their `vcpus`, or evenly if these are 0; the rest
/// goes to the largest remainders, the first of equals. Demands that get none keep 0.
pub(super) fn spread(cores: u32, demands: &mut [Demand]) {
    if demands.iter().all(|demand| demand.vcpus == 0) {
        demands.iter_mut().for_each(|demand| demand.vcpus = 1);
    }
    let whole: u64 = demands.iter().map(|demand| u64::from(demand.vcpus)).sum::<u64>().max(1);
    let product = |demand: &Demand| u64::from(cores) * u64::from(demand.vcpus);
    let floors: u64 = demands.iter().map(|demand| product(demand) / whole).sum();
    let mut rest = u64::from(cores).saturating_sub(floors);
    // `own`, which is not set yet, marks the remainders already served.
    while rest > 0 {
        let open = demands.iter_mut().filter(|demand| !demand.own);
        let best = open.min_by_key(|demand| (Reverse(product(demand) % whole), demand.node));
        let Some(best) = best else { break };
        best.own = true;
        rest -= 1;
    }
    for demand in demands {
        let floor = u32::try_from(product(demand) / whole).expect("no more than the cores");
        demand.vcpus = floor + u32::from(demand.own);
        demand.own = false;
    }
}

/// Gives each demand at least one core, taken from those with the most; there are as many cores as
/// demands.
fn each_some(demands: &mut [Demand]) {
    while let Some(none) = demands.iter().position(|demand| demand.vcpus == 0) {
        let Some(most) = demands.iter_mut().max_by_key(|demand| demand.vcpus) else { return };
        most.vcpus -= 1;
        demands[none].vcpus = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_go_in_proportion_and_the_rest_to_the_largest_remainders() {
        for (cores, weights, wanted) in [
            (10, vec![1, 1], vec![5, 5]),
            (11, vec![1, 1], vec![6, 5]),
            (7, vec![3, 1], vec![5, 2]),
            (12, vec![8, 4], vec![8, 4]),
            (1, vec![1, 2], vec![0, 1]),
            (3, vec![0, 5], vec![0, 3]),
            (3, vec![0, 0], vec![2, 1]),
            (5, vec![0], vec![5]),
        ] {
            let demand = |(node, &vcpus)| Demand { node, vcpus, own: false, gpus: 0 };
            let mut demands: Vec<Demand> = weights.iter().enumerate().map(demand).collect();
            spread(cores, &mut demands);
            let got: Vec<u32> = demands.iter().map(|demand| demand.vcpus).collect();
            assert_eq!(got, wanted, "{cores} over {weights:?}");
            assert!(demands.iter().all(|demand| !demand.own));
        }
    }
}
