//! The device manager: hints of a resource, and which devices a pod gets (gpuvm-placement(7), OTHER
//! PLANNERS).

use super::super::host::{Device, Host};
use super::distributed::subsets;
use super::hints::{self, Hints};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::Proximity;

/// Sets of GPUs that are compared one by one; where there are more, a set grows from each GPU.
const MOST_SETS: usize = 5_000;

/// Hints of a resource: every mask whose free devices are enough; none where no device names a
/// node.
pub fn hints(nodes: usize, list: &[Device], number: u64) -> Hints {
    let usable = || list.iter().filter(|device| device.usable);
    if usable().count() > 0 && usable().all(|device| device.node.is_none()) {
        return None;
    }
    let (mut all, mut free) = (vec![0; nodes], vec![0; nodes]);
    for device in usable() {
        let Some(node) = device.node else { continue };
        all[node] += 1;
        free[node] += u64::from(device.free);
    }
    Some(hints::generate(&all, &free, number))
}

/// The devices of a pod: those of the mask's nodes first, of the node with the fewest first, then
/// the others, at last those that name no node; within each by address, since the kubelet has no
/// order there. `None` if too few are free.
pub fn choose(
    host: &Host<'_>,
    list: &[Device],
    mask: Option<u32>,
    number: usize,
    by_links: bool,
) -> Option<Vec<Bdf>> {
    let mut free: Vec<&Device> = list.iter().filter(|device| device.free).collect();
    if free.len() < number {
        return None;
    }
    let inside = |device: &Device| match (mask, device.node) {
        (Some(mask), Some(node)) => mask >> node & 1 == 1,
        _ => mask.is_none(),
    };
    if by_links {
        let (near, far): (Vec<&Device>, Vec<&Device>) = free.iter().partition(|d| inside(d));
        let bdfs = |list: Vec<&Device>| list.iter().map(|d| d.bdf).collect::<Vec<Bdf>>();
        let (near, far) = (bdfs(near), bdfs(far));
        let mut chosen = linked(host, &near, number.min(near.len()));
        let missing = number - chosen.len();
        chosen.extend(linked(host, &far, missing));
        return Some(chosen);
    }
    if mask.is_some() {
        let beside = |device: &Device| free.iter().filter(|d| d.node == device.node).count();
        let rank = |device: &&Device| {
            (!inside(device), device.node.is_none(), beside(device), device.node, device.bdf)
        };
        let mut ranked: Vec<_> = free.iter().map(|device| (rank(device), *device)).collect();
        ranked.sort_unstable_by_key(|(rank, _)| *rank);
        free = ranked.into_iter().map(|(_, device)| device).collect();
    }
    Some(free[..number].iter().map(|device| device.bdf).collect())
}

/// The GPUs with the best links among each other: NVIDIA's device plugin, `aligned` policy. The
/// plugin looks for the best way to cut all free GPUs into sets; this model takes the best single
/// set, which is never worse for the guest.
fn linked(host: &Host<'_>, free: &[Bdf], number: usize) -> Vec<Bdf> {
    if number == free.len() || number < 2 {
        return free[..number].to_vec();
    }
    let score = |a: usize, b: usize| link_score(host.topology.proximity(free[a], free[b]));
    let table: Vec<Vec<u32>> =
        (0..free.len()).map(|a| (0..free.len()).map(|b| score(a, b)).collect()).collect();
    let sum = |set: &[usize]| -> u32 {
        set.iter()
            .enumerate()
            .map(|(at, &a)| set[..at].iter().map(|&b| table[a][b]).sum::<u32>())
            .sum()
    };
    let places: Vec<usize> = (0..free.len()).collect();
    let sets = match choices(free.len(), number) {
        0..=MOST_SETS => subsets(&places, number),
        _ => places.iter().map(|&first| grow(&table, first, number)).collect(),
    };
    let best = sets.into_iter().max_by_key(|set| (sum(set), std::cmp::Reverse(set.clone())));
    best.unwrap_or_default().into_iter().map(|at| free[at]).collect()
}

/// Grows a set from one GPU, each time by the GPU with the best links to it.
fn grow(table: &[Vec<u32>], first: usize, number: usize) -> Vec<usize> {
    let mut links = table[first].clone();
    let mut set = vec![first];
    while set.len() < number {
        let others = (0..table.len()).filter(|at| !set.contains(at));
        let Some(next) = others.max_by_key(|&at| (links[at], std::cmp::Reverse(at))) else { break };
        links.iter_mut().zip(&table[next]).for_each(|(all, more)| *all += more);
        set.push(next);
    }
    set.sort_unstable();
    set
}

/// Sets of `k` among `n`, as far as [`MOST_SETS`] and one more.
fn choices(n: usize, k: usize) -> usize {
    let mut all = 1usize;
    for at in 0..k.min(n - k) {
        all = all * (n - at) / (at + 1);
        if all > MOST_SETS {
            return MOST_SETS + 1;
        }
    }
    all
}

/// The plugin's score of a link (NVIDIA go-gpuallocator: 10 for other sockets to 50 for one switch,
/// and 100 for each NVLink).
fn link_score(near: Proximity) -> u32 {
    match near {
        Proximity::Same => 0,
        Proximity::Sys => 10,
        Proximity::Node => 20,
        Proximity::Phb => 30,
        Proximity::Pxb => 40,
        Proximity::Pix => 50,
        Proximity::NvLink(links) => 100 * links,
    }
}
