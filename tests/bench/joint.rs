//! Guests that are planned together: how often one after the other is refused or worse, and the
//! time of fifty.

use crate::measure::{Verdict, quantile};
use gpuvm::placement::Occupancy;
use gpuvm::placement::joint::joint;
use gpuvm_bench::hosts;
use gpuvm_bench::joint::{compare, fifty, named, table};
use std::time::Instant;

/// The limit of planning fifty guests on a DGX-2, in ms.
const FIFTY_MS: f64 = 50.0;

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    println!("{}", table(&compare(if quick { 100 } else { 1000 })));
    let (host, requests) = (hosts::named("dgx-2"), fifty());
    let wanted = named(&requests);
    let mut times = Vec::new();
    for _ in 0..if quick { 5 } else { 50 } {
        let start = Instant::now();
        let found = joint(&host.topology, &Occupancy::default(), &wanted);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        assert!(found.is_ok_and(|found| found.placements.len() == wanted.len()));
    }
    let what = "apply of 50 guests on a DGX-2, planned together".to_owned();
    vec![Verdict { what, value: quantile(&times, 0.5), limit: FIFTY_MS, unit: " ms", gate: true }]
}
