//! The verbs on drives.

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

/// Is a verb on drives.
#[derive(Debug, Subcommand)]
pub enum DriveVerb {
    /// List drives and partitions: where they are, who uses them, how they can be given to a guest
    ///
    /// A drive is given as a PCI function (--nvme), as a whole disk (--drive) or by partitions (--partition). Without
    /// root, processes of others that have a drive open are not seen, nor what is on drives that udev has not read.
    #[command(after_help = LIST)]
    #[command(group = about_records())]
    List(TakenArgs),
    /// Stop a data array, so that its drives can be given to guests; restore-array brings it back
    ///
    /// Refused while anything uses the array: processes, mounts (unless --unmount), swap, LVM and other devices above
    /// it, disks of guests on it. Lines of /etc/fstab that mount it are commented; its ARRAY line in mdadm.conf is
    /// commented, and one is added that keeps it from being assembled when its drives come back. The superblocks stay
    /// on the drives, and what is needed to rebuild the array is kept in /var/lib/gpuvm/arrays/NAME.json. An array that
    /// carries the root or boot file system is never stopped. Names everything first, then asks, or takes --yes.
    #[command(after_help = RELEASE)]
    ReleaseArray(ReleaseArrayArgs),
    /// Bring a released array back, with its mounts and its lines in /etc/fstab and mdadm.conf
    ///
    /// Assembled, where its drives still carry its superblocks and its file system is the one that was released. Where
    /// a guest has written over some of them, and the level keeps its data without those, --rebuild assembles it of the
    /// others and adds these again, which the kernel then fills. Else --create makes the array anew with its old UUID
    /// and --mkfs a file system with its old UUID and label; both destroy what is on the drives. What the drives have become
    /// since is named: a file system, partitions or encrypted data are overwritten only with --accept-data-loss, and
    /// members of another array, volume group or pool never. A file system that was not made anew is mounted with nodev and
    /// nosuid, also by its lines in fstab, unless --trust-content is given. Names everything first, then asks, or takes
    /// --yes.
    #[command(after_help = RESTORE)]
    RestoreArray(RestoreArrayArgs),
    /// Erase a drive that nobody uses, such as one that a deleted guest had
    ///
    /// All of the drive: by its own format (`nvme format`) where nvme-cli is installed and it is the only namespace of its
    /// controller, else by secure discard, else by zeros; it has to read as blank afterwards. Refused while the host or a
    /// guest, also one that is off, uses it or a part of it, and for the drive that the host starts from. Names what is on
    /// it, then asks for its id to be typed, or takes --yes. A run that was killed is finished by `gpuvm recover`.
    #[command(after_help = WIPE)]
    Wipe(WipeArgs),
}

/// Is what `drive wipe` takes.
#[derive(Debug, Args)]
pub struct WipeArgs {
    /// Name in /dev/disk/by-id as `gpuvm drive list` shows it, the kernel's name, or the PCI address of an NVMe drive
    #[arg(value_name = "ID")]
    pub id: String,
    /// What every change takes.
    #[command(flatten)]
    pub change: DriveChangeArgs,
}

/// Is what every verb takes that changes drives.
#[derive(Debug, Args)]
pub struct DriveChangeArgs {
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what both verbs on arrays take.
#[derive(Debug, Args)]
pub struct ArrayArgs {
    /// Write the initramfs of every kernel again, which has a copy of mdadm.conf; without it the command is printed
    #[arg(long)]
    pub initramfs: bool,
    /// What every change takes.
    #[command(flatten)]
    pub change: DriveChangeArgs,
}

/// Is what `drive release-array` takes.
#[derive(Debug, Args)]
pub struct ReleaseArrayArgs {
    /// Device of the array: /dev/md1, or a link to it such as /dev/md/data
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: PathBuf,
    /// Unmount it first; refused while a process has something open on it
    #[arg(long, visible_alias = "umount")]
    pub unmount: bool,
    /// What both take.
    #[command(flatten)]
    pub common: ArrayArgs,
}

/// Is what `drive restore-array` takes.
#[derive(Debug, Args)]
pub struct RestoreArrayArgs {
    /// Name of the array as it was released: md1
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Add drives that a guest has written over again, where the others still have all data; destroys what is on those
    #[arg(long, conflicts_with_all = ["create", "mkfs"])]
    pub rebuild: bool,
    /// Make the array anew where a guest has written over its superblocks; destroys what is on its drives
    #[arg(long)]
    pub create: bool,
    /// Make a new file system of the old kind, UUID and label on it; destroys what is on its drives
    #[arg(long)]
    pub mkfs: bool,
    /// Overwrite drives that have a file system, a partition table or encrypted data on them by now, which is named
    #[arg(long)]
    pub accept_data_loss: bool,
    /// Mount the old file system as it was, device files and set-user-ID programs on it included, although a guest may
    /// have written it
    #[arg(long)]
    pub trust_content: bool,
    /// What both take.
    #[command(flatten)]
    pub common: ArrayArgs,
}
