//! Estimates the cost of a choice to later guests. Guests of 1, 2, 4, 8 and 16 GPUs are expected in
//! the shares of [`CLASSES`].
//!
//! Where the partitions of a board halve it, the halves and so on down to single GPUs (DGX-2, A100,
//! H100, B200), the best that an online policy can do is known exactly: [`table`] holds the value
//! of every state up to symmetry (gpuvm-placement(7), METRICS). Unavailable GPUs count as busy. The
//! gain of the table's 4.7 KB on a DGX-2 at the load of 0.9 that it is made for: the rule below for
//! other boards, which is best fit there, takes a worse set for 7.7 % of the guests, and accepts
//! 38.2 % of those of 8 GPUs instead of 40.1 %, the optimum (at 0.6: 60.0 and 60.9 %; at 1.2: 23.0
//! and 25.4 %). Looking a cost up takes no longer than computing it. Everywhere else the cost is
//! the expected number of free GPUs that are useless to the next guest: free, but in no slot where
//! a guest of its size fits (FGD, stranded GPUs there). Slots are the partitions of that size; on
//! hosts without partitions as many as fit among the GPUs below the smallest PCIe switch, node or
//! host that holds that many.

pub(super) mod table;

use super::slots::{Mask, Slots, bits, first, size};

/// Expected guests: GPUs, and the share of the guests in percent.
pub(super) const CLASSES: [(usize, u32); 5] = [(1, 40), (2, 25), (4, 20), (8, 10), (16, 5)];

/// The owner of a leaf that is free.
const FREE: u8 = 0;
/// The owner of the set being judged.
const CANDIDATE: u8 = 1;
/// The first number of existing owners.
const OTHERS: u8 = 2;

/// One slot of a board with partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) gpus: Mask,
    /// NVSwitches of which it gets some.
    pub(super) pool: Mask,
    /// How many NVSwitches it gets.
    pub(super) needs: u32,
}

/// How a choice's cost to later guests is judged.
#[derive(Debug)]
pub(super) enum Future {
    /// By the value of the remaining state.
    Tree {
        /// GPUs in the order of the tree's leaves.
        leaves: Vec<usize>,
        /// Who holds each leaf now; a GPU unavailable for another reason has its own owner.
        owners: Vec<u8>,
        /// Cost of each state.
        costs: &'static [u16],
    },
    /// By slots that later guests could have, of each class.
    Slots {
        /// Free GPUs.
        free: Mask,
        /// Free NVSwitches.
        switches: Mask,
        /// Slots by class.
        classes: [Vec<Slot>; 5],
    },
    /// By free GPUs below switches, on nodes and on the host, of each class.
    Room {
        /// Free GPUs.
        free: Mask,
        /// For each class, sets of GPUs within which a guest of the class fits.
        classes: [Vec<Mask>; 5],
    },
}

impl Future {
    /// Chooses how to judge a host; `offered` are its partitions available on the empty host, and
    /// each GPU alone.
    pub(super) fn new(slots: &Slots<'_>, offered: &[Slot]) -> Future {
        let all = first(slots.gpus.bdfs.len());
        if !slots.topology.is_partitioned() {
            let classes = CLASSES.map(|(number, _)| rooms(slots, all, number));
            return Future::Room { free: slots.gpus.free, classes };
        }
        // With an NVSwitch permanently lost, partitions that the tree considers free may lack it.
        let whole = slots.switches.free | slots.switches.held == first(slots.switches.bdfs.len());
        if whole
            && let Some(costs) = table::costs(size(all))
            && let Some(leaves) = halves(all, offered)
        {
            let owners = owners(slots, &leaves);
            return Future::Tree { leaves, owners, costs };
        }
        let of = |number: usize| {
            offered.iter().filter(|slot| size(slot.gpus) == number).copied().collect()
        };
        let classes = CLASSES.map(|(number, _)| of(number));
        Future::Slots { free: slots.gpus.free, switches: slots.switches.free, classes }
    }

    /// Returns the cost once these GPUs and NVSwitches are taken, too. Only costs of one host
    /// compare with each other.
    pub(super) fn after(&self, set: Mask, taken: Mask) -> u32 {
        match self {
            Future::Tree { leaves, owners, costs } => {
                let owner = |(&gpu, &owner): (&usize, &u8)| {
                    if set >> gpu & 1 == 1 { CANDIDATE } else { owner }
                };
                let mut now = [FREE; 16];
                for (place, pair) in now.iter_mut().zip(leaves.iter().zip(owners)) {
                    *place = owner(pair);
                }
                let state = state(&now[..leaves.len()]);
                costs.get(state).map_or(0, |&cost| cost.into())
            }
            Future::Slots { free, switches, classes } => {
                let (free, switches) = (free & !set, switches & !taken);
                stranded(free, |class| {
                    let fits = |slot: &&Slot| {
                        slot.gpus & !free == 0
                            && (slot.needs == 0
                                || (slot.pool & switches).count_ones() >= slot.needs)
                    };
                    let fitting = classes[class].iter().filter(fits);
                    size(fitting.fold(0, |union, slot| union | slot.gpus))
                })
            }
            Future::Room { free, classes } => {
                let free = free & !set;
                stranded(free, |class| {
                    let number = CLASSES[class].0;
                    let fit = |room: &Mask| size(room & free) / number * number;
                    classes[class].iter().map(fit).sum()
                })
            }
        }
    }

    /// Returns the unit of [`Future::after`]: the number that means one GPU.
    pub(super) fn unit(&self) -> u32 {
        match self {
            Future::Tree { .. } => table::UNIT,
            Future::Slots { .. } | Future::Room { .. } => 100,
        }
    }
}

/// Expected GPUs, times 100, that are free but useless to the next guest; `usable` returns how many
/// a class can use.
fn stranded(free: Mask, usable: impl Fn(usize) -> usize) -> u32 {
    let lost = |(class, (_, share)): (usize, &(usize, u32))| {
        share * u32::try_from(size(free).saturating_sub(usable(class))).unwrap_or(u32::MAX)
    };
    CLASSES.iter().enumerate().map(lost).sum()
}

/// Sets of GPUs within which guests of `number` go together: every GPU is in the set of the
/// smallest switch, node or host around it that holds that many.
fn rooms(slots: &Slots<'_>, all: Mask, number: usize) -> Vec<Mask> {
    let mut rest = all;
    let mut rooms = Vec::new();
    for level in [&slots.units.switches[..], &slots.units.nodes, &[all]] {
        let mut found = 0;
        for unit in level.iter().filter(|&&unit| size(unit) >= number) {
            if unit & rest != 0 {
                rooms.push(unit & rest);
                found |= unit;
            }
        }
        rest &= !found;
    }
    rooms
}

/// Returns the order of GPUs in which the partitions are exactly the aligned runs of repeated
/// halving; none if there is no such order.
fn halves(all: Mask, offered: &[Slot]) -> Option<Vec<usize>> {
    let mut sets: Vec<Mask> = offered.iter().map(|slot| slot.gpus).collect();
    sets.sort_unstable();
    sets.dedup();
    let mut leaves = Vec::new();
    let whole = sets.len() == 2 * size(all) - 1 && sets.binary_search(&all).is_ok();
    (whole && split(all, &sets, &mut leaves)).then_some(leaves)
}

/// Adds the GPUs of a block in order; false if no two offered halves form it.
fn split(block: Mask, sets: &[Mask], leaves: &mut Vec<usize>) -> bool {
    if size(block) == 1 {
        leaves.extend(bits(block));
        return true;
    }
    let lowest = block & block.wrapping_neg();
    let half = sets
        .iter()
        .copied()
        .find(|&set| set & !block == 0 && set & lowest != 0 && size(set) * 2 == size(block));
    half.is_some_and(|half| {
        let other = block & !half;
        sets.binary_search(&other).is_ok()
            && split(half, sets, leaves)
            && split(other, sets, leaves)
    })
}

fn owners(slots: &Slots<'_>, leaves: &[usize]) -> Vec<u8> {
    let mut names: Vec<Option<&str>> = Vec::new();
    let mut owner = |&gpu: &usize| {
        let Some(block) = &slots.gpus.blocked[gpu] else { return FREE };
        let known = names.iter().position(|name| name.is_some() && *name == block.domain);
        let at = known.unwrap_or_else(|| {
            names.push(block.domain);
            names.len() - 1
        });
        // At most 16 leaves, so at most 16 owners.
        OTHERS.saturating_add(u8::try_from(at).unwrap_or(u8::MAX))
    };
    leaves.iter().map(&mut owner).collect()
}

/// Returns the number of states of a block of this many GPUs up to symmetry: 2, 4, 11, 67, 2279 for
/// 1, 2, 4, 8, 16.
pub(super) const fn states(gpus: usize) -> usize {
    match gpus {
        0 | 1 => 2,
        _ => {
            let half = states(gpus / 2);
            half * (half + 1) / 2 + 1
        }
    }
}

/// Returns the number of a block's state. One GPU: 0 is free, 1 is held. More: the unordered pairs
/// of its halves' states in order, then, last, one guest holding the whole block.
fn state(owners: &[u8]) -> usize {
    let (left, right) = match owners {
        [] | [FREE] => return 0,
        [_] => return 1,
        _ => owners.split_at(owners.len() / 2),
    };
    if owners[0] != FREE && owners.iter().all(|owner| *owner == owners[0]) {
        return states(owners.len()) - 1;
    }
    let (a, b) = (state(left), state(right));
    let (low, high) = (a.min(b), a.max(b));
    high * (high + 1) / 2 + low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_up_to_symmetry() {
        assert_eq!([1, 2, 4, 8, 16].map(states), [2, 4, 11, 67, 2279]);
        assert_eq!(state(&[0; 16]), 0);
        assert_eq!(state(&[5; 16]), 2278);
        assert_eq!(state(&[0, 0, 7, 0]), state(&[0, 9, 0, 0]));
        assert_ne!(state(&[2, 2]), state(&[2, 3]), "one guest of two is not two guests of one");
        assert!(state(&[2, 2, 3, 3, 0, 0, 0, 4]) < 67);
    }

    #[test]
    fn only_boards_that_halve_are_trees() {
        let plain = |sets: &[Mask]| -> Vec<Slot> {
            sets.iter().map(|&gpus| Slot { gpus, pool: 0, needs: 0 }).collect()
        };
        let crossed = plain(&[0b1111, 0b0101, 0b1010, 1, 2, 4, 8]);
        assert_eq!(halves(0b1111, &crossed), Some(vec![0, 2, 1, 3]));
        for sets in [
            &[0b1111, 0b0011, 0b1100, 0b0110, 1, 2, 4, 8][..],
            &[0b1111, 0b0011, 1, 2, 4, 8],
            &[0b0011, 0b1100, 1, 2, 4, 8],
            &[0b1111, 1, 2, 4, 8],
        ] {
            assert_eq!(halves(0b1111, &plain(sets)), None, "{sets:?}");
        }
    }

    #[test]
    fn gpus_that_no_slot_takes_are_stranded() {
        let slot = |gpus, pool, needs| Slot { gpus, pool, needs };
        let mut classes: [Vec<Slot>; 5] = Default::default();
        classes[0] = (0..4).map(|gpu| slot(1 << gpu, 0, 0)).collect();
        classes[1] = vec![slot(0b0011, 0b11, 2)];
        let future = Future::Slots { free: 0b1111, switches: 0b11, classes };
        for (set, taken, free, usable) in [
            (0, 0, 0b1111, [4, 2, 0, 0, 0]),
            (0b0001, 0, 0b1110, [3, 0, 0, 0, 0]),
            (0b1000, 0, 0b0111, [3, 2, 0, 0, 0]),
            (0, 0b01, 0b1111, [4, 0, 0, 0, 0]),
        ] {
            let wanted = stranded(free, |class| usable[class]);
            assert_eq!(future.after(set, taken), wanted, "{set:b} {taken:b}");
        }
    }

    #[test]
    fn guests_go_together_below_the_smallest_unit_that_holds_them() {
        use crate::placement::affinity::Homes;
        use crate::placement::taken::Taken;
        let host = crate::placement::tests::dgx2();
        let held = crate::placement::Occupancy::default();
        let (homes, taken) = (Homes::new(&host, 0), Taken::new(&host, &held));
        let slots = Slots::new(&host, &homes, &taken);
        let all = first(16);
        assert_eq!(rooms(&slots, all, 16), [all]);
        assert_eq!(rooms(&slots, all, 8), slots.units.nodes);
        assert_eq!(rooms(&slots, all, 2), slots.units.switches);
    }
}
