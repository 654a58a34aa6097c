//! Running md arrays, as reported by the kernel.

use super::device_users::partitions;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::DriveUse;

/// A running md array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The kernel's name: `md1`.
    pub name: String,
    /// `raid0`, `raid1`, `raid10`.
    pub level: String,
    /// Version of its superblocks (`1.2`), `external:...`, or `none`.
    pub metadata: String,
    /// Layout, in the kernel's number.
    pub layout: u32,
    /// Chunk in bytes; 0 where the level has none.
    pub chunk_bytes: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Members that it should have.
    pub wanted: usize,
    /// The kernel's names of the members, by slot; spares last.
    pub members: Vec<(Option<u32>, String)>,
    /// `idle`, or its activity: `resync`, `recover`, `reshape`; empty for levels without
    /// redundancy.
    pub action: String,
    /// Names of its partitions.
    pub partitions: Vec<String>,
}

/// Reads an array; none where no array of this name runs.
pub fn array(root: &FsRoot, name: &str) -> Result<Option<Array>, FsError> {
    let path = format!("sys/class/block/{name}");
    let Some(dir) = root.dir(&path)? else { return Ok(None) };
    let Some(md) = dir.dir("md")? else { return Ok(None) };
    let mut members = Vec::new();
    for entry in md.names()? {
        let Some(member) = entry.strip_prefix("dev-") else { continue };
        let slot = match md.dir(&entry)? {
            // `none` for spares and failed members.
            Some(dir) => dir.read_if_any("slot")?.and_then(|slot| slot.parse::<u32>().ok()),
            None => None,
        };
        // The kernel writes `!` for a `/` in a name.
        members.push((slot, member.replace('!', "/")));
    }
    if members.is_empty() {
        return Ok(None);
    }
    members.sort_by_key(|(slot, name)| (slot.is_none(), *slot, name.clone()));
    let text =
        |name: &str| -> Result<String, FsError> { Ok(md.read_if_any(name)?.unwrap_or_default()) };
    let sectors: u64 = dir.number("size")?.unwrap_or(0);
    Ok(Some(Array {
        name: name.to_owned(),
        level: text("level")?,
        metadata: text("metadata_version")?,
        // -1 where the level has none.
        layout: text("layout")?.parse::<i64>().ok().and_then(|n| n.try_into().ok()).unwrap_or(0),
        chunk_bytes: md.number("chunk_size")?.unwrap_or(0),
        bytes: sectors.saturating_mul(512),
        // While it is reshaped: `4 (3)`.
        wanted: text("raid_disks")?
            .split_whitespace()
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0),
        members,
        action: text("sync_action")?,
        partitions: partitions(root, name)?,
    }))
}

/// The layout in mdadm's words; none if the level has only one. An error if the kernel's number is
/// unknown.
pub fn layout(level: &str, number: u32) -> Result<Option<String>, u32> {
    match level {
        "raid5" | "raid6" => {
            let words =
                ["left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric"];
            let word = usize::try_from(number).ok().and_then(|number| words.get(number));
            word.map(|word| Some((*word).to_owned())).ok_or(number)
        }
        // Near copies in the lowest byte, far ones in the next, and whether far means offset
        // (md(4), raid10.c).
        "raid10" => match (number & 0xff, number >> 8 & 0xff, number >> 16) {
            (near, 1, 0) if near > 0 => Ok(Some(format!("n{near}"))),
            (1, far, 0) if far > 0 => Ok(Some(format!("f{far}"))),
            (1, far, 1) if far > 0 => Ok(Some(format!("o{far}"))),
            _ => Err(number),
        },
        _ => Ok(None),
    }
}

/// Describes the first of these uses that the host needs to boot.
pub fn system_use(name: &str, uses: &[DriveUse]) -> Option<String> {
    uses.iter().find(|used| used.is_system()).map(|used| used.says(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_read_with_its_members_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let md = dir.path().join("sys/class/block/md1/md");
        for (file, text) in [
            ("level", "raid10"),
            ("metadata_version", "1.2"),
            ("layout", "258"),
            ("chunk_size", "524288"),
            ("raid_disks", "2 (3)"),
            ("sync_action", "idle"),
            ("dev-b/slot", "0"),
            ("dev-a/slot", "1"),
            ("dev-c/slot", "none"),
            ("../size", "8"),
            ("../dev", "9:1"),
            ("../md1p1/partition", "1"),
        ] {
            let path = md.join(file);
            std::fs::create_dir_all(&md).unwrap();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        let root = FsRoot::at(dir.path()).unwrap();
        assert_eq!(array(&root, "md2").unwrap(), None);
        let found = array(&root, "md1").unwrap().unwrap();
        let members: Vec<_> =
            found.members.iter().map(|(slot, name)| (*slot, name.as_str())).collect();
        assert_eq!(members, [(Some(0), "b"), (Some(1), "a"), (None, "c")]);
        assert_eq!((found.bytes, found.chunk_bytes, found.wanted), (4096, 524_288, 2));
        assert_eq!(found.partitions, ["md1p1"]);
        // An array without members is one that was stopped.
        for member in ["dev-a", "dev-b", "dev-c"] {
            std::fs::remove_dir_all(md.join(member)).unwrap();
        }
        assert_eq!(array(&root, "md1").unwrap(), None);
    }

    #[test]
    fn layouts_are_named_as_mdadm_does() {
        let text = |level, number| layout(level, number).map(|word| word.unwrap_or_default());
        assert_eq!(text("raid0", 1), Ok(String::new()));
        assert_eq!(text("raid5", 2), Ok("left-symmetric".into()));
        assert_eq!(text("raid5", 16), Err(16));
        for (number, word) in [(0x102, "n2"), (0x201, "f2"), (0x1_0201, "o2"), (0x103, "n3")] {
            assert_eq!(text("raid10", number), Ok(word.into()));
        }
        for number in [0, 0x202, 0x2_0201, 0x1_0102] {
            assert_eq!(text("raid10", number), Err(number));
        }
    }
}
