//! Reports progress from a separate thread while a step waits for libvirt: how much of a guest's
//! memory QEMU has preallocated, or how far a file has grown.

use crate::discover::process::{self, Filling};
use crate::fsroot::FsRoot;
use crate::reporter::Reporter;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(500);
/// The shortest duration that is announced.
const LONG: Duration = Duration::from_secs(10);

/// A thread that reports until this is dropped.
pub struct Ticker {
    /// Whether to end, and the condition to wake it.
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    reporter: Arc<dyn Reporter>,
}

impl Ticker {
    /// Reports the result of `look`, bytes done and all bytes, until this is dropped.
    pub fn new(
        reporter: &Arc<dyn Reporter>,
        mut look: impl FnMut() -> Option<(u64, u64)> + Send + 'static,
    ) -> Ticker {
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let (teller, end) = (Arc::clone(reporter), Arc::clone(&ends));
        let tick = move || {
            let (ended, woken) = &*end;
            let mut is_over = ended.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let waited = woken.wait_timeout_while(is_over, STEP, |is_over| !*is_over);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                if *is_over {
                    return;
                }
                if let Some((through, of)) = look() {
                    teller.bytes(through, of);
                }
            }
        };
        // Without a thread nothing is reported; the step is carried out anyway.
        let thread = std::thread::Builder::new().spawn(tick).ok();
        Ticker { ends, thread, reporter: Arc::clone(reporter) }
    }

    /// Reports the memory of a starting guest; `None` if its files cannot be read.
    pub fn of_start(reporter: &Arc<dyn Reporter>, uuid: String) -> Option<Ticker> {
        let root = FsRoot::live().ok()?;
        let (teller, mut is_told) = (Arc::clone(reporter), false);
        Some(Ticker::new(reporter, move || {
            let found = process::filling(&root, &uuid)?;
            if !std::mem::replace(&mut is_told, true) && found.estimate() >= LONG {
                teller.progress(&forecast(&found));
            }
            Some((found.through.kib() << 10, found.of.kib() << 10))
        }))
    }

    /// Reports the growth of a file to this many bytes.
    pub fn of_file(reporter: &Arc<dyn Reporter>, path: &Path, of: u64) -> Ticker {
        let path = path.to_owned();
        Ticker::new(reporter, move || {
            let taken = std::fs::symlink_metadata(&path).ok()?.blocks() * 512;
            Some((taken.min(of), of))
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.ends.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // An error in it concerns the report only.
            let _ = thread.join();
        }
        self.reporter.bytes(0, 0);
    }
}

/// Announces how long preallocating a guest's memory takes.
fn forecast(found: &Filling) -> String {
    let pages = if found.huge { "huge" } else { "normal" };
    let seconds = found.estimate().as_secs();
    let time = match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {} s", seconds % 60),
    };
    format!("preallocating {} of memory in {pages} pages takes about {time}", found.of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Step;
    use gpuvm_core::memsize::MemSize;
    use std::io;
    use std::sync::mpsc::{Sender, channel};

    /// A reporter that records bytes.
    struct Notes(Mutex<Sender<(u64, u64)>>);

    impl Reporter for Notes {
        fn progress(&self, _: &str) {}
        fn warning(&self, _: &str) {}
        fn bytes(&self, through: u64, of: u64) {
            let _ = self.0.lock().unwrap().send((through, of));
        }
        fn preview(&self, _: &[Step]) -> io::Result<()> {
            Ok(())
        }
        fn ask(&self, _: crate::reporter::Asked<'_>) -> io::Result<crate::reporter::Answer> {
            Ok(crate::reporter::Answer::Nobody)
        }
    }

    #[test]
    fn progress_is_reported_until_the_end() {
        let (tell, ticks) = channel();
        let reporter: Arc<dyn Reporter> = Arc::new(Notes(Mutex::new(tell)));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let ticker = Ticker::of_file(&reporter, &file, 8192);
        std::fs::write(&file, vec![1; 4096]).unwrap();
        assert_eq!(ticks.recv().unwrap().1, 8192, "while it goes on");
        drop(ticker);
        assert_eq!(ticks.iter().find(|tick| tick.1 == 0), Some((0, 0)), "and wiped away");
        // One that is over before it could be seen is not reported.
        drop(Ticker::of_file(&reporter, &file, 8192));
        assert_eq!(ticks.recv().unwrap(), (0, 0));
    }

    #[test]
    fn a_forecast_has_its_pages_and_its_time() {
        let of = MemSize::from_gib(1400);
        let found = Filling { through: MemSize::default(), of, huge: true };
        let said = "preallocating 1.4 TiB of memory in huge pages takes about 2 min 22 s";
        assert_eq!(forecast(&found), said);
    }
}
