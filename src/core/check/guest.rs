//! The domain as the rules see it: its claims on the host and the hardware that the guest sees.
//! Does not judge.

use crate::domain::arguments::{guest_places, names_firmware};
use crate::domain::claims::{Binding, Claims, VcpuSet};
use crate::domain::read::{At, Fault, GuestAddress, Reader, Spot, c_number, number};
use crate::domain::{DomainXml, Element};
use crate::request::Request;
use crate::topology::GuestVgpu;
use std::collections::BTreeMap;
use std::ops::Deref;

/// A PCI controller of the guest.
#[derive(Debug)]
pub struct Controller<'t> {
    /// Its index, which addresses name as `bus`.
    pub index: u32,
    /// `pcie-root`, `pcie-root-port`, `pcie-expander-bus` and so on.
    pub model: String,
    /// Its own place; none where libvirt chooses it, and for the root.
    pub address: Option<At<'t, GuestAddress>>,
    /// First bus number of an expander bus.
    pub bus_number: Option<At<'t, u32>>,
    /// Guest cell that an expander bus belongs to.
    pub cell: Option<At<'t, u32>>,
}

/// A device with queues or I/O threads.
#[derive(Debug)]
pub struct Queued<'t> {
    /// `disk`, `interface` or, of a SCSI controller, `controller`.
    pub kind: &'static str,
    /// Number of queues.
    pub queues: Option<At<'t, u32>>,
    /// I/O threads it names.
    pub iothreads: Vec<At<'t, u32>>,
}

/// The CPU that the guest sees.
#[derive(Debug)]
pub struct Cpu<'t> {
    /// The `<cpu>`.
    pub spot: Spot<'t>,
    /// `host-passthrough`, `host-model`, `custom`.
    pub mode: String,
    /// Sockets, dies, clusters, cores, threads.
    pub topology: Option<At<'t, [u32; 5]>>,
    /// Whether the `topoext` feature is required.
    pub topoext: bool,
    /// The source of its cache leaves, from `<cache>`.
    pub cache: Option<(Spot<'t>, String)>,
    /// Physical address bits: `Some(None)` means the host's.
    pub address_bits: Option<Option<u32>>,
    /// The most of them.
    pub address_limit: Option<u32>,
}

/// A domain as the rules see it.
#[derive(Debug)]
pub struct Guest<'t> {
    /// Its claims on the host.
    pub claims: Claims<'t>,
    /// The `<domain>`.
    pub spot: Spot<'t>,
    /// The element that promises its vCPUs dedicated pcpus.
    pub dedicated: Option<Spot<'t>>,
    /// Whether it runs on KVM.
    pub is_kvm: bool,
    /// Whether its architecture is x86.
    pub is_x86: bool,
    /// Its machine type.
    pub machine: Option<String>,
    /// Whether the domain says that its functions are passed through by iommufd.
    pub is_by_iommufd: bool,
    /// Whether its interrupts reach vCPUs whose APIC id has more than 8 bits.
    pub remaps_interrupts: bool,
    /// An IOMMU that does not report each mapping of the guest to VFIO.
    pub silent_iommu: Option<SilentIommu<'t>>,
    /// Shared memory that is in a file of a file system.
    pub shared_file: Option<Spot<'t>>,
    /// Its CPU.
    pub cpu: Option<Cpu<'t>>,
    /// PCI controllers by index.
    pub controllers: BTreeMap<u32, Controller<'t>>,
    /// Places of all devices, controllers included, in document order.
    pub addresses: Vec<At<'t, GuestAddress>>,
    /// Disks, SCSI controllers and interfaces.
    pub queued: Vec<Queued<'t>>,
    /// MAC addresses of interfaces, lower case.
    pub macs: Vec<At<'t, String>>,
    /// The `<memballoon>`, or `<devices>` where libvirt adds a balloon by default; `None` without
    /// balloon.
    pub balloon: Option<Spot<'t>>,
    /// Whether a passed-through GPU has a clique for peer-to-peer transfers.
    pub has_clique: bool,
    /// The request of a guest that gpuvm made.
    pub asked: Option<Request>,
    /// Its vGPUs, as recorded for it.
    pub vgpus: Vec<GuestVgpu>,
    /// Whether its root bus is PCI Express.
    pub is_pcie: bool,
    /// Whether it starts with QEMU's usual BIOS: it names no firmware.
    pub is_bios: bool,
    /// Disks and NICs of models that QEMU emulates register by register: the kind of each.
    pub emulated: Vec<At<'t, String>>,
    /// Values that could not be parsed, those of the claims included.
    pub faults: Vec<Fault<'t>>,
}

/// The name of a disk or NIC of an emulated model; `None` if it is of another kind, or a CD.
fn emulated(device: Element<'_>) -> Option<String> {
    match device.name() {
        "disk" if device.attr("device").is_none_or(|device| device == "disk") => {
            let target = device.child("target")?;
            let bus = target.attr("bus").filter(|bus| matches!(&**bus, "sata" | "ide"))?;
            Some(format!("disk `{}` on {}", target.attr("dev")?, bus.to_uppercase()))
        }
        "interface" => {
            let model = device.child("model")?.attr("type")?;
            let is_slow = matches!(&*model, "e1000" | "e1000e" | "rtl8139");
            is_slow.then(|| format!("NIC of model {model}"))
        }
        _ => None,
    }
}

/// An IOMMU that does not report each mapping of the guest to VFIO.
#[derive(Debug)]
pub struct SilentIommu<'t> {
    /// Its place.
    pub spot: Spot<'t>,
    /// The fault with functions that are passed through.
    pub message: &'static str,
    /// Its remedy.
    pub hint: &'static str,
}

impl<'t> SilentIommu<'t> {
    fn read(iommu: Element<'t>) -> Option<SilentIommu<'t>> {
        let mode = iommu.child("driver").and_then(|driver| driver.attr("caching_mode"));
        let (message, hint) = match iommu.attr("model").as_deref() {
            Some("intel") if mode.is_none_or(|mode| mode != "on") => (
                "an Intel IOMMU that is not in caching mode; QEMU refuses to start with \
                 passed-through functions",
                "write caching_mode='on' on the driver of <iommu>",
            ),
            // libvirt 12.9 has neither `dma-remap` nor `dma-translation` of QEMU's amd-iommu.
            Some("amd") => (
                "an AMD IOMMU; with passed-through functions QEMU ends when the guest's kernel \
                 translates DMA",
                "write model='intel' with caching_mode='on' and dma_translation='off'",
            ),
            _ => return None,
        };
        Some(SilentIommu { spot: Spot::of(iommu), message, hint })
    }
}

/// Shared memory without a source that is in memory: a memfd, or huge pages.
fn shared_file(root: Element<'_>) -> Option<Spot<'_>> {
    let backing = root.child("memoryBacking")?;
    let access = backing.child("access")?;
    let is_shared = access.attr("mode").is_some_and(|mode| mode == "shared");
    let source = backing.child("source").and_then(|source| source.attr("type"));
    let is_file = source.is_none_or(|kind| kind == "file");
    let in_memory = backing.child("hugepages").is_some();
    (is_shared && is_file && !in_memory).then(|| Spot::of(access))
}

impl<'t> Deref for Guest<'t> {
    type Target = Claims<'t>;
    fn deref(&self) -> &Claims<'t> {
        &self.claims
    }
}

impl<'t> Guest<'t> {
    /// Reads a domain.
    pub fn read(domain: &'t DomainXml) -> Guest<'t> {
        let mut claims = Claims::read(domain);
        let mut reader = Reader { faults: std::mem::take(&mut claims.faults) };
        let root = domain.root();
        let devices: Vec<Element<'t>> =
            root.child("devices").into_iter().flat_map(Element::elements).collect();
        let mut guest = Guest {
            claims,
            spot: Spot::of(root),
            cpu: root.child("cpu").map(|cpu| read_cpu(cpu, &mut reader)),
            dedicated: root
                .find("features/kvm/hint-dedicated")
                .filter(|hint| hint.attr("state").is_some_and(|state| state == "on"))
                .map(Spot::of),
            is_kvm: root.attr("type").is_some_and(|kind| kind == "kvm"),
            is_x86: domain.is_x86(),
            machine: root.find("os/type").and_then(|kind| kind.attr("machine")).map(Into::into),
            is_by_iommufd: domain.is_by_iommufd(),
            remaps_interrupts: domain.remaps_interrupts(),
            silent_iommu: root.find("devices/iommu").and_then(SilentIommu::read),
            shared_file: shared_file(root),
            controllers: BTreeMap::new(),
            addresses: Vec::new(),
            queued: Vec::new(),
            macs: Vec::new(),
            balloon: root.child("devices").map(Spot::of),
            has_clique: domain.sets_property("x-nv-gpudirect-clique"),
            asked: domain.record().ok().flatten().map(|record| record.request),
            vgpus: domain.vgpus().unwrap_or_default(),
            is_pcie: domain.is_pcie(),
            is_bios: !domain.is_uefi() && root.find("os/loader").is_none() && !names_firmware(root),
            emulated: Vec::new(),
            faults: Vec::new(),
        };
        for device in devices {
            guest.device(device, &mut reader);
        }
        guest.addresses.extend(guest_places(root));
        guest.faults = reader.faults;
        guest
    }

    fn device(&mut self, device: Element<'t>, reader: &mut Reader<'t>) {
        let address = reader.guest_address(device);
        self.addresses.extend(address.clone());
        let kind = device.attr("type");
        if let Some(value) = emulated(device) {
            self.emulated.push(At { value, spot: Spot::of(device) });
        }
        match (device.name(), kind.as_deref()) {
            ("controller", Some("pci")) => {
                let controller = read_controller(device, address, reader);
                self.controllers.extend(controller.map(|read| (read.index, read)));
            }
            ("memballoon", _) => {
                let none = device.attr("model").as_deref() == Some("none");
                self.balloon = (!none).then(|| Spot::of(device));
            }
            ("controller", Some("scsi")) => {
                self.queued.push(queued("controller", device, reader));
            }
            ("disk", _) => self.queued.push(queued("disk", device, reader)),
            ("interface", _) => {
                self.queued.push(queued("interface", device, reader));
                let lower = |mac: &str| Ok(mac.to_ascii_lowercase());
                let mac = device.child("mac");
                self.macs.extend(mac.and_then(|mac| reader.attribute(mac, "address", lower)));
            }
            _ => {}
        }
    }

    /// Returns the controller with this index.
    pub fn controller(&self, index: u32) -> Option<&Controller<'t>> {
        self.controllers.get(&index)
    }

    /// Returns the parts of the guest's memory: one per cell, or a single one without cells.
    pub fn banks(&self) -> Vec<Bank<'_, 't>> {
        let bank = |cell: Option<u32>, memory, vcpus| Bank {
            cell,
            memory,
            vcpus,
            binding: self.claims.binding(cell),
            page: self.claims.page_of(cell.unwrap_or(0)),
        };
        if self.claims.cells.is_empty() {
            return vec![bank(None, &self.claims.memory, None)];
        }
        let cells = self.claims.cells.iter();
        cells.map(|c| bank(Some(c.id), &c.memory, c.vcpus.as_ref().map(|v| &v.value))).collect()
    }
}

/// A part of the guest's memory.
#[derive(Debug, Clone, Copy)]
pub struct Bank<'g, 't> {
    /// Its cell; `None` if the guest has no cells.
    pub cell: Option<u32>,
    /// Its size.
    pub memory: &'g At<'t, crate::memsize::MemSize>,
    /// vCPUs of the cell; `None` for all, or a cell without vCPUs.
    pub vcpus: Option<&'g VcpuSet>,
    /// Its binding to host nodes.
    pub binding: Option<&'g Binding<'t>>,
    /// Size of its huge pages, where one is named.
    pub page: Option<&'g At<'t, crate::memsize::MemSize>>,
}

impl Bank<'_, '_> {
    /// `cell 0`, or `the guest`.
    pub fn name(self) -> String {
        self.cell.map_or("the guest".into(), |cell| format!("cell {cell}"))
    }
}

/// Reads `<cpu>`.
fn read_cpu<'t>(cpu: Element<'t>, reader: &mut Reader<'t>) -> Cpu<'t> {
    let topology = cpu.child("topology").map(|element| {
        let mut value = [1; 5];
        let names = ["sockets", "dies", "clusters", "cores", "threads"];
        for (value, name) in value.iter_mut().zip(names) {
            if let Some(read) = reader.attribute(element, name, number) {
                *value = read.value;
            }
        }
        At { value, spot: Spot::of(element) }
    });
    let asked = |feature: &Element<'t>| {
        let policy = feature.attr("policy");
        feature.attr("name").as_deref() == Some("topoext")
            && matches!(policy.as_deref(), None | Some("require" | "force"))
    };
    let address_bits =
        cpu.child("maxphysaddr").map(|element| match element.attr("mode").as_deref() {
            Some("passthrough") => None,
            _ => reader.attribute(element, "bits", number).map(|bits| bits.value),
        });
    Cpu {
        spot: Spot::of(cpu),
        mode: cpu.attr("mode").map(String::from).unwrap_or_default(),
        topology,
        topoext: cpu.children("feature").any(|feature| asked(&feature)),
        cache: cpu.child("cache").map(|cache| {
            (Spot::of(cache), cache.attr("mode").map(String::from).unwrap_or_default())
        }),
        address_bits,
        address_limit: cpu
            .child("maxphysaddr")
            .and_then(|element| reader.attribute(element, "limit", number))
            .map(|limit| limit.value),
    }
}

/// Reads a PCI controller; none where it has no index yet.
fn read_controller<'t>(
    element: Element<'t>,
    address: Option<At<'t, GuestAddress>>,
    reader: &mut Reader<'t>,
) -> Option<Controller<'t>> {
    let index = reader.attribute(element, "index", number)?.value;
    let target = element.child("target");
    Some(Controller {
        index,
        model: element.attr("model").map(String::from).unwrap_or_default(),
        address,
        bus_number: target.and_then(|target| reader.attribute(target, "busNr", c_number)),
        cell: target.and_then(|t| t.child("node")).and_then(|node| reader.text(node, number)),
    })
}

/// Reads the queues and I/O threads of a disk, a SCSI controller or an interface.
fn queued<'t>(kind: &'static str, device: Element<'t>, reader: &mut Reader<'t>) -> Queued<'t> {
    let driver = device.child("driver");
    let mapped = driver.and_then(|driver| driver.child("iothreads"));
    let mapped = mapped.into_iter().flat_map(|threads| threads.children("iothread"));
    let named = driver.and_then(|driver| reader.attribute(driver, "iothread", number));
    let mut iothreads: Vec<_> = named.into_iter().collect();
    iothreads.extend(mapped.filter_map(|thread| reader.attribute(thread, "id", number)));
    let queues = driver.and_then(|driver| reader.attribute(driver, "queues", number));
    Queued { kind, queues, iothreads }
}
