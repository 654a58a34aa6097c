//! Arguments of the verbs that plan a guest and may make it: plan, export, create.

use super::guest::GuestArgs;
use super::heading::{BEHAVIOUR, CPU, DEVICES, DISKS, NETWORK};
use super::life::{ChangeArgs, LockArgs};
use super::seed::SeedArgs;
use super::storage::StorageArgs;
use super::view::ViewArgs;
use crate::request::DomainName;
use clap::{Args, ValueHint};
use gpuvm_core::export::resource::ResourceWish;
use std::path::PathBuf;

/// Of `plan`.
pub const PLAN: &str = "Examples:
  gpuvm plan --gpus 2 --explain
  gpuvm plan --gpus 4 --nic 2 --nic-near switch --nvme 1
  gpuvm plan --gpu 2 --gpu 3 --vcpus 12 --memory 64G --huge-pages 1G
  gpuvm plan --gpus 4 --html review.html
  gpuvm plan --host topologies/dgx-2.json --gpus 8 --gpu-index 8 --json";
/// Of `export`.
pub const EXPORT: &str = "Examples:
  gpuvm export --gpus 4 --name train-a --huge-pages 1G -o train-a.xml
  gpuvm export --host topologies/dgx-a100.json --gpus 8 --name train-a
  gpuvm export --gpus 4 --name train-a --huge-pages 2M --format kubevirt
  gpuvm export train-a --bundle /mnt/train-a";
/// Of `create`.
pub const CREATE: &str = "Examples:
  gpuvm create train-a --gpus 1
  gpuvm create --domain testme --gpu-count 8 --gpu-index 8
  gpuvm create --gpus 8 --name train-b --huge-pages 2M --reserve-pages
  gpuvm create --gpus 1 --name try --dry-run
  gpuvm plan --gpus 4 --name train-c --json >train-c.json
  gpuvm create --plan train-c.json";

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(override_usage = "gpuvm plan [OPTIONS] [NAME]")]
pub struct PlanArgs {
    /// Domain name; same as --name
    #[arg(value_name = "NAME", conflicts_with_all = ["name", "domain"])]
    pub named: Option<DomainName>,
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Explain each choice
    #[arg(long, help_heading = BEHAVIOUR)]
    pub explain: bool,
    /// The picture.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What `export` prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// Domain XML.
    #[default]
    #[value(alias = "xml")]
    Libvirt,
    /// A VirtualMachine of KubeVirt.
    #[value(name = "kubevirt")]
    KubeVirt,
    /// A flavor of OpenStack Nova.
    Nova,
    /// The topology file for NCCL.
    Nccl,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Domain name; same as --name. With --bundle: the guest
    #[arg(value_name = "NAME", conflicts_with_all = ["name", "domain"])]
    pub of: Option<String>,
    /// Write guest NAME, which is off, to a new directory
    ///
    /// `gpuvm import DIR` makes it on another host.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath, requires = "of")]
    #[arg(conflicts_with_all = ["GuestArgs", "StorageArgs", "format", "output", "cluster", "host_part", "resource"])]
    #[arg(help_heading = BEHAVIOUR)]
    pub bundle: Option<PathBuf>,
    /// Leave this disk (vdb) out; repeatable
    #[arg(long, value_name = "TARGET", requires = "bundle", help_heading = DISKS)]
    pub without: Vec<String>,
    /// Print the steps and change nothing
    #[arg(long, requires = "bundle", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Its disks.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// What to print [default: libvirt]
    ///
    /// libvirt is the domain XML; kubevirt a VirtualMachine, nova a flavor and properties of an
    /// image, each with what of the plan is lost (gpuvm-export(7)); nccl the guest's topology file
    /// for NCCL, as `gpuvm nccl` prints it of the defined guest.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t, hide_default_value = true)]
    #[arg(hide_possible_values = true, help_heading = BEHAVIOUR)]
    pub format: ExportFormat,
    /// With --format kubevirt: print the cluster's settings
    ///
    /// The part of its KubeVirt that permits the guest's devices, for `kubectl patch`, in place of
    /// the VirtualMachine. JSON has both.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub cluster: bool,
    /// With --format nova: print the host's nova.conf
    ///
    /// Its `[compute]`, `[libvirt]` and `[pci]`, in place of the flavor. JSON has both.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub host_part: bool,
    /// Name of devices on another platform; repeatable
    ///
    /// ID is vendor and device as `lspci -n` prints them: 144d:a80a=example.com/PM9A3. NAME is a
    /// resource of Kubernetes, or an alias of Nova.
    #[arg(long, value_name = "ID=NAME", help_heading = DEVICES, hide_short_help = true)]
    pub resource: Vec<ResourceWish>,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(help_heading = BEHAVIOUR)]
    pub output: Option<PathBuf>,
}

/// Arguments of `create`.
#[derive(Debug, Args)]
#[command(override_usage = "gpuvm create [OPTIONS] [NAME]")]
pub struct CreateArgs {
    /// Domain name; same as --name
    #[arg(value_name = "NAME", conflicts_with_all = ["name", "domain"])]
    pub named: Option<DomainName>,
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Its disks.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// Its first settings.
    #[command(flatten)]
    pub seed: SeedArgs,
    /// Add a second NIC on the network `private-net`
    ///
    /// The network is made if it is missing.
    #[arg(long = "privateIP", visible_alias = "private")]
    #[arg(help_heading = NETWORK, hide_short_help = true)]
    pub private_ip: bool,
    /// Reserve missing huge pages
    ///
    /// On the nodes of the plan; with --huge-pages auto pages of 2 MiB, if too few pages are free.
    /// They belong to the guest until the machine reboots; `delete` releases them. `gpuvm host
    /// pages --at-boot` reserves pages at every boot.
    #[arg(long, help_heading = CPU)]
    pub reserve_pages: bool,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Takes NVSwitches or NVLinks that other guests can reach as well, and devices below PCIe
    /// ports that do not redirect; the plan names the guests or ports.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub accept_shared_fabric: bool,
    /// Allow `gpuvm make-room` to move the guest
    ///
    /// It may be stopped and started again on other GPUs, cores and memory to make room for a new
    /// guest. `gpuvm tune NAME --movable on|off` changes it.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub movable: bool,
    /// Allow overwriting drives that contain data
    ///
    /// The guest may overwrite all data on its drives. Without this option gpuvm asks, and refuses
    /// if there is no terminal.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_data_loss: bool,
    /// Do nothing if the guest exists as requested
    ///
    /// Requires the name, or a plan, which has one. A guest of that name that is off is started,
    /// unless --no-start is given. A domain of that name that differs is refused, with what
    /// differs.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub if_absent: bool,
    /// Define it without starting it
    #[arg(long, help_heading = BEHAVIOUR)]
    pub no_start: bool,
    /// Do not wait for the guest's address
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub no_wait: bool,
    /// Time limit for the guest's address
    ///
    /// Ctrl-C while it waits leaves the guest running, and ends with 130; before, it removes the
    /// new guest.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(help_heading = BEHAVIOUR, hide_short_help = true)]
    pub wait: u64,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}
