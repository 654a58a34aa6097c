//! The files of the store: one JSON document each, written atomically, and removed, by steps, so
//! that an interrupted change leaves none behind. Every document has a format number; all formats
//! ever written are read, and a newer one is refused as such, not as damaged.

use super::HistoryError;
use crate::apply::{FileStep, Step, unknown_step};
use crate::fsroot::DANGLING;
use crate::input;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The format written, of all documents that have no other one of their own.
pub(super) const FORMAT: u32 = 1;

/// The part common to all formats.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

/// The text of a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, HistoryError> {
    let text = input::state(path).map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::InvalidData => {
                HistoryError::Damaged { path, reason: source.to_string() }
            }
            _ => HistoryError::File { path, source },
        }
    })?;
    if text.is_none() {
        refuse_dangling(path)?;
    }
    Ok(text)
}

/// Refuses a path that is missing behind a symbolic link: a record was wanted there.
fn refuse_dangling(path: &Path) -> Result<(), HistoryError> {
    let is_dangling = |at: &&Path| {
        let is_link = at.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        is_link && at.metadata().is_err()
    };
    match path.ancestors().find(is_dangling) {
        Some(at) => {
            let (path, reason) = (at.to_owned(), DANGLING.to_owned());
            Err(HistoryError::Damaged { path, reason })
        }
        None => Ok(()),
    }
}

/// The document of a file. The path is for errors only.
pub(super) fn parse<D: DeserializeOwned>(path: &Path, text: &str) -> Result<D, HistoryError> {
    parse_up_to(FORMAT, path, text)
}

/// The same of a kind of documents with formats of its own, up to this one.
pub(super) fn parse_up_to<D: DeserializeOwned>(
    newest: u32,
    path: &Path,
    text: &str,
) -> Result<D, HistoryError> {
    let damaged = |error: serde_json::Error| {
        let (path, reason) = (path.to_owned(), error.to_string());
        HistoryError::Damaged { path, reason }
    };
    // The format number first: additions of a newer format would look like damage.
    let Head { format } = serde_json::from_str(text).map_err(damaged)?;
    let newer = |what: String| HistoryError::Newer { path: path.to_owned(), what };
    if format > newest {
        let known = format!("this one reads formats up to {newest}");
        return Err(newer(format!("format {format} is of a newer gpuvm; {known}")));
    }
    serde_json::from_str(text).map_err(|error| match unknown_step(text) {
        Some(step) => newer(format!("step `{step}` is of a newer gpuvm")),
        None => damaged(error),
    })
}

/// The entries of a directory, sorted by name; none if it does not exist.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, HistoryError> {
    let failed = |source| HistoryError::File { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_dangling(directory)?;
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut paths = entries
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect::<Result<Vec<PathBuf>, HistoryError>>()?;
    paths.sort();
    Ok(paths)
}

/// The documents of a directory with their files. Incomplete files of interrupted runs have another
/// suffix.
pub(super) fn documents(directory: &Path) -> Result<Vec<(PathBuf, String)>, HistoryError> {
    let mut documents = Vec::new();
    for path in list(directory)? {
        if path.extension().is_some_and(|extension| extension == "json") {
            documents.extend(read(&path)?.map(|text| (path, text)));
        }
    }
    Ok(documents)
}

pub(super) fn text<D: Serialize>(document: &D) -> String {
    serde_json::to_string_pretty(document).expect("plain values") + "\n"
}

/// The step that writes a document, if the file contains `was` now.
pub(super) fn write<D: Serialize>(path: PathBuf, document: &D, was: Option<String>) -> Step {
    Step::File(FileStep::Remember { path, text: Some(text(document)), was })
}

/// Returns the step that removes a file if it contains `was` now.
pub(super) fn remove(path: PathBuf, was: String) -> Step {
    Step::File(FileStep::Remember { path, text: None, was: Some(was) })
}
