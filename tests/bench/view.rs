//! Pages in process: a host and its guests in memory to the HTML of `host show --html`.

use crate::measure::{Verdict, median};
use crate::planner::{filled, held};
use gpuvm::placement::{Occupancy, plan};
use gpuvm::request::Request;
use gpuvm::topology::Topology;
use gpuvm_bench::hosts;
use gpuvm_core::view::{Page, Subject, page};
use std::time::Instant;

/// Limits of a DGX-2 with 16 guests: ms, and KiB of HTML around the document of `--json`.
const DGX2: (f64, f64) = (20.0, 300.0);
/// Limits of a host with 4096 pcpus, 128 GPUs and 200 guests.
const LARGE: (f64, f64) = (200.0, 2048.0);

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let rounds = if quick { 5 } else { 50 };
    let dgx2 = hosts::named("dgx-2").topology;
    let large = hosts::large(16, 4096, 128).topology;
    let mut singles = Occupancy::default();
    for number in 0..16 {
        let placed = plan(&dgx2, &singles, &Request::for_gpus(1)).expect("each guest has a GPU");
        singles.domains.push(held(format!("guest-{number}"), placed));
    }
    let mut verdicts = one("page, DGX-2, 16 guests", &dgx2, &singles, DGX2, rounds);
    let what = "page, 4096 pcpus, 128 GPUs, 200 guests";
    verdicts.extend(one(what, &large, &filled(&large, 200), LARGE, rounds));
    verdicts
}

/// Time and size of a page.
fn one(
    what: &str,
    topology: &Topology,
    held: &Occupancy,
    (most_ms, most_kib): (f64, f64),
    rounds: usize,
) -> Vec<Verdict> {
    let json = serde_json::to_string_pretty(topology.parts()).unwrap();
    let shown = Page {
        subject: Subject { topology, held, planned: &[] },
        verb: "host show",
        verdict: &[],
        date: None,
        placement: None,
        reasons: &[],
        capacity: None,
        fits: None,
        changed: &[],
        notes: &[],
        commands: &[],
        json: &json,
        offered: str::to_owned,
    };
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..rounds {
        let begun = Instant::now();
        bytes = std::hint::black_box(page(std::hint::black_box(&shown))).len();
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    #[allow(clippy::cast_precision_loss)]
    let kib = (bytes - json.len()) as f64 / 1024.0;
    let (middle, guests) = (median(&times), held.domains.len());
    println!("{what}: median {middle:.1} ms, {kib:.0} KiB around the document, {guests} domains");
    vec![
        Verdict { what: what.into(), value: middle, limit: most_ms, unit: " ms", gate: true },
        Verdict {
            what: format!("{what}, size"),
            value: kib,
            limit: most_kib,
            unit: " KiB",
            gate: true,
        },
    ]
}
