//! Fabric Manager's partitions compared with the running domains, and the release of an unused
//! partition.

mod boot_files;
mod ensure;
mod restore;

pub use boot_files::{
    BootFileError, FabricFile, HOOK, UNIT, config_steps, hook, refuse_old_libvirt,
    steps as file_steps, unit,
};
pub use ensure::{EnsuredPartitions, ensure, release_of};
pub use restore::{Restored, Restoring, StartMode, Unrestored, restore};

use crate::apply::bind::BindError;
use crate::apply::partition::{PartitionGpu, PartitionStep};
use crate::apply::{PartitionChange, Step, owner};
use crate::bdf::Bdf;
use crate::change::Change;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
pub use crate::partition::FabricError;
use crate::partition::{is_managed, running};
use crate::reporter::Question;
use crate::topology::{DeviceKind, Fabric, FabricModel, Partition, Topology};
use crate::world::World;
use gpuvm_core::fabric::{
    Domain, Listed, Modules, PartitionState, Release, RestoreEntry, RestoreList, Running, Verdict,
    VersionCheck, pending, release, states,
};
use gpuvm_core::verify::partition::Partitions;
use gpuvm_host::fabric::config::{Address, Config};
use gpuvm_host::fabric::{Manager, ManagerRefusal, RestoreFile, RestoreFileError, program};
use serde::Serialize;
use std::collections::BTreeSet;

/// A partition, as displayed.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownPartition {
    /// Its number.
    pub id: u32,
    /// Module ids of its GPUs.
    pub modules: Modules,
    /// Addresses of those GPUs whose module id is known.
    pub gpus: Vec<Bdf>,
    /// NVLinks of the GPU that has the fewest.
    pub links: u32,
    /// NVLinks that each of its GPUs should have in it.
    pub links_at_most: u32,
    /// Whether it is active.
    pub active: bool,
    /// The running domain that has it.
    pub holder: Option<Domain>,
    /// If active, the names of all running domains with GPUs of it; otherwise the holder's.
    pub holders: Vec<String>,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// A partition that must still be deactivated.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PendingPartition {
    /// Its number, its modules and the UUID of the domain that it was activated for.
    #[serde(flatten)]
    pub entry: RestoreEntry,
    /// The name of that domain; `None` if it is no longer defined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The reports of Fabric Manager and libvirt.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownFabric {
    /// The board; `None` if no board, or unknown.
    pub board: Option<String>,
    /// How NVSwitches serve guests.
    pub model: FabricModel,
    /// Fabric Manager's version; `None` if not installed here, or unknown.
    pub manager_version: Option<String>,
    /// Version of the host's driver; `None` if none is loaded, or NVSwitches are not shared.
    pub driver_version: Option<String>,
    /// Version of Fabric Manager's client library; `None` if unknown, or no Fabric Manager runs
    /// here.
    pub library_version: Option<String>,
    /// Whether Fabric Manager as it runs, the driver and, if known, the client library are of one
    /// version.
    pub versions: VersionCheck,
    /// NVSwitches that this host's Fabric Manager manages although guests should get them: no guest
    /// gets them meanwhile.
    pub managed_switches: Vec<Bdf>,
    /// Where it listens; of a record unknown.
    pub address: String,
    /// Why it gave no partitions; `None` if it did, or was not asked because NVSwitches are not
    /// shared.
    pub refusal: Option<String>,
    /// Why the file of active partitions could not be read, so that pending deactivations are
    /// unknown; `None` if it was read.
    pub unread: Option<String>,
    /// The partitions, by number.
    pub partitions: Vec<ShownPartition>,
    /// Partitions of domains that do not run, which are still to be deactivated, by number.
    pub pending: Vec<PendingPartition>,
}

impl ShownFabric {
    /// A fabric of whose partitions nothing is known.
    fn without(fabric: &Fabric, address: String) -> ShownFabric {
        ShownFabric {
            board: fabric.board.clone(),
            model: fabric.model,
            manager_version: None,
            driver_version: None,
            library_version: None,
            versions: VersionCheck::NotChecked,
            managed_switches: Vec::new(),
            address,
            refusal: None,
            unread: None,
            partitions: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Whether something needs repair.
    pub fn is_wrong(&self) -> bool {
        let wrong = self.partitions.iter().any(|partition| partition.verdict.is_wrong());
        let is_unsure = self.refusal.is_some() || self.unread.is_some();
        wrong || is_unsure || !self.pending.is_empty() || self.versions == VersionCheck::Differ
    }
}

/// Reads the state of this machine from Fabric Manager and libvirt.
pub fn show(world: &World) -> Result<ShownFabric> {
    let topology = world.topology()?;
    if world.is_recorded() {
        return Ok(recorded(&topology));
    }
    world.refuse_elsewhere("fabric show")?;
    let fabric = topology.fabric();
    let config = Config::read(&FsRoot::live()?)?;
    let address = config.address;
    let mut shown = ShownFabric::without(fabric, address.to_string());
    if fabric.model == FabricModel::FullPassthrough && program::process(&FsRoot::live()?)?.is_some()
    {
        let switches = topology.of_kind(DeviceKind::NvSwitch).map(|switch| switch.bdf);
        shown.managed_switches = switches.filter(|bdf| is_managed(&topology, *bdf)).collect();
    }
    if fabric.model != FabricModel::SharedNvswitch {
        return Ok(shown);
    }
    let versions = program::versions(&FsRoot::live()?);
    shown.versions = versions.check();
    shown.manager_version = versions.manager.or_else(program::installed_version);
    (shown.driver_version, shown.library_version) = (versions.driver, versions.library);
    let Look { listed, running, file } = Look::at(world, &topology, &address)?;
    match file {
        Ok(file) => {
            let known = world.hypervisor()?.domains()?;
            let name = |uuid: &str| {
                let its = known.iter().find(|row| row.uuid.eq_ignore_ascii_case(uuid));
                its.map(|row| row.name.clone())
            };
            let pending = pending(&file, &running, listed.as_deref().ok()).into_iter();
            let named = |entry: &RestoreEntry| PendingPartition {
                name: name(&entry.domain),
                entry: entry.clone(),
            };
            shown.pending = pending.map(named).collect();
            shown.pending.sort_by_key(|pending| pending.entry.id);
        }
        Err(error) => shown.unread = Some(error.to_string()),
    }
    match listed {
        Ok(listed) => {
            let states = states(&listed, &running).into_iter();
            shown.partitions = states.map(|state| of_state(state, &topology, &running)).collect();
        }
        Err(refusal) => shown.refusal = Some(refusal.note(&address)),
    }
    Ok(shown)
}

/// The partitions of a record, as they were when it was made: their present owners are unknown.
fn recorded(topology: &Topology) -> ShownFabric {
    let fabric = topology.fabric();
    let module_of = |gpu: &Bdf| fabric.module_ids.iter().find(|(bdf, _)| bdf == gpu);
    let partition = |one: &Partition| ShownPartition {
        id: one.id.0,
        modules: one.gpus.iter().filter_map(module_of).map(|(_, module)| *module).collect(),
        gpus: one.gpus.clone(),
        links: one.nvlinks_per_gpu,
        links_at_most: one.nvlinks_per_gpu,
        active: one.active,
        holder: None,
        holders: Vec::new(),
        verdict: if one.active { Verdict::Unknown } else { Verdict::Free },
    };
    let is_shared = fabric.model == FabricModel::SharedNvswitch;
    let partitions = fabric.partitions.iter().filter(|_| is_shared).map(partition);
    let shown = ShownFabric::without(fabric, "unknown".into());
    ShownFabric { partitions: partitions.collect(), ..shown }
}

/// A simultaneous view of Fabric Manager, libvirt and the file of active partitions.
struct Look {
    listed: std::result::Result<Vec<Listed>, ManagerRefusal>,
    /// The running domains, with the board's GPUs of each.
    running: Vec<Running>,
    file: std::result::Result<RestoreList, RestoreFileError>,
}

impl Look {
    fn at(world: &World, topology: &Topology, address: &Address) -> Result<Look> {
        let mut running = running(world, topology)?;
        running.sort_by(|a, b| a.domain.name.cmp(&b.domain.name));
        let listed = Manager::at(address.clone()).list();
        Ok(Look { listed, running, file: RestoreFile::read(RestoreFile::here()) })
    }
}

/// Returns the state that `verify` compares guests with, and descriptions of unknown parts. `None`
/// if NVSwitches are not shared here.
pub fn compared(world: &World, topology: &Topology) -> Result<(Option<Partitions>, Vec<String>)> {
    let mut untold = Vec::new();
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Ok((None, untold));
    }
    let config = Config::read(&FsRoot::live()?)?;
    let Look { listed, mut running, file } = Look::at(world, topology, &config.address)?;
    if config.is_of_vgpu() {
        // Whether whole GPUs need a partition there is not documented.
        running.retain(|one| one.modules == one.vgpus);
    }
    let listed = listed.map_err(|refusal| {
        untold.push(format!("NVLink partitions ({})", refusal.note(&config.address)));
    });
    let remembered = file.unwrap_or_else(|error| {
        untold.push(format!("NVLink partitions of guests that are off ({error})"));
        RestoreList::default()
    });
    Ok((Some(Partitions { listed: listed.ok(), running, remembered }), untold))
}

/// Adds the addresses of a partition's GPUs.
fn of_state(state: PartitionState, topology: &Topology, running: &[Running]) -> ShownPartition {
    let gpus = state.modules.iter().filter_map(|module| address_of(topology, *module)).collect();
    let holders = running.iter().filter(|one| state.active && one.has_any(&state.modules));
    let mut holders: BTreeSet<String> = holders.map(|one| one.domain.name.clone()).collect();
    holders.extend(state.holder.iter().map(|holder| holder.name.clone()));
    let holders = holders.into_iter().collect();
    let PartitionState { id, modules, links, links_at_most, active, holder, verdict } = state;
    ShownPartition { id, modules, gpus, links, links_at_most, active, holder, holders, verdict }
}

/// The GPU of a module id; `None` if unknown.
fn address_of(topology: &Topology, module: u32) -> Option<Bdf> {
    let all = &topology.fabric().module_ids;
    all.iter().find(|(_, id)| *id == module).map(|(bdf, _)| *bdf)
}

/// Returns the GPUs of the board with unknown module id.
fn unplaced(topology: &Topology) -> Vec<Bdf> {
    let known = &topology.fabric().module_ids;
    topology.ruled().filter(|gpu| !known.iter().any(|(bdf, _)| bdf == gpu)).collect()
}

/// Returns the step that deactivates a partition. The GPU of a module without an address has left
/// the bus, or is one with unknown module id: then no guest may have any of these.
fn deactivation(topology: &Topology, entry: &RestoreEntry) -> PartitionStep {
    let gpu = |&module: &u32| Some(PartitionGpu { module, bdf: address_of(topology, module)? });
    let gpus: Vec<PartitionGpu> = entry.modules.iter().filter_map(gpu).collect();
    let found: Modules = gpus.iter().map(|gpu| gpu.module).collect();
    let lost: Modules = entry.modules.difference(&found).copied().collect();
    let candidates = if lost.is_empty() { Vec::new() } else { unplaced(topology) };
    let step = PartitionStep::new(entry.id, gpus, entry.domain.clone());
    PartitionStep { lost, candidates, ..step }
}

/// The step with all virtual functions of its GPUs, which leaves the partition active while a guest
/// has any.
fn with_functions(step: PartitionStep, topology: &Topology) -> PartitionStep {
    let vfs = step.gpus.iter().flat_map(|gpu| topology.vfs_of(gpu.bdf));
    PartitionStep { beside: vfs.map(|vf| vf.bdf).collect(), ..step }
}

/// Refuses to deactivate a partition if a guest has a GPU that may belong to it.
fn refuse_candidates(
    step: &PartitionStep,
    hypervisor: &dyn Hypervisor,
) -> std::result::Result<(), FabricError> {
    let free: std::result::Result<(), BindError> =
        owner::on_this_machine(hypervisor, false, |look| look.free_of_guests(&step.candidates));
    free.map_err(|why| FabricError::UnknownModules {
        partition: step.partition,
        modules: step.lost.clone(),
        why: why.to_string(),
    })
}

/// Plans the release of an unused active partition; does nothing if it is not active.
pub fn release_partition(world: &World, partition: u32) -> Result<Change> {
    world.refuse_recorded("fabric release")?;
    world.refuse_elsewhere("fabric release")?;
    let topology = world.topology()?;
    if topology.fabric().model != FabricModel::SharedNvswitch {
        return Err(FabricError::NotShared.with_hint());
    }
    let manager = Manager::of_host(&FsRoot::live()?)?;
    let listed = manager.list().map_err(|refusal| FabricError::from(refusal).with_hint())?;
    let running = running(world, &topology)?;
    let steps = match release(partition, &listed, &running) {
        Release::AlreadySo => Vec::new(),
        Release::Deactivate => {
            let step = step(partition, &listed, &topology).map_err(FabricError::with_hint)?;
            refuse_candidates(&step, &*world.hypervisor()?).map_err(FabricError::with_hint)?;
            let is_of_vgpu = Config::read(&FsRoot::live()?)?.is_of_vgpu();
            let step = if is_of_vgpu { with_functions(step, &topology) } else { step };
            vec![Step::Partition(PartitionChange::Deactivate(step))]
        }
        Release::Refused(refusal) => return Err(FabricError::from(refusal).with_hint()),
    };
    let question = (!steps.is_empty()).then(|| Question::Agree {
        lines: None,
        question: "release it?",
        what: format!("releasing partition {partition}"),
    });
    let again = format!("gpuvm fabric release {partition}");
    let subject = partition.to_string();
    Ok(Change { question, again, ..Change::new("fabric release", &subject, steps, ()) })
}

/// The step that deactivates a listed partition.
fn step(
    partition: u32,
    listed: &[Listed],
    topology: &Topology,
) -> std::result::Result<PartitionStep, FabricError> {
    let found = listed.iter().find(|one| one.id == partition);
    let modules = found.map(Listed::modules).unwrap_or_default();
    let file = RestoreFile::read(RestoreFile::here())?;
    let domain = file.get(partition).map(|entry| entry.domain.clone()).unwrap_or_default();
    Ok(deactivation(topology, &RestoreEntry { id: partition, modules, domain, vfs: Vec::new() }))
}

/// Refuses to call a partition released that Fabric Manager lists as active: such as with other
/// GPUs since the plan.
pub fn released(partition: u32) -> Result<()> {
    let listed = Manager::of_host(&FsRoot::live()?)?.list();
    let listed = listed.map_err(|refusal| FabricError::from(refusal).with_hint())?;
    if listed.iter().any(|one| one.id == partition && one.active) {
        return Err(FabricError::ChangedSince { partition }.with_hint());
    }
    Ok(())
}
