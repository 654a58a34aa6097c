//! Which GPUs a guest that is there may have, of another number than it has: all that it has and
//! more, or some of them. Which of the sets it gets their plans decide.

use crate::bdf::Bdf;
use crate::health::Health;
use crate::placement::Occupancy;
use crate::request::GpuWish;
use crate::topology::{PciDevice, Proximity, Topology};
use std::collections::BTreeSet;

/// The most sets that are named.
const MOST: usize = 16;

/// Sets of `count` GPUs for a guest that has `own`, the nearest ones first; empty: no set of this
/// number has all of its own, or only its own. With none of its own it chooses as a new guest.
pub fn candidates(
    topology: &Topology,
    others: &Occupancy,
    own: &[Bdf],
    count: u32,
) -> Vec<GpuWish> {
    if own.is_empty() || count == 0 {
        return vec![GpuWish::Count(count)];
    }
    let ruled: BTreeSet<Bdf> = topology.ruled().collect();
    let is_of_board = own.iter().all(|gpu| ruled.contains(gpu));
    let count = count as usize;
    let mut sets = match (is_of_board, count < own.len()) {
        (true, _) => partitions(topology, own, count),
        (false, true) => fewer(topology, own, count),
        (false, false) => more(topology, others, own, &ruled, count),
    };
    sets.truncate(MOST);
    sets.into_iter().map(GpuWish::Exact).collect()
}

/// The NVLink partitions of this number with all of its GPUs, or only its own.
fn partitions(topology: &Topology, own: &[Bdf], count: usize) -> Vec<Vec<Bdf>> {
    let fits = |gpus: &[Bdf]| {
        if count < own.len() {
            gpus.iter().all(|gpu| own.contains(gpu))
        } else {
            own.iter().all(|gpu| gpus.contains(gpu))
        }
    };
    let all = topology.partitions().iter().filter(|one| one.gpus.len() == count);
    all.filter(|one| fits(&one.gpus)).map(|one| one.gpus.clone()).collect()
}

/// Sets of its own GPUs: from each one the nearest to it.
fn fewer(topology: &Topology, own: &[Bdf], count: usize) -> Vec<Vec<Bdf>> {
    let mut sets: Vec<(Vec<Proximity>, Vec<Bdf>)> = Vec::new();
    for &first in own {
        let mut near: Vec<_> =
            own.iter().map(|&gpu| (topology.proximity(first, gpu), gpu)).collect();
        near.sort();
        near.truncate(count);
        let far = near.iter().rev().map(|(far, _)| *far).collect();
        let mut set: Vec<Bdf> = near.into_iter().map(|(_, gpu)| gpu).collect();
        set.sort();
        if !sets.iter().any(|(_, known)| *known == set) {
            sets.push((far, set));
        }
    }
    sets.sort();
    sets.into_iter().map(|(_, set)| set).collect()
}

/// Its own GPUs with the nearest free ones, and with each of the others in place of the farthest.
fn more(
    topology: &Topology,
    others: &Occupancy,
    own: &[Bdf],
    ruled: &BTreeSet<Bdf>,
    count: usize,
) -> Vec<Vec<Bdf>> {
    let held = |gpu: &Bdf| {
        let of_domains = others.domains.iter().any(|domain| domain.devices.contains(gpu));
        of_domains || others.exclusion_of(topology, *gpu).is_some()
    };
    let healthy = |gpu: &&PciDevice| !gpu.health.as_ref().is_some_and(Health::is_over);
    let free = topology.gpus().filter(healthy).map(|gpu| gpu.bdf);
    let free = free.filter(|gpu| !own.contains(gpu) && !ruled.contains(gpu) && !held(gpu));
    let near = |gpu: Bdf| {
        let mut to: Vec<Proximity> = own.iter().map(|&one| topology.proximity(one, gpu)).collect();
        to.sort();
        (to, gpu)
    };
    let mut free: Vec<(Vec<Proximity>, Bdf)> = free.map(near).collect();
    free.sort();
    let free: Vec<Bdf> = free.into_iter().map(|(_, gpu)| gpu).collect();
    let wanted = count - own.len();
    let Some(most) = wanted.checked_sub(1).filter(|_| free.len() >= wanted) else {
        return Vec::new();
    };
    let set = |last: &Bdf| {
        let mut set: Vec<Bdf> = own.iter().chain(&free[..most]).chain([last]).copied().collect();
        set.sort();
        set
    };
    free[most..].iter().map(set).collect()
}
