//! Steps on the host's own network: a netplan file is applied until the next boot, the result is
//! checked, the user confirms it, and only then it becomes permanent. Any failure, an interruption
//! or a reboot before that reverts it.

mod check;
mod error;
mod netplan;
mod wait;

pub use check::PlannedNetwork;
pub use error::HostNetError;
pub use netplan::{Made, units};
pub use wait::{NetworkVerdict, Waiting, answer, waiting};

use super::file::{self, set_root_file};
use super::nic::{LinkError, delete_link};
use super::{Observer, StepError};
use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// How long netplan may take to apply its files, in seconds.
const APPLY_S: u64 = 120;

/// One change of the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum HostNetStep {
    /// Applies a netplan file until the next boot.
    Try {
        /// Its effect, in words.
        what: String,
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
        /// Its text before; `None` if it did not exist.
        was: Option<String>,
        /// Network devices created with it, each before those on top of it.
        makes: Vec<String>,
        /// Network devices removed with it, in the same order.
        takes: Vec<String>,
    },
    /// Checks that the host's network is as planned; changes nothing.
    Check(PlannedNetwork),
    /// Waits for the confirmation that the host can be reached; changes nothing.
    Await {
        /// The bridge.
        bridge: String,
        /// Time in seconds.
        within_s: u64,
    },
    /// Writes or removes a netplan file without applying it.
    Write {
        /// The file.
        path: PathBuf,
        /// Its text; `None` if it is removed.
        text: Option<String>,
        /// Its text before; `None` if it did not exist.
        was: Option<String>,
    },
}

impl fmt::Display for HostNetStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostNetStep::Try { what, path, .. } => {
                write!(f, "{what}, by {} until the next boot", path.display())
            }
            HostNetStep::Check(wanted) => wanted.fmt(f),
            HostNetStep::Await { bridge, within_s } => {
                write!(
                    f,
                    "wait up to {within_s} s for `gpuvm network host-bridge confirm {bridge}`",
                    bridge = word(bridge)
                )
            }
            HostNetStep::Write { path, text: Some(_), .. } => {
                write!(f, "keep it in {}", path.display())
            }
            HostNetStep::Write { path, text: None, .. } => write!(f, "remove {}", path.display()),
        }
    }
}

impl HostNetStep {
    /// Refuses a file that was changed since the change was planned.
    pub(super) fn expects(&self) -> Result<(), HostNetError> {
        match self {
            HostNetStep::Try { path, was, .. } | HostNetStep::Write { path, was, .. } => {
                if content(path)? == *was {
                    return Ok(());
                }
                Err(HostNetError::Changed { path: path.clone() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn perform(&self, observer: &mut dyn Observer) -> Result<(), StepError> {
        match self {
            HostNetStep::Try { path, text, takes, .. } => {
                put(path, Some(text), takes)?;
            }
            HostNetStep::Check(wanted) => wanted.wait(observer)?,
            HostNetStep::Await { bridge, within_s } => wait::wait(bridge, *within_s, observer)?,
            HostNetStep::Write { path, text, .. } => {
                set_root_file(path, text.as_deref()).map_err(HostNetError::from)?;
            }
        }
        Ok(())
    }

    /// Undoes the step if it was done or may have been.
    pub(super) fn undo(&self) -> Result<(), HostNetError> {
        match self {
            HostNetStep::Try { path, was, makes, .. } => {
                // Files of a run that was killed while waiting.
                wait::sweep();
                put(path, was.as_deref(), makes)
            }
            HostNetStep::Write { path, was, .. } => Ok(set_root_file(path, was.as_deref())?),
            HostNetStep::Check(_) | HostNetStep::Await { .. } => Ok(()),
        }
    }

    pub(super) fn is_undone(&self) -> bool {
        matches!(self, HostNetStep::Try { .. } | HostNetStep::Write { .. })
    }
}

/// The text of a file; `None` if it is not there.
fn content(path: &Path) -> Result<Option<String>, HostNetError> {
    file::content(path).map_err(|source| HostNetError::File { path: path.to_owned(), source })
}

/// Writes or removes a netplan file, removes network devices that are in no file any more, which
/// netplan leaves behind, and applies everything. All of it is done even if some part fails:
/// applying is what restores the host's network.
fn put(path: &Path, text: Option<&str>, gone: &[String]) -> Result<(), HostNetError> {
    let written = set_root_file(path, text).map_err(HostNetError::from);
    let gone: Vec<_> = gone.iter().rev().map(|name| delete_link(name)).collect();
    let applied = super::array::output(&["netplan", "apply"], APPLY_S);
    written?;
    gone.into_iter().collect::<Result<Vec<()>, LinkError>>()?;
    applied?;
    Ok(())
}
