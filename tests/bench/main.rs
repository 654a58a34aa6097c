//! Speed against peers, as ratios of one run: `make bench`, or `cargo bench -- NAME` for some.
//!
//! Commands run in rotation (ours, peer, ours, ..), so that a busy machine slows all alike; medians
//! are compared. A gate that is missed ends the run with exit code 1; goals still ahead are named.
//! `--quick` takes fewer rounds; `placement` takes `--svg PATH` and `--csv PATH`.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]
#![allow(clippy::missing_docs_in_private_items, clippy::too_many_lines)]

mod cold;
mod disk;
mod fleet;
mod guests;
mod joint;
mod measure;
mod memory;
mod partition;
mod planner;
mod room;
mod shootout;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
mod tune;
mod view;

use measure::Verdict;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [first, command @ ..] = args.as_slice()
        && first == "measure"
    {
        return measure::child(command);
    }
    if let [first, rounds] = args.as_slice()
        && first == "partition-steps"
    {
        return partition::child(rounds);
    }
    if args == ["plan-once"] {
        planner::once();
        return std::process::ExitCode::SUCCESS;
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let mut rest = args.iter();
    let mut wanted: Vec<&String> = Vec::new();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--svg" | "--csv" => drop(rest.next()),
            option if option.starts_with("--") => {}
            _ => wanted.push(arg),
        }
    }
    let mut verdicts: Vec<Verdict> = Vec::new();
    for (name, bench) in [
        ("cold", cold::bench as fn(bool) -> Vec<Verdict>),
        ("tune", tune::bench),
        ("planner", planner::bench),
        ("placement", shootout::bench),
        ("joint", joint::bench),
        ("room", room::bench),
        ("partition", partition::bench),
        ("disk", disk::bench),
        ("memory", memory::bench),
        ("view", view::bench),
        ("fleet", fleet::bench),
        ("list", guests::list),
        ("create", guests::create),
        ("delete", guests::delete),
    ] {
        if wanted.is_empty() || wanted.iter().any(|w| *w == name) {
            verdicts.extend(bench(quick));
        }
    }
    println!("\n{:<58} {:>12} {:>12}", "figure", "measured", "target");
    for verdict in &verdicts {
        let mark = match (verdict.met(), verdict.gate) {
            (true, _) => "",
            (false, true) => "  MISSED",
            (false, false) => "  not yet",
        };
        println!("{:<58} {:>12} {:>12}{mark}", verdict.what, verdict.measured(), verdict.target());
    }
    std::process::ExitCode::from(u8::from(
        !verdicts.iter().filter(|verdict| verdict.gate).all(Verdict::met),
    ))
}
