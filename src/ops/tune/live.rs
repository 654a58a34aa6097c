//! The parts of a new definition that a running guest takes over at once, as steps, and those that
//! wait, in words.

use crate::apply::{LiveStep, Step};
use crate::domain::live::LiveChanges;

/// The steps that change the running guest.
pub fn steps(name: &str, changes: &LiveChanges) -> Vec<Step> {
    let moves = changes.moves.iter().map(|moved| {
        Step::Live(LiveStep::Pin {
            name: name.to_owned(),
            thread: moved.thread,
            pcpus: moved.to.clone(),
            was: moved.from.clone(),
        })
    });
    let updates = changes.bandwidths.iter().map(|bandwidth| {
        Step::Live(LiveStep::Update {
            name: name.to_owned(),
            device: format!("the bandwidth of interface {}", bandwidth.mac),
            xml: bandwidth.to.clone(),
            was: bandwidth.from.clone(),
        })
    });
    moves.chain(updates).collect()
}

/// The parts of a definition that wait for the next start, each once: `memoryBacking`, `cpu/numa`.
pub fn waits(changes: &LiveChanges) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for difference in &changes.waits {
        let path = difference.path.trim_start_matches("domain/");
        let part: Vec<&str> = path.split('/').take_while(|p| !p.starts_with('@')).take(2).collect();
        let part = part.join("/");
        if !part.is_empty() && !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Difference;
    use crate::domain::live::{GuestThread, Move};

    #[test]
    fn moved_functions_are_steps_and_waiting_ones_are_named_once() {
        let waits_for = |path: &str| Difference { path: path.into(), planned: None, defined: None };
        let changes = LiveChanges {
            moves: vec![Move {
                thread: GuestThread::Vcpu(3),
                to: "5".parse().unwrap(),
                from: "0-7".parse().unwrap(),
            }],
            bandwidths: Vec::new(),
            waits: vec![
                waits_for("domain/memory"),
                waits_for("domain/cpu/numa/cell[1]/@memory"),
                waits_for("domain/cpu/numa/cell[2]/@memory"),
                waits_for("domain/memoryBacking/@x"),
            ],
        };
        let words: Vec<String> = steps("a", &changes).iter().map(Step::to_string).collect();
        assert_eq!(words, ["pin vCPU 3 of running domain `a` to pcpus 5"]);
        assert_eq!(waits(&changes), ["memory", "cpu/numa", "memoryBacking"]);
    }
}
