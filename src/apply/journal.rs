//! What a change has begun, on disk while it lasts: a file of JSON lines, one for each record, so that a killed run
//! can be finished or undone (recover.rs).
//!
//! The order is what counts. A record that a step begins is on the disk before the step is; that it is done need not
//! be, since undoing and finishing a step that may not have happened both do nothing. The file is locked by the run
//! that writes it: one that can be locked has lost its run. It goes when the change is over. Steps name files and
//! domains and hold definitions, never what is inside a seed or an image.

use super::Step;
use crate::hypervisor::machine::Identity;
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the records.
const FORMAT: u32 = 1;
/// Directory of what is kept on a host.
const SHARED: &str = "/var/lib/gpuvm";
/// How a journal's name ends.
const SUFFIX: &str = "jsonl";

/// Is what a change is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The process that makes it.
    pub pid: u32,
    /// The machine that it is of; none: its version did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Identity>,
}

/// Is one line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Record {
    /// What the change is; the first line.
    Change(Change),
    /// Steps that follow those planned before.
    Plan(Vec<Step>),
    /// The step of this number, from 0, begins.
    Begin(usize),
    /// It is done.
    Done(usize),
    /// Every step that was planned is done; what still comes only waits.
    Complete,
    /// From here on everything is undone.
    Undo,
    /// The step of this number is undone.
    Undone(usize),
}

/// Is how far a step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It was not begun, or it is undone.
    Untouched,
    /// It was begun, and may be done.
    Begun,
    /// It is done.
    Done,
}

/// Is what a journal tells of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// What the change is.
    pub change: Change,
    /// Its steps, and how far each has come.
    pub steps: Vec<(Step, Progress)>,
    /// Whether every step was done.
    pub complete: bool,
    /// Whether it was being undone.
    pub undoing: bool,
}

/// Says what is wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system could not.
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

/// Is the journal of a change that is being made.
#[derive(Debug)]
pub struct Journal {
    /// Its file, locked.
    file: Flock<File>,
    /// Where it is.
    path: PathBuf,
    /// Steps planned so far.
    planned: usize,
}

/// Is a journal that no run writes any more.
#[derive(Debug)]
pub struct Orphan {
    /// Its file, locked.
    journal: Journal,
    /// What it tells; none: its run was killed before anything was planned.
    pub story: Option<Story>,
}

/// Makes our error of the system's.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> JournalError + '_ {
    move |source| JournalError::File { path: path.to_owned(), source }
}

/// The directory of what this program keeps of a kind: the host's where it can be written, else the user's own.
pub fn state_directory(kind: &str) -> PathBuf {
    // Another user's own directory, where a user keeps what programs remember (XDG base directories).
    let own = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")));
    match own {
        Some(own) if !nix::unistd::geteuid().is_root() => own.join("gpuvm").join(kind),
        _ => Path::new(SHARED).join(kind),
    }
}

/// The time now, in seconds since 1970, UTC.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The directory of the journals.
fn directory() -> PathBuf {
    state_directory("journal")
}

impl Journal {
    /// Begins the journal of a change of this host.
    pub fn begin(verb: &str, subject: &str, uri: &str) -> Result<Journal, JournalError> {
        Journal::begin_in(&directory(), verb, subject, uri)
    }

    /// Begins the journal of a change of the machine that a hypervisor at a URI has its domains on.
    pub fn begin_on(
        verb: &str,
        subject: &str,
        (uri, machine): (&str, Identity),
    ) -> Result<Journal, JournalError> {
        Journal::begin_at(&directory(), verb, subject, (uri, machine))
    }

    /// Begins the journal of a change of this host in a directory, which is made where it is not there.
    pub fn begin_in(
        dir: &Path,
        verb: &str,
        subject: &str,
        uri: &str,
    ) -> Result<Journal, JournalError> {
        Journal::begin_at(dir, verb, subject, (uri, Identity::of_this_machine()))
    }

    /// Begins the journal of a change of a machine in a directory, which is made where it is not there.
    fn begin_at(
        dir: &Path,
        verb: &str,
        subject: &str,
        (uri, machine): (&str, Identity),
    ) -> Result<Journal, JournalError> {
        super::interrupt::begins();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let pid = std::process::id();
        let change = Change {
            format: FORMAT,
            verb: verb.to_owned(),
            subject: subject.to_owned(),
            uri: uri.to_owned(),
            pid,
            machine: Some(machine),
        };
        for number in 0.. {
            let path = dir.join(format!("{pid}-{number}.{SUFFIX}"));
            let mut new = OpenOptions::new();
            let new = new.append(true).read(true).create_new(true).mode(0o600);
            let file = match new.custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(failed(&path))?,
            };
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| failed(&path)(errno.into()))?;
            let mut journal = Journal { file, path, planned: 0 };
            let written = journal.write(&Record::Change(change)).and_then(|()| {
                // The name has to outlive a power cut, too.
                File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir))
            });
            if let Err(error) = written {
                // Nothing was begun; the first error is the one to tell.
                let _ = std::fs::remove_file(&journal.path);
                return Err(error);
            }
            return Ok(journal);
        }
        unreachable!("some number is free")
    }

    /// Writes records as lines, in one go, and waits until they are on the disk.
    fn write_all(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut lines = String::new();
        for record in records {
            lines += &serde_json::to_string(record).expect("records are plain values");
            lines.push('\n');
        }
        let before = self.file.metadata().map_err(failed(&self.path))?.len();
        let written = self.file.write_all(lines.as_bytes());
        written.and_then(|()| self.file.sync_data()).map_err(|error| {
            // What was written of it, on a full disk, would spoil the line that comes next; the first error is the one
            // to tell.
            let _ = self.file.set_len(before);
            failed(&self.path)(error)
        })
    }

    /// Writes one record.
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

    /// Says that a step begins, before it does.
    pub fn begins(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(&Record::Begin(number))
    }

    /// Says that a step is done.
    pub fn done(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(&Record::Done(number))
    }

    /// Says that every step is done.
    pub fn complete(&mut self) -> Result<(), JournalError> {
        self.write(&Record::Complete)
    }

    /// Says that everything is undone from here on.
    pub fn undoing(&mut self) -> Result<(), JournalError> {
        self.write(&Record::Undo)
    }

    /// Says that a step is undone.
    pub fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(&Record::Undone(number))
    }

    /// Removes the journal: the change is over.
    pub fn close(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(failed(&self.path))
    }
}

impl Orphan {
    /// Journals of this host that no run writes any more, by name.
    pub fn all() -> Result<Vec<Orphan>, JournalError> {
        Orphan::all_in(&directory())
    }

    /// Journals of a directory that no run writes any more, by name.
    pub fn all_in(dir: &Path) -> Result<Vec<Orphan>, JournalError> {
        use io::ErrorKind::{NotFound, PermissionDenied};
        let entries = match std::fs::read_dir(dir) {
            // Those of another user's changes cannot be read, nor could they be recovered by this one.
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {
                return Ok(Vec::new());
            }
            entries => entries.map_err(failed(dir))?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed(dir))?.path();
            if path.extension().is_some_and(|end| end == SUFFIX) {
                paths.push(path);
            }
        }
        paths.sort();
        let orphans = paths.into_iter().filter_map(|path| Orphan::open(path).transpose());
        orphans.collect()
    }

    /// Opens one; none while a run writes it, or where it is gone by now.
    fn open(path: PathBuf) -> Result<Option<Orphan>, JournalError> {
        let mut open = OpenOptions::new();
        let open = open.append(true).read(true).custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = match open.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed(&path))?,
        };
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        if !path.exists() {
            // It was closed between the opening and the locking.
            return Ok(None);
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed(&path))?;
        let story = read(&text).map_err(|(line, reason)| {
            let path = path.clone();
            JournalError::Damaged { path, line, reason }
        })?;
        let planned = story.as_ref().map_or(0, |story| story.steps.len());
        Ok(Some(Orphan { journal: Journal { file, path, planned }, story }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.journal.path
    }

    /// The journal, to go on writing it.
    pub fn into_journal(self) -> Journal {
        self.journal
    }
}

/// Reads a journal; none where not even the plan was written. A last line that was torn off was never on the disk as a
/// whole, so what it would have announced has not begun. Errors: the line, from 1, and what is wrong with it.
fn read(text: &str) -> Result<Option<Story>, (usize, String)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut story: Option<Story> = None;
    for (at, line) in whole.lines().enumerate() {
        let wrong = |reason: String| (at + 1, reason);
        let record = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let Some(told) = &mut story else {
            match record {
                Record::Change(change) if change.format == FORMAT => {
                    let steps = Vec::new();
                    story = Some(Story { change, steps, complete: false, undoing: false });
                    continue;
                }
                Record::Change(change) => {
                    let reason = format!("version {}, this program knows {FORMAT}", change.format);
                    return Err(wrong(reason));
                }
                _ => return Err(wrong("the first line does not say what the change is".into())),
            }
        };
        let (number, progress) = match record {
            Record::Change(_) => return Err(wrong("a second change in one journal".into())),
            Record::Plan(steps) => {
                told.steps.extend(steps.into_iter().map(|step| (step, Progress::Untouched)));
                continue;
            }
            Record::Complete => {
                told.complete = true;
                continue;
            }
            Record::Undo => {
                told.undoing = true;
                continue;
            }
            Record::Begin(number) => (number, Progress::Begun),
            Record::Done(number) => (number, Progress::Done),
            Record::Undone(number) => (number, Progress::Untouched),
        };
        match told.steps.get_mut(number) {
            Some(step) => step.1 = progress,
            None => return Err(wrong(format!("step {number} was not planned"))),
        }
    }
    Ok(story.filter(|story| !story.steps.is_empty()))
}

#[cfg(test)]
mod tests;
