//! A planned guest for OpenStack Nova: a flavor, properties of its image, and the required part of
//! the host's nova.conf (gpuvm-export(7), NOVA).

use super::lost::{Lost, LostKind, comments, wrapped};
use super::resource::{alias, kind_word};
use super::shape::{DeviceGroup, Shape};
use super::{PlatformError, PlatformGuest};
use crate::cpuset::{CpuSet, NodeSet};
use crate::memsize::MemSize;
use crate::placement::{DeviceState, Occupancy, device_states, idle_cores};
use crate::request::MachineModel;
use crate::shell::word;
use crate::topology::model::ids;
use crate::topology::{PciDevice, Sriov};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The option of a property, on both commands.
const PROPERTY: &str = "--property";
/// The option of a data disk's size.
const EPHEMERAL: &str = "--ephemeral";

/// A guest for Nova.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NovaExport {
    /// Name of the guest.
    pub name: String,
    /// Its flavor.
    pub flavor: Flavor,
    /// Properties of its image.
    pub image: BTreeMap<String, String>,
    /// The required nova.conf of a host like this one.
    pub host: NovaHost,
    /// The lost parts of the plan.
    pub lost: Vec<Lost>,
}

/// A flavor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flavor {
    /// Its name.
    pub name: String,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub ram: u64,
    /// Boot disk in GiB.
    pub disk: u64,
    /// Data disk in GiB; 0: none.
    pub ephemeral: u64,
    /// Everything else.
    pub extra_specs: BTreeMap<String, String>,
}

/// The required nova.conf of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NovaHost {
    /// `[compute] cpu_dedicated_set`: pcpus of pinned guests; `None` if this one is not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_dedicated_set: Option<CpuSet>,
    /// `[compute] cpu_shared_set`: pcpus of others; `None` if the host keeps no cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shared_set: Option<CpuSet>,
    /// `[pci] device_spec`: functions that guests may have.
    pub device_spec: Vec<DeviceSpec>,
    /// `[pci] alias`: their kinds, also in nova.conf of the API.
    pub alias: Vec<Alias>,
}

/// A function that guests may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceSpec {
    /// Its address.
    pub address: String,
    /// Whether libvirt binds it: it does not.
    pub managed: String,
    /// Its class in Placement.
    pub resource_class: String,
}

/// A kind of functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Alias {
    /// Its name in flavors.
    pub name: String,
    /// Vendor id.
    pub vendor_id: String,
    /// Device id.
    pub product_id: String,
    /// Its part in SR-IOV: `type-PF` also for a whole function that could have virtual ones.
    pub device_type: String,
    /// Whether it must be on a node of the guest.
    pub numa_policy: String,
    /// Its class in Placement.
    pub resource_class: String,
}

/// The export of a guest to Nova.
pub fn nova(guest: PlatformGuest<'_>) -> Result<NovaExport, PlatformError> {
    let shape = Shape::of(guest)?;
    refuse_odd(&shape)?;
    refuse_uneven(&shape)?;
    refuse_spread(&shape)?;
    let names = aliases(&shape.devices)?;
    let is_near = !shape.nodes.is_empty() && shape.away().is_empty();
    let numa_policy = if is_near { "required" } else { "preferred" };
    let mut lost = lost(&shape);
    lost.extend(guest.lost.iter().cloned());
    Ok(NovaExport {
        name: guest.name.to_string(),
        flavor: Flavor {
            name: guest.name.to_string(),
            vcpus: guest.placement.vcpus(),
            ram: mib(guest.placement.memory()),
            disk: gib(guest.disks.os),
            ephemeral: guest.disks.data.map_or(0, gib),
            extra_specs: extra_specs(&shape, &names, numa_policy),
        },
        image: image(&shape),
        host: host(&shape, &names, numa_policy),
        lost,
    })
}

impl NovaExport {
    /// The flavor and the image's properties as command lines, below the lost settings as comments.
    pub fn text(&self) -> String {
        let Flavor { name, vcpus, ram, disk, ephemeral, extra_specs } = &self.flavor;
        let mut text = comments(&self.lost);
        let _ = write!(
            text,
            "openstack flavor create {} --vcpus {vcpus} --ram {ram} --disk {disk}",
            word(name)
        );
        if *ephemeral > 0 {
            let _ = write!(text, " {EPHEMERAL} {ephemeral}");
        }
        for (key, value) in extra_specs {
            let _ = write!(text, " \\\n  {PROPERTY} {}", word(&format!("{key}={value}")));
        }
        text.push_str("\nopenstack image set");
        for (key, value) in &self.image {
            let _ = write!(text, " \\\n  {PROPERTY} {}", word(&format!("{key}={value}")));
        }
        text.push_str(" \\\n  \"$IMAGE\"\n");
        text
    }

    /// The required nova.conf of the host.
    pub fn host_text(&self) -> serde_json::Result<String> {
        let NovaHost { cpu_dedicated_set, cpu_shared_set, device_spec, alias } = &self.host;
        let mut text = String::new();
        wrapped(
            &mut text,
            "For nova.conf of the host; the aliases also for nova.conf of the API. The scheduler \
             needs NUMATopologyFilter and PciPassthroughFilter.",
        );
        if !device_spec.is_empty() {
            wrapped(
                &mut text,
                "managed=no: the functions are bound by `gpuvm device bind BDF --at-boot`, since \
                 unbinding a driver can hang",
            );
        }
        if cpu_shared_set.is_none() {
            wrapped(
                &mut text,
                "The host keeps no cores for itself: --reserve-cores N reserves some.",
            );
        }
        if cpu_dedicated_set.is_some() || cpu_shared_set.is_some() {
            text.push_str("[compute]\n");
        }
        if let Some(dedicated) = cpu_dedicated_set {
            let _ = writeln!(text, "cpu_dedicated_set = {dedicated}");
        }
        if let Some(shared) = cpu_shared_set {
            let _ = writeln!(text, "cpu_shared_set = {shared}");
        }
        text.push_str("[libvirt]\ncpu_mode = host-passthrough\n");
        if !device_spec.is_empty() {
            text.push_str("[pci]\n");
        }
        for spec in device_spec {
            let _ = writeln!(text, "device_spec = {}", serde_json::to_string(spec)?);
        }
        for alias in alias {
            let _ = writeln!(text, "alias = {}", serde_json::to_string(alias)?);
        }
        Ok(text)
    }
}

/// Refuses vCPUs that do not fill their cores: Nova would share the last one with another guest.
fn refuse_odd(shape: &Shape<'_>) -> Result<(), PlatformError> {
    let (vcpus, threads) = (shape.guest.placement.vcpus(), shape.host_threads);
    let sizes = shape.guest.placement.cells.iter().map(|cell| cell.vcpus.end - cell.vcpus.start);
    let fills = sizes.into_iter().all(|size| size.is_multiple_of(threads));
    if !shape.is_pinned || threads < 2 || fills {
        return Ok(());
    }
    let cells = shape.cells().max(1);
    let next = vcpus.next_multiple_of(threads * cells);
    Err(PlatformError::OddVcpus { vcpus, threads, next })
}

/// Refuses memory that is not whole MiB in each cell.
fn refuse_uneven(shape: &Shape<'_>) -> Result<(), PlatformError> {
    let uneven = |memory: MemSize| !memory.kib().is_multiple_of(1024);
    let cells = &shape.guest.placement.cells;
    match cells.iter().position(|cell| uneven(cell.memory_kib)) {
        None => Ok(()),
        Some(cell) => {
            Err(PlatformError::CellMemory { cell, memory: cells[cell].memory_kib.typed() + "iB" })
        }
    }
}

/// Refuses a cell that spans several host nodes: Nova would find no valid host.
fn refuse_spread(shape: &Shape<'_>) -> Result<(), PlatformError> {
    let PlatformGuest { placement, topology, .. } = shape.guest;
    for (number, cell) in placement.cells.iter().enumerate() {
        let vcpus = cell.vcpus.start as usize..cell.vcpus.end as usize;
        let pins = placement.vcpu_pins.get(vcpus).unwrap_or_default();
        let pcpus = pins.iter().flat_map(|pin| pin.iter());
        let nodes: NodeSet =
            pcpus.filter_map(|pcpu| topology.core_of(pcpu)).map(|core| core.node).collect();
        if nodes.len() > 1 {
            return Err(PlatformError::SpreadCell { cell: number, nodes });
        }
    }
    Ok(())
}

/// The aliases of kinds of devices; two kinds have two names.
fn aliases(groups: &[DeviceGroup<'_>]) -> Result<Vec<String>, PlatformError> {
    let mut all: Vec<String> = Vec::new();
    for group in groups {
        let name = alias(group.first, group.given)?;
        let Some(at) = all.iter().position(|other| *other == name) else {
            all.push(name);
            continue;
        };
        if group.given.is_some() || groups[at].given.is_some() {
            let (first, second) = (ids(groups[at].first), ids(group.first));
            return Err(PlatformError::SameName { name, first, second });
        }
        // Two sizes of one model: the second has its device id.
        all.push(format!("{name}-{:04x}", group.first.device));
    }
    Ok(all)
}

/// Whether the emulator has a pcpu of its own.
fn isolates(shape: &Shape<'_>) -> bool {
    shape.is_pinned && !shape.own_pcpus.is_empty()
}

fn extra_specs(shape: &Shape<'_>, names: &[String], numa_policy: &str) -> BTreeMap<String, String> {
    let mut specs = BTreeMap::new();
    let mut add = |key: &str, value: String| specs.insert(key.to_owned(), value);
    let cpu = shape.cpu();
    add("hw:cpu_sockets", cpu.sockets.to_string());
    add("hw:cpu_cores", cpu.cores.to_string());
    add("hw:cpu_threads", cpu.threads.to_string());
    if shape.is_pinned {
        add("hw:cpu_policy", "dedicated".into());
        if shape.host_threads > 1 {
            add("hw:cpu_thread_policy", "require".into());
        }
        if isolates(shape) {
            add("hw:emulator_threads_policy", "isolate".into());
        }
    }
    let cells = &shape.guest.placement.cells;
    // A guest that floats over the whole host has no cells.
    let has_cells = shape.is_pinned || cells.len() > 1 || shape.page().is_some();
    if has_cells {
        add("hw:numa_nodes", cells.len().to_string());
    }
    if cells.len() > 1 {
        for (number, cell) in cells.iter().enumerate() {
            let vcpus = (cell.vcpus.start, cell.vcpus.end - 1);
            let vcpus = match vcpus {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            add(&format!("hw:numa_cpus.{number}"), vcpus);
            add(&format!("hw:numa_mem.{number}"), mib(cell.memory_kib).to_string());
        }
    }
    let page = match shape.page() {
        None => "small".to_owned(),
        Some(page) => format!("{}B", page.typed()),
    };
    if has_cells {
        add("hw:mem_page_size", page);
    }
    add("hw:vif_multiqueue_enabled", "true".into());
    if !names.is_empty() {
        let counts = names.iter().zip(&shape.devices);
        let counts: Vec<String> =
            counts.map(|(name, group)| format!("{name}:{}", group.bdfs.len())).collect();
        add("pci_passthrough:alias", counts.join(","));
        add("hw:pci_numa_affinity_policy", numa_policy.into());
    }
    specs
}

fn image(shape: &Shape<'_>) -> BTreeMap<String, String> {
    let machine = match shape.guest.topology.machine().architecture.as_deref() {
        Some("aarch64") => Some("virt"),
        None | Some("x86_64") => Some("q35"),
        _ => None,
    };
    let mut all = BTreeMap::from(
        [
            ("hw_firmware_type", "uefi"),
            ("os_secure_boot", "disabled"),
            ("hw_disk_bus", "virtio"),
            ("hw_vif_model", "virtio"),
            ("hw_qemu_guest_agent", "yes"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let asked = shape.guest.request.machine.as_ref().map(MachineModel::as_str).or(machine);
    all.extend(asked.map(|machine| ("hw_machine_type".to_owned(), machine.to_owned())));
    // The window for 64-bit BARs follows from the address bits.
    if machine == Some("q35") && !shape.devices.is_empty() {
        all.insert("hw_maxphysaddr_mode".to_owned(), "passthrough".to_owned());
    }
    all
}

/// The part of a function in SR-IOV, as Nova calls it. A wrong one leads to "no valid host".
fn device_type(device: &PciDevice) -> &'static str {
    match device.sriov {
        Some(Sriov::Pf { .. }) => "type-PF",
        Some(Sriov::Vf { .. }) => "type-VF",
        None => "type-PCI",
    }
}

/// The class of a kind of devices in Placement.
fn resource_class(device: &PciDevice, name: &str) -> String {
    let name: String = format!("CUSTOM_{}_{name}", kind_word(device))
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
        .collect();
    name
}

/// The required nova.conf of the host.
fn host(shape: &Shape<'_>, names: &[String], numa_policy: &str) -> NovaHost {
    let (topology, request) = (shape.guest.topology, shape.guest.request);
    let nodes = topology.nodes().iter().map(|node| node.os_index).collect();
    let dedicated = idle_cores(topology, &Occupancy::default(), request.reserve.cores, &nodes);
    let kept = topology.pcpus().minus(&dedicated);
    let (dedicated, shared) = if shape.is_pinned {
        (Some(dedicated), Some(kept).filter(|kept| !kept.is_empty()))
    } else {
        (None, (!kept.is_empty()).then_some(dedicated))
    };
    let mut device_spec = Vec::new();
    let mut alias = Vec::new();
    for (group, name) in shape.devices.iter().zip(names) {
        let class = resource_class(group.first, name);
        for device in may_have(shape, group.first) {
            device_spec.push(DeviceSpec {
                address: device.bdf.to_string(),
                managed: "no".into(),
                resource_class: class.clone(),
            });
        }
        alias.push(Alias {
            name: name.clone(),
            vendor_id: format!("{:04x}", group.first.vendor),
            product_id: format!("{:04x}", group.first.device),
            device_type: device_type(group.first).into(),
            numa_policy: numa_policy.into(),
            resource_class: class,
        });
    }
    NovaHost { cpu_dedicated_set: dedicated, cpu_shared_set: shared, device_spec, alias }
}

/// Functions of the host like this one that guests may have: free ones, and those of guests.
fn may_have<'a>(shape: &Shape<'a>, like: &PciDevice) -> Vec<&'a PciDevice> {
    let topology = shape.guest.topology;
    let same = |device: &&PciDevice| {
        (device.vendor, device.device, device.kind()) == (like.vendor, like.device, like.kind())
    };
    let all: Vec<&PciDevice> = topology.devices().iter().filter(same).collect();
    let bdfs: Vec<_> = all.iter().map(|device| device.bdf).collect();
    let states = device_states(topology, shape.guest.occupancy, &bdfs);
    let planned = &shape.guest.placement.devices;
    let may = |(device, (state, _)): (&'a PciDevice, (DeviceState, Option<String>))| {
        let free = matches!(state, DeviceState::Free | DeviceState::Held);
        (free || planned.contains(&device.bdf)).then_some(device)
    };
    all.into_iter().zip(states).filter_map(may).collect()
}

fn lost(shape: &Shape<'_>) -> Vec<Lost> {
    let mut lost = Vec::new();
    let mut add = |code, what: String| lost.push(Lost::new(code, what));
    if let Some(pins) = shape.pins() {
        add(LostKind::Pins, format!("{pins}: Nova chooses the node and its pcpus"));
    }
    // Nova's is one, too.
    if isolates(shape) && shape.own_pcpus.len() > 1 {
        let (own, cells) = (shape.own_pcpus.len(), shape.cells());
        let at = if cells > 1 { " on the node of cell 0" } else { "" };
        add(
            LostKind::Emulator,
            format!(
                "emulator and I/O threads have one pcpu{at}, and {own} in the plan; the rest of \
                 its core stays free"
            ),
        );
    }
    let threads = shape.guest.placement.iothread_pins.len();
    if shape.is_pinned && threads > 1 {
        add(LostKind::IoThreads, format!("1 thread for disks, and the plan has {threads}"));
    }
    lost.extend(shape.lost("Nova"));
    let mut add = |code, what: String| lost.push(Lost::new(code, what));
    let away: Vec<String> = shape.away().iter().map(ToString::to_string).collect();
    if !away.is_empty() && !shape.nodes.is_empty() {
        add(
            LostKind::Devices,
            format!("{} on no node of the guest: affinity is preferred only", away.join(" ")),
        );
    }
    if !shape.devices.is_empty() {
        add(
            LostKind::PcieTree,
            "the guest is flat, without expander buses: give it the file of `gpuvm export \
             --format nccl` by user data"
                .into(),
        );
        add(
            LostKind::MmioWindow,
            "the firmware computes its own window for 64-bit BARs, by the host's address bits \
             (cpu_mode=host-passthrough)"
                .into(),
        );
    }
    if shape.guest.request.is_by_iommufd() {
        let what = "Nova passes devices through by VFIO groups, and has no setting for iommufd";
        add(LostKind::Iommufd, what.into());
    }
    if !shape.guest.placement.guest_pcie.links.is_empty() && !shape.devices.is_empty() {
        add(LostKind::LinkSpeeds, "speed and width of the guest's PCIe links".into());
    }
    add(LostKind::Queues, "NICs have one queue for each vCPU".into());
    lost
}

fn mib(size: MemSize) -> u64 {
    size.kib() >> 10
}

/// GiB, rounded up: a disk is not smaller than planned.
fn gib(size: MemSize) -> u64 {
    size.kib().div_ceil(1 << 20)
}
