//! Arguments of `clone`: another guest as one that is there.

use super::heading::{BEHAVIOUR, DEVICES, FIRST_BOOT, PLACEMENT};
use super::life::ChangeArgs;
use super::seed::home;
use super::wish::AllowArg;
use crate::request::DomainName;
use clap::{Args, ValueHint};
use gpuvm_ops::clone::CloneRequest;
use gpuvm_ops::storage::{NcclWanted, SeedRequest, SeedWanted};
use std::path::PathBuf;

/// Examples of `clone`.
pub const EXAMPLES: &str = "Examples:
  gpuvm clone train-a train-b --dry-run
  gpuvm clone train-a train-b
  gpuvm clone train-a test-a --gpus 0
  gpuvm undo train-b";

/// Arguments of `clone`.
#[derive(Debug, Args)]
pub struct CloneArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Name of the clone
    #[arg(value_name = "NEW")]
    pub to: DomainName,
    /// Number of GPUs
    ///
    /// Default: as many as NAME has. Sizes that `create` derived from the GPUs are derived again.
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub gpus: Option<u32>,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. Separate several by
    /// commas.
    #[arg(long, value_name = "RULE", value_enum, value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<AllowArg>,
    /// File of SSH public keys that may log in; repeatable
    ///
    /// Default: yours (~/.ssh/id_*.pub). Users that the copied disks have stay.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = FIRST_BOOT)]
    pub ssh_key: Vec<PathBuf>,
    /// Create no cloud-init seed
    ///
    /// The clone then boots with the host name and the SSH host keys of NAME. Default for guests
    /// that were not made of an image.
    #[arg(long, conflicts_with = "ssh_key", help_heading = FIRST_BOOT)]
    pub no_seed: bool,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Takes NVSwitches or NVLinks that other guests can reach as well; the plan names the guests
    /// that are not isolated from each other.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_shared_fabric: bool,
    /// How it is made.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl CloneArgs {
    /// What is asked for.
    pub fn wanted(&self) -> CloneRequest {
        let wanted = if self.no_seed { SeedWanted::No } else { SeedWanted::Usual };
        let ssh_key = self.ssh_key.clone();
        let nccl = NcclWanted::No;
        CloneRequest {
            name: self.name.clone(),
            to: self.to.clone(),
            gpus: self.gpus,
            allow_remote: self.allow.contains(&AllowArg::Remote),
            allow_split: self.allow.contains(&AllowArg::Split),
            accept_shared_fabric: self.accept_shared_fabric,
            uuid: None,
            // The agent is on the copied disk, or it was not wanted.
            seed: SeedRequest { ssh_key, home: home(), nccl, wanted, ..SeedRequest::default() },
        }
    }
}
