//! The state of a network before our last change, so that it can be undone: one file per network,
//! by its UUID.

use super::{HistoryError, store};
use crate::apply::{NetworkStep, Step, kept_in, now_s};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use gpuvm_core::network::Network;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub(super) const DIRECTORY: &str = "networks";

/// The recorded state of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkEntry {
    pub(super) format: u32,
    pub(super) uri: String,
    /// The network's name.
    pub name: String,
    /// Whether it was active.
    pub active: bool,
    /// Whether it was autostarted.
    pub autostart: bool,
    /// When it was changed, in seconds since 1970, UTC.
    pub at_s: u64,
    /// Its definition.
    pub before: String,
    /// The definition after the change; `None` if it was deleted.
    pub after: Option<String>,
}

/// The last change of a network, with its file.
#[derive(Debug)]
pub struct LastChange {
    path: PathBuf,
    text: String,
    /// Its parsed content.
    pub entry: NetworkEntry,
}

impl LastChange {
    /// Returns the step that removes it.
    pub fn forget(&self) -> Step {
        store::remove(self.path.clone(), self.text.clone())
    }
}

/// Returns the steps that record a network as it is, replacing an earlier record of its name.
/// `after`: its definition after the change; `None` if it is deleted. A network of another machine
/// is recorded only by the gpuvm there: none. `kept`: from [`directory`].
pub fn remember(
    kept: &Path,
    state: &NetworkState,
    on: &dyn Hypervisor,
    after: Option<&str>,
) -> Result<Vec<Step>, HistoryError> {
    if !on.machine().is_here() {
        return Ok(Vec::new());
    }
    let name = state.name.clone();
    let network = Network::read(&state.xml)
        .map_err(|reason| HistoryError::Network { name: name.clone(), reason })?;
    let uuid = network.uuid.unwrap_or_else(|| name.clone());
    let path = kept.join(format!("{uuid}.json"));
    let entry = NetworkEntry {
        format: store::FORMAT,
        uri: on.uri().to_owned(),
        name,
        active: state.active,
        autostart: state.autostart,
        at_s: now_s(),
        before: state.xml.clone(),
        after: after.map(str::to_owned),
    };
    let other = last_of(kept, on.uri(), &state.name)?.filter(|other| other.path != path);
    let was = store::read(&path)?;
    let remember = store::write(path, &entry, was);
    Ok(other.iter().map(LastChange::forget).chain([remember]).collect())
}

/// Returns the steps that record a network changed by these steps, and forget one recreated by
/// them; to be performed first.
pub fn remember_before(
    kept: &Path,
    steps: &[NetworkStep],
    state: Option<&NetworkState>,
    on: &dyn Hypervisor,
) -> Result<Vec<Step>, HistoryError> {
    if !on.machine().is_here() {
        return Ok(Vec::new());
    }
    if let Some(NetworkStep::Define { name, .. }) = steps.first() {
        return Ok(last_of(kept, on.uri(), name)?.iter().map(LastChange::forget).collect());
    }
    let after = steps.iter().find_map(|step| match step {
        NetworkStep::Redefine { xml, .. } => Some(xml.as_str()),
        _ => None,
    });
    state.zip(after).map_or(Ok(Vec::new()), |(state, after)| remember(kept, state, on, Some(after)))
}

/// Returns the directory of network changes, below a caller's state directory or the host's.
pub fn directory(state: Option<&Path>) -> PathBuf {
    kept_in(state, DIRECTORY)
}

/// The last change of a network of this name, of the hypervisor at a URI; `None` if there is no
/// record. Two networks may have had the name, one after the other.
pub fn last_of(kept: &Path, uri: &str, name: &str) -> Result<Option<LastChange>, HistoryError> {
    let mut found: Option<LastChange> = None;
    for (path, text) in store::documents(kept)? {
        let entry: NetworkEntry = store::parse(&path, &text)?;
        let is_later = found.as_ref().is_none_or(|other| other.entry.at_s <= entry.at_s);
        if entry.uri == uri && entry.name == name && is_later {
            found = Some(LastChange { path, text, entry });
        }
    }
    Ok(found)
}
