//! Why a set of GPUs was chosen before the others, in words: what it was compared with, what it costs, what is a
//! compromise. Chooses nothing.

use super::explain::{Reasons, count};
use super::reason::Topic;
use super::score::{Key, Ranking, Scorer};
use super::slots::{Mask, Slots, size, touched};

/// Adds what the chosen set was compared with, and why the next best lost.
pub(super) fn explain(scorer: &Scorer<'_>, ranking: &Ranking, reasons: &mut Reasons) {
    let (Some(best), Some(second)) = (&ranking.best, &ranking.second) else { return };
    let next = scorer.slots.label(second.set());
    let why = lost(best, second, scorer.future.unit());
    reasons
        .say(Topic::Gpus, format!("best of {} free sets; the next, {next}, {why}", ranking.seen));
}

/// Why the second lost against the best: the first field that differs.
fn lost(best: &Key, second: &Key, unit: u32) -> String {
    let fields = [
        (best.remote, second.remote, "core off the GPUs' node"),
        (best.nodes, second.nodes, "node"),
        (best.packages_first, second.packages_first, "package"),
        (best.far, second.far, "step to NICs and drives"),
        (best.packages, second.packages, "package"),
        (best.roots, second.roots, "root complex"),
        (best.switches, second.switches, "PCIe switch"),
        (best.models, second.models, "GPU model"),
        (best.neighbours, second.neighbours, "GPU of other guests beside it"),
    ];
    let has = |number: u32, noun: &str| count(number, noun);
    if best.nvlink != second.nvlink {
        let links = |key: &Key| count(key.nvlink.unsigned_abs() as usize, "NVLink");
        return format!("has {} inside instead of {}", links(second), links(best));
    }
    for (of_best, of_second, noun) in fields {
        if of_best != of_second {
            return format!("has {} instead of {of_best}", has(of_second, noun));
        }
    }
    let gpus = |cost: u32| format!("{:.2}", f64::from(cost) / f64::from(unit));
    if best.future != second.future {
        let (worse, cost) = (gpus(second.future), gpus(best.future));
        return format!("costs later guests {worse} GPUs instead of {cost}");
    }
    if best.cut != second.cut {
        return format!("cuts {} instead of {}", count(second.cut as usize, "NVLink"), best.cut);
    }
    if best.strain != second.strain {
        let cores = count(second.strain as usize, "core");
        return format!("takes {cores} of free GPUs' shares instead of {}", best.strain);
    }
    "is as good but has higher indexes".into()
}

/// Says which wholly free unit of the tree a set breaks: the smallest one.
pub(super) fn broken_units(slots: &Slots<'_>, set: Mask, reasons: &mut Reasons) {
    let units = &slots.units;
    let free = slots.gpus.free;
    for (level, name) in
        [(&units.switches, "PCIe switch"), (&units.roots, "root complex"), (&units.nodes, "node")]
    {
        let broken = level.iter().find(|&&u| u & !free == 0 && u & set != 0 && u & !set != 0);
        if let Some(unit) = broken {
            let gpus = count(size(*unit), "GPU");
            let text = format!("costs later guests: breaks a {name} of {gpus} that was all free");
            return reasons.say(Topic::Gpus, text);
        }
    }
}

/// The fewest nodes and PCIe switches that so many GPUs can stand on, on the empty host.
pub(super) fn least_units(slots: &Slots<'_>, number: usize) -> (u32, u32) {
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
    (least(&slots.units.nodes), least(&slots.units.switches))
}

/// Says where a set stands on more nodes or PCIe switches than it has to.
pub(super) fn scattered(
    slots: &Slots<'_>,
    set: Mask,
    (nodes, switches): (u32, u32),
    reasons: &mut Reasons,
) {
    let units = &slots.units;
    for (level, least, name) in
        [(&units.nodes, nodes, "node"), (&units.switches, switches, "PCIe switch")]
    {
        let on = touched(level, set);
        if on > least {
            let number = count(on as usize, name);
            let text =
                format!("its GPUs are spread over {number}; {least} would do were they free");
            return reasons.compromise(Topic::Gpus, text);
        }
    }
}
