//! A request for a guest, with defaults filled in and every value checked. Contains no flags about
//! how to run.

mod device_text;
mod machine;
mod spelled;
mod vf;
mod vgpu;

pub use device_text::{VfWish, Which};
pub use machine::MachineModel;
pub use spelled::Spelled;
pub use vf::{Guard, VfSettings};
pub use vgpu::{MOST_VGPUS, VgpuCardName, VgpuWish};

use crate::bdf::Bdf;
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name accepted: libvirt makes file names of it, and with its suffixes it must fit in
/// 255 bytes.
pub const MAX_NAME: usize = 128;

/// A domain's name that libvirt, file systems and shells all take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct DomainName(String);

/// The error of an invalid request.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "request-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RequestError {
    /// The name is empty or too long.
    #[error("a domain name has 1 to {MAX_NAME} characters, this one has {length}")]
    NameLength { length: usize },
    /// The name holds a character that is not allowed, or starts with `-` or `.`.
    #[error(
        "domain name {name:?}: character {character:?} at {at} is not allowed: a name has letters, \
         digits, `-`, `_`, `.` and `+`, and begins with a letter, digit or `_`"
    )]
    NameCharacter {
        name: String,
        character: char,
        /// Its place, from 1.
        at: usize,
    },
    /// No vCPU.
    #[error("a guest needs at least one vCPU")]
    NoVcpus,
    /// No thread of a core.
    #[error("a core of a guest has at least one thread")]
    NoThreads,
    /// More vCPUs at start than there may be at all.
    #[error("{start} vCPUs are more than the maximum of {most}")]
    MaxVcpus { start: u32, most: u32 },
    /// Memory below 1 MiB.
    #[error("{memory} of memory is too little for a guest")]
    TooLittleMemory { memory: MemSize },
    /// The same device twice.
    #[error("device {bdf} is requested twice")]
    DeviceTwice { bdf: Bdf },
    /// The same GPU twice.
    #[error("GPU {index} is requested twice")]
    #[strum(to_string = "gpu-twice")]
    IndexTwice { index: u32 },
}

impl DomainName {
    /// Checks a name: letters, digits, `-`, `_`, `.` and `+`, starting with a letter, digit or `_`.
    pub fn new(name: &str) -> Result<DomainName, RequestError> {
        let length = name.chars().count();
        if length == 0 || length > MAX_NAME {
            return Err(RequestError::NameLength { length });
        }
        let good = |at: usize, c: char| {
            c.is_ascii_alphanumeric() || c == '_' || (at > 0 && matches!(c, '-' | '.' | '+'))
        };
        match name.chars().enumerate().find(|&(at, c)| !good(at, c)) {
            Some((at, character)) => {
                let name = name.chars().take(40).collect();
                Err(RequestError::NameCharacter { name, character, at: at + 1 })
            }
            None => Ok(DomainName(name.to_owned())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainName {
    type Err = RequestError;
    fn from_str(text: &str) -> Result<DomainName, RequestError> {
        DomainName::new(text)
    }
}

impl<'de> Deserialize<'de> for DomainName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<DomainName, D::Error> {
        DomainName::new(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// The requested GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GpuWish {
    /// This many, wherever they fit best.
    Count(u32),
    /// `count` GPUs in index order from `first` on, as with `--gpu-index` and `--gpu-count` of
    /// `nvidia-vm`.
    Run {
        /// Index of the first, by PCI address.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Exactly these.
    Exact(Vec<Bdf>),
    /// Exactly these, by index: their places among the host's GPUs by PCI address, from 0.
    Indexes(Vec<u32>),
}

impl GpuWish {
    /// Returns the number of wanted GPUs.
    pub fn number(&self) -> u32 {
        match self {
            GpuWish::Count(count) | GpuWish::Run { count, .. } => *count,
            GpuWish::Exact(bdfs) => u32::try_from(bdfs.len()).unwrap_or(u32::MAX),
            GpuWish::Indexes(indexes) => u32::try_from(indexes.len()).unwrap_or(u32::MAX),
        }
    }
}

/// The required distance of a NIC or an NVMe drive to the guest's GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Near {
    /// Below the GPU's PCIe switch: peer-to-peer traffic avoids the host bridge.
    Switch,
    /// On the GPU's NUMA node: traffic avoids the link between packages.
    Node,
    /// Anywhere (default).
    #[default]
    Any,
}

/// The requested devices of a kind other than GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceWish {
    /// This many, the nearest to the GPUs.
    Count(u32),
    /// Exactly these.
    Exact(Vec<Bdf>),
}

impl Default for DeviceWish {
    fn default() -> DeviceWish {
        DeviceWish::Count(0)
    }
}

impl DeviceWish {
    /// Returns the number of wanted devices.
    pub fn number(&self) -> usize {
        match self {
            DeviceWish::Count(number) => *number as usize,
            DeviceWish::Exact(bdfs) => bdfs.len(),
        }
    }
}

/// Requested devices other than GPUs: NICs, virtual functions of NICs, NVMe drives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Extras {
    /// NICs, whole physical functions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nics: DeviceWish,
    /// Virtual functions of NICs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub vfs: DeviceWish,
    /// Settings of virtual functions: the first for all if a number is requested, otherwise one for
    /// each named function, in order; missing ones have no settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf_settings: Vec<VfSettings>,
    /// The required distance of NICs and virtual functions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nic_near: Near,
    /// NVMe drives, as PCI functions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nvmes: DeviceWish,
    /// The required distance of NVMe drives.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nvme_near: Near,
}

/// The reservation for the host on every node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Whole cores of each node: the first ones, where the kernel's own work runs.
    #[serde(default)]
    pub cores: u32,
    /// Memory of each node; `None` for the planner's default.
    #[serde(default)]
    pub memory_kib: Option<MemSize>,
}

/// The choice between equally good places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Policy {
    /// Leave as much as possible to later guests.
    #[default]
    Pack,
    /// Share nodes with as few guests as possible; leaves less for large guests.
    Spread,
}

/// Preference if both are not possible: near NICs and drives, or GPUs on one package.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Prefer {
    /// NICs where NVLinks join all GPUs of the host, else one package (default).
    #[default]
    Auto,
    /// NICs and drives near the GPUs.
    Nic,
    /// GPUs on one package.
    Package,
}

/// Which L3 caches vCPUs are to be below, on a host with several sizes: AMD's X3D processors have
/// one large one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum L3Wish {
    /// Any (default).
    #[default]
    Any,
    /// The largest ones only, as of AMD's X3D processors.
    Large,
}

/// How libvirt passes PCI functions of the host through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum IommufdWish {
    /// As the template says, otherwise by VFIO groups (default).
    #[default]
    Auto,
    /// By iommufd.
    On,
    /// By VFIO groups.
    Off,
}

/// Whether transfers between its GPUs and NICs below one PCIe switch stay below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum P2pWish {
    /// Through the switch while the guest runs, where its devices have ATS.
    Auto,
    /// As the host's ports are set (default).
    #[default]
    Off,
}

/// A rule of the planner that may be broken.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    /// Cores and memory on other nodes than the GPUs: slower CPU-GPU transfers.
    Remote,
    /// GPUs that form no NVLink partition: no NVLink between them.
    Split,
    /// Several GPUs, some with MIG on: no NVLink between them.
    Mig,
}

impl Allow {
    /// The rules that may be broken.
    pub fn rules(self) -> Vec<Rule> {
        let Allow { remote, split, mig } = self;
        let all = [(remote, Rule::Remote), (split, Rule::Split), (mig, Rule::Mig)];
        all.into_iter().filter(|(on, _)| *on).map(|(_, rule)| rule).collect()
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&str> = self.rules().into_iter().map(<&str>::from).collect();
        f.write_str(if rules.is_empty() { "none".into() } else { rules.join(",") }.as_str())
    }
}

impl FromIterator<Rule> for Allow {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Allow {
        let mut allow = Allow::default();
        for rule in rules {
            match rule {
                Rule::Remote => allow.remote = true,
                Rule::Split => allow.split = true,
                Rule::Mig => allow.mig = true,
            }
        }
        allow
    }
}

/// Which rules may be broken to find a place at all; each is stated as a compromise of the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// Cores and memory may come from other nodes than those of the GPUs, the nearest first.
    #[serde(default)]
    pub remote: bool,
    /// The GPUs need not form an NVLink partition; they then have no NVLink between them.
    #[serde(default)]
    pub split: bool,
    /// MIG may be on in GPUs of a guest with several; they then have no NVLink between them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig: bool,
}

/// The rule for sizes and pins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Profile {
    /// Each GPU brings its share of the cores and memory of its node and of near nodes without
    /// GPUs.
    #[default]
    Share,
    /// Each GPU brings its share of its own node only.
    Near,
    /// Sizes and pin order of nvidia-vm.
    NvidiaVm,
}

/// How vCPUs are pinned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum PinPolicy {
    /// As core; a guest without passed-through devices floats if no cores are free.
    Auto,
    /// Successive vCPUs on the threads of one core; the guest sees that core.
    #[default]
    Core,
    /// First threads of all cores first, then second threads, as in nvidia-vm.
    Thread,
    /// Unpinned: vCPUs float over all pcpus, including those of other guests.
    None,
}

/// Number of guest NUMA cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CellWish {
    /// One per host node of the guest's cores; one if it is not pinned.
    #[default]
    #[serde(alias = "per-node")]
    Auto,
    /// This many. A pinned guest accepts 1 or the number of its host nodes.
    Count(u32),
}

/// A page size that backs guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(strum::IntoStaticStr, strum::EnumMessage, strum::VariantArray)]
pub enum PageSize {
    /// 2 MiB pages.
    #[serde(rename = "2M")]
    #[strum(serialize = "2M")]
    TwoMib,
    /// 1 GiB pages.
    #[serde(rename = "1G")]
    #[strum(serialize = "1G")]
    OneGib,
}

impl PageSize {
    /// The page's size.
    pub fn size(self) -> MemSize {
        match self {
            PageSize::TwoMib => MemSize::from_kib(2048),
            PageSize::OneGib => MemSize::from_gib(1),
        }
    }
}

/// The pages that back a guest's memory. In JSON `auto`, a page size, or null for normal pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<PagesWord>", into = "Option<PagesWord>")]
pub enum HugePages {
    /// Normal pages; also the value of requests without a size from versions without `auto`.
    #[default]
    Off,
    /// The largest size with enough free pages on the guest's nodes, if it has GPUs and 32 GiB or
    /// more; otherwise normal pages.
    Auto,
    /// Pages of this size.
    Size(PageSize),
}

/// A choice of pages in JSON.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PagesWord {
    /// The size that the planner chooses.
    #[serde(rename = "auto")]
    Auto,
    /// 2 MiB pages.
    #[serde(rename = "2M")]
    TwoMib,
    /// 1 GiB pages.
    #[serde(rename = "1G")]
    OneGib,
}

impl From<Option<PagesWord>> for HugePages {
    fn from(word: Option<PagesWord>) -> HugePages {
        match word {
            None => HugePages::Off,
            Some(PagesWord::Auto) => HugePages::Auto,
            Some(PagesWord::TwoMib) => HugePages::Size(PageSize::TwoMib),
            Some(PagesWord::OneGib) => HugePages::Size(PageSize::OneGib),
        }
    }
}

impl From<HugePages> for Option<PagesWord> {
    fn from(pages: HugePages) -> Option<PagesWord> {
        match pages {
            HugePages::Off => None,
            HugePages::Auto => Some(PagesWord::Auto),
            HugePages::Size(PageSize::TwoMib) => Some(PagesWord::TwoMib),
            HugePages::Size(PageSize::OneGib) => Some(PagesWord::OneGib),
        }
    }
}

impl From<Option<PageSize>> for HugePages {
    fn from(page: Option<PageSize>) -> HugePages {
        page.map_or(HugePages::Off, HugePages::Size)
    }
}

impl HugePages {
    /// Returns the default pages of a profile: `nvidia-vm` uses normal ones.
    pub fn usual(profile: Profile) -> HugePages {
        match profile {
            Profile::Share | Profile::Near => HugePages::Auto,
            Profile::NvidiaVm => HugePages::Off,
        }
    }

    /// Returns the requested size; `None` if normal pages, or the planner chooses.
    pub fn asked(self) -> Option<PageSize> {
        match self {
            HugePages::Size(page) => Some(page),
            HugePages::Off | HugePages::Auto => None,
        }
    }
}

/// A request for a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// GPUs.
    pub gpus: GpuWish,
    /// Required GPU model, if only a number of GPUs is requested: a name, a part of one, or a
    /// device id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// vGPUs, in place of whole GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<VgpuWish>,
    /// vCPUs; `None` for the profile's number for the GPUs.
    pub vcpus: Option<u32>,
    /// vCPUs that are plugged at start; the others can be plugged while the guest runs. `None` if
    /// all are plugged, and none can come or go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus_at_start: Option<u32>,
    /// Memory; `None` for the profile's amount for the GPUs.
    pub memory_kib: Option<MemSize>,
    /// Huge pages that back the memory.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<PagesWord>"))]
    pub huge_pages: HugePages,
    /// Rule for sizes and pins.
    pub profile: Profile,
    /// How vCPUs are pinned.
    pub pins: PinPolicy,
    /// Guest NUMA cells.
    pub cells: CellWish,
    /// Threads per core that the guest sees; `None` for those of the host's cores, or 1 without
    /// pins.
    pub threads: Option<u32>,
    /// NICs, virtual functions and NVMe drives.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extras: Extras,
    /// The reservation for the host on every node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reserve: Reserve,
    /// The choice between equally good places.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: Policy,
    /// Preference if both are not possible.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefer: Prefer,
    /// Which L3 caches.
    #[serde(default, skip_serializing_if = "is_default")]
    pub l3: L3Wish,
    /// Which rules may be broken.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow: Allow,
    /// Whether GPUs below one PCIe switch get a clique, which permits peer-to-peer over it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub p2p_clique: bool,
    /// Whether its ports pass transfers between its GPUs and NICs through the switch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub p2p: P2pWish,
    /// How its functions are passed through.
    #[serde(default, skip_serializing_if = "is_default")]
    pub iommufd: IommufdWish,
    /// Free root ports for devices that come while it runs; `None` for the number of a new guest
    /// ([`SPARE_PORTS`](crate::domain::guest::SPARE_PORTS)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_ports: Option<u32>,
    /// Machine type; `None` for the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineModel>,
    /// Whether it may be stopped, moved and started again to make room for others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub movable: bool,
    /// The kind of its template. Not remembered: the guest has all of it in its definition.
    #[serde(skip)]
    pub template: Template,
    /// Pages that each cell's memory is a multiple of, where these are larger than those that back
    /// it; set by `tune` only, never for a new guest.
    #[serde(skip)]
    pub rounding: Option<PageSize>,
}

/// The properties of a guest's template that a plan needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    /// Whether the admin named one; otherwise it is the built-in one of the host's architecture.
    pub is_given: bool,
    /// Whether it is of x86.
    pub is_x86: bool,
    /// Whether its machine has PCI Express, as passed-through devices need.
    pub is_pcie: bool,
    /// Whether it has an IOMMU that remaps interrupts, as more than 255 vCPUs on x86 need, or room
    /// for one.
    pub remaps_interrupts: bool,
    /// Whether it passes its functions through by iommufd.
    pub is_by_iommufd: bool,
    /// PCI functions of the host that it passes by `<hostdev>` or `<interface>`: the guest has them
    /// only if they are planned for it. Those of an earlier plan of gpuvm do not count, since they
    /// are replaced.
    pub functions: Vec<Bdf>,
    /// PCI functions that it passes by arguments of QEMU or as disks: a plan cannot replace them.
    pub fixed_functions: Vec<Bdf>,
    /// Arguments of QEMU by which it may pass functions that cannot be determined, in words.
    pub unread: Vec<String>,
    /// Devices of the host, other than PCI functions, that each guest made from it has.
    pub host_devices: Vec<HostDevice>,
}

/// Whether a value is the default, so that it is not serialized.
fn is_default<T: Default + PartialEq>(wish: &T) -> bool {
    *wish == T::default()
}

impl Request {
    /// Makes a request for this many GPUs with every default.
    pub fn for_gpus(count: u32) -> Request {
        Request {
            gpus: GpuWish::Count(count),
            gpu_model: None,
            vgpu: None,
            vcpus: None,
            vcpus_at_start: None,
            memory_kib: None,
            huge_pages: HugePages::usual(Profile::default()),
            profile: Profile::default(),
            pins: PinPolicy::default(),
            cells: CellWish::default(),
            threads: None,
            extras: Extras::default(),
            reserve: Reserve::default(),
            policy: Policy::default(),
            prefer: Prefer::default(),
            l3: L3Wish::default(),
            allow: Allow::default(),
            p2p_clique: false,
            p2p: P2pWish::default(),
            iommufd: IommufdWish::default(),
            spare_ports: None,
            machine: None,
            movable: false,
            template: Template::default(),
            rounding: None,
        }
    }

    /// Whether its functions are passed through by iommufd.
    pub fn is_by_iommufd(&self) -> bool {
        match self.iommufd {
            IommufdWish::Auto => self.template.is_by_iommufd,
            IommufdWish::On => true,
            IommufdWish::Off => false,
        }
    }

    /// Makes the checks that need no host.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.vcpus == Some(0) {
            return Err(RequestError::NoVcpus);
        }
        if self.threads == Some(0) {
            return Err(RequestError::NoThreads);
        }
        if let Some(start) = self.vcpus_at_start {
            let most = self.vcpus.unwrap_or_default();
            if start == 0 {
                return Err(RequestError::NoVcpus);
            }
            if start > most {
                return Err(RequestError::MaxVcpus { start, most });
            }
        }
        if let Some(memory) = self.memory_kib.filter(|m| m.kib() < 1024) {
            return Err(RequestError::TooLittleMemory { memory });
        }
        let mut seen = std::collections::BTreeSet::new();
        let gpus = match &self.gpus {
            GpuWish::Exact(bdfs) => &bdfs[..],
            _ => &[],
        };
        let extras = [&self.extras.nics, &self.extras.vfs, &self.extras.nvmes].into_iter();
        let extras = extras.flat_map(|wish| match wish {
            DeviceWish::Exact(bdfs) => &bdfs[..],
            DeviceWish::Count(_) => &[],
        });
        if let Some(&bdf) = gpus.iter().chain(extras).find(|&&bdf| !seen.insert(bdf)) {
            return Err(RequestError::DeviceTwice { bdf });
        }
        if let GpuWish::Indexes(indexes) = &self.gpus {
            let mut seen = std::collections::BTreeSet::new();
            if let Some(&index) = indexes.iter().find(|&&index| !seen.insert(index)) {
                return Err(RequestError::IndexTwice { index });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
