//! Errors of changing arrays, their content, and the files that refer to them.

use crate::command::CommandError;
use std::io;
use std::path::PathBuf;

/// The error of a step on an array.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "array-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ArrayError {
    /// A command failed.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Command(#[from] CommandError),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file was changed since the change was planned.
    #[error("{} was changed by someone else in the meantime", path.display())]
    #[strum(to_string = "file-changed")]
    Changed { path: PathBuf },
    /// A device has other content than expected.
    #[error("{device} holds {found}, not {wanted}")]
    OtherContent { device: String, found: String, wanted: String },
    /// A drive has content that it did not have when the change was planned.
    #[error("{found}; this was not so when it was planned")]
    #[strum(to_string = "drive-changed")]
    Become { found: String },
    /// Another array has the name now.
    #[error("{device} is now a different array: {seen}")]
    OtherArray {
        device: String,
        /// Its UUID, and that of the intended array.
        seen: String,
    },
    /// A journal of an older version does not identify the array, and array names are reassigned.
    #[error("unknown whether {device} is the intended array: its UUID was not recorded")]
    #[strum(to_string = "uuid-unknown")]
    Unproven { device: String },
    /// An array that it builds on was left as it is.
    #[error("an earlier step was skipped")]
    #[strum(to_string = "skipped")]
    Left,
    /// Copies in the initramfs are not undone.
    #[error(
        "an initramfs may have copies of files that are undone; renew the initramfs: `{command}`"
    )]
    #[strum(to_string = "initramfs-older")]
    InitramfsOlder { command: &'static str },
    /// A file system type that gpuvm does not make.
    #[error("file systems of type `{kind}` cannot be made here")]
    #[strum(to_string = "file-system-type")]
    UnknownKind { kind: String },
}
