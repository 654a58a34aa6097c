//! Tracing of this crate: files read and written, and programs run; calls to libvirt are traced
//! where they are made. `INFO` for the essentials, `DEBUG` for everything. Without a subscriber
//! each costs one comparison. Written texts and documents passed to libvirt are never traced: they
//! may contain secrets.

use gpuvm_core::shell::word;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;
use tracing::{Level, debug, enabled, info};

/// Traces that a file is read.
pub fn reads(path: &Path) {
    debug!("read {}", path.display());
}

/// Traces that a file was written.
pub fn wrote(path: &Path) {
    info!("wrote {}", path.display());
}

/// Traces that a file was added to, as a journal is at every step.
pub fn appended(path: &Path) {
    debug!("appended to {}", path.display());
}

/// Traces that a file or a directory was removed.
pub fn removed(path: &Path) {
    info!("removed {}", path.display());
}

/// A running program; traces on drop that it was abandoned, unless [`Running::ended`] has traced
/// its end.
#[must_use]
#[derive(Debug)]
pub struct Running(Option<(String, Instant)>);

impl Running {
    /// Traces that a program is about to run.
    pub fn begins(command: &Command) -> Running {
        if !enabled!(Level::INFO) {
            return Running(None);
        }
        let quoted = |text: &OsStr| word(&text.to_string_lossy()).into_owned();
        let words = [command.get_program()].into_iter().chain(command.get_args()).map(quoted);
        let shown = words.collect::<Vec<_>>().join(" ");
        debug!("runs `{shown}`");
        Running(Some((shown, Instant::now())))
    }

    /// Traces how it ended.
    pub fn ended(self, status: ExitStatus) {
        self.log(status);
    }

    /// Traces that it could not be started.
    pub fn failed(self, error: &std::io::Error) {
        self.log(error);
    }

    fn log(mut self, what: impl Display) {
        if let Some((shown, since)) = self.0.take() {
            info!("ran `{shown}`: {what}, {}", seconds(since));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((shown, since)) = self.0.take() {
            info!("left `{shown}` after {}", seconds(since));
        }
    }
}

/// Formats the time since then.
pub fn seconds(since: Instant) -> String {
    format!("{:.3} s", since.elapsed().as_secs_f64())
}
