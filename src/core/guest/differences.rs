//! A guest against its request: the differences, and whether they can be changed in place. Options
//! that count only during placement (its policy, reservations) are not compared.

use super::now::Guest;
use super::{Opt, options::word};
use crate::bdf::Bdf;
use crate::domain::guest::SPARE_PORTS;
use crate::memsize::MemSize;
use crate::request::{
    CellWish, DeviceWish, GpuWish, HugePages, IommufdWish, PageSize, PinPolicy, Request, Spelled,
    VgpuCardName, VgpuWish,
};
use crate::topology::{DeviceKind, GuestVgpu, Topology, is_type_named};
use serde::Serialize;

/// The present and the requested value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestDifference {
    /// The option of `create`, without dashes.
    pub option: Opt,
    /// The present value.
    pub is: String,
    /// The requested value.
    pub wanted: String,
    /// Whether it can be changed without recreating the guest.
    pub changeable: bool,
}

impl std::fmt::Display for GuestDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GuestDifference { option, is, wanted, .. } = self;
        write!(f, "{option} {is} -> {wanted}")
    }
}

/// The differences so far.
#[derive(Debug, Default)]
pub struct Found(pub Vec<GuestDifference>);

impl Found {
    /// Adds a difference that needs another guest.
    pub fn fixed(&mut self, option: Opt, is: impl Into<String>, wanted: impl Into<String>) {
        self.add(option, is, wanted, false);
    }

    /// Adds a difference that can be changed.
    pub fn changeable(&mut self, option: Opt, is: impl Into<String>, wanted: impl Into<String>) {
        self.add(option, is, wanted, true);
    }

    /// Adds a difference, if there is one.
    pub fn add(
        &mut self,
        option: Opt,
        is: impl Into<String>,
        wanted: impl Into<String>,
        changeable: bool,
    ) {
        let (is, wanted) = (is.into(), wanted.into());
        if is != wanted {
            self.0.push(GuestDifference { option, is, wanted, changeable });
        }
    }

    /// Whether an option is among them.
    pub fn has(&self, option: Opt) -> bool {
        self.0.iter().any(|one| one.option == option)
    }
}

/// Compares a guest with the request for it; `record`: that with which it was made.
pub fn differences(wanted: &Request, record: &Request, now: &Guest, topology: &Topology) -> Found {
    let mut found = Found::default();
    sizes(wanted, record, now, &mut found);
    devices(wanted, &now.request, now, topology, &mut found);
    shape(wanted, record, &now.request, &mut found);
    machine(wanted, now, &mut found);
    found
}

/// Compares the size with which a guest runs, and the functions that it has meanwhile. Differences
/// at its next start, too, are reported once.
pub fn running(
    wanted: &Request,
    record: &Request,
    live: &Guest,
    topology: &Topology,
    found: &mut Found,
) {
    let mut now = Found::default();
    sizes(wanted, record, live, &mut now);
    devices(wanted, wanted, live, topology, &mut now);
    now.0.retain(|one| one.changeable && !found.has(one.option));
    found.0.extend(now.0);
}

fn sizes(wanted: &Request, record: &Request, now: &Guest, found: &mut Found) {
    if let Some(vcpus) = wanted.vcpus_at_start.or(wanted.vcpus) {
        found.changeable(Opt::Vcpus, now.vcpus.to_string(), vcpus.to_string());
    }
    let has_page = match now.pages {
        HugePages::Size(page) => Some(page.size()),
        HugePages::Auto | HugePages::Off => None,
    };
    // The request may have been rounded to whole pages, but not further.
    let unit = has_page.unwrap_or_default().max(PageSize::TwoMib.size());
    let is_rounded = |memory: MemSize| {
        record.memory_kib == Some(memory) && now.memory.kib().abs_diff(memory.kib()) < unit.kib()
    };
    if let Some(memory) = wanted.memory_kib.filter(|memory| !is_rounded(*memory)) {
        found.changeable(Opt::Memory, now.memory.typed(), memory.typed());
    }
    if wanted.huge_pages != HugePages::Auto {
        found.changeable(Opt::HugePages, now.pages.word(), wanted.huge_pages.word());
    }
    let most = wanted.vcpus_at_start.and(wanted.vcpus);
    // A request that leaves vCPUs to the planner leaves this, too.
    let has = record.vcpus_at_start.map(|_| now.most_vcpus).filter(|_| wanted.vcpus.is_some());
    found.changeable(Opt::MaxVcpus, word(has, "none"), word(most, "none"));
}

/// Compares passed-through functions; `has`: the request that the guest has.
fn devices(wanted: &Request, has: &Request, now: &Guest, topology: &Topology, found: &mut Found) {
    gpus(&wanted.gpus, now, topology, found);
    if !are_same_vgpus((has.vgpu.as_ref(), wanted.vgpu.as_ref()), &now.vgpus, topology) {
        let vgpu =
            |request: &Request| request.vgpu.as_ref().map_or("none".into(), ToString::to_string);
        found.changeable(Opt::Vgpu, vgpu(has), vgpu(wanted));
    }
    let (is, wanted) = (&has.extras, &wanted.extras);
    for (option, is, wanted) in [
        (Opt::Nic, &is.nics, &wanted.nics),
        (Opt::Vf, &is.vfs, &wanted.vfs),
        (Opt::Nvme, &is.nvmes, &wanted.nvmes),
    ] {
        let has: Vec<Bdf> = match wanted {
            DeviceWish::Exact(bdfs) => {
                bdfs.iter().copied().filter(|bdf| now.functions.contains(bdf)).collect()
            }
            DeviceWish::Count(_) => Vec::new(),
        };
        let (is, wanted) = match wanted {
            DeviceWish::Exact(bdfs) if has.len() < bdfs.len() => (listed(&has), listed(bdfs)),
            _ => (is.number().to_string(), wanted.number().to_string()),
        };
        found.changeable(option, is, wanted);
    }
    for vf in topology.among(&now.functions, DeviceKind::Nic, true) {
        let (has, said) = (is.settings_of(vf.bdf), wanted.settings_of(vf.bdf));
        if !found.has(Opt::Vf) {
            let (is, wanted) =
                (format!("{}{has}", vf.bdf), format!("{}{}", vf.bdf, has.over(&said)));
            found.changeable(Opt::Vf, is, wanted);
        }
    }
}

/// Whether two requests mean the same of a guest that has these vGPUs: a type has several names,
/// and a card an index and an address.
pub(crate) fn are_same_vgpus(
    requests: (Option<&VgpuWish>, Option<&VgpuWish>),
    own: &[GuestVgpu],
    topology: &Topology,
) -> bool {
    let (Some(one), Some(other)) = requests else {
        return requests.0.is_none() && requests.1.is_none();
    };
    let card = |wish: &VgpuWish| match wish.gpu {
        Some(VgpuCardName::Index(index)) => {
            let gpu = topology.gpus().nth(index as usize);
            gpu.map_or(wish.gpu, |gpu| Some(VgpuCardName::At(gpu.bdf)))
        }
        named => named,
    };
    let is_its = |wish: &VgpuWish| {
        let is_it = |own: &GuestVgpu| is_type_named(&wish.type_name, &own.name, &own.type_id);
        !own.is_empty() && own.iter().all(is_it)
    };
    let is_same_type = one.type_name == other.type_name || is_its(one) && is_its(other);
    is_same_type && one.count == other.count && card(one) == card(other)
}

/// Compares GPUs, in the words of the request.
fn gpus(wanted: &GpuWish, now: &Guest, topology: &Topology, found: &mut Found) {
    let all: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
    let has = topology.among(&now.functions, DeviceKind::Gpu, false);
    let mut has: Vec<Bdf> = has.into_iter().map(|gpu| gpu.bdf).collect();
    has.sort_unstable();
    let at = |bdf: &Bdf| all.iter().position(|gpu| gpu == bdf);
    let indexes: Vec<usize> = has.iter().filter_map(at).collect();
    let mut named = |option: Opt, mut wanted: Vec<usize>| {
        wanted.sort_unstable();
        let is_there = wanted.iter().all(|index| *index < all.len());
        found.add(option, listed(&indexes), listed(&wanted), is_there);
    };
    match wanted {
        GpuWish::Count(number) => {
            found.changeable(Opt::Gpus, has.len().to_string(), number.to_string());
        }
        GpuWish::Run { first, count } => {
            let run = *first..first.saturating_add(*count);
            named(Opt::GpuIndex, run.map(|index| index as usize).collect());
        }
        GpuWish::Indexes(wanted) => {
            named(Opt::Gpu, wanted.iter().map(|&index| index as usize).collect());
        }
        GpuWish::Exact(wanted) => {
            let mut wanted = wanted.clone();
            wanted.sort_unstable();
            let is_gpu = |bdf: &Bdf| {
                topology.device(*bdf).is_some_and(|device| device.kind() == DeviceKind::Gpu)
            };
            found.add(Opt::Gpu, listed(&has), listed(&wanted), wanted.iter().all(is_gpu));
        }
    }
}

/// Compares the machine type, if one is requested.
fn machine(wanted: &Request, now: &Guest, found: &mut Found) {
    if let Some(wanted) = &wanted.machine {
        let has = now.machine.clone().unwrap_or_default();
        if !wanted.is(&has) {
            found.fixed(Opt::Machine, has, wanted.as_str());
        }
    }
}

fn listed<T: ToString>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(",") }
}

/// Compares its pins and CPU model with the request; where that leaves it open, with its record:
/// `tune` changes that too, and others do not.
fn shape(wanted: &Request, record: &Request, now: &Request, found: &mut Found) {
    let pins = match wanted.pins {
        PinPolicy::Auto if record.pins == PinPolicy::Auto => now.pins,
        PinPolicy::Auto => record.pins,
        pins => pins,
    };
    found.fixed(Opt::Pins, now.pins.word(), pins.word());
    let cells = |cells: CellWish| match cells {
        CellWish::Auto => None,
        CellWish::Count(number) => Some(number),
    };
    let wanted_cells = cells(wanted.cells).or(cells(record.cells));
    found.fixed(Opt::Cells, word(cells(now.cells), "auto"), word(wanted_cells, "auto"));
    let threads = wanted.threads.or(record.threads);
    found.fixed(Opt::Threads, word(now.threads, "auto"), word(threads, "auto"));
    found.fixed(Opt::Profile, record.profile.word(), wanted.profile.word());
    let on = |on: bool| if on { "on" } else { "off" };
    found.fixed(Opt::P2pClique, on(record.p2p_clique), on(wanted.p2p_clique));
    found.changeable(Opt::P2p, record.p2p.word(), wanted.p2p.word());
    // Values that were not requested are those of the template.
    let is_said = [wanted, record].iter().any(|request| request.iommufd != IommufdWish::Auto);
    if is_said {
        let is_on = |request: &Request| on(request.iommufd == IommufdWish::On);
        found.changeable(Opt::Iommufd, is_on(now), is_on(wanted));
    }
    let ports = |request: &Request| request.spare_ports.unwrap_or(SPARE_PORTS).to_string();
    found.fixed(Opt::SparePorts, ports(record), ports(wanted));
    found.changeable(Opt::Allow, record.allow.to_string(), wanted.allow.to_string());
    found.changeable(Opt::Movable, on(record.movable), on(wanted.movable));
}
