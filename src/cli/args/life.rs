//! Arguments of the verbs on a guest that is there: start, stop, restart, ip, console.

use clap::Args;

/// Examples of `ip`.
pub const IP: &str = "Examples:
  ssh ubuntu@$(gpuvm ip train-a)
  gpuvm ip train-a --wait 300
  gpuvm ip train-a --all";
/// Examples of `stop`.
pub const STOP: &str = "Examples:
  gpuvm stop train-a
  gpuvm stop train-a --wait 600
  gpuvm stop train-a --force";
/// Examples of `restart`.
pub const RESTART: &str = "Examples:
  gpuvm restart train-a
  gpuvm restart train-a --dry-run";
/// Examples of `console`.
pub const CONSOLE: &str = "Examples:
  gpuvm console train-a
  gpuvm console train-a --connect qemu+ssh://root@dgx/system
  sleep 60 | gpuvm console train-a >boot.log";

/// Is how long another change of the host is waited for.
#[derive(Debug, Clone, Args)]
pub struct LockArgs {
    /// How long to wait for another change of this host, in seconds; 0 does not wait
    // A change holds the lock from the reading of what is taken to the definition of the domain, which takes seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub lock_wait: u64,
}

/// Is what `start` takes.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Reserve the huge pages that it is missing, say after a reboot; `undo` and `delete` give them back
    #[arg(long)]
    pub reserve_pages: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is how a guest is taken down.
#[derive(Debug, Args)]
pub struct DownArgs {
    /// Cut the power instead of asking the guest; may lose data
    #[arg(long)]
    pub force: bool,
    /// How long the guest may take to shut down, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
}

/// Is what `stop` and `restart` take.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How.
    #[command(flatten)]
    pub down: DownArgs,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `ip` takes.
#[derive(Debug, Args)]
pub struct IpArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Wait until it has an address, with --all until each of its NICs has one, up to so many seconds; 120 where no number is
    /// given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "120")]
    pub wait: Option<u64>,
    /// One line for each address of each NIC: MAC address, address, where it was found
    #[arg(long)]
    pub all: bool,
}

/// Is what `console` takes.
#[derive(Debug, Args)]
pub struct ConsoleArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Take the console over from whoever has it
    #[arg(long)]
    pub force: bool,
}
