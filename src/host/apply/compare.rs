//! Compares a converted disk with its source: every byte that a guest would read, whatever the
//! formats. Nothing is read of an image over the source that has no content of its own. Changes
//! nothing.

use super::blank::is_blank;
use super::disk::Source;
use super::domain::{is_active, row};
use super::{Observer, StepError, copy, overlay};
use crate::command::{CommandError, output_unless};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use crate::input::open_regular;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::disk_change::path_of;
use gpuvm_core::image::{HEAD, Sha256, kept};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Exit status of `qemu-img compare` if two disks differ.
const DIFFER: i32 = 1;

/// A volume and another disk, which must have one content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The domain that uses one of them.
    pub domain: String,
    /// The volume's pool.
    pub pool: String,
    /// Its name.
    pub volume: String,
    /// Its format: `raw`, `qcow2`.
    pub format: String,
    /// Size seen by a guest, in bytes.
    pub capacity_bytes: u64,
    /// The other disk.
    pub disk: PathBuf,
    /// Its format.
    pub disk_format: String,
    /// Whether both are on this machine, so that every byte is compared.
    pub content: bool,
}

/// The state of a disk when a guest was made with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MadeAs {
    /// A copy of another disk.
    CopyOf {
        /// That disk.
        disk: PathBuf,
        /// The format of both.
        format: String,
    },
    /// A file of these bytes.
    Bytes {
        /// Their number.
        bytes: u64,
        /// Their SHA-256.
        sha256: Sha256,
    },
    /// An image without data. Its domain may run without it.
    Blank,
}

impl Comparison {
    /// Refuses a volume that differs. That the domain is not running is checked last: QEMU's locks
    /// prevent its start while the disk is read.
    pub(super) fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
    ) -> Result<(), StepError> {
        let Comparison { pool, volume, format, capacity_bytes, disk, disk_format, .. } = self;
        let seen = copy::seen((pool, volume), (format, *capacity_bytes), Some(disk), hypervisor)?;
        if self.content {
            refuse_kept(&seen.path, format)?;
            let is_over = seen.backing.as_ref() == Some(disk);
            if !(is_over && overlay::is_untouched(&seen.path)) {
                same((&seen.path, format), (disk, disk_format), observer)?;
            }
        }
        refuse_active(&self.domain, hypervisor)
    }
}

/// Refuses a disk of a domain that is not as it was made. The bytes decide, never a time: clocks
/// are set back. That the domain is not running is checked last, as above.
pub(super) fn as_made(
    domain: &str,
    path: &Path,
    made: &MadeAs,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    match made {
        MadeAs::CopyOf { disk, format } => {
            refuse_kept(path, format)?;
            same((path, format), (disk, format), observer)?;
        }
        MadeAs::Bytes { bytes, sha256 } => {
            let file = Source::open(path, *bytes)?;
            copy::read(&file, (*bytes, *sha256), observer)?;
            file.expect()?;
        }
        MadeAs::Blank => {
            if !is_blank(path) {
                return Err(copy::other(format!("{} has data", path.display())));
            }
            return refuse_in_use(domain, path, hypervisor);
        }
    }
    refuse_active(domain, hypervisor)
}

/// Refuses a domain that runs with a disk.
fn refuse_in_use(domain: &str, path: &Path, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    if !is_active(row(hypervisor, domain)?) {
        return Ok(());
    }
    let live = DomainXml::parse(&hypervisor.xml(domain, XmlOf::Live)?);
    let has = |xml: DomainXml| {
        xml.disks().any(|disk| path_of(disk).is_some_and(|p| path == Path::new(&p)))
    };
    if live.is_ok_and(|live| !has(live)) {
        return Ok(());
    }
    Err(copy::other(format!("domain `{domain}` runs with {}", path.display())))
}

fn refuse_active(domain: &str, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
    if is_active(row(hypervisor, domain)?) {
        let message = "it runs, so its disk may have been written since".to_owned();
        let doing = format!("look at domain `{domain}`");
        let kind = HypervisorErrorKind::WrongState;
        return Err(HypervisorError { kind, doing, message }.into());
    }
    Ok(())
}

/// Refuses a qcow2 image with content beyond the guest's present view, which no comparison sees and
/// the other disk lacks: snapshots, bitmaps of backups.
fn refuse_kept(path: &Path, format: &str) -> Result<(), StepError> {
    if format != "qcow2" {
        return Ok(());
    }
    let unread = |why: String| copy::other(format!("{} cannot be read: {why}", path.display()));
    let image = open_regular(path).map_err(|error| unread(error.to_string()))?;
    let mut head = Vec::new();
    image.take(HEAD).read_to_end(&mut head).map_err(|error| unread(error.to_string()))?;
    match kept(&head) {
        None => Ok(()),
        Some(kept) => Err(copy::other(format!("it holds {kept}"))),
    }
}

/// Refuses two disks of this machine and of one size, each with its format, on which a guest would
/// read different data; a signal cancels.
fn same(
    (one, one_format): (&Path, &str),
    (other, other_format): (&Path, &str),
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    let text = |path: &Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| {
            copy::other(format!("{} is not a path that `qemu-img` takes", path.display()))
        })
    };
    let (one, other) = (text(one)?, text(other)?);
    let argv = ["qemu-img", "compare", "-f", other_format, "-F", one_format, "--", &other, &one];
    let mut signal = None;
    let compared = output_unless(&argv, &mut || {
        signal = observer.interrupted();
        signal.is_some()
    });
    if let Some(signal) = signal {
        return Err(StepError::Signal { signal });
    }
    match compared {
        Ok(_) => Ok(()),
        Err(CommandError::Failed { status: Some(DIFFER), message, .. }) => {
            let message = message.trim_end_matches(['!', '.']);
            Err(copy::other(format!("it is not what {other} is: {message}")))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Step;
    use crate::skip::skip;

    /// An observer that only reports a signal, if set.
    struct Watch(Option<&'static str>);

    impl Observer for Watch {
        fn doing(&mut self, _: &Step) {}
        fn undoing(&mut self, _: &Step) {}
        fn interrupted(&mut self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    #[test]
    fn an_image_with_a_snapshot_holds_more_than_is_compared() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.qcow2");
        let mut head = vec![0; 104];
        head[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        std::fs::write(&image, &head).unwrap();
        refuse_kept(&image, "qcow2").unwrap();
        head[63] = 2;
        std::fs::write(&image, &head).unwrap();
        let error = refuse_kept(&image, "qcow2").unwrap_err().to_string();
        assert!(error.contains("it holds 2 internal snapshots"), "{error}");
        // A raw disk has its guest's data, whatever that looks like.
        refuse_kept(&image, "raw").unwrap();
    }

    #[test]
    fn image_contents_are_compared_not_files() {
        let there = crate::program::command("qemu-img").arg("--version").output();
        if !there.is_ok_and(|output| output.status.success()) {
            return skip("qemu-img is not installed");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let mut bytes = vec![0; 3 << 20];
        bytes[1 << 20..2 << 20].fill(7);
        std::fs::write(file("a.raw"), &bytes).unwrap();
        let convert = ["qemu-img", "convert", "-O", "qcow2"];
        let (from, to) = (file("a.raw"), file("a.qcow2"));
        let argv = [&convert[..], &[from.to_str().unwrap(), to.to_str().unwrap()]].concat();
        crate::command::output(&argv, 60).unwrap();
        let same = |watch: &mut Watch| same((&to, "qcow2"), (&from, "raw"), watch);
        same(&mut Watch(None)).unwrap();
        let stopped = same(&mut Watch(Some("SIGINT"))).unwrap_err();
        assert!(matches!(stopped, StepError::Signal { .. }), "{stopped}");
        bytes[3 << 19] = 8;
        std::fs::write(&from, &bytes).unwrap();
        let error = same(&mut Watch(None)).unwrap_err().to_string();
        assert!(error.ends_with("Content mismatch at offset 1572864"), "{error}");
        std::fs::remove_file(&from).unwrap();
        let error = same(&mut Watch(None)).unwrap_err();
        assert!(matches!(error, StepError::Command(_)), "{error}");
    }
}
