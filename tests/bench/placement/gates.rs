//! Requirements on our planner for every host, load and variant; without a clock.

use super::baselines;
use super::compare::{Fill, compare};
use super::hosts::{self, Host};
use super::metrics::{EPSILON, Judge, LOCAL, MEMORY, NVLINK, WHOLE};
use super::model::Policy;
use super::ours::Ours;
use super::run::{Outcome, run};
use super::stream::{LOADS, Variant};

/// Arrivals of each stream: enough to fill every host and to turn its guests over once.
const ARRIVALS: usize = 15;
/// The variants that our planner is run with.
const VARIANTS: [Variant; 4] = Variant::ALL;

/// Runs our planner over every load and variant of these hosts.
fn ours(hosts: &[Host], planner: Ours, each: impl Fn(&Host, &str, &Outcome)) {
    for host in hosts {
        let judge = Judge::new(&host.topology);
        for load in LOADS {
            for variant in VARIANTS {
                let stream = judge.sizes.stream(load, variant, ARRIVALS, 7);
                let found = run(host, &judge, &planner, &stream, &|| 0.0);
                each(host, &format!("{} at {load}, {}", host.name, variant.name()), &found);
            }
        }
    }
}

/// Asserts that every guest has the resources that the rules promise.
fn assert_full(host: &Host, at: &str, found: &Outcome) {
    assert_eq!(found.faults, (vec![], 0), "{at}");
    assert!(found.guests > 0, "{at}: no guest was let in");
    assert_eq!(found.most_split, 0, "{at}: cores are split");
    // Direct links of free GPUs may be fewer than those of the empty host; partitions are whole or
    // not offered.
    let mesh = host.topology.partitions().is_empty();
    for metric in [NVLINK, LOCAL, WHOLE, MEMORY].into_iter().filter(|m| !(mesh && *m == NVLINK)) {
        let mean = found.mean(metric).unwrap_or(1.0);
        assert!(mean > 1.0 - EPSILON, "{at}: {} is {mean}", super::metrics::METRICS[metric]);
    }
}

#[test]
fn ours_keeps_its_rules_on_every_recorded_host() {
    ours(&hosts::recorded(), Ours::default(), assert_full);
}

#[test]
fn ours_keeps_its_rules_on_every_generated_host() {
    ours(&hosts::generated(), Ours::default(), assert_full);
}

#[test]
fn shares_of_nodes_without_gpus_keep_the_other_rules() {
    let hosts = ["dgx-a100", "epyc-nps4"].map(hosts::named);
    ours(&hosts, Ours { wide: true, ..Ours::default() }, |host, at, found| {
        assert_eq!((&found.faults, found.most_split), (&(vec![], 0), 0), "{at}");
        let mesh = host.topology.partitions().is_empty();
        for metric in [NVLINK, WHOLE].into_iter().filter(|m| !(mesh && *m == NVLINK)) {
            assert!(found.mean(metric).unwrap_or(1.0) > 1.0 - EPSILON, "{at}: {metric}");
        }
    });
}

/// Arrivals of a comparison on the same states: each is placed by every planner.
const COMPARED: usize = 10;

/// Asserts that no guest of ours is worse than the same guest of a peer on the same state.
fn assert_no_worse(hosts: &[Host], fill: Fill) {
    let (peers, ours) = (baselines::all(), Ours::default());
    let mut worse = Vec::new();
    for (host, variant) in hosts.iter().zip(VARIANTS.iter().cycle()) {
        let judge = Judge::new(&host.topology);
        let stream = judge.sizes.stream(0.95, *variant, COMPARED, 11);
        for (name, tally) in compare(host, &judge, &ours, &peers, &stream, fill) {
            worse.extend(tally.cases.into_iter().map(|case| format!("{name}: {case}")));
        }
    }
    assert!(worse.is_empty(), "{} cases\n{}", worse.len(), worse.join("\n"));
}

#[test]
fn no_guest_of_ours_is_worse_than_a_peers_on_recorded_hosts() {
    assert_no_worse(&hosts::recorded(), Fill::Ours);
}

#[test]
fn no_guest_of_ours_is_worse_than_a_peers_on_generated_hosts() {
    assert_no_worse(&hosts::generated(), Fill::Ours);
}

/// Arrivals of a stream whose admitted GPUs are compared.
const ADMITTED: usize = 80;

#[test]
fn ours_lets_in_no_fewer_gpus_than_an_equal() {
    for name in ["dgx-2", "epyc-nps4"] {
        let host = hosts::named(name);
        let judge = Judge::new(&host.topology);
        let stream = judge.sizes.stream(0.95, Variant::Plain, ADMITTED, 3);
        let gpus = |policy: &dyn Policy| run(&host, &judge, policy, &stream, &|| 0.0);
        let (ours, mut equals) = (gpus(&Ours::default()), 0);
        for peer in baselines::all() {
            let theirs = gpus(peer.as_ref());
            if theirs.full_quality() {
                equals += 1;
                assert!(ours.gpus >= theirs.gpus, "{name}: {} < {theirs:?}", ours.gpus);
            }
        }
        assert!(equals > 0, "{name}: no peer gives its guests all that ours does");
    }
}
