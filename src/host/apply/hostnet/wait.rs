//! The wait for a confirmation. The waiting run holds a lock on a file with its deadline; the
//! answer is written to another file beside it. If the run was killed, its lock is gone and the
//! wait cannot be answered.

use super::HostNetError;
use crate::apply::state::{now_s, state_directory};
use crate::apply::{Observer, StepError};
use crate::input::{self, open_regular};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often an answer is looked for.
const PAUSE: Duration = Duration::from_millis(100);
/// Suffix of the file with the deadline.
const WAIT: &str = "wait";
/// Suffix of the file with the answer.
const ANSWER: &str = "answer";

/// A wait for a confirmation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The bridge.
    pub bridge: String,
    /// Until when, in seconds since 1970, UTC.
    pub until_s: u64,
}

impl Waiting {
    /// Seconds that are left.
    pub fn left_s(&self) -> u64 {
        self.until_s.saturating_sub(now_s())
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkVerdict {
    /// The host can be reached: it is kept.
    Keep,
    /// It is reverted.
    TakeBack,
}

impl NetworkVerdict {
    /// Returns the word for it in its file.
    fn word(self) -> &'static str {
        match self {
            NetworkVerdict::Keep => "keep",
            NetworkVerdict::TakeBack => "take-back",
        }
    }
}

fn directory() -> PathBuf {
    state_directory("host-bridge")
}

/// Makes our error of the system's.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> HostNetError + '_ {
    move |source| HostNetError::File { path: path.to_owned(), source }
}

/// Returns a file of a bridge's wait by its suffix.
fn file(bridge: &str, end: &str) -> PathBuf {
    directory().join(format!("{bridge}.{end}"))
}

/// Removes the files of a wait on drop.
struct Over<'a>(&'a str);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // The next wait first removes leftovers.
        for end in [ANSWER, WAIT] {
            let _ = fs::remove_file(file(self.0, end));
        }
        // Another bridge's wait keeps it.
        let _ = fs::remove_dir(directory());
    }
}

/// Waits for the confirmation. Errors: it does not come in time, or is declined.
pub(super) fn wait(
    bridge: &str,
    within_s: u64,
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    let dir = directory();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(failed(&dir))?;
    let (wait, answer) = (file(bridge, WAIT), file(bridge, ANSWER));
    let _over = Over(bridge);
    let _ = fs::remove_file(&answer);
    let waiting = Waiting { bridge: bridge.to_owned(), until_s: now_s() + within_s };
    let made = File::create(&wait).map_err(failed(&wait))?;
    // Readers of waits hold the lock briefly.
    let _held = Flock::lock(made, FlockArg::LockExclusive)
        .map_err(|(_, errno)| failed(&wait)(errno.into()))?;
    let text = serde_json::to_string(&waiting).expect("plain values");
    fs::write(&wait, text).map_err(failed(&wait))?;
    crate::trace::wrote(&wait);
    let until = Instant::now() + Duration::from_secs(within_s);
    loop {
        match input::state(&answer).ok().flatten().as_deref() {
            Some(word) if word == NetworkVerdict::Keep.word() => return Ok(()),
            Some(word) if word == NetworkVerdict::TakeBack.word() => {
                return Err(HostNetError::Declined.into());
            }
            // Missing or incomplete so far.
            _ => {}
        }
        if let Some(signal) = observer.interrupted() {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until {
            return Err(HostNetError::Unconfirmed { within_s }.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The waits of this host, by bridge.
pub fn waiting() -> Result<Vec<Waiting>, HostNetError> {
    let dir = directory();
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed(&dir))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed(&dir))?.path();
        if path.extension().is_none_or(|end| end != WAIT) {
            continue;
        }
        // It may end at any time.
        let (Ok(file), Ok(Some(text))) = (open_regular(&path), input::state(&path)) else {
            continue;
        };
        let is_held = Flock::lock(file, FlockArg::LockSharedNonblock).is_err();
        if let (true, Ok(waiting)) = (is_held, serde_json::from_str::<Waiting>(&text)) {
            all.push(waiting);
        }
    }
    all.sort_by(|a, b| a.bridge.cmp(&b.bridge));
    Ok(all)
}

/// Removes files of waits whose runs were killed; to be called under the host's lock.
pub(super) fn sweep() {
    let held = waiting().unwrap_or_default();
    for entry in fs::read_dir(directory()).into_iter().flatten().flatten() {
        let path = entry.path();
        let bridge = path.file_stem().unwrap_or_default();
        if !held.iter().any(|waiting| bridge == waiting.bridge.as_str()) {
            let _ = fs::remove_file(&path);
        }
    }
    let _ = fs::remove_dir(directory());
}

/// Answers a wait, and waits until it has ended; returns whether it has.
pub fn answer(bridge: &str, answer: NetworkVerdict, limit: Duration) -> Result<bool, HostNetError> {
    let path = file(bridge, ANSWER);
    fs::write(&path, answer.word()).map_err(failed(&path))?;
    crate::trace::wrote(&path);
    let until = Instant::now() + limit;
    while waiting()?.iter().any(|waiting| waiting.bridge == bridge) {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
    // An answer that came too late is removed.
    let _ = fs::remove_file(&path);
    Ok(true)
}
