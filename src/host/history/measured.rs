//! Measurements of `gpuvm measure` in a guest: a document for each domain, `measured/UUID.json`. It
//! is deleted with the domain.

use super::{HistoryError, store};
use crate::apply::bind::BindError;
use crate::apply::file::set_private_file;
use crate::apply::{HostLock, LockError, Step, kept_in};
use gpuvm_core::measure::{KEPT, Run};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the documents, and of the lock of measurements.
pub(super) const DIRECTORY: &str = "measured";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    uuid: String,
    /// The oldest first.
    runs: Vec<Run>,
}

fn file(state: Option<&Path>, uuid: &str) -> PathBuf {
    kept_in(state, DIRECTORY).join(format!("{uuid}.json"))
}

/// Takes the lock of measurements on this host: two at a time would slow each other down.
pub fn lock(state: Option<&Path>) -> Result<HostLock, LockError> {
    HostLock::take_in(&kept_in(state, DIRECTORY), Duration::ZERO, |_| ControlFlow::Continue(()))
}

/// Reads the earlier runs of a domain, the oldest first.
pub fn read(state: Option<&Path>, uuid: &str) -> Result<Vec<Run>, HistoryError> {
    let path = file(state, uuid);
    let Some(text) = store::read(&path)? else { return Ok(Vec::new()) };
    let document: Document = store::parse(&path, &text)?;
    // A copy of another domain's is not this one's.
    Ok(if document.uuid == uuid { document.runs } else { Vec::new() })
}

/// Adds a run; the oldest ones make room.
pub fn add(state: Option<&Path>, uuid: &str, run: Run) -> Result<(), HistoryError> {
    let mut runs = read(state, uuid)?;
    runs.push(run);
    let old = runs.len().saturating_sub(KEPT);
    runs.drain(..old);
    let document = Document { format: store::FORMAT, uuid: uuid.to_owned(), runs };
    let path = file(state, uuid);
    set_private_file(&path, Some(&store::text(&document))).map_err(|error| match error {
        BindError::Configuration { path, source } => HistoryError::File { path, source },
        other => HistoryError::File { path, source: std::io::Error::other(other) },
    })
}

/// Returns the step that removes the runs of a domain; `None` if there are none.
pub fn forget(state: Option<&Path>, uuid: &str) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    Ok(store::read(&path)?.map(|was| store::remove(path, was)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::measure::{Reading, Shape, Suite, What};

    #[test]
    fn the_last_runs_of_a_domain_are_kept_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        let run = |at_s: u64| {
            let reading = Reading { what: What::Triad, device: None, value: 1.5 };
            let (suite, shape) = (Suite::Quick, Shape::default());
            Run { at_s, suite, shape, readings: vec![reading] }
        };
        assert_eq!(read(state, "a").unwrap(), []);
        assert!(forget(state, "a").unwrap().is_none());
        for at_s in 0..KEPT as u64 + 3 {
            add(state, "a", run(at_s)).unwrap();
        }
        let runs = read(state, "a").unwrap();
        assert_eq!((runs.len(), runs[0].at_s), (KEPT, 3));
        // A file of another domain under this name, and a damaged one.
        std::fs::copy(file(state, "a"), file(state, "b")).unwrap();
        assert_eq!(read(state, "b").unwrap(), []);
        std::fs::write(file(state, "b"), "{").unwrap();
        assert!(read(state, "b").is_err());
        assert!(forget(state, "a").unwrap().is_some());
        // Two at a time are refused.
        let held = lock(state).unwrap();
        assert!(lock(state).is_err());
        drop(held);
        assert!(lock(state).is_ok());
    }
}
