//! Asks this machine's Fabric Manager and NVML, each in a child process with a deadline. What goes wrong becomes words
//! for a note: nothing that NVIDIA's software does or lacks can stop a discovery.

use super::abi::{Code, Listed};
use super::config::Address;
use super::ffi;
use super::links::GpuLinks;
use gpuvm_core::bdf::Bdf;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What Fabric Manager's library is given to connect.
const CONNECT_MS: u32 = 1000;
/// When Fabric Manager is given up.
const MANAGER_LIMIT: Duration = Duration::from_secs(4);
/// When NVML is given up: without persistence mode the driver starts each GPU anew, at one or two seconds each.
const NVML_LIMIT: Duration = Duration::from_secs(20);
/// How long a child may take to end once it answered or was killed; one that hangs in the driver is left behind.
const END_LIMIT: Duration = Duration::from_millis(500);
/// Bytes that an answer has at most; 64 partitions of 16 GPUs have some 100 KiB.
const LARGEST: usize = 1 << 20;

/// Says why Fabric Manager gave no list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerRefusal {
    /// Its library cannot be loaded, or lacks a function.
    Library {
        /// What the loader says.
        reason: String,
    },
    /// The address in its configuration is longer than the library takes.
    Address(Address),
    /// A call did not succeed.
    Call {
        /// The function.
        call: String,
        /// What it returned.
        code: Code,
    },
    /// The list contradicts itself.
    List {
        /// In what way.
        reason: String,
    },
    /// The child process did not answer.
    Silent {
        /// How it ended.
        reason: String,
    },
}

/// Is what NVML says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlAnswer {
    /// Module ids, in the order of the question.
    pub ids: Vec<(Bdf, u32)>,
    /// GPUs without one, and why.
    pub silent: Vec<(Bdf, String)>,
    /// NVLinks of each GPU that tells them.
    pub links: Vec<GpuLinks>,
}

impl ManagerRefusal {
    /// The refusal in words, with what to do.
    pub fn note(&self, address: &Address) -> String {
        let at = match address {
            Address::Inet(text) | Address::Unix(text) => text,
        };
        match self {
            ManagerRefusal::Library { reason } => format!(
                "Fabric Manager was not asked: {reason}; its development package \
                 (nvidia-fabricmanager-dev or -devel) has the library"
            ),
            ManagerRefusal::Address(_) => {
                "Fabric Manager was not asked: the address in fabricmanager.cfg is too long".into()
            }
            ManagerRefusal::Call { call, code } => {
                let advice = code.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
                format!("Fabric Manager at {at} gave no partitions: {call}: {code}{advice}")
            }
            ManagerRefusal::List { reason } => {
                format!("Fabric Manager's partitions are not used: {reason}")
            }
            ManagerRefusal::Silent { reason } => format!(
                "Fabric Manager at {at} gave no partitions: its library {reason}; \
                 `systemctl status nvidia-fabricmanager`"
            ),
        }
    }
}

/// Is a question that a child process is to answer.
pub struct Question {
    /// The child and its answer, or why there is none.
    child: Result<(Pid, UnixStream), String>,
    /// When it is given up.
    until: Instant,
    /// How long that was from the start.
    limit: Duration,
}

/// Asks Fabric Manager for its partitions.
pub fn manager(address: &Address) -> Question {
    let address = address.clone();
    Question::ask(MANAGER_LIMIT, move || ffi::partitions(&address, CONNECT_MS))
}

/// Asks NVML for module ids, and for NVLinks, of GPUs on the driver `nvidia`.
pub fn nvml(modules: Vec<Bdf>, links: Vec<Bdf>) -> Question {
    Question::ask(NVML_LIMIT, move || ffi::gpus(&modules, &links))
}

/// Fabric Manager's partitions, by number.
pub fn partitions(question: Question) -> Result<Vec<Listed>, ManagerRefusal> {
    let answer: Result<Vec<Listed>, ManagerRefusal> =
        question.answer().map_err(|reason| ManagerRefusal::Silent { reason })?;
    let mut partitions = answer?;
    partitions.sort_by_key(|partition| partition.id);
    Ok(partitions)
}

/// NVML's answer.
pub fn gpus(question: Question) -> Result<NvmlAnswer, String> {
    let answer: Result<NvmlAnswer, String> =
        question.answer().map_err(|reason| format!("its library {reason}"))?;
    answer
}

impl Question {
    /// Starts a child that works on it.
    fn ask<T: Serialize>(limit: Duration, ask: impl FnOnce() -> T) -> Question {
        let text = || serde_json::to_vec(&ask()).unwrap_or_default();
        let child = ffi::in_child(text).map_err(|error| format!("could not be started: {error}"));
        Question { child, until: Instant::now() + limit, limit }
    }

    /// Waits for the answer; says what the child did instead.
    fn answer<T: DeserializeOwned>(self) -> Result<T, String> {
        let (child, mut from) = self.child?;
        let mut bytes = Vec::new();
        let ended = read(&mut from, self.until, &mut bytes);
        if ended.is_err() {
            let _ = kill(child, Signal::SIGKILL);
        }
        let status = reap(child);
        match (ended, serde_json::from_slice(&bytes)) {
            (Ok(()), Ok(answer)) => Ok(answer),
            (Err(ErrorKind::TimedOut | ErrorKind::WouldBlock), _) => {
                Err(format!("did not answer within {} s", self.limit.as_secs_f32()))
            }
            (Err(kind), _) => Err(format!("could not be heard: {kind}")),
            (Ok(()), Err(_)) => Err(match status {
                Some(WaitStatus::Signaled(_, signal, _)) => format!("crashed with {signal}"),
                _ => "ended without an answer".into(),
            }),
        }
    }
}

/// Reads to the end of the stream, at most until the deadline.
fn read(from: &mut UnixStream, until: Instant, bytes: &mut Vec<u8>) -> Result<(), ErrorKind> {
    let mut page = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut);
        }
        from.set_read_timeout(Some(left)).map_err(|error| error.kind())?;
        match from.read(&mut page) {
            Ok(0) => return Ok(()),
            Ok(length) if bytes.len() + length <= LARGEST => {
                bytes.extend_from_slice(&page[..length]);
            }
            Ok(_) => return Err(ErrorKind::InvalidData),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.kind()),
        }
    }
}

/// Takes a child's end, if it comes soon.
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
        let crashed = Question::ask(limit, || {
            let _ = kill(nix::unistd::getpid(), Signal::SIGABRT);
            7
        });
        assert_eq!(answer(crashed), Err("crashed with SIGABRT".into()));
        let long = Question::ask(limit, || "x".repeat(2 * LARGEST));
        assert_eq!(long.answer::<String>(), Err("could not be heard: invalid data".into()));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let address = Address::Inet("127.0.0.1".into());
        for (refusal, text) in [
            (ManagerRefusal::Library { reason: "no file".into() }, "nvidia-fabricmanager-dev"),
            (ManagerRefusal::Address(address.clone()), "fabricmanager.cfg"),
            (
                ManagerRefusal::Call { call: "fmConnect".into(), code: Code(-9) },
                "CONNECTION_NOT_VALID (-9)",
            ),
            (
                ManagerRefusal::Call { call: "fmConnect".into(), code: Code(-77) },
                "unknown code -77",
            ),
            (ManagerRefusal::List { reason: "it counts 99".into() }, "it counts 99"),
            (ManagerRefusal::Silent { reason: "crashed".into() }, "systemctl status"),
        ] {
            let note = refusal.note(&address);
            assert!(note.contains(text), "{note}");
        }
    }
}
