//! The verbs on drives.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{LockArgs, TakenArgs, about_records};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm drive list
  gpuvm drive list --json
  gpuvm drive list --host topologies/dgx-2.json";
/// Examples of `release-array`.
const RELEASE: &str = "Examples:
  gpuvm drive release-array /dev/md1 --dry-run
  gpuvm drive release-array /dev/md1 --unmount
  gpuvm create --gpus 16 --nvme 8";
/// Examples of `restore-array`.
const RESTORE: &str = "Examples:
  gpuvm drive restore-array md1
  gpuvm drive restore-array md1 --rebuild
  gpuvm drive restore-array md1 --create --mkfs";

/// Examples of `wipe`.
const WIPE: &str = "Examples:
  gpuvm drive wipe nvme-MAKER_SERIAL --dry-run
  gpuvm drive wipe nvme-MAKER_SERIAL
  gpuvm drive wipe 2e:00.0 --yes";

/// A verb on drives.
#[derive(Debug, Subcommand)]
pub enum DriveVerb {
    /// List drives and partitions, and who uses them
    ///
    /// A guest gets a drive as a PCI function (--nvme), as a whole disk (--drive) or by partition
    /// (--partition). Only root sees the processes of other users that have a drive open, and the
    /// content of drives that udev has not read.
    #[command(after_long_help = LIST, alias = "ls")]
    #[command(group = about_records())]
    List(Late<TakenArgs>),
    /// Stop a data array to free its drives for guests
    ///
    /// `restore-array` brings it back. Refused while anything uses the array: processes, mounts
    /// (unless --unmount), swap, LVM and other devices above it, disks of guests on it. Comments
    /// out the lines of /etc/fstab that mount it and its ARRAY line in mdadm.conf, and adds one
    /// that prevents its assembly when its drives come back. The superblocks stay on the drives;
    /// /var/lib/gpuvm/arrays/NAME.json records the facts needed to rebuild the array. An array with
    /// the root or boot file system is never stopped. Lists everything first, then asks, or takes
    /// --yes.
    #[command(after_long_help = RELEASE)]
    ReleaseArray(Late<ReleaseArrayArgs>),
    /// Bring a released array back, with its mounts
    ///
    /// Restores its lines in /etc/fstab and mdadm.conf as well. Assembles the array if its drives
    /// still have its superblocks and its file system is the one that was released. If a guest has
    /// overwritten some drives and the RAID level survives without them, --rebuild assembles the
    /// array from the others and adds these again, to be resynchronized. Else --create recreates
    /// the array with its old UUID and --mkfs a file system with its old UUID and label; both
    /// destroy the data on the drives.
    ///
    /// Drives that contain a file system, partitions or encrypted data now are overwritten only
    /// with --accept-data-loss, members of another array, volume group or pool never. A file system
    /// that was not recreated is mounted with nodev and nosuid, also by its lines in fstab, unless
    /// --trust-content is given. Lists everything first, then asks, or takes --yes.
    #[command(after_long_help = RESTORE)]
    RestoreArray(Late<RestoreArrayArgs>),
    /// Erase an unused drive, such as one of a deleted guest
    ///
    /// The whole drive: by `nvme format` if nvme-cli is installed and the drive is its controller's
    /// only namespace, else by secure discard, else by writing zeros. It must read as blank
    /// afterwards. Refused while the host or a guest, running or not, uses it or a part of it, and
    /// for the host's boot drive. Lists its content, then asks for its ID to be typed, or takes
    /// --yes. `gpuvm recover` finishes an interrupted run.
    #[command(after_long_help = WIPE)]
    Wipe(Late<WipeArgs>),
}

/// Arguments of `drive wipe`.
#[derive(Debug, Args)]
pub struct WipeArgs {
    /// Name in /dev/disk/by-id, kernel name, or PCI address
    ///
    /// `gpuvm drive list` prints them. A PCI address is that of an NVMe drive.
    #[arg(value_name = "ID")]
    pub id: String,
    /// The options of every change.
    #[command(flatten)]
    pub change: DriveChangeArgs,
}

/// The options of every verb that changes drives.
#[derive(Debug, Args)]
pub struct DriveChangeArgs {
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// The options of both verbs on arrays.
#[derive(Debug, Args)]
pub struct ArrayArgs {
    /// Update the initramfs of every kernel
    ///
    /// It contains a copy of mdadm.conf. Without this option the command is printed.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub initramfs: bool,
    /// The options of every change.
    #[command(flatten)]
    pub change: DriveChangeArgs,
}

/// Arguments of `drive release-array`.
#[derive(Debug, Args)]
pub struct ReleaseArrayArgs {
    /// Array device, such as /dev/md1 or /dev/md/data
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: PathBuf,
    /// Unmount it first
    ///
    /// Refused while a process has a file open on it.
    #[arg(long, visible_alias = "umount")]
    pub unmount: bool,
    /// The options of both.
    #[command(flatten)]
    pub common: ArrayArgs,
}

/// Arguments of `drive restore-array`.
#[derive(Debug, Args)]
pub struct RestoreArrayArgs {
    /// Array name at its release, such as md1
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Add drives again that a guest has overwritten
    ///
    /// If the others still have all data. Destroys the data on these drives.
    #[arg(long, conflicts_with_all = ["create", "mkfs"])]
    pub rebuild: bool,
    /// Recreate the array; destroys its data
    ///
    /// If a guest has overwritten its superblocks.
    #[arg(long)]
    pub create: bool,
    /// Make a new file system; destroys its data
    ///
    /// With the old type, UUID and label.
    #[arg(long)]
    pub mkfs: bool,
    /// Allow overwriting drives that contain data
    ///
    /// A file system, a partition table or encrypted data that was written since the release; it is
    /// listed.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub accept_data_loss: bool,
    /// Mount the file system without nodev and nosuid
    ///
    /// Honours device files and set-user-ID programs on it, which a guest may have written.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub trust_content: bool,
    /// The options of both.
    #[command(flatten)]
    pub common: ArrayArgs,
}
