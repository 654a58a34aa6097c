//! Errors of journals.

use std::io;
use std::path::PathBuf;

/// The error of a journal.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "journal-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum JournalError {
    /// The file system failed.
    #[error("journal {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A line cannot be read.
    #[error("journal {}: line {line}: {reason}", path.display())]
    Damaged {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        reason: String,
    },
    /// A line is of a newer version, whose `recover` can finish the change.
    #[error("journal {}: line {line}: {what} of a newer gpuvm", path.display())]
    Newer {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The step that only that version knows, with its verb.
        what: String,
    },
}

impl JournalError {
    /// Returns the error of an unreadable line.
    pub(super) fn of_line(path: PathBuf, line: usize, wrong: Wrong) -> JournalError {
        match wrong {
            Wrong::Damaged(reason) => JournalError::Damaged { path, line, reason },
            Wrong::Newer(what) => JournalError::Newer { path, line, what },
        }
    }
}

/// The reason a line cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is no record, or not one that can follow the others.
    Damaged(String),
    /// It is of a newer version.
    Newer(String),
}
