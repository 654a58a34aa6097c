//! Options of a guest's first settings, which cloud-init reads.

use clap::{Args, ValueHint};
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
    /// Take the seed away once cloud-init is done: its agent says when
    #[arg(long)]
    pub drop_seed: bool,
}
