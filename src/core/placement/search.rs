//! Generates the sets of GPUs to try on hosts where any set is allowed. Indistinguishable GPUs are
//! taken by lowest index, and IOMMU groups as a whole; if that leaves few sets, all are tried,
//! otherwise those that fill the units of the tree best, and those that grow along NVLinks. The
//! scorer decides which one is better.

use super::reason::Compared;
use super::score::{Ranking, Scorer};
use super::slots::{MOST, Mask, Slots, bits, first, size};
use std::collections::HashSet;

/// Above this number, not all sets are tried.
const MAX_SETS: usize = 4096;

/// Equivalent bundles of GPUs; a bundle is taken as a whole.
#[derive(Debug)]
struct Kind {
    size: usize,
    bundles: Vec<Mask>,
}

/// Offers sets of `number` GPUs to a ranking; with `split` they are not partitions of a board that
/// has partitions.
pub(super) fn offer(scorer: &Scorer<'_>, ranking: &mut Ranking, number: usize, split: bool) {
    let bundles = bundles(scorer.slots);
    let free = bundles.iter().fold(0, |set, bundle| set | bundle);
    if number == 0 || number > size(free) {
        return;
    }
    let wants_near = scorer.judges.extras.is_wanted();
    let fine = kinds(scorer, &bundles, wants_near);
    let are_all = sets(&fine, number) <= MAX_SETS;
    let kinds = if are_all { fine } else { kinds(scorer, &bundles, false) };
    let are_few = are_all || sets(&kinds, number) <= MAX_SETS;
    ranking.compared = match kinds.iter().any(|kind| kind.bundles.len() > 1) {
        _ if !are_all => Compared::Some,
        true => Compared::Different,
        false => Compared::All,
    };
    if are_all {
        every(&kinds, number, 0, &mut |set| ranking.offer(scorer, set, 0, split));
        return;
    }
    let mut tried = HashSet::new();
    let mut offer = |set: Mask| {
        if tried.insert(set) {
            ranking.offer(scorer, set, 0, split);
        }
    };
    if are_few {
        every(&kinds, number, 0, &mut offer);
    }
    let filler = Filler { slots: scorer.slots, bundles: &bundles };
    filler.fill_all(free, number, &mut offer);
    let models = &scorer.slots.units.models;
    for model in models.iter().map(|model| model & free).filter(|&model| size(model) >= number) {
        if models.len() > 1 {
            filler.fill_all(model, number, &mut offer);
        }
    }
    if scorer.links.is_some() {
        for seed in &bundles {
            if let Some(set) = grow(scorer, &bundles, *seed, number) {
                offer(set);
            }
        }
    }
    if wants_near {
        improve(scorer, ranking, &bundles, split, &mut tried);
    }
}

/// Offers sets that differ from the best in one GPU or bundle, until none of them is better: those
/// that fill the tree best need not have the nearest NICs.
fn improve(
    scorer: &Scorer<'_>,
    ranking: &mut Ranking,
    bundles: &[Mask],
    split: bool,
    tried: &mut HashSet<Mask>,
) {
    while let Some(best) = ranking.best {
        let set = best.set();
        let (inside, outside): (Vec<Mask>, Vec<Mask>) =
            bundles.iter().partition(|bundle| **bundle & set != 0);
        for &from in &inside {
            for &to in outside.iter().filter(|to| size(**to) == size(from)) {
                let other = set & !from | to;
                if tried.insert(other) {
                    ranking.offer(scorer, other, 0, split);
                }
            }
        }
        if ranking.best.is_none_or(|now| now.set() == set) {
            return;
        }
    }
}

/// Free GPUs in bundles that the IOMMU keeps together; bundles with an unavailable GPU are left
/// out.
fn bundles(slots: &Slots<'_>) -> Vec<Mask> {
    let free = slots.gpus.takeable();
    let lowest = |&gpu: &usize| slots.together[gpu].trailing_zeros() as usize == gpu;
    let whole = |bundle: &Mask| bundle & !free == 0;
    bits(free).filter(lowest).map(|gpu| slots.together[gpu]).filter(whole).collect()
}

/// Sorts bundles by kind. Two GPUs of a model are equivalent below the same switch, root complex
/// and node if neither has NVLinks that differ from those of others, and if all wanted NICs and
/// drives are as near to one as to the other, if that counts.
fn kinds(scorer: &Scorer<'_>, bundles: &[Mask], by_nearness: bool) -> Vec<Kind> {
    let units = &scorer.slots.units;
    let of = |units: &[Mask], bundle: Mask| units.iter().position(|unit| unit & bundle == bundle);
    let linked = |bundle: Mask| {
        let links = scorer.links.as_ref();
        links.is_some_and(|links| bits(bundle).any(|gpu| links.any(gpu)))
    };
    let mut found: Vec<(Option<[Option<usize>; 4]>, Kind)> = Vec::new();
    for &bundle in bundles {
        let switch = match bundle & units.switched {
            0 => None,
            _ => of(&units.switches, bundle),
        };
        let model = of(&units.models, bundle);
        let place = [switch, of(&units.roots, bundle), of(&units.nodes, bundle), model];
        let place = (size(bundle) == 1 && !linked(bundle)).then_some(place);
        let is_alike = |kind: &Kind| {
            let one = |bundle: Mask| bundle.trailing_zeros() as usize;
            !by_nearness || scorer.judges.extras.are_alike(one(bundle), one(kind.bundles[0]))
        };
        let is_same = |(other, kind): &&mut (Option<[Option<usize>; 4]>, Kind)| {
            place.is_some() && *other == place && is_alike(kind)
        };
        match found.iter_mut().find(is_same) {
            Some((_, kind)) => kind.bundles.push(bundle),
            None => found.push((place, Kind { size: size(bundle), bundles: vec![bundle] })),
        }
    }
    found.into_iter().map(|(_, kind)| kind).collect()
}

/// How many sets of `number` GPUs differ; stops counting above [`MAX_SETS`].
fn sets(kinds: &[Kind], number: usize) -> usize {
    let mut ways = vec![0usize; number + 1];
    ways[0] = 1;
    for kind in kinds {
        for sum in (0..=number).rev() {
            let more = (1..=kind.bundles.len()).map_while(|n| sum.checked_sub(n * kind.size));
            let more: usize = more.map(|rest| ways[rest]).fold(0, usize::saturating_add);
            ways[sum] = ways[sum].saturating_add(more).min(MAX_SETS + 1);
        }
    }
    ways[number]
}

/// Offers every set that takes the lowest bundles of each kind.
fn every(kinds: &[Kind], missing: usize, set: Mask, offer: &mut impl FnMut(Mask)) {
    let Some((kind, rest)) = kinds.split_first() else {
        if missing == 0 {
            offer(set);
        }
        return;
    };
    let left: usize = rest.iter().map(|kind| kind.size * kind.bundles.len()).sum();
    let mut set = set;
    for taken in 0..=kind.bundles.len() {
        let Some(missing) = missing.checked_sub(taken * kind.size) else { break };
        if taken > 0 {
            set |= kind.bundles[taken - 1];
        }
        if missing <= left {
            every(rest, missing, set, offer);
        }
    }
}

/// Fills the units of the tree.
struct Filler<'a> {
    slots: &'a Slots<'a>,
    bundles: &'a [Mask],
}

impl Filler<'_> {
    /// The levels of the tree from the top.
    fn levels(&self) -> [&[Mask]; 4] {
        let units = &self.slots.units;
        [&units.packages, &units.nodes, &units.roots, &units.switches]
    }

    /// Offers for each unit with enough GPUs, the host included, the best-filling set, and one
    /// starting from each unit below it.
    fn fill_all(&self, free: Mask, number: usize, offer: &mut impl FnMut(Mask)) {
        let levels = self.levels();
        let host = [first(self.slots.gpus.bdfs.len())];
        for level in 0..=levels.len() {
            let units = if level == 0 { &host[..] } else { levels[level - 1] };
            for unit in units.iter().map(|unit| unit & free).filter(|&unit| size(unit) >= number) {
                let mut with = |set: Option<Mask>| set.into_iter().for_each(&mut *offer);
                with(self.fill(unit, level, number));
                for child in levels[level..].iter().flat_map(|below| below.iter()) {
                    let seed = child & unit;
                    if seed == 0 || seed == unit {
                        continue;
                    }
                    let part = size(seed).min(number);
                    let start = self.fill(seed, level, part);
                    let rest =
                        |start: Mask| Some(start | self.fill(unit & !start, level, number - part)?);
                    with(start.and_then(rest));
                }
            }
        }
    }

    /// Takes `number` GPUs of these: from the unit that fits best, otherwise the largest as a whole
    /// and the rest likewise.
    fn fill(&self, from: Mask, level: usize, number: usize) -> Option<Mask> {
        if number == 0 {
            return Some(0);
        }
        let Some(units) = self.levels().get(level).copied() else {
            return self.take(from, number);
        };
        let (mut from, mut missing, mut set) = (from, number, 0);
        while missing > 0 {
            let parts = units.iter().map(|unit| unit & from).filter(|&part| part != 0);
            // The smallest that holds all; of equal ones, and among the largest, the first.
            let fitting = parts.clone().filter(|&part| size(part) >= missing);
            let part = match fitting.min_by_key(|&part| size(part)) {
                Some(part) => part,
                None => parts.min_by_key(|&part| MOST - size(part))?,
            };
            let taken = size(part).min(missing);
            set |= self.fill(part, level + 1, taken)?;
            missing -= taken;
            from &= !part;
        }
        Some(set)
    }

    /// Takes the lowest bundles that fit; none if they do not add up.
    fn take(&self, from: Mask, number: usize) -> Option<Mask> {
        let mut set = 0;
        for &bundle in self.bundles.iter().filter(|&&bundle| bundle & from == bundle) {
            if size(set | bundle) <= number {
                set |= bundle;
            }
        }
        (size(set) == number).then_some(set)
    }
}

/// Grows a set along NVLinks from a bundle; among equal steps the nearest.
fn grow(scorer: &Scorer<'_>, bundles: &[Mask], seed: Mask, number: usize) -> Option<Mask> {
    let units = &scorer.slots.units;
    let near = |set: Mask, bundle: Mask| {
        let levels = [&units.switches, &units.roots, &units.nodes, &units.packages];
        levels.map(|level| level.iter().any(|unit| unit & set != 0 && unit & bundle != 0))
    };
    let mut set = seed;
    while size(set) < number {
        let fitting = bundles
            .iter()
            .copied()
            .filter(|bundle| bundle & set == 0 && size(*bundle) + size(set) <= number);
        let worth = |bundle: Mask| {
            let links = scorer.links.as_ref();
            let links = links.map_or(0, |l| bits(bundle).map(|gpu| l.to(gpu, set)).sum::<u64>());
            (links, near(set, bundle))
        };
        set |= fitting.reduce(|best, next| if worth(next) > worth(best) { next } else { best })?;
    }
    (size(set) == number).then_some(set)
}
