//! Arguments of the verbs on a guest that is there: start, stop, restart, autostart, ip, console.

use super::NamesArgs;
use super::heading::{BEHAVIOUR, CPU, DEVICES, GUEST};
use super::values::{OnOff, word};
use crate::request::{DomainName, P2pWish};
use clap::Args;

/// Examples of `ip`.
pub const IP: &str = "Examples:
  ssh ubuntu@$(gpuvm ip train-a)
  gpuvm ip train-a --wait 300
  gpuvm ip train-a --all";
/// Examples of `stop`.
pub const STOP: &str = "Examples:
  gpuvm stop train-a
  gpuvm stop train-a train-b
  gpuvm stop --all --wait 600
  gpuvm stop train-a --force";
/// Examples of `restart`.
pub const RESTART: &str = "Examples:
  gpuvm restart train-a
  gpuvm restart train-a --dry-run";
/// Examples of `pause`.
pub const PAUSE: &str = "Examples:
  gpuvm pause train-a
  gpuvm pause train-a --dry-run";
/// Examples of `resume`.
pub const RESUME: &str = "Examples:
  gpuvm resume train-a
  gpuvm resume train-a --dry-run";
/// Examples of `autostart`.
pub const AUTOSTART: &str = "Examples:
  gpuvm autostart train-a on
  gpuvm autostart train-a on --dry-run
  gpuvm autostart train-a off";
/// Examples of `console`.
pub const CONSOLE: &str = "Examples:
  gpuvm console train-a
  gpuvm console train-a --connect qemu+ssh://root@dgx/system
  sleep 60 | gpuvm console train-a >boot.log";

/// Examples of `rename`.
pub const RENAME: &str = "Examples:
  gpuvm rename train-a train-b --dry-run
  gpuvm rename train-a train-b";

/// How long another change of the host is waited for.
#[derive(Debug, Clone, Args)]
pub struct LockArgs {
    /// Time limit for another change of this host to finish
    ///
    /// 0 does not wait.
    // A change holds the lock from the reading of the occupancy to the definition of the domain,
    // which takes seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(help_heading = BEHAVIOUR, hide_short_help = true)]
    pub lock_wait: u64,
}

/// How a change of a definition is made, or only shown.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Print the definition as a diff and change nothing
    #[arg(long, conflicts_with = "dry_run", help_heading = BEHAVIOUR)]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `start`.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// Which.
    #[command(flatten)]
    pub names: NamesArgs,
    /// Which.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// Reserve missing huge pages
    ///
    /// On the nodes of the domain's memory, for example after a reboot. `undo` and `delete` release
    /// them.
    #[arg(long, help_heading = CPU)]
    pub reserve_pages: bool,
    /// Keep transfers between its GPUs and NICs below their PCIe switch
    ///
    /// For this start; default: as created, or as `gpuvm tune NAME --p2p auto|off` has set it. The
    /// switch ports of its NICs pass translated requests directly (ACS Direct Translated P2P) until
    /// it is stopped by gpuvm or deleted.
    #[arg(long, value_name = "CHOICE", value_parser = word::<P2pWish>(), help_heading = DEVICES, hide_short_help = true)]
    pub p2p: Option<P2pWish>,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Which domain of a name is meant.
#[derive(Debug, Args)]
pub struct OnlyArgs {
    /// Refuse a domain of another UUID
    ///
    /// For scripts: `gpuvm show NAME --json` has the UUID. It is compared again once no other
    /// change can come in between.
    #[arg(long, value_name = "UUID", help_heading = GUEST, hide_short_help = true)]
    pub uuid: Option<String>,
}

/// How a guest is taken down.
#[derive(Debug, Args)]
pub struct DownArgs {
    /// Power off immediately; may lose data
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
    /// Time limit for the guest to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 120, help_heading = BEHAVIOUR)]
    pub wait: u64,
}

/// Arguments of `stop` and `restart`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which.
    #[command(flatten)]
    pub names: NamesArgs,
    /// Which.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// How.
    #[command(flatten)]
    pub down: DownArgs,
    /// Do not ask for confirmation
    ///
    /// Only --all asks.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Which.
    #[command(flatten)]
    pub names: NamesArgs,
    /// Which.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// New name
    #[arg(value_name = "NEW")]
    pub to: DomainName,
    /// How it is changed.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `autostart`.
#[derive(Debug, Args)]
pub struct AutostartArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// on: start when the host boots; off: do not
    #[arg(value_name = "on|off", value_enum, hide_possible_values = true)]
    pub state: OnOff,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `ip`.
#[derive(Debug, Args)]
pub struct IpArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Wait for an address [default: 120 seconds]
    ///
    /// With --all, until each NIC has one.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "120")]
    pub wait: Option<u64>,
    /// Print every address of every NIC, and its source
    ///
    /// One line each: MAC address, address, where it was found.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `console`.
#[derive(Debug, Args)]
pub struct ConsoleArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Take the console over from its current user
    #[arg(long)]
    pub force: bool,
}
