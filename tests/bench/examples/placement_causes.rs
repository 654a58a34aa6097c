//! Prints the streams of the shoot-out in which a planner with full quality lets in more GPUs than
//! ours, with the cause of each, and a table of the causes (tests/bench/README.md). Arguments: the
//! hosts; none for all.
#![allow(clippy::print_stdout)]

use gpuvm_bench::causes::{Behind, behind};
use gpuvm_bench::metrics::Judge;
use gpuvm_bench::stream::Variant;
use gpuvm_bench::{baselines, hosts};
use std::collections::BTreeMap;

/// Loads, seed and length of the shoot-out's streams (tests/bench/shootout.rs).
const LOADS: [f64; 5] = [0.4, 0.6, 0.8, 0.95, 1.2];
const SEED: u64 = 20_261_121;
const ARRIVALS: usize = 3000;
/// Streams of other seeds, which distinguish chance from a rule.
const OTHERS: u64 = 3;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let peers = baselines::all();
    let mut table: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let hosts = hosts::all().into_iter();
    for host in hosts.filter(|host| only.is_empty() || only.contains(&host.name)) {
        let judge = Judge::new(&host.topology);
        let places = Variant::ALL.iter().flat_map(|variant| LOADS.map(|load| (load, *variant)));
        for (load, variant) in places {
            let seeds = (SEED, OTHERS);
            for one in behind(&host, &judge, &peers, (load, variant), ARRIVALS, seeds) {
                let cause = if one.is_chance() { "chance" } else { one.cause().name() };
                let Behind { peer, more, again, refused } = &one;
                println!(
                    "{}, {load:.2}, {}: {peer} by {more} GPUs ({again:?}): {cause} {refused:?}",
                    host.name,
                    variant.name()
                );
                let sum = table.entry(cause.to_owned()).or_default();
                *sum = (sum.0 + 1, sum.1 + more);
            }
        }
    }
    for (cause, (streams, gpus)) in table {
        println!("{streams:>4} streams {gpus:>6} GPUs  {cause}");
    }
}
