//! Which NVLink partition a guest gets: partition first, the GPUs follow from it. Knows nothing of PCIe distance.

use super::PlanError;
use super::devices::{Board, Wanted, in_the_way, sizes_hint};
use super::explain::{Reasons, count, list, numbers};
use crate::bdf::Bdf;
use crate::topology::PartitionId;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Is a set of GPUs with the NVSwitches that go with it.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// The partition; none for one GPU where the board lists no partitions of one.
    pub(super) id: Option<PartitionId>,
    /// Its GPUs.
    pub(super) gpus: Vec<Bdf>,
    /// Its NVSwitches.
    pub(super) switches: Vec<Bdf>,
}

/// Is a partition that may be chosen.
#[derive(Debug)]
struct Candidate<'a> {
    /// Its number.
    id: Option<PartitionId>,
    /// Its GPUs, by address.
    gpus: Vec<Bdf>,
    /// NVSwitches that a guest needs with it.
    switches: usize,
    /// NVSwitches to take them from.
    pool: &'a [Bdf],
    /// NVLinks of each GPU that work in it.
    nvlinks: u32,
}

/// Every partition of the board, and each GPU alone where the board lists no partition of it.
fn candidates<'a>(board: &Board<'a>) -> Vec<Candidate<'a>> {
    let partitions = board.topology.partitions().iter();
    let mut all: Vec<Candidate<'a>> = partitions
        .map(|partition| {
            let mut gpus = partition.gpus.clone();
            gpus.sort();
            let pool = &partition.nvswitch_pool[..];
            let switches = partition.nvswitches as usize;
            let nvlinks = partition.nvlinks_per_gpu;
            Candidate { id: Some(partition.id), gpus, switches, pool, nvlinks }
        })
        .collect();
    for &gpu in &board.gpus {
        if !all.iter().any(|candidate| candidate.gpus == [gpu]) {
            all.push(Candidate { id: None, gpus: vec![gpu], switches: 0, pool: &[], nvlinks: 0 });
        }
    }
    all
}

impl Candidate<'_> {
    /// NVSwitches of the pool that can be had.
    fn free_switches(&self, board: &Board<'_>) -> Vec<Bdf> {
        let free = |bdf: &Bdf| !board.blocked.contains_key(bdf);
        self.pool.iter().copied().filter(free).collect()
    }

    /// Whether all its GPUs and enough NVSwitches can be had.
    fn is_free(&self, board: &Board<'_>) -> bool {
        self.gpus.iter().all(|bdf| !board.blocked.contains_key(bdf))
            && (self.switches == 0 || self.free_switches(board).len() >= self.switches)
    }

    /// Its name in a sentence: `partition 5`, or the GPU.
    fn name(&self, board: &Board<'_>) -> String {
        self.id.map_or_else(|| board.label(&self.gpus), |id| format!("partition {id}"))
    }

    /// Why it cannot be had, one line.
    fn line(&self, board: &Board<'_>) -> String {
        let name = self.name(board);
        if let Some(domains) = in_the_way(board, &self.gpus) {
            return format!("{name} is held by {domains}");
        }
        let lines = board.lines(&self.gpus);
        if !lines.is_empty() {
            return format!("{name}: {}", lines.join("; "));
        }
        let free = self.free_switches(board).len();
        let holders: Vec<&str> = self.pool.iter().filter_map(|&b| board.taken.device(b)).collect();
        let held = match holders.is_empty() {
            true => String::new(),
            false => format!("; {} holds others", super::explain::domains(holders)),
        };
        format!(
            "{name} needs {}, {free} of {} can be had{held}",
            count(self.switches, "NVSwitch"),
            self.pool.len()
        )
    }
}

/// Chooses the partition of a wish, and its NVSwitches.
pub(super) fn choose(
    board: &Board<'_>,
    wanted: &Wanted,
    number: usize,
    reasons: &mut Reasons,
) -> Result<Set, PlanError> {
    let all = candidates(board);
    let sizes: BTreeSet<usize> = all.iter().map(|candidate| candidate.gpus.len()).collect();
    let of_size: Vec<&Candidate<'_>> = all.iter().filter(|c| c.gpus.len() == number).collect();
    if of_size.is_empty() {
        let what = format!("no partition of this board has {}", count(number, "GPU"));
        return Err(PlanError::Impossible { what, hint: sizes_hint(sizes) });
    }
    let chosen = match wanted {
        Wanted::Any(_) => any(board, &all, &of_size, number)?,
        Wanted::These(gpus) => these(board, &of_size, gpus)?,
    };
    explain(board, &all, chosen, reasons);
    let pool = chosen.free_switches(board);
    let switches: Vec<Bdf> = pool.into_iter().take(chosen.switches).collect();
    if !switches.is_empty() {
        let text = format!(
            "{}, the first free of the {} that serve these GPUs; {} of each GPU work in this \
             partition",
            list(&switches),
            chosen.pool.len(),
            count(chosen.nvlinks as usize, "NVLink"),
        );
        reasons.say("nvswitches", text);
    }
    Ok(Set { id: chosen.id, gpus: chosen.gpus.clone(), switches })
}

/// The free one that leaves the largest free partitions whole; of equal ones the one with the lowest GPU.
fn any<'c>(
    board: &Board<'_>,
    all: &[Candidate<'_>],
    of_size: &[&'c Candidate<'c>],
    number: usize,
) -> Result<&'c Candidate<'c>, PlanError> {
    let free = of_size.iter().copied().filter(|candidate| candidate.is_free(board));
    if let Some(best) = free.min_by_key(|c| (Reverse(left(board, all, c)), c.gpus.clone(), c.id)) {
        return Ok(best);
    }
    let smaller = all.iter().filter(|c| c.gpus.len() < number && c.is_free(board));
    let hint = match smaller.map(|c| c.gpus.len()).max() {
        Some(1) => "1 GPU would fit".into(),
        Some(size) => format!("{size} GPUs would fit"),
        None => "no GPU is free; `gpuvm list` shows what each domain holds".into(),
    };
    let lines = of_size.iter().map(|candidate| candidate.line(board)).collect();
    let what = match number {
        1 => "no GPU is free".to_owned(),
        _ => format!("no partition of {number} GPUs is free"),
    };
    let among: Vec<Bdf> = of_size.iter().flat_map(|candidate| candidate.gpus.clone()).collect();
    Err(board.refusal(what, lines, &among, hint))
}

/// The one with exactly these GPUs.
fn these<'c>(
    board: &Board<'_>,
    of_size: &[&'c Candidate<'c>],
    gpus: &[Bdf],
) -> Result<&'c Candidate<'c>, PlanError> {
    let Some(candidate) = of_size.iter().copied().find(|candidate| candidate.gpus == gpus) else {
        let what = format!("{} are no NVLink partition of this board", board.label(gpus));
        return Err(PlanError::Impossible { what, hint: legal(board, of_size, gpus.len()) });
    };
    if candidate.is_free(board) {
        return Ok(candidate);
    }
    let what = format!("{} cannot be had", board.label(gpus));
    let free = of_size.iter().filter(|candidate| candidate.is_free(board));
    let names: Vec<String> = free.map(|candidate| board.label(&candidate.gpus)).collect();
    let hint = match names.is_empty() {
        true => "`gpuvm list` shows what each domain holds".into(),
        false => format!("free now: {}", list(names)),
    };
    let lines = match board.lines(gpus) {
        lines if lines.is_empty() => vec![candidate.line(board)],
        lines => lines,
    };
    Err(board.refusal(what, lines, gpus, hint))
}

/// The hint that names what can be asked for: first indexes where partitions are runs, else the partitions.
fn legal(board: &Board<'_>, of_size: &[&Candidate<'_>], number: usize) -> String {
    let index = |bdf: &Bdf| board.gpus.iter().position(|gpu| gpu == bdf);
    let run = |candidate: &&Candidate<'_>| {
        let first = index(candidate.gpus.first()?)?;
        (board.gpus.get(first..first + number)? == candidate.gpus).then_some(first)
    };
    let runs: Vec<Option<usize>> = of_size.iter().map(run).collect();
    if runs.iter().all(Option::is_some) {
        return format!(
            "legal indexes for {}: {}",
            count(number, "GPU"),
            numbers(runs.into_iter().flatten())
        );
    }
    let names = of_size
        .iter()
        .map(|c| format!("{} ({})", numbers(c.gpus.iter().filter_map(index)), c.name(board)));
    format!("legal sets of {number} GPUs: {}", list(names))
}

/// Sizes of the partitions that stay free without these GPUs, the largest first.
fn left(board: &Board<'_>, all: &[Candidate<'_>], without: &Candidate<'_>) -> Vec<usize> {
    let apart = |c: &&Candidate<'_>| !c.gpus.iter().any(|bdf| without.gpus.contains(bdf));
    let mut sizes: Vec<usize> =
        all.iter().filter(apart).filter(|c| c.is_free(board)).map(|c| c.gpus.len()).collect();
    sizes.sort_by_key(|&size| Reverse(size));
    sizes
}

/// Adds why the partition was chosen.
fn explain(
    board: &Board<'_>,
    all: &[Candidate<'_>],
    chosen: &Candidate<'_>,
    reasons: &mut Reasons,
) {
    let left = match left(board, all, chosen).first() {
        None => "no GPU stays free".to_owned(),
        Some(size) => format!("the largest set that stays free has {}", count(*size, "GPU")),
    };
    let label = board.label(&chosen.gpus);
    let text = match chosen.id {
        Some(id) if chosen.gpus.len() == 1 => format!("{label} is partition {id}; {left}"),
        Some(id) => format!("{label} are partition {id}; {left}"),
        None => format!("{label}; {left}"),
    };
    reasons.say("gpus", text);
}
