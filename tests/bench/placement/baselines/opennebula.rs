//! OpenNebula: guest nodes scheduled onto host nodes, the emptiest first
//! (`HostShareNUMA::schedule_nodes`, gpuvm-placement(7), OTHER PLANNERS).
//!
//! Devices are chosen before, by address; nodes that carry one of them go first (in the present
//! code whatever the guest node's index is). Pin policy is `THREAD`; `CORE` gives each vCPU a core
//! of its own and so fits half the guests. The fewest guest nodes that fit an empty host are asked
//! for, as for Nova. Memory of an earlier guest node is counted where it was taken; the project's
//! code counts it on the pcpus' node until the guest is stored.

use super::super::model::{Ask, Place, Policy};
use super::host::{Device, Host, lowest, parts};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;

/// Is OpenNebula with pin policy `THREAD`.
#[derive(Debug, Clone, Copy)]
pub struct OpenNebula;

impl Policy for OpenNebula {
    fn name(&self) -> String {
        "opennebula".into()
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "nodes of devices when devices are chosen",
            "L3 groups",
            "PCIe switches",
            "NVLink partitions",
        ]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let gpus = lowest(&host.gpus, ask.gpus)?;
        let nics = lowest(&host.nics, ask.nics)?;
        let nvmes = lowest(&host.nvmes, ask.nvmes)?;
        let cells = host.cells_for(ask)?;
        let wanted: Vec<Wish> = parts(u64::from(ask.vcpus), cells)
            .into_iter()
            .zip(parts(ask.memory.kib(), cells))
            .map(|(vcpus, kib)| (usize::try_from(vcpus).unwrap_or(0), MemSize::from_kib(kib)))
            .collect();
        let near = carriers(&host, &[&gpus, &nics, &nvmes]);
        let (seats, smt) = schedule(&host, &wanted, &near)?;
        let threads = threads(&host, &wanted, &seats, smt)?;
        Some(Place {
            along: host.switches(&gpus).unwrap_or_default(),
            memory: seats
                .iter()
                .zip(&wanted)
                .map(|(seat, wish)| (host.nodes[seat.memory].id, wish.1))
                .collect(),
            pins: host.pins(&threads),
            gpus,
            nics,
            nvmes,
            ..Place::default()
        })
    }
}

/// vCPUs and memory of a guest node.
type Wish = (usize, MemSize);

/// The host nodes of a guest node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seat {
    cpus: usize,
    memory: usize,
}

/// Whether each node carries one of these devices.
fn carriers(host: &Host<'_>, chosen: &[&[Bdf]]) -> Vec<bool> {
    let mut near = vec![false; host.nodes.len()];
    let is_chosen = |device: &&Device| chosen.iter().any(|list| list.contains(&device.bdf));
    let all = host.gpus.iter().chain(&host.nics).chain(&host.nvmes).filter(is_chosen);
    all.filter_map(|device| device.node).for_each(|node| near[node] = true);
    near
}

/// Finds a seat for each guest node with the most threads to a core that all of them allow: powers
/// of two that divide their vCPUs. `None` if with none of these they fit.
fn schedule(host: &Host<'_>, wanted: &[Wish], near: &[bool]) -> Option<(Vec<Seat>, usize)> {
    let most = 1usize << host.smt().ilog2();
    let sizes = std::iter::successors(Some(most), |size| (*size > 1).then_some(size / 2));
    let allowed = |size: &usize| wanted.iter().all(|(vcpus, _)| vcpus.is_multiple_of(*size));
    sizes.filter(allowed).find_map(|smt| {
        let mut state = State {
            groups: (0..host.nodes.len()).map(|node| groups(host, node, smt)).collect(),
            memory: host.nodes.iter().map(|node| node.free).collect(),
        };
        let seats = wanted.iter().map(|wish| seat(host, &mut state, wish, near, smt));
        Some((seats.collect::<Option<Vec<Seat>>>()?, smt))
    })
}

/// The remaining resources while a guest is scheduled.
struct State {
    /// Free groups of threads of one core, by node.
    groups: Vec<usize>,
    memory: Vec<MemSize>,
}

/// Groups of so many free threads of one core on a node.
fn groups(host: &Host<'_>, node: usize, smt: usize) -> usize {
    host.nodes[node].cores.iter().map(|&core| host.free_of(core).count() / smt).sum()
}

/// The seat of one guest node: hop by hop, the node that is left emptiest whose neighbour at that
/// hop has the memory.
fn seat(
    host: &Host<'_>,
    state: &mut State,
    (vcpus, memory): &Wish,
    near: &[bool],
    smt: usize,
) -> Option<Seat> {
    let mut fits: Vec<(f64, usize)> = (0..host.nodes.len())
        .filter(|&node| state.groups[node] > 0 && state.groups[node] * smt >= *vcpus)
        .map(|node| {
            #[allow(clippy::cast_precision_loss)] // threads of a host are few
            let used = *vcpus as f64 / (state.groups[node] * smt) as f64;
            (1.0 - used + if near[node] { 1.0 } else { 0.0 }, node)
        })
        .collect();
    fits.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let pair = (0..host.nodes.len()).find_map(|hop| {
        let at = |node: usize| Seat { cpus: node, memory: host.nodes[node].near[hop] };
        fits.iter().map(|(_, node)| at(*node)).find(|seat| state.memory[seat.memory] >= *memory)
    })?;
    state.groups[pair.cpus] -= vcpus.div_ceil(smt);
    state.memory[pair.memory] = state.memory[pair.memory] - *memory;
    Some(pair)
}

/// The thread of each vCPU: whole groups, core by core.
fn threads(host: &Host<'_>, wanted: &[Wish], seats: &[Seat], smt: usize) -> Option<Vec<usize>> {
    let mut used = vec![false; host.threads.len()];
    let mut all = Vec::new();
    for ((vcpus, _), seat) in wanted.iter().zip(seats) {
        let mut need = *vcpus;
        for &core in &host.nodes[seat.cpus].cores {
            let free: Vec<usize> = host.free_of(core).filter(|&thread| !used[thread]).collect();
            let number = (free.len() / smt * smt).min(need);
            free[..number].iter().for_each(|&thread| used[thread] = true);
            all.extend(&free[..number]);
            need -= number;
        }
        if need > 0 {
            return None;
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::super::testhost::{GPU, add, ask, even, join, only_free, rows};
    use super::*;

    /// A case: free pcpus, vCPUs of each guest node, nodes that carry devices, seats' nodes (empty:
    /// refused) and threads to a core.
    type Case = (&'static str, &'static [usize], &'static [usize], &'static [usize], usize);

    /// Two nodes of four cores with two threads, siblings eight apart: node 0 has 0-3,8-11. By the
    /// rules of `schedule_nodes`, which has no published vectors: the project tests it on hosts
    /// only.
    const CASES: [Case; 11] = [
        // The emptiest node, not the fullest that fits.
        ("0-1,4-7,8-9,12-15", &[4], &[], &[1], 2),
        ("0-3,4-5,8-11,12-13", &[4], &[], &[0], 2),
        // Equal ones: the higher number.
        ("0-15", &[4], &[], &[1], 2),
        // A node that carries a device goes first although it is fuller.
        ("0-1,4-7,8-9,12-15", &[4], &[0], &[0], 2),
        // But not where it does not fit.
        ("0,4-7,8,12-15", &[4], &[0], &[1], 2),
        // Guest nodes go one after another; resources of the first are gone for the second.
        ("0-15", &[8, 8], &[], &[1, 0], 2),
        ("0-15", &[4, 2], &[], &[1, 0], 2),
        // Two guest nodes may share a host node.
        ("4-7,12-15", &[4, 4], &[], &[1, 1], 2),
        // An odd count allows one thread to a core only.
        ("0-15", &[3], &[], &[1], 1),
        // The comment's example: groups of two that are not there leave single threads.
        ("0-3,4-7", &[4], &[], &[1], 1),
        ("0-1", &[4], &[], &[], 0),
    ];

    #[test]
    fn guest_nodes_go_to_the_emptiest() {
        let topology = Topology::new(even(2, 1, 4)).unwrap();
        for (free, vcpus, carriers, wanted, smt) in CASES {
            let mut host = Host::new(&topology, &[]);
            only_free(&mut host, free);
            let near: Vec<bool> = (0..2).map(|node| carriers.contains(&node)).collect();
            let wish: Vec<Wish> = vcpus.iter().map(|&v| (v, MemSize::from_gib(1))).collect();
            let (seats, size) = schedule(&host, &wish, &near).unwrap_or_default();
            let got: Vec<usize> = seats.iter().map(|seat| seat.cpus).collect();
            assert_eq!((got.as_slice(), size), (wanted, smt), "{vcpus:?} on {free}");
        }
    }

    /// Memory comes from the nearest node that has it, and a node with its memory at hand goes
    /// before an emptier one without ("closer memory allocations are prioritized").
    #[test]
    fn memory_is_taken_by_hops() {
        let topology = Topology::new(even(3, 1, 4)).unwrap();
        let mut host = Host::new(&topology, &[]);
        only_free(&mut host, "0-3,12-15,4-6,16-18");
        for (at, gib) in [(0, 1), (1, 8), (2, 8)] {
            host.nodes[at].free = MemSize::from_gib(gib);
        }
        let wish = [(4, MemSize::from_gib(4))];
        let (seats, _) = schedule(&host, &wish, &[false; 3]).unwrap();
        assert_eq!(seats, [Seat { cpus: 1, memory: 1 }]);
        host.nodes[1].free = MemSize::from_gib(1);
        let (seats, _) = schedule(&host, &wish, &[false; 3]).unwrap();
        // Memory is two hops from either node (0, 1, 2 and 1, 0, 2), so the emptier one wins.
        assert_eq!(seats, [Seat { cpus: 0, memory: 2 }]);
        host.nodes[2].free = MemSize::from_gib(1);
        assert!(schedule(&host, &wish, &[false; 3]).is_none());
    }

    /// Cores with half their threads free give nothing to groups of two and all to single threads.
    #[test]
    fn threads_come_in_groups() {
        let topology = Topology::new(rows(&[(0, 0, 0, "0,4/1,5/2,6/3,7")])).unwrap();
        let mut host = Host::new(&topology, &[]);
        only_free(&mut host, "0,1-3,5-7");
        let one = [Seat { cpus: 0, memory: 0 }];
        let take = |vcpus, smt| {
            let got = threads(&host, &[(vcpus, MemSize::default())], &one, smt);
            got.map(|threads| join(&host.pins(&threads)))
        };
        assert_eq!(take(4, 2).as_deref(), Some("1-2,5-6"));
        assert_eq!(take(3, 1).as_deref(), Some("0-1,5"));
        assert_eq!(take(8, 2), None);
    }

    /// Devices are the lowest free ones, and the pcpus follow them.
    #[test]
    fn pcpus_follow_the_devices() {
        let mut parts = even(2, 1, 4);
        add(&mut parts, GPU, 0x10, &[Some(0), Some(0), Some(1), Some(1)]);
        let topology = Topology::new(parts).unwrap();
        let place = OpenNebula.place(&topology, &[], &ask(1, 4)).unwrap();
        assert_eq!(join(&place.pins), "0-1,8-9");
        assert_eq!(place.gpus, [topology.gpus().next().unwrap().bdf]);
        // GPUs 1 and 2 are on two nodes; both carry one, and the emptier node wins.
        let place = OpenNebula.place(&topology, &[place], &ask(2, 4)).unwrap();
        assert_eq!(join(&place.pins), "4-5,12-13");
    }
}
