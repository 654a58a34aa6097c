//! Prints states of hosts, a request each and the place that the model of Nova finds, a line each,
//! for `tests/export/nova_cases.py`: streams of guests that the model itself has placed.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use gpuvm_bench::baselines::nova_case;
use gpuvm_bench::hosts;
use gpuvm_bench::metrics::Judge;
use gpuvm_bench::run::State;
use gpuvm_bench::stream::Variant;

/// Guests that come to each host, of each variant, by each set of options.
const ARRIVALS: usize = 25;

fn main() {
    for host in hosts::recorded() {
        let judge = Judge::new(&host.topology);
        for variant in Variant::ALL {
            let stream = judge.sizes.stream(0.95, variant, ARRIVALS, 20_261_127);
            for options in [(false, false), (true, false), (false, true), (true, true)] {
                let mut state = State::default();
                for arrival in &stream {
                    state.depart(arrival.at, |_, _| {});
                    let made = nova_case(&host.topology, &state.guests, &arrival.ask, options);
                    let Some((mut case, place)) = made else { continue };
                    case["host"] = host.name.clone().into();
                    case["variant"] = variant.name().into();
                    println!("{case}");
                    if let Some(place) = place {
                        state.enter(place, arrival.leaves);
                    }
                }
            }
        }
    }
}
