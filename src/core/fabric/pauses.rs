//! Pauses between retries while Fabric Manager is starting.

use std::time::Duration;

/// The pauses between tries: each twice the previous one up to a maximum, with a limit on their
/// sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    next: Duration,
    longest: Duration,
    left: Duration,
}

impl Default for Pauses {
    /// 1, 2, 4, 8 s and again 8, 30 s in all.
    fn default() -> Pauses {
        Pauses::new(Duration::from_secs(1), Duration::from_secs(8), Duration::from_secs(30))
    }
}

impl Pauses {
    /// No retry.
    pub const NONE: Pauses =
        Pauses { next: Duration::ZERO, longest: Duration::ZERO, left: Duration::ZERO };

    /// Makes pauses from the first, the longest and their total.
    pub fn new(first: Duration, longest: Duration, in_all: Duration) -> Pauses {
        Pauses { next: first, longest, left: in_all }
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next.min(self.left);
        self.left -= pause;
        self.next = (self.next * 2).min(self.longest);
        (!pause.is_zero()).then_some(pause)
    }
}
