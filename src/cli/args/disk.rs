//! The verbs on the disks of a guest that is there.

use super::heading::{BEHAVIOUR, DISKS};
use super::late::Late;
use super::storage::{BackingArgs, PreallocateArg};
use super::{ChangeArgs, NameArgs};
use crate::apply::Preallocate;
use crate::domain::guest::VolumeRef;
use crate::memsize::MemSize;
use clap::{Args, Subcommand, ValueEnum as _};
use gpuvm_ops::guest_disks::add::AddDisk;
use gpuvm_ops::guest_disks::remove::RemoveDisk;
use gpuvm_ops::guest_disks::resize::ResizeDisk;
use gpuvm_ops::storage::{NewDisk, POOL};
use std::path::PathBuf;
use std::str::FromStr;

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm disk list train-a
  gpuvm disk list train-a --json";
/// Examples of `add`.
const ADD: &str = "Examples:
  gpuvm disk add train-a size=200G
  gpuvm disk add train-a size=2T,dir=/raid/dgx-kvm,preallocate=none
  gpuvm disk add train-a /srv/images/data.qcow2 --live
  gpuvm disk add train-a drive=nvme-MAKER_SERIAL --dry-run";
/// Examples of `resize`.
const RESIZE: &str = "Examples:
  gpuvm disk resize train-a vda 100G
  gpuvm disk resize train-a vdb 2T --dry-run";
/// Examples of `remove`.
const REMOVE: &str = "Examples:
  gpuvm disk remove train-a vdb
  gpuvm disk remove train-a vdb --live --yes
  gpuvm disk remove train-a vdb --delete-data --diff";

/// A verb on the disks of a guest.
#[derive(Debug, Subcommand)]
pub enum DiskVerb {
    /// List the disks of a guest: size, source, and other users
    ///
    /// Works on any libvirt domain. MADE: gpuvm created the disk for this guest and deletes it with
    /// the guest. USED BY: other domains, volumes backed by the disk, and loop devices of the host;
    /// also whether a running guest has it only until it is off, or only from its next start.
    #[command(after_long_help = LIST, alias = "ls")]
    List(Late<NameArgs>),
    /// Add a disk to a guest, running or not
    ///
    /// Works on any libvirt domain, with the sources and checks of `create`: a disk that another
    /// domain or the host uses is refused. The disk gets a root port, I/O threads and queues as
    /// `create` and `tune` set them. A running guest gets it at its next start, or with --live at
    /// once. `gpuvm undo` removes the disk and keeps its data.
    #[command(after_long_help = ADD, aliases = ["attach", "create"])]
    Add(Late<DiskAddArgs>),
    /// Grow a disk of a guest, and the file system on it
    ///
    /// The disk must be an image file; it is never shrunk. A running guest sees the new size at
    /// once. If its agent answers and the disk holds a single ext4 or xfs file system, on the disk
    /// itself or on its only partition, gpuvm grows that as well. Otherwise it prints the commands
    /// to run in the guest. Growing cannot be undone.
    #[command(after_long_help = RESIZE, aliases = ["grow", "extend"])]
    Resize(Late<DiskResizeArgs>),
    /// Remove a disk from a guest; keeps its data
    ///
    /// A running guest keeps the disk until it is off, or with --live releases it at once; unmount
    /// it in the guest first. Data is deleted only with --delete-data, and only if gpuvm created
    /// the disk for this very guest and nothing else uses it. Asks, or takes --yes. `gpuvm undo`
    /// restores the disk unless its data was deleted.
    #[command(after_long_help = REMOVE, aliases = ["rm", "detach"])]
    Remove(Late<DiskRemoveArgs>),
}

/// Arguments of `disk add`.
#[derive(Debug, Args)]
pub struct DiskAddArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// /PATH, volume=POOL/NAME, size=SIZE, drive=ID, partition=PARTUUID
    ///
    /// /PATH: an image file or a block device, used as it is; its content decides the format.
    /// volume=POOL/NAME: a volume of a libvirt storage pool.
    /// size=SIZE[,pool=POOL|,dir=DIR][,preallocate=none|reserve|full]: a new raw disk with reserved
    /// blocks, in the default pool for guests unless a pool or directory is given. drive=ID: a
    /// whole drive. partition=PARTUUID: a partition; `gpuvm drive list` prints both.
    #[arg(value_name = "DISK")]
    pub disk: DiskSpec,
    /// Change running guests as well
    ///
    /// Requires a free root port in the running guest.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub live: bool,
    /// Allow overwriting drives that contain data
    ///
    /// The guest may overwrite all data on its drive, partition or device. Without this option
    /// gpuvm asks, and refuses if there is no terminal.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub accept_data_loss: bool,
    /// Images below it.
    #[command(flatten)]
    pub backing: BackingArgs,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl DiskAddArgs {
    /// Returns the request.
    pub fn wanted(&self) -> AddDisk {
        AddDisk {
            name: self.name.clone(),
            disk: self.disk.0.clone(),
            live: self.live,
            accept_backing: self.backing.accept_backing.clone(),
        }
    }
}

/// Arguments of `disk resize`.
#[derive(Debug, Args)]
pub struct DiskResizeArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Disk, as `gpuvm disk list` prints it: vdb
    #[arg(value_name = "DISK")]
    pub target: String,
    /// New size
    #[arg(value_name = "SIZE")]
    pub size: MemSize,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl DiskResizeArgs {
    /// Returns the request.
    pub fn wanted(&self) -> ResizeDisk {
        let (name, target) = (self.name.clone(), self.target.clone());
        ResizeDisk { name, target, bytes: self.size.kib() * 1024 }
    }
}

/// Arguments of `disk remove`.
#[derive(Debug, Args)]
pub struct DiskRemoveArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Disk, as `gpuvm disk list` prints it: vdb
    #[arg(value_name = "DISK")]
    pub target: String,
    /// Delete the disk's data
    #[arg(long, help_heading = DISKS)]
    pub delete_data: bool,
    /// Change running guests as well
    #[arg(long, help_heading = BEHAVIOUR)]
    pub live: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl DiskRemoveArgs {
    /// Returns the request.
    pub fn wanted(&self) -> RemoveDisk {
        let (name, target) = (self.name.clone(), self.target.clone());
        RemoveDisk { name, target, live: self.live, delete_data: self.delete_data }
    }
}

/// A disk on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpec(pub NewDisk);

impl FromStr for DiskSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<DiskSpec, String> {
        if text.starts_with(['/', '.']) {
            return Ok(DiskSpec(NewDisk::Path(PathBuf::from(text))));
        }
        let is_of = |key: &str| text.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
        if let Some(id) = is_of("drive") {
            return Ok(DiskSpec(NewDisk::Drive(id.to_owned())));
        }
        if let Some(uuid) = is_of("partition") {
            return Ok(DiskSpec(NewDisk::Partition(uuid.to_owned())));
        }
        if let Some(volume) = is_of("volume") {
            return match volume.split_once('/') {
                Some((pool, name)) if !pool.is_empty() && !name.is_empty() => {
                    let (pool, name) = (pool.to_owned(), name.to_owned());
                    Ok(DiskSpec(NewDisk::Volume(VolumeRef { pool, name })))
                }
                _ => Err(format!("`{volume}` is not POOL/NAME")),
            };
        }
        if text.starts_with("size=") {
            return blank(text).map(DiskSpec);
        }
        if text.parse::<MemSize>().is_ok() {
            return Err(format!("did you mean size={text}?"));
        }
        let forms = "/PATH, volume=POOL/NAME, size=SIZE, drive=ID or partition=PARTUUID";
        Err(format!("expected {forms}; a path begins with / or ."))
    }
}

/// A new disk on the command line.
fn blank(text: &str) -> Result<NewDisk, String> {
    let (mut bytes, mut dir, mut pool, mut preallocate) = (0, None, None, Preallocate::Reserve);
    for part in text.split(',') {
        let (key, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not KEY=VALUE"))?;
        match key {
            "size" => {
                let size = value.parse::<MemSize>().map_err(|error| error.to_string())?;
                bytes = size.kib() * 1024;
            }
            "pool" => pool = Some(value.to_owned()),
            "dir" => dir = Some(PathBuf::from(value)),
            "preallocate" => preallocate = PreallocateArg::from_str(value, false)?.into(),
            _ => return Err(format!("`{key}` is not size, pool, dir or preallocate")),
        }
    }
    if bytes == 0 {
        return Err("size must be larger than 0".to_owned());
    }
    if pool.is_some() && dir.is_some() {
        return Err("pool and dir cannot be combined".to_owned());
    }
    let pool = pool.unwrap_or_else(|| POOL.to_owned());
    Ok(NewDisk::Blank { bytes, dir, pool, preallocate })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_distinguished_by_their_words() {
        let of = |text: &str| text.parse::<DiskSpec>().map(|spec| spec.0);
        assert_eq!(of("/a,b=c.raw"), Ok(NewDisk::Path("/a,b=c.raw".into())));
        assert_eq!(of("./a.raw"), Ok(NewDisk::Path("./a.raw".into())));
        let volume = VolumeRef { pool: "p".into(), name: "v".into() };
        assert_eq!(of("volume=p/v"), Ok(NewDisk::Volume(volume)));
        assert_eq!(of("drive=nvme-A_1"), Ok(NewDisk::Drive("nvme-A_1".into())));
        assert_eq!(of("partition=1-2"), Ok(NewDisk::Partition("1-2".into())));
        let new = |dir: Option<&str>, pool: &str, preallocate| NewDisk::Blank {
            bytes: 8 << 20,
            dir: dir.map(PathBuf::from),
            pool: pool.into(),
            preallocate,
        };
        assert_eq!(of("size=8M"), Ok(new(None, POOL, Preallocate::Reserve)));
        let none = Preallocate::None;
        assert_eq!(of("size=8M,preallocate=none,pool=p"), Ok(new(None, "p", none)));
        assert_eq!(of("size=8M,dir=/d,preallocate=none"), Ok(new(Some("/d"), POOL, none)));
        for bad in [
            "",
            "a.raw",
            "volume=p",
            "volume=/v",
            "size=",
            "size=0",
            "size=8M,x=1",
            "size=8M,dir",
            "size=8M,pool=p,dir=/d",
            "size=8M,preallocate=some",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
