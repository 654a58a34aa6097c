//! The machine's own pool of 2 MiB pages, for one test at a time.

use super::lawful::NO_HUGE_PAGES;
use super::skip;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::time::{Duration, Instant};

/// The pool of node 0.
pub const POOL: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB";

/// The pool while a test has it; its page count is restored on drop.
pub struct Pool {
    /// The page count before.
    pub before: u64,
    /// The lock that excludes other tests.
    _lock: Flock<File>,
}

impl Pool {
    /// Takes the pool once no other test has it; none, with the reason reported, if this machine
    /// has none.
    pub fn take() -> Option<Pool> {
        // Other roots on this machine (tests/trixie) have another /tmp, and the same pages.
        let lock = File::create("/dev/shm/gpuvm-test-pages.lock").unwrap();
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        let Some(before) = number("nr_hugepages") else { return skip(NO_HUGE_PAGES) };
        Some(Pool { before, _lock })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        set(self.before);
        // A guest's pages are free only after it has ended.
        let end = Instant::now() + Duration::from_secs(30);
        while number("nr_hugepages") != Some(self.before) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Sets the page count.
pub fn set(number: u64) {
    let _ = std::fs::write(format!("{POOL}/nr_hugepages"), number.to_string());
}

/// Reads a counter of the pool.
pub fn number(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("{POOL}/{name}")).ok()?.trim().parse().ok()
}
