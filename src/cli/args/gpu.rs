//! The verbs on single GPUs and NVSwitches.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{LockArgs, TakenArgs, about_records};
use clap::{Args, Subcommand};
use gpuvm_ops::exclude::GpuName;

/// Examples of `exclude`.
const EXCLUDE: &str = "Examples:
  gpuvm gpu exclude 39:00.0 --reason 'row remapping failed, case 4711'
  gpuvm gpu exclude GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3 --dry-run";
/// Examples of `include`.
const INCLUDE: &str = "Examples:
  gpuvm gpu include 39:00.0
  gpuvm gpu include 39:00.0 --despite-health
  gpuvm gpu include 39:00.0 --untested";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm gpu list
  gpuvm gpu list --host topologies/dgx-2.json --json";

/// A verb on GPUs.
#[derive(Debug, Subcommand)]
pub enum GpuVerb {
    /// List GPUs, NVSwitches, their partitions and state
    #[command(after_long_help = LIST, alias = "ls")]
    #[command(group = about_records())]
    List(Late<TakenArgs>),
    /// Exclude a GPU or NVSwitch from use by guests
    ///
    /// No guest gets it, nor a partition that needs it; a guest that has it keeps it. An exclusion
    /// by UUID applies to that GPU wherever it is, and not to its replacement; one by address
    /// applies to the slot. The list is /etc/gpuvm/excluded.json.
    #[command(after_long_help = EXCLUDE)]
    Exclude(Late<ExcludeArgs>),
    /// Return an excluded GPU or NVSwitch to use
    #[command(after_long_help = INCLUDE)]
    Include(Late<IncludeArgs>),
}

/// Arguments of `gpu exclude`.
#[derive(Debug, Args)]
pub struct ExcludeArgs {
    /// Index, UUID or PCI address of a GPU or NVSwitch
    ///
    /// UUIDs are known for GPUs that are bound to the NVIDIA driver.
    #[arg(value_name = "I|UUID|BDF")]
    pub device: GpuName,
    /// Reason, in one line
    ///
    /// Plans and `gpu list` show it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `gpu include`.
#[derive(Debug, Args)]
pub struct IncludeArgs {
    /// Index, UUID or PCI address of a GPU or NVSwitch
    ///
    /// As it was excluded, or its current address.
    #[arg(value_name = "I|UUID|BDF")]
    pub device: GpuName,
    /// Offer it although its health is over a limit
    ///
    /// Accepts the faults that `gpu list` shows now; later ones exclude it again. Without this
    /// option an earlier override is removed.
    #[arg(long)]
    pub despite_health: bool,
    /// Record it as clean without a test
    ///
    /// Where /etc/gpuvm/test.toml has mode = "require", a GPU is not offered once a guest has had
    /// it, until it is tested. This option answers for that test.
    #[arg(long)]
    pub untested: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
