//! Steps on md arrays, file systems and the files of /etc that refer to them. All can be undone
//! except recreating an array and making a file system, and all are idempotent.

mod act;
mod text;

pub use super::error::ArrayError;
pub use super::text::content;
pub use crate::command::{CommandError, output};
pub use act::{can_make, signature};
pub use text::{Marked, Names, mark_fstab, mark_mdadm_conf, unmark};

use super::text::Edit;
use crate::discover::released::{FileSystem, Released};
use act::{
    add, assemble, check, create, initramfs_command, make, mount, prove, reload_units, stop,
    unmount, update_initramfs, words,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// One change of an array, its content, or a file that refers to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum ArrayStep {
    /// Replaces, creates or removes a text file.
    ReplaceText {
        /// The file.
        path: PathBuf,
        /// The current value; `None` if missing.
        before: Option<String>,
        /// The new text; `None` if the file is removed.
        after: Option<String>,
        /// Its effect, in words.
        what: String,
        /// Whether systemd generates units from it, which are then regenerated.
        units: bool,
    },
    /// Unmounts a file system.
    Unmount(Mounting),
    /// Mounts a file system.
    Mount(Mounting),
    /// Stops an array; its superblocks stay on its members.
    Stop(Assembly),
    /// Assembles an array of members that carry its superblocks.
    Assemble(Assembly),
    /// Adds drives to an array that runs without them; their data is lost, and the kernel
    /// resynchronizes them.
    Add {
        /// Its device: `/dev/md1`.
        device: String,
        /// Paths of the drives.
        members: Vec<String>,
        /// Content of these that may be destroyed, a phrase each; `None` for a journal of an older
        /// version, and nothing may.
        #[serde(default)]
        known: Option<Vec<String>>,
        /// UUID of the array, whose own signatures are not data.
        #[serde(default)]
        uuid: String,
    },
    /// Recreates an array; data on its members is lost.
    Create {
        /// Its device: `/dev/md1`.
        device: String,
        /// The planned array.
        array: Box<Released>,
        /// Content of its members that may be destroyed, a phrase each; `None` for a journal of an
        /// older version, and nothing may.
        #[serde(default)]
        known: Option<Vec<String>>,
    },
    /// Makes a file system; data on the device is lost.
    MakeFileSystem {
        /// The device.
        device: String,
        /// The planned file system.
        file_system: FileSystem,
        /// UUID of the array; empty in journals of older versions.
        #[serde(default)]
        uuid: String,
    },
    /// Refuses a device whose content is not this file system; changes nothing.
    CheckFileSystem {
        /// The device.
        device: String,
        /// The expected file system.
        file_system: FileSystem,
    },
    /// Updates the initramfs of every kernel, which contains copies of files of /etc. Undoing
    /// reports that it must be renewed.
    UpdateInitramfs,
}

/// A file system on its mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mounting {
    /// The device.
    pub device: String,
    /// Where.
    pub at: String,
    /// Type of the file system.
    pub kind: String,
    /// Options of the mount.
    pub options: String,
}

/// An array and its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Assembly {
    /// Its device: `/dev/md1`.
    pub device: String,
    /// Its UUID.
    pub uuid: String,
    /// Paths of its members.
    pub members: Vec<String>,
    /// Whether it runs without its other members.
    #[serde(default)]
    pub degraded: bool,
}

impl fmt::Display for ArrayStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayStep::ReplaceText { path, what, .. } => write!(f, "{what} ({})", path.display()),
            ArrayStep::Unmount(Mounting { at, device, .. }) => {
                write!(f, "unmount {at} ({device})")
            }
            ArrayStep::Mount(Mounting { at, device, .. }) => write!(f, "mount {device} at {at}"),
            ArrayStep::Stop(Assembly { device, .. }) => {
                write!(f, "stop array {device}; its superblocks stay")
            }
            ArrayStep::Assemble(Assembly { device, members, degraded, .. }) => {
                let without = if *degraded { ", without its others" } else { "" };
                write!(f, "assemble array {device} of {}{without}", members.join(", "))
            }
            ArrayStep::Add { device, members, .. } => write!(
                f,
                "add {} to array {device} (destroys their data, then resynchronizes)",
                members.join(", ")
            ),
            ArrayStep::Create { device, array, .. } => {
                let members: Vec<&str> = array.members.iter().map(|m| m.id.as_str()).collect();
                write!(
                    f,
                    "recreate array {device} ({}; destroys the data on {})",
                    array.level,
                    members.join(", ")
                )
            }
            ArrayStep::MakeFileSystem { device, file_system, .. } => write!(
                f,
                "create a file system on {device} ({}; destroys its data)",
                file_system.kind
            ),
            ArrayStep::CheckFileSystem { device, file_system } => {
                write!(f, "look for {} on {device}", words(file_system))
            }
            ArrayStep::UpdateInitramfs => f.write_str("write the initramfs of every kernel again"),
        }
    }
}

impl ArrayStep {
    pub(super) fn is_final(&self) -> bool {
        use ArrayStep::{Add, Create, MakeFileSystem};
        matches!(self, Add { .. } | Create { .. } | MakeFileSystem { .. })
    }

    pub(super) fn is_undone(&self) -> bool {
        !self.is_final() && !matches!(self, ArrayStep::CheckFileSystem { .. })
    }

    /// Refuses a step whose subject has changed since the plan.
    pub(super) fn expects(&self) -> Result<(), ArrayError> {
        match self {
            ArrayStep::ReplaceText { path, before, after, .. } => {
                Edit::new(path, before.as_deref(), after.as_deref()).expects()
            }
            _ => Ok(()),
        }
    }

    pub(super) fn perform(&self) -> Result<(), ArrayError> {
        match self {
            ArrayStep::ReplaceText { path, before, after, units, .. } => {
                Edit::new(path, before.as_deref(), after.as_deref()).write()?;
                if *units { reload_units() } else { Ok(()) }
            }
            ArrayStep::Unmount(mounting) => unmount(mounting),
            ArrayStep::Mount(mounting) => mount(mounting),
            ArrayStep::Stop(assembly) => stop(assembly),
            ArrayStep::Assemble(assembly) => assemble(assembly),
            ArrayStep::Add { device, members, known, uuid } => {
                add(device, members, known.as_deref(), uuid)
            }
            ArrayStep::Create { device, array, known } => create(device, array, known.as_deref()),
            ArrayStep::MakeFileSystem { device, file_system, uuid } => {
                prove(device, uuid)?;
                make(device, file_system)
            }
            ArrayStep::CheckFileSystem { device, file_system } => check(device, file_system),
            ArrayStep::UpdateInitramfs => update_initramfs(),
        }
    }

    /// Undoes the step if it was done or may have been.
    pub(super) fn undo(&self) -> Result<(), ArrayError> {
        match self {
            ArrayStep::ReplaceText { path, before, after, units, .. } => {
                let edit = Edit::new(path, before.as_deref(), after.as_deref());
                // Only a file that was written completely: lines of an array are marked throughout
                // the file.
                let is_undone = edit.undo(|_| None)?;
                if is_undone && *units { reload_units() } else { Ok(()) }
            }
            ArrayStep::Unmount(mounting) => mount(mounting),
            ArrayStep::Mount(mounting) => unmount(mounting),
            ArrayStep::Stop(assembly) => assemble(assembly),
            ArrayStep::Assemble(assembly) => match stop(assembly) {
                // Our array does not run any more.
                Err(ArrayError::OtherArray { .. }) => Ok(()),
                stopped => stopped,
            },
            ArrayStep::Add { .. }
            | ArrayStep::Create { .. }
            | ArrayStep::MakeFileSystem { .. }
            | ArrayStep::CheckFileSystem { .. } => Ok(()),
            // Its files are undone after it, and it may be the failed step.
            ArrayStep::UpdateInitramfs => {
                Err(ArrayError::InitramfsOlder { command: initramfs_command() })
            }
        }
    }
}
