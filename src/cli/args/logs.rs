//! Arguments of `logs`.

use clap::Args;

/// Examples of `logs`.
pub const LOGS: &str = "Examples:
  gpuvm logs train-a
  gpuvm logs train-a --follow
  gpuvm logs train-a --qemu --lines 20";

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print QEMU's log, not the serial console's
    ///
    /// QEMU's command line, its errors, and why it exited.
    #[arg(long)]
    pub qemu: bool,
    /// Print new lines until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    pub follow: bool,
    /// Print only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<usize>,
}
