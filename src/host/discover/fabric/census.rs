//! Counts the parts of an NVLink board on the PCI bus, dead ones included, and gives each GPU its
//! place.
//!
//! Does not know partitions, only which parts respond, which board each belongs to and which places
//! are empty.

use super::boards::{Board, Sets};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::vendor::VENDOR_NVIDIA;
use gpuvm_core::topology::{DeviceKind, Parts, PciDevice};
use std::collections::{BTreeMap, BTreeSet};

/// Every NVIDIA part on the bus.
pub struct Census<'a> {
    parts: &'a Parts,
    /// Functions by address.
    index: BTreeMap<Bdf, &'a PciDevice>,
    /// GPUs that respond, without virtual functions, by address.
    gpus: Vec<&'a PciDevice>,
    /// NVSwitches that respond, by address.
    switches: Vec<&'a PciDevice>,
    /// Functions without ids at the address of a GPU.
    dead_gpus: Vec<&'a PciDevice>,
    /// Functions without ids at the address of an NVSwitch.
    dead_switches: Vec<&'a PciDevice>,
}

/// The places of a known board's parts.
pub struct Layout {
    /// GPUs by place, board after board; `None` if missing or dead.
    pub slots: Vec<Option<Bdf>>,
    /// NVSwitches that respond, by board.
    pub switches: Vec<Vec<Bdf>>,
    /// Whether places and boards are known; otherwise the GPUs come first, by address.
    pub placed: bool,
    /// Whether a switch of the plan does not respond.
    pub switches_missing: bool,
    /// Descriptions of missing parts.
    pub missing: Vec<String>,
}

impl<'a> Census<'a> {
    /// Counts a host's parts.
    pub fn take(parts: &'a Parts) -> Census<'a> {
        let index = parts.devices.iter().map(|device| (device.bdf, device)).collect();
        let mut census = Census {
            parts,
            index,
            gpus: Vec::new(),
            switches: Vec::new(),
            dead_gpus: Vec::new(),
            dead_switches: Vec::new(),
        };
        let mut dead = Vec::new();
        for device in &parts.devices {
            let virtual_function = device.is_vf();
            match device.kind() {
                DeviceKind::NvSwitch => census.switches.push(device),
                DeviceKind::Gpu if device.vendor == VENDOR_NVIDIA && !virtual_function => {
                    census.gpus.push(device);
                }
                // A dead function reads as zeros or as ones.
                _ if matches!(device.vendor, 0 | 0xffff) && !virtual_function => dead.push(device),
                _ => {}
            }
        }
        census.gpus.sort_by_key(|device| device.bdf);
        census.switches.sort_by_key(|device| device.bdf);
        census.classify(dead);
        census
    }

    /// Classifies each dead function by its neighbours behind the nearest common bridge.
    fn classify(&mut self, dead: Vec<&'a PciDevice>) {
        if dead.is_empty() {
            return;
        }
        let mut below: BTreeMap<Bdf, (bool, bool)> = BTreeMap::new();
        for (devices, is_gpu) in [(&self.gpus, true), (&self.switches, false)] {
            for bridge in devices.iter().flat_map(|device| self.bridges(device)) {
                let (gpu, switch) = below.entry(bridge).or_default();
                *gpu |= is_gpu;
                *switch |= !is_gpu;
            }
        }
        for device in dead {
            let bridges = self.bridges(device);
            match bridges.iter().rev().find_map(|bridge| below.get(bridge)) {
                Some((true, false)) => self.dead_gpus.push(device),
                Some((false, true)) => self.dead_switches.push(device),
                _ => {}
            }
        }
    }

    /// The bridges above a function, root port first.
    fn bridges(&self, device: &PciDevice) -> Vec<Bdf> {
        let mut bridges = Vec::new();
        let mut above = device.parent;
        while let Some(bdf) = above.filter(|_| bridges.len() < 32) {
            bridges.push(bdf);
            above = self.index.get(&bdf).and_then(|bridge| bridge.parent);
        }
        bridges.reverse();
        bridges
    }

    /// The driver of a function.
    pub fn driver(&self, bdf: Bdf) -> Option<&'a str> {
        self.index.get(&bdf)?.driver.as_deref()
    }

    /// Counts responding GPUs that a board may carry.
    pub fn gpus_of(&self, board: &Board) -> usize {
        self.gpus.iter().filter(|gpu| board.gpu_ids.contains(&gpu.device)).count()
    }

    /// NVSwitches, dead ones included.
    pub fn all_switches(&self) -> usize {
        self.switches.len() + self.dead_switches.len()
    }

    /// GPUs that a board may carry, dead ones included.
    pub fn all_gpus(&self, board: &Board) -> usize {
        self.gpus_of(board) + self.dead_gpus.len()
    }

    /// Gives each part its place on `count` boards.
    pub fn layout(&self, board: &Board, count: usize) -> Layout {
        let alive: Vec<&PciDevice> =
            self.gpus.iter().copied().filter(|gpu| board.gpu_ids.contains(&gpu.device)).collect();
        let by_address = |alive: &[&'a PciDevice], dead: &[&'a PciDevice]| {
            let mut all: Vec<_> = alive.iter().map(|d| (*d, true)).collect();
            all.extend(dead.iter().map(|d| (*d, false)));
            all.sort_by_key(|(device, _)| device.bdf);
            all
        };
        let gpus = by_address(&alive, &self.dead_gpus);
        let switches = by_address(&self.switches, &self.dead_switches);
        let split = self.split(board, count, &gpus, &switches);
        let slots = split.as_ref().and_then(|(gpus, _)| {
            let placed: Option<Vec<_>> = gpus.iter().map(|part| self.place(board, part)).collect();
            placed.map(|boards| boards.concat())
        });
        let placed = slots.is_some();
        let slots = slots.unwrap_or_else(|| {
            let mut slots: Vec<Option<Bdf>> = alive.iter().map(|gpu| Some(gpu.bdf)).collect();
            slots.resize(board.gpus * count, None);
            slots
        });
        let working = |part: &Vec<(&PciDevice, bool)>| {
            part.iter().filter(|(_, alive)| *alive).map(|(device, _)| device.bdf).collect()
        };
        let switches = match split {
            Some((_, switches)) => switches.iter().map(working).collect(),
            None => vec![Vec::new(); count],
        };
        Layout {
            slots,
            switches,
            placed,
            switches_missing: self.switches.len() < board.switches * count,
            missing: self.missing(alive.len(), board, count),
        }
    }

    /// Splits parts by board: by package if each board is on one, otherwise by address if all are
    /// present.
    #[allow(clippy::type_complexity)] // GPUs and switches, by board, each with whether it answers
    fn split<'b>(
        &self,
        board: &Board,
        count: usize,
        gpus: &[(&'b PciDevice, bool)],
        switches: &[(&'b PciDevice, bool)],
    ) -> Option<(Vec<Vec<(&'b PciDevice, bool)>>, Vec<Vec<(&'b PciDevice, bool)>>)> {
        if count == 1 {
            return Some((vec![gpus.to_vec()], vec![switches.to_vec()]));
        }
        let packages: BTreeSet<Option<u32>> =
            gpus.iter().chain(switches).map(|(device, _)| self.package(device)).collect();
        if packages.len() == count && !packages.contains(&None) {
            let split = |all: &[(&'b PciDevice, bool)]| {
                let of = |package: &Option<u32>| {
                    let package = *package;
                    all.iter().copied().filter(move |(d, _)| self.package(d) == package).collect()
                };
                packages.iter().map(of).collect()
            };
            return Some((split(gpus), split(switches)));
        }
        let whole = gpus.len() == board.gpus * count && switches.len() == board.switches * count;
        whole.then(|| {
            let chunks = |all: &[(&'b PciDevice, bool)], size: usize| {
                all.chunks(size.max(1)).map(<[_]>::to_vec).collect()
            };
            (chunks(gpus, board.gpus), chunks(switches, board.switches))
        })
    }

    /// The package that a function is near to.
    fn package(&self, device: &PciDevice) -> Option<u32> {
        let node = device.node?;
        self.parts.cores.iter().find(|core| core.node == node).map(|core| core.package)
    }

    /// Gives the GPUs of one board their places. If some are gone from the bus, the others are
    /// placed by the PCIe tree, in pairs and fours; which half of a broken pair is empty does not
    /// matter to aligned runs.
    fn place(&self, board: &Board, gpus: &[(&PciDevice, bool)]) -> Option<Vec<Option<Bdf>>> {
        let bdf = |(device, alive): &(&PciDevice, bool)| alive.then_some(device.bdf);
        if gpus.len() == board.gpus {
            return Some(gpus.iter().map(bdf).collect());
        }
        // Only boards with run sizes between one GPU and all tolerate a guess: a mesh needs exact
        // places.
        let graded = matches!(board.sets, Sets::Switched { runs, .. } if runs.len() > 2);
        if gpus.len() > board.gpus || !graded {
            return None;
        }
        let paths: Vec<Vec<u64>> = gpus.iter().map(|(device, _)| self.near(device)).collect();
        let shared = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let depths: BTreeSet<usize> =
            paths.windows(2).map(|pair| shared(&pair[0], &pair[1])).collect();
        let mut depths = depths.iter().rev();
        let (pair, four) = (*depths.next()?, *depths.next()?);
        let mut slots = vec![None; board.gpus];
        let mut next = 0;
        for (position, gpu) in gpus.iter().enumerate() {
            if let Some(before) = position.checked_sub(1) {
                let depth = shared(&paths[before], &paths[position]);
                let run = if depth >= pair {
                    1
                } else if depth >= four {
                    2
                } else {
                    4
                };
                next = (next / run + 1) * run;
            }
            *slots.get_mut(next)? = bdf(gpu);
        }
        Some(slots)
    }

    /// Returns the ancestors of a GPU, outermost first: package, then each bridge.
    fn near(&self, device: &PciDevice) -> Vec<u64> {
        let package = self.package(device).map_or(u64::MAX, u64::from);
        let number = |bdf: Bdf| {
            let (bus, device) = (u64::from(bdf.bus()), u64::from(bdf.device()));
            u64::from(bdf.segment()) << 16 | bus << 8 | device << 3 | u64::from(bdf.function())
        };
        std::iter::once(package).chain(self.bridges(device).into_iter().map(number)).collect()
    }

    /// Describes the parts missing from `count` boards if `gpus` respond.
    fn missing(&self, gpus: usize, board: &Board, count: usize) -> Vec<String> {
        let mut missing = Vec::new();
        for (kind, dead) in [("GPU", &self.dead_gpus), ("NVSwitch", &self.dead_switches)] {
            for device in dead {
                let PciDevice { bdf, vendor, device, .. } = device;
                missing
                    .push(format!("{kind} {bdf} does not answer: ids {vendor:04x}:{device:04x}"));
            }
        }
        let found = [
            (gpus, board.gpus * count, "GPUs"),
            (self.switches.len(), board.switches * count, "NVSwitches"),
        ];
        for (found, planned, kind) in found {
            if found < planned {
                missing.push(format!("{found} of {planned} {kind} answer"));
            }
        }
        missing
    }
}
