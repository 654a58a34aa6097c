//! Chooses a guest's NVLink partition first; its GPUs follow. The scorer decides which one is
//! better.

use super::chosen::{Set, WantedGpus};
use super::explain::{NOTHING_LEFT, Reasons, count, domains, list, numbers};
use super::future::{Future, Slot};
use super::reason::{AfterSplit, GpuReason, Topic};
use super::score::{Judges, Ranking, Scorer};
use super::slots::{Mask, Slots, bits, size};
use super::types::PlanError;
use super::{compare, search};
use crate::bdf::Bdf;
use crate::request::Request;
use crate::topology::{FabricModel, PartitionId};
use std::collections::BTreeSet;

/// A partition that may be chosen.
#[derive(Debug)]
struct Candidate {
    /// Its number; none for a GPU beside the board.
    id: Option<PartitionId>,
    gpus: Mask,
    /// NVSwitches that a guest needs with it.
    needs: u32,
    pool: Mask,
    /// Working NVLinks of each GPU in it.
    nvlinks: u32,
}

/// Every partition of the board, and each GPU beside the board alone.
fn candidates(slots: &Slots<'_>) -> Vec<Candidate> {
    let partitions = slots.topology.partitions().iter();
    let ruled = slots.topology.ruled().filter_map(|gpu| slots.gpus.index(gpu));
    let ruled = ruled.fold(0, |set, gpu| set | 1 << gpu);
    let alone = super::slots::first(slots.gpus.bdfs.len()) & !ruled;
    let mut all: Vec<Candidate> = Vec::with_capacity(64);
    let shared = slots.topology.fabric().model == FabricModel::SharedNvswitch;
    all.extend(partitions.filter_map(|partition| {
        let gpus = slots.gpus.mask(&partition.gpus)?;
        let index = |&bdf| slots.switches.index(bdf);
        let pool = partition.nvswitch_pool.iter().filter_map(index).fold(0, |set, i| set | 1 << i);
        let (mut needs, nvlinks) = (partition.nvswitches, partition.nvlinks_per_gpu);
        let mut pool = pool;
        if shared && size(gpus) > 1 {
            // Only Fabric Manager knows which partitions use which switch: an unusable switch may
            // affect any of them.
            pool = super::slots::first(slots.switches.bdfs.len());
            needs = size(pool).try_into().unwrap_or(u32::MAX);
        }
        Some(Candidate { id: Some(partition.id), gpus, needs, pool, nvlinks })
    }));
    let single = |gpu: usize| Candidate { id: None, gpus: 1 << gpu, needs: 0, pool: 0, nvlinks: 0 };
    all.extend(bits(alone).map(single));
    all
}

impl Candidate {
    /// Returns the NVSwitches that would go along: the first available ones of the pool; fewer than
    /// needed if too many are missing.
    fn switches(&self, slots: &Slots<'_>) -> Mask {
        let free = bits(self.pool & slots.switches.free).take(self.needs as usize);
        free.fold(0, |set, switch| set | 1 << switch)
    }

    /// Whether all its GPUs and enough NVSwitches are available.
    fn is_free(&self, slots: &Slots<'_>) -> bool {
        self.gpus & !slots.gpus.free == 0
            && (self.needs == 0 || (self.pool & slots.switches.free).count_ones() >= self.needs)
    }

    /// Whether Fabric Manager would activate it now, as far as is known.
    fn is_ready(&self, slots: &Slots<'_>) -> bool {
        self.id.is_none_or(|id| slots.readiness.obstacle(id.0).is_none())
    }

    /// Its name in a sentence: `partition 5`, or the GPU.
    fn name(&self, slots: &Slots<'_>) -> String {
        self.id.map_or_else(|| slots.label(self.gpus).to_string(), |id| format!("partition {id}"))
    }

    /// Returns why it is unavailable, in one line.
    fn line(&self, slots: &Slots<'_>) -> String {
        let name = self.name(slots);
        if let Some(domains) = slots.in_the_way(self.gpus) {
            return format!("{name} is held by {domains}");
        }
        let lines = slots.lines(self.gpus);
        if !lines.is_empty() {
            return format!("{name}: {}", lines.join("; "));
        }
        let blocked = &slots.switches.blocked;
        let holders: Vec<&str> =
            bits(self.pool).filter_map(|switch| blocked[switch]?.domain).collect();
        let mut held = if holders.is_empty() {
            String::new()
        } else {
            format!("; {} holds others", domains(holders))
        };
        for switch in bits(self.pool) {
            if let Some(block) = blocked[switch].as_ref().filter(|block| block.domain.is_none()) {
                held += &format!("; {} {}", slots.switches.bdfs[switch], block.why(1));
            }
        }
        format!(
            "{name} needs {}, {} of {} available{held}",
            count(self.needs as usize, "NVSwitch"),
            size(self.pool & slots.switches.free),
            size(self.pool)
        )
    }
}

struct Choice<'a> {
    slots: &'a Slots<'a>,
    all: &'a [Candidate],
    request: &'a Request,
}

/// Chooses the set of GPUs for a request, and its NVSwitches.
pub(super) fn choose(
    slots: &Slots<'_>,
    wanted: WantedGpus,
    judges: &Judges<'_>,
    request: &Request,
    reasons: &mut Reasons,
) -> Result<Set, PlanError> {
    let all = candidates(slots);
    let choice = Choice { slots, all: &all, request };
    match wanted {
        WantedGpus::Any(number) => choice.any(number, judges, reasons),
        WantedGpus::These(gpus) => choice.these(gpus, reasons),
    }
}

/// Offers the sets of a request to a ranking.
pub(super) fn rank(
    slots: &Slots<'_>,
    wanted: WantedGpus,
    judges: &Judges<'_>,
    request: &Request,
    ranking: &mut Ranking,
) {
    let all = candidates(slots);
    let choice = Choice { slots, all: &all, request };
    let future = choice.future();
    let scorer = Scorer::new(slots, &future, judges, request);
    match wanted {
        WantedGpus::Any(number) => choice.rank(number, &scorer, ranking),
        WantedGpus::These(gpus) => {
            let exact = choice.of_size(size(gpus)).find(|candidate| candidate.gpus == gpus);
            let switches = exact.map_or(0, |candidate| candidate.switches(slots));
            ranking.offer(&scorer, gpus, switches, exact.is_none());
        }
    }
}

impl<'a> Choice<'a> {
    /// The cost of a choice to later guests.
    fn future(&self) -> Future {
        let slot = |c: &Candidate| Slot { gpus: c.gpus, pool: c.pool, needs: c.needs };
        let offered: Vec<Slot> = self.all.iter().map(slot).collect();
        Future::new(self.slots, &offered)
    }

    /// Offers the free partitions of this many GPUs; other sets if these are allowed and no
    /// partition is feasible.
    fn rank(&self, number: usize, scorer: &Scorer<'_>, ranking: &mut Ranking) {
        let slots = self.slots;
        let free = self.of_size(number).filter(|candidate| candidate.is_free(slots));
        let mut offered: Vec<&Candidate> = free.clone().filter(|one| one.is_ready(slots)).collect();
        if offered.is_empty() {
            // The plan names the necessary preparation.
            offered = free.collect();
        }
        for candidate in offered {
            ranking.offer(scorer, candidate.gpus, candidate.switches(slots), false);
        }
        if ranking.has_none() && self.may_split() {
            search::offer(scorer, ranking, number, true);
        }
    }

    fn of_size(&self, number: usize) -> impl Iterator<Item = &'a Candidate> + Clone {
        let meant = self.slots.gpus.meant;
        let fits = move |gpus: Mask| size(gpus) == number && gpus & !meant == 0;
        self.all.iter().filter(move |candidate| fits(candidate.gpus))
    }

    /// Whether sets that form no partition are allowed and work: as single GPUs without NVSwitches.
    /// In the shared model Fabric Manager activates exact sets only; transfers of others are
    /// corrupted (gpuvm-hardware(7), SHARED NVSWITCH).
    fn may_split(&self) -> bool {
        self.request.allow.split
            && self.slots.topology.fabric().model == FabricModel::FullPassthrough
    }

    /// Chooses the best set of this many GPUs.
    fn any(
        &self,
        number: usize,
        judges: &Judges<'_>,
        reasons: &mut Reasons,
    ) -> Result<Set, PlanError> {
        let slots = self.slots;
        let of_size = self.of_size(number);
        let any_size = of_size.clone().next().is_some();
        if !any_size && !self.may_split() {
            return Err(self.no_such_size(number));
        }
        let future = self.future();
        let scorer = Scorer::new(slots, &future, judges, self.request);
        let mut ranking = Ranking::default();
        self.rank(number, &scorer, &mut ranking);
        let Some(key) = ranking.winner() else {
            return Err(self.none_free(number));
        };
        let set = key.set();
        let free = of_size.clone().find(|c| c.gpus == set && c.is_free(slots));
        let Some(candidate) = free.filter(|_| key.nvlink == 0) else {
            self.explain_split(set, reasons);
            compare::explain(&scorer, &ranking, reasons);
            return Ok(Set { id: None, gpus: set, switches: 0 });
        };
        self.explain(candidate, reasons);
        compare::explain(&scorer, &ranking, reasons);
        self.broken(candidate, reasons);
        let fewest = |units: &[Mask]| {
            of_size.clone().map(|c| super::slots::touched(units, c.gpus)).min().unwrap_or(0)
        };
        let (nodes, switches) = (fewest(&slots.units.nodes), fewest(&slots.units.switches));
        let least = compare::LeastUnits { nodes, switches };
        let gathered = |units: &[Mask]| {
            let free = of_size.clone().filter(|c| c.is_free(slots));
            let best = free.min_by_key(|c| super::slots::touched(units, c.gpus))?;
            Some((best.gpus, best.switches(slots)))
        };
        compare::scattered(&scorer, &key, least, &gathered, reasons);
        Ok(self.taken(candidate, reasons))
    }

    /// Returns the set with exactly these GPUs.
    fn these(&self, gpus: Mask, reasons: &mut Reasons) -> Result<Set, PlanError> {
        let slots = self.slots;
        let number = size(gpus);
        let of_size = self.of_size(number);
        let Some(candidate) = of_size.clone().find(|candidate| candidate.gpus == gpus) else {
            if of_size.clone().next().is_none() && !self.may_split() {
                return Err(self.no_such_size(number));
            }
            if !self.may_split() {
                return Err(self.no_partition(gpus));
            }
            if gpus & !slots.gpus.free != 0 {
                let what = format!("cannot use {}", slots.label(gpus));
                let hint = slots.with_group(gpus, 1).unwrap_or_else(|| NOTHING_LEFT.into());
                return Err(slots.refusal(what, slots.lines(gpus), gpus, hint));
            }
            self.explain_split(gpus, reasons);
            return Ok(Set { id: None, gpus, switches: 0 });
        };
        if candidate.is_free(slots) {
            self.explain(candidate, reasons);
            return Ok(self.taken(candidate, reasons));
        }
        let what = format!("cannot use {}", slots.label(gpus));
        let names: Vec<String> =
            of_size.filter(|c| c.is_free(slots)).map(|c| slots.label(c.gpus).to_string()).collect();
        let hint = match slots.with_group(gpus, 1) {
            Some(whole) => whole,
            None if names.is_empty() => NOTHING_LEFT.into(),
            None => format!("free now: {}", list(names)),
        };
        let lines = match slots.lines(gpus) {
            lines if lines.is_empty() => vec![candidate.line(slots)],
            lines => lines,
        };
        Err(slots.refusal(what, lines, gpus, hint))
    }

    /// Takes a partition with its NVSwitches.
    fn taken(&self, candidate: &Candidate, reasons: &mut Reasons) -> Set {
        let switches = candidate.switches(self.slots);
        if switches != 0 {
            let why = GpuReason::Switches {
                switches: self.slots.switches.of(switches),
                pool: size(candidate.pool),
                nvlinks: candidate.nvlinks,
            };
            reasons.say(Topic::Nvswitches, why);
        }
        Set { id: candidate.id, gpus: candidate.gpus, switches }
    }

    /// Makes the error that no partition has this many GPUs.
    fn no_such_size(&self, number: usize) -> PlanError {
        let sizes: BTreeSet<usize> = self.all.iter().map(|c| size(c.gpus)).collect();
        let all: Vec<Bdf> = self.slots.topology.ruled().collect();
        let unknown = self.slots.topology.without_module(&all);
        let mut what = format!("no partition of this board has {}", count(number, "GPU"));
        if unknown > 0 && number < all.len() {
            let modules = if unknown == 1 { "module id" } else { "module ids" };
            let of = count(unknown, "GPU");
            what += &format!(": the {modules} of {of} are unknown, by which partitions are made");
        }
        let mut hints = Vec::new();
        if !sizes.is_empty() {
            hints.push(format!("sizes on this board: {}", numbers(sizes)));
        }
        if unknown > 0 {
            hints.push(self.slots.topology.how_modules());
        }
        if hints.is_empty() {
            hints.push("`gpuvm host show` shows what is missing".into());
        }
        PlanError::Impossible { what, hint: hints.join("; ") }
    }

    /// Makes the error that these GPUs form no partition.
    fn no_partition(&self, gpus: Mask) -> PlanError {
        let why = if self.request.allow.split {
            ": Fabric Manager opens exact sets only, and transfers in any other set are corrupt"
        } else {
            ""
        };
        let label = self.slots.label(gpus);
        let what = format!("{label} do not form an NVLink partition of this board{why}");
        PlanError::Impossible { what, hint: self.legal(size(gpus)) }
    }

    /// Makes the error that no partition of this many GPUs is free.
    fn none_free(&self, number: usize) -> PlanError {
        let slots = self.slots;
        // How many fit is found by planning.
        let among = self.of_size(number).fold(0, |set, candidate| set | candidate.gpus);
        // Those that are free need no test.
        let lack = number.saturating_sub(size(slots.gpus.takeable() & among)).max(1);
        let hint = slots.with_group(among, number).or_else(|| slots.with_test(among, lack));
        let hint = match (hint, size(slots.gpus.free)) {
            (Some(whole), _) => whole,
            (None, 0) => format!("no GPU is free; {NOTHING_LEFT}"),
            (None, _) => NOTHING_LEFT.into(),
        };
        let lines = self.of_size(number).map(|candidate| candidate.line(slots)).collect();
        let what = match number {
            1 => "no GPU is free".to_owned(),
            _ => format!("no partition of {} is free", count(number, "GPU")),
        };
        slots.refusal(what, lines, among, hint)
    }

    /// Returns the hint with the possible requests: first indexes if partitions are consecutive,
    /// otherwise the partitions.
    fn legal(&self, number: usize) -> String {
        let run = |candidate: &Candidate| {
            let first = candidate.gpus.trailing_zeros() as usize;
            (candidate.gpus == super::slots::first(number) << first).then_some(first)
        };
        let runs: Vec<Option<usize>> = self.of_size(number).map(run).collect();
        if runs.iter().all(Option::is_some) {
            return format!(
                "legal indexes for {}: {}",
                count(number, "GPU"),
                numbers(runs.into_iter().flatten())
            );
        }
        let name = |c: &Candidate| format!("{} ({})", numbers(bits(c.gpus)), c.name(self.slots));
        format!("legal sets of {}: {}", count(number, "GPU"), list(self.of_size(number).map(name)))
    }

    /// The largest partition that stays free without these GPUs and these NVSwitches.
    fn left(&self, without: &Candidate) -> Option<&'a Candidate> {
        let slots = self.slots;
        let switches = slots.switches.free & !without.switches(slots);
        let free = self.all.iter().filter(|c| {
            c.gpus & without.gpus == 0
                && c.gpus & !slots.gpus.free == 0
                && (c.needs == 0 || (c.pool & switches).count_ones() >= c.needs)
        });
        free.reduce(|best, next| if size(next.gpus) > size(best.gpus) { next } else { best })
    }

    /// Adds the chosen partition, and those that stay free.
    fn explain(&self, chosen: &Candidate, reasons: &mut Reasons) {
        let left = self.left(chosen).map(|largest| size(largest.gpus));
        let (gpus, id) = (self.slots.label(chosen.gpus), chosen.id);
        reasons.say(Topic::Gpus, GpuReason::Partition { gpus, id, left });
    }

    /// Adds which larger free partition a choice breaks, and whether one of that size stays.
    fn broken(&self, chosen: &Candidate, reasons: &mut Reasons) {
        let larger = self.all.iter().filter(|c| {
            size(c.gpus) > size(chosen.gpus) && c.gpus & chosen.gpus != 0 && c.is_free(self.slots)
        });
        let Some(broken) = larger.max_by_key(|c| size(c.gpus)) else { return };
        let gpus = size(broken.gpus);
        let after = match self.left(chosen) {
            Some(left) if size(left.gpus) >= gpus => AfterSplit::Same(left.name(self.slots)),
            Some(left) => AfterSplit::Smaller(size(left.gpus)),
            None => AfterSplit::Nothing,
        };
        let name = broken.name(self.slots);
        reasons.say(Topic::Gpus, GpuReason::Breaks { name, gpus, after });
    }

    /// Adds that a set is not a partition, why, and its cost.
    fn explain_split(&self, set: Mask, reasons: &mut Reasons) {
        let number = size(set);
        let mut blocked = self.of_size(number).filter(|c| !c.is_free(self.slots));
        let why = match (blocked.next(), self.of_size(number).next()) {
            (Some(first), _) => first.line(self.slots),
            (None, None) => format!("the board has no partition of {number}"),
            (None, Some(_)) => format!("no free partition of {number} has the cores and devices"),
        };
        let gpus = self.slots.label(set);
        reasons.compromise(Topic::Gpus, GpuReason::NoPartition { gpus, why });
    }
}
