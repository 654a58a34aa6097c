//! Reads bundles ([`gpuvm_core::bundle`]). Nothing of one is believed before it was checked: its
//! files lie in its directory, are files, have the length of the manifest and the sums of the list.

use crate::input::{self, DOMAIN_BYTES, InputError};
use crate::trace;
use gpuvm_core::bundle::{BundledFile, DEFINITION, MANIFEST, Manifest, ManifestError, SUMS};
use gpuvm_core::image::{Sha256, SumError, Sums};
use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The longest manifest and list of sums, in bytes.
const LIST_BYTES: u64 = 1 << 20;

/// The reason a bundle is not used.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "bundle-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum BundleError {
    /// It is no directory with a manifest.
    #[error("{} is not a bundle: {why}", path.display())]
    None { path: PathBuf, why: &'static str },
    /// Its writing was interrupted.
    #[error("{} is incomplete: it has no {SUMS}", path.display())]
    Unfinished { path: PathBuf },
    /// Its manifest is not used.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Manifest(#[from] ManifestError),
    /// Its list of sums cannot be read.
    #[error("{}/{SUMS}: {error}", path.display())]
    List { path: PathBuf, error: SumError },
    /// A file of it is missing, a link, or no file.
    #[error("{} of the bundle is not used: {why}", path.display())]
    File { path: PathBuf, why: String },
    /// A file of it is shorter or longer than it was.
    #[error("{} has {now} bytes; it had {was} when the bundle was made", path.display())]
    Length { path: PathBuf, now: u64, was: u64 },
    /// A file of it has other bytes than it had.
    #[error("{} has SHA-256 {now}; it was {was} when the bundle was made", path.display())]
    Changed { path: PathBuf, now: Sha256, was: Sha256 },
    /// A text of it cannot be read.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Input(#[from] InputError),
}

/// A file of a bundle whose length is known to be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// The space that it occupies on its file system, in bytes.
    pub allocated: u64,
    /// Its sum by the list.
    pub sha256: Sha256,
}

/// A bundle whose manifest and definition are those that were written.
#[derive(Debug)]
pub struct Bundle {
    /// Its directory.
    pub path: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its definition.
    pub definition: String,
    sums: Sums,
}

impl Bundle {
    /// Opens a bundle, and checks everything but the bytes of its disks.
    pub fn open(path: &Path) -> Result<Bundle, BundleError> {
        let path = path.to_owned();
        if !path.is_dir() {
            return Err(BundleError::None { path, why: "it is not a directory" });
        }
        let is_there = |name: &str| path.join(name).symlink_metadata().is_ok();
        if !is_there(MANIFEST) {
            return Err(BundleError::None { path, why: "it has no manifest.json" });
        }
        if !is_there(SUMS) {
            return Err(BundleError::Unfinished { path });
        }
        let read = |name: &str, limit: u64| {
            member(&path.join(name))?;
            Ok::<_, BundleError>(input::text(&path.join(name), limit)?)
        };
        let text = read(MANIFEST, LIST_BYTES)?;
        let manifest = Manifest::parse(&text)?;
        let sums = Sums::parse(&read(SUMS, LIST_BYTES)?);
        let sums = sums.map_err(|error| BundleError::List { path: path.clone(), error })?;
        let definition = read(DEFINITION, DOMAIN_BYTES)?;
        let bundle = Bundle { path, manifest, definition, sums };
        for (name, text) in [(MANIFEST, &text), (DEFINITION, &bundle.definition)] {
            bundle.same(name, Sha256::of_bytes(text.as_bytes()))?;
        }
        bundle.manifest.files().try_for_each(|file| bundle.member(file).map(drop))?;
        Ok(bundle)
    }

    /// A file of it.
    pub fn member(&self, file: &BundledFile) -> Result<Member, BundleError> {
        let path = self.path.join(&file.file);
        let meta = member(&path)?.metadata();
        let meta =
            meta.map_err(|e| BundleError::File { path: path.clone(), why: e.to_string() })?;
        let (now, was) = (meta.len(), file.bytes);
        if now != was {
            return Err(BundleError::Length { path, now, was });
        }
        let sha256 = self.sum(&file.file)?;
        Ok(Member { path, bytes: was, allocated: meta.blocks() * 512, sha256 })
    }

    /// Reads all of its files, and refuses one with other bytes than the list says. `progress` gets
    /// the number of bytes so far and that of all.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), BundleError> {
        let all = self.manifest.files().map(|file| file.bytes).sum();
        let mut before = 0;
        for file in self.manifest.files() {
            let path = self.path.join(&file.file);
            let failed =
                |e: io::Error| BundleError::File { path: path.clone(), why: e.to_string() };
            let sum = Sha256::of(member(&path)?, &mut |through| {
                progress(before + through, all);
                // A file that grows is not read for ever.
                through <= file.bytes
            });
            self.same(&file.file, sum.map_err(failed)?)?;
            before += file.bytes;
        }
        Ok(())
    }

    /// The sum that the list has of a file.
    fn sum(&self, name: &str) -> Result<Sha256, BundleError> {
        let path = self.path.join(name);
        self.sums
            .of(name)
            .ok_or(BundleError::File { path, why: format!("{SUMS} has no sum of it") })
    }

    /// Refuses a file with another sum than that of the list.
    fn same(&self, name: &str, now: Sha256) -> Result<(), BundleError> {
        let was = self.sum(name)?;
        if now == was {
            return Ok(());
        }
        Err(BundleError::Changed { path: self.path.join(name), now, was })
    }
}

/// Opens a file of a bundle: a regular file and no link, which may lead elsewhere.
fn member(path: &Path) -> Result<File, BundleError> {
    let refused = |why: String| BundleError::File { path: path.to_owned(), why };
    trace::reads(path);
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    // Opening a device may have side effects.
    match path.symlink_metadata() {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(refused("it is not a regular file".to_owned())),
        Err(error) => return Err(refused(error.to_string())),
    }
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    file.map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::bundle::BundledDisk;
    use gpuvm_core::domain::guest::Role;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A bundle with a disk of 4 KiB.
    fn made() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::new("a", "5f2a1c7e-9b3d-4e6f-8a1b-2c3d4e5f6a7b", None);
        let file = BundledFile { file: "vda.raw".into(), bytes: 4096, path: "/a.os".into() };
        let (target, format, role) = ("vda".into(), "raw".into(), Role::Os);
        manifest.disks.push(BundledDisk { file, target, format, role });
        fs::write(dir.path().join("vda.raw"), [7; 4096]).unwrap();
        fs::write(dir.path().join(DEFINITION), "<domain/>").unwrap();
        fs::write(dir.path().join(MANIFEST), manifest.text()).unwrap();
        seal(dir.path());
        dir
    }

    /// Writes the list of its sums.
    fn seal(dir: &Path) {
        let sum = |name| Sha256::of_bytes(&fs::read(dir.join(name)).unwrap());
        let lines =
            [MANIFEST, DEFINITION, "vda.raw"].map(|name| format!("{}  {name}\n", sum(name)));
        fs::write(dir.join(SUMS), lines.concat()).unwrap();
    }

    /// The code of a bundle's fault.
    fn code(path: &Path) -> &'static str {
        let read = Bundle::open(path).and_then(|bundle| bundle.verify(&mut |_, _| {}));
        read.err().map_or("", |error| <&str>::from(&error))
    }

    #[test]
    fn only_a_bundle_as_it_was_made_is_used() {
        let whole = made();
        assert_eq!(code(whole.path()), "");
        assert_eq!(code(&whole.path().join(MANIFEST)), "bundle-none");
        type Harm = (&'static str, fn(&Path));
        let harms: [Harm; 13] = [
            ("bundle-none", |dir| fs::remove_file(dir.join(MANIFEST)).unwrap()),
            ("bundle-unfinished", |dir| fs::remove_file(dir.join(SUMS)).unwrap()),
            ("bundle-list", |dir| fs::write(dir.join(SUMS), "no sum\n").unwrap()),
            ("bundle-file", |dir| fs::write(dir.join(SUMS), "").unwrap()),
            ("bundle-file", |dir| fs::remove_file(dir.join("vda.raw")).unwrap()),
            ("bundle-file", |dir| {
                fs::rename(dir.join("vda.raw"), dir.join("other")).unwrap();
                symlink(dir.join("other"), dir.join("vda.raw")).unwrap();
            }),
            ("bundle-file", |dir| {
                fs::remove_file(dir.join("vda.raw")).unwrap();
                fs::create_dir(dir.join("vda.raw")).unwrap();
            }),
            ("bundle-file", |dir| {
                fs::rename(dir.join(MANIFEST), dir.join("other")).unwrap();
                symlink(dir.join("other"), dir.join(MANIFEST)).unwrap();
            }),
            ("bundle-length", |dir| fs::write(dir.join("vda.raw"), [7; 4095]).unwrap()),
            ("bundle-length", |dir| fs::write(dir.join("vda.raw"), [7; 4097]).unwrap()),
            ("bundle-changed", |dir| fs::write(dir.join("vda.raw"), [8; 4096]).unwrap()),
            ("bundle-changed", |dir| fs::write(dir.join(DEFINITION), "<domain />").unwrap()),
            ("bundle-foreign", |dir| fs::write(dir.join(MANIFEST), "{}").unwrap()),
        ];
        for (number, (expected, harm)) in harms.into_iter().enumerate() {
            let harmed = made();
            harm(harmed.path());
            assert_eq!(code(harmed.path()), expected, "{number}");
        }
        // A rewritten list does not hide the manifest's content.
        let harmed = made();
        fs::write(harmed.path().join("vda.raw"), [7; 5000]).unwrap();
        seal(harmed.path());
        assert_eq!(code(harmed.path()), "bundle-length");
        let manifest = fs::read_to_string(harmed.path().join(MANIFEST)).unwrap();
        let escaping = manifest.replace("vda.raw", "../vda.raw");
        fs::write(harmed.path().join(MANIFEST), escaping).unwrap();
        assert_eq!(code(harmed.path()), "bundle-name");
    }
}
