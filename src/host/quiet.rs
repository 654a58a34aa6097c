//! Threads that receive no signals. One that ends the program would be delivered to any thread that
//! does not block it, also while a change holds it back; a thread that outlives changes is
//! therefore started so.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::thread::JoinHandle;

/// Starts a thread that blocks SIGINT, SIGTERM and SIGHUP.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let thread = std::thread::spawn(work);
    if let Ok(before) = before {
        // Only an invalid mask can be refused, and this one came from the kernel.
        let _ = before.thread_set_mask();
    }
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_blocks_them_and_who_starts_it_does_not() {
        let own = || SigSet::thread_get_mask().unwrap();
        let before = own();
        let of_thread = spawn(own).join().unwrap();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            assert!(of_thread.contains(signal), "{signal}");
        }
        assert_eq!(own(), before);
    }
}
