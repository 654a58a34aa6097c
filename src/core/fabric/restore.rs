//! The record of activated partitions, for restoring them after Fabric Manager restarts: the file's
//! format, and the list to pass to Fabric Manager. Running domains take precedence, then the file,
//! then Fabric Manager's own list.

use super::{Domain, Listed, Modules, Running, modules_of};
use crate::bdf::Bdf;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the file.
pub const FORMAT: u32 = 1;

/// A partition that was activated for a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreEntry {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
    /// UUID of the domain, with dashes.
    pub domain: String,
    /// For vGPU the virtual function of each GPU with which it was activated, in the order of
    /// `modules`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<Bdf>,
}

/// The partitions that were activated, in the order of activation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreList {
    /// The version of the file.
    pub version: u32,
    /// The partitions, each number once.
    #[serde(deserialize_with = "distinct")]
    pub partitions: Vec<RestoreEntry>,
}

/// Reads partitions and refuses a number that is there twice, here where the parser still knows the
/// line.
fn distinct<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RestoreEntry>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<RestoreEntry>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of partitions")
        }
        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
            let mut all: Vec<RestoreEntry> = Vec::new();
            while let Some(entry) = list.next_element::<RestoreEntry>()? {
                if all.iter().any(|known| known.id == entry.id) {
                    let id = entry.id;
                    return Err(S::Error::custom(format_args!("partition {id} appears twice")));
                }
                all.push(entry);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Entries)
}

/// Why a list of activated partitions cannot be read.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "fabric-list-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RestoreListError {
    /// Not JSON of this form.
    #[error("line {line}: {reason}")]
    Damaged {
        /// The line, from 1.
        line: usize,
        reason: String,
    },
    /// Written by a later version.
    #[error("its version is {version}; this program reads version {FORMAT}")]
    Version { version: u32 },
}

impl Default for RestoreList {
    fn default() -> RestoreList {
        RestoreList { version: FORMAT, partitions: Vec::new() }
    }
}

impl RestoreList {
    /// Reads the file's text. An empty one is damaged: a file is made with an empty list.
    pub fn parse(text: &str) -> Result<RestoreList, RestoreListError> {
        /// The part common to all versions.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        if text.trim().is_empty() {
            return Err(RestoreListError::Damaged { line: 1, reason: "it is empty".into() });
        }
        let damaged = |error: serde_json::Error| RestoreListError::Damaged {
            line: error.line(),
            reason: error.to_string(),
        };
        let Head { version } = serde_json::from_str(text).map_err(damaged)?;
        if version != FORMAT {
            return Err(RestoreListError::Version { version });
        }
        serde_json::from_str(text).map_err(damaged)
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("numbers and strings are JSON");
        text.push('\n');
        text
    }

    /// Returns the list with this entry last, replacing another of its number.
    pub fn with(&self, entry: RestoreEntry) -> RestoreList {
        let mut list = self.without(entry.id);
        list.partitions.push(entry);
        list
    }

    /// Returns the list without the partition of this number.
    pub fn without(&self, id: u32) -> RestoreList {
        let partitions = self.partitions.iter().filter(|one| one.id != id).cloned().collect();
        RestoreList { version: FORMAT, partitions }
    }

    /// Returns the partition of this number.
    pub fn get(&self, id: u32) -> Option<&RestoreEntry> {
        self.partitions.iter().find(|one| one.id == id)
    }
}

/// The mode in which Fabric Manager has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// It waits for the list of active partitions and answers no other call before
    /// (`FABRIC_MODE_RESTART`).
    Restart,
    /// Nothing was active; this is its list.
    Normal(Vec<Listed>),
}

/// The action after Fabric Manager has restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restore {
    /// OnSignal it once that exactly these are active, possibly none.
    Set {
        /// Their numbers, in order.
        ids: Vec<u32>,
        /// Running domains whose partition is unknown: they lose their NVLinks.
        unplaced: Vec<Domain>,
    },
    /// Activate these one by one. Their guests have lost NVLink and need a power cycle: a guest
    /// that was running while Fabric Manager started stays broken.
    Activate {
        /// The partitions.
        entries: Vec<RestoreEntry>,
        /// Running domains whose partition is not listed, or not free.
        unplaced: Vec<Domain>,
    },
}

/// A partition of the board's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPartition {
    /// Its number.
    pub id: u32,
    /// Its GPUs.
    pub modules: Modules,
}

/// Decides which partitions are restored. `running`: none if libvirt is not up yet; then the file
/// alone decides. `known`: those of the board, for guests in neither the file nor Fabric Manager's
/// list.
pub fn restore(
    mode: &Mode,
    list: &RestoreList,
    running: Option<&[Running]>,
    known: &[KnownPartition],
) -> Restore {
    match (mode, running) {
        (Mode::Restart, None) => Restore::Set { ids: by_file(list), unplaced: Vec::new() },
        (Mode::Restart, Some(running)) => set(list, running, known),
        (Mode::Normal(listed), running) => activate(list, running, listed),
    }
}

/// Returns the numbers by the file alone. Of two that share GPUs, the later one was activated after
/// the other was deactivated.
fn by_file(list: &RestoreList) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut taken = Modules::new();
    for entry in list.partitions.iter().rev().filter(|entry| !entry.modules.is_empty()) {
        if taken.is_disjoint(&entry.modules) {
            taken.extend(&entry.modules);
            ids.push(entry.id);
        }
    }
    ids.sort_unstable();
    ids
}

/// Returns the file's entry for a running domain: its own, or one with the same GPUs.
fn entry_of<'l>(list: &'l RestoreList, one: &Running) -> Option<&'l RestoreEntry> {
    let is_its = |entry: &&RestoreEntry| entry.domain.eq_ignore_ascii_case(&one.domain.uuid);
    let same = |entry: &&RestoreEntry| entry.modules == one.modules && one.unknown == 0;
    // With unknown module ids, its own entry must contain the known GPUs and exactly as many others
    // as are unknown.
    let fits = |entry: &&RestoreEntry| {
        let count = one.modules.len() + one.unknown;
        let has_them = one.modules.is_subset(&entry.modules) && entry.modules.len() == count;
        same(entry) || one.unknown > 0 && has_them
    };
    let mut all = list.partitions.iter().rev();
    all.clone().find(|entry| is_its(entry) && fits(entry)).or_else(|| all.find(same))
}

/// Returns the partitions to set in restart mode if the running domains are known.
fn set(list: &RestoreList, running: &[Running], known: &[KnownPartition]) -> Restore {
    let (mut ids, mut unplaced) = (Vec::new(), Vec::new());
    let all: Modules = known.iter().flat_map(|one| &one.modules).copied().collect();
    for one in running.iter().filter(|one| !one.modules.is_empty() || one.unknown > 0) {
        let by_set = || {
            let same = known.iter().find(|known| one.has_exactly(&known.modules, &all));
            same.map(|known| known.id)
        };
        match entry_of(list, one).map(|entry| entry.id).or_else(by_set) {
            Some(id) => ids.push(id),
            None => unplaced.push(one.domain.clone()),
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Restore::Set { ids, unplaced }
}

/// Returns the partitions to activate in normal mode.
fn activate(list: &RestoreList, running: Option<&[Running]>, listed: &[Listed]) -> Restore {
    let (mut entries, mut unplaced) = (Vec::<RestoreEntry>::new(), Vec::new());
    let all = modules_of(listed);
    // Without libvirt it is unknown whether the file's guests run; activating a partition for a
    // stopped one would make it stale.
    for one in running.unwrap_or_default() {
        if one.modules.is_empty() && one.unknown == 0 {
            continue;
        }
        let modules = match entry_of(list, one) {
            Some(entry) if one.unknown > 0 => &entry.modules,
            None if one.unknown > 0 && one.has_exactly(&all, &all) => &all,
            // The partition with its GPUs is unknown.
            None if one.unknown > 0 => {
                unplaced.push(one.domain.clone());
                continue;
            }
            _ => &one.modules,
        };
        let found = listed.iter().find(|partition| partition.modules() == *modules);
        let is_taken = listed.iter().any(|other| {
            other.active && Some(other.id) != found.map(|found| found.id) && other.has_any(modules)
        });
        match found {
            Some(found) if found.active => {}
            Some(found) if !is_taken => entries.push(RestoreEntry {
                id: found.id,
                modules: modules.clone(),
                domain: one.domain.uuid.clone(),
                vfs: Vec::new(),
            }),
            _ => unplaced.push(one.domain.clone()),
        }
    }
    entries.sort_by_key(|entry| entry.id);
    Restore::Activate { entries, unplaced }
}

/// Returns entries of stopped domains whose partitions Fabric Manager does not list as inactive:
/// they are still to be deactivated, as when a guest stopped while Fabric Manager was down.
/// `listed`: none where it does not answer.
pub fn pending<'l>(
    list: &'l RestoreList,
    running: &[Running],
    listed: Option<&[Listed]>,
) -> Vec<&'l RestoreEntry> {
    // A partition whose GPUs another domain has now belongs to that one.
    let runs = |entry: &RestoreEntry| {
        let is_its = |one: &Running| one.domain.uuid.eq_ignore_ascii_case(&entry.domain);
        running.iter().any(|one| is_its(one) || one.has_any(&entry.modules))
    };
    let may_be_active = |entry: &RestoreEntry| match listed {
        None => true,
        Some(listed) => listed
            .iter()
            .any(|one| one.id == entry.id && one.active && one.modules() == entry.modules),
    };
    list.partitions.iter().filter(|entry| !runs(entry) && may_be_active(entry)).collect()
}
