//! Errors of binding functions.

use crate::fsroot::FsError;
use gpuvm_core::bdf::Bdf;
use std::path::PathBuf;

/// The error of binding a function.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "driver-")]
pub enum BindError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// There is no such function.
    #[error("{bdf} is not there")]
    Absent {
        /// The function.
        bdf: Bdf,
    },
    /// Its binding has changed since the plan.
    #[error("{bdf} is bound to {now}; it was {was} when this was planned")]
    Changed {
        /// The function.
        bdf: Bdf,
        /// The driver now.
        now: String,
        /// The driver then.
        was: String,
    },
    /// The kernel refuses a write.
    #[error("cannot write `{text}` to {path}: {reason}")]
    Refused {
        /// The file.
        path: String,
        /// What was written.
        text: String,
        /// The system's error.
        reason: String,
    },
    /// A program could not be run.
    #[error("cannot run {program}: {reason}")]
    Program {
        /// Its name.
        program: String,
        /// What is wrong.
        reason: String,
    },
    /// The kernel does not respond in time.
    #[error("{path} did not answer within {seconds} s")]
    #[strum(to_string = "timeout")]
    Hangs {
        /// The file.
        path: String,
        /// How long it waited, in seconds.
        seconds: u64,
    },
    /// A driver does not release a function.
    #[error("driver {driver} did not release {bdf} within {seconds} s{}", holders_text(holders))]
    Stuck {
        /// The function.
        bdf: Bdf,
        /// The driver.
        driver: String,
        /// How long it waited, in seconds.
        seconds: u64,
        /// Who may hold it, as far as the kernel shows.
        holders: Vec<String>,
    },
    /// A driver did not take a function.
    #[error("driver {driver} did not bind {bdf}: it is bound to {now}")]
    NotTaken {
        /// The function.
        bdf: Bdf,
        /// The driver.
        driver: String,
        /// What has it instead.
        now: String,
    },
    /// A function cannot be reset, so that the next guest would see data of the previous one.
    #[error("{bdf} cannot be reset: {reason}")]
    NoReset {
        /// The function.
        bdf: Bdf,
        /// What is wrong.
        reason: String,
    },
    /// Somebody has a function that was free, so it is left as it is.
    #[error("{bdf} is in use by {by}")]
    InUse {
        /// The function.
        bdf: Bdf,
        /// Who has it.
        by: String,
    },
    /// It is unknown whether a function is in use, so it is left as it is.
    #[error("cannot tell whether {bdf} is in use: {why}")]
    #[strum(to_string = "use-unknown")]
    Untold {
        /// The function.
        bdf: Bdf,
        /// Why not.
        why: String,
    },
    /// A file of configuration could not be written.
    #[error("{}: {source}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It failed, and restoring the previous state failed, too.
    #[error("{first}; restoring it also failed: {second}")]
    #[strum(to_string = "not-restored")]
    Twice {
        /// What failed.
        first: Box<BindError>,
        /// What failed then.
        second: Box<BindError>,
    },
}

/// Lists holders after an error.
fn holders_text(holders: &[String]) -> String {
    match holders {
        [] => String::new(),
        holders => format!("; it is held by {}", holders.join(" and by ")),
    }
}
