//! The verbs on many hosts.

use super::guest::GuestArgs;
use super::heading::{BEHAVIOUR, DEVICES, HOSTS};
use super::late::Late;
use super::values::number;
use crate::request::DomainName;
use clap::{Args, Subcommand, ValueHint};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm fleet list
  gpuvm fleet list --hosts rack.toml --only dgx01 --only dgx02
  gpuvm fleet list --json";
/// Examples of `capacity`.
const CAPACITY: &str = "Examples:
  gpuvm fleet capacity
  gpuvm fleet capacity --gpus 4 --json";
/// Examples of `plan`.
const PLAN: &str = "Examples:
  gpuvm fleet plan --gpus 4
  gpuvm fleet plan train-a --gpus 8 --nic 2 --nic-near switch --json";
/// Examples of `capture`.
const CAPTURE: &str = "Examples:
  gpuvm fleet capture
  gpuvm fleet capture --only dgx01";

/// A verb on many hosts.
#[derive(Debug, Subcommand)]
pub enum FleetVerb {
    /// List hosts with their free GPUs, partitions and guests
    ///
    /// Asks all hosts of the file in parallel: libvirt for what guests hold, and gpuvm over ssh for
    /// the layout unless the file names a record of it. A host that cannot be reached is reported
    /// and delays no other. Exits with 1 if one has not answered.
    #[command(after_long_help = LIST, alias = "ls")]
    List(Late<FleetListArgs>),
    /// Print how many guests of each size still fit, by host
    ///
    /// As `gpuvm capacity` counts them on each host, and the sum, in which a machine to which two
    /// connections of the file lead counts once. Exits with 1 if a host has not answered.
    #[command(after_long_help = CAPACITY)]
    Capacity(Late<FleetCapacityArgs>),
    /// Choose the host for a guest and print its create command
    ///
    /// Plans the guest on each host. Of those with a place, the host where later guests lose least
    /// comes first: for each size, the guests that no longer fit times their GPUs are added up. Of
    /// equal ones the fewest compromises come first, then the most NVLinks between two of its GPUs,
    /// the nearest NICs, and the most memory. A place that `create` refuses, such as one with GPUs
    /// that share NVLinks with those of another guest, comes after all others. Prints the command for
    /// the first one and books nothing: if others are faster, `create` refuses on the host. Exits
    /// with 1 if no host has a place; hosts that have not answered are reported.
    #[command(after_long_help = PLAN)]
    Plan(Box<Late<FleetPlanArgs>>),
    /// Record the layout of each host in its file
    ///
    /// Runs `gpuvm host capture -` over ssh on each host with `connect` and `record`, and writes
    /// the record atomically. A record of a host need not be asked again by list, capacity and
    /// plan. Repeat it after changes of the hardware. A file that is not a record is not replaced.
    #[command(after_long_help = CAPTURE)]
    Capture(Late<FleetCaptureArgs>),
}

/// Which hosts are asked.
#[derive(Debug, Clone, Args)]
pub struct HostsArgs {
    /// File of hosts
    ///
    /// TOML or YAML; `-`: standard input. Each host has a name and
    /// `connect` (URI of its libvirt), `record` (file of
    /// `gpuvm host capture`), or both:
    ///
    ///   [host.dgx01]
    ///   connect = "qemu+ssh://root@dgx01/system"
    ///   record = "dgx01.json"
    ///
    /// Without `connect`, `domain_xml` names files of domain XML (as
    /// `virsh dumpxml` prints it), or a directory of such files, and
    /// `assume` its versions: "libvirt=12.9,qemu=11.1". Paths are
    /// relative to the file. ssh never prompts: set up keys first.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(default_value = "/etc/gpuvm/hosts.toml", help_heading = HOSTS)]
    pub hosts: PathBuf,
    /// Ask only this host; repeatable
    #[arg(long, value_name = "NAME", help_heading = HOSTS)]
    pub only: Vec<String>,
    /// Seconds to wait for each host
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = HOSTS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub limit: u64,
}

/// Arguments of `fleet list`.
#[derive(Debug, Args)]
pub struct FleetListArgs {
    /// The hosts.
    #[command(flatten)]
    pub hosts: HostsArgs,
}

/// Arguments of `fleet capacity`.
#[derive(Debug, Args)]
pub struct FleetCapacityArgs {
    /// Number of GPUs
    ///
    /// Default: every size that the boards offer.
    #[arg(long, visible_alias = "gpu-count", value_name = "N", help_heading = DEVICES)]
    #[arg(value_parser = number)]
    pub gpus: Option<u32>,
    /// The hosts.
    #[command(flatten)]
    pub hosts: HostsArgs,
}

/// Arguments of `fleet plan`.
#[derive(Debug, Args)]
#[command(override_usage = "gpuvm fleet plan [OPTIONS] [NAME]")]
pub struct FleetPlanArgs {
    /// Domain name; same as --name
    #[arg(value_name = "NAME", conflicts_with_all = ["name", "domain"])]
    pub named: Option<DomainName>,
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Print only the first N hosts that have a place
    #[arg(long, value_name = "N", help_heading = BEHAVIOUR)]
    pub best: Option<NonZeroUsize>,
    /// The hosts.
    #[command(flatten)]
    pub hosts: HostsArgs,
}

/// Arguments of `fleet capture`.
#[derive(Debug, Args)]
pub struct FleetCaptureArgs {
    /// The hosts.
    #[command(flatten)]
    pub hosts: HostsArgs,
}
