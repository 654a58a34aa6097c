//! The PCIe tree of a node as nested boxes: host bridges, in them switches, in them devices.
//! Bridges that lead to a single box are left out.

use super::Area;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::topology::{Sriov, Topology};
use crate::view::devices::{Device, short};
use crate::words::count;
use std::collections::{BTreeMap, BTreeSet};

const TILE: (u32, u32) = (105, 50);
/// Size of a virtual function beside its card.
const VF: (u32, u32) = (68, 23);
const TITLE: u32 = 15;
const GAP: u32 = 4;
/// The most switches in each other that are drawn; hosts have at most three, a forged record may
/// have more, whose devices are drawn in the last one.
const DEEPEST: usize = 6;

/// A box of the tree.
#[derive(Debug, Clone)]
pub enum Item {
    /// A host bridge, a port or a switch with the devices below it, or a card with its virtual
    /// functions.
    Bridge(Bridge),
    /// A device.
    Tile(Box<Tile>),
}

/// The kind of a box with others in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeKind {
    /// A host bridge.
    Host,
    /// A port of the host's own: no bridge is above it.
    RootPort(Bdf),
    /// A switch.
    Switch(Bdf),
    /// A card with this many enabled virtual functions.
    Card(Bdf, u32),
}

/// A box with others in it.
#[derive(Debug, Clone)]
pub struct Bridge {
    /// Its box.
    pub area: Area,
    /// Its kind.
    pub kind: BridgeKind,
    /// Its title.
    pub label: String,
    /// The devices below it.
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
    name: String,
    twigs: Vec<Twig>,
}

/// A box without a place.
enum Twig {
    /// A port or a switch.
    Switch(BridgeKind, Vec<Twig>),
    /// A device.
    Leaf(Box<Tile>),
    /// A card with so many enabled virtual functions, and those that are drawn.
    Card(Box<Tile>, u32, Vec<Tile>),
}

impl Item {
    /// Its box.
    pub fn area(&self) -> Area {
        match self {
            Item::Bridge(bridge) => bridge.area,
            Item::Tile(tile) => tile.area,
        }
    }

    pub(super) fn collect<'s>(&'s self, tiles: &mut Vec<&'s Tile>) {
        match self {
            Item::Bridge(bridge) => bridge.items.iter().for_each(|item| item.collect(tiles)),
            Item::Tile(tile) => tiles.push(tile),
        }
    }

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
    topology: &'a Topology,
    /// Drawn devices but for those of `vfs`.
    devices: BTreeMap<Bdf, &'a Device>,
    /// Drawn virtual functions of each drawn card.
    vfs: BTreeMap<Bdf, Vec<&'a Device>>,
    below: BTreeMap<Bdf, Vec<Bdf>>,
    /// Boxes right below a host bridge.
    tops: Vec<Bdf>,
}

impl<'a> Grown<'a> {
    /// Finds the bridges to draw, and the devices below each.
    fn of(topology: &'a Topology, drawn: &'a [Device]) -> Grown<'a> {
        let mut devices: BTreeMap<Bdf, &Device> = drawn.iter().map(|one| (one.bdf, one)).collect();
        let mut vfs: BTreeMap<Bdf, Vec<&Device>> = BTreeMap::new();
        for device in drawn {
            // A forged record may have virtual functions of virtual functions.
            let is_card = |pf: &Bdf| devices.get(pf).is_some_and(|card| card.pf.is_none());
            if let Some(pf) = device.pf.filter(is_card) {
                vfs.entry(pf).or_default().push(device);
            }
        }
        let beside: BTreeSet<Bdf> = vfs.values().flatten().map(|vf| vf.bdf).collect();
        devices.retain(|bdf, _| !beside.contains(bdf));
        let mut ports: BTreeMap<Bdf, BTreeSet<Bdf>> = BTreeMap::new();
        for device in devices.values() {
            let path = topology.path_to_root(device.bdf);
            for (low, high) in path.iter().zip(path.iter().skip(1)) {
                // The bridges above were added with an earlier device.
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
        Grown { topology, devices, vfs, below, tops }
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
            Some(_) if depth >= DEEPEST => Twig::Switch(
                self.kind(bdf),
                self.leaves(bdf).into_iter().map(|bdf| self.leaf(bdf)).collect(),
            ),
            Some(below) => {
                // A function with others behind it is listed among them.
                let own = self.devices.contains_key(&bdf).then(|| self.leaf(bdf));
                let twigs = below.iter().map(|bdf| self.twig(*bdf, depth + 1));
                Twig::Switch(self.kind(bdf), own.into_iter().chain(twigs).collect())
            }
        }
    }

    /// The name of a bridge in `host show`.
    fn kind(&self, bdf: Bdf) -> BridgeKind {
        match self.topology.device(bdf).and_then(|bridge| bridge.parent) {
            None => BridgeKind::RootPort(bdf),
            Some(_) => BridgeKind::Switch(bdf),
        }
    }

    /// A device, with its virtual functions.
    fn leaf(&self, bdf: Bdf) -> Twig {
        let tile = |device: &Device, (width, height)| {
            let mut path = self.topology.path_to_root(device.bdf);
            path.reverse();
            path.pop();
            Tile { area: Area::new(0, 0, width, height), device: device.clone(), path }
        };
        let card = Box::new(tile(self.devices[&bdf], TILE));
        let Some(vfs) = self.vfs.get(&bdf) else { return Twig::Leaf(card) };
        let enabled = match self.topology.device(bdf).and_then(|card| card.sriov.as_ref()) {
            Some(Sriov::Pf { enabled, .. }) => *enabled,
            _ => 0,
        };
        let drawn = u32::try_from(vfs.len()).unwrap_or(u32::MAX);
        Twig::Card(card, enabled.max(drawn), vfs.iter().map(|vf| tile(vf, VF)).collect())
    }
}

/// Places trees in rows, and returns their height.
pub(super) fn place(roots: &[Root], x: u32, y: u32, width: u32) -> (Vec<Item>, u32) {
    let items =
        roots.iter().map(|root| bridge(BridgeKind::Host, root.name.clone(), &root.twigs, width));
    let (mut items, area) = shelves(items.collect(), width);
    items.iter_mut().for_each(|item| item.shift(x, y));
    (items, area.height)
}

/// A box with a title, at 0, 0.
fn bridge(kind: BridgeKind, label: String, twigs: &[Twig], most: u32) -> Item {
    let most = most.saturating_sub(2 * GAP);
    let items = twigs.iter().map(|twig| match twig {
        Twig::Leaf(tile) => Item::Tile(tile.clone()),
        Twig::Card(tile, enabled, vfs) => card(tile, *enabled, vfs, most),
        Twig::Switch(kind, twigs) => bridge(*kind, kind.label(), twigs, most),
    });
    let (items, inner) = shelves(items.collect(), most);
    framed(kind, label, items, inner)
}

/// Puts a frame with a title around boxes, at 0, 0.
fn framed(kind: BridgeKind, label: String, mut items: Vec<Item>, inner: Area) -> Item {
    items.iter_mut().for_each(|item| item.shift(GAP, TITLE));
    let area = Area::new(0, 0, inner.width + 2 * GAP, TITLE + inner.height + GAP);
    Item::Bridge(Bridge { area, kind, label, items })
}

/// A card with its virtual functions in rows beside it, at 0, 0.
fn card(tile: &Tile, enabled: u32, vfs: &[Tile], most: u32) -> Item {
    let (wide, high) = (VF.0 + GAP, VF.1 + GAP);
    let room = most.saturating_sub(TILE.0 + 3 * GAP) / wide;
    // Two rows are as high as the card.
    let columns = vfs.len().div_ceil(2).min(room as usize).max(1);
    let mut items = vec![Item::Tile(Box::new(tile.clone()))];
    let (mut right, mut bottom) = (TILE.0, TILE.1);
    for (vf, at) in vfs.iter().zip(0..) {
        let column = u32::try_from(at % columns).expect("below the width");
        let row = u32::try_from(at / columns).unwrap_or(u32::MAX / high / 2);
        let (x, y) = (TILE.0 + GAP + column * wide, row * high);
        let area = vf.area.moved(x, y);
        (right, bottom) = (right.max(area.right()), bottom.max(area.bottom()));
        items.push(Item::Tile(Box::new(Tile { area, ..vf.clone() })));
    }
    let kind = BridgeKind::Card(tile.device.bdf, enabled);
    let drawn = vfs.len();
    let label = match count(enabled, "VF") {
        all if drawn < enabled as usize => format!("{all}, {drawn} drawn"),
        all => all,
    };
    framed(kind, label, items, Area::new(0, 0, right, bottom))
}

/// Places boxes side by side in rows of at most a width; returns the covered area.
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

impl BridgeKind {
    /// Its title but for a host bridge's, which is its name, and a card's.
    fn label(self) -> String {
        match self {
            BridgeKind::Host | BridgeKind::Card(..) => String::new(),
            BridgeKind::RootPort(bdf) => format!("root port {}", short(bdf)),
            BridgeKind::Switch(bdf) => format!("switch {}", short(bdf)),
        }
    }
}

impl Bridge {
    /// Its address, if it is a bridge with one.
    pub fn bdf(&self) -> Option<Bdf> {
        match self.kind {
            BridgeKind::RootPort(bdf) | BridgeKind::Switch(bdf) => Some(bdf),
            BridgeKind::Host | BridgeKind::Card(..) => None,
        }
    }

    /// Its text under the pointer.
    pub fn says(&self) -> String {
        let mut tiles = Vec::new();
        self.items.iter().for_each(|item| item.collect(&mut tiles));
        let devices = count(tiles.len(), "device");
        match self.kind {
            BridgeKind::Host => format!("host bridge {}: {devices}", self.label),
            BridgeKind::RootPort(bdf) => format!("root port {bdf}: {devices}"),
            BridgeKind::Switch(bdf) => format!("PCIe switch {bdf}: {devices}"),
            BridgeKind::Card(bdf, enabled) => {
                format!("{bdf}: {}", count(enabled, "virtual function"))
            }
        }
    }
}
