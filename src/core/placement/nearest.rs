//! Finds the nearest requests to a refused one: each differs as little as possible, and each was
//! planned. Knows which requirements can be relaxed, not why the planner refused.

use super::limits::most_vcpus;
use super::short::plan;
use crate::memsize::MemSize;
use crate::occupancy::Occupancy;
use crate::request::{CellWish, DeviceWish, GpuWish, HugePages, Near, PinPolicy, Request, Reserve};
use crate::topology::Topology;
use std::collections::BTreeSet;

const MOST: usize = 4;

/// A requirement that can be relaxed or dropped, the least painful for the guest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knob {
    /// Which GPUs: the same number of others instead.
    Place,
    /// Which NICs, virtual functions and NVMe drives: the same number of others instead.
    Devices,
    /// Cells and threads that the guest sees.
    Shape,
    /// Cliques of GPUs below one switch.
    Clique,
    /// How near NICs are.
    NicNear,
    /// How near NVMe drives are.
    NvmeNear,
    /// More NICs or NVMe drives, so that each GPU has one so near.
    More,
    /// The host's reserved cores.
    Reserve,
    /// Huge pages.
    Pages,
    /// Cores and memory on the GPUs' node.
    Remote,
    /// vCPUs.
    Vcpus,
    /// Memory.
    Memory,
    /// NICs.
    Nics,
    /// Virtual functions.
    Vfs,
    /// NVMe drives.
    Nvmes,
    /// One NVLink partition.
    Split,
    /// GPUs.
    Gpus,
}

/// Every knob, in the order in which the nearest requests are named.
const KNOBS: [Knob; 17] = [
    Knob::Place,
    Knob::Devices,
    Knob::Shape,
    Knob::Clique,
    Knob::NicNear,
    Knob::NvmeNear,
    Knob::More,
    Knob::Reserve,
    Knob::Pages,
    Knob::Remote,
    Knob::Vcpus,
    Knob::Memory,
    Knob::Nics,
    Knob::Vfs,
    Knob::Nvmes,
    Knob::Split,
    Knob::Gpus,
];

/// The nearest requests to one that [`plan`] refuses, the least change first; at most four, none if
/// nothing helps. First those that relax one requirement; if there is none, two; otherwise as few
/// as possible.
pub fn nearest(topology: &Topology, held: &Occupancy, request: &Request) -> Vec<Request> {
    let search = NearestSearch { topology, held };
    if request.check().is_err() || search.accepts(request) {
        return Vec::new();
    }
    if let Some(start) = request.vcpus_at_start {
        // All vCPUs need a place, so that it is their maximum that is lowered.
        let whole = with(request, |r| r.vcpus_at_start = None);
        let near = nearest(topology, held, &whole).into_iter();
        let near = near.map(|one| {
            let vcpus_at_start = one.vcpus.map(|most| start.min(most));
            Request { vcpus_at_start, ..one }
        });
        return near.collect();
    }
    let mut found = Vec::new();
    for knob in KNOBS {
        add(&mut found, search.turn(knob, request));
    }
    if found.is_empty() || search.has_more_vcpus(request) {
        add(&mut found, search.afloat(request));
    }
    if found.is_empty() {
        for (at, &second) in KNOBS.iter().enumerate() {
            for &first in &KNOBS[..at] {
                if found.len() < MOST {
                    add(&mut found, search.turn_two(first, second, request));
                }
            }
        }
    }
    if found.is_empty() {
        add(&mut found, search.turn_all(&KNOBS, request));
        // Whether to give up GPUs or their NVLinks is the admin's decision.
        let whole: Vec<Knob> = KNOBS.into_iter().filter(|&knob| knob != Knob::Split).collect();
        add(&mut found, search.turn_all(&whole, request));
    }
    found.truncate(MOST);
    found
}

/// Adds a request unless it is already there.
fn add(found: &mut Vec<Request>, request: Option<Request>) {
    found.extend(request.filter(|request| !found.contains(request)));
}

/// A search for requests that the planner accepts.
struct NearestSearch<'a> {
    topology: &'a Topology,
    held: &'a Occupancy,
}

impl NearestSearch<'_> {
    /// Whether the planner finds a place.
    fn accepts(&self, request: &Request) -> bool {
        plan(self.topology, self.held, request).is_ok()
    }

    /// Whether a request has more vCPUs than guests of the host have pcpus, so that no place for pins is ever
    /// found.
    fn has_more_vcpus(&self, request: &Request) -> bool {
        let there = self.topology.guest_pcpus();
        request.vcpus.is_some_and(|vcpus| vcpus as usize > there)
    }

    /// Returns the request without pins if the planner accepts it: its vCPUs float over all pcpus
    /// and share them.
    fn afloat(&self, request: &Request) -> Option<Request> {
        let afloat = with(request, |r| {
            (r.pins, r.reserve.cores, r.allow.remote) = (PinPolicy::None, 0, false);
        });
        (request.pins != PinPolicy::None && self.accepts(&afloat)).then_some(afloat)
    }

    /// Returns the settings of a knob, the least change first; empty if the request has nothing to
    /// relax there.
    fn steps(&self, knob: Knob, request: &Request) -> Steps {
        let extras = &request.extras;
        let near = |near: Near, set: fn(&mut Request, Near)| {
            let looser = [Near::Node, Near::Any].into_iter().filter(|&step| step > near);
            Steps::Few(looser.map(|step| with(request, |r| set(r, step))).collect())
        };
        let fewer = |wish: &DeviceWish, set: fn(&mut Request, DeviceWish)| {
            let number = u32::try_from(wish.number()).unwrap_or(u32::MAX);
            let step = |count| with(request, |r| set(r, DeviceWish::Count(count)));
            Steps::Few((0..number.min(64)).rev().map(step).collect())
        };
        let change = |worth: bool, turn: fn(&mut Request)| {
            if worth { Steps::Few(vec![with(request, turn)]) } else { Steps::Few(Vec::new()) }
        };
        match knob {
            Knob::Place => match request.gpus {
                GpuWish::Count(_) => Steps::Few(Vec::new()),
                _ => {
                    let count = GpuWish::Count(request.gpus.number());
                    Steps::Few(vec![with(request, |r| r.gpus = count)])
                }
            },
            Knob::Devices => {
                let wishes = [&extras.nics, &extras.vfs, &extras.nvmes];
                change(wishes.iter().any(|w| matches!(w, DeviceWish::Exact(_))), |r| {
                    for wish in [&mut r.extras.nics, &mut r.extras.vfs, &mut r.extras.nvmes] {
                        *wish = DeviceWish::Count(u32::try_from(wish.number()).unwrap_or(u32::MAX));
                    }
                })
            }
            Knob::NicNear if extras.nics.number() + extras.vfs.number() > 0 => {
                near(extras.nic_near, |r, step| r.extras.nic_near = step)
            }
            Knob::NvmeNear if extras.nvmes.number() > 0 => {
                near(extras.nvme_near, |r, step| r.extras.nvme_near = step)
            }
            Knob::NicNear | Knob::NvmeNear => Steps::Few(Vec::new()),
            Knob::More => Steps::Few(more(request)),
            Knob::Reserve => {
                change(request.reserve != Reserve::default(), |r| r.reserve = Reserve::default())
            }
            Knob::Shape => {
                let worth = request.cells != CellWish::Auto || request.threads.is_some();
                change(worth, |r| (r.cells, r.threads) = (CellWish::Auto, None))
            }
            Knob::Clique => change(request.p2p_clique, |r| r.p2p_clique = false),
            Knob::Pages => change(request.huge_pages.asked().is_some(), |r| {
                r.huge_pages = HugePages::usual(r.profile);
            }),
            Knob::Remote => change(!request.allow.remote, |r| r.allow.remote = true),
            Knob::Split => {
                let worth = !request.allow.split && self.topology.is_partitioned();
                change(worth, |r| r.allow.split = true)
            }
            Knob::Nics => fewer(&extras.nics, |r, wish| r.extras.nics = wish),
            Knob::Vfs => fewer(&extras.vfs, |r, wish| r.extras.vfs = wish),
            Knob::Nvmes => fewer(&extras.nvmes, |r, wish| r.extras.nvmes = wish),
            Knob::Vcpus => self.vcpus(request),
            Knob::Memory => self.memory(request),
            Knob::Gpus => self.fewer_gpus(request),
        }
    }

    /// Returns fewer vCPUs: the most that a guest can have, if that is fewer, otherwise whole cores
    /// of the guest's shape.
    fn vcpus(&self, request: &Request) -> Steps {
        if let Some(most) = most_vcpus(self.topology, request)
            && request.vcpus.is_some_and(|vcpus| vcpus > most)
        {
            let most = with(request, |r| r.vcpus = Some(most));
            if self.accepts(&most) {
                return Steps::Few(vec![most]);
            }
        }
        let threads = self.topology.cores().iter().map(|core| core.pcpus.len()).max().unwrap_or(1);
        let threads = match request.pins {
            // Without pins no vCPU is on a core.
            PinPolicy::None => request.threads.unwrap_or(1).max(1),
            _ => u32::try_from(threads).unwrap_or(1),
        };
        let there = u32::try_from(self.topology.guest_pcpus()).unwrap_or(u32::MAX);
        let most = request.vcpus.map_or(there, |vcpus| vcpus.saturating_sub(1).min(there));
        let count = u64::from(most / threads);
        Steps::Many {
            count,
            unit: u64::from(threads),
            set: |r, vcpus| {
                r.vcpus = u32::try_from(vcpus).ok();
            },
        }
    }

    /// Less memory, in GiB, or in pages of 2 MiB if less than 1 GiB is requested.
    fn memory(&self, request: &Request) -> Steps {
        let there: MemSize =
            self.topology.nodes().iter().map(|node| self.topology.usable(node).memory_kib).sum();
        let asked = request.memory_kib.map_or(there, |memory| memory.min(there)).kib();
        let gib = MemSize::from_gib(1).kib();
        let unit = if asked > gib { gib } else { 2048 };
        let count = asked.saturating_sub(1) / unit;
        let set = |r: &mut Request, kib| r.memory_kib = Some(MemSize::from_kib(kib));
        Steps::Many { count, unit, set }
    }

    /// Returns fewer GPUs, at least one: the sizes of the board's partitions, otherwise any number.
    fn fewer_gpus(&self, request: &Request) -> Steps {
        let asked = request.gpus.number();
        let asked = asked.min(u32::try_from(self.topology.gpus().count()).unwrap_or(0) + 1);
        let set = |r: &mut Request, count: u64| {
            r.gpus = GpuWish::Count(u32::try_from(count).unwrap_or(u32::MAX));
        };
        if !self.topology.is_partitioned() {
            return Steps::Many { count: u64::from(asked.saturating_sub(1)), unit: 1, set };
        }
        let sizes = self.topology.partitions().iter().map(|partition| partition.gpus.len() as u64);
        let sizes: BTreeSet<u64> = sizes.chain([1]).filter(|&s| s < u64::from(asked)).collect();
        Steps::Few(sizes.into_iter().rev().map(|size| with(request, |r| set(r, size))).collect())
    }

    /// Turns one knob as little as is needed.
    fn turn(&self, knob: Knob, request: &Request) -> Option<Request> {
        match self.steps(knob, request) {
            Steps::Few(steps) => steps.into_iter().find(|step| self.accepts(step)),
            Steps::Many { count, unit, set } => {
                let step = |number: u64| with(request, |r| set(r, number * unit));
                let fits = |number: u64| self.accepts(&step(number));
                // If a number of units fits, smaller numbers almost always do; the returned one was
                // planned itself.
                let (mut good, mut bad) = (1, count + 1);
                if count == 0 || !fits(good) {
                    return None;
                }
                while bad - good > 1 {
                    let middle = good + (bad - good) / 2;
                    if fits(middle) { good = middle } else { bad = middle }
                }
                Some(step(good))
            }
        }
    }

    /// The request with a knob turned fully; none if there is nothing to turn.
    fn loosest(&self, knob: Knob, request: &Request) -> Option<Request> {
        match self.steps(knob, request) {
            Steps::Few(mut steps) => steps.pop(),
            Steps::Many { count: 0, .. } => None,
            Steps::Many { unit, set, .. } => Some(with(request, |r| set(r, unit))),
        }
    }

    /// Turns two knobs: the second as little as is needed with the first one loose, then the first.
    fn turn_two(&self, first: Knob, second: Knob, request: &Request) -> Option<Request> {
        let loose = self.loosest(first, request)?;
        if !self.accepts(&self.loosest(second, &loose)?) {
            return None;
        }
        let second_turned = self.turn(second, &loose)?;
        let tight = restore(first, request, &second_turned);
        Some(self.turn(first, &tight).unwrap_or(second_turned))
    }

    /// Turns these knobs fully, then each back as far as possible, the most important first.
    fn turn_all(&self, knobs: &[Knob], request: &Request) -> Option<Request> {
        let loosen =
            |request: Request, &knob: &Knob| self.loosest(knob, &request).unwrap_or(request);
        let mut loose = knobs.iter().fold(request.clone(), loosen);
        if !self.accepts(&loose) {
            return None;
        }
        for &knob in knobs.iter().rev() {
            let tight = restore(knob, request, &loose);
            if self.accepts(&tight) {
                loose = tight;
            } else if let Some(turned) = self.turn(knob, &tight) {
                loose = turned;
            }
        }
        Some(loose)
    }
}

/// The settings of a knob.
enum Steps {
    /// These, the least change first.
    Few(Vec<Request>),
    /// `count` units down to one.
    Many {
        /// The largest number of units.
        count: u64,
        /// One unit.
        unit: u64,
        /// Puts a number, units times `unit`, into a request.
        set: fn(&mut Request, u64),
    },
}

/// Requests with more NICs or drives of those that are to be near each GPU.
fn more(request: &Request) -> Vec<Request> {
    let gpus = request.gpus.number().min(64);
    let extras = &request.extras;
    let steps = |wish: &DeviceWish, near: Near| {
        let is_bound = near != Near::Any && matches!(wish, DeviceWish::Count(1..));
        let number = u32::try_from(wish.number()).unwrap_or(u32::MAX);
        (number.saturating_add(1)..=gpus).filter(move |_| is_bound)
    };
    let set = |wish: fn(&mut Request) -> &mut DeviceWish, count| {
        with(request, |r| *wish(r) = DeviceWish::Count(count))
    };
    let nics = steps(&extras.nics, extras.nic_near).map(|n| set(|r| &mut r.extras.nics, n));
    let nvmes = steps(&extras.nvmes, extras.nvme_near).map(|n| set(|r| &mut r.extras.nvmes, n));
    nics.chain(nvmes).collect()
}

/// Returns a request with a change.
fn with(request: &Request, change: impl FnOnce(&mut Request)) -> Request {
    let mut changed = request.clone();
    change(&mut changed);
    changed
}

/// Returns `turned` with one knob reset to `request`.
fn restore(knob: Knob, request: &Request, turned: &Request) -> Request {
    let (asked, mut to) = (request.clone(), turned.clone());
    match knob {
        Knob::Place | Knob::Gpus => to.gpus = asked.gpus,
        Knob::Devices => {
            // A smaller number that another knob found stays.
            let (from, into) = (asked.extras, &mut to.extras);
            for (wish, now) in [
                (from.nics, &mut into.nics),
                (from.vfs, &mut into.vfs),
                (from.nvmes, &mut into.nvmes),
            ] {
                if wish.number() == now.number() {
                    *now = wish;
                }
            }
        }
        Knob::Shape => (to.cells, to.threads) = (asked.cells, asked.threads),
        Knob::Clique => to.p2p_clique = asked.p2p_clique,
        Knob::NicNear => to.extras.nic_near = asked.extras.nic_near,
        Knob::NvmeNear => to.extras.nvme_near = asked.extras.nvme_near,
        Knob::Reserve => to.reserve = asked.reserve,
        Knob::Pages => to.huge_pages = asked.huge_pages,
        Knob::Remote => to.allow.remote = asked.allow.remote,
        Knob::Split => to.allow.split = asked.allow.split,
        Knob::Vcpus => to.vcpus = asked.vcpus,
        Knob::Memory => to.memory_kib = asked.memory_kib,
        Knob::More => {
            to.extras.nics = asked.extras.nics;
            to.extras.nvmes = asked.extras.nvmes;
        }
        Knob::Nics => to.extras.nics = asked.extras.nics,
        Knob::Vfs => to.extras.vfs = asked.extras.vfs,
        Knob::Nvmes => to.extras.nvmes = asked.extras.nvmes,
    }
    to
}
