//! Builds the elements from a guest's functions and the host's switches above them.
//!
//! NCCL climbs sysfs two levels at a time, from a function to the upstream port of the switch above
//! it, and stops at a root complex; so a switch is one element, its upstream port, and a root port
//! none. A switch with one function of the guest below it is left out: nothing is shared there, and
//! paths stay the same.

use super::cells::Cells;
use super::link::{PcieLink, between, slowest};
use super::{About, Cpu, Function, NcclError, Note, Pci, SwitchIds, System};
use crate::bdf::Bdf;
use crate::check::guest::Guest;
use crate::topology::{DeviceKind, Link, PciDevice, Sriov, Topology};
use crate::words;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A function with its path to the root complex.
struct Branch<'f, 'h> {
    function: &'f Function<'h>,
    /// It and the bridges above it, the root port last.
    path: Vec<Bdf>,
    /// Places in the path of the switches that are written, the outermost first.
    switches: Vec<usize>,
}

/// Builds the elements.
pub fn build(
    functions: &[Function<'_>],
    guest: &Guest<'_>,
    host: &Topology,
    notes: &mut Vec<Note>,
) -> Result<System, NcclError> {
    let (branches, left_out) = branches(functions, host)?;
    if left_out > 0 {
        let switches = words::count(left_out, "switch");
        let says =
            format!("left out: {switches} of the host with only one device of this guest below");
        notes.push(Note { about: About::Switches, says, compromise: false });
    }
    let cells = Cells::new(guest, host);
    cells.note_missing(functions, notes);
    // Functions sharing a switch stay together, whatever cells the guest sees them in.
    let mut of_switch: BTreeMap<Bdf, u32> = BTreeMap::new();
    let mut by_cell: BTreeMap<u32, Vec<&Branch<'_, '_>>> = BTreeMap::new();
    for branch in &branches {
        let own = cells.of(branch.function, notes);
        let outermost = branch.switches.first().map(|&place| branch.path[place]);
        let cell = outermost.map_or(own, |switch| *of_switch.entry(switch).or_insert(own));
        by_cell.entry(cell).or_default().push(branch);
    }
    let mut builder = Builder { host, switches: 0, notes };
    let cpus = by_cell
        .into_iter()
        .map(|(numaid, branches)| Ok(Cpu { numaid, below: builder.level(&branches, 0)? }));
    Ok(System { cpus: cpus.collect::<Result<_, _>>()? })
}

/// Returns the path of every function, and how many switches are left out.
fn branches<'f, 'h>(
    functions: &'f [Function<'h>],
    host: &Topology,
) -> Result<(Vec<Branch<'f, 'h>>, usize), NcclError> {
    let mut branches = Vec::new();
    let mut users: BTreeMap<Bdf, usize> = BTreeMap::new();
    for function in functions {
        let bdf = function.host.bdf;
        let path = host.path_to_root(bdf);
        let top = path.last().and_then(|top| host.device(*top));
        let ends_at_root =
            |top: &PciDevice| top.root.is_some() || (top.bdf != bdf && is_bridge(top));
        if !top.is_some_and(ends_at_root) {
            return Err(NcclError::UnknownPath { bdf });
        }
        let switches: Vec<usize> = (2..path.len().saturating_sub(1)).step_by(2).rev().collect();
        for &place in &switches {
            *users.entry(path[place]).or_default() += 1;
        }
        branches.push(Branch { function, path, switches });
    }
    for Branch { path, switches, .. } in &mut branches {
        switches.retain(|&place| users[&path[place]] > 1);
    }
    let alone = users.values().filter(|users| **users == 1).count();
    Ok((branches, alone))
}

/// Whether a function is a bridge.
fn is_bridge(device: &PciDevice) -> bool {
    device.kind() == DeviceKind::Bridge
}

/// A tree of elements being built.
struct Builder<'b> {
    host: &'b Topology,
    /// How many switches have been assigned an address.
    switches: usize,
    notes: &'b mut Vec<Note>,
}

impl Builder<'_> {
    /// Builds the elements of one level, with `depth` switches above them.
    fn level(&mut self, branches: &[&Branch<'_, '_>], depth: usize) -> Result<Vec<Pci>, NcclError> {
        let mut elements = Vec::new();
        let at = |branch: &Branch<'_, '_>| branch.switches.get(depth).map(|&p| branch.path[p]);
        let switches: BTreeSet<Bdf> = branches.iter().filter_map(|branch| at(branch)).collect();
        for switch in switches {
            let below: Vec<_> =
                branches.iter().copied().filter(|branch| at(branch) == Some(switch)).collect();
            let busid = self.next_address()?;
            let first = below[0];
            let ports = first.switches[depth]..first.end_of(depth.checked_sub(1));
            let link = self.link(first, ports, switch);
            let device = self.host.device(switch).expect("it is on a path of the host's");
            elements.push(Pci {
                busid,
                host: switch,
                class: class(device),
                link,
                ids: Some(ids(device)),
                below: self.level(&below, depth + 1)?,
            });
        }
        for branch in branches.iter().filter(|branch| at(branch).is_none()) {
            let ports = 0..branch.end_of(depth.checked_sub(1));
            let Function { host: device, guest, .. } = branch.function;
            elements.push(Pci {
                busid: *guest,
                host: device.bdf,
                class: class(device),
                link: self.link(branch, ports, device.bdf),
                ids: None,
                below: Vec::new(),
            });
        }
        Ok(elements)
    }

    /// Returns the next address that no guest has: its segment is ffff, and a guest's is 0.
    fn next_address(&mut self) -> Result<Bdf, NcclError> {
        /// Devices 01 to 1f; then the same with the next function.
        const DEVICES: usize = 31;
        let (function, device) = (self.switches / DEVICES, self.switches % DEVICES + 1);
        self.switches += 1;
        let (count, most) = (self.switches, DEVICES * 8);
        let too_large = || NcclError::TooLarge { count, what: "switches", most };
        let narrow = |number: usize| u8::try_from(number).map_err(|_| too_large());
        Bdf::new(0xffff, 0xff, narrow(device)?, narrow(function)?).map_err(|_| too_large())
    }

    /// Returns the slowest link between these places of a path; the downstream end of each is at an
    /// even place. `of`: the element, on the host.
    fn link(&mut self, branch: &Branch<'_, '_>, ports: Range<usize>, of: Bdf) -> PcieLink {
        let ends = branch.path[ports].chunks(2);
        let links = ends.map(|ends| {
            let best = |at: usize| ends.get(at).and_then(|bdf| best_link(self.host, *bdf));
            between(best(0), best(1))
        });
        let link = PcieLink::new(&slowest(links));
        if !link.is_known() {
            // For an existing function, NCCL reads missing attributes from the guest.
            let then = if of == branch.path[0] {
                "NCCL uses what the guest shows"
            } else {
                "NCCL assumes 16 lanes of 8 GT/s"
            };
            let says =
                format!("the host's record lacks the link speed or width above {of}: {then}");
            self.notes.push(Note { about: About::Link, says, compromise: true });
        }
        link
    }
}

impl Branch<'_, '_> {
    /// Returns where the links of an element end: at the switch above it, or at the end of the
    /// path.
    fn end_of(&self, above: Option<usize>) -> usize {
        above.map_or(self.path.len(), |above| self.switches[above])
    }
}

/// Returns the best link that a function supports; for a virtual function its card's, since it
/// reports none.
fn best_link(host: &Topology, bdf: Bdf) -> Option<&Link> {
    let device = host.device(bdf)?;
    match &device.sriov {
        Some(Sriov::Vf { pf }) => host.device(*pf)?.link_max.as_ref(),
        _ => device.link_max.as_ref(),
    }
}

/// The class of a function, as sysfs writes it.
fn class(device: &PciDevice) -> String {
    format!("{:#08x}", device.class)
}

fn ids(device: &PciDevice) -> SwitchIds {
    let text = |id: u16| format!("{id:#06x}");
    SwitchIds {
        vendor: text(device.vendor),
        device: text(device.device),
        subsystem_vendor: text(device.subsystem_vendor),
        subsystem_device: text(device.subsystem_device),
    }
}
