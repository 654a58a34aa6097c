//! The watch over a run of steps: the signals that ask to stop, the host's lock, and progress
//! reports.

mod ticker;

use crate::apply::array::ArrayError;
use crate::apply::{
    DeviceStep, DomainStep, Heard, HostLock, Interrupt, LockError, Observer, Step, StepError,
};
use crate::error::Result;
use crate::reporter::Reporter;
use nix::sys::signal::Signal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ticker::Ticker;

/// Whether a signal only ends a wait, as the thread that reports signals sees it.
#[derive(Debug, Clone, Default)]
pub struct Keeps(Arc<AtomicBool>);

impl Keeps {
    /// Sets it.
    pub fn set(&self, keeps: bool) {
        self.0.store(keeps, Ordering::SeqCst);
    }

    /// Whether it does.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Reports steps as progress, and signals.
pub struct Watch {
    /// Whether a signal only ends a wait.
    keeps: Keeps,
    reporter: Arc<dyn Reporter>,
    /// The signals that are held back.
    interrupt: Interrupt,
    /// The host's lock, as long as it is held; `None` if it was never taken.
    lock: Option<Weak<HostLock>>,
    /// Its directory; `None` for the one shared by all callers of this host.
    state: Option<PathBuf>,
    /// How long to wait for it.
    wait: Duration,
    /// The thread that reports the step under way.
    ticker: Option<Ticker>,
}

/// How long the undoing of a change waits for another change of the host; then it is undone without
/// the lock.
const UNDO_WAIT: Duration = Duration::from_secs(60);
/// The minimum wait for a guest that was stopped to be restarted: others hold the lock only for
/// seconds.
const LEAST_WAIT: Duration = Duration::from_secs(5);

impl Watch {
    /// Whether a signal only ends a wait: shared with who waits.
    pub fn keeps(&self) -> Keeps {
        self.keeps.clone()
    }

    /// Holds signals back from now on. Must be called before the hypervisor is opened.
    pub fn begin(reporter: Arc<dyn Reporter>) -> Result<Watch> {
        let (teller, keeps) = (Arc::clone(&reporter), Keeps::default());
        let kept = keeps.clone();
        let tell = move |heard, signal: Signal| {
            let name = signal.as_str();
            teller.progress(&match heard {
                Heard::First if kept.get() => format!("{name}: the wait ends; the guest stays"),
                Heard::First => {
                    format!("{name}: undoing the change; another signal ends gpuvm at once")
                }
                Heard::Second => {
                    format!("{name} again: gpuvm ends at once, and `gpuvm recover` does the rest")
                }
            });
        };
        let interrupt = Interrupt::hold(Box::new(tell))?;
        Ok(Watch {
            keeps,
            reporter,
            interrupt,
            lock: None,
            state: None,
            wait: Duration::ZERO,
            ticker: None,
        })
    }

    /// The same with the lock in the caller's directory.
    pub fn with_state(mut self, state: Option<PathBuf>) -> Watch {
        self.state = state;
        self
    }

    /// Clears the progress bar at the end of a long step.
    pub fn clear(&mut self) {
        self.ticker = None;
        self.reporter.bytes(0, 0);
    }

    /// Holds signals back from now on, although nothing has begun in this process.
    pub fn hold_at_once(&self) {
        self.interrupt.hold_at_once();
    }

    /// Takes the host's lock, waiting up to `wait` for another change.
    pub fn lock(&mut self, wait: Duration) -> Result<Rc<HostLock>, LockError> {
        self.wait = wait;
        let lock = Rc::new(self.wait_for_lock(wait, |interrupt| interrupt.came().is_some())?);
        self.lock = Some(Rc::downgrade(&lock));
        Ok(lock)
    }

    /// Waits for the host's lock, unless `stops`.
    fn wait_for_lock(
        &self,
        wait: Duration,
        stops: impl Fn(&Interrupt) -> bool,
    ) -> Result<HostLock, LockError> {
        let mut is_said = false;
        let waiting = |holder: Option<i32>| {
            if !is_said {
                let who = holder.map_or(String::new(), |pid| format!(" (process {pid})"));
                self.reporter.progress(&format!("waiting for another change of this host{who}"));
                is_said = true;
            }
            if stops(&self.interrupt) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match &self.state {
            Some(state) => HostLock::take_in(state, wait, waiting),
            None => HostLock::take(wait, waiting),
        }
    }
}

impl Observer for Watch {
    fn doing(&mut self, step: &Step) {
        self.ticker = None;
        if step.is_internal() {
            self.reporter.detail(&step.to_string());
        } else {
            self.reporter.progress(&step.to_string());
        }
        if let Step::Domain(DomainStep::Start { uuid: Some(uuid), .. }) = step {
            self.ticker = Ticker::of_start(&self.reporter, uuid.clone());
        }
    }

    fn grows(&mut self, path: &Path, bytes: u64) {
        self.ticker = Some(Ticker::of_file(&self.reporter, path, bytes));
    }

    fn done(&mut self) {
        self.ticker = None;
    }

    fn note(&mut self, text: &str) {
        self.reporter.progress(text);
    }

    fn left(&mut self, text: &str) {
        self.reporter.warning(text);
    }

    fn progress(&mut self, through: u64, bytes: u64) {
        self.reporter.bytes(through, bytes);
    }

    fn handed_over(&mut self, step: &Step, why: &StepError) {
        if let StepError::Array(ArrayError::InitramfsOlder { .. }) | StepError::NvramStays { .. } =
            why
        {
            return self.reporter.warning(&why.to_string());
        }
        // No command takes resources that others hold now.
        let others = matches!(why, StepError::InUse { .. } | StepError::OtherDomain { .. });
        let by_hand = step.by_hand().filter(|_| !others);
        let by_hand = by_hand
            .map(|command| format!("; if nothing else uses it, run `{command}`"))
            .unwrap_or_default();
        self.reporter.warning(&format!("{step}: {why}, so it is left as it is{by_hand}"));
        if let Step::Device(DeviceStep::Bind { bdf, .. }) = step {
            let text =
                format!("once it is free, `gpuvm device release {bdf}` gives it to the host");
            self.reporter.progress(&text);
        }
    }

    fn guard(&mut self, undoes: bool) -> Result<Option<HostLock>, LockError> {
        if self.lock.as_ref().is_none_or(|taken| taken.strong_count() > 0) {
            return Ok(None);
        }
        // A signal has often arrived at this point, and must not end the wait.
        let (wait, stops) =
            if undoes { (UNDO_WAIT, false) } else { (self.wait.max(LEAST_WAIT), true) };
        self.wait_for_lock(wait, |interrupt| stops && interrupt.came().is_some()).map(Some)
    }

    fn undoing(&mut self, step: &Step) {
        self.ticker = None;
        if step.is_internal() {
            self.reporter.detail(&format!("undo: {step}"));
        } else {
            self.reporter.progress(&format!("undo: {step}"));
        }
    }

    fn interrupted(&mut self) -> Option<String> {
        self.interrupt.came().map(|signal| signal.as_str().to_owned())
    }
}
