//! The shape of a plan: the part that can be requested of platforms that place by themselves.

use super::lost::{Lost, LostKind};
use super::resource::ResourceWish;
use super::{PlatformError, PlatformGuest};
use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::memsize::MemSize;
use crate::placement::{GuestTopology, Placement};
use crate::request::{DeviceWish, P2pWish, PinPolicy};
use crate::topology::model::ids;
use crate::topology::{DeviceKind, PciDevice};
use crate::words::{count, nouns};
use std::collections::BTreeSet;

/// Devices of one kind, as a platform counts them.
#[derive(Debug, Clone)]
pub(super) struct DeviceGroup<'a> {
    pub(super) first: &'a PciDevice,
    /// Their addresses, in guest order.
    pub(super) bdfs: Vec<Bdf>,
    /// The name that the caller gives.
    pub(super) given: Option<&'a ResourceWish>,
}

#[derive(Debug, Clone)]
pub(super) struct Shape<'a> {
    pub(super) guest: PlatformGuest<'a>,
    pub(super) is_pinned: bool,
    /// Pcpus that its vCPUs are pinned to.
    pub(super) vcpu_pcpus: CpuSet,
    /// Pcpus of the emulator and the I/O threads that no vCPU has.
    pub(super) own_pcpus: CpuSet,
    /// Threads of a core of its host cores.
    pub(super) host_threads: u32,
    pub(super) nodes: NodeSet,
    /// Its devices, without vGPUs, NVSwitches and companions, by kind in guest order.
    pub(super) devices: Vec<DeviceGroup<'a>>,
    pub(super) switches: Vec<Bdf>,
    pub(super) companions: Vec<Bdf>,
}

impl<'a> Shape<'a> {
    /// Takes the shape of a plan; refuses parts that no platform accepts.
    pub(super) fn of(guest: PlatformGuest<'a>) -> Result<Shape<'a>, PlatformError> {
        refuse_rounded(&guest)?;
        let PlatformGuest { topology, placement, request, .. } = guest;
        let all = |sets: &[CpuSet]| sets.iter().fold(CpuSet::new(), |all, set| all.or(set));
        let vcpu_pcpus = all(&placement.vcpu_pins);
        let helpers = all(&placement.iothread_pins).or(&placement.emulator_pin);
        let of_host = |pcpu| topology.core_of(pcpu).map_or(1, |core| core.pcpus.len());
        let host_threads = vcpu_pcpus.iter().map(of_host).max().unwrap_or(1);
        let is_switch = |bdf: &Bdf| {
            topology.device(*bdf).is_some_and(|device| device.kind() == DeviceKind::NvSwitch)
        };
        // A vGPU has no resource name, and comes before the other functions that are counted.
        let is_vgpu = |bdf: &Bdf| placement.vgpus.iter().any(|vgpu| vgpu.function == *bdf);
        let devices = placement.devices.iter().copied().filter(|bdf| !is_vgpu(bdf));
        let (switches, others): (Vec<Bdf>, Vec<Bdf>) = devices.partition(is_switch);
        let extras = &request.extras;
        let number = |wish: &DeviceWish| wish.number();
        let asked = request.gpus.number() as usize
            + [&extras.nics, &extras.vfs, &extras.nvmes].into_iter().map(number).sum::<usize>();
        let (asked, companions) = others.split_at(asked.min(others.len()));
        Ok(Shape {
            is_pinned: !vcpu_pcpus.is_empty(),
            own_pcpus: helpers.minus(&vcpu_pcpus),
            vcpu_pcpus,
            host_threads: u32::try_from(host_threads).unwrap_or(1),
            nodes: placement.cells.iter().flat_map(|cell| cell.host_nodes.iter()).collect(),
            devices: groups(&guest, asked)?,
            switches,
            companions: companions.to_vec(),
            guest,
        })
    }

    pub(super) fn cells(&self) -> u32 {
        u32::try_from(self.guest.placement.cells.len()).unwrap_or(u32::MAX)
    }

    /// The guest's CPU topology, a package for each cell if they are equally large.
    pub(super) fn cpu(&self) -> GuestTopology {
        let plain = self.guest.placement.topology.without_dies();
        let cells = self.cells();
        let all = plain.sockets * plain.cores;
        let first = self.guest.placement.cells.first().map(|cell| cell.vcpus.len());
        let is_even = self.guest.placement.cells.iter().all(|cell| Some(cell.vcpus.len()) == first);
        if cells < 2 || !is_even || !all.is_multiple_of(cells) {
            return plain;
        }
        GuestTopology { sockets: cells, cores: all / cells, ..plain }
    }

    /// The page size that backs the memory; `None` for normal pages.
    pub(super) fn page(&self) -> Option<MemSize> {
        self.guest.placement.huge_pages.map(|page| page.size())
    }

    /// Settings lost on every platform; `name`: the platform.
    pub(super) fn lost(&self, name: &str) -> Vec<Lost> {
        let mut lost = Vec::new();
        let mut add = |code, what: String| lost.push(Lost::new(code, what));
        let (placement, request) = (self.guest.placement, self.guest.request);
        if !self.devices.is_empty() {
            let all: Vec<String> = self
                .devices
                .iter()
                .flat_map(|group| &group.bdfs)
                .map(ToString::to_string)
                .collect();
            let near = if all.len() > 1 { ", however near they are to each other" } else { "" };
            add(
                LostKind::Devices,
                format!("{}: {name} takes any that are free{near}", all.join(" ")),
            );
        }
        if let Some(what) = vgpus(placement, name) {
            add(LostKind::Devices, what);
        }
        let partition = placement.partition.map(|id| format!("NVLink partition {id}"));
        let switches: Vec<String> = self.switches.iter().map(ToString::to_string).collect();
        if partition.is_some() || !switches.is_empty() {
            let switches =
                (!switches.is_empty()).then(|| format!("NVSwitches {}", switches.join(" ")));
            let both: Vec<String> = partition.into_iter().chain(switches).collect();
            add(
                LostKind::Partition,
                format!(
                    "{}: {name} cannot be asked for GPUs of one partition, and activates none",
                    both.join(", ")
                ),
            );
        }
        if placement.cells.len() > 1 && placement.cells.iter().any(|c| !c.distances.is_empty()) {
            add(LostKind::Distances, format!("{name} gives the guest no distances of its cells"));
        }
        if placement.cache.is_some() || placement.topology.dies > 1 {
            let dies = placement.topology.dies;
            let shows = if dies > 1 { format!("{dies} dies, and ") } else { String::new() };
            add(LostKind::Caches, format!("{shows}the host's L3 caches as the guest sees them"));
        }
        if !placement.guest_pcie.cliques.is_empty() {
            add(LostKind::Cliques, "GPUs that send to each other below a PCIe switch".into());
        }
        if request.p2p == P2pWish::Auto && !self.devices.is_empty() {
            let what = format!("{name} sets no bits of PCIe ports for transfers of NICs and GPUs");
            add(LostKind::P2p, what);
        }
        for bdf in &self.companions {
            let group = self.guest.topology.iommu_group(*bdf).map(|group| group.number);
            let group = group.map_or_else(String::new, |number| format!(" {number}"));
            add(
                LostKind::Companions,
                format!("{bdf} of IOMMU group{group} has to be bound to vfio-pci on the host"),
            );
        }
        if !request.extras.vf_settings.is_empty() {
            add(LostKind::VfSettings, "set them on the host: `gpuvm nic vfs PF --count N`".into());
        }
        if let Some(start) = request.vcpus_at_start {
            let all = placement.vcpus();
            add(LostKind::MaxVcpus, format!("all {all} vCPUs are there at start, and not {start}"));
        }
        if let Some(ports) = request.spare_ports.filter(|ports| *ports > 0) {
            add(LostKind::SparePorts, format!("{ports} free root ports for hot-plug"));
        }
        lost.extend(self.coherent(name));
        lost
    }

    /// The lost parts of GPUs with coherent memory, which the guest cannot use without them; `name`:
    /// the platform.
    fn coherent(&self, name: &str) -> Vec<Lost> {
        let Some(initiators) = &self.guest.placement.initiators else { return Vec::new() };
        let gpus: Vec<String> = initiators.gpus.iter().map(|own| own.gpu.to_string()).collect();
        let (gpus, number) = (gpus.join(" "), initiators.gpus.len());
        let cells: usize = initiators.gpus.iter().map(|own| own.cells.len()).sum();
        let cells = format!(
            "{cells} empty cells for the memory of {gpus}, with their distances: {name} has no \
             field for them, and without them the guest has no node for that memory"
        );
        let smmu = format!(
            "{}, nested in the host's, for {gpus}: {name} has no field for it, and without it the \
             driver in the guest cannot use the {}",
            count(number, "SMMUv3"),
            if number == 1 { "GPU" } else { "GPUs" }
        );
        vec![Lost::new(LostKind::Cells, cells), Lost::new(LostKind::NestedSmmu, smmu)]
    }

    /// How the vCPUs are pinned, for people; `None` if they are not.
    pub(super) fn pins(&self) -> Option<String> {
        let order =
            if self.guest.request.pins == PinPolicy::Thread { " in thread order" } else { "" };
        let nodes = match self.nodes.len() {
            0 => String::new(),
            number => format!(" of {} {}", nouns(number, "node"), self.nodes),
        };
        self.is_pinned.then(|| format!("vCPUs on pcpus {}{nodes}{order}", self.vcpu_pcpus))
    }

    /// Devices that are on no node of the guest's cells.
    pub(super) fn away(&self) -> Vec<Bdf> {
        let bdfs = self.devices.iter().flat_map(|group| &group.bdfs);
        let is_away = |bdf: &&Bdf| {
            let node = self.guest.topology.device(**bdf).and_then(|device| device.node);
            node.is_none_or(|node| !self.nodes.contains(node))
        };
        bdfs.filter(is_away).copied().collect()
    }
}

/// The vGPUs of a plan, which the export has no fields for; `None` if it has none.
fn vgpus(placement: &Placement, name: &str) -> Option<String> {
    let type_name = &placement.vgpus.first()?.name;
    let functions: BTreeSet<Bdf> = placement.vgpus.iter().map(|vgpu| vgpu.function).collect();
    let functions: Vec<String> = functions.iter().map(ToString::to_string).collect();
    let number = count(placement.vgpus.len(), "vGPU");
    Some(format!(
        "{number} of type {type_name} ({}): this export carries no vGPUs, and the guest has none \
         until they are set up in {name} and added to it there",
        functions.join(" ")
    ))
}

/// Refuses memory that the plan had to round: a platform would refuse it, or round otherwise.
fn refuse_rounded(guest: &PlatformGuest<'_>) -> Result<(), PlatformError> {
    let planned = guest.placement.memory();
    let Some(asked) = guest.request.memory_kib.filter(|asked| *asked != planned) else {
        return Ok(());
    };
    let cells = guest.placement.cells.len();
    let unit = guest.placement.huge_pages.map(|page| page.size());
    let of = match (unit, cells) {
        (Some(unit), _) => format!("pages of {unit}"),
        (None, 1) => "its pages".to_owned(),
        (None, cells) => format!("the pages of {cells} cells"),
    };
    Err(PlatformError::Memory { asked: asked.typed(), of, planned: planned.typed() })
}

/// Groups devices by their ids and their part in SR-IOV.
fn groups<'a>(
    guest: &PlatformGuest<'a>,
    asked: &[Bdf],
) -> Result<Vec<DeviceGroup<'a>>, PlatformError> {
    let mut groups: Vec<DeviceGroup<'a>> = Vec::new();
    for device in asked.iter().filter_map(|bdf| guest.topology.device(*bdf)) {
        let same = |group: &&mut DeviceGroup<'_>| {
            (group.first.vendor, group.first.device, group.first.kind())
                == (device.vendor, device.device, device.kind())
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.bdfs.push(device.bdf),
            None => groups.push(DeviceGroup {
                first: device,
                bdfs: vec![device.bdf],
                given: guest.resources.iter().find(|given| given.is_of(device)),
            }),
        }
    }
    let is_unused = |given: &&ResourceWish| !groups.iter().any(|group| given.is_of(group.first));
    for (nth, one) in guest.resources.iter().enumerate() {
        let earlier = guest.resources[..nth].iter().find(|other| other.ids() == one.ids());
        if let Some(first) = earlier {
            let (first, second) = (first.name.clone(), one.name.clone());
            return Err(PlatformError::TwoNames { ids: one.ids(), first, second });
        }
    }
    if let Some(unused) = guest.resources.iter().find(is_unused) {
        let has: Vec<String> = groups.iter().map(|group| ids(group.first)).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        return Err(PlatformError::UnusedResource { ids: unused.ids(), has });
    }
    Ok(groups)
}
