//! The exact solver against published figures, the planner's table against the solver, and the
//! planner against the optimum.

use super::exact::{Board, MIX, Policy, SIZES, repacked};
use super::room::{guests, state};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::placement::{Held, Occupancy, plan};
use gpuvm_core::request::Request;
use gpuvm_core::topology::file;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const LOADS: [f64; 4] = [0.5, 0.7, 0.9, 1.2];

/// The load that the planner's table is made for.
const TABLE_LOAD: f64 = 0.9;

/// Parts of one GPU in the planner's table.
const UNIT: f64 = 4096.0;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_exact_limits_are_the_published_ones() {
    let board = Board::new(16);
    let (worst, best) = (board.worst_fit(), board.best_fit());
    for (at, load) in LOADS.into_iter().enumerate() {
        // How the published buddy allocators choose among blocks of the same size is not stated; it
        // changes the figures by up to 0.01.
        for (name, got, wanted, within) in [
            ("worst fit", board.acceptance(load, &worst), [0.412, 0.263, 0.169, 0.089], 0.003),
            ("best fit", board.acceptance(load, &best), [0.683, 0.519, 0.380, 0.227], 0.003),
            ("optimum", board.optimum(load), [0.689, 0.533, 0.401, 0.254], 0.001),
            ("repacked", repacked(16, MIX, load), [0.750, 0.629, 0.519, 0.383], 0.001),
        ] {
            assert!((got[3] - wanted[at]).abs() < within, "{name} at {load}: {got:?}");
        }
    }
    // The published figures of eight GPUs count guests of 16 to those of 8.
    let mix = [40.0, 25.0, 20.0, 15.0, 0.0];
    let board = Board::with_mix(8, mix);
    let best = board.acceptance(0.9, &board.best_fit())[2];
    for (got, wanted) in
        [(best, 0.599), (board.optimum(0.9)[2], 0.601), (repacked(8, mix, 0.9)[2], 0.640)]
    {
        assert!((got - wanted).abs() < 0.001, "{got} against {wanted}");
    }
}

/// The planner's table as source text.
fn table() -> String {
    let mut text = String::from(
        "//! Costs of the states of a board whose partitions halve it. Made by the exact solver\n\
         //! (tests/bench/placement/exact.rs) for a load of 0.9; renewed by\n\
         //! `GPUVM_RENEW=1 cargo test -p gpuvm-bench table`.\n\n\
         /// So many are one GPU carried less, against the empty board.\n\
         pub(in super::super) const UNIT: u32 = 4096;\n\n\
         /// Costs of the states of a board of so many GPUs, by the state's number; none: \
         no table is there.\n\
         pub(in super::super) fn costs(gpus: usize) -> Option<&'static [u16]> {\n    match gpus {\n",
    );
    let sizes = [2, 4, 8, 16];
    for gpus in sizes {
        writeln!(text, "        {gpus} => Some(&OF_{gpus}),").unwrap();
    }
    text.push_str("        _ => None,\n    }\n}\n");
    for gpus in sizes {
        let values = Board::new(gpus).values(TABLE_LOAD);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let costs = values.iter().map(|value| ((most - value) * UNIT).round());
        write!(
            text,
            "\n/// Costs on a board of {gpus} GPUs.\n#[rustfmt::skip]\n\
             const OF_{gpus}: [u16; {}] = [",
            values.len()
        )
        .unwrap();
        let mut column = 100;
        for cost in costs {
            assert!(cost <= f64::from(u16::MAX), "{cost}");
            let item = format!("{cost},");
            if column + item.len() + 1 > 100 {
                text.push_str("\n    ");
                column = 4 + item.len();
            } else {
                text.push(' ');
                column += 1 + item.len();
            }
            text.push_str(&item);
        }
        text.push_str("\n];\n");
    }
    text
}

#[test]
fn the_planners_table_is_the_solvers() {
    let path = project().join("src/core/placement/future/table.rs");
    let made = table();
    if std::env::var_os("GPUVM_RENEW").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert!(made.lines().count() < 400);
    assert!(std::fs::read_to_string(&path).unwrap() == made, "GPUVM_RENEW=1 renews it");
}

/// A domain that holds these GPUs.
fn guest(name: usize, gpus: &[Bdf]) -> Held {
    Held { domain: format!("g{name}"), devices: gpus.to_vec(), active: true, ..Held::default() }
}

#[test]
fn the_planner_accepts_nearly_as_many_as_the_best_policy() {
    let path = project().join("topologies/dgx-2.json");
    let host = file::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
    let gpus: Vec<Bdf> = host.gpus().map(|gpu| gpu.bdf).collect();
    let board = Board::new(gpus.len());
    let after = |at: usize, class: usize| -> Option<usize> {
        // Refusals are slow, since they are explained; testing one in sixteen shows that no guest
        // is admitted that does not fit.
        if !at.is_multiple_of(16) && board.after(at, class).next().is_none() {
            return None;
        }
        let mut there = Vec::new();
        guests(at, &gpus, &mut there);
        assert_eq!(state(&there, &gpus), at);
        let domains = there.iter().enumerate().map(|(name, gpus)| guest(name, gpus)).collect();
        let held = Occupancy { domains, ..Occupancy::default() };
        let request = Request::for_gpus(u32::try_from(SIZES[class]).unwrap());
        let placed = plan(&host, &held, &request).ok()?;
        there.push(placed.devices[..SIZES[class]].to_vec());
        Some(state(&there, &gpus))
    };
    // Every state, to show that the planner refuses no guest that fits; two threads, because plans
    // are slow without optimisation.
    let of = |states: std::ops::Range<usize>| -> Policy {
        states.map(|at| std::array::from_fn(|class| after(at, class))).collect()
    };
    let half = board.states() / 2;
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| of(half..board.states()));
        (of(0..half), second.join().unwrap())
    });
    let policy: Policy = [first, second].concat();
    for (at, ways) in policy.iter().enumerate() {
        for (class, to) in ways.iter().enumerate() {
            let legal: Vec<usize> = board.after(at, class).collect();
            assert!(to.map_or(legal.is_empty(), |to| legal.contains(&to)), "state {at}");
        }
    }
    for load in LOADS {
        let (ours, best) = (board.acceptance(load, &policy), board.optimum(load));
        println!("8 GPUs at {load}: {:.4} of the best {:.4}", ours[3], best[3]);
        assert!(ours[3] >= 0.98 * best[3], "{load}: {ours:?} against {best:?}");
        let carried = |of: [f64; 5]| -> f64 {
            let shares = SIZES.iter().zip(MIX).zip(of);
            shares.map(|((size, share), accepted)| *size as f64 * share * accepted).sum()
        };
        assert!(carried(ours) >= 0.995 * carried(best), "{load}: {ours:?} against {best:?}");
    }
}
