//! Arguments of `set`: the new size of an existing guest.

use super::guest::TakenArgs;
use super::heading::{BEHAVIOUR, CPU, DEVICES, NETWORK, PLACEMENT};
use super::life::ChangeArgs;
use super::request::{both, device_wish};
use super::values::{chosen_pages, number, word};
use crate::cli::refuse::usage;
use crate::domain::nic_request::NicWish;
use crate::memsize::MemSize;
use crate::request::{
    DeviceWish, Extras, GpuWish, HugePages, Near, PageSize, Request, Rule, Spelled as _, VfWish,
    VgpuWish, Which,
};
use crate::shell;
use crate::tune::Item;
use crate::words::count;
use clap::{ArgGroup, Args};
use gpuvm_core::tune::items::OtherFunctions;
use gpuvm_core::versions::Stack;
use gpuvm_ops::set::SetRequest;
use gpuvm_ops::source::Source;
use gpuvm_ops::taken::Taken;
use gpuvm_ops::world::World;

/// Examples at the end of the help.
pub const EXAMPLES: &str = "Examples:
  gpuvm set train-a --vcpus 24 --diff
  gpuvm set train-a --vcpus 24 --memory 180G
  gpuvm set train-a --gpus 8
  gpuvm set desk-a --vgpu H200X-35C
  gpuvm set train-a --nic 2 --nvme 0000:5e:00.0
  gpuvm set train-a --vf 1,vlan=12 --live
  gpuvm set train-a --vcpus 8 --max-vcpus 24
  gpuvm set train-a --vcpus 16 --live
  gpuvm set train-a --huge-pages 1G --reserve-pages
  gpuvm set train-a --network default --network lan
  gpuvm set train-a --network default --live
  gpuvm undo train-a";

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("sizes").required(true).multiple(true))]
#[command(override_usage = "gpuvm set [OPTIONS] <NAME|FILE>")]
pub struct SetArgs {
    /// Domain name, or a file of domain XML
    ///
    /// The changed definition of a file, and of a domain of a recorded host, is printed.
    #[arg(value_name = "NAME|FILE")]
    pub name: String,
    /// Number of vCPUs
    #[arg(long, alias = "cpus", value_name = "N", group = "sizes", help_heading = CPU)]
    #[arg(value_parser = number)]
    pub vcpus: Option<u32>,
    /// Most vCPUs that it can have while it runs
    ///
    /// From its next start on. --vcpus then is how many are plugged at start, and with --live how
    /// many the running guest has.
    #[arg(long, value_name = "N", group = "sizes", help_heading = CPU)]
    #[arg(value_parser = number)]
    pub max_vcpus: Option<u32>,
    /// Memory size, such as 180G
    #[arg(long, aliases = ["ram", "mem"], value_name = "SIZE", group = "sizes", help_heading = CPU)]
    pub memory: Option<MemSize>,
    /// Number of GPUs
    ///
    /// The guest must be off. It keeps all or some of its GPUs in their places where a free set has
    /// them. Added GPUs are bound to vfio-pci, removed ones are reset and returned to their driver.
    /// Sizes that `create` derived from the GPUs are derived again. The present number adds missing
    /// NVSwitches of its partition.
    #[arg(long, value_name = "N", group = "sizes", help_heading = DEVICES)]
    #[arg(value_parser = number)]
    pub gpus: Option<u32>,
    /// Take other GPUs where no free set has its own
    ///
    /// Needed where the guest's GPUs were named, or gpuvm did not make it. Those of a guest that
    /// `create` chose may change in any case.
    #[arg(long = "move", requires = "gpus", help_heading = DEVICES, hide_short_help = true)]
    pub may_move: bool,
    /// Give it vGPUs of this type: shares of a GPU
    ///
    /// In place of those that it has, with the keys of `create`. The guest must be off. The types of vGPUs that it loses are
    /// cleared if gpuvm has set them; new ones are set at its next start. Sizes that `create`
    /// derived from the vGPU are derived again. With --gpus 0 they replace its whole GPUs.
    #[arg(long, value_name = "TYPE[,KEY=VALUE]", group = "sizes", help_heading = DEVICES)]
    pub vgpu: Option<VgpuWish>,
    /// Remove all vGPUs
    #[arg(long, conflicts_with = "vgpu", group = "sizes", help_heading = DEVICES)]
    pub no_vgpu: bool,
    /// Pass through N NICs or the NIC at address BDF
    ///
    /// The complete list: a number keeps those that the guest has and adds the nearest to its GPUs,
    /// or removes the farthest; addresses are exactly those. Functions that stay keep their place
    /// in the guest; removed ones return to their driver. The guest must be off, or --live.
    #[arg(long, value_name = "N|BDF", group = "sizes", group = "near-nics", help_heading = DEVICES)]
    pub nic: Vec<Which>,
    /// Pass through N virtual functions or that at BDF
    ///
    /// The complete list, as for --nic, with the keys of `create`. Those that stay keep their MAC
    /// address and unnamed keys.
    #[arg(
        long,
        value_name = "N|BDF[,KEY=VALUE]",
        group = "sizes",
        group = "near-nics",
        help_heading = DEVICES
    )]
    pub vf: Vec<VfWish>,
    /// Pass through N NVMe drives or the one at BDF
    ///
    /// The complete list, as for --nic. Drives that the host uses are never taken.
    #[arg(long, value_name = "N|BDF", group = "sizes", help_heading = DEVICES)]
    pub nvme: Vec<Which>,
    /// Remove all passed-through NICs
    #[arg(long, conflicts_with = "nic", group = "sizes", help_heading = DEVICES)]
    pub no_nic: bool,
    /// Remove all virtual functions
    #[arg(long, conflicts_with = "vf", group = "sizes", help_heading = DEVICES)]
    pub no_vf: bool,
    /// Remove all passed-through NVMe drives
    #[arg(long, conflicts_with = "nvme", group = "sizes", help_heading = DEVICES)]
    pub no_nvme: bool,
    /// Maximum distance of each GPU's nearest NIC
    ///
    /// Applies to those that --nic and --vf add. The default is that of `create`.
    #[arg(
        long,
        value_name = "NEAR",
        value_parser = word::<Near>(),
        requires = "near-nics",
        help_heading = DEVICES,
        hide_short_help = true
    )]
    pub nic_near: Option<Near>,
    /// Maximum distance of each GPU's nearest NVMe drive
    ///
    /// Applies to those that --nvme adds. The default is that of `create`.
    #[arg(
        long,
        value_name = "NEAR",
        value_parser = word::<Near>(),
        requires = "nvme",
        help_heading = DEVICES,
        hide_short_help = true
    )]
    pub nvme_near: Option<Near>,
    /// NIC on this libvirt network; repeatable
    ///
    /// The complete list of NICs on networks, with the keys of `create`. An existing NIC, matched
    /// by mac= or else by its network, keeps its place, its MAC address and unnamed keys. Others
    /// are removed, new ones get a root port.
    #[arg(long, value_name = "NAME[,KEY=VALUE]", group = "sizes", help_heading = NETWORK)]
    pub network: Vec<NicWish>,
    /// Remove all NICs on networks
    #[arg(long, conflicts_with = "network", group = "sizes", help_heading = NETWORK)]
    pub no_network: bool,
    /// Change running guests as well
    ///
    /// NICs, virtual functions and NVMe drives are attached to free root ports and detached once
    /// the guest releases them. NICs on networks get new bandwidth limits. vCPUs are plugged up to
    /// --max-vcpus, and unplugged down to those with which the guest started. The running guest and
    /// its next start are both changed, or neither.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub live: bool,
    /// Accept an NVLink fabric shared with other guests
    ///
    /// Takes NVSwitches or NVLinks that other guests can reach as well, and devices below PCIe
    /// ports that do not redirect; the plan names the guests or ports.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_shared_fabric: bool,
    /// Allow overwriting drives that contain data
    ///
    /// The guest may overwrite all data on its drives. Without this option gpuvm asks, and refuses
    /// if there is no terminal.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_data_loss: bool,
    /// Use huge pages
    #[arg(long, value_name = "SIZE", value_parser = chosen_pages(), group = "sizes", help_heading = CPU)]
    pub huge_pages: Option<HugePages>,
    /// Reserve missing huge pages
    ///
    /// If the guest is off, on the nodes of its memory; `undo` and `delete` release them.
    #[arg(long, help_heading = CPU)]
    pub reserve_pages: bool,
    /// Rules to relax
    ///
    /// They are broken only if nothing else fits; the plan states the cost. Separate several by
    /// commas.
    #[arg(long, value_name = "RULE", value_parser = word::<Rule>(), value_delimiter = ',', help_heading = PLACEMENT)]
    pub allow: Vec<Rule>,
    /// The occupancy.
    #[command(flatten)]
    pub taken: TakenArgs,
    /// libvirt and QEMU of the recorded host
    ///
    /// Requires --host. Such as libvirt=12.9,qemu=11.1. Default: those of the record.
    #[arg(long, value_name = "VERSIONS", help_heading = PLACEMENT, hide_short_help = true)]
    pub assume: Option<Stack>,
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
    /// Returns their request.
    pub fn wanted(&self, world: &World) -> anyhow::Result<SetRequest> {
        let source = Source::named_by(&self.name, world);
        if let (Some(rule), None) =
            (self.allow.iter().find(|rule| **rule != Rule::Remote), self.gpus)
        {
            return Err(usage(
                format!("--allow {} is about other GPUs, and none are requested", rule.word()),
                "add --gpus N",
            ));
        }
        if let (Some(wish), Some(gpus @ 1..)) = (&self.vgpu, self.gpus) {
            let set = format!("gpuvm set {}", shell::word(&self.name));
            let (vgpu, of) = (wish.to_string(), count(gpus, "GPU"));
            return Err(usage(
                both(gpus),
                format!(
                    "`{set} --gpus {gpus} --no-vgpu` gives it {of}, `{set} --gpus 0 --vgpu {}` vGPUs",
                    shell::word(&vgpu)
                ),
            ));
        }
        Ok(SetRequest {
            name: self.name.clone(),
            source: Some(source),
            taken: Taken { assume: self.assume, ..Taken::from(&self.taken) },
            vcpus: self.vcpus,
            max_vcpus: self.max_vcpus,
            memory: self.memory,
            gpus: self.gpus,
            may_move: self.may_move,
            gpu_set: None,
            gpus_said: self.gpus.map(GpuWish::Count),
            vgpu: match &self.vgpu {
                Some(wish) => Item::To(wish.clone()),
                None if self.no_vgpu => Item::Off,
                None => Item::Keep,
            },
            functions: self.functions()?,
            accept_data_loss: self.accept_data_loss,
            networks: (self.no_network || !self.network.is_empty()).then(|| self.network.clone()),
            live: self.live,
            accept_shared_fabric: self.accept_shared_fabric,
            huge_pages: pages_item(self.huge_pages),
            allow: self.allow.iter().copied().collect(),
            reserve_pages: self.reserve_pages,
            movable: None,
            p2p: None,
            recorded_allow: None,
            iommufd: Item::Keep,
        })
    }

    /// The passed-through functions besides GPUs that they ask for.
    fn functions(&self) -> anyhow::Result<OtherFunctions> {
        let wish = |flag, values: &[Which], none: bool| {
            let is_named = none || !values.is_empty();
            is_named.then(|| device_wish(flag, values)).transpose()
        };
        let vfs: Vec<Which> = self.vf.iter().map(|vf| vf.which).collect();
        let wanted = OtherFunctions {
            nics: wish("--nic", &self.nic, self.no_nic)?,
            vfs: wish("--vf", &vfs, self.no_vf)?,
            vf_settings: VfWish::settings(&self.vf),
            nvmes: wish("--nvme", &self.nvme, self.no_nvme)?,
            nic_near: self.nic_near,
            nvme_near: self.nvme_near,
            ports: None,
        };
        let named = |wish: &Option<DeviceWish>| wish.clone().unwrap_or_default();
        let extras = Extras {
            nics: named(&wanted.nics),
            vfs: named(&wanted.vfs),
            nvmes: named(&wanted.nvmes),
            ..Extras::default()
        };
        let request = Request { extras, ..Request::for_gpus(0) };
        let hint = "name each device once";
        request.check().map_err(|error| usage(error.to_string(), hint))?;
        Ok(wanted)
    }
}

/// The change of pages; none given: they stay.
fn pages_item(wanted: Option<HugePages>) -> Item<PageSize> {
    match wanted {
        None | Some(HugePages::Auto) => Item::Keep,
        Some(HugePages::Off) => Item::Off,
        Some(HugePages::Size(page)) => Item::To(page),
    }
}
