//! Edits of others' text files: refused if the file was changed since the plan, done and undone
//! keeping the file's mode, owner and symlink; and edits of one place of such a file, where the
//! rest keeps its bytes, later edits included.

use super::error::ArrayError;
use super::file;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// A change of a text file of others.
pub(super) struct Edit<'a> {
    path: &'a Path,
    /// Its text before; `None` if it did not exist.
    before: Option<&'a str>,
    /// Its text after; `None` if it is removed.
    after: Option<&'a str>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(path: &'a Path, before: Option<&'a str>, after: Option<&'a str>) -> Edit<'a> {
        Edit { path, before, after }
    }

    /// Refuses a file that has changed since the plan.
    pub(super) fn expects(&self) -> Result<(), ArrayError> {
        if content(self.path)?.as_deref() == self.before { Ok(()) } else { Err(self.changed()) }
    }

    pub(super) fn write(&self) -> Result<(), ArrayError> {
        self.put(self.after)
    }

    /// Restores the text before if it was changed; returns whether it was. `edited`: returns the
    /// reverted form of a text edited since; `None` if it stays, with an error.
    pub(super) fn undo(
        &self,
        edited: impl FnOnce(&str) -> Option<String>,
    ) -> Result<bool, ArrayError> {
        let now = content(self.path)?;
        if now.as_deref() == self.before {
            return Ok(false);
        }
        if now.as_deref() == self.after {
            self.put(self.before)?;
        } else {
            let back = edited(now.as_deref().unwrap_or_default()).ok_or_else(|| self.changed())?;
            self.put(Some(&back))?;
        }
        Ok(true)
    }

    fn put(&self, text: Option<&str>) -> Result<(), ArrayError> {
        file::replace(self.path, text).map_err(failed(self.path))
    }

    /// The error that the file has been changed.
    fn changed(&self) -> ArrayError {
        ArrayError::Changed { path: self.path.to_owned() }
    }
}

/// Reads a text file; none where it is missing.
pub fn content(path: &Path) -> Result<Option<String>, ArrayError> {
    file::content(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> ArrayError {
    move |source| ArrayError::File { path: path.to_owned(), source }
}

/// A change of one place of a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextStep {
    /// The file.
    pub path: PathBuf,
    /// Its whole text when the change was planned.
    pub before: String,
    /// Its whole text after it.
    pub after: String,
    /// Its effect, in words.
    pub what: String,
}

impl fmt::Display for TextStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.path.display())
    }
}

impl TextStep {
    /// Returns it as a change of the whole file.
    fn edit(&self) -> Edit<'_> {
        Edit::new(&self.path, Some(&self.before), Some(&self.after))
    }

    /// Refuses a file that has changed since the plan.
    pub(super) fn expects(&self) -> Result<(), ArrayError> {
        self.edit().expects()
    }

    /// Performs the step; compares again right before.
    pub(super) fn perform(&self) -> Result<(), ArrayError> {
        self.edit().expects()?;
        self.edit().write()
    }

    /// Undoes the step if it was done.
    pub(super) fn undo(&self) -> Result<(), ArrayError> {
        self.edit().undo(|now| self.back(now)).map(drop)
    }

    /// Returns the file's current text without the change; `None` if the changed place does not
    /// occur exactly once.
    pub fn back(&self, now: &str) -> Option<String> {
        if now == self.after {
            return Some(self.before.clone());
        }
        let lines = |text| -> Vec<&str> { str::split_inclusive(text, '\n').collect() };
        let (before, after, now) = (lines(&self.before), lines(&self.after), lines(now));
        let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        let ends = before[same..].iter().rev().zip(after[same..].iter().rev());
        let rest = ends.take_while(|(a, b)| a == b).count();
        let old = &before[same..before.len() - rest];
        let new = &after[same..after.len() - rest];
        if new.is_empty() {
            return None;
        }
        let mut places = (0..now.len()).filter(|&at| now[at..].starts_with(new));
        let (Some(at), None) = (places.next(), places.next()) else { return None };
        Some([&now[..at], old, &now[at + new.len()..]].concat().concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of a file of a test.
    fn step(path: PathBuf, before: &str, after: &str) -> TextStep {
        TextStep { path, before: before.into(), after: after.into(), what: "change it".into() }
    }

    #[test]
    fn the_place_is_reverted_and_other_edits_stay() {
        for (before, after, edited, back) in [
            ("a\nb\nc\n", "a\nB\nc\n", "x\na\nB\nc\ny\n", Some("x\na\nb\nc\ny\n")),
            ("a\nc", "a\nb\nc", "a\nb\nd", Some("a\nd")),
            ("a", "a\nb", "x\na\nb", Some("x\na")),
            ("", "b\n", "b\nc\n", Some("c\n")),
            ("a\n", "a\nb\n", "a\nb\nb\n", None),
            ("a\n", "a\nb\n", "a\nother\n", None),
        ] {
            let step = step(PathBuf::new(), before, after);
            assert_eq!(step.back(after).as_deref(), Some(before));
            assert_eq!(step.back(edited).as_deref(), back, "{edited:?}");
        }
    }

    #[test]
    fn a_file_that_was_edited_meanwhile_is_not_written() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conf");
        std::fs::write(&path, "a\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let step = step(path.clone(), "a\n", "a\nb\n");
        step.perform().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        step.undo().unwrap();
        step.undo().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n");
        std::fs::write(&path, "a\nother\n").unwrap();
        assert!(matches!(step.perform().unwrap_err(), ArrayError::Changed { .. }));
        assert!(matches!(step.undo().unwrap_err(), ArrayError::Changed { .. }));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nother\n");
    }
}
