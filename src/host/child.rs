//! Runs a query in a child process with a deadline: it may hang in a driver, write to the terminal
//! or crash, none of which may affect this program.
#![allow(unsafe_code)] // the fork

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a child may take to end once it answered or was killed; one that hangs in a driver is
/// abandoned.
const END_LIMIT: Duration = Duration::from_millis(500);
/// The largest answer in bytes; 64 partitions of 16 GPUs take some 100 KiB.
const LARGEST: usize = 1 << 20;

/// Interval at which `stop` is asked.
const LOOK: Duration = Duration::from_millis(100);

/// Returns why not to wait for the answer any longer; `None` to keep waiting.
pub type Stop<'s> = &'s mut dyn FnMut() -> Option<String>;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The child gave no answer; its behaviour instead.
    Silent(String),
    /// The wait was cancelled, for this reason.
    Stopped(String),
}

/// A query running in a child process.
pub struct Question {
    /// The child and its answer, or why there is none.
    child: Result<(Pid, UnixStream), String>,
    until: Instant,
    limit: Duration,
}

impl Question {
    /// Starts the child.
    pub fn ask<T: Serialize>(limit: Duration, ask: impl FnOnce() -> T) -> Question {
        let text = || serde_json::to_vec(&ask()).unwrap_or_default();
        let child = in_child(text).map_err(|error| format!("could not be started: {error}"));
        Question { child, until: Instant::now() + limit, limit }
    }

    /// Waits for the answer; the error describes the child's behaviour instead.
    pub fn answer<T: DeserializeOwned>(self) -> Result<T, String> {
        self.answer_unless(&mut || None).map_err(|why| match why {
            NoAnswer::Silent(why) | NoAnswer::Stopped(why) => why,
        })
    }

    /// Waits for the answer until `stop` gives a reason; the child is killed then.
    pub fn answer_unless<T: DeserializeOwned>(self, stop: Stop<'_>) -> Result<T, NoAnswer> {
        let (child, mut from) = self.child.map_err(NoAnswer::Silent)?;
        let mut bytes = Vec::new();
        let ended = read(&mut from, self.until, &mut bytes, stop);
        if ended.is_err() {
            let _ = kill(child, Signal::SIGKILL);
        }
        let status = reap(child);
        Err(NoAnswer::Silent(match (ended, serde_json::from_slice(&bytes)) {
            (Ok(()), Ok(answer)) => return Ok(answer),
            (Err(Unread::Stopped(why)), _) => return Err(NoAnswer::Stopped(why)),
            (Err(Unread::Late), _) => {
                format!("did not answer within {} s", self.limit.as_secs_f32())
            }
            (Err(Unread::Failed(kind)), _) => format!("could not be heard: {kind}"),
            (Ok(()), Err(_)) => match status {
                Some(WaitStatus::Signaled(_, signal, _)) => format!("crashed with {signal}"),
                _ => "ended without an answer".into(),
            },
        }))
    }
}

/// The reason a stream was not read to its end.
enum Unread {
    /// The deadline has passed.
    Late,
    /// The wait was cancelled, for this reason.
    Stopped(String),
    /// A system error.
    Failed(ErrorKind),
}

/// Reads to the end of the stream, no longer than the deadline, unless cancelled.
fn read(
    from: &mut UnixStream,
    until: Instant,
    bytes: &mut Vec<u8>,
    stop: Stop<'_>,
) -> Result<(), Unread> {
    let failed = |error: std::io::Error| Unread::Failed(error.kind());
    let mut page = [0; 4096];
    loop {
        if let Some(why) = stop() {
            return Err(Unread::Stopped(why));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Unread::Late);
        }
        from.set_read_timeout(Some(left.min(LOOK))).map_err(failed)?;
        match from.read(&mut page) {
            Ok(0) => return Ok(()),
            Ok(length) if bytes.len() + length <= LARGEST => {
                bytes.extend_from_slice(&page[..length]);
            }
            Ok(_) => return Err(Unread::Failed(ErrorKind::InvalidData)),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::WouldBlock => {}
                kind => return Err(Unread::Failed(kind)),
            },
        }
    }
}

/// Reaps a child if it ends soon.
fn reap(child: Pid) -> Option<WaitStatus> {
    let until = Instant::now() + END_LIMIT;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) if Instant::now() < until => {
                sleep(Duration::from_millis(1));
            }
            Ok(status) => return Some(status),
            Err(_) => return None,
        }
    }
}

/// Runs `ask` in a child process; returns its pid and the socket that delivers the result of `ask`.
fn in_child(ask: impl FnOnce() -> Vec<u8>) -> std::io::Result<(Pid, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: the child runs only `ask`, writes and leaves by `_exit`; should another thread of
    // ours hold a lock that it needs, it hangs, and the parent's deadline ends it.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok((child, ours)),
        ForkResult::Child => {
            drop(ours);
            answer(theirs, ask)
        }
    }
}

/// The child's whole life: silent, killed with its parent, never returning into the parent's code.
fn answer(mut to: UnixStream, ask: impl FnOnce() -> Vec<u8>) -> ! {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
    // Without an answer the parent sees that there is none.
    if let Ok(bytes) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)) {
        let _ = to.write_all(&bytes);
        // Ends the answer even if another child holds a copy of the socket.
        let _ = to.shutdown(Shutdown::Write);
    }
    drop(to);
    // SAFETY: ends the process at once; the parent's exit handlers are not the child's to run.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_hangs_or_crashes() {
        let limit = Duration::from_secs(20);
        let answer = |question: Question| question.answer::<u32>();
        assert_eq!(answer(Question::ask(limit, || 7)), Ok(7));
        let hung = Question::ask(Duration::from_millis(50), || {
            sleep(Duration::from_secs(600));
            7
        });
        assert_eq!(answer(hung), Err("did not answer within 0.05 s".into()));
        let hung = Question::ask(limit, || {
            sleep(Duration::from_secs(600));
            7
        });
        let begun = Instant::now();
        let mut stop = || (begun.elapsed() > Duration::from_millis(50)).then(|| "enough".into());
        assert_eq!(hung.answer_unless::<u32>(&mut stop), Err(NoAnswer::Stopped("enough".into())));
        assert!(begun.elapsed() < limit);
        let crashed = Question::ask(limit, || {
            let _ = kill(nix::unistd::getpid(), Signal::SIGABRT);
            7
        });
        assert_eq!(answer(crashed), Err("crashed with SIGABRT".into()));
        let long = Question::ask(limit, || "x".repeat(2 * LARGEST));
        assert_eq!(long.answer::<String>(), Err("could not be heard: invalid data".into()));
    }
}
