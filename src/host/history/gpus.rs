//! States of GPUs between guests: a document for each GPU that a guest has had while
//! `/etc/gpuvm/test.toml` wanted that known, `gpus/NAME.json`. It is about a card, not a slot: the
//! identity in it decides, and its name only keeps two documents apart.

use super::{HistoryError, store};
use crate::apply::bind::BindError;
use crate::apply::file::set_private_file;
use crate::apply::{FileStep, HostLock, LockError, Step, kept_in, now_s};
use crate::discover::cards::is_uuid;
use crate::discover::identity::Finder;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::identity::MarkKind;
use gpuvm_core::topology::{DeviceIdentity, KnownDevice, Likeness};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the documents.
pub(super) const DIRECTORY: &str = "gpus";
/// The same below the root of a recorded host.
const RECORDED: &str = "var/lib/gpuvm/gpus";

/// The state of a GPU between guests, the best one first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum GpuState {
    /// It was tested, or accepted by an admin, and no guest had it since.
    Clean,
    /// A guest had it.
    Used,
    /// It failed its test.
    Failed,
}

/// The verdict of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum TestVerdict {
    /// Nothing was found.
    Passed,
    /// The GPU has a fault.
    Failed,
    /// The test did not come to its end, which says nothing of the GPU.
    Unknown,
}

/// The last test of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuTest {
    /// When it ended, in seconds since 1970, UTC.
    pub at_s: u64,
    /// Level of DCGM's diagnostics.
    pub level: u8,
    /// The verdict.
    pub verdict: TestVerdict,
    /// Its reasons, a phrase each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
}

/// The last guest of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// UUID of the domain.
    pub uuid: String,
    /// Its name then.
    pub name: String,
}

/// A record of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRecord {
    format: u32,
    /// Where it was.
    pub bdf: Bdf,
    /// The card.
    pub identity: DeviceIdentity,
    /// Its state.
    pub state: GpuState,
    /// Its last guest; none: not known.
    pub by: Option<Tenant>,
    /// When it came into this state, in seconds since 1970, UTC.
    pub since_s: u64,
    /// When it was last tested or accepted, in seconds since 1970, UTC; none: never.
    pub tested_s: Option<u64>,
    /// Its last test by gpuvm; `None` if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_test: Option<GpuTest>,
}

impl GpuRecord {
    /// The record of a GPU that comes into a state now.
    pub fn now(bdf: Bdf, identity: DeviceIdentity, state: GpuState) -> GpuRecord {
        let (by, since_s, tested_s) = (None, now_s(), None);
        let (format, last_test) = (store::FORMAT, None);
        GpuRecord { format, bdf, identity, state, by, since_s, tested_s, last_test }
    }

    /// The name of its document: the UUID of the GPU, or address, ids and PCI serial number.
    fn name(&self) -> String {
        let mut uuids = self.identity.values(MarkKind::Uuid);
        if let Some(uuid) = uuids.find(|uuid| is_uuid(uuid)) {
            return format!("{uuid}.json");
        }
        let place = format!("{}-{}", self.bdf, self.identity.ids()).replace(':', "-");
        match self.identity.values(MarkKind::Dsn).next() {
            Some(number) => format!("{place}-{number}.json"),
            None => format!("{place}.json"),
        }
    }
}

/// A document.
#[derive(Debug)]
pub struct GpuDocument {
    path: PathBuf,
    text: String,
    /// Its record.
    pub record: GpuRecord,
}

/// The records of a host.
#[derive(Debug, Default)]
pub struct GpuRecords {
    directory: PathBuf,
    documents: Vec<GpuDocument>,
    /// Documents that cannot be read: which GPUs they are about is not known.
    pub damaged: Vec<HistoryError>,
}

impl GpuRecords {
    /// Reads the records of this machine; `state`: a caller's own state directory. Errors: the
    /// directory cannot be read.
    pub fn of_this_machine(state: Option<&Path>) -> Result<GpuRecords, HistoryError> {
        let directory = kept_in(state, DIRECTORY);
        let mut all = GpuRecords { directory: directory.clone(), ..GpuRecords::default() };
        for path in store::list(&directory)? {
            if path.extension().is_some_and(|extension| extension == "json") {
                match store::read(&path) {
                    Ok(None) => {}
                    Ok(Some(text)) => all.add(path, text),
                    Err(error) => all.damaged.push(error),
                }
            }
        }
        Ok(all)
    }

    /// Reads the records below the root of a recorded host. Errors: one cannot be read.
    pub fn recorded(root: &FsRoot) -> Result<GpuRecords, FsError> {
        let mut all = GpuRecords { directory: root.path().join(RECORDED), ..GpuRecords::default() };
        for name in root.names(RECORDED)?.iter().filter(|name| name.ends_with(".json")) {
            if let Some(text) = root.read(&format!("{RECORDED}/{name}"))? {
                all.add(all.directory.join(name), text);
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf, text: String) {
        match store::parse(&path, &text) {
            Ok(record) => self.documents.push(GpuDocument { path, text, record }),
            Err(error) => self.damaged.push(error),
        }
    }

    /// The documents by the addresses of their GPUs now, the worst state first. A GPU that cannot
    /// be identified counts as the one that was last seen in its slot.
    pub fn located(&self, root: &FsRoot) -> Result<BTreeMap<Bdf, Vec<&GpuDocument>>, FsError> {
        let finder = Finder::new(root);
        let mut located: BTreeMap<Bdf, Vec<&GpuDocument>> = BTreeMap::new();
        for document in &self.documents {
            let GpuRecord { bdf, identity, .. } = &document.record;
            let found =
                finder.whereabouts(&KnownDevice { bdf: *bdf, identity: identity.clone() })?;
            let is_here = match found.likeness {
                Likeness::Same => true,
                Likeness::Unproven => found.places.is_empty(),
                Likeness::Other => false,
            };
            let here = is_here.then_some(*bdf);
            for place in here.into_iter().chain(found.places) {
                located.entry(place).or_default().push(document);
            }
        }
        for documents in located.values_mut() {
            documents.sort_by_key(|document| std::cmp::Reverse(document.record.state));
        }
        Ok(located)
    }

    /// Returns the steps that write the record of a GPU in place of its documents.
    pub fn replace(
        &self,
        old: &[&GpuDocument],
        record: &GpuRecord,
    ) -> Result<Vec<Step>, HistoryError> {
        let (path, was) = match old.first() {
            Some(first) => (first.path.clone(), Some(first.text.clone())),
            None => {
                let path = self.directory.join(record.name());
                let was = store::read(&path)?;
                (path, was)
            }
        };
        let rest = old.iter().skip(1);
        let rest = rest.map(|other| store::remove(other.path.clone(), other.text.clone()));
        Ok([store::write(path, record, was)].into_iter().chain(rest).collect())
    }
}

/// Takes the lock of tests on this host, waiting up to `wait` for another one.
pub fn lock(
    state: Option<&Path>,
    wait: Duration,
    waiting: impl FnMut(Option<i32>) -> ControlFlow<()>,
) -> Result<HostLock, LockError> {
    HostLock::take_in(&kept_in(state, DIRECTORY), wait, waiting)
}

/// Does steps that [`GpuRecords::replace`] made, where nothing else is to be done that could fail.
pub fn write(steps: &[Step]) -> Result<(), HistoryError> {
    for step in steps {
        let Step::File(FileStep::Remember { path, text, .. }) = step else { continue };
        set_private_file(path, text.as_deref()).map_err(|error| match error {
            BindError::Configuration { path, source } => HistoryError::File { path, source },
            other => HistoryError::File { path: path.clone(), source: io::Error::other(other) },
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
