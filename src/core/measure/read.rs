//! Parsers of the programs' output. A layout that is not known is an error, never a wrong number.

use super::tool::{Call, Tool};
use super::what::{Reading, What};
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A result that is wrong whatever the speed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Faulty {
    /// Its code: `data-wrong`, `test-failed` or `cells-alike` of a program, `gpu-fault` or
    /// `gpu-missing` of the guest's GPUs.
    pub code: &'static str,
    /// The program; `None` if the guest's NVIDIA driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Tool>,
    /// The wrong result.
    pub message: String,
}

/// The values in an output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taken {
    /// Measured values.
    pub readings: Vec<Reading>,
    /// Wrong results.
    pub faults: Vec<Faulty>,
    /// Names of tests without a value that passed.
    pub passed: Vec<String>,
    /// Warnings of tests that did not fail.
    pub warnings: Vec<String>,
    /// Parts that were not measured, and why.
    pub skipped: Vec<String>,
    /// Tests that passed, but not on each GPU: skipped on these.
    pub partly: Vec<String>,
}

impl Taken {
    /// One value.
    fn of(what: What, device: Option<String>, value: f64) -> Taken {
        Taken { readings: vec![Reading { what, device, value }], ..Taken::default() }
    }
}

/// Why an output could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ReadError {
    text: String,
    is_reason: bool,
}

impl ReadError {
    /// Whether the program itself gives this as the reason of its failure.
    pub fn is_reason(&self) -> bool {
        self.is_reason
    }
}

fn unlike(what: impl AsRef<str>) -> ReadError {
    ReadError { text: one_line(what.as_ref()), is_reason: false }
}

/// The reason that a program itself gives.
fn reason(what: impl AsRef<str>) -> ReadError {
    ReadError { is_reason: true, ..unlike(what) }
}

/// The most characters that are taken over of a text of the guest.
const MOST_TEXT: usize = 300;
/// The same of a name: a model, a version.
pub(super) const MOST_NAME: usize = 128;
/// The most GPUs and cells of a guest whose values are read: its output is not trusted.
const MOST_PARTS: usize = 64;
/// The most faults of one program that are reported.
const MOST_FAULTS: usize = 256;

/// The largest value in any unit: IOPS of a fast drive are below.
pub const MOST_VALUE: f64 = 1e9;
/// The smallest one: below, nothing was measured.
const LEAST_VALUE: f64 = 1e-6;

impl Reading {
    /// Whether its value can be one: a guest decides on it.
    pub fn is_sound(&self) -> bool {
        (LEAST_VALUE..=MOST_VALUE).contains(&self.value)
    }
}

/// A text of the guest in one line, which cannot pass for one of ours.
pub fn one_line(text: &str) -> String {
    shortened(text, MOST_TEXT)
}

/// The first characters of a text of the guest, in one line.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(most).collect()
}

/// Reads the numbers of cells in a list of the directory of NUMA nodes in sysfs, each once. Errors:
/// there are more than any guest has: a program runs on each.
pub fn read_cells(listing: &str) -> Result<Vec<u32>, ReadError> {
    let numbers = listing.lines().filter_map(|line| line.trim().strip_prefix("node")?.parse().ok());
    let cells: BTreeSet<u32> = numbers.collect();
    if cells.len() > MOST_PARTS {
        return Err(unlike(format!("the guest lists more than {MOST_PARTS} cells")));
    }
    Ok(cells.into_iter().collect())
}

/// Reads the output of a program.
pub fn read(call: &Call, output: &str) -> Result<Taken, ReadError> {
    let mut taken = match call.tool {
        Tool::Nvbandwidth => nvbandwidth(call, output)?,
        Tool::AllReducePerf => all_reduce(output)?,
        Tool::Dcgmi => dcgm(output)?,
        Tool::IbWriteBw | Tool::IbReadBw => perftest(call, output)?,
        Tool::Fio => fio(call, output)?,
        Tool::Stream => stream(call, output)?,
        Tool::Mlc => mlc(output)?,
        Tool::Cyclictest => cyclictest(output)?,
    };
    taken.faults.iter_mut().for_each(|fault| fault.message = one_line(&fault.message));
    taken.faults.truncate(MOST_FAULTS);
    for texts in [&mut taken.warnings, &mut taken.skipped] {
        texts.iter_mut().for_each(|text| *text = one_line(text));
        texts.truncate(MOST_PARTS);
    }
    if let Some(reading) = taken.readings.iter().find(|reading| !reading.is_sound()) {
        return Err(unlike(format!("its value of {} is {:?}", reading.what, reading.value)));
    }
    let mut seen = BTreeSet::new();
    let mut named = taken.readings.iter().map(|one| (one.what, one.device.as_deref()));
    match named.find(|name| !seen.insert(*name)) {
        Some((what, None)) => Err(unlike(format!("it has two values of {what}"))),
        Some((what, Some(device))) => {
            Err(unlike(format!("it has two values of {what} of {device}")))
        }
        None => Ok(taken),
    }
}

/// Parses JSON that may follow other lines.
fn json(output: &str) -> Result<Value, ReadError> {
    let begin = output.find('{').ok_or_else(|| unlike("its output has no JSON"))?;
    let mut values = serde_json::Deserializer::from_str(&output[begin..]).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(unlike(format!("its JSON is damaged: {error}"))),
        None => Err(unlike("its output has no JSON")),
    }
}

/// A number that may be written as text.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Reads a matrix for each test that the call names. Parts without a value are reported.
fn nvbandwidth(call: &Call, output: &str) -> Result<Taken, ReadError> {
    let root = json(output)?;
    let root = &root["nvbandwidth"];
    if let Some(error) = root["error"].as_str() {
        return Err(reason(error.trim()));
    }
    let cases = root["testcases"].as_array().ok_or_else(|| unlike("its JSON has no testcases"))?;
    let mut taken = Taken::default();
    let mut seen = BTreeSet::new();
    for case in cases {
        let name = case["name"].as_str().unwrap_or_default();
        let what = match name {
            "host_to_device_memcpy_ce" => What::HostToDevice,
            "device_to_host_memcpy_ce" => What::DeviceToHost,
            "device_to_device_memcpy_read_ce" => What::DeviceToDevice,
            _ => continue,
        };
        if !seen.insert(what) {
            return Err(unlike(format!("{name} appears twice")));
        }
        match case["status"].as_str() {
            Some("Passed") => {}
            // It cannot run here, such as copies between GPUs that are no peers.
            Some(status @ ("Waived" | "Not Found")) => {
                taken.skipped.push(format!("{name}: its status is `{status}`"));
                continue;
            }
            status => {
                let message = case["error"].as_str().or(status).unwrap_or("no status").trim();
                let message = format!("{name}: {message}");
                let tool = Tool::Nvbandwidth;
                taken.faults.push(Faulty { code: "test-failed", tool: Some(tool), message });
                continue;
            }
        }
        let rows = case["bandwidth_matrix"].as_array();
        let rows = rows.ok_or_else(|| unlike(format!("{name} has no matrix")))?;
        let widths = rows.iter().filter_map(Value::as_array).map(Vec::len);
        if widths.chain([rows.len()]).any(|number| number > MOST_PARTS) {
            return Err(unlike(format!("{name} has more than {MOST_PARTS} GPUs")));
        }
        let before = taken.readings.len();
        for (row, cells) in rows.iter().enumerate() {
            for (column, cell) in cells.as_array().into_iter().flatten().enumerate() {
                let Some(value) = number(cell) else { continue };
                let device = match what {
                    What::DeviceToDevice => format!("GPU {row} from GPU {column}"),
                    _ => format!("GPU {column}"),
                };
                taken.readings.push(Reading { what, device: Some(device), value });
            }
        }
        let lacks = without_value(what, call.gpus, &taken.readings[before..]);
        taken.skipped.extend(lacks.map(|lacks| format!("{name}: no value of {lacks}")));
    }
    let is_named = |name: &&String| name.contains("_memcpy_");
    let has = |name: &str| cases.iter().any(|case| case["name"] == name);
    let absent = call.words.iter().filter(is_named).filter(|name| !has(name));
    taken.skipped.extend(absent.map(|name| format!("{name}: it is not in the output")));
    if taken.readings.is_empty() && taken.faults.is_empty() {
        let why = taken.skipped.join("; ");
        return Err(unlike(if cases.is_empty() { "it ran no test" } else { &why }));
    }
    Ok(taken)
}

/// The GPUs of a guest, or their pairs, of which a test has no value; `None` if it has all.
fn without_value(what: What, gpus: usize, readings: &[Reading]) -> Option<String> {
    if what == What::DeviceToDevice {
        let pairs = gpus * gpus.saturating_sub(1);
        let lacks = pairs.saturating_sub(readings.len());
        return (lacks > 0).then(|| format!("{lacks} of {pairs} pairs of GPUs"));
    }
    let names = (0..gpus).map(|gpu| format!("GPU {gpu}"));
    let has = |name: &String| readings.iter().any(|one| one.device.as_ref() == Some(name));
    let lacks: Vec<String> = names.filter(|name| !has(name)).collect();
    (!lacks.is_empty()).then(|| lacks.join(", "))
}

/// Reads the table of nccl-tests: the last columns are time, algbw, busbw and #wrong, first out of
/// place, then in place; `#wrong` is `N/A` where nothing was checked. Older versions have a relative
/// error in its place (`5e-07`), which rounding causes. Lines of NCCL's log may break one of the
/// table, which is left out; the last line counts wrong values, too.
fn all_reduce(output: &str) -> Result<Taken, ReadError> {
    let mut best: Option<f64> = None;
    let mut wrong = 0_u64;
    let mut broken = None;
    let odd = |line: &str| unlike(format!("a line of its table is `{}`", line.trim()));
    let is_bad_sum = |line: &str| {
        line.trim_start().starts_with("# Out of bounds values") && line.contains("FAILED")
    };
    for line in output.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [size, .., out_time, _, out_bus, out_wrong, in_time, _, in_bus, in_wrong] = words[..]
        else {
            continue;
        };
        if size.parse::<u64>().is_err() || words.len() < 12 {
            continue;
        }
        for (time, bus, bad) in [(out_time, out_bus, out_wrong), (in_time, in_bus, in_wrong)] {
            let (Ok(_), Ok(bus)) = (time.parse::<f64>(), bus.parse::<f64>()) else {
                broken = Some(line.trim());
                break;
            };
            if !bus.is_finite() {
                return Err(odd(line));
            }
            best = Some(best.map_or(bus, |best: f64| best.max(bus)));
            wrong = wrong.saturating_add(bad.parse().unwrap_or(0));
        }
    }
    let no_table = || broken.map_or_else(|| unlike("its output has no table"), odd);
    let value = best.ok_or_else(no_table)?;
    // Only the log is known to break lines: anything else is another layout.
    if let Some(line) = broken.filter(|line| !line.contains(" NCCL ")) {
        return Err(odd(line));
    }
    let mut taken = Taken::default();
    taken.readings.push(Reading { what: What::AllReduce, device: None, value });
    if wrong > 0 || output.lines().any(is_bad_sum) {
        let number = if wrong > 0 { wrong.to_string() } else { "some".to_owned() };
        let message = format!("{number} values of the all-reduce are wrong");
        taken.faults.push(Faulty { code: "data-wrong", tool: Some(Tool::AllReducePerf), message });
    }
    Ok(taken)
}

/// Reads DCGM's diagnostics: `DCGM GPU Diagnostic` up to version 3, `DCGM Diagnostic` from 4 on.
fn dcgm(output: &str) -> Result<Taken, ReadError> {
    let root = json(output)?;
    let found = ["DCGM Diagnostic", "DCGM GPU Diagnostic"].iter().find_map(|key| root.get(*key));
    let error = found.and_then(|found| found["runtime_error"].as_str()).map(str::trim);
    let categories = found.and_then(|found| found["test_categories"].as_array());
    let mut taken = Taken::default();
    let categories = match (categories, error) {
        (Some(categories), _) => categories,
        (None, Some(error)) => return Err(reason(error)),
        (None, None) => return Err(unlike("its JSON has no test categories")),
    };
    let mut results = 0;
    let (mut skipped, mut of_gpus) = (BTreeSet::new(), BTreeSet::new());
    for test in categories.iter().filter_map(|one| one["tests"].as_array()).flatten() {
        for result in test["results"].as_array().into_iter().flatten() {
            results += 1;
            let status = result["status"].as_str().unwrap_or_default().to_ascii_lowercase();
            let name = test["name"].as_str().unwrap_or("a test");
            match &*status {
                "fail" | "warn" => {}
                "pass" => {
                    taken.passed.push(one_line(name));
                    continue;
                }
                _ => {
                    let gpu = dcgm_gpu(result);
                    if !gpu.is_empty() {
                        of_gpus.insert((one_line(name), gpu.clone()));
                    }
                    skipped.insert(format!("{name}{gpu}"));
                    continue;
                }
            }
            let message = dcgm_message(name, result, &status);
            if status == "warn" {
                taken.warnings.push(message);
            } else {
                taken.faults.push(Faulty { code: "test-failed", tool: Some(Tool::Dcgmi), message });
            }
        }
    }
    if let Some(error) = error {
        if taken.faults.is_empty() {
            return Err(reason(error));
        }
        taken.warnings.push(one_line(error));
    }
    taken.passed.dedup();
    let partly = of_gpus.into_iter().filter(|(name, _)| taken.passed.contains(name));
    taken.partly = partly.map(|(name, gpu)| format!("{name}{gpu}")).take(MOST_PARTS).collect();
    taken.passed.truncate(MOST_PARTS);
    let is_empty = taken.passed.is_empty() && taken.faults.is_empty() && taken.warnings.is_empty();
    match (results, is_empty) {
        (0, _) => Err(unlike("it ran no test")),
        (_, true) => Err(unlike("it skipped every test")),
        _ => {
            taken.skipped.extend(skipped.into_iter().map(|name| format!("it skipped {name}")));
            Ok(taken)
        }
    }
}

/// The GPU of a result, to follow the name of its test.
fn dcgm_gpu(result: &Value) -> String {
    let id = ["gpu_id", "gpu_ids", "entity_id"].iter().find_map(|key| result.get(*key));
    let gpu = id.map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
    gpu.map(|gpu| format!(" of GPU {}", one_line(&gpu))).unwrap_or_default()
}

/// The text of a test that failed or warns: its GPU, and DCGM's reasons.
fn dcgm_message(name: &str, result: &Value, status: &str) -> String {
    let gpu = dcgm_gpu(result);
    let warnings = result["warnings"].as_array().into_iter().flatten();
    let text = |one: &Value| {
        let text = one["warning"].as_str().or_else(|| one.as_str())?;
        let code = number(&one["error_id"]).map(|code| format!(" (DCGM {code})"));
        Some(format!("{}{}", text.trim(), code.unwrap_or_default()))
    };
    let whys: Vec<String> = warnings.filter_map(text).collect();
    let why = match status {
        _ if !whys.is_empty() => whys.join("; "),
        "warn" => "a warning without a reason".to_owned(),
        _ => "failed".to_owned(),
    };
    format!("{name}{gpu}: {why}")
}

fn fio(call: &Call, output: &str) -> Result<Taken, ReadError> {
    let root = json(output)?;
    let job = &root["jobs"][0];
    let read = &job["read"];
    if let Some(error) = number(&job["error"]).filter(|error| *error != 0.0) {
        return Err(reason(format!("its job ended with error {error}")));
    }
    let what = call.what.unwrap_or(What::DiskRead);
    let value = match what {
        What::DiskRandomRead => number(&read["iops"]),
        _ => number(&read["bw_bytes"]).map(|bytes| bytes / 1e9),
    };
    let value = value.ok_or_else(|| unlike("its JSON has no rate of reads"))?;
    Ok(Taken::of(what, call.device.clone(), value))
}

/// Reads STREAM's line of the triad; the first number is MB/s.
fn stream(call: &Call, output: &str) -> Result<Taken, ReadError> {
    let line = output.lines().find_map(|line| line.trim().strip_prefix("Triad:"));
    let rate = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let value = rate.ok_or_else(|| unlike("its output has no triad"))? / 1000.0;
    let mut taken = Taken::default();
    taken.readings.push(Reading { what: What::Triad, device: call.device.clone(), value });
    if output.contains("Failed Validation") {
        let message = "the results of STREAM are wrong".to_owned();
        taken.faults.push(Faulty { code: "data-wrong", tool: Some(Tool::Stream), message });
    }
    Ok(taken)
}

/// Reads the average in the report that perftest writes for programs. Until January 2024 it was no
/// valid JSON: keys had no quotes, and a comma stood behind the last value.
fn perftest(call: &Call, output: &str) -> Result<Taken, ReadError> {
    let average = output.lines().find_map(|line| {
        let rest = line.trim().trim_start_matches('"').strip_prefix("BW_average")?;
        let value = rest.trim_start_matches('"').trim_start().strip_prefix(':')?;
        value.trim().trim_end_matches(',').parse::<f64>().ok()
    });
    let value = average.ok_or_else(|| unlike("its report has no average"))?;
    let what = call.what.unwrap_or(What::RdmaWrite);
    Ok(Taken::of(what, call.device.clone(), value))
}

/// Reads the matrix of idle latencies of mlc: a row for each cell with CPUs, a column for each one
/// with memory; `-` if a cell has no free memory. On one socket the heads are `Socket` and `Memory
/// node`.
fn mlc(output: &str) -> Result<Taken, ReadError> {
    let mut lines = output.lines().map(str::trim);
    lines
        .find(|line| line.starts_with("Measuring idle latencies"))
        .ok_or_else(|| unlike("its output has no idle latencies"))?;
    let numbers = |line: &str| -> Option<Vec<u32>> {
        let rest = ["Numa node", "Socket"].iter().find_map(|head| line.strip_prefix(head))?;
        let numbers: Option<Vec<u32>> =
            rest.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers.filter(|numbers| (1..=MOST_PARTS).contains(&numbers.len()))
    };
    let columns = lines.find_map(numbers).ok_or_else(|| unlike("its output has no matrix"))?;
    let mut taken = Taken::default();
    let mut cells: Vec<(u32, u32, f64)> = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let Some(Ok(row)) = words.next().map(str::parse::<u32>) else { break };
        let values: Vec<&str> = words.collect();
        let odd = || unlike(format!("a line of its matrix is `{line}`"));
        if values.len() != columns.len() || cells.len() > MOST_PARTS * MOST_PARTS {
            return Err(odd());
        }
        for (column, text) in columns.iter().zip(values).filter(|(_, text)| *text != "-") {
            cells.push((row, *column, text.parse().map_err(|_| odd())?));
        }
    }
    if cells.is_empty() {
        return Err(unlike("its matrix is empty"));
    }
    for (row, column, value) in &cells {
        let device = Some(format!("cell {row} to memory of cell {column}"));
        taken.readings.push(Reading { what: What::MemoryLatency, device, value: *value });
    }
    for (row, _, own) in cells.iter().filter(|(row, column, _)| row == column) {
        let near = cells.iter().find(|(from, to, value)| from == row && to != row && value <= own);
        if let Some((_, to, value)) = near {
            let message = format!(
                "memory of cell {to} is as near to cell {row} as its own ({value} ns, own {own} ns)"
            );
            taken.faults.push(Faulty { code: "cells-alike", tool: Some(Tool::Mlc), message });
        }
    }
    Ok(taken)
}

fn cyclictest(output: &str) -> Result<Taken, ReadError> {
    let root = json(output)?;
    let threads = root["thread"].as_object().ok_or_else(|| unlike("its JSON has no threads"))?;
    let worst = threads.values().filter_map(|thread| number(&thread["max"]));
    let value = worst.max_by(f64::total_cmp).ok_or_else(|| unlike("its threads have no delay"))?;
    Ok(Taken::of(What::TimerLatency, None, value))
}

/// The values of a GPU in the output of `nvidia-smi -q -x`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// Its name.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// PCI address in the guest.
    pub at: Option<Bdf>,
    /// Use of its processors in percent.
    pub busy_percent: u32,
    /// Number of processes that compute on it.
    pub processes: usize,
    /// Why its clocks are lowered: heat and power only.
    pub throttled: Vec<String>,
    /// Faults of the card: a link with fewer lanes, memory errors that were not corrected.
    pub faults: Vec<String>,
}

/// Reasons for lowered clocks that a measurement suffers from, in both spellings of the driver
/// (`clocks_throttle_reasons` up to 530, then `clocks_event_reasons`).
const THROTTLES: [(&str, &str); 5] = [
    ("sw_power_cap", "the power limit"),
    ("hw_slowdown", "a hardware slowdown"),
    ("hw_thermal_slowdown", "heat"),
    ("sw_thermal_slowdown", "heat"),
    ("hw_power_brake_slowdown", "the power brake"),
];

/// The parts of `nvidia-smi -q -x` that are read.
#[derive(Deserialize)]
struct SmiLog {
    #[serde(default)]
    driver_version: String,
    #[serde(default)]
    gpu: Vec<SmiGpu>,
}

#[derive(Deserialize)]
struct SmiGpu {
    #[serde(default, rename = "@id")]
    id: String,
    #[serde(default)]
    product_name: String,
    #[serde(default, alias = "clocks_throttle_reasons")]
    clocks_event_reasons: BTreeMap<String, String>,
    #[serde(default)]
    pci: SmiPci,
    #[serde(default)]
    ecc_errors: SmiEcc,
    #[serde(default)]
    remapped_rows: SmiRows,
    #[serde(default)]
    utilization: SmiUse,
    #[serde(default)]
    processes: SmiProcesses,
}

#[derive(Default, Deserialize)]
struct SmiPci {
    #[serde(default)]
    pci_gpu_link_info: SmiLink,
}

#[derive(Default, Deserialize)]
struct SmiLink {
    #[serde(default)]
    link_widths: SmiWidths,
}

/// Numbers of lanes, as `16x`.
#[derive(Default, Deserialize)]
struct SmiWidths {
    #[serde(default)]
    max_link_width: String,
    #[serde(default)]
    current_link_width: String,
}

#[derive(Default, Deserialize)]
struct SmiEcc {
    #[serde(default)]
    volatile: SmiErrors,
}

/// Uncorrected errors since the driver was loaded, by memory; `N/A` without ECC.
#[derive(Default, Deserialize)]
struct SmiErrors {
    #[serde(default)]
    dram_uncorrectable: String,
    #[serde(default)]
    sram_uncorrectable: String,
    #[serde(default)]
    sram_uncorrectable_parity: String,
    #[serde(default)]
    sram_uncorrectable_secded: String,
}

/// Replaced rows of memory: `Yes`, `No`, or `N/A`.
#[derive(Default, Deserialize)]
struct SmiRows {
    #[serde(default)]
    remapped_row_pending: String,
    #[serde(default)]
    remapped_row_failure: String,
}

#[derive(Default, Deserialize)]
struct SmiUse {
    #[serde(default)]
    gpu_util: String,
}

#[derive(Default, Deserialize)]
struct SmiProcesses {
    #[serde(default)]
    process_info: Vec<SmiProcess>,
}

#[derive(Deserialize)]
struct SmiProcess {
    /// C: computes. G: graphics, such as a display manager.
    #[serde(default, rename = "type")]
    kind: String,
}

/// Reads the GPUs of `nvidia-smi -q -x`.
pub fn read_gpus(output: &str) -> Result<Vec<GpuState>, ReadError> {
    let begin = output.find("<nvidia_smi_log").ok_or_else(|| unlike("its output is no XML"))?;
    let log: SmiLog = quick_xml::de::from_str(&output[begin..])
        .map_err(|error| unlike(format!("its XML is damaged: {error}")))?;
    if log.gpu.len() > MOST_PARTS {
        return Err(unlike(format!("it lists more than {MOST_PARTS} GPUs")));
    }
    let driver = shortened(log.driver_version.trim(), MOST_NAME);
    let gpus = log.gpu.iter().map(|gpu| {
        let used = gpu.utilization.gpu_util.split_whitespace().next();
        let computing = |one: &&SmiProcess| one.kind.contains('C');
        GpuState {
            name: shortened(gpu.product_name.trim(), MOST_NAME),
            driver: driver.clone(),
            at: gpu.id.trim().parse().ok(),
            busy_percent: used.and_then(|word| word.parse().ok()).unwrap_or(0),
            processes: gpu.processes.process_info.iter().filter(computing).count(),
            throttled: throttled(&gpu.clocks_event_reasons),
            faults: faults(gpu),
        }
    });
    Ok(gpus.collect())
}

/// The faults of a card.
fn faults(gpu: &SmiGpu) -> Vec<String> {
    let mut faults = Vec::new();
    let widths = &gpu.pci.pci_gpu_link_info.link_widths;
    let lanes = |text: &str| text.trim().strip_suffix('x')?.parse::<u32>().ok();
    if let (Some(now), Some(most)) =
        (lanes(&widths.current_link_width), lanes(&widths.max_link_width))
        && now < most
    {
        faults.push(format!("PCIe width {now} of {most}"));
    }
    let errors = &gpu.ecc_errors.volatile;
    let counts = [
        ("DRAM", &errors.dram_uncorrectable),
        ("SRAM", &errors.sram_uncorrectable),
        ("SRAM", &errors.sram_uncorrectable_parity),
        ("SRAM", &errors.sram_uncorrectable_secded),
    ];
    for (memory, count) in counts {
        if let Some(count) = count.trim().parse::<u64>().ok().filter(|count| *count > 0) {
            faults.push(format!("{count} uncorrected {memory} errors"));
        }
    }
    let rows = &gpu.remapped_rows;
    for (state, says) in [
        (&rows.remapped_row_failure, "memory rows could not be remapped"),
        (&rows.remapped_row_pending, "memory rows wait to be remapped"),
    ] {
        if state.trim() == "Yes" {
            faults.push(says.to_owned());
        }
    }
    faults
}

/// The reasons for lower clocks, each once.
fn throttled(reasons: &BTreeMap<String, String>) -> Vec<String> {
    let is_active = |name: &str| {
        let of_name = |kind: &str| reasons.get(&format!("{kind}_{name}"));
        ["clocks_event_reason", "clocks_throttle_reason"]
            .iter()
            .filter_map(|kind| of_name(kind))
            .any(|state| state.trim() == "Active")
    };
    let mut all: Vec<String> = Vec::new();
    for (name, says) in THROTTLES {
        if is_active(name) && !all.iter().any(|one| one == says) {
            all.push(says.to_owned());
        }
    }
    all
}
