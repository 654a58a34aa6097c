//! Errors of binding functions.

use crate::fsroot::FsError;
use gpuvm_core::bdf::Bdf;
use std::path::PathBuf;

/// The error of binding a function.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "driver-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BindError {
    /// Reading the host's files failed.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    File(#[from] FsError),
    /// There is no such function.
    #[error("{bdf} is not there")]
    Absent { bdf: Bdf },
    /// Its binding has changed since the plan.
    #[error("{bdf} is bound to {now}; it was {was} when this was planned")]
    Changed { bdf: Bdf, now: String, was: String },
    /// The kernel refuses a write.
    #[error("cannot write `{text}` to {path}: {reason}")]
    Refused { path: String, text: String, reason: String },
    /// A program could not be run.
    #[error("cannot run {program}: {reason}")]
    Program { program: String, reason: String },
    /// The kernel does not respond in time.
    #[error("{path} did not answer within {seconds} s")]
    #[strum(to_string = "timeout")]
    Hangs {
        path: String,
        /// How long it waited, in seconds.
        seconds: u64,
    },
    /// A driver does not release a function.
    #[error("driver {driver} did not release {bdf} within {seconds} s{}", holders_text(holders))]
    Stuck {
        bdf: Bdf,
        driver: String,
        /// How long it waited, in seconds.
        seconds: u64,
        /// Who may hold it, as far as the kernel shows.
        holders: Vec<String>,
    },
    /// A driver did not take a function.
    #[error("driver {driver} did not bind {bdf}: it is bound to {now}")]
    NotTaken { bdf: Bdf, driver: String, now: String },
    /// A function cannot be reset, so that the next guest would see data of the previous one.
    #[error("{bdf} cannot be reset: {reason}")]
    NoReset { bdf: Bdf, reason: String },
    /// Somebody has a function that was free, so it is left as it is.
    #[error("{bdf} is in use by {by}")]
    InUse { bdf: Bdf, by: String },
    /// It is unknown whether a function is in use, so it is left as it is.
    #[error("unknown whether {bdf} is in use: {why}")]
    #[strum(to_string = "use-unknown")]
    Untold { bdf: Bdf, why: String },
    /// A file of configuration could not be written.
    #[error("{}: {source}", path.display())]
    Configuration { path: PathBuf, source: std::io::Error },
    /// It failed, and restoring the previous state failed, too.
    #[error("{first}; restoring it also failed: {second}")]
    #[strum(to_string = "not-restored")]
    Twice { first: Box<BindError>, second: Box<BindError> },
}

fn holders_text(holders: &[String]) -> String {
    match holders {
        [] => String::new(),
        holders => format!("; it is held by {}", holders.join(" and by ")),
    }
}
