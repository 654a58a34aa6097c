//! Says that libvirt does not answer: a call that should be short and is not would else leave a
//! terminal silent for as long as it takes.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time after which a call is reported.
const LIMIT: Duration = Duration::from_secs(30);
/// The interval at which calls are checked.
const STEP: Duration = Duration::from_secs(1);

/// The function that reports it; none if it is not reported.
static TELL: OnceLock<fn(&str)> = OnceLock::new();
/// The watch of this program, which begins with the first call.
static WATCH: OnceLock<Watch> = OnceLock::new();

#[derive(Debug, Clone)]
struct Waiting {
    since: Instant,
    what: String,
    is_told: bool,
}

/// A watch over calls, one at a time.
#[derive(Debug, Clone)]
pub struct Watch {
    waiting: Arc<Mutex<Option<Waiting>>>,
}

/// Says from now on by this function which call libvirt does not answer.
pub fn report_by(tell: fn(&str)) {
    // The first one stays.
    let _ = TELL.set(tell);
}

/// Makes a call under the watch; `what` names it.
pub fn watched<T>(what: impl FnOnce() -> String, run: impl FnOnce() -> T) -> T {
    match TELL.get() {
        Some(tell) => WATCH.get_or_init(|| Watch::new(LIMIT, STEP, tell)).over(what(), run),
        None => run(),
    }
}

impl Watch {
    fn new(limit: Duration, step: Duration, tell: impl Fn(&str) + Send + 'static) -> Watch {
        let watch = Watch { waiting: Arc::default() };
        let looks = watch.clone();
        let look = move || {
            loop {
                std::thread::sleep(step);
                if let Some(text) = looks.due(limit) {
                    tell(&text);
                }
            }
        };
        crate::quiet::spawn(look);
        watch
    }

    /// Makes a call under the watch.
    fn over<T>(&self, what: String, run: impl FnOnce() -> T) -> T {
        self.set(Some(Waiting { since: Instant::now(), what, is_told: false }));
        let done = run();
        self.set(None);
        done
    }

    fn set(&self, waiting: Option<Waiting>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    /// The message about the call under way, once.
    fn due(&self, limit: Duration) -> Option<String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let call =
            waiting.as_mut().filter(|call| !call.is_told && call.since.elapsed() >= limit)?;
        call.is_told = true;
        let seconds = limit.as_secs();
        Some(format!("libvirt has not answered for {seconds} s: {}", call.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_slow_call_is_reported_once() {
        let (lines, tells) = channel();
        let step = Duration::from_millis(5);
        let watch = Watch::new(Duration::from_millis(200), step, move |text: &str| {
            let _ = lines.send(text.to_owned());
        });
        assert_eq!(watch.over("find domain `a`".into(), || 7), 7);
        // Longer than the limit, until it is reported.
        let said = watch.over("define a domain".into(), || {
            let said = tells.recv_timeout(Duration::from_secs(60)).unwrap();
            std::thread::sleep(10 * step);
            said
        });
        assert_eq!(said, "libvirt has not answered for 0 s: define a domain");
        assert!(tells.try_recv().is_err(), "once");
    }
}
