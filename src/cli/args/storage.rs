//! Options of a guest's disks: its boot disk and its data disk.

use super::heading::DISKS;
use super::program::called_as_vendor;
use crate::apply::Preallocate;
use crate::cli::refuse::usage;
use crate::image::ImageName;
use crate::memsize::MemSize;
use clap::{Args, ValueEnum, ValueHint};
use gpuvm_ops::error::Coded as _;
use gpuvm_ops::storage::{DataRequest, ImageRequest, OsDisk, StorageError, StorageRequest};
use std::path::PathBuf;
use std::str::FromStr;

/// The backing files of images that are used as they are.
#[derive(Debug, Clone, Args)]
pub struct BackingArgs {
    /// Accept this backing file of an image; repeatable
    ///
    /// An image that is used as it is may name backing files in its own directory only. Others,
    /// also those further down its chain, and URLs are refused unless named here: a guest may have
    /// written the header of the image.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub accept_backing: Vec<String>,
}

/// The parts of a guest's disks.
#[derive(Debug, Clone, Args)]
pub struct StorageArgs {
    /// Image for the boot disk; `none`: a blank disk
    ///
    /// `gpuvm image list` prints the images. Default: $GPUVM_IMAGE, else the newest image.
    #[arg(long, value_name = "NAME|none", env = "GPUVM_IMAGE", hide_env = true)]
    #[arg(conflicts_with = "disk", help_heading = DISKS)]
    pub image: Option<ImageArg>,
    /// libvirt storage pool of the images
    #[arg(long, value_name = "POOL", default_value = gpuvm_ops::images::POOL)]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub image_pool: String,
    /// How to make the boot disk from the image
    #[arg(long, value_name = "HOW", value_enum, default_value = "clone")]
    #[arg(conflicts_with_all = ["disk", "disk_dir"], help_heading = DISKS, hide_short_help = true)]
    pub os_disk: OsDiskArg,
    /// Boot disk size
    ///
    /// At least the image's.
    #[arg(long, value_name = "SIZE", default_value = "50G", conflicts_with = "disk")]
    #[arg(help_heading = DISKS)]
    pub os_size: MemSize,
    /// libvirt storage pool for the boot disk and the seed
    ///
    /// The default pool is made if it is missing.
    #[arg(long, value_name = "POOL", default_value = gpuvm_ops::storage::POOL)]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub pool: String,
    /// Boot from this image file or device; repeatable
    ///
    /// Used as it is, in place of an image; further ones are additional disks. Refused: a disk of
    /// another domain or below one, unless both share it or only read it; a disk that the host
    /// uses; a file of the host's system (/etc, /usr, /boot, ..) or one that is open for writing; a
    /// raw file whose size is not a whole number of sectors.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = DISKS)]
    pub disk: Vec<PathBuf>,
    /// Attach this image file or device beside the boot disk; repeatable
    ///
    /// Used as it is, and refused as with --disk. `gpuvm disk add` gives it to a guest that exists.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub add_disk: Vec<PathBuf>,
    /// Images below those.
    #[command(flatten)]
    pub backing: BackingArgs,
    /// Directory for a blank boot disk
    ///
    /// The disk is made there instead of from an image in --pool.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "disk")]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub disk_dir: Option<PathBuf>,
    /// Data disk size; `none`: no data disk
    ///
    /// Default: the GPUs' share of the data file system; no data disk if none is mounted.
    #[arg(long, value_name = "SIZE|none", conflicts_with = "vol_gb", help_heading = DISKS)]
    pub data_size: Option<DataSize>,
    /// Data disk size in GB (10^9 bytes), as in nvidia-vm
    ///
    /// 0: no data disk.
    #[arg(long = "volGB", visible_alias = "vol-gb", value_name = "GB")]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub vol_gb: Option<u64>,
    /// Directory for the data disk
    ///
    /// The file system that holds it is the data file system. Default: /raid/dgx-kvm if something
    /// is mounted on /raid.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub data_dir: Option<PathBuf>,
    /// Attach a whole drive by ID; repeatable
    ///
    /// ID is its name in /dev/disk/by-id; `gpuvm drive list` prints it. The guest sees the drive's
    /// content. A drive that the host or another guest uses is refused.
    #[arg(long, value_name = "ID", value_hint = ValueHint::FilePath, help_heading = DISKS)]
    pub drive: Vec<String>,
    /// Attach a partition by PARTUUID; repeatable
    ///
    /// `gpuvm drive list` prints it. A partition that the host or another guest uses is refused.
    #[arg(long, value_name = "PARTUUID", help_heading = DISKS, hide_short_help = true)]
    pub partition: Vec<String>,
    /// Preallocation of the data disk
    #[arg(long, value_name = "HOW", value_enum, default_value = "reserve")]
    #[arg(help_heading = DISKS, hide_short_help = true)]
    pub preallocate: PreallocateArg,
}

impl StorageArgs {
    /// Returns the request; an error where a size is invalid.
    pub fn request(&self) -> anyhow::Result<StorageRequest> {
        if let (Some(ImageArg::Named(image)), Some(_)) = (&self.image, &self.disk_dir) {
            let what = format!("--disk-dir is for a blank boot disk, and --image names {image}");
            return Err(usage(what, "--image none, or leave --disk-dir out"));
        }
        Ok(StorageRequest {
            image: match &self.image {
                None => ImageRequest::Newest,
                Some(ImageArg::None) => ImageRequest::Blank,
                Some(ImageArg::Named(name)) => ImageRequest::Named(name.clone()),
            },
            image_pool: self.image_pool.clone(),
            os_disk: match self.os_disk {
                OsDiskArg::Clone => OsDisk::Clone,
                OsDiskArg::Qcow2 => OsDisk::Qcow2,
                OsDiskArg::Overlay => OsDisk::Overlay,
            },
            os_size: self.os_size,
            pool: self.pool.clone(),
            disk: self.disk.clone(),
            add_disk: self.add_disk.clone(),
            accept_backing: self.backing.accept_backing.clone(),
            disk_dir: self.disk_dir.clone(),
            data: self.data()?,
            data_dir: self.data_dir.clone(),
            preallocate: self.preallocate.into(),
            drive: self.drive.clone(),
            partition: self.partition.clone(),
        })
    }

    /// How large the data disk is to be.
    fn data(&self) -> anyhow::Result<DataRequest> {
        let Some(gigabytes) = self.vol_gb.filter(|_| self.data_size.is_none()) else {
            return Ok(match self.data_size {
                None if called_as_vendor() => DataRequest::ShareWithNotice,
                None => DataRequest::Share,
                Some(DataSize::None) => DataRequest::None,
                Some(DataSize::Of(size)) => DataRequest::Bytes(size.kib() * 1024),
            });
        };
        if gigabytes == 0 {
            return Ok(DataRequest::NoneTold);
        }
        let bytes = gigabytes.checked_mul(1_000_000_000);
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
        let refused = || StorageError::TooLarge { gigabytes: gigabytes.to_string() }.bare();
        bytes.map(DataRequest::Bytes).ok_or_else(refused)
    }
}

/// An image on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageArg {
    /// None for a blank disk.
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

/// The size of a data disk on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSize {
    /// No data disk.
    None,
    /// This much.
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

/// How a boot disk is made of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OsDiskArg {
    /// Raw copy of the image: fastest; no snapshots
    Clone,
    /// qcow2 copy: slower, and `gpuvm snapshot` works
    Qcow2,
    /// qcow2 overlay: instant, stores only changes, always needs the image
    Overlay,
}

/// How much of a disk is taken from its file system at once, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PreallocateArg {
    /// Sparse: grows as it is written; first writes are slower
    None,
    /// Reserve all blocks without writing them; instant
    Reserve,
    /// Write zeros to all of it; takes as long as writing it
    Full,
}

impl From<PreallocateArg> for Preallocate {
    fn from(arg: PreallocateArg) -> Preallocate {
        match arg {
            PreallocateArg::None => Preallocate::None,
            PreallocateArg::Reserve => Preallocate::Reserve,
            PreallocateArg::Full => Preallocate::Full,
        }
    }
}
