//! Derives the request of an existing domain: exactly its functions, its vCPUs and its memory.
//! Chooses nothing.

use super::items::{Never, OtherFunctions, PinOrder};
use super::{Given, Item, ItemName, Items, TuneError};
use crate::bdf::Bdf;
use crate::cpuset::CpuSet;
use crate::domain::claims::Claims;
use crate::domain::{DomainXml, Element};
use crate::guest::functions_of;
use crate::memsize::MemSize;
use crate::occupancy::GuestVgpu;
use crate::placement::Placement;
use crate::request::{
    Allow, CellWish, DeviceWish, Extras, GpuWish, IommufdWish, Near, PageSize, PinPolicy, Profile,
    Request, Template, VgpuWish,
};
use crate::topology::{DeviceKind, Sriov, Topology, is_type_named};
use std::collections::BTreeSet;

/// The property for peer-to-peer cliques of GPUs.
const CLIQUE: &str = "x-nv-gpudirect-clique";

/// A domain as tuning sees it.
pub(super) struct Guest<'t> {
    /// Its claims on its host.
    pub claims: &'t Claims<'t>,
    /// Its vCPUs, as many as it gets.
    pub vcpus: u32,
    /// Memory that it gets; `None` if it keeps its own.
    resized: Option<MemSize>,
    /// Its pins, vCPU 0 first; an empty set means no pin of its own.
    pub pins: Vec<CpuSet>,
    /// Passed-through functions that have a place of their own in the guest: all but NVMe drives
    /// that are disks.
    pub hostdevs: Vec<Bdf>,
    /// Whether it has mediated devices that stay, or gets some.
    pub has_mdevs: bool,
    /// Its vGPUs, by its record or by the functions that it has.
    pub vgpus: Vec<GuestVgpu>,
    /// The derived request.
    pub request: Request,
    /// The request when gpuvm made it; `None` if another tool made it.
    pub asked: Option<Request>,
    /// Whether it runs by hardware virtualization.
    pub kvm: bool,
    /// Whether memory can be hotplugged, so that its cells and their memory must not be divided by
    /// us.
    pub plugs_memory: bool,
}

impl<'t> Guest<'t> {
    /// Reads a domain.
    pub fn read(
        current: &'t DomainXml,
        claims: &'t Claims<'t>,
        given: &Given<'_>,
    ) -> Result<Guest<'t>, TuneError> {
        let root = current.root();
        let mut pins = vec![CpuSet::new(); claims.vcpus.value as usize];
        for pin in &claims.vcpu_pins {
            if let Some(place) = pins.get_mut(pin.of.value as usize) {
                place.clone_from(&pin.cpuset.value);
            }
        }
        let passed = claims.passed.iter();
        let hostdevs = passed.filter(|passed| passed.is_hostdev());
        let hostdevs: Vec<Bdf> = hostdevs.map(|passed| passed.bdf.value).collect();
        let devices = root.child("devices").into_iter().flat_map(Element::elements);
        let mut modules = devices.filter(|device| device.name() == "memory");
        let plugs_memory = modules.next().is_some() || root.child("maxMemory").is_some();
        let mut guest = Guest {
            claims,
            vcpus: given.items.size().vcpus.unwrap_or(claims.vcpus.value),
            resized: given.items.size().memory,
            pins,
            vgpus: vgpus_now(current, &hostdevs, given.topology),
            has_mdevs: given.items.size().vgpu.is_kept() && !current.mediated().is_empty(),
            hostdevs,
            request: Request::for_gpus(0),
            asked: current.record().ok().flatten().map(|record| record.request),
            kvm: root.attr("type").is_some_and(|kind| kind == "kvm"),
            plugs_memory,
        };
        guest.request = guest.wish(current, given)?;
        Ok(guest)
    }

    fn wish(&self, current: &DomainXml, given: &Given<'_>) -> Result<Request, TuneError> {
        let own = self.asked.as_ref();
        let mut request = own.cloned().unwrap_or_else(|| Request::for_gpus(0));
        let topology = given.topology;
        request.gpus = GpuWish::Exact(self.functions(topology, DeviceKind::Gpu, false));
        request.gpu_model = None;
        request.vgpu = self.vgpu_wish(&given.items.size().vgpu);
        request.extras = self.extras(topology, given.items);
        let items = given.items;
        let as_asked = [
            items.is_as_asked(ItemName::Pins, &items.pins),
            items.is_as_asked(ItemName::Cells, &items.cells),
            items.is_as_asked(ItemName::Topology, &items.topology),
        ];
        let whole = own.filter(|_| as_asked == [true; 3]);
        request.profile = whole.map_or(Profile::Share, |own| own.profile);
        // The planner must not refuse it for missing functions.
        let (functions, fixed_functions, unread) = (Vec::new(), Vec::new(), Vec::new());
        request.template = Template {
            is_pcie: true,
            remaps_interrupts: true,
            functions,
            fixed_functions,
            unread,
            ..current.as_template()
        };
        request.vcpus = Some(self.vcpus);
        // All have a place, whether they are plugged or not.
        request.vcpus_at_start = None;
        request.memory_kib = Some(self.memory()).filter(|memory| memory.kib() >= 1024);
        if let Some(gpus) = &given.items.size().gpus {
            self.take_gpus(gpus, given, &mut request);
        }
        if given.items.size().vgpu.value().is_some_and(|wish| !self.has_as_many(wish)) {
            self.derive_sizes(given, &mut request);
        }
        request.huge_pages = self.page(given.items.huge_pages).into();
        request.rounding = given.items.memory_rounding.value().copied();
        let named = !items.unnamed.contains(&ItemName::Pins);
        request.pins = match own.filter(|_| items.pins.is_on() && !named) {
            Some(own) => own.pins,
            None => self.policy(given)?,
        };
        let floats = request.pins == PinPolicy::None;
        let cells = self.claims.cells.len();
        request.cells = match items.cells {
            _ if as_asked[1] && own.is_some_and(|own| own.pins == request.pins) => request.cells,
            Item::To(number) => CellWish::Count(number),
            // Cells to be removed impose no shape.
            Item::Off => CellWish::Auto,
            _ if floats && cells > 1 => CellWish::Count(u32::try_from(cells).unwrap_or(u32::MAX)),
            _ => CellWish::Auto,
        };
        request.threads = None;
        if floats {
            request.threads = self.threads(current, request.cells);
            request.reserve.cores = 0;
        }
        let remote = (given.allow.remote || request.allow.remote) && !floats;
        // Its present GPUs are kept, with MIG as it is; others must meet the rules of a new guest.
        let keeps = given.items.size().gpus.is_none();
        let was = own.map(|own| own.allow).unwrap_or_default();
        let split = keeps || was.split || given.allow.split;
        let mig = keeps || was.mig || given.allow.mig;
        request.allow = Allow { remote, split, mig };
        request.p2p_clique = current.sets_property(CLIQUE);
        request.iommufd = iommufd_wish(items.iommufd);
        Ok(request)
    }

    /// Requests other GPUs. Sizes that follow from the number of GPUs follow from the new one, too.
    fn take_gpus(&self, gpus: &GpuWish, given: &Given<'_>, request: &mut Request) {
        request.gpus = gpus.clone();
        let had = self.functions(given.topology, DeviceKind::Gpu, false).len();
        if gpus.number() as usize != had {
            self.derive_sizes(given, request);
        }
    }

    /// The vGPUs that it requests; of a guest that another tool made, those that it has.
    fn vgpu_wish(&self, item: &Item<VgpuWish>) -> Option<VgpuWish> {
        match item {
            Item::Off => None,
            Item::To(wish) => Some(wish.clone()),
            Item::Keep | Item::On => {
                let first = self.vgpus.first()?;
                let recorded = self.asked.as_ref().and_then(|own| own.vgpu.clone());
                let count = u32::try_from(self.vgpus.len()).unwrap_or(u32::MAX);
                let type_name = first.name.clone();
                recorded.or(Some(VgpuWish { type_name, count, gpu: None }))
            }
        }
    }

    /// Whether it has as many vGPUs of this type: on another card its sizes stay.
    fn has_as_many(&self, wish: &VgpuWish) -> bool {
        let is_it = |own: &GuestVgpu| is_type_named(&wish.type_name, &own.name, &own.type_id);
        self.vgpus.len() == wish.count as usize && self.vgpus.iter().all(is_it)
    }

    /// Leaves those sizes to the planner that `create` left to it, and that are not requested now.
    fn derive_sizes(&self, given: &Given<'_>, request: &mut Request) {
        let Some(own) = &self.asked else { return };
        let size = given.items.size();
        if own.vcpus.is_none() && size.vcpus.is_none() {
            request.vcpus = None;
        }
        if own.memory_kib.is_none() && size.memory.is_none() {
            request.memory_kib = None;
        }
    }

    /// The threads of a core that it shows, if its vCPUs can be divided by them.
    fn threads(&self, current: &DomainXml, cells: CellWish) -> Option<u32> {
        let shown = current.root().find("cpu/topology")?.attr("threads")?;
        let threads: u32 = shown.parse().ok()?;
        let cells = if let CellWish::Count(cells) = cells { cells } else { 1 };
        let step = threads.saturating_mul(cells);
        (step > 0 && self.vcpus.is_multiple_of(step)).then_some(threads)
    }

    /// The NICs, virtual functions and NVMe drives that it gets: those that it has, but for kinds
    /// of which others are requested.
    fn extras(&self, topology: &Topology, items: &Items) -> Extras {
        let of = |kind, vf| self.functions(topology, kind, vf);
        let wanted = |wish: &Option<DeviceWish>, has: Vec<Bdf>| {
            wish.clone().unwrap_or(DeviceWish::Exact(has))
        };
        let near = |said: Option<Near>, was: fn(&Extras) -> Near, moves: bool| {
            let was = || self.asked.as_ref().map(|own| was(&own.extras)).unwrap_or_default();
            if moves { said.unwrap_or_else(was) } else { Near::Any }
        };
        let OtherFunctions { nics, vfs, nvmes, nic_near, nvme_near, .. } = &items.size().functions;
        Extras {
            nics: wanted(nics, of(DeviceKind::Nic, false)),
            vfs: wanted(vfs, of(DeviceKind::Nic, true)),
            nvmes: wanted(nvmes, of(DeviceKind::Nvme, false)),
            nic_near: near(*nic_near, |was| was.nic_near, nics.is_some() || vfs.is_some()),
            nvme_near: near(*nvme_near, |was| was.nvme_near, nvmes.is_some()),
            vf_settings: Vec::new(),
        }
    }

    /// Takes the functions that a plan has given it.
    pub fn take_functions(&mut self, placement: &Placement) {
        self.hostdevs.clone_from(&placement.devices);
        self.has_mdevs |= placement.vgpus.iter().any(GuestVgpu::is_mdev);
    }

    /// The pcpus that its vCPUs may run on; `None` if some may run on any.
    pub fn pcpus(&self) -> Option<CpuSet> {
        let default = self.claims.default_pin.as_ref().map(|pin| &pin.value);
        let pins = self.pins.iter().map(|pin| if pin.is_empty() { default } else { Some(pin) });
        let pins: Option<Vec<&CpuSet>> = pins.collect();
        Some(pins?.into_iter().flat_map(CpuSet::iter).collect())
    }

    /// Whether it has devices of the host by VFIO, which pins its memory.
    pub fn passes(&self) -> bool {
        !self.hostdevs.is_empty() || self.has_mdevs
    }

    /// Adds the functions that a plan has given it.
    pub fn take(&mut self, placement: &Placement) {
        self.take_functions(placement);
        self.vcpus = placement.vcpus();
        self.resized = Some(placement.memory());
    }

    /// Functions of a kind of the domain, by address.
    fn functions(&self, topology: &Topology, kind: DeviceKind, vf: bool) -> Vec<Bdf> {
        functions_of(self.claims, topology, kind, vf)
    }

    /// The memory that it gets, without plugged modules.
    pub fn memory(&self) -> MemSize {
        self.resized.unwrap_or_else(|| memory_now(self.claims))
    }

    /// Returns the unit that each cell's memory is a multiple of.
    pub fn unit(&self) -> MemSize {
        let pages = self.request.huge_pages.asked().unwrap_or(PageSize::TwoMib).size();
        self.request.rounding.map_or(pages, |rounding| rounding.size().max(pages))
    }

    /// The page size that it has; `None` for normal pages, or a size unknown to the planner.
    fn page_now(&self) -> Option<PageSize> {
        let pages = self.claims.huge_pages.as_ref()?;
        let first = pages.first().map_or(PageSize::TwoMib.size(), |page| page.size.value);
        [PageSize::TwoMib, PageSize::OneGib].into_iter().find(|page| page.size() == first)
    }

    /// The page size that it gets.
    fn page(&self, item: Item<PageSize>) -> Option<PageSize> {
        match item {
            Item::Keep => self.page_now(),
            Item::On => self.page_now().or(Some(PageSize::TwoMib)),
            Item::Off => None,
            Item::To(page) => Some(page),
        }
    }

    /// Returns its pin policy. Pins that stay must be like the planner's, since everything else
    /// follows them.
    fn policy(&self, given: &Given<'_>) -> Result<PinPolicy, TuneError> {
        match given.items.pins {
            Item::On | Item::To(PinOrder::Core) => return Ok(PinPolicy::Core),
            Item::To(PinOrder::Auto) => return Ok(PinPolicy::Auto),
            Item::To(PinOrder::Thread) => return Ok(PinPolicy::Thread),
            Item::Off => return Ok(PinPolicy::None),
            Item::Keep => {}
        }
        if self.pins.iter().all(CpuSet::is_empty) {
            return Ok(PinPolicy::None);
        }
        let Some(order) = order_of(&self.pins, given.topology) else {
            let items = given.items;
            if !items.need_a_place() || items.keeps_vcpus() || items.only_binds() {
                return Ok(PinPolicy::None);
            }
            return Err(TuneError::item(
                ItemName::Pins,
                "the vCPUs' pins stay as they are, and not each is on one pcpu",
                "--pins on pins them again",
            ));
        };
        Ok(order)
    }
}

/// The vGPUs of a domain: as recorded; where nothing is, its functions that are some.
fn vgpus_now(current: &DomainXml, hostdevs: &[Bdf], topology: &Topology) -> Vec<GuestVgpu> {
    let recorded = current.vgpus().unwrap_or_default();
    if !recorded.is_empty() {
        return recorded;
    }
    let vgpu = |bdf: &Bdf| {
        let function = topology.device(*bdf).filter(|_| topology.is_vgpu_function(*bdf))?;
        let Some(Sriov::Vf { pf }) = function.sriov else { return None };
        let number = function.vgpu_type().unwrap_or(0);
        let name = topology.device(pf).and_then(|card| topology.vgpu_type_name(card, number));
        let type_id = number.to_string();
        let name = name.map_or_else(|| type_id.clone(), str::to_owned);
        Some(GuestVgpu { card: pf, function: *bdf, type_id, name, uuid: None })
    };
    hostdevs.iter().filter_map(vgpu).collect()
}

/// How functions are passed through; as the definition says if that is kept.
fn iommufd_wish(item: Item<Never>) -> IommufdWish {
    match item {
        Item::Keep => IommufdWish::Auto,
        Item::On => IommufdWish::On,
        Item::Off => IommufdWish::Off,
        Item::To(never) => match never {},
    }
}

/// The memory of a guest, without plugged modules.
pub(super) fn memory_now(claims: &Claims<'_>) -> MemSize {
    let cells: MemSize = claims.cells.iter().map(|cell| cell.memory.value).sum();
    if cells.is_zero() { claims.memory.value } else { cells }
}

/// Whether the guest starts with another amount of memory than it has.
pub(super) fn starts_with_less(xml: &DomainXml, claims: &Claims<'_>) -> bool {
    let Some(current) = xml.root().child("currentMemory") else { return false };
    let amount = crate::domain::read::memory(&current.text(), current.attr("unit").as_deref());
    amount.is_ok_and(|amount| amount != claims.memory.value)
}

/// The policy that gives such pins; `None` if not each is on one pcpu of this host.
pub(super) fn order_of(pins: &[CpuSet], topology: &Topology) -> Option<PinPolicy> {
    let core = |pin: &CpuSet| {
        let only = pin.first().filter(|_| pin.len() == 1)?;
        topology.core_place(only)
    };
    let cores: Vec<usize> = pins.iter().map(core).collect::<Option<_>>()?;
    let runs = cores.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
    let seen: BTreeSet<usize> = cores.into_iter().collect();
    Some(if runs == seen.len() { PinPolicy::Core } else { PinPolicy::Thread })
}
