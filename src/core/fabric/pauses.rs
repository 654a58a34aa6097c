//! How long to wait before Fabric Manager is asked again that is still starting.

use std::time::Duration;

/// The pauses between two tries: each twice the one before up to a longest, and no more than so much in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// The next pause.
    next: Duration,
    /// The longest.
    longest: Duration,
    /// What is left of them all.
    left: Duration,
}

impl Default for Pauses {
    /// 1, 2, 4, 8 s and again 8, 30 s in all.
    fn default() -> Pauses {
        Pauses::new(Duration::from_secs(1), Duration::from_secs(8), Duration::from_secs(30))
    }
}

impl Pauses {
    /// No second try.
    pub const NONE: Pauses =
        Pauses { next: Duration::ZERO, longest: Duration::ZERO, left: Duration::ZERO };

    /// Pauses from a first one to a longest, and how long they may be in all.
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
