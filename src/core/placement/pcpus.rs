//! Chooses a guest's cores: whole cores, as many on each node as the budget says. Knows nothing of
//! memory and PCIe.

use super::affinity::{Homes, Seat};
use super::budget::{Demand, Loan, Solution};
use super::pick::{Cache, Choice, Owner, pick};
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{Policy, Profile, Request};
use crate::topology::{Speed, Topology};

/// The cores that a guest gets on one node.
#[derive(Debug, Clone)]
pub(super) struct NodeCores<'a> {
    pub(super) node: NodeId,
    /// Cores for vCPUs, in hwloc's order.
    pub(super) vcpus: Vec<Seat<'a>>,
    /// Threads of them that vCPUs use, counted core by core; the last core may have some left.
    pub(super) number: usize,
    /// The core for emulator and I/O threads; `None` if they float over the guest's own, or over
    /// the host in the vendor's profile.
    pub(super) own: Option<Seat<'a>>,
}

impl NodeCores<'_> {
    /// Pcpus of the cores for vCPUs.
    pub(super) fn pcpus(&self) -> CpuSet {
        self.vcpus.iter().flat_map(|seat| seat.core.pcpus.iter()).collect()
    }

    /// Threads of the last core that no vCPU uses, if this many threads of each core are used.
    pub(super) fn spare(&self, threads: usize) -> CpuSet {
        let Some((last, others)) = self.vcpus.split_last() else { return CpuSet::new() };
        let used = self.number.saturating_sub(others.len() * threads);
        last.core.pcpus.iter().skip(used).collect()
    }
}

#[derive(Debug, Clone)]
pub(super) struct GuestCores<'a> {
    pub(super) nodes: Vec<NodeCores<'a>>,
    /// Threads of a core that vCPUs use.
    pub(super) threads: usize,
    /// Cores on another node than the GPUs that they serve: node of the GPUs, node of the cores,
    /// how many.
    pub(super) loans: Vec<(NodeId, NodeId, usize)>,
}

impl<'a> GuestCores<'a> {
    pub(super) fn seats(&self) -> impl Iterator<Item = &Seat<'a>> {
        self.nodes.iter().flat_map(|node| node.vcpus.iter().chain(&node.own))
    }

    pub(super) fn pcpus(&self) -> CpuSet {
        self.seats().flat_map(|seat| seat.core.pcpus.iter()).collect()
    }

    pub(super) fn vcpus(&self) -> usize {
        self.nodes.iter().map(|node| node.number).sum()
    }

    /// Returns the threads per core that the guest sees: a divisor of its vCPUs, so that the
    /// threads of each guest core are threads of one host core, even if the last one is not filled.
    pub(super) fn seen_threads(&self) -> usize {
        let (mut threads, mut rest) = (self.threads, self.vcpus());
        while rest != 0 {
            (threads, rest) = (rest, threads % rest);
        }
        threads
    }
}

/// The inputs of the choice of cores.
pub(super) struct Cores<'a> {
    pub(super) topology: &'a Topology,
    pub(super) homes: &'a Homes<'a>,
    pub(super) taken: &'a Taken<'a>,
    pub(super) gpus: &'a [Bdf],
    pub(super) request: &'a Request,
}

impl<'a> Cores<'a> {
    pub(super) fn free(&self, node: NodeId) -> impl Iterator<Item = &Seat<'a>> + '_ {
        self.homes.seats(node).iter().filter(|seat| self.taken.is_free(seat.at))
    }

    /// Chooses the cores of a solution.
    pub(super) fn choose(&self, solution: &Solution) -> GuestCores<'a> {
        let common = self.homes.common_threads();
        let threads = if solution.vcpus == 0 { common } else { solution.threads as usize };
        let mut nodes: Vec<NodeCores<'a>> =
            solution.demands.iter().map(|demand| self.take(demand, threads, solution)).collect();
        let fewest = nodes.iter().flat_map(|node| &node.vcpus).map(|seat| seat.threads).min();
        let threads = if solution.vcpus == 0 { fewest.unwrap_or(1).min(common) } else { threads };
        let cores: usize = nodes.iter().map(|node| node.vcpus.len()).sum();
        let all = cores * threads;
        for node in &mut nodes {
            node.number = node.vcpus.len() * threads;
        }
        if let (Some(last), 1..) = (nodes.last_mut(), solution.vcpus) {
            last.number -= all - solution.vcpus as usize;
        }
        if self.request.profile == Profile::NvidiaVm {
            nodes.iter_mut().for_each(|node| node.own = None);
        }
        let id = |place: usize| self.homes.all()[place].id;
        let loan = |loan: &Loan| (id(loan.from), id(loan.to), loan.cores as usize);
        GuestCores { nodes, threads, loans: solution.loans.iter().map(loan).collect() }
    }

    /// Takes cores on one node.
    fn take(&self, demand: &Demand, threads: usize, solution: &Solution) -> NodeCores<'a> {
        let home = &self.homes.all()[demand.node];
        let (choices, caches) = self.choices(demand.node);
        let (vcpus, own) = (demand.vcpus as usize, usize::from(demand.own));
        let spread = self.request.policy == Policy::Spread;
        let (topology, seats) = (self.topology, &home.seats[..]);
        let picker = Picker { topology, seats, choices, caches, threads, spread };
        let least = if solution.vcpus == 0 { 1 } else { threads };
        let (chosen, last) = picker.choose(home.id, (vcpus, own), least);
        let seat = |place: usize| home.seats[place];
        let helper = || {
            let free = || home.helpers.iter().filter(|seat| self.taken.is_free(seat.at));
            let set_aside = self.topology.for_guests();
            let clean = |seat: &&Seat<'_>| !seat.core.pcpus.intersects(set_aside);
            free().find(clean).or_else(|| free().next()).copied()
        };
        NodeCores {
            node: home.id,
            vcpus: chosen.into_iter().map(seat).collect(),
            number: 0,
            own: last.map(seat).or_else(helper),
        }
    }

    /// Returns the free cores of a node with their owners, and its caches.
    fn choices(&self, node: usize) -> (Vec<Choice>, Vec<Cache>) {
        let home = &self.homes.all()[node];
        let mut owners = vec![Owner::Nobody; home.seats.len()];
        for (gpu, block) in self.homes.blocks(node) {
            let owner = match self.gpus.contains(&gpu) {
                true => Owner::Mine,
                false if self.taken.device(gpu).is_none() => Owner::Other,
                false => continue,
            };
            owners[block].fill(owner);
        }
        let (mut choices, mut caches) = (Vec::new(), Vec::<Cache>::new());
        let mut known: Vec<usize> = Vec::new();
        for (place, seat) in home.seats.iter().enumerate() {
            // Cores of one cache are adjacent, so only the last one can be the same.
            if known.last() != Some(&seat.cache) {
                known.push(seat.cache);
                caches.push(Cache { others: self.others_below(seat.cache), ..Cache::default() });
            }
            let cache = caches.len() - 1;
            caches[cache].cores += 1;
            if self.taken.is_free(seat.at) {
                caches[cache].free += 1;
                choices.push(Choice { place, cache, owner: owners[place], fixed: false });
            }
        }
        (choices, caches)
    }

    /// Cores of other guests below an L3 cache, on any node.
    fn others_below(&self, cache: usize) -> usize {
        self.homes.below(cache).filter(|&core| !self.taken.is_free(core)).count()
    }
}

/// Picks cores of a node step by step.
struct Picker<'p> {
    topology: &'p Topology,
    seats: &'p [Seat<'p>],
    choices: Vec<Choice>,
    caches: Vec<Cache>,
    /// Threads that each core for vCPUs is to have.
    threads: usize,
    spread: bool,
}

impl Picker<'_> {
    /// Whether all threads of a core are set aside for guests.
    fn is_quiet(&self, place: usize) -> bool {
        self.topology.is_for_guests(self.seats[place].core)
    }

    /// Whether no thread of a core is.
    fn is_clean(&self, place: usize) -> bool {
        !self.seats[place].core.pcpus.intersects(self.topology.for_guests())
    }

    fn count(&self, among: impl Fn(usize) -> bool) -> usize {
        self.choices.iter().filter(|choice| among(choice.place)).count()
    }

    /// Returns the cores for vCPUs, and the one for emulator and I/O threads, if one is wanted.
    /// vCPUs are on cores that are set aside for guests, if these suffice or are for guests
    /// ([`Topology::has_guest_cores`]), and emulator and I/O threads on one of which no thread is.
    fn choose(
        &self,
        node: NodeId,
        (vcpus, own): (usize, usize),
        least: usize,
    ) -> (Vec<usize>, Option<usize>) {
        let quiet = |place: usize| self.is_quiet(place) && self.seats[place].threads >= least;
        let there = self.count(quiet);
        if there > 0 && (there >= vcpus || self.topology.has_guest_cores(node)) {
            let mut chosen = self.grow(Vec::new(), vcpus.min(there), &quiet);
            for among in [&|place| !self.is_quiet(place), &|_| true] as [&dyn Fn(usize) -> bool; 2]
            {
                let rest = vcpus - chosen.len();
                chosen = self.grow(chosen, rest, among);
            }
            let free = |place| !chosen.contains(&place);
            let is_clean = |place| free(place) && self.is_clean(place);
            let is_noisy = |place| free(place) && !self.is_quiet(place);
            let kinds: [&dyn Fn(usize) -> bool; 3] = [&is_clean, &is_noisy, &free];
            let among = kinds.into_iter().find(|among| self.count(among) > 0).unwrap_or(&free);
            let more = self.grow(chosen.clone(), own, among);
            let last = more.into_iter().find(|place| !chosen.contains(place));
            return (chosen, last);
        }
        let wanted = vcpus + own;
        let is_mixed = self.count(|place| !self.is_clean(place)) > 0;
        let enough = |place: usize| self.seats[place].threads >= least;
        let is_good = |place: usize| is_mixed && self.is_clean(place) && enough(place);
        let good = self.count(is_good);
        let chosen = self.grow(Vec::new(), wanted.min(good), &is_good);
        let rest = wanted - chosen.len();
        let mut chosen = self.grow(chosen, rest, &|_| true);
        let fewest = chosen.iter().map(|&place| self.seats[place].threads).min();
        let few = |place: &usize| Some(self.seats[*place].threads) == fewest;
        let is_clean = |place: &usize| self.is_clean(*place);
        let last = || {
            let clean = || chosen.iter().rposition(|place| few(place) && is_clean(place));
            // The others have to have enough threads for all vCPUs.
            let is_spare = chosen.iter().filter(|place| enough(**place)).count() > vcpus;
            let may_go = |place: &usize| is_clean(place) && (is_spare || !enough(*place));
            let clean = clean().or_else(|| chosen.iter().rposition(may_go).filter(|_| is_mixed));
            clean.or_else(|| chosen.iter().rposition(few))
        };
        let at = (own == 1).then(last).flatten();
        let last = at.map(|at| chosen.remove(at));
        (chosen, last)
    }

    /// Adds cores to the chosen ones: those with the wanted number of threads first, then with more,
    /// then with fewer; of each the best set.
    fn grow(
        &self,
        mut chosen: Vec<usize>,
        number: usize,
        among: &dyn Fn(usize) -> bool,
    ) -> Vec<usize> {
        let whole = chosen.len() + number;
        let threads = self.threads;
        let rank = |place: usize| {
            let Seat { threads: has, speed, .. } = self.seats[place];
            (speed, has < threads, has != threads)
        };
        let mut speeds: Vec<Option<Speed>> = self.seats.iter().map(|seat| seat.speed).collect();
        speeds.sort_unstable();
        speeds.dedup();
        let by_threads = [(false, false), (false, true), (true, true)];
        let of_speed = |speed| by_threads.map(|(fewer, other)| (speed, fewer, other));
        for class in speeds.into_iter().flat_map(of_speed) {
            if chosen.len() == whole {
                break;
            }
            let of_class = |choice: &&Choice| {
                chosen.contains(&choice.place)
                    || (rank(choice.place) == class && among(choice.place))
            };
            let mut those: Vec<Choice> = self.choices.iter().filter(of_class).copied().collect();
            those.iter_mut().for_each(|c| c.fixed = chosen.contains(&c.place));
            let wanted = (whole - chosen.len()).min(those.len() - chosen.len());
            chosen = pick(&those, &self.caches, wanted, self.spread).unwrap_or(chosen);
        }
        chosen
    }
}
