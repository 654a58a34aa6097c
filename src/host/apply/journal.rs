//! The journal of a change, on disk while it lasts: a file of JSON lines, one per record, so that
//! an interrupted run can be finished or undone (recover.rs).
//!
//! The order matters. The record that a step begins is on the disk before the step is performed;
//! that it is done need not be, since undoing and finishing a step that did not happen both do
//! nothing. The writing run locks the file: one that can be locked has lost its run. The file is
//! removed when the change is over. Steps name files and domains and contain definitions, never the
//! content of a seed or an image.

mod error;
mod orphan;

pub use error::JournalError;
pub use orphan::{Damaged, Orphan, Orphans};

use super::Step;
use super::state::state_directory;
use crate::hypervisor::machine;
use crate::identity::{Identity, boot_id, now_ns, random_uuid};
use crate::trace;
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const FORMAT: u32 = 1;
/// The directory of the journals in that of the state.
const DIRECTORY: &str = "journal";
const SUFFIX: &str = "jsonl";

/// The description of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The version of the records.
    pub format: u32,
    /// The verb: `create`, `delete`.
    pub verb: String,
    /// The domain that it is about.
    pub subject: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// The process that makes the change.
    pub pid: u32,
    /// Its machine; `None` if recorded by an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<machine::Identity>,
    /// Its random name, which marks the objects that it creates; empty in journals of older
    /// versions.
    #[serde(default)]
    pub id: String,
    /// Boot ID of the machine; empty in journals of older versions.
    #[serde(default)]
    pub boot: String,
    /// When, in nanoseconds since 1970; 0 in journals of older versions.
    #[serde(default)]
    pub at_ns: u64,
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Record {
    /// The description of the change; the first line.
    Change(Change),
    /// Steps that follow those planned before.
    Plan(Vec<Step>),
    /// The step of this number, from 0, begins.
    Begin(Begin),
    /// The identity of the object that the step of this number made or changed, as opposed to
    /// others of its name.
    Made(usize, Identity),
    /// It is done.
    Done(usize),
    /// Every step that was planned is done; only waiting is left.
    Complete,
    /// From here on everything is undone.
    Undo,
    /// The step of this number is undone, or its product belongs to others now.
    Undone(usize),
    /// The change is over, in whatever way: if the journal still exists, only its removal was lost.
    Over,
}

/// The step that begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Begin {
    /// The one of this number, in journals of older versions.
    Number(usize),
    /// The one of this number, at this time in nanoseconds since 1970.
    At(usize, u64),
}

/// The progress of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It was not begun, or it is undone.
    Untouched,
    /// It was begun, and may be done.
    Begun,
    /// It is done.
    Done,
}

/// The content of a change's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// The description of the change.
    pub change: Change,
    /// Its steps, and how far each has come.
    pub steps: Vec<(Step, Progress)>,
    /// Whether every step was done.
    pub complete: bool,
    /// Whether it was being undone.
    pub undoing: bool,
    /// Whether it is over.
    pub over: bool,
    /// The products of steps, by their numbers.
    pub made: BTreeMap<usize, Identity>,
    /// When steps began, by their numbers, in nanoseconds since 1970.
    pub begun_ns: BTreeMap<usize, u64>,
    /// Whether the machine has not booted since.
    pub same_boot: bool,
}

/// The journal of a change that is being made.
#[derive(Debug)]
pub struct Journal {
    file: Flock<File>,
    path: PathBuf,
    planned: usize,
    /// The random name of its change; `None` if older versions gave none.
    id: Option<String>,
}

/// Converts an error of the system.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> JournalError + '_ {
    move |source| JournalError::File { path: path.to_owned(), source }
}

fn directory() -> PathBuf {
    state_directory(DIRECTORY)
}

impl Journal {
    /// Begins the journal of a change of this host.
    pub fn begin(verb: &str, subject: &str, uri: &str) -> Result<Journal, JournalError> {
        Journal::begin_in(&directory(), verb, subject, uri)
    }

    /// Begins the journal of a change of the machine of a hypervisor's URI.
    pub fn begin_on(
        verb: &str,
        subject: &str,
        uri: &str,
        machine: machine::Identity,
    ) -> Result<Journal, JournalError> {
        Journal::begin_at(&directory(), verb, subject, uri, machine)
    }

    /// Begins the journal of a change of this host in a directory, creating it if missing.
    pub fn begin_in(
        dir: &Path,
        verb: &str,
        subject: &str,
        uri: &str,
    ) -> Result<Journal, JournalError> {
        Journal::begin_at(dir, verb, subject, uri, machine::Identity::of_this_machine())
    }

    /// Begins the journal of a change of a machine in a directory, creating it if missing.
    fn begin_at(
        dir: &Path,
        verb: &str,
        subject: &str,
        uri: &str,
        machine: machine::Identity,
    ) -> Result<Journal, JournalError> {
        super::interrupt::begins();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let pid = std::process::id();
        let id = random_uuid().map_err(failed(dir))?;
        let change = Change {
            id: id.clone(),
            boot: boot_id(),
            at_ns: now_ns(),
            format: FORMAT,
            verb: verb.to_owned(),
            subject: subject.to_owned(),
            uri: uri.to_owned(),
            pid,
            machine: Some(machine),
        };
        for number in 0.. {
            let change = change.clone();
            let path = dir.join(format!("{pid}-{number}.{SUFFIX}"));
            let mut new = OpenOptions::new();
            let new = new.append(true).read(true).create_new(true).mode(0o600);
            let file = match new.custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(failed(&path))?,
            };
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| failed(&path)(errno.into()))?;
            let mut journal = Journal { file, path, planned: 0, id: Some(id.clone()) };
            // The directory entry must survive a power failure, too.
            let written = journal.write(&Record::Change(change)).and_then(|()| sync(dir));
            if let Err(error) = written {
                // Nothing was begun; the first error is the one to report.
                let _ = std::fs::remove_file(&journal.path);
                return Err(error);
            }
            trace::wrote(&journal.path);
            return Ok(journal);
        }
        unreachable!("some number is free")
    }

    /// Writes records as lines, in one write, and waits until they are on the disk.
    fn write_all(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut lines = String::new();
        for record in records {
            lines += &serde_json::to_string(record).expect("records are plain values");
            lines.push('\n');
        }
        let before = self.file.metadata().map_err(failed(&self.path))?.len();
        let written = self.file.write_all(lines.as_bytes());
        trace::appended(&self.path);
        written.and_then(|()| self.file.sync_data()).map_err(|error| {
            // A partial write, on a full disk, would corrupt the next line; the first error is the
            // one to report.
            let _ = self.file.set_len(before);
            failed(&self.path)(error)
        })
    }

    fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        self.write_all(std::slice::from_ref(record))
    }

    /// Adds steps to the plan; returns the number of the first.
    pub fn plan(&mut self, steps: &[Step]) -> Result<usize, JournalError> {
        self.write(&Record::Plan(steps.to_vec()))?;
        let first = self.planned;
        self.planned += steps.len();
        Ok(first)
    }

    /// Records that a step begins, before it does; returns the time in nanoseconds since 1970.
    pub fn begins(&mut self, number: usize) -> Result<u64, JournalError> {
        let at_ns = now_ns();
        self.write(&Record::Begin(Begin::At(number, at_ns)))?;
        Ok(at_ns)
    }

    /// Records the product of a step if it must be known before the step is done.
    pub fn made(&mut self, number: usize, made: &Identity) -> Result<(), JournalError> {
        self.write(&Record::Made(number, made.clone()))
    }

    /// Records that a step is done, and its product, if known.
    pub fn done(&mut self, number: usize, made: Option<&Identity>) -> Result<(), JournalError> {
        let made = made.map(|made| Record::Made(number, made.clone()));
        let records: Vec<Record> = made.into_iter().chain([Record::Done(number)]).collect();
        self.write_all(&records)
    }

    /// Returns the state directory that the journal is in; `None` if it is in a directory of its
    /// own.
    pub(super) fn state(&self) -> Option<PathBuf> {
        let dir = self.path.parent()?;
        dir.ends_with(DIRECTORY).then(|| dir.parent().map(Path::to_owned)).flatten()
    }

    /// The random name of its change; `None` if older versions gave none.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Records that every step is done.
    pub fn complete(&mut self) -> Result<(), JournalError> {
        self.write(&Record::Complete)
    }

    /// Records that everything is undone from here on.
    pub fn undoing(&mut self) -> Result<(), JournalError> {
        self.write(&Record::Undo)
    }

    /// Records that a step is undone.
    pub fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(&Record::Undone(number))
    }

    /// Removes the journal: the change is over. It first records that, so that a journal restored
    /// by a power failure has nothing to undo.
    pub fn close(mut self) -> Result<(), JournalError> {
        // On a full disk the removal alone must suffice.
        let _ = self.write(&Record::Over);
        std::fs::remove_file(&self.path).map_err(failed(&self.path))?;
        trace::removed(&self.path);
        sync_parent(&self.path)
    }
}

fn sync(dir: &Path) -> Result<(), JournalError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir))
}

/// Syncs the directory of a file.
fn sync_parent(path: &Path) -> Result<(), JournalError> {
    path.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
use orphan::read;
#[cfg(test)]
mod tests;
