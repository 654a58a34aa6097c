//! Which GPUs and NVSwitches a guest gets. Knows nothing of pcpus and memory.

use super::budget::Budget;
use super::connect;
use super::explain::{Reasons, count, domains, list, numbers};
use super::extras::{self, Extras};
use super::groups::{self, Block};
use super::partitions::{self, Set};
use super::taken::Taken;
use super::{PlanError, isolation};
use crate::bdf::Bdf;
use crate::request::{GpuWish, Request};
use crate::topology::{PartitionId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Is what a guest gets passed through.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// NVLink partition.
    pub(super) partition: Option<PartitionId>,
    /// GPUs, by address.
    pub(super) gpus: Vec<Bdf>,
    /// NVSwitches, by address.
    pub(super) switches: Vec<Bdf>,
    /// NICs, virtual functions and NVMe drives.
    pub(super) extras: Extras,
    /// Functions that have to come along, by address.
    pub(super) companions: Vec<Bdf>,
}

impl Devices {
    /// All of them in guest order.
    pub(super) fn all(&self) -> Vec<Bdf> {
        [self.asked(), self.companions.clone()].concat()
    }

    /// All but those that come along, in guest order.
    fn asked(&self) -> Vec<Bdf> {
        let Extras { nics, vfs, nvmes } = &self.extras;
        [&self.gpus[..], &self.switches, nics, vfs, nvmes].concat()
    }
}

/// Is the state of a host's GPUs that the choice is made on.
pub(super) struct Board<'a> {
    /// The host.
    pub(super) topology: &'a Topology,
    /// What is taken.
    pub(super) taken: &'a Taken<'a>,
    /// GPUs by index.
    pub(super) gpus: Vec<Bdf>,
    /// GPUs and NVSwitches that cannot be had, with the reason.
    pub(super) blocked: BTreeMap<Bdf, Block<'a>>,
}

impl<'a> Board<'a> {
    /// Looks at every GPU, and at every NVSwitch that a partition may take.
    pub(super) fn new(topology: &'a Topology, taken: &'a Taken<'a>) -> Board<'a> {
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        let block = |&bdf: &Bdf| Some((bdf, groups::block(topology, taken, bdf)?));
        let pools = topology.partitions().iter().flat_map(|partition| &partition.nvswitch_pool);
        let switches: BTreeSet<Bdf> = pools.copied().collect();
        let blocked = gpus.iter().chain(&switches).filter_map(block).collect();
        Board { topology, taken, gpus, blocked }
    }

    /// GPUs that can be had, by address.
    pub(super) fn free(&self) -> Vec<Bdf> {
        self.gpus.iter().copied().filter(|bdf| !self.blocked.contains_key(bdf)).collect()
    }

    /// GPUs by their indexes: `GPU 3 (0000:39:00.0)`, `GPUs 0 to 3`, `GPUs 0, 5 and 7`.
    pub(super) fn label(&self, gpus: &[Bdf]) -> String {
        let index = |bdf: &Bdf| self.gpus.iter().position(|gpu| gpu == bdf);
        let indexes: Vec<usize> = gpus.iter().filter_map(index).collect();
        match indexes[..] {
            [only] => format!("GPU {only} ({})", gpus[0]),
            [first, .., last]
                if indexes.len() > 2 && last.checked_sub(first) == Some(indexes.len() - 1) =>
            {
                format!("GPUs {first} to {last}")
            }
            _ => format!("GPUs {}", list(&indexes)),
        }
    }

    /// Why GPUs among these cannot be had, one line for each reason.
    pub(super) fn lines(&self, among: &[Bdf]) -> Vec<String> {
        let mut by_reason: Vec<(&Block<'_>, Vec<Bdf>)> = Vec::new();
        for bdf in among {
            let Some(block) = self.blocked.get(bdf) else { continue };
            match by_reason.iter_mut().find(|(other, _)| *other == block) {
                Some((_, gpus)) => gpus.push(*bdf),
                None => by_reason.push((block, vec![*bdf])),
            }
        }
        let line = |(block, gpus): (&Block<'_>, Vec<Bdf>)| {
            format!("{} {}", self.label(&gpus), block.why(gpus.len()))
        };
        by_reason.into_iter().map(line).collect()
    }

    /// Makes the error that these GPUs cannot be had: for good where no domain is in the way, else for now.
    pub(super) fn refusal(
        &self,
        what: String,
        lines: Vec<String>,
        among: &[Bdf],
        hint: String,
    ) -> PlanError {
        let blocks: Vec<&Block<'_>> =
            among.iter().filter_map(|bdf| self.blocked.get(bdf)).collect();
        if blocks.is_empty() || blocks.iter().any(|block| block.domain.is_some()) {
            return PlanError::Taken { what, holders: lines, hint };
        }
        PlanError::Impossible { what: format!("{what}: {}", lines.join("; ")), hint }
    }
}

/// Is what candidate sets are judged by besides their GPUs.
pub(super) struct Judges<'a> {
    /// Cores and memory.
    pub(super) budget: &'a Budget,
    /// NICs and NVMe drives.
    pub(super) extras: &'a extras::Search,
}

/// Chooses the devices of a request.
pub(super) fn choose(
    topology: &Topology,
    taken: &Taken<'_>,
    judges: &Judges<'_>,
    request: &Request,
    reasons: &mut Reasons,
) -> Result<Devices, PlanError> {
    let board = Board::new(topology, taken);
    let wanted = wanted(&board, &request.gpus)?;
    let number = match &wanted {
        Wanted::Any(number) => *number,
        Wanted::These(gpus) => gpus.len(),
    };
    if number == 0 {
        let extras = judges.extras.choose(&[], reasons)?;
        return Ok(Devices { extras, ..Devices::default() });
    }
    let set = if topology.partitions().is_empty() {
        unpartitioned(&board, &wanted, number, reasons)?
    } else {
        partitions::choose(&board, &wanted, number, reasons)?
    };
    let mut devices =
        Devices { partition: set.id, gpus: set.gpus, switches: set.switches, ..Devices::default() };
    devices.gpus.sort();
    devices.switches.sort();
    devices.extras = judges.extras.choose(&devices.gpus, reasons)?;
    let chosen = devices.asked();
    if let Some((bdf, group, other)) = groups::stranger(topology, &chosen) {
        return Err(PlanError::Impossible {
            what: format!("{bdf} shares IOMMU group {group} with {other}, which is not in the set"),
            hint: "ask for both, or for a number of GPUs and leave the choice to the planner"
                .into(),
        });
    }
    devices.companions = groups::companions(topology, taken, &chosen);
    explain(&board, &devices, reasons);
    isolation::explain(topology, taken, &devices, reasons);
    Ok(devices)
}

/// Is what is wanted of this host.
pub(super) enum Wanted {
    /// So many.
    Any(usize),
    /// These, by address.
    These(Vec<Bdf>),
}

/// Looks the wish up on the host.
fn wanted(board: &Board<'_>, wish: &GpuWish) -> Result<Wanted, PlanError> {
    let there = board.gpus.len();
    let impossible = |what: String| {
        let hint = match there {
            0 => "leave --gpus out for a guest without GPUs; `gpuvm host show` shows the devices"
                .into(),
            _ => format!("indexes run from 0 to {}; `gpuvm host show` shows the GPUs", there - 1),
        };
        Err(PlanError::Impossible { what, hint })
    };
    match wish {
        GpuWish::Count(number) => Ok(Wanted::Any(*number as usize)),
        GpuWish::Run { first, count: number } => {
            let (first, number) = (*first as usize, *number as usize);
            let end = first.saturating_add(number);
            match board.gpus.get(first..end) {
                Some(gpus) if number > 0 => Ok(Wanted::These(gpus.to_vec())),
                _ => impossible(format!(
                    "{} from index {first} on: this host has {there}",
                    count(number, "GPU")
                )),
            }
        }
        GpuWish::Indexes(indexes) => {
            let gpu = |index: &u32| board.gpus.get(*index as usize).copied();
            match indexes.iter().find(|index| gpu(index).is_none()) {
                Some(index) => {
                    impossible(format!("no GPU has index {index}: this host has {there}"))
                }
                None => {
                    let mut gpus: Vec<Bdf> = indexes.iter().filter_map(gpu).collect();
                    gpus.sort();
                    Ok(Wanted::These(gpus))
                }
            }
        }
        GpuWish::Exact(bdfs) => match bdfs.iter().find(|bdf| !board.gpus.contains(bdf)) {
            Some(bdf) => impossible(format!("{bdf} is no GPU of this host")),
            None => {
                let mut gpus = bdfs.clone();
                gpus.sort();
                Ok(Wanted::These(gpus))
            }
        },
    }
}

/// Chooses GPUs where any set may form a guest.
fn unpartitioned(
    board: &Board<'_>,
    wanted: &Wanted,
    number: usize,
    reasons: &mut Reasons,
) -> Result<Set, PlanError> {
    let topology = board.topology;
    let gpus = match wanted {
        Wanted::These(gpus) => {
            if gpus.iter().any(|bdf| board.blocked.contains_key(bdf)) {
                let what = format!("{} cannot be had", board.label(gpus));
                let hint = fits(board.free().len());
                return Err(board.refusal(what, board.lines(gpus), gpus, hint));
            }
            reasons.say("gpus", format!("{} as asked for", board.label(gpus)));
            gpus.clone()
        }
        Wanted::Any(_) => {
            let free = board.free();
            if number > board.gpus.len() {
                let what =
                    format!("{number} GPUs are asked for, this host has {}", board.gpus.len());
                return Err(PlanError::Impossible { what, hint: fits(free.len()) });
            }
            let allowed = |set: &[Bdf]| groups::stranger(topology, set).is_none();
            let Some(gpus) = connect::best(topology, &free, number, &allowed) else {
                let what = format!(
                    "{} of {} can be had, {number} are asked for",
                    free.len(),
                    count(board.gpus.len(), "GPU")
                );
                return Err(board.refusal(
                    what,
                    board.lines(&board.gpus),
                    &board.gpus,
                    fits(free.len()),
                ));
            };
            let place = match number {
                1 => "the first that is free".to_owned(),
                _ => format!("all {}", connect::farthest(topology, &gpus).place()),
            };
            reasons.say("gpus", format!("{}, {place}", board.label(&gpus)));
            gpus
        }
    };
    let pairs =
        gpus.iter().enumerate().flat_map(|(at, &a)| gpus[..at].iter().map(move |&b| (a, b)));
    let links: u64 = pairs.map(|(a, b)| connect::links(topology, a, b)).sum();
    if links > 0 {
        reasons.say("gpus", format!("{links} NVLinks between them"));
    }
    Ok(Set { id: None, gpus, switches: Vec::new() })
}

/// The hint that so many GPUs would fit.
fn fits(free: usize) -> String {
    match free {
        0 => "no GPU is free; `gpuvm list` shows what each domain holds".into(),
        1 => "1 GPU would fit".into(),
        free => format!("{free} GPUs would fit"),
    }
}

/// Adds the reasons that hold for every set: companions, drivers, IOMMU.
fn explain(board: &Board<'_>, devices: &Devices, reasons: &mut Reasons) {
    let topology = board.topology;
    if !devices.companions.is_empty() {
        let along = list(&devices.companions);
        reasons.say("gpus", format!("{along} come along: the IOMMU cannot keep them apart"));
    }
    let all = devices.all();
    let mut unbound: BTreeMap<&str, Vec<Bdf>> = BTreeMap::new();
    for device in all.iter().filter_map(|&bdf| topology.device(bdf)) {
        match device.driver.as_deref() {
            Some("vfio-pci") => {}
            driver => unbound.entry(driver.unwrap_or("no driver")).or_default().push(device.bdf),
        }
    }
    for (driver, bdfs) in unbound {
        let have = if bdfs.len() == 1 { "has" } else { "have" };
        let text = format!(
            "{} {have} to be bound to vfio-pci before start: bound to {driver} now",
            list(bdfs)
        );
        reasons.say("drivers", text);
    }
    let off: Vec<Bdf> =
        all.iter().copied().filter(|&bdf| topology.iommu_group(bdf).is_none()).collect();
    if !off.is_empty() {
        let text = format!(
            "no IOMMU group is known of {}: the IOMMU has to be on before start",
            list(off)
        );
        reasons.compromise("drivers", text);
    }
    let silent: Vec<&Bdf> =
        board.blocked.iter().filter(|(_, b)| b.domain.is_none()).map(|(g, _)| g).collect();
    if !silent.is_empty() {
        reasons.say("gpus", format!("never placed: {}", board.lines(&board.gpus).join("; ")));
    }
}

/// Names of the domains that stand in the way of these GPUs.
pub(super) fn in_the_way(board: &Board<'_>, gpus: &[Bdf]) -> Option<String> {
    let names: Vec<&str> = gpus.iter().filter_map(|bdf| board.blocked.get(bdf)?.domain).collect();
    (!names.is_empty()).then(|| domains(names))
}

/// The hint that names sizes.
pub(super) fn sizes_hint(sizes: impl IntoIterator<Item = usize>) -> String {
    format!("sizes on this board: {}", numbers(sizes))
}
