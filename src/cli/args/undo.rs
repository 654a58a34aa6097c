//! Arguments of `history` and `undo`.

use super::life::LockArgs;
use clap::Args;

/// Examples of `history`.
pub const HISTORY: &str = "Examples:
  gpuvm history train-a
  gpuvm history train-a --diff
  gpuvm history train-a --diff 2";
/// Examples of `undo`.
pub const UNDO: &str = "Examples:
  gpuvm undo train-a --diff
  gpuvm undo train-a
  gpuvm undo train-a --dry-run";

/// Is what `history` takes.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print what a change did to the definition, as a unified diff; without a number, of the last one
    #[arg(long, value_name = "NUMBER", num_args = 0..=1)]
    pub diff: Option<Option<u32>>,
}

/// Is what `undo` takes.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also where the definition was edited since, by whatever means: those edits are lost, --diff shows them. Also where the
    /// guest has written on a disk that was converted: that stays in the new image, which is left
    #[arg(long)]
    pub force: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, conflicts_with = "diff")]
    pub dry_run: bool,
    /// Print what becomes of the definition, as a unified diff, and change nothing
    #[arg(long)]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
