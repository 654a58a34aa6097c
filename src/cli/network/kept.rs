//! What a network was before our last change of it, so that `network undo` can take that back: one file for each network, by
//! its UUID, written and removed by steps as every other.

use crate::apply::array::content;
use crate::apply::{NetworkStep, Step, now_s, state_directory};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::network::NetworkState;
use crate::network::Network;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The version of the files.
const FORMAT: u32 = 1;
/// The directory of the files.
const DIRECTORY: &str = "networks";

/// Is a network as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The version of the files.
    format: u32,
    /// The hypervisor's URI.
    uri: String,
    /// The network's name.
    pub name: String,
    /// Whether it was up.
    pub active: bool,
    /// Whether it came up with the hypervisor.
    pub autostart: bool,
    /// When it was changed, in seconds since 1970, UTC.
    pub at_s: u64,
    /// Its definition.
    pub before: String,
    /// What it was to become; none: it was deleted.
    pub after: Option<String>,
}

/// Is a network that is kept, with its file.
#[derive(Debug)]
pub struct Record {
    /// The file.
    path: PathBuf,
    /// What it holds.
    text: String,
    /// What that says.
    pub kept: Kept,
}

impl Record {
    /// The step that takes it away.
    pub fn forget(&self) -> Step {
        Step::Remember { path: self.path.clone(), text: None, was: Some(self.text.clone()) }
    }
}

/// The steps that keep a network as it is, in place of what was kept of one of its name. `after`: what it becomes; none: it
/// goes. A network of another machine is kept by the gpuvm there alone: none.
pub fn keep(
    state: &NetworkState,
    on: &dyn Hypervisor,
    after: Option<&str>,
) -> anyhow::Result<Vec<Step>> {
    if !on.machine().is_here() {
        return Ok(Vec::new());
    }
    let uri = on.uri();
    let network = Network::read(&state.xml).map_err(anyhow::Error::msg)?;
    let uuid = network.uuid.unwrap_or_else(|| state.name.clone());
    let path = state_directory(DIRECTORY).join(format!("{uuid}.json"));
    let now = now_s();
    let kept = Kept {
        format: FORMAT,
        uri: uri.to_owned(),
        name: state.name.clone(),
        active: state.active,
        autostart: state.autostart,
        at_s: now,
        before: state.xml.clone(),
        after: after.map(str::to_owned),
    };
    let text = serde_json::to_string_pretty(&kept)? + "\n";
    let other = find(uri, &state.name)?.filter(|other| other.path != path);
    let keep = Step::Remember { was: content(&path)?, path, text: Some(text) };
    Ok(other.iter().map(Record::forget).chain([keep]).collect())
}

/// The steps that keep a network which these steps change, and forget one which they make again; to be done before them.
pub fn keep_before(
    steps: &[NetworkStep],
    state: Option<&NetworkState>,
    on: &dyn Hypervisor,
) -> anyhow::Result<Vec<Step>> {
    if !on.machine().is_here() {
        return Ok(Vec::new());
    }
    if let Some(NetworkStep::Define { name, .. }) = steps.first() {
        return Ok(find(on.uri(), name)?.iter().map(Record::forget).collect());
    }
    let after = steps.iter().find_map(|step| match step {
        NetworkStep::Redefine { xml, .. } => Some(xml.as_str()),
        _ => None,
    });
    state.zip(after).map_or(Ok(Vec::new()), |(state, after)| keep(state, on, Some(after)))
}

/// What is kept of a network of this name, the last that was changed; none: nothing is.
pub fn find(uri: &str, name: &str) -> anyhow::Result<Option<Record>> {
    find_in(&state_directory(DIRECTORY), uri, name)
}

/// The same, in a directory.
fn find_in(directory: &Path, uri: &str, name: &str) -> anyhow::Result<Option<Record>> {
    let files = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        files => files.with_context(|| directory.display().to_string())?,
    };
    let mut found: Option<Record> = None;
    for file in files {
        let path = file.with_context(|| directory.display().to_string())?.path();
        // What a killed run left of a file that it was writing is hidden.
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let Some(text) = content(&path)? else { continue };
        let kept: Kept = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        anyhow::ensure!(
            kept.format == FORMAT,
            "{}: format {} is not {FORMAT}, the one known here",
            path.display(),
            kept.format
        );
        let is_later = found.as_ref().is_none_or(|other| other.kept.at_s <= kept.at_s);
        if kept.uri == uri && kept.name == name && is_later {
            found = Some(Record { path, text, kept });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_of_a_name_and_a_hypervisor_is_found_and_a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, uri: &str, name: &str, at_s| {
            let kept = Kept {
                format: FORMAT,
                uri: uri.into(),
                name: name.into(),
                active: true,
                autostart: false,
                at_s,
                before: file.into(),
                after: None,
            };
            std::fs::write(dir.path().join(file), serde_json::to_string(&kept).unwrap()).unwrap();
        };
        let find =
            |uri, name| find_in(dir.path(), uri, name).map(|found| found.map(|f| f.kept.before));
        assert_eq!(find("a", "lab").unwrap(), None);
        assert!(find_in(&dir.path().join("none"), "a", "lab").unwrap().is_none());
        for (file, uri, name, at_s) in [
            ("1.json", "a", "lab", 7),
            ("2.json", "a", "lab", 6),
            ("3.json", "b", "lab", 9),
            ("4.json", "a", "x", 9),
        ] {
            write(file, uri, name, at_s);
        }
        std::fs::write(dir.path().join(".half"), "{").unwrap();
        assert_eq!(find("a", "lab").unwrap().as_deref(), Some("1.json"));
        std::fs::write(dir.path().join("5.json"), "{").unwrap();
        let error = format!("{:#}", find("a", "lab").unwrap_err());
        assert!(error.contains("5.json is damaged: EOF"), "{error}");
    }
}
