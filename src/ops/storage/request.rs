//! What is asked of a guest's disks and of its first settings.

use super::POOL;
use crate::apply::Preallocate;
use crate::image::ImageName;
use crate::images;
use crate::memsize::MemSize;
use crate::seed::Hidden;
use std::path::PathBuf;

/// The disks that are asked for a guest.
#[derive(Debug, Clone)]
pub struct StorageRequest {
    /// What the boot disk is made of, where [`StorageRequest::disk`] names none.
    pub image: ImageRequest,
    /// libvirt's storage pool of the images.
    pub image_pool: String,
    /// How the boot disk is made of the image.
    pub os_disk: OsDisk,
    /// Its size.
    pub os_size: MemSize,
    /// libvirt's storage pool of the boot disk and the seed.
    pub pool: String,
    /// Image files and devices that are there, the one that it boots from first.
    pub disk: Vec<PathBuf>,
    /// Directory of a blank boot disk.
    pub disk_dir: Option<PathBuf>,
    /// The data disk.
    pub data: DataRequest,
    /// Its directory; none: the one on the host's data array.
    pub data_dir: Option<PathBuf>,
    /// How much of it is taken from its file system at once.
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
            disk_dir: None,
            data: DataRequest::Share,
            data_dir: None,
            preallocate: Preallocate::Reserve,
            drive: Vec::new(),
            partition: Vec::new(),
        }
    }
}

/// What a boot disk is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRequest {
    /// The newest image; nothing where a directory of a blank boot disk is named.
    Newest,
    /// This image.
    Named(ImageName),
    /// Nothing: it is blank.
    Blank,
}

/// How a boot disk is made of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OsDisk {
    /// A raw copy.
    Clone,
    /// A qcow2 overlay.
    Overlay,
}

/// How large a data disk is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataRequest {
    /// The share of the guest's GPUs in the data file system.
    Share,
    /// So many bytes.
    Bytes(u64),
    /// There is to be none.
    None,
    /// There is to be none, and that is told, as `nvidia-vm` does.
    NoneTold,
}

/// What a guest is told at its first start.
#[derive(Debug, Clone, Default)]
pub struct SeedRequest {
    /// Files of SSH public keys that may log in; none: those of the caller.
    pub ssh_key: Vec<PathBuf>,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// A user that is made.
    pub user: Option<String>,
    /// The hash of that user's password, which was checked.
    pub password_hash: Option<Hidden>,
    /// A file of cloud-init's user-data.
    pub user_data: Option<PathBuf>,
    /// A file of its meta-data.
    pub meta_data: Option<PathBuf>,
    /// A file of its network configuration.
    pub network_config: Option<PathBuf>,
    /// Whether the guest agent is installed.
    pub agent: bool,
    /// Whether it gets the topology file for NCCL, where it needs one.
    pub nccl: bool,
    /// Whether there is a seed.
    pub wanted: SeedWanted,
}

/// Whether a guest gets a seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SeedWanted {
    /// It does not.
    #[default]
    No,
    /// It does where it is made of an image, or where something is to be told to it.
    Usual,
    /// It does.
    Yes,
}
