//! Arguments of `tune`: the domains, and the change of each setting.

use super::guest::TakenArgs;
use super::heading::{BEHAVIOUR, CPU, DEVICES, DISKS, GUEST, NETWORK, PLACEMENT};
use super::item;
use super::life::LockArgs;
use super::values::word_of;
use super::view::ViewArgs;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::nic_request::NicWish;
use crate::domain::rate::Rate;
use crate::memsize::MemSize;
use crate::placement::{GuestCache, GuestTopology};
use crate::request::{PageSize, Rule};
use crate::tune::items::{Never, PinOrder, Virtio};
use crate::tune::{Item, ItemName, Items};
use clap::{Args, ValueHint};
use gpuvm_core::versions::Stack;
use gpuvm_ops::source::Source;
use gpuvm_ops::taken::Taken;
use gpuvm_ops::tune::Tune;
use gpuvm_ops::tune::convert::Convert;
use gpuvm_ops::world::World;

/// Examples at the end of the help.
pub const EXAMPLES: &str = "Examples:
  gpuvm tune train-a --diff
  gpuvm tune train-a --all-settings --huge-pages 2M
  gpuvm tune train-a --disk-queues on --net-queues 8
  gpuvm tune train-a --convert vda=raw
  gpuvm tune --all --check
  gpuvm tune train-a.xml --host topologies/dgx-2.json >tuned.xml";

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Domain names, or files of domain XML (`-`: standard input)
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present_any = ["all", "all_domains"], conflicts_with = "all_domains")]
    pub targets: Vec<String>,
    /// Tune every defined domain
    ///
    /// With --host, every domain of --domain-xml.
    #[arg(long, help_heading = GUEST)]
    pub all: bool,
    /// The name of --all until it meant guests everywhere.
    #[arg(long, hide = true)]
    pub all_domains: bool,
    /// Tune every setting
    ///
    /// The default if no setting is named.
    #[arg(long, help_heading = GUEST)]
    pub all_settings: bool,
    /// The change of each setting.
    #[command(flatten)]
    pub items: ItemArgs,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. The guest's own GPUs
    /// are accepted even if they form no NVLink partition or have MIG on.
    #[arg(long, value_name = "RULE", value_parser = word_of(vec![Rule::Remote]), value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<Rule>,
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Versions such as libvirt=12.9,qemu=11.1, on which the domain XML depends.
    /// Default: those of the record; a record without them is taken to have those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
    /// Change running guests as well
    ///
    /// Applies pins of vCPUs, emulator and I/O threads, and bandwidths. Settings that cannot change
    /// while the guest runs are named and take effect at its next start.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub live: bool,
    /// Reserve missing huge pages
    ///
    /// For stopped domains, on the nodes of their memory; `undo` and `delete` release them.
    #[arg(long, help_heading = CPU)]
    pub reserve_pages: bool,
    /// Explain each choice
    #[arg(long, help_heading = BEHAVIOUR)]
    pub explain: bool,
    /// Print the steps and change nothing
    ///
    /// Prints the changes as well. Accepts --host.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Print the definition as a diff and change nothing
    ///
    /// Accepts --host.
    #[arg(long, conflicts_with = "dry_run", help_heading = BEHAVIOUR)]
    pub diff: bool,
    /// The picture, with --diff.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Exit with 3 if anything would change
    ///
    /// Prints the changes and makes none. Accepts --host.
    #[arg(long, conflicts_with_all = ["dry_run", "diff"], help_heading = BEHAVIOUR)]
    pub check: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// The change of each setting.
#[derive(Debug, Clone, Default, Args)]
pub struct ItemArgs {
    /// vCPU pinning
    ///
    /// POLICY is auto, core or thread. on and core put successive vCPUs on the threads of one core;
    /// auto does the same, but unpins a guest without passed-through devices if no cores are free
    /// for it.
    #[arg(long, value_name = "on|off|POLICY", value_parser = item::pins, help_heading = CPU)]
    pub pins: Option<Item<PinOrder>>,
    /// Guest CPU topology, such as 2x23x2
    ///
    /// Sockets, cores per socket and threads per core; with dies 2x4x4x2: sockets, dies per socket,
    /// cores per die, threads.
    #[arg(long, value_name = "on|off|SxCxT", value_parser = item::topology, help_heading = CPU)]
    pub topology: Option<Item<GuestTopology>>,
    /// Emulator pinning
    #[arg(long, value_name = "on|off|PCPUS", value_parser = item::pcpus)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub emulator: Option<Item<CpuSet>>,
    /// I/O threads and their disks
    #[arg(long, value_name = "on|off|N", value_parser = item::number, help_heading = CPU)]
    pub iothreads: Option<Item<u32>>,
    /// I/O thread pinning
    #[arg(long, value_name = "on|off|PCPUS", value_parser = item::pcpus)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub iothread_pins: Option<Item<CpuSet>>,
    /// Use huge pages
    ///
    /// on keeps the page size that the guest has, else takes 2M. Huge pages stay as they are unless
    /// this option is given.
    #[arg(long, value_name = "on|off|2M|1G", value_parser = item::pages, help_heading = CPU)]
    pub huge_pages: Option<Item<PageSize>>,
    /// Preallocate guest memory at start
    ///
    /// For guests with passed-through functions or huge pages.
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub fill: Option<Item<Never>>,
    /// Number of guest NUMA cells
    ///
    /// on makes one for each host node in use.
    #[arg(long, value_name = "on|off|N", value_parser = item::number)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub cells: Option<Item<u32>>,
    /// Host nodes of the guest's memory
    #[arg(long, value_name = "on|off|NODES", value_parser = item::nodes)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub memory_nodes: Option<Item<NodeSet>>,
    /// Round guest memory to whole pages
    ///
    /// Up if the host nodes have the memory, else down. A size rounds to pages of that size. The
    /// whole amount is rounded once and divided among the cells in whole pages; an amount of whole
    /// pages stays. The change is shown before it is made.
    #[arg(long, value_name = "on|off|2M|1G", value_parser = item::pages)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub memory_rounding: Option<Item<PageSize>>,
    /// Convert disks to another format
    ///
    /// Copies the content into a new volume beside the old one, compares both, and switches the
    /// domain, which must be off, to the new one. The old image stays, so that `undo` can bring it
    /// back. Without DISK all disks that the guest writes; separate several by commas. Not part of
    /// --all.
    #[arg(long, value_name = "[DISK=]FORMAT", value_parser = item::convert, value_delimiter = ',')]
    #[arg(help_heading = DISKS)]
    pub convert: Vec<Convert>,
    /// Move disks from SATA and IDE, and NICs of emulated models, to virtio
    ///
    /// Each access of the guest to an emulated register leaves it for QEMU. Refused where the guest
    /// may lack the drivers: Windows without a disk on virtio, and macOS. Disks get other names
    /// (sda becomes vda), so an /etc/fstab that names disks must be changed before. Not part of
    /// --all-settings; `undo` brings the old devices back.
    #[arg(long, help_heading = DEVICES, hide_short_help = true)]
    pub convert_devices: bool,
    /// Host cache mode of disks
    ///
    /// Modes: none, writeback, writethrough, directsync, unsafe.
    #[arg(long, value_name = "on|off|MODE", value_parser = item::cache, help_heading = DISKS)]
    pub disk_cache: Option<Item<String>>,
    /// I/O mode of disks
    ///
    /// Modes: native, io_uring, threads.
    #[arg(long, value_name = "on|off|MODE", value_parser = item::io, help_heading = DISKS)]
    pub disk_io: Option<Item<String>>,
    /// Queues per disk
    ///
    /// At most one per vCPU.
    #[arg(long, value_name = "on|off|N", value_parser = item::number, help_heading = DISKS)]
    pub disk_queues: Option<Item<u32>>,
    /// Queues per NIC
    ///
    /// At most one per vCPU, and at most 256. `on` raises NICs to one per vCPU, at most 8, and
    /// leaves those that have more.
    #[arg(long, value_name = "on|off|N", value_parser = item::number, help_heading = NETWORK)]
    pub net_queues: Option<Item<u32>>,
    /// Inbound limit: AVERAGE[,PEAK[,BURST]]
    ///
    /// Of all NICs, such as 1Gbit/s or 1Gbit/s,2Gbit/s,4M.
    #[arg(long, value_name = "off|RATE", value_parser = item::rate, help_heading = NETWORK)]
    pub inbound: Option<Item<Rate>>,
    /// Outbound limit: AVERAGE[,PEAK[,BURST]]
    #[arg(long, value_name = "off|RATE", value_parser = item::rate, help_heading = NETWORK)]
    pub outbound: Option<Item<Rate>>,
    /// MTU of NICs
    ///
    /// Every link on the path must support it.
    #[arg(long, value_name = "off|BYTES", value_parser = item::number, help_heading = NETWORK)]
    pub mtu: Option<Item<u32>>,
    /// NIC on this libvirt network; repeatable
    ///
    /// Takes the keys of `create --network`. Changes the guest's NIC on that network, or adds one.
    #[arg(long, value_name = "NAME[,KEY=VALUE]", help_heading = NETWORK)]
    pub network: Vec<NicWish>,
    /// Guest agent channel
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = GUEST, hide_short_help = true)]
    pub agent: Option<Item<Never>>,
    /// One PCIe root port per passed-through device
    ///
    /// The root ports are below one PCIe expander bus for each host bridge. Unnamed, it leaves
    /// functions that are below one expander bus for each guest NUMA cell where they are.
    #[arg(long, value_name = "on|off", value_parser = item::switch, help_heading = DEVICES)]
    pub pcie: Option<Item<Never>>,
    /// Pass functions through by iommufd
    ///
    /// off: by VFIO groups. Of all functions: what single devices say is removed. Needs Linux with
    /// CONFIG_IOMMUFD and libvirt 12.2; several GPUs and NICs also need Linux 6.19 and QEMU 11. Not
    /// part of --all-settings.
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub iommufd: Option<Item<Never>>,
    /// 64-bit PCI MMIO window
    #[arg(long, value_name = "on|off|SIZE", value_parser = item::size, help_heading = DEVICES)]
    pub window: Option<Item<MemSize>>,
    /// Guest physical address bits
    ///
    /// For guests with passed-through functions; on gives them the host's CPU model and address
    /// bits.
    #[arg(long, value_name = "on|off|BITS", value_parser = item::bits)]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub maxphysaddr: Option<Item<u8>>,
    /// KVM hints for vCPUs with pcpus of their own
    ///
    /// hint-dedicated and poll-control. on sets them if each vCPU is pinned to a pcpu of its own,
    /// and else removes them.
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub kvm_hints: Option<Item<Never>>,
    /// CPU caches that the guest sees
    ///
    /// passthrough: the host's. emulate: one L3 of 16 MiB per die. on takes the one that shows the
    /// host's L3 caches.
    #[arg(long, value_name = "on|off|MODE", value_parser = item::cpu_cache)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub cpu_cache: Option<Item<GuestCache>>,
    /// Invariant TSC
    ///
    /// For guests with passed-through functions, which cannot migrate anyway (migratable='off').
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub invtsc: Option<Item<Never>>,
    /// Memory balloon
    ///
    /// on removes it from guests with passed-through functions, off from every guest.
    #[arg(long, value_name = "on|off|virtio", value_parser = item::balloon)]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub balloon: Option<Item<Virtio>>,
    /// Log the serial console to a file
    ///
    /// The file is /var/log/libvirt/qemu/NAME-serial.log; `gpuvm logs NAME` prints it. Takes effect
    /// at the next start.
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub serial_log: Option<Item<Never>>,
    /// Allow `gpuvm make-room` to move the guest
    ///
    /// To be stopped and started again on other GPUs, cores and memory. Only guests made by gpuvm;
    /// the running guest is unchanged.
    #[arg(long, value_name = "on|off", value_parser = item::switch)]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub movable: Option<Item<Never>>,
    /// Keep transfers between its GPUs and NICs below their PCIe switch
    ///
    /// From the next start on. Only guests made by gpuvm; `gpuvm start NAME --p2p auto` does it for
    /// one start of any guest. Not part of --all-settings.
    #[arg(long, value_name = "auto|off", value_parser = item::auto)]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub p2p: Option<Item<Never>>,
}

impl ItemArgs {
    /// Whether no setting is named.
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
            self.convert_devices,
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
            self.iommufd.is_some(),
            self.window.is_some(),
            self.maxphysaddr.is_some(),
            self.kvm_hints.is_some(),
            self.cpu_cache.is_some(),
            self.invtsc.is_some(),
            self.balloon.is_some(),
            self.serial_log.is_some(),
            self.movable.is_some(),
            self.p2p.is_some(),
        ];
        !named.contains(&true)
    }
}

impl TuneArgs {
    /// Warnings of spellings that the next release takes for something else, or not at all.
    pub fn old_spellings(&self) -> Vec<&'static str> {
        let all_domains = "`--all-domains` is `--all` now; the next release refuses it";
        let all = "`--all` beside a name stands for --all-settings in this release only: `--all` \
                   is all domains";
        let is_all_settings = self.all && !self.targets.is_empty();
        let used = [(self.all_domains, all_domains), (is_all_settings, all)];
        used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, warning)| warning).collect()
    }

    /// Returns their request.
    pub fn wanted(&self, world: &World) -> Tune {
        let sources = self.targets.iter().map(|target| Source::named_by(target, world));
        Tune {
            sources: sources.collect(),
            all_domains: self.targets.is_empty(),
            items: items(&self.items, self.all_settings || self.all && !self.targets.is_empty()),
            networks: self.items.network.clone(),
            convert: self.items.convert.clone(),
            allow: self.allow.iter().copied().collect(),
            taken: Taken { assume: self.assume, ..Taken::from(&self.taken) },
            live: self.live,
            reserve_pages: self.reserve_pages,
        }
    }
}

/// The action on each setting: all where none is named, else the named ones.
fn items(args: &ItemArgs, all: bool) -> Items {
    let all = all || args.name_none();
    let base = if all { Items::all() } else { Items::default() };
    let mut unnamed = base.unnamed;
    for (name, is_named) in [
        (ItemName::Pins, args.pins.is_some()),
        (ItemName::Topology, args.topology.is_some()),
        (ItemName::Emulator, args.emulator.is_some()),
        (ItemName::Cells, args.cells.is_some()),
        (ItemName::MemoryNodes, args.memory_nodes.is_some()),
        (ItemName::Pcie, args.pcie.is_some()),
        (ItemName::Maxphysaddr, args.maxphysaddr.is_some()),
        (ItemName::KvmHints, args.kvm_hints.is_some()),
        (ItemName::CpuCache, args.cpu_cache.is_some()),
        (ItemName::Invtsc, args.invtsc.is_some()),
        (ItemName::Iothreads, args.iothreads.is_some()),
    ] {
        if is_named {
            unnamed.remove(&name);
        }
    }
    /// The named item, else the default.
    fn or<T: Clone>(named: &Option<Item<T>>, base: Item<T>) -> Item<T> {
        named.clone().unwrap_or(base)
    }
    Items {
        resize: base.resize,
        pins: or(&args.pins, base.pins),
        topology: or(&args.topology, base.topology),
        emulator: or(&args.emulator, base.emulator),
        iothreads: or(&args.iothreads, base.iothreads),
        iothread_pins: or(&args.iothread_pins, base.iothread_pins),
        huge_pages: or(&args.huge_pages, base.huge_pages),
        fill: or(&args.fill, base.fill),
        cells: or(&args.cells, base.cells),
        memory_nodes: or(&args.memory_nodes, base.memory_nodes),
        memory_rounding: or(&args.memory_rounding, base.memory_rounding),
        convert: base.convert,
        convert_devices: args.convert_devices,
        disk_cache: or(&args.disk_cache, base.disk_cache),
        disk_io: or(&args.disk_io, base.disk_io),
        disk_queues: or(&args.disk_queues, base.disk_queues),
        net_queues: or(&args.net_queues, base.net_queues),
        inbound: or(&args.inbound, base.inbound),
        outbound: or(&args.outbound, base.outbound),
        mtu: or(&args.mtu, base.mtu),
        networks: base.networks,
        all_nics: None,
        agent: or(&args.agent, base.agent),
        pcie: or(&args.pcie, base.pcie),
        iommufd: or(&args.iommufd, base.iommufd),
        window: or(&args.window, base.window),
        maxphysaddr: or(&args.maxphysaddr, base.maxphysaddr),
        kvm_hints: or(&args.kvm_hints, base.kvm_hints),
        cpu_cache: or(&args.cpu_cache, base.cpu_cache),
        invtsc: or(&args.invtsc, base.invtsc),
        balloon: or(&args.balloon, base.balloon),
        serial_log: match args.serial_log {
            Some(Item::Keep) => Item::Keep,
            Some(Item::Off) => Item::Off,
            Some(Item::On | Item::To(_)) => Item::On,
            None => base.serial_log,
        },
        movable: or(&args.movable, base.movable),
        p2p: or(&args.p2p, base.p2p),
        allow: Item::Keep,
        unnamed,
    }
}
