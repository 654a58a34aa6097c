//! NVLink below the nodes: the partitions in use of boards with NVSwitches, arcs between GPUs of
//! boards without.

use super::{Area, LEFT, PAD, TITLE, WIDTH};
use crate::bdf::Bdf;
use crate::topology::{DeviceKind, FabricModel, PartitionId, Topology};
use crate::view::guests::Guest;
use crate::words::count;
use std::collections::BTreeMap;

const ROW: u32 = 22;
/// Height of the links between GPUs and NVSwitches.
const SPOKE: u32 = 20;
/// Size of a GPU in a mesh.
const GPU: (u32, u32) = (64, 24);
/// Height that an arc gains with each GPU that it spans.
const RISE: u32 = 13;
/// The most GPUs of a mesh that is drawn.
const MOST: usize = 16;

/// A partition in use.
#[derive(Debug)]
pub struct PartitionRow {
    /// Its row.
    pub area: Area,
    /// Its number.
    pub id: PartitionId,
    /// The guest that has it; `None` if it is active, and no guest of it is known.
    pub guest: Option<usize>,
    /// The text in front.
    pub label: String,
    /// A field for each GPU of the board.
    pub slots: Vec<Slot>,
}

/// A GPU in a partition's row or in a mesh.
#[derive(Debug)]
pub struct Slot {
    /// Its field.
    pub area: Area,
    /// Index of the GPU.
    pub index: usize,
    /// Its address.
    pub bdf: Bdf,
    /// Whether it is in the partition.
    pub is_in: bool,
    /// The guest that has it.
    pub guest: Option<usize>,
}

/// GPUs with NVLinks to NVSwitches, which link each of them with every other.
#[derive(Debug)]
pub struct Board {
    /// The text in front.
    pub label: String,
    /// Its area.
    pub area: Area,
    /// The NVSwitches, as one bar below all GPUs.
    pub switches: (Area, String),
    /// Whether they stay with Fabric Manager.
    pub is_kept: bool,
    /// The GPUs with their links.
    pub spokes: Vec<Spoke>,
}

/// NVLinks of a GPU to the NVSwitches.
#[derive(Debug)]
pub struct Spoke {
    /// The GPU.
    pub slot: Slot,
    /// From where to where: x, and both y.
    pub line: (u32, u32, u32),
    /// The most NVLinks that it shares with another GPU.
    pub links: u32,
}

/// GPUs with direct NVLinks.
#[derive(Debug)]
pub struct Mesh {
    /// The GPUs.
    pub slots: Vec<Slot>,
    /// Their links.
    pub arcs: Vec<Arc>,
}

/// NVLinks between two GPUs, as half an ellipse above both.
#[derive(Debug)]
pub struct Arc {
    /// Left end, right end, and the y of both.
    pub ends: (u32, u32, u32),
    /// Height of its top above the ends.
    pub rise: u32,
    /// The GPUs, by index.
    pub gpus: (usize, usize),
    /// NVLinks.
    pub links: u32,
}

#[derive(Default)]
pub(super) struct Links {
    /// Area and title; `None` if the host has no NVLinks.
    pub(super) title: Option<(Area, String)>,
    pub(super) partitions: Vec<PartitionRow>,
    pub(super) mesh: Option<Mesh>,
    pub(super) board: Option<Board>,
}

impl Links {
    /// Lays it out below a line.
    pub(super) fn of(topology: &Topology, guests: &[Guest<'_>], top: u32) -> Links {
        let fabric = topology.fabric();
        if topology.is_partitioned() {
            return partitions(topology, guests, top);
        }
        let gpus = topology.gpus().count();
        if fabric.links.is_empty() || gpus > MOST {
            return Links::default();
        }
        mesh(topology, guests, top)
    }
}

fn holders(topology: &Topology, guests: &[Guest<'_>]) -> BTreeMap<Bdf, usize> {
    let mut holders = BTreeMap::new();
    for (place, guest) in guests.iter().enumerate().rev() {
        holders.extend(guest.gpus(topology).into_iter().map(|(_, bdf)| (bdf, place)));
    }
    holders
}

fn partitions(topology: &Topology, guests: &[Guest<'_>], top: u32) -> Links {
    let all: Vec<(usize, Bdf)> = topology.gpus().map(|gpu| gpu.bdf).enumerate().collect();
    let mut used: Vec<(PartitionId, Option<usize>)> = Vec::new();
    for (guest, place) in guests.iter().zip(0..) {
        used.extend(guest.partition(topology).map(|partition| (partition.id, Some(place))));
    }
    let shared = topology.fabric().model == FabricModel::SharedNvswitch;
    for active in topology.partitions().iter().filter(|partition| shared && partition.active) {
        if !used.iter().any(|(id, _)| *id == active.id) {
            used.push((active.id, None));
        }
    }
    used.sort_unstable();
    let number = u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    let left = LEFT + 4 * PAD;
    let step = ((WIDTH - left - 2 * PAD) / number).clamp(1, 60);
    let board = board(topology, guests, left, top + TITLE, step);
    let mut y = board.as_ref().map_or(top + TITLE, |board| board.area.bottom() + PAD);
    let mut rows = Vec::new();
    for (id, guest) in used {
        let Some(partition) = topology.partitions().iter().find(|one| one.id == id) else {
            continue;
        };
        let area = Area::new(2 * PAD, y, WIDTH - 4 * PAD, ROW);
        y += ROW + 2;
        let slots = all.iter().zip(0..).map(|(&(index, bdf), place)| Slot {
            area: Area::new(left + place * step, area.y + 1, (step - step / 8).max(1), ROW - 2),
            index,
            bdf,
            is_in: partition.gpus.contains(&bdf),
            guest,
        });
        let links = match partition.nvlinks_per_gpu {
            0 => "no NVLinks".to_owned(),
            links => format!("{} per GPU", count(links, "NVLink")),
        };
        let gpus = count(partition.gpus.len(), "GPU");
        let label = format!("partition {id}: {gpus}, {links}");
        rows.push(PartitionRow { area, id, guest, label, slots: slots.collect() });
    }
    let model = match topology.fabric().model {
        FabricModel::None => "",
        FabricModel::FullPassthrough => ", guests get NVSwitches with their GPUs",
        FabricModel::SharedNvswitch => ", Fabric Manager keeps the NVSwitches",
    };
    let none = if rows.is_empty() { "; none in use" } else { "" };
    let number = count(topology.partitions().len(), "partition");
    let title = format!("NVLink · {number}{none}{model}");
    let area = Area::new(0, top, WIDTH, y + PAD - top);
    Links { title: Some((area, title)), partitions: rows, mesh: None, board }
}

/// The links of GPUs to NVSwitches below a place; `None` if no GPUs that are linked are known.
fn board(
    topology: &Topology,
    guests: &[Guest<'_>],
    left: u32,
    top: u32,
    step: u32,
) -> Option<Board> {
    let holders = holders(topology, guests);
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let mut most: BTreeMap<Bdf, u32> = BTreeMap::new();
    for link in &topology.fabric().links {
        for end in [link.a, link.b].into_iter().filter(|end| gpus.contains(end)) {
            let links = most.entry(end).or_default();
            *links = link.links.max(*links);
        }
    }
    let wide = (step - step / 8).max(1);
    let bar_y = top + ROW + SPOKE;
    let linked = |(index, bdf): (usize, &Bdf)| {
        let links = most.get(bdf).copied().filter(|links| *links > 0)?;
        let x = left + u32::try_from(index).ok()? * step;
        let guest = holders.get(bdf).copied();
        let area = Area::new(x, top + 1, wide, ROW - 2);
        let slot = Slot { area, index, bdf: *bdf, is_in: true, guest };
        Some(Spoke { slot, line: (x + wide / 2, area.bottom(), bar_y), links })
    };
    let spokes: Vec<Spoke> = gpus.iter().enumerate().filter_map(linked).collect();
    let (first, last) = (spokes.first()?.slot.area, spokes.last()?.slot.area);
    let bar = Area::new(first.x, bar_y, last.right() - first.x, ROW - 4);
    let switches = match topology.of_kind(DeviceKind::NvSwitch).count() {
        0 => "NVSwitches".to_owned(),
        number => count(number, "NVSwitch"),
    };
    let mut widths: Vec<u32> = topology.fabric().links.iter().map(|link| link.links).collect();
    widths.sort_unstable();
    let label = match (widths.first(), widths.last()) {
        (Some(least), Some(most)) if least == most => {
            format!("any two GPUs are linked by {}", count(*most, "NVLink"))
        }
        (least, most) => format!(
            "two GPUs are linked by {} to {}",
            least.unwrap_or(&0),
            count(most.copied().unwrap_or(0), "NVLink")
        ),
    };
    let area = Area::new(2 * PAD, top, WIDTH - 4 * PAD, bar.bottom() - top);
    let is_kept = topology.fabric().model == FabricModel::SharedNvswitch;
    Some(Board { label, area, switches: (bar, switches), is_kept, spokes })
}

/// The GPUs in a row with arcs above.
fn mesh(topology: &Topology, guests: &[Guest<'_>], top: u32) -> Links {
    let holders = holders(topology, guests);
    let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let place = |bdf: Bdf| gpus.iter().position(|gpu| *gpu == bdf);
    let links: Vec<(usize, usize, u32)> = topology
        .fabric()
        .links
        .iter()
        .filter_map(|link| {
            let (a, b) = (place(link.a)?, place(link.b)?);
            (a != b).then_some((a.min(b), a.max(b), link.links))
        })
        .collect();
    let number = u32::try_from(gpus.len()).expect("few").max(1);
    let step = ((WIDTH - 4 * PAD) / number).min(150);
    let left = (WIDTH - step * number) / 2;
    let widest = links.iter().map(|(a, b, _)| b - a).max().unwrap_or(0);
    let high = RISE * (u32::try_from(widest).expect("few") + 1);
    let y = top + TITLE + high + 4;
    let column = |at: usize| u32::try_from(at).expect("few") * step + left;
    let middle = |at: usize| column(at) + step / 2;
    let slots = gpus.iter().enumerate().map(|(index, &bdf)| Slot {
        area: Area::new(middle(index) - GPU.0 / 2, y, GPU.0, GPU.1),
        index,
        bdf,
        is_in: true,
        guest: holders.get(&bdf).copied(),
    });
    let arcs = links.iter().map(|&(a, b, links)| Arc {
        // Arcs to both sides leave a GPU beside each other.
        ends: (middle(a) + 8, middle(b) - 8, y),
        rise: RISE * u32::try_from(b - a).expect("few"),
        gpus: (a, b),
        links,
    });
    let mesh = Mesh { slots: slots.collect(), arcs: arcs.collect() };
    let area = Area::new(0, top, WIDTH, y + GPU.1 + 2 * PAD - top);
    let title = "NVLink · direct links between GPUs; a number where there are several".to_owned();
    Links { title: Some((area, title)), partitions: Vec::new(), mesh: Some(mesh), board: None }
}
