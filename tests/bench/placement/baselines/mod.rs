//! The peers' planners, re-implemented from gpuvm-placement(7), OTHER PLANNERS.
//!
//! Each is a model of its project's documentation, checked by vectors of the kind that the project
//! publishes: the facts (host, request, result) are theirs, the words and the code are ours. All
//! see the host through `host::Host`, so none is offered a device that the host uses or that does
//! not respond, and all may use the same cores and memory. Where a rule leaves a choice open, the
//! model chooses the better option for the peer, with a note.
// The bench binary has no test harness, so test functions vanish there and their imports stay.
#![cfg_attr(test, allow(unused_imports))]

mod host;
mod kata;
mod kubelet;
mod naive;
mod nova;
mod opennebula;
mod slots;
#[cfg(test)]
mod sound;
#[cfg(test)]
mod testhost;
mod ubicloud;

use super::model::Policy;
pub use nova::case as nova_case;

/// Every baseline, in the order of the table.
pub fn all() -> Vec<Box<dyn Policy>> {
    let mut all: Vec<Box<dyn Policy>> = vec![
        Box::new(slots::Slots),
        Box::new(naive::FirstFit),
        Box::new(ubicloud::Ubicloud),
        Box::new(opennebula::OpenNebula),
        Box::new(kata::Kata),
    ];
    all.extend(nova::variants());
    all.extend(kubelet::variants());
    all
}
