//! The PCIe tree of a node as nested boxes: host bridges, in them switches, in them devices.
//! Bridges that lead to a single box are left out.

use super::Area;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::topology::Topology;
use crate::view::devices::{Device, short};
use crate::words::count;
use std::collections::{BTreeMap, BTreeSet};

/// Size of a tile.
const TILE: (u32, u32) = (92, 44);
/// Height of a bridge's title.
const TITLE: u32 = 14;
/// Space between boxes.
const GAP: u32 = 4;
/// The most switches in each other that are drawn; hosts have at most three, a forged record may
/// have more, whose devices are drawn in the last one.
const DEEPEST: usize = 6;

/// A box of the tree.
#[derive(Debug, Clone)]
pub enum Item {
    /// A host bridge or a switch with what is below it.
    Bridge(Bridge),
    /// A device.
    Tile(Box<Tile>),
}

/// A host bridge or a switch.
#[derive(Debug, Clone)]
pub struct Bridge {
    /// Its box.
    pub area: Area,
    /// Its address; none: a host bridge.
    pub bdf: Option<Bdf>,
    /// Its title.
    pub label: String,
    /// What is below it.
    pub items: Vec<Item>,
}

/// A device.
#[derive(Debug, Clone)]
pub struct Tile {
    /// Its box.
    pub area: Area,
    /// The device.
    pub device: Device,
    /// Bridges above it, the root port first.
    pub path: Vec<Bdf>,
}

/// A host bridge with its tree, not placed yet.
pub(super) struct Root {
    /// Its name.
    name: String,
    /// What is below it.
    twigs: Vec<Twig>,
}

/// A box without a place.
enum Twig {
    /// A switch.
    Switch(Bdf, Vec<Twig>),
    /// A device.
    Leaf(Box<Tile>),
}

impl Item {
    /// Its box.
    pub fn area(&self) -> Area {
        match self {
            Item::Bridge(bridge) => bridge.area,
            Item::Tile(tile) => tile.area,
        }
    }

    /// Adds the devices in it.
    pub(super) fn collect<'s>(&'s self, tiles: &mut Vec<&'s Tile>) {
        match self {
            Item::Bridge(bridge) => bridge.items.iter().for_each(|item| item.collect(tiles)),
            Item::Tile(tile) => tiles.push(tile),
        }
    }

    /// Moves it right and down.
    fn shift(&mut self, right: u32, down: u32) {
        match self {
            Item::Bridge(bridge) => {
                bridge.area = bridge.area.moved(right, down);
                bridge.items.iter_mut().for_each(|item| item.shift(right, down));
            }
            Item::Tile(tile) => tile.area = tile.area.moved(right, down),
        }
    }
}

/// Returns the trees of all devices by the node that they are drawn in: that of the first device of
/// each host bridge's branch.
pub(super) fn trees(
    topology: &Topology,
    devices: &[Device],
) -> BTreeMap<Option<NodeId>, Vec<Root>> {
    let grown = Grown::of(topology, devices);
    let mut roots: BTreeMap<(Option<NodeId>, String), Vec<Twig>> = BTreeMap::new();
    for &top in &grown.tops {
        let node = grown.first(top).and_then(|bdf| topology.device(bdf)?.node);
        let name = topology.host_bridge(top).map_or_else(|| "PCI".into(), |name| name.into_owned());
        roots.entry((node, name)).or_default().push(grown.twig(top, 0));
    }
    let mut trees: BTreeMap<Option<NodeId>, Vec<Root>> = BTreeMap::new();
    for ((node, name), twigs) in roots {
        trees.entry(node).or_default().push(Root { name, twigs });
    }
    trees
}

/// The tree without bridges that lead to a single box.
struct Grown<'a> {
    /// The host.
    topology: &'a Topology,
    /// Drawn devices.
    devices: BTreeMap<Bdf, &'a Device>,
    /// Boxes right below each switch.
    below: BTreeMap<Bdf, Vec<Bdf>>,
    /// Boxes right below a host bridge.
    tops: Vec<Bdf>,
}

impl<'a> Grown<'a> {
    /// Finds which bridges are drawn, and what is below each.
    fn of(topology: &'a Topology, drawn: &'a [Device]) -> Grown<'a> {
        let devices: BTreeMap<Bdf, &Device> = drawn.iter().map(|one| (one.bdf, one)).collect();
        let mut ports: BTreeMap<Bdf, BTreeSet<Bdf>> = BTreeMap::new();
        for device in drawn {
            let path = topology.path_to_root(device.bdf);
            for (low, high) in path.iter().zip(path.iter().skip(1)) {
                // What is above was added with an earlier device.
                if !ports.entry(*high).or_default().insert(*low) {
                    break;
                }
            }
        }
        let is_box = |bdf: &Bdf| ports.get(bdf).is_some_and(|ports| ports.len() > 1);
        let mut below: BTreeMap<Bdf, Vec<Bdf>> = BTreeMap::new();
        let mut tops = Vec::new();
        let boxes = ports.keys().copied().filter(is_box).filter(|bdf| !devices.contains_key(bdf));
        let mut boxes: Vec<Bdf> = boxes.chain(devices.keys().copied()).collect();
        boxes.sort_unstable();
        for bdf in boxes {
            match topology.path_to_root(bdf).into_iter().skip(1).find(is_box) {
                Some(above) => below.entry(above).or_default().push(bdf),
                None => tops.push(bdf),
            }
        }
        Grown { topology, devices, below, tops }
    }

    /// The first device below a box, itself included.
    fn first(&self, bdf: Bdf) -> Option<Bdf> {
        self.leaves(bdf).into_iter().next()
    }

    /// The devices below a box, itself included, by address in each switch.
    fn leaves(&self, bdf: Bdf) -> Vec<Bdf> {
        let (mut open, mut leaves) = (vec![bdf], Vec::new());
        while let Some(bdf) = open.pop() {
            if self.devices.contains_key(&bdf) {
                leaves.push(bdf);
            }
            open.extend(self.below.get(&bdf).into_iter().flatten().rev());
        }
        leaves
    }

    /// A box with all that is in it.
    fn twig(&self, bdf: Bdf, depth: usize) -> Twig {
        match self.below.get(&bdf) {
            None => self.leaf(bdf),
            Some(_) if depth >= DEEPEST => {
                Twig::Switch(bdf, self.leaves(bdf).into_iter().map(|bdf| self.leaf(bdf)).collect())
            }
            Some(below) => {
                // A function with others behind it stands among them.
                let own = self.devices.contains_key(&bdf).then(|| self.leaf(bdf));
                let twigs = below.iter().map(|bdf| self.twig(*bdf, depth + 1));
                Twig::Switch(bdf, own.into_iter().chain(twigs).collect())
            }
        }
    }

    /// A device.
    fn leaf(&self, bdf: Bdf) -> Twig {
        let mut path = self.topology.path_to_root(bdf);
        path.reverse();
        path.pop();
        let device = self.devices[&bdf].clone();
        Twig::Leaf(Box::new(Tile { area: Area::new(0, 0, TILE.0, TILE.1), device, path }))
    }
}

/// Places trees in rows, and returns their height.
pub(super) fn place(roots: &[Root], (x, y, width): (u32, u32, u32)) -> (Vec<Item>, u32) {
    let items = roots.iter().map(|root| bridge(None, root.name.clone(), &root.twigs, width));
    let (mut items, area) = shelves(items.collect(), width);
    items.iter_mut().for_each(|item| item.shift(x, y));
    (items, area.height)
}

/// A box with a title, at 0, 0.
fn bridge(bdf: Option<Bdf>, label: String, twigs: &[Twig], most: u32) -> Item {
    let most = most.saturating_sub(2 * GAP);
    let items = twigs.iter().map(|twig| match twig {
        Twig::Leaf(tile) => Item::Tile(tile.clone()),
        Twig::Switch(bdf, twigs) => {
            bridge(Some(*bdf), format!("switch {}", short(*bdf)), twigs, most)
        }
    });
    let (mut items, inner) = shelves(items.collect(), most);
    items.iter_mut().for_each(|item| item.shift(GAP, TITLE));
    let area = Area::new(0, 0, inner.width + 2 * GAP, TITLE + inner.height + GAP);
    Item::Bridge(Bridge { area, bdf, label, items })
}

/// Places boxes side by side in rows of at most a width; returns what they cover.
fn shelves(mut items: Vec<Item>, most: u32) -> (Vec<Item>, Area) {
    let (mut right, mut top, mut shelf, mut widest) = (0, 0, 0, 0);
    for item in &mut items {
        let Area { width, height, .. } = item.area();
        if right > 0 && right + width > most {
            (right, top, shelf) = (0, top + shelf + GAP, 0);
        }
        item.shift(right, top);
        widest = widest.max(right + width);
        right += width + GAP;
        shelf = shelf.max(height);
    }
    (items, Area::new(0, 0, widest, top + shelf))
}

impl Bridge {
    /// What it says when it is pointed at.
    pub fn says(&self) -> String {
        let mut tiles = Vec::new();
        self.items.iter().for_each(|item| item.collect(&mut tiles));
        let devices = count(tiles.len(), "device");
        match self.bdf {
            Some(bdf) => format!("PCIe switch {bdf}: {devices}"),
            None => format!("host bridge {}: {devices}", self.label),
        }
    }
}
