//! Arguments of `set`: what size a guest that is there gets.

use super::heading::{BEHAVIOUR, CPU, DEVICES, NETWORK, PLACEMENT};
use super::life::ChangeArgs;
use super::wish::AllowArg;
use crate::domain::wish::NicWish;
use crate::memsize::MemSize;
use crate::request::{GpuWish, PageSize};
use crate::tune::Item;
use clap::{ArgGroup, Args, ValueEnum};
use gpuvm_ops::set::SetRequest;

/// Examples at the end of the help.
pub const EXAMPLES: &str = "Examples:
  gpuvm set train-a --vcpus 24 --diff
  gpuvm set train-a --vcpus 24 --memory 180G
  gpuvm set train-a --gpus 8
  gpuvm set train-a --vcpus 8 --max-vcpus 24
  gpuvm set train-a --vcpus 16 --live
  gpuvm set train-a --huge-pages 1G --reserve-pages
  gpuvm set train-a --network default --network lan
  gpuvm set train-a --network default --live
  gpuvm undo train-a";

/// The pages of a guest on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SetPagesArg {
    /// Normal pages
    Off,
    /// 2 MiB pages
    #[value(name = "2M")]
    TwoMib,
    /// 1 GiB pages
    #[value(name = "1G")]
    OneGib,
}

impl From<SetPagesArg> for Item<PageSize> {
    fn from(arg: SetPagesArg) -> Item<PageSize> {
        match arg {
            SetPagesArg::Off => Item::Off,
            SetPagesArg::TwoMib => Item::To(PageSize::TwoMib),
            SetPagesArg::OneGib => Item::To(PageSize::OneGib),
        }
    }
}

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("sizes").required(true).multiple(true))]
#[command(override_usage = "gpuvm set [OPTIONS] <NAME>")]
pub struct SetArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Number of vCPUs
    #[arg(long, alias = "cpus", value_name = "N", group = "sizes", help_heading = CPU)]
    pub vcpus: Option<u32>,
    /// Most vCPUs that it can have while it runs
    ///
    /// From its next start on. --vcpus then is how many are plugged at start, and with --live how
    /// many the running guest has.
    #[arg(long, value_name = "N", group = "sizes", help_heading = CPU)]
    pub max_vcpus: Option<u32>,
    /// Memory size, such as 180G
    #[arg(long, aliases = ["ram", "mem"], value_name = "SIZE", group = "sizes", help_heading = CPU)]
    pub memory: Option<MemSize>,
    /// Number of GPUs
    ///
    /// The guest must be off. It keeps all or some of its GPUs in their places; added GPUs are
    /// bound to vfio-pci, removed ones are reset and returned to their driver. Sizes that `create`
    /// derived from the GPUs are derived again.
    #[arg(long, value_name = "N", group = "sizes", help_heading = DEVICES)]
    pub gpus: Option<u32>,
    /// NIC on this libvirt network; repeatable
    ///
    /// The complete list of NICs on networks, with the keys of `create`. An existing NIC, matched
    /// by mac= or else by its network, keeps its place, its MAC address and what is not given.
    /// Others are removed, new ones get a root port.
    #[arg(long, value_name = "NAME[,KEY=VALUE]", group = "sizes", help_heading = NETWORK)]
    pub network: Vec<NicWish>,
    /// Remove all NICs on networks
    #[arg(long, conflicts_with = "network", group = "sizes", help_heading = NETWORK)]
    pub no_network: bool,
    /// Change running guests as well
    ///
    /// NICs are attached to free root ports, detached once the guest releases them, and get new
    /// bandwidth limits. vCPUs are plugged up to --max-vcpus, and unplugged down to those with which
    /// the guest started. The running guest and its next start are both changed, or neither.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub live: bool,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Takes NVSwitches or NVLinks that other guests can reach as well; the plan names the guests
    /// that are not isolated from each other.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_shared_fabric: bool,
    /// Use huge pages
    #[arg(long, value_name = "SIZE", value_enum, group = "sizes", help_heading = CPU)]
    pub huge_pages: Option<SetPagesArg>,
    /// Reserve missing huge pages
    ///
    /// If the guest is off, on the nodes of its memory; `undo` and `delete` release them.
    #[arg(long, help_heading = CPU)]
    pub reserve_pages: bool,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. Separate several by
    /// commas.
    #[arg(long, value_name = "RULE", value_enum, value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<AllowArg>,
    /// Explain each choice
    #[arg(long, help_heading = BEHAVIOUR)]
    pub explain: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

impl SetArgs {
    /// What they ask for.
    pub fn wanted(&self) -> SetRequest {
        SetRequest {
            name: self.name.clone(),
            vcpus: self.vcpus,
            max_vcpus: self.max_vcpus,
            memory: self.memory,
            gpus: self.gpus,
            gpu_set: None,
            gpus_said: self.gpus.map(GpuWish::Count),
            networks: (self.no_network || !self.network.is_empty()).then(|| self.network.clone()),
            live: self.live,
            accept_shared_fabric: self.accept_shared_fabric,
            huge_pages: self.huge_pages.map_or(Item::Keep, Item::from),
            allow_remote: self.allow.contains(&AllowArg::Remote),
            reserve_pages: self.reserve_pages,
        }
    }
}
