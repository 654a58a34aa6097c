//! The partition of a guest that libvirt starts or has stopped, from the guest's XML alone: for
//! libvirt's hook, during which libvirt must not be called. It uses the XML, Fabric Manager, the
//! file of active partitions and the processes that have GPUs open.

use super::{FabricError, deactivation, refuse_candidates, with_functions};
use crate::apply::partition::{PartitionGpu, PartitionStep, Switch, Watched};
use crate::apply::{Quiet, apply, owner};
use crate::bdf::Bdf;
use crate::discover::discover;
use crate::domain::DomainXml;
use crate::error::{Class, Result, classed};
use crate::fsroot::FsRoot;
use crate::hypervisor::none::NoHypervisor;
use crate::partition::refuse_versions;
use crate::recognise::refuse_others;
use crate::topology::FabricModel;
use crate::vgpu;
use gpuvm_core::fabric::{Need, NeedRefusal, RestoreEntry, need, needs_of_vgpus};
use gpuvm_host::apply::bind::BindError;
use gpuvm_host::fabric::config::{Config, Mode};
use gpuvm_host::fabric::{Manager, ManagerRefusal, RestoreFile};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long to wait for another process that changes partitions: libvirt's start waits meanwhile.
const LOCK: Duration = Duration::from_secs(90);
const NVIDIA: u32 = 0x10de;
/// PCI base class of display controllers.
const DISPLAY: u32 = 0x03;

/// The action for a guest.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnsuredPartitions {
    /// Numbers of the partitions that are active for it, or were deactivated; none if it needs
    /// none.
    pub partitions: Vec<u32>,
}

/// Activates the partition of a domain's GPUs before it starts; does nothing if it needs none.
pub fn ensure(xml: &str) -> Result<EnsuredPartitions> {
    let xml = DomainXml::parse(xml)?;
    let uuid = uuid_of(&xml)?;
    let root = FsRoot::live()?;
    let none = EnsuredPartitions { partitions: Vec::new() };
    refuse_others(&xml, &root)?;
    set_vgpus(&xml, &root)?;
    if Config::read(&root)?.is_of_vgpu() {
        return ensure_vgpus(&xml, &uuid, &root);
    }
    let gpus = gpus(&root, &xml)?;
    // Guests without NVIDIA GPUs pass before anything is loaded.
    if gpus.is_empty() || !may_be_shared(&root)? {
        return Ok(none);
    }
    let topology = discover(&root)?;
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Ok(none);
    }
    let need = match need(&topology, &gpus) {
        Ok(None) => return Ok(none),
        Ok(Some(need)) => need,
        Err(why @ (NeedRefusal::None { .. } | NeedRefusal::UnknownGpus { .. })) => {
            // Without its library nothing is activated, whatever the guest.
            if let Err(refusal @ ManagerRefusal::Library { .. }) = Manager::of_host(&root)?.list() {
                return Err(FabricError::from(refusal).with_hint());
            }
            return Err(FabricError::NoPartition { domain: xml.name(), why }.with_hint());
        }
        Err(refusal) => return Err(FabricError::from(refusal).with_hint()),
    };
    refuse_versions(None)?;
    // Only the partition of all GPUs is known without their module ids, and then Fabric Manager
    // provides them.
    let listed = if need.modules().len() < need.gpus.len() {
        Manager::of_host(&root)?.list().map_err(|refusal| FabricError::from(refusal).with_hint())?
    } else {
        Vec::new()
    };
    let partition = need.partition;
    let Some(placed) = need.placed(&listed) else {
        return Err(FabricError::UnknownGpus { partition, domain: xml.name() }.with_hint());
    };
    let gpus = placed.into_iter().map(|(module, bdf)| PartitionGpu { module, bdf }).collect();
    let step = PartitionStep::new(partition, gpus, uuid);
    switched(&root, |switch| switch.activate(&step, &mut Watched(None), &mut |_| Ok(())))?;
    Ok(EnsuredPartitions { partitions: vec![step.partition] })
}

/// Activates the partitions of a domain's vGPUs.
fn ensure_vgpus(xml: &DomainXml, uuid: &str, root: &FsRoot) -> Result<EnsuredPartitions> {
    let mut done = EnsuredPartitions { partitions: Vec::new() };
    let vgpus = xml.vgpus()?;
    if vgpus.is_empty() {
        return Ok(done);
    }
    let needs = needs_of_vgpus(&discover(root)?, &vgpus)
        .map_err(|why| FabricError::NoPartition { domain: xml.name(), why }.with_hint())?;
    if needs.is_empty() {
        return Ok(done);
    }
    refuse_versions(None)?;
    for step in needs.iter().filter_map(|need| PartitionStep::of(need, &[], uuid)) {
        switched(root, |switch| switch.activate(&step, &mut Watched(None), &mut |_| Ok(())))?;
        done.partitions.push(step.partition);
    }
    Ok(done)
}

/// Sets the types of a domain's vGPUs and makes its mediated devices, which are lost at a restart of
/// the host.
fn set_vgpus(xml: &DomainXml, root: &FsRoot) -> Result<()> {
    let vgpus = xml.vgpus()?;
    if vgpus.is_empty() {
        return Ok(());
    }
    let steps = vgpu::claim::steps(&xml.name(), &vgpus, &discover(root)?)?;
    Ok(apply(&steps, &NoHypervisor, &mut Quiet, None)?)
}

/// The UUID of a domain, lower case, by which its partition is deactivated once it is off.
fn uuid_of(xml: &DomainXml) -> Result<String> {
    let uuid = xml.uuid().map(|uuid| uuid.trim().to_ascii_lowercase());
    uuid.filter(|uuid| !uuid.is_empty()).ok_or_else(|| {
        let hint = "`virsh dumpxml NAME` prints the definition with the UUID that libvirt has \
                    given it";
        let message = format!(
            "the definition of domain `{}` has no UUID, by which its NVLink partition is found \
             again",
            xml.name()
        );
        classed(Class::Refused, message, hint)
    })
}

/// Deactivates the partitions activated for a stopped domain, and no others.
pub fn release_of(xml: &str) -> Result<EnsuredPartitions> {
    let xml = DomainXml::parse(xml)?;
    let uuid = uuid_of(&xml)?;
    let list = RestoreFile::read(RestoreFile::here());
    let list = list.map_err(|error| FabricError::from(error).with_hint())?;
    let mut done = EnsuredPartitions { partitions: Vec::new() };
    if list.partitions.is_empty() {
        return Ok(done);
    }
    let root = FsRoot::live()?;
    let is_of_vgpu = Config::read(&root)?.is_of_vgpu();
    let vgpus = if is_of_vgpu { xml.vgpus()? } else { Vec::new() };
    let is_its = |entry: &&RestoreEntry| entry.domain.eq_ignore_ascii_case(&uuid);
    if vgpus.is_empty() && !list.partitions.iter().any(|entry| is_its(&entry)) {
        return Ok(done);
    }
    let topology = discover(&root)?;
    // A partition of a GPU that guests share may be recorded for another one.
    let shared = needs_of_vgpus(&topology, &vgpus).unwrap_or_default();
    let is_shared = |entry: &&RestoreEntry| {
        let is_it = |need: &Need| need.partition == entry.id && !need.beside.is_empty();
        shared.iter().any(is_it)
    };
    for entry in list.partitions.iter().filter(|entry| is_its(entry) || is_shared(entry)) {
        let step = deactivation(&topology, entry);
        let step = if is_of_vgpu { with_functions(step, &topology) } else { step };
        if let Err(refused) = refuse_candidates(&step, &NoHypervisor) {
            if let Err(refusal @ ManagerRefusal::Library { .. }) = Manager::of_host(&root)?.list() {
                return Err(FabricError::from(refusal).with_hint());
            }
            return Err(refused.with_hint());
        }
        switched(&root, |switch| switch.deactivate(&step, &mut Watched(None), &mut |_| Ok(())))?;
        done.partitions.push(entry.id);
    }
    Ok(done)
}

/// Whether partitions of whole GPUs may be shared according to Fabric Manager's file; only then is
/// the host examined.
fn may_be_shared(root: &FsRoot) -> Result<bool> {
    let config = Config::read(root)?;
    Ok(config.mode != Some(Mode::Passthrough))
}

/// Returns the NVIDIA GPUs that a domain gets as a whole.
fn gpus(root: &FsRoot, xml: &DomainXml) -> Result<Vec<Bdf>> {
    let mut gpus = BTreeSet::new();
    for bdf in xml.held(true)?.devices {
        let Some(dir) = root.dir(&format!("sys/bus/pci/devices/{bdf}"))? else { continue };
        let is_nvidia = dir.hex::<u32>("vendor")? == Some(NVIDIA);
        if is_nvidia && dir.hex::<u32>("class")?.is_some_and(|class| class >> 16 == DISPLAY) {
            gpus.insert(bdf);
        }
    }
    Ok(gpus.into_iter().collect())
}

/// Works with Fabric Manager without libvirt: owners of GPUs are found by processes.
fn switched(
    root: &FsRoot,
    work: impl FnOnce(&Switch<'_>) -> Result<(), gpuvm_host::apply::partition::PartitionError>,
) -> Result<()> {
    let manager = Manager::of_host(root)?;
    let guests = |functions: &[Bdf]| -> std::result::Result<(), BindError> {
        owner::on_this_machine(&NoHypervisor, false, |look| look.free_of_guests(functions))
    };
    let file = RestoreFile::here();
    let done = work(&Switch { manager: &manager, file, wait: LOCK, guests: &guests });
    done.map_err(|error| FabricError::from(error).with_hint())
}
