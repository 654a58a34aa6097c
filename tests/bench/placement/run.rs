//! Runs a stream through a planner and counts.

use super::hosts::Host;
use super::metrics::{EPSILON, Judge, METRICS, Quality, WHOLE};
use super::model::{Place, Policy};
use super::stream::Arrival;
use std::collections::BTreeMap;

/// The result of a stream of guests with one planner.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The planner's name.
    pub name: String,
    /// Inputs that it does not have.
    pub lacks: Vec<&'static str>,
    /// Guests that were admitted.
    pub guests: usize,
    /// Their GPUs.
    pub gpus: u64,
    /// GPUs of all guests that came.
    pub asked: u64,
    /// Guests that arrived and that were admitted, by GPUs.
    pub classes: BTreeMap<u32, (usize, usize)>,
    /// GPUs in use over the GPUs of the host, on average over time.
    pub utilisation: f64,
    /// Sums of each metric, weighted with the guests' GPUs, and of the weights.
    pub sums: [(f64, f64); METRICS.len()],
    /// GPUs of the largest class that still fits, on average over arrivals.
    pub largest: f64,
    /// Cores that several guests have parts of, on average over arrivals.
    pub split: f64,
    /// The most of them at an arrival.
    pub most_split: usize,
    /// The faults of placements: the first few, and their number.
    pub faults: (Vec<String>, usize),
    /// Time of each plan, in µs, by the caller's clock.
    pub times_us: Vec<f64>,
}

impl Outcome {
    /// A metric on average, weighted with the guests' GPUs; `None` if it applied to no guest.
    pub fn mean(&self, metric: usize) -> Option<f64> {
        let (sum, weight) = self.sums[metric];
        (weight > 0.0).then_some(sum / weight)
    }

    /// Whether every guest got all that the rules require: NVLink, local vCPUs and memory, whole
    /// cores; and nothing that it cannot have.
    pub fn full_quality(&self) -> bool {
        let full = |metric| self.mean(metric).is_none_or(|mean| mean > 1.0 - EPSILON);
        use super::metrics::{LOCAL, MEMORY, NVLINK};
        [NVLINK, LOCAL, WHOLE, MEMORY].into_iter().all(full)
            && self.most_split == 0
            && self.faults.1 == 0
    }

    /// The share of the requested GPUs that were admitted.
    #[allow(clippy::cast_precision_loss)]
    pub fn admitted(&self) -> f64 {
        self.gpus as f64 / self.asked.max(1) as f64
    }

    /// The share of the guests of a size that were admitted.
    #[allow(clippy::cast_precision_loss)]
    pub fn acceptance(&self, gpus: u32) -> Option<f64> {
        let (came, entered) = self.classes.get(&gpus)?;
        Some(*entered as f64 / (*came).max(1) as f64)
    }

    fn add(&mut self, gpus: u32, quality: &Quality) {
        self.guests += 1;
        self.gpus += u64::from(gpus);
        self.classes.entry(gpus).or_default().1 += 1;
        for (sum, value) in self.sums.iter_mut().zip(quality) {
            if let Some(value) = value {
                *sum = (sum.0 + value * f64::from(gpus), sum.1 + f64::from(gpus));
            }
        }
    }
}

/// The guests of a host over time.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Their placements.
    pub guests: Vec<Place>,
    leaves: Vec<f64>,
}

impl State {
    /// Lets guests go that leave before a time; calls back with each one's time and GPUs.
    pub fn depart(&mut self, now: f64, mut gone: impl FnMut(f64, usize)) {
        while let Some(at) = (0..self.leaves.len())
            .filter(|&at| self.leaves[at] <= now)
            .min_by(|&a, &b| self.leaves[a].total_cmp(&self.leaves[b]))
        {
            let (guest, time) = (self.guests.remove(at), self.leaves.remove(at));
            gone(time, guest.gpus.len());
        }
    }

    /// Admits a guest.
    pub fn enter(&mut self, place: Place, leaves: f64) {
        self.guests.push(place);
        self.leaves.push(leaves);
    }
}

/// Faults that are kept as text.
const FAULTS_KEPT: usize = 5;

/// Runs a stream; `clock` gives a time in µs, or always 0 if time does not matter.
#[allow(clippy::cast_precision_loss)]
pub fn run(
    host: &Host,
    judge: &Judge<'_>,
    policy: &dyn Policy,
    stream: &[Arrival],
    clock: &dyn Fn() -> f64,
) -> Outcome {
    let mut outcome =
        Outcome { name: policy.name(), lacks: policy.lacks().to_vec(), ..Outcome::default() };
    let mut state = State::default();
    let (mut used, mut since, mut area) = (0usize, 0.0, 0.0);
    let (mut largest, mut split) = (0u64, 0usize);
    for arrival in stream {
        let mut pass = |now: f64, used: usize| {
            area += used as f64 * (now - since);
            since = now;
        };
        state.depart(arrival.at, |time, gpus| {
            pass(time, used);
            used -= gpus;
        });
        pass(arrival.at, used);
        largest += u64::from(judge.largest(&state.guests));
        let cores = judge.split_cores(&state.guests);
        split += cores;
        outcome.most_split = outcome.most_split.max(cores);
        outcome.asked += u64::from(arrival.ask.gpus);
        outcome.classes.entry(arrival.ask.gpus).or_default().0 += 1;
        let started = clock();
        let placed = policy.place(&host.topology, &state.guests, &arrival.ask);
        outcome.times_us.push(clock() - started);
        let Some(place) = placed else { continue };
        for fault in judge.faults(&state.guests, &arrival.ask, &place) {
            outcome.faults.1 += 1;
            if outcome.faults.0.len() < FAULTS_KEPT {
                outcome.faults.0.push(fault);
            }
        }
        outcome.add(arrival.ask.gpus, &judge.quality(&state.guests, &arrival.ask, &place));
        used += place.gpus.len();
        state.enter(place, arrival.leaves);
    }
    outcome.most_split = outcome.most_split.max(judge.split_cores(&state.guests));
    let arrivals = stream.len().max(1) as f64;
    outcome.utilisation = area / since.max(f64::MIN_POSITIVE) / f64::from(judge.sizes.gpus.max(1));
    (outcome.largest, outcome.split) = (largest as f64 / arrivals, split as f64 / arrivals);
    outcome
}
