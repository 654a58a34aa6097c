//! Explains why a set of GPUs was chosen: the alternatives, its cost, compromises. Chooses nothing.

use super::explain::Reasons;
use super::reason::{Criterion, GpuReason, LostBy, Scatter, Topic, Unit};
use super::score::{Key, Ranking, Scorer};
use super::slots::{Mask, Slots, bits, size, touched};

/// Adds the alternatives to the chosen set, and why the next best lost.
pub(super) fn explain(scorer: &Scorer<'_>, ranking: &Ranking, reasons: &mut Reasons) {
    let (Some(best), Some(second)) = (&ranking.best, &ranking.second) else { return };
    let next = scorer.slots.label(second.set());
    let by = lost(best, second, scorer.future.unit());
    let (sets, compared) = (ranking.seen, ranking.compared);
    reasons.say(Topic::Gpus, GpuReason::BestOf { sets, compared, next, by });
}

/// Returns why the second lost to the best: the first field that differs.
fn lost(best: &Key, second: &Key, unit: u32) -> LostBy {
    let fields = [
        (best.remote, second.remote, Criterion::Remote),
        (best.nodes, second.nodes, Criterion::Nodes),
        (best.packages_first, second.packages_first, Criterion::Packages),
        (best.far.worst, second.far.worst, Criterion::Farthest),
        (best.far.gpus, second.far.gpus, Criterion::Far),
        (best.far.devices, second.far.devices, Criterion::Off),
        (best.packages, second.packages, Criterion::Packages),
        (best.roots, second.roots, Criterion::Roots),
        (best.switches, second.switches, Criterion::Switches),
        (best.models, second.models, Criterion::Models),
        (best.short, second.short, Criterion::Short),
        (best.neighbours, second.neighbours, Criterion::Neighbours),
    ];
    if best.nvlink != second.nvlink {
        let (next, best) = (second.nvlink.unsigned_abs(), best.nvlink.unsigned_abs());
        return LostBy::Nvlinks { next, best };
    }
    for (best, next, of) in fields {
        if best != next {
            return LostBy::More { of, next, best };
        }
    }
    if best.future != second.future {
        return LostBy::Future { next: second.future, best: best.future, unit };
    }
    if best.cut != second.cut {
        return LostBy::Cut { next: second.cut, best: best.cut };
    }
    if best.strain != second.strain {
        return LostBy::Strain { next: second.strain, best: best.strain };
    }
    LostBy::Order
}

/// Adds which entirely free unit of the tree a set breaks: the smallest one.
pub(super) fn broken_units(slots: &Slots<'_>, set: Mask, reasons: &mut Reasons) {
    let units = &slots.units;
    let free = slots.gpus.free;
    let levels =
        [(&units.switches, Unit::Switch), (&units.roots, Unit::Root), (&units.nodes, Unit::Node)];
    for (level, unit) in levels {
        let broken = level.iter().find(|&&u| u & !free == 0 && u & set != 0 && u & !set != 0);
        if let Some(broken) = broken {
            let gpus = size(*broken);
            return reasons.say(Topic::Gpus, GpuReason::BreaksUnit { unit, gpus });
        }
    }
}

/// The fewest nodes and PCIe switches on which a guest's GPUs could be.
#[derive(Clone, Copy)]
pub(super) struct LeastUnits {
    pub(super) nodes: u32,
    pub(super) switches: u32,
}

/// Returns the needs of this many GPUs on the empty host.
pub(super) fn least_units(slots: &Slots<'_>, number: usize) -> LeastUnits {
    let least = |units: &[Mask]| {
        let mut sizes: Vec<usize> = units.iter().map(|&unit| size(unit)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = 0;
        let enough = sizes.iter().take_while(|&&size| {
            let short = room < number;
            room += size;
            short
        });
        u32::try_from(enough.count()).unwrap_or(u32::MAX)
    };
    LeastUnits { nodes: least(&slots.units.nodes), switches: least(&slots.units.switches) }
}

/// Returns available GPUs in as few of these units as possible, by how many each has.
pub(super) fn gathered(slots: &Slots<'_>, units: &[Mask], number: usize) -> Option<Mask> {
    let mut parts: Vec<Mask> = units.iter().map(|unit| unit & slots.gpus.takeable()).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(size(*part)));
    let all = parts.into_iter().flat_map(bits).take(number);
    let set = all.fold(0, |set: Mask, gpu| set | 1 << gpu);
    (size(set) == number).then_some(set)
}

/// Available GPUs in as few of some units as possible, with the NVSwitches that go along.
type Gathered<'g> = dyn Fn(&[Mask]) -> Option<(Mask, Mask)> + 'g;

/// Adds a reason if a set is on more nodes or PCIe switches than necessary.
pub(super) fn scattered(
    scorer: &Scorer<'_>,
    best: &Key,
    fewest: LeastUnits,
    gathered: &Gathered<'_>,
    reasons: &mut Reasons,
) {
    let (set, units) = (best.set(), &scorer.slots.units);
    for (level, least, unit) in
        [(&units.nodes, fewest.nodes, Unit::Node), (&units.switches, fewest.switches, Unit::Switch)]
    {
        let on = touched(level, set);
        if on > least {
            let other = gathered(level).filter(|(other, _)| touched(level, *other) < on);
            let why = match other {
                None => Scatter::Taken { least },
                Some((other, switches)) => {
                    let (least, gpus) = (touched(level, other), scorer.slots.label(other));
                    match scorer.key(other, switches) {
                        None => Scatter::Short { least, gpus },
                        Some(key) => {
                            let by = lost(best, &key, scorer.future.unit());
                            Scatter::Lost { least, gpus, by }
                        }
                    }
                }
            };
            return reasons.compromise(Topic::Gpus, GpuReason::Scattered { unit, on, why });
        }
    }
}
