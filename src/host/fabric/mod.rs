//! This machine's Fabric Manager: asked through its client library, each time by a child process with a deadline, since the
//! library may block for ever where its peer hangs. One connection for one question, so that it survives a restart of
//! Fabric Manager. What may be asked for is decided by [`gpuvm_core::fabric`].

mod abi;
pub mod config;
mod ffi;
pub mod program;
mod remembered;

pub use remembered::{RestoreFile, RestoreFileError};

use crate::child::Question;
use crate::fsroot::{FsError, FsRoot};
use config::{Address, Config};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::{Call, Code, Listed, Meaning, Modules, Pauses};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

/// Names of Fabric Manager's client library; only development packages have the second.
const LIBRARIES: [&str; 2] = ["libnvfm.so.1", "libnvfm.so"];

/// How long Fabric Manager may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// What the library is given to connect, in milliseconds; 0 fails.
    pub connect_ms: u32,
    /// How often it is tried.
    pub connects: u32,
    /// When a question that changes nothing is given up.
    pub list: Duration,
    /// When a change is given up. NVIDIA publishes no time; others wait as long.
    pub change: Duration,
    /// The pauses between two tries while it is starting.
    pub pauses: Pauses,
}

impl Limits {
    /// Those of a look at a host, which must not wait long for what it can do without.
    pub const LOOK: Limits = Limits {
        connect_ms: 1000,
        connects: 1,
        list: Duration::from_secs(4),
        change: Duration::ZERO,
        pauses: Pauses::NONE,
    };
}

/// The limits of this process, where it has its own.
static OWN_LIMITS: OnceLock<Limits> = OnceLock::new();

/// Gives this process other limits than the usual ones from now on; the first call counts. For tests, which do not wait a
/// minute for what hangs.
pub fn limit_this_process(limits: Limits) {
    let _ = OWN_LIMITS.set(limits);
}

impl Default for Limits {
    fn default() -> Limits {
        if let Some(limits) = OWN_LIMITS.get() {
            return *limits;
        }
        Limits {
            connect_ms: 1000,
            connects: 3,
            list: Duration::from_secs(5),
            change: Duration::from_secs(60),
            pauses: Pauses::default(),
        }
    }
}

/// Why Fabric Manager gave no answer, or refused.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    thiserror::Error,
    strum::IntoStaticStr,
    strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "fabric-")]
pub enum ManagerRefusal {
    /// Its library cannot be loaded, or lacks a function.
    #[error("Fabric Manager was not asked: {reason}")]
    Library {
        /// What the loader says.
        reason: String,
    },
    /// The address in its configuration is longer than the library takes.
    #[error("Fabric Manager was not asked: the address in fabricmanager.cfg is too long")]
    Address(Address),
    /// A call did not succeed.
    #[error("Fabric Manager: {call}: {code}")]
    Call {
        /// The function.
        call: String,
        /// What it returned.
        code: Code,
    },
    /// What it lists contradicts itself, or what it is to be given has no room.
    #[error("Fabric Manager's list: {reason}")]
    List {
        /// In what way.
        reason: String,
    },
    /// The child process did not answer.
    #[error("Fabric Manager's library {reason}")]
    Silent {
        /// How it ended.
        reason: String,
    },
}

impl ManagerRefusal {
    /// The refusal to list partitions in words, with what to do.
    pub fn note(&self, address: &Address) -> String {
        match self {
            ManagerRefusal::Library { .. } => format!(
                "{self}; its development package (nvidia-fabricmanager-dev or -devel) has the library"
            ),
            ManagerRefusal::Address(_) => self.to_string(),
            ManagerRefusal::Call { call, code } => {
                let advice =
                    code.advice(Call::List).map(|advice| format!("; {advice}")).unwrap_or_default();
                format!("Fabric Manager at {address} gave no partitions: {call}: {code}{advice}")
            }
            ManagerRefusal::List { reason } => {
                format!("Fabric Manager's partitions are not used: {reason}")
            }
            ManagerRefusal::Silent { reason } => format!(
                "Fabric Manager at {address} gave no partitions: its library {reason}; \
                 `systemctl status nvidia-fabricmanager`"
            ),
        }
    }

    /// What it means as the answer to a call.
    pub fn meaning(&self, call: Call) -> Meaning {
        match self {
            // Calls that only connect mean the same whatever comes after.
            ManagerRefusal::Call { call: name, code } if name == "fmConnect" => {
                match code.meaning(Call::List) {
                    Meaning::Failed if *code == Code(-5) => Meaning::Unreachable,
                    meaning => meaning,
                }
            }
            ManagerRefusal::Call { code, .. } => code.meaning(call),
            _ => Meaning::Failed,
        }
    }

    /// What to do about it; none where nothing is known.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ManagerRefusal::Library { .. } => Some(
                "Fabric Manager's development package (nvidia-fabricmanager-dev or -devel) has the \
                 library",
            ),
            ManagerRefusal::Call { call, code } => code.advice(called(call)),
            ManagerRefusal::Silent { .. } => Some("`systemctl status nvidia-fabricmanager`"),
            ManagerRefusal::Address(_) | ManagerRefusal::List { .. } => None,
        }
    }
}

/// What is asked for by a function of the library.
fn called(function: &str) -> Call {
    match function {
        name if name.starts_with("fmActivate") => Call::Activate,
        name if name.starts_with("fmDeactivate") => Call::Deactivate,
        name if name.starts_with("fmSetActivated") => Call::SetActivated,
        _ => Call::List,
    }
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ask {
    /// The partitions.
    List,
    /// To activate one.
    Activate {
        /// Its number.
        partition: u32,
        /// A virtual function of each of its GPUs in their order, for vGPU; none: guests get the GPUs.
        vfs: Vec<Bdf>,
    },
    /// To deactivate one.
    Deactivate {
        /// Its number.
        partition: u32,
    },
    /// To take these as active, after a restart.
    SetActivated(Vec<u32>),
    /// Devices with failed NVLinks.
    Failed,
    /// Partitions that cannot be had because of these.
    Unsupported,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// It is done.
    Done,
    /// The partitions.
    Partitions(Vec<Listed>),
    /// Devices with failed NVLinks.
    Failed(FailedDevices),
    /// Partitions that cannot be had.
    Unsupported(Vec<UnsupportedPartition>),
}

/// A GPU or an NVSwitch with failed NVLinks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDevice {
    /// Its UUID; empty where Fabric Manager does not know it.
    pub uuid: String,
    /// Its address; none where Fabric Manager does not know it.
    pub bus: Option<Bdf>,
    /// The ports that failed.
    pub ports: Vec<u32>,
}

/// Devices whose NVLinks failed before Fabric Manager started; none is told of H100 and later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDevices {
    /// GPUs.
    pub gpus: Vec<FailedDevice>,
    /// NVSwitches.
    pub switches: Vec<FailedDevice>,
}

/// A partition that cannot be had because of failed devices; none is told of H100 and later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsupportedPartition {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
}

/// How Fabric Manager is asked.
#[derive(Debug, Clone)]
pub struct Manager {
    /// Where it listens.
    pub address: Address,
    /// Names or paths of its library, of which the first that is there counts.
    pub libraries: Vec<OsString>,
    /// How long it may take.
    pub limits: Limits,
}

impl Manager {
    /// The one at an address.
    pub fn at(address: Address) -> Manager {
        let libraries = LIBRARIES.map(OsString::from).to_vec();
        Manager { address, libraries, limits: Limits::default() }
    }

    /// The one that a host's configuration speaks of.
    pub fn of_host(root: &FsRoot) -> Result<Manager, FsError> {
        Ok(Manager::at(Config::read(root)?.address))
    }

    /// Begins to ask for its partitions.
    pub(crate) fn begin_list(&self) -> Question {
        self.begin(Ask::List, self.limits.list)
    }

    /// Its partitions, by number.
    pub(crate) fn end_list(question: Question) -> Result<Vec<Listed>, ManagerRefusal> {
        match Manager::end(question)? {
            Answer::Partitions(mut partitions) => {
                partitions.sort_by_key(|partition| partition.id);
                Ok(partitions)
            }
            other => Err(other.unasked()),
        }
    }

    /// Its partitions, by number.
    pub fn list(&self) -> Result<Vec<Listed>, ManagerRefusal> {
        Manager::end_list(self.begin_list())
    }

    /// Activates a partition. `vfs`: in the mode for vGPU a virtual function of each of its GPUs, in the list's order.
    pub fn activate(&self, partition: u32, vfs: &[Bdf]) -> Result<(), ManagerRefusal> {
        self.change(Ask::Activate { partition, vfs: vfs.to_vec() })
    }

    /// Deactivates a partition.
    pub fn deactivate(&self, partition: u32) -> Result<(), ManagerRefusal> {
        self.change(Ask::Deactivate { partition })
    }

    /// Says which partitions are active, to a Fabric Manager that waits for it after a restart; none may be.
    pub fn set_activated(&self, partitions: &[u32]) -> Result<(), ManagerRefusal> {
        self.change(Ask::SetActivated(partitions.to_vec()))
    }

    /// The devices whose NVLinks failed.
    pub fn failed_devices(&self) -> Result<FailedDevices, ManagerRefusal> {
        match Manager::end(self.begin(Ask::Failed, self.limits.list))? {
            Answer::Failed(devices) => Ok(devices),
            other => Err(other.unasked()),
        }
    }

    /// The partitions that cannot be had because of these.
    pub fn unsupported(&self) -> Result<Vec<UnsupportedPartition>, ManagerRefusal> {
        match Manager::end(self.begin(Ask::Unsupported, self.limits.list))? {
            Answer::Unsupported(partitions) => Ok(partitions),
            other => Err(other.unasked()),
        }
    }

    /// Makes a change.
    fn change(&self, ask: Ask) -> Result<(), ManagerRefusal> {
        match Manager::end(self.begin(ask, self.limits.change))? {
            Answer::Done => Ok(()),
            other => Err(other.unasked()),
        }
    }

    /// Begins to ask something.
    fn begin(&self, ask: Ask, limit: Duration) -> Question {
        let manager = self.clone();
        Question::ask(limit, move || {
            let route = ffi::Route {
                libraries: &manager.libraries,
                address: &manager.address,
                connect_ms: manager.limits.connect_ms,
                connects: manager.limits.connects,
            };
            ffi::ask(&ask, &route)
        })
    }

    /// The answer.
    fn end(question: Question) -> Result<Answer, ManagerRefusal> {
        let answer: Result<Answer, ManagerRefusal> =
            question.answer().map_err(|reason| ManagerRefusal::Silent { reason })?;
        answer
    }
}

impl Answer {
    /// The error that this was not asked.
    fn unasked(&self) -> ManagerRefusal {
        ManagerRefusal::Silent { reason: format!("answered another question: {self:?}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        let address = Address::Inet("127.0.0.1".into());
        let call = |code| ManagerRefusal::Call { call: "fmConnect".into(), code: Code(code) };
        for (refusal, text) in [
            (ManagerRefusal::Library { reason: "no file".into() }, "nvidia-fabricmanager-dev"),
            (ManagerRefusal::Address(address.clone()), "fabricmanager.cfg"),
            (call(-9), "at 127.0.0.1 gave no partitions: fmConnect: CONNECTION_NOT_VALID (-9)"),
            (call(-77), "unknown code -77"),
            (ManagerRefusal::List { reason: "it counts 99".into() }, "it counts 99"),
            (ManagerRefusal::Silent { reason: "crashed".into() }, "systemctl status"),
        ] {
            let note = refusal.note(&address);
            assert!(note.contains(text), "{note}");
        }
    }

    #[test]
    fn a_connection_that_fails_is_no_answer_to_the_call() {
        let refused =
            |call: &str, code| ManagerRefusal::Call { call: call.into(), code: Code(code) };
        for (refusal, meaning) in [
            (refused("fmConnect", -5), Meaning::Unreachable),
            (refused("fmConnect", -9), Meaning::Unreachable),
            (refused("fmConnect", -4), Meaning::Failed),
            (refused("fmDeactivateFabricPartition", -4), Meaning::AlreadyInactive),
            (refused("fmDeactivateFabricPartition", -5), Meaning::Failed),
            (ManagerRefusal::Silent { reason: String::new() }, Meaning::Failed),
        ] {
            assert_eq!(refusal.meaning(Call::Deactivate), meaning, "{refusal:?}");
        }
    }
}
