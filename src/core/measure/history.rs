//! Earlier measurements of a guest.

use super::expected::Shape;
use super::read::MOST_NAME;
use super::tool::Suite;
use super::what::{Reading, What};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The number of runs of each suite that are kept.
pub const KEPT: usize = 50;
/// The most values of a run that is kept: those of a few tests of each pair of 64 GPUs.
const MOST_READINGS: usize = 8192;
/// The most characters of the name of a measured part.
const MOST_DEVICE: usize = 512;
/// How many earlier runs count for the usual value.
const LAST: usize = 5;
/// The fewest earlier runs from which a usual value is taken.
const FEWEST: usize = 2;
/// Part of the usual value below which a value has regressed.
const REGRESSED: f64 = 0.95;
/// How many times the usual worst case has regressed: that of one run varies much.
const REGRESSED_WORST: f64 = 2.0;

/// A run in a guest's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// When, in seconds since 1970, UTC.
    pub at_s: u64,
    /// How much was measured; `None` if an older version did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<Suite>,
    /// The GPUs that the guest had.
    pub shape: Shape,
    /// The measured values.
    pub readings: Vec<Reading>,
}

impl Run {
    /// Why it is not kept, since nothing of a guest may fill the host; `None` if it is.
    pub fn too_large(&self) -> Option<String> {
        let Shape { model, driver, .. } = &self.shape;
        let is_long = |text: &str, most| text.chars().count() > most;
        let mut devices = self.readings.iter().filter_map(|one| one.device.as_deref());
        if self.readings.len() > MOST_READINGS {
            let number = self.readings.len();
            Some(format!("it has {number} values, more than {MOST_READINGS}"))
        } else if [model, driver].iter().any(|text| is_long(text, MOST_NAME)) {
            Some(format!("the names of its GPUs and driver have more than {MOST_NAME} characters"))
        } else if devices.any(|device| is_long(device, MOST_DEVICE)) {
            Some(format!("a name in it has more than {MOST_DEVICE} characters"))
        } else {
            None
        }
    }
}

/// Leaves the last runs of each suite, the oldest first.
pub fn keep_last(runs: &mut Vec<Run>) {
    let mut left: BTreeMap<Option<Suite>, usize> = BTreeMap::new();
    for run in runs.iter() {
        *left.entry(run.suite).or_default() += 1;
    }
    runs.retain(|run| {
        let newer = left.entry(run.suite).and_modify(|left| *left -= 1).or_default();
        *newer < KEPT
    });
}

/// Returns the median of values; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the usual value of a quantity: the median of a guest's last runs with the same GPUs.
pub(super) fn usual(runs: &[Run], shape: &Shape, reading: &Reading) -> Option<f64> {
    let same = |one: &&Reading| one.what == reading.what && one.device == reading.device;
    let alike = runs.iter().rev().filter(|run| run.shape == *shape);
    let values = alike.filter_map(|run| Some(run.readings.iter().find(same)?.value));
    let values: Vec<f64> = values.take(LAST).collect();
    if values.len() < FEWEST { None } else { median(&values) }
}

/// Returns the last value of each quantity by suite, of the runs with the GPUs of the last run.
pub fn newest(runs: &[Run]) -> Vec<(Option<Suite>, Reading)> {
    let mut all: Vec<(Option<Suite>, Reading)> = Vec::new();
    let mut seen = BTreeSet::new();
    let shape = runs.last().map(|run| &run.shape);
    let alike = runs.iter().rev().filter(|run| Some(&run.shape) == shape);
    for (suite, reading) in alike.flat_map(|run| run.readings.iter().map(|one| (run.suite, one))) {
        if seen.insert((suite, reading.what, reading.device.as_deref())) {
            all.push((suite, reading.clone()));
        }
    }
    all
}

/// Returns the limit below (above, for delays) which a value has regressed.
pub(super) fn limit(what: What, usual: f64) -> f64 {
    match what {
        What::TimerLatency => usual * REGRESSED_WORST,
        _ if what.is_delay() => usual / REGRESSED,
        _ => usual * REGRESSED,
    }
}
