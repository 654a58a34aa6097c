//! Errors of journals.

use std::io;
use std::path::PathBuf;

/// The error of a journal.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "journal-")]
pub enum JournalError {
    /// The file system failed.
    #[error("journal {}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line cannot be read.
    #[error("journal {}: line {line}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}
