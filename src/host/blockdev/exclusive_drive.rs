//! A drive opened exclusively, and the proof that it is the planned one: it cannot be mounted,
//! added to an array or used for a volume meanwhile, and neither its device number nor its name can
//! move to another drive.

use super::{BLOCK, BlockError};
use crate::discover::node::answering;
use crate::discover::signatures::{content, node};
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::image::Sha256;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Bytes at the start that identify the content of a drive.
const START: usize = 1 << 20;
/// Time limit of reading them in seconds.
const READ_S: u64 = 10;
/// Attributes with a drive's serial numbers, below its directory in sysfs.
const NUMBERS: [&str; 7] =
    ["wwid", "uuid", "nguid", "eui", "serial", "device/wwid", "device/serial"];

/// The identity of a drive, independent of its name and path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DriveIdentity {
    /// Its identification: `serial=S4YNNX0R`.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Checksum of its first MiB; `None` if unreadable.
    #[serde(default)]
    pub start: Option<String>,
}

impl DriveIdentity {
    /// Reads the identity of a drive of this machine.
    pub fn of(root: &FsRoot, name: &str) -> DriveIdentity {
        let start = match File::open(node(name)) {
            Ok(file) => start(file).ok(),
            Err(_) => None,
        };
        DriveIdentity { numbers: numbers(root, name), start: start.map(|bytes| sum(&bytes)) }
    }
}

/// Returns the serial numbers of a drive.
fn numbers(root: &FsRoot, name: &str) -> Vec<String> {
    let number = |file: &&str| {
        let text = root.read(&format!("{BLOCK}/{name}/{file}")).ok().flatten()?;
        let text = text.trim();
        // Namespaces without a number of their own report zeros.
        let is_one = text.chars().any(|c| c.is_alphanumeric() && c != '0');
        is_one.then(|| format!("{file}={text}"))
    };
    NUMBERS.iter().filter_map(number).collect()
}

/// The sum over bytes, as text.
fn sum(bytes: &[u8]) -> String {
    Sha256::of_bytes(bytes).to_string()
}

/// Reads the start of a drive, in a thread, since a hung drive blocks its reader forever.
fn start(file: File) -> io::Result<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = vec![0; START];
        let mut at = 0;
        let read = loop {
            match file.read_at(&mut bytes[at..], at as u64) {
                Ok(0) => break Ok(()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        bytes.truncate(at);
        send.send(read.map(|()| bytes))
    });
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    receive.recv_timeout(Duration::from_secs(READ_S)).map_err(late)?
}

/// A drive that others cannot use while this, or a child process that inherited it, lives.
#[derive(Debug)]
pub struct ExclusiveDrive {
    /// The path that it was opened by.
    path: PathBuf,
    file: File,
    name: String,
}

impl ExclusiveDrive {
    /// Opens it exclusively, which fails if it is in use.
    pub fn take(path: &Path) -> Result<ExclusiveDrive, BlockError> {
        let other = |seen: &str| BlockError::Other { path: path.to_owned(), seen: seen.to_owned() };
        if answering(&[path.to_owned()]).is_empty() {
            return Err(other("it does not answer"));
        }
        let flags = OFlag::O_EXCL | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::options().read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(nix::libc::EBUSY) => BlockError::InUse {
                path: path.to_owned(),
                by: "it is opened exclusively".to_owned(),
            },
            _ => other(&error.to_string()),
        })?;
        let meta = file.metadata().map_err(|error| other(&error.to_string()))?;
        if !meta.file_type().is_block_device() {
            return Err(other("it is not a block device"));
        }
        // By number: the path may lead elsewhere now.
        let number = format!("{}:{}", major(meta.rdev()), minor(meta.rdev()));
        let link = std::fs::read_link(Path::new("/sys/dev/block").join(&number));
        let name = link.ok().and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
        let name = name.ok_or_else(|| other("the kernel does not name it"))?;
        Ok(ExclusiveDrive { path: path.to_owned(), file, name })
    }

    /// The kernel's name, which no other drive can get while this one is held.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its node.
    pub fn node(&self) -> PathBuf {
        node(&self.name)
    }

    /// Lets child processes inherit it from now on: it stays held until the last of them has ended,
    /// even if this one is killed.
    pub fn hand_on(&self) -> Result<(), BlockError> {
        let kept = fcntl(&self.file, FcntlArg::F_SETFD(FdFlag::empty()));
        let seen = |error: nix::errno::Errno| error.desc().to_owned();
        kept.map(drop)
            .map_err(|error| BlockError::Other { path: self.path.clone(), seen: seen(error) })
    }

    /// Refuses it unless it has this size, these numbers, and the known content: the same start, or
    /// none because erasing had begun, and no new signature (`known_content`: the known ones).
    pub fn proves(
        &self,
        root: &FsRoot,
        bytes: u64,
        known: &DriveIdentity,
        known_content: &[String],
    ) -> Result<(), BlockError> {
        let other = |seen: String| Err(BlockError::Other { path: self.path.clone(), seen });
        let size = self.bytes(root)?;
        if size != bytes {
            return other(format!("it has {size} bytes, not {bytes}"));
        }
        let numbers = numbers(root, &self.name);
        if numbers != known.numbers {
            let words = |numbers: &[String]| match numbers {
                [] => "no number".to_owned(),
                numbers => numbers.join(" "),
            };
            return other(format!("it has {}, not {}", words(&numbers), words(&known.numbers)));
        }
        if numbers.is_empty() && known.start.is_none() {
            return other("nothing tells it from another of its size".to_owned());
        }
        let start = self.file.try_clone().and_then(start).ok();
        if start.as_deref().map(sum) == known.start {
            return Ok(());
        }
        let is_blank = |bytes: &Vec<u8>| {
            matches!(bytes.first(), Some(0 | 0xff)) && bytes.iter().all(|byte| *byte == bytes[0])
        };
        let content = content(&self.node());
        let was_there =
            |phrase: &String| known_content.iter().any(|known| known.ends_with(phrase.as_str()));
        let marks: Vec<String> = content.signatures().iter().map(|one| one.says()).collect();
        if !numbers.is_empty()
            && start.as_ref().is_some_and(is_blank)
            && marks.iter().all(was_there)
        {
            return Ok(());
        }
        other("what is on it is not what was on it then".to_owned())
    }

    fn bytes(&self, root: &FsRoot) -> Result<u64, FsError> {
        let sectors = root.read(&format!("{BLOCK}/{}/size", self.name))?;
        let sectors: Option<u64> = sectors.and_then(|text| text.trim().parse().ok());
        Ok(sectors.unwrap_or_default().saturating_mul(512))
    }
}
