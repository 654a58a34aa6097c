//! The resources reserved and made for a guest, recorded by its UUID: a guest undefined by other
//! means takes its metadata with it, and the owner of its huge pages and disks would be lost.
//! `state` is a caller's own state directory.

use super::{History, HistoryError, store};
use crate::apply::{Step, kept_in};
use gpuvm_core::domain::guest::{Guarded, Made, Reserved};
use gpuvm_core::guest::Opt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub(super) const DIRECTORY: &str = "reserved";
/// How long a UUID is, in bytes of its text.
const UUID: usize = 36;

/// How a guest was described in a file when `apply` made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedFile {
    /// The name in the file, which `rename` leaves; `None` if a first version did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of the file's set of guests, if it has one.
    #[serde(default)]
    pub set: Option<String>,
    /// The content of the file, by the names of options.
    #[serde(default)]
    pub options: BTreeMap<String, Vec<String>>,
}

/// The job of Slurm that a guest was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlurmJob {
    /// The cluster.
    pub cluster: String,
    /// The job, that of an array's task.
    pub id: u32,
    /// The node's name in Slurm.
    pub node: String,
    /// When it was submitted or requeued, in seconds since 1970: numbers of jobs are used again.
    pub submitted_s: u64,
}

/// The resources reserved and the objects made for one guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRecord {
    /// The version of the files.
    pub format: u32,
    /// The domain's UUID.
    pub uuid: String,
    /// Its name then.
    pub name: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// Huge pages, with the boot of the machine that they were reserved in.
    #[serde(default)]
    pub reserved: Vec<Reserved>,
    /// Virtual functions that were set up on their cards.
    #[serde(default)]
    pub guarded: Vec<Guarded>,
    /// Disks that were made.
    #[serde(default)]
    pub made: Vec<Made>,
    /// How it was described; `None` if no file did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<AppliedFile>,
    /// The job of Slurm that it is for; `None` if it is for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<SlurmJob>,
    /// Its creation options, by name; `None` if a first version did not write them.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "told")]
    pub creation_options: Option<BTreeMap<String, Vec<String>>>,
    /// Whether a copy, which has no creation options of its own, may reach NVLinks of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_shared_fabric: bool,
}

/// A guest with records, which may still have resources.
#[derive(Debug, Clone)]
pub struct KnownGuest {
    /// The domain's UUID.
    pub uuid: String,
    /// Its name then.
    pub name: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// The resources reserved for it when it was made.
    pub record: Option<GuestRecord>,
    /// Its changes.
    pub history: Option<History>,
}

impl GuestRecord {
    /// Makes an empty record.
    pub fn new(uuid: &str, name: &str, uri: &str) -> GuestRecord {
        GuestRecord {
            format: store::FORMAT,
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            uri: uri.to_owned(),
            reserved: Vec::new(),
            guarded: Vec::new(),
            made: Vec::new(),
            applied: None,
            job: None,
            creation_options: None,
            accepts_shared_fabric: false,
        }
    }

    /// Returns the step that writes it, replacing its old content; `None` if there is nothing to
    /// record.
    pub fn remember(&self, state: Option<&Path>, was: Option<String>) -> Option<Step> {
        let is_empty = self.reserved.is_empty()
            && self.guarded.is_empty()
            && self.made.is_empty()
            && self.applied.is_none()
            && self.job.is_none()
            && self.creation_options.is_none()
            && !self.accepts_shared_fabric;
        (!is_empty).then(|| store::write(file(state, &self.uuid), self, was))
    }
}

/// Returns the step that adds disks made for a domain to its record; `None` if there are none to
/// add. Errors: its record cannot be read, and would be lost.
pub fn add_made(
    state: Option<&Path>,
    uuid: &str,
    name: &str,
    uri: &str,
    made: &[Made],
) -> Result<Option<Step>, HistoryError> {
    add_copy(state, (uuid, name, uri), made, false)
}

/// The step that records a copy of another domain: as [`add_made`], and whether it was accepted
/// that others reach its NVLinks.
pub fn add_copy(
    state: Option<&Path>,
    (uuid, name, uri): (&str, &str, &str),
    made: &[Made],
    accepts_shared_fabric: bool,
) -> Result<Option<Step>, HistoryError> {
    if made.is_empty() && !accepts_shared_fabric {
        return Ok(None);
    }
    let path = file(state, uuid);
    let was = store::read(&path)?;
    let known = was.as_deref().map(|text| read(&path, text, uuid)).transpose()?.flatten();
    let mut record = known.unwrap_or_else(|| GuestRecord::new(uuid, name, uri));
    record.made.retain(|known| made.iter().all(|new| new.path != known.path));
    record.made.extend_from_slice(made);
    record.accepts_shared_fabric |= accepts_shared_fabric;
    Ok(record.remember(state, was))
}

/// The step that takes a disk from the record of a domain, which keeps it no longer; `None` if it
/// is not recorded. Errors: as [`add_made`].
pub fn drop_made(
    state: Option<&Path>,
    uuid: &str,
    disk: &str,
) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    let Some(was) = store::read(&path)? else { return Ok(None) };
    let Some(mut record) = read(&path, &was, uuid)? else { return Ok(None) };
    let before = record.made.len();
    record.made.retain(|known| known.path != disk);
    Ok(if record.made.len() == before {
        None
    } else {
        let left = record.remember(state, Some(was.clone()));
        Some(left.unwrap_or_else(|| store::remove(path, was)))
    })
}

/// The step that records which huge pages of a domain are still reserved; `None` if it has no
/// record, or this one. Errors: as [`add_made`].
pub fn set_reserved(
    state: Option<&Path>,
    uuid: &str,
    reserved: &[Reserved],
) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    let Some(was) = store::read(&path)? else { return Ok(None) };
    let Some(mut record) = read(&path, &was, uuid)? else { return Ok(None) };
    if record.reserved == reserved {
        return Ok(None);
    }
    record.reserved = reserved.to_vec();
    let left = record.remember(state, Some(was.clone()));
    Ok(Some(left.unwrap_or_else(|| store::remove(path, was))))
}

/// The step that records which virtual functions are set up for the domain of this UUID and name at
/// this URI; `None` if its record says so. Errors: as [`add_made`].
pub fn set_guarded(
    state: Option<&Path>,
    (uuid, name, uri): (&str, &str, &str),
    guarded: &[Guarded],
) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    let was = store::read(&path)?;
    let known = was.as_deref().map(|text| read(&path, text, uuid)).transpose()?.flatten();
    let mut record = known.unwrap_or_else(|| GuestRecord::new(uuid, name, uri));
    if record.guarded == guarded {
        return Ok(None);
    }
    record.guarded = guarded.to_vec();
    let left = record.remember(state, was.clone());
    Ok(left.or_else(|| was.map(|was| store::remove(path, was))))
}

/// The step that writes the new name of a domain into its record; `None` if it has no record.
/// Errors: as [`add_made`].
pub fn rename(state: Option<&Path>, uuid: &str, to: &str) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    let Some(was) = store::read(&path)? else { return Ok(None) };
    let Some(record) = read(&path, &was, uuid)?.filter(|record| record.name != to) else {
        return Ok(None);
    };
    let record = GuestRecord { name: to.to_owned(), ..record };
    Ok(Some(store::write(path, &record, Some(was))))
}

/// The step that records that a domain is of another set of guests; `None` if no file made it, or
/// it is of this set. Errors: as [`add_made`].
pub fn set_set(state: Option<&Path>, uuid: &str, set: &str) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    let Some(was) = store::read(&path)? else { return Ok(None) };
    let Some(mut record) = read(&path, &was, uuid)? else { return Ok(None) };
    let Some(applied) = &mut record.applied else { return Ok(None) };
    if applied.set.as_deref() == Some(set) {
        return Ok(None);
    }
    applied.set = Some(set.to_owned());
    Ok(Some(store::write(path, &record, Some(was))))
}

/// The disks that were made for a domain, as far as recorded and readable.
pub fn made(state: Option<&Path>, uuid: &str) -> Vec<Made> {
    of(state, uuid).map(|record| record.made).unwrap_or_default()
}

/// How a domain was described in a file when `apply` made it; `None` if no file did, or its record
/// cannot be read.
pub fn applied(state: Option<&Path>, uuid: &str) -> Option<AppliedFile> {
    of(state, uuid)?.applied
}

/// The job of Slurm that a domain was made for; `None` if it is for none, or its record cannot be
/// read.
pub fn job(state: Option<&Path>, uuid: &str) -> Option<SlurmJob> {
    of(state, uuid)?.job
}

/// A domain's creation options, by name; `None` if nothing was recorded, or its record cannot be
/// read.
pub fn creation_options(state: Option<&Path>, uuid: &str) -> Option<BTreeMap<String, Vec<String>>> {
    let record = of(state, uuid)?;
    record.creation_options.or_else(|| record.applied.map(|file| file.options))
}

/// Whether it was accepted that others reach the NVLinks of a domain, when that was made or copied.
pub fn accepts_shared_fabric(state: Option<&Path>, uuid: &str) -> bool {
    let was_option = |options: BTreeMap<String, Vec<String>>| {
        let option = options.get(Opt::AcceptSharedFabric.field());
        option.is_some_and(|values| values == &["true"])
    };
    of(state, uuid).is_some_and(|record| record.accepts_shared_fabric)
        || creation_options(state, uuid).is_some_and(was_option)
}

/// The record of a domain; `None` if there is none, or it cannot be read: nothing is guessed.
fn of(state: Option<&Path>, uuid: &str) -> Option<GuestRecord> {
    let path = file(state, uuid);
    let text = store::read(&path).ok()??;
    read(&path, &text, uuid).ok()?
}

/// Parses a record; `None` if it belongs to another domain.
pub(super) fn read(
    path: &Path,
    text: &str,
    uuid: &str,
) -> Result<Option<GuestRecord>, HistoryError> {
    let record: GuestRecord = store::parse(path, text)?;
    Ok(Some(record).filter(|record| record.uuid == uuid))
}

/// The URI of the hypervisor in a domain's record, of any format; `None` if there is none, or it is
/// damaged.
pub(super) fn uri(state: Option<&Path>, uuid: &str) -> Option<String> {
    /// The part of a record with the URI.
    #[derive(Deserialize)]
    struct Whose {
        uri: String,
    }
    let text = store::read(&file(state, uuid)).ok()??;
    serde_json::from_str(&text).ok().map(|Whose { uri }| uri)
}

/// The file of a domain's record.
fn file(state: Option<&Path>, uuid: &str) -> PathBuf {
    kept_in(state, DIRECTORY).join(format!("{uuid}.json"))
}

/// Returns the step that removes a domain's record; `None` if there is none.
pub fn forget(state: Option<&Path>, uuid: &str) -> Result<Option<Step>, HistoryError> {
    let path = file(state, uuid);
    Ok(store::read(&path)?.map(|was| store::remove(path, was)))
}

/// Returns the UUIDs that name a directory's entries; empty if it belongs to another user.
fn uuids(directory: &Path) -> Result<Vec<String>, HistoryError> {
    let paths = match store::list(directory) {
        Err(HistoryError::File { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            return Ok(Vec::new());
        }
        paths => paths?,
    };
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    // Names of incomplete files begin with a dot.
    let names = names.filter_map(|name| name.split('.').next());
    Ok(names.filter(|name| name.len() == UUID).map(str::to_owned).collect())
}

/// Returns every domain with records. One with unreadable files is left out: nothing is released by
/// guess.
pub fn all(state: Option<&Path>) -> Result<Vec<KnownGuest>, HistoryError> {
    let mut all = Vec::new();
    let of = |kind| uuids(&kept_in(state, kind));
    let mut uuids = [of(DIRECTORY)?, of(super::DIRECTORY)?].concat();
    uuids.sort();
    uuids.dedup();
    for uuid in uuids {
        let record = self::of(state, &uuid);
        let history = History::of(state, &uuid).ok().filter(|history| !history.entries.is_empty());
        let last = history.as_ref().and_then(|history| history.entries.last());
        let named = last.map(|last| (last.domain.clone(), last.uri.clone()));
        let named = named
            .or_else(|| record.as_ref().map(|record| (record.name.clone(), record.uri.clone())));
        if let Some((name, uri)) = named {
            all.push(KnownGuest { uuid, name, uri, record, history });
        }
    }
    Ok(all)
}
