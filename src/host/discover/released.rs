//! Records of arrays released for guests, from which they can be restored. Reads and checks them;
//! [`crate::apply`] writes them.

use crate::fsroot::{FsError, FsRoot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where the records are, one file each.
pub const DIRECTORY: &str = "var/lib/gpuvm/arrays";
/// The first word of a record.
pub const FORMAT: &str = "gpuvm-array";
/// The version of its form.
pub const VERSION: u32 = 1;

/// A released array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Released {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The kernel's name when it was released, which names the record: `md1`.
    pub name: String,
    /// Its UUID as mdadm writes it: four groups of eight digits with colons between.
    pub uuid: String,
    /// Its own name in its superblocks, with or without a host name: `dgx:raid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md_name: Option<String>,
    /// `raid0`, `raid10`.
    pub level: String,
    /// Version of the superblocks: `1.2`.
    pub metadata: String,
    /// Layout in mdadm's words, such as `left-symmetric`; `None` if the level has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Chunk size in bytes; `None` if the level has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// Members, in the order of their slots.
    pub members: Vec<Member>,
    /// The file system on the whole array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<FileSystem>,
    /// Where it was mounted, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountedAt>,
    /// The lines of /etc/fstab that were commented.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fstab: Vec<String>,
    /// The file of mdadm's configuration.
    pub mdadm_conf: String,
    /// Its lines that were commented out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub array_lines: Vec<String>,
}

impl Released {
    /// Returns how many members, whichever they are, it can lose without losing data (md(4)).
    pub fn spares(&self) -> usize {
        let copies = |layout: &String| layout.get(1..)?.parse::<usize>().ok();
        match self.level.as_str() {
            "raid1" => self.members.len().saturating_sub(1),
            "raid4" | "raid5" => 1,
            "raid6" => 2,
            // The number after `n`, `f` or `o` is the number of copies.
            "raid10" => self.layout.as_ref().and_then(copies).unwrap_or(1).saturating_sub(1),
            _ => 0,
        }
    }
}

/// A member of a released array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its name in /dev/disk/by-id, which stays when the kernel's name changes.
    pub id: String,
    /// The kernel's name when the array was released; for people.
    pub name: String,
}

/// The file system of a released array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileSystem {
    /// `ext4`.
    pub kind: String,
    /// Its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A mount of a released array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MountedAt {
    /// Where.
    pub at: String,
    /// Type of the file system.
    pub kind: String,
    /// Options.
    pub options: String,
}

/// The file of a record, below the root.
pub fn file(name: &str) -> String {
    format!("{DIRECTORY}/{name}.json")
}

/// Names of the arrays that were released.
pub fn names(root: &FsRoot) -> Result<Vec<String>, FsError> {
    let files = root.names(DIRECTORY)?;
    Ok(files.iter().filter_map(|file| file.strip_suffix(".json")).map(str::to_owned).collect())
}

/// The record of an array; none if it was not released.
pub fn read(root: &FsRoot, name: &str) -> Result<Option<Released>, FsError> {
    let path = file(name);
    let known = (FORMAT, VERSION);
    let released = root.document(&path, known, |one: &Released| (&one.format, one.version))?;
    let Some(released) = released else { return Ok(None) };
    if released.name != name {
        return Err(root.malformed(&path, 1, format!("it is of `{}`", released.name)));
    }
    Ok(Some(released))
}

/// UUIDs of the released arrays, without punctuation. An unreadable record releases nothing.
pub fn uuids(root: &FsRoot) -> BTreeSet<String> {
    let names = names(root).unwrap_or_default();
    let records = names.iter().filter_map(|name| read(root, name).ok()?);
    records.map(|record| plain(&record.uuid)).collect()
}

/// Returns a UUID without punctuation, in lower case: mdadm groups the digits by eights with
/// colons, udev in the usual way.
pub fn plain(uuid: &str) -> String {
    uuid.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_can_lose_what_its_level_and_layout_keep_elsewhere() {
        let of = |level: &str, layout: Option<&str>| {
            let member = Member { id: "/dev/disk/by-id/a".into(), name: "a".into() };
            let array = Released {
                format: FORMAT.into(),
                version: VERSION,
                name: "md1".into(),
                uuid: String::new(),
                md_name: None,
                level: level.into(),
                metadata: "1.2".into(),
                layout: layout.map(str::to_owned),
                chunk_bytes: None,
                bytes: 0,
                members: vec![member; 4],
                file_system: None,
                mounts: Vec::new(),
                fstab: Vec::new(),
                mdadm_conf: String::new(),
                array_lines: Vec::new(),
            };
            array.spares()
        };
        assert_eq!([of("raid0", None), of("linear", None), of("raid1", None)], [0, 0, 3]);
        let striped = ["raid4", "raid5", "raid6"].map(|level| of(level, Some("left-symmetric")));
        assert_eq!(striped, [1, 1, 2]);
        assert_eq!(["n2", "f3", "o1"].map(|layout| of("raid10", Some(layout))), [1, 2, 0]);
        assert_eq!(of("raid10", None), 0);
    }
}
