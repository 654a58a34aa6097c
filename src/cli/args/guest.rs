//! What describes a guest on the command line, on every verb that plans one.

use super::guestnic::{NIC_VALUE, nic};
use super::vf::VfArg;
use super::wish::{
    AllowArg, CellsArg, HugePagesArg, NearArg, PinsArg, PolicyArg, PreferArg, ProfileArg, Which,
};
use crate::domain::wish::NicWish;
use crate::memsize::MemSize;
use crate::request::DomainName;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Is what describes a guest, on every verb that plans one.
#[derive(Debug, Clone, Args)]
pub struct GuestArgs {
    /// Its GPUs.
    #[command(flatten)]
    pub gpus: GpuArgs,
    /// What it gets with them.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Domain XML that the guest is made from; default: the built-in gpu-guest.xml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub template: Option<PathBuf>,
    /// Name of the domain, as it is
    #[arg(long, value_name = "NAME", conflicts_with = "domain")]
    pub name: Option<DomainName>,
    /// Base of the name, to which the GPUs are added as nvidia-vm did: base-2g0-1
    #[arg(long, value_name = "BASE")]
    pub domain: Option<DomainName>,
    /// Kind of virtual machine: kvm, or qemu for emulation without /dev/kvm
    #[arg(long, value_name = "TYPE", value_enum, default_value = "kvm")]
    pub virt_type: VirtTypeArg,
    /// libvirt network for a NIC; repeat for more. Default: the template's
    ///
    /// One of virtual functions (forward mode hostdev) gives one of them at each start; `create` makes `default`,
    /// `private-net` and `macvtap-net` where they are not there. mac= is made from the guest's name if it is not given;
    /// queues= are as many as vCPUs, 256 at most; bandwidth= limits both directions, inbound= and outbound= one, each mean
    /// and if wanted highest rate and burst: 1Gbit/s or 100MB/s:200MB/s:4M; model= is virtio, e1000e, e1000, igb or rtl8139.
    #[arg(long, value_name = NIC_VALUE, value_parser = nic)]
    pub network: Vec<NicWish>,
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
}

/// Is which GPUs a guest gets.
#[derive(Debug, Clone, Default, Args)]
pub struct GpuArgs {
    /// Number of GPUs, wherever they fit best
    #[arg(long, visible_alias = "gpu-count", value_name = "N", conflicts_with = "gpu")]
    pub gpus: Option<u32>,
    /// Exactly this GPU, by index or PCI address; repeat for more
    ///
    /// `gpuvm host show` prints both. On a board with NVSwitches these have to be one of its NVLink partitions.
    #[arg(long, value_name = "I|BDF")]
    pub gpu: Vec<Which>,
    /// Index of the first GPU of a run of consecutive ones, by PCI address from 0
    #[arg(long, value_name = "I", conflicts_with = "gpu")]
    pub gpu_index: Option<u32>,
    /// Take only GPUs of this model: a name, a part of it, or a device id
    ///
    /// With --gpus: `H100`, `RTX 5090`, `10de:2330`; `gpuvm gpu list` prints the names. Without it GPUs of one model are
    /// preferred where they are as near.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["gpu", "gpu_index"], requires = "gpus")]
    pub gpu_model: Option<String>,
}

/// Is what a guest gets with its GPUs, and how it is placed.
#[derive(Debug, Clone, Args)]
pub struct ShapeArgs {
    /// vCPUs; default: the share of the GPUs, or 2 without GPUs, and whole cores where these have more threads
    #[arg(long, value_name = "N")]
    pub vcpus: Option<u32>,
    /// Memory with its unit, such as 180G; default: the share of the GPUs, or 2G without GPUs
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemSize>,
    /// Back the memory with huge pages of this size
    #[arg(long, value_name = "SIZE", value_enum)]
    pub huge_pages: Option<HugePagesArg>,
    /// NICs to pass through: so many, or exactly this one by PCI address; repeat for more
    ///
    /// A number takes the nearest to the GPUs that nobody uses. The host and other guests lose them.
    #[arg(long, value_name = "N|BDF")]
    pub nic: Vec<Which>,
    /// Virtual functions of NICs to pass through, as --nic; `gpuvm nic vfs` makes them. Each has a MAC address that is made
    /// from the guest's name
    ///
    /// vlan= is the VLAN that its frames are in; trust=on lets it change its MAC address and be promiscuous; spoof=off
    /// lets it send from other MAC addresses; what is not given stays as it is on the card.
    #[arg(long, value_name = "N|BDF[,vlan=ID][,trust=on|off][,spoof=on|off][,mac=MAC]")]
    pub vf: Vec<VfArg>,
    /// How near NICs and virtual functions have to be to the GPUs; nearer ones are taken first in any case
    #[arg(long, value_name = "NEAR", value_enum)]
    pub nic_near: Option<NearArg>,
    /// NVMe drives to pass through as PCI functions, as --nic; drives that the host uses are never taken
    #[arg(long, value_name = "N|BDF")]
    pub nvme: Vec<Which>,
    /// How near NVMe drives have to be to the GPUs
    #[arg(long, value_name = "NEAR", value_enum)]
    pub nvme_near: Option<NearArg>,
    /// How vCPUs are pinned
    #[arg(long, value_name = "POLICY", value_enum, default_value = "core")]
    pub pins: PinsArg,
    /// Guest NUMA cells: per-node is one for each host node in use, which is also what auto gives. With one
    /// cell a guest on several nodes cannot tell near memory from far memory
    #[arg(long, value_name = "auto|per-node|N", default_value = "auto")]
    pub cells: CellsArg,
    /// Threads per core that the guest sees; only with --pins none. Default: as the host's
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Rule for sizes and pins
    #[arg(long, value_name = "PROFILE", value_enum, default_value = "share")]
    pub profile: ProfileArg,
    /// Cores of every node that stay with the host: its first ones. Guests with default sizes get fewer vCPUs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub reserve_cores: u32,
    /// Memory of every node that stays with the host, such as 8G; default: a small part of the node
    #[arg(long, value_name = "SIZE")]
    pub reserve_memory: Option<MemSize>,
    /// Which of equally good places is taken
    #[arg(long, value_name = "POLICY", value_enum, default_value = "pack")]
    pub policy: PolicyArg,
    /// What counts first where not both fit: GPUs near NICs, or GPUs on one package
    ///
    /// Default: near NICs where NVLinks join all GPUs of the host, else one package; gpuvm-placement(7) lists all criteria.
    #[arg(long, value_name = "WHAT", value_enum)]
    pub prefer: Option<PreferArg>,
    /// Tell GPUs below one PCIe switch that they may send to each other over it, without NVLink; refused where no two are
    #[arg(long)]
    pub p2p_clique: bool,
    /// Rules that may be broken where nothing else fits, separated by commas; the plan says what it cost
    #[arg(long, value_name = "RULES", value_enum, value_delimiter = ',')]
    pub allow: Vec<AllowArg>,
}

/// Is where what is taken is read from.
#[derive(Debug, Clone, Default, Args)]
pub struct TakenArgs {
    /// Plan as if no domain held anything; always so with --host, unless --domain-xml is given
    #[arg(long)]
    pub assume_empty: bool,
    /// With --host: a domain of that host, as `virsh dumpxml` printed it, or a directory of such files; repeat for
    /// more. What was printed of a running domain counts as running
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    #[arg(conflicts_with = "assume_empty")]
    pub domain_xml: Vec<PathBuf>,
}

/// Is a domain type on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VirtTypeArg {
    /// Hardware virtualization
    Kvm,
    /// Emulation
    Qemu,
}
