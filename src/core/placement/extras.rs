//! Which NICs, virtual functions and NVMe drives a guest gets: the nearest to its GPUs that nobody uses, in turn for
//! each GPU, and of equally near ones those that free GPUs need least. Knows nothing of pcpus and memory.

use super::PlanError;
use super::affinity::Homes;
use super::assign::{Cost, cheapest};
use super::candidates::{Candidate, Devices, Kind, Refused, short};
use super::explain::{Reasons, count};
use super::groups;
use super::reason::{BesideGpu, BesideReason, GpuName, label};
use super::taken::Taken;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::request::{DeviceWish, Near, Request};
use crate::topology::{PciDevice, Proximity, Topology, Way};
use crate::words::are;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The NICs, virtual functions and NVMe drives of a guest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// NICs, by address.
    pub(super) nics: Vec<Bdf>,
    /// Virtual functions of NICs, by address.
    pub(super) vfs: Vec<Bdf>,
    /// NVMe drives, by address.
    pub(super) nvmes: Vec<Bdf>,
}

/// The devices that can be had, and what is wanted of them.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// GPUs of the host, by index, then displays that were asked for.
    gpus: Vec<Bdf>,
    /// GPUs that have an index.
    counted: usize,
    /// Whether each GPU can be had.
    is_free: Vec<bool>,
    /// What is wanted, one of each kind.
    wishes: Vec<Wish>,
    /// Why nothing of it can be had, whatever GPUs the guest has.
    error: Option<PlanError>,
}

/// The devices of a kind that a guest gets: the index of the GPU that each is for, where the guest has GPUs, and
/// the device's place among the candidates.
type Choice = Vec<(Option<usize>, usize)>;

/// What is wanted of one kind, and what can be had.
#[derive(Debug)]
pub(super) struct Wish {
    /// The kind.
    pub(super) kind: Kind,
    /// How near it has to be.
    near: Near,
    /// How many.
    pub(super) number: usize,
    /// Whether the admin named them.
    pub(super) is_exact: bool,
    /// Displays that were asked for, behind the GPUs that have an index, and how many those are.
    displays: (usize, Vec<Bdf>),
    /// What can be had, by address.
    pub(super) candidates: Vec<Candidate>,
    /// How many can be had.
    pub(super) free: usize,
    /// What cannot be had, each with the GPUs that it would be near enough to.
    refused: Vec<(Refused, Vec<usize>)>,
    /// How near each candidate is to each GPU: a row for each GPU.
    pub(super) beside: Vec<Vec<Proximity>>,
    /// Candidates below a switch with a GPU, as bits: so many words for each GPU.
    on_switch: Vec<u64>,
    /// Candidates on the node of a GPU, those below a switch with it included, as bits.
    on_node: Vec<u64>,
}

/// How far two functions are for a guest: 0 below one PCIe switch, 1 on one node, 2 elsewhere.
pub(super) fn distance(proximity: Proximity) -> u32 {
    match proximity {
        Proximity::Same | Proximity::NvLink(_) | Proximity::Pix | Proximity::Pxb => 0,
        Proximity::Phb | Proximity::Node => 1,
        Proximity::Sys => 2,
    }
}

/// A nearness as a number; the nearer, the smaller.
fn rank(proximity: Proximity) -> i32 {
    match proximity {
        Proximity::Same | Proximity::NvLink(_) | Proximity::Pix => 0,
        Proximity::Pxb => 1,
        Proximity::Phb => 2,
        Proximity::Node => 3,
        Proximity::Sys => 4,
    }
}

/// The distance up to which a device is near enough.
fn limit(near: Near) -> u32 {
    match near {
        Near::Switch => 0,
        Near::Node => 1,
        Near::Any => 2,
    }
}

impl Search {
    /// Looks at every NIC and NVMe drive, if the request wants some.
    pub(super) fn new(
        topology: &Topology,
        homes: &Homes<'_>,
        taken: &Taken<'_>,
        request: &Request,
    ) -> Search {
        let asked = &request.extras;
        let kinds = [
            (Kind::Nic, &asked.nics, asked.nic_near),
            (Kind::Vf, &asked.vfs, asked.nic_near),
            (Kind::Nvme, &asked.nvmes, asked.nvme_near),
        ];
        let mut search = Search::default();
        if kinds.iter().all(|(_, wish, _)| wish.number() == 0) {
            return search;
        }
        let displays = taken.asked().iter().filter_map(|&bdf| topology.device(bdf));
        let gpus: Vec<&PciDevice> = topology.gpus().chain(displays).collect();
        let ways: Vec<Way<'_>> = gpus.iter().map(|gpu| topology.way(gpu)).collect();
        search.gpus = gpus.iter().map(|gpu| gpu.bdf).collect();
        search.counted = gpus.len() - taken.asked().len();
        let is_free = |&bdf: &Bdf| groups::block(topology, taken, bdf).is_none();
        search.is_free = search.gpus.iter().map(is_free).collect();
        let devices = Devices { topology, taken, node_of: &|bdf| homes.of_device(bdf) };
        for (kind, wish, near) in kinds.into_iter().filter(|(_, wish, _)| wish.number() > 0) {
            match Wish::new(&devices, &ways, (kind, wish, near)) {
                Ok(mut wish) => {
                    wish.displays = (search.counted, taken.asked().to_vec());
                    search.wishes.push(wish);
                }
                Err(error) => {
                    search.error = Some(error);
                    break;
                }
            }
        }
        search
    }

    /// Says what cannot be had whatever GPUs the guest has.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// How far the devices of a guest with these GPUs would be: 0 for each below a switch of its GPUs, 1 on their node,
    /// 2 elsewhere; none: they cannot be had so near as asked.
    pub(super) fn far(&self, gpus: &[Bdf]) -> Option<u32> {
        if self.error.is_some() {
            return None;
        }
        if self.wishes.is_empty() || gpus.is_empty() {
            return Some(0);
        }
        let places = self.places(gpus);
        self.wishes.iter().map(|wish| wish.far(&places)).sum()
    }

    /// Indexes of GPUs.
    fn places(&self, gpus: &[Bdf]) -> Vec<usize> {
        let (counted, displays) = self.gpus.split_at(self.counted);
        let place = |bdf: &Bdf| {
            let display = || displays.iter().position(|other| other == bdf);
            counted.binary_search(bdf).ok().or_else(|| Some(self.counted + display()?))
        };
        gpus.iter().filter_map(place).collect()
    }

    /// Chooses the devices, or says what is short.
    pub(super) fn choose(&self, gpus: &[Bdf], reasons: &mut Reasons) -> Result<Extras, PlanError> {
        self.check()?;
        let mut places = self.places(gpus);
        places.sort_unstable();
        let outside: Vec<usize> =
            (0..self.gpus.len()).filter(|at| self.is_free[*at] && !places.contains(at)).collect();
        let node = self.node();
        let mut extras = Extras::default();
        for wish in &self.wishes {
            let choice = match places.is_empty() {
                true => wish.without_gpus(node, &outside),
                false => wish.choose(&places, &outside)?,
            };
            explain(wish, &places, &choice, reasons);
            let chosen = match wish.kind {
                Kind::Nic => &mut extras.nics,
                Kind::Vf => &mut extras.vfs,
                Kind::Nvme => &mut extras.nvmes,
            };
            chosen.extend(choice.iter().map(|(_, device)| wish.candidates[*device].bdf));
            chosen.sort();
        }
        Ok(extras)
    }

    /// The node that gives a guest without GPUs most of what it wants; then the one with most free.
    fn node(&self) -> Option<NodeId> {
        let on =
            |wish: &Wish, node| wish.candidates.iter().filter(|c| c.node == Some(node)).count();
        let all = self.wishes.iter().flat_map(|wish| &wish.candidates);
        let nodes: BTreeSet<NodeId> = all.filter_map(|candidate| candidate.node).collect();
        nodes.into_iter().max_by_key(|&node| {
            let free = self.wishes.iter().map(|wish| (on(wish, node), wish.number));
            let got: usize = free.clone().map(|(free, number)| free.min(number)).sum();
            (got, free.map(|(free, _)| free).sum::<usize>(), Reverse(node))
        })
    }
}

impl Wish {
    /// Looks at every device of a kind.
    fn new(
        devices: &Devices<'_>,
        gpus: &[Way<'_>],
        (kind, wish, near): (Kind, &DeviceWish, Near),
    ) -> Result<Wish, PlanError> {
        let supply = devices.supply(kind, wish)?;
        let way = |bdf| devices.topology.device(bdf).map(|device| devices.topology.way(device));
        let over = |gpu: &Way<'_>, to: &Option<Way<'_>>| {
            to.as_ref().map_or(Proximity::Sys, |to| gpu.over_pcie(to))
        };
        let ways: Vec<_> = supply.candidates.iter().map(|candidate| way(candidate.bdf)).collect();
        let beside: Vec<Vec<Proximity>> =
            gpus.iter().map(|gpu| ways.iter().map(|to| over(gpu, to)).collect()).collect();
        let near_to = |refused: &Refused| {
            let to = way(refused.bdf);
            let is_near = |(_, gpu): &(usize, &Way<'_>)| distance(over(gpu, &to)) <= limit(near);
            gpus.iter().enumerate().filter(is_near).map(|(at, _)| at).collect()
        };
        let refused = supply.refused.into_iter().map(|refused| {
            let near = if near == Near::Any { Vec::new() } else { near_to(&refused) };
            (refused, near)
        });
        let refused = refused.collect();
        let words = supply.candidates.len().div_ceil(64);
        let bits = |up_to: u32| {
            let mut bits = vec![0u64; words * gpus.len()];
            for (gpu, row) in beside.iter().enumerate() {
                for at in (0..row.len()).filter(|&at| distance(row[at]) <= up_to) {
                    bits[gpu * words + at / 64] |= 1 << (at % 64);
                }
            }
            bits
        };
        let (on_switch, on_node) = (bits(0), bits(1));
        let (number, is_exact) = (wish.number(), matches!(wish, DeviceWish::Exact(_)));
        let (candidates, free) = (supply.candidates, supply.free);
        Ok(Wish {
            kind,
            near,
            number,
            is_exact,
            displays: (gpus.len(), Vec::new()),
            candidates,
            free,
            refused,
            beside,
            on_switch,
            on_node,
        })
    }

    /// What a GPU is called: its index, or a display's address.
    pub(super) fn name(&self, gpu: usize) -> GpuName {
        let (counted, displays) = &self.displays;
        let display = gpu.checked_sub(*counted).and_then(|at| displays.get(at));
        display.map_or(GpuName::Index(gpu), |&bdf| GpuName::Address(bdf))
    }

    /// How many candidates are below a switch with one of these GPUs, and how many on the node of one or nearer.
    fn reach(&self, gpus: &[usize]) -> [usize; 2] {
        let words = self.candidates.len().div_ceil(64);
        [&self.on_switch, &self.on_node].map(|bits| {
            let word = |at| gpus.iter().fold(0, |word, gpu| word | bits[gpu * words + at]);
            (0..words).map(|at| word(at).count_ones() as usize).sum()
        })
    }

    /// The least sum of distances; none: not so many are near enough.
    fn far(&self, gpus: &[usize]) -> Option<u32> {
        let [on_switch, on_node] = self.reach(gpus);
        let there = [on_switch, on_node, self.candidates.len()][limit(self.near) as usize];
        if there < self.number {
            return None;
        }
        let beyond = |reached: usize| self.number.saturating_sub(reached);
        u32::try_from(beyond(on_switch) + beyond(on_node)).ok()
    }

    /// The nearest devices, each with the index of the GPU that it is for.
    fn choose(&self, gpus: &[usize], outside: &[usize]) -> Result<Choice, PlanError> {
        let nearest = |at: usize| {
            let all = gpus.iter().map(|&gpu| distance(self.beside[gpu][at]));
            all.min().unwrap_or(limit(Near::Any))
        };
        let near: Vec<usize> =
            (0..self.candidates.len()).filter(|&at| nearest(at) <= limit(self.near)).collect();
        if near.len() < self.number {
            return Err(self.too_far(gpus, &near));
        }
        let wanted = self.wanted_outside(outside, &near);
        let rounds = self.number.div_ceil(gpus.len().max(1));
        let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX >> 16);
        let cost = |gpu: usize, round: usize, at: usize| {
            let (candidate, beside) = (&self.candidates[at], self.beside[gpu][at]);
            let single = round == 0 && distance(beside) == 0;
            let [alone, shared] = wanted[at];
            Cost([
                i32::try_from(nearest(at)).unwrap_or(2),
                i32::from(!single),
                rank(beside),
                small(round),
                alone,
                shared,
                candidate.crowd,
                candidate.along,
                small(at),
            ])
        };
        let seats: Vec<(usize, usize)> =
            (0..rounds).flat_map(|round| gpus.iter().map(move |&gpu| (gpu, round))).collect();
        let row = |&(gpu, round): &(usize, usize)| -> Vec<Cost> {
            near.iter().map(|&at| cost(gpu, round, at)).collect()
        };
        let costs: Vec<Vec<Cost>> = seats.iter().map(row).collect();
        let pairs = cheapest(&costs, self.number);
        Ok(pairs.into_iter().map(|(seat, at)| (Some(seats[seat].0), near[at])).collect())
    }

    /// For each candidate: free GPUs that would lose the only one that is nearest to them, and a weight of all that
    /// have it below their switch, 64 for one below the same switch and 1 for one farther up.
    fn wanted_outside(&self, outside: &[usize], near: &[usize]) -> Vec<[i32; 2]> {
        let mut wanted = vec![[0; 2]; self.candidates.len()];
        for &gpu in outside {
            let row = &self.beside[gpu];
            let switched = |at: &usize| distance(row[*at]) == 0;
            let Some(best) = (0..row.len()).filter(switched).map(|at| row[at]).min() else {
                continue;
            };
            let alone = row.iter().filter(|beside| **beside == best).count() == 1;
            for &at in near.iter().filter(|at| switched(at)) {
                wanted[at][0] += i32::from(alone && row[at] == best);
                wanted[at][1] += if row[at] <= Proximity::Pix { 64 } else { 1 };
            }
        }
        wanted
    }

    /// The devices of a guest without GPUs: on the node first, then those that free GPUs need least.
    fn without_gpus(&self, node: Option<NodeId>, outside: &[usize]) -> Choice {
        let mut all: Vec<usize> = (0..self.candidates.len()).collect();
        let wanted = self.wanted_outside(outside, &all);
        all.sort_by_key(|&at| {
            let Candidate { node: own, crowd, along, .. } = &self.candidates[at];
            (own.is_none() || *own != node, wanted[at], *crowd, *along, at)
        });
        all.into_iter().take(self.number).map(|at| (None, at)).collect()
    }

    /// Makes the error that too few are near enough.
    fn too_far(&self, gpus: &[usize], near: &[usize]) -> PlanError {
        let (number, noun) = (self.number, self.kind.noun());
        let place = match self.near {
            Near::Switch => "below one PCIe switch with",
            Near::Node | Near::Any => "on the node of",
        };
        let names: Vec<GpuName> = gpus.iter().map(|&gpu| self.name(gpu)).collect();
        let label = label(&names);
        let (what, flag) =
            (count(number, noun), if self.kind == Kind::Nvme { "nvme" } else { "nic" });
        let what = match self.is_exact {
            true => {
                let far = (0..self.candidates.len()).find(|at| !near.contains(at));
                let bdf = far.map(|at| self.candidates[at].bdf.to_string()).unwrap_or_default();
                format!("{noun} {bdf} is not {place} {label}")
            }
            false => {
                let are = are(number);
                let unknown = self.candidates.iter().filter(|candidate| candidate.node.is_none());
                let unknown = match unknown.count() {
                    0 => String::new(),
                    some => format!(
                        ", and the kernel names no node of {some} that {} free",
                        crate::words::are(some)
                    ),
                };
                format!(
                    "{what} {place} {label} {are} asked for, {} can be had{unknown}",
                    near.len()
                )
            }
        };
        let in_the_way = |(_, beside): &&(Refused, Vec<usize>)| {
            !self.is_exact && beside.iter().any(|gpu| gpus.contains(gpu))
        };
        let refused: Vec<Refused> =
            self.refused.iter().filter(in_the_way).map(|(refused, _)| refused.clone()).collect();
        let hint = match self.near {
            Near::Switch => format!("--{flag}-near node takes those of the node, too"),
            Near::Node | Near::Any => format!("--{flag}-near any takes them from anywhere"),
        };
        short(what, &refused, hint)
    }
}

/// Adds what was taken, and what of it is a compromise.
fn explain(wish: &Wish, gpus: &[usize], choice: &Choice, reasons: &mut Reasons) {
    let mut choice: Vec<(usize, Option<(usize, Proximity)>)> =
        choice.iter().map(|&(gpu, at)| (at, nearest(wish, gpus, gpu, at))).collect();
    choice.sort_by_key(|(at, _)| *at);
    let bdf = |at: usize| wish.candidates[at].bdf;
    let kind = wish.kind;
    let taken = choice.iter().map(|&(at, beside)| BesideGpu {
        device: bdf(at),
        gpu: beside.map(|(gpu, proximity)| (wish.name(gpu), proximity)),
        node: wish.candidates[at].node,
    });
    let of = (!wish.is_exact).then_some(wish.free);
    reasons.say(kind.topic(), BesideReason::Taken { devices: taken.collect(), kind, of });
    let at_distance = |wanted: u32| {
        let far = choice.iter().filter(move |(_, beside)| {
            beside.is_some_and(|(_, proximity)| distance(proximity) == wanted)
        });
        far.map(|(at, _)| bdf(*at)).collect::<Vec<_>>()
    };
    for wanted in [1, 2] {
        // What hangs elsewhere and has no node that is known may be near.
        let is_unknown = |bdf: &Bdf| {
            let mut same = wish.candidates.iter().filter(|candidate| candidate.bdf == *bdf);
            wanted == 2 && same.all(|candidate| candidate.node.is_none())
        };
        let (unknown, far): (Vec<Bdf>, Vec<Bdf>) =
            at_distance(wanted).into_iter().partition(is_unknown);
        if !far.is_empty() {
            let why = match wanted {
                1 => BesideReason::OffSwitch { devices: far },
                _ => BesideReason::OffNode { devices: far },
            };
            reasons.compromise(kind.topic(), why);
        }
        if !unknown.is_empty() {
            reasons.compromise(kind.topic(), BesideReason::Unknown { devices: unknown });
        }
    }
    let lacks = |gpu: &&usize| choice.iter().all(|(at, _)| distance(wish.beside[**gpu][*at]) > 0);
    let without: Vec<GpuName> = gpus.iter().filter(lacks).map(|&gpu| wish.name(gpu)).collect();
    if wish.number >= gpus.len() && !without.is_empty() {
        reasons.compromise(kind.topic(), BesideReason::NoneOnSwitch { kind, gpus: without });
    }
}

/// The GPU of the guest that a device is nearest to, and how near; of equally near ones the one that it is for.
fn nearest(
    wish: &Wish,
    gpus: &[usize],
    meant: Option<usize>,
    at: usize,
) -> Option<(usize, Proximity)> {
    let all = gpus.iter().map(|&gpu| (wish.beside[gpu][at], Some(gpu) != meant, gpu));
    all.min().map(|(proximity, _, gpu)| (gpu, proximity))
}
