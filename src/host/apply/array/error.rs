//! Why an array, what is on it, or a file that speaks of it could not be changed.

use crate::command::CommandError;
use std::io;
use std::path::PathBuf;

/// Says why a step on an array was not possible.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "array-")]
pub enum ArrayError {
    /// A command could not.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Command(#[from] CommandError),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not what it was when the change was planned.
    #[error("{} was changed by somebody else meanwhile", path.display())]
    #[strum(to_string = "file-changed")]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// What is on a device is not what has to be there.
    #[error("{device} holds {found}, not {wanted}")]
    OtherContent {
        /// The device.
        device: String,
        /// What it holds.
        found: String,
        /// What it has to hold.
        wanted: String,
    },
    /// Something lies on a drive that was not there when the change was planned.
    #[error("{found}, which was not so when this was planned")]
    #[strum(to_string = "drive-changed")]
    Become {
        /// What is seen.
        found: String,
    },
    /// Another array has the name by now.
    #[error("{device} is another array by now: {seen}")]
    OtherArray {
        /// The device.
        device: String,
        /// Its UUID, and the one of the array that is meant.
        seen: String,
    },
    /// A journal of an older version does not say which array was meant, and names of arrays are given anew.
    #[error(
        "whether {device} is the array that was meant cannot be told: no UUID of it was written down"
    )]
    #[strum(to_string = "uuid-unknown")]
    Unproven {
        /// The device.
        device: String,
    },
    /// An array that it builds on was left as it is.
    #[error("a step before it was left out")]
    #[strum(to_string = "skipped")]
    Left,
    /// A kind of file system that is not made here.
    #[error("a file system of kind `{kind}` cannot be made here")]
    #[strum(to_string = "file-system-type")]
    UnknownKind {
        /// The kind.
        kind: String,
    },
}
