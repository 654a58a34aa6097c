//! Arguments of `history` and `undo`.

use super::heading::BEHAVIOUR;
use super::life::ChangeArgs;
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

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print a change of the definition as a unified diff
    ///
    /// Without NUMBER the last change.
    #[arg(long, value_name = "NUMBER", num_args = 0..=1)]
    pub diff: Option<Option<u32>>,
}

/// Arguments of `undo`.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Domain names
    #[arg(value_name = "NAME", required = true, id = "name")]
    pub names: Vec<String>,
    /// Undo despite later changes, which are lost
    ///
    /// Edits of the definition by other means since then are lost; --diff shows them. Data that the
    /// guest has written to a disk since its conversion stays in the new image, which is not
    /// deleted. Reverting or deleting a snapshot cannot be undone; its entry is only removed from
    /// the history.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub force: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}
