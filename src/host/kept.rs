//! What was reserved and made for a guest, kept beside it by its UUID: a guest that was undefined behind our back takes its metadata
//! with it, and nobody would know any more whose the huge pages and the disks are.

use crate::apply::{Step, state_directory};
use crate::history::History;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::is_same_hypervisor;
use gpuvm_core::domain::guest::{Guarded, Made, Reserved};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// The version of the files.
const FORMAT: u32 = 1;
/// The directory of the files.
const KIND: &str = "reserved";

/// Is what was reserved for one guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
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
    /// Virtual functions that their cards were told about.
    #[serde(default)]
    pub guarded: Vec<Guarded>,
    /// Disks that were made.
    #[serde(default)]
    pub made: Vec<Made>,
}

/// Is a guest of which something was kept, and perhaps is left.
#[derive(Debug, Clone)]
pub struct Known {
    /// The domain's UUID.
    pub uuid: String,
    /// Its name then.
    pub name: String,
    /// The hypervisor's URI.
    pub uri: String,
    /// What was reserved for it when it was made.
    pub kept: Option<Kept>,
    /// Its changes.
    pub history: Option<History>,
}

impl Kept {
    /// Begins with nothing reserved.
    pub fn new(uuid: &str, name: &str, uri: &str) -> Kept {
        Kept {
            format: FORMAT,
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            uri: uri.to_owned(),
            reserved: Vec::new(),
            guarded: Vec::new(),
            made: Vec::new(),
        }
    }

    /// The step that keeps it; none: nothing is reserved or made.
    pub fn remember(&self) -> Option<Step> {
        let text = serde_json::to_string_pretty(self).expect("plain values") + "\n";
        let path = file(&self.uuid);
        let step = Step::Remember { path, text: Some(text), was: None };
        let nothing = self.reserved.is_empty() && self.guarded.is_empty() && self.made.is_empty();
        (!nothing).then_some(step)
    }
}

/// The step that notes further disks that were made for a domain beside what is kept of it; none: there are none.
pub fn note(uuid: &str, name: &str, uri: &str, made: &[Made]) -> io::Result<Option<Step>> {
    if made.is_empty() {
        return Ok(None);
    }
    let path = file(uuid);
    let was = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        was => Some(was?),
    };
    let known = was.as_deref().and_then(|text| read(text, uuid));
    let mut kept = known.unwrap_or_else(|| Kept::new(uuid, name, uri));
    kept.made.retain(|known| made.iter().all(|new| new.path != known.path));
    kept.made.extend_from_slice(made);
    Ok(kept.remember().map(|step| match step {
        Step::Remember { path, text, .. } => Step::Remember { path, text, was },
        step => step,
    }))
}

/// The disks that were made for a domain, as far as they are kept.
pub fn made(uuid: &str) -> Vec<Made> {
    let text = std::fs::read_to_string(file(uuid)).ok();
    text.and_then(|text| read(&text, uuid)).map(|kept| kept.made).unwrap_or_default()
}

/// What is kept of a domain; none: it is of a later version, or of another domain.
fn read(text: &str, uuid: &str) -> Option<Kept> {
    let kept: Kept = serde_json::from_str(text).ok()?;
    (kept.format == FORMAT && kept.uuid == uuid).then_some(kept)
}

/// The file of a domain.
fn file(uuid: &str) -> PathBuf {
    state_directory(KIND).join(format!("{uuid}.json"))
}

/// The hypervisor that a domain was made or changed on, by its URI, where that is another than this: two of one machine, such
/// as the system's and a user's own, may have domains of one UUID, and what is kept is of one of them.
pub fn elsewhere(uuid: &str, on: &dyn Hypervisor) -> Option<String> {
    let text = std::fs::read_to_string(file(uuid)).ok();
    let kept: Option<Kept> = text.and_then(|text| serde_json::from_str(&text).ok());
    let history = || Some(History::of(uuid).ok()?.entries.last()?.uri.clone());
    let uris = [on.uri().to_owned(), on.opened_uri()];
    let is_other = |of: &String| !uris.iter().any(|uri| is_same_hypervisor(of, uri));
    kept.map(|kept| kept.uri).or_else(history).filter(is_other)
}

/// The step that forgets what was reserved for a domain; none: nothing is kept of it.
pub fn forget(uuid: &str) -> io::Result<Option<Step>> {
    let path = file(uuid);
    match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        was => Ok(Some(Step::Remember { path, text: None, was: Some(was?) })),
    }
}

/// The names below one of our directories, without what follows their first dot; none where it is not there or another
/// user's.
fn names(kind: &str) -> io::Result<Vec<String>> {
    use io::ErrorKind::{NotFound, PermissionDenied};
    let entries = match std::fs::read_dir(state_directory(kind)) {
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let name = name.split('.').next().unwrap_or_default();
        // A UUID; what was not written to its end is hidden.
        if name.len() == 36 {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Every domain of which something is kept. One whose files cannot be read is none: nothing is given back by guess.
pub fn all() -> io::Result<Vec<Known>> {
    let mut all = Vec::new();
    let mut uuids = names(KIND)?;
    uuids.extend(names("history")?);
    uuids.sort();
    uuids.dedup();
    for uuid in uuids {
        let text = std::fs::read_to_string(file(&uuid)).ok();
        let kept = text.and_then(|text| read(&text, &uuid));
        let history = History::of(&uuid).ok().filter(|history| !history.entries.is_empty());
        let last = history.as_ref().and_then(|history| history.entries.last());
        let named = last.map(|last| (last.domain.clone(), last.uri.clone()));
        let named =
            named.or_else(|| kept.as_ref().map(|kept| (kept.name.clone(), kept.uri.clone())));
        if let Some((name, uri)) = named {
            all.push(Known { uuid, name, uri, kept, history });
        }
    }
    Ok(all)
}
