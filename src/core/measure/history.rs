//! Earlier measurements of a guest.

use super::expected::Shape;
use super::tool::Suite;
use super::what::{Reading, What};
use serde::{Deserialize, Serialize};

/// The number of runs that are kept.
pub const KEPT: usize = 50;
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
    /// How much was measured.
    #[serde(default)]
    pub suite: Suite,
    /// The GPUs that the guest had.
    pub shape: Shape,
    /// The measured values.
    pub readings: Vec<Reading>,
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

/// Returns the last value of each quantity, of the runs with the GPUs of the last run.
pub fn newest(runs: &[Run]) -> Vec<Reading> {
    let mut all: Vec<Reading> = Vec::new();
    let shape = runs.last().map(|run| &run.shape);
    let alike = runs.iter().rev().filter(|run| Some(&run.shape) == shape);
    for reading in alike.flat_map(|run| &run.readings) {
        let is_same = |one: &Reading| one.what == reading.what && one.device == reading.device;
        if !all.iter().any(is_same) {
            all.push(reading.clone());
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
