//! Storage pools and volumes as the rest of the program sees them: where images, guests' disks and
//! seeds are created, so that they can be on another machine (`qemu+ssh://`), too.

use super::HypervisorError;
use gpuvm_core::domain::guest::Abilities;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Kinds of pools whose volumes are files, so that their content shows their format.
pub const FILE_POOLS: [&str; 3] = ["dir", "fs", "netfs"];

/// Whether the volumes of a kind of pools are files.
pub fn is_file_pool(kind: &str) -> bool {
    FILE_POOLS.contains(&kind)
}

/// A pool of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its kind, as libvirt calls it: `dir`, `fs`, `logical`.
    pub kind: String,
    /// Where its volumes are on the hypervisor's machine; none where that is no path.
    pub path: Option<PathBuf>,
    /// Whether it can be used now.
    pub active: bool,
    /// Size in bytes; 0 where it is not active.
    pub capacity_bytes: u64,
    /// Bytes that are free; 0 where it is not active.
    pub available_bytes: u64,
}

/// How the bytes of a volume are laid out, as libvirt read it from the volume's own first bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Volume {
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
    /// Where it is on the hypervisor's machine.
    pub path: PathBuf,
    /// Format: `raw`, `qcow2`.
    pub format: String,
    /// Size seen by a guest, in bytes.
    pub capacity_bytes: u64,
    /// Bytes that it occupies now.
    pub allocation_bytes: u64,
    /// Its backing file; `None` if no backing file.
    pub backing: Option<PathBuf>,
    /// When it was last written, in nanoseconds since 1970; `None` if libvirt does not report it.
    pub modified_ns: Option<u64>,
}

/// The identity of a volume, as opposed to another of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeId {
    /// libvirt's key: its path in a pool of files, its own number elsewhere.
    pub key: String,
    /// Where it is on the hypervisor's machine.
    pub path: PathBuf,
    /// Size seen by a guest, in bytes.
    pub capacity_bytes: u64,
}

/// A volume to be created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewVolume {
    /// Its name in the pool.
    pub name: String,
    /// Format: `raw`, `qcow2`.
    pub format: String,
    /// Size seen by a guest, in bytes.
    pub capacity_bytes: u64,
    /// Whether it is preallocated.
    pub preallocated: bool,
    /// Its backing file, with the format of that; `None` if no backing file.
    pub backing: Option<(PathBuf, String)>,
    /// Permissions, such as 0o600.
    pub mode: u32,
}

/// A progress callback with the number of bytes so far; false cancels.
pub type Progress<'p> = &'p mut dyn FnMut(u64) -> bool;

/// A hypervisor's storage.
pub trait Storage {
    /// Its disk features beyond the common ones; none if they cannot be probed. Features of passed
    /// functions are not among them.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }
    /// Probes them and the guests that it can run from now on, while the caller does something
    /// else.
    fn ask_ahead(&self) {}
    /// Every pool, by name.
    fn pools(&self) -> Result<Vec<Pool>, HypervisorError>;
    /// Whether it can make pools: some drivers have no storage.
    fn makes_pools(&self) -> Result<bool, HypervisorError> {
        Ok(true)
    }
    /// Makes a pool of a directory, creating it if missing: defined, started, and autostarted; with
    /// this UUID, if given.
    fn make_pool(&self, name: &str, dir: &Path, uuid: Option<&str>) -> Result<(), HypervisorError>;
    /// The UUID of a pool; `None` if there is no such pool, or it has none.
    fn pool_uuid(&self, _name: &str) -> Result<Option<String>, HypervisorError> {
        Ok(None)
    }
    /// Returns the identity of a volume; `None` if there is no such volume.
    fn volume_id(&self, pool: &str, name: &str) -> Result<Option<VolumeId>, HypervisorError>;
    /// Stops and undefines a pool. Its volumes stay; its directory is removed if empty.
    fn forget_pool(&self, name: &str) -> Result<(), HypervisorError>;
    /// Has it look for the files of a pool until it knows this one, which was put there.
    fn find_files(&self, _pool: &str, _name: &str) -> Result<(), HypervisorError> {
        Ok(())
    }
    /// Whether a pool is copying or filling a volume, so that it does not look at its files.
    fn is_busy(&self, _pool: &str) -> Result<bool, HypervisorError> {
        Ok(false)
    }
    /// The volumes of a pool, by name, as they are now.
    fn volumes(&self, pool: &str) -> Result<Vec<Volume>, HypervisorError>;
    /// Makes a volume; never replaces one.
    fn make_volume(&self, pool: &str, new: &NewVolume) -> Result<PathBuf, HypervisorError>;
    /// Makes a volume with the content of another, given by pool and name; never replaces one.
    fn copy_volume(
        &self,
        pool: &str,
        new: &NewVolume,
        from: (&str, &str),
    ) -> Result<PathBuf, HypervisorError>;
    /// Makes a volume larger.
    fn grow_volume(&self, pool: &str, name: &str, bytes: u64) -> Result<(), HypervisorError>;
    /// Deletes a volume.
    fn delete_volume(&self, pool: &str, name: &str) -> Result<(), HypervisorError>;
    /// Fills a volume from its first byte.
    fn upload(
        &self,
        pool: &str,
        name: &str,
        from: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<(), HypervisorError>;
    /// Reads `bytes` of a volume from `offset`, fewer if it ends before.
    fn download(
        &self,
        pool: &str,
        name: &str,
        range: std::ops::Range<u64>,
        to: &mut dyn Write,
    ) -> Result<(), HypervisorError>;
}

/// libvirt's XML of pools and volumes.
#[cfg(feature = "libvirt")]
pub(super) mod xml {
    use super::NewVolume;
    use serde::{Deserialize, Serialize};
    use std::path::Path;

    /// An element with a type.
    #[derive(Debug, Serialize, Deserialize)]
    pub struct Format {
        /// The format's name.
        #[serde(rename = "@type")]
        pub name: String,
    }

    /// The permissions of a directory or file.
    #[derive(Debug, Default, Serialize, Deserialize)]
    pub struct Permissions {
        /// Four octal digits.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mode: Option<String>,
    }

    /// Timestamps of a volume.
    #[derive(Debug, Serialize, Deserialize)]
    pub struct Timestamps {
        /// When it was last written: seconds since 1970 with nine decimals, or whole seconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mtime: Option<String>,
    }

    impl Timestamps {
        /// When it was last written, in nanoseconds since 1970; none if unknown.
        pub fn modified_ns(&self) -> Option<u64> {
            let (seconds, rest) = match self.mtime.as_deref()?.split_once('.') {
                Some((seconds, rest)) => (seconds, format!("{rest:0<9}")),
                None => (self.mtime.as_deref()?, "0".into()),
            };
            let rest: u64 = rest.get(..9).unwrap_or(&rest).parse().ok()?;
            seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(rest)
        }
    }

    /// The location of a pool or a volume.
    #[derive(Debug, Default, Serialize, Deserialize)]
    pub struct Target {
        /// A path on the hypervisor's machine.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Its format.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub format: Option<Format>,
        /// Its permissions.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub permissions: Option<Permissions>,
        /// Its timestamps.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timestamps: Option<Timestamps>,
    }

    /// A pool.
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename = "pool")]
    pub struct Pool {
        /// Its kind.
        #[serde(rename = "@type")]
        pub kind: String,
        /// Its name.
        pub name: String,
        /// Its UUID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uuid: Option<String>,
        /// Where it is.
        #[serde(default)]
        pub target: Target,
    }

    /// A size.
    #[derive(Debug, Serialize, Deserialize)]
    pub struct Bytes {
        /// Its unit; libvirt writes bytes.
        #[serde(rename = "@unit", default = "Bytes::unit")]
        pub unit: String,
        /// Its number.
        #[serde(rename = "$text")]
        pub number: u64,
    }

    impl Bytes {
        /// The only unit here.
        fn unit() -> String {
            "bytes".into()
        }

        /// This many bytes.
        fn of(number: u64) -> Bytes {
            Bytes { unit: Bytes::unit(), number }
        }
    }

    /// A volume.
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename = "volume")]
    pub struct Volume {
        /// Its name.
        pub name: String,
        /// The size that a guest sees.
        pub capacity: Bytes,
        /// The space that it takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub allocation: Option<Bytes>,
        /// Where it is.
        #[serde(default)]
        pub target: Target,
        /// Its backing file.
        #[serde(rename = "backingStore", default, skip_serializing_if = "Option::is_none")]
        pub backing: Option<Target>,
    }

    /// The document of a directory pool.
    pub fn new_pool(name: &str, dir: &Path, uuid: Option<&str>) -> String {
        let uuid = uuid.map(str::to_owned);
        let target = Target {
            path: Some(dir.to_string_lossy().into_owned()),
            permissions: Some(Permissions { mode: Some("0711".into()) }),
            ..Target::default()
        };
        write(&Pool { kind: "dir".into(), name: name.into(), uuid, target })
    }

    /// The document of a new volume.
    pub fn new_volume(new: &NewVolume) -> String {
        let format = |name: &str| Some(Format { name: name.into() });
        write(&Volume {
            name: new.name.clone(),
            capacity: Bytes::of(new.capacity_bytes),
            allocation: Some(Bytes::of(if new.preallocated { new.capacity_bytes } else { 0 })),
            target: Target {
                format: format(&new.format),
                permissions: Some(Permissions { mode: Some(format!("{:04o}", new.mode & 0o7777)) }),
                ..Target::default()
            },
            backing: new.backing.as_ref().map(|(path, kind)| Target {
                path: Some(path.to_string_lossy().into_owned()),
                format: format(kind),
                ..Target::default()
            }),
        })
    }

    fn write<T: Serialize>(document: &T) -> String {
        quick_xml::se::to_string(document).expect("plain values with names that XML takes")
    }

    /// Reads a document.
    pub fn read<'x, T: Deserialize<'x>>(text: &'x str) -> Result<T, String> {
        quick_xml::de::from_str(text).map_err(|error| error.to_string())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn documents_are_written_with_names_escaped() {
            let new = NewVolume {
                name: "a<b>&'c".into(),
                format: "qcow2".into(),
                capacity_bytes: 1 << 30,
                preallocated: true,
                backing: Some(("/p/base&.img".into(), "raw".into())),
                mode: 0o600,
            };
            let text = new_volume(&new);
            assert!(!text.contains("<b>"), "{text}");
            let back: Volume = read(&text).unwrap();
            assert_eq!(back.name, new.name);
            assert_eq!((back.capacity.number, back.allocation.unwrap().number), (1 << 30, 1 << 30));
            assert_eq!(back.target.format.unwrap().name, "qcow2");
            assert_eq!(back.target.permissions.unwrap().mode.unwrap(), "0600");
            let backing = back.backing.unwrap();
            assert_eq!(backing.path.as_deref(), Some("/p/base&.img"));
            let pool = new_pool("x", Path::new("/var/lib/x"), None);
            let back: Pool = read(&pool).unwrap();
            assert_eq!((&back.kind[..], back.target.path.as_deref()), ("dir", Some("/var/lib/x")));
        }

        #[test]
        fn libvirts_own_document_is_read() {
            let text = "<volume type='file'><name>a.qcow2</name><key>/p/a.qcow2</key><source></source>\
                        <capacity unit='bytes'>53687091200</capacity>\
                        <allocation unit='bytes'>200704</allocation><physical \
                        unit='bytes'>196624</physical>\
                        <target><path>/p/a.qcow2</path><format \
                        type='qcow2'/><permissions><mode>0600</mode>\
                        <owner>0</owner><group>0</group></permissions><timestamps><atime>1.2</atime>\
                        <mtime>1700000000.000000042</mtime></timestamps><compat>1.1</compat><features/></target>\
                        <backingStore><path>/p/base</path><format type='raw'/></backingStore></volume>";
            let volume: Volume = read(text).unwrap();
            assert_eq!(volume.capacity.number, 53_687_091_200);
            let modified = volume.target.timestamps.unwrap().modified_ns();
            assert_eq!(modified, Some(1_700_000_000_000_000_042));
            for (seconds, expected) in [
                ("7", Some(7_000_000_000)),
                ("7.5", Some(7_500_000_000)),
                ("-1", None),
                ("x.y", None),
            ] {
                assert_eq!(
                    Timestamps { mtime: Some(seconds.into()) }.modified_ns(),
                    expected,
                    "{seconds}"
                );
            }
            assert_eq!(volume.backing.unwrap().path.as_deref(), Some("/p/base"));
            assert!(read::<Volume>("<volume><name>x</name>").is_err());
        }
    }
}
