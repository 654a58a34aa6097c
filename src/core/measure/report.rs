//! The verdict on each measured value.

use super::expected::{OwnExpected, Promise, Shape};
use super::history::{self, Run};
use super::read::Faulty;
use super::tool::{Suite, Tool};
use super::what::{Reading, What};
use serde::Serialize;

/// The verdict on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Verdict {
    /// As expected, or better.
    Ok,
    /// Nothing is known to compare it with: it counts from the next runs on.
    NoReference,
    /// Worse than expected.
    Low,
    /// Worse than this guest's own earlier runs.
    Regressed,
}

/// A possible cause: a finding of a rule that fits a slow value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidate {
    /// The rule.
    pub rule: String,
    /// Its message.
    pub message: String,
    /// The remedy.
    pub hint: String,
}

/// A measured value and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Line {
    /// The program.
    pub tool: Tool,
    /// The value.
    #[serde(flatten)]
    pub reading: Reading,
    /// The unit of the values.
    pub unit: &'static str,
    /// The expected value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// Where the expected value is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// Possible causes of a bad value, the most likely one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
}

/// A program that measured nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NotMeasured {
    /// The program.
    pub tool: Tool,
    /// Why.
    pub why: String,
}

/// The measurements of a guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasureReport {
    /// Name of the domain.
    pub domain: String,
    /// The domain on the other side of RDMA; `None` if it was measured between its own NICs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// How much was measured.
    pub suite: Suite,
    /// Its GPUs, by its own driver.
    pub shape: Shape,
    /// The measured values.
    pub lines: Vec<Line>,
    /// Wrong results and failed tests, whatever the speed.
    pub faults: Vec<Faulty>,
    /// Tests without a value that passed, such as those of DCGM.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<String>,
    /// Present causes of lower speed: GPUs throttled by heat or power.
    pub notes: Vec<String>,
    /// Programs without a result.
    pub not_measured: Vec<NotMeasured>,
}

impl MeasureReport {
    /// Whether something is slow, wrong or failed.
    pub fn is_bad(&self) -> bool {
        let is_bad = |line: &Line| matches!(line.verdict, Verdict::Low | Verdict::Regressed);
        !self.faults.is_empty() || self.lines.iter().any(is_bad)
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.faults.is_empty() && self.passed.is_empty()
    }

    /// The slow quantities, each once.
    pub fn slow(&self) -> Vec<What> {
        let slow = self.lines.iter().filter(|line| !line.verdict.is_good());
        let mut slow: Vec<What> = slow.map(|line| line.reading.what).collect();
        slow.sort();
        slow.dedup();
        slow
    }
}

impl Verdict {
    /// Whether there is nothing to look into.
    pub fn is_good(self) -> bool {
        matches!(self, Verdict::Ok | Verdict::NoReference)
    }
}

/// The values that a reading is compared with, beside those of the host.
#[derive(Debug, Clone, Copy)]
pub struct Basis<'a> {
    /// The guest's earlier runs, the oldest first.
    pub runs: &'a [Run],
    /// The admin's expected values.
    pub own: &'a [OwnExpected],
    /// Scales expected values.
    pub threshold: f64,
}

impl<'a> Basis<'a> {
    /// Without earlier runs.
    pub fn of(own: &'a [OwnExpected]) -> Basis<'a> {
        Basis { runs: &[], own, threshold: 1.0 }
    }
}

/// Judges a reading.
pub fn judge(
    tool: Tool,
    reading: Reading,
    (shape, promise): (&Shape, Promise),
    basis: Basis<'_>,
) -> Line {
    let what = reading.what;
    let expected = shape.expected(&reading, promise, basis.own);
    // A longer delay is accepted by a smaller factor, too.
    let factor = if what.is_delay() { 1.0 / basis.threshold } else { basis.threshold };
    let expected = expected.map(|one| (one.value * factor, one.source));
    let usual = history::usual(basis.runs, shape, &reading);
    let (limit, source, verdict) = match (expected, usual) {
        (Some((value, source)), _) if what.is_worse(reading.value, value) => {
            (Some(value), Some(source), Verdict::Low)
        }
        (_, Some(usual)) if what.is_worse(reading.value, history::limit(what, usual)) => {
            let source = "median of earlier runs".to_owned();
            (Some(usual), Some(source), Verdict::Regressed)
        }
        (Some((value, source)), _) => (Some(value), Some(source), Verdict::Ok),
        (None, Some(usual)) => {
            (Some(usual), Some("median of earlier runs".to_owned()), Verdict::Ok)
        }
        (None, None) => (None, None, Verdict::NoReference),
    };
    let unit = what.unit();
    Line { tool, reading, unit, expected: limit, source, verdict, candidates: Vec::new() }
}
