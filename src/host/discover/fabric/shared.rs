//! Partitions of the shared model: by module id, from Fabric Manager's list if available, otherwise
//! from the board's table. Pure.

use super::Found;
use super::board_reports::BoardReports;
use super::boards::Board;
use super::lists::Shared;
use super::modules::{Modules, PATH, Source};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::{Listed, ListedGpu};
use gpuvm_core::topology::{Fabric, NvLink, Partition, PartitionId};
use gpuvm_core::words::{are, count};
use std::collections::BTreeMap;

struct Places<'a> {
    found: &'a Found<'a>,
    /// Addresses by module id.
    by_id: BTreeMap<u32, Bdf>,
    /// All GPUs, if all of the board respond: a partition of all needs no module ids.
    whole: Option<Vec<Bdf>>,
}

/// Fills in partitions, module ids and degraded parts; returns notes and the source of the
/// partitions as text.
pub fn fill(
    fabric: &mut Fabric,
    found: &Found<'_>,
    reports: &BoardReports,
    shared: &Shared,
) -> (Vec<String>, String) {
    let mut modules = reports.modules.clone();
    if modules.is_empty() && found.modules_by_bus() {
        let gpus = found.layout.slots.iter().copied();
        let ids = gpus.zip(1..).filter_map(|(gpu, id)| Some((gpu?, id)));
        modules.add(Source::Published, ids);
    }
    fabric.module_ids = modules.iter().collect();
    fabric.reset_cuts_links = shared.reset_cuts_links;
    let whole: Option<Vec<Bdf>> = found.layout.slots.iter().copied().collect();
    let places = Places { found, by_id: modules.by_id(), whole };
    let mut notes = Vec::new();
    let from = match &reports.listed {
        Some(listed) => {
            let left_out = read(fabric, &places, listed);
            if left_out > 0 {
                notes.push(format!(
                    "{left_out} of {} of Fabric Manager {} left out: which GPUs they have is not known",
                    count(listed.len(), "partition"),
                    are(left_out)
                ));
            }
            "partitions read from Fabric Manager".to_owned()
        }
        None => {
            by_table(fabric, &places, shared);
            let name = found.board.name;
            format!("NVLinks and partitions: published table for {name}, not read from this host")
        }
    };
    if shared.reset_cuts_links && fabric.partitions.iter().any(|p| p.gpus.len() > 1) {
        notes.push(
            "on this board a GPU's reset after its partition is activated leaves its NVLinks off, \
             and stock QEMU resets at each start: partitions of several GPUs need a hypervisor \
             that does not, or FABRIC_MODE=0"
                .into(),
        );
    }
    let source = format!("{from}; {}; {}", reports.model_source, source(&modules, found));
    (notes, source)
}

/// Describes the source of module ids, and the consequence if they are unknown.
fn source(modules: &Modules, found: &Found<'_>) -> String {
    let unknown =
        found.layout.slots.iter().flatten().filter(|gpu| modules.get(**gpu).is_none()).count();
    let how = format!(
        "`gpuvm host modules --write` keeps them in {PATH} while the GPUs are bound to `nvidia`"
    );
    if modules.is_empty() {
        return format!(
            "module ids of the GPUs are not known, so only the partition of all GPUs is offered; \
             {how}"
        );
    }
    let sources: Vec<String> = modules
        .sources()
        .into_iter()
        .map(|source| match source {
            Source::Published => {
                "as published for this product, in order of the bus, not verified on this machine"
                    .to_owned()
            }
            known => format!("read from {known}"),
        })
        .collect();
    let mut text = format!("module ids {}", sources.join(" and "));
    if unknown > 0 {
        let (of, are) = (count(unknown, "GPU"), are(unknown));
        text += &format!(
            "; {} of {of} {are} not known; {how}",
            if unknown == 1 { "that" } else { "those" }
        );
    }
    text
}

impl Places<'_> {
    /// The GPUs of a set of modules, by address; none if one is unknown or does not respond.
    fn gpus(&self, modules: &[u32]) -> Option<Vec<Bdf>> {
        if let Some(whole) = self.whole.as_ref().filter(|all| all.len() == modules.len()) {
            let mut whole = whole.clone();
            whole.sort_unstable();
            // A single board has one half of the list: without known module ids either may be its
            // own.
            return self.by_id.keys().all(|id| modules.contains(id)).then_some(whole);
        }
        let gpus: Option<Vec<Bdf>> = modules.iter().map(|id| self.by_id.get(id).copied()).collect();
        gpus.map(|mut gpus| {
            gpus.sort_unstable();
            gpus
        })
    }

    /// Whether the NVSwitches of all boards of these GPUs respond.
    fn switched(&self, gpus: &[Bdf], board: &Board) -> bool {
        let layout = &self.found.layout;
        let sound = |index: usize| {
            layout.switches.get(index).is_some_and(|switches| switches.len() >= board.switches)
        };
        !layout.switches_missing
            || layout.placed
                && gpus.iter().all(|gpu| {
                    let slot = layout.slots.iter().position(|slot| *slot == Some(*gpu));
                    slot.is_some_and(|slot| sound(slot / board.gpus))
                })
    }
}

/// Takes partitions from the board's table.
fn by_table(fabric: &mut Fabric, places: &Places<'_>, shared: &Shared) {
    let board = places.found.board;
    let singles: Vec<[u32; 1]> =
        (1..).take(board.gpus_in_list()).map(|module: u32| [module]).collect();
    let sets = shared.sets.iter().copied().chain(singles.iter().map(<[u32; 1]>::as_slice));
    for (place, (id, modules)) in (shared.first_id..).zip(sets).enumerate() {
        let Some(gpus) = places.gpus(modules) else { continue };
        let nvlinks_per_gpu = match modules.len() {
            1 => 0,
            _ if place < shared.unreduced => board.links,
            _ => board.links - 1,
        };
        // If it is unknown which half of the list is the board's own, the first one represents
        // both.
        let twice = fabric.partitions.iter().any(|partition| partition.gpus == gpus);
        if !twice && (gpus.len() == 1 || places.switched(&gpus, board)) {
            fabric.partitions.push(partition(id, gpus, nvlinks_per_gpu, false));
        }
    }
}

/// Takes partitions from Fabric Manager's list; returns how many were left out because their GPUs
/// are unknown.
fn read(fabric: &mut Fabric, places: &Places<'_>, listed: &[Listed]) -> usize {
    let alive = places.found.layout.slots.iter().flatten();
    let all_known = alive.clone().all(|gpu| places.by_id.values().any(|known| known == gpu));
    let mut left_out = 0;
    let mut worn: BTreeMap<u32, ListedGpu> = BTreeMap::new();
    for Listed { id, active, gpus } in listed {
        for gpu in gpus.iter().filter(|gpu| gpu.links < gpu.most) {
            let worst = worn.entry(gpu.module).or_insert_with(|| gpu.clone());
            if gpu.most - gpu.links > worst.most - worst.links {
                *worst = gpu.clone();
            }
        }
        let modules: Vec<u32> = gpus.iter().map(|gpu| gpu.module).collect();
        let links = gpus.iter().map(|gpu| gpu.links).min().unwrap_or(0);
        match places.gpus(&modules) {
            Some(gpus) => fabric.partitions.push(partition(*id, gpus, links, *active)),
            // The list names unresponsive parts, too.
            None if all_known => {}
            None => left_out += 1,
        }
    }
    for (module, ListedGpu { links, most, .. }) in worn {
        let gpu = places.by_id.get(&module);
        let name = gpu.map_or("GPU".to_owned(), |gpu| format!("GPU {gpu}"));
        fabric
            .degraded
            .push(format!("{name} (module {module}) has {links} of {}", count(most, "NVLink")));
        if let Some(gpu) = gpu {
            for link in fabric.links.iter_mut().filter(|link| link.a == *gpu || link.b == *gpu) {
                let NvLink { links: between, .. } = link;
                *between = (*between).min(links);
            }
        }
    }
    left_out
}

/// A partition of this model: its guests get no NVSwitch.
fn partition(id: u32, gpus: Vec<Bdf>, nvlinks_per_gpu: u32, active: bool) -> Partition {
    let (nvswitches, nvswitch_pool) = (0, Vec::new());
    Partition { id: PartitionId(id), gpus, nvlinks_per_gpu, nvswitches, nvswitch_pool, active }
}
