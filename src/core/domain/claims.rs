//! A domain's claims on its host: pcpus, memory, PCI functions, each with its place in the XML.
//! Reads any libvirt domain and ignores unknown elements; does not know the host.

use super::DomainXml;
use super::Element;
use super::arguments::Arguments;
use super::host_devices::host_devices;
use super::iommufd::{is_enabled, is_nested_smmu, own};
use super::read::{At, Fault, GuestAddress, Reader, Spot, memory, number, set};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, Id, IdSet, NodeSet};
use crate::host_device::HostDevice;
use crate::memsize::MemSize;
use crate::topology::Topology;
use std::collections::BTreeMap;

/// The most vCPUs and I/O threads that are accepted: eight times QEMU's limit of 4096 and far below
/// what would exhaust memory here.
const MAX_THREADS: u32 = 32_768;

/// A guest CPU, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId(pub u32);

impl Id for VcpuId {
    const KIND: &'static str = "vcpu";
    fn from_u32(value: u32) -> Self {
        VcpuId(value)
    }
    fn as_u32(self) -> u32 {
        self.0
    }
}

/// Set of guest CPUs.
pub type VcpuSet = IdSet<VcpuId>;

/// An I/O thread, by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IothreadId(pub u32);

impl Id for IothreadId {
    const KIND: &'static str = "I/O thread";
    fn from_u32(value: u32) -> Self {
        IothreadId(value)
    }
    fn as_u32(self) -> u32 {
        self.0
    }
}

/// Set of I/O threads.
pub type IothreadSet = IdSet<IothreadId>;

/// The pin of one vCPU or I/O thread.
#[derive(Debug, Clone)]
pub struct Pin<'t> {
    /// Number of the vCPU or id of the I/O thread.
    pub of: At<'t, u32>,
    /// The new pcpus.
    pub cpuset: At<'t, CpuSet>,
}

/// A guest NUMA cell.
#[derive(Debug, Clone)]
pub struct Cell<'t> {
    /// Its number.
    pub id: u32,
    /// Its vCPUs; `None` for a cell of memory only.
    pub vcpus: Option<At<'t, VcpuSet>>,
    /// Its memory.
    pub memory: At<'t, MemSize>,
}

/// How memory is bound to host nodes.
#[derive(Debug, Clone)]
pub struct Binding<'t> {
    /// Cell that it applies to; `None` for the whole guest.
    pub cell: Option<At<'t, u32>>,
    /// `strict` (the default), `restrictive`, `interleave`, `preferred`.
    pub mode: String,
    /// Host nodes.
    pub nodes: At<'t, NodeSet>,
}

impl Binding<'_> {
    /// Whether memory outside the nodes is never used. `preferred` falls back to other nodes.
    pub fn is_hard(&self) -> bool {
        self.mode != "preferred"
    }
}

/// A page size that memory is backed by.
#[derive(Debug, Clone)]
pub struct Page<'t> {
    /// The size.
    pub size: At<'t, MemSize>,
    /// Guest cells that it applies to; `None` for all that no other page names.
    pub cells: Option<NodeSet>,
}

/// A PCI function of the host that is passed to the guest.
#[derive(Debug, Clone)]
pub struct Passed<'t> {
    /// Its address on the host.
    pub bdf: At<'t, Bdf>,
    /// The `<hostdev>`, `<interface>` or `<disk>`, or the argument or property of QEMU.
    pub device: Spot<'t>,
    /// Its place in the guest; none where libvirt or QEMU chooses it.
    pub at: Option<At<'t, GuestAddress>>,
    /// Whether an argument of QEMU passes it: libvirt does not know of it and does not bind it, and
    /// gpuvm does not change it.
    pub by_argument: bool,
    /// Whether libvirt passes it by iommufd, and not by its VFIO group.
    pub iommufd: bool,
}

impl Passed<'_> {
    /// Whether it is a device of its own, and no disk or argument: edits of functions change these
    /// alone.
    pub fn is_hostdev(&self) -> bool {
        matches!(self.device.element().name(), "hostdev" | "interface")
    }
}

/// A memory module (`<memory model='dimm'>`) that is present at start.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its size.
    pub size: MemSize,
    /// Guest cell that it belongs to.
    pub cell: Option<u32>,
    /// Host nodes it names itself.
    pub nodes: Option<NodeSet>,
}

/// The claims of a domain on its host.
#[derive(Debug, Clone)]
pub struct Claims<'t> {
    /// Its name; empty where it has none.
    pub name: String,
    /// vCPUs, including those that can be hotplugged.
    pub vcpus: At<'t, u32>,
    /// vCPUs that are plugged.
    pub plugged: VcpuSet,
    /// Pin of every thread without one of its own: `<vcpu cpuset=..>`.
    pub default_pin: Option<At<'t, CpuSet>>,
    /// Pins of vCPUs, in document order.
    pub vcpu_pins: Vec<Pin<'t>>,
    /// Pin of the emulator.
    pub emulator_pin: Option<At<'t, CpuSet>>,
    /// Pins of I/O threads, in document order.
    pub iothread_pins: Vec<Pin<'t>>,
    /// I/O threads by id, each with the place that defines it.
    pub iothreads: BTreeMap<u32, Spot<'t>>,
    /// Memory of the whole guest.
    pub memory: At<'t, MemSize>,
    /// Guest NUMA cells, in document order.
    pub cells: Vec<Cell<'t>>,
    /// Cells without vCPUs and memory, in document order: those of GPUs with coherent memory.
    pub empty_cells: Vec<At<'t, u32>>,
    /// How memory is bound: the whole guest's first, then those of cells.
    pub bindings: Vec<Binding<'t>>,
    /// Memory modules.
    pub modules: Vec<Module>,
    /// Huge pages: none where normal pages are used, empty where the host's default size is asked
    /// for.
    pub huge_pages: Option<At<'t, Vec<Page<'t>>>>,
    /// Passed-through functions: those of devices in document order, then those of QEMU's
    /// arguments.
    pub passed: Vec<Passed<'t>>,
    /// Devices of the host, other than PCI functions, that it has to itself.
    pub host_devices: Vec<At<'t, HostDevice>>,
    /// Arguments of QEMU that may name functions, and why these cannot be determined.
    pub unread: Vec<Fault<'t>>,
    /// Values that could not be parsed.
    pub faults: Vec<Fault<'t>>,
}

impl<'t> Claims<'t> {
    /// Reads a domain.
    pub fn read(domain: &'t DomainXml) -> Claims<'t> {
        let root = domain.root();
        let mut reader = Reader::default();
        let (vcpus, default_pin) = vcpus(root, &mut reader);
        let tune = root.child("cputune");
        let pins =
            |name: &'static str, of: &'static str, reader: &mut Reader<'t>| -> Vec<Pin<'t>> {
                let all = tune.into_iter().flat_map(|tune| tune.children(name));
                all.filter_map(|element| pin(element, of, reader)).collect()
            };
        let vcpu_pins = pins("vcpupin", "vcpu", &mut reader);
        let iothread_pins = pins("iothreadpin", "iothread", &mut reader);
        let emulator = tune.and_then(|tune| tune.child("emulatorpin"));
        let memory = root.child("memory").and_then(|element| reader.size(element));
        let none = At { value: MemSize::default(), spot: Spot::of(root) };
        let devices = root.child("devices");
        let Arguments { functions, unread, .. } = Arguments::read(root);
        let mut passed = passed(root, &mut reader);
        passed.extend(functions.into_iter().map(|bdf| {
            let device = Spot::of(bdf.spot.element());
            Passed { bdf, device, at: None, by_argument: true, iommufd: false }
        }));
        let (cells, empty_cells) = cells(root, &mut reader);
        Claims {
            name: root.child("name").map(|name| name.text().trim().to_owned()).unwrap_or_default(),
            plugged: plugged(root, vcpus.value),
            vcpus,
            default_pin,
            vcpu_pins,
            emulator_pin: emulator.and_then(|e| reader.required(e, "cpuset", set)),
            iothread_pins,
            iothreads: iothreads(root, &mut reader),
            memory: memory.unwrap_or(none),
            cells,
            empty_cells,
            bindings: bindings(root, &mut reader),
            modules: modules(devices, &mut reader),
            huge_pages: huge_pages(root, &mut reader),
            passed,
            host_devices: host_devices(root),
            unread,
            faults: reader.faults,
        }
    }

    /// Returns how the memory of a cell is bound: by its own memnode, otherwise like the whole
    /// guest's; `None` asks for the latter.
    pub fn binding(&self, cell: Option<u32>) -> Option<&Binding<'t>> {
        let own = |b: &&Binding| b.cell.as_ref().is_some_and(|id| Some(id.value) == cell);
        self.bindings.iter().find(own).or_else(|| self.bindings.iter().find(|b| b.cell.is_none()))
    }

    /// Whether none of its memory is ever outside nodes that its owner named.
    pub fn is_bound(&self) -> bool {
        let is_hard = |cell| self.binding(cell).is_some_and(Binding::is_hard);
        match &self.cells[..] {
            [] => is_hard(None),
            cells => cells.iter().all(|cell| is_hard(Some(cell.id))),
        }
    }

    /// Returns the page size of a cell's memory, or of the guest's if it has no cells; `None` for
    /// the host's default size or normal pages.
    pub fn page_of(&self, cell: u32) -> Option<&At<'t, MemSize>> {
        let pages = self.huge_pages.as_ref()?;
        let names = |page: &&Page| {
            let cell = crate::cpuset::NodeId(cell);
            page.cells.as_ref().is_some_and(|cells| cells.contains(cell))
        };
        let page = pages.iter().find(names).or_else(|| pages.iter().find(|p| p.cells.is_none()));
        page.map(|page| &page.size)
    }
}

/// Reads the number of vCPUs and the default pin; a domain without `<vcpu>` has one vCPU.
fn vcpus<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> (At<'t, u32>, Option<At<'t, CpuSet>>) {
    let Some(element) = root.child("vcpu") else {
        return (At { value: 1, spot: Spot::of(root) }, None);
    };
    let count = reader.text(element, |text| bounded(text, "vcpus"));
    let count = count.unwrap_or(At { value: 0, spot: Spot::of(element) });
    (count, reader.attribute(element, "cpuset", set))
}

/// Reads which of the vCPUs are plugged: those enabled in `<vcpus>`, otherwise the first `current`
/// ones, otherwise all.
fn plugged(root: Element<'_>, vcpus: u32) -> VcpuSet {
    let each = root.child("vcpus").into_iter().flat_map(|vcpus| vcpus.children("vcpu"));
    let enabled = each.filter(|vcpu| vcpu.attr("enabled").as_deref() == Some("yes"));
    let enabled: VcpuSet = enabled
        .filter_map(|vcpu| number(&vcpu.attr("id")?).ok().filter(|id| *id < vcpus))
        .map(VcpuId)
        .collect();
    if !enabled.is_empty() {
        return enabled;
    }
    let current = root.child("vcpu").and_then(|vcpu| number(&vcpu.attr("current")?).ok());
    (0..current.unwrap_or(vcpus).min(vcpus)).map(VcpuId).collect()
}

fn bounded(text: &str, what: &str) -> Result<u32, String> {
    match number(text)? {
        count if count <= MAX_THREADS => Ok(count),
        count => Err(format!("{count} {what} are more than {MAX_THREADS}")),
    }
}

/// Reads a `<vcpupin>` or `<iothreadpin>`.
fn pin<'t>(element: Element<'t>, of: &'static str, reader: &mut Reader<'t>) -> Option<Pin<'t>> {
    let of = reader.required(element, of, number);
    let cpuset = reader.required(element, "cpuset", set);
    Some(Pin { of: of?, cpuset: cpuset? })
}

/// Reads the I/O threads: those of `<iothreadids>`, then the lowest free ids up to the count in
/// `<iothreads>`.
fn iothreads<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> BTreeMap<u32, Spot<'t>> {
    let ids = root.child("iothreadids");
    let mut threads: BTreeMap<u32, Spot<'t>> = ids
        .into_iter()
        .flat_map(|ids| ids.children("iothread"))
        .filter_map(|element| reader.required(element, "id", number))
        .map(|id| (id.value, id.spot))
        .collect();
    let count = root.child("iothreads");
    let count = count.and_then(|e| reader.text(e, |text| bounded(text, "I/O threads")));
    if let Some(count) = count {
        let missing = (count.value as usize).saturating_sub(threads.len());
        let free: Vec<u32> = (1..).filter(|id| !threads.contains_key(id)).take(missing).collect();
        threads.extend(free.into_iter().map(|id| (id, count.spot)));
    }
    threads
}

/// Reads guest NUMA cells: those with vCPUs or memory, and the ids of those without.
fn cells<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> (Vec<Cell<'t>>, Vec<At<'t, u32>>) {
    let numa = root.child("cpu").and_then(|cpu| cpu.child("numa"));
    let elements = numa.into_iter().flat_map(|numa| numa.children("cell"));
    let (mut cells, mut empty) = (Vec::new(), Vec::new());
    for (position, element) in elements.enumerate() {
        let id = match element.attr("id") {
            None => u32::try_from(position).ok(),
            Some(_) => reader.attribute(element, "id", number).map(|id| id.value),
        };
        let unit = element.attr("unit");
        let size = reader.required(element, "memory", |text| memory(text, unit.as_deref()));
        let vcpus = reader.attribute(element, "cpus", set);
        if let (Some(id), Some(memory)) = (id, size) {
            let has_vcpus = element.attr("cpus").is_some();
            if memory.value.is_zero() && !has_vcpus {
                empty.push(At { value: id, spot: Spot::of(element) });
            } else {
                cells.push(Cell { id, vcpus, memory });
            }
        }
    }
    (cells, empty)
}

/// Reads `<numatune>`: the binding of the whole guest, then those of cells. `placement='auto'`
/// binds nothing yet.
fn bindings<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> Vec<Binding<'t>> {
    let Some(tune) = root.child("numatune") else { return Vec::new() };
    let mode = |element: Element<'t>| element.attr("mode").map_or("strict".into(), String::from);
    let mut bindings = Vec::new();
    if let Some(element) = tune.child("memory")
        && let Some(nodes) = reader.attribute(element, "nodeset", set)
    {
        bindings.push(Binding { cell: None, mode: mode(element), nodes });
    }
    for element in tune.children("memnode") {
        let cell = reader.required(element, "cellid", number);
        let nodes = reader.required(element, "nodeset", set);
        if let (Some(cell), Some(nodes)) = (cell, nodes) {
            bindings.push(Binding { cell: Some(cell), mode: mode(element), nodes });
        }
    }
    bindings
}

fn modules<'t>(devices: Option<Element<'t>>, reader: &mut Reader<'t>) -> Vec<Module> {
    let mut modules = Vec::new();
    for element in devices.into_iter().flat_map(|devices| devices.children("memory")) {
        if element.attr("model").as_deref() != Some("dimm") {
            continue;
        }
        let target = element.child("target");
        let size = target.and_then(|t| t.child("size")).and_then(|size| reader.size(size));
        let cell = target.and_then(|t| t.child("node")).and_then(|node| reader.text(node, number));
        let mask = element.child("source").and_then(|source| source.child("nodemask"));
        let nodes = mask.and_then(|mask| reader.text(mask, set));
        if let Some(size) = size {
            let (cell, nodes) = (cell.map(|cell| cell.value), nodes.map(|nodes| nodes.value));
            modules.push(Module { size: size.value, cell, nodes });
        }
    }
    modules
}

/// Reads `<memoryBacking><hugepages>`.
fn huge_pages<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> Option<At<'t, Vec<Page<'t>>>> {
    let element = root.child("memoryBacking")?.child("hugepages")?;
    let mut pages = Vec::new();
    for page in element.children("page") {
        let unit = page.attr("unit");
        let size = reader.required(page, "size", |text| match memory(text, unit.as_deref())? {
            size if size.is_zero() => Err("a page of size 0".into()),
            size => Ok(size),
        });
        let cells = reader.attribute(page, "nodeset", set).map(|cells| cells.value);
        pages.extend(size.map(|size| Page { size, cells }));
    }
    Some(At { value: pages, spot: Spot::of(element) })
}

/// Reads the passed-through PCI functions of devices: hostdevs, interfaces of type hostdev, NVMe
/// drives that are disks or below one.
fn passed<'t>(root: Element<'t>, reader: &mut Reader<'t>) -> Vec<Passed<'t>> {
    let mut passed = Vec::new();
    for device in root.children("devices").flat_map(Element::elements) {
        for part in parts(device) {
            let Some(address) = part.child("source").and_then(|source| source.child("address"))
            else {
                if device.name() != "interface" {
                    reader.fault(Spot::of(part), "it names no PCI address of the host");
                }
                continue;
            };
            if address.attr("type").is_some_and(|kind| &*kind != "pci") {
                continue;
            }
            if let Some(bdf) = reader.host_address(address) {
                // A fault in the guest address does not matter to the claims on the host.
                let at = Reader::default().guest_address(device);
                let (device, iommufd) = (Spot::of(device), by_iommufd(root, part));
                passed.push(Passed { bdf, device, at, by_argument: false, iommufd });
            }
        }
    }
    passed
}

impl DomainXml {
    /// Whether it cannot have its functions by their groups: an SMMUv3 of it is nested in the host's,
    /// or it has a GPU with coherent memory, which needs such an SMMUv3.
    pub fn needs_iommufd(&self, topology: &Topology) -> bool {
        needs_iommufd(self.root(), &Claims::read(self).passed, topology)
    }
}

/// The same of an element `<domain>` and the functions that it passes through.
pub(crate) fn needs_iommufd(root: Element<'_>, passed: &[Passed<'_>], topology: &Topology) -> bool {
    let devices = root.child("devices").into_iter().flat_map(|all| all.children("iommu"));
    let is_coherent = |passed: &Passed<'_>| topology.is_coherent(passed.bdf.value);
    { devices }.any(is_nested_smmu) || passed.iter().any(is_coherent)
}

/// Whether a device is passed through by iommufd: as it says itself, otherwise as the domain does.
/// Drives that QEMU has by a driver of its own have nothing of VFIO in libvirt.
fn by_iommufd(root: Element<'_>, device: Element<'_>) -> bool {
    matches!(device.name(), "hostdev" | "interface")
        && own(device).unwrap_or_else(|| is_enabled(root))
}

/// The parts of a device that are PCI functions of the host: itself, or drives of its backing
/// chain, its mirror or its data.
fn parts(device: Element<'_>) -> Vec<Element<'_>> {
    let is = |part: Element<'_>, kind: &str| part.attr("type").is_some_and(|found| found == kind);
    match device.name() {
        "hostdev" if is(device, "pci") => vec![device],
        "interface" if is(device, "hostdev") => vec![device],
        "disk" => {
            let (mut found, mut open) = (Vec::new(), vec![device]);
            while let Some(part) = open.pop() {
                found.extend(Some(part).filter(|part| is(*part, "nvme")));
                open.extend(
                    part.children("source").flat_map(|source| source.children("dataStore")),
                );
                let below = part.elements();
                open.extend(below.filter(|e| matches!(e.name(), "backingStore" | "mirror")));
            }
            found
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpus_are_plugged_by_number_or_one_by_one() {
        use crate::domain::DomainXml;
        for (text, set) in [
            ("<vcpu>4</vcpu>", "0-3"),
            ("<vcpu current='2'>4</vcpu>", "0-1"),
            ("<vcpu current='9'>4</vcpu>", "0-3"),
            ("<vcpus><vcpu id='0' enabled='yes'/><vcpu id='3' enabled='yes'/></vcpus>", "0,3"),
            ("<vcpus><vcpu id='1' enabled='yes'/><vcpu id='4' enabled='yes'/></vcpus>", "1"),
            ("<vcpus><vcpu id='1' enabled='no'/></vcpus>", "0-3"),
        ] {
            let xml = DomainXml::parse(&format!("<domain>{text}</domain>")).unwrap();
            assert_eq!(plugged(xml.root(), 4).to_string(), set, "{text}");
        }
    }
}
