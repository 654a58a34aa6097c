//! Options of a guest's disks: what it boots from and where its data goes.

use crate::image::ImageName;
use crate::memsize::MemSize;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::str::FromStr;

/// Is what a guest's disks are made of.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Disks")]
pub struct StorageArgs {
    /// Image that the boot disk is made from, as `gpuvm image list` shows; `none`: a blank disk. Default: the newest
    #[arg(long, value_name = "NAME|none", env = "GPUVM_IMAGE", conflicts_with_all = ["disk", "disk_dir"])]
    pub image: Option<ImageArg>,
    /// libvirt pool of the images
    #[arg(long, value_name = "POOL", default_value = crate::cli::image::POOL)]
    pub image_pool: String,
    /// How the boot disk is made of the image
    #[arg(long, value_name = "HOW", value_enum, default_value = "clone", conflicts_with_all = ["disk", "disk_dir"])]
    pub os_disk: OsDiskArg,
    /// Size of the boot disk, at least the image's
    #[arg(long, value_name = "SIZE", default_value = "50G", conflicts_with = "disk")]
    pub os_size: MemSize,
    /// libvirt pool for the boot disk and the seed; the default is made where it is missing
    #[arg(long, value_name = "POOL", default_value = crate::cli::storage::POOL)]
    pub pool: String,
    /// Disk image or block device to boot from, as it is; repeat for more. No image is used then. Refused: a disk of
    /// another domain or below one, unless both share it or only read it; what the host uses; a file of the host's
    /// system (/etc, /usr, /boot, ..) or open for writing; a raw file that is no whole number of sectors
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub disk: Vec<PathBuf>,
    /// Directory for a blank boot disk, which is made in place of one from an image
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "disk")]
    pub disk_dir: Option<PathBuf>,
    /// Size of the data disk; `none`: no data disk. Default: the share of its GPUs in the data file system, and none
    /// where no such file system is mounted
    #[arg(long, value_name = "SIZE|none", conflicts_with = "vol_gb")]
    pub data_size: Option<DataSize>,
    /// Size of the data disk in GB (10^9 bytes), as nvidia-vm took it; 0: no data disk
    #[arg(long = "volGB", visible_alias = "vol-gb", value_name = "GB")]
    pub vol_gb: Option<u64>,
    /// Directory for the data disk; the file system that it is on is the data file system. Default: /raid/dgx-kvm
    /// where something is mounted on /raid
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data_dir: Option<PathBuf>,
    /// Whole drive to give to the guest as a disk, by its name in /dev/disk/by-id as `gpuvm drive list` shows it; repeat
    /// for more. The guest gets what is on it. A drive that the host or another guest uses is refused
    #[arg(long, value_name = "ID", value_hint = ValueHint::FilePath)]
    pub drive: Vec<String>,
    /// Partition to give to the guest as a disk, by its PARTUUID as `gpuvm drive list` shows it; repeat for more
    #[arg(long, value_name = "PARTUUID")]
    pub partition: Vec<String>,
    /// How much of a new data disk is taken from the file system at once
    #[arg(long, value_name = "HOW", value_enum, default_value = "reserve")]
    pub preallocate: PreallocateArg,
}

/// Is an image on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageArg {
    /// None: a blank disk.
    None,
    /// This one.
    Named(ImageName),
}

impl FromStr for ImageArg {
    type Err = String;
    fn from_str(text: &str) -> Result<ImageArg, String> {
        if text == "none" {
            return Ok(ImageArg::None);
        }
        ImageName::new(text).map(ImageArg::Named).map_err(|error| error.to_string())
    }
}

/// Is the size of a data disk on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSize {
    /// No data disk.
    None,
    /// So much.
    Of(MemSize),
}

impl FromStr for DataSize {
    type Err = String;
    fn from_str(text: &str) -> Result<DataSize, String> {
        if text == "none" {
            return Ok(DataSize::None);
        }
        text.parse::<MemSize>().map(DataSize::Of).map_err(|error| error.to_string())
    }
}

/// Is how a boot disk is made of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OsDiskArg {
    /// A raw disk with the image's content: stands alone
    Clone,
    /// A qcow2 disk over the image: made at once, takes only what changes, needs the image for ever
    Overlay,
}

/// Is how much of a disk is taken from its file system at once, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PreallocateArg {
    /// Nothing: the disk grows as it is written, and first writes are slower
    None,
    /// All of it, as blocks that hold nothing yet: made at once
    Reserve,
    /// All of it, written with zeros: takes as long as writing it
    Full,
}
