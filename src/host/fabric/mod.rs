//! Access to this machine's Fabric Manager through its client library, each call in a child process
//! with a deadline, since the library may block forever if its peer hangs. Every request has its
//! own connection, so that it survives a restart of Fabric Manager. [`gpuvm_core::fabric`] decides
//! which requests are allowed.

mod abi;
pub mod config;
mod ffi;
pub mod program;
mod remembered;

pub use crate::child::Stop;
pub use remembered::{RestoreFile, RestoreFileError};

use crate::child::{NoAnswer, Question};
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

/// Time limits of Fabric Manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The library's connect timeout in milliseconds; 0 fails.
    pub connect_ms: u32,
    /// Number of attempts to connect.
    pub connects: u32,
    /// Time limit of a request that changes nothing.
    pub list: Duration,
    /// Time limit of a change. NVIDIA publishes none; other tools wait as long.
    pub change: Duration,
    /// The pauses between two attempts while it is starting.
    pub pauses: Pauses,
}

impl Limits {
    /// The limits of discovery, which must not wait long for optional data.
    pub const LOOK: Limits = Limits {
        connect_ms: 1000,
        connects: 1,
        list: Duration::from_secs(4),
        change: Duration::ZERO,
        pauses: Pauses::NONE,
    };
}

/// The limits of this process, if overridden.
static OWN_LIMITS: OnceLock<Limits> = OnceLock::new();

/// Overrides the limits of this process; only the first call counts. For tests, which must not wait
/// a minute for a hung peer.
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

/// The reason Fabric Manager gave no answer, or refused.
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
#[allow(missing_docs)] // The messages describe the fields.
pub enum ManagerRefusal {
    /// Its library cannot be loaded, or lacks a function.
    #[error("Fabric Manager was not asked: {reason}")]
    Library { reason: String },
    /// The address in its configuration is longer than the library allows.
    #[error("Fabric Manager was not asked: the address in fabricmanager.cfg is too long")]
    Address(Address),
    /// A call failed.
    #[error("Fabric Manager: {call}: {code}")]
    Call { call: String, code: Code },
    /// Its list contradicts itself, or the values to pass exceed its capacity.
    #[error("Fabric Manager's list: {reason}")]
    List { reason: String },
    /// The child process did not answer.
    #[error("Fabric Manager's library {reason}")]
    Silent { reason: String },
    /// A signal was received before the answer to a change.
    #[error("interrupted by {signal} before Fabric Manager answered")]
    Interrupted { signal: String },
}

impl ManagerRefusal {
    /// Describes the refusal to list partitions, with the remedy.
    pub fn note(&self, address: &Address) -> String {
        match self {
            ManagerRefusal::Library { .. } => format!(
                "{self}; its development package (nvidia-fabricmanager-dev or -devel) has the \
                 library"
            ),
            ManagerRefusal::Address(_) | ManagerRefusal::Interrupted { .. } => self.to_string(),
            ManagerRefusal::Call { call, code } => {
                let advice =
                    code.advice(Call::List).map(|advice| format!("; {advice}")).unwrap_or_default();
                format!("Fabric Manager at {address} gave no partitions: {call}: {code}{advice}")
            }
            ManagerRefusal::List { reason } => {
                format!("Fabric Manager's partitions are not used: {reason}")
            }
            ManagerRefusal::Silent { reason } => format!(
                "Fabric Manager at {address} gave no partitions: its library {reason}; `systemctl \
                 status nvidia-fabricmanager`"
            ),
        }
    }

    /// Returns its meaning as the answer to a call.
    pub fn meaning(&self, call: Call) -> Meaning {
        match self {
            // A failed connect means the same for every call.
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

    /// Returns the remedy; `None` if unknown.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ManagerRefusal::Library { .. } => Some(
                "Fabric Manager's development package (nvidia-fabricmanager-dev or -devel) has the \
                 library",
            ),
            ManagerRefusal::Call { call, code } => code.advice(called(call)),
            ManagerRefusal::Silent { .. } | ManagerRefusal::Interrupted { .. } => {
                Some("`systemctl status nvidia-fabricmanager`")
            }
            ManagerRefusal::Address(_) | ManagerRefusal::List { .. } => None,
        }
    }
}

/// Returns the kind of call of a library function.
fn called(function: &str) -> Call {
    match function {
        name if name.starts_with("fmActivate") => Call::Activate,
        name if name.starts_with("fmDeactivate") => Call::Deactivate,
        name if name.starts_with("fmSetActivated") => Call::SetActivated,
        _ => Call::List,
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ask {
    /// List the partitions.
    List,
    /// Activate a partition.
    Activate {
        /// Its number.
        partition: u32,
        /// A virtual function of each of its GPUs in order, for vGPU; empty: guests get the GPUs.
        vfs: Vec<Bdf>,
    },
    /// Deactivate a partition.
    Deactivate {
        /// Its number.
        partition: u32,
    },
    /// Set the active partitions, after a restart.
    SetActivated(Vec<u32>),
    /// List devices with failed NVLinks.
    Failed,
    /// List partitions unsupported because of these.
    Unsupported,
    /// The version of the library; makes no connection.
    Version,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum ManagerReply {
    /// It is done.
    Done,
    /// The partitions.
    Partitions(Vec<Listed>),
    /// Devices with failed NVLinks.
    Failed(FailedDevices),
    /// Unsupported partitions.
    Unsupported(Vec<UnsupportedPartition>),
    /// The version of the library; none if unknown.
    Version(Option<String>),
}

/// A GPU or an NVSwitch with failed NVLinks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDevice {
    /// Its UUID; empty if unknown to Fabric Manager.
    pub uuid: String,
    /// Its address; none if unknown to Fabric Manager.
    pub bus: Option<Bdf>,
    /// The ports that failed.
    pub ports: Vec<u32>,
}

/// Devices whose NVLinks failed before Fabric Manager started; not reported for H100 and later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDevices {
    /// GPUs.
    pub gpus: Vec<FailedDevice>,
    /// NVSwitches.
    pub switches: Vec<FailedDevice>,
}

/// A partition unsupported because of failed devices; not reported for H100 and later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsupportedPartition {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
}

/// A client of Fabric Manager.
#[derive(Debug, Clone)]
pub struct Manager {
    /// Its address.
    pub address: Address,
    /// Names or paths of its library, of which the first that exists is used.
    pub libraries: Vec<OsString>,
    /// Its time limits.
    pub limits: Limits,
}

impl Manager {
    /// Makes a client for an address.
    pub fn at(address: Address) -> Manager {
        let libraries = LIBRARIES.map(OsString::from).to_vec();
        Manager { address, libraries, limits: Limits::default() }
    }

    /// Makes a client from a host's configuration.
    pub fn of_host(root: &FsRoot) -> Result<Manager, FsError> {
        Ok(Manager::at(Config::read(root)?.address))
    }

    pub(crate) fn begin_list(&self) -> Question {
        self.begin(Ask::List, self.limits.list)
    }

    pub(crate) fn end_list(question: Question) -> Result<Vec<Listed>, ManagerRefusal> {
        match Manager::end(question)? {
            ManagerReply::Partitions(mut partitions) => {
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

    /// Activates a partition. `vfs`: in the mode for vGPU a virtual function of each of its GPUs,
    /// in the list's order. `stop`: asked while waiting.
    pub fn activate(
        &self,
        partition: u32,
        vfs: &[Bdf],
        stop: Stop<'_>,
    ) -> Result<(), ManagerRefusal> {
        self.change(Ask::Activate { partition, vfs: vfs.to_vec() }, stop)
    }

    /// Deactivates a partition. `stop`: asked while waiting.
    pub fn deactivate(&self, partition: u32, stop: Stop<'_>) -> Result<(), ManagerRefusal> {
        self.change(Ask::Deactivate { partition }, stop)
    }

    /// Sets the active partitions, possibly none, in a Fabric Manager that waits for them after a
    /// restart.
    pub fn set_activated(&self, partitions: &[u32]) -> Result<(), ManagerRefusal> {
        self.change(Ask::SetActivated(partitions.to_vec()), &mut || None)
    }

    /// The devices whose NVLinks failed.
    pub fn failed_devices(&self) -> Result<FailedDevices, ManagerRefusal> {
        match Manager::end(self.begin(Ask::Failed, self.limits.list))? {
            ManagerReply::Failed(devices) => Ok(devices),
            other => Err(other.unasked()),
        }
    }

    /// Returns the partitions unsupported because of these.
    pub fn unsupported(&self) -> Result<Vec<UnsupportedPartition>, ManagerRefusal> {
        match Manager::end(self.begin(Ask::Unsupported, self.limits.list))? {
            ManagerReply::Unsupported(partitions) => Ok(partitions),
            other => Err(other.unasked()),
        }
    }

    /// Returns the version of its library. No function returns it; only the file's name may have
    /// it.
    pub fn library_version(&self) -> Option<String> {
        match Manager::end(self.begin(Ask::Version, self.limits.list)) {
            Ok(ManagerReply::Version(version)) => version,
            _ => None,
        }
    }

    /// Makes a change. `stop`: asked while waiting.
    fn change(&self, ask: Ask, stop: Stop<'_>) -> Result<(), ManagerRefusal> {
        match Manager::end_unless(self.begin(ask, self.limits.change), stop)? {
            ManagerReply::Done => Ok(()),
            other => Err(other.unasked()),
        }
    }

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

    fn end(question: Question) -> Result<ManagerReply, ManagerRefusal> {
        Manager::end_unless(question, &mut || None)
    }

    /// Returns the answer, unless `stop` cancels the wait.
    fn end_unless(question: Question, stop: Stop<'_>) -> Result<ManagerReply, ManagerRefusal> {
        let answer: Result<ManagerReply, ManagerRefusal> =
            question.answer_unless(stop).map_err(|why| match why {
                NoAnswer::Silent(reason) => ManagerRefusal::Silent { reason },
                NoAnswer::Stopped(signal) => ManagerRefusal::Interrupted { signal },
            })?;
        answer
    }
}

impl ManagerReply {
    /// Makes the error of an unexpected answer.
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
            (ManagerRefusal::Interrupted { signal: "SIGINT".into() }, "interrupted by SIGINT"),
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
