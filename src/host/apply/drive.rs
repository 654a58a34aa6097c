//! Drives: the last check before one is given to a guest, and erasing. Only the planned device is
//! erased, identified by its name in /dev/disk/by-id and its size, and only while it is unused.

use super::{Observer, StepError};
use crate::blockdev::{
    BlockError, BlockUse, DriveIdentity, ExclusiveDrive, refuse_used, refuse_used_function, used_by,
};
use crate::command::{CommandError, output, output_unless};
use crate::discover::drives::function_of;
use crate::discover::node::kernel_name;
use crate::discover::signatures::whole_content;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::{User, Uses};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::domain::{DomainXml, Element};
use gpuvm_core::topology::DriveUse;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Time limit of read-only commands in seconds.
const LOOK_S: u64 = 60;
/// Time limit of a drive's own format in milliseconds.
const FORMAT_MS: &str = "14400000";

/// The erasure of a whole drive, which is final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WipeStep {
    /// Its path, one that is stable across boots if there is one.
    pub path: PathBuf,
    /// Its size in bytes, which distinguishes another drive in its place.
    pub bytes: u64,
    /// Its content, a phrase each.
    #[serde(default)]
    pub content: Vec<String>,
    /// Its identity, whatever its path leads to later.
    #[serde(default)]
    pub known: DriveIdentity,
}

impl fmt::Display for WipeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = match &self.content[..] {
            [] => "its content is of no known kind".to_owned(),
            all => all.join(", "),
        };
        write!(f, "erase all {} bytes of drive {} ({content})", self.bytes, self.path.display())
    }
}

impl WipeStep {
    /// Refuses a drive that has been replaced, or that the host or a guest uses.
    pub(super) fn expects(&self, hypervisor: &dyn Hypervisor) -> Result<(), StepError> {
        let root = FsRoot::live().map_err(BlockError::File)?;
        if kernel_name(&self.path).is_none() {
            let seen = "no block device is there".to_owned();
            return Err(BlockError::Other { path: self.path.clone(), seen }.into());
        }
        refuse_used(&root, &self.path)?;
        let users = Uses::read(hypervisor)?.of(&self.path).into_iter();
        let domains: Vec<String> = users
            .filter_map(|one| match one.by {
                User::Domain { name, .. } => Some(format!("domain `{name}` has it as a disk")),
                _ => None,
            })
            .collect();
        match &domains[..] {
            [] => self.take(&root).map(drop),
            all => {
                let (path, by) = (self.path.clone(), all.join("; "));
                Err(BlockError::InUse { path, by }.into())
            }
        }
    }

    /// Opens the drive exclusively if it is the planned one.
    fn take(&self, root: &FsRoot) -> Result<ExclusiveDrive, StepError> {
        let alone = ExclusiveDrive::take(&self.path)?;
        alone.proves(root, self.bytes, &self.known, &self.content)?;
        Ok(alone)
    }

    /// Erases it: by the drive's own format, secure discard, or zeros, the first that leaves it
    /// blank; a signal cancels.
    pub(super) fn perform(
        &self,
        hypervisor: &dyn Hypervisor,
        observer: &mut dyn Observer,
    ) -> Result<(), StepError> {
        // Recovery of an interrupted run comes here without this check.
        self.expects(hypervisor)?;
        let root = FsRoot::live().map_err(BlockError::File)?;
        let alone = self.take(&root)?;
        // The child keeps the exclusive hold even if this process is killed.
        alone.hand_on()?;
        let path = alone.node().display().to_string();
        let format = ["nvme", "format", "--ses=1", "--force", "--timeout", FORMAT_MS, &path];
        // Before util-linux 2.36 it did not ask, and had no such option.
        let help = output(&["blkdiscard", "--help"], LOOK_S).unwrap_or_default();
        let force = help.contains("--force").then_some("--force");
        let discard = |how| ["blkdiscard", how].into_iter().chain(force).chain([path.as_str()]);
        let secure: Vec<&str> = discard("--secure").collect();
        let zero: Vec<&str> = discard("--zeroout").collect();
        let ways = [&format[..], &secure, &zero];
        let first = usize::from(!formats_alone(&root, alone.name()));
        let mut last = None;
        for argv in &ways[first..] {
            let mut signal = None;
            let done = output_unless(argv, &mut || {
                signal = observer.interrupted();
                signal.is_some()
            });
            if let Some(signal) = signal {
                return Err(StepError::Signal { signal });
            }
            if let Err(error) = done {
                last = Some(BlockError::Command(error));
                continue;
            }
            let left = whole_content(&alone.node()).says(&path);
            if left.is_empty() {
                // The kernel does not reread the table of a drive held open exclusively.
                drop(alone);
                look_again(&path);
                return Ok(());
            }
            last = Some(BlockError::NotBlank { path: self.path.clone(), left: left.join(", ") });
        }
        Err(last.map_or_else(
            || {
                StepError::Block(BlockError::Command(CommandError::Late {
                    command: path,
                    seconds: 0,
                }))
            },
            StepError::Block,
        ))
    }
}

/// Makes the kernel and udev reread a drive whose table is gone.
fn look_again(path: &str) {
    // A drive without partitions has nothing to reread; a failure shows in `drive list`.
    let _ = output(&["blockdev", "--rereadpt", path], LOOK_S);
    let _ = output(&["udevadm", "settle", "--timeout=30"], LOOK_S);
}

/// Whether `nvme format` of a drive erases no other namespace: it is the only one of its controller
/// visible to this host, and the controller either formats each separately or has no other, not
/// even one attached elsewhere.
fn formats_alone(root: &FsRoot, name: &str) -> bool {
    let alone = || -> Option<bool> {
        let function = name.starts_with("nvme").then(|| function_of(root, name).ok()?)??;
        let all = root.names("sys/class/block").ok()?;
        let is_of = |other: &String| {
            !root.exists(&format!("sys/class/block/{other}/partition"))
                && !is_hidden(other)
                && function_of(root, other).ok().flatten() == Some(function)
        };
        if all.iter().filter(|other| is_of(other)).count() != 1 {
            return Some(false);
        }
        let node = format!("/dev/{name}");
        let answer = output(&["nvme", "id-ctrl", "--output-format=json", &node], LOOK_S).ok()?;
        let controller: Controller = serde_json::from_str(&answer).ok()?;
        if controller.is_apart() {
            return Some(true);
        }
        let every = ["nvme", "list-ns", "--all", "--output-format=json", &node];
        let answer = output(&every, LOOK_S).ok()?;
        Some(answer.matches("\"nsid\"").count() == 1)
    };
    alone().unwrap_or(false)
}

/// Whether it is the hidden path of a controller to a namespace, `nvme0c0n1`.
fn is_hidden(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|rest| rest.contains('c'))
}

/// The identification of an NVMe controller, as far as needed.
#[derive(Debug, Deserialize)]
struct Controller {
    /// Format attributes (FNA): bit 0: all namespaces are formatted, bit 1: all are erased.
    fna: u64,
    /// The largest number of a namespace.
    nn: u64,
}

impl Controller {
    /// Whether formatting one namespace leaves all others intact.
    fn is_apart(&self) -> bool {
        self.fna & 3 == 0 || self.nn == 1
    }
}

/// The last check before a function is bound away from the host: none of its namespaces may be in
/// use.
pub(super) fn expect_function(bdf: Bdf) -> Result<(), StepError> {
    let root = FsRoot::live().map_err(BlockError::File)?;
    Ok(refuse_used_function(&root, bdf)?)
}

/// The last check before a domain is defined or started with drives of this machine. `starts`: it
/// was defined before, so only uses that would lose data are refused, not a volume group that the
/// host found on a guest's disk.
pub(super) fn expect_domain(
    xml: &str,
    starts: bool,
    hypervisor: &dyn Hypervisor,
) -> Result<(), StepError> {
    if !hypervisor.machine().is_here() {
        return Ok(());
    }
    let Ok(xml) = DomainXml::parse(xml) else { return Ok(()) };
    let root = FsRoot::live().map_err(BlockError::File)?;
    for path in block_disks(&xml) {
        let mut uses = used_by(&root, &path).map_err(BlockError::File)?;
        uses.retain(|one| is_loss(one, starts));
        if !uses.is_empty() {
            let by: Vec<String> = uses.iter().map(ToString::to_string).collect();
            return Err(BlockError::InUse { path, by: by.join("; ") }.into());
        }
    }
    let functions = xml.held(false).map(|held| held.devices).unwrap_or_default();
    for bdf in functions {
        let class = root.read(&format!("sys/bus/pci/devices/{bdf}/class")).ok().flatten();
        // Mass storage class: other functions have no block devices.
        if class.is_some_and(|class| class.starts_with("0x01")) {
            refuse_used_function(&root, bdf)?;
        }
    }
    Ok(())
}

/// Whether giving a device away despite this use destroys data, or may.
fn is_loss(one: &BlockUse, starts: bool) -> bool {
    match &one.used {
        DriveUse::Member { .. } => false,
        DriveUse::Holder { carries, .. } => !starts || !carries.is_empty(),
        DriveUse::EfiSystem | DriveUse::Mounted { .. } | DriveUse::Swap | DriveUse::Kernel => true,
    }
}

/// Block devices that a guest of this definition writes.
fn block_disks(xml: &DomainXml) -> Vec<PathBuf> {
    let devices = xml.root().child("devices");
    let disks = devices.into_iter().flat_map(|devices| devices.children("disk"));
    let writes = |disk: &Element<'_>| {
        disk.child("readonly").is_none()
            && disk.attr("device").is_none_or(|device| matches!(&*device, "disk" | "lun"))
    };
    let source = |disk: Element<'_>| {
        let source = disk.child("source")?;
        source.attr("dev").or_else(|| source.attr("file")).map(|path| PathBuf::from(&*path))
    };
    disks.filter(writes).filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_formats_all_its_namespaces_is_not_asked_to_format_one() {
        for (text, is_apart) in [
            (r#"{"fna":0,"nn":32,"mn":"x"}"#, true),
            (r#"{"fna":4,"nn":128}"#, true),
            (r#"{"fna":1,"nn":1}"#, true),
            (r#"{"fna":1,"nn":2}"#, false),
            (r#"{"fna":2,"nn":32}"#, false),
        ] {
            let controller: Controller = serde_json::from_str(text).unwrap();
            assert_eq!(controller.is_apart(), is_apart, "{text}");
        }
        assert!(is_hidden("nvme0c1n1") && !is_hidden("nvme0n1") && !is_hidden("sdc"));
    }

    #[test]
    fn a_journal_of_before_proves_nothing() {
        let step: WipeStep =
            serde_json::from_str(r#"{"path":"/dev/sda","bytes":512,"content":[]}"#).unwrap();
        assert_eq!(step.known, DriveIdentity::default());
    }
}
