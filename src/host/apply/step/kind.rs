//! Kinds of steps: their names in documents, and those that this version does not know.

use super::{
    CheckStep, DeviceStep, DomainStep, FileStep, HostStep, LiveStep, PartitionChange, SnapshotStep,
    Step, VolumeStep,
};
use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::LazyLock;

/// The steps of a noun.
struct Kinds {
    names: &'static [&'static str],
    read: fn(Value) -> Result<Step, serde_json::Error>,
}

static NOUNS: LazyLock<[Kinds; 9]> = LazyLock::new(|| {
    [
        Kinds::of::<DomainStep>(),
        Kinds::of::<SnapshotStep>(),
        Kinds::of::<LiveStep>(),
        Kinds::of::<VolumeStep>(),
        Kinds::of::<CheckStep>(),
        Kinds::of::<FileStep>(),
        Kinds::of::<DeviceStep>(),
        Kinds::of::<PartitionChange>(),
        Kinds::of::<HostStep>(),
    ]
});
static NAMES: LazyLock<Vec<&str>> =
    LazyLock::new(|| NOUNS.iter().flat_map(|noun| noun.names).copied().collect());

/// The error of a name that a noun has no step of: the names that it has.
#[derive(Debug)]
struct StepNames(&'static [&'static str]);

impl fmt::Display for StepNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl std::error::Error for StepNames {}

impl Error for StepNames {
    fn custom<T: fmt::Display>(_: T) -> StepNames {
        StepNames(&[])
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> StepNames {
        StepNames(known)
    }
}

impl Kinds {
    /// Reads a step without a name, for the list of names in documents.
    fn of<T: DeserializeOwned + Into<Step>>() -> Kinds {
        let unnamed = MapDeserializer::new([("step", "")].into_iter());
        let names = T::deserialize(unnamed).err().map_or(&[][..], |StepNames(names)| names);
        Kinds { names, read: |value| serde_json::from_value::<T>(value).map(T::into) }
    }
}

/// The name leads to the noun, whose error is then the one to report.
impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Step, D::Error> {
        let fields = Map::deserialize(from)?;
        let name = fields.get("step").ok_or_else(|| D::Error::missing_field("step"))?;
        let name = String::deserialize(name).map_err(D::Error::custom)?;
        let Some(noun) = NOUNS.iter().find(|noun| noun.names.contains(&&*name)) else {
            return Err(D::Error::unknown_variant(&name, &NAMES));
        };
        (noun.read)(Value::Object(fields))
            .map_err(|error| D::Error::custom(format_args!("step `{name}`: {error}")))
    }
}

impl Step {
    /// The names of all kinds in documents.
    pub fn kinds() -> &'static [&'static str] {
        &NAMES
    }
}

/// Returns the kind of the first step in a document that this version has no step of; `None` if all
/// are known, or it is no document.
pub fn unknown_step(text: &str) -> Option<String> {
    unknown(&serde_json::from_str(text).ok()?).map(str::to_owned)
}

fn unknown(value: &Value) -> Option<&str> {
    match value {
        Value::Array(all) => all.iter().find_map(unknown),
        Value::Object(fields) => {
            let kind = fields.get("step").and_then(Value::as_str);
            let of_this = kind.filter(|kind| !NAMES.contains(kind));
            of_this.or_else(|| fields.values().find_map(unknown))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_version_is_distinguished_from_damage() {
        let path = std::path::PathBuf::from("/a");
        let known = Step::from(FileStep::DeleteDisk { path, file: None });
        let text = serde_json::to_string(&[known]).unwrap();
        assert_eq!(unknown_step(&text), None);
        let newer = text.replace("delete-disk", "polish-lens");
        assert_eq!(unknown_step(&newer).as_deref(), Some("polish-lens"));
        assert_eq!(unknown_step(&newer[1..]), None);
        // The names are those of the documents.
        let wrong = serde_json::from_str::<Step>("{\"step\":\"x\"}").unwrap_err().to_string();
        for kind in Step::kinds() {
            assert!(wrong.contains(&format!("`{kind}`")), "{kind}: {wrong}");
        }
    }
}
