//! The verbs on Fabric Manager's partitions.

use super::LockArgs;
use super::heading::BEHAVIOUR;
use clap::{Args, Subcommand};

/// Examples of `show`.
const SHOW: &str = "Examples:
  gpuvm fabric show
  gpuvm fabric show --json";
/// Examples of `release`.
const RELEASE: &str = "Examples:
  gpuvm fabric release 3 --dry-run
  gpuvm fabric release 3";

/// A verb on Fabric Manager's partitions.
#[derive(Debug, Subcommand)]
pub enum FabricVerb {
    /// List NVLink partitions, the guests that hold them, and what is wrong
    ///
    /// Asks Fabric Manager and libvirt of this machine. The state of a partition is `ok` (active, and a running domain has
    /// exactly its GPUs), `free`, `stale` (active, and no running domain uses it), `missing` (inactive, and a running domain
    /// has its GPUs, so CUDA does not start there), `overlap`, `degraded` (fewer NVLinks than there should be) or `unknown`
    /// (module ids of GPUs are not known). Exits with 3 if a partition is stale, missing or overlaps, is still to be
    /// deactivated, or if Fabric Manager or the file of active partitions does not tell.
    #[command(after_long_help = SHOW)]
    Show,
    /// Deactivate an NVLink partition that no running guest uses
    ///
    /// Refused if a running domain has any GPU of the partition. The list of Fabric Manager is read again right before the
    /// partition is deactivated, and after it.
    #[command(after_long_help = RELEASE)]
    Release(FabricReleaseArgs),
}

/// Arguments of `fabric release`.
#[derive(Debug, Args)]
pub struct FabricReleaseArgs {
    /// Partition number, as in `fabric show`
    #[arg(value_name = "PARTITION")]
    pub partition: u32,
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
