//! The guest's PCIe tree: one expander bus for each cell that owns devices. Knows addresses and nodes, not XML.

use super::cpus::GuestCpus;
use super::explain::{Reasons, count, list};
use super::home::Homes;
use super::{GuestPcie, PcieGroup};
use crate::bdf::Bdf;

/// Groups devices by the cell that their host node is; those that belong to none come last.
pub(super) fn tree(
    homes: &Homes<'_>,
    devices: &[Bdf],
    cpus: &GuestCpus,
    reasons: &mut Reasons,
) -> GuestPcie {
    let cell = |bdf: Bdf| {
        let node = homes.of_device(bdf)?;
        cpus.cells.iter().position(|(own, _)| *own == Some(node))
    };
    let mut groups: Vec<PcieGroup> = Vec::new();
    for at in (0..cpus.cells.len()).map(Some).chain([None]) {
        let own: Vec<Bdf> = devices.iter().copied().filter(|&bdf| cell(bdf) == at).collect();
        if !own.is_empty() {
            let index = at.map(|at| u32::try_from(at).expect("cells are few"));
            groups.push(PcieGroup { cell: index, devices: own });
        }
    }
    for group in &groups {
        let each = format!("{}, a root port each", count(group.devices.len(), "device"));
        match group.cell {
            Some(cell) => {
                reasons.say("pcie", format!("{each}, below an expander bus of cell {cell}"))
            }
            None if cpus.cells.iter().all(|(node, _)| node.is_none()) => {
                reasons.say(
                    "pcie",
                    format!("{each}, below an expander bus of no cell: cells are bound to no node"),
                );
            }
            None => {
                let text = format!(
                    "{}: no cell is on their node, so the guest sees them near none",
                    list(&group.devices)
                );
                reasons.compromise("pcie", text);
            }
        }
    }
    GuestPcie { groups }
}
