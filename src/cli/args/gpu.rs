//! The verbs on single GPUs and NVSwitches.

use super::{LockArgs, TakenArgs, about_records};
use crate::bdf::{Bdf, BdfError};
use crate::discover::cards::is_uuid;
use clap::{Args, Subcommand};
use std::str::FromStr;

/// Examples of `exclude`.
const EXCLUDE: &str = "Examples:
  gpuvm gpu exclude 39:00.0 --reason 'row remapping failed, case 4711'
  gpuvm gpu exclude GPU-8b1c1a7d-0d4e-41f2-9c3a-6f00d5e1b2c3 --dry-run";
/// Examples of `include`.
const INCLUDE: &str = "Examples:
  gpuvm gpu include 39:00.0";
/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm gpu list
  gpuvm gpu list --host topologies/dgx-2.json --json";

/// Is a verb on GPUs.
#[derive(Debug, Subcommand)]
pub enum GpuVerb {
    /// List GPUs and NVSwitches with their NVLink partitions and whether they can be had
    #[command(after_help = LIST)]
    #[command(group = about_records())]
    List(TakenArgs),
    /// Take a GPU or NVSwitch out of use: no guest gets it, nor a partition that needs it
    ///
    /// A guest that has it keeps it. An exclusion by UUID follows the GPU and does not hold for the one that replaces
    /// it; one by address holds for the slot. The list is /etc/gpuvm/excluded.json.
    #[command(after_help = EXCLUDE)]
    Exclude(ExcludeArgs),
    /// Take an excluded GPU or NVSwitch back into use
    #[command(after_help = INCLUDE)]
    Include(IncludeArgs),
}

/// Is what `gpu exclude` takes.
#[derive(Debug, Args)]
pub struct ExcludeArgs {
    /// GPU or NVSwitch; UUIDs are known of GPUs that the NVIDIA driver has
    #[arg(value_name = "UUID|BDF")]
    pub device: Device,
    /// Why, in a line; plans and `gpu list` show it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print what would be done and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `gpu include` takes.
#[derive(Debug, Args)]
pub struct IncludeArgs {
    /// GPU or NVSwitch, by what it was excluded by or by where it is
    #[arg(value_name = "UUID|BDF")]
    pub device: Device,
    /// Print what would be done and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is a GPU or NVSwitch on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// By its UUID, in lower case behind `GPU-`.
    Uuid(String),
    /// By its address.
    At(Bdf),
}

impl FromStr for Device {
    type Err = BdfError;
    fn from_str(text: &str) -> Result<Device, BdfError> {
        match is_uuid(text) {
            true => Ok(Device::Uuid(format!("GPU-{}", text[4..].to_ascii_lowercase()))),
            false => text.parse().map(Device::At),
        }
    }
}
