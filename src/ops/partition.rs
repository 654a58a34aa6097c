//! The NVLink partition of a guest where Fabric Manager keeps the NVSwitches: active before the guest starts, for nobody
//! when it is off. Which one a set of GPUs needs is decided by [`gpuvm_core::fabric`], by which `create`, `start`, `stop`,
//! `restart`, `delete` and what libvirt calls at a start agree.

use crate::apply::Step;
use crate::apply::partition::{PartitionGpu, PartitionStep};
use crate::bdf::Bdf;
use crate::domain::DomainXml;
use crate::error::{Coded, Doing as _, Error, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::{DomainState, HypervisorErrorKind, XmlOf};
use crate::shell::word;
use crate::topology::{FabricModel, Topology, is_vfio};
use crate::world::World;
use gpuvm_core::fabric::{
    Call, Decision, Domain, Listed, Meaning, Modules, Need, NeedRefusal, PartitionRefusal,
    RestoreEntry, RestoreList, Running, Wanted, by_record, decide, need,
};
use gpuvm_host::fabric::config::Config;
use gpuvm_host::fabric::{Manager, ManagerRefusal, RestoreFile, RestoreFileError};
use std::collections::BTreeSet;

/// Why the partition of a guest is not activated.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "partition-")]
pub enum ActivationError {
    /// No partition can be.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Need(#[from] NeedRefusal),
    /// Fabric Manager does not answer, so that the guest would have no working CUDA.
    #[error(
        "NVLink partition {partition} cannot be activated for domain `{domain}`, which has no working CUDA without it: {why}"
    )]
    #[strum(to_string = "unreachable")]
    Manager {
        /// The partition.
        partition: u32,
        /// The domain.
        domain: String,
        /// Why.
        why: ManagerRefusal,
    },
    /// It is somebody's, or not what it was.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    Refused(#[from] PartitionRefusal),
    /// The file of active partitions.
    #[error("{0}")]
    #[strum(transparent, to_string = "")]
    File(#[from] RestoreFileError),
    /// Its GPUs are others than those that Fabric Manager lists.
    #[error(
        "NVLink partition {partition}: which modules the GPUs of domain `{domain}` are is not known"
    )]
    #[strum(to_string = "modules-unknown")]
    Modules {
        /// The partition.
        partition: u32,
        /// The domain.
        domain: String,
    },
}

impl Coded for ActivationError {}

impl ActivationError {
    /// It with what helps.
    fn told(self) -> Error {
        let hint = match &self {
            ActivationError::Need(why) => why.hint(),
            ActivationError::Manager { why, .. } => why
                .advice()
                .unwrap_or("`gpuvm fabric show` shows what Fabric Manager says")
                .to_owned(),
            ActivationError::Refused(refusal) => hint(refusal),
            ActivationError::File(_) => "`gpuvm fabric show` shows what is active".into(),
            ActivationError::Modules { .. } => {
                "`gpuvm host modules` shows which module ids are known".into()
            }
        };
        self.hint(hint)
    }
}

/// What helps where a partition is not activated.
pub fn hint(refusal: &PartitionRefusal) -> String {
    if let Some(partition) = refusal.stale() {
        return format!("`gpuvm fabric release {partition}` deactivates it");
    }
    match refusal {
        PartitionRefusal::Held { domain, .. }
        | PartitionRefusal::Overlap { domain: Some(domain), .. } => {
            format!("`gpuvm stop {}` ends it", word(&domain.name))
        }
        PartitionRefusal::Untold { .. } => {
            "`gpuvm host modules` shows which module ids are known".into()
        }
        _ => "`gpuvm fabric show` lists the partitions".into(),
    }
}

/// A guest whose partition is looked after.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UUID, with dashes; none: it has none yet, as on a recorded host.
    pub uuid: Option<&'a str>,
    /// The functions that it has.
    pub devices: &'a [Bdf],
}

/// Fabric Manager of this machine, where it keeps NVSwitches that are passed to nobody. Virtual GPUs get their partitions
/// by other means.
fn shared(world: &World, topology: &Topology) -> Result<Option<Manager>> {
    if topology.fabric().model != FabricModel::SharedNvswitch || world.is_recorded() {
        return Ok(None);
    }
    if world.is_test() || !world.is_here()? {
        return Ok(None);
    }
    let config = Config::read(&FsRoot::live()?)?;
    Ok((!config.is_of_vgpu()).then(|| Manager::at(config.address)))
}

/// The step that a guest needs between the reset of its GPUs and its start; none: it needs no partition. Fabric Manager is asked, so that nothing is bound for a guest that cannot get it; of a recorded host the record tells.
pub fn to_start(world: &World, topology: &Topology, guest: Guest<'_>) -> Result<Option<Step>> {
    let manager = shared(world, topology)?;
    if manager.is_none() && !world.is_recorded() {
        return Ok(None);
    }
    let Some(wanted) = needed(topology, guest)? else { return Ok(None) };
    let Some(manager) = manager else {
        let step = PartitionStep::of(&wanted, &[], guest.uuid.unwrap_or_default());
        return Ok(step.map(Step::ActivatePartition));
    };
    let listed = listed(&manager, &wanted, topology, guest)?;
    let running = running(world, topology)?;
    let file =
        RestoreFile::read(RestoreFile::here()).map_err(|e| ActivationError::from(e).told())?;
    let step = activation(&wanted, &listed, guest)?;
    match decide(&asked(&step), &listed, &running, &file) {
        // It may be deactivated by a stop that is just ending; the step looks again, and does nothing where it is so.
        Decision::Activate | Decision::AlreadySo => Ok(Some(Step::ActivatePartition(step))),
        Decision::Refused(refusal) => Err(ActivationError::from(refusal).told()),
    }
}

/// The steps of a guest that is stopped and started again, between both: what is active for it as it runs is deactivated,
/// its GPUs are reset, and what it needs as it is defined is activated. Refused before the stop where the start would be.
pub fn to_restart(world: &World, live: &DomainXml, defined: &DomainXml) -> Result<Vec<Step>> {
    if world.is_test() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let (before, after) = (live.held(true)?.devices, defined.held(false)?.devices);
    if before.is_empty() && after.is_empty() {
        return Ok(Vec::new());
    }
    let topology = world.topology()?;
    let Some(manager) = shared(world, &topology)? else { return Ok(Vec::new()) };
    let (name, uuid) = (defined.name(), defined.uuid());
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &before };
    let down = once_off(world, &topology, guest, true)?;
    let mut steps = with_resets(&down, &topology, world)?;
    let guest = Guest { devices: &after, ..guest };
    let Some(wanted) = needed(&topology, guest)? else { return Ok(steps) };
    let mut listed = listed(&manager, &wanted, &topology, guest)?;
    let step = activation(&wanted, &listed, guest)?;
    // Its own activation ends before it begins anew.
    let is_down = |id: u32| down.iter().any(|step| step.partition == id);
    listed.iter_mut().filter(|one| is_down(one.id)).for_each(|one| one.active = false);
    let mut others = running(world, &topology)?;
    others.retain(|one| Some(one.domain.uuid.as_str()) != guest.uuid);
    match decide(&asked(&step), &listed, &others, &RestoreList::default()) {
        Decision::Refused(refusal) => return Err(ActivationError::from(refusal).told()),
        Decision::Activate | Decision::AlreadySo => steps.push(Step::ActivatePartition(step)),
    }
    Ok(steps)
}

/// What is deactivated once a guest is off: what is active for it. Where Fabric Manager does not answer this is left for
/// later: the guest is off all the same. Never keeps a guest from being stopped. `ran`: whether it runs until then.
fn once_off(
    world: &World,
    topology: &Topology,
    guest: Guest<'_>,
    ran: bool,
) -> Result<Vec<PartitionStep>> {
    let (Some(manager), Some(uuid)) = (shared(world, topology)?, guest.uuid) else {
        return Ok(Vec::new());
    };
    let file = match RestoreFile::read(RestoreFile::here()) {
        Ok(file) => file,
        Err(error) => {
            world.warning(&format!("{error}; `gpuvm fabric show` tells what stays active"));
            return Ok(Vec::new());
        }
    };
    let is_its = |entry: &&RestoreEntry| entry.domain.eq_ignore_ascii_case(uuid);
    let wanted = need(topology, guest.devices).ok().flatten();
    if wanted.is_none() && !file.partitions.iter().any(|entry| is_its(&entry)) {
        return Ok(Vec::new());
    }
    let entries: Vec<RestoreEntry> = file.partitions.iter().filter(is_its).cloned().collect();
    let listed = manager.list();
    let mut steps: Vec<PartitionStep> = Vec::new();
    for entry in entries {
        if listed.as_ref().is_ok_and(|listed| !is_active(listed, entry.id, &entry.modules)) {
            continue;
        }
        steps.push(of_entry(&entry, topology, guest));
    }
    // One that was activated by others, or whose record is lost: a guest that runs with all of its GPUs is the only one to
    // use it.
    if ran
        && let (Some(wanted), Ok(listed)) = (&wanted, &listed)
        && let Some(step) = PartitionStep::of(wanted, listed, uuid)
        && is_active(listed, step.partition, &step.modules())
        && !steps.iter().any(|known| known.partition == step.partition)
        && file.get(step.partition).is_none_or(|entry| is_its(&entry))
    {
        steps.push(step);
    }
    Ok(steps.into_iter().map(|step| PartitionStep { may_wait: true, ..step }).collect())
}

/// The steps of a guest that is deleted, once it is off; its GPUs are reset as they are given back.
pub fn once_gone(world: &World, xml: &DomainXml, ran: bool) -> Result<Vec<Step>> {
    let down = looked_at(world, xml, ran)?.map(|(down, _)| down).unwrap_or_default();
    Ok(down.into_iter().map(Step::DeactivatePartition).collect())
}

/// The steps of a guest that is stopped and stays defined: its partition goes, and its GPUs are reset, so that nothing is
/// left of what it had in them.
pub fn once_stopped(world: &World, xml: &DomainXml, ran: bool) -> Result<Vec<Step>> {
    match looked_at(world, xml, ran)? {
        Some((down, topology)) => with_resets(&down, &topology, world),
        None => Ok(Vec::new()),
    }
}

/// What is deactivated once a guest is off, and the host as it was looked at; none: it has no function of this machine.
fn looked_at(
    world: &World,
    xml: &DomainXml,
    ran: bool,
) -> Result<Option<(Vec<PartitionStep>, Topology)>> {
    let devices = xml.held(true)?.devices;
    if devices.is_empty() || world.is_test() || !world.has_guests_here()? {
        return Ok(None);
    }
    let (name, uuid, topology) = (xml.name(), xml.uuid(), world.topology()?);
    let guest = Guest { name: &name, uuid: uuid.as_deref(), devices: &devices };
    Ok(Some((once_off(world, &topology, guest, ran)?, topology)))
}

/// The steps that deactivate partitions, and then reset their GPUs that are bound for guests. An excluded one may not
/// answer.
fn with_resets(down: &[PartitionStep], topology: &Topology, world: &World) -> Result<Vec<Step>> {
    if down.is_empty() {
        return Ok(Vec::new());
    }
    let excluded = world.excluded()?;
    // `driver_override` is not read: that waits for ever where an unbinding hangs.
    let is_reset = |bdf: &Bdf| {
        let driver = topology.device(*bdf).and_then(|device| device.driver.as_deref());
        driver.is_some_and(is_vfio) && !excluded.iter().any(|one| one.bdf == *bdf)
    };
    let gpus = down.iter().flat_map(|step| &step.gpus).map(|gpu| gpu.bdf).filter(is_reset);
    let resets = gpus.map(|bdf| Step::ResetDevice { bdf, back: true });
    Ok(down.iter().cloned().map(Step::DeactivatePartition).chain(resets).collect())
}

/// The partition that a guest needs by what is known of the host.
fn needed(topology: &Topology, guest: Guest<'_>) -> Result<Option<Need>> {
    let failed = || format!("domain `{}` would have no working CUDA", guest.name);
    need(topology, guest.devices).map_err(|why| ActivationError::from(why).told()).doing(failed)
}

/// Fabric Manager's list. While it is starting the host's own knowledge counts: the step waits for it, and compares.
fn listed(
    manager: &Manager,
    wanted: &Need,
    topology: &Topology,
    guest: Guest<'_>,
) -> Result<Vec<Listed>> {
    match manager.list() {
        Ok(listed) => Ok(listed),
        Err(why) if why.meaning(Call::List) == Meaning::Starting => Ok(by_record(topology)),
        Err(why) => {
            let (partition, domain) = (wanted.partition, guest.name.to_owned());
            Err(ActivationError::Manager { partition, domain, why }.told())
        }
    }
}

/// The step that activates a partition.
fn activation(wanted: &Need, listed: &[Listed], guest: Guest<'_>) -> Result<PartitionStep> {
    PartitionStep::of(wanted, listed, guest.uuid.unwrap_or_default()).ok_or_else(|| {
        let (partition, domain) = (wanted.partition, guest.name.to_owned());
        ActivationError::Modules { partition, domain }.told()
    })
}

/// What a step asks for.
fn asked(step: &PartitionStep) -> Wanted {
    Wanted { partition: step.partition, modules: step.modules(), domain: step.domain.clone() }
}

/// Whether a partition of these modules is listed as active.
fn is_active(listed: &[Listed], id: u32, modules: &Modules) -> bool {
    listed.iter().any(|one| one.id == id && one.active && one.modules() == *modules)
}

/// The step for a remembered partition. Where the address of a module is not known, the guest's own GPUs stand for it.
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
    let gpus = entry.modules.iter().filter_map(gpu).collect();
    let domain = entry.domain.clone();
    PartitionStep { partition: entry.id, gpus, domain, vfs: Vec::new(), may_wait: true }
}

/// The domains that run, with the GPUs of the board that each has.
pub fn running(world: &World, topology: &Topology) -> Result<Vec<Running>> {
    let hypervisor = world.hypervisor()?;
    let board: BTreeSet<Bdf> = topology.ruled().collect();
    let mut all = Vec::new();
    for row in hypervisor.domains()? {
        // One that has crashed may be kept with its process and its GPUs (`on_crash` preserve).
        if row.state == DomainState::ShutOff {
            continue;
        }
        let text = match hypervisor.xml(&row.name, XmlOf::Live) {
            // It has ended since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
            text => text?,
        };
        let failed = || format!("cannot tell which GPUs domain `{}` has", row.name);
        let held = DomainXml::parse(&text).and_then(|xml| xml.held(true)).doing(failed)?;
        let mut one = Running {
            domain: Domain { name: row.name.clone(), uuid: row.uuid.clone() },
            modules: Modules::new(),
            unknown: 0,
        };
        for gpu in held.devices.iter().filter(|bdf| board.contains(bdf)) {
            match topology.fabric().module_ids.iter().find(|(bdf, _)| bdf == gpu) {
                Some((_, module)) => drop(one.modules.insert(*module)),
                None => one.unknown += 1,
            }
        }
        all.push(one);
    }
    Ok(all)
}
