//! Options of a guest's first settings, which cloud-init reads.

use super::life::LockArgs;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Is what a guest is told at its first start.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "First settings (cloud-init)")]
pub struct SeedArgs {
    /// File of public keys that may log in; repeat for more. Default: yours (~/.ssh/id_*.pub)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssh_key: Vec<PathBuf>,
    /// User that is made, with sudo. Default: the image's own user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File with the hash of the user's password, as `openssl passwd -6` prints it; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_hash: Option<PathBuf>,
    /// File of user-data for cloud-init, passed on as it is; it goes before what gpuvm says
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub user_data: Option<PathBuf>,
    /// File of meta-data for cloud-init, in place of gpuvm's own
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub meta_data: Option<PathBuf>,
    /// File of the network configuration for cloud-init, passed on as it is. Default: DHCP on the first NIC
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub network_config: Option<PathBuf>,
    /// Do not install the QEMU guest agent
    #[arg(long)]
    pub no_agent: bool,
    /// Make no seed. Default for guests that are not made from an image and have none of these options
    #[arg(long, conflicts_with_all = ["ssh_key", "user", "password_hash", "user_data", "meta_data", "network_config", "drop_seed"])]
    pub no_seed: bool,
    /// Take the seed away once cloud-init is done, which is waited for within --wait: the guest's agent says when
    #[arg(long, conflicts_with_all = ["no_start", "no_wait"])]
    pub drop_seed: bool,
}

/// Examples of `seed drop`.
const DROP: &str = "Examples:
  gpuvm seed drop train-a
  gpuvm seed drop train-a --now";

/// Is a verb on seeds.
#[derive(Debug, Subcommand)]
pub enum SeedVerb {
    /// Take a guest's seed away once cloud-init is done
    ///
    /// The seed holds what `create` told the guest: keys, the hash of a password, user-data. A running guest is asked by
    /// its agent whether cloud-init is done, and then to let go of the disk; then the disk goes from the definition, and
    /// its volume is deleted. Where the guest does not let go, the volume stays until the guest is deleted.
    #[command(after_help = DROP)]
    Drop(SeedDropArgs),
}

/// Is what `seed drop` takes.
#[derive(Debug, Args)]
pub struct SeedDropArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask whether cloud-init is done
    #[arg(long)]
    pub now: bool,
    /// How long cloud-init may still take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
