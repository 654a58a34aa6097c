//! Signals that ask to stop. Until something is begun they end the program as usual; from then on they are held back, so
//! that what was begun is undone first, and a second one ends the program at once: what it leaves is in the journal.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether a change of this process has begun, so that a signal has something to be undone.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// What comes so soon after the first signal belongs to it: a terminal that closes, `timeout` and a service manager send
/// more than one.
const TOGETHER: Duration = Duration::from_secs(1);
/// How often the watcher looks whether it is still wanted, in ms.
const LOOK_MS: u16 = 100;

/// Says that a change begins: from now on a signal is held back until it is undone.
pub(super) fn begins() {
    BEGUN.store(true, Ordering::SeqCst);
}

/// What a signal that came does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is the first: what was begun is undone.
    First,
    /// It is another: the program ends.
    Second,
}

/// What is told of a signal, from another thread.
pub type Tell = Box<dyn Fn(Heard, Signal) + Send>;

/// Holds SIGINT, SIGTERM and SIGHUP back while it lives, once something is begun. It has to be made before any thread
/// is, and so before the hypervisor is opened, because threads take over what is held back.
pub struct Interrupt {
    /// What was held back before.
    before: SigSet,
    /// What the watcher shares.
    shared: Arc<Mutex<Shared>>,
}

/// What the watcher and the program share.
struct Shared {
    /// Where signals that are held back are read.
    queue: SignalFd,
    /// Who is told.
    tell: Tell,
    /// The signal that came first, and when.
    first: Option<(Signal, Instant)>,
    /// Whether the watcher is to go.
    over: bool,
}

impl Interrupt {
    /// Begins to hold them back, and tells of each that comes when something is begun.
    pub fn hold(tell: Tell) -> Result<Interrupt, Errno> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // Who has them ignored, `nohup` for one, goes on so.
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
        // Also where the program waits for somebody who does not answer.
        std::thread::spawn(move || watch(&watched, &seen));
        Ok(Interrupt { before, shared })
    }

    /// Holds them back from now on, although nothing is begun: a terminal has to be set right first.
    pub fn hold_at_once(&self) {
        begins();
    }

    /// The signal that came first, if one has.
    pub fn came(&self) -> Option<Signal> {
        let mut shared = lock(&self.shared);
        // What was sent to this thread alone no other one can read.
        shared.hear();
        shared.first.map(|(signal, _)| signal)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.over = true;
        // One that came too late to stop anything does not end the program in place of its own exit code.
        while let Ok(Some(_)) = shared.queue.read_signal() {}
        // Only an invalid mask can be refused, and this one came from the kernel.
        let _ = self.before.thread_set_mask();
    }
}

/// The shared state; a thread that panicked leaves it as good as it was.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads signals until nobody wants it any more.
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
    /// Takes every signal that is there.
    fn hear(&mut self) {
        while let Ok(Some(info)) = self.queue.read_signal() {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            self.take(Signal::try_from(number).unwrap_or(Signal::SIGTERM));
        }
    }

    /// Takes one.
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

/// Ends the program by a signal, as one that was never held back does.
fn end(signal: Signal) {
    let mut mask = SigSet::empty();
    mask.add(signal);
    let _ = mask.thread_unblock();
    let _ = raise(signal);
}

/// Whether a signal is ignored by this process, as its caller had it.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal as i32 - 1) != 0
}
