//! From PCI functions and the product's name to the NVLink fabric: which board it is, what of it is missing, which
//! sets of GPUs form a guest. Reads nothing: neither Fabric Manager nor the NVIDIA driver is asked, so all but the
//! parts that answer is taken from published tables (boards.rs), and [`Fabric::source`] says so.

mod boards;
mod census;

use crate::bdf::Bdf;
use crate::topology::{Fabric, FabricModel, NvLink, Partition, PartitionId, Parts};
use boards::{Board, Machine, Run, Sets};
use census::{Census, Layout};

/// What is known of NVLink on a host.
pub fn fabric(parts: &Parts) -> Fabric {
    let census = Census::take(parts);
    let product = parts.machine.product.as_deref().unwrap_or_default();
    let Some((board, machine)) = recognise(&census, product) else {
        return unknown(&census);
    };
    let count = match machine {
        Some(machine) => machine.boards,
        None if census.all_gpus(board) > board.gpus || census.all_switches() > board.switches => {
            board.most
        }
        None => 1,
    };
    let layout = census.layout(board, count);
    let mut fabric = Fabric {
        board: Some(machine.map_or(board.name, |machine| machine.name).to_owned()),
        degraded: layout.missing.clone(),
        links: links(&layout, board),
        ..Fabric::default()
    };
    let table = format!("published table for {}, not read from this host", board.name);
    match board.sets {
        Sets::Mesh(_) => fabric.source = Some(format!("NVLinks: {table}")),
        Sets::Rack => {
            fabric.source = Some(format!("NVLinks: {table}; the rack's switches rule partitions"));
        }
        Sets::Runs(runs) => {
            fabric.model = FabricModel::FullPassthrough;
            fabric.partitions = aligned(&layout, board, runs);
            let untold = if layout.placed { "" } else { UNPLACED };
            fabric.source = Some(format!("NVLinks and partitions: {table}{untold}"));
        }
        Sets::ByModule { first_id, sets } => {
            fabric.model = FabricModel::SharedNvswitch;
            by_module(&mut fabric, &layout, board, machine, (first_id, sets));
        }
    }
    fabric
}

/// Is said where GPUs are missing from the bus and the rest does not show which.
const UNPLACED: &str =
    "; GPUs are missing and the PCIe tree does not show which, so only single GPUs are offered";

/// The board that the GPUs and the product's name speak for.
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
        // A B300 with few GPUs left and a whole tray show the same ids: the smaller board is meant.
        let smaller = found.is_none_or(|(other, _)| board.gpus < other.gpus);
        if (likely || machine.is_some()) && smaller {
            found = Some((board, machine));
        }
    }
    found
}

/// The fabric of a host that is no known board.
fn unknown(census: &Census) -> Fabric {
    let switches = census.all_switches();
    let source = (switches > 0).then(|| {
        format!("{switches} NVSwitches, but the GPUs are of no known board: no partitions known")
    });
    Fabric { source, ..Fabric::default() }
}

/// NVLinks between each two GPUs that answer, as `nvidia-smi topo -m` counts them.
fn links(layout: &Layout, board: &Board) -> Vec<NvLink> {
    let gpus = &layout.slots;
    let between = |a: usize, b: usize| -> u32 {
        match board.sets {
            Sets::Mesh(mesh) if layout.placed => {
                mesh.iter().find(|(x, y, _)| (*x, *y) == (a, b)).map_or(0, |(_, _, links)| *links)
            }
            Sets::Mesh(_) => 0,
            Sets::Rack => board.links,
            // Which GPU has how many links to which switch differs from switch to switch: all or nothing is known.
            Sets::ByModule { .. } if layout.switches_missing => 0,
            Sets::ByModule { .. } => board.links,
            Sets::Runs(_) => {
                let switches = |gpu: usize| layout.switches[gpu / board.gpus].len();
                let each = board.links / u32::try_from(board.switches.max(1)).unwrap_or(1);
                each * u32::try_from(switches(a).min(switches(b))).unwrap_or(0)
            }
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

/// Partitions of full passthrough: aligned runs whose GPUs all answer and whose boards have the switches. Numbers
/// count every run of the board's plan, so that they stay when parts fail.
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
                });
            }
        }
    }
    partitions
}

/// Fills in Fabric Manager's list, as far as module ids are known and the switches answer.
fn by_module(
    fabric: &mut Fabric,
    layout: &Layout,
    board: &Board,
    machine: Option<&Machine>,
    (first_id, sets): (u32, &[&[u32]]),
) {
    let by_bus = layout.placed && machine.is_some_and(|machine| machine.modules_by_bus);
    let sources = if by_bus {
        fabric.module_ids = (1..)
            .zip(&layout.slots)
            .filter_map(|(module, gpu)| gpu.map(|gpu| (gpu, module)))
            .collect();
        "module ids as published for this product, in order of the bus, not verified on this \
         machine"
    } else {
        "module ids of the GPUs are not known, so only the partition of all GPUs is offered"
    };
    fabric.source = Some(format!(
        "NVLinks and partitions: published table for {}, not read from this host; {sources}",
        board.name
    ));
    let singles = 1..=u32::try_from(board.gpus).unwrap_or(0);
    let singles: Vec<[u32; 1]> = singles.map(|module| [module]).collect();
    let all = sets.iter().copied().chain(singles.iter().map(<[u32; 1]>::as_slice));
    for (id, modules) in (first_id..).zip(all) {
        let everything = modules.len() == board.gpus;
        if (layout.switches_missing && modules.len() > 1) || !(by_bus || everything) {
            continue;
        }
        let gpu = |module: &u32| {
            layout.slots.get(usize::try_from(module.saturating_sub(1)).ok()?).copied().flatten()
        };
        let gpus: Option<Vec<Bdf>> = modules.iter().map(gpu).collect();
        if let Some(mut gpus) = gpus {
            gpus.sort_unstable();
            let nvlinks_per_gpu = if modules.len() == 1 { 0 } else { board.links };
            let (nvswitches, nvswitch_pool) = (0, Vec::new());
            let id = PartitionId(id);
            fabric.partitions.push(Partition {
                id,
                gpus,
                nvlinks_per_gpu,
                nvswitches,
                nvswitch_pool,
            });
        }
    }
}

#[cfg(test)]
mod tests;
