//! Explains the choice of a plan's cores, as data. Chooses nothing.

use super::affinity::{Home, Moved, Seat, distance};
use super::explain::Reasons;
use super::pcpus::{Cores, GuestCores, NodeCores};
use super::reason::{CoreReason, FewerThreads, NodeRule, Only, SetAsideBy, Topic};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{CellWish, PinPolicy, Profile};
use crate::topology::{Core, Speed};
use std::collections::{BTreeMap, BTreeSet};

impl Cores<'_> {
    /// Adds why these cores were chosen.
    pub(super) fn explain(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        self.explain_homes(cores, reasons);
        for node in &cores.nodes {
            self.explain_node(node, reasons);
        }
        self.explain_slice(cores, reasons);
        self.explain_kinds(cores, reasons);
        self.explain_dropped(cores, reasons);
        self.explain_emulator(cores, reasons);
        self.explain_loans(cores, reasons);
        self.explain_threads(cores, reasons);
        for node in &cores.nodes {
            self.explain_caches(node, reasons);
        }
        self.explain_neighbours(cores, reasons);
        let floating = self.taken.floating_over(|| cores.pcpus());
        if !floating.is_empty() {
            let domains = floating.into_iter().map(str::to_owned).collect();
            reasons.compromise(Topic::Vcpus, CoreReason::Floaters { domains });
        }
    }

    /// Adds on which kinds of cores the vCPUs are, where the host has several.
    fn explain_kinds(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        let kinds = &self.topology.parts().core_kinds;
        let [fastest, slower @ ..] = &kinds[..] else { return };
        let mut vcpus: BTreeMap<Speed, usize> = BTreeMap::new();
        for node in &cores.nodes {
            let mut left = node.number;
            for seat in &node.vcpus {
                let here = left.min(cores.threads);
                left -= here;
                if let Some(speed) = seat.speed {
                    *vcpus.entry(speed).or_default() += here;
                }
            }
        }
        match Vec::from_iter(vcpus)[..] {
            [] => {}
            [(kind, _)] if kind == fastest.kind => {
                let slower = slower.iter().fold(CpuSet::new(), |all, kind| all.or(&kind.pcpus));
                let slower = slower.minus(self.topology.for_guests());
                // Those of other nodes are not for its threads.
                let nodes = cores.nodes.iter().map(|node| node.node);
                let own = nodes.flat_map(|node| self.topology.cores_of(node));
                let own = own.fold(CpuSet::new(), |all, core| all.or(&core.pcpus));
                let slower = slower.and(&own);
                reasons.say(Topic::Vcpus, CoreReason::Fastest { slower });
            }
            [(kind, _)] => {
                let has_none = |node: &NodeCores<'_>| {
                    let mut of_node = self.topology.cores_of(node.node);
                    of_node.all(|core| self.topology.speed(core) != Some(fastest.kind))
                };
                let nodes = cores.nodes.iter().filter(|node| has_none(node));
                let nodes: Vec<NodeId> = nodes.map(|node| node.node).collect();
                let nodes = if nodes.len() < cores.nodes.len() { Vec::new() } else { nodes };
                let set_aside = self.set_aside(cores);
                reasons.compromise(Topic::Vcpus, CoreReason::Slower { kind, nodes, set_aside });
            }
            ref vcpus => {
                let (vcpus, set_aside) = (vcpus.to_vec(), self.set_aside(cores));
                reasons.compromise(Topic::Vcpus, CoreReason::Mixed { vcpus, set_aside });
            }
        }
    }

    /// How the cores of all vCPUs are set aside for guests; none: not all are, or all cores of
    /// their nodes.
    fn set_aside(&self, cores: &GuestCores<'_>) -> Option<SetAsideBy> {
        let is_aside = |core: &Core| self.topology.is_for_guests(core);
        let mut seats = cores.nodes.iter().flat_map(|node| &node.vcpus);
        let has_others = cores.nodes.iter().any(|node| {
            let mut of_node = self.topology.open_cores().filter(|core| core.node == node.node);
            of_node.any(|core| !is_aside(core))
        });
        let is_all = has_others && seats.all(|seat| is_aside(seat.core));
        is_all.then(|| SetAsideBy(self.topology.kept_off_by()))
    }

    /// Adds which pcpus machine.slice confines the guest to.
    fn explain_slice(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        let Some(slice) = self.topology.confined_to().cloned() else { return };
        let is_part = |seat: &&Seat<'_>| seat.core.pcpus != self.topology.cores()[seat.at].pcpus;
        let parts: CpuSet =
            cores.seats().filter(is_part).flat_map(|seat| seat.core.pcpus.iter()).collect();
        if parts.is_empty() {
            reasons.say(Topic::Vcpus, CoreReason::Slice { slice, parts });
        } else {
            reasons.compromise(Topic::Vcpus, CoreReason::Slice { slice, parts });
        }
    }

    /// Adds which nodes without GPUs, shared by the guest's GPUs, others hold.
    fn explain_dropped(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        if self.request.vcpus.is_some() || self.request.cells != CellWish::Auto {
            return;
        }
        for home in self.homes.all() {
            let share = self.homes.share(home.id) * self.tenants(home);
            if share > 1 && cores.nodes.iter().all(|node| node.node != home.id) {
                let why = CoreReason::AnnexTaken { node: home.id, share };
                reasons.compromise(Topic::Nodes, why);
            }
        }
    }

    /// GPUs of the guest that have a share of a node without GPUs.
    fn tenants(&self, home: &Home<'_>) -> usize {
        self.gpus.iter().filter(|gpu| home.tenants.contains(gpu)).count()
    }

    /// Adds which GPUs have no cores on their own node.
    fn explain_homes(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        for (&gpu, home) in self.gpus.iter().map(|gpu| (gpu, self.homes.of_gpu(*gpu))) {
            match home {
                (_, None) => {}
                (from, Some(Moved::Unknown)) => {
                    reasons.compromise(Topic::Nodes, CoreReason::NodeUnknown { gpu, from });
                }
                (from, Some(Moved::NoCores(own))) => {
                    let has_some = self.topology.cores_of(own).next().is_some();
                    let slice = self.topology.confined_to().filter(|_| has_some).cloned();
                    let why = CoreReason::NodeWithoutCores { gpu, own, from, slice };
                    reasons.compromise(Topic::Nodes, why);
                }
            }
        }
        let spanned: BTreeSet<NodeId> = cores.nodes.iter().map(|node| node.node).collect();
        let lent: BTreeSet<NodeId> = cores.loans.iter().map(|(from, _, _)| *from).collect();
        let away = self.gpus.iter().filter(|&&gpu| {
            let home = self.homes.of_gpu(gpu).0;
            !spanned.contains(&home) && !lent.contains(&home)
        });
        let gpus: Vec<Bdf> = away.copied().collect();
        if !gpus.is_empty() {
            reasons.compromise(Topic::Nodes, CoreReason::TooFew { gpus });
        }
    }

    /// Adds which vCPUs are not on the node of their GPUs.
    fn explain_loans(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        for &(from, to, number) in &cores.loans {
            let distance = distance(self.topology, from, to);
            // A last core that is not full may be among those that are lent.
            let lent = (number * cores.threads).min(cores.vcpus());
            let vcpus = cores.vcpus();
            let why = CoreReason::Lent { lent, vcpus, to, distance, from };
            reasons.compromise(Topic::Nodes, why);
        }
    }

    /// Adds how the guest's threads differ from the host's.
    fn explain_threads(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        // Other kinds of cores may have more threads.
        let kinds: BTreeSet<Option<Speed>> =
            cores.nodes.iter().flat_map(|node| &node.vcpus).map(|seat| seat.speed).collect();
        let alike = self.topology.open_cores();
        let alike = alike.filter(|core| kinds.contains(&self.topology.speed(core)));
        let most = alike.map(|core| core.pcpus.len()).max().unwrap_or(1);
        let common = self.homes.common_threads().min(most);
        let vcpus = cores.vcpus();
        if cores.threads < common && self.request.vcpus.is_none_or(|n| n as usize >= common) {
            let mut seats = cores.nodes.iter().flat_map(|node| &node.vcpus);
            let why = if seats.all(|seat| seat.threads >= common) {
                // With more threads per core, some nodes that it needs for memory would have no
                // vCPU.
                FewerThreads::Spread { nodes: cores.nodes.len() }
            } else {
                FewerThreads::Uneven
            };
            let why = CoreReason::Threads { threads: cores.threads, common, why };
            reasons.compromise(Topic::Vcpus, why);
        }
        if self.request.profile == Profile::NvidiaVm {
            return;
        }
        // With fewer threads of one of them, only as many of each can have a vCPU.
        let seats = || cores.nodes.iter().flat_map(|node| &node.vcpus);
        let least = seats().map(|seat| seat.threads.min(common)).min().unwrap_or(0);
        let all = least * seats().count();
        if all > vcpus && (!vcpus.is_multiple_of(cores.threads) || cores.threads < common) {
            reasons.say(Topic::Vcpus, CoreReason::IdleThreads { vcpus, all });
        }
        if !vcpus.is_multiple_of(cores.threads) {
            let threads = cores.seen_threads();
            reasons.say(Topic::Vcpus, CoreReason::Unfilled { threads });
        }
        if self.request.pins == PinPolicy::Thread && cores.threads > 1 {
            reasons.compromise(Topic::Vcpus, CoreReason::ThreadOrder);
        }
    }

    /// Adds where the emulator and the I/O threads run.
    fn explain_emulator(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        if self.request.profile == Profile::NvidiaVm {
            reasons.say(Topic::Emulator, CoreReason::EmulatorFree);
            return;
        }
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut some = false;
        for of_node in &cores.nodes {
            let node = of_node.node;
            if let Some(seat) = of_node.own {
                let pcpus = seat.for_helpers(self.topology.for_guests());
                self.explain_emulator_isolated(&pcpus, node, reasons);
                reasons.say(Topic::Emulator, CoreReason::EmulatorCore { pcpus, node });
                some = true;
                continue;
            }
            let spare = of_node.spare(cores.threads);
            if !spare.is_empty() {
                reasons.say(Topic::Emulator, CoreReason::EmulatorSpare { pcpus: spare, node });
                some = true;
            } else {
                nodes.push(node);
            }
        }
        if !nodes.is_empty() {
            let why = CoreReason::EmulatorFloats { threads_only: some, nodes };
            reasons.compromise(Topic::Emulator, why);
        }
    }

    /// Adds that emulator and I/O threads are on pcpus that are set aside for vCPUs.
    fn explain_emulator_isolated(&self, pcpus: &CpuSet, node: NodeId, reasons: &mut Reasons) {
        let pcpus = pcpus.and(self.topology.for_guests());
        if pcpus.is_empty() {
            return;
        }
        let by = self.topology.kept_off_by();
        let why = match self.topology.confined_to() {
            Some(slice) => CoreReason::Confined { pcpus, slice: slice.clone() },
            None => CoreReason::EmulatorIsolated { pcpus, node, by },
        };
        reasons.compromise(Topic::Emulator, why);
    }

    /// Adds why these cores of a node were chosen.
    fn explain_node(&self, cores: &NodeCores<'_>, reasons: &mut Reasons) {
        let node = cores.node;
        let there = self.homes.seats(node).len();
        let own = self.gpus.iter().filter(|g| self.homes.of_gpu(**g).0 == node).count();
        let home = self.homes.place(node).map(|at| &self.homes.all()[at]);
        let tenants = home.map_or(0, |home| self.tenants(home));
        let mine = cores.vcpus.len();
        let all = mine + usize::from(cores.own.is_some());
        let taken = (self.homes.share(node) * tenants).saturating_sub(all);
        let rule = match (self.request.vcpus, self.gpus.is_empty()) {
            (None, false) if tenants > 0 => NodeRule::Annex {
                cores: there,
                gpus: home.map_or(0, |home| home.tenants.len()),
                share: self.homes.share(node),
                own: tenants,
                taken,
            },
            (None, false) if own == 0 => NodeRule::ForOthers,
            (None, false) => NodeRule::Share {
                cores: there,
                kept: home.map_or(0, |home| home.kept),
                gpus: self.homes.gpus(node).len(),
                share: self.homes.share(node),
                own,
            },
            (Some(_), _) => NodeRule::Asked,
            (None, true) => NodeRule::Default { cores: there, free: self.free(node).count() },
        };
        let is_for_guests = |core: &Core| self.topology.is_for_guests(core);
        let of_node = || self.topology.cores_of(node);
        let mut seats = self.homes.seats(node).iter();
        let only_isolated =
            seats.all(|seat| is_for_guests(seat.core)) && !of_node().all(is_for_guests);
        let only = match self.topology.kept_off_by() {
            _ if !only_isolated && self.is_confined(node) => Only::Slice,
            _ if !only_isolated => Only::All,
            // The slower ones among them are not counted.
            None if of_node().filter(|core| is_for_guests(core)).count() > there => {
                Only::IsolatedFast
            }
            None => Only::Isolated,
            Some(_) => Only::ForGuests,
        };
        let why = CoreReason::Node { node, vcpus: cores.number, cores: mine, rule, only };
        if matches!(rule, NodeRule::Annex { .. }) && taken > 0 {
            reasons.compromise(Topic::Vcpus, why);
        } else {
            reasons.say(Topic::Vcpus, why);
        }
        let short = self.homes.share(node) == 1 && self.request.vcpus.is_none();
        if short && cores.own.is_some() && own > 0 && cores.vcpus.len() == 1 && own == 1 {
            reasons.compromise(Topic::Vcpus, CoreReason::SecondCore { node });
        }
        self.explain_sizes(cores, reasons);
        let isolated = self.topology.for_guests();
        let by = self.topology.kept_off_by();
        let (on, off) = (cores.pcpus().and(isolated), cores.pcpus().minus(isolated));
        if !on.is_empty() {
            reasons.say(Topic::Vcpus, CoreReason::Isolated { pcpus: on, by });
        }
        if !off.is_empty() && self.topology.has_guest_cores(node) {
            reasons.compromise(Topic::Vcpus, CoreReason::NotIsolated { pcpus: off, by });
        }
    }

    /// Whether guests are confined to some of a node's cores.
    fn is_confined(&self, node: NodeId) -> bool {
        let open = self.topology.open_cores().filter(|core| core.node == node);
        open.count() < self.topology.cores_of(node).count()
    }

    /// Adds the sizes of the L3 caches above the cores of a node, where those of the host differ.
    fn explain_sizes(&self, cores: &NodeCores<'_>, reasons: &mut Reasons) {
        let caches = &self.topology.parts().l3;
        let sizes: BTreeSet<_> = caches.iter().filter_map(|cache| cache.size_kib).collect();
        let Some(largest) = sizes.last().copied().filter(|_| sizes.len() > 1) else { return };
        for size in sizes {
            let below = caches.iter().filter(|cache| cache.size_kib == Some(size));
            let below = below.fold(CpuSet::new(), |all, cache| all.or(&cache.pcpus));
            let pcpus = cores.pcpus().and(&below);
            if !pcpus.is_empty() {
                let largest = (size < largest).then_some(largest);
                reasons.say(Topic::Vcpus, CoreReason::L3Size { pcpus, size, largest });
            }
        }
    }

    /// Adds where the cores of a node are on more L3 caches than they would on the empty node.
    fn explain_caches(&self, cores: &NodeCores<'_>, reasons: &mut Reasons) {
        // Where cores are set aside for vCPUs, that of the emulator is another one on purpose.
        let set_aside = self.topology.for_guests();
        let is_apart = self.topology.cores_of(cores.node).any(|c| c.pcpus.intersects(set_aside));
        let own = cores.own.iter().filter(|_| !is_apart);
        let mine: Vec<usize> = cores.vcpus.iter().chain(own).map(|seat| seat.cache).collect();
        let stood: BTreeSet<usize> = mine.iter().copied().collect();
        let mut sizes: Vec<usize> = Vec::new();
        let mut last = None;
        for seat in self.homes.seats(cores.node) {
            if last != Some(seat.cache) {
                sizes.push(0);
                last = Some(seat.cache);
            }
            if let Some(size) = sizes.last_mut() {
                *size += 1;
            }
        }
        sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
        let mut room = 0;
        let needed = sizes.iter().take_while(|&&size| {
            let more = room < mine.len();
            room += size;
            more
        });
        let needed = needed.count();
        if stood.len() > needed {
            let (node, caches) = (cores.node, stood.len());
            reasons.compromise(Topic::Vcpus, CoreReason::Caches { node, caches, needed });
        }
    }

    /// Adds which other guests share the guest's L3 caches.
    fn explain_neighbours(&self, cores: &GuestCores<'_>, reasons: &mut Reasons) {
        let caches: BTreeSet<usize> = cores.seats().map(|seat| seat.cache).collect();
        let mut names: Vec<&str> = Vec::new();
        let mut shared = CpuSet::new();
        for &cache in &caches {
            let below = self.homes.below(cache);
            let before = names.len();
            names.extend(below.filter_map(|core| self.taken.owner(core)));
            if let (Some(l3), true) = (self.topology.parts().l3.get(cache), names.len() > before) {
                shared = shared.or(&l3.pcpus);
            }
        }
        if !shared.is_empty() {
            let domains = names.into_iter().map(str::to_owned).collect();
            reasons.compromise(Topic::Vcpus, CoreReason::SharedCache { pcpus: shared, domains });
        }
    }
}
