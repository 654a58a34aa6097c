//! Guest by guest on the same state: is a guest of ours worse in any metric than the same guest of
//! a peer?

use super::hosts::Host;
use super::metrics::{EPSILON, Judge, METRICS, Quality};
use super::model::{Place, Policy};
use super::run::State;
use super::stream::Arrival;
use std::collections::BTreeMap;

/// Rank of each metric: 0 is what our planner never gives up without consent (local vCPUs and
/// memory, whole cores) and NVLink, then its order. NICs and drives count as one there.
const RANKS: [usize; METRICS.len()] = [0, 0, 1, 2, 2, 0, 0];

/// The comparison of our guests with those of one peer.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Guests that both admit.
    pub both: usize,
    /// Those of them to which ours gave more in some metric and less in none.
    pub better: usize,
    /// Metrics in which ours gave less without compensation.
    pub worse: usize,
    /// Metrics in which ours gave less for more in another that does not rank lower.
    pub traded: usize,
    /// Guests that only ours admits.
    pub only_ours: usize,
    /// Guests that only the peer admits.
    pub only_theirs: usize,
    /// The first cases of `worse`, described so that they can be reproduced.
    pub cases: Vec<String>,
}

const CASES_KEPT: usize = 3;

/// Whether `a` is more than `b`, beyond rounding.
fn more(a: Option<f64>, b: Option<f64>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a > b + EPSILON)
}

impl Tally {
    /// Adds a guest that both admit.
    fn add(&mut self, ours: &Quality, theirs: &Quality, case: impl Fn(&str) -> String) {
        self.both += 1;
        let less: Vec<usize> =
            (0..METRICS.len()).filter(|&metric| more(theirs[metric], ours[metric])).collect();
        if less.is_empty() {
            self.better += usize::from((0..METRICS.len()).any(|m| more(ours[m], theirs[m])));
        }
        for metric in less {
            let pays =
                |other: usize| RANKS[other] <= RANKS[metric] && more(ours[other], theirs[other]);
            if (0..METRICS.len()).any(pays) {
                self.traded += 1;
                continue;
            }
            self.worse += 1;
            if self.cases.len() < CASES_KEPT {
                let text = format!("{} {:?} < {:?}", METRICS[metric], ours[metric], theirs[metric]);
                self.cases.push(case(&text));
            }
        }
    }

    /// Adds the tally of another stream.
    pub fn merge(&mut self, other: Tally) {
        self.both += other.both;
        self.better += other.better;
        self.worse += other.worse;
        self.traded += other.traded;
        self.only_ours += other.only_ours;
        self.only_theirs += other.only_theirs;
        self.cases.extend(other.cases);
        self.cases.truncate(CASES_KEPT);
    }
}

/// The planner whose guests fill the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Ours.
    Ours,
    /// Each planner's in turn: states that ours alone would not reach.
    Mixed,
}

/// Lets every planner place every guest of a stream on the same states, and compares ours with each
/// peer by name.
pub fn compare(
    host: &Host,
    judge: &Judge<'_>,
    ours: &dyn Policy,
    peers: &[Box<dyn Policy>],
    stream: &[Arrival],
    fill: Fill,
) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let mut state = State::default();
    for (number, arrival) in stream.iter().enumerate() {
        state.depart(arrival.at, |_, _| {});
        let (guests, ask) = (&state.guests, &arrival.ask);
        let quality = |place: &Place| judge.quality(guests, ask, place);
        let own = ours.place(&host.topology, guests, ask);
        let own_quality = own.as_ref().map(quality);
        let mut places = vec![own];
        for peer in peers {
            let tally = tallies.entry(peer.name()).or_default();
            let theirs = peer.place(&host.topology, guests, ask);
            match (&own_quality, theirs.as_ref().map(quality)) {
                (Some(own_quality), Some(theirs_quality)) => {
                    let case = |what: &str| {
                        let at = format!("{}, arrival {number}, {fill:?}", host.name);
                        format!("{at}: {what}; {ask:?}; ours {:?}; {theirs:?}", places[0])
                    };
                    tally.add(own_quality, &theirs_quality, case);
                }
                (Some(_), None) => tally.only_ours += 1,
                (None, Some(_)) => tally.only_theirs += 1,
                (None, None) => {}
            }
            places.push(theirs);
        }
        let turn = if fill == Fill::Ours { 0 } else { number % places.len() };
        if let Some(place) = places.swap_remove(turn) {
            state.enter(place, arrival.leaves);
        }
    }
    tallies
}
