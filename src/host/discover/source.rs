//! Loads recorded hosts of every kind that `--host` accepts: our JSON, a directory with `sys` in
//! it, lstopo's XML. Knows nothing of their content.

use super::lstopo::{LstopoError, from_lstopo_xml};
use super::{DiscoverError, discover};
use crate::fsroot::{FsError, FsRoot};
use crate::input::{self, InputError};
use gpuvm_core::shell::word;
use gpuvm_core::topology::Topology;
use gpuvm_core::topology::file::{FileError, from_json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest recorded host's file in bytes; a host of 1,536 pcpus and 500 functions takes some 1
/// MiB.
const LARGEST: u64 = 64 << 20;

/// The most records that are kept: memory does not grow with the hosts.
const KEPT: usize = 32;

/// The error of a path that is not a recorded host.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LoadError {
    /// The system refuses.
    #[error("cannot read {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    /// The file is of no known kind.
    #[error("{path} is not a recorded host: {reason}")]
    Unknown { path: String, reason: String },
    /// The file is JSON, but invalid.
    #[error("{path}: {source}")]
    #[strum(to_string = "")]
    Json { path: String, source: FileError },
    /// The file is XML, but not a supported lstopo record.
    #[error("{path}: {source}")]
    #[strum(to_string = "")]
    Lstopo { path: String, source: LstopoError },
    /// The file is refused.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Input(#[from] InputError),
    /// The directory cannot be read as a host.
    #[error(transparent)]
    #[strum(transparent, to_string = "")]
    Discover(#[from] DiscoverError),
}

impl From<FsError> for LoadError {
    fn from(error: FsError) -> LoadError {
        LoadError::Discover(error.into())
    }
}

/// Records of JSON that are parsed already, by their text: many hosts are of few kinds.
#[derive(Debug, Default)]
pub struct Records(Mutex<HashMap<String, Topology>>);

impl Records {
    /// Loads a recorded host; the same text is parsed once.
    pub fn load(&self, path: &Path) -> Result<Topology, LoadError> {
        load_by(path, |text| {
            if let Some(known) = self.known().get(text) {
                return Ok(known.clone());
            }
            let parsed = from_json(text)?;
            let mut known = self.known();
            if known.len() < KEPT {
                known.insert(text.to_owned(), parsed.clone());
            }
            Ok(parsed)
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Topology>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads a recorded host.
pub fn load(path: &Path) -> Result<Topology, LoadError> {
    load_by(path, from_json)
}

/// Loads a recorded host; `parse`: how its JSON is parsed.
fn load_by(
    path: &Path,
    parse: impl Fn(&str) -> Result<Topology, FileError>,
) -> Result<Topology, LoadError> {
    let shown = path.display().to_string();
    let unreadable = |source| LoadError::Unreadable { path: shown.clone(), source };
    let unknown = |reason: String| LoadError::Unknown { path: shown.clone(), reason };
    let meta = std::fs::metadata(path).map_err(unreadable)?;
    if meta.is_dir() {
        let root = sysfs_root(path).ok_or_else(|| unknown(without_sysfs(path)))?;
        return Ok(discover(&FsRoot::at(&root)?)?);
    }
    let bytes = input::read(path, LARGEST)?;
    let packed: [&[u8]; 4] = [b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"];
    if packed.iter().any(|magic| bytes.starts_with(magic)) {
        let reason = "it is packed; unpack it with `tar -xf` and name the directory".into();
        return Err(unknown(reason));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        unknown(format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()))
    })?;
    match text.trim_start().chars().next() {
        None => Err(unknown("it is empty".into())),
        Some('{') => parse(&text).map_err(|source| LoadError::Json { path: shown, source }),
        Some('<') => {
            from_lstopo_xml(&text).map_err(|source| LoadError::Lstopo { path: shown, source })
        }
        Some(_) => Err(unknown(
            "it is neither JSON of `gpuvm host capture FILE` nor XML of `lstopo --of xml`".into(),
        )),
    }
}

/// Why a directory is no host, with the path that is one where there is one: a directory above it,
/// or a record in it.
fn without_sysfs(path: &Path) -> String {
    let no = "the directory holds no `sys/devices`, also not up to two levels below";
    let is_host = |dir: &&Path| dir.parent().is_some() && dir.join("sys/devices").is_dir();
    let whole = path.canonicalize().unwrap_or_default();
    if let Some(above) = whole.ancestors().skip(1).find(is_host) {
        return format!("{no}; it is part of {0}: `--host {0}`", quoted(above));
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().take(1000).flatten();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    match entries.map(|entry| entry.path()).filter(is_record).min() {
        Some(record) => format!("{no}; name one of its files: `--host {}`", quoted(&record)),
        None => no.to_owned(),
    }
}

/// A path as a word of a command.
fn quoted(path: &Path) -> String {
    word(&path.to_string_lossy()).into_owned()
}

/// Finds the directory that holds `sys`: the one given, or one up to two levels below, the first by
/// name.
fn sysfs_root(path: &Path) -> Option<PathBuf> {
    let mut level = vec![path.to_owned()];
    for _ in 0..3 {
        if let Some(root) = level.iter().find(|dir| dir.join("sys/devices").is_dir()) {
            return Some(root.clone());
        }
        let mut below: Vec<PathBuf> = level
            .iter()
            .filter_map(|dir| std::fs::read_dir(dir).ok())
            .flat_map(|entries| entries.take(1000).flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        below.sort();
        level = below;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_same_text_are_parsed_once_and_few_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../../../topologies/h100-guest.json");
        let (records, host) = (Records::default(), from_json(text).unwrap());
        for at in 0..100 {
            let path = dir.path().join(format!("{at}.json"));
            // Space at the end makes another text of the same host.
            let ends = " ".repeat(if at < 10 { 0 } else { at });
            std::fs::write(&path, format!("{text}{ends}")).unwrap();
            assert_eq!(records.load(&path).unwrap(), host);
            assert_eq!(records.known().len(), if at < 10 { 1 } else { (at - 8).min(KEPT) });
        }
        let path = dir.path().join("bad.json");
        std::fs::write(&path, "{").unwrap();
        let (bad, plain) = (records.load(&path).unwrap_err(), load(&path).unwrap_err());
        assert_eq!(bad.to_string(), plain.to_string());
        std::fs::write(&path, text).unwrap();
        assert_eq!(records.load(&path).unwrap(), host, "an error is not kept");
    }

    #[test]
    fn a_directory_beside_a_host_names_the_right_one() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("a host");
        let inner = host.join("sys/devices/system");
        std::fs::create_dir_all(&inner).unwrap();
        let host = host.canonicalize().unwrap();
        for below in [&inner, &host.join("sys")] {
            let said = load(below).unwrap_err().to_string();
            assert!(said.ends_with(&format!("`--host '{}'`", host.display())), "{said}");
        }
        let records = dir.path().join("records");
        std::fs::create_dir(&records).unwrap();
        let said = load(&records).unwrap_err().to_string();
        assert!(said.ends_with("two levels below"), "{said}");
        for name in ["b.json", "a.json", "0.txt"] {
            std::fs::write(records.join(name), "{}").unwrap();
        }
        let said = load(&records).unwrap_err().to_string();
        assert!(said.ends_with(&format!("`--host {}/a.json`", records.display())), "{said}");
    }
}
