//! How near a set of GPUs can have the wanted devices of a kind. It runs for every candidate set,
//! so it counts places of devices as bits of GPUs and chooses none; [`Cover`](super::cover::Cover)
//! then takes devices by the same criteria.

use super::candidates::Candidate;
use super::cover::Beside;
use super::slots::{MOST, Mask};

/// Ranks below the farthest.
const RANKS: usize = 5;
/// The last rank that is below a switch, the last that is on the node, and that of the package.
const SWITCH: usize = 1;
const NODE: usize = 3;
const PACKAGE: usize = 4;
/// The distance of devices on other packages than every GPU.
const FARTHEST: u32 = 3;

/// How far devices are from a set, compared field by field; sums over kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Far {
    /// Steps from the GPU that is farthest from its nearest device: 0 below one PCIe switch, 1
    /// below several, 2 by one host bridge, 3 on one node, 4 on one package, 5 elsewhere.
    pub(super) worst: u32,
    /// The same of all GPUs, summed.
    pub(super) gpus: u32,
    /// From each device to its nearest GPU, summed: 0 with no host bridge between, 1 on the node, 2
    /// on the package, 3 elsewhere.
    pub(super) devices: u32,
}

impl std::iter::Sum for Far {
    fn sum<I: Iterator<Item = Far>>(all: I) -> Far {
        all.fold(Far::default(), |sum, far| Far {
            worst: sum.worst + far.worst,
            gpus: sum.gpus + far.gpus,
            devices: sum.devices + far.devices,
        })
    }
}

/// Devices that are as near to every GPU as each other.
#[derive(Debug)]
struct Place {
    /// GPUs that are as near as each rank, those that are nearer included.
    within: [Mask; RANKS],
    number: usize,
    is_own: bool,
}

impl Place {
    /// How far its devices are from the nearest GPU of a set.
    fn distance(&self, set: Mask) -> u32 {
        let levels = [SWITCH, NODE, PACKAGE].into_iter();
        levels.map(|rank| u32::from(self.within[rank] & set == 0)).sum()
    }
}

/// The places of a host's devices of a kind.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Place>,
    /// Devices that the guest has already.
    own: usize,
}

impl Places {
    /// `beside`: how near each candidate is to each GPU, a row for each GPU.
    pub(super) fn new(candidates: &[Candidate], beside: &[Vec<Beside>]) -> Places {
        let mut places: Vec<Place> = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            let mut within = [0; RANKS];
            for (gpu, row) in beside.iter().enumerate().take(MOST) {
                let rank = usize::try_from(row[at].rank()).unwrap_or(RANKS);
                within.iter_mut().skip(rank).for_each(|gpus| *gpus |= 1 << gpu);
            }
            let is_own = candidate.is_own;
            match places.iter_mut().find(|p| p.within == within && p.is_own == is_own) {
                Some(place) => place.number += 1,
                None => places.push(Place { within, number: 1, is_own }),
            }
        }
        let own = places.iter().filter(|place| place.is_own).map(|place| place.number).sum();
        Places { places, own }
    }

    /// How far the best `number` devices for a set are, of those up to `most` steps from a GPU of
    /// it (as [`Far::devices`] counts them) and those that the guest has.
    pub(super) fn far(&self, set: Mask, number: usize, most: u32) -> Far {
        let only_own = self.own > number;
        let is_there = |place: &&Place| place.is_own || (!only_own && place.distance(set) <= most);
        let there = self.places.iter().filter(is_there);
        let mut left: Vec<(&Place, usize)> = there.map(|place| (place, place.number)).collect();
        let mut open = [set; RANKS];
        let mut far = Far::default();
        let mut missing = number;
        if !only_own {
            for (place, number) in left.iter_mut().filter(|(place, _)| place.is_own) {
                cover(&mut open, place);
                far.devices += u32::try_from(*number).unwrap_or(u32::MAX) * place.distance(set);
                missing -= std::mem::take(number);
            }
        }
        left.retain(|(_, number)| *number > 0);
        let worst = (0..RANKS).find(|&rank| reaches(&left, open[rank], rank, missing));
        while missing > 0 {
            let gain = |place: &Place| {
                let gains = place.within.iter().zip(&open).map(|(gpus, open)| gpus & open);
                gains.map(|gpus: Mask| gpus.count_ones()).sum::<u32>()
            };
            let reached = |place: &Place| {
                worst.map_or(0, |worst| (place.within[worst] & open[worst]).count_ones())
            };
            let worth = |(place, _): &(&Place, usize)| {
                (reached(place), gain(place), FARTHEST - place.distance(set))
            };
            let best = (0..left.len()).max_by_key(|&at| worth(&left[at]));
            let Some(best) = best.filter(|&at| gain(left[at].0) > 0) else { break };
            cover(&mut open, left[best].0);
            far.devices += left[best].0.distance(set);
            missing -= 1;
            left[best].1 -= 1;
            if left[best].1 == 0 {
                left.swap_remove(best);
            }
        }
        // No GPU comes nearer to one by the others.
        for distance in 0..=FARTHEST {
            let these = left.iter().filter(|(place, _)| place.distance(set) == distance);
            let taken = these.map(|(_, number)| number).sum::<usize>().min(missing);
            far.devices += distance * u32::try_from(taken).unwrap_or(u32::MAX);
            missing -= taken;
        }
        far.gpus = open.iter().map(|gpus| gpus.count_ones()).sum();
        let farthest = open.iter().rposition(|gpus| *gpus != 0).map_or(0, |rank| rank + 1);
        far.worst = u32::try_from(farthest).unwrap_or(u32::MAX);
        far
    }
}

/// Takes from the GPUs without a device so near those that have one at a place.
fn cover(open: &mut [Mask; RANKS], place: &Place) {
    open.iter_mut().zip(&place.within).for_each(|(open, gpus)| *open &= !gpus);
}

/// Whether so many devices are enough for each of these GPUs to have one as near as a rank. What is
/// as near to one GPU is so to all that are as near to that one.
fn reaches(left: &[(&Place, usize)], open: Mask, rank: usize, number: usize) -> bool {
    let (mut open, mut taken) = (open, 0);
    while open != 0 && taken < number {
        let gpu = open & open.wrapping_neg();
        let Some((place, _)) = left.iter().find(|(place, _)| place.within[rank] & gpu != 0) else {
            return false;
        };
        open &= !place.within[rank];
        taken += 1;
    }
    open == 0
}
