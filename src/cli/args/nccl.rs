//! Arguments of `nccl`.

use super::heading::BEHAVIOUR;
use clap::{Args, ValueHint};

/// Examples of `nccl`.
pub const NCCL: &str = "Examples:
  gpuvm nccl train-a >nccl-topo.xml
  gpuvm nccl train-a --install
  gpuvm nccl train-a --check
  gpuvm nccl train-a --uninstall
  gpuvm nccl train-a.xml --host topologies/dgx-a100.json";

/// Arguments of `nccl`.
#[derive(Debug, Args)]
pub struct NcclArgs {
    /// Domain name, domain XML file, or `-` for standard input
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    pub target: String,
    /// Install the file
    ///
    /// Into the running guest, by its agent: to /etc/nccl-topo.xml, with what NCCL finds it by: a
    /// link below /run/nvidia-topologyd that tmpfiles.d makes at each start, or a line in
    /// /etc/nccl.conf where the guest has no systemd, NVIDIA's nvidia-topologyd or another file
    /// there. Files and links that are not gpuvm's are kept as NAME.before-gpuvm; where
    /// /etc/nccl.conf is a link, the file that it leads to is edited. A guest that needs no file
    /// gets none.
    #[arg(long, group = "nccl_change")]
    pub install: bool,
    /// Remove files written by --install and the seed
    ///
    /// Removes files of gpuvm that are unchanged since, and its line in /etc/nccl.conf, and
    /// restores files kept as NAME.before-gpuvm. Everything else stays and is named.
    #[arg(long, group = "nccl_change", conflicts_with = "install")]
    pub uninstall: bool,
    /// Exit with 3 if anything would change
    ///
    /// Compares the file in the running guest; also 3 where NCCL takes another file, which is named
    /// with what names it.
    #[arg(long, conflicts_with = "nccl_change", help_heading = BEHAVIOUR)]
    pub check: bool,
    /// Print the steps and change nothing
    #[arg(long, requires = "nccl_change", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
}
