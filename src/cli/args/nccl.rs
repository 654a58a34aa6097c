//! Arguments of `nccl`.

use clap::{Args, ValueHint};

/// Examples of `nccl`.
pub const NCCL: &str = "Examples:
  gpuvm nccl train-a >nccl-topo.xml
  gpuvm nccl train-a --json
  gpuvm nccl train-a.xml --host topologies/dgx-a100.json";

/// Arguments of `nccl`.
#[derive(Debug, Args)]
pub struct NcclArgs {
    /// Domain name, domain XML file, or `-` for standard input
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    pub target: String,
}
