//! Picks free cores of a node for a guest: the best set by L3 caches and by the blocks of other
//! GPUs. Exact: it finds the smallest key of all sets. Knows only places and caches.

/// The owner of a free core, the best to take first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// In the block of one of the guest's GPUs.
    Mine,
    /// In no free GPU's block.
    Nobody,
    /// In the block of another free GPU.
    Other,
}

/// A core that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) place: usize,
    /// Its L3 cache, as an index among the caches of the node.
    pub(super) cache: usize,
    pub(super) owner: Owner,
    pub(super) fixed: bool,
}

/// An L3 cache of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cache {
    /// Cores of the node below it.
    pub(super) cores: usize,
    /// Those of them that are free.
    pub(super) free: usize,
    /// Cores of other guests below it, on any node.
    pub(super) others: usize,
}

/// The cost of a set, field by field from the highest bits: caches it touches, those shared with
/// other guests, entirely free ones that it breaks (or cores of other guests below them, if guests
/// are spread), cores from the blocks of other free GPUs, cores outside its own GPUs' blocks, and
/// how far cores of other GPUs are from the end, since the last GPUs are given out last.
type Cost = u128;

/// Bits of [`Cost`] that a field starts at.
const CACHES: u32 = 112;
const SHARED: u32 = 96;
const BROKEN: u32 = 80;
const OTHERS: u32 = 64;
const OUTSIDE: u32 = 48;

struct CoreSearch<'a> {
    /// Free choices of each cache in the order of taking.
    by_cache: Vec<Vec<Choice>>,
    fixed: Vec<usize>,
    caches: &'a [Cache],
    /// Whether guests are to be spread.
    spread: bool,
    /// Number of cores of the node.
    places: usize,
}

/// Chooses `wanted` cores in addition to those already chosen; returns the places of all,
/// ascending, as the choices are. `None` if there are too few.
pub(super) fn pick(
    choices: &[Choice],
    caches: &[Cache],
    wanted: usize,
    spread: bool,
) -> Option<Vec<usize>> {
    let mut by_cache = vec![Vec::new(); caches.len()];
    let mut fixed = vec![0; caches.len()];
    for choice in choices {
        if choice.fixed {
            fixed[choice.cache] += 1;
        } else {
            by_cache[choice.cache].push(*choice);
        }
    }
    let left: usize = by_cache.iter().map(Vec::len).sum();
    if left <= wanted {
        let all = choices.iter().map(|choice| choice.place);
        return (left == wanted).then(|| all.collect());
    }
    let end = |choice: &Choice| match choice.owner {
        Owner::Other => usize::MAX - choice.place,
        _ => choice.place,
    };
    by_cache.iter_mut().for_each(|list| list.sort_by_key(|choice| (choice.owner, end(choice))));
    let places = choices.iter().map(|choice| choice.place + 1).max().unwrap_or(0);
    let search = CoreSearch { by_cache, fixed, caches, spread, places };
    let numbers = search.numbers(wanted)?;
    let chosen = choices.iter().filter(|choice| choice.fixed).map(|choice| choice.place);
    let lists = search.by_cache.iter().zip(numbers);
    let mut set: Vec<usize> = lists.flat_map(|(list, n)| &list[..n]).map(|c| c.place).collect();
    set.extend(chosen);
    set.sort_unstable();
    Some(set)
}

impl CoreSearch<'_> {
    /// Returns the cost of a cache for every number of its choices taken, from 0.
    fn costs(&self, cache: usize) -> impl Iterator<Item = Cost> + '_ {
        let mut cores: Cost = 0;
        let list = &self.by_cache[cache];
        (0..=list.len()).map(move |number| {
            if let Some(choice) = number.checked_sub(1).map(|last| &list[last]) {
                cores += match choice.owner {
                    Owner::Mine => 0,
                    Owner::Nobody => 1 << OUTSIDE,
                    Owner::Other => {
                        (1 << OTHERS) + (1 << OUTSIDE) + (self.places - choice.place) as Cost
                    }
                };
            }
            self.touched(cache, number + self.fixed[cache]) + cores
        })
    }

    /// Returns the cost of using this many cores of a cache.
    fn touched(&self, cache: usize, cores: usize) -> Cost {
        let Cache { cores: all, free, others } = self.caches[cache];
        if cores == 0 {
            return 0;
        }
        let broken = if self.spread { others } else { usize::from(free == all && cores < all) };
        (1 << CACHES) + (Cost::from(others > 0) << SHARED) + ((broken as Cost) << BROKEN)
    }

    /// Returns how many choices of each cache the best set takes. Dynamic programming from the last
    /// cache to the first: the least cost of taking a number from a cache and those after it is the
    /// minimum over the number from the cache itself.
    fn numbers(&self, wanted: usize) -> Option<Vec<usize>> {
        let caches = self.caches.len();
        let mut after = vec![0; caches + 1];
        for cache in (0..caches).rev() {
            after[cache] = after[cache + 1] + self.by_cache[cache].len();
        }
        if after[0] < wanted {
            return None;
        }
        let costs: Vec<Vec<Cost>> = (0..caches).map(|cache| self.costs(cache).collect()).collect();
        let mut least = vec![vec![Cost::MAX; wanted + 1]; caches + 1];
        least[caches][0] = 0;
        for cache in (0..caches).rev() {
            // At most the number in the caches from here on, at least the number that those before
            // cannot provide.
            let lowest = wanted.saturating_sub(after[0] - after[cache]);
            let (here, rest) = least.split_at_mut(cache + 1);
            for number in lowest..=wanted.min(after[cache]) {
                let from = number.saturating_sub(after[cache + 1]);
                let to = number.min(self.by_cache[cache].len());
                let ways =
                    (from..=to).map(|own| costs[cache][own].saturating_add(rest[0][number - own]));
                here[cache][number] = ways.min().unwrap_or(Cost::MAX);
            }
        }
        let mut open = wanted;
        let mut numbers = Vec::with_capacity(caches);
        for cache in 0..caches {
            // Of equal costs the set that takes most from the first caches has the lowest places.
            let most = open.min(self.by_cache[cache].len());
            let best = (0..=most).rev().find(|&own| {
                costs[cache][own].saturating_add(least[cache + 1][open - own]) == least[cache][open]
            })?;
            numbers.push(best);
            open -= best;
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The key of a set, written down directly.
    fn key(choices: &[Choice], caches: &[Cache], set: &[usize], spread: bool) -> Vec<usize> {
        let of = |place: &usize| choices.iter().find(|choice| choice.place == *place).unwrap();
        let on = |cache: usize| set.iter().filter(|place| of(place).cache == cache).count();
        let stood: Vec<usize> = (0..caches.len()).filter(|&cache| on(cache) > 0).collect();
        let number = |test: &dyn Fn(usize) -> bool| stood.iter().filter(|&&c| test(c)).count();
        let broken = number(&|c| caches[c].free == caches[c].cores && on(c) < caches[c].cores);
        let neighbours = stood.iter().map(|&c| caches[c].others).sum();
        let free: Vec<&Choice> = set.iter().map(of).filter(|choice| !choice.fixed).collect();
        let others: Vec<&&Choice> = free.iter().filter(|c| c.owner == Owner::Other).collect();
        let places = choices.iter().map(|choice| choice.place + 1).max().unwrap_or(0);
        vec![
            stood.len(),
            number(&|c| caches[c].others > 0),
            if spread { neighbours } else { broken },
            others.len(),
            free.iter().filter(|choice| choice.owner != Owner::Mine).count(),
            others.iter().map(|choice| places - choice.place).sum(),
        ]
    }

    /// Small nodes: up to 12 cores below up to 5 caches, some of them taken by others.
    fn node() -> impl Strategy<Value = (Vec<Choice>, Vec<Cache>)> {
        let owner = prop_oneof![Just(Owner::Mine), Just(Owner::Nobody), Just(Owner::Other)];
        // A core: whether it is another guest's, its owner, whether it is chosen, whether it begins
        // a cache.
        let core = (0..4u8, owner, 0..8u8, 0..3u8);
        proptest::collection::vec(core, 1..12).prop_map(|cores| {
            let (mut choices, mut caches) = (Vec::new(), vec![Cache::default()]);
            for (place, (taken, owner, fixed, begins)) in cores.into_iter().enumerate() {
                if begins == 0 && place > 0 {
                    caches.push(Cache::default());
                }
                let cache = caches.len() - 1;
                caches[cache].cores += 1;
                if taken == 0 {
                    caches[cache].others += 1;
                } else {
                    caches[cache].free += 1;
                    choices.push(Choice { place, cache, owner, fixed: fixed == 0 });
                }
            }
            (choices, caches)
        })
    }

    proptest! {
        #[test]
        fn no_set_is_better((choices, caches) in node(), wanted in 0..8usize, spread: bool) {
            let fixed = choices.iter().filter(|choice| choice.fixed).count();
            let mut best: Option<(Vec<usize>, Vec<usize>)> = None;
            for bits in 0..1u32 << choices.len() {
                let member = |at: &usize| bits >> at & 1 == 1;
                let set: Vec<usize> = (0..choices.len()).filter(member).collect();
                let whole = choices.iter().enumerate().all(|(at, c)| !c.fixed || member(&at));
                if set.len() != wanted + fixed || !whole {
                    continue;
                }
                let set: Vec<usize> = set.iter().map(|&at| choices[at].place).collect();
                let this = (key(&choices, &caches, &set, spread), set);
                best = Some(best.map_or(this.clone(), |best| best.min(this)));
            }
            let picked = pick(&choices, &caches, wanted, spread);
            prop_assert_eq!(picked.is_some(), best.is_some());
            let (Some(picked), Some((least, first))) = (picked, best) else { return Ok(()) };
            prop_assert_eq!(key(&choices, &caches, &picked, spread), least);
            if choices.iter().all(|choice| choice.owner != Owner::Other) {
                prop_assert_eq!(picked, first);
            }
        }
    }
}
