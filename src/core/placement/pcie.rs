//! The guest's PCIe tree: one expander bus for each host bridge of each cell that owns devices, so
//! that a guest distinguishes functions of one host bridge (PHB) from those of one node (NODE) as
//! the host does; and below it each GPU next to the NICs and drives of its PCIe switch. Knows
//! addresses and nodes, not XML.

use super::affinity::Homes;
use super::cover::Beside;
use super::cpus::GuestCpus;
use super::explain::Reasons;
use super::reason::{Topic, TreeReason};
use super::types::{GuestPcie, PcieGroup, PcieLink};
use crate::bdf::Bdf;
use crate::topology::vendor::VENDOR_ATI;
use crate::topology::{DeviceKind, PciDevice, Proximity, Topology, Way};
use std::borrow::Cow;

/// The most expander buses of a guest with one for each host bridge: each takes one of the 29 slots
/// of the root bus that q35 leaves, and the root ports of disks and NICs take the others, eight a
/// slot. A guest with more gets one for each cell.
const MOST_BUSES: usize = 16;

/// Groups devices by the cell of their host node; those without a cell come last.
pub(super) fn tree(
    topology: &Topology,
    homes: &Homes<'_>,
    devices: &[Bdf],
    cpus: &GuestCpus,
    reasons: &mut Reasons,
) -> GuestPcie {
    // With one cell everything is near, wherever it is on the host.
    let only = (cpus.cells.len() == 1).then_some(0);
    let on = |bdf: Bdf| {
        let node = homes.of_device(bdf)?;
        cpus.cells.iter().position(|(own, _)| *own == Some(node))
    };
    let cell = |bdf: Bdf| only.or_else(|| on(bdf));
    let mut groups: Vec<PcieGroup> = Vec::new();
    for at in (0..cpus.cells.len()).map(Some).chain([None]) {
        let own: Vec<Bdf> = devices.iter().copied().filter(|&bdf| cell(bdf) == at).collect();
        if !own.is_empty() {
            let index = at.map(|at| u32::try_from(at).expect("cells are few"));
            groups.push(PcieGroup { cell: index, devices: own });
        }
    }
    for group in &groups {
        match group.cell {
            Some(_) => {
                let bound = only.is_some_and(|at| cpus.cells[at].0.is_some());
                let is_away =
                    |bdf: &Bdf| bound && homes.of_device(*bdf).is_some() && on(*bdf).is_none();
                let away: Vec<Bdf> = group.devices.iter().copied().filter(is_away).collect();
                if !away.is_empty() {
                    reasons.compromise(Topic::Pcie, TreeReason::Away { devices: away });
                }
            }
            None if cpus.cells.iter().all(|(node, _)| node.is_none()) => {}
            None => {
                let (unknown, far): (Vec<Bdf>, Vec<Bdf>) =
                    group.devices.iter().partition(|bdf| homes.of_device(**bdf).is_none());
                for (devices, is_known) in [(far, true), (unknown, false)] {
                    if !devices.is_empty() {
                        reasons.compromise(Topic::Pcie, TreeReason::NearNone { devices, is_known });
                    }
                }
            }
        }
    }
    let groups = by_bridge(topology, groups);
    let links = devices.iter().filter_map(|&bdf| link(topology, bdf)).collect();
    let beside_gpu = beside_gpu(topology, devices);
    let tree = GuestPcie { groups, links, cliques: Vec::new(), beside_gpu };
    let floats = cpus.cells.iter().all(|(node, _)| node.is_none());
    for group in tree.groups.iter().filter(|group| group.cell.is_some() || floats) {
        let (devices, ports, cell) = (group.devices.clone(), tree.ports_of(group), group.cell);
        reasons.say(Topic::Pcie, TreeReason::Bus { devices, ports, cell });
    }
    tree
}

/// Returns the functions of these that share the slot of a GPU which is its function 0. Not those
/// of AMD's: QEMU offers PCIe atomics, which its compute needs, only to a function that is alone in
/// its slot (`vfio_pci_enable_rp_atomics` of QEMU 8.1).
fn beside_gpu(topology: &Topology, devices: &[Bdf]) -> Vec<Bdf> {
    let kind = |bdf: Bdf| topology.device(bdf).map(PciDevice::kind);
    let is_first = |of: Bdf, bdf: Bdf| {
        let is_amds = topology.device(bdf).is_some_and(|device| device.vendor == VENDOR_ATI);
        bdf.function() == 0 && bdf.is_of_slot(of) && kind(bdf) == Some(DeviceKind::Gpu) && !is_amds
    };
    let is_beside = |of: &Bdf| {
        of.function() > 0
            && kind(*of) == Some(DeviceKind::Other)
            && devices.iter().any(|&bdf| is_first(*of, bdf))
    };
    devices.iter().copied().filter(is_beside).collect()
}

/// Divides the groups of cells by host bridge, the bridge of a cell's first device first; if these
/// would be too many, the groups stay.
fn by_bridge(topology: &Topology, cells: Vec<PcieGroup>) -> Vec<PcieGroup> {
    // A GPU with coherent memory has an SMMUv3 of its own, which serves all of an expander bus.
    let is_alone = |bdf: Bdf| topology.is_coherent(bdf);
    let mut divided: Vec<(Option<Cow<'_, str>>, PcieGroup)> = Vec::new();
    for PcieGroup { cell, devices } in &cells {
        for &bdf in devices {
            let bridge = topology.host_bridge(bdf);
            let same = |(of, group): &&mut (Option<Cow<'_, str>>, PcieGroup)| {
                let is_shared = !is_alone(bdf) && !group.devices.iter().any(|&one| is_alone(one));
                *of == bridge && group.cell == *cell && is_shared
            };
            match divided.iter_mut().find(same) {
                Some((_, group)) => group.devices.push(bdf),
                None => divided.push((bridge, PcieGroup { cell: *cell, devices: vec![bdf] })),
            }
        }
    }
    let groups = match divided.len() {
        0..=MOST_BUSES => divided.into_iter().map(|(_, group)| group).collect(),
        _ => cells,
    };
    let sorted =
        |group: PcieGroup| PcieGroup { devices: by_switch(topology, group.devices), ..group };
    groups.into_iter().map(sorted).collect()
}

/// Returns the best link of the path to a device: the minimum of the links that the device and each
/// bridge above it support. Both ends of a link report it; counting it twice changes nothing. None
/// if any part is unknown.
fn link(topology: &Topology, device: Bdf) -> Option<PcieLink> {
    let mut least: Option<PcieLink> = None;
    for function in topology.way_up(device) {
        let link = function.link_max.as_ref()?;
        let (speed_dgts, width) = (link.speed_dgts?, link.width?);
        let before = least.unwrap_or(PcieLink { device, speed_dgts, width });
        least = Some(PcieLink {
            device,
            speed_dgts: before.speed_dgts.min(speed_dgts),
            width: before.width.min(width),
        });
    }
    least
}

/// Puts the NICs and drives of a PCIe switch after its GPUs. GPUs keep their order, so that the
/// guest numbers them as the host does; devices below no GPU's switch come last, NVSwitches first.
fn by_switch(topology: &Topology, devices: Vec<Bdf>) -> Vec<Bdf> {
    let is_extra = |kind| matches!(kind, DeviceKind::Nic | DeviceKind::Nvme);
    let kind = |bdf: &Bdf| topology.device(*bdf).map(PciDevice::kind);
    if !devices.iter().filter_map(kind).any(is_extra) {
        return devices;
    }
    let ways = devices.iter().filter_map(|&bdf| Some((bdf, topology.device(bdf)?)));
    let ways = ways.map(|(bdf, device)| (bdf, device.kind(), topology.way(device)));
    let (gpus, others): (Vec<_>, Vec<_>) = ways.partition(|(_, kind, _)| *kind == DeviceKind::Gpu);
    if gpus.is_empty() {
        return devices;
    }
    // Successive GPUs of one switch stay together: each device goes after the last of them.
    let same_switch = |a: &Way<'_>, b: &Way<'_>| a.over_pcie(b) <= Proximity::Pix;
    let behind = |kind: DeviceKind, way: &Way<'_>| {
        let nearest = (0..gpus.len()).min_by_key(|&at| (gpus[at].2.over_pcie(way), at))?;
        if !is_extra(kind) || Beside::new(&gpus[nearest].2, Some(way)).distance() > 0 {
            return None;
        }
        let run = gpus[nearest..].windows(2).take_while(|pair| same_switch(&pair[0].2, &pair[1].2));
        Some(nearest + run.count())
    };
    let mut placed: Vec<(usize, Bdf)> =
        gpus.iter().enumerate().map(|(at, (bdf, ..))| (at, *bdf)).collect();
    placed.extend(
        others.iter().map(|(bdf, kind, way)| (behind(*kind, way).unwrap_or(gpus.len()), *bdf)),
    );
    // The sort is stable: of one switch the GPU is first.
    placed.sort_by_key(|(at, _)| *at);
    placed.into_iter().map(|(_, bdf)| bdf).collect()
}
