//! Identities that distinguish an object from others of the same name: whatever is undone, ended or
//! removed is proven to be the one that was made. Paths, domain names and volume names can be
//! reused by anybody; a file's inode with its birth time, a UUID and an unguessable name cannot.

use gpuvm_core::domain::DomainXml;
use gpuvm_core::image::Sha256;
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The kernel's source of random UUIDs.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";
/// The kernel's id of the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileId {
    /// Its file system.
    pub device: u64,
    /// Its inode number, which another file may get once this one is gone.
    pub inode: u64,
    /// When it was created, in nanoseconds since 1970; `None` if its file system does not record
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth_ns: Option<u64>,
}

impl FileId {
    /// Returns the identity in a file's metadata.
    pub fn of(meta: &Metadata) -> FileId {
        let birth_ns = meta.created().ok().and_then(since_1970);
        FileId { device: meta.dev(), inode: meta.ino(), birth_ns }
    }

    /// Returns the identity of the file at a path, without following a link; `None` if it does not
    /// exist.
    pub fn at(path: &Path) -> io::Result<Option<FileId>> {
        match path.symlink_metadata() {
            Ok(meta) => Ok(Some(FileId::of(&meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether another is proven to be the same file. Some file systems get another device number
    /// at each boot; then the birth time must match. Without one nothing is proven: a file created
    /// after this one is removed may reuse its inode number.
    pub fn is(&self, other: &FileId, same_boot: bool) -> bool {
        let device = self.device == other.device || !same_boot;
        device && self.birth_ns.is_some() && self.may_be(other)
    }

    /// Whether another may be the same file, judged by its inode and birth time.
    pub fn may_be(&self, other: &FileId) -> bool {
        self.inode == other.inode && self.birth_ns == other.birth_ns
    }
}

/// The state of a disk's file at one time. A write leaves another one, whichever way the clock is
/// set meanwhile: only equality counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskState {
    /// Where it is.
    pub path: PathBuf,
    /// Which file it is.
    pub file: FileId,
    /// Its size.
    pub bytes: u64,
    /// When it was last written, in seconds since 1970, and the nanoseconds of that second.
    pub modified: (i64, i64),
    /// When it or its metadata last changed.
    pub changed: (i64, i64),
}

impl DiskState {
    /// Returns the state of the file at a path; `None` if it does not exist or is not seen.
    pub fn at(path: &Path) -> Option<DiskState> {
        let meta = path.metadata().ok()?;
        Some(DiskState {
            path: path.to_owned(),
            file: FileId::of(&meta),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// Which thing a step has made or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Identity {
    /// A file or a directory of this machine.
    File(FileId),
    /// A volume.
    Volume {
        /// libvirt's key.
        key: String,
        /// Its file, where it is one of this machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// A domain.
    Domain {
        /// Its UUID.
        uuid: String,
        /// Whether it had no NVRAM when it was defined, so that any NVRAM of it came later; false:
        /// it had, or older versions did not record it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bare: bool,
    },
    /// A domain from one start to its end.
    Run {
        /// Its UUID.
        uuid: String,
        /// Its number in that time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u32>,
    },
    /// Disks, as they were before they were reverted.
    Disks {
        /// One for each.
        disks: Vec<DiskState>,
    },
    /// A definition, as the hypervisor gave it back.
    Definition {
        /// The domain's UUID.
        uuid: String,
        /// The sum of its text.
        sum: Sha256,
    },
    /// A partition of Fabric Manager, which was not as it was to be.
    Partition {
        /// Its number.
        partition: u32,
    },
}

/// The name of one step of one change; others cannot guess it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The change's random name; `None` if older versions gave none.
    change: Option<String>,
    number: usize,
}

impl Mark {
    /// Makes the mark of a step.
    pub fn new(change: Option<&str>, number: usize) -> Mark {
        Mark { change: change.map(str::to_owned), number }
    }

    /// Returns it as part of a file name; `None` if the change has no random name.
    pub fn token(&self) -> Option<String> {
        let change = self.change.as_ref()?;
        let sum: String = Sha256::of_bytes(format!("{change} {}", self.number).as_bytes()).into();
        Some(sum.chars().take(32).collect())
    }

    /// Returns it as a UUID; `None` if the change has no random name.
    pub fn uuid(&self) -> Option<String> {
        let token = self.token()?;
        let part = |from: usize, to: usize| token.get(from..to);
        // Version 4 (random) and the variant bits.
        let (a, b, c) = (part(0, 8)?, part(8, 12)?, part(13, 16)?);
        let (d, e) = (part(17, 20)?, part(20, 32)?);
        Some(format!("{a}-{b}-4{c}-8{d}-{e}"))
    }
}

/// The evidence that an object was made by a step.
#[derive(Debug, Clone)]
pub struct Proof<'a> {
    /// The step's own name.
    pub mark: Mark,
    /// The object that it made, as far as known.
    pub made: Option<Identity>,
    /// When it began, in nanoseconds since 1970; `None` if older versions did not record it.
    pub begun_ns: Option<u64>,
    /// Whether the machine has not booted since.
    pub same_boot: bool,
    /// The names of running guests that may be ended; `None` for those started by this very run.
    pub ends: Option<&'a [String]>,
}

/// The time of a file system as nanoseconds since 1970.
fn since_1970(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// The time now, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    since_1970(SystemTime::now()).unwrap_or_default()
}

/// A random UUID, with dashes, in lower case.
pub fn random_uuid() -> io::Result<String> {
    Ok(std::fs::read_to_string(RANDOM)?.trim().to_owned())
}

/// Returns the id of this boot of the machine; empty if the kernel does not report it.
pub fn boot_id() -> String {
    std::fs::read_to_string(BOOT).map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The UUID of a definition; `None` if it has none.
pub fn uuid_of(xml: &str) -> Option<String> {
    DomainXml::parse(xml).ok()?.uuid()
}

/// Returns the checksum of a definition.
pub fn sum_of(xml: &str) -> Sha256 {
    Sha256::of_bytes(xml.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_one_step_of_one_change() {
        let uuid = Mark::new(Some("a"), 3).uuid().unwrap();
        assert_eq!(uuid.len(), 36, "{uuid}");
        assert!(uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{uuid}");
        assert_eq!(Mark::new(Some("a"), 3).uuid().unwrap(), uuid);
        assert_ne!(Mark::new(Some("a"), 4).uuid().unwrap(), uuid);
        assert_ne!(Mark::new(Some("b"), 3).uuid().unwrap(), uuid);
        assert_eq!(Mark::new(None, 3).token(), None);
    }

    #[test]
    fn a_recreated_file_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "").unwrap();
        let first = FileId::at(&path).unwrap().unwrap();
        assert!(first.is(&FileId::at(&path).unwrap().unwrap(), true));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(FileId::at(&path).unwrap(), None);
        std::fs::write(&path, "").unwrap();
        let second = FileId::at(&path).unwrap().unwrap();
        assert!(!first.is(&second, true), "{first:?} {second:?}");
        let elsewhere = FileId { device: first.device + 1, ..first };
        assert!(first.is(&elsewhere, false));
        assert!(!first.is(&elsewhere, true));
    }

    #[test]
    fn a_number_without_a_birth_proves_nothing() {
        let unborn = FileId { device: 1, inode: 2, birth_ns: None };
        assert!(!unborn.is(&unborn, true) && !unborn.is(&unborn, false) && unborn.may_be(&unborn));
        let born = FileId { birth_ns: Some(3), ..unborn };
        assert!(born.is(&born, true) && !unborn.may_be(&born) && !born.may_be(&unborn));
    }
}
