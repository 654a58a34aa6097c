//! Derives the NVLink fabric from PCI functions, the product name and the host's own reports: the
//! board, its missing parts, the sets of GPUs that may form a guest. If the live machine's Fabric
//! Manager and NVML answer, they take precedence; otherwise everything except the existing parts
//! comes from published tables (boards.rs, lists.rs); see [`Fabric::source`].

pub mod answer;
mod board_reports;
mod boards;
mod bridge;
mod census;
mod ffi;
pub mod links;
mod lists;
pub mod modules;
pub mod nvml;
mod shared;

use crate::fsroot::{FsError, FsRoot};
use board_reports::{AskNvml, BoardReports};
use boards::{Board, Machine, Sets};
use census::{Census, Layout};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::{Fabric, FabricModel, NvLink, Partition, PartitionId, Parts};
use gpuvm_core::words::count;
use lists::Run;
use modules::Modules;

struct Found<'a> {
    census: Census<'a>,
    board: &'static Board,
    /// NVIDIA's machine around it, if any.
    machine: Option<&'static Machine>,
    layout: Layout,
}

/// Returns the NVLink fabric of a host, and notes for the user.
pub fn fabric(root: &FsRoot, parts: &Parts) -> Result<(Fabric, Vec<String>), FsError> {
    let links = links::begin(root, parts)?;
    let found = match Found::of(parts) {
        Ok(found) => found,
        Err(source) => {
            let mut fabric = Fabric { source, ..Fabric::default() };
            let notes = links::lay_over(&mut fabric, &links.ask(), false);
            return Ok((fabric, notes));
        }
    };
    let mut reports = BoardReports::of(root, &found, AskNvml::Unknown, links)?;
    if matches!(found.board.sets, Sets::Switched { .. }) && found.board.switches == 0 {
        reports.bridge = bridge::functions(root, parts);
    }
    let mut notes = std::mem::take(&mut reports.notes);
    let (mut fabric, more) = judged(&found, &reports);
    notes.extend(more);
    notes.extend(links::lay_over(&mut fabric, &reports.links, reports.listed.is_some()));
    Ok((fabric, notes))
}

/// Returns the NVLink fabric of a host known only by its parts and NVLinks read earlier, and notes
/// for the user.
pub fn planned(parts: &Parts, links: &links::Read) -> (Fabric, Vec<String>) {
    let (mut fabric, mut notes) = match Found::of(parts) {
        Ok(found) => judged(&found, &BoardReports::nothing(&found)),
        Err(source) => (Fabric { source, ..Fabric::default() }, Vec::new()),
    };
    notes.extend(links::lay_over(&mut fabric, links, false));
    (fabric, notes)
}

/// Returns module ids from the live machine, from the admin's file for GPUs that NVML does not see,
/// and notes. None if the host has no board with module ids.
pub fn modules_now(
    root: &FsRoot,
    parts: &Parts,
) -> Result<Option<(Modules, Vec<String>)>, FsError> {
    let Ok(found) = Found::of(parts) else { return Ok(None) };
    if !matches!(found.board.sets, Sets::Switched { .. }) {
        return Ok(None);
    }
    let reports = BoardReports::of(root, &found, AskNvml::All, links::begin(root, parts)?)?;
    Ok(Some((reports.modules, reports.notes)))
}

/// Evaluates a board by the host's reports.
fn judged(found: &Found<'_>, reports: &BoardReports) -> (Fabric, Vec<String>) {
    let Found { board, machine, layout, .. } = found;
    let mut fabric = Fabric {
        board: Some(machine.map_or(board.name, |machine| machine.name).to_owned()),
        model: reports.model,
        degraded: layout.missing.clone(),
        links: links(layout, board),
        bridge: reports.bridge.clone(),
        modules_untold: reports.modules_untold.clone(),
        whole_gpus_only: reports.whole_gpus_only,
        ..Fabric::default()
    };
    let table = format!("published table for {}, not read from this host", board.name);
    let (notes, source) = match board.sets {
        Sets::Mesh(_) => (Vec::new(), format!("NVLinks: {table}")),
        Sets::Rack => {
            (Vec::new(), format!("NVLinks: {table}; the rack's switches manage the partitions"))
        }
        Sets::Switched { shared, .. } if reports.model == FabricModel::SharedNvswitch => {
            shared::fill(&mut fabric, found, reports, shared)
        }
        Sets::Switched { runs, shared, .. } => {
            fabric.links_stay_on = !shared.reset_cuts_links;
            fabric.partitions = aligned(layout, board, runs);
            fabric.module_ids = reports.modules.iter().collect();
            let untold = if layout.placed { "" } else { UNPLACED };
            let source =
                format!("NVLinks and partitions: {table}; {}{untold}", reports.model_source);
            let note = (board.switches == 0).then(|| bridge::note(&fabric)).flatten();
            (note.into_iter().collect(), source)
        }
    };
    fabric.source = Some(source);
    (fabric, notes)
}

/// The note if GPUs are missing from the bus and it is unknown which.
const UNPLACED: &str =
    "; GPUs are missing and the PCIe tree does not show which, so only single GPUs are offered";

impl<'a> Found<'a> {
    /// Recognises the board of a host; otherwise describes the NVLink parts found, if any.
    fn of(parts: &'a Parts) -> Result<Found<'a>, Option<String>> {
        let census = Census::take(parts);
        let product = parts.machine.product.as_deref().unwrap_or_default();
        let Some((board, machine)) = recognise(&census, product) else {
            return Err(unknown(&census));
        };
        let count = match machine {
            Some(machine) => machine.boards,
            None if census.all_gpus(board) > board.gpus
                || census.all_switches() > board.switches =>
            {
                board.most
            }
            None => 1,
        };
        let layout = census.layout(board, count);
        Ok(Found { census, board, machine, layout })
    }

    /// Whether module ids are published for the machine by bus order, and all its GPUs are present.
    fn modules_by_bus(&self) -> bool {
        self.layout.placed && self.machine.is_some_and(|machine| machine.modules_by_bus)
    }
}

/// Returns the board that matches the GPUs and the product name.
fn recognise(census: &Census, product: &str) -> Option<(&'static Board, Option<&'static Machine>)> {
    let product: String = product
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_uppercase())
        .collect();
    let mut found = None::<(&Board, Option<&Machine>)>;
    for board in boards::BOARDS {
        let gpus = census.gpus_of(board);
        if gpus == 0 || gpus > board.gpus * board.most {
            continue;
        }
        let machine = board.machines.iter().find(|machine| product.contains(machine.product));
        let whole = gpus.is_multiple_of(board.gpus) && !board.only_machines;
        let likely = match board.switches {
            0 => whole,
            _ => census.all_switches() > 0 && !board.only_machines,
        };
        // A B300 with few GPUs left and a whole tray show the same ids: the smaller board is
        // assumed.
        let smaller = found.is_none_or(|(other, _)| board.gpus < other.gpus);
        if (likely || machine.is_some()) && smaller {
            found = Some((board, machine));
        }
    }
    found
}

/// Describes the NVLink parts of a host without a known board; none if there are none.
fn unknown(census: &Census) -> Option<String> {
    let switches = census.all_switches();
    (switches > 0).then(|| {
        let switches = count(switches, "NVSwitch");
        format!("{switches}, but the GPUs are of no known board: no partitions known")
    })
}

/// NVLinks between each two GPUs that answer, counted as by `nvidia-smi topo -m`.
fn links(layout: &Layout, board: &Board) -> Vec<NvLink> {
    let gpus = &layout.slots;
    let switches_of_board = u32::try_from(board.switches).unwrap_or(u32::MAX);
    let between = |a: usize, b: usize| -> u32 {
        match board.sets {
            Sets::Mesh(mesh) if layout.placed => {
                mesh.iter().find(|(x, y, _)| (*x, *y) == (a, b)).map_or(0, |(_, _, links)| *links)
            }
            Sets::Mesh(_) => 0,
            Sets::Rack => board.links,
            Sets::Switched { .. } if board.switches == 0 => board.links,
            Sets::Switched { .. } if board.links.is_multiple_of(switches_of_board) => {
                let switches = |gpu: usize| layout.switches[gpu / board.gpus].len();
                let each = board.links / switches_of_board;
                each * u32::try_from(switches(a).min(switches(b))).unwrap_or(0)
            }
            // Which GPU has how many links to which switch differs from switch to switch: so either
            // all is known or nothing.
            Sets::Switched { .. } if layout.switches_missing => 0,
            Sets::Switched { .. } => board.links,
        }
    };
    let mut links = Vec::new();
    for (a, first) in gpus.iter().enumerate() {
        for (b, second) in gpus.iter().enumerate().skip(a + 1) {
            if let (Some(first), Some(second)) = (*first, *second) {
                let links_between = between(a, b);
                if links_between > 0 {
                    let (a, b) = (first.min(second), first.max(second));
                    links.push(NvLink { a, b, links: links_between });
                }
            }
        }
    }
    links.sort_by_key(|link| (link.a, link.b));
    links
}

/// Partitions of full passthrough: aligned runs whose GPUs all answer and whose boards have the
/// switches. Numbers count every run of the board's plan, so that they stay when parts fail.
fn aligned(layout: &Layout, board: &Board, runs: &[Run]) -> Vec<Partition> {
    let slots = &layout.slots;
    let mut partitions = Vec::new();
    let mut id = 0;
    for run in runs.iter().filter(|run| run.gpus <= slots.len()) {
        for (position, part) in slots.chunks_exact(run.gpus).enumerate() {
            let number = PartitionId(id);
            id += 1;
            let first = position * run.gpus;
            let ours = first / board.gpus..(first + run.gpus).div_ceil(board.gpus);
            let mut pool: Vec<Bdf> = match run.switches {
                0 => Vec::new(),
                _ => layout.switches[ours].concat(),
            };
            pool.sort_unstable();
            let gpus: Option<Vec<Bdf>> = part.iter().copied().collect();
            let possible = run.gpus == 1 || (layout.placed && pool.len() >= run.switches);
            if let Some(mut gpus) = gpus.filter(|_| possible) {
                gpus.sort_unstable();
                partitions.push(Partition {
                    id: number,
                    gpus,
                    nvlinks_per_gpu: run.links,
                    nvswitches: u32::try_from(run.switches).unwrap_or(0),
                    nvswitch_pool: pool,
                    active: false,
                });
            }
        }
    }
    partitions
}

#[cfg(test)]
mod tests;
