//! The planners' shoot-out with a clock: the table, the picture, and whether ours meets its
//! targets.

use crate::measure::Verdict;
use gpuvm::request::Allow;
use gpuvm_bench::compare::{Fill, Tally, compare};
use gpuvm_bench::hosts::{self, Host};
use gpuvm_bench::metrics::Judge;
use gpuvm_bench::model::Policy;
use gpuvm_bench::ours::Ours;
use gpuvm_bench::run::run;
use gpuvm_bench::stream::Variant;
use gpuvm_bench::table::{self, Sheet};
use gpuvm_bench::{baselines, exact, picture};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Loads of the table and of the picture's curves.
const LOADS: [f64; 5] = [0.4, 0.6, 0.8, 0.95, 1.2];
const QUICK: [&str; 4] = ["dgx-2", "dgx-1", "dgx-a100", "epyc-nps4"];
const SEED: u64 = 20_261_121;

/// The value of `--name VALUE`.
fn option(name: &str) -> Option<PathBuf> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1).map(PathBuf::from)
}

/// The default path of the picture, without `--svg`: beside the benchmark's own build.
fn default_picture() -> PathBuf {
    let me = std::env::current_exe().unwrap_or_default();
    me.parent().and_then(|dir| dir.parent()).unwrap_or(&me).join("placement.svg")
}

fn planners() -> Vec<Box<dyn Policy>> {
    let allow = Allow { remote: true, split: true, mig: false };
    let mut all: Vec<Box<dyn Policy>> =
        vec![Box::new(Ours::default()), Box::new(Ours { allow, ..Ours::default() })];
    all.extend(baselines::all());
    all
}

/// The limits listed beside the planners: the acceptance if guests could be moved at will, and on
/// boards whose partitions halve them that of the best online policy, solved exactly. Both know
/// GPUs alone.
fn limits(host: &Host, load: f64) -> Vec<(String, Vec<(u32, f64)>)> {
    let gpus = host.topology.gpus().count();
    let by_size = |acceptance: [f64; 5]| {
        let sizes = exact::SIZES.iter().zip(acceptance).filter(|(size, _)| **size <= gpus);
        sizes.map(|(size, share)| (u32::try_from(*size).unwrap_or(u32::MAX), share)).collect()
    };
    let repacked = exact::repacked(gpus, exact::MIX, load);
    let mut limits = vec![("limit: free repacking".to_owned(), by_size(repacked))];
    let aligned = host.topology.partitions().len() == 2 * gpus - 1 && gpus <= 16;
    if aligned && gpus.is_power_of_two() {
        let optimum = exact::Board::new(gpus).optimum(load);
        limits.push(("limit: best online policy".to_owned(), by_size(optimum)));
    }
    limits
}

/// Runs every planner over the streams of a host, and prints each table as it comes.
fn sheets(host: &Host, judge: &Judge<'_>, arrivals: usize, quick: bool) -> Vec<Sheet> {
    let planners = planners();
    let started = Instant::now();
    let clock = || started.elapsed().as_secs_f64() * 1e6;
    let variants = if quick { &Variant::ALL[..2] } else { &Variant::ALL[..] };
    let mut sheets = Vec::new();
    for &variant in variants {
        for load in LOADS {
            let stream = judge.sizes.stream(load, variant, arrivals, SEED);
            let rows = planners.iter().map(|p| run(host, judge, p.as_ref(), &stream, &clock));
            let rows = rows.collect();
            let limits = if variant == Variant::Plain { limits(host, load) } else { Vec::new() };
            let sheet = Sheet { host: host.name.clone(), load, variant, rows, limits };
            print!("{}", sheet.text());
            sheets.push(sheet);
        }
    }
    sheets
}

/// Compares guest by guest on the same states.
fn tallies(host: &Host, judge: &Judge<'_>, arrivals: usize) -> BTreeMap<String, Tally> {
    let mut all: BTreeMap<String, Tally> = BTreeMap::new();
    for variant in Variant::ALL {
        let stream = judge.sizes.stream(0.95, variant, arrivals, SEED + 1);
        for fill in [Fill::Ours, Fill::Mixed] {
            let found = compare(host, judge, &Ours::default(), &baselines::all(), &stream, fill);
            for (name, tally) in found {
                all.entry(name).or_default().merge(tally);
            }
        }
    }
    all
}

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let (arrivals, compared) = if quick { (300, 80) } else { (3000, 400) };
    let mut all = Vec::new();
    let mut against: BTreeMap<String, Tally> = BTreeMap::new();
    for host in hosts::all() {
        if quick && !QUICK.contains(&host.name.as_str()) {
            continue;
        }
        let judge = Judge::new(&host.topology);
        all.extend(sheets(&host, &judge, arrivals, quick));
        for (name, tally) in tallies(&host, &judge, compared) {
            against.entry(name).or_default().merge(tally);
        }
    }
    print!("\nInputs that planners lack:\n{}", table::lacks(&all));
    print_tallies(&against);
    let picture_path = option("--svg").unwrap_or_else(default_picture);
    write(&picture_path, &picture::svg(&all));
    if let Some(path) = option("--csv") {
        let lines: String = all.iter().map(Sheet::csv).collect();
        write(&path, &(table::csv_head() + &lines));
    }
    verdicts(&all, &against)
}

/// Writes a file, or reports the error.
fn write(path: &std::path::Path, text: &str) {
    match std::fs::write(path, text) {
        Ok(()) => println!("\nwritten: {}", path.display()),
        Err(error) => eprintln!("{}: {error}", path.display()),
    }
}

/// Prints the comparison of our guests with each peer's on the same states.
fn print_tallies(against: &BTreeMap<String, Tally>) {
    println!("\nOurs against each on the same states:");
    println!(
        "{:<44} {:>6} {:>7} {:>6} {:>7} {:>10} {:>12}",
        "planner", "both", "better", "worse", "traded", "only ours", "only theirs"
    );
    for (name, tally) in against {
        let Tally { both, better, worse, traded, only_ours, only_theirs, cases } = tally;
        println!(
            "{name:<44} {both:>6} {better:>7} {worse:>6} {traded:>7} {only_ours:>10} \
             {only_theirs:>12}"
        );
        for case in cases {
            println!("    {case}");
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn verdicts(sheets: &[Sheet], against: &BTreeMap<String, Tally>) -> Vec<Verdict> {
    let count = |what: &str, value: usize, gate: bool| Verdict {
        what: what.into(),
        value: value as f64,
        limit: 0.0,
        unit: "",
        gate,
    };
    let ours = || sheets.iter().map(|sheet| &sheet.rows[0]);
    let mut behind = 0;
    println!("\nStreams in which a planner with full quality lets in more GPUs than ours:");
    for sheet in sheets {
        for row in sheet.rows[2..].iter().filter(|row| row.full_quality()) {
            if row.gpus > sheet.rows[0].gpus {
                behind += 1;
                let more = row.admitted() - sheet.rows[0].admitted();
                let at = format!("{}, {:.2}, {}", sheet.host, sheet.load, sheet.variant.name());
                println!("  {at}: {} by {:.2} % of the asked GPUs", row.name, more * 100.0);
            }
        }
    }
    let worse = against.values().map(|tally| tally.worse).sum();
    vec![
        count("shoot-out: faults in our places", ours().map(|row| row.faults.1).sum(), true),
        count("shoot-out: split cores of ours", ours().map(|row| row.most_split).sum(), true),
        count("shoot-out: metrics in which ours is worse on a state", worse, true),
        count("shoot-out: streams with an equal that lets in more", behind, false),
    ]
}
