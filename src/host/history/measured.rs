//! Measurements of `gpuvm measure` in a guest: a document for each domain, `measured/UUID.json`. It
//! is deleted with the domain.

use super::{HistoryError, store};
use crate::apply::bind::BindError;
use crate::apply::file::set_private_file;
use crate::apply::{FileStep, HostLock, LockError, Step, kept_in};
use crate::identity::FileId;
use gpuvm_core::measure::{Reading, Run, keep_last};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the documents, and of the lock of measurements.
pub(super) const DIRECTORY: &str = "measured";
/// The format written: since 2 a run has its suite, which the first version does not read.
const FORMAT: u32 = 2;
/// The most bytes of a document: the values are a guest's.
const MOST_BYTES: usize = 16 << 20;

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
    let mut document: Document = store::parse_up_to(FORMAT, &path, &text)?;
    // An older version kept values that are none, such as 0.
    document.runs.iter_mut().for_each(|run| run.readings.retain(Reading::is_sound));
    // A copy of another domain's is not this one's.
    Ok(if document.uuid == uuid { document.runs } else { Vec::new() })
}

/// Adds a run; the oldest ones make room, by number and by size.
pub fn add(state: Option<&Path>, uuid: &str, run: Run) -> Result<(), HistoryError> {
    let mut runs = read(state, uuid)?;
    runs.push(run);
    keep_last(&mut runs);
    let mut document = Document { format: FORMAT, uuid: uuid.to_owned(), runs };
    let mut text = store::text(&document);
    while text.len() > MOST_BYTES && document.runs.len() > 1 {
        let oldest = document.runs.len() / 4;
        document.runs.drain(..oldest.max(1));
        text = store::text(&document);
    }
    let path = file(state, uuid);
    set_private_file(&path, Some(&text)).map_err(|error| match error {
        BindError::Configuration { path, source } => HistoryError::File { path, source },
        other => HistoryError::File { path, source: std::io::Error::other(other) },
    })
}

/// Returns the step that removes the runs of a domain, whatever is in the file; `None` if there is
/// none. It cannot be undone.
pub fn forget(state: Option<&Path>, uuid: &str) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    match FileId::at(&path) {
        Ok(found) => Ok(found.map(|file| Step::File(FileStep::Forget { path, file }))),
        Err(source) => Err(HistoryError::File { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::measure::{KEPT, Shape, Suite, What};

    fn run(at_s: u64, suite: Option<Suite>) -> Run {
        let reading = Reading { what: What::Triad, device: None, value: 1.5 };
        Run { at_s, suite, shape: Shape::default(), readings: vec![reading] }
    }

    #[test]
    fn the_last_runs_of_a_domain_are_kept_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        let quick = Some(Suite::Quick);
        assert_eq!(read(state, "a").unwrap(), []);
        assert!(forget(state, "a").unwrap().is_none());
        add(state, "a", run(1000, Some(Suite::Full))).unwrap();
        for at_s in 0..KEPT as u64 + 3 {
            add(state, "a", run(at_s, quick)).unwrap();
        }
        // Runs of one suite do not replace those of the other.
        let runs = read(state, "a").unwrap();
        assert_eq!((runs.len(), runs[0].at_s, runs[1].at_s), (KEPT + 1, 1000, 3));
        // A file of another domain under this name, and a damaged one.
        std::fs::copy(file(state, "a"), file(state, "b")).unwrap();
        assert_eq!(read(state, "b").unwrap(), []);
        std::fs::write(file(state, "b"), "{").unwrap();
        assert!(read(state, "b").is_err());
        // Two at a time are refused.
        let held = lock(state).unwrap();
        assert!(lock(state).is_err());
        drop(held);
        assert!(lock(state).is_ok());
    }

    #[test]
    fn values_that_are_none_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        let mut old = run(1, None);
        let of = |value| Reading { value, ..old.readings[0].clone() };
        old.readings = vec![of(0.0), of(1.5), of(1e308), of(5e-324)];
        add(state, "a", old).unwrap();
        assert_eq!(read(state, "a").unwrap(), [run(1, None)]);
    }

    #[test]
    fn a_run_without_a_suite_is_of_none_and_a_newer_format_is_refused_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        add(state, "a", run(1, None)).unwrap();
        let written = std::fs::read_to_string(file(state, "a")).unwrap();
        assert!(written.contains("\"format\": 2") && !written.contains("suite"), "{written}");
        let old = written.replace("\"format\": 2", "\"format\": 1");
        std::fs::write(file(state, "a"), old).unwrap();
        assert_eq!(read(state, "a").unwrap()[0].suite, None);
        std::fs::write(file(state, "a"), written.replace("\"format\": 2", "\"format\": 3"))
            .unwrap();
        let error = read(state, "a").unwrap_err();
        assert!(error.to_string().contains("format 3 is of a newer gpuvm"), "{error}");
    }

    #[test]
    fn a_history_has_a_limit_and_is_deleted_whatever_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = Some(dir.path());
        let large = |at_s: u64| Run {
            readings: (0..8192)
                .map(|at| {
                    let device = Some(format!("{at:0500}"));
                    Reading { what: What::DeviceToDevice, device, value: 1.5 }
                })
                .collect(),
            ..run(at_s, Some(Suite::Quick))
        };
        for at_s in 1..=4 {
            add(state, "a", large(at_s)).unwrap();
        }
        let runs = read(state, "a").unwrap();
        assert_eq!(runs.iter().map(|run| run.at_s).collect::<Vec<_>>(), [2, 3, 4]);
        let path = file(state, "a");
        assert!(path.metadata().unwrap().len() <= MOST_BYTES as u64);
        // Longer than any state file that is read, and no text.
        std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
        assert!(read(state, "a").is_err());
        let Some(Step::File(FileStep::Forget { path: found, file: id })) =
            forget(state, "a").unwrap()
        else {
            panic!("no step");
        };
        assert_eq!((&found, FileId::at(&path).unwrap()), (&path, Some(id)));
    }
}
