//! Assigns devices to GPUs: the cheapest choice of a given number of pairs. Knows only costs,
//! neither GPUs nor NICs.
//!
//! It is a bipartite matching of least cost, found by successive shortest paths (R. K. Ahuja, T. L.
//! Magnanti, J. B. Orlin: Network Flows, 9.7): each step adds one pair and may move others, and the
//! result is the cheapest matching of that many pairs.

pub(super) const PARTS: usize = 3;

/// A cost in parts that are compared one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost(pub(super) [i32; PARTS]);

impl Cost {
    pub(super) fn plus(mut self, other: Cost) -> Cost {
        self.0.iter_mut().zip(other.0).for_each(|(part, other)| *part += other);
        self
    }

    fn minus(mut self, other: Cost) -> Cost {
        self.0.iter_mut().zip(other.0).for_each(|(part, other)| *part -= other);
        self
    }
}

/// The predecessor of a seat on the cheapest path to it.
#[derive(Debug, Clone, Copy)]
enum From {
    /// A device that has no seat yet.
    Device(usize),
    /// The device of this seat.
    Seat(usize),
}

/// Pairs `number` devices with a seat each, at the least sum of costs; fewer if seats or devices do
/// not suffice. `costs` has a row for each seat with a column for each device. The result is
/// ordered by seat.
pub(super) fn cheapest(costs: &[Vec<Cost>], number: usize) -> Vec<(usize, usize)> {
    let mut device_of: Vec<Option<usize>> = vec![None; costs.len()];
    let mut is_used = vec![false; costs.first().map_or(0, Vec::len)];
    for _ in 0..number {
        let Some((mut seat, from)) = shortest(costs, &device_of, &is_used) else { break };
        let device = loop {
            match from[seat] {
                From::Seat(before) => {
                    device_of[seat] = device_of[before];
                    seat = before;
                }
                From::Device(device) => break device,
            }
        };
        device_of[seat] = Some(device);
        is_used[device] = true;
    }
    let pairs = device_of.iter().enumerate();
    pairs.filter_map(|(seat, device)| Some((seat, (*device)?))).collect()
}

/// Finds the empty seat that one more device reaches at the least cost, moving others on, and the
/// predecessor of each seat; none if seats or devices are used up. Bellman-Ford, since moving a
/// device can reduce the cost.
fn shortest(
    costs: &[Vec<Cost>],
    device_of: &[Option<usize>],
    is_used: &[bool],
) -> Option<(usize, Vec<From>)> {
    let mut paths: Vec<(Cost, From)> = Vec::with_capacity(costs.len());
    for row in costs {
        let unused = row.iter().enumerate().filter(|(device, _)| !is_used[*device]);
        let (device, cost) = unused.min_by_key(|(_, cost)| **cost)?;
        paths.push((*cost, From::Device(device)));
    }
    let mut changed = true;
    while changed {
        changed = false;
        for (seat, device) in device_of.iter().enumerate() {
            let Some(device) = *device else { continue };
            let without = paths[seat].0.minus(costs[seat][device]);
            for (other, path) in paths.iter_mut().enumerate() {
                let cost = without.plus(costs[other][device]);
                if cost < path.0 {
                    *path = (cost, From::Seat(seat));
                    changed = true;
                }
            }
        }
    }
    let empty = (0..costs.len()).filter(|&seat| device_of[seat].is_none());
    let seat = empty.min_by_key(|&seat| paths[seat].0)?;
    Some((seat, paths.into_iter().map(|(_, from)| from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least sum of costs of this many pairs, by trying all.
    fn exhaustive(costs: &[Vec<Cost>], number: usize, used: &mut Vec<usize>) -> Option<Cost> {
        if number == 0 {
            return Some(Cost::default());
        }
        let (row, rest) = costs.split_first()?;
        let mut best = exhaustive(rest, number, used);
        for (device, cost) in row.iter().enumerate() {
            if !used.contains(&device) {
                used.push(device);
                let with = exhaustive(rest, number - 1, used).map(|sum| sum.plus(*cost));
                used.pop();
                best = [best, with].into_iter().flatten().min();
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_choice_of_pairs_is_cheaper(
            rows in proptest::collection::vec(proptest::collection::vec((0..3i32, 0..4i32), 5), 1..6),
            devices in 0..6usize,
            number in 0..6usize,
        ) {
            let cost = |(first, second): &(i32, i32)| {
                let mut parts = [0; PARTS];
                (parts[0], parts[PARTS - 1]) = (*first, *second);
                Cost(parts)
            };
            let row = |row: &Vec<(i32, i32)>| row.iter().take(devices).map(cost).collect();
            let costs: Vec<Vec<Cost>> = rows.iter().map(row).collect();
            let number = number.min(costs.len()).min(costs[0].len());
            let pairs = cheapest(&costs, number);
            prop_assert_eq!(pairs.len(), number);
            let devices: std::collections::BTreeSet<usize> = pairs.iter().map(|p| p.1).collect();
            prop_assert_eq!(devices.len(), number, "a device twice");
            let sum = pairs.iter().fold(Cost::default(), |sum, p| sum.plus(costs[p.0][p.1]));
            prop_assert_eq!(Some(sum), exhaustive(&costs, number, &mut Vec::new()));
        }
    }

    #[test]
    fn absent_guests_are_not_paired() {
        assert_eq!(cheapest(&[], 3), []);
        assert_eq!(cheapest(&[vec![], vec![]], 3), []);
        assert_eq!(cheapest(&[vec![Cost::default(); 2]], 3), [(0, 0)]);
    }
}
