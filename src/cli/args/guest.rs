//! What describes a guest on the command line, on every verb that plans one.

use crate::bdf::Bdf;
use crate::memsize::MemSize;
use crate::request::{DomainName, PageSize, PinPolicy, Profile};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Is what describes a guest, on every verb that plans one.
#[derive(Debug, Clone, Args)]
pub struct GuestArgs {
    /// Number of GPUs
    #[arg(long, visible_alias = "gpu-count", value_name = "N", conflicts_with = "gpu")]
    pub gpus: Option<u32>,
    /// Exactly this GPU, by PCI address; repeat for more
    #[arg(long, value_name = "BDF")]
    pub gpu: Vec<Bdf>,
    /// Index of the first GPU of a run of consecutive ones, by PCI address from 0
    #[arg(long, value_name = "I", conflicts_with = "gpu")]
    pub gpu_index: Option<u32>,
    /// vCPUs; default: the share of the GPUs, or 2 without GPUs
    #[arg(long, value_name = "N")]
    pub vcpus: Option<u32>,
    /// Memory with its unit, such as 180G; default: the share of the GPUs, or 2G without GPUs
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemSize>,
    /// Back the memory with huge pages of this size
    #[arg(long, value_name = "SIZE", value_enum)]
    pub huge_pages: Option<HugePagesArg>,
    /// Rule for sizes and pins
    #[arg(long, value_name = "PROFILE", value_enum, default_value = "share")]
    pub profile: ProfileArg,
    /// How vCPUs are pinned
    #[arg(long, value_name = "POLICY", value_enum, default_value = "core")]
    pub pins: PinsArg,
    /// Guest NUMA cells; only with --pins none. Default: one per host node in use
    #[arg(long, value_name = "N")]
    pub cells: Option<u32>,
    /// Threads per core that the guest sees; only with --pins none. Default: as the host's
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
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
    /// Disk image or block device to use as it is; repeat for more. Default: a new blank disk of 50G
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub disk: Vec<PathBuf>,
    /// Directory for new disks
    #[arg(long, value_name = "DIR", default_value = "/var/lib/libvirt/images")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub disk_dir: PathBuf,
    /// libvirt network for a NIC; repeat for more. Default: the template's
    #[arg(long, value_name = "NETWORK")]
    pub network: Vec<String>,
    /// Plan as if no domain held anything; always so with --host
    #[arg(long)]
    pub assume_empty: bool,
}

/// Is a huge-page size on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum HugePagesArg {
    /// 2 MiB pages
    #[value(name = "2M")]
    TwoMib,
    /// 1 GiB pages
    #[value(name = "1G")]
    OneGib,
}

impl From<HugePagesArg> for PageSize {
    fn from(arg: HugePagesArg) -> PageSize {
        match arg {
            HugePagesArg::TwoMib => PageSize::TwoMib,
            HugePagesArg::OneGib => PageSize::OneGib,
        }
    }
}

/// Is a profile on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ProfileArg {
    /// Each GPU brings its share of its node's cores and memory
    Share,
    /// The sizes and the pin order of nvidia-vm
    NvidiaVm,
}

impl From<ProfileArg> for Profile {
    fn from(arg: ProfileArg) -> Profile {
        match arg {
            ProfileArg::Share => Profile::Share,
            ProfileArg::NvidiaVm => Profile::NvidiaVm,
        }
    }
}

/// Is a pin policy on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PinsArg {
    /// vCPU pairs on the two threads of one core
    Core,
    /// No pins
    None,
}

impl From<PinsArg> for PinPolicy {
    fn from(arg: PinsArg) -> PinPolicy {
        match arg {
            PinsArg::Core => PinPolicy::Core,
            PinsArg::None => PinPolicy::None,
        }
    }
}

/// Is a domain type on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VirtTypeArg {
    /// Hardware virtualization
    Kvm,
    /// Emulation
    Qemu,
}
