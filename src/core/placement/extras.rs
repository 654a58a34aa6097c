//! Chooses a guest's NICs, virtual functions and NVMe drives: the nearest unused ones to its GPUs,
//! in turn for each GPU, and among equally near ones those that free GPUs need least. A guest that
//! is planned again keeps those that it has, up to the requested number. Knows nothing of pcpus and
//! memory.

use super::affinity::Homes;
use super::assign::{Cost, cheapest};
use super::candidates::{Candidate, Devices, Refused, short, with_group};
use super::cover::{Beside, Cover};
use super::explain::{Reasons, count};
use super::groups;
use super::kind::Kind;
use super::nearness::{Far, Places};
use super::reason::{BesideGpu, BesideReason, GpuName, label};
use super::slots::{MOST, Mask};
use super::taken::Taken;
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::request::{DeviceWish, Near, Request};
use crate::topology::{PciDevice, Proximity, Topology, Way};
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

/// The available devices, and the request for them.
#[derive(Debug, Default)]
pub(super) struct ExtrasSearch {
    /// GPUs of the host, by index, then requested displays.
    gpus: Vec<Bdf>,
    counted: usize,
    is_free: Vec<bool>,
    /// The requests, one of each kind.
    wishes: Vec<Wish>,
    /// Why they cannot be met, whatever GPUs the guest has.
    error: Option<PlanError>,
}

/// The devices of a kind that a guest gets: the index of the GPU that each is for, if the guest has
/// GPUs, and the device's index among the candidates.
type Choice = Vec<(Option<usize>, usize)>;

/// The request for one kind, and the available devices.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    /// Its required distance.
    near: Near,
    /// Whether each GPU is to have one so near: not where NICs are requested that are to be so.
    serves: bool,
    pub(super) number: usize,
    pub(super) is_exact: bool,
    /// The number of GPUs with an index, and the requested displays, which follow them.
    displays: (usize, Vec<Bdf>),
    /// Available functions, by address.
    pub(super) candidates: Vec<Candidate>,
    pub(super) free: usize,
    /// Whether each GPU is on a known node.
    has_node: Vec<bool>,
    /// Unavailable functions, each with its distance from every GPU.
    refused: Vec<(Refused, Vec<u32>)>,
    /// How near each candidate is to each GPU: a row for each GPU.
    pub(super) beside: Vec<Vec<Beside>>,
    /// Candidates below a switch with a GPU, as bits, a row of words per GPU.
    on_switch: Vec<u64>,
    /// Candidates on the node of a GPU, those below a switch with it included, as bits.
    on_node: Vec<u64>,
    places: Places,
}

/// The distance of devices on other nodes, at least.
const FAR: u32 = 2;

/// The distance up to which a device is near enough.
fn limit(near: Near) -> u32 {
    match near {
        Near::Switch => 0,
        Near::Node => 1,
        Near::Any => 3,
    }
}

impl ExtrasSearch {
    /// Examines every NIC and NVMe drive if any are requested.
    pub(super) fn new(
        topology: &Topology,
        homes: &Homes<'_>,
        taken: &Taken<'_>,
        request: &Request,
    ) -> ExtrasSearch {
        let asked = &request.extras;
        let kinds = [
            (Kind::Nic, &asked.nics, asked.nic_near),
            (Kind::Vf, &asked.vfs, asked.nic_near),
            (Kind::Nvme, &asked.nvmes, asked.nvme_near),
        ];
        let mut search = ExtrasSearch::default();
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
            match Wish::new(&devices, &ways, kind, wish, near) {
                Ok(mut wish) => {
                    wish.displays = (search.counted, taken.asked().to_vec());
                    wish.serves = kind != Kind::Vf || asked.nics.number() == 0;
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

    /// Returns the error of requests that cannot be met whatever GPUs the guest has.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Returns how far the devices are for a guest with these GPUs; `None` if not available as near
    /// as requested.
    pub(super) fn far(&self, gpus: &[Bdf]) -> Option<Far> {
        if self.error.is_some() {
            return None;
        }
        if self.wishes.is_empty() || gpus.is_empty() {
            return Some(Far::default());
        }
        let places = self.places(gpus);
        self.wishes.iter().map(|wish| wish.far(&places)).sum()
    }

    pub(super) fn is_wanted(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// Whether every wanted device is as near to one GPU as to the other, by index.
    pub(super) fn are_alike(&self, one: usize, other: usize) -> bool {
        let row = |wish: &Wish| match (wish.beside.get(one), wish.beside.get(other)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.wishes.iter().all(row)
    }

    fn places(&self, gpus: &[Bdf]) -> Vec<usize> {
        let (counted, displays) = self.gpus.split_at(self.counted);
        let place = |bdf: &Bdf| {
            let display = || displays.iter().position(|other| other == bdf);
            counted.binary_search(bdf).ok().or_else(|| Some(self.counted + display()?))
        };
        gpus.iter().filter_map(place).collect()
    }

    /// Chooses the devices, or reports the shortage.
    pub(super) fn choose(&self, gpus: &[Bdf], reasons: &mut Reasons) -> Result<Extras, PlanError> {
        self.check()?;
        let mut places = self.places(gpus);
        places.sort_unstable();
        let outside: Vec<usize> =
            (0..self.gpus.len()).filter(|at| self.is_free[*at] && !places.contains(at)).collect();
        let node = self.node();
        let mut extras = Extras::default();
        for wish in &self.wishes {
            let choice = if places.is_empty() {
                wish.without_gpus(node, &outside)
            } else {
                wish.choose(&places, &outside)?
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

    /// Returns the node that has most of the requested devices, for a guest without GPUs; of
    /// equals, the one with the most free.
    pub(super) fn node(&self) -> Option<NodeId> {
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
    /// Examines every device of a kind.
    fn new(
        devices: &Devices<'_>,
        gpus: &[Way<'_>],
        kind: Kind,
        wish: &DeviceWish,
        near: Near,
    ) -> Result<Wish, PlanError> {
        let supply = devices.supply(kind, wish)?;
        let way = |bdf| devices.topology.device(bdf).map(|device| devices.topology.way(device));
        let over = |gpu: &Way<'_>, to: &Option<Way<'_>>| Beside::new(gpu, to.as_ref());
        let ways: Vec<_> = supply.candidates.iter().map(|candidate| way(candidate.bdf)).collect();
        let beside: Vec<Vec<Beside>> =
            gpus.iter().map(|gpu| ways.iter().map(|to| over(gpu, to)).collect()).collect();
        let refused = supply.refused.into_iter().map(|refused| {
            let to = way(refused.bdf);
            let distances = gpus.iter().map(|gpu| over(gpu, &to).distance()).collect();
            (refused, distances)
        });
        let refused = refused.collect();
        let words = supply.candidates.len().div_ceil(64);
        let bits = |up_to: u32| {
            let mut bits = vec![0u64; words * gpus.len()];
            for (gpu, row) in beside.iter().enumerate() {
                let is_there = |at: &usize| {
                    let is_kept = near != Near::Any && supply.candidates[*at].is_own;
                    is_kept || row[*at].distance() <= up_to
                };
                for at in (0..row.len()).filter(is_there) {
                    bits[gpu * words + at / 64] |= 1 << (at % 64);
                }
            }
            bits
        };
        let (on_switch, on_node) = (bits(0), bits(1));
        let (number, is_exact) = (wish.number(), matches!(wish, DeviceWish::Exact(_)));
        let (candidates, free) = (supply.candidates, supply.free);
        let places = Places::new(&candidates, &beside);
        Ok(Wish {
            kind,
            near,
            serves: true,
            number,
            is_exact,
            displays: (gpus.len(), Vec::new()),
            candidates,
            free,
            has_node: gpus.iter().map(Way::has_node).collect(),
            refused,
            beside,
            on_switch,
            on_node,
            places,
        })
    }

    /// Returns the name of a GPU: its index, or a display's address.
    pub(super) fn name(&self, gpu: usize) -> GpuName {
        let (counted, displays) = &self.displays;
        let display = gpu.checked_sub(*counted).and_then(|at| displays.get(at));
        display.map_or(GpuName::Index(gpu), |&bdf| GpuName::Address(bdf))
    }

    /// How many candidates are below a switch with one of these GPUs, and how many on the node of
    /// one or nearer.
    fn reach(&self, gpus: &[usize]) -> [usize; 2] {
        let words = self.candidates.len().div_ceil(64);
        [&self.on_switch, &self.on_node].map(|bits| {
            let word = |at| gpus.iter().fold(0, |word, gpu| word | bits[gpu * words + at]);
            (0..words).map(|at| word(at).count_ones() as usize).sum()
        })
    }

    /// How far as many devices are; `None` if too few are near enough.
    fn far(&self, gpus: &[usize]) -> Option<Far> {
        let [on_switch, on_node] = self.reach(gpus);
        let most = limit(self.near);
        let there = match self.near {
            Near::Switch => on_switch,
            Near::Node => on_node,
            Near::Any => self.candidates.len(),
        };
        if there < self.number || self.needed(gpus)? > self.number {
            return None;
        }
        let set = gpus.iter().filter(|gpu| **gpu < MOST).fold(0, |set: Mask, gpu| set | 1 << gpu);
        Some(self.places.far(set, self.number, most))
    }

    /// How many devices it takes so that each GPU has one that is near enough; `None` if no number
    /// is enough. A device near enough to one GPU is so to all GPUs that are as near to that one,
    /// and the guest's own to all.
    fn needed(&self, gpus: &[usize]) -> Option<usize> {
        let bits = match self.near {
            _ if !self.serves => return Some(0),
            Near::Switch => &self.on_switch,
            Near::Node => &self.on_node,
            Near::Any => return Some(0),
        };
        let words = self.candidates.len().div_ceil(64);
        let row = |gpu: usize| &bits[gpu * words..][..words];
        let mut needed = 0;
        for (place, &gpu) in gpus.iter().enumerate() {
            if row(gpu).iter().all(|word| *word == 0) {
                return None;
            }
            let has_one = |other: &usize| {
                row(gpu).iter().zip(row(*other)).any(|(mine, theirs)| mine & theirs != 0)
            };
            needed += usize::from(!gpus[..place].iter().any(has_one));
        }
        Some(needed)
    }

    /// The nearest devices, each with the index of the GPU that it is for.
    fn choose(&self, gpus: &[usize], outside: &[usize]) -> Result<Choice, PlanError> {
        let nearest = |at: usize| {
            let all = gpus.iter().map(|&gpu| self.beside[gpu][at].distance());
            all.min().unwrap_or(limit(Near::Any))
        };
        let is_near = |&at: &usize| self.candidates[at].is_own || nearest(at) <= limit(self.near);
        let near: Vec<usize> = (0..self.candidates.len()).filter(is_near).collect();
        if near.len() < self.number {
            return Err(self.too_far(gpus, &near));
        }
        let needed = self.needed(gpus);
        if needed.is_none_or(|needed| needed > self.number) {
            return Err(self.too_few(gpus, needed));
        }
        let wanted = self.wanted_outside(outside, &near);
        let (candidates, beside) = (&self.candidates[..], &self.beside[..]);
        let taken = Cover::new(candidates, beside, self.number, gpus, &wanted, &near).take(&near);
        let rounds = self.number.div_ceil(gpus.len().max(1));
        let cost = |gpu: usize, round: usize, at: usize| {
            let beside = self.beside[gpu][at];
            let is_single = round == 0 && beside.distance() == 0;
            Cost([
                i32::from(!is_single),
                beside.rank(),
                i32::try_from(round).unwrap_or(i32::MAX >> 16),
            ])
        };
        let seats: Vec<(usize, usize)> =
            (0..rounds).flat_map(|round| gpus.iter().map(move |&gpu| (gpu, round))).collect();
        let row = |&(gpu, round): &(usize, usize)| -> Vec<Cost> {
            taken.iter().map(|&at| cost(gpu, round, at)).collect()
        };
        let costs: Vec<Vec<Cost>> = seats.iter().map(row).collect();
        let pairs = cheapest(&costs, self.number);
        Ok(pairs.into_iter().map(|(seat, at)| (Some(seats[seat].0), taken[at])).collect())
    }

    /// Returns for each candidate the free GPUs that would lose their only nearest one, and a
    /// weight of all GPUs sharing a switch with it: 64 for the same switch, 1 for one farther up.
    fn wanted_outside(&self, outside: &[usize], near: &[usize]) -> Vec<[i32; 2]> {
        let mut wanted = vec![[0; 2]; self.candidates.len()];
        for &gpu in outside {
            let row = &self.beside[gpu];
            let switched = |at: &usize| row[*at].distance() == 0;
            let Some(best) = (0..row.len()).filter(switched).map(|at| row[at]).min() else {
                continue;
            };
            let alone = row.iter().filter(|beside| **beside == best).count() == 1;
            for &at in near.iter().filter(|at| switched(at)) {
                wanted[at][0] += i32::from(alone && row[at] == best);
                wanted[at][1] += if row[at].over <= Proximity::Pix { 64 } else { 1 };
            }
        }
        wanted
    }

    /// Chooses devices of a guest without GPUs: those on the node first, then those that free GPUs
    /// need least.
    fn without_gpus(&self, node: Option<NodeId>, outside: &[usize]) -> Choice {
        let mut all: Vec<usize> = (0..self.candidates.len()).collect();
        let wanted = self.wanted_outside(outside, &all);
        all.sort_by_key(|&at| {
            let Candidate { node: own, crowd, along, is_own, .. } = &self.candidates[at];
            (!is_own, own.is_none() || *own != node, wanted[at], *crowd, *along, at)
        });
        all.into_iter().take(self.number).map(|at| (None, at)).collect()
    }

    /// Makes the error that there is none for some GPUs, or that more are needed for all.
    fn too_few(&self, gpus: &[usize], needed: Option<usize>) -> PlanError {
        let place = self.place();
        let label =
            |gpus: &[usize]| label(&gpus.iter().map(|&gpu| self.name(gpu)).collect::<Vec<_>>());
        let flag = self.flag();
        let (noun, near) =
            (self.kind.noun(), if self.near == Near::Switch { "node" } else { "any" });
        let farther = format!("`--{flag}-near {near}` allows farther ones");
        if let Some(needed) = needed {
            let all = count(needed, noun);
            let its = match self.near {
                Near::Switch => "below one PCIe switch with it",
                Near::Node | Near::Any => "on its node",
            };
            let what = format!(
                "requested {}, and it takes {all} for each of {} to have one {its}",
                count(self.number, noun),
                label(gpus)
            );
            let hint = format!("ask for {all}, or {farther}");
            return PlanError::Impossible { what, hint };
        }
        let lacks = |gpu: &usize| self.needed(&[*gpu]).is_none();
        let without: Vec<usize> = gpus.iter().copied().filter(lacks).collect();
        let refused = self.refused_near(&without, self.near);
        let of = if self.is_exact { "requested" } else { "available" };
        let hint = match with_group(&refused, self.kind, 1) {
            Some(whole) => format!("{whole}; {farther}"),
            None => farther,
        };
        short(format!("no {of} {noun} is {place} {}", label(&without)), &refused, hint)
    }

    /// Unavailable devices that would be near enough to one of these GPUs; none if any distance
    /// is, or the devices are named.
    fn refused_near(&self, gpus: &[usize], near: Near) -> Vec<Refused> {
        let is_near = |(_, far): &&(Refused, Vec<u32>)| {
            !self.is_exact && near != Near::Any && gpus.iter().any(|&gpu| far[gpu] <= limit(near))
        };
        self.refused.iter().filter(is_near).map(|(refused, _)| refused.clone()).collect()
    }

    /// Where one that is near enough is, to be followed by GPUs.
    fn place(&self) -> &'static str {
        match self.near {
            Near::Switch => "below one PCIe switch with",
            Near::Node | Near::Any => "on the node of",
        }
    }

    fn flag(&self) -> &'static str {
        if self.kind == Kind::Nvme { "nvme" } else { "nic" }
    }

    /// Makes the error that too few are near enough.
    fn too_far(&self, gpus: &[usize], near: &[usize]) -> PlanError {
        let (number, noun) = (self.number, self.kind.noun());
        let place = self.place();
        let names: Vec<GpuName> = gpus.iter().map(|&gpu| self.name(gpu)).collect();
        let label = label(&names);
        let (what, flag) = (count(number, noun), self.flag());
        let what = if self.is_exact {
            let far = (0..self.candidates.len()).find(|at| !near.contains(at));
            let bdf = far.map(|at| self.candidates[at].bdf.to_string()).unwrap_or_default();
            format!("{noun} {bdf} is not {place} {label}")
        } else {
            let unknown = self.candidates.iter().filter(|candidate| candidate.node.is_none());
            let unknown = match unknown.count() {
                0 => String::new(),
                some => format!(
                    ", and the kernel reports no node for {some} that {} free",
                    crate::words::are(some)
                ),
            };
            format!("requested {what} {place} {label}, {} available{unknown}", near.len())
        };
        let refused = self.refused_near(gpus, self.near);
        let hint = match self.near {
            Near::Switch => format!("--{flag}-near node takes those of the node, too"),
            Near::Node | Near::Any => format!("--{flag}-near any takes them from anywhere"),
        };
        let missing = number.saturating_sub(near.len());
        let hint = match with_group(&refused, self.kind, missing) {
            Some(whole) => format!("{whole}; {hint}"),
            None => hint,
        };
        short(what, &refused, hint)
    }
}

/// Adds the reasons for the choice, and its compromises.
fn explain(wish: &Wish, gpus: &[usize], choice: &Choice, reasons: &mut Reasons) {
    let mut choice: Vec<(usize, Option<(usize, Beside)>)> =
        choice.iter().map(|&(gpu, at)| (at, nearest(wish, gpus, gpu, at))).collect();
    choice.sort_by_key(|(at, _)| *at);
    let bdf = |at: usize| wish.candidates[at].bdf;
    let kind = wish.kind;
    let taken = choice.iter().map(|&(at, beside)| BesideGpu {
        device: bdf(at),
        gpu: beside.map(|(gpu, beside)| (wish.name(gpu), beside.over)),
        node: wish.candidates[at].node,
    });
    let of = (!wish.is_exact).then_some(wish.free);
    reasons.say(kind.topic(), BesideReason::Taken { devices: taken.collect(), kind, of });
    let at_distance = |wanted: u32| {
        let far = choice.iter().filter(move |(_, beside)| {
            beside.is_some_and(|(_, beside)| beside.distance().min(FAR) == wanted)
        });
        far.map(|(at, _)| bdf(*at)).collect::<Vec<_>>()
    };
    // The worst first.
    for wanted in [2, 1] {
        // A device elsewhere may be near if its node is unknown, or that of a GPU.
        let all_known = gpus.iter().all(|&gpu| wish.has_node[gpu]);
        let is_unknown = |bdf: &Bdf| {
            let mut same = wish.candidates.iter().filter(|candidate| candidate.bdf == *bdf);
            wanted == 2 && (!all_known || same.all(|candidate| candidate.node.is_none()))
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
    without(wish, gpus, &choice, reasons);
}

/// Adds the GPUs that have no device on their node, then others that have none on their switch,
/// and why devices that are there are not taken.
fn without(
    wish: &Wish,
    gpus: &[usize],
    choice: &[(usize, Option<(usize, Beside)>)],
    reasons: &mut Reasons,
) {
    // A device or a GPU whose node is unknown may be near.
    let is_known = choice.iter().all(|(at, _)| wish.candidates[*at].node.is_some());
    let is_beyond = |gpu: usize, distance: u32| {
        choice.iter().all(|(at, _)| wish.beside[gpu][*at].distance() >= distance)
    };
    let is_off = |gpu: &&usize| is_beyond(**gpu, FAR) && wish.has_node[**gpu] && is_known;
    let off: Vec<usize> = gpus.iter().filter(is_off).copied().collect();
    let lacks = |gpu: &&usize| is_beyond(**gpu, 1) && !off.contains(gpu);
    let lacking: Vec<usize> = gpus.iter().filter(lacks).copied().collect();
    let kind = wish.kind;
    let facts = |gpus: &[usize], near| {
        let refused = wish.refused_near(gpus, near);
        let names = gpus.iter().map(|&gpu| wish.name(gpu)).collect();
        (names, refused.into_iter().map(|refused| refused.line).collect())
    };
    let is_each = wish.number >= gpus.len();
    let is_some = off.len() < gpus.len() && wish.serves;
    if !off.is_empty() && (is_each || is_some) {
        let (gpus, refused) = facts(&off, Near::Node);
        reasons.compromise(kind.topic(), BesideReason::NoneOnNode { kind, gpus, refused });
    }
    if !lacking.is_empty() && is_each {
        let (gpus, refused) = facts(&lacking, Near::Switch);
        reasons.compromise(kind.topic(), BesideReason::NoneOnSwitch { kind, gpus, refused });
    }
}

/// The GPU of the guest that a device is nearest to, and how near; of equally near ones the GPU
/// that it is for.
fn nearest(
    wish: &Wish,
    gpus: &[usize],
    meant: Option<usize>,
    at: usize,
) -> Option<(usize, Beside)> {
    let all = gpus.iter().map(|&gpu| (wish.beside[gpu][at], Some(gpu) != meant, gpu));
    all.min().map(|(beside, _, gpu)| (gpu, beside))
}
