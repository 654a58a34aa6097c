//! Arguments of `nccl`.

use super::heading::BEHAVIOUR;
use clap::{Args, ValueHint};

/// Examples of `nccl`.
pub const NCCL: &str = "Examples:
  gpuvm nccl train-a >nccl-topo.xml
  gpuvm nccl train-a --install
  gpuvm nccl train-a --check
  gpuvm nccl train-a.xml --host topologies/dgx-a100.json";

/// Arguments of `nccl`.
#[derive(Debug, Args)]
pub struct NcclArgs {
    /// Domain name, domain XML file, or `-` for standard input
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    pub target: String,
    /// Install the file
    ///
    /// Into the running guest, by its agent: to /etc/nccl-topo.xml, with what NCCL finds it by: a link below /run/nvidia-topologyd that tmpfiles.d makes at each start, or
    /// a line in /etc/nccl.conf where the guest has no systemd or another file there. Files that are not gpuvm's are kept as
    /// NAME.before-gpuvm.
    #[arg(long)]
    pub install: bool,
    /// Exit with 3 if anything would change
    ///
    /// Compares the file in the running guest.
    #[arg(long, conflicts_with = "install", help_heading = BEHAVIOUR)]
    pub check: bool,
    /// Print the steps and change nothing
    #[arg(long, requires = "install", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
}
