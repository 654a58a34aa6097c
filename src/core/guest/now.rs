//! The present options of a guest, by its definition, including changes of others. Values left to
//! the planner stay so.

use crate::bdf::Bdf;
use crate::check::guest::Guest as Defined;
use crate::domain::DomainXml;
use crate::domain::claims::Claims;
use crate::domain::read::memory;
use crate::memsize::MemSize;
use crate::request::{
    CellWish, DeviceWish, Extras, GpuWish, HugePages, IommufdWish, MachineModel, PageSize,
    PinPolicy, Request, VfSettings,
};
use crate::topology::{DeviceKind, GuestVgpu, PciDevice, Topology};

/// A guest as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The request that it has now, with sizes as they were requested.
    pub request: Request,
    /// Its vCPUs, or those with which it starts, if `virsh setvcpus` has it start with fewer.
    pub vcpus: u32,
    /// The most vCPUs that it may have while it runs.
    pub most_vcpus: u32,
    /// Its memory, or that with which it starts, if `virsh setmem` has it start with less.
    pub memory: MemSize,
    /// Pages of which size back its memory; none for normal ones.
    pub pages: HugePages,
    /// Passed-through functions, by address.
    pub functions: Vec<Bdf>,
    /// Its vGPUs, as recorded.
    pub vgpus: Vec<GuestVgpu>,
    /// Its machine type.
    pub machine: Option<String>,
}

impl Guest {
    /// Returns the request with the sizes that it has.
    pub fn sized(&self) -> Request {
        let has_room = self.request.vcpus_at_start.is_some();
        Request {
            vcpus: Some(if has_room { self.most_vcpus } else { self.vcpus }),
            vcpus_at_start: has_room.then_some(self.vcpus),
            memory_kib: Some(self.memory),
            huge_pages: self.pages,
            ..self.request.clone()
        }
    }
}

impl Guest {
    /// Returns the request with the sizes that it has, of those that were requested.
    pub fn requested(&self) -> Request {
        let (asked, sized) = (&self.request, self.sized());
        // A size is rounded to whole pages.
        let is_kept =
            |size: &MemSize| size.kib().abs_diff(self.memory.kib()) < PageSize::TwoMib.size().kib();
        let memory_kib =
            asked.memory_kib.filter(is_kept).or(asked.memory_kib.and(sized.memory_kib));
        Request {
            vcpus: asked.vcpus.and(sized.vcpus),
            vcpus_at_start: sized.vcpus_at_start,
            memory_kib,
            ..asked.clone()
        }
    }
}

/// Reads the present options of a guest; `record`: the request when it was made, or an empty one.
pub fn now(xml: &DomainXml, topology: &Topology, record: &Request) -> Guest {
    let defined = Defined::read(xml);
    let (vcpus, memory) = size_now(xml, record);
    let mut functions: Vec<Bdf> = defined.passed.iter().map(|passed| passed.bdf.value).collect();
    functions.sort_unstable();
    functions.dedup();
    let page = defined.huge_pages.as_ref();
    let page = page.map(|pages| pages.first().map_or(PageSize::TwoMib.size(), |p| p.size.value));
    Guest {
        request: request_now(&defined, topology, record),
        vcpus,
        most_vcpus: defined.vcpus.value,
        memory,
        pages: match page {
            None => HugePages::Off,
            Some(size) if size == PageSize::OneGib.size() => HugePages::Size(PageSize::OneGib),
            Some(_) => HugePages::Size(PageSize::TwoMib),
        },
        functions,
        vgpus: xml.vgpus().unwrap_or_default(),
        machine: defined.machine.clone(),
    }
}

/// Returns the GPUs that a domain passes through, by address.
pub fn gpus_of(xml: &DomainXml, topology: &Topology) -> Vec<Bdf> {
    functions_of(&Claims::read(xml), topology, DeviceKind::Gpu, false)
}

/// Returns the functions of a kind that a domain passes through, by address; `vf`: virtual ones,
/// else the others.
pub fn functions_of(
    claims: &Claims<'_>,
    topology: &Topology,
    kind: DeviceKind,
    vf: bool,
) -> Vec<Bdf> {
    let passed: Vec<Bdf> = claims.passed.iter().map(|passed| passed.bdf.value).collect();
    let found = topology.among(&passed, kind, vf).into_iter();
    let mut functions: Vec<Bdf> = found.map(|device| device.bdf).collect();
    functions.sort_unstable();
    functions.dedup();
    functions
}

/// Returns the request that a guest of this record has now.
fn request_now(defined: &Defined<'_>, topology: &Topology, record: &Request) -> Request {
    let passed: Vec<Bdf> = defined.passed.iter().map(|passed| passed.bdf.value).collect();
    let of = |kind, vf| topology.among(&passed, kind, vf);
    let was = &record.extras;
    let vfs = wish_now(&was.vfs, &of(DeviceKind::Nic, true));
    let extras = Extras {
        nics: wish_now(&was.nics, &of(DeviceKind::Nic, false)),
        vf_settings: settings_now(was, &vfs),
        vfs,
        nvmes: wish_now(&was.nvmes, &of(DeviceKind::Nvme, false)),
        ..was.clone()
    };
    let gpus: Vec<Bdf> = of(DeviceKind::Gpu, false).iter().map(|gpu| gpu.bdf).collect();
    let cells = u32::try_from(defined.cells.len().max(1)).unwrap_or(u32::MAX);
    let shown = defined.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref());
    Request {
        gpus: gpus_now(&record.gpus, gpus, topology),
        extras,
        pins: pins_now(record.pins, defined),
        cells: match record.cells {
            CellWish::Auto => CellWish::Auto,
            CellWish::Count(_) => CellWish::Count(cells),
        },
        threads: record.threads.map(|_| shown.map_or(1, |shown| shown.value[4])),
        iommufd: match record.iommufd {
            // GPUs with coherent memory have no other way.
            IommufdWish::Auto if !defined.empty_cells.is_empty() => IommufdWish::Auto,
            _ if defined.is_by_iommufd => IommufdWish::On,
            // Somebody has removed it.
            IommufdWish::On => IommufdWish::Off,
            kept => kept,
        },
        machine: record.machine.clone().map(|recorded| machine_now(recorded, defined)),
        ..record.clone()
    }
}

/// The machine that it has, in the word of its record where that is it.
fn machine_now(recorded: MachineModel, defined: &Defined<'_>) -> MachineModel {
    let has = defined.machine.as_deref().filter(|has| !recorded.is(has));
    has.and_then(|has| has.parse().ok()).unwrap_or(recorded)
}

/// The GPUs that it has, in the words of its record where these fit.
fn gpus_now(record: &GpuWish, mut gpus: Vec<Bdf>, topology: &Topology) -> GpuWish {
    gpus.sort_unstable();
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let at = |bdf: &Bdf| topology.gpus().position(|gpu| gpu.bdf == *bdf);
    let indexes = gpus.iter().filter_map(at).filter_map(|at| u32::try_from(at).ok());
    let mut indexes: Vec<u32> = indexes.collect();
    indexes.sort_unstable();
    let is_it = |mut named: Vec<u32>| {
        named.sort_unstable();
        named == indexes
    };
    match record {
        _ if count == 0 => GpuWish::Count(0),
        GpuWish::Count(_) => GpuWish::Count(count),
        GpuWish::Run { first, count }
            if is_it((*first..first.saturating_add(*count)).collect()) =>
        {
            record.clone()
        }
        GpuWish::Indexes(named) if is_it(named.clone()) => record.clone(),
        GpuWish::Run { .. } | GpuWish::Indexes(_) if indexes.len() == gpus.len() => {
            GpuWish::Indexes(indexes)
        }
        GpuWish::Exact(named) if same_set(named, &gpus) => record.clone(),
        _ => GpuWish::Exact(gpus),
    }
}

/// Whether these are the same functions in any order.
fn same_set(one: &[Bdf], other: &[Bdf]) -> bool {
    one.len() == other.len() && one.iter().all(|bdf| other.contains(bdf))
}

/// The functions of a kind that it has, without those that came with another one of their IOMMU
/// group.
fn wish_now(record: &DeviceWish, found: &[&PciDevice]) -> DeviceWish {
    let mates = found.iter().enumerate().filter(|(at, device)| {
        let group = device.iommu_group;
        group.is_some() && found[..*at].iter().any(|before| before.iommu_group == group)
    });
    let unasked = mates.count().min(found.len().saturating_sub(record.number()));
    match record {
        DeviceWish::Count(_) => {
            DeviceWish::Count(u32::try_from(found.len() - unasked).unwrap_or(u32::MAX))
        }
        DeviceWish::Exact(named) => {
            let is_there = |bdf: &&Bdf| found.iter().any(|device| device.bdf == **bdf);
            let mut now: Vec<Bdf> = named.iter().filter(is_there).copied().collect();
            let missing = (found.len() - unasked).saturating_sub(now.len());
            let others = found.iter().map(|device| device.bdf).filter(|bdf| !named.contains(bdf));
            now.extend(others.take(missing));
            if now.is_empty() { DeviceWish::Count(0) } else { DeviceWish::Exact(now) }
        }
    }
}

/// The settings of the virtual functions that it has.
fn settings_now(was: &Extras, now: &DeviceWish) -> Vec<VfSettings> {
    let (DeviceWish::Exact(before), DeviceWish::Exact(now)) = (&was.vfs, now) else {
        return if now.number() == 0 { Vec::new() } else { was.vf_settings.clone() };
    };
    if before == now {
        return was.vf_settings.clone();
    }
    let of = |bdf: &Bdf| {
        let at = before.iter().position(|known| known == bdf)?;
        was.vf_settings.get(at).cloned()
    };
    let settings: Vec<VfSettings> = now.iter().map(|bdf| of(bdf).unwrap_or_default()).collect();
    if settings.iter().all(|one| *one == VfSettings::default()) { Vec::new() } else { settings }
}

/// How its vCPUs are pinned: as recorded, unless this has changed since.
fn pins_now(record: PinPolicy, defined: &Defined<'_>) -> PinPolicy {
    let pinned = defined.vcpu_pins.len();
    let alone = defined.vcpu_pins.iter().filter(|pin| pin.cpuset.value.len() == 1).count();
    match record {
        PinPolicy::None if pinned == 0 => PinPolicy::None,
        PinPolicy::Auto if pinned == 0 => PinPolicy::None,
        // Some vCPUs with pins are no policy; it is another than the recorded one.
        PinPolicy::None | PinPolicy::Auto => PinPolicy::Core,
        kept if alone == defined.vcpus.value as usize => kept,
        PinPolicy::Core | PinPolicy::Thread => PinPolicy::None,
    }
}

/// The vCPUs and the memory that it has, which `virsh setvcpus` and `virsh setmem` may reduce for
/// its start: the maximum, or, if that is as recorded, the values at its start.
fn size_now(xml: &DomainXml, record: &Request) -> (u32, MemSize) {
    let claims = Claims::read(xml);
    let current = xml.root().child("currentMemory");
    let current = current.and_then(|size| memory(&size.text(), size.attr("unit").as_deref()).ok());
    let (vcpus, all) = (claims.vcpus.value, claims.memory.value);
    let plugged = u32::try_from(claims.plugged.len()).unwrap_or(u32::MAX);
    let is_kept = record.vcpus.is_none_or(|recorded| recorded == vcpus);
    let vcpus = if is_kept { plugged } else { vcpus };
    // The request was rounded to whole pages of at most 1 GiB.
    let page = claims.huge_pages.as_ref().and_then(|pages| Some(pages.value.first()?.size.value));
    let page = page.unwrap_or_default().max(PageSize::TwoMib.size());
    let is_kept =
        record.memory_kib.is_none_or(|recorded| recorded.kib().abs_diff(all.kib()) < page.kib());
    let less = current.filter(|current| *current < all && is_kept);
    (vcpus, less.unwrap_or(all))
}
