//! The geometry of a picture, in integers: nested boxes from package to pcpu, beside each node the
//! devices below their PCIe switches, below all the NVLinks and the legend. Draws nothing.

mod cores;
mod legend;
mod links;
mod pcie;

pub use cores::{Cache, CoreBox, Share, Thread};
pub use legend::{Entry, Sign};
pub use links::{Arc, Board, Mesh, PartitionRow, Slot, Spoke};
pub use pcie::{Bridge, BridgeKind, Item, Tile};

use super::Subject;
use super::devices::{Device, devices};
use super::guests::{Guest, Use, guests, uses};
use crate::cpuset::{NodeId, PcpuId};
use crate::memsize::MemSize;
use crate::topology::{NumaNode, Topology};
use crate::words::count;
use std::collections::{BTreeMap, BTreeSet};

/// Width of a picture; with the margins of a page it fits a screen of 1280.
pub const WIDTH: u32 = 1232;
/// Space between boxes and around their content.
const PAD: u32 = 6;
const TITLE: u32 = 18;
/// Width of a node's memory and cores, beside its devices.
const LEFT: u32 = 424;
const BAR: u32 = 16;
/// Space left of a memory bar for its beginning, and right of it for its end.
const ENDS: (u32, u32) = (12, 72);

/// A rectangle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Area {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

impl Area {
    /// Makes one.
    pub fn new(x: u32, y: u32, width: u32, height: u32) -> Area {
        Area { x, y, width, height }
    }

    /// The same, moved right and down.
    fn moved(self, right: u32, down: u32) -> Area {
        Area { x: self.x + right, y: self.y + down, ..self }
    }

    /// The first x right of it.
    pub fn right(&self) -> u32 {
        self.x + self.width
    }

    /// The first y below it.
    pub fn bottom(&self) -> u32 {
        self.y + self.height
    }

    /// Whether both have a point in common.
    pub fn overlaps(&self, other: &Area) -> bool {
        let apart = self.right() <= other.x
            || other.right() <= self.x
            || self.bottom() <= other.y
            || other.bottom() <= self.y;
        !apart
    }

    /// Whether it is within another.
    pub fn is_within(&self, outer: &Area) -> bool {
        self.x >= outer.x
            && self.y >= outer.y
            && self.right() <= outer.right()
            && self.bottom() <= outer.bottom()
    }
}

/// A picture's geometry.
#[derive(Debug)]
pub struct Scene<'a> {
    /// All of it; starts at 0, 0.
    pub area: Area,
    /// Guests, by letter.
    pub guests: Vec<Guest<'a>>,
    /// Packages, by number; one without number for nodes without cores.
    pub packages: Vec<Package>,
    /// Title of the NVLinks and the text beside it, with their area; none if there are none.
    pub nvlink: Option<(Area, String)>,
    /// NVLink partitions in use.
    pub partitions: Vec<PartitionRow>,
    /// NVLinks between GPUs without switches.
    pub mesh: Option<Mesh>,
    /// NVLinks from GPUs to NVSwitches.
    pub board: Option<Board>,
    /// The meaning of letters, patterns and marks.
    pub legend: Vec<Entry>,
}

/// A package with its nodes.
#[derive(Debug)]
pub struct Package {
    /// Its box.
    pub area: Area,
    /// Its number; `None` for nodes without cores, or devices of no known node.
    pub number: Option<u32>,
    /// Its nodes.
    pub nodes: Vec<NodeBox>,
}

/// A node.
#[derive(Debug)]
pub struct NodeBox {
    /// Its box.
    pub area: Area,
    /// Its number; `None` for devices whose node is not known.
    pub node: Option<NodeId>,
    /// Its title.
    pub label: String,
    /// Its memory, and its pools of huge pages.
    pub memory: Vec<MemoryBar>,
    /// Its cores by cache.
    pub caches: Vec<Cache>,
    /// Its devices by host bridge.
    pub roots: Vec<Item>,
}

/// Memory, or a pool of huge pages.
#[derive(Debug)]
pub struct MemoryBar {
    /// The bar.
    pub area: Area,
    /// The text above it.
    pub label: String,
    /// How much its whole length is.
    pub whole: String,
    /// Its part in use, from the left.
    pub segments: Vec<Segment>,
    /// The part that is not taken, and how much it is.
    pub rest: (Area, String),
}

/// A part of a memory bar.
#[derive(Debug)]
pub struct Segment {
    /// Its part of the bar; its width may be 0.
    pub area: Area,
    /// The guest that has it; `None` if the host has.
    pub guest: Option<usize>,
    /// Its text.
    pub says: String,
}

/// The input for the parts of a scene.
struct Sources<'a, 'b> {
    topology: &'a Topology,
    guests: &'b [Guest<'a>],
    uses: &'b BTreeMap<PcpuId, Vec<Use>>,
    /// Devices by the node that they are drawn in.
    trees: BTreeMap<Option<NodeId>, Vec<pcie::Root>>,
    /// Offline pcpus by the first pcpu of their core.
    offline: BTreeMap<Option<PcpuId>, Vec<PcpuId>>,
}

impl<'a> Scene<'a> {
    /// Lays out a picture.
    pub fn of(subject: &Subject<'a>) -> Scene<'a> {
        let topology = subject.topology;
        let guests = guests(&subject.held.domains, subject.planned);
        let uses = uses(topology, &guests);
        let devices = devices(topology, subject.held, &guests);
        let trees = pcie::trees(topology, &devices);
        let offline = cores::offline(topology);
        let sources = Sources { topology, guests: &guests, uses: &uses, trees, offline };
        let packages = sources.packages();
        let mut below = packages.last().map_or(0, |package| package.area.bottom() + PAD);
        let links = links::Links::of(topology, &guests, below);
        below = links.title.as_ref().map_or(below, |(area, _)| area.bottom() + PAD);
        let (legend, height) = legend::entries(topology, &guests, below);
        let links::Links { title: nvlink, partitions, mesh, board } = links;
        let area = Area::new(0, 0, WIDTH, height);
        Scene { area, guests, packages, nvlink, partitions, mesh, board, legend }
    }

    /// Returns every device that is drawn.
    pub fn tiles(&self) -> Vec<&Tile> {
        let nodes = self.packages.iter().flat_map(|package| &package.nodes);
        let mut tiles = Vec::new();
        nodes.flat_map(|node| &node.roots).for_each(|item| item.collect(&mut tiles));
        tiles
    }

    /// Returns every pcpu that is drawn.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        let nodes = self.packages.iter().flat_map(|package| &package.nodes);
        let cores = nodes.flat_map(|node| &node.caches).flat_map(|cache| &cache.cores);
        cores.flat_map(|core| &core.threads)
    }

    /// Returns the devices that are drawn, by address.
    pub fn devices(&self) -> Vec<&Device> {
        let mut all: Vec<&Device> = self.tiles().into_iter().map(|tile| &tile.device).collect();
        all.sort_by_key(|device| device.bdf);
        all
    }
}

impl Sources<'_, '_> {
    /// The packages from above, each with its nodes.
    fn packages(&self) -> Vec<Package> {
        let mut of_package: BTreeMap<Option<u32>, Vec<Option<NodeId>>> = BTreeMap::new();
        let first_core = |node: &NumaNode| {
            let core = self.topology.cores_of(node.os_index).next();
            core.map(|core| core.package)
        };
        for node in self.topology.nodes() {
            of_package.entry(first_core(node)).or_default().push(Some(node.os_index));
        }
        let known: BTreeSet<NodeId> = self.topology.nodes().iter().map(|n| n.os_index).collect();
        let is_lost = |node: &&Option<NodeId>| node.is_none_or(|node| !known.contains(&node));
        for lost in self.trees.keys().filter(is_lost) {
            of_package.entry(None).or_default().push(*lost);
        }
        // Nodes without cores come last.
        let (last, first): (Vec<_>, Vec<_>) =
            of_package.into_iter().partition(|(number, _)| number.is_none());
        let mut top = 0;
        let mut packages = Vec::new();
        for (number, nodes) in first.into_iter().chain(last) {
            let mut y = top + TITLE;
            let mut boxes = Vec::new();
            for node in nodes {
                let laid = self.node(node, PAD, y);
                y = laid.area.bottom() + PAD;
                boxes.push(laid);
            }
            let area = Area::new(0, top, WIDTH, y - top);
            top = y + PAD;
            packages.push(Package { area, number, nodes: boxes });
        }
        packages
    }

    fn node(&self, id: Option<NodeId>, x: u32, y: u32) -> NodeBox {
        let width = WIDTH - 2 * PAD;
        let node = id.and_then(|id| self.topology.node(id));
        let roots = self.trees.get(&id).map(Vec::as_slice).unwrap_or_default();
        let (inner_x, inner_y) = (x + PAD, y + TITLE + 2);
        // One grid for all nodes, also for those without devices.
        let left = if self.trees.is_empty() { width - 2 * PAD } else { LEFT };
        let (mut memory, mut below) = (Vec::new(), inner_y);
        for bar in node.into_iter().flat_map(|node| self.memory(node)) {
            let wide = left.min(LEFT) - ENDS.0 - ENDS.1;
            let area = Area::new(inner_x + ENDS.0, below + 13, wide, BAR);
            memory.push(bar.at(area));
            below = area.bottom() + PAD;
        }
        let caches = match node {
            Some(node) => self.caches(node, inner_x, below, left),
            None => Vec::new(),
        };
        below = caches.iter().map(|cache| cache.area.bottom() + PAD).max().unwrap_or(below);
        let has_left = !memory.is_empty() || !caches.is_empty();
        let devices_x = if has_left { inner_x + LEFT + 2 * PAD } else { inner_x };
        let (roots, height) = pcie::place(roots, devices_x, inner_y, x + width - PAD - devices_x);
        let bottom = below.max(inner_y + height + PAD).max(inner_y + PAD);
        let area = Area::new(x, y, width, bottom - y);
        NodeBox { area, node: id, label: self.label(id, node), memory, caches, roots }
    }

    fn label(&self, id: Option<NodeId>, node: Option<&NumaNode>) -> String {
        let Some(id) = id else { return "devices whose node is not known".into() };
        let Some(node) = node else { return format!("node {id}, not recorded") };
        let cores = self.topology.cores_of(id).count();
        let mut parts = vec![format!("node {id}")];
        parts.push(match cores {
            0 => "no cores".into(),
            cores => format!("{}, {}", count(cores, "core"), count(node.pcpus.len(), "pcpu")),
        });
        let held = node.pcpus.iter().filter(|pcpu| self.uses.contains_key(pcpu)).count();
        if held > 0 {
            parts.push(format!("{held} held"));
        }
        let isolated = node.pcpus.and(&self.topology.parts().isolated).len();
        if isolated > 0 {
            parts.push(format!("{isolated} isolated"));
        }
        for kind in &self.topology.parts().core_kinds {
            let there = node.pcpus.and(&kind.pcpus).len();
            if there > 0 {
                parts.push(format!("{there} of {} cores", kind.kind.as_str()));
            }
        }
        let offline =
            self.topology.cores_of(id).filter_map(|core| self.offline.get(&core.pcpus.first()));
        let offline: usize = offline.map(Vec::len).sum();
        if offline > 0 {
            parts.push(format!("{offline} offline"));
        }
        parts.join(" · ")
    }

    /// A node's memory and pools, not placed yet.
    fn memory(&self, node: &NumaNode) -> Vec<Unplaced> {
        let mut taken: Vec<(Option<usize>, u64, String)> = Vec::new();
        let mut all = MemSize::from_kib(0);
        for (guest, place) in self.guests.iter().zip(0..) {
            if let Some(size) = guest.memory().get(&Some(node.os_index)) {
                let says =
                    format!("{} ({}): {size} of node {}", guest.name, guest.letter, node.os_index);
                taken.push((Some(place), size.kib(), says));
                all = all + *size;
            }
        }
        let mut bars = Vec::new();
        if node.memory_kib.kib() > 0 {
            let held = if taken.is_empty() { "none".to_owned() } else { all.to_string() };
            let pages = node.huge_pages.iter().any(|pool| pool.total > 0);
            let none = if pages || node.huge_pages.is_empty() { "" } else { ", no huge pages" };
            let label = format!("memory: {held} bound to guests{none}");
            let rest = node.memory_kib.kib().saturating_sub(all.kib());
            let rest = format!("{} not bound", MemSize::from_kib(rest));
            let (whole, size) = (node.memory_kib.kib(), node.memory_kib.to_string());
            bars.push(Unplaced { label, whole, size, taken, rest });
        }
        for pool in node.huge_pages.iter().filter(|pool| pool.total > 0) {
            let (free, used) = (pool.free, pool.used());
            let says = format!("{} of {} in use", count(used, "page"), pool.page_kib);
            let label = format!("huge pages of {}: {used} in use", pool.page_kib);
            let (rest, size) = (format!("{free} free"), count(pool.total, "page"));
            let taken = vec![(None, used, says)];
            bars.push(Unplaced { label, whole: pool.total, size, taken, rest });
        }
        bars
    }
}

struct Unplaced {
    label: String,
    whole: u64,
    /// How much it is, in words.
    size: String,
    /// The part in use: the holder and the amount, in words.
    taken: Vec<(Option<usize>, u64, String)>,
    /// How much is not taken, in words.
    rest: String,
}

impl Unplaced {
    /// Puts it at a place. More than all of it is cut off at its end.
    fn at(self, area: Area) -> MemoryBar {
        let scale = |part: u64| {
            let wide = u128::from(part) * u128::from(area.width) / u128::from(self.whole.max(1));
            u32::try_from(wide).unwrap_or(area.width).min(area.width)
        };
        let mut sum = 0u64;
        let segments = self.taken.into_iter().filter(|(_, part, _)| *part > 0).map(|taken| {
            let (guest, part, says) = taken;
            let from = scale(sum);
            sum = sum.saturating_add(part);
            let area = Area::new(area.x + from, area.y, scale(sum) - from, area.height);
            Segment { area, guest, says }
        });
        let segments = segments.collect();
        let from = scale(sum);
        let rest = Area::new(area.x + from, area.y, area.width - from, area.height);
        MemoryBar { area, label: self.label, whole: self.size, segments, rest: (rest, self.rest) }
    }
}
