//! A host's GPUs as numbers, and sets of them as bit masks: by PCIe switch, root complex, node and
//! package. Knows neither the request nor which set is better.

use super::affinity::Homes;
use super::groups::{self, Block};
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::fabric::Readiness;
use crate::topology::{DeviceKind, FabricModel, PciDevice, SetAside, Topology};

/// A set of GPUs or NVSwitches: bit i is the one with index i, by address.
pub(super) type Mask = u128;

/// The most GPUs, and NVSwitches, considered, the first by address. No known host has half as many.
pub(super) const MOST: usize = 128;

/// The indexes in a set, ascending.
pub(super) fn bits(mut set: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (next < MOST).then_some(next)
    })
}

/// Returns the number of elements of a set.
pub(super) fn size(set: Mask) -> usize {
    set.count_ones() as usize
}

/// The set of the first `number` indexes.
pub(super) fn first(number: usize) -> Mask {
    if number >= MOST { Mask::MAX } else { (1 << number) - 1 }
}

/// Functions of one kind, with why they are blocked.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// Addresses by index: those that count, ascending, then requested displays.
    pub(super) bdfs: Vec<Bdf>,
    /// How many of them count and have an index for users.
    pub(super) counted: usize,
    /// Why a function is unavailable, by index.
    pub(super) blocked: Vec<Option<Block<'a>>>,
    pub(super) free: Mask,
    /// Functions unavailable because of a domain.
    pub(super) held: Mask,
    /// Functions that a request by number may take: those of the wanted model.
    pub(super) meant: Mask,
}

impl<'a> Row<'a> {
    /// Examines these functions, sorted by address, and displays, which do not count.
    fn new(
        topology: &'a Topology,
        taken: &Taken<'a>,
        bdfs: impl Iterator<Item = Bdf>,
        displays: &[Bdf],
    ) -> Row<'a> {
        let mut bdfs: Vec<Bdf> = bdfs.take(MOST - displays.len().min(MOST)).collect();
        let counted = bdfs.len();
        bdfs.extend(displays.iter().take(MOST));
        let blocked: Vec<_> = bdfs.iter().map(|&b| groups::block(topology, taken, b)).collect();
        let (mut free, mut held) = (0, 0);
        for (at, block) in blocked.iter().enumerate() {
            match block {
                None => free |= 1 << at,
                Some(block) if block.domain.is_some() => held |= 1 << at,
                Some(_) => {}
            }
        }
        Row { bdfs, counted, blocked, free, held, meant: Mask::MAX }
    }

    /// Returns available functions that a request by number may take.
    pub(super) fn takeable(&self) -> Mask {
        self.free & self.meant
    }

    /// Restricts requests by number to these functions.
    pub(super) fn mean(&mut self, bdfs: &[Bdf]) {
        self.meant = self.mask(bdfs).unwrap_or(0);
    }

    pub(super) fn index(&self, bdf: Bdf) -> Option<usize> {
        let (counted, displays) = self.bdfs.split_at(self.counted);
        let display = || displays.iter().position(|&other| other == bdf);
        counted.binary_search(&bdf).ok().or_else(|| Some(self.counted + display()?))
    }

    /// The set of these functions; none if one is not among them.
    pub(super) fn mask(&self, bdfs: &[Bdf]) -> Option<Mask> {
        bdfs.iter().try_fold(0, |set, &bdf| Some(set | 1 << self.index(bdf)?))
    }

    /// Addresses of a set, ascending.
    pub(super) fn of(&self, set: Mask) -> Vec<Bdf> {
        let mut bdfs: Vec<Bdf> = bits(set).map(|at| self.bdfs[at]).collect();
        if self.counted < self.bdfs.len() {
            bdfs.sort_unstable();
        }
        bdfs
    }
}

/// The tree above the GPUs: the GPUs of each unit, by level. Every GPU is in one unit of each
/// level.
#[derive(Debug)]
pub(super) struct Units {
    /// Packages, by the first core of the GPU's home node.
    pub(super) packages: Vec<Mask>,
    pub(super) nodes: Vec<Mask>,
    /// Root complexes, by the kernel's name; without one, by the bus of the topmost bridge.
    pub(super) roots: Vec<Mask>,
    /// PCIe switches, each the nearest above the GPU; a GPU below none counts as a unit of its own.
    pub(super) switches: Vec<Mask>,
    pub(super) switched: Mask,
    /// Models, by vendor and device id.
    pub(super) models: Vec<Mask>,
}

impl Units {
    fn new(topology: &Topology, homes: &Homes<'_>, gpus: &[Bdf]) -> Units {
        let devices: Vec<Option<&PciDevice>> = gpus.iter().map(|&b| topology.device(b)).collect();
        let nodes: Vec<_> = gpus.iter().map(|&bdf| homes.of_gpu(bdf).0).collect();
        let packages =
            nodes.iter().map(|&node| homes.seats(node).first().map(|seat| seat.core.package));
        let switch = |device: &PciDevice| nearest_switch(topology, device);
        let switches: Vec<Option<Bdf>> = devices.iter().map(|d| d.and_then(switch)).collect();
        let own = switches.iter().zip(gpus).map(|(switch, gpu)| switch.ok_or(*gpu));
        let below = switches.iter().enumerate().filter(|(_, switch)| switch.is_some());
        Units {
            packages: units(packages),
            roots: units(devices.iter().map(|device| device.map(|device| root(topology, device)))),
            switches: units(own),
            switched: below.fold(0, |set, (at, _)| set | 1 << at),
            models: units(devices.iter().map(|device| device.map(|d| (d.vendor, d.device)))),
            nodes: units(nodes.into_iter()),
        }
    }
}

/// Returns the root complex of a function: the kernel's name, otherwise segment and bus of the
/// topmost bridge.
fn root<'a>(topology: &Topology, device: &'a PciDevice) -> Result<&'a str, (u32, u8)> {
    device.root.as_deref().ok_or_else(|| {
        let top = topology.way_up(device.bdf).last().map_or(device.bdf, |top| top.bdf);
        (top.segment(), top.bus())
    })
}

/// Returns the PCIe switch directly above a function, by its upstream port; none if it is below a
/// root port.
fn nearest_switch(topology: &Topology, device: &PciDevice) -> Option<Bdf> {
    let bridge =
        |bdf: Option<Bdf>| topology.device(bdf?).filter(|d| d.kind() == DeviceKind::Bridge);
    let port = bridge(device.parent)?;
    let above = bridge(port.parent)?;
    // A record may represent a switch by a single bridge below the root port.
    Some(if above.parent.is_some() { above.bdf } else { port.bdf })
}

/// Groups indexes by unit; units are ordered by their lowest index.
fn units<K: PartialEq>(of: impl Iterator<Item = K>) -> Vec<Mask> {
    let mut found: Vec<(K, Mask)> = Vec::new();
    for (at, key) in of.enumerate() {
        // Neighbours by address are mostly in the same unit, so the last is tried first.
        match found.iter_mut().rev().find(|(other, _)| *other == key) {
            Some((_, set)) => *set |= 1 << at,
            None => found.push((key, 1 << at)),
        }
    }
    found.into_iter().map(|(_, set)| set).collect()
}

/// How many of these units a set touches.
pub(super) fn touched(units: &[Mask], set: Mask) -> u32 {
    let mut rest = set;
    let mut number = 0;
    for unit in units {
        if unit & rest != 0 {
            number += 1;
            rest &= !unit;
            if rest == 0 {
                break;
            }
        }
    }
    number
}

/// The state of a host's GPUs that GPUs are chosen from.
pub(super) struct Slots<'a> {
    pub(super) topology: &'a Topology,
    pub(super) gpus: Row<'a>,
    /// NVSwitches that a partition may take; in the shared model, where guests get none, those that
    /// an admin excluded, since the partitions that use them are excluded, too.
    pub(super) switches: Row<'a>,
    /// A GPU that an address takes now, though no number does.
    pub(super) by_address: Option<(Bdf, SetAside)>,
    /// The reasons why NVLink partitions cannot be activated.
    pub(super) readiness: &'a Readiness,
    pub(super) units: Units,
    /// GPUs that only go together, for each GPU: those of its IOMMU group.
    pub(super) together: Vec<Mask>,
    /// How guests get GPUs with their whole IOMMU group, if only that prevents them.
    pub(super) whole: Vec<(usize, String)>,
    /// Whether a GPU or a pool's NVSwitch shares its IOMMU group with another of them.
    pub(super) entangled: bool,
}

impl<'a> Slots<'a> {
    /// Examines every GPU, and the NVSwitches that matter.
    pub(super) fn new(topology: &'a Topology, homes: &Homes<'_>, taken: &Taken<'a>) -> Slots<'a> {
        let gpus = Row::new(topology, taken, topology.gpus().map(|gpu| gpu.bdf), taken.asked());
        let pools = topology.partitions().iter().flat_map(|partition| &partition.nvswitch_pool);
        let mut pools: Vec<Bdf> = pools.copied().collect();
        if topology.fabric().model == FabricModel::SharedNvswitch {
            pools.extend(taken.withdrawn_switches());
        }
        pools.sort_unstable();
        pools.dedup();
        let switches = Row::new(topology, taken, pools.into_iter(), &[]);
        let units = Units::new(topology, homes, &gpus.bdfs);
        let group = |bdf: &Bdf| topology.device(*bdf).and_then(|device| device.iommu_group);
        let of: Vec<Option<u32>> = gpus.bdfs.iter().map(group).collect();
        let mut known: Vec<u32> =
            of.iter().copied().chain(switches.bdfs.iter().map(group)).flatten().collect();
        let all = known.len();
        known.sort_unstable();
        known.dedup();
        let entangled = known.len() < all;
        let same = |at: usize| match of[at] {
            Some(number) if entangled => {
                let others = (0..of.len()).filter(|&other| of[other] == Some(number));
                others.fold(0, |set, other| set | 1 << other)
            }
            _ => 1 << at,
        };
        let together = (0..of.len()).map(same).collect();
        let readiness = taken.readiness;
        let aside = || topology.all_aside().map(|(gpu, why)| (gpu.bdf, why));
        let is_free = |(bdf, _): &(Bdf, SetAside)| groups::block(topology, taken, *bdf).is_none();
        // Only a host without other GPUs offers it.
        let by_address = if gpus.counted == 0 { aside().find(is_free) } else { None };
        let whole = whole_groups(topology, taken, &gpus);
        Slots { topology, gpus, by_address, switches, readiness, units, together, entangled, whole }
    }
}

/// How guests get GPUs that only NICs or drives of their IOMMU groups prevent, by index.
fn whole_groups(topology: &Topology, taken: &Taken<'_>, row: &Row<'_>) -> Vec<(usize, String)> {
    let is_tied = |at: &usize| row.blocked[*at].as_ref().is_some_and(Block::is_tied);
    let tied = (0..row.bdfs.len()).filter(is_tied);
    let whole = |at| Some((at, groups::whole_group_now(topology, taken, row.bdfs[at])?));
    tied.filter_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_read_as_numbers() {
        assert_eq!(bits(0b1011).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(bits(Mask::MAX).count(), MOST);
        assert_eq!(bits(0).count(), 0);
        assert_eq!((first(0), first(3), first(128)), (0, 0b111, Mask::MAX));
        assert_eq!(units(["a", "b", "a"].iter()), [0b101, 0b010]);
        assert_eq!((touched(&[0b101, 0b010], 0b100), touched(&[0b101, 0b010], 0b110)), (1, 2));
    }

    #[test]
    fn a_dgx2_is_two_packages_four_roots_and_eight_switches() {
        let host = crate::placement::tests::dgx2();
        let held = crate::placement::Occupancy::default();
        let (homes, taken) = (Homes::new(&host, 0), Taken::new(&host, &held));
        let slots = Slots::new(&host, &homes, &taken);
        let units = &slots.units;
        assert_eq!((units.packages.len(), units.nodes.len()), (2, 2));
        assert_eq!((units.roots.len(), units.switches.len()), (4, 8));
        assert_eq!((slots.gpus.free, units.switched), (first(16), first(16)));
        assert_eq!(slots.switches.free, first(12));
    }
}
