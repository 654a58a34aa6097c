//! The cores of a node, by L3 cache; on hosts with many cores one bar for each cache.

use super::{Area, PAD, Sources};
use crate::cpuset::{CpuSet, PcpuId};
use crate::topology::{Core, NumaNode, Topology};
use crate::view::guests::Use;
use std::collections::{BTreeMap, BTreeSet};

/// The most cores that are drawn; above, there is one bar for each L3 cache.
pub(super) const MOST_CORES: usize = 512;
const THREAD: u32 = 24;
const HEIGHT: u32 = 40;
const GAP: u32 = 3;
/// Height of a bar in place of cores.
const BAR: u32 = 18;

/// The cores below an L3 cache.
#[derive(Debug)]
pub struct Cache {
    /// Its box.
    pub area: Area,
    /// Pcpus below it.
    pub pcpus: CpuSet,
    /// Its cores; empty where the bar replaces them.
    pub cores: Vec<CoreBox>,
    /// Where a bar replaces cores: how many pcpus each guest holds.
    pub shares: Vec<Share>,
}

/// A guest's part of a bar.
#[derive(Debug)]
pub struct Share {
    /// Its part of the bar.
    pub area: Area,
    /// The guest.
    pub guest: usize,
    /// Pcpus.
    pub pcpus: CpuSet,
}

/// A core.
#[derive(Debug)]
pub struct CoreBox {
    /// Its box.
    pub area: Area,
    /// Its pcpus.
    pub threads: Vec<Thread>,
    /// Its pcpus that are offline.
    pub offline: Vec<(Area, PcpuId)>,
}

/// A pcpu.
#[derive(Debug)]
pub struct Thread {
    /// Its part of the core.
    pub area: Area,
    /// Its number.
    pub pcpu: PcpuId,
    /// Who is on it; the first one gives letter and hue.
    pub uses: Vec<Use>,
    /// Whether the scheduler keeps off it (`isolcpus`).
    pub isolated: bool,
}

impl Sources<'_, '_> {
    /// The cores of a node in rows below a place, in at most this width.
    pub(super) fn caches(&self, node: &NumaNode, x: u32, y: u32, width: u32) -> Vec<Cache> {
        let mut groups: BTreeMap<Option<usize>, Vec<&Core>> = BTreeMap::new();
        for core in self.topology.cores_of(node.os_index) {
            let first = core.pcpus.first();
            let cache = first.and_then(|pcpu| self.topology.l3_place(pcpu));
            groups.entry(cache).or_default().push(core);
        }
        // By lowest pcpu, as in the record.
        let mut groups: Vec<Vec<&Core>> = groups.into_values().collect();
        groups.sort_by_key(|cores| cores.first().and_then(|core| core.pcpus.first()));
        let collapsed = self.topology.cores().len() > MOST_CORES;
        let mut caches = Vec::new();
        let (mut right, mut top, mut shelf) = (x, y, 0);
        for cores in groups {
            let cache = if collapsed { self.bar(&cores) } else { self.cores(&cores, width) };
            let Area { width: wide, height: high, .. } = cache.area;
            if right > x && right + wide > x + width {
                (right, top, shelf) = (x, top + shelf + PAD, 0);
            }
            caches.push(cache.moved(right, top));
            right += wide + PAD;
            shelf = shelf.max(high);
        }
        caches
    }

    /// Cores in rows, at 0, 0.
    fn cores(&self, cores: &[&Core], most: u32) -> Cache {
        let offline =
            |core: &Core| self.offline.get(&core.pcpus.first()).cloned().unwrap_or_default();
        let threads = cores.iter().map(|core| core.pcpus.len() + offline(core).len());
        let threads = threads.max().unwrap_or(1);
        let wide = THREAD * u32::try_from(threads).unwrap_or(1).max(1);
        let per_row = ((most - PAD) / (wide + GAP)).max(1) as usize;
        // Rows of one length look like the matrix that they are.
        let rows = cores.len().div_ceil(per_row).max(1);
        let per_row = cores.len().div_ceil(rows).max(1);
        let mut boxes = Vec::new();
        for (at, core) in cores.iter().enumerate() {
            let column = u32::try_from(at % per_row).expect("below the width");
            let row = u32::try_from(at / per_row).expect("at most 512 cores");
            let area =
                Area::new(GAP + column * (wide + GAP), GAP + row * (HEIGHT + GAP), wide, HEIGHT);
            let at = |place: u32| Area::new(area.x + place * THREAD, area.y, THREAD, HEIGHT);
            let threads = core.pcpus.iter().zip(0..).map(|(pcpu, place)| Thread {
                area: at(place),
                pcpu,
                uses: self.uses.get(&pcpu).cloned().unwrap_or_default(),
                isolated: self.topology.parts().isolated.contains(pcpu),
            });
            let behind = (0..).skip(core.pcpus.len());
            let offline = behind.zip(offline(core)).map(|(place, pcpu)| (at(place), pcpu));
            let (threads, offline) = (threads.collect(), offline.collect());
            boxes.push(CoreBox { area, threads, offline });
        }
        let right = boxes.iter().map(|core| core.area.right()).max().unwrap_or(0);
        let bottom = boxes.iter().map(|core| core.area.bottom()).max().unwrap_or(0);
        let area = Area::new(0, 0, right + GAP, bottom + GAP);
        Cache { area, pcpus: all(cores), cores: boxes, shares: Vec::new() }
    }

    /// A bar in place of cores, at 0, 0.
    fn bar(&self, cores: &[&Core]) -> Cache {
        let pcpus = all(cores);
        let area = Area::new(0, 0, (super::LEFT - PAD) / 2, BAR);
        let mut by_guest: BTreeMap<usize, CpuSet> = BTreeMap::new();
        for pcpu in pcpus.iter() {
            if let Some(first) = self.uses.get(&pcpu).and_then(|uses| uses.first()) {
                by_guest.entry(first.guest).or_default().insert(pcpu);
            }
        }
        let whole = pcpus.len().max(1);
        let scale = |part: usize| {
            u32::try_from(part * area.width as usize / whole).expect("at most the bar's width")
        };
        let mut sum = 0;
        let shares = by_guest.into_iter().map(|(guest, pcpus)| {
            let from = scale(sum);
            sum += pcpus.len();
            Share { area: Area::new(from, 0, scale(sum) - from, BAR), guest, pcpus }
        });
        let shares = shares.collect();
        Cache { area, pcpus, cores: Vec::new(), shares }
    }
}

/// Offline pcpus by the first pcpu of their core, where the others of the host show it: on hosts
/// whose threads of a core are numbered one distance apart, such as 31 and 63, and of whose cores
/// some are whole.
pub(super) fn offline(topology: &Topology) -> BTreeMap<Option<PcpuId>, Vec<PcpuId>> {
    let mut found: BTreeMap<Option<PcpuId>, Vec<PcpuId>> = BTreeMap::new();
    let cores = topology.cores();
    let threads = cores.iter().map(|core| core.pcpus.len()).max().unwrap_or(0);
    let offsets = |core: &Core| -> Vec<u32> {
        let first = core.pcpus.first().map_or(0, |first| first.0);
        core.pcpus.iter().map(|pcpu| pcpu.0 - first).collect()
    };
    let whole: BTreeSet<Vec<u32>> =
        cores.iter().filter(|core| core.pcpus.len() == threads).map(offsets).collect();
    let (Some(pattern), 1) = (whole.first(), whole.len()) else { return found };
    for core in cores.iter().filter(|core| core.pcpus.len() < threads) {
        let Some(first) = core.pcpus.first() else { continue };
        let own = pattern.iter().filter_map(|offset| first.0.checked_add(*offset)).map(PcpuId);
        let own = own.filter(|pcpu| topology.parts().offline.contains(*pcpu)).collect();
        found.insert(Some(first), own);
    }
    found
}

fn all(cores: &[&Core]) -> CpuSet {
    cores.iter().flat_map(|core| core.pcpus.iter()).collect()
}

impl Cache {
    /// The same, moved right and down.
    fn moved(mut self, right: u32, down: u32) -> Cache {
        self.area = self.area.moved(right, down);
        for core in &mut self.cores {
            core.area = core.area.moved(right, down);
            core.threads.iter_mut().for_each(|one| one.area = one.area.moved(right, down));
            core.offline.iter_mut().for_each(|(area, _)| *area = area.moved(right, down));
        }
        self.shares.iter_mut().for_each(|one| one.area = one.area.moved(right, down));
        self
    }
}
