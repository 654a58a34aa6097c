//! The verbs on hosts.

use super::guest::{HeldArgs, TakenArgs};
use super::heading::{BEHAVIOUR, PLACEMENT};
use super::late::Late;
use super::values::{OnOff, word};
use super::view::ViewArgs;
use super::{LockArgs, about_records};
use crate::request::PageSize;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use gpuvm_core::versions::Stack;
use std::path::PathBuf;

/// Examples of `show`.
const SHOW: &str = "Examples:
  gpuvm host show
  gpuvm host show --html host.html
  gpuvm host show --host topologies/dgx-2.json --json";
/// Examples of `matrix`.
const MATRIX: &str = "Examples:
  gpuvm host matrix
  gpuvm host matrix --nvme --tsv";
/// Examples of `modules`.
const MODULES: &str = "Examples:
  gpuvm host modules
  gpuvm host modules --write";
/// Examples of `p2p`.
const P2P: &str = "Examples:
  gpuvm host p2p
  gpuvm host p2p --guest train-a
  gpuvm host p2p restore --dry-run
  gpuvm host p2p restore --at-boot
  gpuvm host p2p --host topologies/dgx-2.json --json";
/// Examples of `undo`.
const UNDO: &str = "Examples:
  gpuvm host undo --dry-run
  gpuvm host undo";
/// Examples of `capture`.
const CAPTURE: &str = "Examples:
  gpuvm host capture dgx.json
  nvidia-smi topo -m >topo.txt && gpuvm host capture dgx.json --topo topo.txt";
/// Examples of `doctor`.
const DOCTOR: &str = "Examples:
  gpuvm host doctor
  gpuvm host doctor --fix
  journalctl -k | gpuvm host doctor --journal -
  gpuvm host doctor --host topologies/dgx-2.json --json";
/// Examples of `pages`.
const PAGES: &str = "Examples:
  gpuvm host pages
  gpuvm host pages --node 0 --size 2M --count 40960
  gpuvm host pages --node 1 --size 1G --count 300 --at-boot
  gpuvm host pages --node 1 --size 1G --count 0 --boot-only";

/// Examples of `files`.
const FILES: &str = "Examples:
  gpuvm host files
  gpuvm host files --count 4096";
/// Examples of `tuning`.
const TUNING: &str = "Examples:
  gpuvm host tuning
  gpuvm host tuning --numa-balancing on --at-boot
  gpuvm host tuning --governor performance --dry-run
  gpuvm host tuning --transparent-huge-pages madvise";

/// Examples of `trust`.
const TRUST: &str = "Examples:
  gpuvm host trust
  gpuvm host trust one-tenant
  gpuvm host trust --unset";

/// A verb on hosts.
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// Show CPUs, memory, PCIe tree, GPUs, NICs and drives
    #[command(after_long_help = SHOW)]
    #[command(group = about_records())]
    Show(Late<HostShowArgs>),
    /// Find problems that GPU guests would have on this host
    ///
    /// Reads the host and applies rules in the order in which users meet the problems: the IOMMU is
    /// off, a driver or the console has the GPU, its group is shared, it does not answer or cannot
    /// be reset, its memory has no address, locked memory is limited, and more; gpuvm-codes(7)
    /// lists them. Changes nothing, and needs no libvirt. Unreadable facts are listed as not
    /// checked. The exit status is 3 if there is an error, 0 if there are only warnings and notes.
    #[command(after_long_help = DOCTOR)]
    #[command(group = about_records())]
    Doctor(Late<HostDoctorArgs>),
    /// Show the distances between GPUs, NICs and NVMe drives
    ///
    /// NV# = number of NVLinks, PIX = at most one PCIe bridge, PXB = several bridges but no host
    /// bridge, PHB = across the host bridge, NODE = across host bridges of one NUMA node, SYS =
    /// across the link between nodes.
    #[command(after_long_help = MATRIX)]
    #[command(group = about_records())]
    Matrix(Late<MatrixArgs>),
    /// Show or restore routes of peer-to-peer traffic below switches
    ///
    /// For each pair that meets below a switch: whether writes and reads of the GPU's memory go
    /// through the switch or over the root complex, which halves their rate, and the register that
    /// decides it. Pairs of GPUs with NVLinks are left out. GB/S is the rate of the slowest link,
    /// as NCCL counts. `host doctor` names the remedy. `restore` sets bit DT again at the ports of
    /// running guests with --p2p auto that lost it by a reset, or that libvirt started by itself,
    /// and clears it for guests that are off or gone. A port that others have changed is left and
    /// named, and the exit status is 1. Without `restore` nothing is changed.
    #[command(after_long_help = P2P)]
    #[command(group = about_records())]
    P2p(Late<P2pArgs>),
    /// Show the module IDs of the GPUs of an NVLink board
    ///
    /// Fabric Manager names GPUs by module ID, which does not follow PCI order. NVML reports the ID
    /// of a GPU that is bound to the driver `nvidia`; for GPUs that are bound to vfio-pci the IDs
    /// come from /etc/gpuvm/module-ids.json, which --write makes. The file is valid until the PCI
    /// addresses of the machine change.
    #[command(after_long_help = MODULES)]
    Modules(Late<ModulesArgs>),
    /// Show or set the huge pages of each node
    ///
    /// ROOM is the largest number of further pages that the node's memory could give now. Guests
    /// can use a page size only if a hugetlbfs of that size is mounted when libvirt's daemon
    /// starts. No distribution does that for 1 GiB. --at-boot writes
    /// /etc/tmpfiles.d/gpuvm-pages.conf, from which systemd reserves the pages of each node early
    /// at every boot, and prints the kernel parameters that reserve them even earlier, which is
    /// safest for 1 GiB. A count of 0 removes the entry.
    #[command(after_long_help = PAGES)]
    #[command(group = about_records())]
    Pages(Late<HostPagesArgs>),
    /// Show or set the open file limit of guests
    ///
    /// Each queue of a NIC takes several file descriptors, so guests with many queues may exceed
    /// the limit. `verify` reports that. --count sets max_files in /etc/libvirt/qemu.conf: changes
    /// or adds one line, keeps every other byte, and never lowers the limit. libvirt's daemon reads
    /// it at its start. Running guests keep their limit. `host undo` reverts it.
    #[command(after_long_help = FILES)]
    Files(Late<HostFilesArgs>),
    /// Show or set kernel settings that affect guests
    ///
    /// Those that `verify` checks, each with the reason: NUMA balancing, CPU frequency governor,
    /// transparent huge pages. Sets the named ones now and, with --at-boot, at every boot through
    /// /etc/sysctl.d/gpuvm.conf and /etc/tmpfiles.d/gpuvm-tuning.conf. `host undo` reverts it.
    #[command(after_long_help = TUNING)]
    Tuning(Late<HostTuningArgs>),
    /// Show or set whether the guests of this host trust each other
    ///
    /// On boards whose NVLinks cannot be divided (guests of some GPUs of a DGX-1, DGX-2 or DGX
    /// A100) guests can reach each other over NVLink. one-tenant: they may; `plan --explain` and
    /// `capacity` say so, and `create` goes on. strangers: no such guest is made. Not set: `create`
    /// makes one only with --accept-shared-fabric. Kept in /etc/gpuvm/trust.json, which
    /// `host capture` records; with --host the record counts, never this machine's file. `host
    /// undo` reverts it.
    #[command(after_long_help = TRUST)]
    Trust(Late<HostTrustArgs>),
    /// Revert the last change of the host
    ///
    /// A change of files, tuning, trust or a bridge.
    ///
    /// Restores files to the byte; later edits of other lines stay, and so do settings that others
    /// have changed since. Run again, it reverts the change before.
    #[command(after_long_help = UNDO)]
    Undo(Late<HostUndoArgs>),
    /// Record this machine in a file for --host
    ///
    /// Leaves out serial numbers, MAC addresses and the host name unless --identify is given.
    #[command(after_long_help = CAPTURE)]
    Capture(Late<CaptureArgs>),
}

/// Arguments of `host show`.
#[derive(Debug, Args)]
pub struct HostShowArgs {
    /// Show every PCI function
    ///
    /// Not only GPUs, NVSwitches, NICs, NVMe drives and the bridges above them.
    #[arg(long)]
    pub all: bool,
    /// The guests of the picture.
    #[command(flatten)]
    pub held: HeldArgs,
    /// The picture.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Arguments of `host doctor`.
#[derive(Debug, Args)]
pub struct HostDoctorArgs {
    /// Print commands that fix the findings; run nothing
    ///
    /// As a script to read, with each finding as a comment above its commands.
    #[arg(long, conflicts_with = "json")]
    pub fix: bool,
    /// Search a kernel log as well; `-`: standard input
    ///
    /// Output of `journalctl -k` or `dmesg`. Finds errors recorded only in the kernel log, such as
    /// Xid, AER and VFIO messages, each with the rule that it belongs to.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub journal: Option<PathBuf>,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Such as libvirt=12.9,qemu=11.1. Default: those of the record; without them,
    /// rules on their versions are not checked.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
}

/// Arguments of `host matrix`.
#[derive(Debug, Args)]
pub struct MatrixArgs {
    /// Include NVMe drives
    #[arg(long)]
    pub nvme: bool,
    /// Tab-separated, as `nvidia-smi topo -m`
    ///
    /// With an additional column of PCI addresses.
    #[arg(long)]
    pub tsv: bool,
}

/// What `host p2p` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum P2pAction {
    /// Restore the ports of guests
    Restore,
}

/// Arguments of `host p2p`.
#[derive(Debug, Args)]
pub struct P2pArgs {
    /// restore: restore the ports of guests
    #[arg(value_enum, hide_possible_values = true, value_name = "ACTION")]
    pub action: Option<P2pAction>,
    /// Only pairs of functions that this guest has
    #[arg(long, value_name = "NAME", conflicts_with = "action")]
    pub guest: Option<String>,
    /// Apply at every boot as well
    ///
    /// By a systemd unit that runs once libvirt has started its guests. Prints the argument by
    /// which the kernel itself sets the ports of running guests, if it knows one.
    #[arg(long, requires = "action", help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Remove the unit of --at-boot
    ///
    /// Nothing is restored.
    #[arg(long, requires = "at_boot")]
    pub remove: bool,
    /// Print the steps and change nothing
    #[arg(long, requires = "action", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `host modules`.
#[derive(Debug, Args)]
pub struct ModulesArgs {
    /// Save the module IDs and NVLinks
    ///
    /// Module IDs from NVML and Fabric Manager go to /etc/gpuvm/module-ids.json, NVLinks from NVML
    /// to /var/lib/gpuvm/nvlinks.json, so that both stay known while GPUs are bound to vfio-pci.
    /// `create`, `start` and `device bind` save NVLinks as well before they bind a GPU.
    #[arg(long)]
    pub write: bool,
    /// Print the steps and change nothing
    ///
    /// Requires --write.
    #[arg(long, requires = "write", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
}

/// Arguments of `host capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// File to write; `-`: standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Include serial numbers, MAC addresses and the host name
    ///
    /// And UUIDs of GPUs, partitions and file systems.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub identify: bool,
    /// Read NVLinks from output of `nvidia-smi topo -m`
    ///
    /// The GPUs of the table are NVIDIA's GPUs in PCI order, as nvidia-smi counts them. Not needed
    /// if NVML is available.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub topo: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, help_heading = BEHAVIOUR)]
    pub overwrite: bool,
}

/// Arguments of `host pages`.
#[derive(Debug, Args)]
pub struct HostPagesArgs {
    /// NUMA node to show or set
    #[arg(long, value_name = "NODE")]
    pub node: Option<u32>,
    /// Page size to show or set
    #[arg(long, value_name = "SIZE", value_parser = word::<PageSize>())]
    pub size: Option<PageSize>,
    /// Number of pages to set, including those in use
    #[arg(long, value_name = "N", requires_all = ["node", "size"])]
    pub count: Option<u64>,
    /// Apply at every boot as well
    #[arg(long, requires = "count", help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Apply at boot only, not now
    #[arg(long, requires = "count", conflicts_with = "at_boot", help_heading = BEHAVIOUR)]
    pub boot_only: bool,
    /// Do not ask for confirmation
    ///
    /// Before pages are released.
    #[arg(short, long, requires = "count", help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, requires = "count", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `host files`.
#[derive(Debug, Args)]
pub struct HostFilesArgs {
    /// Minimum limit; a higher one is kept
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(64..))]
    pub count: Option<u64>,
    /// Print the steps and change nothing
    #[arg(long, requires = "count", help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// When the kernel backs memory with huge pages by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransparentArg {
    /// All memory
    Always,
    /// Memory of programs that request it, as QEMU does
    Madvise,
    /// Never
    Never,
}

impl TransparentArg {
    /// The kernel's word.
    pub fn as_str(self) -> &'static str {
        match self {
            TransparentArg::Always => "always",
            TransparentArg::Madvise => "madvise",
            TransparentArg::Never => "never",
        }
    }
}

/// Arguments of `host tuning`.
#[derive(Debug, Args)]
pub struct HostTuningArgs {
    /// Automatic NUMA balancing
    ///
    /// The kernel moves memory that is not bound to the node of its vCPUs.
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub numa_balancing: Option<OnOff>,
    /// CPU frequency governor of all pcpus
    ///
    /// `performance` suits guests.
    #[arg(long, value_name = "GOVERNOR")]
    pub governor: Option<String>,
    /// Policy: always, madvise or never
    ///
    /// always: all memory. madvise: memory of programs that request it, as QEMU does. never: none.
    #[arg(long, value_name = "WHEN", value_enum, hide_possible_values = true)]
    pub transparent_huge_pages: Option<TransparentArg>,
    /// Apply at every boot as well
    #[arg(long, help_heading = BEHAVIOUR)]
    pub at_boot: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Whether guests trust each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrustArg {
    /// All guests are of one tenant and may share NVLink
    OneTenant,
    /// Guests belong to strangers: none is made that shares NVLink
    Strangers,
}

/// Arguments of `host trust`.
#[derive(Debug, Args)]
pub struct HostTrustArgs {
    /// one-tenant or strangers
    #[arg(value_enum, hide_possible_values = true, value_name = "GUESTS")]
    pub guests: Option<TrustArg>,
    /// Forget the setting
    #[arg(long, conflicts_with = "guests")]
    pub unset: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Arguments of `host undo`.
#[derive(Debug, Args)]
pub struct HostUndoArgs {
    /// Forget the change and leave its effects
    #[arg(long, help_heading = BEHAVIOUR)]
    pub discard: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
