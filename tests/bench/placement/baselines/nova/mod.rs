//! Nova: host cells sorted, the first permutation that fits, cores packed, devices from pools
//! (gpuvm-placement(7), OTHER PLANNERS).
//!
//! A flavour is made for the size of guest: it has one guest cell where an empty node can hold the
//! guest, else the fewest cells that can ([`Host::cells_for`]). The emulator shares the guest's
//! pcpus, as by default.

mod cases;
mod pack;
mod pci;

use super::super::model::{Ask, Place, Policy};
use super::host::{Host, parts};
pub use cases::case;
use gpuvm_core::memsize::MemSize;
use gpuvm_core::topology::Topology;
use pack::{Packed, ThreadPolicy, pack};
use pci::{Affinity, Got};
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy)]
struct Nova {
    /// `packing_host_numa_cells_allocation_strategy`; false, the default, spreads.
    packing: bool,
    affinity: Affinity,
}

/// The option sets of the table.
pub fn variants() -> Vec<Box<dyn Policy>> {
    let nova = |packing, affinity| Box::new(Nova { packing, affinity }) as Box<dyn Policy>;
    vec![
        nova(false, Affinity::Legacy),
        nova(true, Affinity::Legacy),
        nova(false, Affinity::Preferred),
        nova(true, Affinity::Preferred),
    ]
}

impl Policy for Nova {
    fn name(&self) -> String {
        let strategy = if self.packing { "pack" } else { "spread" };
        match self.affinity {
            Affinity::Required => format!("nova {strategy}, required"),
            Affinity::Legacy => format!("nova {strategy}"),
            Affinity::Preferred => format!("nova {strategy}, preferred"),
        }
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["L3 groups", "PCIe switches", "NVLink partitions", "NICs on the GPU's switch"]
    }

    fn place(&self, topology: &Topology, guests: &[Place], ask: &Ask) -> Option<Place> {
        let host = Host::new(topology, guests);
        let cells = host.cells_for(ask)?;
        let vcpus = parts(u64::from(ask.vcpus), cells);
        let sizes = parts(ask.memory.kib(), cells);
        let wanted: Vec<Cell> = vcpus
            .into_iter()
            .zip(sizes)
            .map(|(vcpus, kib)| Cell { vcpus, memory: MemSize::from_kib(kib) })
            .collect();
        let Fitted { cells, devices } = self.fit(&host, ask, &wanted)?;
        let threads: Vec<usize> =
            cells.iter().flat_map(|(_, packed)| packed.threads.iter().copied()).collect();
        let nodes = cells.iter().map(|(node, _)| host.nodes[*node].id);
        Some(Place {
            along: host.switches(&devices.gpus).unwrap_or_default(),
            memory: nodes.zip(&wanted).map(|(id, cell)| (id, cell.memory)).collect(),
            pins: host.pins(&threads),
            gpus: devices.gpus,
            nics: devices.nics,
            nvmes: devices.nvmes,
            ..Place::default()
        })
    }
}

/// One guest cell of a flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    vcpus: u64,
    memory: MemSize,
}

struct Fitted {
    /// Node and pins of each guest cell.
    cells: Vec<(usize, Packed)>,
    devices: Got,
}

/// The search for the first permutation of host cells that fits.
struct Search<'s> {
    host: &'s Host<'s>,
    ask: &'s Ask,
    wanted: &'s [Cell],
    /// How each guest cell fits each host cell, by guest cell and place in the order; looked up
    /// once.
    pairs: Vec<Vec<Option<Option<Packed>>>>,
    order: Vec<usize>,
    /// Sets of host cells without the devices.
    bare: BTreeSet<Vec<usize>>,
    affinity: Affinity,
}

impl Nova {
    /// Finds the first permutation that fits.
    fn fit(&self, host: &Host<'_>, ask: &Ask, wanted: &[Cell]) -> Option<Fitted> {
        let order = self.order(host, wanted.len(), ask.gpus + ask.nics + ask.nvmes > 0);
        let mut search = Search {
            host,
            ask,
            wanted,
            pairs: vec![vec![None; order.len()]; wanted.len()],
            order,
            bare: BTreeSet::new(),
            affinity: self.affinity,
        };
        let (chosen, devices) = search.next(&mut Vec::new())?;
        let cell = |(guest, place): (usize, &usize)| {
            let packed = search.pairs[guest][*place].clone().flatten();
            packed.map(|packed| (search.order[*place], packed))
        };
        let cells = chosen.iter().enumerate().map(cell).collect::<Option<Vec<_>>>()?;
        Some(Fitted { cells, devices })
    }

    /// Host cells in the order of the search: by three stable sorts, the last one dominating, where
    /// there are more than guest cells. Packing does not turn the last one round. Cells without
    /// pcpus can never fit.
    fn order(&self, host: &Host<'_>, guest_cells: usize, wants_devices: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..host.nodes.len()).collect();
        if order.len() > guest_cells {
            let turned = |value: u64| if self.packing { value } else { u64::MAX - value };
            order.sort_by_key(|&node| turned(host.nodes[node].free.kib()));
            order.sort_by_cached_key(|&node| turned(host.free_threads(node) as u64));
            order.sort_by_cached_key(|&node| {
                let devices = pci::free_on(host, node) as u64;
                if wants_devices { u64::MAX - devices } else { devices }
            });
        }
        order.retain(|&node| !host.nodes[node].cores.is_empty());
        order
    }
}

impl Search<'_> {
    /// Continues from these indexes in the order, one for each guest cell so far.
    fn next(&mut self, chosen: &mut Vec<usize>) -> Option<(Vec<usize>, Got)> {
        if chosen.len() == self.wanted.len() {
            let mut cells: Vec<usize> = chosen.iter().map(|&place| self.order[place]).collect();
            cells.sort_unstable();
            if self.bare.contains(&cells) {
                return None;
            }
            let got = pci::consume(self.host, self.ask, &cells, self.affinity);
            if got.is_none() {
                self.bare.insert(cells);
            }
            return got.map(|got| (chosen.clone(), got));
        }
        for place in 0..self.order.len() {
            if chosen.contains(&place) || !self.fits(chosen.len(), place) {
                continue;
            }
            chosen.push(place);
            let found = self.next(chosen);
            if found.is_some() {
                return found;
            }
            chosen.pop();
            // With every host cell in use all permutations have the same set, and that has not the
            // devices.
            if !self.bare.is_empty() && self.wanted.len() == self.order.len() {
                return None;
            }
        }
        None
    }

    /// Whether a guest cell fits a host cell.
    fn fits(&mut self, guest: usize, place: usize) -> bool {
        let (host, wanted, node) = (self.host, self.wanted[guest], self.order[place]);
        // Most guest cells are as large as the one before, and then so is the answer.
        let before = guest.checked_sub(1).filter(|&other| self.wanted[other] == wanted);
        if let Some(known) = before.and_then(|other| self.pairs[other][place].clone()) {
            self.pairs[guest][place].get_or_insert(known);
        }
        let answer = self.pairs[guest][place].get_or_insert_with(|| {
            let vcpus = usize::try_from(wanted.vcpus).ok()?;
            if wanted.memory > host.nodes[node].free {
                return None;
            }
            let cores = &host.nodes[node].cores;
            let free: Vec<Vec<usize>> =
                cores.iter().map(|&core| host.free_of(core).collect()).collect();
            let smt = cores.iter().map(|&core| host.cores[core].threads.len()).max()?;
            pack(&free, smt, vcpus, ThreadPolicy::Prefer)
        });
        answer.is_some()
    }
}

#[cfg(test)]
mod vectors;
