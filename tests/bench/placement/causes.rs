//! Why a peer that gives its guests all that ours does lets in more GPUs of a stream: by chance, or
//! by a rule of ours; and by which one.

use super::hosts::Host;
use super::metrics::Judge;
use super::model::{Ask, Place, Policy};
use super::ours::{Ours, held, request};
use super::run::{Outcome, State, run};
use super::stream::{Arrival, Variant};
use gpuvm_core::memsize::MemSize;
use gpuvm_core::placement::{Occupancy, plan};
use gpuvm_core::request::{Allow, DeviceWish, Request};
use std::collections::BTreeMap;

/// Why ours refuses a guest that a peer admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its state has other guests: it admitted some that the peer refused before, or the reverse.
    OtherGuests,
    /// It has the same guests in other places.
    OtherPlaces,
    /// Half a core: the odd vCPU takes a whole one.
    OddVcpu,
    /// A core of the node for emulator and I/O threads.
    EmulatorCore,
    /// A vCPU would be on another node than its GPU, or memory.
    OtherNode,
    /// The GPUs are not a partition.
    Partition,
    /// Memory that stays with the host.
    Memory,
    /// NICs or drives.
    Devices,
    /// None of these alone.
    Several,
}

impl Cause {
    /// The cause in a few words.
    pub fn name(self) -> &'static str {
        match self {
            Cause::OtherGuests => "other guests are on the host",
            Cause::OtherPlaces => "the same guests are in other places",
            Cause::OddVcpu => "an odd vCPU takes a whole core",
            Cause::EmulatorCore => "emulator and I/O threads have a core of each node",
            Cause::OtherNode => "cores and memory are on the node of their GPU",
            Cause::Partition => "GPUs are an NVLink partition",
            Cause::Memory => "the host keeps memory of each node",
            Cause::Devices => "NICs and drives",
            Cause::Several => "several of these together",
        }
    }
}

/// A refusal of ours with the peer's guests on the host, by what would have avoided it.
fn rule(host: &Host, guests: &[Place], ask: &Ask) -> Cause {
    let topology = &host.topology;
    let held = guests.iter().enumerate().map(|(at, guest)| held(topology, at, guest));
    let held = Occupancy { domains: held.collect(), ..Occupancy::default() };
    let fits = |change: &dyn Fn(&mut Request)| {
        let mut changed = request(ask, Allow::default());
        change(&mut changed);
        plan(topology, &held, &changed).is_ok()
    };
    let fewer = |by: u32| fits(&|r| r.vcpus = Some(ask.vcpus.saturating_sub(by).max(1)));
    let threads = topology.cores().iter().map(|core| core.pcpus.len()).max().unwrap_or(1);
    let threads = u32::try_from(threads).unwrap_or(1);
    let nodes = u32::try_from(topology.nodes().len()).unwrap_or(1);
    match () {
        () if !ask.vcpus.is_multiple_of(threads) && fewer(1) => Cause::OddVcpu,
        () if (1..=nodes.min(ask.gpus)).any(|cores| fewer(cores * threads)) => Cause::EmulatorCore,
        () if fits(&|r| r.memory_kib = Some(MemSize::from_gib(u64::from(ask.gpus)))) => {
            Cause::Memory
        }
        () if fits(&|r| r.allow.remote = true) => Cause::OtherNode,
        () if fits(&|r| r.allow.split = true) => Cause::Partition,
        () if fits(&|r| {
            (r.extras.nics, r.extras.nvmes) = (DeviceWish::Count(0), DeviceWish::Count(0));
        }) =>
        {
            Cause::Devices
        }
        () => Cause::Several,
    }
}

/// GPUs of the guests that a peer admits and ours refuses, by the cause; each planner has its own
/// state.
pub fn refused(host: &Host, peer: &dyn Policy, stream: &[Arrival]) -> BTreeMap<Cause, u64> {
    let (ours, topology) = (Ours::default(), &host.topology);
    let (mut own, mut theirs) = (State::default(), State::default());
    // When the guests leave that only one of the two has.
    let (mut apart, mut causes) = (Vec::new(), BTreeMap::new());
    for arrival in stream {
        own.depart(arrival.at, |_, _| {});
        theirs.depart(arrival.at, |_, _| {});
        apart.retain(|leaves| *leaves > arrival.at);
        let place = ours.place(topology, &own.guests, &arrival.ask);
        let other = peer.place(topology, &theirs.guests, &arrival.ask);
        if place.is_none() && other.is_some() {
            let is_rule = ours.place(topology, &theirs.guests, &arrival.ask).is_none();
            let cause = match () {
                () if is_rule => rule(host, &theirs.guests, &arrival.ask),
                () if apart.is_empty() => Cause::OtherPlaces,
                () => Cause::OtherGuests,
            };
            *causes.entry(cause).or_default() += u64::from(arrival.ask.gpus);
        }
        if place.is_some() != other.is_some() {
            apart.push(arrival.leaves);
        }
        for (state, place) in [(&mut own, place), (&mut theirs, other)] {
            if let Some(place) = place {
                state.enter(place, arrival.leaves);
            }
        }
    }
    causes
}

/// A stream in which a peer with full quality lets in more GPUs than ours.
#[derive(Debug, Clone)]
pub struct Behind {
    /// The peer's name.
    pub peer: String,
    /// By how many GPUs.
    pub more: u64,
    /// The difference, peer less ours, in each of the streams of other seeds.
    pub again: Vec<i64>,
    /// GPUs of guests that only the peer admits, by cause.
    pub refused: BTreeMap<Cause, u64>,
}

impl Behind {
    /// Whether the peer lets in no more on average over this stream and those of other seeds, or by
    /// less than twice the standard error.
    #[allow(clippy::cast_precision_loss)]
    pub fn is_chance(&self) -> bool {
        let number = self.again.len() as f64;
        let mean = self.again.iter().sum::<i64>() as f64 / number;
        let spread = self.again.iter().map(|d| (*d as f64 - mean).powi(2)).sum::<f64>();
        mean <= 2.0 * (spread / (number - 1.0) / number).sqrt()
    }

    /// The rule of ours that costs most, of those refusals that a rule explains; otherwise the
    /// places, and if not these, the guests.
    pub fn cause(&self) -> Cause {
        let rules = self.refused.iter().filter(|(cause, _)| **cause > Cause::OtherPlaces);
        let most = rules
            .max_by_key(|(_, gpus)| **gpus)
            .or_else(|| self.refused.iter().max_by_key(|(cause, _)| **cause));
        most.map_or(Cause::OtherGuests, |(cause, _)| *cause)
    }
}

/// Finds the streams of a host, a load and a variant in which peers are ahead.
pub fn behind(
    host: &Host,
    judge: &Judge<'_>,
    peers: &[Box<dyn Policy>],
    (load, variant): (f64, Variant),
    arrivals: usize,
    (seed, others): (u64, u64),
) -> Vec<Behind> {
    let stream = |seed| judge.sizes.stream(load, variant, arrivals, seed);
    let outcome = |policy: &dyn Policy, stream: &[Arrival]| -> Outcome {
        run(host, judge, policy, stream, &|| 0.0)
    };
    let first = stream(seed);
    let own = outcome(&Ours::default(), &first);
    let difference = |peer: &Outcome, own: &Outcome| {
        i64::try_from(peer.gpus).unwrap_or(0) - i64::try_from(own.gpus).unwrap_or(0)
    };
    let mut later: Vec<(Vec<Arrival>, Outcome)> = Vec::new();
    let mut found = Vec::new();
    for peer in peers {
        let theirs = outcome(peer.as_ref(), &first);
        if !theirs.full_quality() || theirs.gpus <= own.gpus {
            continue;
        }
        if later.is_empty() {
            let again = (1..=others).map(|more| stream(seed + 1000 * more));
            later = again.map(|s| (s.clone(), outcome(&Ours::default(), &s))).collect();
        }
        let again = later.iter().map(|(s, own)| difference(&outcome(peer.as_ref(), s), own));
        found.push(Behind {
            peer: peer.name(),
            more: theirs.gpus - own.gpus,
            again: again.collect(),
            refused: refused(host, peer.as_ref(), &first),
        });
    }
    found
}
