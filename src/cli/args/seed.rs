//! Options of a guest's first settings, which cloud-init reads.

use super::heading::{BEHAVIOUR, FIRST_BOOT};
use super::late::Late;
use super::life::LockArgs;
use super::program::called_as_vendor;
use crate::cli::refuse::around;
use crate::input;
use crate::seed::{self, Hidden, MAX_BYTES};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use gpuvm_ops::storage::{Keyless, NcclWanted, SeedRequest, SeedWanted};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// How a guest finds its NCCL topology file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NcclArg {
    /// At the path that NCCL reads by default
    Link,
    /// Also named in /etc/nccl.conf
    Conf,
}

/// A guest's settings at its first start.
#[derive(Debug, Clone, Args)]
pub struct SeedArgs {
    /// File of SSH public keys that may log in; repeatable
    ///
    /// Default: yours (~/.ssh/id_*.pub).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = FIRST_BOOT)]
    pub ssh_key: Vec<PathBuf>,
    /// User to create, with sudo rights
    ///
    /// Default: the image's own user.
    #[arg(long, value_name = "NAME", help_heading = FIRST_BOOT)]
    pub user: Option<String>,
    /// File with the user's password hash
    ///
    /// As `openssl passwd -6` prints it; `-` reads standard input.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = FIRST_BOOT, hide_short_help = true)]
    pub password_hash: Option<PathBuf>,
    /// cloud-init user-data to include
    ///
    /// Passed on unchanged; it overrides what gpuvm writes.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = FIRST_BOOT)]
    pub user_data: Option<PathBuf>,
    /// cloud-init meta-data to use instead of gpuvm's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = FIRST_BOOT, hide_short_help = true)]
    pub meta_data: Option<PathBuf>,
    /// cloud-init network configuration
    ///
    /// Passed on unchanged. Default: DHCP on every NIC, found by its MAC address. The first NIC has
    /// the default route, and the boot does not wait for the others.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = FIRST_BOOT, hide_short_help = true)]
    pub network_config: Option<PathBuf>,
    /// Do not install the QEMU guest agent
    #[arg(long, help_heading = FIRST_BOOT, hide_short_help = true)]
    pub no_agent: bool,
    /// Write no NCCL topology file into the guest
    ///
    /// Default for guests with one GPU and no NIC, which need none. `gpuvm nccl NAME --install`
    /// writes it later.
    #[arg(long, help_heading = FIRST_BOOT, hide_short_help = true)]
    pub no_nccl: bool,
    /// How the guest finds its NCCL topology file
    ///
    /// link: at the path that NCCL 2.10.3 and newer read by default. conf: named in the guest's
    /// /etc/nccl.conf as well, unless that names a file already; for older NCCL, and for guests
    /// with NVIDIA's nvidia-topologyd.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = NcclArg::Link, hide_default_value = true)]
    #[arg(help_heading = FIRST_BOOT, hide_short_help = true, conflicts_with_all = ["no_nccl", "no_seed"])]
    pub nccl: NcclArg,
    /// Addresses of all guests of the IMEX domain
    ///
    /// The guest's own among them, in any order; written to /etc/nvidia-imex/nodes_config.cfg, and
    /// the driver makes channel 0. Only for guests with all GPUs of a tray of an NVL72 rack.
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = FIRST_BOOT, hide_short_help = true)]
    pub imex_node: Vec<IpAddr>,
    /// Create a guest without any login
    ///
    /// Without it, a guest of an image is refused if there is no key, no --password-hash and no
    /// --user-data; at a terminal `create` asks.
    #[arg(long, help_heading = FIRST_BOOT, hide_short_help = true)]
    pub no_login: bool,
    /// Create no cloud-init seed
    ///
    /// Default for guests without an image that have none of the options of this section.
    #[arg(long, help_heading = FIRST_BOOT, hide_short_help = true)]
    #[arg(conflicts_with_all = ["ssh_key", "user", "password_hash", "user_data", "meta_data", "network_config", "imex_node", "drop_seed"])]
    pub no_seed: bool,
    /// Remove the seed once cloud-init has finished
    ///
    /// Waits up to --wait for the guest agent to report it.
    #[arg(long, conflicts_with_all = ["no_start", "no_wait"])]
    #[arg(help_heading = FIRST_BOOT, hide_short_help = true)]
    pub drop_seed: bool,
}

impl SeedArgs {
    /// Returns the request. The password's hash is read here: standard input can be read once.
    pub fn request(&self) -> anyhow::Result<SeedRequest> {
        Ok(SeedRequest {
            ssh_key: self.ssh_key.clone(),
            home: home(),
            user: self.user.clone(),
            password_hash: self.password_hash.as_deref().map(password_hash).transpose()?,
            password_file: self.password_hash.clone().filter(|path| path.as_os_str() != "-"),
            user_data: self.user_data.clone(),
            meta_data: self.meta_data.clone(),
            network_config: self.network_config.clone(),
            agent: !self.no_agent,
            nccl: match (self.no_nccl, self.nccl) {
                (true, _) => NcclWanted::No,
                (false, NcclArg::Link) => NcclWanted::Link,
                (false, NcclArg::Conf) => NcclWanted::Conf,
            },
            imex_nodes: self.imex_node.clone(),
            wanted: match (self.no_seed, self.drop_seed) {
                (true, _) => SeedWanted::No,
                (false, true) => SeedWanted::Yes,
                (false, false) => SeedWanted::Usual,
            },
            keyless: match (self.no_login, called_as_vendor()) {
                (true, _) => Keyless::Accepted,
                // Images of that tool have a user of their own.
                (false, true) => Keyless::Warned,
                (false, false) => Keyless::Refused,
            },
        })
    }
}

/// The home directory of the person who calls, who may have become root by sudo.
pub(super) fn home() -> Option<PathBuf> {
    let caller = std::env::var("SUDO_USER").ok().filter(|_| nix::unistd::geteuid().is_root());
    let own = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    home_of(caller.as_deref(), own)
}

/// The home directory of whoever called by sudo, else one's own.
fn home_of(caller: Option<&str>, own: Option<PathBuf>) -> Option<PathBuf> {
    let user = caller.and_then(|name| nix::unistd::User::from_name(name).ok().flatten());
    user.map(|user| user.dir).or(own)
}

/// Reads a password's hash from a file, or from standard input for `-`, so that it stands on no
/// command line.
fn password_hash(path: &Path) -> anyhow::Result<Hidden> {
    let text = input::text_or_stdin(path, MAX_BYTES as u64)?;
    seed::password_hash(&text).map_err(|error| {
        let message = format!("{}: {error}", path.display());
        around(error, message, "")
    })
}

/// Examples of `seed drop`.
const DROP: &str = "Examples:
  gpuvm seed drop train-a
  gpuvm seed drop train-a --now";

/// A verb on seeds.
#[derive(Debug, Subcommand)]
pub enum SeedVerb {
    /// Remove a guest's cloud-init seed once cloud-init has finished
    ///
    /// The seed holds what `create` gave the guest: SSH keys, a password hash, user-data. gpuvm
    /// asks the agent of a running guest whether cloud-init has finished, has the guest release the
    /// disk, removes it from the definition and deletes its volume. If the guest does not release
    /// the disk, the volume stays until the guest is deleted.
    #[command(after_long_help = DROP)]
    Drop(Late<SeedDropArgs>),
}

/// Arguments of `seed drop`.
#[derive(Debug, Args)]
pub struct SeedDropArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not check whether cloud-init has finished
    #[arg(long)]
    pub now: bool,
    /// Time limit for cloud-init to finish
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_whoever_called_by_sudo() {
        let own = || Some(PathBuf::from("/home/me"));
        assert_eq!(home_of(Some("root"), own()), Some("/root".into()));
        assert_eq!(home_of(Some("no such user"), own()), own());
        assert_eq!(home_of(None, own()), own());
    }
}
