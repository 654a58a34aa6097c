//! `top`: the usage of guests, refreshed on the whole terminal or printed once.

mod bytes;
mod columns;
mod frame;
mod sampler;
mod screen;
mod text;

use super::args::TopArgs;
use super::context::Context;
use super::error::{EXIT_DONE, EXIT_FOUND};
use crate::finding::Severity;
use gpuvm_core::load::{LoadOrder, LoadReport};
use gpuvm_ops::top::{Top, TopRequest};
use std::io::IsTerminal as _;
use std::time::Duration;

/// The interval if none is given.
const INTERVAL: Duration = Duration::from_secs(1);
/// Neighbours of a thread in JSON, unless all were asked for.
const NEIGHBOURS: usize = 3;

/// Runs the verb.
pub fn run(args: &TopArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let names = args.why.clone().map_or_else(|| args.names.clone(), |name| vec![name]);
    let interval = args.interval.unwrap_or(INTERVAL);
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let order = LoadOrder::from(args.sort);
    if args.once || args.why.is_some() {
        return once(args, cx, names, interval);
    }
    match (cx.output.json, args.interval) {
        (true, Some(_)) => lines(cx, TopRequest { names, once: false }, interval, order),
        (false, _) if is_terminal => {
            screen::run(cx, TopRequest { names, once: false }, interval, order)
        }
        _ => once(args, cx, names, interval),
    }
}

/// Prints one sample.
fn once(
    args: &TopArgs,
    cx: &Context<'_>,
    names: Vec<String>,
    interval: Duration,
) -> anyhow::Result<u8> {
    let mut top = Top::open(cx, TopRequest { names, once: true })?;
    top.sample();
    std::thread::sleep(interval);
    top.sample();
    let report = sorted(top.report(), args.sort.into(), args.why.is_some());
    if cx.output.json {
        cx.output.json("gpuvm-top", &report)?;
    } else if report.guests.is_empty() {
        cx.output.progress("no guest is running");
    } else {
        cx.output.marked(&frame::table(&report, frame::utc(), super::output::width()))?;
        let mut more = text::findings(&report);
        if args.why.is_some() {
            more += &report.guests.iter().map(text::why).collect::<String>();
        }
        if !more.is_empty() {
            cx.output.text(&more)?;
        }
    }
    let is_bad = report.worst().is_some_and(|worst| worst <= Severity::Warning);
    Ok(if is_bad { EXIT_FOUND } else { EXIT_DONE })
}

/// Prints a document in a line for each interval, until interrupted.
fn lines(
    cx: &Context<'_>,
    request: TopRequest,
    interval: Duration,
    order: LoadOrder,
) -> anyhow::Result<u8> {
    let mut top = Top::open(cx, request)?;
    top.sample();
    loop {
        std::thread::sleep(interval);
        top.sample();
        cx.output.json_line("gpuvm-top", &sorted(top.report(), order, false))?;
    }
}

/// The report with its guests in order; `all`: with every neighbour of waiting threads.
fn sorted(mut report: LoadReport, order: LoadOrder, all: bool) -> LoadReport {
    order.sort(&mut report.guests);
    if !all {
        let threads = report.guests.iter_mut().flat_map(|guest| &mut guest.threads);
        threads.for_each(|thread| thread.neighbours.truncate(NEIGHBOURS));
    }
    report
}
