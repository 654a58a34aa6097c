//! Signals that ask to stop, held back so that what was begun is undone first.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::cell::Cell;

/// Holds SIGINT, SIGTERM and SIGHUP back while it lives. It has to be made before any thread is, and so before the
/// hypervisor is opened, because threads take over what is held back.
#[derive(Debug)]
pub struct Interrupt {
    /// Where signals that are held back are read.
    queue: SignalFd,
    /// What was held back before.
    before: SigSet,
    /// The first that came.
    came: Cell<Option<Signal>>,
}

impl Interrupt {
    /// Begins to hold them back.
    pub fn hold() -> Result<Interrupt, Errno> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            mask.add(signal);
        }
        let before = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let queue = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Interrupt { queue, before, came: Cell::new(None) })
    }

    /// Lets signals through while `action` runs, so that they end the program as usual.
    pub fn let_through<T>(&self, action: impl FnOnce() -> T) -> T {
        let held = self.before.thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let result = action();
        if let Ok(held) = held {
            // Only an invalid mask can be refused, and this one came from the kernel.
            let _ = held.thread_set_mask();
        }
        result
    }

    /// The signal that came first, if one has.
    pub fn came(&self) -> Option<Signal> {
        if self.came.get().is_none()
            && let Ok(Some(info)) = self.queue.read_signal()
        {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            self.came.set(Some(Signal::try_from(number).unwrap_or(Signal::SIGTERM)));
        }
        self.came.get()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // One that came too late to stop anything does not end the program in place of its own exit code.
        while let Ok(Some(_)) = self.queue.read_signal() {}
        // Only an invalid mask can be refused, and this one came from the kernel.
        let _ = self.before.thread_set_mask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_held_back_and_told() {
        let interrupt = Interrupt::hold().unwrap();
        assert_eq!(interrupt.came(), None);
        // To this thread alone: the other tests' threads do not hold it back.
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        assert_eq!(interrupt.came(), Some(Signal::SIGTERM));
        assert_eq!(interrupt.came(), Some(Signal::SIGTERM), "it is forgotten");
    }
}
