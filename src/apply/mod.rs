//! Steps on the machine: in order, undone in reverse on failure. It does not know why a step is wanted, and prints
//! nothing: an [`Observer`] is told.

mod disk;
mod interrupt;
mod lock;

pub use disk::{DiskError, free_bytes};
pub use interrupt::Interrupt;
pub use lock::{HostLock, LockError};

use crate::hypervisor::{DomainState, Hypervisor, HypervisorError};
use crate::memsize::MemSize;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Is one change of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Makes a directory that is not there; its parent is.
    CreateDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Makes a sparse raw image; never replaces a file.
    CreateDisk {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Defines a domain of a name that is free.
    DefineDomain {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
    },
    /// Starts a domain.
    StartDomain {
        /// Its name.
        name: String,
    },
    /// Asks a guest to shut down and waits until it has; not undone.
    ShutDownDomain {
        /// Its name.
        name: String,
        /// How long it may take, in seconds.
        wait_s: u64,
    },
    /// Ends a domain as a power cut does; not undone.
    EndDomain {
        /// Its name.
        name: String,
    },
    /// Removes a domain's definition, its NVRAM and its saved state.
    UndefineDomain {
        /// Its name.
        name: String,
        /// Its definition, to put it back when a later step fails.
        xml: String,
    },
    /// Removes an image that was made for a domain; not undone, so it comes last.
    DeleteDisk {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::CreateDirectory { path } => write!(f, "create directory {}", path.display()),
            Step::CreateDisk { path, bytes } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                write!(f, "create disk {} of {size}, sparse", path.display())
            }
            Step::DefineDomain { name, .. } => write!(f, "define domain `{name}`"),
            Step::StartDomain { name } => write!(f, "start domain `{name}`"),
            Step::ShutDownDomain { name, wait_s } => {
                write!(f, "shut down domain `{name}`, waiting up to {wait_s} s")
            }
            Step::EndDomain { name } => write!(f, "end domain `{name}` as a power cut does"),
            Step::UndefineDomain { name, .. } => {
                write!(f, "undefine domain `{name}` with its NVRAM and saved state")
            }
            Step::DeleteDisk { path } => write!(f, "delete disk {}", path.display()),
        }
    }
}

/// Says why one step, or its undoing, was not possible.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The hypervisor could not.
    #[error("{0}")]
    Hypervisor(#[from] HypervisorError),
    /// The file system could not.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// The guest did not shut down in time.
    #[error("domain `{name}` still runs after {wait_s} s")]
    StillRuns {
        /// Its name.
        name: String,
        /// How long it was waited for, in seconds.
        wait_s: u64,
    },
    /// A signal came while it was waited.
    #[error("{signal} came")]
    Signal {
        /// The signal's name.
        signal: String,
    },
}

/// Is something that was done and could not be undone.
#[derive(Debug)]
pub struct Left {
    /// The step.
    pub step: Step,
    /// Why it could not be undone.
    pub error: StepError,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not undone: {}: {}", self.step, self.error)
    }
}

/// Says where a run of steps ended.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A step was not possible.
    #[error("cannot {step}{}", aftermath(left, *undone))]
    Failed {
        /// The step.
        step: Box<Step>,
        /// Why.
        source: StepError,
        /// How many steps were undone.
        undone: usize,
        /// What could not be undone.
        left: Vec<Left>,
    },
    /// A signal came.
    #[error("interrupted by {signal}{}", aftermath(left, *undone))]
    Interrupted {
        /// The signal's name.
        signal: String,
        /// How many steps were undone.
        undone: usize,
        /// What could not be undone.
        left: Vec<Left>,
    },
}

impl ApplyError {
    /// What could not be undone.
    pub fn left(&self) -> &[Left] {
        match self {
            ApplyError::Failed { left, .. } | ApplyError::Interrupted { left, .. } => left,
        }
    }
}

/// What a failure left behind, in words.
fn aftermath(left: &[Left], undone: usize) -> &'static str {
    match (left.is_empty(), undone) {
        (false, _) => "; what was done before is undone only in part",
        (true, 0) => "",
        (true, _) => "; what was done before is undone",
    }
}

/// Watches a run of steps.
pub trait Observer {
    /// A step begins.
    fn doing(&mut self, step: &Step);
    /// A step is being undone.
    fn undoing(&mut self, step: &Step);
    /// The signal that asks to stop, if one has come.
    fn interrupted(&mut self) -> Option<String>;
}

/// Is a run of steps that is undone as a whole.
pub struct Transaction<'a> {
    /// Where domains are.
    hypervisor: &'a dyn Hypervisor,
    /// Who watches.
    observer: &'a mut dyn Observer,
    /// Steps that were done, in order.
    done: Vec<Step>,
}

impl<'a> Transaction<'a> {
    /// Begins with nothing done.
    pub fn new(hypervisor: &'a dyn Hypervisor, observer: &'a mut dyn Observer) -> Self {
        Transaction { hypervisor, observer, done: Vec::new() }
    }

    /// Does further steps. On failure, or when a signal has come, everything is undone, that of earlier calls too.
    pub fn run(&mut self, steps: &[Step]) -> Result<(), ApplyError> {
        for step in steps {
            self.go_on()?;
            self.observer.doing(step);
            match self.perform(step) {
                Ok(()) => self.done.push(step.clone()),
                Err(StepError::Signal { signal }) => return Err(self.interrupt(signal)),
                Err(error) => {
                    let (undone, left) = self.undo();
                    let step = Box::new(step.clone());
                    return Err(ApplyError::Failed { step, source: error, undone, left });
                }
            }
        }
        Ok(())
    }

    /// Undoes everything if a signal has come; to be called while something is waited for.
    pub fn go_on(&mut self) -> Result<(), ApplyError> {
        match self.observer.interrupted() {
            None => Ok(()),
            Some(signal) => Err(self.interrupt(signal)),
        }
    }

    /// Undoes everything because of a signal.
    fn interrupt(&mut self, signal: String) -> ApplyError {
        let (undone, left) = self.undo();
        ApplyError::Interrupted { signal, undone, left }
    }

    /// Undoes what was done, the last first; returns how many steps that were, and what could not be undone.
    fn undo(&mut self) -> (usize, Vec<Left>) {
        let mut left = Vec::new();
        let mut undone = 0;
        while let Some(step) = self.done.pop() {
            let undoing = match &step {
                Step::CreateDirectory { path } => {
                    disk::delete_directory(path).map_err(StepError::from)
                }
                Step::CreateDisk { path, .. } => disk::delete(path).map_err(StepError::from),
                Step::DefineDomain { name, .. } => {
                    self.hypervisor.undefine(name).map_err(StepError::from)
                }
                Step::StartDomain { name } => {
                    self.hypervisor.destroy(name).map_err(StepError::from)
                }
                Step::UndefineDomain { xml, .. } => {
                    self.hypervisor.define(xml).map_err(StepError::from)
                }
                Step::ShutDownDomain { .. } | Step::EndDomain { .. } | Step::DeleteDisk { .. } => {
                    continue;
                }
            };
            self.observer.undoing(&step);
            match undoing {
                Ok(()) => undone += 1,
                Err(error) => left.push(Left { step, error }),
            }
        }
        (undone, left)
    }

    /// Does one step.
    fn perform(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::CreateDirectory { path } => disk::create_directory(path)?,
            Step::CreateDisk { path, bytes } => disk::create(path, *bytes)?,
            Step::DefineDomain { xml, .. } => self.hypervisor.define(xml)?,
            Step::StartDomain { name } => self.hypervisor.start(name)?,
            Step::ShutDownDomain { name, wait_s } => self.shut_down(name, *wait_s)?,
            Step::EndDomain { name } => self.hypervisor.destroy(name)?,
            Step::UndefineDomain { name, .. } => self.hypervisor.undefine(name)?,
            Step::DeleteDisk { path } => disk::delete(path)?,
        }
        Ok(())
    }

    /// Asks a guest to shut down and waits until it is off.
    fn shut_down(&mut self, name: &str, wait_s: u64) -> Result<(), StepError> {
        self.hypervisor.shutdown(name)?;
        let until = Instant::now() + Duration::from_secs(wait_s);
        loop {
            let rows = self.hypervisor.domains()?;
            // A transient domain is gone with its end.
            let state = rows.iter().find(|row| row.name == name).map(|row| row.state);
            if matches!(state, None | Some(DomainState::ShutOff | DomainState::Crashed)) {
                return Ok(());
            }
            if let Some(signal) = self.observer.interrupted() {
                return Err(StepError::Signal { signal });
            }
            if Instant::now() >= until {
                return Err(StepError::StillRuns { name: name.to_owned(), wait_s });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Does all steps, or none of them.
pub fn apply(
    steps: &[Step],
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) -> Result<(), ApplyError> {
    Transaction::new(hypervisor, observer).run(steps)
}

#[cfg(test)]
mod tests;
