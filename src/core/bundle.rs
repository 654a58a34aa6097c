//! Bundles: a guest that is off as a directory that another host of ours makes it from again. Its
//! manifest says which files belong to it; a list of checksums beside it identifies their content.
//! Knows no files: names and numbers of a manifest are judged before anything of them is opened.

use crate::domain::guest::Role;
use crate::request::DomainName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The manifest's file.
pub const MANIFEST: &str = "manifest.json";
/// The definition's file.
pub const DEFINITION: &str = "domain.xml";
/// The file of checksums, as `sha256sum` writes and checks it; a bundle without it is not whole.
pub const SUMS: &str = "SHA256SUMS";
const FORMAT: &str = "gpuvm-bundle";
/// The version of the form that is written, and the newest that is read.
const VERSION: u32 = 1;
/// The most disks of a guest.
const MOST_DISKS: usize = 64;
/// The largest disk, in bytes: 64 TiB.
const LARGEST: u64 = 64 << 40;
/// The largest file of a firmware's settings, in bytes.
const LARGEST_NVRAM: u64 = 64 << 20;
/// The longest name of a file.
const LONGEST_NAME: usize = 64;
/// The longest name of a host.
const LONGEST_HOST: usize = 255;

/// The reason a manifest is not used.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "bundle-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ManifestError {
    /// It is none of gpuvm's.
    #[error("this is not the manifest of a gpuvm bundle: {why}")]
    Foreign { why: String },
    /// A newer gpuvm wrote it.
    #[error("the bundle has version {version}; this gpuvm reads bundles up to version {VERSION}")]
    Newer { version: u64 },
    /// It names a file that may lie elsewhere, or that has another meaning.
    #[error("the manifest names {file:?}, which is not a file of a bundle")]
    Name { file: String },
    /// It names more or larger files than a guest has.
    #[error("the manifest names {what}, more than a guest can have")]
    Large { what: String },
}

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledFile {
    /// Its name in the bundle.
    pub file: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it was on the host of the guest, as the definition says.
    pub path: String,
}

/// A disk of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledDisk {
    /// Its file.
    #[serde(flatten)]
    pub file: BundledFile,
    /// Its name in the guest.
    pub target: String,
    /// Its format: `raw`, `qcow2`.
    pub format: String,
    /// Its purpose in the guest.
    pub role: Role,
}

/// The content of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The guest's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The name of its host; `None` if unknown.
    pub host: Option<String>,
    /// How many GPUs it has.
    pub gpus: u32,
    /// Its disks.
    pub disks: Vec<BundledDisk>,
    /// The settings of its firmware; `None` if it has none yet.
    pub nvram: Option<BundledFile>,
}

impl Manifest {
    /// Makes one of this version.
    pub fn new(name: &str, uuid: &str, host: Option<String>) -> Manifest {
        let (name, uuid, format) = (name.to_owned(), uuid.to_owned(), FORMAT.to_owned());
        let (disks, nvram) = (Vec::new(), None);
        Manifest { format, version: VERSION, name, uuid, host, gpus: 0, disks, nvram }
    }

    /// Reads one.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let foreign = |why: String| ManifestError::Foreign { why };
        let head: serde_json::Value =
            serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
        if head.get("format").and_then(serde_json::Value::as_str) != Some(FORMAT) {
            return Err(foreign(format!("its `format` is not {FORMAT:?}")));
        }
        match head.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version > u64::from(VERSION) => {
                return Err(ManifestError::Newer { version });
            }
            Some(1..) => {}
            _ => return Err(foreign("it has no version".to_owned())),
        }
        let manifest: Manifest =
            serde_json::from_value(head).map_err(|error| foreign(error.to_string()))?;
        manifest.refuse()?;
        Ok(manifest)
    }

    /// Its text.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values") + "\n"
    }

    /// All files that it names.
    pub fn files(&self) -> impl Iterator<Item = &BundledFile> {
        self.disks.iter().map(|disk| &disk.file).chain(&self.nvram)
    }

    /// Refuses a guest that has no name and no UUID as they are, since files are named after these,
    /// and an invalid host name.
    fn refuse_identity(&self) -> Result<(), ManifestError> {
        let foreign = |what: &str| ManifestError::Foreign { why: format!("{what} is none") };
        DomainName::new(&self.name).map_err(|_| foreign("the guest's name"))?;
        if !is_uuid(&self.uuid) {
            return Err(foreign("its UUID"));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_host = |host: &String| host.len() <= LONGEST_HOST && host.chars().all(fits);
        if !self.host.as_ref().is_none_or(is_host) {
            return Err(foreign("its host's name"));
        }
        let mut paths = BTreeSet::new();
        match self.disks.iter().find(|disk| !paths.insert(&disk.file.path)) {
            None => Ok(()),
            Some(disk) => {
                let why = format!("disk `{}` has the file of another", disk.target);
                Err(ManifestError::Foreign { why })
            }
        }
    }

    /// Refuses names that lead elsewhere, and sizes that no guest has.
    fn refuse(&self) -> Result<(), ManifestError> {
        let large = |what: String| ManifestError::Large { what };
        let short = |text: &str| text.chars().take(80).collect::<String>();
        self.refuse_identity()?;
        if self.disks.len() > MOST_DISKS {
            return Err(large(format!("{} disks", self.disks.len())));
        }
        let mut seen: BTreeSet<&str> = [MANIFEST, DEFINITION, SUMS].into();
        for file in self.files() {
            if !is_name(&file.file) || !seen.insert(&file.file) {
                return Err(ManifestError::Name { file: short(&file.file) });
            }
        }
        if let Some(disk) = self.disks.iter().find(|disk| !is_name(&disk.target)) {
            return Err(ManifestError::Name { file: short(&disk.target) });
        }
        let longest = |file: &&BundledFile| match &self.nvram {
            Some(nvram) if nvram == *file => file.bytes > LARGEST_NVRAM,
            _ => file.bytes > LARGEST,
        };
        match self.files().find(longest) {
            None => Ok(()),
            Some(file) => Err(large(format!("{} of {} bytes", file.file, file.bytes))),
        }
    }
}

/// Whether a text is a UUID as libvirt writes it: one of another form may be that of a guest here.
fn is_uuid(text: &str) -> bool {
    let hyphens = [8, 13, 18, 23];
    let fits = |(at, c): (usize, char)| {
        if hyphens.contains(&at) { c == '-' } else { matches!(c, '0'..='9' | 'a'..='f') }
    };
    text.len() == 36 && text.chars().enumerate().all(fits)
}

/// Whether a name is that of a file of a bundle: in its directory, and not hidden.
fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts && name.len() <= LONGEST_NAME && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "5f2a1c7e-9b3d-4e6f-8a1b-2c3d4e5f6a7b";

    /// A manifest of a guest with a disk.
    fn manifest() -> Manifest {
        let file = |file: &str, path: &str| BundledFile {
            file: file.into(),
            bytes: 4096,
            path: path.into(),
        };
        let disk = BundledDisk {
            file: file("vda.raw", "/a.os"),
            target: "vda".into(),
            format: "raw".into(),
            role: Role::Os,
        };
        let nvram = Some(file("nvram.fd", "/a_VARS.fd"));
        Manifest { disks: vec![disk], nvram, ..Manifest::new("a", UUID, Some("h".into())) }
    }

    #[test]
    fn an_invalid_manifest_is_refused_with_its_fault() {
        let text = manifest().text();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest());
        for (from, to, code) in [
            (text.as_str(), "", "bundle-foreign"),
            (text.as_str(), "[]", "bundle-foreign"),
            ("gpuvm-bundle", "gpuvm-plan", "bundle-foreign"),
            ("\"version\": 1", "\"version\": 0", "bundle-foreign"),
            ("\"version\": 1", "\"version\": 2", "bundle-newer"),
            ("\"version\": 1", "\"version\": 2, \"disks\": 0", "bundle-newer"),
            ("\"uuid\"", "\"other\"", "bundle-foreign"),
            ("\"role\": \"os\"", "\"role\": \"x\"", "bundle-foreign"),
            ("\"name\": \"a\"", "\"name\": \"a/../b\"", "bundle-foreign"),
            (UUID, "../../../etc/cron.d/1111111111111111", "bundle-foreign"),
            (UUID, "5F2A1C7E-9B3D-4E6F-8A1B-2C3D4E5F6A7B", "bundle-foreign"),
            ("\"host\": \"h\"", "\"host\": \"\\u001b]0;h\"", "bundle-foreign"),
            ("vda.raw", "../vda.raw", "bundle-name"),
            ("vda.raw", "/etc/passwd", "bundle-name"),
            ("vda.raw", "..", "bundle-name"),
            ("vda.raw", "", "bundle-name"),
            ("vda.raw", ".hidden", "bundle-name"),
            ("vda.raw", "a\\u0000", "bundle-name"),
            ("vda.raw", "domain.xml", "bundle-name"),
            ("vda.raw", "SHA256SUMS", "bundle-name"),
            ("vda.raw", "nvram.fd", "bundle-name"),
            ("\"vda\"", "\"../../vda\"", "bundle-name"),
            ("\"bytes\": 4096", "\"bytes\": 9223372036854775808", "bundle-large"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = Manifest::parse(&changed).unwrap_err();
            assert_eq!(<&str>::from(&error), code, "{to}: {error}");
        }
        let mut many = manifest();
        for number in 0..MOST_DISKS {
            let mut disk = many.disks[0].clone();
            disk.file.file = format!("vd{number}.raw");
            disk.file.path = format!("/vd{number}.raw");
            many.disks.push(disk);
        }
        assert!(matches!(Manifest::parse(&many.text()), Err(ManifestError::Large { .. })));
        let mut twice = manifest();
        twice.disks.push(twice.disks[0].clone());
        twice.disks[1].file.file = "vdb.raw".into();
        assert!(matches!(Manifest::parse(&twice.text()), Err(ManifestError::Foreign { .. })));
        let mut large = manifest();
        large.nvram.as_mut().unwrap().bytes = LARGEST_NVRAM + 1;
        assert!(matches!(Manifest::parse(&large.text()), Err(ManifestError::Large { .. })));
    }
}
