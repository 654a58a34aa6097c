//! The verbs on hosts.

use super::LockArgs;
use super::wish::HugePagesArg;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples of `pages`.
const PAGES: &str = "Examples:
  gpuvm host pages
  gpuvm host pages --node 0 --size 2M --count 40960
  gpuvm host pages --node 1 --size 1G --count 300 --at-boot
  gpuvm host pages --node 1 --size 1G --count 0 --boot-only";

/// Is a verb on hosts.
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// Show packages, nodes, cores, memory, the PCIe tree, GPUs, NICs and drives
    Show(HostShowArgs),
    /// Show how near GPUs, NICs and NVMe drives are to each other
    ///
    /// NV# = so many NVLinks, PIX = at most one PCIe bridge between them, PXB = several bridges but no host bridge,
    /// PHB = over the host bridge, NODE = over host bridges of one NUMA node, SYS = over the link between nodes.
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
    Pages(HostPagesArgs),
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
    /// Write what NVML and Fabric Manager say now to /etc/gpuvm/module-ids.json
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
