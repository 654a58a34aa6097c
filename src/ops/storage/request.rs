//! The requests for a guest's disks and for its first settings.

use super::POOL;
use crate::apply::Preallocate;
use crate::domain::guest::VolumeRef;
use crate::image::ImageName;
use crate::images;
use crate::memsize::MemSize;
use crate::seed::Hidden;
use std::net::IpAddr;
use std::path::PathBuf;

/// A request for a guest's disks.
#[derive(Debug, Clone)]
pub struct StorageRequest {
    /// The image of the boot disk, if [`StorageRequest::disk`] names no disk.
    pub image: ImageRequest,
    /// libvirt's storage pool of the images.
    pub image_pool: String,
    /// How the boot disk is created from the image.
    pub os_disk: OsDisk,
    /// The size of the boot disk.
    pub os_size: MemSize,
    /// libvirt's storage pool of the boot disk and the seed.
    pub pool: String,
    /// Existing image files and devices, the boot disk first.
    pub disk: Vec<PathBuf>,
    /// Existing image files and devices that it has beside its boot disk.
    pub add_disk: Vec<PathBuf>,
    /// Names of images that may be below those: paths, or QEMU's own words.
    pub accept_backing: Vec<String>,
    /// Directory of a blank boot disk.
    pub disk_dir: Option<PathBuf>,
    /// The data disk.
    pub data: DataRequest,
    /// The directory of the data disk; `None` for the one on the host's data array.
    pub data_dir: Option<PathBuf>,
    /// How much of it is allocated at once.
    pub preallocate: Preallocate,
    /// Whole drives, by names of /dev/disk/by-id.
    pub drive: Vec<String>,
    /// Partitions, by PARTUUID.
    pub partition: Vec<String>,
}

impl Default for StorageRequest {
    fn default() -> StorageRequest {
        StorageRequest {
            image: ImageRequest::Newest,
            image_pool: images::POOL.into(),
            os_disk: OsDisk::Clone,
            os_size: MemSize::from_gib(50),
            pool: POOL.into(),
            disk: Vec::new(),
            add_disk: Vec::new(),
            accept_backing: Vec::new(),
            disk_dir: None,
            data: DataRequest::Share,
            data_dir: None,
            preallocate: Preallocate::Reserve,
            drive: Vec::new(),
            partition: Vec::new(),
        }
    }
}

/// A disk that a guest which is there gets more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewDisk {
    /// An image file or a device that is there.
    Path(PathBuf),
    /// A volume that is there.
    Volume(VolumeRef),
    /// A new raw image.
    Blank {
        /// Its size.
        bytes: u64,
        /// The directory that it is made in; `None` for a pool.
        dir: Option<PathBuf>,
        /// The pool.
        pool: String,
        /// Its preallocation.
        preallocate: Preallocate,
    },
    /// A whole drive, by a name of /dev/disk/by-id.
    Drive(String),
    /// A partition, by PARTUUID.
    Partition(String),
}

/// The image of a boot disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRequest {
    /// The newest image; none if a directory for a blank boot disk is named.
    Newest,
    /// This image.
    Named(ImageName),
    /// No image: the disk is blank.
    Blank,
}

impl StorageRequest {
    /// Whether the boot disk is a raw copy of an image.
    pub fn copies_raw(&self) -> bool {
        let is_blank = self.image == ImageRequest::Blank
            || self.image == ImageRequest::Newest && self.disk_dir.is_some();
        self.os_disk == OsDisk::Clone && self.disk.is_empty() && !is_blank
    }
}

/// How a boot disk is created from an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OsDisk {
    /// A raw copy.
    Clone,
    /// A qcow2 copy, which can have snapshots.
    Qcow2,
    /// A qcow2 overlay.
    Overlay,
}

/// The requested size of a data disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataRequest {
    /// The share of the guest's GPUs in the data file system, where there is one.
    Share,
    /// The same; that there is none is reported, as `nvidia-vm` does.
    ShareWithNotice,
    /// A size in bytes.
    Bytes(u64),
    /// No data disk.
    None,
    /// No data disk, and that is reported, as `nvidia-vm` does.
    NoneTold,
}

/// A request for a guest's settings at its first start.
#[derive(Debug, Clone, Default)]
pub struct SeedRequest {
    /// Files of SSH public keys that may log in; none for those of the caller.
    pub ssh_key: Vec<PathBuf>,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// A user to create.
    pub user: Option<String>,
    /// The hash of that user's password, already validated.
    pub password_hash: Option<Hidden>,
    /// The file that the hash was read from; `None` for standard input.
    pub password_file: Option<PathBuf>,
    /// A file of cloud-init's user-data.
    pub user_data: Option<PathBuf>,
    /// A file of its meta-data.
    pub meta_data: Option<PathBuf>,
    /// A file of its network configuration.
    pub network_config: Option<PathBuf>,
    /// Whether the guest agent is installed.
    pub agent: bool,
    /// How it gets the topology file for NCCL, if it needs one.
    pub nccl: NcclWanted,
    /// Addresses of the guests of its IMEX domain, its own among them; none: it is in none.
    pub imex_nodes: Vec<IpAddr>,
    /// Whether the guest gets a seed.
    pub wanted: SeedWanted,
    /// The action if there is no way to log in.
    pub keyless: Keyless,
}

/// The action if a guest's seed has no key, no password and no user-data of the caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keyless {
    /// A warning.
    #[default]
    Warned,
    /// The guest is refused.
    Refused,
    /// Nothing: it is so wanted.
    Accepted,
}

/// How a guest gets the topology file for NCCL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NcclWanted {
    /// It does not.
    #[default]
    No,
    /// Where NCCL looks by itself.
    Link,
    /// There, and named in the guest's settings of NCCL where they name none.
    Conf,
}

/// Whether a guest gets a seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SeedWanted {
    /// No seed.
    #[default]
    No,
    /// A seed if the guest is created from an image, or if there are settings for it.
    Usual,
    /// A seed in any case.
    Yes,
}
