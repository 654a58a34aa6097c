//! The cores that belong to a GPU: its node, its share of the node, its block of cores. Knows only
//! the host and the cores reserved for it, not the occupancy.

mod annex;

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeId};
use crate::request::{L3Wish, PinPolicy, Profile, Request};
use crate::topology::{Core, NumaNode, Speed, Topology};
use std::cmp::Reverse;
use std::ops::Range;

/// Why a GPU's home node is not the one that the kernel reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// The kernel reports no node, and there are several.
    Unknown,
    /// The node has no cores.
    NoCores(NodeId),
}

/// A core with its place on a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat<'a> {
    pub(super) core: &'a Core,
    /// Its place in [`Topology::cores`].
    pub(super) at: usize,
    /// Its L3 cache, by index in the record; cores with an unknown cache count as sharing one cache
    /// per node, numbered above the known ones.
    pub(super) cache: usize,
    pub(super) threads: usize,
    /// Its kind, on a host with several.
    pub(super) speed: Option<Speed>,
    /// Whether its L3 cache is as large as any of the host's.
    is_large: bool,
}

impl Seat<'_> {
    /// Its pcpus for emulator and I/O threads: those not set aside for vCPUs, if there are any.
    pub(super) fn for_helpers(&self, set_aside: &CpuSet) -> CpuSet {
        let others = self.core.pcpus.minus(set_aside);
        if others.is_empty() { self.core.pcpus.clone() } else { others }
    }
}

/// The cores that a guest's vCPUs may be on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Among {
    pub(super) kind: Option<Speed>,
    /// On nodes with cores set aside for guests ([`Topology::has_guest_cores`]), those only.
    pub(super) isolated: bool,
    /// Those below the largest L3 caches only.
    pub(super) large: bool,
    /// On nodes of GPUs without a core of the kind, all cores: what is near the GPU is worth more.
    homes: bool,
}

impl Among {
    /// The attempts for a guest, the best first, and all cores last.
    pub(super) fn of(topology: &Topology, request: &Request) -> Vec<Among> {
        let parts = topology.parts();
        if request.pins == PinPolicy::None || request.profile == Profile::NvidiaVm {
            return vec![Among::default()];
        }
        let mut kinds: Vec<Option<Speed>> = match &parts.core_kinds[..] {
            kinds @ [_, _, ..] => kinds.iter().map(|kind| Some(kind.kind)).collect(),
            _ => Vec::new(),
        };
        kinds.push(None);
        let large = request.l3 == L3Wish::Large;
        let homes = request.gpus.number() > 0 && !large;
        let of_kind =
            |isolated| kinds.iter().map(move |&kind| Among { kind, isolated, large, homes });
        let is_meant = |core: &Core, kind: Option<Speed>| {
            topology.is_for_guests(core)
                && (kind.is_none() || topology.speed(core) == kind)
                && topology.has_guest_cores(core.node)
        };
        let has_meant =
            |among: &Among| topology.open_cores().any(|core| is_meant(core, among.kind));
        // The admin's choice of cores for guests counts before their kind.
        of_kind(true).filter(has_meant).chain(of_kind(false)).collect()
    }
}

#[derive(Debug)]
pub(super) struct Home<'a> {
    pub(super) id: NodeId,
    /// Cores available to guests, in the order of the node's caches, which is hwloc's.
    pub(super) seats: Vec<Seat<'a>>,
    /// Cores for emulator and I/O threads, the best first: slower ones than those, or where those
    /// are set aside for guests, ones that are not.
    pub(super) helpers: Vec<Seat<'a>>,
    /// Number of cores reserved for the host, which are the first ones of the slowest kind that are
    /// not isolated, and neither in `seats` nor in `helpers`.
    pub(super) kept: usize,
    /// Number of cores that are not reserved, of whatever kind.
    cores: usize,
    /// GPUs at home here, by address.
    pub(super) gpus: Vec<Bdf>,
    /// Nodes without GPUs that its GPUs share, as places among [`Homes::all`].
    pub(super) annexes: Vec<usize>,
    /// On a node without GPUs: the GPUs that share it, by address.
    pub(super) tenants: Vec<Bdf>,
}

impl Home<'_> {
    /// GPUs that have a share of the node.
    pub(super) fn owners(&self) -> &[Bdf] {
        if self.gpus.is_empty() { &self.tenants } else { &self.gpus }
    }
}

/// The home nodes of a host's GPUs.
#[derive(Debug)]
pub(super) struct Homes<'a> {
    topology: &'a Topology,
    nodes: Vec<Home<'a>>,
    /// GPUs by address, with the place of their home in `nodes`.
    gpus: Vec<(Bdf, usize, Option<Moved>)>,
    /// L3 caches as [`Seat::cache`] with each core below, reserved ones included, as places in
    /// [`Topology::cores`]; ascending.
    below: Vec<(usize, usize)>,
    /// The most common number of threads per core, of the wanted kind where there is one.
    common: usize,
}

impl<'a> Homes<'a> {
    /// Finds every GPU's home on a host that reserves `kept` cores per node.
    pub(super) fn new(topology: &'a Topology, kept: u32) -> Homes<'a> {
        Homes::among(topology, kept, Among::default())
    }

    /// Finds the homes among some cores.
    fn among(topology: &'a Topology, kept: u32, among: Among) -> Homes<'a> {
        let (nodes, below) = nodes(topology, kept as usize, among);
        let mut homes = Homes { topology, nodes, gpus: Vec::new(), below, common: 1 };
        homes.common = homes.most_common(among.kind);
        for gpu in topology.gpus() {
            let (node, moved) = homes.find(gpu.node);
            let at = homes.place(node).unwrap_or(0);
            homes.gpus.push((gpu.bdf, at, moved));
            if let Some(home) = homes.nodes.get_mut(at) {
                home.gpus.push(gpu.bdf);
            }
        }
        homes.gpus.sort_by_key(|(bdf, _, _)| *bdf);
        homes
    }

    /// Finds the homes under a request, among some cores.
    pub(super) fn of_request(topology: &'a Topology, request: &Request, among: Among) -> Homes<'a> {
        let mut homes = Homes::among(topology, request.reserve.cores, among);
        if request.profile == Profile::Share {
            annex::share_out(topology, &mut homes.nodes);
        }
        homes
    }

    /// Adds GPUs that do not count ([`Topology::set_aside`]): they have a home but take no share.
    pub(super) fn with(mut self, displays: &[Bdf]) -> Homes<'a> {
        for bdf in displays {
            let (node, moved) = self.find(self.topology.device(*bdf).and_then(|gpu| gpu.node));
            let at = self.place(node).unwrap_or(0);
            self.gpus.push((*bdf, at, moved));
        }
        self.gpus.sort_by_key(|(bdf, _, _)| *bdf);
        self
    }

    /// Finds the node with cores for a device of this node.
    fn find(&self, node: Option<NodeId>) -> (NodeId, Option<Moved>) {
        match node {
            Some(node) if self.place(node).is_some() => (node, None),
            Some(node) => {
                let with_cores = |n: &NumaNode| self.place(n.os_index).is_some();
                (
                    nearest(self.topology, node, with_cores).unwrap_or(node),
                    Some(Moved::NoCores(node)),
                )
            }
            None => {
                // The same for every request, whichever kind of cores it takes.
                let most = self.nodes.iter().max_by_key(|n| (n.cores, Reverse(n.id)));
                let node = most.map_or(NodeId(0), |home| home.id);
                (node, (self.nodes.len() > 1).then_some(Moved::Unknown))
            }
        }
    }

    /// The node with cores for any device; none where its own node is unknown and there are
    /// several.
    pub(super) fn of_device(&self, bdf: Bdf) -> Option<NodeId> {
        match self.find(self.topology.device(bdf)?.node) {
            (_, Some(Moved::Unknown)) => None,
            (node, _) => Some(node),
        }
    }

    /// A GPU's home, and why it differs from the kernel's node.
    pub(super) fn of_gpu(&self, bdf: Bdf) -> (NodeId, Option<Moved>) {
        let at = self.gpus.binary_search_by_key(&bdf, |(gpu, _, _)| *gpu).ok();
        match at.map(|at| self.gpus[at]) {
            Some((_, home, moved)) if home < self.nodes.len() => (self.nodes[home].id, moved),
            _ => self.find(None),
        }
    }

    /// GPUs by address, with the place of their home among [`Homes::all`].
    pub(super) fn places(&self) -> impl Iterator<Item = (Bdf, usize)> + '_ {
        self.gpus.iter().map(|(bdf, at, _)| (*bdf, *at))
    }

    pub(super) fn all(&self) -> &[Home<'a>] {
        &self.nodes
    }

    /// The index of a node among [`Homes::all`].
    pub(super) fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |home| home.id).ok()
    }

    fn home(&self, node: NodeId) -> Option<&Home<'a>> {
        self.place(node).map(|at| &self.nodes[at])
    }

    /// Cores of a node available to guests, in hwloc's order.
    pub(super) fn seats(&self, node: NodeId) -> &[Seat<'a>] {
        self.home(node).map_or(&[], |home| &home.seats)
    }

    /// GPUs at home on a node, by address.
    pub(super) fn gpus(&self, node: NodeId) -> &[Bdf] {
        self.home(node).map_or(&[], |home| &home.gpus)
    }

    /// Cores that each GPU of a node owns: cores of the node divided by the GPUs that share it, at
    /// least one.
    pub(super) fn share(&self, node: NodeId) -> usize {
        let gpus = self.home(node).map_or(0, |home| home.owners().len());
        (self.seats(node).len() / gpus.max(1)).max(1)
    }

    /// The blocks of cores of a node that GPUs own, as index ranges in [`Homes::seats`]; the last
    /// ones are empty where there are more GPUs than cores.
    pub(super) fn blocks(&self, node: usize) -> impl Iterator<Item = (Bdf, Range<usize>)> + '_ {
        let home = &self.nodes[node];
        let (share, cores) = (self.share(home.id), home.seats.len());
        let block =
            move |place: usize| (place * share).min(cores)..((place + 1) * share).min(cores);
        home.owners().iter().enumerate().map(move |(place, &gpu)| (gpu, block(place)))
    }

    /// Cores below an L3 cache, as places in [`Topology::cores`].
    pub(super) fn below(&self, cache: usize) -> impl Iterator<Item = usize> + '_ {
        let from = self.below.partition_point(|(other, _)| *other < cache);
        let those = self.below[from..].iter().take_while(move |(other, _)| *other == cache);
        those.map(|(_, core)| *core)
    }

    /// The most common number of threads per core; the larger of a tie.
    pub(super) fn common_threads(&self) -> usize {
        self.common
    }

    fn most_common(&self, kind: Option<Speed>) -> usize {
        let mut cores_with: Vec<usize> = Vec::new();
        let seats = || self.nodes.iter().flat_map(|home| &home.seats);
        // Nodes without the kind have others, too.
        let kind = kind.filter(|_| seats().any(|seat| seat.speed == kind));
        for seat in seats().filter(|seat| kind.is_none() || seat.speed == kind) {
            cores_with.resize(cores_with.len().max(seat.threads + 1), 0);
            cores_with[seat.threads] += 1;
        }
        let most = cores_with.iter().enumerate().max_by_key(|&(threads, cores)| (*cores, threads));
        most.map_or(1, |(threads, _)| threads.max(1))
    }
}

/// Lists nodes with some of their cores, by number, some of each reserved for the host; and the
/// cores below each cache.
fn nodes<'a>(
    topology: &'a Topology,
    kept: usize,
    among: Among,
) -> (Vec<Home<'a>>, Vec<(usize, usize)>) {
    let caches = &topology.parts().l3;
    let firsts: Vec<_> = caches.iter().map(|cache| cache.pcpus.first()).collect();
    let mut by_node: Vec<usize> = (0..topology.nodes().len()).collect();
    by_node.sort_by_key(|&at| topology.nodes()[at].os_index);
    let ids: Vec<NodeId> = by_node.iter().map(|&at| topology.nodes()[at].os_index).collect();
    let pcpus = by_node.iter().map(|&at| topology.nodes()[at].pcpus.len());
    let mut lists: Vec<Vec<_>> = pcpus.map(Vec::with_capacity).collect();
    let mut below = Vec::with_capacity(topology.cores().len());
    let largest = caches.iter().filter_map(|cache| cache.size_kib).max();
    for (at, core) in topology.cores().iter().enumerate() {
        let Ok(node) = ids.binary_search(&core.node) else { continue };
        let first = core.pcpus.first();
        let cache = first.and_then(|pcpu| topology.l3_place(pcpu));
        let order = (cache.and_then(|at| firsts[at]).or(first), first);
        let cache = cache.unwrap_or(caches.len() + node);
        below.push((cache, at));
        let Some(core) = topology.open_core(at) else { continue };
        let (threads, speed) = (core.pcpus.len(), topology.speed(core));
        let is_large = caches.get(cache).is_some_and(|cache| cache.size_kib == largest);
        lists[node].push((order, Seat { core, at, cache, threads, speed, is_large }));
    }
    let has_gpu = |id| among.homes && topology.gpus().any(|gpu| gpu.node == Some(id));
    let home = |(id, list): (NodeId, Vec<(_, Seat<'a>)>)| {
        let isolated = among.isolated && topology.has_guest_cores(id);
        let is_of_kind = |seat: &Seat<'_>| {
            (among.kind.is_none() || seat.speed == among.kind)
                && (!isolated || topology.is_for_guests(seat.core))
        };
        let among = Among { isolated, ..among };
        let has_none = !list.iter().any(|(_, seat)| is_of_kind(seat));
        let kind = among.kind.filter(|_| !(has_none && has_gpu(id)));
        home(topology, id, list, kept, Among { kind, ..among })
    };
    let homes = ids.into_iter().zip(lists).filter(|(_, list)| !list.is_empty()).map(home);
    let takes_all = among.kind.is_none() && !among.large;
    let (mut homes, empty): (Vec<Home<'_>>, Vec<Home<'_>>) =
        homes.partition(|home| takes_all || !home.seats.is_empty());
    if homes.is_empty() {
        homes = empty;
    }
    below.sort_unstable();
    (homes, below)
}

/// Makes a node of its cores, each with its place in the node's order.
fn home<'a, O: Ord + Copy>(
    topology: &Topology,
    id: NodeId,
    mut list: Vec<(O, Seat<'a>)>,
    kept: usize,
    among: Among,
) -> Home<'a> {
    let is_isolated = |seat: &Seat<'_>| topology.is_for_guests(seat.core);
    list.sort_by_key(|(order, seat)| (is_isolated(seat), Reverse(seat.speed), *order));
    let kept = kept.min(list.len());
    list.drain(..kept);
    let cores = list.len();
    list.sort_by_key(|(order, _)| *order);
    let all = list.into_iter().map(|(_, seat)| seat);
    let of_kind = |seat: &Seat<'_>| {
        (among.kind.is_none() || seat.speed == among.kind) && (seat.is_large || !among.large)
    };
    let (mut seats, mut helpers): (Vec<Seat<'_>>, Vec<Seat<'_>>) = all.partition(of_kind);
    // Those for guests are not for threads that disturb them.
    helpers.retain(|seat| !is_isolated(seat));
    let is_slower = |seat: &Seat<'_>| {
        (among.kind.is_some() && seat.speed > among.kind) || (among.large && !seat.is_large)
    };
    if among.isolated {
        let (isolated, others): (Vec<_>, Vec<_>) = seats.into_iter().partition(is_isolated);
        seats = isolated;
        helpers.extend(others);
    } else {
        helpers.retain(is_slower);
    }
    helpers.sort_by_key(|seat| {
        if is_slower(seat) {
            (0, seat.speed, Reverse(None))
        } else {
            (1 + u8::from(seat.speed != among.kind), None, Reverse(seat.speed))
        }
    });
    let (annexes, tenants) = (Vec::new(), Vec::new());
    Home { id, seats, helpers, kept, cores, gpus: Vec::new(), annexes, tenants }
}

/// The nearest node to another that has a property, itself first; by distance if the host reports
/// it, then by number.
pub(super) fn nearest(
    topology: &Topology,
    from: NodeId,
    has: impl Fn(&NumaNode) -> bool,
) -> Option<NodeId> {
    let candidates = topology.nodes().iter().enumerate().filter(|(_, node)| has(node));
    let rank = rank(topology, from);
    candidates.min_by_key(|&(at, node)| rank(at, node)).map(|(_, node)| node.os_index)
}

/// Returns a sort key for distance from a node: itself first, then by distance if the host reports
/// it, then by number. Takes a node and its index in the record.
pub(super) fn rank(
    topology: &Topology,
    from: NodeId,
) -> impl Fn(usize, &NumaNode) -> (bool, u32, u32, NodeId) {
    let distances = topology.node(from).map_or(&[][..], |node| &node.distances[..]);
    move |at, node| {
        let distance = distances.get(at).copied().unwrap_or(u32::MAX);
        (node.os_index != from, distance, node.os_index.0.abs_diff(from.0), node.os_index)
    }
}

/// The distance between two nodes, where the host knows it.
pub(super) fn distance(topology: &Topology, from: NodeId, to: NodeId) -> Option<u32> {
    let position = topology.nodes().iter().position(|node| node.os_index == to)?;
    topology.node(from)?.distances.get(position).copied()
}
