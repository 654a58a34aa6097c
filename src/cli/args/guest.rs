//! The description of a guest on the command line, on every verb that plans one.

use super::heading::{CPU, DEVICES, GUEST, NETWORK, PLACEMENT};
use super::values::{CellsArg, number, word};
use crate::domain::guest::{MOST_SPARE_PORTS, VirtType};
use crate::domain::nic_request::NicWish;
use crate::memsize::MemSize;
use crate::request::{
    DomainName, HugePages, IommufdWish, L3Wish, MachineModel, Near, P2pWish, PinPolicy, Policy,
    Prefer, Profile, Rule, VfWish, VgpuWish, Which,
};
use clap::{Args, ValueHint};
use gpuvm_core::versions::Stack;
use std::path::PathBuf;

/// The description of a guest, on every verb that plans one.
#[derive(Debug, Clone, Args)]
pub struct GuestArgs {
    /// Domain name
    ///
    /// Default: made from the GPUs or the vGPU type, such as gpuvm-2g0-1.
    #[arg(long, value_name = "NAME", conflicts_with = "domain", help_heading = GUEST)]
    pub name: Option<DomainName>,
    /// Base of the domain name, as in nvidia-vm
    ///
    /// The GPUs are appended: `--domain train` on GPUs 0 and 1 gives `train-2g0-1`.
    #[arg(long, value_name = "BASE", help_heading = GUEST, hide_short_help = true)]
    pub domain: Option<DomainName>,
    /// Domain XML to start from
    ///
    /// Any valid domain XML; elements that gpuvm does not plan are kept as they are. Default: the
    /// built-in gpu-guest.xml.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = GUEST)]
    pub template: Option<PathBuf>,
    /// Domain type
    #[arg(long, value_name = "TYPE", value_parser = word::<VirtType>(), default_value = "kvm")]
    #[arg(help_heading = GUEST, hide_short_help = true)]
    pub virt_type: VirtType,
    /// Its GPUs.
    #[command(flatten)]
    pub gpus: GpuArgs,
    /// Its resources beside them.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Use the placement in this file (from `plan --json`)
    ///
    /// Devices, cores, memory and domain type are those of the plan, and so is the name unless
    /// --name is given;
    /// `-` reads standard input. Refused if that placement is no longer free. Disks, networks and
    /// first boot are given as usual.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = PLACEMENT)]
    #[arg(conflicts_with_all = ["GpuArgs", "ShapeArgs"])]
    pub plan: Option<PathBuf>,
    /// NIC on this libvirt network; repeatable
    ///
    /// Default: the NIC of the template. `create` makes the networks
    /// `default`, `private-net` and `macvtap-net` if they are missing. A
    /// network of virtual functions (forward mode hostdev) gives the guest
    /// one of them at each start.
    ///
    /// Keys:
    ///   mac=MAC         MAC address; default: derived from the UUID
    ///   model=MODEL     virtio, e1000e, e1000, igb or rtl8139
    ///   queues=N        at most one per vCPU (default: of 8)
    ///   mtu=BYTES       MTU of the NIC
    ///   vlan=ID         VLAN of its frames
    ///   inbound=RATE    inbound limit
    ///   outbound=RATE   outbound limit
    ///   bandwidth=RATE  limit of both directions
    ///
    /// RATE is AVERAGE[:PEAK[:BURST]], such as 1Gbit/s or
    /// 100MB/s:200MB/s:4M.
    #[arg(verbatim_doc_comment, long, value_name = "NAME[,KEY=VALUE]", help_heading = NETWORK)]
    pub network: Vec<NicWish>,
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Versions such as libvirt=12.9,qemu=11.1, on which the domain XML depends.
    /// Default: those of the record; a record without them is taken to have those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
}

/// Which GPUs a guest gets.
#[derive(Debug, Clone, Default, Args)]
pub struct GpuArgs {
    /// Number of GPUs
    ///
    /// gpuvm chooses which, by the criteria of gpuvm-placement(7).
    #[arg(long, visible_alias = "gpu-count", value_name = "N", conflicts_with = "gpu")]
    #[arg(help_heading = DEVICES)]
    #[arg(value_parser = number)]
    pub gpus: Option<u32>,
    /// This GPU, by index or PCI address; repeatable
    ///
    /// `gpuvm host show` prints both. On a board with NVSwitches the GPUs must form one of its
    /// NVLink partitions.
    #[arg(long, value_name = "I|BDF", help_heading = DEVICES)]
    pub gpu: Vec<Which>,
    /// Index of the first of --gpus consecutive GPUs
    ///
    /// Indexes count from 0 in the order of PCI addresses.
    #[arg(long, value_name = "I", conflicts_with = "gpu")]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    #[arg(value_parser = number)]
    pub gpu_index: Option<u32>,
    /// GPU model, such as H100 or 10de:2330
    ///
    /// With --gpus. Accepts a name, a part of a name, or a device ID; `gpuvm gpu list` prints the
    /// names. Default: any model; GPUs of one model are preferred if they are equally near.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["gpu", "gpu_index"], requires = "gpus")]
    #[arg(help_heading = DEVICES)]
    pub gpu_model: Option<String>,
    /// Give it vGPUs of this type: shares of a GPU
    ///
    /// In place of whole GPUs. TYPE is a name, its last word or a number;
    /// `gpuvm vgpu list` lists those of this host. Cores and memory are the
    /// same part of a GPU's share unless they are given. Needs the vendor's
    /// licensed host driver; gpuvm sets the type before each start.
    ///
    /// Keys:
    ///   count=N    number of vGPUs (default: 1)
    ///   gpu=I|BDF  GPU that they are of; default: one with vGPUs already
    #[arg(verbatim_doc_comment, long, value_name = "TYPE[,KEY=VALUE]", help_heading = DEVICES)]
    #[arg(conflicts_with_all = ["gpu", "gpu_index", "gpu_model"])]
    pub vgpu: Option<VgpuWish>,
}

/// The resources that a guest gets with its GPUs, and its placement.
#[derive(Debug, Clone, Args)]
pub struct ShapeArgs {
    /// Pass through N NICs or the NIC at address BDF
    ///
    /// A number takes the free NICs nearest to the GPUs. The host and other guests cannot use them
    /// meanwhile. Repeatable with addresses.
    #[arg(long, value_name = "N|BDF", help_heading = DEVICES)]
    pub nic: Vec<Which>,
    /// Maximum distance of each GPU's nearest NIC
    ///
    /// Applies to --nic and --vf. The nearest ones are preferred in any case.
    #[arg(long, value_name = "NEAR", value_parser = word::<Near>(), help_heading = DEVICES, hide_short_help = true)]
    pub nic_near: Option<Near>,
    /// Pass through N virtual functions or that at BDF
    ///
    /// Takes the same values as --nic; `gpuvm nic vfs` creates virtual
    /// functions. Keys that are not given keep the card's setting.
    ///
    /// Keys:
    ///   vlan=ID       VLAN of its frames
    ///   trust=on|off  on: may change its MAC address and be promiscuous
    ///   spoof=on|off  off: may send from other MAC addresses
    ///   mac=MAC       MAC address; default: derived from the UUID
    #[arg(verbatim_doc_comment, long, value_name = "N|BDF[,KEY=VALUE]", help_heading = DEVICES)]
    pub vf: Vec<VfWish>,
    /// Pass through N NVMe drives or the one at BDF
    ///
    /// Takes the same values as --nic. Drives that the host uses are never taken.
    #[arg(long, value_name = "N|BDF", help_heading = DEVICES)]
    pub nvme: Vec<Which>,
    /// Maximum distance of each GPU's nearest NVMe drive
    #[arg(long, value_name = "NEAR", value_parser = word::<Near>(), help_heading = DEVICES, hide_short_help = true)]
    pub nvme_near: Option<Near>,
    /// Enable GPUDirect peer-to-peer below a PCIe switch
    ///
    /// Tells the driver that GPUs below the same PCIe switch reach each other over it, without
    /// NVLink. Refused if no two of the guest's GPUs share a switch.
    #[arg(long, help_heading = DEVICES, hide_short_help = true)]
    pub p2p_clique: bool,
    /// Keep transfers between its GPUs and NICs below their PCIe switch
    ///
    /// auto: while the guest runs, the switch ports of its NICs pass translated requests directly
    /// (ACS Direct Translated P2P), for GPUDirect RDMA at full rate. Needs NICs with ATS; `gpuvm
    /// host p2p` shows the routes. Nothing else of ACS is changed, and other guests stay isolated.
    #[arg(long, value_name = "CHOICE", value_parser = word::<P2pWish>(), help_heading = DEVICES, hide_short_help = true)]
    pub p2p: Option<P2pWish>,
    /// Pass functions through by iommufd
    ///
    /// Needs Linux with CONFIG_IOMMUFD and libvirt 12.2; several GPUs and NICs also need Linux 6.19
    /// and QEMU 11 to reach each other. `gpuvm tune NAME --iommufd on|off` changes it.
    #[arg(long, value_name = "CHOICE", value_parser = word::<IommufdWish>(), help_heading = DEVICES, hide_short_help = true)]
    pub iommufd: Option<IommufdWish>,
    /// Free root ports for devices added while it runs
    ///
    /// Each takes a disk, NIC, virtual function or NVMe drive by --live of `gpuvm set` and `gpuvm
    /// disk add`. Default: 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_SPARE_PORTS)))]
    #[arg(help_heading = DEVICES, hide_short_help = true)]
    pub spare_ports: Option<u32>,
    /// Number of vCPUs
    ///
    /// Default: the GPUs' share of the host's cores; without GPUs 2, rounded up to whole cores.
    #[arg(long, value_name = "N", help_heading = CPU)]
    #[arg(value_parser = number)]
    pub vcpus: Option<u32>,
    /// Most vCPUs that it can have while it runs
    ///
    /// Cores are planned for all of them; --vcpus of them are plugged at start, cell by cell, and
    /// `gpuvm set NAME --vcpus N --live` plugs others.
    #[arg(long, value_name = "N", requires = "vcpus", help_heading = CPU, hide_short_help = true)]
    #[arg(value_parser = number)]
    pub max_vcpus: Option<u32>,
    /// Memory size, such as 180G
    ///
    /// Default: the GPUs' share of the host's memory; without GPUs 2G.
    #[arg(long, value_name = "SIZE", help_heading = CPU)]
    pub memory: Option<MemSize>,
    /// Use huge pages
    ///
    /// Default: auto; with --profile nvidia-vm off.
    #[arg(long, value_name = "SIZE", value_parser = word::<HugePages>(), help_heading = CPU)]
    pub huge_pages: Option<HugePages>,
    /// vCPU pinning
    ///
    /// --profile nvidia-vm has its own.
    #[arg(long, value_name = "POLICY", value_parser = word::<PinPolicy>(), default_value = "auto")]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub pins: PinPolicy,
    /// Number of guest NUMA cells
    ///
    /// per-node and auto give one for each host node in use. In a single cell over several host
    /// nodes the guest cannot distinguish near and far memory.
    #[arg(long, value_name = "auto|per-node|N", default_value = "auto")]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub cells: CellsArg,
    /// Threads per core in the guest
    ///
    /// Requires --pins none. Default: as on the host.
    #[arg(long, value_name = "N", help_heading = CPU, hide_short_help = true)]
    #[arg(value_parser = number)]
    pub threads: Option<u32>,
    /// Machine type, such as pc-q35-9.2
    ///
    /// One with PCI Express. Default: the template's, of which libvirt takes the newest version of
    /// its QEMU; a named version lets the guest move to hosts with an older one.
    #[arg(long, value_name = "MODEL", help_heading = CPU, hide_short_help = true)]
    pub machine: Option<MachineModel>,
    /// Sizing and pinning profile
    ///
    /// Default: share; under the name nvidia-vm that profile.
    #[arg(long, value_name = "PROFILE", value_parser = word::<Profile>())]
    #[arg(help_heading = CPU, hide_short_help = true)]
    pub profile: Option<Profile>,
    /// Reserve N cores of each node for the host
    ///
    /// The first cores of every NUMA node are reserved. Guests of default size get fewer vCPUs.
    /// Default: 0.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(help_heading = PLACEMENT)]
    pub reserve_cores: u32,
    /// Reserve this much memory of each node for the host
    ///
    /// Default: a small part of each NUMA node.
    #[arg(long, value_name = "SIZE", help_heading = PLACEMENT, hide_short_help = true)]
    pub reserve_memory: Option<MemSize>,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. Separate several by
    /// commas.
    #[arg(long, value_name = "RULE", value_parser = word::<Rule>(), value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<Rule>,
    /// Choice between equally good places
    #[arg(long, value_name = "POLICY", value_parser = word::<Policy>(), default_value = "pack")]
    #[arg(help_heading = PLACEMENT, hide_short_help = true)]
    pub policy: Policy,
    /// Preference where near NICs and one package exclude each other
    ///
    /// Default: nic where NVLinks join all GPUs of the host, else package. gpuvm-placement(7) has
    /// all criteria.
    #[arg(long, value_name = "WHAT", value_parser = word::<Prefer>(), help_heading = PLACEMENT, hide_short_help = true)]
    pub prefer: Option<Prefer>,
    /// L3 caches that vCPUs are below
    ///
    /// On hosts whose L3 caches differ in size. The plan says which sizes there are.
    #[arg(long, value_name = "WHICH", value_parser = word::<L3Wish>(), help_heading = PLACEMENT, hide_short_help = true)]
    pub l3: Option<L3Wish>,
}

/// The sources of the occupancy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct TakenArgs {
    /// Ignore existing domains
    ///
    /// Treats everything as free. Always so with --host, unless --domain-xml is given.
    #[arg(long, help_heading = PLACEMENT, hide_short_help = true)]
    pub assume_empty: bool,
    /// Domain XML of the recorded host; repeatable
    ///
    /// Requires --host. A file as `virsh dumpxml` prints it, or a directory of such files. Domains
    /// that were running when they were printed count as running.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    #[arg(conflicts_with = "assume_empty", help_heading = PLACEMENT, hide_short_help = true)]
    pub domain_xml: Vec<PathBuf>,
}

/// The sources of the occupancy, with the libvirt and QEMU of a recorded host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct HeldArgs {
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Such as libvirt=12.9,qemu=11.1: GPUs with coherent memory depend on them.
    /// Default: those of the record; a record without them is taken to have those of Debian 13.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
}
