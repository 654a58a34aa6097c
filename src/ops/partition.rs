//! The NVLink partition of a guest if Fabric Manager controls the NVSwitches: active before the
//! guest starts, inactive when it is off. [`gpuvm_core::fabric`] decides which one a set of GPUs
//! needs, for `create`, `start`, `stop`, `restart`, `delete` and the libvirt hook alike.

mod error;

pub use error::FabricError;

use crate::apply::partition::{PartitionGpu, PartitionStep, Partitions};
use crate::apply::{DeviceStep, PartitionChange, Step};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::error::{Doing as _, Result};
use crate::fabric_desk::FabricDesk;
use crate::fsroot::FsRoot;
use crate::hypervisor::{HypervisorErrorKind, XmlOf};
use crate::placement::GuestVgpu;
use crate::topology::{DeviceKind, FabricModel, PciDevice, Topology, is_vfio};
use crate::world::World;
use gpuvm_core::fabric::{
    Call, CardShare, Decision, Domain, FabricVersions, Listed, Meaning, Modules, Need, NeedRefusal,
    NeededPartition, Readiness, RestoreEntry, RestoreList, Running, Unready, VersionsApart,
    by_record, decide, need, needs_of_vgpus, refusals, vgpus_of_domain,
};
use gpuvm_host::fabric::config::Config;
use gpuvm_host::fabric::program::versions;
use gpuvm_host::fabric::{Manager, RestoreFile, RestoreFileError};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A guest whose partition is managed.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UUID, with dashes; `None` if not assigned yet, or a recorded host.
    pub uuid: Option<&'a str>,
    /// Its PCI functions.
    pub devices: &'a [Bdf],
    /// Its vGPUs.
    pub vgpus: &'a [GuestVgpu],
}

/// Refuses to activate a partition if the versions of Fabric Manager, the driver and the client
/// library differ. Unknown versions are not compared. `known`: the caller's versions; `None` for
/// those of this machine.
pub fn refuse_versions(known: Option<&FabricVersions>) -> Result<()> {
    let found = match known {
        Some(versions) => versions.clone(),
        None => versions(&FsRoot::live()?),
    };
    apart(&found).map_or(Ok(()), |error| Err(error.with_hint()))
}

/// Returns the error of versions that differ; `None` if they do not.
fn apart(found: &FabricVersions) -> Option<FabricError> {
    Some(match found.apart()? {
        VersionsApart::Driver { manager, driver } => FabricError::Versions { manager, driver },
        VersionsApart::Library { manager, library } => {
            FabricError::LibraryVersion { manager, library }
        }
    })
}

/// Fabric Manager of this machine, if it controls NVSwitches that are passed to no guest.
fn shared(world: &World, topology: &Topology) -> Result<Option<FabricDesk>> {
    if topology.fabric().model != FabricModel::SharedNvswitch || world.is_recorded() {
        return Ok(None);
    }
    if world.is_test() || !world.is_here()? {
        return Ok(None);
    }
    if let Some(known) = world.known_fabric() {
        return Ok(Some(known));
    }
    let config = Config::read(&FsRoot::live()?)?;
    Ok(Some(FabricDesk {
        is_of_vgpu: config.is_of_vgpu(),
        manager: Rc::new(Manager::at(config.address)),
        file: RestoreFile::here().to_owned(),
        versions: None,
    }))
}

/// The recorded partitions of this machine, for a guest without a function that leads to them.
fn remembered(world: &World) -> Result<RestoreList, RestoreFileError> {
    let known = world.known_fabric();
    known.map_or_else(|| RestoreFile::read(RestoreFile::here()), |desk| desk.remembered())
}

/// The steps that a guest needs between the reset of its GPUs and its start; none if it needs no
/// partition. Fabric Manager is asked, so that nothing is bound for a guest that cannot get it; for
/// a recorded host the record decides.
pub fn to_start(world: &World, topology: &Topology, guest: Guest<'_>) -> Result<Vec<Step>> {
    let desk = shared(world, topology)?;
    if desk.is_none() && !world.is_recorded() {
        return Ok(Vec::new());
    }
    let needs = needed(topology, guest, desk.as_ref())?;
    let Some(desk) = desk.filter(|_| !needs.is_empty()) else {
        let uuid = guest.uuid.unwrap_or_default();
        let steps = needs.iter().filter_map(|need| PartitionStep::of(need, &[], uuid));
        return Ok(steps.map(PartitionChange::Activate).map(Step::Partition).collect());
    };
    refuse_versions(desk.versions.as_ref())?;
    let listed = listed(&*desk.manager, &needs, topology, guest)?;
    let running = running(world, topology)?;
    let file = desk.remembered().map_err(|e| FabricError::from(e).with_hint())?;
    let mut steps = Vec::new();
    for need in &needs {
        let step = activation(need, &listed, guest)?;
        match decide(&asked(&step), &listed, &running, &file) {
            // A stop that is just ending may still deactivate it; the step checks again, and does
            // nothing if it is active.
            Decision::Activate | Decision::AlreadySo => {
                steps.push(Step::Partition(PartitionChange::Activate(step)));
            }
            Decision::Refused(refusal) => return Err(FabricError::from(refusal).with_hint()),
        }
    }
    Ok(steps)
}

/// What keeps partitions from being activated for guests that do not exist yet, or are off: what
/// [`to_start`] would refuse, of all partitions of this machine. Fabric Manager is asked only where
/// it controls NVSwitches. `assume_empty`: what domains have keeps none, and libvirt need not
/// answer.
pub fn readiness(world: &World, topology: &Topology, assume_empty: bool) -> Result<Readiness> {
    // vGPUs are not planned by partition.
    let desk = shared(world, topology)?.filter(|desk| !desk.is_of_vgpu);
    let Some(desk) = desk else { return Ok(Readiness::default()) };
    let versions = match &desk.versions {
        Some(versions) => versions.clone(),
        None => versions(&FsRoot::live()?),
    };
    let unready = |error: FabricError| {
        let unready = Unready { why: error.to_string(), hint: error.helps() };
        Ok(Readiness { unready: Some(unready), ..Readiness::default() })
    };
    if let Some(error) = apart(&versions) {
        return unready(error);
    }
    let mut listed = match desk.manager.list() {
        Ok(listed) => listed,
        Err(why) if why.meaning(Call::List) == Meaning::Starting => by_record(topology),
        Err(why) => return unready(why.into()),
    };
    let file = match desk.remembered() {
        Ok(file) => file,
        Err(error) => return unready(error.into()),
    };
    // Without a hypervisor the owner of an active partition is unknown.
    let answers = if assume_empty {
        world.hypervisor().is_ok()
    } else {
        world.hypervisor_to_look()?.is_some()
    };
    if !answers {
        return Ok(Readiness::default());
    }
    let mut running = running(world, topology)?;
    if assume_empty {
        for one in &mut listed {
            let modules = one.modules();
            let has = |domain: &Running| domain.has_any(&modules) || domain.may_have_any(&modules);
            one.active &= !running.iter().any(has);
        }
        running.clear();
    }
    Ok(refusals(topology, &listed, &running, &file))
}

/// The steps between the stop and the start of a restarted guest: the partition active for the
/// running guest is deactivated, its GPUs are reset, and the partition that its definition needs is
/// activated. Refused before the stop if the start would be.
pub fn to_restart(world: &World, live: &DomainXml, defined: &DomainXml) -> Result<Vec<Step>> {
    let (mut steps, next) = between(world, (live, defined), (true, true))?;
    steps.extend(next.into_iter().map(PartitionChange::Activate).map(Step::Partition));
    Ok(steps)
}

/// The steps for a guest that is off and gets other functions: a partition that is still active for
/// it is deactivated, and its GPUs are reset. Its start activates the next one; refused if that
/// would be.
pub fn to_change(world: &World, before: &DomainXml, after: &DomainXml) -> Result<Vec<Step>> {
    Ok(between(world, (before, after), (false, true))?.0)
}

/// The steps for a guest that gets other GPUs and starts again, if it `ran`: those that deactivate
/// and reset its present ones, which can be undone, and the one before its start. If its start
/// would be refused, this is refused before it is stopped; the needs of one that was off are
/// checked at its next start.
pub fn to_move(
    world: &World,
    before: &DomainXml,
    after: &DomainXml,
    ran: bool,
) -> Result<(Vec<Step>, Vec<Step>)> {
    let (mut steps, next) = between(world, (before, after), (ran, ran))?;
    for step in steps.iter_mut().filter(|_| ran) {
        if let Step::Partition(PartitionChange::Deactivate(down)) = step {
            // Where the move fails, the guest starts with it.
            down.may_wait = false;
        }
    }
    Ok((steps, next.into_iter().map(PartitionChange::Activate).map(Step::Partition).collect()))
}

/// The steps that end the guest's state with its functions before, and the partitions that it needs
/// with those after; `ran`: it runs until then, `starts`: it is refused if its start would be.
fn between(
    world: &World,
    (before, after): (&DomainXml, &DomainXml),
    (ran, starts): (bool, bool),
) -> Result<(Vec<Step>, Vec<PartitionStep>)> {
    if world.is_test() || !world.has_guests_here()? {
        return Ok((Vec::new(), Vec::new()));
    }
    let (name, uuid) = (after.name(), after.uuid());
    let (had, vgpus) = (before.vgpus()?, after.vgpus()?);
    let (before, after) = (before.held(true)?.devices, after.held(false)?.devices);
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &before, vgpus: &had };
    if after.is_empty() && vgpus.is_empty() && !may_have(world, guest) {
        return Ok((Vec::new(), Vec::new()));
    }
    let topology = world.topology()?;
    let down = once_off(world, &topology, guest, ran)?;
    let steps = with_resets(&down, guest, ran, &topology, world)?;
    let desk = shared(world, &topology)?.filter(|_| starts);
    let Some(desk) = desk else { return Ok((steps, Vec::new())) };
    let guest = Guest { devices: &after, vgpus: &vgpus, ..guest };
    let needs = needed(&topology, guest, Some(&desk))?;
    if needs.is_empty() {
        return Ok((steps, Vec::new()));
    }
    refuse_versions(desk.versions.as_ref())?;
    let mut listed = listed(&*desk.manager, &needs, &topology, guest)?;
    // The old activation ends before the new one begins.
    let is_down = |id: u32| down.iter().any(|step| step.partition == id);
    listed.iter_mut().filter(|one| is_down(one.id)).for_each(|one| one.active = false);
    let mut others = running(world, &topology)?;
    others.retain(|one| Some(one.domain.uuid.as_str()) != guest.uuid);
    let mut next = Vec::new();
    for need in &needs {
        let step = activation(need, &listed, guest)?;
        match decide(&asked(&step), &listed, &others, &RestoreList::default()) {
            Decision::Refused(refusal) => return Err(FabricError::from(refusal).with_hint()),
            Decision::Activate | Decision::AlreadySo => next.push(step),
        }
    }
    Ok((steps, next))
}

/// The partitions to deactivate once a guest is off: those active for it. If Fabric Manager does
/// not answer, this is left for later, since the guest is off anyway. Never prevents a stop. `ran`:
/// whether the guest runs until then.
fn once_off(
    world: &World,
    topology: &Topology,
    guest: Guest<'_>,
    ran: bool,
) -> Result<Vec<PartitionStep>> {
    let (Some(desk), Some(uuid)) = (shared(world, topology)?, guest.uuid) else {
        return Ok(Vec::new());
    };
    let file = match desk.remembered() {
        Ok(file) => file,
        Err(error) => {
            world.warning(&format!("{error}; `gpuvm fabric show` tells what stays active"));
            return Ok(Vec::new());
        }
    };
    let is_its = |entry: &&RestoreEntry| entry.domain.eq_ignore_ascii_case(uuid);
    let wanted = needs(topology, guest, Some(&desk));
    let entries: Vec<RestoreEntry> = file.partitions.iter().filter(is_its).cloned().collect();
    if wanted.as_ref().is_ok_and(Vec::is_empty) && entries.is_empty() {
        return Ok(Vec::new());
    }
    let listed = desk.manager.list();
    let wanted = wanted.unwrap_or_default();
    if desk.is_of_vgpu {
        let at_end = AtEnd { file: &file, listed: listed.as_deref().ok(), ran };
        return Ok(of_vgpus_once_off(topology, guest, &wanted, &at_end));
    }
    let wanted = wanted.first();
    let mut steps: Vec<PartitionStep> = Vec::new();
    for entry in entries {
        if listed.as_ref().is_ok_and(|listed| !is_active(listed, entry.id, &entry.modules)) {
            continue;
        }
        steps.push(of_entry(&entry, topology, guest));
    }
    // A partition that was activated by others, or whose record is lost: a guest that runs with all
    // of its GPUs is its only user.
    if ran
        && let (Some(wanted), Ok(listed)) = (wanted, &listed)
        && let Some(step) = PartitionStep::of(wanted, listed, uuid)
        && is_active(listed, step.partition, &step.modules())
        && !steps.iter().any(|known| known.partition == step.partition)
        && file.get(step.partition).is_none_or(|entry| is_its(&entry))
    {
        steps.push(step);
    }
    if let (true, Ok(listed)) = (ran, &listed) {
        let of_others = |id: u32| file.get(id).is_some_and(|entry| !is_its(&entry));
        let is_known = |id: u32| of_others(id) || steps.iter().any(|step| step.partition == id);
        left_active(world, topology, guest, listed.iter().filter(|one| !is_known(one.id)));
    }
    Ok(steps.into_iter().map(|step| PartitionStep { may_wait: true, ..step }).collect())
}

/// The partitions that are known as a guest goes off.
struct AtEnd<'a> {
    /// The recorded activations.
    file: &'a RestoreList,
    /// Fabric Manager's list; `None` if it gives none.
    listed: Option<&'a [Listed]>,
    /// Whether the guest runs until then.
    ran: bool,
}

/// The partitions to deactivate once a guest with vGPUs is off: those recorded for it, and those of
/// its vGPUs, if they are active. A partition of a GPU that guests share may be recorded for
/// another guest; the step leaves it while another guest has a vGPU of that GPU.
fn of_vgpus_once_off(
    topology: &Topology,
    guest: Guest<'_>,
    needs: &[Need],
    at_end: &AtEnd<'_>,
) -> Vec<PartitionStep> {
    let AtEnd { file, listed, ran } = at_end;
    let uuid = guest.uuid.unwrap_or_default();
    let is_its = |entry: &RestoreEntry| entry.domain.eq_ignore_ascii_case(uuid);
    let own = needs.iter().filter_map(|need| PartitionStep::of(need, &[], uuid));
    let is_last = |step: &PartitionStep| match file.get(step.partition) {
        Some(entry) => is_its(entry) || !step.beside.is_empty(),
        None => *ran,
    };
    let mut steps: Vec<PartitionStep> = own.filter(is_last).collect();
    for entry in file.partitions.iter().filter(|entry| is_its(entry)) {
        let is_it =
            |step: &PartitionStep| step.partition == entry.id && step.modules() == entry.modules;
        if !steps.iter().any(is_it) {
            // It had other vGPUs when it started: all functions of the GPUs may be others' now.
            let step = of_entry(entry, topology, guest);
            let vfs = step.gpus.iter().flat_map(|gpu| topology.vfs_of(gpu.bdf));
            let beside = vfs.map(|vf| vf.bdf).collect();
            steps.push(PartitionStep { beside, ..step });
        }
    }
    if let Some(listed) = listed {
        steps.retain(|step| is_active(listed, step.partition, &step.modules()));
    }
    steps.into_iter().map(|step| PartitionStep { may_wait: true, ..step }).collect()
}

/// Warns of those of these partitions that stay active with GPUs of a guest although their known
/// GPUs differ from the guest's: one may have left the bus. Whether they are only this guest's
/// cannot be determined.
fn left_active<'l>(
    world: &World,
    topology: &Topology,
    guest: Guest<'_>,
    listed: impl Iterator<Item = &'l Listed>,
) {
    let module_ids = &topology.fabric().module_ids;
    let known = module_ids.iter().filter(|(bdf, _)| guest.devices.contains(bdf));
    let modules: Modules = known.map(|(_, module)| *module).collect();
    for id in listed.filter(|one| one.active && one.has_any(&modules)).map(|one| one.id) {
        world.warning(&format!(
            "NVLink partition {id} has GPUs of domain `{}` and stays active: not all GPUs of it \
             are known as this guest's; once it is off, `gpuvm fabric release {id}` deactivates it",
            guest.name
        ));
    }
}

/// The steps of a guest that is deleted, once it is off; its GPUs are reset as they are released.
pub fn once_gone(world: &World, xml: &DomainXml, ran: bool) -> Result<Vec<Step>> {
    let (devices, vgpus) = (xml.held(true)?.devices, xml.vgpus()?);
    let (name, uuid) = (xml.name(), xml.uuid());
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &devices, vgpus: &vgpus };
    let down = looked_at(world, guest, ran)?.map(|(down, _)| down).unwrap_or_default();
    Ok(down.into_iter().map(PartitionChange::Deactivate).map(Step::Partition).collect())
}

/// The steps of a guest that is stopped and stays defined: its partition is deactivated, and its
/// GPUs are reset, so that none of its data is left in them.
pub fn once_stopped(world: &World, xml: &DomainXml, ran: bool) -> Result<Vec<Step>> {
    let (devices, vgpus) = (xml.held(true)?.devices, xml.vgpus()?);
    let (name, uuid) = (xml.name(), xml.uuid());
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &devices, vgpus: &vgpus };
    match looked_at(world, guest, ran)? {
        Some((down, topology)) => with_resets(&down, guest, ran, &topology, world),
        None => Ok(Vec::new()),
    }
}

/// The partitions to deactivate once a guest is off, and the examined host; `None` if the guest has
/// no devices of this machine.
fn looked_at(
    world: &World,
    guest: Guest<'_>,
    ran: bool,
) -> Result<Option<(Vec<PartitionStep>, Topology)>> {
    if world.is_test() || !may_have(world, guest) || !world.has_guests_here()? {
        return Ok(None);
    }
    let topology = world.topology()?;
    Ok(Some((once_off(world, &topology, guest, ran)?, topology)))
}

/// Whether a guest may have a partition: it has functions of the host, or had some when one was
/// activated for it. For a guest without functions an unreadable list does not matter.
fn may_have(world: &World, guest: Guest<'_>) -> bool {
    let is_its = |entry: &RestoreEntry| {
        guest.uuid.is_some_and(|uuid| entry.domain.eq_ignore_ascii_case(uuid))
    };
    !guest.devices.is_empty()
        || !guest.vgpus.is_empty()
        || remembered(world).is_ok_and(|file| file.partitions.iter().any(is_its))
}

/// The steps that deactivate partitions and then reset their GPUs; for a guest that `ran` with
/// NVSwitches, all of its GPUs and NVSwitches. Only devices bound for guests are reset; an excluded
/// one may not respond.
fn with_resets(
    down: &[PartitionStep],
    guest: Guest<'_>,
    ran: bool,
    topology: &Topology,
    world: &World,
) -> Result<Vec<Step>> {
    let mut functions: Vec<Bdf> =
        down.iter().flat_map(|step| &step.gpus).map(|gpu| gpu.bdf).collect();
    if ran && guest.devices.iter().any(|bdf| is_switch(topology, *bdf)) {
        functions.extend(reset(guest.devices, Some(&FsRoot::live()?), topology));
    }
    if functions.is_empty() {
        return Ok(down
            .iter()
            .cloned()
            .map(PartitionChange::Deactivate)
            .map(Step::Partition)
            .collect());
    }
    let excluded = world.excluded()?;
    // `driver_override` is not read: that blocks forever if an unbind hangs.
    let is_reset = |bdf: &Bdf| {
        let driver = topology.device(*bdf).and_then(|device| device.driver.as_deref());
        driver.is_some_and(is_vfio) && !excluded.iter().any(|one| one.bdf == *bdf)
    };
    let resets = functions.into_iter().filter(is_reset);
    let resets = resets.map(|bdf| Step::Device(DeviceStep::Reset { bdf, back: true }));
    Ok(down
        .iter()
        .cloned()
        .map(PartitionChange::Deactivate)
        .map(Step::Partition)
        .chain(resets)
        .collect())
}

/// The hint if Fabric Manager of the host controls NVSwitches that a guest needs.
pub const MANAGER_OFF: &str = "`systemctl disable --now nvidia-fabricmanager` ends it, now and at \
                               boot: a guest with NVSwitches runs its own";

/// Whether a function is an NVSwitch.
pub fn is_switch(topology: &Topology, bdf: Bdf) -> bool {
    topology.device(bdf).is_some_and(|device| device.kind() == DeviceKind::NvSwitch)
}

/// Whether a function is an NVSwitch bound to NVIDIA's driver, through which Fabric Manager
/// controls it: `nvidia-nvswitch` is the driver's name for them, `nvidia` its module
/// (open-gpu-kernel-modules, linux_nvswitch.c).
pub fn is_managed(topology: &Topology, bdf: Bdf) -> bool {
    let driver = topology.device(bdf).and_then(|device| device.driver.as_deref());
    is_switch(topology, bdf) && matches!(driver, Some("nvidia" | "nvidia-nvswitch"))
}

/// Which of a guest's functions are reset before it gets them and after it releases them, in this
/// order: its GPUs, then its NVSwitches ("Fabric Manager User Guide", full passthrough), if the
/// kernel knows how to reset one. `root`: this machine; `None` for a recorded host.
pub fn reset(functions: &[Bdf], root: Option<&FsRoot>, topology: &Topology) -> Vec<Bdf> {
    let kind = |bdf: &Bdf| topology.device(*bdf).map(PciDevice::kind);
    let can = |bdf: &Bdf| match root {
        Some(root) => root.exists(&format!("sys/bus/pci/devices/{bdf}/reset")),
        None => topology
            .device(*bdf)
            .is_some_and(|device| device.reset_methods.as_ref().is_some_and(|all| !all.is_empty())),
    };
    let gpus = functions.iter().filter(|bdf| kind(bdf) == Some(DeviceKind::Gpu));
    let switches = functions.iter().filter(|bdf| kind(bdf) == Some(DeviceKind::NvSwitch));
    gpus.chain(switches.filter(|bdf| can(bdf))).copied().collect()
}

/// The partitions that a guest needs by the known topology of the host: those of its vGPUs in the
/// mode for them, that of its GPUs in the other. `desk`: `None` for a recorded host.
fn needs(
    topology: &Topology,
    guest: Guest<'_>,
    desk: Option<&FabricDesk>,
) -> std::result::Result<Vec<Need>, NeedRefusal> {
    match desk {
        Some(desk) if desk.is_of_vgpu => needs_of_vgpus(topology, guest.vgpus),
        None if !guest.vgpus.is_empty() => needs_of_vgpus(topology, guest.vgpus),
        _ => Ok(need(topology, guest.devices)?.into_iter().collect()),
    }
}

/// The same; an error says of which guest.
fn needed(topology: &Topology, guest: Guest<'_>, desk: Option<&FabricDesk>) -> Result<Vec<Need>> {
    let failed = || format!("CUDA would not work in domain `{}`", guest.name);
    let found = needs(topology, guest, desk);
    found.map_err(|why| FabricError::from(why).with_hint()).doing(failed)
}

/// Fabric Manager's list. While it is starting, the known topology of the host is used: the step
/// waits for it, and compares.
fn listed(
    manager: &dyn Partitions,
    wanted: &[Need],
    topology: &Topology,
    guest: Guest<'_>,
) -> Result<Vec<Listed>> {
    match manager.list() {
        Ok(listed) => Ok(listed),
        Err(why) if why.meaning(Call::List) == Meaning::Starting => Ok(by_record(topology)),
        Err(why) => {
            let partition = wanted.first().map(|need| need.partition).unwrap_or_default();
            let domain = guest.name.to_owned();
            Err(FabricError::Unreachable { partition, domain, why }.with_hint())
        }
    }
}

/// The step that activates a partition.
fn activation(wanted: &Need, listed: &[Listed], guest: Guest<'_>) -> Result<PartitionStep> {
    PartitionStep::of(wanted, listed, guest.uuid.unwrap_or_default()).ok_or_else(|| {
        let (partition, domain) = (wanted.partition, guest.name.to_owned());
        FabricError::UnknownGpus { partition, domain }.with_hint()
    })
}

/// The wanted partition of a step.
fn asked(step: &PartitionStep) -> NeededPartition {
    let (domain, is_shared) = (step.domain.clone(), !step.beside.is_empty());
    NeededPartition { partition: step.partition, modules: step.modules(), domain, is_shared }
}

/// Whether a partition of these modules is listed as active.
fn is_active(listed: &[Listed], id: u32, modules: &Modules) -> bool {
    listed.iter().any(|one| one.id == id && one.active && one.modules() == *modules)
}

/// The step for a remembered partition. If the address of a module is not known, the guest's own
/// GPUs are used; a module whose GPU has left the bus still belongs to the partition.
fn of_entry(entry: &RestoreEntry, topology: &Topology, guest: Guest<'_>) -> PartitionStep {
    let known = &topology.fabric().module_ids;
    let address = |module: &u32| known.iter().find(|(_, id)| id == module).map(|(bdf, _)| *bdf);
    let placed: BTreeSet<Bdf> = entry.modules.iter().filter_map(address).collect();
    let board: BTreeSet<Bdf> = topology.ruled().collect();
    let is_free = |bdf: &&Bdf| board.contains(bdf) && !placed.contains(bdf);
    let mut free = guest.devices.iter().filter(is_free).copied();
    let gpu = |&module: &u32| {
        Some(PartitionGpu { module, bdf: address(&module).or_else(|| free.next())? })
    };
    let gpus: Vec<PartitionGpu> = entry.modules.iter().filter_map(gpu).collect();
    let found: Modules = gpus.iter().map(|gpu| gpu.module).collect();
    let lost = entry.modules.difference(&found).copied().collect();
    let step = PartitionStep::new(entry.id, gpus, entry.domain.clone());
    PartitionStep { lost, may_wait: true, ..step }
}

/// Returns the module ids whose GPU is known.
pub fn placed(topology: &Topology) -> Modules {
    topology.fabric().module_ids.iter().map(|(_, module)| *module).collect()
}

/// The domains that run, with the GPUs of the board that each has.
pub fn running(world: &World, topology: &Topology) -> Result<Vec<Running>> {
    let hypervisor = world.hypervisor()?;
    let board: BTreeSet<Bdf> = topology.ruled().collect();
    let mut all = Vec::new();
    for row in hypervisor.domains()? {
        if !row.state.is_active() {
            continue;
        }
        let text = match hypervisor.xml(&row.name, XmlOf::Live) {
            // It has ended since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
            text => text?,
        };
        let failed = || format!("cannot tell which GPUs domain `{}` has", row.name);
        let xml = DomainXml::parse(&text).doing(failed)?;
        let held = xml.held(true).doing(failed)?;
        let mut one = Running {
            domain: Domain { name: row.name.clone(), uuid: row.uuid.clone() },
            modules: Modules::new(),
            unknown: 0,
            placed: placed(topology),
            vgpus: Modules::new(),
            parts: Modules::new(),
            functions: BTreeMap::new(),
        };
        let known = &topology.fabric().module_ids;
        let module = |gpu: Bdf| known.iter().find(|(bdf, _)| *bdf == gpu).map(|(_, id)| *id);
        for gpu in held.devices.iter().filter(|bdf| board.contains(bdf)) {
            match module(*gpu) {
                Some(module) => drop(one.modules.insert(module)),
                None => one.unknown += 1,
            }
        }
        let recorded = xml.vgpus().doing(failed)?;
        for vgpu in vgpus_of_domain(topology, &recorded, &held.devices, &xml.mediated()) {
            match module(vgpu.card) {
                _ if vgpu.share == CardShare::Mig => {}
                Some(module) => {
                    one.modules.insert(module);
                    one.vgpus.insert(module);
                    one.functions.entry(module).or_insert(vgpu.function);
                    one.parts.extend((vgpu.share == CardShare::Part).then_some(module));
                }
                None => one.unknown += 1,
            }
        }
        all.push(one);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
