//! Arguments of the verbs that plan a guest and may make it: plan, export, create.

use super::guest::GuestArgs;
use super::life::LockArgs;
use super::seed::SeedArgs;
use super::storage::StorageArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Of `plan`.
pub const PLAN: &str = "Examples:
  gpuvm plan --gpus 2 --explain
  gpuvm plan --gpus 4 --nic 2 --nic-near switch --nvme 1
  gpuvm plan --gpu 3 --gpu 5 --vcpus 12 --memory 64G --huge-pages 1G
  gpuvm plan --host topologies/dgx-2.json --gpus 8 --gpu-index 8 --json";
/// Of `export`.
pub const EXPORT: &str = "Examples:
  gpuvm export --gpus 4 --name train-a --huge-pages 1G -o train-a.xml
  gpuvm export --host topologies/dgx-a100.json --gpus 8 --name train-a";
/// Of `create`.
pub const CREATE: &str = "Examples:
  gpuvm create --gpus 2 --name train-a
  gpuvm create --domain testme --gpu-count 8 --gpu-index 8
  gpuvm create --gpus 4 --name train-b --huge-pages 2M --reserve-pages
  gpuvm create --gpus 1 --name try --dry-run";

/// Is what `plan` takes.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Say why each choice was made
    #[arg(long)]
    pub explain: bool,
}

/// Is what `export` takes.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Its disks.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// Is what `create` takes.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Its disks.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// Its first settings.
    #[command(flatten)]
    pub seed: SeedArgs,
    /// Add a second NIC on the network `private-net`, which is made where it is not there
    #[arg(long = "privateIP", visible_alias = "private")]
    pub private_ip: bool,
    /// With --huge-pages: reserve the pages that are missing on the nodes of the plan; `delete` gives them back
    ///
    /// They are the guest's until the machine boots; `gpuvm host pages --at-boot` reserves pages for every boot.
    #[arg(long, requires = "huge_pages")]
    pub reserve_pages: bool,
    /// Take NVSwitches or NVLinks that other guests can reach, too; the plan says which guests are not kept apart
    #[arg(long)]
    pub accept_shared_fabric: bool,
    /// Give the guest drives that data lies on, which it may overwrite; at a terminal it is asked
    #[arg(long)]
    pub accept_data_loss: bool,
    /// Only define the guest
    #[arg(long)]
    pub no_start: bool,
    /// Do not wait for the guest's address
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait for the guest's address, in seconds; Ctrl-C before the answer is printed undoes the guest
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
    /// Print the steps and change nothing; takes --host
    #[arg(long)]
    pub dry_run: bool,
    /// Print the domain XML that would be defined, as a diff, and change nothing; takes --host
    #[arg(long, conflicts_with = "dry_run")]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
