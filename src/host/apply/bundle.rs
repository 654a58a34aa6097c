//! Writes a bundle ([`gpuvm_core::bundle`]): a directory that has its name only when it is whole.
//! Its disks are copies of files that are not open, all of one time: each is checked again after
//! the last one was copied.

use super::disk::{self, DiskError, Making, Source, error, unfinished};
use crate::hypervisor::storage::Progress;
use crate::identity::FileId;
use crate::pinned_dir::HeldDir;
use crate::trace;
use gpuvm_core::bundle::SUMS;
use gpuvm_core::image::{Sha256, Summing};
use gpuvm_core::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file that is copied into a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundledCopy {
    /// Its name in the bundle.
    pub file: String,
    /// The file whose bytes it gets.
    pub from: PathBuf,
    /// How many these are.
    pub bytes: u64,
}

/// A text that is written into a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundledText {
    /// Its name in the bundle.
    pub file: String,
    /// The text.
    pub text: String,
}

/// The writing of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleStep {
    /// Its directory, which is new.
    pub path: PathBuf,
    /// The texts in it.
    pub texts: Vec<BundledText>,
    /// The copies in it.
    pub copies: Vec<BundledCopy>,
}

impl fmt::Display for BundleStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = MemSize::from_kib(self.bytes().div_ceil(1024));
        write!(f, "write bundle {} of {size}", self.path.display())?;
        let mut copies = self.copies.iter();
        copies.try_for_each(|copy| write!(f, ", {} of {}", copy.file, copy.from.display()))
    }
}

impl BundleStep {
    /// All bytes of its copies.
    pub(super) fn bytes(&self) -> u64 {
        self.copies.iter().map(|copy| copy.bytes).sum()
    }

    /// Writes it. `progress` gets the number of bytes so far and may cancel; then, as after any
    /// error, nothing is left.
    pub(super) fn perform(
        &self,
        making: &mut Making<'_>,
        progress: Progress<'_>,
    ) -> Result<(), DiskError> {
        let failed = |e: io::Error| error(&self.path, e);
        let (held, path) = HeldDir::of(&self.path).map_err(|e| failed(e.into()))?;
        let dir = unfinished(&path, making.token);
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let written = held.own(dir.file_name().unwrap_or_default()).map_err(failed);
        let written = written.and_then(|own| {
            self.write(&own, progress).map_err(|e| e.named(&own, &self.path))?;
            let file = FileId::of(&own.path().metadata().map_err(failed)?);
            if FileId::at(&dir).map_err(failed)? != Some(file) {
                return Err(failed(io::Error::other("something else has been put in its place")));
            }
            (making.made)(file)?;
            disk::name(&dir, &path)
        });
        match &written {
            Ok(()) => trace::wrote(&self.path),
            // The directory was made by this call; the first error is the one to report.
            Err(_) => drop(fs::remove_dir_all(&dir)),
        }
        written.map_err(|e| e.named(&held, self.path.parent().unwrap_or(Path::new(""))))
    }

    fn write(&self, own: &HeldDir, progress: Progress<'_>) -> Result<(), DiskError> {
        let dir = &own.path();
        let copies = self.copies.iter();
        let sources = copies.map(|copy| Source::open(&copy.from, copy.bytes));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let (mut sums, mut through) = (String::new(), 0);
        let mut list = |sum: Sha256, file: &str| {
            writeln!(sums, "{sum}  {file}").expect("text");
        };
        for BundledText { file, text } in &self.texts {
            put(&dir.join(file), text.as_bytes())?;
            list(Sha256::of_bytes(text.as_bytes()), file);
        }
        for (BundledCopy { file, bytes, .. }, source) in self.copies.iter().zip(&sources) {
            let path = dir.join(file);
            let failed = |e| error(&path, e);
            let new = new(&path)?;
            let mut sum = Summing::new(io::sink());
            new.set_len(*bytes).map_err(failed)?;
            let mut progress = |part: u64| progress(through + part);
            source.copy(&new, Some(&mut sum), &mut progress).map_err(failed)?;
            new.sync_all().map_err(failed)?;
            through += bytes;
            list(sum.end().0, file);
        }
        sources.iter().try_for_each(Source::expect)?;
        put(&dir.join(SUMS), sums.as_bytes())?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| error(dir, e))
    }

    /// Removes its parts before it has its name.
    pub(super) fn drop_unfinished(&self, token: &str) -> Result<(), DiskError> {
        let dir = unfinished(&self.path, token);
        match fs::remove_dir_all(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| DiskError::Kept { path: dir, source }),
        }
    }

    /// Removes it, but for files of others in it, with which the directory stays.
    pub(super) fn delete(&self) -> Result<(), DiskError> {
        let (held, path) = HeldDir::of(&self.path).map_err(|e| error(&self.path, e.into()))?;
        let own = held.own(path.file_name().unwrap_or_default());
        let own = own.map_err(|e| error(&self.path, e))?;
        let texts = self.texts.iter().map(|text| &*text.file);
        let copies = self.copies.iter().map(|copy| &*copy.file);
        // Without its sums it is no bundle any more.
        for file in [SUMS].into_iter().chain(texts).chain(copies) {
            disk::delete(&own.at(file)).map_err(|e| e.named(&own, &self.path))?;
        }
        disk::delete_directory(&path)
            .map_err(|e| e.named(&held, self.path.parent().unwrap_or(Path::new(""))))
    }
}

/// A new file, readable only by its owner.
fn new(path: &Path) -> Result<File, DiskError> {
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    new.map_err(|e| error(path, e))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let mut file = new(path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| error(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bundle `b` of a text and two files in a directory.
    fn step(dir: &Path) -> BundleStep {
        let copies = [("vda.raw", 3), ("vdb.raw", 9 << 20)].map(|(file, bytes)| {
            let from = dir.join(format!("of-{file}"));
            let source = File::create(&from).unwrap();
            source.set_len(bytes).unwrap();
            BundledCopy { file: file.to_owned(), from, bytes }
        });
        fs::write(dir.join("of-vda.raw"), "abc").unwrap();
        let text = BundledText { file: "domain.xml".into(), text: "<domain/>".into() };
        BundleStep { path: dir.join("b"), texts: vec![text], copies: copies.into() }
    }

    fn write(step: &BundleStep, progress: Progress<'_>) -> Result<(), DiskError> {
        let mut making = Making { token: "t", made: &mut |_| Ok(()) };
        step.perform(&mut making, progress)
    }

    #[test]
    fn a_link_that_is_put_in_the_way_of_a_bundle_leads_nothing_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (step, victim) = (step(dir.path()), dir.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        let unfinished = unfinished(&step.path, "t");
        let written = write(&step, &mut |_| {
            if !unfinished.is_symlink() {
                fs::rename(&unfinished, dir.path().join("away")).unwrap();
                std::os::unix::fs::symlink(&victim, &unfinished).unwrap();
            }
            true
        });
        assert!(written.unwrap_err().to_string().contains("in its place"));
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "it was written through a link");
        assert!(!step.path.exists());
    }

    #[test]
    fn a_bundle_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let step = step(dir.path());
        let before = || fs::read_dir(dir.path()).unwrap().count();
        // It is broken off, a disk is written meanwhile, and a disk is longer than it was.
        write(&step, &mut |through| through < 5 << 20).unwrap_err();
        let error = write(&step, &mut |_| fs::write(&step.copies[0].from, "xyz").is_ok());
        assert!(error.unwrap_err().to_string().contains("was written while"));
        let mut other = step.clone();
        other.copies[1].bytes += 1;
        assert!(write(&other, &mut |_| true).unwrap_err().to_string().contains("another size"));
        assert_eq!(before(), 2, "something is left");
        fs::write(&step.copies[0].from, "abc").unwrap();
        let mut reported = 0;
        write(&step, &mut |through| {
            reported = through;
            true
        })
        .unwrap();
        assert_eq!((reported, step.bytes()), (3 + (9 << 20), 3 + (9 << 20)));
        let sums = fs::read_to_string(step.path.join(SUMS)).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(sums.contains(&format!("{abc}  vda.raw\n")) && sums.lines().count() == 3, "{sums}");
        assert!(matches!(write(&step, &mut |_| true), Err(DiskError::Exists { .. })));
        // Files of others stay, with the directory.
        fs::write(step.path.join("theirs"), "").unwrap();
        step.delete().unwrap();
        assert_eq!(fs::read_dir(&step.path).unwrap().count(), 1);
        fs::remove_file(step.path.join("theirs")).unwrap();
        step.delete().unwrap();
        step.drop_unfinished("t").unwrap();
        assert_eq!(before(), 2);
    }
}
