//! The verbs on hosts.

use super::wish::HugePagesArg;
use super::{LockArgs, about_records};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

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
  gpuvm host tuning --governor performance --transparent-huge-pages madvise --dry-run";

/// Is a verb on hosts.
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// Show packages, nodes, cores, memory, the PCIe tree, GPUs, NICs and drives
    #[command(group = about_records())]
    Show(HostShowArgs),
    /// Show how near GPUs, NICs and NVMe drives are to each other
    ///
    /// NV# = so many NVLinks, PIX = at most one PCIe bridge between them, PXB = several bridges but no host bridge,
    /// PHB = over the host bridge, NODE = over host bridges of one NUMA node, SYS = over the link between nodes.
    #[command(group = about_records())]
    Matrix(MatrixArgs),
    /// Show which GPU is which module of its board
    ///
    /// Fabric Manager names GPUs by module id, which does not follow the order of the bus. NVML tells the id of a GPU
    /// that is bound to the driver `nvidia`; for GPUs that are bound to vfio-pci the ids are taken from
    /// /etc/gpuvm/module-ids.json, which --write makes. The file fits the machine until its PCI addresses change.
    Modules(ModulesArgs),
    /// Show the huge pages of each node, or set how many of one size a node has
    ///
    /// ROOM is how many more the node's memory could give now, at most. Guests get pages of a size only where a hugetlbfs
    /// of that size is mounted when libvirt's daemon starts; for 1 GiB no distribution does that. --at-boot writes
    /// /etc/tmpfiles.d/gpuvm-pages.conf, from which systemd reserves the pages of each node early at every boot, and
    /// prints the kernel's arguments that do it even before, which is surest for 1 GiB. A count of 0 takes them out of it.
    #[command(after_help = PAGES)]
    #[command(group = about_records())]
    Pages(HostPagesArgs),
    /// Show how many files guests may have open, or set it
    ///
    /// Each queue of a NIC takes several files, so guests with many may need more than they may have; `verify` says so.
    /// --count sets max_files in /etc/libvirt/qemu.conf: one line is changed or added, all else keeps its bytes, and a
    /// higher limit stays. libvirt's daemon reads it when it starts, and guests that run keep theirs. `host undo` takes
    /// it back.
    #[command(after_help = FILES)]
    Files(HostFilesArgs),
    /// Show how the kernel is set where guests feel it, or set it
    ///
    /// What `verify` judges, each with the reason: NUMA balancing, the governor of frequencies, transparent huge pages.
    /// What is named is set now, and with --at-boot at every boot by files of our own, /etc/sysctl.d/gpuvm.conf and
    /// /etc/tmpfiles.d/gpuvm-tuning.conf. `host undo` takes it back.
    #[command(after_help = TUNING)]
    Tuning(HostTuningArgs),
    /// Take the last change of `host files` or `host tuning` back
    ///
    /// Files are what they were, to the byte; what was edited beside our line since stays. What somebody else has set
    /// since stays, too. Run again, it takes back the change before.
    Undo(HostUndoArgs),
    /// Record this machine in a file that --host takes
    ///
    /// Serial numbers, MAC addresses and the host name are left out unless --identify is given.
    Capture(CaptureArgs),
}

/// Is what `host show` takes.
#[derive(Debug, Args)]
pub struct HostShowArgs {
    /// Show every PCI function, not only GPUs, NVSwitches, NICs, NVMe drives and the bridges above them
    #[arg(long)]
    pub all: bool,
}

/// Is what `host matrix` takes.
#[derive(Debug, Args)]
pub struct MatrixArgs {
    /// Add NVMe drives
    #[arg(long)]
    pub nvme: bool,
    /// Separate columns by tabs, in the form of `nvidia-smi topo -m`, with an address column
    #[arg(long)]
    pub tsv: bool,
}

/// Is what `host modules` takes.
#[derive(Debug, Args)]
pub struct ModulesArgs {
    /// Write what NVML and Fabric Manager say now to /etc/gpuvm/module-ids.json, and NVLinks beside it
    ///
    /// NVLinks that NVML tells are kept in /var/lib/gpuvm/nvlinks.json, so that they stay known while GPUs are bound to
    /// vfio-pci. `create`, `start` and `device bind` keep them, too, before they bind a GPU.
    #[arg(long)]
    pub write: bool,
    /// With --write: print what would be written and change nothing
    #[arg(long, requires = "write")]
    pub dry_run: bool,
}

/// Is what `host capture` takes.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Keep serial numbers, MAC addresses, partition UUIDs and the host name
    #[arg(long)]
    pub identify: bool,
    /// Take NVLinks from what `nvidia-smi topo -m` printed
    ///
    /// The table's GPUs are those of NVIDIA in the order of their PCI addresses, as nvidia-smi counts them. Where NVML can
    /// be asked, the record has its NVLinks without it.
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::FilePath)]
    pub topo: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long)]
    pub overwrite: bool,
}

/// Is what `host pages` takes.
#[derive(Debug, Args)]
pub struct HostPagesArgs {
    /// The node; without --count the only one that is shown
    #[arg(long, value_name = "NODE")]
    pub node: Option<u32>,
    /// Page size; without --count the only one that is shown
    #[arg(long, value_name = "SIZE", value_enum)]
    pub size: Option<HugePagesArg>,
    /// How many pages of this size the node is to have, those in use included
    #[arg(long, value_name = "N", requires_all = ["node", "size"])]
    pub count: Option<u64>,
    /// Reserve them at every boot, too
    #[arg(long, requires = "count")]
    pub at_boot: bool,
    /// Set only what is reserved at boot, and nothing now
    #[arg(long, requires = "count", conflicts_with = "at_boot")]
    pub boot_only: bool,
    /// Do not ask before pages are given back
    #[arg(short, long, requires = "count")]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long, requires = "count")]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `host files` takes.
#[derive(Debug, Args)]
pub struct HostFilesArgs {
    /// How many files a guest may have open, at least; a higher limit stays
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(64..))]
    pub count: Option<u64>,
    /// Print the steps and change nothing
    #[arg(long, requires = "count")]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// It is
    On,
    /// It is not
    Off,
}

impl OnOff {
    /// Whether it is.
    pub fn is_on(self) -> bool {
        self == OnOff::On
    }
}

/// Is when memory is put on huge pages by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransparentArg {
    /// All memory
    Always,
    /// Memory of programs that ask for it, as QEMU does
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

/// Is what `host tuning` takes.
#[derive(Debug, Args)]
pub struct HostTuningArgs {
    /// Whether the kernel moves memory that nothing binds to the node of its vCPUs
    #[arg(long, value_name = "ON|OFF", value_enum, hide_possible_values = true)]
    pub numa_balancing: Option<OnOff>,
    /// What governs the frequency of all pcpus: `performance` suits guests
    #[arg(long, value_name = "GOVERNOR")]
    pub governor: Option<String>,
    /// When memory is put on huge pages by itself
    #[arg(long, value_name = "WHEN", value_enum)]
    pub transparent_huge_pages: Option<TransparentArg>,
    /// Set it at every boot, too
    #[arg(long)]
    pub at_boot: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `host undo` takes.
#[derive(Debug, Args)]
pub struct HostUndoArgs {
    /// Only forget the change, and leave the host as it is
    #[arg(long)]
    pub discard: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
