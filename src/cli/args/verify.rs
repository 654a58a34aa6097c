//! Arguments of the verbs that judge a domain: check, verify.

use super::TakenArgs;
use super::heading::{BEHAVIOUR, PLACEMENT};
use clap::{Args, ValueHint};
use gpuvm_core::versions::Stack;
use std::path::PathBuf;

/// Examples of `check`.
pub const CHECK: &str = "Examples:
  gpuvm check train-a
  virsh dumpxml --inactive train-a | gpuvm check -
  gpuvm check train-a.xml --host topologies/dgx-2.json";
/// Examples of `verify`.
pub const VERIFY: &str = "Examples:
  gpuvm verify train-a
  gpuvm verify train-a train-b
  gpuvm verify --all --json
  gpuvm verify --all --watch 60 \\
    --metrics /var/lib/prometheus/node-exporter/gpuvm.prom";

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Domain names
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    #[arg(id = "name")]
    pub names: Vec<String>,
    /// Verify every domain
    ///
    /// Also those that gpuvm did not create.
    #[arg(long)]
    pub all: bool,
    /// Repeat every SECONDS; print only changes
    ///
    /// Until interrupted.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub watch: Option<u64>,
    /// Also sample how guests run
    ///
    /// Finds vCPUs that wait for the pcpu they are pinned to (`vcpu-waits`) and CPU quotas that
    /// hold a guest back (`vcpu-throttled`) in this time. 0, the default, samples nothing. `gpuvm
    /// top` shows more.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=60))]
    pub sample: u64,
    /// Write Prometheus metrics to FILE
    ///
    /// Findings by domain and rule, and the time of the last run, for the node exporter's textfile
    /// collector, which reads names that end in .prom. The file is replaced atomically, if gpuvm
    /// made it. gpuvm-tuning(7) lists the metrics.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = BEHAVIOUR)]
    pub metrics: Option<PathBuf>,
    /// Time limit for the guest agent
    ///
    /// 0 does not ask the agent.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = BEHAVIOUR)]
    pub agent_wait: u64,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Domain XML file, `-` for standard input, or domain name
    #[arg(value_name = "FILE|NAME", value_hint = ValueHint::FilePath)]
    pub target: String,
    /// The host's other domains.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Versions such as libvirt=12.9,qemu=11.1, on which the domain XML depends.
    /// Default: those of the record; a record without them is taken to have those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
}
