//! The planner's latency in process: host and occupancy in memory to complete placement, over a stream of guests.

use crate::measure::{Verdict, quantile};
use crate::support;
use gpuvm::placement::{Held, Occupancy, plan};
use gpuvm::request::Request;
use gpuvm::topology::{Topology, file};
use std::time::Instant;

/// The p99 to stay below with 96 pcpus and 16 GPUs, in µs (spec/performance.md, axis b).
const P99_US: f64 = 100.0;

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let path = support::project().join("topologies/dgx-2.json");
    let text = std::fs::read_to_string(&path).expect("topologies/dgx-2.json is there");
    let topology = file::from_json(&text).expect("and loads");
    let times = stream(&topology, if quick { 500 } else { 5000 });
    println!(
        "plan(), DGX-2: median {:.1} us, p99 {:.1} us",
        quantile(&times, 0.5),
        quantile(&times, 0.99)
    );
    let what = "plan(), DGX-2, 99 % of a stream".to_owned();
    vec![Verdict { what, value: quantile(&times, 0.99), limit: P99_US, unit: " us", gate: false }]
}

/// Times of the plans of a stream of arrivals and departures, in µs; the stream is the same in every run.
fn stream(topology: &Topology, plans: usize) -> Vec<f64> {
    let (mut held, mut times, mut state) = (Occupancy::default(), Vec::new(), 1u64);
    while times.len() < plans {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = state >> 33;
        if dice % 3 == 0 && !held.domains.is_empty() {
            let gone = usize::try_from(dice >> 8).unwrap_or(0) % held.domains.len();
            held.domains.remove(gone);
            continue;
        }
        let gpus = [1, 1, 1, 1, 2, 2, 4, 4, 8, 16][usize::try_from(dice >> 4).unwrap_or(0) % 10];
        let request = Request::for_gpus(gpus);
        let started = Instant::now();
        let placed = plan(topology, &held, &request);
        times.push(started.elapsed().as_secs_f64() * 1e6);
        if let Ok(placement) = placed {
            held.domains.push(Held {
                domain: format!("guest-{}", times.len()),
                active: true,
                vcpu_pins: placement.vcpu_pins,
                emulator_pin: Some(placement.emulator_pin),
                iothread_pins: placement.iothread_pins,
                devices: placement.devices,
                ..Held::default()
            });
        }
    }
    times
}
