//! Orphaned journals: those whose run is gone. A damaged one is reported and does not block the
//! others.

use super::{
    Begin, Change, FORMAT, Journal, JournalError, Progress, Record, SUFFIX, Story, directory,
    error::Wrong, failed, sync_parent,
};
use crate::apply::unknown_step;
use crate::identity::boot_id;
use nix::fcntl::{Flock, FlockArg, OFlag};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Suffix of a damaged journal that was set aside.
const PUT_AWAY: &str = "damaged";

/// A journal whose run is gone.
#[derive(Debug)]
pub struct Orphan {
    journal: Journal,
    /// Its content; `None` if its run was killed before anything was planned.
    pub story: Option<Story>,
}

/// A damaged journal whose run is gone.
#[derive(Debug)]
pub struct Damaged {
    /// Where it is.
    pub path: PathBuf,
    /// The description of the change, if its first line is readable.
    pub change: Option<Change>,
    /// The fault.
    pub error: JournalError,
    /// Its file, locked where it could be opened.
    _file: Option<Flock<File>>,
}

/// The journals whose runs are gone.
#[derive(Debug, Default)]
pub struct Orphans {
    /// Those that can be read, by name.
    pub readable: Vec<Orphan>,
    /// Damaged ones, by name.
    pub damaged: Vec<Damaged>,
}

impl Damaged {
    /// Whether a newer version wrote it, which can finish the change.
    pub fn is_newer(&self) -> bool {
        matches!(self.error, JournalError::Newer { .. })
    }

    /// The command that ends the change, as a hint.
    pub fn hint(&self) -> &'static str {
        if self.is_newer() {
            "`recover` of the gpuvm that wrote it finishes or undoes the change: install that \
             version again"
        } else {
            "`gpuvm recover --discard` puts its journal away, so that others go on"
        }
    }

    /// Renames it, so that nothing is lost and nothing waits for it; returns the new name.
    pub fn put_away(self) -> Result<PathBuf, JournalError> {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{PUT_AWAY}"));
        let away = PathBuf::from(name);
        std::fs::rename(&self.path, &away).map_err(failed(&self.path))?;
        crate::trace::wrote(&away);
        sync_parent(&self.path)?;
        Ok(away)
    }
}

impl Orphan {
    /// Returns the journals of this host whose runs are gone.
    pub fn all() -> Result<Orphans, JournalError> {
        Orphan::all_in(&directory())
    }

    /// Returns the journals of a directory whose runs are gone.
    pub fn all_in(dir: &Path) -> Result<Orphans, JournalError> {
        use io::ErrorKind::{NotFound, PermissionDenied};
        let mut orphans = Orphans::default();
        let entries = match std::fs::read_dir(dir) {
            // Journals of another user cannot be read, nor could this user recover them.
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {
                return Ok(orphans);
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
        for path in paths {
            match Orphan::open(path) {
                Ok(orphan) => orphans.readable.extend(orphan),
                Err(damaged) => orphans.damaged.push(*damaged),
            }
        }
        Ok(orphans)
    }

    /// Opens one; `None` while a run writes it, or if it is gone.
    fn open(path: PathBuf) -> Result<Option<Orphan>, Box<Damaged>> {
        let damaged = |error, file, change| {
            Box::new(Damaged { path: path.clone(), change, error, _file: file })
        };
        let mut open = OpenOptions::new();
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match open.append(true).read(true).custom_flags(flags.bits()).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| damaged(failed(&path)(error), None, None))?,
        };
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        if !path.exists() {
            // It was closed between opening and locking.
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let (meta, got) = (file.metadata(), file.read_to_end(&mut bytes));
        let meta = match got.and(meta) {
            Ok(meta) => meta,
            Err(error) => return Err(damaged(failed(&path)(error), Some(file), None)),
        };
        // Invalid UTF-8 is reported as an error of its line.
        let text = String::from_utf8_lossy(&bytes);
        let mut story = match read(&text) {
            Ok(story) => story,
            Err((line, wrong)) => {
                let error = JournalError::of_line(path.clone(), line, wrong);
                return Err(damaged(error, Some(file), first(&text)));
            }
        };
        if let Some(story) = &mut story {
            story.same_boot = is_of_this_boot(&story.change, meta.mtime());
        }
        let planned = story.as_ref().map_or(0, |story| story.steps.len());
        let id = story.as_ref().map(|story| story.change.id.clone()).filter(|id| !id.is_empty());
        Ok(Some(Orphan { journal: Journal { file, path, planned, id }, story }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.journal.path
    }

    /// The journal, to continue writing it.
    pub fn into_journal(self) -> Journal {
        self.journal
    }
}

/// Whether a change was begun in this boot of the machine; if it does not record that, judged by
/// the journal's last write, in seconds since 1970.
fn is_of_this_boot(change: &Change, written_s: i64) -> bool {
    if !change.boot.is_empty() {
        return change.boot == boot_id();
    }
    procfs::boot_time_secs().is_ok_and(|boot| u64::try_from(written_s).is_ok_and(|at| at >= boot))
}

/// The change that a journal's first line names, whatever is wrong with the others.
fn first(text: &str) -> Option<Change> {
    match serde_json::from_str(text.lines().next()?) {
        Ok(Record::Change(change)) => Some(change),
        _ => None,
    }
}

/// Makes the story of a change without a plan so far.
fn begin(change: Change) -> Story {
    Story {
        change,
        steps: Vec::new(),
        complete: false,
        undoing: false,
        over: false,
        made: BTreeMap::new(),
        begun_ns: BTreeMap::new(),
        same_boot: true,
    }
}

/// Reads a journal; `None` if not even the plan was written. A truncated last line was never
/// completely on the disk, so the step that it announced has not begun. Errors: the line, from 1,
/// and its fault.
pub(super) fn read(text: &str) -> Result<Option<Story>, (usize, Wrong)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut story: Option<Story> = None;
    for (at, line) in whole.lines().enumerate() {
        let wrong = |reason: String| (at + 1, Wrong::Damaged(reason));
        let newer = |what: String| (at + 1, Wrong::Newer(what));
        let record = serde_json::from_str(line).map_err(|error| match unknown_step(line) {
            Some(step) => newer(format!("step `{step}` is")),
            None => wrong(error.to_string()),
        })?;
        match (&mut story, record) {
            (None, Record::Change(change)) if change.format == FORMAT => {
                story = Some(begin(change));
            }
            (None, Record::Change(change)) if change.format > FORMAT => {
                return Err(newer(format!("format {} is", change.format)));
            }
            (None, Record::Change(change)) => {
                let reason = format!("format {}, this program knows {FORMAT}", change.format);
                return Err(wrong(reason));
            }
            (None, _) => {
                return Err(wrong("the first line does not say what the change is".into()));
            }
            (Some(_), Record::Change(_)) => {
                return Err(wrong("a second change in one journal".into()));
            }
            (Some(story), record) => story.add(record).map_err(wrong)?,
        }
    }
    Ok(story.filter(|story| !story.steps.is_empty()))
}

impl Story {
    /// Adds a record that is not the first. Errors: its fault.
    fn add(&mut self, record: Record) -> Result<(), String> {
        let (number, progress) = match record {
            Record::Change(_) => return Ok(()),
            Record::Plan(steps) => {
                self.steps.extend(steps.into_iter().map(|step| (step, Progress::Untouched)));
                return Ok(());
            }
            Record::Complete => {
                self.complete = true;
                return Ok(());
            }
            Record::Undo => {
                self.undoing = true;
                return Ok(());
            }
            Record::Over => {
                self.over = true;
                return Ok(());
            }
            Record::Made(number, made) => {
                self.made.insert(number, made);
                let known = self.steps.get(number).map(|step| step.1);
                (number, known.unwrap_or(Progress::Begun))
            }
            Record::Begin(Begin::At(number, at_ns)) => {
                self.begun_ns.insert(number, at_ns);
                (number, Progress::Begun)
            }
            Record::Begin(Begin::Number(number)) => (number, Progress::Begun),
            Record::Done(number) => (number, Progress::Done),
            Record::Undone(number) => (number, Progress::Untouched),
        };
        match self.steps.get_mut(number) {
            Some(step) => step.1 = progress,
            None => return Err(format!("step {number} was not planned")),
        }
        Ok(())
    }
}
