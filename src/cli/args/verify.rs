//! Arguments of the verbs that judge a domain: check, verify.

use super::TakenArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Examples of `check`.
pub const CHECK: &str = "Examples:
  gpuvm check train-a
  virsh dumpxml --inactive train-a | gpuvm check -
  gpuvm check train-a.xml --host topologies/dgx-2.json";
/// Examples and exit codes of `verify`.
pub const VERIFY: &str = "Examples:
  gpuvm verify train-a
  gpuvm verify --all --json
  gpuvm verify --all --watch 60 --metrics /var/lib/prometheus/node-exporter/gpuvm.prom

Exit codes: 0 all is as it should be, 3 something is not, 1 it could not be compared, or with --all one of them could
not; the others are.";

/// Is what `verify` takes.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Name of the domain
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub name: Option<String>,
    /// Every domain, whoever made it
    #[arg(long)]
    pub all: bool,
    /// Compare again every so many seconds, until interrupted, and print only what has changed
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub watch: Option<u64>,
    /// Write numbers for Prometheus' node exporter to this file, which it reads where its name ends in .prom: findings by
    /// domain and rule, and when it was last done. The file is replaced whole
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub metrics: Option<PathBuf>,
    /// How long a guest's agent may take to answer all questions, in seconds; 0 asks none
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub agent_wait: u64,
}

/// Is what `check` takes.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Domain XML file, `-` for standard input, or the name of a domain
    #[arg(value_name = "FILE|NAME", value_hint = ValueHint::FilePath)]
    pub target: String,
    /// The host's other domains.
    #[command(flatten)]
    pub taken: TakenArgs,
}
