//! Which NICs, virtual functions or drives serve the GPUs of a guest: those from which the worst
//! GPU is nearest to one of them, then all GPUs together, then the devices themselves to any GPU,
//! then as many GPUs as possible with one of their own below a switch.
//!
//! Distances of functions form a tree: a device that is near to one GPU is equally near to all GPUs
//! that are as near to that one. Each of these wishes counts, in a part of the tree, up to how many
//! devices there help; so taking the device that helps most, again and again, is as good as any
//! other choice.

use super::candidates::Candidate;
use crate::topology::{Proximity, Way};

/// How near a device is to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Beside {
    pub(super) over: Proximity,
    /// Whether they are on no node of one package.
    is_apart: bool,
}

impl Beside {
    pub(super) fn new(gpu: &Way<'_>, device: Option<&Way<'_>>) -> Beside {
        let over = device.map_or(Proximity::Sys, |device| gpu.over_pcie(device));
        let is_near = || device.is_some_and(|device| gpu.is_on_package_of(device));
        Beside { over, is_apart: over == Proximity::Sys && !is_near() }
    }

    /// The same for a guest: 0 below one PCIe switch, 1 on one node, 2 on one package, 3 elsewhere.
    pub(super) fn distance(self) -> u32 {
        match self.over {
            Proximity::Same | Proximity::NvLink(_) | Proximity::Pix | Proximity::Pxb => 0,
            Proximity::Phb | Proximity::Node => 1,
            Proximity::Sys => 2 + u32::from(self.is_apart),
        }
    }

    /// The same as a number of steps; nearer is smaller.
    pub(super) fn rank(self) -> i32 {
        match self.over {
            Proximity::Same | Proximity::NvLink(_) | Proximity::Pix => 0,
            Proximity::Pxb => 1,
            Proximity::Phb => 2,
            Proximity::Node => 3,
            Proximity::Sys => 4 + i32::from(self.is_apart),
        }
    }
}

const FARTHEST: i32 = 5;

const RANKS: usize = FARTHEST as usize + 1;
/// The last rank that is below a switch.
const SWITCH: usize = 1;

/// Devices that are taken one after another.
pub(super) struct Cover<'w> {
    candidates: &'w [Candidate],
    /// How near each candidate is to each GPU of the host: a row for each GPU.
    beside: &'w [Vec<Beside>],
    number: usize,
    /// GPUs of the guest, as places among these rows.
    gpus: &'w [usize],
    /// The needs of other guests' GPUs of each candidate, less is better.
    wanted: &'w [[i32; 2]],
    /// Devices for each GPU, at most.
    rounds: usize,
    /// The rank that each GPU can have.
    worst: i32,
    /// The rank of the device nearest to each GPU.
    best: Vec<i32>,
    /// How many are as near to each GPU as each rank.
    within: Vec<[usize; RANKS]>,
    taken: Vec<usize>,
}

/// What taking a device is worth; the least is taken: other than the guest's own, GPUs that it
/// brings to the worst rank and how much nearer all GPUs come (both negative), its own distance,
/// whether no GPU gets its own one by it, ranks at which it is one too many, those that its GPUs
/// have already, the need of others for it, whether it has no RDMA, and its place.
type Worth = (bool, i32, i32, u32, bool, usize, usize, [i32; 5], usize);

impl<'w> Cover<'w> {
    pub(super) fn new(
        candidates: &'w [Candidate],
        beside: &'w [Vec<Beside>],
        number: usize,
        gpus: &'w [usize],
        wanted: &'w [[i32; 2]],
        among: &[usize],
    ) -> Cover<'w> {
        let mut cover = Cover {
            candidates,
            beside,
            number,
            gpus,
            wanted,
            rounds: number.div_ceil(gpus.len().max(1)),
            worst: FARTHEST,
            best: vec![FARTHEST + 1; gpus.len()],
            within: vec![[0; RANKS]; gpus.len()],
            taken: Vec::with_capacity(number),
        };
        cover.worst = (0..FARTHEST).find(|&most| cover.can_reach(among, most)).unwrap_or(FARTHEST);
        cover
    }

    /// Takes the wanted number of these.
    pub(super) fn take(mut self, among: &[usize]) -> Vec<usize> {
        let mut left = among.to_vec();
        while self.taken.len() < self.number {
            let best = (0..left.len()).min_by_key(|&place| self.worth(left[place]));
            let Some(at) = best.map(|place| left.swap_remove(place)) else { break };
            for place in 0..self.gpus.len() {
                let rank = self.rank(place, at);
                self.best[place] = self.best[place].min(rank);
                let all = self.within[place].iter_mut().zip(0..);
                all.filter(|(_, most)| rank <= *most).for_each(|(number, _)| *number += 1);
            }
            self.taken.push(at);
        }
        self.taken.sort_unstable();
        self.taken
    }

    /// How near a candidate is to a GPU.
    fn rank(&self, gpu: usize, at: usize) -> i32 {
        self.beside[self.gpus[gpu]][at].rank()
    }

    /// Whether the wanted number is enough for each GPU to have one as near as this rank. The
    /// guest's own come first.
    fn can_reach(&self, among: &[usize], most: i32) -> bool {
        let is_own = |at: &usize| self.candidates[*at].is_own;
        let (own, others): (Vec<usize>, Vec<usize>) = among.iter().copied().partition(is_own);
        let (mut taken, left) =
            if own.len() <= self.number { (own, others) } else { (Vec::new(), own) };
        for gpu in 0..self.gpus.len() {
            let is_near = |at: &&usize| self.rank(gpu, **at) <= most;
            if !taken.iter().any(|at| is_near(&at)) {
                let Some(at) = left.iter().find(is_near) else { return false };
                taken.push(*at);
            }
        }
        taken.len() <= self.number
    }

    /// The worth of taking a candidate next.
    fn worth(&self, at: usize) -> Worth {
        let candidate = &self.candidates[at];
        let (mut reached, mut gain) = (0, 0);
        let mut below = [(0, 0); RANKS];
        for (place, best) in self.best.iter().enumerate() {
            let rank = self.rank(place, at);
            reached += i32::from(*best > self.worst && rank <= self.worst);
            gain += (best - rank).max(0);
            for (most, (gpus, there)) in below.iter_mut().enumerate() {
                if usize::try_from(rank).is_ok_and(|rank| rank <= most) {
                    (*gpus, *there) = (*gpus + 1, self.within[place][most]);
                }
            }
        }
        let nearest = self.gpus.iter().map(|&gpu| self.beside[gpu][at].distance()).min();
        let (gpus, there) = below[SWITCH];
        let is_single = there < gpus;
        let spare = below.iter().filter(|(gpus, there)| *there >= gpus * self.rounds).count();
        let round = below.iter().find(|(gpus, _)| *gpus > 0).map_or(0, |(gpus, all)| all / gpus);
        let [alone, shared] = self.wanted[at];
        let plain = i32::from(candidate.is_plain);
        let others = [alone, shared, plain, candidate.crowd, candidate.along];
        let nearest = nearest.unwrap_or_default();
        (!candidate.is_own, -reached, -gain, nearest, !is_single, spare, round, others, at)
    }
}
