//! The limits: the result of the best online policy on a board whose partitions halve it, solved
//! exactly as a Markov decision process, and that of free repacking (gpuvm-placement(7),
//! METRICS).
//!
//! Guests of 1, 2, 4, 8 and 16 GPUs arrive at random (Poisson) in the shares of a mix, those above
//! the board's size left out, and stay for exponential times of mean 1; a guest without a place
//! leaves. The load is the GPUs that arrive during one stay, over the GPUs of the board.

/// Sizes of guests, by class.
pub const SIZES: [usize; 5] = [1, 2, 4, 8, 16];

/// Shares of the classes in percent that the planner expects.
pub const MIX: [f64; 5] = [40.0, 25.0, 20.0, 10.0, 5.0];

/// A state's number: up to symmetry, as the planner numbers them (src/core/placement/future.rs).
pub type State = usize;

/// The state after a guest of each class is placed; `None` if it is refused.
pub type Policy = Vec<[Option<State>; 5]>;

/// A way to place a guest: the size of the free aligned block that it breaks, and the state after.
type Way = (usize, State);

/// The events in each state of a block.
struct Level {
    gpus: usize,
    /// Ways to place a guest of each class.
    ways: Vec<[Vec<Way>; 5]>,
    /// The state after each guest's departure, and how many guests lead there.
    departures: Vec<Vec<(State, f64)>>,
}

/// The number of the pair of two states.
fn pair(a: State, b: State) -> State {
    let (low, high) = (a.min(b), a.max(b));
    high * (high + 1) / 2 + low
}

/// Adds to a list without doubles.
fn add(list: &mut Vec<Way>, way: Way) {
    if !list.contains(&way) {
        list.push(way);
    }
}

impl Level {
    /// One GPU: free or held.
    fn one() -> Level {
        let ways = |list: Vec<Way>| [list, vec![], vec![], vec![], vec![]];
        let departures = vec![vec![], vec![(0, 1.0)]];
        Level { gpus: 1, ways: vec![ways(vec![(1, 1)]), ways(vec![])], departures }
    }

    /// A block of two such blocks.
    fn doubled(&self) -> Level {
        let (half, gpus) = (self.ways.len(), 2 * self.gpus);
        let guest = half * (half + 1) / 2;
        let mut level = Level { gpus, ways: Vec::new(), departures: Vec::new() };
        for high in 0..half {
            for low in 0..=high {
                let mut ways: [Vec<Way>; 5] = Default::default();
                for (class, size) in SIZES.iter().enumerate() {
                    let free = high == 0 && low == 0;
                    if free && *size == gpus {
                        ways[class].push((gpus, guest));
                    }
                    for &(block, after) in &self.ways[high][class] {
                        add(&mut ways[class], (if free { gpus } else { block }, pair(after, low)));
                    }
                    for &(block, after) in &self.ways[low][class] {
                        add(&mut ways[class], (if free { gpus } else { block }, pair(high, after)));
                    }
                }
                level.ways.push(ways);
                let of_high = self.departures[high].iter().map(|&(to, n)| (pair(to, low), n));
                let of_low = self.departures[low].iter().map(|&(to, n)| (pair(high, to), n));
                level.departures.push(of_high.chain(of_low).collect());
            }
        }
        level.ways.push(Default::default());
        level.departures.push(vec![(0, 1.0)]);
        level
    }
}

/// Arrivals of each class during one stay.
pub fn arrivals(gpus: usize, mix: [f64; 5], load: f64) -> [f64; 5] {
    let share = |class| if SIZES[class] <= gpus { mix[class] } else { 0.0 };
    let shares: [f64; 5] = std::array::from_fn(share);
    let mean: f64 = SIZES.iter().zip(shares).map(|(size, share)| *size as f64 * share).sum();
    shares.map(|share| load * gpus as f64 * share / mean)
}

/// A board of 1, 2, 4, 8 or 16 GPUs with every state that it can be in.
pub struct Board {
    level: Level,
    /// Shares of the classes in percent.
    mix: [f64; 5],
}

impl Board {
    /// Lists the states; the mix is the one that the planner expects.
    pub fn new(gpus: usize) -> Board {
        Board::with_mix(gpus, MIX)
    }

    /// Lists the states for a mix of guests.
    pub fn with_mix(gpus: usize, mix: [f64; 5]) -> Board {
        let mut level = Level::one();
        while level.gpus < gpus {
            level = level.doubled();
        }
        Board { level, mix }
    }

    /// How many states there are.
    pub fn states(&self) -> usize {
        self.level.ways.len()
    }

    /// States that a guest of a class can lead to, from a state.
    pub fn after(&self, state: State, class: usize) -> impl Iterator<Item = State> + '_ {
        self.level.ways[state][class].iter().map(|(_, after)| *after)
    }

    /// The policy that takes the best way by a rank, the first of equal ones; the largest rank
    /// wins.
    fn by<R: PartialOrd>(&self, rank: impl Fn(Way) -> R) -> Policy {
        let best = |ways: &Vec<Way>| {
            let mut best: Option<(R, State)> = None;
            for &way in ways {
                let of_way = rank(way);
                if best.as_ref().is_none_or(|(most, _)| of_way > *most) {
                    best = Some((of_way, way.1));
                }
            }
            best.map(|(_, after)| after)
        };
        let of_state = |ways: &[Vec<Way>; 5]| std::array::from_fn(|class| best(&ways[class]));
        self.level.ways.iter().map(of_state).collect()
    }

    /// Places into the smallest free aligned block.
    pub fn best_fit(&self) -> Policy {
        self.by(|(block, _)| -(block as i64))
    }

    /// Places into the largest free aligned block, as an operator who spreads.
    pub fn worst_fit(&self) -> Policy {
        self.by(|(block, _)| block)
    }

    /// Takes the way to the state of the highest value.
    pub fn greedy(&self, values: &[f64]) -> Policy {
        self.by(|(_, after)| values[after])
    }

    /// Values of the states under the policy that carries the most GPUs of all that never refuse
    /// what fits, relative to the empty board; in GPUs.
    pub fn values(&self, load: f64) -> Vec<f64> {
        let arrivals = arrivals(self.level.gpus, self.mix, load);
        let seats = self.level.gpus as f64;
        let rate = arrivals.iter().sum::<f64>() + seats;
        let mut values = vec![0.0; self.states()];
        loop {
            let next: Vec<f64> = (0..self.states())
                .map(|state| {
                    let mut sum = 0.0;
                    for (class, ways) in self.level.ways[state].iter().enumerate() {
                        let best = ways.iter().map(|(_, after)| values[*after]);
                        let best = best.fold(f64::NEG_INFINITY, f64::max);
                        let gain = if ways.is_empty() {
                            values[state]
                        } else {
                            SIZES[class] as f64 + best
                        };
                        sum += arrivals[class] * gain;
                    }
                    let mut stay = seats;
                    for (after, guests) in &self.level.departures[state] {
                        sum += guests * values[*after];
                        stay -= guests;
                    }
                    (sum + stay * values[state]) / rate
                })
                .collect();
            let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
            for (new, old) in next.iter().zip(&values) {
                least = least.min(new - old);
                most = most.max(new - old);
            }
            let base = next[0];
            values = next.iter().map(|value| value - base).collect();
            if most - least < 1e-7 {
                return values;
            }
        }
    }

    /// How long the board is in each state under a policy, as shares.
    pub fn shares(&self, load: f64, policy: &Policy) -> Vec<f64> {
        let arrivals = arrivals(self.level.gpus, self.mix, load);
        let seats = self.level.gpus as f64;
        let rate = arrivals.iter().sum::<f64>() + seats;
        let mut shares = vec![0.0; self.states()];
        shares[0] = 1.0;
        loop {
            let mut next = vec![0.0; self.states()];
            for (state, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                let mut stay = rate;
                for (class, after) in policy[state].iter().enumerate() {
                    if let Some(after) = after {
                        next[*after] += share * arrivals[class] / rate;
                        stay -= arrivals[class];
                    }
                }
                for (after, guests) in &self.level.departures[state] {
                    next[*after] += share * guests / rate;
                    stay -= guests;
                }
                next[state] += share * stay / rate;
            }
            let moved: f64 = next.iter().zip(&shares).map(|(new, old)| (new - old).abs()).sum();
            shares = next;
            if moved < 1e-7 {
                return shares;
            }
        }
    }

    /// The share of the guests of each class that a policy accepts.
    pub fn acceptance(&self, load: f64, policy: &Policy) -> [f64; 5] {
        let shares = self.shares(load, policy);
        std::array::from_fn(|class| {
            let taken = shares.iter().zip(policy).filter(|(_, after)| after[class].is_some());
            taken.map(|(share, _)| share).sum()
        })
    }

    /// The acceptance of each class under the best policy that never refuses what fits.
    pub fn optimum(&self, load: f64) -> [f64; 5] {
        self.acceptance(load, &self.greedy(&self.values(load)))
    }
}

/// The acceptance of each class if guests could be moved at will: only the number of free GPUs
/// counts (Kaufman and Roberts).
pub fn repacked(gpus: usize, mix: [f64; 5], load: f64) -> [f64; 5] {
    let arrivals = arrivals(gpus, mix, load);
    let mut weights = vec![1.0];
    for held in 1..=gpus {
        let part = |(class, size): (usize, &usize)| match held.checked_sub(*size) {
            Some(before) => arrivals[class] * *size as f64 * weights[before],
            None => 0.0,
        };
        let sum: f64 = SIZES.iter().enumerate().map(part).sum();
        weights.push(sum / held as f64);
    }
    let all: f64 = weights.iter().sum();
    SIZES.map(|size| match gpus.checked_sub(size) {
        Some(most) => weights[..=most].iter().sum::<f64>() / all,
        None => 0.0,
    })
}

/// States of a block of so many GPUs.
pub fn states(gpus: usize) -> usize {
    match gpus {
        0 | 1 => 2,
        _ => states(gpus / 2) * (states(gpus / 2) + 1) / 2 + 1,
    }
}
