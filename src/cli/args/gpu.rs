//! The verbs on single GPUs and NVSwitches.

use super::heading::BEHAVIOUR;
use super::late::Late;
use super::{HeldArgs, LockArgs, about_records};
use clap::{ArgGroup, Args, Subcommand};
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
/// Examples of `test`.
const TEST: &str = "Examples:
  gpuvm gpu test 39:00.0
  gpuvm gpu test 0 1 2 3 --level 2
  gpuvm gpu test --pending --json";
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
    List(Late<HeldArgs>),
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
    /// Test GPUs between guests
    ///
    /// A guest with these GPUs alone boots from the image that /etc/gpuvm/test.toml names, without
    /// NICs; nvidia-smi and DCGM's diagnostics run in it, then it is removed. A GPU that passes is
    /// recorded as clean; one with a fault is excluded. A test that does not end in time, or whose
    /// image lacks a program, leaves a GPU as it was.
    #[command(after_long_help = TEST)]
    #[command(group = ArgGroup::new("what").args(["devices", "pending"]).required(true))]
    Test(Late<TestArgs>),
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

/// Arguments of `gpu test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Index, UUID or PCI address of a GPU
    ///
    /// Several are tested in one guest, their NVLinks included; if that finds a fault, each is
    /// tested alone.
    #[arg(value_name = "I|UUID|BDF")]
    pub devices: Vec<GpuName>,
    /// Test all GPUs not tested since their last guest
    ///
    /// Those that a guest had are tested together. GPUs that domains hold, excluded ones and those
    /// that have failed are left out.
    #[arg(long)]
    pub pending: bool,
    /// Level of DCGM's diagnostics, 1 to 4
    ///
    /// 1 takes seconds, 2 some minutes, 3 half an hour, 4 longer; by default that of the policy.
    /// From 2 on nvbandwidth and all_reduce_perf run, too, if the image has them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub level: Option<u8>,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
