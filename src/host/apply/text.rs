//! One place of a text file that is others': the rest keeps its bytes, also what was edited since.

use super::array::{ArrayError, content, replace};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Is a change of one place of a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextStep {
    /// The file.
    pub path: PathBuf,
    /// Its whole text when the change was planned.
    pub before: String,
    /// Its whole text after it.
    pub after: String,
    /// What that does, in words.
    pub what: String,
}

impl fmt::Display for TextStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.path.display())
    }
}

impl TextStep {
    /// Refuses a file that is not what it was when the change was planned.
    pub(super) fn expects(&self) -> Result<(), ArrayError> {
        match content(&self.path)? {
            Some(now) if now == self.before => Ok(()),
            _ => Err(ArrayError::Changed { path: self.path.clone() }),
        }
    }

    /// Does it; compares once more right before.
    pub(super) fn perform(&self) -> Result<(), ArrayError> {
        self.expects()?;
        replace(&self.path, &Some(self.after.clone()), false)
    }

    /// Undoes it, where it was done.
    pub(super) fn undo(&self) -> Result<(), ArrayError> {
        let now = content(&self.path)?.unwrap_or_default();
        if now == self.before {
            return Ok(());
        }
        match self.back(&now) {
            Some(back) => replace(&self.path, &Some(back), false),
            None => Err(ArrayError::Changed { path: self.path.clone() }),
        }
    }

    /// The file's present text without the change; none: the changed place is not there, or not once.
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
    fn the_place_is_taken_back_and_what_was_edited_beside_it_stays() {
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
