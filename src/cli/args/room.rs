//! Arguments of `make-room`.

use super::guest::{GpuArgs, HeldArgs, ShapeArgs};
use super::heading::BEHAVIOUR;
use super::life::LockArgs;
use super::values::number;
use clap::Args;

/// Examples at the end of the help.
pub const EXAMPLES: &str = "Examples:
  gpuvm make-room --gpus 8 --dry-run
  gpuvm make-room --gpus 8 --max-stops 1
  gpuvm make-room --gpus 8 --memory 600G --allow-stop train-a";

/// Arguments of `make-room`.
#[derive(Debug, Args)]
pub struct RoomArgs {
    /// The GPUs of the new guest.
    #[command(flatten)]
    pub gpus: GpuArgs,
    /// Its further resources.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Allow moving this guest; repeatable
    ///
    /// Besides the guests that were created with --movable. Also domains that gpuvm did not create.
    #[arg(long, value_name = "NAME", help_heading = BEHAVIOUR)]
    pub allow_stop: Vec<String>,
    /// Stop at most N running guests
    #[arg(long, value_name = "N", value_parser = number, help_heading = BEHAVIOUR)]
    pub max_stops: Option<u32>,
    /// Move at most N guests
    #[arg(long, value_name = "N", value_parser = number, help_heading = BEHAVIOUR)]
    pub max_moves: Option<u32>,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Of the moved guests and of the new one, as `create` does.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_shared_fabric: bool,
    /// Time limit for each guest to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 120, help_heading = BEHAVIOUR)]
    pub wait: u64,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    ///
    /// A line for each move, and their cost. Always so with --host, whose guests --domain-xml
    /// names.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The occupancy.
    #[command(flatten)]
    pub held: HeldArgs,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
