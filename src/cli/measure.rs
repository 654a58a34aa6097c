//! `measure`: how fast a guest is, by the programs that it has.

use super::args::MeasureArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FAILED, EXIT_FOUND};
use super::login::sudo_caller;
use super::table::Table;
use gpuvm_core::measure::{Line, MOST_VALUE, MeasureReport};
use gpuvm_ops::by_ssh::SshWanted;
use gpuvm_ops::measure::{MeasureRequest, Usual, measure, usual};
use std::fmt::Write as _;

/// Runs the verb.
pub fn run(args: &MeasureArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_running_guests("measure")?;
    if args.history {
        return history(args, cx);
    }
    let ssh = if args.ssh {
        let (user, address, caller) = (args.user.clone(), args.address, sudo_caller()?);
        Some(SshWanted { user, address, caller })
    } else {
        None
    };
    let request = MeasureRequest {
        name: args.name.clone(),
        suite: args.suite.into(),
        only: args.programs.iter().map(|&tool| tool.into()).collect(),
        directories: args.directories.clone(),
        ssh,
        peer: args.peer.clone(),
        file: args.file.clone(),
        force: args.force,
        threshold: args.threshold,
    };
    let report = measure(cx, &request, &|what| cx.output.progress(what))?;
    if cx.output.json {
        cx.output.json("gpuvm-measure", &report)?;
    } else {
        if !report.lines.is_empty() {
            cx.output.table(&table(&report.lines))?;
        }
        cx.output.text(&more(&report))?;
    }
    Ok(match () {
        () if report.is_bad() => EXIT_FOUND,
        () if report.is_empty() => EXIT_FAILED,
        () => EXIT_DONE,
    })
}

fn history(args: &MeasureArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let all = usual(cx, &args.name)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-measure-history", &all)?;
    } else if all.is_empty() {
        cx.output.progress(&format!("domain `{}` has not been measured", args.name));
    } else {
        cx.output.table(&medians(&all))?;
    }
    Ok(EXIT_DONE)
}

/// The earlier values: GPUs that have had another driver since have a row of their own.
fn medians(all: &[Usual]) -> Table {
    let mut table = Table::new([
        "WHAT", "DEVICE", "MEDIAN", "FROM", "TO", "UNIT", "SUITE", "RUNS", "GPUS", "DRIVER",
    ]);
    for one in all {
        let Usual { suite, shape, reading, unit, range: [from, to], runs, .. } = one;
        let unknown = || "-".to_owned();
        let gpus = match shape.gpus {
            0 => unknown(),
            gpus => format!("{gpus} x {}", shape.model),
        };
        let driver = Some(&shape.driver).filter(|driver| !driver.is_empty());
        table.push([
            reading.what.to_string(),
            reading.device.clone().unwrap_or_else(unknown),
            number(reading.value),
            number(*from),
            number(*to),
            (*unit).to_owned(),
            suite.map_or_else(unknown, |suite| suite.to_string()),
            runs.to_string(),
            gpus,
            driver.cloned().unwrap_or_else(unknown),
        ]);
    }
    table
}

/// A value with about three digits; a smaller one than that shows keeps its exponent.
fn number(value: f64) -> String {
    match value {
        0.05..100.0 => format!("{value:.1}"),
        100.0..=MOST_VALUE => format!("{value:.0}"),
        0.0 => "0.0".to_owned(),
        _ => format!("{value:.1e}"),
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table =
        Table::new(["WHAT", "DEVICE", "MEASURED", "EXPECTED", "UNIT", "VERDICT", "SOURCE"]);
    for line in lines {
        let reading = &line.reading;
        table.push([
            reading.what.to_string(),
            reading.device.clone().unwrap_or_else(|| "-".into()),
            number(reading.value),
            line.expected.map_or_else(|| "-".into(), number),
            line.unit.to_owned(),
            line.verdict.to_string(),
            line.source.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table
}

/// The text below the table: faults, possible causes, notes, programs without a result.
fn more(report: &MeasureReport) -> String {
    let mut text = String::new();
    for fault in &report.faults {
        let tool = fault.tool.map(|tool| format!("{tool}: ")).unwrap_or_default();
        let _ = writeln!(text, "error: {tool}{} ({})", fault.message, fault.code);
    }
    let mut said = Vec::new();
    for line in report.lines.iter().filter(|line| !line.verdict.is_good()) {
        let what = line.reading.what;
        if said.contains(&what) {
            continue;
        }
        said.push(what);
        let _ = writeln!(text, "{what} is {}", line.verdict);
        for candidate in &line.candidates {
            let _ = writeln!(text, "  possible cause: {} ({})", candidate.message, candidate.rule);
            let _ = writeln!(text, "  hint: {}", candidate.hint);
        }
        if line.candidates.is_empty() {
            text += "  no finding of `verify` or `host doctor` explains it\n";
        }
    }
    if !report.passed.is_empty() {
        let _ = writeln!(text, "passed: {}", report.passed.join(", "));
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for one in &report.not_measured {
        let _ = writeln!(text, "not measured: {}: {}", one.tool, one.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{medians, more, number};
    use crate::cli::colour::marked;
    use gpuvm_core::measure::{Faulty, MeasureReport, Reading, Shape, Suite, Tool, What};
    use gpuvm_ops::measure::Usual;

    #[test]
    fn a_number_is_short() {
        let all = [0.0, 5e-324, 0.06, 99.94, 391.2, 250_000.0, 1e308].map(number);
        assert_eq!(all, ["0.0", "4.9e-324", "0.1", "99.9", "391", "250000", "1.0e308"]);
    }

    #[test]
    fn a_fault_names_its_program_if_one_found_it() {
        let fault = |code, tool| Faulty { code, tool, message: "bad".into() };
        let report = MeasureReport {
            domain: "g".into(),
            peer: None,
            suite: Suite::Quick,
            shape: Shape::default(),
            lines: Vec::new(),
            faults: vec![fault("data-wrong", Some(Tool::Stream)), fault("gpu-fault", None)],
            passed: Vec::new(),
            notes: Vec::new(),
            not_measured: Vec::new(),
        };
        assert_eq!(more(&report), "error: stream: bad (data-wrong)\nerror: bad (gpu-fault)\n");
    }

    #[test]
    fn another_driver_of_the_same_gpus_has_a_row_of_its_own() {
        let of = |driver: &str, gpus: usize| Usual {
            suite: Some(Suite::Quick),
            shape: Shape { model: "H100".into(), gpus, driver: driver.into() },
            reading: Reading {
                what: What::HostToDevice,
                device: Some("GPU 0".into()),
                value: 55.1,
            },
            unit: What::HostToDevice.unit(),
            range: [54.0, 56.2],
            runs: 3,
            last_s: 0,
        };
        let text = medians(&[of("550.54.15", 1), of("580.95.05", 1), of("", 0)]).text(None);
        let text = marked(&text, false);
        let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let ends = ["GPUS DRIVER", "1 x H100 550.54.15", "1 x H100 580.95.05", "- -"];
        assert_eq!(text.lines().count(), ends.len(), "{text}");
        for (row, end) in words.zip(ends) {
            assert!(row.ends_with(end), "{row}: {end}");
        }
    }
}
