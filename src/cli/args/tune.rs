//! Arguments of `tune`: which domains, and what becomes of each thing.

use super::guest::TakenArgs;
use super::guestnic::{NIC_VALUE, nic};
use super::item::{self, Convert};
use super::life::LockArgs;
use super::wish::AllowArg;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::setting::Rate;
use crate::domain::wish::NicWish;
use crate::memsize::MemSize;
use crate::placement::GuestTopology;
use crate::request::PageSize;
use crate::tune::Item;
use crate::tune::items::{Never, PinOrder, Virtio};
use clap::{Args, ValueHint};

/// Examples at the end of the help.
pub const EXAMPLES: &str = "Examples:
  gpuvm tune train-a --diff
  gpuvm tune train-a --all --huge-pages 2M
  gpuvm tune train-a --disk-queues on --net-queues 8
  gpuvm tune train-a --convert vda=raw
  gpuvm tune --all-domains --check
  gpuvm tune train-a.xml --host topologies/dgx-2.json >tuned.xml";

/// Is what `tune` takes.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Names of domains, or files of domain XML; `-` is standard input
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "all_domains", conflicts_with = "all_domains")]
    pub targets: Vec<String>,
    /// All domains that are defined; with --host those of --domain-xml
    #[arg(long)]
    pub all_domains: bool,
    /// All things; the default where none is named
    #[arg(long)]
    pub all: bool,
    /// What becomes of each thing.
    #[command(flatten)]
    pub items: ItemArgs,
    /// Rules that may be broken where nothing else fits, separated by commas; GPUs that are no NVLink partition are taken
    /// in any case, since they are the guest's
    #[arg(long, value_name = "RULES", value_enum, value_delimiter = ',')]
    pub allow: Vec<AllowArg>,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// Change what runs, too: pins of vCPUs, emulator and I/O threads, and bandwidths. What cannot be changed while it runs
    /// is named, and waits for the next start
    #[arg(long)]
    pub live: bool,
    /// Reserve the huge pages that domains are missing which do not run, now, on each node of their memory; `undo` and
    /// `delete` give them back
    #[arg(long)]
    pub reserve_pages: bool,
    /// Say why each choice was made
    #[arg(long)]
    pub explain: bool,
    /// Print what would change and the steps, and change nothing; takes --host
    #[arg(long)]
    pub dry_run: bool,
    /// Print the difference as a unified diff and change nothing; takes --host
    #[arg(long, conflicts_with = "dry_run")]
    pub diff: bool,
    /// Print what would change, change nothing, and end with 3 where something would; takes --host
    #[arg(long, conflicts_with_all = ["dry_run", "diff"])]
    pub check: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what becomes of each thing.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Things")]
pub struct ItemArgs {
    /// Pins of vCPUs: on and core put successive vCPUs on the threads of one core
    #[arg(long, value_name = "on|off|core|thread", value_parser = item::pins)]
    pub pins: Option<Item<PinOrder>>,
    /// Packages, cores and threads that the guest sees, such as 2x23x2
    #[arg(long, value_name = "on|off|SxCxT", value_parser = item::topology)]
    pub topology: Option<Item<GuestTopology>>,
    /// Pin of the emulator
    #[arg(long, value_name = "on|off|PCPUS", value_parser = item::pcpus)]
    pub emulator: Option<Item<CpuSet>>,
    /// I/O threads, and which disk each serves
    #[arg(long, value_name = "on|off|N", value_parser = item::number)]
    pub iothreads: Option<Item<u32>>,
    /// Pins of I/O threads
    #[arg(long, value_name = "on|off|PCPUS", value_parser = item::pcpus)]
    pub iothread_pins: Option<Item<CpuSet>>,
    /// Huge pages; on keeps those that it has, else takes 2M. Without this option they stay as they are
    #[arg(long, value_name = "on|off|2M|1G", value_parser = item::pages)]
    pub huge_pages: Option<Item<PageSize>>,
    /// Filling of memory before the guest starts, for guests with passed-through functions or huge pages
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    pub fill: Option<Item<Never>>,
    /// Guest NUMA cells; on makes one for each host node in use
    #[arg(long, value_name = "on|off|N", value_parser = item::number)]
    pub cells: Option<Item<u32>>,
    /// Host nodes that the cells' memory is bound to
    #[arg(long, value_name = "on|off|NODES", value_parser = item::nodes)]
    pub memory_nodes: Option<Item<NodeSet>>,
    /// Round guest memory to whole pages: up where the host nodes have it, else down
    ///
    /// A size rounds to pages of that size. The whole amount is rounded once and divided among the cells in whole pages; an
    /// amount that is whole pages already stays. The change is named before it is made.
    #[arg(long, value_name = "on|off|2M|1G", value_parser = item::pages)]
    pub memory_rounding: Option<Item<PageSize>>,
    /// Disks whose format changes, separated by commas: their content is copied into a volume beside the old one, compared,
    /// and the domain, which has to be off, gets that. The old image stays, so that `undo` can bring it back. Without a name
    /// all disks that the guest writes. Not part of --all
    #[arg(long, value_name = "[DISK=]raw|qcow2", value_parser = item::convert, value_delimiter = ',')]
    pub convert: Vec<Convert>,
    /// How the host caches disks, in libvirt's words
    #[arg(long, value_name = "on|off|none|...", value_parser = item::cache)]
    pub disk_cache: Option<Item<String>>,
    /// How QEMU reads and writes disks
    #[arg(long, value_name = "on|off|native|io_uring|threads", value_parser = item::io)]
    pub disk_io: Option<Item<String>>,
    /// Queues of disks, at most one for each vCPU
    #[arg(long, value_name = "on|off|N", value_parser = item::number)]
    pub disk_queues: Option<Item<u32>>,
    /// Queues of NICs, at most one for each vCPU and 256
    #[arg(long, value_name = "on|off|N", value_parser = item::number)]
    pub net_queues: Option<Item<u32>>,
    /// Rate of what NICs get: mean, then if wanted highest and burst, such as 1Gbit/s,2Gbit/s,4M
    #[arg(long, value_name = "off|RATE", value_parser = item::rate)]
    pub inbound: Option<Item<Rate>>,
    /// Rate of what NICs send
    #[arg(long, value_name = "off|RATE", value_parser = item::rate)]
    pub outbound: Option<Item<Rate>>,
    /// MTU of NICs; every link on the way has to take it
    #[arg(long, value_name = "off|BYTES", value_parser = item::number)]
    pub mtu: Option<Item<u32>>,
    /// NIC on this network, as for `create`: one that is there is set as said, else a new one comes; repeat for more
    #[arg(long, value_name = NIC_VALUE, value_parser = nic)]
    pub network: Vec<NicWish>,
    /// Channel of the guest's agent
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    pub agent: Option<Item<Never>>,
    /// Places of passed-through functions: a root port each, below one expander bus for each cell
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    pub pcie: Option<Item<Never>>,
    /// Window for 64-bit BARs
    #[arg(long, value_name = "on|off|SIZE", value_parser = item::size)]
    pub window: Option<Item<MemSize>>,
    /// Physical address bits of guests with passed-through functions; on gives them the host's CPU and its bits
    #[arg(long, value_name = "on|off|BITS", value_parser = item::bits)]
    pub maxphysaddr: Option<Item<u8>>,
    /// Memory balloon: on takes it from guests with passed-through functions, off from every guest
    #[arg(long, value_name = "on|off|virtio", value_parser = item::balloon)]
    pub balloon: Option<Item<Virtio>>,
}

impl ItemArgs {
    /// Whether nothing is named.
    pub fn name_none(&self) -> bool {
        let named = [
            self.pins.is_some(),
            self.topology.is_some(),
            self.emulator.is_some(),
            self.iothreads.is_some(),
            self.iothread_pins.is_some(),
            self.huge_pages.is_some(),
            self.fill.is_some(),
            self.cells.is_some(),
            self.memory_nodes.is_some(),
            self.memory_rounding.is_some(),
            !self.convert.is_empty(),
            self.disk_cache.is_some(),
            self.disk_io.is_some(),
            self.disk_queues.is_some(),
            self.net_queues.is_some(),
            self.inbound.is_some(),
            self.outbound.is_some(),
            self.mtu.is_some(),
            !self.network.is_empty(),
            self.agent.is_some(),
            self.pcie.is_some(),
            self.window.is_some(),
            self.maxphysaddr.is_some(),
            self.balloon.is_some(),
        ];
        !named.contains(&true)
    }
}
