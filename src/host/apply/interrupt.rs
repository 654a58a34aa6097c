//! Handling of termination signals. Before a change begins they end the program as usual; from then
//! on they are blocked, so that the change is undone first, and a second signal ends the program at
//! once, leaving the rest to the journal.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether a change of this process has begun, so that a signal triggers an undo.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Signals within this time of the first one belong to it: a closing terminal, `timeout` and
/// service managers send more than one.
const TOGETHER: Duration = Duration::from_secs(1);
/// How often the watcher checks whether it is to end, in ms.
const LOOK_MS: u16 = 100;

/// Marks the start of a change: from now on a signal is held until it is undone.
pub(super) fn begins() {
    BEGUN.store(true, Ordering::SeqCst);
}

/// The effect of a received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is the first: the change is undone.
    First,
    /// It is another: the program ends.
    Second,
}

/// The callback on a signal, called from another thread.
pub type OnSignal = Box<dyn Fn(Heard, Signal) + Send>;

/// Blocks SIGINT, SIGTERM and SIGHUP while it lives, once a change has begun. It must be made
/// before any thread, and so before the hypervisor is opened, since threads inherit the signal
/// mask.
pub struct Interrupt {
    before: SigSet,
    /// The state shared with the watcher.
    shared: Arc<Mutex<Shared>>,
}

/// The state shared by the watcher and the program.
struct Shared {
    /// The descriptor that blocked signals are read from.
    queue: SignalFd,
    tell: OnSignal,
    /// The first signal, and its time.
    first: Option<(Signal, Instant)>,
    /// Whether the watcher is to end.
    over: bool,
}

impl Interrupt {
    /// Starts blocking them, and calls back on each one received during a change.
    pub fn hold(tell: OnSignal) -> Result<Interrupt, Errno> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // Signals ignored by the caller, such as by `nohup`, stay ignored.
            if !is_ignored(signal) {
                mask.add(signal);
            }
        }
        let before = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let (queue, watched) =
            (SignalFd::with_flags(&mask, flags)?, SignalFd::with_flags(&mask, flags)?);
        let shared = Arc::new(Mutex::new(Shared { queue, tell, first: None, over: false }));
        let seen = Arc::clone(&shared);
        // This works even while the program is blocked on a peer.
        std::thread::spawn(move || watch(&watched, &seen));
        Ok(Interrupt { before, shared })
    }

    /// Blocks them at once, even without a change: a terminal must be restored first.
    pub fn hold_at_once(&self) {
        begins();
    }

    /// Returns the first signal received, if any.
    pub fn came(&self) -> Option<Signal> {
        let mut shared = lock(&self.shared);
        // A signal sent to this thread can only be read by it.
        shared.hear();
        shared.first.map(|(signal, _)| signal)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.over = true;
        // A signal too late to stop anything must not replace the program's exit code.
        while let Ok(Some(_)) = shared.queue.read_signal() {}
        // Only an invalid mask can be refused, and this one came from the kernel.
        let _ = self.before.thread_set_mask();
    }
}

/// The shared state; it stays valid after a panic of another thread.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads signals until it is asked to end.
fn watch(watched: &SignalFd, shared: &Mutex<Shared>) {
    loop {
        let mut ready = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(LOOK_MS));
        let mut shared = lock(shared);
        if shared.over {
            return;
        }
        shared.hear();
    }
}

impl Shared {
    fn hear(&mut self) {
        while let Ok(Some(info)) = self.queue.read_signal() {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            self.take(Signal::try_from(number).unwrap_or(Signal::SIGTERM));
        }
    }

    fn take(&mut self, signal: Signal) {
        if !BEGUN.load(Ordering::SeqCst) {
            end(signal);
        }
        match self.first {
            None => {
                self.first = Some((signal, Instant::now()));
                (self.tell)(Heard::First, signal);
            }
            Some((_, first)) if first.elapsed() < TOGETHER => {}
            Some(_) => {
                (self.tell)(Heard::Second, signal);
                end(signal);
            }
        }
    }
}

/// Ends the program by a signal, as if it had never been blocked.
fn end(signal: Signal) {
    let mut mask = SigSet::empty();
    mask.add(signal);
    let _ = mask.thread_unblock();
    let _ = raise(signal);
}

/// Whether a signal is ignored by this process, as inherited from its caller.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal as i32 - 1) != 0
}
