//! The list of GPUs and NVSwitches that an admin excluded: reads its file and finds the functions
//! on this host. Does not write the file.
//!
//! An entry made by UUID follows the GPU to another slot and does not apply to its replacement; an
//! entry made by address applies to the slot. UUIDs are known only for GPUs bound to the NVIDIA
//! driver; if unknown, the entry's address counts.

use super::cards::{Card, cards};
use super::test_policy::of_unreadable;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file, below the root.
pub const FILE: &str = "etc/gpuvm/excluded.json";

/// The first word of the file.
const FORMAT: &str = "gpuvm-excluded";
const VERSION: u32 = 1;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Where the function was when it was excluded.
    pub bdf: Bdf,
    /// UUID of the GPU, if it was excluded by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The admin's reason; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// [`FORMAT`].
    format: String,
    /// [`VERSION`].
    version: u32,
    excluded: Vec<Entry>,
}

/// The entries of a host's file; empty without a file.
pub fn entries(root: &FsRoot) -> Result<Vec<Entry>, FsError> {
    let known = (FORMAT, VERSION);
    let file = root.document(FILE, known, |file: &File| (&file.format, file.version))?;
    Ok(file.map(|file| file.excluded).unwrap_or_default())
}

/// Returns the hint for an error of the file; `None`: it is of another.
pub fn hint(error: &FsError) -> Option<String> {
    let FsError::Unreadable { path, source } = error else { return None };
    path.ends_with(FILE).then(|| of_unreadable(path, source))
}

/// The text of a file with these entries.
pub fn to_json(entries: &[Entry]) -> String {
    let file = File { format: FORMAT.into(), version: VERSION, excluded: entries.to_vec() };
    let text = serde_json::to_string_pretty(&file).expect("the values have only string keys");
    text + "\n"
}

/// Returns the current address of an entry's function; `None` if another GPU has taken its place.
pub fn place(entry: &Entry, cards: &BTreeMap<Bdf, Card>) -> Option<Bdf> {
    let Some(uuid) = &entry.uuid else { return Some(entry.bdf) };
    let has = |card: &Card| card.uuid.as_ref() == Some(uuid);
    if let Some((bdf, _)) = cards.iter().find(|(_, card)| has(card)) {
        return Some(*bdf);
    }
    let known = cards.get(&entry.bdf).is_some_and(|card| card.uuid.is_some());
    (!known).then_some(entry.bdf)
}

/// Functions of this host that are excluded, by address, with the reasons: by the admin, or by the
/// NVIDIA driver's own list.
pub fn excluded(root: &FsRoot) -> Result<BTreeMap<Bdf, String>, FsError> {
    let cards = cards(root)?;
    let mut excluded = BTreeMap::new();
    for (bdf, _) in cards.iter().filter(|(_, card)| card.is_excluded) {
        excluded.insert(*bdf, "by the NVIDIA driver (NVreg_ExcludedGpus)".to_owned());
    }
    for entry in entries(root)? {
        if let Some(bdf) = place(&entry, &cards) {
            excluded.insert(bdf, entry.reason);
        }
    }
    Ok(excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_follows_its_gpu_or_its_slot() {
        let [slot, other] = ["34:00.0", "36:00.0"].map(|text| text.parse::<Bdf>().unwrap());
        let card = |uuid: &str| Card { uuid: Some(uuid.into()), is_excluded: false };
        let by_slot = Entry { bdf: slot, uuid: None, reason: String::new() };
        let by_uuid = Entry { uuid: Some("GPU-a".into()), ..by_slot.clone() };
        for (cards, of_slot, of_uuid) in [
            (vec![], slot, Some(slot)),
            (vec![(slot, card("GPU-a"))], slot, Some(slot)),
            (vec![(other, card("GPU-a"))], slot, Some(other)),
            (vec![(slot, card("GPU-b"))], slot, None),
            (vec![(slot, Card::default())], slot, Some(slot)),
            (vec![(slot, card("GPU-b")), (other, card("GPU-a"))], slot, Some(other)),
        ] {
            let cards = BTreeMap::from_iter(cards);
            assert_eq!(place(&by_slot, &cards), Some(of_slot));
            assert_eq!(place(&by_uuid, &cards), of_uuid, "{cards:?}");
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(entries(&root).unwrap(), []);
        std::fs::create_dir_all(dir.path().join("etc/gpuvm")).unwrap();
        let path = dir.path().join(FILE);
        let entry = Entry {
            bdf: "34:00.0".parse().unwrap(),
            uuid: None,
            reason: "ECC \"errors\"\nof June".into(),
        };
        let good = to_json(std::slice::from_ref(&entry));
        std::fs::write(&path, &good).unwrap();
        assert_eq!(entries(&root).unwrap(), [entry]);
        for (text, line) in [
            (String::new(), 1),
            ("{}".into(), 1),
            (good.replace("\"bdf\"", "\"bfd\""), 6),
            (good.replace("0000:34:00.0", "0000:34:00.9"), 6),
            (good.replace("gpuvm-excluded", "gpuvm-host"), 1),
            (good.replace("\"version\": 1", "\"version\": 2"), 1),
            (good[..good.len() / 2].into(), 6),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = entries(&root).unwrap_err().to_string();
            assert!(error.contains("etc/gpuvm/excluded.json line "), "{text}: {error}");
            let found: u32 =
                error.split(" line ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
            assert!(found <= line && found >= 1, "{text}: {error}");
        }
    }
}
