//! Moves a file to another path of its file system, and back. Nothing is replaced, and only the
//! very file that was planned moves.

use super::StepError;
use super::disk::{self, DiskError};
use crate::discover::openers::in_use;
use crate::identity::FileId;
use std::path::Path;

/// The file at a path; `None` if there is none.
fn at(path: &Path) -> Result<Option<FileId>, StepError> {
    let failed = |source| DiskError::Other { path: path.to_owned(), source };
    Ok(FileId::at(path).map_err(failed)?)
}

/// Refuses a file that was replaced, and a new path that exists.
pub(super) fn expects(from: &Path, to: &Path, file: &FileId) -> Result<(), StepError> {
    if at(to)?.is_some() {
        return Err(DiskError::Exists { path: to.to_owned() }.into());
    }
    is_it(from, file)
}

/// Refuses a file that was replaced.
fn is_it(path: &Path, file: &FileId) -> Result<(), StepError> {
    match at(path)? {
        Some(now) if file.may_be(&now) => Ok(()),
        now => {
            let why = if now.is_some() { "it was recreated since" } else { "it is gone" };
            Err(StepError::NotOurs { what: path.display().to_string(), why: why.to_owned() })
        }
    }
}

pub(super) fn file(from: &Path, to: &Path, file: &FileId) -> Result<(), StepError> {
    is_it(from, file)?;
    Ok(disk::name(from, to)?)
}

/// Moves a file back, unless it is missing: then it was not moved, or others have moved it back.
pub(super) fn back(from: &Path, to: &Path, file: &FileId) -> Result<(), StepError> {
    match at(to)? {
        Some(now) if file.may_be(&now) => {}
        _ => return Ok(()),
    }
    if let Some(by) = in_use(to, false) {
        return Err(StepError::FileOpen { path: to.to_owned(), by });
    }
    Ok(disk::name(to, from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_moved_and_comes_back_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (from, to) = (path("a"), path("b"));
        fs::write(&from, "mine").unwrap();
        let id = FileId::at(&from).unwrap().unwrap();
        fs::write(&to, "theirs").unwrap();
        let text = expects(&from, &to, &id).unwrap_err().to_string();
        assert!(text.contains("already exists"), "{text}");
        file(&from, &to, &id).unwrap_err();
        back(&from, &to, &id).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "theirs");
        fs::remove_file(&to).unwrap();
        expects(&from, &to, &id).unwrap();
        file(&from, &to, &id).unwrap();
        assert!(!from.exists() && fs::read_to_string(&to).unwrap() == "mine");
        // Somebody has opened it since.
        let open = fs::File::open(&to).unwrap();
        let held = back(&from, &to, &id);
        drop(open);
        if let Err(held) = held {
            assert!(matches!(held, StepError::FileOpen { .. }), "{held}");
            back(&from, &to, &id).unwrap();
        }
        back(&from, &to, &id).unwrap();
        assert!(!to.exists() && fs::read_to_string(&from).unwrap() == "mine");
        fs::rename(&from, &to).unwrap();
        fs::write(&from, "another").unwrap();
        expects(&from, &path("c"), &id).unwrap_err();
        // Its old place is taken.
        back(&from, &to, &id).unwrap_err();
        assert_eq!(fs::read_to_string(&from).unwrap(), "another");
    }
}
