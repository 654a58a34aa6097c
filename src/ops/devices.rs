//! Lists functions of the host for guests: all of them, or GPUs and NVSwitches with their
//! partitions.

use crate::apply::bind::boot;
use crate::availability::{Availability, nothing_passes};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::current_users::current_users;
use crate::discover::cards::cards;
use crate::error::Result;
use crate::function_users::Use;
use crate::gpu_states::{self, ListedState};
use crate::health::Health;
use crate::placement::{DeviceState, Occupancy};
use crate::topology::model::model;
use crate::topology::{DeviceKind, Mig, PartitionId, PciDevice, Topology, VgpuInterface};
use crate::world::World;
use gpuvm_core::versions::Stack;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A host function that a guest can get.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedDevice {
    /// Address.
    pub bdf: Bdf,
    /// Its kind.
    pub kind: DeviceKind,
    /// Model, or the ids.
    pub model: String,
    /// Node.
    pub node: Option<NodeId>,
    /// Driver that has it.
    pub driver: Option<String>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// The kernel's reset methods, in the order in which it tries them.
    pub reset_methods: Vec<String>,
    /// Whether it is bound to vfio-pci at boot.
    pub at_boot: bool,
    /// Domains that hold it, running or not.
    pub domains: Vec<String>,
    /// Who uses it.
    pub used_by: Vec<Use>,
    /// Whether it can be passed through now.
    pub passable: bool,
    /// Why not, to be read after its address.
    pub why: Vec<String>,
    /// Why no request by number takes it, although it can be passed through.
    #[serde(skip)]
    pub aside: Option<String>,
}

/// A GPU or an NVSwitch.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedGpu {
    /// Index of the GPU; none for NVSwitches, displays and devices that do not respond.
    pub index: Option<usize>,
    /// Address.
    pub bdf: Bdf,
    /// UUID, if the GPU was bound to the NVIDIA driver when it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Model, or the ids.
    pub model: String,
    /// Node.
    pub node: Option<NodeId>,
    /// NVLink partitions that need it or, of an NVSwitch, may take it.
    pub partitions: Vec<PartitionId>,
    /// Whether it is available.
    pub state: DeviceState,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its state between guests; absent: no guest had it while that was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<ListedState>,
    /// Its health; `None` if not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// By which interface it is shared among guests, if virtual functions or mediated devices are
    /// set up for that; `gpuvm vgpu list` has the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<SharedGpu>,
    /// Its MIG mode; `None` if it has none, or NVML did not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Who uses it, as `device list` says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<Use>,
}

/// How a GPU is shared.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharedGpu {
    /// By which interface.
    pub interface: VgpuInterface,
    /// Its virtual functions.
    pub vfs: u32,
    /// Its vGPUs by type, with their number.
    pub vgpus: BTreeMap<String, u32>,
    /// Its virtual functions that get no vGPU, since an admin took them out of use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Bdf>,
}

/// How a GPU is shared among guests; `None` if it is not.
fn shared(gpu: &PciDevice, topology: &Topology, held: &Occupancy) -> Option<SharedGpu> {
    let interface = topology.vgpu_interface(gpu);
    let is_set_up = matches!(interface, VgpuInterface::Mdev | VgpuInterface::Vfio);
    if !is_set_up || gpu.is_vf() {
        return None;
    }
    let vfs: Vec<Bdf> = topology.vfs_of(gpu.bdf).map(|vf| vf.bdf).collect();
    let number = u32::try_from(vfs.len()).unwrap_or(u32::MAX);
    let vgpus = topology.vgpus_of(gpu).into_iter().collect();
    let is_excluded = |vf: &Bdf| held.excluded.iter().any(|excluded| excluded.bdf == *vf);
    let excluded = vfs.into_iter().filter(is_excluded).collect();
    Some(SharedGpu { interface, vfs: number, vgpus, excluded })
}

/// Lists GPUs, NVSwitches, NICs and NVMe drives; `all`: also other kinds, except bridges. `assume`:
/// libvirt and QEMU that are named for a recorded host.
pub fn devices(
    world: &World,
    topology: &Topology,
    held: &Occupancy,
    (all, assume): (bool, Option<Stack>),
) -> Result<Vec<ListedDevice>> {
    let listed = |device: &&PciDevice| match device.kind() {
        DeviceKind::Bridge | DeviceKind::HostBridge => false,
        DeviceKind::Other => all,
        _ => true,
    };
    let devices: Vec<&PciDevice> = topology.devices().iter().filter(listed).collect();
    let functions: Vec<Bdf> = devices.iter().map(|device| device.bdf).collect();
    let uses = current_users(world, topology, held, &functions)?;
    let at_boot = world.root()?.map(|root| boot::functions(&root)).transpose()?.unwrap_or_default();
    let nothing = nothing_passes(world, topology, assume)?;
    let uses = (&uses[..], nothing.as_deref());
    let row = |device: &&PciDevice| listed_device(device, topology, held, uses, &at_boot);
    Ok(devices.iter().map(row).collect())
}

/// Lists GPUs and NVSwitches. `assume`: libvirt and QEMU that are named for a recorded host.
pub fn gpus(
    world: &World,
    topology: &Topology,
    held: &Occupancy,
    assume: Option<Stack>,
) -> Result<Vec<ListedGpu>> {
    let mut uuids: BTreeMap<Bdf, String> = BTreeMap::new();
    if let Some(root) = world.root()? {
        let cards = cards(&root)?.into_iter();
        uuids.extend(cards.filter_map(|(bdf, card)| Some((bdf, card.uuid?))));
    }
    let devices = counted(topology);
    let functions: Vec<Bdf> = devices.iter().map(|(_, device)| device.bdf).collect();
    let uses = current_users(world, topology, held, &functions)?;
    let nothing = nothing_passes(world, topology, assume)?;
    let uses = (&uses[..], nothing.as_deref());
    let mut rows = listed_gpus(topology, held, &devices, uses, &uuids);
    let mut states = gpu_states::listed(world)?;
    for row in &mut rows {
        row.test = states.remove(&row.bdf);
    }
    Ok(rows)
}

fn listed_device(
    device: &PciDevice,
    topology: &Topology,
    held: &Occupancy,
    (uses, nothing): (&[Use], Option<&str>),
    at_boot: &BTreeSet<Bdf>,
) -> ListedDevice {
    let bdf = device.bdf;
    let having = held.domains.iter().filter(|domain| domain.devices.contains(&bdf));
    let domains: BTreeSet<String> = having.clone().map(|domain| domain.domain.clone()).collect();
    let off = having.filter(|domain| !domain.active);
    let off = off.map(|domain| match domain.moved_from(bdf) {
        Some(_) => domain.holds(bdf),
        None => format!("{}, which is off", domain.holds(bdf)),
    });
    let Availability { state, why: judged, said } =
        Availability::of(topology, held, (uses, nothing), bdf);
    let excluded = held.exclusion_of(topology, bdf).filter(|_| state == DeviceState::Held);
    let excluded = excluded.map(|excluded| format!("is {}", excluded.says_of(bdf)));
    let mut why: Vec<String> = excluded.into_iter().chain(off).chain(judged).collect();
    why.dedup();
    ListedDevice {
        bdf,
        kind: device.kind(),
        model: model(device),
        node: device.node,
        driver: device.driver.clone(),
        iommu_group: device.iommu_group,
        reset_methods: device.reset_methods.clone().unwrap_or_default(),
        at_boot: at_boot.contains(&bdf),
        domains: domains.into_iter().collect(),
        used_by: uses.iter().filter(|used| used.bdf == bdf).cloned().collect(),
        passable: why.is_empty(),
        aside: said.filter(|_| why.is_empty()),
        why,
    }
}

/// Returns GPUs by index, then those set aside, NVSwitches, and unresponsive functions; each by
/// address.
fn counted(topology: &Topology) -> Vec<(Option<usize>, &PciDevice)> {
    let gpus = topology.gpus().enumerate().map(|(index, gpu)| (Some(index), gpu));
    let displays = topology.displays().map(|(gpu, _)| (None, gpu));
    let switches = topology.of_kind(DeviceKind::NvSwitch).map(|switch| (None, switch));
    let dead = topology.devices().iter().filter(|device| device.may_be_silent_gpu());
    let dead = dead.filter(|device| device.kind() == DeviceKind::Other).map(|dead| (None, dead));
    gpus.chain(displays).chain(switches).chain(dead).collect()
}

fn listed_gpus(
    topology: &Topology,
    held: &Occupancy,
    devices: &[(Option<usize>, &PciDevice)],
    (uses, nothing): (&[Use], Option<&str>),
    uuids: &BTreeMap<Bdf, String>,
) -> Vec<ListedGpu> {
    let row = |(index, device): &(Option<usize>, &PciDevice)| {
        let Availability { state, said: why, .. } =
            Availability::of(topology, held, (uses, nothing), device.bdf);
        let needs = topology.partitions().iter().filter(|partition| {
            partition.gpus.contains(&device.bdf) || partition.nvswitch_pool.contains(&device.bdf)
        });
        ListedGpu {
            index: *index,
            bdf: device.bdf,
            uuid: uuids.get(&device.bdf).or(device.uuid.as_ref()).cloned(),
            model: model(device),
            node: device.node,
            partitions: needs.map(|partition| partition.id).collect(),
            state,
            why,
            test: None,
            health: device.health.clone(),
            vgpu: shared(device, topology, held),
            mig: device.mig,
            used_by: uses.iter().filter(|used| used.bdf == device.bdf).cloned().collect(),
        }
    };
    devices.iter().map(row).collect()
}
