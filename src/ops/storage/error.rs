//! The errors of disks.

use crate::error::Coded;

/// The reason a disk is not created or passed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "storage-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum StorageError {
    /// Nothing lets anybody log in to the guest.
    #[error(
        "no user could log in to `{name}`: no --ssh-key, --password-hash or --user-data, {looked}"
    )]
    NoLogin {
        name: String,
        /// Where a key was looked for.
        looked: String,
    },
    /// The guest cannot be a node of an IMEX domain.
    #[error("--imex-node: {lack}, and IMEX joins whole trays of an NVL72 rack")]
    ImexTray {
        /// The missing part of the guest.
        lack: String,
    },
    /// The data disk is too large.
    #[error("a data volume of {gigabytes} GB is too large")]
    TooLarge {
        /// The requested size in gigabytes.
        gigabytes: String,
    },
    /// A data disk is a local file, and the guest is on another machine.
    #[error("cannot make a data disk: it is a file of this machine, and the guest is on another")]
    Elsewhere,
    /// The file system does not report its size.
    #[error("the file system of {path} does not report its size")]
    SizeUnknown { path: String },
    /// The directory of the data disk does not exist.
    #[error("cannot make a disk in {dir}: it is not a directory")]
    NoDirectory { dir: String },
    /// No file system is mounted for data disks.
    #[error("cannot make a data disk: {array} is not a mounted file system")]
    NotMounted { array: String },
    /// The data disk does not fit into its file system.
    #[error("{what}, and {free} of its {size} are free")]
    NoRoom { what: String, free: String, size: String },
    /// The disk cannot be opened.
    #[error("cannot open disk `{at}`: {error}")]
    Unreadable { at: String, error: String },
    /// The disk or its server does not answer.
    #[error("cannot open disk `{at}`: {why}")]
    Silent { at: String, why: String },
    /// The disk is neither a file nor a block device.
    #[error("disk `{at}` is neither a file nor a block device")]
    Kind { at: String },
    /// The host needs the file.
    #[error("disk `{at}` cannot be given to the guest: {why}")]
    OfHost { at: String, why: String },
    /// A block device contains a qcow2 image.
    #[error("device `{at}` contains a qcow2 image, but guests get a device as a raw disk")]
    Qcow2OnDevice { at: String },
    /// The size of a raw disk is not a multiple of the sector size.
    #[error(
        "disk `{at}` has {bytes} bytes; a raw disk has one or more whole sectors of {sector} bytes"
    )]
    Sectors {
        at: String,
        /// Its size in bytes.
        bytes: String,
        /// The sector size in bytes.
        sector: String,
    },
    /// The disk has another format than its name suggests.
    #[error("disk `{at}` is {name} by its name and {is} by its content")]
    OtherFormat { at: String, name: String, is: String },
    /// The disk is a path, and the guest is on another machine.
    #[error("{disk} is not a libvirt volume, and the guest is on machine `{host}`")]
    NoVolume { disk: String, host: String },
    /// The pool has no directory.
    #[error("pool `{name}` has no directory")]
    PoolWithoutDirectory { name: String },
    /// The boot disk is smaller than its image.
    #[error("a boot disk of {wanted} is smaller than image `{image}`, which is of {size}")]
    SmallerThanImage { wanted: String, image: String, size: String },
    /// A drive is given twice.
    #[error("drive {text} is given twice")]
    DriveTwice {
        /// The drive, as it was given.
        text: String,
    },
    /// An EFI system partition is not passed to guests.
    #[error("partition {text} ({name}) is an EFI system partition")]
    EfiPartition {
        /// The partition, as it was given.
        text: String,
        name: String,
    },
    /// A partition is given twice, alone or with its drive.
    #[error("partition {text} is given twice, alone or with its drive {drive}")]
    PartitionTwice {
        /// The partition, as it was given.
        text: String,
        drive: String,
    },
    /// The partition has no PARTUUID.
    #[error("partition {text} has no PARTUUID")]
    NoPartuuid {
        /// The partition, as it was given.
        text: String,
    },
    /// The guest gets the PCI function of the drive as well.
    #[error("{drive} is already passed to the guest as PCI function {bdf}")]
    FunctionToo { drive: String, bdf: String },
    /// Two partitions have the same PARTUUID.
    #[error("{first} and {second} both have the PARTUUID {text}")]
    PartuuidTwice {
        first: String,
        second: String,
        /// The PARTUUID, as it was given.
        text: String,
    },
    /// The drive has no name in /dev/disk/by-id.
    #[error("drive {name} has no name in /dev/disk/by-id, and {name} may change")]
    NoStableName { name: String },
    /// The pool has a volume of this name.
    #[error("pool `{pool}` already has a volume `{name}`: {user}")]
    VolumeExists { pool: String, name: String, user: String },
}

impl Coded for StorageError {}
