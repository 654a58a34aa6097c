//! Room made for guests that have no place: how many more a DGX-2 accepts over all of its states,
//! beside the best policy that moves no guest, and how long the search takes.

use crate::measure::{Verdict, quantile};
use gpuvm_bench::exact::Board;
use gpuvm_bench::room::{EIGHT, made, policy, table};
use std::time::Instant;

const LOADS: [f64; 4] = [0.5, 0.7, 0.9, 1.2];
const LOAD: f64 = 0.9;
/// Guests of eight GPUs that are refused at that load where guests can be moved at will.
const REFUSED: f64 = 1.0 - 0.519;
/// The limit of a search, in ms.
const SEARCH_MS: f64 = 1000.0;

/// Measures.
pub fn bench(quick: bool) -> Vec<Verdict> {
    let board = Board::new(16);
    let (mut all, mut times) = (Vec::new(), Vec::new());
    for state in 0..board.states() {
        let start = Instant::now();
        let some = made(state..state + 1, 1);
        if !some.is_empty() {
            times.push(start.elapsed().as_secs_f64() * 1e3 / some.len() as f64);
        }
        all.extend(some);
    }
    println!("{}", table(&all, if quick { &LOADS[2..3] } else { &LOADS }));
    let unproven = all.iter().filter(|one| !one.is_best).count();
    println!("room made {} times, {unproven} of them perhaps not the cheapest", all.len());
    let accepted = board.acceptance(LOAD, &policy(&board, LOAD, &all))[EIGHT];
    let verdict = |what: &str, value, limit, unit| Verdict {
        what: what.to_owned(),
        value,
        limit,
        unit,
        gate: true,
    };
    vec![
        verdict("8-GPU guests refused at load .9, room made", 1.0 - accepted, REFUSED + 5e-4, ""),
        verdict("search for moves on a DGX-2, p99", quantile(&times, 0.99), SEARCH_MS, " ms"),
    ]
}
