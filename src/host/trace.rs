//! Tells what this crate does to whoever listens: which files it reads and writes and which programs it runs; what it asks
//! of libvirt is told by [`crate::hypervisor::traced`]. `INFO` is the gist, `DEBUG` everything. Nobody listening costs one
//! comparison each. Texts that are written, and documents that libvirt is given, are never told: they may hold secrets.

use gpuvm_core::shell::word;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;
use tracing::{Level, debug, enabled, info};

/// Tells that a file is read.
pub fn reads(path: &Path) {
    debug!("read {}", path.display());
}

/// Tells that a file was written.
pub fn wrote(path: &Path) {
    info!("wrote {}", path.display());
}

/// Tells that a file was added to, as a journal is at every step.
pub fn appended(path: &Path) {
    debug!("appended to {}", path.display());
}

/// Tells that a file or a directory was removed.
pub fn removed(path: &Path) {
    info!("removed {}", path.display());
}

/// A program that runs; says when it is dropped that it was left, unless [`Running::ended`] has said how it ended.
#[must_use]
#[derive(Debug)]
pub struct Running(Option<(String, Instant)>);

impl Running {
    /// Tells that a program is about to run.
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

    /// Tells how it ended.
    pub fn ended(self, status: ExitStatus) {
        self.tell(status);
    }

    /// Tells that it could not be started.
    pub fn failed(self, error: &std::io::Error) {
        self.tell(error);
    }

    /// Tells what became of it.
    fn tell(mut self, what: impl Display) {
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

/// The time since then, as it is told.
pub fn seconds(since: Instant) -> String {
    format!("{:.3} s", since.elapsed().as_secs_f64())
}
