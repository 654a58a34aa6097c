//! The verbs on Fabric Manager's partitions.

use super::LockArgs;
use super::about_records;
use super::heading::BEHAVIOUR;
use super::late::Late;
use clap::{Args, Subcommand};

/// Examples of `show`.
const SHOW: &str = "Examples:
  gpuvm fabric show
  gpuvm fabric show --json";
/// Examples of `release`.
const RELEASE: &str = "Examples:
  gpuvm fabric release 3 --dry-run
  gpuvm fabric release 3";
/// Examples of `restore`.
const RESTORE: &str = "Examples:
  gpuvm fabric restore --dry-run
  gpuvm fabric restore";
/// Examples of `ensure`.
const ENSURE: &str = "Examples:
  virsh dumpxml train-a | gpuvm fabric ensure --stdin";
/// Examples of `hook`.
const HOOK: &str = "Examples:
  gpuvm fabric hook --print
  gpuvm fabric hook --install --dry-run";
/// Examples of `unit`.
const UNIT: &str = "Examples:
  gpuvm fabric unit --print
  gpuvm fabric unit --install --config --dry-run
  gpuvm fabric unit --remove";

/// A verb on Fabric Manager's partitions.
#[derive(Debug, Subcommand)]
pub enum FabricVerb {
    /// List NVLink partitions, their guests and faults
    ///
    /// Asks Fabric Manager and libvirt of this machine. The state of a partition is `ok` (active,
    /// and a running domain has exactly its GPUs), `free`, `taken` (inactive, and an active
    /// partition has some of its GPUs), `stale` (active, and no running domain uses it), `missing`
    /// (inactive, and a running domain has its GPUs, so CUDA does not start there), `overlap`,
    /// `degraded` (fewer NVLinks than there should be) or `unknown` (module ids of GPUs are not
    /// known). Exits with 3 if a partition is stale, missing or overlaps, is still to be
    /// deactivated, or if Fabric Manager or the file of active partitions has no answer. With
    /// --host the partitions of the record, whose holders are not known.
    #[command(after_long_help = SHOW)]
    #[command(group = about_records())]
    Show,
    /// Deactivate an NVLink partition that no running guest uses
    ///
    /// Refused if a running domain has any GPU of the partition. The list of Fabric Manager is read
    /// again right before the partition is deactivated, and after it.
    ///
    /// With --stdin: the partitions that were activated for the domain whose XML is read, and no
    /// others; libvirt is not asked.
    #[command(after_long_help = RELEASE)]
    Release(Late<FabricReleaseArgs>),
    /// Restore active partitions after a restart of Fabric Manager
    ///
    /// In its restart mode (FABRIC_MODE_RESTART) Fabric Manager waits 60 s for the list of active
    /// partitions. gpuvm passes it the partitions of running guests (possibly none) once, and their
    /// NVLinks stay up. Started plainly it has no active ones: missing partitions are activated one
    /// by one; the guests that ran meanwhile have lost NVLink and need a power cycle. Exits with 3
    /// if guests are left without NVLink.
    ///
    /// Partitions of vGPUs (FABRIC_MODE=2) are restored from gpuvm's record of their activation
    /// alone, with the virtual functions recorded there.
    #[command(after_long_help = RESTORE)]
    Restore(Late<FabricRestoreArgs>),
    /// Activate the NVLink partition of a domain's XML
    ///
    /// Never asks libvirt, which waits for its hook: GPUs are taken from the XML, their users from
    /// open files. A domain without NVIDIA GPUs passes at once. Fails if the GPUs form no
    /// partition, if the partition is active for another guest, or if Fabric Manager does not
    /// answer; that ends the start.
    #[command(after_long_help = ENSURE)]
    Ensure(Late<FabricEnsureArgs>),
    /// Print, install or remove libvirt's hook
    ///
    /// For guests that other tools start: it runs `gpuvm fabric ensure` before a guest starts and
    /// `gpuvm fabric release` when it is off. libvirt's daemon looks for hooks when it starts. A
    /// file of that name that gpuvm did not make is left alone.
    #[command(after_long_help = HOOK)]
    Hook(Late<FabricHookArgs>),
    /// Print, install or remove the systemd drop-in that restores partitions
    ///
    /// The drop-in of nvidia-fabricmanager.service runs `gpuvm fabric restore --boot` after each
    /// start of Fabric Manager. A file of that name that gpuvm did not make is left alone.
    #[command(after_long_help = UNIT)]
    Unit(Late<FabricUnitArgs>),
}

/// Arguments of `fabric release`.
#[derive(Debug, Args)]
pub struct FabricReleaseArgs {
    /// Partition number, as in `fabric show`
    #[arg(value_name = "PARTITION", required_unless_present = "stdin")]
    pub partition: Option<u32>,
    /// Read the domain's XML from standard input
    #[arg(long, conflicts_with_all = ["partition", "yes", "dry_run"])]
    pub stdin: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `fabric restore`.
#[derive(Debug, Args)]
pub struct FabricRestoreArgs {
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Wait for Fabric Manager and do not ask libvirt
    ///
    /// libvirt may wait for Fabric Manager in turn: guests are known by their processes and by the
    /// list of active partitions.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub boot: bool,
}

/// Arguments of `fabric ensure`.
#[derive(Debug, Args)]
pub struct FabricEnsureArgs {
    /// Read the domain's XML from standard input
    #[arg(long, required = true)]
    pub stdin: bool,
}

/// Arguments of `fabric hook`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("hook").required(true).args(["print", "install", "remove"])))]
pub struct FabricHookArgs {
    /// Print the file
    #[arg(long)]
    pub print: bool,
    /// Install the file
    #[arg(long)]
    pub install: bool,
    /// Remove the file
    #[arg(long)]
    pub remove: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `fabric unit`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("unit").required(true).args(["print", "install", "remove"])))]
pub struct FabricUnitArgs {
    /// Print the file
    #[arg(long)]
    pub print: bool,
    /// Install the file
    #[arg(long)]
    pub install: bool,
    /// Remove the file
    ///
    /// What --config has changed stays.
    #[arg(long)]
    pub remove: bool,
    /// Also keep Fabric Manager's state outside /tmp
    ///
    /// Sets STATE_FILE_NAME in fabricmanager.cfg to a file that is not cleaned up. The
    /// configuration is copied first (fabricmanager.cfg.before-gpuvm). A place outside /tmp stays.
    #[arg(long, requires = "install")]
    pub config: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
